"""Every kind of link and of management request is enumerated here, and each spends from the budget of its connection:
it is worked on in steps, none of them long. A new kind that does not makes these tests fail."""

import functools
import gc
import importlib
import pkgutil
import time
import typing
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

import sbpair.emulator
from sbpair.amqp.sections import build
from sbpair.amqp.types import Array, Int, Long, Timestamp
from sbpair.emulator.broker.addresses import locate
from sbpair.emulator.broker.messages import BATCH_FORMAT
from sbpair.emulator.broker.transactions import MAX_PARTS_PER_TRANSACTION
from sbpair.emulator.entities import RuleDescription, SqlAction, SqlFilter
from sbpair.emulator.requests.node import OPERATIONS
from sbpair.emulator.requests.operations import MAX_REQUEST_NUMBERS, Call
from sbpair.engine.link import LinkHandler
from sbpair.service import Tier
from tests.emulator.spender import Spender

YIELD_SECONDS = 0.005
"""Whatever the emulator works on, it lets others have their turn after so much of its own time."""
AT_ONCE_SECONDS = 0.02
"""But for what is done altogether or not at all, of which a request or a transaction has 2,000 parts at most."""
AT_ONCE = ("cancel-scheduled-message", "receive-by-sequence-number", "commit")
TRIES = 2
COUNT = 4000
_END_OF_TIME = Timestamp(253_402_300_800_000)


def handlers() -> list[type[LinkHandler]]:
    """All classes that serve a link, of all modules of the emulator."""
    for module in pkgutil.walk_packages(sbpair.emulator.__path__, "sbpair.emulator."):
        if not module.name.endswith(("__main__", "pytest_plugin")):
            importlib.import_module(module.name)
    found, waiting = [], [LinkHandler]
    while waiting:
        children = waiting.pop().__subclasses__()
        found += [child for child in children if child.__module__.startswith(("sbpair.emulator.", "sbpair.engine."))]
        waiting += children
    return found


def test_every_handler_that_takes_messages_takes_them_in_steps() -> None:
    taking = [handler for handler in handlers() if "on_transfer" in vars(handler)]
    assert len(taking) >= 4
    for handler in taking:
        returned = typing.get_type_hints(vars(handler)["on_transfer"])["return"]
        assert Iterator[None] in (returned, *typing.get_args(returned)), handler


@dataclass
class Largest:
    """The largest request of a kind, for an entity that has what it takes; `steps` is the least it is done in."""

    entity: str
    body: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 1


def locked(bench: Any, count: int) -> list[uuid.UUID]:
    queue = bench.queue("locked", lock_duration_seconds=300)
    for number in range(count):
        bench.send(queue, str(number))
    held: list[uuid.UUID] = []
    while len(held) < count:
        inbox = bench.receive(queue, 50)
        held += inbox.tokens
        queue.main.leave(inbox)
        bench.clock.advance(0)  # a mailbox hands out 50 in a turn
    return held


def largest(bench: Any, operation: str) -> Largest:
    """What the operation of that name is asked for here. KeyError for a new one."""
    return {
        "peek-message": peeks,
        "renew-lock": tokens,
        "update-disposition": tokens,
        "schedule-message": schedules,
        "cancel-scheduled-message": cancels,
        "receive-by-sequence-number": deferred,
        "renew-session-lock": session,
        "get-session-state": session,
        "set-session-state": session,
        "get-message-sessions": sessions,
        "add-rule": rules,
        "remove-rule": rules,
        "enumerate-rules": rules,
        "batch-delete-messages": deletes,
    }[operation](bench)


def peeks(bench: Any) -> Largest:
    bench.send(bench.queue(), *["x"] * 300)
    return Largest("orders", {"from-sequence-number": Long(0), "message-count": Int(250)}, 250)


def tokens(bench: Any) -> Largest:
    held = locked(bench, COUNT)
    return Largest("locked", {"lock-tokens": Array(0x98, tuple(held)), "disposition-status": "completed"}, COUNT)


def schedules(bench: Any) -> Largest:
    bench.queue()
    message = {"message": bench.message("x", at=bench.clock.now() + 100)}
    return Largest("orders", {"messages": [message] * COUNT}, 2 * COUNT)


def cancels(bench: Any) -> Largest:
    queue = bench.queue()
    bench.send(queue, *["x"] * MAX_REQUEST_NUMBERS, at=bench.clock.now() + 100)
    numbers = tuple(Long(message.sequence_number) for message in queue.main.log)
    return Largest("orders", {"sequence-numbers": Array(0x81, numbers)})


def deferred(bench: Any) -> Largest:
    held = locked(bench, MAX_REQUEST_NUMBERS)
    box = bench.namespace.get_queue("locked").main
    for token in held:
        box.defer(token)
    numbers = tuple(Long(message.sequence_number) for message in box.log)
    body = {"sequence-numbers": Array(0x81, numbers), "receiver-settle-mode": Int(1)}
    return Largest("locked", body, MAX_REQUEST_NUMBERS)


def session(bench: Any) -> Largest:
    queue = bench.queue(requires_session=True)
    bench.send(queue, "x", session="s")
    bench.accept(queue, "s", 0)
    return Largest("orders", {"session-id": "s", "session-state": b"x" * 200_000})


def sessions(bench: Any) -> Largest:
    queue = bench.queue(requires_session=True)
    for number in range(COUNT):
        bench.send(queue, "x", session=str(number))
    return Largest("orders", {"last-updated-time": _END_OF_TIME, "skip": Int(0), "top": Int(COUNT)})


def rules(bench: Any) -> Largest:
    bench.namespace.create_topic("events")
    bench.namespace.create_subscription("events", "all")
    action = SqlAction(expression="SET b=1;" * 126)
    for number in range(200):
        bench.namespace.create_rule("events", "all", f"r{number}", RuleDescription(action=action))
    description = {"true-filter": {}, "sql-rule-action": {"expression": action.expression}}
    body = {"skip": Int(0), "top": Int(2000), "rule-name": "$Default", "rule-description": description}
    return Largest("events/Subscriptions/all", body)


def deletes(bench: Any) -> Largest:
    bench.namespace.tier = Tier.PREMIUM  # which deletes most
    bench.send(bench.queue(), *["x"] * COUNT)
    return Largest("orders", {"message-count": Int(COUNT), "enqueued-time-utc": _END_OF_TIME}, COUNT)


@pytest.fixture
def without_collections() -> Iterator[None]:
    """A collection walks over what all tests of this process have left, which is not the request's own time."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def slowness() -> float:
    """How many times longer than where the rule was measured a piece of work takes here and now."""
    taken = []
    for _ in range(5):
        began = time.thread_time()
        sum(number * number for number in range(20_000))
        taken.append(time.thread_time() - began)
    return max(1.0, min(taken) / 0.0012)


def longest_step(work: Iterator[Any]) -> tuple[int, float, Any]:
    """How many steps it takes, how long the longest is, and what comes of it."""
    steps, longest = 0, 0.0
    while True:
        began = time.thread_time()
        try:
            next(work)
            steps += 1
        except StopIteration as end:
            return steps, max(longest, time.thread_time() - began), end.value
        longest = max(longest, time.thread_time() - began)


def check_steps(what: str, tries: list[float]) -> None:
    """The best of some tries counts, and half as much again is let pass: how fast a processor is changes."""
    allowed = 1.5 * (AT_ONCE_SECONDS if what in AT_ONCE else YIELD_SECONDS) * slowness()
    print(f"{what}: the longest step took {min(tries) * 1000:.1f} ms, may take {allowed * 1000:.1f} ms")
    assert min(tries) < allowed


@pytest.mark.parametrize("operation", [name.removeprefix("com.microsoft:") for name in OPERATIONS])
@pytest.mark.usefixtures("without_collections")
async def test_every_request_is_answered_in_short_steps(make_bench: Any, operation: str) -> None:
    tries = []
    for _ in range(TRIES):
        bench = make_bench()
        asked = largest(bench, operation)
        body = dict(asked.body) | ({"rule-name": "new"} if operation == "add-rule" else {})
        location = locate(bench.namespace, f"{asked.entity}/$management")
        assert location is not None
        work = OPERATIONS[f"com.microsoft:{operation}"].perform(Call(bench.namespace, location, body))
        steps, longest, reply = longest_step(work)
        assert reply.status in (200, 204), reply
        assert steps >= asked.steps
        tries.append(longest)
    check_steps(operation, tries)


def publication(bench: Any) -> Iterator[None]:
    """A message for 200 rules that look through 50 KB, and have actions of 126 statements."""
    topic = bench.namespace.create_topic("events")
    bench.namespace.create_subscription("events", "all")
    for number in range(200):
        condition = SqlFilter(expression=f"p LIKE '%a%b%c{number}d%' OR q = {number}")
        rule = RuleDescription(filter=condition, action=SqlAction(expression="SET b=1;" * 126))
        bench.namespace.create_rule("events", "all", f"r{number}", rule)
    message = bench.message("x", properties={"p": "a" * 50_000, "q": Int(7)})
    work: Iterator[None] = topic.accepting(list(topic.intake.read(message, 0)))
    return work


def batch(bench: Any) -> Iterator[None]:
    """The most messages that fit into one of 256 KB."""
    queue = bench.queue()
    payload = build(data=[bench.message("")] * 20_000)
    work: Iterator[None] = queue.accepting(list(queue.intake.read(payload, BATCH_FORMAT)))
    return work


def commit(bench: Any) -> Iterator[None]:
    """The most settlements that a transaction may have."""
    held = locked(bench, MAX_PARTS_PER_TRANSACTION)
    box = bench.namespace.get_queue("locked").main
    client = Spender()
    transactions = bench.namespace.transactions
    transaction = transactions.declare(client.budget)
    for token in held:
        transaction.settle(box, token, functools.partial(box.complete, token))
    work: Iterator[None] = transactions.committing(transaction.id, client.budget)
    return work


@pytest.mark.parametrize("made", [publication, batch, commit])
@pytest.mark.usefixtures("without_collections")
async def test_what_clients_send_is_worked_on_in_short_steps(
    make_bench: Any, made: Callable[[Any], Iterator[None]]
) -> None:
    check_steps(made.__name__, [longest_step(made(make_bench()))[1] for _ in range(TRIES)])


async def test_a_step_that_is_too_long_is_found() -> None:
    """What would happen if a handler forgot to yield."""

    def stubborn() -> Iterator[None]:
        until = time.thread_time() + 10 * YIELD_SECONDS * slowness()
        while time.thread_time() < until:
            pass
        yield

    with pytest.raises(AssertionError):
        check_steps("stubborn", [longest_step(stubborn())[1] for _ in range(TRIES)])
