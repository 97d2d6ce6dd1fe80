"""Random walks of a queue beside a model of it that is written anew and knows nothing of locks, lines and timers: a
table of messages. After each step both hold the same, and each request is answered as the model says."""

import random
from dataclasses import dataclass
from typing import Any

import pytest

from sbpair.amqp.sections import Section
from sbpair.emulator.broker.messages import MessageStateCode
from sbpair.engine.errors import MESSAGE_LOCK_LOST, MESSAGE_NOT_FOUND, BrokerError

LOCK_SECONDS, DELIVERIES, STEP_SECONDS = 30.0, 2, 5.0


@dataclass
class Row:
    """A message, as it is known to who may look at everything."""

    number: int
    text: str
    ttl: float | None
    due: float | None
    expires: float | None = None
    state: MessageStateCode = MessageStateCode.ACTIVE
    count: int = 0
    until: float | None = None
    """Somebody has it so long."""

    @property
    def shown(self) -> tuple[object, ...]:
        return self.number, self.text, self.state, self.count


class Model:
    def __init__(self, now: float, *, deliveries: int = DELIVERIES) -> None:
        self.now, self.last, self.deliveries = now, 0, deliveries
        self.rows: list[Row] = []
        self.dead: list[tuple[str, str, int]] = []

    def send(self, text: str, ttl: float | None, due: float | None) -> None:
        row = Row(0, text, ttl, due)
        self._enter(row)
        if due is not None and due > self.now:
            row.state, row.expires = MessageStateCode.SCHEDULED, None

    def arrive(self, row: Row) -> None:
        """One that has its number and its time."""
        if (row.due or 0) <= self.now:
            self._enter(row)
        else:
            self.rows = sorted([*self.rows, row], key=lambda row: row.number)

    def _enter(self, row: Row) -> None:
        self.last += 1
        row.number, row.state = self.last, MessageStateCode.ACTIVE
        row.expires = None if row.ttl is None else self.now + row.ttl
        self.rows.append(row)

    def receive(self, most: int) -> list[Row]:
        for row in sorted(self.rows, key=lambda row: (row.expires or 0, row.number)):
            if self._waits(row) and row.expires is not None and row.expires <= self.now:
                self._bury(row, "TTLExpiredException")
        given = [row for row in self.rows if self._waits(row)][:most]
        for row in given:
            row.until = self.now + LOCK_SECONDS
        return given

    def _waits(self, row: Row) -> bool:
        return row.state is MessageStateCode.ACTIVE and row.until is None

    def _bury(self, row: Row, reason: str) -> None:
        self.rows.remove(row)
        self.dead.append((row.text, reason, row.count))

    def give_back(self, row: Row, *, counted: bool) -> None:
        row.until = None
        row.count += counted
        if counted and row.count >= self.deliveries:
            self._bury(row, "MaxDeliveryCountExceeded")

    def settle(self, row: Row, verb: str) -> None:
        if verb == "renew":
            row.until = self.now + LOCK_SECONDS
        elif verb == "complete":
            self.rows.remove(row)
        elif verb == "dead_letter":
            self._bury(row, "why")
        else:
            row.state = MessageStateCode.DEFERRED if verb == "defer" else row.state
            self.give_back(row, counted=verb != "release")

    def advance(self) -> None:
        self.now += STEP_SECONDS
        for row in list(self.rows):
            if row.until is not None and row.until <= self.now:
                self.give_back(row, counted=True)
        due = [row for row in self.rows if row.state is MessageStateCode.SCHEDULED and (row.due or 0) <= self.now]
        for row in sorted(due, key=lambda row: (row.due, row.number)):
            self.rows.remove(row)
            self._enter(row)


class Walk:
    def __init__(self, bench: Any, seed: int) -> None:
        self.bench, self.dice = bench, random.Random(seed)
        self.queue = bench.queue(
            lock_duration_seconds=LOCK_SECONDS, max_delivery_count=DELIVERIES, dead_lettering_on_message_expiration=True
        )
        self.model = Model(bench.clock.now())
        self.sent = 0
        self.tokens: dict[Any, Row] = {}
        """All that were ever given, those that have ended as well."""

    def refused(self, call: Any, *arguments: Any, **named: Any) -> str:
        try:
            call(*arguments, **named)
        except BrokerError as error:
            return error.condition
        return ""

    def send(self) -> None:
        self.sent += 1
        text, ttl = f"m{self.sent}", self.dice.choice([None, None, 20.0, 60.0])
        due = self.dice.choice([None, None, self.model.now - 5, self.model.now + 10, self.model.now + 35])
        self.bench.send(self.queue, text, ttl=ttl, at=due)
        self.model.send(text, ttl, due)

    def receive(self) -> None:
        most = self.dice.randrange(1, 4)
        expected = self.model.receive(most)
        inbox = self.bench.receive(self.queue, most)
        self.queue.main.leave(inbox)
        assert inbox.texts == [row.text for row in expected]
        assert [lock.until for _, lock in inbox.got] == [row.until for row in expected]
        self.tokens |= dict(zip(inbox.tokens, expected, strict=True))

    def settle(self) -> None:
        if not self.tokens:
            return
        live = self.live()
        token = self.dice.choice(
            [one for one in self.tokens if one in live or self.dice.random() < 0.2] or [*self.tokens]
        )
        row, verb = self.tokens[token], self.dice.choice(VERBS)
        held = token in live
        more = ("why", "text") if verb == "dead_letter" else ()
        assert self.refused(getattr(self.queue.main, verb), token, *more) == ("" if held else MESSAGE_LOCK_LOST)
        if held:
            self.model.settle(row, verb)

    def live(self) -> set[Any]:
        """The last token of each message that is still held."""
        last = {id(row): token for token, row in self.tokens.items()}
        return {last[id(row)] for row in self.model.rows if row.until is not None}

    def deferred(self) -> None:
        rows = self.dice.sample(self.model.rows, min(len(self.model.rows), self.dice.randrange(1, 3)))
        settled = self.dice.random() < 0.3
        numbers = [row.number for row in rows] or [77]
        fine = bool(rows) and all(row.state is MessageStateCode.DEFERRED and row.until is None for row in rows)
        try:
            got = self.queue.main.receive_deferred(numbers, settled=settled)
        except BrokerError as error:
            assert (error.condition, fine) == (MESSAGE_NOT_FOUND, False)
            return
        assert fine
        for row, (_, lock) in zip(rows, got, strict=True):
            if settled:
                self.model.rows.remove(row)
            else:
                row.until = self.model.now + LOCK_SECONDS
                self.tokens[lock.token] = row

    def cancel(self) -> None:
        rows = self.dice.sample(self.model.rows, min(len(self.model.rows), self.dice.randrange(1, 3)))
        numbers = [row.number for row in rows] or [77]
        fine = bool(rows) and all(row.state is MessageStateCode.SCHEDULED for row in rows)
        assert self.refused(self.queue.cancel_scheduled, numbers) == ("" if fine else MESSAGE_NOT_FOUND)
        if fine:
            self.model.rows = [row for row in self.model.rows if row not in rows]

    def peek(self) -> None:
        since, most = self.dice.randrange(0, self.model.last + 3), self.dice.randrange(1, 4)
        found = self.bench.peek(self.queue, since, most)
        rows = [row for row in self.model.rows if row.number >= since][:most]
        assert [one.sequence_number for one in found] == [row.number for row in rows]

    def time(self) -> None:
        self.bench.clock.advance(STEP_SECONDS)
        self.model.advance()

    def check(self, text: Any) -> None:
        compare(self.bench, self.queue, self.model, self.live(), text)


def compare(bench: Any, queue: Any, model: Model, live: set[Any], text: Any) -> None:
    """What is in a queue, and what the model says."""
    found = bench.peek(queue)
    shown = [(one.sequence_number, text(one), one.state, one.delivery_count) for one in found]
    assert shown == [row.shown for row in model.rows]
    assert [one.locked for one in found] == [row.until is not None for row in model.rows]
    assert set(queue.main.locks.tokens()) == live
    counts, scheduled = queue.counts(), sum(row.state is MessageStateCode.SCHEDULED for row in model.rows)
    assert (counts.active, counts.scheduled) == (len(model.rows) - scheduled, scheduled)
    dead = [(text(one), reason_of(one), one.delivery_count) for one in bench.peek(queue.dead_letters)]
    assert sorted(dead) == sorted(model.dead)
    assert counts.dead_letter == len(dead)
    held = (one for box in queue.mailboxes for one in bench.peek(box))
    assert queue.quota.used_bytes == sum(len(one.payload) for one in held)


def reason_of(message: Any) -> str:
    return str(message.section(Section.APPLICATION_PROPERTIES)["DeadLetterReason"])


VERBS = ("complete", "abandon", "release", "defer", "dead_letter", "renew")
STEPS = ("send", "send", "send", "receive", "receive", "settle", "settle", "deferred", "cancel", "peek", "time", "time")


@pytest.mark.parametrize("seed", range(8))
async def test_a_queue_holds_and_answers_what_its_model_does(bench, text, seed):
    walk = Walk(bench, seed)
    for number in range(250):
        step = walk.dice.choice(STEPS)
        getattr(walk, step)()
        try:
            walk.check(text)
        except AssertionError as error:
            raise AssertionError(f"after step {number} ({step})") from error
    assert {reason for _, reason, _ in walk.model.dead} == {"TTLExpiredException", "MaxDeliveryCountExceeded", "why"}
