"""Writes archived messages to the primary: the writer of `sbpair-backlog`, which `pipeline replay` uses.

Rows of a partition go out in the order they come in, one batch after another; what has been acknowledged is in the
ledger before the next batch leaves. A task that runs again leaves out what the ledger has. A batch that was sent but
not acknowledged may arrive twice, with the same message id.

    pair, config    as for a read
    ledger          folder that driver and executors share; without it nothing is remembered
    rate            messages a second of the whole job; `tasks` says among how many tasks it is shared
    ttl             full (default): the time to live starts again; remaining: the time in the backlog is taken off
    run             name of this run in the ledger's files; default: one per job
    onlyRun         true: stop when the ledger's `run` file names another run (see `journal.the_only_run`)
    report          file on the driver for the sums
"""

import asyncio
import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from sbpair.core.errors import (
    Category,
    MessageError,
    SendIncompleteError,
    ServiceError,
    UsageError,
)
from sbpair.core.rewrite import TtlMode, for_primary
from sbpair.pipeline.errors import marking_errors
from sbpair.pipeline.executors import Connection, PairByName, patiently
from sbpair.pipeline.journal import (
    FORWARDED,
    PING,
    REFUSED,
    Journal,
    Key,
    Sent,
    digest_text,
    done_by,
    drop_locks,
    the_only_attempt,
)
from sbpair.pipeline.source_options import known_options, truth

if TYPE_CHECKING:
    import pyarrow as pa

    from sbpair.ports import MessageSender

NEEDED_COLUMNS = (
    "queue",
    "dead_letter",
    "sequence_number",
    "enqueued_at",
    "message_id",
    "session_id",
    "is_ping",
    "digest",
    "payload",
)
BATCH_MESSAGES = 500
SEND_SECONDS = 30.0
_ENVELOPE_BYTES = 1024
_PER_MESSAGE_BYTES = 8
_MOST_BATCH_BYTES = 1024 * 1024
_REFUSALS = frozenset({Category.ARGUMENT, Category.TOO_LARGE, Category.NOT_FOUND})
"""Refusals that concern a message or its destination: the others go on."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write."""

    pair: str | None
    config: Path | None
    ledger: Path | None
    rate: float | None
    tasks: int
    ttl: TtlMode
    run: str
    only_run: bool
    report: Path | None

    @classmethod
    def parse(cls, given: Mapping[str, str], *, overwrite: bool) -> "WriteOptions":
        """Raises UsageError: an unknown option, a value that is none, or a write that is to replace something."""
        if overwrite:
            raise UsageError("What was sent cannot be overwritten; write with mode append.")
        options = known_options(given, ("pair", "config", "ledger", "rate", "tasks", "ttl", "run", "onlyRun", "report"))
        try:
            return cls(
                pair=options.get("pair"),
                config=Path(options["config"]) if options.get("config") else None,
                ledger=Path(options["ledger"]) if options.get("ledger") else None,
                rate=float(options["rate"]) if options.get("rate") else None,
                tasks=int(options.get("tasks", "1")),
                ttl=TtlMode(options.get("ttl", "full")),
                run=options.get("run") or uuid.uuid4().hex[:12],
                only_run=truth(options, "onlyRun", False),
                report=Path(options["report"]) if options.get("report") else None,
            )
        except ValueError as error:
            raise UsageError(f"An option of the write cannot be read: {error}.") from error


@dataclass(slots=True)
class Tally:
    """What became of the rows: messages by outcome, refusals by reason, messages by destination."""

    outcomes: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    per_destination: dict[str, int] = field(default_factory=dict)
    skipped: int = 0
    """The ledger had them from an earlier attempt."""
    resent: int = 0
    """Sent again because the first try was not acknowledged."""

    def add(self, other: "Tally") -> None:
        self.outcomes = dict(Counter(self.outcomes) + Counter(other.outcomes))
        self.refusals = dict(Counter(self.refusals) + Counter(other.refusals))
        self.per_destination = dict(Counter(self.per_destination) + Counter(other.per_destination))
        self.skipped += other.skipped
        self.resent += other.resent

    def count(self, line: Sent) -> None:
        """One more message of which this is known now."""
        self.outcomes[line.outcome] = self.outcomes.get(line.outcome, 0) + 1
        if line.outcome == REFUSED:
            self.refusals[line.reason] = self.refusals.get(line.reason, 0) + 1
        elif line.outcome == FORWARDED and line.destination is not None:
            self.per_destination[line.destination] = self.per_destination.get(line.destination, 0) + 1


@dataclass
class ReplayMessage(WriterCommitMessage):
    tally: Tally


class ReplayWriter(DataSourceArrowWriter):
    """Sends rows to the primary. Needs the columns of NEEDED_COLUMNS; others may be there."""

    def __init__(self, options: WriteOptions, columns: Sequence[str]) -> None:
        with marking_errors():
            missing = [name for name in NEEDED_COLUMNS if name not in columns]
            if missing:
                raise UsageError(
                    f"The frame lacks the column(s) {', '.join(missing)}.",
                    hint="Write rows as sbpair-backlog reads them.",
                )
            self.options = options
            self.pair = PairByName.load(options.pair, options.config)

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> ReplayMessage:
        context = TaskContext.get()
        partition, attempt = (context.partitionId(), context.attemptNumber()) if context is not None else (0, 0)
        ledger, run, only_run = self.options.ledger, self.options.run, self.options.only_run
        with marking_errors(), nullcontext() if ledger is None else the_only_attempt(ledger, run, partition):
            done = done_by(ledger, run, partition) if ledger is not None else set()
            journal = None if ledger is None else Journal(ledger, run, partition, attempt, only_run=only_run)
            with closing(journal) if journal is not None else nullcontext():
                tally = self._send_all(iterator, journal, done)
                if journal is not None:
                    journal.finish()
        return ReplayMessage(tally)

    def _send_all(self, iterator: Iterator["pa.RecordBatch"], journal: Journal | None, done: set[Key]) -> Tally:
        with Connection.to(self.pair, "primary") as connection:
            sending = _Sending(connection, journal, self.options, done)
            try:
                for batch in iterator:
                    sending.take(batch)
                sending.flush()
            finally:
                sending.join()
        return sending.tally

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._drop_locks()
        if self.options.report is None:
            return
        total = Tally()
        for message in messages:
            if isinstance(message, ReplayMessage):
                total.add(message.tally)
        self.options.report.write_text(json.dumps(asdict(total)), encoding="utf-8")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing can be taken back; the ledger has what was sent."""
        self._drop_locks()

    def _drop_locks(self) -> None:
        if self.options.ledger is not None:
            drop_locks(self.options.ledger, self.options.run)


def read_tally(path: Path) -> Tally:
    """What `ReplayWriter.commit` wrote."""
    return Tally(**json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True, slots=True)
class _Ready:
    """A message in its form for the primary; without payload there is only something to be said of it."""

    line: Sent
    payload: bytes | None = None
    group: str | None = None
    """What a partitioned entity wants to be the same all over a batch."""


class _Sending:
    """One task's messages, in their order: while one batch is on its way the next one is made ready."""

    def __init__(self, connection: Connection, journal: Journal | None, options: WriteOptions, done: set[Key]) -> None:
        self._connection, self._journal, self._options = connection, journal, options
        self._done = done
        self._before: Key | None = None
        self._pace = _Pace(None if options.rate is None else options.rate / max(1, options.tasks))
        self._waiting: list[_Ready] = []
        self._waiting_bytes = 0
        self._on_its_way: Future[None] | None = None
        self._senders: dict[str, tuple[MessageSender, int]] = {}
        self._alike_only: set[str] = set()
        self.tally = Tally()

    def take(self, batch: "pa.RecordBatch") -> None:
        columns = [_values(batch.column(batch.schema.get_field_index(name))) for name in NEEDED_COLUMNS]
        for row in zip(*columns, strict=True):
            self._take_row(*row)

    def _take_row(
        self,
        queue: str,
        dead_letter: bool,
        number: int,
        enqueued_at_us: int | None,
        message_id: str | None,
        session_id: str | None,
        is_ping: bool,
        digest: bytes | None,
        payload: bytes,
    ) -> None:
        key = queue, dead_letter, number, -1 if enqueued_at_us is None else enqueued_at_us // 1000
        if key in self._done or key == self._before:
            self.tally.skipped += 1
            return
        self._before = key
        line = Sent(*key, message_id, session_id, None, digest_text(digest), FORWARDED, "")
        if is_ping:
            line.outcome = PING
            self._put(_Ready(line))
            return
        try:
            restored = for_primary(
                payload,
                now=time.time(),
                enqueued_at=None if enqueued_at_us is None else enqueued_at_us / 1_000_000,
                ttl=self._options.ttl,
                from_dead_letter=bool(dead_letter),
            )
        except MessageError as error:
            line.outcome, line.reason = REFUSED, error.reason
            self._put(_Ready(line))
            return
        line.destination = restored.destination
        self._put(_Ready(line, restored.payload, restored.session_id or restored.partition_key))

    def _put(self, ready: _Ready) -> None:
        size = 0 if ready.payload is None else len(ready.payload) + _PER_MESSAGE_BYTES
        if self._waiting and not self._fits(ready, size):
            self.flush()
        self._waiting.append(ready)
        self._waiting_bytes += size

    def _fits(self, ready: _Ready, size: int) -> bool:
        if len(self._waiting) >= self._pace.most(BATCH_MESSAGES):
            return False
        head = next((one for one in self._waiting if one.payload is not None), None)
        if head is None or ready.payload is None:
            return True
        destination = str(ready.line.destination)
        if head.line.destination != destination:
            return False
        if destination.lower() in self._alike_only and head.group != ready.group:
            return False
        known = self._senders.get(destination.lower())
        limit = min(known[1] if known is not None else 0, _MOST_BATCH_BYTES) - _ENVELOPE_BYTES
        return self._waiting_bytes + size <= limit

    def flush(self) -> None:
        """Send what waits, as soon as what is on its way is in the ledger."""
        ready, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self.join()
        if ready:
            self._on_its_way = self._connection.start(self._dispatch(ready))

    def join(self) -> None:
        """Wait until what is on its way is in the ledger; raises what became of it otherwise."""
        sent, self._on_its_way = self._on_its_way, None
        if sent is not None:
            sent.result()

    async def _dispatch(self, ready: Sequence[_Ready]) -> None:
        if sendable := [one for one in ready if one.payload is not None]:
            await self._send(sendable)
        self._record([one.line for one in ready if one.payload is None])

    async def _send(self, ready: Sequence[_Ready]) -> None:
        destination = str(ready[0].line.destination)
        await self._pace.wait_for(len(ready))
        if self._journal is not None:
            self._journal.check_run()
        tries = _Tries()
        try:
            await patiently(lambda: self._attempt(destination, ready, tries))
        except SendIncompleteError as error:
            self._sent([ready[place] for place in error.accepted], tries)
            await self._send([one for place, one in enumerate(ready) if place not in error.accepted])
        except ServiceError as error:
            if error.category not in _REFUSALS:
                raise
            await self._part_or_refuse(destination, ready, error)
        else:
            self._sent(ready, tries)

    async def _attempt(self, destination: str, ready: Sequence[_Ready], tries: "_Tries") -> None:
        sender = await self._sender(destination)
        try:
            await sender.send([one.payload for one in ready if one.payload is not None], timeout_seconds=SEND_SECONDS)
        except ServiceError as error:
            tries.count += 1 if error.uncertain else 0
            raise

    async def _sender(self, destination: str) -> "MessageSender":
        key = destination.lower()
        if key not in self._senders:
            sender = self._connection.messaging.sender(destination)
            self._senders[key] = sender, await sender.max_message_bytes()
        return self._senders[key][0]

    async def _part_or_refuse(self, destination: str, ready: Sequence[_Ready], error: ServiceError) -> None:
        """A partitioned entity takes only messages of one session or key in a batch; else one message may spoil it."""
        if len(ready) == 1 or error.category is Category.NOT_FOUND:
            for one in ready:
                one.line.outcome, one.line.reason = REFUSED, f"{destination}: {error.code}"
            self._record([one.line for one in ready])
            return
        groups = _runs(ready)
        if len(groups) > 1:
            self._alike_only.add(destination.lower())
        for part in groups if len(groups) > 1 else [[one] for one in ready]:
            await self._send(part)

    def _sent(self, ready: Sequence[_Ready], tries: "_Tries") -> None:
        for one in ready:
            one.line.attempts = tries.count
        self._record([one.line for one in ready])
        self.tally.resent += len(ready) if tries.count > 1 else 0

    def _record(self, lines: Sequence[Sent]) -> None:
        now = datetime.now(UTC).isoformat()
        for one in lines:
            one.time = now
        if self._journal is not None and lines:
            self._journal.record(lines)
        for one in lines:
            self.tally.count(one)


def _values(column: "pa.Array") -> list[Any]:
    """A column's values; times as epoch microseconds, many times faster than as objects."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


@dataclass(slots=True)
class _Tries:
    count: int = 1


def _runs(ready: Sequence[_Ready]) -> list[list[_Ready]]:
    """Neighbours of the same group together; the order stays."""
    parts: list[list[_Ready]] = []
    for one in ready:
        if parts and parts[-1][0].group == one.group:
            parts[-1].append(one)
        else:
            parts.append([one])
    return parts


class _Pace:
    """Keeps one task to its share of the rate."""

    def __init__(self, per_second: float | None) -> None:
        self._per_second = per_second
        self._free_at = time.monotonic()

    def most(self, messages: int) -> int:
        """How many may go at once: not more than a second's share."""
        return messages if self._per_second is None else max(1, min(messages, int(self._per_second)))

    async def wait_for(self, messages: int) -> None:
        if self._per_second is None:
            return
        now = time.monotonic()
        start = max(now, self._free_at)
        self._free_at = start + messages / self._per_second
        if start > now:
            await asyncio.sleep(start - now)
