"""Whether messages could be diverted now, told by links alone; and what a run asked of its namespaces."""

from typing import Any

import pytest

from sbpair.core.entities import EntityKind
from sbpair.core.errors import (
    ConnectionLostError,
    EntityNotFoundError,
    OperationTimeoutError,
    ServerBusyError,
    ServiceError,
    UnauthorizedError,
)
from sbpair.core.inspection.entity import Listed
from sbpair.core.rewrite import compose
from sbpair.runtime.inspection import application
from sbpair.runtime.inspection.application import Verification, verify
from sbpair.runtime.inspection.usage import CountedMessaging, Usage, calls_of_lists, counted_admin
from sbpair.service import PAGE_ENTITIES
from tests.fakes import FakeNamespace, virtual_time
from tests.runtime.failover.pairs import World, a_pair, a_world

QUEUES = a_pair(queues=3).backlog_paths()


async def verified(world: World, *entities: str) -> tuple[Verification, dict[str, ServiceError | None], dict[str, int]]:
    queues: dict[str, ServiceError | None] = {}
    sizes: dict[str, int] = {}
    found = await verify(
        a_pair(queues=3),
        primary=world.primary_messaging,
        secondary=world.secondary_messaging,
        entities=entities,
        clock=world.clock,
        on_queue=queues.__setitem__,
        on_entity=sizes.__setitem__,
    )
    return found, queues, sizes


def told(found: Verification) -> list[tuple[str, str, str]]:
    return [(one.check, one.subject, str(one.result)) for one in found.checks]


@virtual_time
async def test_queues_that_are_well_are_one_line_and_each_kind_of_error_another() -> None:
    world = a_world()
    world.secondary.add_queue(QUEUES[0])
    world.primary.max_message_bytes, world.secondary.max_message_bytes = 1000, 1000
    found, queues, sizes = await verified(world, "orders", "nowhere")
    assert sizes == {"orders": 1000}
    assert {path: type(error) for path, error in queues.items()} == {
        QUEUES[0]: type(None),
        QUEUES[1]: EntityNotFoundError,
        QUEUES[2]: EntityNotFoundError,
    }
    assert found.usable_queues == (QUEUES[0],)
    assert told(found) == [
        ("backlog", "secondary", "ok"),
        ("backlog", "secondary", "warning"),
        ("entity", "orders", "ok"),
        ("entity", "nowhere", "warning"),
    ]
    details = [one.detail for one in found.checks]
    assert "1 backlog queue would take messages" in details[0]
    assert f"{QUEUES[1]} on {a_pair().secondary.host}" in details[1]
    assert "(1 other queue as well)" in details[1]
    world.secondary.fail("limit", UnauthorizedError("no right"), entity=QUEUES[0])
    found, _, _ = await verified(world)
    assert [(str(one.result), "other queue" in one.detail) for one in found.checks] == [
        ("error", False),
        ("error", True),
    ]
    assert found.usable_queues == ()


@virtual_time
@pytest.mark.parametrize(
    ("error", "result"),
    [
        (ConnectionLostError("away"), "skipped"),
        (OperationTimeoutError("away"), "skipped"),
        (ServerBusyError("busy"), "skipped"),
        (UnauthorizedError("no right"), "warning"),
        (EntityNotFoundError("nowhere"), "warning"),
    ],
)
async def test_a_primary_that_is_away_is_no_problem_of_its_outage(error: ServiceError, result: str) -> None:
    """It would still be told when the primary is back."""
    world = a_world()
    for queue in QUEUES:
        world.secondary.add_queue(queue)
    world.primary.fail("limit", error, entity="orders")
    found, _, sizes = await verified(world, "orders")
    assert told(found)[1:] == [("entity", "orders", result)]
    assert (found.ready, len(found.problems), sizes) == (True, result == "warning", {})


@pytest.mark.parametrize(
    ("theirs", "ours", "warned"),
    [
        ([100, 200], [100], False),
        ([200, 99], [50, 100], True),
        ([ServerBusyError("busy"), 100], [101], True),
        ([ServerBusyError("busy")], [101], False),
        ([1], [ServerBusyError("busy")], False),
        ([], [5], False),
    ],
)
def test_the_smallest_queue_is_held_against_the_largest_entity(theirs: Any, ours: Any, warned: bool) -> None:
    found = list(application._of_sizes(theirs, ours))
    assert [(one.check, str(one.result)) for one in found] == [("size", "warning")] * warned


@virtual_time
async def test_what_is_asked_of_a_namespace_is_counted() -> None:
    world, usage = a_world(), Usage()
    messaging = CountedMessaging(world.primary.messaging(), usage)
    receiver = messaging.receiver("orders")
    world.primary.put("orders", compose(body=b"x", message_id="a", session_id="s"))
    [received] = await receiver.receive(1, wait_seconds=0.0)
    assert await receiver.receive(1, wait_seconds=0.0) == []
    await receiver.peek(1)
    await receiver.renew_lock(received)
    assert (usage.empty_receives, usage.browses, usage.renewals, usage.management_calls) == (1, 1, 1, 0)
    assert await receiver.session_ids() == ["s"]
    assert usage.browses == 1 + 2
    assert await messaging.receiver("invoices").session_ids() == []
    assert usage.browses == 1 + 2 + 1
    assert (receiver.source, messaging.host) == ("orders", world.primary.host)
    usage.add(Usage(1, 2, 3, 4))
    assert usage == Usage(1, 6, 4, 5)
    forecast = usage.forecast()
    assert (forecast.management_calls, forecast.message_operations) == (1, 15)
    await messaging.close()


@virtual_time
async def test_lists_of_the_administration_are_counted_by_their_pages() -> None:
    world, usage = a_world(), Usage()
    namespace: FakeNamespace = world.secondary
    admin = counted_admin(namespace.admin(), usage)
    for calls, queues in ((1, 0), (1, PAGE_ENTITIES - 1), (2, PAGE_ENTITIES)):
        for number in range(queues):
            if f"q{number:04}" not in namespace.entities:
                namespace.add_queue(f"q{number:04}")
        usage.management_calls = 0
        assert len([one async for one in admin.list_queues()]) == queues
        assert usage.management_calls == calls
    usage.management_calls = 0
    assert [one async for one in admin.list_topics()] == []
    assert await admin.get_queue("q0000") is not None
    assert (usage.management_calls, admin.control_plane) == (2, "data-plane")
    await admin.close()
    assert usage.management_calls == 2


def listed(kind: EntityKind, path: str) -> Any:
    made = object.__new__(Listed)
    object.__setattr__(made, "kind", kind)
    object.__setattr__(made, "path", path)
    return made


@pytest.mark.parametrize(
    ("queues", "subscriptions", "calls"),
    [
        (0, [], 2),
        (PAGE_ENTITIES, [], 2),
        (PAGE_ENTITIES + 1, [], 3),
        (0, [0, 1], 2 + 2),
        (0, [PAGE_ENTITIES, PAGE_ENTITIES + 1], 2 + 3),
    ],
)
def test_a_whole_list_costs_its_pages_and_those_of_each_topic(
    queues: int, subscriptions: list[int], calls: int
) -> None:
    entities = [listed(EntityKind.QUEUE, f"q{number}") for number in range(queues)]
    for number, of_topic in enumerate(subscriptions):
        entities.append(listed(EntityKind.TOPIC, f"t{number}"))
        entities += [listed(EntityKind.SUBSCRIPTION, f"t{number}/Subscriptions/s{one}") for one in range(of_topic)]
    assert calls_of_lists(entities) == calls
