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

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from sbpair.pipeline.journal import FORWARDED, Journal, Sent, digest_text, done_by
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
    "partition_key",
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


@dataclass
class ReplayMessage(WriterCommitMessage):
    tally: Tally


class ReplayWriter(DataSourceArrowWriter):
    """Sends rows home. Needs the columns of NEEDED_COLUMNS; others may be there."""

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
        with marking_errors():
            done = done_by(ledger, run, partition) if ledger is not None else set()
            journal = None if ledger is None else Journal(ledger, run, partition, attempt, only_run=only_run)
            try:
                with Connection.to(self.pair, "primary") as connection:
                    sending = _Sending(connection, journal, self.options, done)
                    for batch in iterator:
                        sending.take(batch)
                    sending.flush()
            finally:
                if journal is not None:
                    journal.close()
        return ReplayMessage(sending.tally)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self.options.report is None:
            return
        total = Tally()
        for message in messages:
            if isinstance(message, ReplayMessage):
                total.add(message.tally)
        self.options.report.write_text(json.dumps(asdict(total)), encoding="utf-8")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing can be taken back; the ledger has what was sent."""


def read_tally(path: Path) -> Tally:
    """What `ReplayWriter.commit` wrote."""
    return Tally(**json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True, slots=True)
class _Ready:
    """A message in its home form."""

    line: Sent
    payload: bytes
    group: str | None
    """What a partitioned entity wants to be the same all over a batch."""


class _Sending:
    """One task's messages, in their order."""

    def __init__(self, connection: Connection, journal: Journal | None, options: WriteOptions, done: set[Any]) -> None:
        self._connection, self._journal, self._options = connection, journal, options
        self._done = done
        self._pace = _Pace(None if options.rate is None else options.rate / max(1, options.tasks))
        self._waiting: list[_Ready] = []
        self._waiting_bytes = 0
        self._senders: dict[str, tuple[MessageSender, int]] = {}
        self._alike_only: set[str] = set()
        self.tally = Tally()

    def take(self, batch: "pa.RecordBatch") -> None:
        columns = [batch.column(batch.schema.get_field_index(name)).to_pylist() for name in NEEDED_COLUMNS]
        for row in zip(*columns, strict=True):
            self._take_row(dict(zip(NEEDED_COLUMNS, row, strict=True)))

    def _take_row(self, row: Mapping[str, Any]) -> None:
        enqueued_at = None if row["enqueued_at"] is None else row["enqueued_at"].timestamp()
        key = row["queue"], row["dead_letter"], row["sequence_number"], _milliseconds(enqueued_at)
        if key in self._done:
            self.tally.skipped += 1
            return
        self._done.add(key)
        line = Sent(
            *key,
            message_id=row["message_id"],
            session_id=row["session_id"],
            destination=None,
            digest=digest_text(row["digest"]),
            outcome="ping" if row["is_ping"] else FORWARDED,
            time="",
        )
        if row["is_ping"]:
            self._record([line])
            return
        try:
            home = for_primary(
                row["payload"],
                now=time.time(),
                enqueued_at=enqueued_at,
                ttl=self._options.ttl,
                from_dead_letter=bool(row["dead_letter"]),
            )
        except MessageError as error:
            self._refuse([line], error.reason)
            return
        self._put(
            _Ready(_with(line, destination=home.destination), home.payload, home.session_id or home.partition_key)
        )

    def _put(self, ready: _Ready) -> None:
        destination = str(ready.line.destination)
        if self._waiting and not self._fits(ready, destination):
            self.flush()
        self._waiting.append(ready)
        self._waiting_bytes += len(ready.payload) + _PER_MESSAGE_BYTES

    def _fits(self, ready: _Ready, destination: str) -> bool:
        head = self._waiting[0]
        if head.line.destination != destination or len(self._waiting) >= self._pace.most(BATCH_MESSAGES):
            return False
        if destination.lower() in self._alike_only and head.group != ready.group:
            return False
        known = self._senders.get(destination.lower())
        limit = min(known[1] if known is not None else 0, _MOST_BATCH_BYTES) - _ENVELOPE_BYTES
        return known is not None and self._waiting_bytes + len(ready.payload) + _PER_MESSAGE_BYTES <= limit

    def flush(self) -> None:
        """Send what waits, and have it in the ledger."""
        ready, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if ready:
            self._send(ready)

    def _send(self, ready: Sequence[_Ready]) -> None:
        destination = str(ready[0].line.destination)
        self._pace.wait_for(len(ready))
        if self._journal is not None:
            self._journal.check_run()
        tries = _Tries()
        try:
            self._connection.run(patiently(lambda: self._attempt(destination, ready, tries)))
        except SendIncompleteError as error:
            self._record([_with(ready[place].line, attempts=tries.count) for place in error.accepted])
            rest = [one for place, one in enumerate(ready) if place not in error.accepted]
            self._send(rest)
        except ServiceError as error:
            if error.category not in _REFUSALS:
                raise
            self._part_or_refuse(destination, ready, error)
        else:
            self._record([_with(one.line, attempts=tries.count) for one in ready])
            self.tally.resent += len(ready) if tries.count > 1 else 0

    async def _attempt(self, destination: str, ready: Sequence[_Ready], tries: "_Tries") -> None:
        sender = await self._sender(destination)
        try:
            await sender.send([one.payload for one in ready], timeout_seconds=SEND_SECONDS)
        except ServiceError as error:
            tries.count += 1 if error.uncertain else 0
            raise

    async def _sender(self, destination: str) -> "MessageSender":
        key = destination.lower()
        if key not in self._senders:
            sender = self._connection.messaging.sender(destination)
            self._senders[key] = sender, await sender.max_message_bytes()
        return self._senders[key][0]

    def _part_or_refuse(self, destination: str, ready: Sequence[_Ready], error: ServiceError) -> None:
        """A partitioned entity takes only messages of one session or key in a batch; else one message may spoil it."""
        if len(ready) == 1 or error.category is Category.NOT_FOUND:
            self._refuse([one.line for one in ready], f"{destination}: {error.code}")
            return
        groups = _runs(ready)
        if len(groups) > 1:
            self._alike_only.add(destination.lower())
        for part in groups if len(groups) > 1 else [[one] for one in ready]:
            self._send(part)

    def _refuse(self, lines: Sequence[Sent], reason: str) -> None:
        self.tally.refusals[reason] = self.tally.refusals.get(reason, 0) + len(lines)
        self._record([_with(one, outcome="refused", reason=reason) for one in lines])

    def _record(self, lines: Sequence[Sent]) -> None:
        now = datetime.now(UTC).isoformat()
        if self._journal is not None:
            self._journal.record(_with(one, time=now) for one in lines)
        for one in lines:
            self.tally.outcomes[one.outcome] = self.tally.outcomes.get(one.outcome, 0) + 1
            if one.outcome == FORWARDED and one.destination is not None:
                place = one.destination
                self.tally.per_destination[place] = self.tally.per_destination.get(place, 0) + 1


@dataclass(slots=True)
class _Tries:
    count: int = 1


def _with(line: Sent, **changes: Any) -> Sent:
    import dataclasses

    return dataclasses.replace(line, **changes)


def _milliseconds(seconds: float | None) -> int:
    return -1 if seconds is None else round(seconds * 1000)


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

    def wait_for(self, messages: int) -> None:
        if self._per_second is None:
            return
        now = time.monotonic()
        start = max(now, self._free_at)
        self._free_at = start + messages / self._per_second
        if start > now:
            time.sleep(start - now)
