"""What a few bytes may cost: dispositions over thousands of deliveries, tokens for thousands of addresses; and the work
that no connection waits for."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sbpair.amqp.performatives import CLOSE, DISPOSITION, FLOW, TRANSFER, accepted
from sbpair.amqp.types import Uint
from sbpair.engine.auth import Claims
from sbpair.engine.budgets import MAX_TOKENS_PER_CONNECTION, Background
from sbpair.engine.port import Port
from tests.emulator.spender import Slow
from tests.engine.dialects import AZURE_SERVICEBUS, DOTNET, PROTON, Dialect
from tests.engine.wire_client import seen

DELIVERIES = 10_000
FRAMES = 1_500


@pytest.mark.law("any-number-of-clients")
@pytest.mark.parametrize(
    ("dialect", "first", "last"),
    [(DOTNET, 0, 2**32 - 1), (AZURE_SERVICEBUS, 0, 2**31 - 1), (PROTON, 2**30, 2**31 - 1), (DOTNET, 2**20, 2**32 - 1)],
    ids=["all", "half", "none", "none and far"],
)
async def test_saying_nothing_about_many_deliveries_costs_nothing(
    connect: Any, dialect: Dialect, service: Any, first: int, last: int
) -> None:
    service.stock["orders"].extend([b"\x00Sw\xa1\x01x"] * DELIVERIES)
    client = await connect()
    await client.session(window=DELIVERIES * 2)
    await client.receiver("orders", credit=DELIVERIES)
    for _ in range(DELIVERIES):
        await client.until(TRANSFER)
    begun = time.process_time()
    state = accepted() if first >= 2**20 else None
    for _ in range(FRAMES):
        client.send(DISPOSITION, [True, Uint(first), Uint(last), False, state])
    client.send(FLOW, [Uint(1), Uint(DELIVERIES), Uint(0), Uint(2048), None, None, None, None, None, True])
    await client.until(FLOW)
    assert time.process_time() - begun < 1.0
    assert service.handlers[0].dispositions == []
    client.settle(1, DELIVERIES, accepted())
    confirmed = 0
    while confirmed < DELIVERIES:  # a range for each slice of time
        answer = await client.until(DISPOSITION)
        assert answer.field(1) == confirmed + 1
        confirmed = answer.field(2) or answer.field(1)
    assert len(service.handlers[0].dispositions) == DELIVERIES


@pytest.mark.law("any-number-of-clients")
async def test_tokens_for_ever_more_addresses_end_the_connection(connect: Any, port: Port) -> None:
    client = await connect()
    await client.session()
    (connection,) = port.connections
    begun, rights = time.process_time(), frozenset({"Send"})
    for number in range(MAX_TOKENS_PER_CONNECTION):
        connection.add_claims(Claims(f"queue-{number}", rights, 2e9 + number))
    assert time.process_time() - begun < 1.0, "a token costs the same, however many there are"
    connection.add_claims(Claims("queue-0", rights, 3e9))
    assert not connection.is_closing, "one may be renewed"
    connection.add_claims(Claims("one-more", rights, 2e9))
    assert connection.is_closing
    assert "one-more" not in connection.claims
    assert str((await client.until(CLOSE)).field(0).value[0]) == "amqp:resource-limit-exceeded"


async def test_the_background_keeps_order_goes_on_after_an_error_and_takes_work_from_work() -> None:
    background = Background(Slow())
    done: list[str] = []

    def work(name: str, steps: int) -> Iterator[None]:
        for _ in range(steps):
            yield
        done.append(name)
        if name == "second":
            background.do(work("from work", 1))
        if name == "failing":
            raise LookupError(name)

    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["exception"]))
    background.do(work("long", 50))
    background.do(work("failing", 1))
    background.do(work("second", 1))
    assert done == []
    await seen(lambda: len(done) == 4)
    assert done == ["long", "failing", "second", "from work"]
    assert [str(problem) for problem in problems] == ["failing"]
    background.do(work("long", 50))
    background.do(work("failing", 1))
    await seen(lambda: len(problems) == 2)
    background.do(work("after all", 0))
    assert done[-1] == "after all", "an error at the end leaves nothing behind"


async def test_short_work_is_done_at_once_but_not_any_amount_of_it_in_one_turn() -> None:
    background = Background(Slow())
    done: list[int] = []

    def work(number: int) -> Iterator[None]:
        done.append(number)
        return
        yield

    for number in range(20):
        background.do(work(number))
    assert 0 < len(done) < 20
    await seen(lambda: len(done) == 20)
    assert done == list(range(20))
