"""Opens and closes the ledger that a request names, with a line about the run at its beginning and its end."""

import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sbpair.core.access import NamespaceAccess, credential_name, namespace_name
from sbpair.core.backlog import Backlog
from sbpair.core.errors import UsageError, unwritable
from sbpair.core.events import Doubtful
from sbpair.core.redact import json_text
from sbpair.core.transfer.ledger import RUN_BEGAN, RUN_ENDED, Way, between, run_line
from sbpair.core.transfer.report import DrainReport
from sbpair.core.transfer.state import Key
from sbpair.files import AppendedFile, claim
from sbpair.operations.log import stated_reason, who
from sbpair.ports import Observer
from sbpair.runtime.clock import SystemClock
from sbpair.runtime.transfer.ledger import Ledger, Recorder, Remembered, known_in, ledgers_in
from sbpair.version import __version__


@asynccontextmanager
async def open_ledger(
    path: Path | None,
    run: "LedgerRun",
    observer: Observer | None,
    *,
    new: bool = False,
    to: Mapping[str, str] | None = None,
    verify: Callable[[Ledger], Awaitable[int]] | None = None,
) -> AsyncIterator[Recorder | None]:
    """The ledger, continued if the file is there, and closed at the end. None without a path.

    Args:
        run: which messages move between which namespaces, and by which command.
        observer: is told of messages that an earlier run may have sent, which this one sends again; their MessageIds
            are added to `FILE.doubtful`. None: a dry run, which knows what the ledger has and writes no file.
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
    if observer is None:
        known = () if new else ledgers_in(path)
        yield Remembered(run.way, known_in(known, run.way, to or {})[0])
        return
    ledger = _opened(path, run.way, to or {}, new=new)
    try:
        ledger.begin_run(run.began())
        found = 0 if verify is None else await verify(ledger)
        _name_doubtful(ledger, observer, found)
        yield ledger
    finally:
        await ledger.close()


@dataclass(frozen=True, slots=True)
class LedgerRun:
    """A run as its ledger has it. `target` is None where messages go into an archive."""

    command: str
    source: NamespaceAccess
    target: NamespaceAccess | None
    run: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    @property
    def way(self) -> Way:
        """Between which namespaces messages move."""
        return Way(namespace_name(self.source), None if self.target is None else namespace_name(self.target))

    def began(self) -> bytes:
        """The line before all others."""
        credentials = [credential_name(one) for one in (self.source, self.target) if one is not None]
        said = {"who": who(), "command": self.command, "credentials": ", ".join(credentials), "version": __version__}
        return self._line(RUN_BEGAN, {**said, "reason": stated_reason()})

    async def ended(self, ledger: Recorder | None, report: DrainReport, backlog: Backlog | None = None) -> None:
        """Write the line after all others. `backlog`: what it holds after the run.

        Raises:
            LedgerError: it cannot be written.
        """
        if ledger is None or report.dry_run:
            return
        waiting = None
        if backlog is not None and backlog.whole:
            kinds = ("active", "dead_letter", "deferred", "scheduled")
            waiting = {kind: None if backlog.unread else backlog.known(kind) for kind in kinds}
        left = {one.reason: one.count for one in report.left[:_MOST_REASONS]}
        left |= {f"not read: {one.queue}": 0 for one in report.failures[:_MOST_REASONS]}
        await ledger.append([self._line(RUN_ENDED, {"ended_by": report.ended_by, "left": left, "waiting": waiting})])

    def _line(self, outcome: str, about: Mapping[str, Any]) -> bytes:
        return run_line(self.run, outcome, SystemClock().now().isoformat(), between(self.way), about)


_MOST_REASONS = 100
"""For which a line says that messages were left: it has to stay shorter than the longest line."""


def _opened(path: Path, way: Way, to: Mapping[str, str], *, new: bool) -> Ledger:
    try:
        if new and path.is_dir():
            raise UsageError(
                f"{path} is a folder of ledgers, which is not renamed. Nothing was moved.", hint="Name another one."
            )
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
