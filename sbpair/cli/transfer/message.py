"""`sbpair message`, `explain`, `edit`, `undefer` and `purge`: messages of any entity, dealt with where they lie."""

import logging
import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair import operations
from sbpair.cli.options import Options, OptionSet, command
from sbpair.cli.transfer.entity_ref import EntityOptions, call_at
from sbpair.cli.transfer.options import (
    RESEND_DRY_RUN,
    AgainToOption,
    DespiteOption,
    Filters,
    LedgerOption,
    LimitOption,
    NewLedgerOption,
    ReasonOption,
    ResendOptions,
    check_new_ledger,
)
from sbpair.cli.transfer.planned import PlanFiles, carry_out
from sbpair.core.durations import parse_moment
from sbpair.core.errors import UsageError, unchanged
from sbpair.core.retry import PATIENCE_SECONDS
from sbpair.core.serialization import to_plain
from sbpair.files import write_private_temporary
from sbpair.render.result import CommandResult, Table, columns, table_of

if TYPE_CHECKING:
    pass

NumberArgument = Annotated[
    int, typer.Argument(metavar="NUMBER", min=1, help="Sequence number, as `dlq peek` or `entity peek` shows it.")
]
DlqOption = Annotated[bool, typer.Option(help="A dead letter.")]
ArchiveOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write the messages to a file in this folder first.")
]
NoArchiveOption = Annotated[bool, typer.Option(help="Delete permanently, without an archive.")]
_DRY_RUN = "Find the message, and say what would be done."


@command(output="core.transfer.peeked:PeekedMessage")
def show(options: Options, on: EntityOptions, number: NumberArgument, *, dlq: DlqOption = False) -> CommandResult:
    """Show one message completely: body, properties, state. Changes nothing. Needs Listen.

    Why it is there: `sbpair explain`.

    \b
    Examples:
      sbpair message show orders 4711
      sbpair message show contoso-weu:orders 12 --dlq -o json
    """
    place = on.find(options)
    request = operations.ExplainRequest(place.path, number, dlq, options.timeout_seconds(30.0))
    found = call_at(options, place, operations.show_message, request)
    facts = to_plain(found)
    facts |= {f"property {name}": value for name, value in facts.pop("application_properties").items()}
    del facts["payload_base64"]
    rows = [{"field": name, "value": str(value)} for name, value in facts.items() if value is not None]
    return CommandResult(found, (Table("message", columns("field", "value"), rows),))


@command(output="core.transfer.explained:ExplainedMessage")
def explain(options: Options, on: EntityOptions, number: NumberArgument, *, dlq: DlqOption = False) -> CommandResult:
    """Explain one message: where it came from, why it is there, which messages precede it, and what to do next.

    Also which rule matched it, when it expires, whether it is locked, who can receive it, and others with its
    MessageId. Unknown facts are marked as unknown. Changes nothing. Needs Listen; Manage shows more.

    \b
    Examples:
      sbpair explain orders 4711 --dlq
      sbpair explain contoso-weu:news/Subscriptions/audit 12 -o json
    """
    from sbpair.core.transfer.explained import MessageFact

    place = on.find(options)
    request = operations.ExplainRequest(place.path, number, dlq, options.timeout_seconds(30.0))
    found = call_at(options, place, operations.explain_message, request)
    shown = [one if one.known else replace(one, text=f"not known: {one.text}") for one in found.statements]
    return CommandResult(
        found,
        (table_of(MessageFact, shown),),
        notes=(f"Message {number} of {place}: {found.because}.",),
        summary=f"Next: {found.command}",
        closing=True,
    )


@command(output="core.transfer.summary:MoveResult", asks=True, dry_run=_DRY_RUN)
def dead_letter(
    options: Options,
    on: EntityOptions,
    number: NumberArgument,
    *,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Dead-letter reason.")] = "Operator",
    description: Annotated[str, typer.Option(metavar="TEXT", help="Dead-letter description.", show_default=False)] = "",
) -> CommandResult:
    """Move one active or deferred message to the dead letters of its queue or subscription.

    For a message that keeps its consumers, or its session, from going on. To reach an active message, the ones before
    it are locked for a moment and released. Needs Listen. Back again: `sbpair dlq resubmit`.

    \b
    Examples:
      sbpair message dead-letter orders 4711 --reason Poison
      sbpair message dead-letter contoso-weu:orders 4711 --dry-run
    """
    source = on.to_write(options)
    request = operations.DeadLetterRequest(
        source.path,
        number,
        reason=reason,
        description=description,
        patience_seconds=options.timeout_seconds(PATIENCE_SECONDS),
    )
    doing, what = ("Dead-letter", f"of {source}"), f"message {number}"
    return carry_out(options, operations.dead_letter_message, request, source, None, doing, what=what)


@command(output="core.transfer.summary:MoveResult", asks=True, dry_run=_DRY_RUN)
def complete(
    options: Options,
    on: EntityOptions,
    number: NumberArgument,
    *,
    dlq: DlqOption = False,
    archive: ArchiveOption = None,
    no_archive: NoArchiveOption = False,
) -> CommandResult:
    """Delete one message, archived first: active, deferred, scheduled (it is cancelled) or dead letter.

    Asks for the entity's name. --archive DIR or --no-archive has to be given; `sbpair restore` sends archived messages.
    To reach an active message, the ones before it are locked for a moment and released. Needs Listen, and Send for a
    scheduled one.

    \b
    Examples:
      sbpair message complete orders 4711 --archive purged/
      sbpair message complete orders 12 --dlq --no-archive --yes
    """
    check_archive(archive, no_archive)
    source = on.to_write(options)
    request = operations.PurgeRequest(
        source.path, archive, dead_letter=dlq, number=number, patience_seconds=options.timeout_seconds(PATIENCE_SECONDS)
    )
    kept = "permanently" if archive is None else f"after writing it to {archive}"
    doing, what = ("Delete", f"of {source} {kept}"), f"message {number}"
    return carry_out(options, operations.purge, request, source, None, doing, what=what, deletes=True)


@command(output="core.transfer.summary:EditResult", asks=True, dry_run=_DRY_RUN)
def reschedule(
    options: Options,
    on: EntityOptions,
    number: NumberArgument,
    at: Annotated[
        str, typer.Argument(metavar="TIME", help="When it becomes active: 2026-11-22T08:00Z, or 2h for in two hours.")
    ],
) -> CommandResult:
    """Schedule a scheduled message of a queue or topic for another time.

    A new message is scheduled and the old one cancelled, in one transaction; it gets another sequence number. Needs
    Listen and Send.

    \b
    Examples:
      sbpair message reschedule orders 4711 2026-11-22T08:00Z
      sbpair message reschedule orders 4711 15m --yes
    """
    source = on.to_write(options)
    when = _future(at)
    request = operations.RescheduleRequest(
        source.path, number, when, patience_seconds=options.timeout_seconds(PATIENCE_SECONDS)
    )
    doing = "Schedule", f"of {source} for {datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M:%S} UTC"
    what = f"message {number}"
    return carry_out(options, operations.reschedule_message, request, source, source, doing, what=what)


def _future(text: str) -> float:
    now = datetime.now(UTC).timestamp()
    moment = parse_moment(text, now)
    return moment if text[:1].isdigit() and "-" in text else 2 * now - moment  # a duration is that long from now


@command(output="core.transfer.summary:MoveResult", asks=True, dry_run=RESEND_DRY_RUN)
def undefer(options: Options, on: EntityOptions, *, to: AgainToOption = None, chosen: ResendOptions) -> CommandResult:
    """Make deferred messages active again: each is sent to its own queue and completed, in one transaction.

    For messages whose sequence numbers are lost. They go to the end of the queue, in a session behind its other
    messages; nothing else is touched. Needs Listen and Send.

    \b
    Examples:
      sbpair undefer orders --dry-run
      sbpair undefer orders --where "country = 'DE'" --yes
      sbpair undefer news/Subscriptions/audit --to audit-repair
    """
    source, target = on.and_target(options, to)
    asked = chosen.request(options, one_namespace=source.on_same_namespace(target))
    request = operations.UndeferRequest(source.path, target.path, **asked)
    doing = "Send", f"of {source} to {target}"
    return carry_out(options, operations.undefer, request, source, target, doing)


# `sbpair dlq purge` and `sbpair purge`: messages are deleted, archived first unless told otherwise.


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeOptions(OptionSet):
    """Which messages are deleted, and whether they are kept in a file."""

    filters: Filters
    limit: LimitOption = None
    archive: ArchiveOption = None
    no_archive: NoArchiveOption = False
    files: PlanFiles


_PURGE_DRY_RUN = "Browse, and say what would be deleted."


@command(output="core.transfer.summary:MoveResult", asks=True, dry_run=_PURGE_DRY_RUN)
def purge_dead_letters(
    options: Options, on: EntityOptions, *, reasons: ReasonOption = None, chosen: PurgeOptions
) -> CommandResult:
    """Delete the dead letters of a queue or subscription that are there now, archived first.

    Asks for the entity's name. --archive DIR or --no-archive has to be given. `sbpair restore` sends archived messages
    to the queue, or to the topic of a subscription, which gives every subscription a copy. Needs Listen.

    \b
    Examples:
      sbpair dlq purge orders --archive purged/ --reason TTLExpiredException
      sbpair dlq purge orders --no-archive --until 30d --yes
    """
    return _purge(options, on, chosen, reasons or (), dead_letter=True)


@command(output="core.transfer.summary:MoveResult", asks=True, dry_run=_PURGE_DRY_RUN)
def purge(options: Options, on: EntityOptions, *, chosen: PurgeOptions) -> CommandResult:
    """Delete what a queue or subscription holds now, deferred and scheduled messages too, archived first.

    Asks for the entity's name. --archive DIR or --no-archive has to be given. `sbpair restore` sends archived messages
    to the queue, or to the topic of a subscription, which gives every subscription a copy. Scheduled messages are
    cancelled; a topic holds no others. An entity that requires sessions is emptied session by session; their states
    stay, and so do dead letters (`sbpair dlq purge`). Needs Listen, and Send for scheduled messages.

    \b
    Examples:
      sbpair purge orders --archive purged/
      sbpair purge contoso-weu:orders --no-archive --until 30d --dry-run
    """
    return _purge(options, on, chosen)


def check_archive(archive: Path | None, no_archive: bool) -> None:
    """Raises UsageError unless exactly one of --archive and --no-archive was given."""
    if (archive is None) != no_archive:
        ways = "--archive DIR, which keeps what is deleted in a file, or --no-archive, which deletes it permanently"
        raise UsageError(f"Give {ways}{'; not both' if no_archive else ''}. Nothing was deleted.")


def _purge(
    options: Options, on: EntityOptions, chosen: PurgeOptions, reasons: Sequence[str] = (), *, dead_letter: bool = False
) -> CommandResult:
    check_archive(chosen.archive, chosen.no_archive)
    source, archive = on.to_write(options), chosen.archive
    request = operations.PurgeRequest(
        source.path,
        archive,
        dead_letter=dead_letter,
        selection=operations.Selection(chosen.filters.wanted(), reasons),
        max_messages=chosen.limit,
        patience_seconds=options.timeout_seconds(PATIENCE_SECONDS),
    )
    kept = "permanently" if archive is None else f"after writing them to {archive}"
    doing = "Delete", f"of {source} {kept}"
    return carry_out(options, operations.purge, request, source, None, doing, deletes=True, files=chosen.files)


_log = logging.getLogger("sbpair")
_UNSENT = "Nothing was sent or changed."


@command(output="core.transfer.summary:EditResult", asks=True, dry_run="Edit, show the difference, and send nothing.")
def edit(
    options: Options,
    on: EntityOptions,
    number: Annotated[
        int | None,
        typer.Argument(
            metavar="NUMBER",
            min=1,
            help="Sequence number, as `dlq peek` or `entity peek` shows it. Without one: up to 50 messages that match "
            "--where, --reason and the like, in one document.",
            show_default=False,
        ),
    ] = None,
    *,
    reasons: ReasonOption = None,
    filters: Filters,
    dlq: Annotated[bool, typer.Option(help="A dead letter; it is sent to its queue again.")] = False,
    to: AgainToOption = None,
    from_file: Annotated[Path | None, typer.Option(help="Take the edited JSON from here; no editor runs.")] = None,
    despite_duplicate_detection: DespiteOption = False,
    ledger: LedgerOption = None,
    new_ledger: NewLedgerOption = False,
) -> CommandResult:
    """Change messages in an editor, send them, and complete the originals: active, deferred, scheduled, dead letters.

    $VISUAL or $EDITOR gets the message as JSON, without a shell in between; several as one array, in which what you
    take out stays as it is. What you leave unchanged keeps its bytes.
    The difference is shown before anything is sent. If the editor fails, or nothing was changed, nothing happens. To
    reach an active message or a dead letter, the ones before it are locked for a moment and released. The
    original is completed in the transaction that sends the new form; where there is none (--to another namespace, Basic
    tier), a crash may leave both forms, and with --ledger it is not sent again. The new form goes to the end of its
    queue, in a session behind the session's other messages. Needs Listen and Send.

    \b
    Examples:
      sbpair edit orders 4711 --dlq
      sbpair edit orders --dlq --where "country = 'DE'"
      EDITOR="code --wait" sbpair edit contoso-weu:orders 4711 --dry-run
      sbpair edit news/Subscriptions/audit 12 --to audit-repair --from-file repaired.json --yes
    """
    from sbpair.operations.move import check_destination

    check_new_ledger(ledger, new=new_ledger)
    if (number is None) is not bool(filters.given or reasons):
        raise UsageError("Give the NUMBER of one message, or --where or another filter for a few. " + _UNSENT)
    source, target = on.and_target(options, to)
    check_destination(target.path)
    what = "the messages" if number is None else f"message {number}"
    request = operations.EditRequest(
        source.path,
        number,
        to=target.path,
        dead_letter=dlq,
        selection=operations.Selection(filters.wanted(), reasons or ()),
        despite_duplicate_detection=despite_duplicate_detection,
        patience_seconds=options.timeout_seconds(PATIENCE_SECONDS),
        ledger=ledger,
        new_ledger=new_ledger,
    )
    with unchanged(_UNSENT):
        found = call_at(options, source, operations.find_message, request)
        text, kept = (_read(from_file), None) if from_file is not None else _in_editor(found.text)
        try:
            changed = found.changed(text)
        except UsageError as error:
            if kept is not None:
                error.hint = f"The edited text is kept: mend it, and add --from-file {kept}"
            raise
    if not changed:
        if kept is not None:
            kept.unlink(missing_ok=True)
        raise UsageError(f"Nothing was changed in {what} of {source}. Nothing was sent.")
    if not options.quiet:
        for line in (line for _, edit in changed for line in edit.diff):
            _log.info(line)
    doing = "Send", f"to {target} and complete {what} of {source}"
    request = replace(request, text=text, found=found)
    sent = False
    try:
        result = carry_out(options, operations.edit, request, source, target, doing)
        sent = bool(result.data.moved.report.forwarded) and not options.dry_run
    finally:
        if kept is not None and sent:
            kept.unlink(missing_ok=True)
        elif kept is not None:
            _log.info("The edited text is kept. To send it, add --from-file %s", kept)
    return result


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The edited message cannot be read from {path}: {error}.") from error


def _in_editor(text: str) -> tuple[str, Path]:
    """The text as the editor left it, and the file of its owner's alone where it stands.

    Raises:
        UsageError: no editor is named, or it cannot be started or fails.
    """
    try:
        words = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    except ValueError as error:
        raise UsageError(f"VISUAL or EDITOR is no command line: {error}.") from error
    if not words:
        raise UsageError("Neither VISUAL nor EDITOR names an editor.", hint="EDITOR=vi, or --from-file FILE")
    try:
        path = write_private_temporary("sbpair-edit-", ".json", text.encode())
    except OSError as error:
        raise UsageError(f"The message cannot be written for the editor: {error}.") from error
    try:
        code = subprocess.run([*words, str(path)], check=False).returncode
        if code == 0:
            return path.read_bytes().decode(), path
    except (OSError, UnicodeDecodeError) as error:
        path.unlink(missing_ok=True)
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"The editor {words[0]} did not work: {why}.") from error
    path.unlink(missing_ok=True)
    raise UsageError(f"The editor {words[0]} ended with exit code {code}.")
