"""Every kind of link and of management request is enumerated here, and each spends from the budget of its connection:
it is worked on in steps, none of them long. A new kind that does not makes these tests fail."""

import gc
import importlib
import pkgutil
import time
import typing
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

import sbpair.emulator
from sbpair.amqp.types import Array, Int, Long, Timestamp
from sbpair.emulator.broker.addresses import locate
from sbpair.emulator.entities import RuleDescription, SqlAction
from sbpair.emulator.limits import MAX_REQUEST_NUMBERS
from sbpair.emulator.requests.call import Call
from sbpair.emulator.requests.node import OPERATIONS
from sbpair.engine.link import LinkHandler
from sbpair.service import Tier

LONGEST_STEP_SECONDS = 0.05
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


@pytest.mark.parametrize("operation", [name.removeprefix("com.microsoft:") for name in OPERATIONS])
@pytest.mark.usefixtures("without_collections")
async def test_every_request_is_answered_in_short_steps(bench: Any, operation: str) -> None:
    asked = largest(bench, operation)
    body = dict(asked.body) | ({"rule-name": "new"} if operation == "add-rule" else {})
    location = locate(bench.namespace, f"{asked.entity}/$management")
    assert location is not None
    work = OPERATIONS[f"com.microsoft:{operation}"].perform(Call(bench.namespace, location, body))
    steps, longest, reply = 0, 0.0, None
    while reply is None:
        began = time.thread_time()
        try:
            next(work)
            steps += 1
        except StopIteration as end:
            reply = end.value
        longest = max(longest, time.thread_time() - began)
    assert reply.status in (200, 204), reply
    assert steps >= asked.steps
    print(f"{operation}: {steps} steps, the longest {longest * 1000:.1f} ms")
    assert longest < LONGEST_STEP_SECONDS
