"""Writes archived messages to the primary: the writer of `sbpair-backlog`, which `pipeline replay` uses.

A task runs the pump of a drain over the rows of its partition: each session in the order in which its rows come, with
sessions beside each other, and a line in the ledger for everything the primary accepted. A task that runs again leaves
out what the ledger has. A batch that was sent but not acknowledged may arrive twice, with the same message id.

    pair, config    as for a read
    ledger          folder that driver and executors share; without it nothing is remembered
    to              queue or topic of the primary that takes all messages; default: each goes to its own destination
    rate            messages a second of the whole job; `tasks` says among how many tasks it is shared
    ttl             full (default): the time to live starts again; remaining: the time in the backlog is taken off
    run             name of this run in the ledger's files; default: one per job
    onlyRun         true: stop when the ledger's `run` file names another run (see `runs.the_only_run`)
    report          file on the driver for the sums
"""

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from sbpair.core.errors import UsageError
from sbpair.core.message import Received
from sbpair.core.names import is_destination
from sbpair.core.rewrite import TtlMode
from sbpair.core.transfer.machine import REFUSED_OUTCOME, Settlement
from sbpair.core.transfer.report import Tally as Counters
from sbpair.core.transfer.state import Item, Key, Limits, key_of
from sbpair.core.transfer.verdict import Classifier
from sbpair.pipeline.errors import RUN_AGAIN, ReplayError, marking_errors
from sbpair.pipeline.executors import CLOCK, Connection, PairByName
from sbpair.pipeline.rows import STORED_COLUMNS, messages_in
from sbpair.pipeline.runs import ANY_TASK, check_run, done_by, drop_locks, ledger_of, task_name, the_only_attempt
from sbpair.pipeline.source_options import known_options, truth
from sbpair.runtime.browse import PATIENCE_SECONDS
from sbpair.runtime.clock import Quiet
from sbpair.runtime.transfer.ledger import Ledger
from sbpair.runtime.transfer.restore import NOT_TO_BE_WAITED_FOR, send_stored
from sbpair.runtime.transfer.sinks import NamespaceSink
from sbpair.runtime.transfer.stored import StoredMessages

if TYPE_CHECKING:
    import pyarrow as pa

    from sbpair.ports import Messaging

TAKEN_OVER_ROWS = 500
"""Rows that are handed to the pump at once."""


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
    to: str | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str], *, overwrite: bool, stream: bool = False) -> "WriteOptions":
        """Raises UsageError: an unknown option, a value that is none, or a write that is to replace something."""
        if overwrite:
            raise UsageError("What was sent cannot be overwritten; write with mode append.")
        of_batch = () if stream else ("run", "onlyRun", "report")
        options = known_options(given, ("pair", "config", "ledger", "to", "rate", "tasks", "ttl", *of_batch))
        if "to" in options and not is_destination(options["to"]):
            raise UsageError(f"The option to is the path of a queue or a topic, not {options['to']!r}.")
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
                to=options.get("to"),
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
    run: str


class ReplayWriter(DataSourceArrowWriter):
    """Sends rows to the primary. Needs the columns of STORED_COLUMNS; others may be there."""

    def __init__(self, options: WriteOptions, columns: Sequence[str]) -> None:
        with marking_errors():
            missing = [name for name in STORED_COLUMNS if name not in columns]
            if missing:
                raise UsageError(
                    f"The frame lacks the column(s) {', '.join(missing)}.",
                    hint="Write rows as sbpair-backlog reads them.",
                )
            self.options = options
            self.pair = PairByName.load(options.pair, options.config)

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> ReplayMessage:
        return self.write_in(self.options.run, iterator)

    def write_in(self, run: str, iterator: Iterator["pa.RecordBatch"], *, whole_run: bool = False) -> ReplayMessage:
        """Send the rows of this task as part of a run. `whole_run`: leave out what any task of the run has sent, not
        only this one's attempts."""
        context = TaskContext.get()
        task = task_name(context.partitionId() if context is not None else 0)
        folder = self.options.ledger
        with marking_errors(), nullcontext() if folder is None else the_only_attempt(folder, run, task):
            done = done_by(folder, run, ANY_TASK if whole_run else task) if folder is not None else set()
            way = self.pair.way()
            with (
                Connection.to(self.pair, "primary") as connection,
                ledger_of(connection, folder, way, run, task) as ledger,
            ):
                return ReplayMessage(self._send(connection, iterator, ledger, done), run)

    def _send(
        self, connection: Connection, batches: Iterator["pa.RecordBatch"], ledger: Ledger | None, done: set[Key]
    ) -> Tally:
        rate, folder = self.options.rate, self.options.ledger
        limits = Limits(
            rate_per_second=None if rate is None else rate / max(1, self.options.tasks),
            patience_seconds=PATIENCE_SECONDS,
            no_use_waiting=NOT_TO_BE_WAITED_FOR,
        )
        machine = Settlement(limits, undeliverable=REFUSED_OUTCOME)
        check = partial(check_run, folder, self.options.run) if folder is not None and self.options.only_run else None
        sink = _CheckedSink(connection.messaging, check)
        stored, stop, rows = StoredMessages(), asyncio.Event(), _Rows(done)
        sending = connection.start(
            send_stored(
                stored,
                Classifier(now=lambda: CLOCK.now().timestamp(), ttl=self.options.ttl, destination=self.options.to),
                machine,
                sink,
                ledger=ledger,
                clock=CLOCK,
                observer=Quiet(),
                stop=stop,
            )
        )
        try:
            taken_over = all(connection.run(stored.put(some)) for batch in batches for some in rows.messages(batch))
            if taken_over:
                connection.run(stored.end())
        except BaseException:
            connection.call(stop.set)
            with suppress(Exception):  # what made us stop is what is to be told
                sending.result()
            raise
        sending.result()
        for refusal in machine.given_up().values():
            raise refusal
        tally = _tally(machine.tally, skipped=rows.skipped)
        if (open_ones := rows.given - sum(tally.outcomes.values())) or not taken_over:
            raise ReplayError(f"A task ended with {open_ones:,} messages that were not sent.", hint=RUN_AGAIN)
        return tally

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


class _CheckedSink(NamespaceSink):
    """Asks before each batch whether this task may still send."""

    def __init__(self, messaging: "Messaging", check: Callable[[], None] | None) -> None:
        super().__init__(messaging)
        self._check = check

    async def send(self, destination: str, items: Sequence[Item]) -> None:
        if self._check is not None:
            self._check()
        await super().send(destination, items)


class _Rows:
    """Rows as messages of a file, each once: without what earlier attempts have dealt with."""

    def __init__(self, done: set[Key]) -> None:
        self._done = done
        self._before: Key | None = None
        self.skipped = 0
        self.given = 0

    def messages(self, batch: "pa.RecordBatch") -> Iterator[list[Received]]:
        coming = messages_in(batch)
        while some := list(islice(coming, TAKEN_OVER_ROWS)):
            yield [one for one in some if self._is_new(key_of(one))]

    def _is_new(self, key: Key) -> bool:
        if key in self._done or key == self._before:
            self.skipped += 1
            return False
        self._before = key
        self.given += 1
        return True


def _tally(counted: Counters, *, skipped: int) -> Tally:
    numbers = counted.numbers
    outcomes = {"forwarded": numbers["forwarded"], "ping": numbers["pings"], REFUSED_OUTCOME: numbers["dead_lettered"]}
    return Tally(
        outcomes={name: count for name, count in outcomes.items() if count},
        refusals=dict(counted.names["dead_letter_reasons"]),
        per_destination=dict(counted.names["per_destination"]),
        skipped=skipped,
        resent=numbers["sent_again"],
    )
