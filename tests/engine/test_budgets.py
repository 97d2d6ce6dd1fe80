"""What a few bytes may cost: dispositions over thousands of deliveries."""

import time
from typing import Any

import pytest

from sbpair.amqp.performatives import DISPOSITION, FLOW, TRANSFER, accepted
from sbpair.amqp.types import Uint
from tests.engine.dialects import AZURE_SERVICEBUS, DOTNET, PROTON, Dialect

DELIVERIES = 10_000
FRAMES = 1_500


@pytest.mark.law("any-number-of-clients")
@pytest.mark.parametrize(
    ("dialect", "first", "last"),
    [
        (DOTNET, 0, 2**32 - 1),
        (AZURE_SERVICEBUS, 0, 2**31 - 1),
        (PROTON, 2**30, 2**31 - 1),
        (DOTNET, 2**20, 2**32 - 1),
    ],
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
