"""What the world above the simulated processes takes for a broken promise, and what not."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from sbpair.amqp.types import Long
from sbpair.core.rewrite import compose, for_backlog
from sbpair.emulator.broker.messages import Message
from sbpair.emulator.namespace import Namespace
from sbpair.engine.clock import SystemClock
from tests.simulation.brokers import Notes
from tests.simulation.trace import Trace
from tests.simulation.truth import Sent, Truth, Violation

QUEUES = ("primary/x-servicebus-transfer/0", "primary/x-servicebus-transfer/1")


class Copies:
    """A witness that also notes where copies lie."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.found: list[tuple[str, int]] = []

    def stored(self, side: str, path: str, place: str, message: Message, row: int) -> None:
        self.truth.stored(side, path, place, message, row)
        self.found.append((path, message.sequence_number))

    def let_go(self, side: str, message: Message, row: int) -> None:
        self.truth.let_go(side, message, row)


def stored_twice(truth: Truth) -> list[tuple[str, int]]:
    """A message of which a sender, left without an answer, has put a copy into each backlog queue; where they lie."""
    copies = Copies(truth)

    async def store() -> None:
        namespace = Namespace("secondary", clock=SystemClock(), store=Notes("secondary", copies))
        for queue in QUEUES:
            namespace.create_queue(queue).send(for_backlog(compose(body=b"a", message_id="m1"), "orders"))

    truth.sent["m1"] = Sent(1, "primary", "orders", None, b"a", backlog=False)
    asyncio.run(store())
    return copies.found


def arrive(truth: Truth, times: int) -> None:
    async def store() -> None:
        namespace = Namespace("primary", clock=SystemClock(), store=Notes("primary", truth))
        queue = namespace.create_queue("orders")
        for _ in range(times):
            queue.send(compose(body=b"a", message_id="m1", application_properties={"n": Long(1)}))

    asyncio.run(store())


def write(ledger: Path, copies: Sequence[tuple[str, int]]) -> Path:
    lines = [
        {"queue": queue, "sequence_number": number, "message_id": "m1", "outcome": "forwarded"}
        for queue, number in copies
    ]
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return ledger


def test_each_stored_copy_of_a_message_may_be_sent_once(tmp_path: Path) -> None:
    truth = Truth(Trace(lambda: 0.0), strict_order=True)
    first, second = stored_twice(truth)
    truth.arrived["m1"].append(0.0)
    ledger = write(tmp_path / "ledger.jsonl", [first])
    truth.written(ledger)
    truth.about_to_send(ledger.name, "m1")  # the other copy
    truth.written(write(ledger, [first, second]))
    with pytest.raises(Violation, match="m1 was sent again"):
        truth.about_to_send(ledger.name, "m1")


def test_copies_of_the_backlog_arrive_however_late_and_one_more_needs_a_reason() -> None:
    truth, wrong = Truth(Trace(lambda: 0.0), strict_order=True), list[BaseException]()
    truth.wrong = wrong.append
    truth.doubt("a send without an answer")
    stored_twice(truth)
    truth.now = lambda: 10_000.0
    arrive(truth, 3)
    assert [str(one) for one in wrong] == ["message m1 arrived twice, and no answer was lost"]


def test_a_second_copy_in_the_backlog_needs_a_reason() -> None:
    truth, wrong = Truth(Trace(lambda: 0.0), strict_order=True), list[BaseException]()
    truth.wrong = wrong.append
    stored_twice(truth)
    assert [str(one) for one in wrong] == ["message m1 was put into the backlog twice, and no answer was lost"]
