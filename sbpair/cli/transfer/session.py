"""`sbpair session`: the sessions of any queue or subscription, and their states."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair import operations
from sbpair.cli.asking import go_ahead
from sbpair.cli.options import Options, command
from sbpair.cli.transfer.entity_ref import EntityOptions, call_at
from sbpair.core.errors import UsageError, unchanged
from sbpair.core.outcome import Exit
from sbpair.render.result import CommandResult, table_of

if TYPE_CHECKING:
    from sbpair.core.transfer.peeked import SessionState

SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="Id of the session.")]
_DRY_RUN = "Say what would change."
_STATE = "The session is as it was."


@command(output="core.transfer.peeked:SessionList")
def list_all(
    options: Options,
    on: EntityOptions,
    *,
    lock: Annotated[
        bool, typer.Option(help="Lock each for a moment, to see which receivers hold, and their states.")
    ] = False,
) -> CommandResult:
    """List the sessions of a queue or subscription that hold messages or a state, with their counts and ages.

    Browses; whether a session is locked can only be known by locking it, which --lock does. Needs Listen.

    \b
    Examples:
      sbpair session list orders
      sbpair session list contoso-weu:orders --lock -o json
    """
    from sbpair.core.transfer.peeked import SessionFacts

    place = on.find(options)
    request = operations.ListSessionsRequest(place.path, lock=lock, timeout_seconds=options.timeout_seconds(30.0))
    found = call_at(options, place, operations.list_sessions, request)
    columns = () if lock else ("session_id", "active", "deferred", "scheduled", "oldest")
    return CommandResult(found, (table_of(SessionFacts, found.sessions, show=columns),), summary=found.closing)


@command(output="core.transfer.peeked:SessionState")
def show(options: Options, on: EntityOptions, session: SessionArgument) -> CommandResult:
    """Show one session of a queue or subscription with its state, as text, or as hex if it is not text.

    Locks it for a moment. Exit code 3: a receiver holds it, and its state cannot be read. Needs Listen.

    \b
    Examples:
      sbpair session show orders customer-7
      sbpair session show contoso-weu:orders customer-7 -o json
    """
    place = on.find(options)
    request = operations.SessionRequest(place.path, session, timeout_seconds=options.timeout_seconds(30.0))
    found = call_at(options, place, operations.show_session, request)
    locked = found.session.locked is True
    state = found.state_hex if found.state_text is None else found.state_text
    said = "has no state" if state is None else f"has the state {state}"
    said = "is locked by a receiver: its state cannot be read" if locked else said
    return _result(found, f"Session {session} of {place} {said}.", Exit.PARTIAL if locked else Exit.OK)


@command(output="core.transfer.peeked:SessionState", asks=True, dry_run=_DRY_RUN)
def set_state(
    options: Options,
    on: EntityOptions,
    session: SessionArgument,
    state: Annotated[str | None, typer.Argument(metavar="STATE", help="The new state, a text.")] = None,
    *,
    from_file: Annotated[Path | None, typer.Option(help="Take the state from here, byte by byte; - for stdin.")] = None,
) -> CommandResult:
    """Set the state of a session; its messages stay. The session is locked meanwhile. Needs Listen.

    \b
    Examples:
      sbpair session set-state orders customer-7 '{"step": 3}'
      sbpair session set-state orders customer-7 --from-file state.bin --yes
    """
    if (state is None) is (from_file is None):
        raise UsageError(f"Give the STATE, or --from-file. {_STATE}")
    wanted = state.encode() if state is not None else _read(from_file)
    return _change(options, on, session, wanted)


@command(output="core.transfer.peeked:SessionState", asks=True, dry_run=_DRY_RUN)
def clear(options: Options, on: EntityOptions, session: SessionArgument) -> CommandResult:
    """Clear the state of a session; its messages stay. The session is locked meanwhile. Needs Listen.

    \b
    Examples:
      sbpair session clear orders customer-7
      sbpair session clear orders customer-7 --dry-run
    """
    return _change(options, on, session, None)


def _read(path: Path | None) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else Path(str(path)).read_bytes()
    except OSError as error:
        raise UsageError(f"The state cannot be read from {path}: {error.strerror or error}. {_STATE}") from error


def _change(options: Options, on: EntityOptions, session: str, state: bytes | None) -> CommandResult:
    place = on.to_write(options)
    request = operations.SessionRequest(place.path, session, state, dry_run=True)
    with unchanged("Its state is as it was."):
        found = call_at(options, place, operations.set_session_state, request)
    doing = f"{'Clear' if state is None else 'Set'} the state of session {session} of {place}"
    if found.changed and not options.dry_run:
        go_ahead(options, doing, state=_STATE)
        found = call_at(options, place, operations.set_session_state, replace(request, dry_run=False))
    what = "would be" if options.dry_run else "was"
    so_already = "is empty already" if state is None else "is that already"
    said = f"{what} {'cleared' if state is None else 'set'}" if found.changed else so_already
    code = Exit.FINDINGS if options.dry_run and found.changed else Exit.OK
    return _result(found, f"The state of session {session} of {place} {said}.", code)


def _result(found: "SessionState", summary: str, code: Exit) -> CommandResult:
    from sbpair.core.transfer.peeked import SessionFacts

    table = table_of(SessionFacts, (found.session,))
    return CommandResult(found, (table,), summary=summary, exit=code, closing=True)
