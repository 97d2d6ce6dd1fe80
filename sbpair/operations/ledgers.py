"""Opens and closes the ledger that a request names."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from sbpair.core.errors import UsageError, unwritable
from sbpair.core.events import Doubtful
from sbpair.core.redact import json_text
from sbpair.core.transfer.state import Key
from sbpair.files import AppendedFile, claim
from sbpair.ports import Observer
from sbpair.runtime.clock import SystemClock
from sbpair.runtime.transfer.ledger import Ledger, Way


@asynccontextmanager
async def open_ledger(
    path: Path | None,
    way: Way,
    observer: Observer | None,
    *,
    new: bool = False,
    to: Mapping[str, str] | None = None,
    verify: Callable[[Ledger], Awaitable[int]] | None = None,
) -> AsyncIterator[Ledger | None]:
    """The ledger, continued if the file is there, and closed at the end. None without a path.

    Args:
        way: between which namespaces the run moves messages.
        observer: is told of messages that an earlier run may have sent, which this one sends again; their MessageIds
            are added to `FILE.doubtful`. None: a dry run, which writes no file.
        new: the old file is renamed to the first free FILE.N.
        to: as for `Ledger`.
        verify: looks for what is in doubt, records what has arrived and says how many messages that were.

    Raises:
        UsageError: see `Ledger`.
        SbpairError: a file cannot be opened or written.
    """
    if path is None:
        yield None
        return
    ledger = _opened(path, way, to or {}, new=new)
    try:
        if observer is not None:
            found = 0 if verify is None else await verify(ledger)
            _name_doubtful(ledger, observer, found)
        yield ledger
    finally:
        await ledger.close()


def _opened(path: Path, way: Way, to: Mapping[str, str], *, new: bool) -> Ledger:
    try:
        if new and path.is_file() and path.stat().st_size:
            _rename(path)
        return Ledger(path, resume=True, way=way, to=to)
    except OSError as error:
        raise unwritable(path, error).with_state("Nothing was moved.") from error


def _rename(path: Path) -> None:
    """Not the file of a running process, which would go on with it under its new name.

    Raises:
        UsageError: another process writes it.
    """
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    with path.open("rb") as file:
        if not claim(file):
            raise UsageError(
                f"The ledger {path} is being written by another process, so it was not renamed. Nothing was moved.",
                hint="Wait until that has ended, or name another file with --ledger.",
            )
        path.rename(aside)


def doubtful_file(ledger: Path) -> Path:
    """Where the messages are named that may have arrived twice."""
    return ledger.with_name(f"{ledger.name}.doubtful")


def _name_doubtful(ledger: Ledger, observer: Observer, found: int) -> None:
    """Add what is in doubt and not there yet to the ledger's file of doubtful messages. `found`: how many others were
    found at their destinations."""
    path = doubtful_file(ledger.path)
    known = _named_in(path) | ledger.forwarded
    fresh = {key: to for key, to in ledger.doubtful.items() if key not in known}
    now = SystemClock().now()
    if not fresh:
        if found:
            observer.notify(Doubtful(now.timestamp(), 0, str(path), found))
        return
    lines = b"".join(_doubtful_line(key, to, now.isoformat()) for key, to in fresh.items())
    try:
        file = AppendedFile(path)
        try:
            file.append(lines)
        finally:
            file.close()
    except OSError as error:
        raise unwritable(path, error).with_state("Nothing was moved.") from error
    observer.notify(Doubtful(now.timestamp(), len(fresh), str(path), found))


def _doubtful_line(key: Key, destination: str, found_at: str) -> bytes:
    queue, number, message_id, enqueued_at_ms = key
    line = {
        "message_id": message_id,
        "destination": destination,
        "queue": queue,
        "sequence_number": number,
        "enqueued_at_ms": enqueued_at_ms,
        "found_at": found_at,
    }
    return json_text(line).encode() + b"\n"


def _named_in(path: Path) -> frozenset[Key]:
    """Raises UsageError where the file is something else."""
    if not path.is_file():
        return frozenset()
    try:
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        return frozenset(
            (one["queue"], one["sequence_number"], one["message_id"], one["enqueued_at_ms"]) for one in lines
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a list of doubtful messages. Nothing was moved.") from error
