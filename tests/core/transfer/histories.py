"""What the pump's machine wants done, in any order of events: histories that a seed draws, said line by line.

    python -m tests.core.transfer.histories 17

The backlog is a dictionary of numbers, in which others lock and take messages as well. Every answer of a namespace is
drawn: accepted, accepted in part, refused in each of the ways that there are, or not known; and so are the limits. What
is right about it the drains beside (`tests.core.transfer.drains`) judge; here every step and every figure counts.
"""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sbpair.core import errors
from sbpair.core.errors import Category, LockLostError, SendIncompleteError, ServiceError
from sbpair.core.message import PARTITION_SHIFT, Disposition, MessageState, Received
from sbpair.core.names import dead_letter_path
from sbpair.core.rewrite import compose
from sbpair.core.transfer.custody import DEAD_LETTERED, PURGED, REFUSED_OUTCOME, TAKEN
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.state import (
    Action,
    Finish,
    Forward,
    Leave,
    Limits,
    Measure,
    Renew,
    Sample,
    Send,
    Settle,
    Verdict,
    key_of,
)

STEPS = 100
LOCK_SECONDS = 20.0
QUEUES = ("q/0", "q/1", dead_letter_path("q/0"))
DESTINATIONS = ("orders", "Orders", "bills", "bills/archive")
SESSIONS = (None, "a", "A", "b", "c")
FAILURES: tuple[ServiceError, ...] = (
    errors.ConnectionLostError("silence"),
    errors.OperationTimeoutError("late"),
    errors.ServerBusyError("busy"),
    errors.EntityDisabledError("disabled", entity="orders"),
    errors.QuotaExceededError("full"),
    errors.UnauthorizedError("no right", entity="q/0"),
    errors.EntityNotFoundError("not there"),
    errors.MessageTooLargeError("too large"),
    errors.ArgumentRefusedError("refused"),
)
REFUSED_LINKS = FAILURES[:7]
PAUSES = ((0.1, 0.3, 0.5), (0.1, 0.5, 1.0, 2.5), (0.1, 0.5, 1.0, 2.5, 5.0, 11.0, 25.0, 60.0))
PAYLOADS = tuple(
    compose(body=bytes(size), message_id="m", session_id="a", partition_key="a") for size in (10, 200, 900)
)


@dataclass
class Stored:
    """A message of the backlog, with what becomes of it here."""

    number: int
    verdict: Verdict
    locked_until: float = 0.0
    state: MessageState = MessageState.ACTIVE


class History:
    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.limits = Limits(
            in_flight_messages=dice.choice((2, 6, 40)),
            in_flight_bytes=dice.choice((1500, 20_000, 10**7)),
            batch_messages=dice.choice((1, 3, 1000)),
            sends=dice.choice((1, 2, 8)),
            in_transactions=dice.random() < 0.2,
            rate_per_second=dice.choice((None, None, 2.0, 20.0)),
            budget_per_second=dice.choice((None, None, 5.0)),
            total_messages=dice.choice((None, None, 12)),
            patience_seconds=dice.choice((None, 20.0, 90.0)),
            unreached_seconds=dice.choice((float("inf"), 15.0)),
            lock_wait_seconds=dice.choice((None, None, 30.0)),
            shared=dice.random() < 0.8,
            left_messages=dice.choice((20_000, 4)),
            no_use_waiting=dice.choice((frozenset(), frozenset({Category.DISABLED}))),
        )
        self.queues: dict[str, list[Stored]] = {queue: [] for queue in QUEUES[: dice.randint(1, 3)]}
        self.put_last, self.partitioned = 0, dice.random() < 0.3
        self.ledger = {key_of(self.shown("q/0", Stored(number, Leave("")))): None for number in (2, 5)}
        self.machine = Settlement(
            self.limits,
            undeliverable=dice.choice((DEAD_LETTERED, REFUSED_OUTCOME, None)),
            sessions_wait=dice.random() < 0.5,
            leave_missing=dice.random() < 0.4,
            leave_refused=dice.random() < 0.3,
            forwarded=self.ledger if dice.random() < 0.4 else (),
        )
        self.now = 100.0
        self.pauses, self.trouble = dice.choice(PAUSES), dice.choice((0.02, 0.1, 0.5))
        self.limit = dice.choice((400, 900, 5000, 10**6))
        for queue in self.queues:
            self.machine.queues.add(queue, LOCK_SECONDS)
        self.due: list[Action] = []
        """What the machine wants done, and has no answer yet."""
        self.sampling: list[tuple[Sample, frozenset[int], list[Received]]] = []
        self.lines: list[str] = []

    def live(self) -> list[str]:
        steps = {self.put: 2, self.receive: 4, self.wait: 4, self.poll: 4, self.answer: 4, self.work: 4, self.others: 2}
        for _ in range(self.dice.choice((8, 30))):
            self.put()
        for number in range(STEPS):
            [step] = self.dice.choices([*steps], [*steps.values()])
            if number == STEPS - 12 and self.dice.random() < 0.5:
                step = self.stop
            step()
            self.note(step.__name__, *self.state())
        return self.lines

    def note(self, what: str, *values: Any) -> None:
        self.lines.append(f"{self.now:.2f} {what}: {', '.join(map(said, values))}")

    # The backlog

    def put(self) -> None:
        """Numbers of a partitioned queue say in their upper part where a message lies."""
        self.put_last += self.dice.choice((1, 1, 1, 2))
        partition = self.dice.choice((0, 1)) if self.partitioned else 0
        queue = self.queues[self.dice.choice([*self.queues])]
        queue.append(Stored(self.put_last + (partition << PARTITION_SHIFT), self.verdict()))

    def verdict(self) -> Verdict:
        dice = self.dice
        if (kind := dice.random()) < 0.85:
            payload = dice.choice(PAYLOADS) if dice.random() < 0.4 else bytes(dice.choice((10, 150, 700)))
            return Forward(payload, dice.choice(DESTINATIONS), dice.choice(SESSIONS), dice.choice((None, "k", "l")))
        if kind < 0.9:
            return Leave(dice.choice(("filtered out", "no destination")))
        if kind < 0.95:
            return Finish(Disposition.COMPLETE, dice.choice(("ping", TAKEN, PURGED)))
        return Finish(Disposition.DEAD_LETTER, "dead-lettered", "NotABacklogMessage", "no properties")

    def shown(self, queue: str, stored: Stored, receipt: object = None) -> Received:
        return Received(b"wire", stored.number, queue, f"m{stored.number}", state=stored.state, receipt=receipt)

    def page(self, queue: str, first: int, last: int | None = None) -> list[Received]:
        found = [one for one in self.queues[queue] if one.number >= first and (last is None or one.number <= last)]
        return [self.shown(queue, one) for one in found[: self.dice.choice((3, 50))]]

    def others(self) -> None:
        """Somebody else locks, takes or defers a message, or gives one up."""
        if stored := self.queues[self.dice.choice([*self.queues])]:
            one, what = self.dice.choice(stored[:4]), self.dice.random()
            if what < 0.5 and one.locked_until <= self.now:
                one.locked_until = self.now + self.dice.choice((3.0, LOCK_SECONDS, 500.0))
            elif what < 0.8:
                one.locked_until = self.now
            elif what < 0.9:
                one.state = MessageState.DEFERRED
            else:
                stored.remove(one)

    # What the runtime does

    def receive(self) -> None:
        """As `runtime.transfer.reading`, which browses what a receive has skipped."""
        machine, dice, queue = self.machine, self.dice, self.dice.choice([*self.queues])
        granted = machine.grant(dice.choice((1, 4, 30)), self.now, queue if dice.random() < 0.9 else None)
        self.note("granted", queue, granted)
        free = [one for one in self.queues[queue] if one.locked_until <= self.now and one.state is MessageState.ACTIVE]
        taken = free[:granted]
        for one in taken:
            one.locked_until = self.now + LOCK_SECONDS
        came = [self.shown(queue, one, object()) for one in taken]
        verdicts = [one.verdict for one in taken]
        if granted:
            machine.queues.tried(queue, came, self.now)
        machine.window.returned(granted, *([len(came)] if dice.random() < 0.7 else []))
        forgotten, browsed = machine.queues.forgotten(queue), True
        for skipped in machine.queues.skipped(came, verdicts):
            self.note("skipped", skipped)
            mine = machine.queues.in_hand(queue) | {one.sequence_number for one in came}
            for one in self.page(queue, skipped.first, skipped.last):
                if one.sequence_number not in mine:
                    machine.expect(one, self.of(queue, one.sequence_number).verdict, self.now)
            if machine.queues.hopeless_now(came):
                machine.queues.gave_way(queue, self.now)
                browsed = False
                break
            if browsed := not self.goes_wrong:
                machine.queues.proved(queue, skipped)
        browsed = browsed and machine.queues.forgotten(queue) == forgotten
        for one, verdict in zip(came, verdicts, strict=True):
            until = self.now + dice.choice((LOCK_SECONDS, LOCK_SECONDS, 2.0))
            if browsed or not (isinstance(verdict, Forward) and verdict.session_id):
                machine.arrived(one, verdict, lock_until=until, lock_seconds=LOCK_SECONDS, now=self.now)
            else:
                machine.custody.refused(one, lock_until=until, lock_seconds=LOCK_SECONDS)

    def of(self, queue: str, number: int) -> Stored:
        return next(one for one in self.queues[queue] if one.number == number)

    def wait(self) -> None:
        asked = self.machine.deadline(self.now)
        self.note("next", round(asked - self.now, 3))
        self.now = (
            asked if self.now < asked < 1e6 and self.dice.random() < 0.4 else self.now + self.dice.choice(self.pauses)
        )

    def work(self) -> None:
        """What nobody disturbs."""
        for step in (self.receive, self.poll, self.answer, self.poll, self.answer):
            step()

    def poll(self) -> None:
        for action in self.machine.poll(self.now):
            self.note("do", action)
            if isinstance(action, Sample):
                page = self.page(action.source, action.first)
                self.sampling.append((action, self.machine.queues.in_hand(action.source), page))
            elif isinstance(action, Measure | Send | Settle | Renew):
                self.due.append(action)

    def stop(self) -> None:
        self.machine.stop(self.now)
        self.machine.custody.release_left()

    # What the namespaces answer

    def answer(self) -> None:
        """To a third of what they were asked."""
        for sample, in_hand, page in self.some(self.sampling):
            if self.goes_wrong:
                self.machine.queues.sample_failed(sample, self.now)
            else:
                self.machine.queues.sampled(sample, page, in_hand=in_hand, now=self.now)
        for action in self.some(self.due):
            match action:
                case Measure(destination):
                    self.measured(destination)
                case Send():
                    self.sent(action)
                case Settle():
                    self.settled(action)
                case Renew():
                    self.renewed(action)

    @property
    def goes_wrong(self) -> bool:
        return self.dice.random() < self.trouble

    def some(self, left: list[Any]) -> Iterator[Any]:
        chosen = [one for one in left if self.dice.random() < 0.7]
        left[:] = [one for one in left if one not in chosen]
        yield from chosen

    def measured(self, destination: str) -> None:
        if not self.goes_wrong:
            self.machine.destinations.limit_known(destination, self.limit)
        else:
            self.machine.destinations.limit_failed(destination, self.dice.choice(REFUSED_LINKS), self.now)

    def sent(self, send: Send) -> None:
        destinations, batch, what = self.machine.destinations, send.batch, self.dice.random()
        places = tuple(place for place in range(len(batch.items)) if self.dice.random() < 0.5)
        if not self.goes_wrong:
            self.machine.custody.remember(batch.items)
            if self.limits.in_transactions:
                for item in batch.items:
                    item.completed = True
            destinations.sent(batch, self.now)
        elif what < 0.2:
            error = SendIncompleteError("in part", accepted=places)
            error.__cause__ = self.dice.choice((None, *FAILURES))
            destinations.send_failed(batch, error, self.now)
        elif what < 0.35:
            destinations.locks_lost(batch, places, self.now)
        elif what < 0.4:
            destinations.unrecorded(batch)
        else:
            destinations.send_failed(batch, self.dice.choice(FAILURES), self.now)

    def settled(self, settle: Settle) -> None:
        what, custody = self.dice.random(), self.machine.custody
        stored = self.queues[settle.received.source]
        at = next((one for one in stored if one.number == settle.received.sequence_number), None)
        if at is not None and what < 0.95:
            at.locked_until = self.now
            if settle.disposition is not Disposition.RELEASE:
                stored.remove(at)
        if not self.goes_wrong:
            custody.settled([settle])
        elif what < 0.1:
            custody.not_recorded(settle)
        else:
            lost, busy = LockLostError("gone"), errors.ServerBusyError("busy")
            error = self.dice.choice((lost, lost, busy, errors.ConnectionLostError("silence")))
            custody.settle_failed(settle, error, self.now)

    def renewed(self, renew: Renew) -> None:
        if not self.goes_wrong:
            self.machine.custody.renewed(renew, self.now + LOCK_SECONDS)
        else:
            error = LockLostError("gone") if self.dice.random() < 0.5 else errors.ConnectionLostError("silence")
            self.machine.custody.renew_failed(renew, error, self.now)

    # What is known

    def state(self) -> Iterator[Any]:
        machine, custody, queues, now = self.machine, self.machine.custody, self.machine.queues, self.now
        yield from (custody.live, custody.left_messages, custody.counted, custody.size_bytes, custody.taken)
        yield from (round(custody.mean_bytes, 3), machine.total_reached, machine.left_full)
        yield {key[1]: because for key, because in custody.left().items()}
        yield sorted(key[1] for key in custody.uncompleted)
        yield {path: error.code for path, error in machine.destinations.given_up().items()}
        yield machine.destinations.held(now)
        yield queues.blocked
        yield {name: round(seconds, 3) for name, seconds in queues.foreign_locks(now).items()}
        for queue in self.queues:
            yield "".join(
                "+" if one else "-"
                for one in (
                    queues.standing_back(queue),
                    queues.awaits(queue, now),
                    queues.stalled(queue, now),
                    queues.led_elsewhere(queue),
                )
            )
            yield sorted(queues.known_locked(queue))
        yield {name: number for name, number in machine.tally.numbers.items() if number}
        yield {name: dict(numbers) for name, numbers in machine.tally.names.items() if numbers}


def said(value: Any) -> str:
    """Short: a message is its number."""
    match value:
        case Send(batch):
            return f"Send({batch.destination} {[(one.received.sequence_number, one.attempts) for one in batch.items]})"
        case Settle(_, received, disposition, outcome, reason, description):
            return f"{disposition}({received.source}#{received.sequence_number} {outcome} {reason} {description})"
        case Renew(_, received):
            return f"Renew({received.source}#{received.sequence_number})"
    return repr(value)


def main() -> None:
    print(*History(int(sys.argv[1])).live(), sep="\n")


if __name__ == "__main__":
    main()
