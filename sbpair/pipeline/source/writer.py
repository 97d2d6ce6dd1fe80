"""Sends rows: the writer of `sbpair-backlog`, which `pipeline replay` uses, and of `servicebus`.

A task runs the pump of a drain over the rows of its partition: each session in the order in which its rows come, with
sessions beside each other, and a line in the ledger for everything that was accepted. A task, or a job, that runs again
leaves out what the ledger has. A batch that was sent but not acknowledged may arrive twice, with the same message id.

A row that cannot be sent (too large, an id of 200 characters) holds up no other: it is named in the ledger with its
reason and kept in the ledger's folder `unsent`, as `restore` and a mended job take it.

Options are those of `sbpair help spark`, and three of a batch that `pipeline replay` uses:

    onlyRun         true: stop when the ledger's `run` file names another run (see `runs.the_only_run`)
    report          file on the driver for the sums
    tasks           among how many tasks `rate` and what `reserve` leaves are shared
"""

import asyncio
import hashlib
import json
import os
import re
import shlex
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from sbpair.core.access import namespace_name
from sbpair.core.errors import MessageError, UsageError
from sbpair.core.message import Disposition, Received
from sbpair.core.names import is_dead_letter_path, is_destination
from sbpair.core.redact import quoted
from sbpair.core.retry import NAMESPACE_CREDITS_PER_SECOND, PATIENCE_SECONDS, credits_beside
from sbpair.core.rewrite import TtlMode, as_sent
from sbpair.core.transfer.custody import REFUSED_OUTCOME
from sbpair.core.transfer.ledger import LedgerEntry, LedgerLine, Way
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.pace import Pace
from sbpair.core.transfer.state import Finish, Forward, Item, Key, Limits, Verdict, key_of
from sbpair.core.transfer.verdict import Classifier
from sbpair.core.words import counted
from sbpair.files import make_private_folder, open_private
from sbpair.operations.restore import NO_MESSAGE
from sbpair.pipeline import runs
from sbpair.pipeline.errors import RUN_AGAIN, ReplayError, marking_errors
from sbpair.pipeline.executors import CLOCK, NamespaceByName, PairByName, TaskConnection
from sbpair.pipeline.manifest import put_in_place
from sbpair.pipeline.rows import STORED_COLUMNS, messages_in
from sbpair.pipeline.source.new_messages import ROWS, BadRow, check_new_messages, new_messages
from sbpair.pipeline.source.options import ENTITY_OPTIONS, known_options, namespace_in, truth
from sbpair.pipeline.tasks import TaskDone, logged_task, pace_of
from sbpair.runtime.clock import Quiet
from sbpair.runtime.transfer.ledger import Ledger
from sbpair.runtime.transfer.restore import NOT_TO_BE_WAITED_FOR, UNSENT, send_stored
from sbpair.runtime.transfer.sinks import NamespaceSink, archive_line
from sbpair.runtime.transfer.stored import StoredMessages

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from sbpair.ports import Messaging


TAKEN_OVER_ROWS = 500
"""Rows that are handed to the pump at once."""


@dataclass(frozen=True, slots=True)
class BacklogToPrimary:
    """Backlog messages go to the primary of their pair, each as its application sent it."""

    pair: PairByName
    to: str | None
    ttl: TtlMode

    def connect(self) -> TaskConnection:
        return TaskConnection.to(self.pair, "primary")

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
    to: str

    def connect(self) -> TaskConnection:
        return TaskConnection(self.namespace.resolve())

    def way(self) -> Way:
        return Way(ROWS, namespace_name(self.namespace.resolve()))

    def judge(self) -> Callable[[Received], Verdict]:
        return partial(_as_sent_to, self.to)

    def check(self, schema: "StructType") -> None:
        """Raises UsageError: rows of this schema are neither messages that were read nor new ones."""
        if not _are_stored(schema.names):
            check_new_messages(schema)

    def messages(self, batch: "pa.RecordBatch") -> "Iterator[Received | BadRow]":
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

    place: BacklogToPrimary | ToEntity
    ledger: Path | None
    rate: float | None
    budget: float | None
    """Messages a second that the credits left to others allow the whole job."""
    tasks: int
    run: str | None
    """None: by the destination."""
    only_run: bool
    report: Path | None
    fail_on_refused: bool
    job: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

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
        options = known_options(given, (*of_place, "ledger", "rate", "reserve", "tasks", "failOnRefused", *of_batch))
        ledger = Path(options["ledger"]).expanduser().absolute() if options.get("ledger") else None
        if stream and ledger is None:
            raise UsageError(
                "A stream needs the option ledger: without it a micro-batch that Spark repeats would be sent twice.",
                hint="Name a folder that driver and executors share.",
            )
        run = options.get("run")
        if run is not None and not _RUN.fullmatch(run):
            raise UsageError(f"The option run has up to 80 letters, digits, dots, hyphens and underscores: {run!r}.")
        try:
            reserve = int(options["reserve"]) if options.get("reserve") else None
            if reserve is not None and not 0 <= reserve < NAMESPACE_CREDITS_PER_SECOND:
                raise ValueError(f"reserve is between 0 and {NAMESPACE_CREDITS_PER_SECOND - 1}, not {reserve}")
            return cls(
                place=_primary_in(options) if of_backlog else _entity_in(options),
                ledger=ledger,
                rate=float(options["rate"]) if options.get("rate") else None,
                budget=None if reserve is None else credits_beside(reserve),
                tasks=int(options.get("tasks", "1")),
                run=run,
                only_run=truth(options, "onlyRun", False),
                report=Path(options["report"]) if options.get("report") else None,
                fail_on_refused=truth(options, "failOnRefused", not stream),
            )
        except ValueError as error:
            raise UsageError(f"An option of the write cannot be read: {error}.") from error


_RUN = re.compile(r"[\w.-]{1,80}", re.ASCII)


def _primary_in(options: Mapping[str, str]) -> BacklogToPrimary:
    if "to" in options and not is_destination(options["to"]):
        raise UsageError(f"The option to is the path of a queue or a topic, not {options['to']!r}.")
    ttl = TtlMode(options.get("ttl", "full"))
    config = Path(options["config"]) if options.get("config") else None
    return BacklogToPrimary(PairByName.load(options.get("pair"), config), options.get("to"), ttl)


def _entity_in(options: Mapping[str, str]) -> ToEntity:
    entity = options.get("entity", "").strip()
    if not is_destination(entity):
        raise UsageError(f"The option entity of a write is one queue or topic, not {entity!r}.")
    return ToEntity(namespace_in(options), entity)


@dataclass(slots=True)
class WriterTally:
    """What became of the rows: messages by outcome, refusals by reason, messages by destination."""

    outcomes: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    per_destination: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    """The ledger had them from an earlier attempt."""
    resent: int = 0
    """Sent again because the first try was not acknowledged."""
    throttled: int = 0
    """How often the namespace was too busy for a batch."""
    waited_seconds: float = 0.0
    refused: list[str] = field(default_factory=list)
    """Some of the rows that cannot be sent, with the reason."""
    refused_files: list[str] = field(default_factory=list)
    """Files that hold them."""

    def add(self, other: "WriterTally") -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
        self.refused = self.refused[:MOST_NAMED_ROWS]
        self.refused_files = sorted({*self.refused_files})

    def count(self, line: LedgerLine) -> None:
        """A message that an earlier attempt of this task has dealt with, and that Spark knows of from nobody else."""
        self.outcomes[line.outcome] += 1
        if line.outcome == "forwarded":
            self.per_destination[str(line.destination)] += 1


@dataclass
class ReplayMessage(WriterCommitMessage):
    tally: WriterTally
    run: str


def total_of(messages: Sequence[WriterCommitMessage | None]) -> WriterTally:
    """The sums over all tasks of a job."""
    total = WriterTally()
    for message in messages:
        if isinstance(message, ReplayMessage):
            total.add(message.tally)
    return total


class ReplayWriter(DataSourceArrowWriter):
    """Sends rows to the place that its options name. Raises UsageError: the frame's columns are not what that place
    takes."""

    def __init__(self, options: WriteOptions, schema: "StructType") -> None:
        options.place.check(schema)
        self.options = options

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> ReplayMessage:
        folder, run = self.options.ledger, self.options.run
        if self.options.only_run:  # what other runs have sent is not among its rows
            return self.write_in(run or self.options.job, iterator)
        with marking_errors():
            place = self.options.place
            destination = hashlib.sha256(f"{place.way()} {(place.to or '').lower()}".encode())
            named = run or f"to-{destination.hexdigest()[:10]}"
            of_job = f"{named}-{self.options.job}"
            if folder is not None and run is None:
                runs.the_only_job(folder, named, self.options.job)
            before = () if folder is None else runs.ledgers_before(folder, of_run=run, without=of_job)
        return self.write_in(of_job, iterator, before=before)

    def write_in(
        self,
        run: str,
        iterator: Iterator["pa.RecordBatch"],
        *,
        whole_run: bool = False,
        before: tuple[tuple[Path, int], ...] = (),
    ) -> ReplayMessage:
        """Send the rows of this task as part of a run, without what its earlier attempts have sent; with `whole_run`
        without what any task of the run has. `before`: ledgers of others, whose messages are left out too."""
        context = TaskContext.get()
        task = f"{context.partitionId() if context is not None else 0:05d}"
        folder = self.options.ledger
        with marking_errors(), nullcontext() if folder is None else runs.the_only_attempt(folder, run, task):
            own = runs.done_by(folder, run, runs.ANY_TASK if whole_run else task) if folder is not None else {}
            place = self.options.place
            earlier = runs.done_before(before, place.way(), place.to) if before else frozenset()
            rows = _Rows(own, earlier, place.messages)
            unsent = _Unsent(None if folder is None else folder / UNSENT)
            with (
                place.connect() as connection,
                runs.ledger_of(connection, folder, place.way(), run, task) as ledger,
                unsent,
            ):
                if folder is not None and whole_run:
                    runs.refuse_folded(folder, run)
                pace = pace_of(connection.namespace, self._limits().budget_per_second)
                with logged_task("send", connection.namespace, pace, run=run, to=place.to or "") as done:
                    tally = self._send(connection, iterator, ledger, rows, unsent, pace, done)
        tally.throttled, tally.waited_seconds = done.throttled, done.waited_seconds
        tally.refused_files = [str(unsent.path)] if unsent.path is not None else []
        return ReplayMessage(tally, run)

    def _send(
        self,
        connection: TaskConnection,
        batches: Iterator["pa.RecordBatch"],
        ledger: Ledger | None,
        rows: "_Rows",
        unsent: "_Unsent",
        pace: Pace,
        done: TaskDone,
    ) -> WriterTally:
        machine = Settlement(self._limits(), undeliverable=REFUSED_OUTCOME, pace=pace)
        folder, run, place = self.options.ledger, self.options.run, self.options.place
        check = partial(runs.check_run, folder, run) if folder is not None and run and self.options.only_run else None
        stored, stop = _Keeping(unsent), asyncio.Event()
        sending = connection.start(
            send_stored(
                stored,
                place.judge(),
                machine,
                _CheckedSink(connection.messaging, check),
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
        numbers, names = machine.tally.numbers, machine.tally.names
        outcomes = {"forwarded": numbers["forwarded"], "ping": numbers["pings"]}
        tally = WriterTally(
            outcomes=+Counter({**outcomes, REFUSED_OUTCOME: numbers["dead_lettered"]}),
            refusals=Counter(names["dead_letter_reasons"]),
            per_destination=Counter(names["per_destination"]),
            skipped=rows.skipped,
            resent=numbers["sent_again"],
            refused=unsent.named,
        )
        if (open_ones := rows.given - sum(tally.outcomes.values())) or not taken_over:
            raise ReplayError(f"A task ended with {open_ones:,} messages that were not sent.", hint=RUN_AGAIN)
        for line in rows.sent_before:
            tally.count(line)
        self._refuse(connection, rows.bad, ledger, unsent, tally)
        done.messages = tally.outcomes.get("forwarded", 0)
        done.size_bytes = numbers["forwarded_bytes"]
        done.facts = {"refused": sum(tally.refusals.values()), "skipped": tally.skipped, "resent": tally.resent}
        return tally

    def _limits(self) -> Limits:
        tasks, rate, budget = max(1, self.options.tasks), self.options.rate, self.options.budget
        return Limits(
            rate_per_second=None if rate is None else rate / tasks,
            budget_per_second=None if budget is None else budget / tasks,
            patience_seconds=PATIENCE_SECONDS,
            no_use_waiting=NOT_TO_BE_WAITED_FOR,
        )

    def _refuse(
        self,
        connection: TaskConnection,
        bad: Sequence[BadRow],
        ledger: Ledger | None,
        unsent: "_Unsent",
        tally: WriterTally,
    ) -> None:
        """Name and keep rows of which no message can be made."""
        now, to = CLOCK.now().isoformat(), self.options.place.to or ""
        lines = [
            LedgerEntry(ROWS, 0, row.message_id, -1, to, None, REFUSED_OUTCOME, now, reason=row.reason) for row in bad
        ]
        if ledger is not None:
            connection.run(ledger.record(lines))
        for row in bad:
            unsent.add(row.line(), row.message_id, row.reason)
            tally.outcomes[REFUSED_OUTCOME] += 1
            tally.refusals[NO_MESSAGE] += 1

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._drop_locks()
        total = total_of(messages)
        if self.options.report is not None:
            self.options.report.write_text(
                json.dumps({one.name: getattr(total, one.name) for one in fields(total)}), encoding="utf-8"
            )
        with marking_errors():
            if self.options.fail_on_refused and total.refusals:
                raise refused_rows(total)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing can be taken back; the ledger has what was sent."""
        self._drop_locks()

    def _drop_locks(self) -> None:
        options = self.options
        if options.ledger is not None:
            runs.drop_locks(options.ledger, str(options.run) if options.only_run else f"*-{options.job}")


MOST_NAMED_ROWS = 3


def refused_rows(total: WriterTally) -> ReplayError:
    """What is said of rows that cannot be sent, and what to do with them."""
    number, sent = sum(total.refusals.values()), total.outcomes.get("forwarded", 0)
    reasons = ", ".join(f"{reason} ({count:,})" for reason, count in total.refusals.items())
    if total.refused_files:
        folder = Path(total.refused_files[0]).parent
        hint = (
            f"They are in {folder}. Mend them where they come from and run the same job again: it sends only them. Or "
            f"send them as they are to another queue: sbpair restore {shlex.quote(str(folder))} --to QUEUE. With "
            "failOnRefused=false such a job does not fail."
        )
    else:
        hint = "Name a folder with the option ledger: it keeps such rows, and a job that runs again sends only these."
    return ReplayError(
        f"{counted(number, 'message')} cannot be sent: {reasons}; such as {'; '.join(total.refused)}. "
        f"All others were ({sent:,} by this job).",
        hint=hint,
    )


def read_tally(path: Path) -> WriterTally:
    """What `ReplayWriter.commit` wrote."""
    return WriterTally(**json.loads(path.read_text(encoding="utf-8")))


class _Unsent:
    """The rows of a task that cannot be sent, in a file whose name is a digest of it: a task that runs again writes the
    same one. Raises ReplayError: it cannot be written."""

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._digest = folder, hashlib.sha256()
        self._part: Path | None = None
        self.path: Path | None = None
        self.named: list[str] = []

    def add(self, line: bytes, message_id: str | None, reason: str) -> None:
        if len(self.named) < MOST_NAMED_ROWS:
            self.named.append(f"{quoted(message_id or 'a row without message_id')}: {reason}")
        if self._folder is None:
            return
        try:
            if self._part is None:
                make_private_folder(self._folder)
                self._part = self._folder / f".{os.urandom(6).hex()}.part"
            with open_private(self._part, "ab") as file:
                file.write(line)
        except OSError as error:
            raise ReplayError(f"Cannot write into {self._folder}: {error}.", hint=RUN_AGAIN) from error
        self._digest.update(line)

    def __enter__(self) -> "_Unsent":
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._part is None or self._folder is None:
            return
        if kind is not None:  # another attempt names them again
            self._part.unlink(missing_ok=True)
            return
        self.path = self._folder / f"{self._digest.hexdigest()[:16]}.jsonl"
        put_in_place(self._part, self.path)


class _Keeping(StoredMessages):
    """Keeps what is refused."""

    def __init__(self, unsent: _Unsent) -> None:
        super().__init__()
        self._unsent = unsent

    async def settle(
        self, received: Received, disposition: Disposition, *, reason: str = "", description: str = ""
    ) -> None:
        if disposition is Disposition.DEAD_LETTER:
            key = key_of(received)
            destination, _, why = reason.rpartition(": ")
            line = archive_line(key, received, destination, received.payload, reason=why, description=description)
            self._unsent.add(line, key[2], why)
        await super().settle(received, disposition, reason=reason, description=description)


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
    """Rows as messages of a file, each once: without what earlier attempts and jobs have dealt with."""

    def __init__(
        self,
        own: Mapping[Key, LedgerLine],
        earlier: frozenset[bytes],
        messages: "Callable[[pa.RecordBatch], Iterator[Received | BadRow]]",
    ) -> None:
        self._own, self._earlier, self._messages = own, earlier, messages
        self._seen: set[Key] = set()
        self._before: Key | None = None
        self.sent_before: list[LedgerLine] = []
        """What earlier attempts of this task have done with its rows."""
        self.bad: list[BadRow] = []
        self.skipped = 0
        self.given = 0

    def messages(self, batch: "pa.RecordBatch") -> Iterator[list[Received]]:
        coming = self._messages(batch)
        while some := list(islice(coming, TAKEN_OVER_ROWS)):
            self.bad += (one for one in some if isinstance(one, BadRow))
            yield [one for one in some if isinstance(one, Received) and self._is_new(key_of(one))]

    def _is_new(self, key: Key) -> bool:
        # Rows out of queues have a place each, and a replay sorts by it. Those of new messages come in any order.
        again = key == self._before or key in self._seen
        if again or key in self._own or (self._earlier and runs.mark(key) in self._earlier):
            if not again and key in self._own:
                self.sent_before.append(self._own[key])
            self.skipped += 1
            self._before = key
            return False
        if key[0] == ROWS:
            self._seen.add(key)
        self._before = key
        self.given += 1
        return True
