"""One namespace with all its entities: what is asked of which, what it costs, and what could not be read."""

from dataclasses import replace
from typing import Any

import pytest

from sbpair.core.entities import Counts, EntityFacts, EntityKind, EntitySettings, EntityStatus, QueueFacts, RuleFacts
from sbpair.core.errors import AuthenticationFailedError, ConnectionLostError, ServerBusyError, ServiceError
from sbpair.core.events import GatherProgress
from sbpair.core.inspection.snapshot import Peeked
from sbpair.core.names import by_path
from sbpair.core.pairing import backlog_settings
from sbpair.runtime.inspection import gather
from sbpair.runtime.inspection.gather import gather_namespace
from sbpair.service import PAGE_ENTITIES
from tests.fakes import FakeClock, FakeNamespace, RecordingObserver, virtual_time
from tests.runtime.failover.pairs import a_pair

RULE = RuleFacts("$Default", sql="1=1")


def entity(kind: EntityKind, path: str, active: int = 0, status: EntityStatus = EntityStatus.ACTIVE) -> EntityFacts:
    return EntityFacts(kind, path, EntitySettings(status=status), Counts(active=active))


class Topology:
    """What a namespace has; its rules cannot be read if that is said."""

    def __init__(self, *entities: EntityFacts) -> None:
        self.found = list(entities)
        self.error: ServiceError | None = None
        self.rules_error: ServiceError | None = None
        self.asked: list[str] = []

    async def entities(self, *, rules: bool) -> list[EntityFacts]:
        assert not rules, "those are read one by one, as far as credits go"
        if self.error is not None:
            raise self.error
        return self.found

    async def rules(self, subscription: EntityFacts) -> EntityFacts:
        self.asked.append(subscription.path)
        if self.rules_error is not None:
            raise self.rules_error
        return replace(subscription, rules=(RULE,))


class World:
    def __init__(self, *entities: EntityFacts) -> None:
        self.namespace = FakeNamespace("contoso", FakeClock())
        self.topology, self.observer, self.peeked = Topology(*entities), RecordingObserver(), list[str]()
        self.peek_error: ServiceError | None = None

    async def gather(self) -> Any:
        async def peek(path: str) -> Peeked:
            self.peeked.append(path)
            if self.peek_error is not None:
                raise self.peek_error
            return Peeked(True, False, 5.0)

        return await gather_namespace(
            a_pair().primary,
            admin=self.namespace.admin(),
            topology=self.topology,  # type: ignore[arg-type]
            peek=peek,
            clock=self.namespace.clock,
            observer=self.observer,
        )


ENTITIES = (
    entity(EntityKind.QUEUE, "empty"),
    entity(EntityKind.QUEUE, "full", 3),
    entity(EntityKind.QUEUE, "closed", 3, EntityStatus.RECEIVE_DISABLED),
    entity(EntityKind.QUEUE, "sends nothing", 3, EntityStatus.SEND_DISABLED),
    entity(EntityKind.TOPIC, "news", 3),
    entity(EntityKind.SUBSCRIPTION, "news/Subscriptions/all", 2),
)


@virtual_time
async def test_rules_and_the_first_message_are_asked_for_where_there_are_some() -> None:
    world = World(*ENTITIES)
    snapshot, found = await world.gather()
    assert sorted(world.peeked) == ["full", "news/Subscriptions/all", "sends nothing"]
    assert world.topology.asked == ["news/Subscriptions/all"]
    assert [one.facts.path for one in found] == [one.path for one in ENTITIES]
    assert [one.oldest_enqueued_at for one in found] == [None, 5.0, None, 5.0, None, 5.0]
    assert found[-1].facts.rules == (RULE,)
    calls = snapshot.primary.calls
    assert (calls.namespace_reads, calls.list_pages, calls.gets, calls.peeks) == (1, 2 + 1, 1, 3)
    assert (snapshot.primary.unread, snapshot.primary.label) == ((), "contoso")
    told = world.observer.of(GatherProgress)
    assert [(one.done, one.total) for one in told if one.stage == "reading entities"] == [(n, 6) for n in range(1, 7)]


@virtual_time
async def test_a_list_costs_its_pages_and_one_for_each_topic() -> None:
    queues = [entity(EntityKind.QUEUE, f"q{number}") for number in range(PAGE_ENTITIES - 1)]
    snapshot, _ = await World(*queues, entity(EntityKind.TOPIC, "news")).gather()
    assert snapshot.primary.calls.list_pages == 1 + 2 + 1
    subscriptions = [entity(EntityKind.SUBSCRIPTION, f"news/Subscriptions/{n}") for n in range(PAGE_ENTITIES)]
    snapshot, _ = await World(*queues, entity(EntityKind.TOPIC, "news"), *subscriptions).gather()
    assert snapshot.primary.calls.list_pages == 2 + 2 + 1


@virtual_time
async def test_what_could_not_be_read_is_recorded_and_the_rest_is_told() -> None:
    world = World(*ENTITIES)
    world.topology.rules_error = world.peek_error = ConnectionLostError("down")
    snapshot, found = await world.gather()
    assert sorted(one.subject for one in snapshot.primary.unread) == [
        *("messages of full", "messages of news/Subscriptions/all", "messages of sends nothing"),
        "rules of news/Subscriptions/all",
    ]
    assert [one.oldest_enqueued_at for one in found] == [None] * 6
    world = World(*ENTITIES)
    world.topology.error = ServerBusyError("busy")
    snapshot, found = await world.gather()
    assert (found, [one.subject for one in snapshot.primary.unread]) == (None, ["entities"])


@pytest.mark.parametrize(
    ("error", "asked"),
    [(ConnectionLostError("down"), False), (AuthenticationFailedError("who"), False), (ServiceError("odd"), True)],
)
def test_a_namespace_that_does_not_know_us_is_asked_once(error: ServiceError, asked: bool) -> None:
    @virtual_time
    async def story() -> None:
        world = World(*ENTITIES)
        world.namespace.fail("admin", error)
        snapshot, found = await world.gather()
        assert (found is not None) is asked
        subjects = [one.subject for one in snapshot.primary.unread]
        assert subjects == (["namespace"] if asked else ["namespace", "entities"])
        assert {one.error_code for one in snapshot.primary.unread} == {error.code}

    story()


def test_a_queue_is_doubtful_if_the_list_would_make_a_finding_of_it() -> None:
    pair = a_pair(queues=2)
    first, second = pair.backlog_paths()

    def seen(path: str, **settings: Any) -> Any:
        return gather.QueueSeen(QueueFacts(path, replace(backlog_settings(None), **settings)))

    surplus = first[:-1] + "7"
    fine = by_path([seen(first), seen(second)])
    assert gather._doubtful(fine, pair, None) == []
    assert gather._doubtful(by_path([seen(first)]), pair, None) == [second]
    assert gather._doubtful(by_path([*fine.values(), seen(surplus), seen("other")]), pair, None) == [surplus]
    odd = by_path([*fine.values(), seen(second, status=EntityStatus.DISABLED)])
    assert gather._doubtful(odd, pair, None) == [second]
    odd = by_path([*fine.values(), seen(first, lock_duration_seconds=7.0)])
    assert gather._doubtful(odd, pair, None) == [first]
    assert gather._named_for(fine[first.upper()], "contoso")
    assert not gather._named_for(fine[first], "other")
    assert not gather._named_for(seen("other"), "contoso")
