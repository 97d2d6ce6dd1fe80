"""Sends rows: the writer of `sbpair-backlog`, which `pipeline replay` uses, and of `servicebus`.

A task runs the pump of a drain over the rows of its partition: each session in the order in which its rows come, with
sessions beside each other, and a line in the ledger for everything that was accepted. A task that runs again leaves
out what the ledger has. A batch that was sent but not acknowledged may arrive twice, with the same message id.

Of `sbpair-backlog`, which takes rows as it reads them back to the primary:

    pair, config    as for a read
    to              queue or topic of the primary that takes all messages; default: each goes to its own destination
    ttl             full (default): the time to live starts again; remaining: the time in the backlog is taken off

Of `servicebus`, which takes rows as it reads them, or new messages (`new_messages`), to one queue or topic:

    namespace, auth, connectionStringEnv, connectionStringFile, caFile, transport    as for a read
    entity          the queue or topic

Of both:

    ledger          folder that driver and executors share; without it nothing is remembered
    rate            messages a second of the whole job; `tasks` says among how many tasks it is shared
    reserve         throttling credits a second that the whole job leaves to others, of the 1,000 of a namespace of the
                    Basic or Standard tier

Of a batch:

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
from typing import TYPE_CHECKING, ClassVar

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from sbpair.core.access import namespace_name
from sbpair.core.errors import MessageError, UsageError
from sbpair.core.message import Disposition, Received
from sbpair.core.names import is_dead_letter_path, is_destination
from sbpair.core.retry import NAMESPACE_CREDITS_PER_SECOND, PATIENCE_SECONDS, credits_beside
from sbpair.core.rewrite import TtlMode, as_sent
from sbpair.core.transfer.custody import REFUSED_OUTCOME
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.report import Tally as Counters
from sbpair.core.transfer.state import Finish, Forward, Item, Key, Limits, Verdict, key_of
from sbpair.core.transfer.verdict import Classifier
from sbpair.core.words import counted
from sbpair.pipeline.errors import RUN_AGAIN, ReplayError, marking_errors
from sbpair.pipeline.executors import CLOCK, Connection, NamespaceByName, PairByName
from sbpair.pipeline.rows import STORED_COLUMNS, messages_in
from sbpair.pipeline.runs import (
    ANY_TASK,
    check_run,
    done_by,
    drop_locks,
    ledger_of,
    refuse_folded,
    task_name,
    the_only_attempt,
)
from sbpair.pipeline.source.new_messages import ROWS, check_new_messages, new_messages
from sbpair.pipeline.source.options import ENTITY_OPTIONS, known_options, namespace_in, truth
from sbpair.runtime.clock import Quiet
from sbpair.runtime.transfer.ledger import Ledger, Way
from sbpair.runtime.transfer.restore import NOT_TO_BE_WAITED_FOR, send_stored
from sbpair.runtime.transfer.sinks import NamespaceSink
from sbpair.runtime.transfer.stored import StoredMessages

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from sbpair.ports import Messaging

TAKEN_OVER_ROWS = 500
"""Rows that are handed to the pump at once."""


@dataclass(frozen=True, slots=True)
class ToPrimary:
    """Backlog messages go to the primary of their pair, each as its application sent it."""

    pair: PairByName
    to: str | None
    ttl: TtlMode

    refused_fail: ClassVar[bool] = False
    """What is refused stays in its archive and is in the ledger with the reason; a replay's report counts it."""

    def connect(self) -> Connection:
        return Connection.to(self.pair, "primary")

    def way(self) -> Way:
        return self.pair.way()

    def judge(self) -> Callable[[Received], Verdict]:
        return Classifier(now=lambda: CLOCK.now().timestamp(), ttl=self.ttl, destination=self.to)

    def check(self, schema: "StructType") -> None:
        """Raises UsageError: rows of this schema are no backlog messages."""
        if missing := [name for name in STORED_COLUMNS if name not in schema.names]:
            raise UsageError(f"The frame lacks {', '.join(missing)}.", hint="Write rows as sbpair-backlog reads them.")

    def messages(self, batch: "pa.RecordBatch") -> Iterator[Received]:
        return messages_in(batch)


@dataclass(frozen=True, slots=True)
class ToEntity:
    """Messages go to one queue or topic, as their application sent them, or as their columns say."""

    namespace: NamespaceByName
    entity: str

    refused_fail: ClassVar[bool] = True
    """Nothing else keeps what a program of the user's own could not send."""

    def connect(self) -> Connection:
        return Connection.to_namespace(self.namespace)

    def way(self) -> Way:
        return Way(ROWS, namespace_name(self.namespace.resolve()))

    def judge(self) -> Callable[[Received], Verdict]:
        return partial(_as_sent_to, self.entity)

    def check(self, schema: "StructType") -> None:
        """Raises UsageError: rows of this schema are neither messages that were read nor new ones."""
        if not _are_stored(schema.names):
            check_new_messages(schema)

    def messages(self, batch: "pa.RecordBatch") -> Iterator[Received]:
        return messages_in(batch) if _are_stored(batch.schema.names) else new_messages(batch)


def _are_stored(columns: Sequence[str]) -> bool:
    return set(STORED_COLUMNS) <= set(columns)


def _as_sent_to(entity: str, received: Received) -> Verdict:
    try:
        sent = as_sent(received.payload, from_dead_letter=is_dead_letter_path(received.queue))
    except MessageError as error:
        return Finish(Disposition.DEAD_LETTER, "dead-lettered", error.reason, error.description)
    return Forward(sent.payload, entity, sent.session_id, sent.partition_key)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write, and where it sends to."""

    place: ToPrimary | ToEntity
    ledger: Path | None
    rate: float | None
    budget: float | None
    """Messages a second that the credits left to others allow the whole job."""
    tasks: int
    run: str
    only_run: bool
    report: Path | None

    @classmethod
    def parse(
        cls, given: Mapping[str, str], *, overwrite: bool, of_backlog: bool = True, stream: bool = False
    ) -> "WriteOptions":
        """Looks the place up in the configuration, if it is there.

        Raises:
            UsageError: an unknown option, a value that is none, a stream without a ledger, or a write that is to
                replace something.
            ConfigurationError: the pair or the namespace is not known.
        """
        if overwrite:
            raise UsageError("What was sent cannot be overwritten; write with mode append.")
        of_place = ("pair", "config", "to", "ttl") if of_backlog else ENTITY_OPTIONS
        of_batch = () if stream else ("run", "onlyRun", "report")
        options = known_options(given, (*of_place, "ledger", "rate", "reserve", "tasks", *of_batch))
        ledger = Path(options["ledger"]) if options.get("ledger") else None
        if stream and ledger is None:
            raise UsageError(
                "A stream needs the option ledger: without it a micro-batch that Spark repeats would be sent twice.",
                hint="Name a folder that driver and executors share.",
            )
        try:
            return cls(
                place=_primary_in(options) if of_backlog else _entity_in(options),
                ledger=ledger,
                rate=float(options["rate"]) if options.get("rate") else None,
                budget=_budget(int(options["reserve"])) if options.get("reserve") else None,
                tasks=int(options.get("tasks", "1")),
                run=options.get("run") or uuid.uuid4().hex[:12],
                only_run=truth(options, "onlyRun", False),
                report=Path(options["report"]) if options.get("report") else None,
            )
        except ValueError as error:
            raise UsageError(f"An option of the write cannot be read: {error}.") from error


def _budget(reserve: int) -> float:
    if not 0 <= reserve < NAMESPACE_CREDITS_PER_SECOND:
        raise ValueError(f"reserve lies between 0 and {NAMESPACE_CREDITS_PER_SECOND - 1}, not {reserve}")
    return credits_beside(reserve)


def _primary_in(options: Mapping[str, str]) -> ToPrimary:
    if "to" in options and not is_destination(options["to"]):
        raise UsageError(f"The option to is the path of a queue or a topic, not {options['to']!r}.")
    ttl = TtlMode(options.get("ttl", "full"))
    config = Path(options["config"]) if options.get("config") else None
    return ToPrimary(PairByName.load(options.get("pair"), config), options.get("to"), ttl)


def _entity_in(options: Mapping[str, str]) -> ToEntity:
    entity = options.get("entity", "").strip()
    if not is_destination(entity):
        raise UsageError(f"The option entity of a write is one queue or topic, not {entity!r}.")
    return ToEntity(namespace_in(options), entity)


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
    """Sends rows to the place that its options name.

    Raises:
        UsageError: the frame's columns are not what that place takes.
    """

    def __init__(self, options: WriteOptions, schema: "StructType") -> None:
        options.place.check(schema)
        self.options = options

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
            place = self.options.place
            with place.connect() as connection, ledger_of(connection, folder, place.way(), run, task) as ledger:
                if folder is not None and whole_run:
                    refuse_folded(folder, run)
                return ReplayMessage(self._send(connection, iterator, ledger, done), run)

    def _send(
        self, connection: Connection, batches: Iterator["pa.RecordBatch"], ledger: Ledger | None, done: set[Key]
    ) -> Tally:
        folder, tasks = self.options.ledger, max(1, self.options.tasks)
        rate, budget = self.options.rate, self.options.budget
        limits = Limits(
            rate_per_second=None if rate is None else rate / tasks,
            budget_per_second=None if budget is None else budget / tasks,
            patience_seconds=PATIENCE_SECONDS,
            no_use_waiting=NOT_TO_BE_WAITED_FOR,
        )
        machine = Settlement(limits, undeliverable=REFUSED_OUTCOME)
        check = partial(check_run, folder, self.options.run) if folder is not None and self.options.only_run else None
        sink = _CheckedSink(connection.messaging, check)
        place = self.options.place
        stored, stop, rows = StoredMessages(), asyncio.Event(), _Rows(done, place.messages)
        sending = connection.start(
            send_stored(
                stored,
                place.judge(),
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
        for refusal in machine.destinations.given_up().values():
            raise refusal
        tally = _tally(machine.tally, skipped=rows.skipped)
        if (open_ones := rows.given - sum(tally.outcomes.values())) or not taken_over:
            raise ReplayError(f"A task ended with {open_ones:,} messages that were not sent.", hint=RUN_AGAIN)
        if place.refused_fail and tally.refusals:
            raise ReplayError(
                f"{counted(sum(tally.refusals.values()), 'message')} of a task cannot be sent: "
                f"{', '.join(f'{reason} ({count:,})' for reason, count in tally.refusals.items())}. The others were.",
                hint="The ledger has a line for each of them. Leave these rows out, then run again.",
            )
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

    def __init__(self, done: set[Key], messages: "Callable[[pa.RecordBatch], Iterator[Received]]") -> None:
        self._done = done
        self._messages = messages
        self._before: Key | None = None
        self.skipped = 0
        self.given = 0

    def messages(self, batch: "pa.RecordBatch") -> Iterator[list[Received]]:
        coming = self._messages(batch)
        while some := list(islice(coming, TAKEN_OVER_ROWS)):
            yield [one for one in some if self._is_new(key_of(one))]

    def _is_new(self, key: Key) -> bool:
        if key in self._done or key == self._before:
            self.skipped += 1
            return False
        # Rows out of queues have a place each, and a replay sorts by it. Those of new messages come in any order.
        if key[0] == ROWS:
            self._done.add(key)
        self._before = key
        self.given += 1
        return True


def _tally(counters: Counters, *, skipped: int) -> Tally:
    numbers = counters.numbers
    outcomes = {"forwarded": numbers["forwarded"], "ping": numbers["pings"], REFUSED_OUTCOME: numbers["dead_lettered"]}
    return Tally(
        outcomes={name: count for name, count in outcomes.items() if count},
        refusals=dict(counters.names["dead_letter_reasons"]),
        per_destination=dict(counters.names["per_destination"]),
        skipped=skipped,
        resent=numbers["sent_again"],
    )
