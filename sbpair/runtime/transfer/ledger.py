"""The ledger: one JSON line per message that was dealt with, on disk before its receipt is settled.

Compared with the queues afterwards it proves that nothing was lost, and which messages may have arrived
twice. Lines are written and fsynced in groups: all that wait while one group is being written make the next one.

It is the only format: drain, syphon and restore write a file, the tasks of a replay and of `archive --take` one file
each in a folder. Ledgers of replays before that named the dead-letter queue in a field of its own; they are read too.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from sbpair.core.errors import UsageError
from sbpair.core.names import DEAD_LETTER_SUFFIX
from sbpair.core.redact import json_text, quoted
from sbpair.core.transfer.state import Key
from sbpair.core.values import value_class
from sbpair.files import AppendedFile, open_private

STATE_MOVED = "session-state"
"""Outcome of a line that tells of the state of a session, not of a message: sequence number 0, the session's id."""
SENT_OUTCOMES = frozenset({"forwarded", "already-forwarded"})


_BEGINNING = b'{"queue": '
"""Of every line, cut off or not; a file that does not begin with it is no ledger, and is not cut."""
_MOST_LINE_BYTES = 1024 * 1024
_KINDS: tuple[Any, ...] = (str, int, str | None, int, str)
"""Types of queue, sequence number, message id, time and outcome in a line."""


@value_class
class Entry:
    """One line. `time` is UTC, ISO 8601.

    `outcome`: forwarded; already-forwarded (by an earlier run); dead-lettered; refused (by its destination, and still
    in its archive); taken (out of its queue into an archive); duplicate (of another archived message, so not sent);
    purged (deleted on request); ping; session-state (of a session, set at the destination).
    """

    queue: str
    sequence_number: int
    message_id: str | None
    enqueued_at_ms: int
    destination: str
    session_id: str | None
    outcome: str
    time: str
    attempts: int = 1
    """How often it was sent; above 1 an earlier attempt may have arrived too."""
    reason: str = ""
    digest: str | None = None
    """Of the archived message's content, in base64, where an archive keeps one."""

    def line(self, way: Mapping[str, Any] = {}) -> bytes:
        """As JSON, with its end."""
        line = {name: getattr(self, name) for name in _FIELDS if name != "digest" or self.digest is not None}
        return json_text({**line, **(way or {})}).encode() + b"\n"


_FIELDS = tuple(one.name for one in fields(Entry))


@dataclass(frozen=True, slots=True)
class Way:
    """Hosts between which messages move. They stand in every line: the same queue names and numbers mean other messages
    on other namespaces, and what a ledger has is completed without being sent."""

    from_namespace: str
    to_namespace: str | None
    """None: into an archive."""


class Recorder(Protocol):
    """What a run writes its entries with: a ledger, or the way to the process that has it."""

    @property
    def forwarded(self) -> frozenset[Key]:
        """What earlier runs have already sent."""
        ...

    async def record(self, entries: Sequence[Entry]) -> None:
        """Returns when the entries are on disk; OSError if they cannot be written."""
        ...


def between(way: Way | None) -> dict[str, Any]:
    """What each line says of the way of its message."""
    return {} if way is None else asdict(way)


def lines_of(entries: Sequence[Entry], way: Mapping[str, Any]) -> bytes:
    """The entries as they are written; `way` as `between` gives it."""
    return b"".join(entry.line(way) for entry in entries)


class Ledger:
    """Appends entries to a file; `forwarded` is what earlier runs have already sent. One process at a time.

    Args:
        way: written into every line, and compared with the lines that are there.
        opened: opens the file to append to it.
        to: where all messages of some queues go, by path: what was sent elsewhere would be completed, and not be there.

    Raises:
        UsageError: the file exists and `resume` was not given, is not a ledger, is the ledger of other namespaces or
            has messages of a queue of `to` as sent elsewhere, or another process writes it.
    """

    def __init__(
        self,
        path: Path,
        *,
        resume: bool = False,
        way: Way | None = None,
        opened: Callable[[Path], AppendedFile] = AppendedFile,
        to: Mapping[str, str] = {},
    ) -> None:
        self.path = path
        self.way = way
        self._between = between(way)
        self.forwarded: frozenset[Key] = frozenset()
        self._file = opened(path)
        try:
            if not self._file.claim():  # its lines would end up in the middle of ours
                raise UsageError(
                    f"The ledger {path} is being written by another process.",
                    hint="Give each process a ledger of its own.",
                )
            if path.stat().st_size:
                if not resume:
                    raise UsageError(f"The ledger {path} exists already.", hint="Continue it, or name another file.")
                self.forwarded = _cut_and_read(path, self._between, to)
        except BaseException:
            self._file.close()
            raise
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def record(self, entries: Sequence[Entry]) -> None:
        """Returns when the entries are on disk."""
        if entries:
            await self.append(lines_of(entries, self._between))

    async def append(self, lines: bytes) -> None:
        """The same for what `lines_of` gave somebody else."""
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((lines, written))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_groups())
        await written

    async def _write_groups(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            try:
                await asyncio.to_thread(self._file.append, b"".join(lines for lines, _ in group))
            except OSError as error:
                named = OSError(error.errno, error.strerror, str(self.path))
                for _, written in group:
                    if not written.done():
                        written.set_exception(named)
                continue
            for _, written in group:
                if not written.done():
                    written.set_result(None)

    async def close(self) -> None:
        if self._writer is not None:
            await self._writer
        self._file.close()


def _cut_and_read(path: Path, way: Mapping[str, Any], to: Mapping[str, str]) -> frozenset[Key]:
    """The keys of what was sent. A last line cut off by a crash is removed: its receipt was never settled."""
    wanted = {queue.lower(): destination for queue, destination in to.items()}
    forwarded: set[Key] = set()
    complete = 0
    with open_private(path, "r+b") as file:
        for number, line in enumerate(iter(lambda: file.readline(_MOST_LINE_BYTES), b""), 1):
            if not line.endswith(b"\n"):
                if not line.startswith(_BEGINNING[: len(line)]) or file.read(1):
                    raise _no_ledger(path, number)
                break
            complete += len(line)
            key, outcome, there, destination = _read(line, path, number)
            _check_way(there, way, path, number)
            if outcome in SENT_OUTCOMES or outcome == STATE_MOVED:
                _check_destination(key[0], destination, wanted, path, number)
                forwarded.add(key)
        file.truncate(complete)
    return frozenset(forwarded)


def sent_in(path: Path) -> frozenset[Key]:
    """What a ledger has as sent; nothing if there is no such file.

    Raises:
        UsageError: it is not a ledger.
    """
    if not path.is_file():
        return frozenset()
    return frozenset(key for key, outcome in outcomes_in(path) if outcome in SENT_OUTCOMES)


def outcomes_in(path: Path) -> Iterator[tuple[Key, str]]:
    """Key and outcome of every whole line of a ledger that somebody may still be writing.

    Raises:
        UsageError: it is not a ledger.
    """
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_MOST_LINE_BYTES), b""), 1):
            if line.endswith(b"\n"):
                key, outcome, _, _ = _read(line, path, number)
                yield key, outcome
            elif file.read(1):
                raise _no_ledger(path, number)


def _read(line: bytes, path: Path, number: int) -> tuple[Key, str, Mapping[str, Any], Any]:
    """Key, outcome, between which namespaces, if the line says so, and the destination."""
    try:
        read = json.loads(line)
        dead_letter = f"/{DEAD_LETTER_SUFFIX}" if read.get("dead_letter") is True else ""
        key = (read["queue"] + dead_letter, read["sequence_number"], read["message_id"], read["enqueued_at_ms"])
        outcome = read["outcome"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _no_ledger(path, number) from error
    if not all(isinstance(value, kinds) for value, kinds in zip((*key, outcome), _KINDS, strict=True)):
        raise _no_ledger(path, number)
    way = {name: read[name] for name in ("from_namespace", "to_namespace") if name in read}
    return key, outcome, way, read.get("destination")


def _check_way(there: Mapping[str, Any], way: Mapping[str, Any], path: Path, number: int) -> None:
    if way and not there:
        # Numbers and names of queues are the same in any namespace: what such a line has would be completed unsent.
        raise UsageError(
            f"Line {number} of the ledger {path} does not say between which namespaces its message moved. The file was "
            "left as it was, and nothing was moved.",
            hint="Begin a ledger with --new-ledger; the old file is kept under another name.",
        )
    if there and way and there != way:
        raise UsageError(
            f"Line {number} of the ledger {path} tells of messages {_told(there)}; this run moves them {_told(way)}. "
            "The file was left as it was, and nothing was moved.",
            hint="Name the ledger of this pair, or begin a new one with --new-ledger.",
        )


def _check_destination(queue: str, destination: Any, wanted: Mapping[str, str], path: Path, number: int) -> None:
    """A line without a destination tells of what was only completed: the line of its sending says where it went."""
    to = wanted.get(queue.lower())
    if to is not None and destination and isinstance(destination, str) and destination.lower() != to.lower():
        raise UsageError(
            f"Line {number} of the ledger {path} tells of a message of {quoted(queue)} that was sent to "
            f"{quoted(destination)}; this run sends to {quoted(to)}, and would complete it without sending it. "
            "The file was left as it was, and nothing was moved.",
            hint="Name another ledger, or begin a new one with --new-ledger.",
        )


def _told(way: Mapping[str, Any]) -> str:
    to = way.get("to_namespace")
    return f"from {quoted(way.get('from_namespace'))} to {'an archive' if to is None else quoted(to)}"


def _no_ledger(path: Path, number: int) -> UsageError:
    return UsageError(
        f"Line {number} of {path} is not a line of a ledger; the file was left as it is.",
        hint="Name the ledger of the run to continue, or begin a new one with --new-ledger.",
    )
