"""Fault rules: their texts, which operations they hit, and what they do to connections and links."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest

from sbpair.amqp.performatives import ATTACH, DETACH, DISPOSITION, FLOW, REJECTED
from sbpair.amqp.types import Uint
from sbpair.engine.clock import ManualClock
from sbpair.engine.faults import (
    FaultError,
    FaultKind,
    FaultRule,
    Faults,
    Operation,
    fault_to_json,
    parse_json,
    parse_text,
    rule_to_json,
    rule_to_text,
)
from sbpair.engine.wire import Trace
from tests.engine.wire_client import seen


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def faults(clock: ManualClock) -> Faults:
    return Faults(clock, seed=1)


def hits(faults: Faults, times: int, operation: str = "send", entity: str = "orders") -> list[int]:
    return [number for number in range(1, times + 1) if faults.check(operation, entity) is not None]


def test_text_and_json_say_the_same() -> None:
    rule = parse_text("throttle:entity=orders*,op=send,for=2m,after=3,every=2,p=0.5,count=9,at=250ms")
    assert rule == FaultRule(
        FaultKind.THROTTLE,
        entity="orders*",
        operation=Operation.SEND,
        after=3,
        every=2,
        probability=0.5,
        count=9,
        at_seconds=0.25,
        duration_seconds=120.0,
    )
    assert parse_json(rule_to_json(rule)) == rule
    assert parse_text(rule_to_text(rule)) == rule


def test_a_comma_in_a_value_survives() -> None:
    rule = parse_text(r"fail:description=one\, two")
    assert rule.description == "one, two"
    assert parse_text(rule_to_text(rule)) == rule


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("throtle", "unknown fault"),
        ("fail:enttiy=x", "unknown key"),
        ("fail:entity", "not key=value"),
        ("fail:nth=1,nth=2", "twice"),
        ("fail:nth=0", "1 or more"),
        ("fail:nth=x", "whole number"),
        ("fail:for=soon", "duration"),
        ("fail:for=0", "longer"),
        ("fail:p=2", "between 0 and 1"),
        ("fail:op=fly", "unknown operation"),
        ("fail:entity=", "empty"),
        ("delay", "rtt"),
        ("fail:rtt=2", "rtt"),
        ("delay:rtt=20ms,nth=2", "single operations"),
        ("dark:entity=q", "whole namespace"),
        ("drop:condition=x", "no condition"),
        ("http-status:status=9", "HTTP status"),
        ("fail:lock=2", "lock"),
        ("partition-down:partition=3,op=send", "single operations"),
    ],
)
def test_a_wrong_text_is_refused_with_the_reason(text: str, word: str) -> None:
    with pytest.raises(FaultError, match=word):
        parse_text(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fail:op=send", [1, 2, 3, 4, 5, 6]),
        ("fail:op=send,nth=2", [2]),
        ("fail:op=send,after=4", [5, 6]),
        ("fail:op=send,every=3", [3, 6]),
        ("fail:op=send,count=2", [1, 2]),
        ("fail:op=send,after=1,nth=2", [3]),
        ("fail:op=settle", []),
        ("fail:entity=other", []),
        ("fail:entity=ORD*", [1, 2, 3, 4, 5, 6]),
        ("quota", [1, 2, 3, 4, 5, 6]),
        ("zero-counts", []),
    ],
)
def test_which_sends_are_hit(faults: Faults, text: str, expected: list[int]) -> None:
    faults.add(text)
    assert hits(faults, 6) == expected


PLAIN = {"send", "settle", "management"}
AMQP = PLAIN | {"attach", "receive"}


@pytest.mark.parametrize(
    ("text", "operations", "status"),
    [
        ("throttle", PLAIN, 429),
        ("fail", PLAIN, 500),
        ("quota", {"send"}, 403),
        ("unauthorized", {"attach", "send", "management"}, 401),
        ("disabled", {"attach", "send", "management"}, 403),
        ("http-status", {"http"}, 503),
        ("list-gap", {"http"}, None),
        ("zero-counts", {"http"}, None),
        ("refuse", {"connect"}, None),
        ("lose-settlement-reply", {"settle"}, None),
        ("settle-delay:rtt=1", {"settle"}, None),
        ("expire-locks", {"receive"}, None),
        ("drop:count=9", AMQP, None),
        ("detach:count=9", AMQP, None),
    ],
)
def test_what_a_kind_hits_where_no_operation_is_named_and_its_http_status(
    faults: Faults, text: str, operations: set[str], status: int | None
) -> None:
    faults.add(text)
    assert {one for one in Operation if faults.check(one, "orders") is not None} == operations
    assert status in (None, *(action.status for one in operations if (action := faults.check(one, "orders"))))


def test_the_seed_decides_what_chance_hits(clock: ManualClock) -> None:
    def run(seed: int) -> list[int]:
        faults = Faults(clock, seed)
        faults.add("fail:p=0.5")
        return hits(faults, 200)

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert 60 < len(run(1)) < 140


def test_sub_queues_and_management_belong_to_their_entity(faults: Faults) -> None:
    faults.add("throttle:entity=orders")
    assert faults.check("send", "Orders/$management") is not None
    assert faults.check("settle", "orders/$DeadLetterQueue") is not None
    assert faults.check("send", "orders2") is None


async def test_a_rule_begins_and_ends_by_the_clock(faults: Faults, clock: ManualClock) -> None:
    fault_id = faults.add("fail:at=10s,for=5s")
    assert hits(faults, 1) == []
    clock.advance(10)
    assert hits(faults, 1) == [1]
    described = fault_to_json(faults.list()[0])
    assert (described["id"], described["hits"]) == (fault_id, 1)
    clock.advance(5)
    assert hits(faults, 1) == []
    assert faults.list() == []


def test_removed_and_cleared_rules_do_nothing(faults: Faults) -> None:
    first = faults.add("fail")
    faults.add("quota")
    assert faults.remove(first) is True
    assert faults.remove(first) is False
    action = faults.check("send", "q")
    assert action is not None
    assert action.condition == "amqp:resource-limit-exceeded"
    faults.clear()
    assert faults.check("send", "q") is None


async def test_an_attach_is_refused_by_a_fault(connect: Any, namespace: Any) -> None:
    namespace.faults.add("disabled:op=attach,entity=q")
    client = await connect()
    await client.session()
    client.attach(0, "q", sends=True)
    assert (await client.until(ATTACH)).field(6) is None
    assert (await client.until(DETACH)).error[0] == "com.microsoft:entity-disabled"
    assert (await client.sender("other", 1)).field(6) is not None


async def test_the_second_send_is_throttled(connect: Any, namespace: Any) -> None:
    namespace.faults.add("throttle:op=send,nth=2")
    client = await connect()
    await client.session()
    await client.sender("q")
    for number in range(3):
        client.transfer(number, b"m")
    outcomes = [await client.until(DISPOSITION) for _ in range(3)]
    assert [frame.field(4).descriptor == REJECTED for frame in outcomes] == [False, True, False]
    assert outcomes[1].field(4).value[0].value[0] == "com.microsoft:server-busy"


async def test_detach_at_once_hits_the_links_of_the_entity(connect: Any, namespace: Any, service: Any) -> None:
    client = await connect()
    await client.session()
    await client.sender("q", 0)
    await client.sender("other", 1)
    namespace.faults.add("detach:entity=q")
    detach = await client.until(DETACH)
    assert (detach.field(0), detach.error[0]) == (0, "amqp:link:detach-forced")
    assert [handler.detached for handler in service.handlers] == [[(True, False)], []]


async def test_the_second_send_detaches_its_link(connect: Any, namespace: Any, service: Any) -> None:
    namespace.faults.add("detach:op=send,nth=2")
    client = await connect()
    await client.session()
    await client.sender("q")
    for number in range(2):
        client.transfer(number, b"m")
    assert (await client.until(DETACH)).error[0] == "amqp:link:detach-forced"
    assert service.handlers[0].detached == [(True, False)]


async def test_the_fourth_send_cuts_the_connection(connect: Any, namespace: Any) -> None:
    namespace.faults.add("drop:op=send,nth=4")
    trace = namespace.trace = Trace()
    client = await connect()
    await client.session()
    await client.sender("q")
    for number in range(2):
        client.transfer(number, b"m")
        await client.until(DISPOSITION)
    trace.frames.clear()
    with client.at_once():
        client.transfer(2, b"m", settled=True)
        client.send(FLOW, [Uint(1), Uint(10), Uint(3), Uint(2048), None, None, None, None, None, True])
        client.transfer(3, b"m")
    assert await client.closed() == b""
    assert [frame.came for frame in trace.frames] == [True] * 3, "what it would have got is not traced as sent"


async def test_dark_cuts_and_refuses_until_it_is_over(connect: Any, namespace: Any, service: Any) -> None:
    client = await connect()
    await client.session()
    await client.sender("q")
    namespace.faults.add("dark:for=30s")
    assert await client.closed() == b""
    assert service.handlers[0].detached == [(False, True)]
    with pytest.raises(ConnectionRefusedError):
        await connect()
    namespace.clock.advance(30)
    again = await connect()
    await again.session()


async def test_some_connections_are_refused(connect: Any, namespace: Any) -> None:
    namespace.faults.add("refuse:nth=1")
    first = await connect()
    with pytest.raises(ConnectionResetError):
        await first.closed()
    await (await connect()).session()


async def test_silence_holds_everything_back_and_then_lets_it_go(connect: Any, namespace: Any, service: Any) -> None:
    client = await connect()
    await client.session()
    await client.sender("q")
    fault_id = namespace.faults.add("silent")
    client.transfer(0, b"m")
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(client.next(), 0.1)
    assert service.handlers[0].deliveries == []
    namespace.faults.remove(fault_id)
    assert (await client.until(DISPOSITION)).field(1) == 0


async def test_what_a_client_sent_into_silence_is_lost_with_it(connect: Any, namespace: Any, service: Any) -> None:
    client = await connect()
    await client.session()
    await client.sender("q")
    fault_id = namespace.faults.add("silent")
    client.transfer(0, b"m")
    await client.writer.drain()
    client.writer.close()
    await client.writer.wait_closed()
    await seen(lambda: service.handlers[0].detached)
    namespace.faults.remove(fault_id)
    assert service.handlers[0].deliveries == []


COUNT = 400


async def test_a_delay_is_a_distance_not_a_queue(connect: Any, namespace: Any) -> None:
    client = await connect()
    await client.session()
    await client.sender("q")
    namespace.faults.add("delay:rtt=1s")
    begun = time.monotonic()
    for number in range(COUNT):
        client.transfer(number, b"m")
        await client.writer.drain()
        await asyncio.sleep(0)
    last = None
    while last != COUNT - 1:
        frame = await client.until(DISPOSITION)
        last = frame.field(1) if frame.field(2) is None else frame.field(2)
    elapsed = time.monotonic() - begun
    assert 1 <= elapsed < COUNT / 2  # in a queue each would take a second


async def test_a_delay_of_one_entity_leaves_the_others_alone(connect: Any, namespace: Any) -> None:
    namespace.faults.add("delay:entity=far,rtt=60s")
    near = await connect()
    await near.session()
    await near.sender("near")
    near.transfer(0, b"m")
    assert (await near.until(DISPOSITION)).field(1) == 0
    far = await connect()
    await far.session()
    far.attach(0, "far", sends=True)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(far.until(FLOW), 0.1)


INJECTED = re.compile(r"""\b(?:add|inject|break_\w+|fault\w*)\(\s*(?:\w+,\s*)?f?["']([a-z-]+)[:"']""")
"""A rule where it is given to a namespace; a text that is only parsed proves nothing of its effect."""


def injected(source: str) -> set[str]:
    return set(INJECTED.findall(source))


@pytest.mark.parametrize("kind", FaultKind)
def test_every_kind_is_injected_by_a_test(kind: FaultKind) -> None:
    tests = Path(__file__).parents[1]
    assert any(kind in injected(file.read_text("utf-8")) for file in tests.rglob("test_*.py")), (
        "a test injects it and sees what it does"
    )


def test_a_text_that_is_only_parsed_is_not_injected() -> None:
    assert injected('faults.add("dark")\ninject(server, f"drop:count={n}")') == {"dark", "drop"}
    assert injected('parse_text("dark")\nTEXTS = ("drop:every=2",)') == set()
