"""What monitoring reads of a namespace, scrape by scrape."""

from collections.abc import AsyncIterator

import pytest

from sbpair.connect import open_ends
from sbpair.core.inspection.entity import NOT_READ, ScrapedNamespace
from sbpair.core.message import Disposition
from sbpair.core.rewrite import compose
from sbpair.emulator.entities import QueueDescription
from sbpair.operations import Ends, ScrapeRequest, scrape_namespace
from tests.operations.conftest import World


@pytest.fixture
async def ends(world: World) -> AsyncIterator[Ends]:
    async with open_ends(world.pair.primary) as opened:
        yield opened


async def dead_letters(ends: Ends, path: str, *reasons: str, session_id: str | None = None) -> None:
    sender, receiver = ends.source.sender(path), ends.source.receiver(path, session_id=session_id)
    payloads = [compose(body="x", message_id=f"m{n}", session_id=session_id) for n in range(len(reasons))]
    await sender.send(payloads, timeout_seconds=30)
    left = list(reasons)
    while left:
        for one in await receiver.receive(len(left), wait_seconds=30):
            await receiver.settle(one, Disposition.DEAD_LETTER, reason=left.pop(0))
    await sender.close()
    await receiver.close()


async def purge_letters(ends: Ends, path: str, number: int) -> None:
    receiver = ends.source.receiver(path, dead_letter=True)
    for one in await receiver.receive(number, wait_seconds=30):
        await receiver.settle(one, Disposition.COMPLETE)
    await receiver.close()


def causes(found: ScrapedNamespace, path: str = "orders") -> dict[str, int]:
    return dict(found.causes(next(one for one in found.listed.entities if one.path == path)))


async def test_dead_letters_are_read_once_and_again_where_some_are_gone(ends: Ends) -> None:
    await dead_letters(ends, "orders", "TTLExpiredException", "mine", "yours")
    first = await scrape_namespace(ends, ScrapeRequest())
    assert causes(first) == {"expired": 1, "consumer-rejected": 2}
    second = await scrape_namespace(ends, ScrapeRequest(before=first))
    assert causes(second) == causes(first)
    assert second.used.message_operations == first.used.message_operations - 3
    await dead_letters(ends, "orders", "TTLExpiredException")
    third = await scrape_namespace(ends, ScrapeRequest(before=second))
    assert causes(third) == {"expired": 2, "consumer-rejected": 2}
    assert third.used.message_operations == second.used.message_operations + 1
    await purge_letters(ends, "orders", 1)
    fourth = await scrape_namespace(ends, ScrapeRequest(before=third))
    assert causes(fourth) == {"expired": 1, "consumer-rejected": 2}
    await purge_letters(ends, "orders", 3)
    assert causes(await scrape_namespace(ends, ScrapeRequest(before=fourth))) == {}


async def test_a_partitioned_queue_is_read_from_its_start_where_numbers_do_not_rise(world: World, ends: Ends) -> None:
    world.emulator.namespace("contoso").create_queue("parts", QueueDescription(enable_partitioning=True))
    await dead_letters(ends, "parts", *["mine"] * 6)
    before = await scrape_namespace(ends, ScrapeRequest())
    assert causes(before, "parts") == {"consumer-rejected": 6}
    await dead_letters(ends, "parts", *["TTLExpiredException"] * 6)
    for _ in range(2):
        before = await scrape_namespace(ends, ScrapeRequest(before=before))
        assert sum(causes(before, "parts").values()) == 12
    assert causes(before, "parts") == {"consumer-rejected": 6, "expired": 6}


async def test_what_there_is_no_room_for_is_said_and_comes_later(ends: Ends) -> None:
    await dead_letters(ends, "orders", *["mine"] * 7)
    found, seen = None, []
    for _ in range(3):
        found = await scrape_namespace(ends, ScrapeRequest(least_credits=3, before=found))
        seen.append(causes(found))
        assert found.used.message_operations <= 3
    assert seen == [
        {"consumer-rejected": 3, NOT_READ: 4},
        {"consumer-rejected": 6, NOT_READ: 1},
        {"consumer-rejected": 7},
    ]


async def test_sessions_are_counted_and_an_entity_that_cannot_be_browsed_has_no_figures(
    world: World, ends: Ends
) -> None:
    world.emulator.namespace("contoso").create_queue("parcels", QueueDescription(requires_session=True))
    sender = ends.source.sender("parcels")
    payloads = [compose(body="x", message_id=str(n), session_id=f"s{n % 4}") for n in range(9)]
    await sender.send(payloads, timeout_seconds=30)
    await sender.close()
    found = await scrape_namespace(ends, ScrapeRequest())
    assert found.sessions == {"parcels": 4}
    assert found.figures().sessions_left_out == 0
    world.emulator.faults("contoso").add("fail:op=management,condition=amqp:unauthorized-access")
    refused = await scrape_namespace(ends, ScrapeRequest(before=found))
    assert (refused.sessions, refused.oldest_age_seconds) == ({}, {})
    assert refused.figures().sessions_left_out == 1
    without = await scrape_namespace(ends, ScrapeRequest(browse=False))
    assert without.used.message_operations == 0
