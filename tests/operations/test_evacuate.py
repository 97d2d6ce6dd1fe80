"""An evacuation as a call: what a dry run shows, the proof at the end, what is refused, and what a stop leaves."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sbpair.connect import open_ends
from sbpair.core.entities import EntityKind, EntitySettings, RuleFacts
from sbpair.core.errors import InterruptedWorkError, StalePlanError, UsageError
from sbpair.core.events import EntityCreated, Event, Forwarded
from sbpair.core.inspection.contents import Action
from sbpair.core.outcome import Exit
from sbpair.operations import Ends, EvacuateRequest, WrittenPlan, evacuate
from tests.fakes import RecordingObserver
from tests.operations.conftest import World
from tests.operations.test_entities import dead_lettered, sent


@pytest.fixture
async def ends(world: World) -> AsyncIterator[Ends]:
    async with open_ends(world.pair.primary, world.pair.secondary) as opened:
        yield opened


@pytest.fixture
def request_(tmp_path: Path) -> EvacuateRequest:
    return EvacuateRequest(tmp_path / "evacuated.jsonl", log=tmp_path / "state" / "operations.jsonl")


async def test_everything_goes_and_the_source_is_proven_empty(
    world: World, ends: Ends, request_: EvacuateRequest
) -> None:
    await dead_lettered(ends, "orders", ["Broken"])
    await sent(ends, "orders", 3, first=1)
    planned = await evacuate(ends, replace(request_, dry_run=True))
    assert (planned.exit, planned.plan.creates, planned.plan.messages) == (Exit.FINDINGS, 2, 4)
    assert planned.held == ("evacuated/contoso/queues/orders/dead-letters",)
    assert {step.action for step in planned.entities} == {Action.CREATE}
    assert not request_.ledger.exists()
    observer = RecordingObserver()
    done = await evacuate(ends, replace(request_, plan=planned.plan), observer=observer)
    assert (done.source_empty, done.exit, done.left) == (True, Exit.OK, ())
    assert sorted((move.mailbox, move.moved) for move in done.moves) == [("orders", 3), ("orders/$deadletterqueue", 1)]
    assert world.waiting("orders", "fabrikam") == 3
    assert world.waiting("evacuated/contoso/queues/orders/dead-letters", "fabrikam") == 1
    assert sorted(event.entity for event in observer.of(EntityCreated)) == ["invoices", "orders"]
    assert request_.log is not None
    logged = [json.loads(line) for line in request_.log.read_text().splitlines()]
    assert sorted((line["command"], line["entity"]) for line in logged) == [
        ("evacuate", "invoices"),
        ("evacuate", "orders"),
    ]
    assert "contoso is empty: every queue, topic and subscription was counted and browsed." in done.closing("")


async def test_subscriptions_have_the_rules_there_that_they_have_here(
    world: World, ends: Ends, request_: EvacuateRequest
) -> None:
    assert ends.topology is not None and ends.target_topology is not None
    await ends.topology.create(EntityKind.TOPIC, "news", EntitySettings())
    for name in ("all", "german"):
        await ends.topology.create(EntityKind.SUBSCRIPTION, f"news/Subscriptions/{name}", EntitySettings())
    await ends.topology.create_rule("news/Subscriptions/german", RuleFacts("de", "country = 'DE'"))
    await ends.topology.delete_rule("news/Subscriptions/german", "$Default")
    assert (await evacuate(ends, request_)).source_empty
    there = [await ends.target_topology.entity(f"news/Subscriptions/{name}") for name in ("all", "german")]
    assert [[rule.name for rule in one.rules] for one in there if one is not None] == [["$Default"], ["de"]]


async def test_what_is_left_out_is_said_and_stays(world: World, ends: Ends, request_: EvacuateRequest) -> None:
    await sent(ends, "orders", 2)
    await sent(ends, "invoices", 1)
    done = await evacuate(ends, replace(request_, without=("ORD*",)))
    assert (done.exit, done.source_empty, done.only_left_out) == (Exit.OK, False, True)
    assert [(there.entity, there.messages, there.reason) for there in done.left] == [("orders", 2, "excluded")]
    assert (world.waiting("orders"), world.waiting("invoices", "fabrikam")) == (2, 1)


async def test_a_conflict_is_refused_before_anything_is_changed(
    world: World, ends: Ends, request_: EvacuateRequest
) -> None:
    await sent(ends, "orders", 1)
    world.emulator.namespace("fabrikam").create_topic("orders")
    with pytest.raises(UsageError, match=r"1 entity of contoso cannot go to fabrikam\. .* Nothing was changed"):
        await evacuate(ends, request_)
    assert world.emulator.namespace("fabrikam").get_queue("invoices") is None
    async with open_ends(world.pair.primary) as same:
        with pytest.raises(UsageError, match="FROM and TO are both contoso"):
            await evacuate(same, request_)


async def test_a_plan_file_is_refused_once_an_entity_has_changed(
    world: World, ends: Ends, request_: EvacuateRequest
) -> None:
    hosts = world.pair.primary.host, world.pair.secondary.host
    planned = await evacuate(ends, replace(request_, without=("invoices",), dry_run=True))
    document = json.loads(json.dumps(planned.plan.to_file(*hosts)))
    written = WrittenPlan.parse("plan.json", [document], *hosts)
    assert written.without == ("invoices",)
    world.emulator.namespace("contoso").create_queue("later")
    with pytest.raises(StalePlanError, match=r"plan\.json is stale: .* about later"):
        await evacuate(ends, replace(request_, written=written))
    with pytest.raises(UsageError, match="is a plan from"):
        WrittenPlan.parse("plan.json", [document], *reversed(hosts))


async def test_a_stopped_evacuation_says_what_was_done_and_the_next_one_goes_on(
    world: World, ends: Ends, request_: EvacuateRequest
) -> None:
    await sent(ends, "orders", 40)
    stop = asyncio.Event()

    class StopsAfterTheFirst:
        def notify(self, event: Event) -> None:
            if isinstance(event, Forwarded):
                stop.set()

    slow = replace(request_, rate_per_second=5.0, concurrency=1)
    stopped = await evacuate(ends, slow, observer=StopsAfterTheFirst(), stop=stop)
    moved = stopped.moves[0].moved
    assert (stopped.stopped, stopped.source_empty, stopped.exit) == (True, False, Exit.PARTIAL)
    assert 0 < moved == world.waiting("orders", "fabrikam") < 40
    with pytest.raises(InterruptedWorkError, match="Nothing was changed"):
        await evacuate(ends, request_, stop=stop)
    done = await evacuate(ends, request_)
    assert (done.source_empty, done.moves[0].accepted, world.waiting("orders", "fabrikam")) == (True, 40, 40)
