"""What became of the messages of an entity that were sent elsewhere, copied, archived or deleted, and the sentences
about it.

Dead letters sent again in growing steps, each watched before the next one: what a step has shown, and when to stop.

A step is over once none of its messages lies in the queue and none has come back to its dead letters. A message that
came back ends the run, and so does a queue whose consumers take nothing for the time of the watch. So no more messages
than those of one step can fail before the run stops, and it goes on as long as consumers work.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sbpair.core.durations import format_duration
from sbpair.core.entities import QueueFacts
from sbpair.core.errors import Category, UsageError
from sbpair.core.message import MessageState
from sbpair.core.outcome import Exit
from sbpair.core.prices import in_words
from sbpair.core.serialization import HIDDEN, INLINED, OMITTED_IF_NONE
from sbpair.core.transfer.conclusion import ENDED, hindered_by, operations_of
from sbpair.core.transfer.peeked import of_a_topic
from sbpair.core.transfer.report import DEAD_LETTERED, TOO_MANY_LEFT, DrainReport, OutcomeRow, reasons
from sbpair.core.transfer.resend import CAME_LATER, NOT_PLANNED, NOT_REACHED, Planned, stays
from sbpair.core.transfer.verdict import DestinationSeen
from sbpair.core.words import are, counted, were, with_hint

DEFAULT_WATCH_SECONDS = 30.0
ALL = "all"


@dataclass(frozen=True, slots=True)
class Steps:
    """How many messages each step sends; the last number goes on. None: all that remain."""

    sizes: tuple[int | None, ...]

    @classmethod
    def parse(cls, text: str) -> "Steps":
        """Read `1,2,5,20`, where the last one may be `all`.

        Raises:
            UsageError: it is no list of numbers above 0.
        """
        parts = [part.strip() for part in text.split(",")]
        *before, last = parts
        if not all(part.isdecimal() and int(part) for part in (*before, *([] if last == ALL else [last]))):
            raise UsageError(f"--grow {text!r} is no list of numbers such as 1,2,5,20,100; the last one may be {ALL}.")
        return cls(tuple(None if part == ALL else int(part) for part in parts))

    def of(self, messages: int) -> Iterator[int]:
        """The steps for that many messages."""
        number = 0
        while messages > 0:
            size = self.sizes[min(number, len(self.sizes) - 1)]
            step = messages if size is None else min(size, messages)
            yield step
            messages -= step
            number += 1


@dataclass(frozen=True, slots=True)
class Looked:
    """What the queue shows of a step. Dead letters are looked at after the queue: a message that is in neither was
    completed, or expired.

    Args:
        waiting: messages of the step that lie in the queue.
        returned: those that came back to its dead letters, by reason.
        deliveries: delivery counts of the queue's first messages and of the step's, by sequence number.
    """

    waiting: int
    returned: Mapping[str, int]
    deliveries: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What became of the messages of one step. `waiting`: still in the queue when it was looked at last."""

    sent: int
    taken: int
    returned: int
    waiting: int
    seconds: float
    """How long it was watched."""


class Watch:
    """Watches one step.

    Args:
        sent: messages of the step.
        seconds: for so long consumers may do nothing.
        now: monotonic seconds.
    """

    def __init__(self, sent: int, seconds: float, now: float) -> None:
        self._sent = sent
        self._seconds = seconds
        self._began = self._active_at = now
        self._deliveries: Mapping[int, int] = {}
        self.why: str | None = None
        """Why the run stops; None: it goes on."""
        self.result = StepResult(sent, 0, 0, sent, 0.0)
        """As far as is known."""

    def observe(self, looked: Looked, now: float) -> bool:
        """Take in what was seen; whether the watch has ended."""
        before, self._deliveries = self._deliveries, looked.deliveries
        if any(looked.deliveries.get(number, count + 1) > count for number, count in before.items()):
            self._active_at = now  # taken, or tried once more
        returned = sum(looked.returned.values())
        if returned:
            named = ", ".join(f"{reason} {number:,}" for reason, number in Counter(looked.returned).most_common(3))
            self.why = f"{returned:,} of {counted(self._sent, 'message')} came back to the dead letters ({named})"
        elif looked.waiting and now - self._active_at >= self._seconds:
            self.why = (
                f"nothing was taken from the queue for {format_duration(self._seconds)}, and {looked.waiting:,} of "
                f"{counted(self._sent, 'message')} {'waits' if looked.waiting == 1 else 'wait'} there"
            )
        taken = max(0, self._sent - returned - looked.waiting)
        self.result = StepResult(self._sent, taken, returned, looked.waiting, round(now - self._began, 1))
        return self.why is not None or not looked.waiting


@dataclass(frozen=True, slots=True)
class Grown:
    """The steps of one run, and why it ended before the last dead letter; None: it did not."""

    steps: tuple[StepResult, ...] = ()
    stopped_because: str | None = None

    @property
    def sentence(self) -> str:
        """What the steps have shown."""
        sizes = ", ".join(f"{step.sent:,}" for step in self.steps) or "none"
        after = f"Stopped: {self.stopped_because}." if self.stopped_because else "All of them were taken."
        return f"{'Step' if len(self.steps) == 1 else 'Steps'} of {sizes}. {after}"


@dataclass(slots=True)
class Follow:
    """The messages of a step where they lie: by MessageId, which they keep.

    Args:
        ids: how often each was sent.
        known: sequence numbers that were there before, where numbers do not tell what is new.
    """

    ids: Mapping[str, int]
    known: frozenset[int] = field(default_factory=frozenset)

    def those_of(self, found: Sequence[tuple[int, str | None]]) -> list[int]:
        """Places in a browse of those that are of the step: (sequence number, MessageId) of each message."""
        left = Counter(self.ids)
        places = []
        for place, (number, message_id) in enumerate(found):
            if number not in self.known and message_id is not None and left[message_id] > 0:
                left[message_id] -= 1
                places.append(place)
        return places


_NOT_ASKED_FOR = (CAME_LATER, NOT_PLANNED)
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"


@dataclass(frozen=True, slots=True)
class Act:
    """What a verb does with messages, as sentences name it."""

    verb: str
    """`sent`, `moved`, `copied`, `deleted` or `dead-lettered`."""
    noun: str = "message"
    keep: bool = False
    """The messages also stay where they are."""
    edited: bool = False
    """They are changed on the way."""
    command: str = "move"
    """Of the command line, for a ledger."""
    recorded: bool = True
    """Its command can keep a ledger."""


@dataclass(frozen=True, slots=True)
class MovePlan:
    """What a dry run has decided: a second call deals with these messages, and with none that came since."""

    judge: Planned
    report: DrainReport
    """Of the dry run."""
    destination: DestinationSeen
    facts: Mapping[str, QueueFacts | None]
    """Of the source, by its path, if they are known."""
    topic: bool
    """The source is a topic: only its scheduled messages can be seen."""
    at_least_once_because: str | None
    """Why a message cannot be sent and completed in one transaction; None if it can, or nothing is sent."""
    keep: bool = False
    """The messages also stay where they are."""

    @property
    def has_work(self) -> bool:
        """Whether any message will be sent, archived, deleted, dead-lettered or, sent before, completed."""
        completed = 0 if self.keep else self.report.already_forwarded
        return bool(self.report.forwarded or self.report.purged or self.report.dead_lettered or completed)

    @property
    def keyless(self) -> int:
        """Messages that the destination takes into no transaction, if it is known to be partitioned."""
        topic, queue = self.destination.topic, self.destination.queue
        settings = (topic, None if queue is None else queue.settings)
        partitioned = any(known is not None and known.enable_partitioning for known in settings)
        return self.judge.without_key if partitioned else 0

    @property
    def repaired(self) -> "Repaired | None":
        """What a repair changes of the messages; None without one."""
        if self.judge.repairs is None:
            return None
        changed = self.judge.repairs.changed
        return Repaired(len(changed), tuple(MessageDifference(key[1], diff) for key, diff in changed.items() if diff))

    @property
    def until(self) -> float | None:
        """When all came that was not seen, or later, UTC epoch seconds: the browse went on behind the last message that
        it saw. None: it saw none."""
        last_ms = max((key[3] for key in self.judge.keys), default=-1)
        return (last_ms + 1) / 1000 if last_ms > 0 else None

    def remarks(self, path: str) -> tuple[str, ...]:
        """What is not to be expected of the entity and its messages. `path`: of the source."""
        if not self.topic:
            return self.judge.remarks
        return (*self.judge.remarks, of_a_topic(path))


@dataclass(frozen=True, slots=True)
class MessageDifference:
    """How one message differs from its original, as lines of a unified diff."""

    sequence_number: int
    diff: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Repaired:
    """How many of the messages that are sent are changed, and how the first ones differ."""

    changed: int
    differences: tuple[MessageDifference, ...]


@dataclass(frozen=True, slots=True)
class MoveResult:
    """What became of the messages of an entity, or would in a dry run. No `to`: they went into an archive, or were
    deleted."""

    namespace: str
    entity: str
    to_namespace: str | None
    to: str | None
    report: DrainReport = field(metadata=INLINED)
    act: Act = field(metadata=HIDDEN)
    plan: MovePlan = field(metadata=HIDDEN)
    guarantee: str | None = None
    """`exactly-once` or `at-least-once`: how often a crash can leave a message at `to`. None: nothing is sent there and
    completed here."""
    at_least_once_because: str | None = None
    """Why it cannot be exactly once; None if it is."""
    remarks: tuple[str, ...] = field(default=(), metadata=HIDDEN)
    """What is not to be expected of the entity and its messages."""
    repaired: Repaired | None = field(default=None, metadata=OMITTED_IF_NONE)
    grown: Grown | None = field(default=None, metadata=OMITTED_IF_NONE)
    """The steps in which they were sent, if they were not sent all at once."""

    @property
    def exit(self) -> Exit:
        """Findings of a dry run that found anything; partial if messages are left that were asked for."""
        report = self.report
        if report.dry_run:
            found = self.plan.has_work or hindered_by(report) is not None
            return Exit.FINDINGS if found else Exit.OK
        if self.act.verb == DEAD_LETTERED:
            report = replace(report, dead_lettered=0)  # as was asked for
        stopped = self.grown is not None and self.grown.stopped_because is not None
        explained = (MessageState.SCHEDULED.value,) if report.failures else ()
        return hindered_by(report, apart_from=(*_NOT_ASKED_FOR, *explained)) or (Exit.PARTIAL if stopped else Exit.OK)

    @property
    def rows(self) -> Iterator[OutcomeRow]:
        """What became of how many messages, for a table."""
        report = self.report
        if report.forwarded and self.to is None:
            yield OutcomeRow("archived", str(report.archive or ""), report.forwarded)
        elif report.forwarded:
            yield OutcomeRow(self.act.verb, f"{self.to} on {self.to_namespace}", report.forwarded)
        if report.purged:
            yield OutcomeRow("deleted", self.entity, report.purged)
        if report.dead_lettered:
            yield OutcomeRow(DEAD_LETTERED, self.entity, report.dead_lettered)
        if report.already_forwarded and self.to is not None:  # otherwise received again, its lock being over
            yield OutcomeRow("sent before", "", report.already_forwarded)
        for why, number in report.original_faults:
            yield OutcomeRow("original dead-letter reason", why, number)
        for left in report.left:
            yield OutcomeRow("left", left.reason, left.count)
        for failure in report.failures:
            yield OutcomeRow("not read", f"{failure.queue}: {failure.error.message}", None)

    def closing(self, go_on: str = "") -> str:
        """The last sentence: what happened and how much is left. `go_on`: the command that goes on with what is left,
        which is named where it would help."""
        report = self.report
        what = self._what_happened()
        left = sum(left.count for left in report.left if left.reason not in _NOT_ASKED_FOR)
        if report.dry_run:
            return f"{what}.{f' {left:,} would be left.' if left else ''} Nothing was changed."
        if self._source_is_gone:
            gone = f"{self.entity} was deleted meanwhile, and with it what was not {self.act.verb}"
            return f"{what}. {gone}. See what {self.namespace} has: sbpair entity list"
        again = f" Go on with: {go_on}" if go_on and self.goes_on else ""
        return f"{what}.{f' {left:,} {are(left)} left.' if left else ''}{again}"

    @property
    def goes_on(self) -> bool:
        """Whether another run may do something about what is left."""
        report = self.report
        if report.dry_run or self._source_is_gone:
            return False
        may_go = any(not stays(left.reason) and left.reason not in _NOT_ASKED_FOR for left in report.left)
        return may_go or bool(report.failures) or report.ended_by in ("stop", "filter")

    @property
    def moved(self) -> "MoveResult":
        """As an `EditResult` has it."""
        return self

    @property
    def completing(self) -> str:
        """Part of the question before it: what is only completed."""
        before = self.report.already_forwarded
        return f" (and complete {before:,} that had been sent before)" if before else ""

    @property
    def copied_again(self) -> tuple[str, ...]:
        """A sentence on copies that no ledger names, where another run would go on."""
        again = self.goes_on and self.act.keep and self.report.forwarded
        return ("Without --ledger a second run copies everything again.",) if again else ()

    def undo(self, archive: Path | None) -> str:
        """What it takes to take it back. `archive`: the folder that has what was deleted."""
        if self.to is None:
            kept = shlex.quote(str(archive))
            return "It cannot be undone." if archive is None else f"Undo it with: sbpair restore {kept}"
        if self.act.command == "dlq resubmit":
            return (
                "It cannot be undone at once: `sbpair message dead-letter` makes one that nobody has taken by then a "
                "dead letter of the queue or subscription in which it is."
            )
        back = in_words(operations_of(self.report))
        return f"To undo it, move them back from {self.to}, if nobody has taken them by then, with {back}."

    @property
    def _source_is_gone(self) -> bool:
        return any(failure.error.category is Category.NOT_FOUND for failure in self.report.failures)

    def _what_happened(self) -> str:
        report, act = self.report, self.act
        number = self.planned_messages
        would = "would be" if report.dry_run else were(number)
        what = f"{counted(number, act.noun)} of {self.entity} {would} "
        if report.archive is not None or (report.dry_run and self.to is None and report.forwarded):
            what += "archived" + (f" in {report.archive}" if report.archive is not None else "") + " and deleted"
        elif self.to is None:
            what += act.verb
        else:
            what += f"{act.verb} to {self.to} on {self.to_namespace}"
        if report.already_forwarded and self.to is not None:
            since = "left alone" if act.keep else "completed"
            would = "would be" if report.dry_run else were(report.already_forwarded)
            what += f"; {report.already_forwarded:,} had been sent before and {would} {since}"
        return what + (f"; {ended}" if (ended := ENDED.get(report.ended_by)) else "")

    @property
    def planned_messages(self) -> int:
        """With how many messages something was done, or would be."""
        return self.report.forwarded or self.report.purged or self.report.dead_lettered

    @property
    def differences(self) -> tuple[str, ...]:
        """How the first repaired messages differ from their originals, line by line."""
        shown = () if self.repaired is None else self.repaired.differences
        return tuple(line for one in shown for line in (f"Message {one.sequence_number}:", *one.diff[2:]))

    @property
    def notes(self) -> tuple[str, ...]:
        """Why messages are left, and what a resent message cannot keep."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        report = self.report
        for left in report.left:
            yield f"{left.count:,} {'would be' if report.dry_run else are(left.count)} left: {left.reason}."
        if self.repaired is not None and report.forwarded:
            would = "would be" if report.dry_run else were(self.repaired.changed)
            yield f"{self.repaired.changed:,} of {counted(report.forwarded, self.act.noun)} {would} changed."
        if self.grown is not None:
            yield self.grown.sentence
        if report.broken_off is not None:
            yield report.broken_off
        for failure in report.failures:
            yield f"Not read: {failure.queue}: {with_hint(failure.error.message, failure.error.hint)}"
        if report.unchecked:
            yield (
                f"Not checked without Manage on {self.to_namespace}: whether {self.to} is full, requires a session "
                "id, or drops messages as duplicates."
            )
        if report.uncompleted and self.to is None:
            yield (
                f"{counted(report.uncompleted, 'message')} {were(report.uncompleted)} archived, but the deletion was "
                "not confirmed: what is still there is archived once more by the next run."
            )
        elif report.uncompleted:
            yield (
                f"{counted(report.uncompleted, 'message')} {were(report.uncompleted)} sent, but the completion was "
                "not confirmed: they will be redelivered, with the same MessageId."
            )
        if self.guarantee is not None and report.forwarded:
            yield self._guaranteed()
        if self.to is not None and report.forwarded:
            edited = " apart from the edit" if self.act.edited else ""
            yield (
                f"Messages are unchanged{edited}, except for what the service sets: sequence number, enqueued time, "
                "delivery count, dead-letter reason. Time to live starts again; deferred messages become active."
            )

    def _guaranteed(self) -> str:
        if self.guarantee == EXACTLY_ONCE:
            return (
                "Exactly once: send and complete share a transaction, so a crash can neither lose nor repeat a message."
            )
        prevents = "; --ledger prevents it for messages already recorded" if self.act.recorded else ""
        return (
            f"At least once: {self.at_least_once_because}. After a crash a message may arrive twice with the same "
            f"MessageId{prevents}."
        )


@dataclass(frozen=True, slots=True)
class EditResult:
    """What became of edited messages, as `edit -o json` prints it. `diff`: how they were changed, as lines of a unified
    diff."""

    sequence_numbers: tuple[int, ...]
    diff: tuple[str, ...]
    moved: MoveResult = field(metadata=INLINED)

    @property
    def plan(self) -> MovePlan:
        """What a second call is given to do exactly what was shown."""
        return self.moved.plan


@dataclass(frozen=True, slots=True)
class Emptied:
    """What became of the messages and of the dead letters of queues that are to be deleted."""

    pair: str
    primary: str
    """As sentences name it."""
    active: DrainReport
    dead: DrainReport

    @property
    def notes(self) -> tuple[str, ...]:
        """What happened, in sentences."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        for report, noun in ((self.active, "message"), (self.dead, "dead letter")):
            number = counted(report.forwarded, noun)
            if report.archive is not None and report.forwarded:
                yield f"{self.pair}: {number} archived in {report.archive}."
            elif report.forwarded:
                yield f"{self.pair}: {number} back on {self.primary}."
            for left in report.left:
                yield f"{self.pair}: {counted(left.count, noun)} left: {left.reason}."


def with_unreached(report: DrainReport, planned: DrainReport) -> DrainReport:
    """The report of a run that ended before it had come to all of the planned messages, with how many those are."""
    if report.ended_by not in ("time", "stop", TOO_MANY_LEFT):
        return report
    left = sum(left.count for left in report.left if left.reason not in _NOT_ASKED_FOR)
    dealt_with = report.forwarded + report.already_forwarded + left
    number = planned.forwarded + planned.already_forwarded + sum(left.count for left in planned.left) - dealt_with
    if number <= 0:
        return report
    counts = Counter({left.reason: left.count for left in report.left}) + Counter({NOT_REACHED: number})
    return replace(report, left=reasons(counts))


def guaranteed(report: DrainReport, to: str, *, within: str | None, keyless: int) -> tuple[str, str | None]:
    """How often a crash can leave a message at `to`, and why that is not once.

    Args:
        within: why there are no transactions; None if there are.
        keyless: planned messages without a key, if the destination is known to be partitioned.
    """
    if within is not None:
        return AT_LEAST_ONCE, within
    outside = min(keyless, report.forwarded) if report.dry_run else report.forwarded - report.in_transactions
    if outside <= 0:
        return EXACTLY_ONCE, None
    does = "would be" if report.dry_run else were(outside)
    why = "the namespace refused them within one"
    if outside <= keyless:
        why = f"{to} is partitioned and takes what has neither session id nor partition key into none"
    return (
        AT_LEAST_ONCE,
        f"{outside:,} of {counted(report.forwarded, 'message')} {does} sent outside of a transaction, as {why}",
    )
