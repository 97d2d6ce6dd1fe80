"""The ledger: one JSON line per message that was dealt with, on disk before its receipt is settled.

Compared with the queues afterwards it proves that nothing was lost, and which messages may have arrived
twice. Lines are written at once, so they outlive a killed process, and fsynced in groups: all that wait while one sync
is under way make the next group.

Room before record. Before a batch is sent, the disk space of its lines is allocated and a line (`sending`) names its
messages. Without space nothing is sent. What was refused for certain is named by a line `not-sent`. So after a kill
`doubtful` has exactly the messages that may have arrived without a line of their own. A power cut may take the last
lines `sending` along.

It is the only format: drain, syphon and restore write a file, the tasks of a replay and of `archive --take` one file
each in a folder. Ledgers of replays before that named the dead-letter queue in a field of its own; they are read too.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO

from sbpair.core.errors import SbpairError, UsageError
from sbpair.core.names import DEAD_LETTER_SUFFIX
from sbpair.core.redact import json_text, quoted
from sbpair.core.transfer.state import Key
from sbpair.core.values import value_class
from sbpair.files import AppendedFile, open_private

STATE_MOVED = "session-state"
"""Outcome of a line that tells of the state of a session, not of a message: sequence number 0, the session's id."""
SENT_OUTCOMES = frozenset({"forwarded", "already-forwarded"})
SENDING, NOT_SENT = "sending", "not-sent"
"""Outcomes of lines about a batch, whose messages they name together: it may be on its way; it was refused."""
BATCH_OUTCOMES = frozenset({SENDING, NOT_SENT})
_MOST_NAMED = 500
"""Messages in one such line, which keeps it under the length of the longest line."""

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


class LedgerError(SbpairError):
    """The ledger has no room for what is to be written, or cannot be written."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A batch that may be on its way. The ledger has room for its lines."""

    lines: tuple[bytes, ...]
    """Of each message, once it was sent."""
    entries: tuple[Entry, ...]
    room_bytes: int


class Recorder(ABC):
    """What a run writes its entries with: a ledger, or the way to the process that has it.

    Args:
        way: written into every line.
        forwarded: what earlier runs have sent.
    """

    def __init__(self, way: "Way | None", forwarded: frozenset[Key]) -> None:
        self._between = between(way)
        self.forwarded = forwarded

    @abstractmethod
    async def append(self, lines: bytes, room_bytes: int = 0, *, synced: bool = True) -> None:
        """Write lines; `synced`: and return when they are on disk.

        Args:
            room_bytes: so much more room is to be kept for lines to come; negative: so much less.

        Raises:
            LedgerError: there is no room for that, or the lines cannot be written.
        """

    async def record(self, entries: Sequence[Entry]) -> None:
        """Returns when the entries are on disk; raises as `append`."""
        if entries:
            await self.append(lines_of(entries, self._between))

    async def begin(self, entries: Sequence[Entry], *, in_doubt: bool = True) -> Begun:
        """Have room for the entries, and name their messages as on their way, before they are sent.

        Args:
            in_doubt: a send whose answer is lost may have arrived; False where a transaction decides that.

        Raises:
            LedgerError: as `append`; nothing may be sent then.
        """
        lines = tuple(entry.line(self._between) for entry in entries)
        named = tuple(entries) if in_doubt else ()
        sending = _batch_lines(named, SENDING, self._between)
        to_take_back = len(sending) + sending.count(b"\n") * (len(NOT_SENT) - len(SENDING))
        room_bytes = sum(map(len, lines)) + to_take_back
        await self.append(sending, room_bytes, synced=False)
        return Begun(lines, named, room_bytes)

    async def confirm(self, begun: Begun, sent: Collection[int], *, certain: bool = True) -> None:
        """Returns when the lines of what was sent are on disk; raises as `append`.

        Args:
            sent: places in the batch of what was accepted.
            certain: the others were refused; False: an answer was lost, so they stay in doubt.
        """
        accepted = b"".join(begun.lines[place] for place in sent)
        others = [one for place, one in enumerate(begun.entries) if place not in sent] if certain else []
        taken_back = _batch_lines(others, NOT_SENT, self._between)
        await self.append(accepted + taken_back, -begun.room_bytes, synced=bool(accepted))


def _batch_lines(entries: Sequence[Entry], outcome: str, way: Mapping[str, Any]) -> bytes:
    of_queues: dict[str, list[Entry]] = {}
    for one in entries:
        of_queues.setdefault(one.queue, []).append(one)
    lines = []
    for queue, named in of_queues.items():
        for begin in range(0, len(named), _MOST_NAMED):
            some = named[begin : begin + _MOST_NAMED]
            first = some[0]
            about = Entry(queue, first.sequence_number, None, 0, first.destination, None, outcome, first.time)
            keys = [(one.sequence_number, one.message_id, one.enqueued_at_ms) for one in some]
            lines.append(about.line({**way, "messages": keys}))
    return b"".join(lines)


def between(way: Way | None) -> dict[str, Any]:
    """What each line says of the way of its message."""
    return {} if way is None else asdict(way)


def lines_of(entries: Sequence[Entry], way: Mapping[str, Any]) -> bytes:
    """The entries as they are written; `way` as `between` gives it."""
    return b"".join(entry.line(way) for entry in entries)


class Ledger(Recorder):
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
        super().__init__(way, frozenset())
        self.path = path
        self.way = way
        self.doubtful: Mapping[Key, str] = {}
        """Destinations of what earlier runs may have sent: they ended before they knew, or an answer was lost."""
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
                self.forwarded, self.doubtful = _cut_and_read(path, self._between, to)
        except BaseException:
            self._file.close()
            raise
        self._room_bytes = 0
        """Promised to batches that are on their way."""
        self._unsynced: list[asyncio.Future[None]] = []
        self._syncing: asyncio.Task[None] | None = None

    async def append(self, lines: bytes, room_bytes: int = 0, *, synced: bool = True) -> None:
        room = self._room_bytes + room_bytes
        try:
            self._file.reserve(len(lines) + room)
        except OSError as error:
            raise LedgerError(
                f"There is no room for the ledger {self.path}: {error.strerror or error}. All that was sent is "
                "recorded, and nothing more was sent.",
                hint="Make room, or name another file with --ledger, and run it again.",
            ) from error
        if lines:
            try:
                self._file.write(lines)
            except OSError as error:
                raise self._not_written(error, sent=self._room_bytes > 0) from error
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
class Line:
    """What one line of a ledger says."""

    number: int
    end_bytes: int
    """Where in the file it ends."""
    key: Key
    outcome: str
    way: Mapping[str, Any]
    """Between which namespaces, if the line says so."""
    destination: Any
    messages: Sequence[Key] = field(default=())
    """What a line about a batch names."""


def _cut_and_read(
    path: Path, way: Mapping[str, Any], to: Mapping[str, str]
) -> tuple[frozenset[Key], Mapping[Key, str]]:
    """The keys of what was sent, and of what is in doubt, with its destination. A last line cut off by a crash, and
    the NULs that a file system puts there, are removed: a receipt is settled after its line is on disk."""
    wanted = {queue.lower(): destination for queue, destination in to.items()}
    forwarded: set[Key] = set()
    sending: dict[Key, list[str]] = {}
    complete = 0
    with open_private(path, "r+b") as file:
        for line in _lines(file, path):
            complete = line.end_bytes
            _check_way(line.way, way, path, line.number)
            if line.outcome in BATCH_OUTCOMES:
                for key in line.messages:
                    _count(sending, key, line)
                continue
            sending.pop(line.key, None)
            if line.outcome in SENT_OUTCOMES or line.outcome == STATE_MOVED:
                _check_destination(line.key[0], line.destination, wanted, path, line.number)
                forwarded.add(line.key)
        file.truncate(complete)
    return frozenset(forwarded), {key: to[-1] for key, to in sending.items()}


def _count(sending: dict[Key, list[str]], key: Key, line: Line) -> None:
    """A message is in doubt as often as it was sent without an answer."""
    if line.outcome == SENDING:
        sending.setdefault(key, []).append(str(line.destination or ""))
    elif (tries := sending.get(key)) is not None:
        tries.pop()
        if not tries:
            del sending[key]


def sent_in(path: Path) -> frozenset[Key]:
    """What a ledger has as sent; nothing if there is no such file.

    Raises:
        UsageError: it is not a ledger.
    """
    if not path.is_file():
        return frozenset()
    return frozenset(key for key, outcome in outcomes_in(path) if outcome in SENT_OUTCOMES)


def outcomes_in(path: Path) -> Iterator[tuple[Key, str]]:
    """Key and outcome of what `lines_in` finds."""
    return ((line.key, line.outcome) for line in lines_in(path))


def lines_in(path: Path) -> Iterator[Line]:
    """Every whole line about a message, in a ledger that somebody may still be writing.

    Raises:
        UsageError: it is not a ledger.
    """
    with path.open("rb") as file:
        yield from (line for line in _lines(file, path) if line.outcome not in BATCH_OUTCOMES)


def _lines(file: BinaryIO, path: Path) -> Iterator[Line]:
    """The whole lines of a ledger. Its last line may be cut off, and end in NULs."""
    end_bytes = 0
    for number, line in enumerate(iter(lambda: file.readline(_MOST_LINE_BYTES), b""), 1):
        if not line.endswith(b"\n"):
            rest = line.rstrip(b"\0")
            cut_off = rest.startswith(_BEGINNING[: len(rest)]) and (rest or end_bytes)
            if not cut_off or any(block.strip(b"\0") for block in iter(lambda: file.read(_MOST_LINE_BYTES), b"")):
                raise _no_ledger(path, number)
            return
        end_bytes += len(line)
        yield _read(line, path, number, end_bytes)


def _read(line: bytes, path: Path, number: int, end_bytes: int) -> Line:
    try:
        read = json.loads(line)
        queue = read["queue"] + (f"/{DEAD_LETTER_SUFFIX}" if read.get("dead_letter") is True else "")
        key = (queue, read["sequence_number"], read["message_id"], read["enqueued_at_ms"])
        outcome = read["outcome"]
        named = read["messages"] if outcome in BATCH_OUTCOMES else ()
        messages = [(queue, sequence_number, message_id, at) for sequence_number, message_id, at in named]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _no_ledger(path, number) from error
    for one in (key, *messages):
        if not all(isinstance(value, kinds) for value, kinds in zip((*one, outcome), _KINDS, strict=True)):
            raise _no_ledger(path, number)
    way = {name: read[name] for name in ("from_namespace", "to_namespace") if name in read}
    return Line(number, end_bytes, key, outcome, way, read.get("destination"), messages)


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
