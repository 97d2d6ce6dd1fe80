"""A drill through the public call, on embedded namespaces: it proves, and leaves no trace."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sbpair.connect import open_sides
from sbpair.core.entities import EntityFacts, EntityKind, EntitySettings
from sbpair.core.errors import AccessDeniedError, EntityNotFoundError, SbpairError, UsageError
from sbpair.core.inspection.diagnosis import Diagnosis
from sbpair.core.inspection.drilled import DRILL, LIVE_COUNT, NOT_REMOVED, Drilled, Mark, label_of, mark, plan_drill
from sbpair.core.message import Disposition
from sbpair.core.names import backlog_queue_path
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair, Side
from sbpair.core.rewrite import compose
from sbpair.emulator import EmulatorThread
from sbpair.emulator.server import NamespaceConfig
from sbpair.operations import DrainRequest, DrillRequest, drain, drill
from sbpair.ports import Sides, Topology
from sbpair.service import EntityStatus, Tier
from tests.operations.conftest import QUEUES, World, _access, backlog_queue

QUICK = DrillRequest(messages=16, examine=False)


def quick(pair: Pair, **options: Any) -> Pair:
    settings: dict[str, Any] = {"failover_interval_seconds": 0.0, "ping_interval_seconds": 1.0, **options}
    return replace(pair, entities=("orders",), options=replace(pair.options, **settings))


@pytest.fixture
async def sides(world: World) -> AsyncIterator[Sides]:
    async with open_sides(quick(world.pair)) as opened:
        yield opened


@dataclass
class During:
    """The usual outage, and something else at its beginning or in its middle, given the shadows."""

    sides: Sides
    act: Callable[[Sequence[str]], Awaitable[object]]
    when: str = "end"
    name: str = "of this test"

    async def begin(self, paths: Sequence[str]) -> None:
        await self._set(paths, EntityStatus.SEND_DISABLED, "begin")

    async def end(self, paths: Sequence[str]) -> None:
        await self._set(paths, EntityStatus.ACTIVE, "end")

    async def _set(self, paths: Sequence[str], status: EntityStatus, when: str) -> None:
        assert self.sides.topologies is not None
        if when == self.when:
            await self.act(paths)
        for path in paths:
            await self.sides.topologies[0].update(path, {"status": status})


def of(done: Drilled, check: str) -> list[Diagnosis]:
    return [row for row in done.findings if row.check == check]


def drill_entities(world: World) -> list[str]:
    spaces = [world.emulator.namespace(name) for name in ("contoso", "fabrikam")]
    found = [one.path for space in spaces for one in (*space.queues(), *space.topics())]
    return [path for path in found if DRILL in path]


async def make(sides: Sides, path: str, kind: EntityKind = EntityKind.QUEUE, **settings: Any) -> None:
    assert sides.topologies is not None
    await sides.topologies[0].create(kind, path, EntitySettings(**settings))


def counted(world: World, name: str = "contoso") -> dict[str, int]:
    space = world.emulator.namespace(name)
    return {queue.path: queue.counts().active for queue in space.queues()}


# What it proves and measures.


async def test_queue_session_queue_and_topic_come_back_and_nothing_is_left(world: World, tmp_path: Path) -> None:
    log = tmp_path / "operations.jsonl"
    async with open_sides(quick(world.pair, hold_sessions=True)) as sides:
        await make(sides, "by-session", requires_session=True, requires_duplicate_detection=True)
        await make(sides, "events", EntityKind.TOPIC)
        await make(sides, "events/Subscriptions/all", EntityKind.SUBSCRIPTION, requires_session=True)
        before = counted(world) | counted(world, "fabrikam")
        request = replace(QUICK, entities=("orders", "by-session", "events"), log=log, messages=40)
        done = await drill(sides, request)
    assert done.proved, done
    assert done.exit is Exit.OK, done
    assert [one.entity for one in done.entities] == ["orders", "by-session", "events"]
    for one in done.entities:
        assert one.proof.arrived == one.sent == 40
        assert one.diverted >= 20
        assert one.divert_seconds is not None and one.divert_seconds >= 0
        assert one.first_back_seconds is not None and one.first_back_seconds > 0
        assert one.back_per_second is not None and one.back_per_second > 0
        assert one.fail_back_seconds is not None
    assert not of(done, LIVE_COUNT)
    assert f"The counts of {done.live_entities} live entities are the same as before." in done.summary()
    assert not drill_entities(world)
    assert before == counted(world) | counted(world, "fabrikam")
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    created = {
        line["entity"] for line in lines if line["action"] == "create" and "/Subscriptions/" not in line["entity"]
    }
    assert created == {line["entity"] for line in lines if line["action"] == "delete"}
    assert len(created) == 3 + QUEUES
    assert all(path.startswith(f"{DRILL}-") for path in created)


async def test_sessions_that_are_not_held_are_overtaken_and_it_says_so(world: World) -> None:
    async with open_sides(quick(world.pair)) as sides:
        await make(sides, "by-session", requires_session=True)
        done = await drill(sides, replace(QUICK, entities=("by-session",)))
    (one,) = done.entities
    assert one.overtaken > 0
    assert one.verdict == "proved"
    assert done.exit is Exit.FINDINGS
    assert "sessions in order" not in done.summary()
    assert any("hold_sessions: true" in note for note in done.notes())


async def test_a_message_that_somebody_takes_is_missing(sides: Sides, world: World) -> None:
    async def steal(paths: Sequence[str]) -> None:
        for queue in range(QUEUES):
            receiver = sides.secondary.receiver(backlog_queue_path(paths[0].split("/")[0], queue))
            found = await receiver.receive(1, wait_seconds=1)
            for message in found:
                await receiver.settle(message, Disposition.COMPLETE)
            await receiver.close()
            if found:
                return

    done = await drill(sides, replace(QUICK, outage=During(sides, steal)))
    (one,) = done.entities
    assert len(one.proof.missing) == 1
    assert (done.proved, done.exit) == (False, Exit.FAILED)
    assert done.summary().startswith("NOT PROVED: orders (of this test).")
    assert "1 missing" in one.sentence
    assert not drill_entities(world)


async def test_an_outage_that_diverts_nothing_proves_nothing(sides: Sides) -> None:
    class Nothing:
        name = "nothing"

        async def begin(self, paths: Sequence[str]) -> None: ...

        async def end(self, paths: Sequence[str]) -> None: ...

    done = await drill(sides, replace(QUICK, outage=Nothing()))
    (one,) = done.entities
    assert one.proof.holds
    assert (one.diverted, one.verdict, done.exit) == (0, "failed", Exit.FAILED)


async def test_what_would_fail_in_earnest_is_named(sides: Sides, world: World) -> None:
    world.emulator.namespace("fabrikam").delete_queue(backlog_queue(1))
    done = await drill(sides, replace(QUICK, examine=True))
    assert done.proved
    assert done.exit is Exit.FINDINGS
    assert any(backlog_queue(1) in f"{row.subject} {row.detail}" for row in done.findings)
    assert "would be wrong in earnest" in done.summary()


async def test_a_dry_run_creates_nothing_and_tells_all(sides: Sides, world: World, tmp_path: Path) -> None:
    state = tmp_path / "state"
    shown = await drill(sides, replace(QUICK, dry_run=True, state=state, examine=True))
    assert not drill_entities(world)
    assert shown.exit is Exit.FINDINGS
    assert shown.plan is not None and shown.forecast is not None
    assert {one.side for one in shown.created} == set(Side)
    assert "Nothing was changed." in shown.summary()
    assert state.read_bytes() == b""
    done = await drill(sides, replace(QUICK, run=shown.plan.run, state=state))
    assert [one.path for one in done.created] == [one.path for one in shown.created]
    assert state.read_bytes() == b""


# Beside live traffic.


async def test_a_drain_of_the_user_that_runs_meanwhile_moves_its_own_messages_only(sides: Sides, world: World) -> None:
    await world.strand(sides, "orders", 7)

    async def drains(_: Sequence[str]) -> None:
        async with open_sides(world.pair) as own:
            result = await drain(own, DrainRequest())
        assert result.report.forwarded == 7
        assert result.confirmed_empty

    done = await drill(sides, replace(QUICK, outage=During(sides, drains)))
    assert done.proved, done
    assert world.waiting("orders") == 7
    assert {(row.subject, row.detail) for row in of(done, LIVE_COUNT)} == {
        ("primary orders", "nothing before the drill, 7 active after it"),
        (f"secondary {backlog_queue(0)}", "7 active before the drill, nothing after it"),
    }
    assert done.exit is Exit.OK
    assert "are the same as before" not in done.summary()
    assert any("primary orders: nothing before the drill, 7 active after it." in note for note in done.notes())


async def test_live_messages_stay_as_they_are(sides: Sides, world: World) -> None:
    sender = sides.primary.sender("orders")
    await sender.send([compose(body=f"{n}", message_id=f"live{n}") for n in range(5)], timeout_seconds=30)
    await sender.close()
    await world.strand(sides, "orders", 3)
    done = await drill(sides, QUICK)
    assert done.proved
    assert not of(done, LIVE_COUNT)
    assert (world.waiting("orders"), world.waiting(backlog_queue(0), "fabrikam")) == (5, 3)


# Stopped and killed.


@pytest.mark.parametrize("when", ["begin", "end"])
async def test_a_stop_removes_what_was_created(sides: Sides, world: World, when: str, tmp_path: Path) -> None:
    stop = asyncio.Event()

    async def stops(_: Sequence[str]) -> None:
        assert len(drill_entities(world)) == 1 + QUEUES
        stop.set()
        await asyncio.sleep(60)

    state = tmp_path / "state"
    request = replace(QUICK, outage=During(sides, stops, when), state=state)
    done = await drill(sides, request, stop=stop)
    assert done.stopped
    assert not done.proved
    assert "All that it created is removed." in done.summary()
    assert not drill_entities(world)
    assert state.read_bytes() == b""


async def test_a_drill_that_takes_too_long_ends_and_cleans_up(sides: Sides, world: World) -> None:
    request = replace(QUICK, outage=During(sides, lambda _: asyncio.sleep(600)), limit_seconds=2.0)
    with pytest.raises(SbpairError, match="What the drill had created is removed"):
        await drill(sides, request)
    assert not drill_entities(world)


async def test_a_namespace_that_refuses_an_entity_leaves_none_of_the_others(sides: Sides, world: World) -> None:
    world.emulator.faults("fabrikam").add("http-status:status=400,entity=*transfer/2")
    with pytest.raises(SbpairError, match=r"removed|Not removed"):
        await drill(sides, QUICK)
    world.emulator.faults("fabrikam").clear()
    assert not drill_entities(world)


class Killed(BaseException): ...


class _OfADeadProcess:
    """A topology that deletes nothing any more."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    async def delete(self, path: str) -> None:
        raise Killed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._topology, name)


async def kill(sides: Sides, world: World, state: Path | None, **more: Any) -> set[str]:
    """What a drill leaves that ends in the middle of its outage."""
    assert sides.topologies is not None

    async def die(_: Sequence[str]) -> None:
        raise Killed

    topologies: Any = tuple(map(_OfADeadProcess, sides.topologies))
    with pytest.raises(Killed):
        await drill(
            replace(sides, topologies=topologies), replace(QUICK, state=state, outage=During(sides, die), **more)
        )
    left = drill_entities(world)
    assert len(left) == 1 + QUEUES
    return set(left)


async def test_the_next_drill_removes_what_a_killed_one_of_this_machine_left(
    sides: Sides, world: World, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    left = await kill(sides, world, state)
    shown = await drill(sides, replace(QUICK, state=state, dry_run=True))
    assert set(shown.cleaned) == left == set(drill_entities(world))
    done = await drill(sides, replace(QUICK, state=state))
    assert set(done.cleaned) == left
    assert done.proved
    assert done.exit is Exit.OK
    assert not drill_entities(world)


async def test_what_may_belong_to_a_running_drill_is_not_touched(sides: Sides, world: World, tmp_path: Path) -> None:
    left = await kill(sides, world, tmp_path / "of another machine")
    with pytest.raises(SbpairError, match="may be running until") as refused:
        await drill(sides, replace(QUICK, state=tmp_path / "state"))
    assert "Nothing was created." in refused.value.message
    assert set(drill_entities(world)) == left


async def test_when_its_time_is_over_anybody_may_remove_it(sides: Sides, world: World) -> None:
    left = await kill(sides, world, None)
    assert sides.topologies is not None
    for topology in sides.topologies:
        for facts in await topology.entities(rules=False):
            if (found := Mark.of(facts)) is not None:
                await topology.update(facts.path, {"user_metadata": mark(found.run, time.time() - 1)})
    done = await drill(sides, QUICK)
    assert set(done.cleaned) == left
    assert not drill_entities(world)


async def test_an_entity_that_holds_a_strangers_message_stays(sides: Sides, world: World, tmp_path: Path) -> None:
    state = tmp_path / "state"
    await kill(sides, world, state)
    (shadow,) = (path for path in drill_entities(world) if path.endswith("/orders"))
    assert sides.topologies is not None
    await sides.topologies[0].update(shadow, {"status": EntityStatus.ACTIVE})
    sender = sides.primary.sender(shadow)
    await sender.send([compose(body="mine", message_id="a-strangers")], timeout_seconds=30)
    await sender.close()
    done = await drill(sides, replace(QUICK, state=state))
    assert done.proved
    assert done.exit is Exit.PARTIAL
    (row,) = of(done, NOT_REMOVED)
    assert (row.subject, "(a-strangers)" in row.detail) == (f"primary {shadow}", True)
    assert drill_entities(world) == [shadow]
    # Not forgotten: once it is empty, the next drill removes it.
    receiver = sides.primary.receiver(shadow)
    for message in await receiver.receive(100, wait_seconds=5):
        await receiver.settle(message, Disposition.COMPLETE)
    await receiver.close()
    done = await drill(sides, replace(QUICK, state=state))
    assert done.cleaned == (shadow,)
    assert not drill_entities(world)


async def test_a_name_without_the_mark_is_somebody_elses(sides: Sides, world: World) -> None:
    name = f"{label_of('20260101-0000-abcdef')}/orders"
    world.emulator.namespace("contoso").create_queue(name)
    done = await drill(sides, QUICK)
    assert done.proved
    assert done.cleaned == ()
    assert drill_entities(world) == [name]
    assert done.live_entities == 2 + 1 + QUEUES


async def test_one_drill_at_a_time_on_a_machine(sides: Sides, tmp_path: Path) -> None:
    request = replace(QUICK, state=tmp_path / "state")

    async def second(_: Sequence[str]) -> None:
        with pytest.raises(SbpairError, match="Another drill of this pair runs on this machine"):
            await drill(sides, request)

    done = await drill(sides, replace(request, outage=During(sides, second)))
    assert done.proved


# What it refuses.


async def test_an_entity_that_does_not_exist_is_named_before_anything_is_created(sides: Sides, world: World) -> None:
    with pytest.raises(EntityNotFoundError, match="no queue or topic nowhere"):
        await drill(sides, replace(QUICK, entities=("orders", "nowhere")))
    assert not drill_entities(world)


async def test_without_entities_there_is_nothing_to_rehearse(world: World) -> None:
    async with open_sides(world.pair) as sides:
        with pytest.raises(UsageError, match="names no entities"):
            await drill(sides, QUICK)
        with pytest.raises(UsageError, match="open_sides"):
            await drill(replace(sides, topologies=None), QUICK)


async def test_without_manage_it_is_denied(sides: Sides, world: World) -> None:
    world.emulator.faults("fabrikam").add("unauthorized:operation=http")
    with pytest.raises(AccessDeniedError):
        await drill(sides, QUICK)


# Settings, marks, history.


@pytest.mark.parametrize("tier", [Tier.BASIC, Tier.PREMIUM])
async def test_it_works_on_every_tier(tier: Tier) -> None:
    names = ("contoso", "fabrikam")
    with EmulatorThread([NamespaceConfig(name, tier) for name in names]) as emulator:
        emulator.namespace("contoso").create_queue("orders")
        accesses = [_access(emulator, name) for name in names]
        async with open_sides(quick(Pair("tier", *accesses))) as sides:
            done = await drill(sides, QUICK)
    assert done.proved, [one.sentence for one in done.entities]
    idle = {one.settings.auto_delete_on_idle_seconds for one in done.created}
    assert (None in idle) == (tier is Tier.BASIC)


async def test_a_partitioned_entity_has_a_partitioned_shadow(sides: Sides, world: World) -> None:
    await make(sides, "parts", enable_partitioning=True)
    done = await drill(sides, replace(QUICK, entities=("parts",)))
    assert done.proved, done
    assert done.created[0].settings.enable_partitioning


def test_a_shadow_has_the_settings_that_matter_and_none_that_reach_others() -> None:
    settings = EntitySettings(
        requires_session=True,
        requires_duplicate_detection=True,
        lock_duration_seconds=17,
        max_size_in_megabytes=2048,
        enable_partitioning=True,
        forward_to="elsewhere",
        forward_dead_lettered_messages_to="elsewhere",
        status=EntityStatus.DISABLED,
        default_message_time_to_live_seconds=5.0,
    )
    live = EntityFacts(EntityKind.QUEUE, "a" * 255, settings)
    queues = ("c/x-servicebus-transfer/0", "c/x-servicebus-transfer/1")
    both = {
        (Side.SECONDARY, queues[0]): EntityFacts(EntityKind.QUEUE, queues[0], EntitySettings(lock_duration_seconds=9))
    }
    plan = plan_drill("r", 1e9, both, [live], queues, dict.fromkeys(Side, Tier.STANDARD), 8)
    shadow, first, second = (one.settings for one in plan.shadows)
    assert plan.shadows[0].path == f"{label_of('r')}/0"
    assert (shadow.requires_session, shadow.requires_duplicate_detection, shadow.lock_duration_seconds) == (
        True,
        True,
        17,
    )
    assert (shadow.max_size_in_megabytes, shadow.enable_partitioning) == (2048, True)
    assert (shadow.forward_to, shadow.forward_dead_lettered_messages_to) == (None, None)
    assert shadow.status is EntityStatus.ACTIVE
    assert shadow.default_message_time_to_live_seconds is None
    assert first.lock_duration_seconds == 9
    assert second.max_size_in_megabytes == 5120
    assert all(one.settings.user_metadata == mark("r", 1e9) for one in plan.shadows)


@pytest.mark.parametrize(
    ("path", "metadata", "owned"),
    [
        (f"{DRILL}-r1/orders", mark("r1", 1e9), True),
        (f"{DRILL}-r2/orders", mark("r1", 1e9), False),
        ("orders", mark("r1", 1e9), False),
        (f"{DRILL}-r1", mark("r1", 1e9), False),
        (f"{DRILL}-r1/orders", None, False),
        (f"{DRILL}-r1/orders", "sbpair-drill r1", False),
        (f"{DRILL}-r1/orders", mark("r1", 1e9).replace("2001", "9999-99"), False),
    ],
)
def test_path_and_metadata_have_to_agree(path: str, metadata: str | None, owned: bool) -> None:
    facts = EntityFacts(EntityKind.QUEUE, path, EntitySettings(user_metadata=metadata))
    assert (Mark.of(facts) is not None) == owned
    if owned:
        assert Mark.of(facts) == Mark("r1", 1e9)


async def test_a_history_tells_the_trend(sides: Sides, tmp_path: Path) -> None:
    request = replace(QUICK, history=tmp_path / "drills")
    assert (await drill(sides, request)).earlier == ()
    done = await drill(sides, request)
    assert [line.entity for line in done.earlier] == ["orders"]
    assert any("the median was" in note and "1 earlier drill" in note for note in done.notes())
    (file,) = (tmp_path / "drills").iterdir()
    assert len(file.read_text(encoding="utf-8").splitlines()) == 2
    file.write_text("no history\n", encoding="utf-8")
    with pytest.raises(UsageError, match="is no history of drills"):
        await drill(sides, request)
