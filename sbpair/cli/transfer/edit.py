"""`sbpair edit`: one message of any entity, changed in an editor and sent in its place."""

import difflib
import logging
import os
import shlex
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.asking import YesOption, go_ahead
from sbpair.cli.context import load_settings, run_async, stoppable, system_clock, unchanged
from sbpair.cli.options import Options, command
from sbpair.cli.transfer.entity_ref import EntityArgument, EntityRef, NamespaceOptions, find_entity_ref, refuse_unnamed
from sbpair.cli.transfer.options import DESPITE, AgainToOption, DespiteOption, LedgerOption, NewLedgerOption
from sbpair.cli.transfer.recovering import Recovery, command_line, perform
from sbpair.cli.transfer.report import check_new_ledger
from sbpair.cli.transfer.resending import check_destination, resender, sending_request, sent_there_before, to_or_itself
from sbpair.core.errors import MalformedMessageError, SbpairError, UsageError
from sbpair.core.redact import printable
from sbpair.core.retry import PATIENCE_SECONDS
from sbpair.core.serialization import INLINED
from sbpair.core.transfer.summary import Doing, MoveResult
from sbpair.files import write_private_temporary
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    import asyncio

    from sbpair.core.message import Received
    from sbpair.core.transfer.destinations import DestinationSeen
    from sbpair.core.transfer.verdict import Judge

_log = logging.getLogger("sbpair")
_STATE = "Nothing was sent; the message is as it was."


@dataclass(frozen=True, slots=True)
class Edited:
    """What `edit -o json` prints. `diff`: lines of a unified diff; none if nothing was changed."""

    sequence_number: int
    diff: tuple[str, ...]
    recovered: MoveResult = field(metadata=INLINED)


@command(output="cli.transfer.edit:Edited")
def edit(
    options: Options,
    entity: EntityArgument,
    number: Annotated[
        int, typer.Argument(metavar="NUMBER", min=1, help="Sequence number, as `dlq peek` or `entity peek` shows it.")
    ],
    *,
    on: NamespaceOptions,
    dlq: Annotated[bool, typer.Option("--dlq", help="A dead letter; it is sent to its queue again.")] = False,
    to: AgainToOption = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file", metavar="FILE", help="Take the edited JSON from here; no editor runs.", show_default=False
        ),
    ] = None,
    despite_duplicate_detection: DespiteOption = False,
    ledger: LedgerOption = None,
    new_ledger: NewLedgerOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Edit, show the difference, and send nothing.")] = False,
    yes: YesOption = False,
) -> CommandResult:
    """Change one message in an editor, send it, and complete the original: active, deferred, scheduled or dead letter.

    $VISUAL or $EDITOR gets the message as JSON, without a shell in between. What you leave unchanged keeps its bytes.
    The difference is shown before anything is sent. If the editor fails, or nothing was changed, nothing happens. To
    reach an active message or a dead letter, the ones before it are locked for a moment and released. The
    original is completed in the transaction that sends the new form; where there is none (--to another namespace, Basic
    tier), a crash may leave both forms, and with --ledger it is not sent again. The new form goes to the end of its
    queue, in a session behind the session's other messages. Needs Listen and Send.

    \b
    Examples:
      sbpair edit orders 4711 --dlq
      EDITOR="code --wait" sbpair edit contoso-weu:orders 4711 --dry-run
      sbpair edit news/Subscriptions/audit 12 --to audit-repair --from-file repaired.json --yes
    """
    check_new_ledger(ledger, new=new_ledger)
    settings = load_settings(options)
    source = find_entity_ref(settings, on, entity)
    if not dry_run:
        refuse_unnamed(options, source, yes=yes)
    target = to_or_itself(settings, on, source, to)
    check_destination(target)
    found = _find(options, source, number, dead_letter=dlq)
    try:
        payload, diff, kept = _edited(found, from_file)
    except MalformedMessageError as error:
        raise SbpairError(f"{error.message} {_STATE}", hint="`sbpair move` sends it as it is.") from error
    if not diff:
        raise UsageError(f"Nothing was changed in message {number} of {source}. {_STATE}")
    if not options.quiet:
        for line in diff:
            _log.info(line)
    given = [*(["--dlq"] if dlq else []), *(["--to", to] if to else []), *on.words()]
    given += [DESPITE] if despite_duplicate_detection else []
    given += ["--ledger", str(ledger)] if ledger else []
    doing = Doing("sent", "edited message", command_line(["sbpair", "edit", entity, str(number), *given]), edited=True)

    def ask(messages: str) -> None:
        question = f"Send {messages} to {target} and complete message {number} of {source}"
        go_ahead(options, question, yes=yes, state=_STATE)

    recovery = _recovery(options, source, target, found, payload, dead_letter=dlq, despite=despite_duplicate_detection)
    sent = False
    try:
        result = perform(
            "edit",
            recovery,
            doing,
            options=options,
            ask=ask,
            dry_run=dry_run,
            yes=yes,
            ledger=ledger,
            new_ledger=new_ledger,
        )
        sent = bool(result.data.report.forwarded) and not dry_run
    finally:
        if kept is not None and sent:
            kept.unlink(missing_ok=True)
        elif kept is not None:
            _log.info("The edited text is kept. To send it, add --from-file %s", kept)
    return replace(result, data=Edited(number, diff, result.data))


def _recovery(
    options: Options,
    source: EntityRef,
    target: EntityRef,
    found: "Received",
    payload: bytes,
    *,
    dead_letter: bool,
    despite: bool,
) -> Recovery:
    """The run that sends this one message and looks for it where it lies."""
    from sbpair.core.message import State
    from sbpair.core.transfer.resend import Editor, Selection

    judge = resender(Selection(), same_entity=sent_there_before(source, target))

    def make_judge(seen: "DestinationSeen", recent: frozenset[str]) -> "Judge":
        return Editor(judge(seen, recent), found, payload)

    request = sending_request(
        options,
        source.path,
        target.path,
        dead_letter=dead_letter,
        deferred=found.state is State.DEFERRED,
        scheduled=found.state is State.SCHEDULED,
    )
    request = replace(request, max_messages=1)
    return Recovery(options, source, target, request, make_judge, despite_duplicate_detection=despite, one_message=True)


def _find(options: Options, source: EntityRef, number: int, *, dead_letter: bool) -> "Received":
    """The message with this number.

    Raises:
        UsageError: there is none.
        ServiceError: the entity cannot be browsed.
    """

    async def work(stop: "asyncio.Event") -> "Received | None":
        from sbpair.connect import open_namespace
        from sbpair.runtime.browse import page_from
        from sbpair.runtime.links import close_quietly

        async with open_namespace(source.access) as (messaging, _):
            receiver = messaging.receiver(source.path, dead_letter=dead_letter)
            try:
                patience = options.timeout_seconds(PATIENCE_SECONDS)
                asked = page_from(receiver, number, clock=system_clock(), most=1, patience_seconds=patience)
                page = await stoppable(stop, asked)
            finally:
                await close_quietly(receiver)
        return next((one for one in page if one.sequence_number == number), None)

    with unchanged(_STATE):
        found = run_async(options, work)
    if found is None:
        where = f"the dead-letter queue of {source}" if dead_letter else str(source)
        there = f"{source.access.label}:{source.path}"
        again = command_line(["sbpair", "dlq" if dead_letter else "entity", "peek", there])
        raise UsageError(f"No message with the number {number} lies in {where}.", hint=f"See: {again}")
    return found


def _edited(found: "Received", from_file: Path | None) -> tuple[bytes, tuple[str, ...], Path | None]:
    """The new bytes, how the documents differ, and the file in which an editor left the new one."""
    from sbpair.core.editing import as_document, document_text, edited, read_document
    from sbpair.core.names import is_dead_letter_path
    from sbpair.core.rewrite import as_sent

    payload = as_sent(found.payload, from_dead_letter=is_dead_letter_path(found.source)).payload
    before = document_text(as_document(payload))
    if from_file is not None:
        after, kept = _read(from_file), None
    else:
        after, kept = _in_editor(before)
    try:
        document = read_document(after)
        changed = edited(payload, document)
    except UsageError as error:
        hint = error.hint if kept is None else f"The edited text is kept: mend it, and add --from-file {kept}"
        raise UsageError(f"{error.message} {_STATE}", hint=hint) from error
    if changed == payload:
        if kept is not None:
            kept.unlink(missing_ok=True)
        return payload, (), None
    lines = difflib.unified_diff(
        before.splitlines(), document_text(document).splitlines(), "before", "after", lineterm="", n=1
    )
    return changed, tuple(printable(line) for line in lines), kept


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The edited message cannot be read from {path}: {error}. {_STATE}") from error


def _in_editor(text: str) -> tuple[str, Path]:
    """The text as the editor left it, and the file of its owner's alone where it stands.

    Raises:
        UsageError: no editor is named, or it cannot be started or fails.
    """
    try:
        words = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    except ValueError as error:
        raise UsageError(f"VISUAL or EDITOR is no command line: {error}. {_STATE}") from error
    if not words:
        raise UsageError(f"Neither VISUAL nor EDITOR names an editor. {_STATE}", hint="EDITOR=vi, or --from-file FILE")
    try:
        path = write_private_temporary("sbpair-edit-", ".json", text.encode())
    except OSError as error:
        raise UsageError(f"The message cannot be written for the editor: {error}. {_STATE}") from error
    try:
        code = subprocess.run([*words, str(path)], check=False).returncode
        if code == 0:
            return path.read_bytes().decode(), path
    except (OSError, UnicodeDecodeError) as error:
        path.unlink(missing_ok=True)
        raise UsageError(
            f"The editor {words[0]} did not work: {getattr(error, 'strerror', None) or error}. {_STATE}"
        ) from error
    path.unlink(missing_ok=True)
    raise UsageError(f"The editor {words[0]} ended with exit code {code}. {_STATE}")
