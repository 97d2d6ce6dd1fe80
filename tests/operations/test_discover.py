"""A search for backlog queues through the public call, on embedded namespaces."""

from sbpair.connect import open_namespace
from sbpair.core.outcome import Exit
from sbpair.operations import DiscoverRequest, discover
from sbpair.ports import Sides
from tests.operations.conftest import QUEUES, World


async def test_a_backlog_that_no_pair_covers_is_found_with_its_messages(world: World, sides: Sides) -> None:
    await world.strand(sides, "orders", 4)
    found = await discover(open_namespace, DiscoverRequest((world.pair.primary, world.pair.secondary)))
    assert [(queues.primary, queues.queues, queues.active) for queues in found.transfer] == [("contoso", QUEUES, 4)]
    assert [keys["backlog_queues"] for keys in found.pairs.values()] == [QUEUES]
    covered = await discover(open_namespace, DiscoverRequest((world.pair.secondary,), (world.pair,)))
    assert [queues.pair for queues in covered.transfer] == ["embedded"]
    assert covered.pairs == {}


async def test_a_namespace_that_cannot_be_read_is_named(world: World) -> None:
    world.emulator.faults("fabrikam").add("refuse")
    request = DiscoverRequest((world.pair.primary, world.pair.secondary), timeout_seconds=3)
    found = await discover(open_namespace, request)
    assert [namespace.found_by is None for namespace in found.namespaces] == [False, True]
    assert found.exit is Exit.UNREACHABLE
