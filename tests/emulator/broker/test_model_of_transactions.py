"""Random walks of transactions on two queues beside a model: a commit does all or nothing, and whatever is open shows
nothing."""

import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from sbpair.emulator.broker.messages import MessageStateCode
from sbpair.emulator.broker.transactions import ROLLED_BACK, TIMED_OUT
from sbpair.engine.errors import MESSAGE_LOCK_LOST, MESSAGE_NOT_FOUND, NOT_ALLOWED, BrokerError
from tests.emulator.broker.test_model import LOCK_SECONDS, STEP_SECONDS, Model, Row, compare
from tests.emulator.spender import Spender


@dataclass
class Begun:
    """An open transaction, as the model knows it: what it will do, and whether it can."""

    opened: Any
    since: float
    steps: list[tuple[str, Any, Any]] = field(default_factory=list)
    queue: str | None = None
    failed: bool = False


class Ledger:
    """Two queues and their models, and what is done in transactions and beside them."""

    def __init__(self, bench: Any, seed: int) -> None:
        self.bench, self.dice, self.client = bench, random.Random(seed), Spender()
        self.seconds = bench.namespace.laws.transaction_seconds
        self.transactions = bench.namespace.transactions
        settings = {"lock_duration_seconds": LOCK_SECONDS, "max_delivery_count": 9}
        self.queues = {name: bench.queue(name, **settings) for name in "ab"}
        self.models = {name: Model(bench.clock.now(), deliveries=9) for name in "ab"}
        self.tokens: dict[Any, tuple[str, Row]] = {}
        self.open: list[Begun] = []
        self.sent, self.ends = 0, Counter[str]()

    def live(self, name: str) -> set[Any]:
        last = {id(row): token for token, (_, row) in self.tokens.items()}
        return {last[id(row)] for row in self.models[name].rows if row.until is not None}

    def read(self, name: str, due: float | None) -> tuple[str, list[Any]]:
        self.sent += 1
        text = f"m{self.sent}"
        return text, self.queues[name].intake.read(self.bench.message(text, at=due), 0)

    def declare(self) -> None:
        if len(self.open) < 3:
            self.open.append(Begun(self.transactions.declare(self.client.budget), self.bench.clock.now()))

    def plain(self) -> None:
        name = self.dice.choice("ab")
        text, messages = self.read(name, None)
        self.queues[name].accept(messages)
        self.models[name].send(text, None, None)

    def receive(self) -> None:
        name = self.dice.choice("ab")
        inbox = self.bench.receive(self.queues[name], 2)
        self.queues[name].main.leave(inbox)
        rows = self.models[name].receive(2)
        self.tokens |= {token: (name, row) for token, row in zip(inbox.tokens, rows, strict=True)}

    def beside(self) -> None:
        name = self.dice.choice("ab")
        for token in list(self.live(name))[:1]:
            self.queues[name].main.complete(token)
            self.models[name].settle(self.tokens[token][1], "complete")

    def send(self, begun: Begun) -> None:
        name = self.dice.choice(["a", "b", begun.queue or "a"])
        text, messages = self.read(name, None)
        if self.bound(begun, name, lambda: begun.opened.send(self.queues[name], messages), spoils=True):
            begun.steps.append(("send", name, text))

    def schedule(self, begun: Begun) -> None:
        name = begun.queue or "b"
        due = self.bench.clock.now() + 20
        text, messages = self.read(name, due)
        numbers: list[int] = []
        asked = self.bound(begun, name, lambda: numbers.extend(begun.opened.schedule(self.queues[name], messages)))
        assert asked
        self.models[name].last += 1
        assert numbers == [self.models[name].last]
        begun.steps.append(("schedule", name, Row(numbers[0], text, None, due, state=MessageStateCode.SCHEDULED)))

    def cancel(self, begun: Begun) -> None:
        name = begun.queue or "b"
        noted = [row for what, _, row in begun.steps if what == "cancel"]
        for row in [row for row in self.models[name].rows if row.state is MessageStateCode.SCHEDULED][:1]:
            try:
                begun.opened.cancel_scheduled(self.queues[name], [row.number])
            except BrokerError as error:
                assert (error.condition, row in noted) == (MESSAGE_NOT_FOUND, True)
                return
            assert row not in noted
            begun.queue = name
            begun.steps.append(("cancel", name, row))

    def settle(self, begun: Begun) -> None:
        if not self.tokens:
            return
        token = self.dice.choice(list(self.tokens)[-6:])
        name, row = self.tokens[token]
        verb = self.dice.choice(["complete", "release", "dead_letter"])
        box, more = self.queues[name].main, ("why", "") if verb == "dead_letter" else ()
        settling = partial(begun.opened.settle, box, token, partial(getattr(box, verb), token, *more))
        if token not in self.live(name):
            assert refusal(settling) == MESSAGE_LOCK_LOST
        elif any(what == "settle" and of[0] == token for what, _, of in begun.steps):
            assert refusal(settling) == NOT_ALLOWED
        elif self.bound(begun, name, settling):
            begun.steps.append(("settle", name, (token, verb)))
        else:
            self.models[name].give_back(row, counted=True)

    def bound(self, begun: Begun, name: str, call: Any, *, spoils: bool = False) -> bool:
        """Whether it may be done there: all of a transaction is done at one queue."""
        fits = begun.queue in (None, name)
        assert refusal(call) == ("" if fits else NOT_ALLOWED)
        begun.queue = begun.queue or name
        begun.failed |= spoils and not fits
        return fits

    def discharge(self, begun: Begun) -> None:
        self.open.remove(begun)
        if self.dice.random() < 0.25:
            self.transactions.roll_back(begun.opened.id, self.client.budget)
            self.ends["rolled back"] += 1
            return
        fits = not begun.failed and all(self.can(*step) for step in begun.steps)
        committing = self.transactions.committing(begun.opened.id, self.client.budget)
        assert refusal(lambda: list(committing)) == ("" if fits else ROLLED_BACK)
        self.ends["committed" if fits else "refused"] += 1
        for what in ("settle", "cancel", "send") if fits else ():
            for step in begun.steps:
                if step[0] == what or (what, step[0]) == ("send", "schedule"):
                    self.do(*step)

    def can(self, what: str, name: str, of: Any) -> bool:
        if what == "settle":
            return of[0] in self.live(name)
        return what != "cancel" or any(
            row is of and row.state is MessageStateCode.SCHEDULED for row in self.models[name].rows
        )

    def do(self, what: str, name: str, of: Any) -> None:
        model = self.models[name]
        if what == "settle":
            model.settle(self.tokens[of[0]][1], of[1])
        elif what == "cancel":
            model.rows = [row for row in model.rows if row is not of]
        elif what == "send":
            model.send(of, None, None)
        else:
            model.arrive(of)

    def time(self) -> None:
        self.bench.clock.advance(STEP_SECONDS)
        for model in self.models.values():
            model.advance()
        for begun in list(self.open):
            if self.bench.clock.now() >= begun.since + self.seconds:
                self.open.remove(begun)
                self.ends["timed out"] += 1
                assert refusal(partial(self.transactions.require, begun.opened.id, self.client.budget)) == TIMED_OUT
        assert len(self.transactions) == len(self.open)


def refusal(call: Any) -> str:
    try:
        call()
    except BrokerError as error:
        return error.condition
    return ""


BEGUN = ("send", "schedule", "cancel", "settle", "discharge")
IN_TRANSACTIONS = (
    "declare", "plain", "receive", "receive", "beside", "send", "send", "schedule", "cancel", "settle", "settle",
    "settle", "discharge", "time",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
async def test_a_commit_does_all_or_nothing_as_its_model_does(bench, text, seed):
    ledger = Ledger(bench, seed)
    for number in range(300):
        step = ledger.dice.choice(IN_TRANSACTIONS)
        if step in BEGUN and ledger.open:
            getattr(ledger, step)(ledger.open[-1])
        elif step not in BEGUN:
            getattr(ledger, step)()
        try:
            for name, queue in ledger.queues.items():
                compare(bench, queue, ledger.models[name], ledger.live(name), text)
        except AssertionError as error:
            raise AssertionError(f"after step {number} ({step})") from error
    assert {"committed", "refused", "rolled back"} <= set(ledger.ends)
    for begun in ledger.open:
        ledger.transactions.roll_back(begun.opened.id, ledger.client.budget)
    assert (ledger.client.budget.retained_bytes, len(ledger.transactions)) == (0, 0)
