"""`sbpair edit`: one message of any entity, or a few, changed in an editor and sent in their place."""

import logging
import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair import operations
from sbpair.cli.options import Options, command
from sbpair.cli.transfer import options as shared
from sbpair.cli.transfer.entity_ref import EntityOptions, call_at
from sbpair.cli.transfer.planned import carry_out
from sbpair.core.errors import UsageError, unchanged
from sbpair.core.retry import PATIENCE_SECONDS
from sbpair.files import write_private_temporary
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    from sbpair.core.editing import Edit, Editable, Editables

_log = logging.getLogger("sbpair")
_STATE = "Nothing was sent; the message is as it was."


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
    reasons: shared.ReasonOption = None,
    filters: shared.Filters,
    dlq: Annotated[bool, typer.Option(help="A dead letter; it is sent to its queue again.")] = False,
    to: shared.AgainToOption = None,
    from_file: Annotated[Path | None, typer.Option(help="Take the edited JSON from here; no editor runs.")] = None,
    despite_duplicate_detection: shared.DespiteOption = False,
    ledger: shared.LedgerOption = None,
    new_ledger: shared.NewLedgerOption = False,
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

    shared.check_new_ledger(ledger, new=new_ledger)
    if (number is None) is not bool(filters.given or reasons):
        raise UsageError("Give the NUMBER of one message, or --where or another filter for a few. " + _STATE)
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
    with unchanged(_STATE):
        found = call_at(options, source, operations.find_message, request)
    text, kept = (_read(from_file), None) if from_file is not None else _in_editor(found.text)
    changed = _changed(found, text, kept)
    if not changed:
        if kept is not None:
            kept.unlink(missing_ok=True)
        raise UsageError(f"Nothing was changed in {what} of {source}. {_STATE}")
    if not options.quiet:
        for line in (line for _, edit in changed for line in edit.diff):
            _log.info(line)

    def doing(messages: str) -> str:
        return f"Send {messages} to {target} and complete {what} of {source}"

    request = replace(request, text=text, found=found)
    sent = False
    try:
        result = carry_out(options, operations.edit, request, (source, target), doing, state=_STATE)
        sent = bool(result.data.moved.report.forwarded) and not options.dry_run
    finally:
        if kept is not None and sent:
            kept.unlink(missing_ok=True)
        elif kept is not None:
            _log.info("The edited text is kept. To send it, add --from-file %s", kept)
    return result


def _changed(found: "Editables", text: str, kept: Path | None) -> "tuple[tuple[Editable, Edit], ...]":
    """The messages that the text says something new of. `kept`: where an editor left the text."""
    try:
        return found.changed(text)
    except UsageError as error:
        hint = error.hint if kept is None else f"The edited text is kept: mend it, and add --from-file {kept}"
        raise UsageError(f"{error.message} {_STATE}", hint=hint) from error


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
