"""A status through the public call, on embedded namespaces."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import cast

import pytest

import sbpair
from sbpair.core.backlog import BacklogVerdict
from sbpair.core.entities import NamespaceFacts
from sbpair.core.errors import ConnectionLostError, InterruptedWorkError
from sbpair.core.inspection.status import UNREACHABLE
from sbpair.core.outcome import Exit, Severity
from sbpair.operations import StatusRequest, status, watch_status
from sbpair.ports import NamespaceAdmin, Sides
from tests.operations.conftest import World

ONCE = StatusRequest(interval_seconds=0)


def test_one_sample_has_no_rate(world: World) -> None:
    world.strand_now("orders", 3)
    found = sbpair.run(status, world.pair, ONCE)
    assert (found.backlog.verdict, found.backlog.active, found.rate_per_second) == (BacklogVerdict.WAITING, 3, None)
    assert found.status.primary.answers and found.status.secondary.answers
    assert found.exit() is Exit.OK
    assert found.exit(Severity.WARNING) is Exit.FINDINGS


async def test_two_samples_have_a_rate(sides: Sides) -> None:
    found = await status(sides, StatusRequest(interval_seconds=0.05))
    assert found.rate_per_second == 0
    assert "messages=0" in found.line()


async def test_what_cannot_be_read_is_in_the_result(world: World, sides: Sides) -> None:
    world.emulator.faults("contoso").add("fail:operation=http,status=500")
    found = await status(sides, ONCE)
    assert not found.status.primary.answers
    assert found.exit() is not Exit.OK
    assert any(note.startswith("Primary contoso") for note in found.notes())


class _Silent:
    """Management of a namespace that does not answer."""

    asked = 0

    async def namespace(self) -> NamespaceFacts:
        self.asked += 1
        raise ConnectionLostError("There is no answer.")


async def test_a_side_that_did_not_answer_is_not_asked_again_for_the_second_sample(sides: Sides) -> None:
    silent = _Silent()
    of_silent = replace(sides, primary_admin=cast(NamespaceAdmin, silent))
    found = await status(of_silent, StatusRequest(interval_seconds=0.01))
    assert (found.status.primary.state, silent.asked) == (UNREACHABLE, 1)
    async with aclosing(watch_status(of_silent, StatusRequest(interval_seconds=0.01))) as watched:
        for asked in (2, 3):
            assert ((await anext(watched)).status.primary.state, silent.asked) == (UNREACHABLE, asked)


async def test_watching_goes_on_until_it_is_stopped(world: World, sides: Sides) -> None:
    stop, seen = asyncio.Event(), []
    async with aclosing(watch_status(sides, StatusRequest(interval_seconds=0.01), stop=stop)) as watched:
        async for found in watched:
            seen.append(found.backlog.active)
            if len(seen) == 1:
                await world.strand(sides, "orders", 2)
            if seen[-1] == 2:
                stop.set()
    assert (seen[0], seen[-1]) == (0, 2)


async def test_a_stop_before_the_first_sample(sides: Sides) -> None:
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(InterruptedWorkError):
        await status(sides, ONCE, stop=stop)
