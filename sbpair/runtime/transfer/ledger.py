"""The ledger: one JSON line per message that was dealt with, on disk before its receipt is settled.

Compared with the queues afterwards it proves that nothing was lost, and which messages may have arrived
twice. Lines are written at once, so they outlive a killed process, and fsynced in groups: all that wait while one sync
is under way make the next group. What stands in them: `core.transfer.ledger`.

Room before record. Before a batch is sent, the disk space of its lines is allocated and a line (`sending`) names its
messages. Without space nothing is sent. What was refused for certain is named by a line `not-sent`. So after a kill
`doubtful` has exactly the messages that may have arrived without a line of their own. A power cut may take the last
lines `sending` along.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from sbpair.core.errors import SbpairError, UsageError
from sbpair.core.names import ByName, same_name
from sbpair.core.redact import quoted
from sbpair.core.transfer.ledger import (
    BATCH_OUTCOMES,
    BEGINNING,
    CHAINED_BYTES,
    EMPTY_MARK,
    NO_MESSAGE_OUTCOMES,
    NOT_SENT,
    SENDING,
    SENT_OUTCOMES,
    STATE_MOVED,
    InDoubt,
    LedgerEntry,
    LedgerLine,
    Way,
    batch_lines,
    between,
    chained,
    follow,
)
from sbpair.core.transfer.state import Key
from sbpair.files import AppendedFile, is_claimed, open_private

if TYPE_CHECKING:
    from hashlib import _Hash

_MOST_LINE_BYTES = 1024 * 1024
COMMANDS_FILE = "commands.jsonl"
"""Where commands write that are given a folder of ledgers, as the tasks of a Spark job write it."""


class LedgerError(SbpairError):
    """The ledger has no room for what is to be written, or cannot be written."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A batch that may be on its way. The ledger has room for its lines."""

    lines: tuple[bytes, ...]
    """Of each message, once it was sent."""
    entries: tuple[LedgerEntry, ...]
    room_bytes: int


class Recorder(ABC):
    """What a run writes its entries with: a ledger, or the way to the process that has it.

    Args:
        way: written into every line.
        forwarded: what earlier runs have sent; what this one has sent and could not complete is added.
    """

    def __init__(self, way: "Way | None", forwarded: Collection[Key]) -> None:
        self.way = way
        self._between = between(way)
        self.forwarded = set(forwarded)
        self.accepted = accepted_in(self.forwarded)
        """Messages by the lower-case name of what they came from: sent by earlier runs, and by this one but in
        transactions."""

    @abstractmethod
    async def append(self, lines: Sequence[bytes], room_bytes: int = 0, *, synced: bool = True) -> None:
        """Write lines; `synced`: and return when they are on disk.

        Args:
            room_bytes: so much more room is to be kept for lines to come; negative: so much less.

        Raises:
            LedgerError: there is no room for that, or the lines cannot be written.
        """

    async def record(self, entries: Sequence[LedgerEntry]) -> None:
        """Returns when the entries are on disk; raises as `append`."""
        if entries:
            await self.append([entry.line(self._between) for entry in entries])

    async def begin(self, entries: Sequence[LedgerEntry], *, in_doubt: bool = True) -> Begun:
        """Have room for the entries, and name their messages as on their way, before they are sent.

        Args:
            in_doubt: a send whose answer is lost may have arrived; False where a transaction decides that.

        Raises:
            LedgerError: as `append`; nothing may be sent then.
        """
        lines = tuple(entry.line(self._between) for entry in entries)
        named = tuple(entries) if in_doubt else ()
        sending = batch_lines(named, SENDING, self._between)
        room_bytes = _size_bytes(lines) + _size_bytes(sending) + len(sending) * (len(NOT_SENT) - len(SENDING))
        await self.append(sending, room_bytes, synced=False)
        return Begun(lines, named, room_bytes)

    async def confirm(self, begun: Begun, sent: Collection[int], *, certain: bool = True) -> None:
        """Returns when the lines of what was sent are on disk; raises as `append`.

        Args:
            sent: places in the batch of what was accepted.
            certain: the others were refused; False: an answer was lost, so they stay in doubt.
        """
        accepted = [begun.lines[place] for place in sent]
        self.accepted.update(begun.entries[place].queue.lower() for place in sent if begun.entries)
        others = [one for place, one in enumerate(begun.entries) if place not in sent] if certain else []
        taken_back = batch_lines(others, NOT_SENT, self._between)
        await self.append([*accepted, *taken_back], -begun.room_bytes, synced=bool(accepted))


def _size_bytes(lines: Collection[bytes]) -> int:
    """Of the lines at most, however they are written: each may be the last of a write, and have a mark."""
    return sum(map(len, lines)) + len(lines) * CHAINED_BYTES


class Remembered(Recorder):
    """Of a dry run: what ledgers have. Nothing is written."""

    async def append(self, lines: Sequence[bytes], room_bytes: int = 0, *, synced: bool = True) -> None:
        raise LedgerError("A dry run has nothing to record.")


class Ledger(Recorder):
    """Appends entries to a file; `forwarded` is what earlier runs have already sent. One process at a time.

    Args:
        path: the file; or the folder of a Spark job's ledgers, all of which are read: a file there is written.
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
        super().__init__(way, ())
        folder, path = (path, path / COMMANDS_FILE) if path.is_dir() else (None, path)
        self.path = path
        self.doubtful: Mapping[Key, str] = {}
        """Destinations of what earlier runs may have sent: they ended before they knew, or an answer was lost."""
        self._since_mark = sha256(EMPTY_MARK)
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
                found = _cut_and_read(path, self._between, to)
                self.doubtful, self._since_mark = found.doubtful, found.since_mark
                self.forwarded |= found.sent
            others = () if folder is None else _written_by_others(folder, path)
            sent, doubtful = known_in(others, way, to)
            self.forwarded |= sent
            self.doubtful = {**doubtful, **self.doubtful}
        except BaseException:
            self._file.close()
            raise
        self.accepted = accepted_in(self.forwarded)
        self._room_bytes = 0
        """Promised to batches that are on their way."""
        self._first: tuple[bytes, ...] = ()
        """Lines to be written before all others."""
        self._unsynced: list[asyncio.Future[None]] = []
        self._syncing: asyncio.Task[None] | None = None

    def begin_run(self, line: bytes) -> None:
        """Have a line about this run written before its first one."""
        self._first = (line,)

    async def append(self, lines: Sequence[bytes], room_bytes: int = 0, *, synced: bool = True) -> None:
        room = self._room_bytes + room_bytes
        data, since = chained([*self._first, *lines] if lines else [], self._since_mark)
        try:
            self._file.reserve(len(data) + room)
        except OSError as error:
            raise LedgerError(
                f"There is no room for the ledger {self.path}: {error.strerror or error}. All that was sent is "
                "recorded, and nothing more was sent.",
                hint="Make room, or name another file with --ledger, and run it again.",
            ) from error
        if lines:
            try:
                self._file.write(data)
            except OSError as error:
                raise self._not_written(error, sent=self._room_bytes > 0) from error
            self._since_mark, self._first = since, ()
        self._room_bytes = room
        if lines and synced:
            await self._on_disk()

    async def _on_disk(self) -> None:
        written = asyncio.get_running_loop().create_future()
        self._unsynced.append(written)
        if self._syncing is None or self._syncing.done():
            self._syncing = asyncio.create_task(self._sync_groups())
        await written

    async def _sync_groups(self) -> None:
        while self._unsynced:
            group, self._unsynced = self._unsynced, []
            failed: LedgerError | None = None
            try:
                await asyncio.to_thread(self._file.sync)
            except OSError as error:
                failed = self._not_written(error, sent=True)
            for written in group:
                if written.done():
                    continue
                if failed is not None:
                    written.set_exception(failed)
                else:
                    written.set_result(None)

    def _not_written(self, error: OSError, *, sent: bool) -> LedgerError:
        """`sent`: something may have been sent that has no line."""
        unrecorded = (
            "What was sent, but not recorded, is still in its queue: the next run may send it a second time, with the "
            "same MessageId."
        )
        return LedgerError(
            f"Cannot write the ledger {self.path}: {error.strerror or error}. "
            + (unrecorded if sent else "All that was sent is recorded, and nothing more was sent."),
            hint="Name another file with --ledger, on a disk that works, and run it again.",
        )

    async def close(self) -> None:
        if self._syncing is not None:
            await self._syncing
        self._file.close()


@dataclass(frozen=True, slots=True)
class _Read:
    """What a ledger has."""

    sent: frozenset[Key]
    doubtful: Mapping[Key, str]
    """With its destination."""
    complete_bytes: int
    """What is behind that was cut off by a crash."""
    since_mark: "_Hash"
    """Of the chain's end, and the lines behind it."""


def _cut_and_read(path: Path, way: Mapping[str, Any], to: Mapping[str, str]) -> _Read:
    """A last line cut off by a crash, and the NULs that a file system puts there, are removed: a receipt is settled
    after its line is on disk."""
    with open_private(path, "r+b") as file:
        found = _read(file, path, way, to)
        file.truncate(found.complete_bytes)
    return found


def _read(file: BinaryIO, path: Path, way: Mapping[str, Any], to: Mapping[str, str]) -> _Read:
    """Raises UsageError: it is no ledger, that of other namespaces, or has a message as sent elsewhere than `to`."""
    wanted = ByName(to.items())
    queues = {queue.lower(): queue for queue in to}
    sent: set[Key] = set()
    doubtful, complete, since_mark = InDoubt(), 0, sha256(EMPTY_MARK)
    for number, (text, line) in enumerate(_lines(file, path), 1):
        complete += len(text)
        since_mark = follow(text, since_mark)
        line = line.spelled(queues)
        _check_way(line.way, way, path, number)
        doubtful.note(line)
        if line.outcome in SENT_OUTCOMES or line.outcome == STATE_MOVED:
            _check_destination(line.key[0], line.destination, wanted, path, number)
            sent.add(line.key)
    return _Read(frozenset(sent), doubtful.destinations(), complete, since_mark)


def known_in(
    files: Iterable[Path], way: Way | None, to: Mapping[str, str] = {}
) -> tuple[frozenset[Key], Mapping[Key, str]]:
    """What ledgers have as sent, and what is in doubt with its destination. Nothing is written.

    Raises:
        UsageError: as `Ledger`.
    """
    sent: frozenset[Key] = frozenset()
    doubtful: dict[Key, str] = {}
    for path in files:
        with path.open("rb") as file:
            found = _read(file, path, between(way), to)
        sent |= found.sent
        doubtful |= found.doubtful
    return sent, doubtful


def _written_by_others(folder: Path, own: Path) -> list[Path]:
    """The ledgers of a folder beside our own.

    Raises:
        UsageError: a Spark job writes one of them.
    """
    others = [path for path in ledgers_in(folder) if path != own]
    if any(is_claimed(path) for path in others):
        raise UsageError(f"A Spark job is writing the ledger {folder}. Nothing was sent.", hint="Wait for its end.")
    return others


def ledgers_in(path: Path) -> list[Path]:
    """The files of a ledger: itself, or those of a folder; none if there is nothing."""
    return sorted(path.glob("*.jsonl")) if path.is_dir() else [path] if path.is_file() else []


def accepted_in(keys: Iterable[Key]) -> Counter[str]:
    """How many messages these are, by the lower-case name of what they came from. The state of a session is none."""
    return Counter(key[0].lower() for key in keys if key[1])


def sent_in(path: Path) -> frozenset[Key]:
    """What a ledger has as sent, by any command: a file, or all of a folder. Nothing if there is none.

    Raises:
        UsageError: it is not a ledger.
    """
    return frozenset(key for file in ledgers_in(path) for key, outcome in outcomes_in(file) if outcome in SENT_OUTCOMES)


def outcomes_in(path: Path) -> Iterator[tuple[Key, str]]:
    """Key and outcome of what `lines_in` finds."""
    return ((line.key, line.outcome) for line in lines_in(path))


def lines_in(path: Path, *, runs: bool = False) -> Iterator[LedgerLine]:
    """Every whole line about a message, in a ledger that somebody may still be writing; `runs`: about runs as well.

    Raises:
        UsageError: it is not a ledger.
    """
    with path.open("rb") as file:
        others = BATCH_OUTCOMES if runs else NO_MESSAGE_OUTCOMES
        yield from (line for _, line in _lines(file, path) if line.outcome not in others)


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[bytes, LedgerLine]]:
    """The whole lines of a ledger. Its last line may be cut off, and end in NULs."""
    begun = False
    for number, text in enumerate(iter(lambda: file.readline(_MOST_LINE_BYTES), b""), 1):
        if not text.endswith(b"\n"):
            rest = text.rstrip(b"\0")
            cut_off = rest.startswith(BEGINNING[: len(rest)]) and (rest or begun)
            if not cut_off or any(block.strip(b"\0") for block in iter(lambda: file.read(_MOST_LINE_BYTES), b"")):
                raise _no_ledger(path, number)
            return
        begun = True
        if (line := LedgerLine.parse(text)) is None:
            raise _no_ledger(path, number)
        yield text, line


def _check_way(there: Mapping[str, Any], way: Mapping[str, Any], path: Path, number: int) -> None:
    if way and not there:
        # Numbers and names of queues are the same in any namespace: what such a line has would be completed unsent.
        raise UsageError(
            f"Line {number} of the ledger {path} does not say between which namespaces its message moved. The file was "
            "left as it was, and nothing was sent.",
            hint="Begin a ledger with --new-ledger; the old file is kept under another name.",
        )
    if there and way and there != way:
        raise UsageError(
            f"Line {number} of the ledger {path} records messages {_told(there)}; this run moves them {_told(way)}. "
            "The file was left as it was, and nothing was sent.",
            hint="Name the ledger of this pair, or begin a new one with --new-ledger.",
        )


def _check_destination(queue: str, destination: Any, wanted: ByName[str], path: Path, number: int) -> None:
    """A line without a destination tells of what was only completed: the line of its sending says where it went."""
    to = wanted.get(queue)
    if to is not None and destination and isinstance(destination, str) and not same_name(destination, to):
        raise UsageError(
            f"Line {number} of the ledger {path} records a message of {quoted(queue)} that was sent to "
            f"{quoted(destination)}; this run sends to {quoted(to)}, and would complete it without sending it. "
            "The file was left as it was, and nothing was sent.",
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
