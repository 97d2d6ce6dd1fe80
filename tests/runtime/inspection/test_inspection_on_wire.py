"""Inspection over real HTTP: the real adapters against an embedded namespace whose lists have gaps and counts of 0."""

import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from sbpair.azure import make_admin, make_messaging
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.errors import StalePlanError
from sbpair.core.inspection.audit import Severity, run
from sbpair.core.inspection.plan import plan_cleanup, plan_provision
from sbpair.core.inspection.snapshot import Snapshot
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair, SendAvailabilityOptions
from sbpair.core.rewrite import compose
from sbpair.emulator import Emulator
from sbpair.emulator.entities import QueueDescription
from sbpair.runtime.browse import peeking
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.inspection.apply import Applying, apply, check_fresh
from sbpair.runtime.inspection.gather import GatherScope, gather

FAST = Applying(credits_per_second=None, pause_seconds=0.05)


@dataclass
class Wire:
    """A running pair with clients."""

    emulator: Emulator
    pair: Pair
    primary: Any
    secondary: Any
    messages: Any
    clock: LoopClock

    async def gather(self, pair: Pair | None = None, **options: Any) -> Snapshot:
        return await gather(
            pair or self.pair,
            primary=self.primary,
            secondary=self.secondary,
            clock=self.clock,
            credits_per_second=None,
            **options,
        )

    def of(self, count: int) -> Pair:
        return replace(self.pair, options=SendAvailabilityOptions(backlog_queue_count=count))

    def fill(self, count: int) -> None:
        """Documented backlog queues, put there without a client."""
        namespace = self.emulator.namespace("secondary-ns")
        for path in self.of(count).backlog_paths():
            namespace.create_queue(
                path,
                QueueDescription(
                    max_size_in_megabytes=5120,
                    max_delivery_count=2_147_483_647,
                    dead_lettering_on_message_expiration=True,
                ),
            )

    def paths(self) -> set[str]:
        return {queue.path for queue in self.emulator.namespace("secondary-ns").queues()}


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with Emulator(["primary-ns", "secondary-ns"]) as emulator:

        def access(name: str) -> NamespaceAccess:
            text = emulator.connection_string(name)
            return NamespaceAccess(
                label=name,
                host=host_of(text),
                auth=AuthMethod.CONNECTION_STRING,
                connection_string=Secret(text),
                ca_file=str(emulator.ca_path),
            )

        pair = Pair("orders", access("primary-ns"), access("secondary-ns"))
        clients = make_admin(pair.primary), make_admin(pair.secondary), make_messaging(pair.secondary)
        yield Wire(emulator, pair, *clients, LoopClock())
        for client in clients:
            await client.close()


async def test_provisioned_audited_and_cleaned_up(wire: Wire) -> None:
    plan = plan_provision(await wire.gather(scope=GatherScope.BACKLOG), wire.pair)
    report = await apply(plan, admin=wire.secondary, clock=wire.clock, how=FAST)
    assert (len(report.outcomes), report.exit) == (10, Exit.OK)

    snapshot = await wire.gather(peek=peeking(wire.messages))
    assert run(snapshot, wire.pair).at_least(Severity.WARNING) == ()
    assert not plan_provision(snapshot, wire.pair, update=True).steps

    smaller = wire.of(8)
    cleanup = plan_cleanup(await wire.gather(smaller), smaller)
    await check_fresh(cleanup, admin=wire.secondary, clock=wire.clock)
    cleaned = await apply(cleanup, admin=wire.secondary, clock=wire.clock, peek=peeking(wire.messages), how=FAST)
    assert cleaned.exit is Exit.OK
    assert wire.paths() == set(smaller.backlog_paths())


@pytest.mark.parametrize("count", [350, 3000])
async def test_lists_with_gaps_give_no_false_finding_and_no_wrong_deletion(wire: Wire, count: int) -> None:
    """One entry is missing on every page, also of 3,000 queues: what was not listed is asked for before it counts."""
    wire.fill(count)
    wire.emulator.faults("secondary-ns").add("list-gap")
    pair = wire.of(count - 1)
    snapshot = await wire.gather(pair)
    assert [one.code for one in run(snapshot, pair).at_least(Severity.WARNING)] == ["SBP002"]
    pages = math.ceil(count / 100) + 1
    assert snapshot.secondary.calls.gets > 0
    assert snapshot.secondary.calls.list_pages <= pages
    assert snapshot.secondary.calls.gets <= 2 * pages + 2
    report = await apply(plan_cleanup(snapshot, pair), admin=wire.secondary, clock=wire.clock, how=FAST)
    assert report.exit is Exit.OK
    assert wire.paths() == set(pair.backlog_paths())


async def test_a_queue_changed_and_changed_back_makes_a_plan_stale(wire: Wire) -> None:
    """The second change restores what the plan saw, so that only the time of the update tells of it."""
    wire.fill(4)
    extra = wire.of(4).backlog_paths()[-1]
    pair = wire.of(3)
    plan = plan_cleanup(await wire.gather(pair), pair)
    before = await wire.secondary.get_queue(extra)
    await wire.secondary.update_queue(extra, replace(before.settings, max_delivery_count=7))
    after = await wire.secondary.update_queue(extra, before.settings)
    assert after.settings == before.settings
    assert after.updated_at > before.updated_at
    with pytest.raises(StalePlanError, match=f"{extra} was changed"):
        await check_fresh(plan, admin=wire.secondary, clock=wire.clock)
    report = await apply(plan, admin=wire.secondary, clock=wire.clock, how=FAST)
    assert report.outcomes[0].detail == "it was changed since the plan was made"
    assert extra in wire.paths()


async def test_a_queue_made_anew_within_a_second_makes_a_plan_stale(wire: Wire) -> None:
    wire.fill(4)
    extra = wire.of(4).backlog_paths()[-1]
    pair = wire.of(3)
    plan = plan_cleanup(await wire.gather(pair), pair)
    found = (await wire.secondary.get_queue(extra)).settings
    settings = replace(found, max_message_size_in_kilobytes=None)  # not to be set on Standard
    await wire.secondary.delete_queue(extra)
    await wire.secondary.create_queue(extra, settings)
    with pytest.raises(StalePlanError, match=f"{extra} was changed"):
        await check_fresh(plan, admin=wire.secondary, clock=wire.clock)


async def test_a_count_of_zero_deletes_no_message(wire: Wire) -> None:
    wire.fill(4)
    extra = wire.of(4).backlog_paths()[-1]
    sender = wire.messages.sender(extra)
    await sender.send([compose(body=b"precious", message_id="1")], timeout_seconds=10)
    await sender.close()
    wire.emulator.faults("secondary-ns").add("zero-counts")
    pair, peek = wire.of(3), peeking(wire.messages)
    blind = plan_cleanup(await wire.gather(pair), pair)
    assert [step.kind for step in blind.steps] == ["delete"]
    report = await apply(blind, admin=wire.secondary, clock=wire.clock, peek=peek, how=FAST)
    assert report.outcomes[0].detail == "a browse found messages that the counts do not show"
    assert extra in wire.paths()
    seeing = plan_cleanup(await wire.gather(pair, peek=peek), pair)
    assert [step.kind for step in seeing.steps] == ["skip"]
