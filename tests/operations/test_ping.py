"""Pings through the public call, on embedded namespaces."""

from dataclasses import replace

import pytest

import sbpair
from sbpair.core.errors import ConfigurationError
from sbpair.core.events import PingMeasured
from sbpair.core.failover.measured import By
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Side
from sbpair.operations import PingRequest, ping
from sbpair.ports import Sides
from tests.fakes import RecordingObserver
from tests.operations.conftest import QUEUES, World


def test_entities_and_backlog_queues_answer_and_nothing_is_stored(world: World) -> None:
    pair = replace(world.pair, entities=("orders",))
    pinged = sbpair.run(ping, pair, PingRequest(count=2, interval_seconds=0))
    assert (pinged.exit, len(pinged.entities)) == (Exit.OK, 1 + QUEUES)
    assert {(entity.side, entity.by) for entity in pinged.entities} == {
        (Side.PRIMARY, By.LINK),
        (Side.SECONDARY, By.BROWSE),
    }
    assert all(entity.accepted == 2 and entity.connect_ms is not None for entity in pinged.entities)
    assert world.waiting("orders") == 0


async def test_a_message_is_sent_only_where_that_is_asked_for_and_not_in_a_dry_run(sides: Sides) -> None:
    observer = RecordingObserver()
    request = PingRequest(("orders",), by_message=True, count=1)
    dry = await ping(sides, replace(request, dry_run=True), observer=observer)
    assert [entity.by for entity in dry.entities] == [By.LINK]
    real = await ping(sides, request, observer=observer)
    assert [entity.by for entity in real.entities] == [By.MESSAGE]
    assert [type(event) for event in observer.events] == [PingMeasured, PingMeasured]


async def test_what_refuses_is_told_with_its_right(world: World, sides: Sides) -> None:
    pinged = await ping(sides, PingRequest(("nowhere",), count=1))
    assert (pinged.entities[0].error_code, pinged.exit) == ("entity-not-found", Exit.FAILED)
    assert pinged.summary() == "0 of 1 answer."


async def test_nothing_to_ping_is_an_error(sides: Sides) -> None:
    with pytest.raises(ConfigurationError, match="names no entities"):
        await ping(sides, PingRequest(side=Side.PRIMARY))
