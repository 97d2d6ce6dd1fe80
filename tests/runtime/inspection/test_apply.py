"""Applying plans: concurrent runs agree, nothing with messages is deleted, every queue has its outcome."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from sbpair.core.entities import Counts, QueueFacts, QueueSettings
from sbpair.core.errors import (
    ArgumentRefusedError,
    ConflictError,
    ConnectionLostError,
    OperationTimeoutError,
    ServerBusyError,
    StalePlanError,
    UnauthorizedError,
)
from sbpair.core.events import StepDone
from sbpair.core.inspection.plan import Expected, Plan, Step, StepKind, plan_cleanup, plan_provision
from sbpair.core.outcome import Exit, Report, Result
from sbpair.core.pairing import DOCUMENTED_SETTINGS
from sbpair.core.rewrite import compose
from sbpair.runtime.browse import peeking
from sbpair.runtime.inspection.apply import BUSY_PAUSE_SECONDS, Applying, _staleness, apply, check_fresh
from sbpair.runtime.inspection.gather import gather
from tests.core.snapshots import a_pair, path
from tests.fakes import EPOCH, FakeClock, FakeNamespace, RecordingObserver, virtual_time
from tests.runtime.inspection.admin_fake import Lies, LyingAdmin

MESSAGE = compose(body=b"hello", message_id="1")


class Bench:
    """A secondary with the backlog queues given, and a way to plan for it and apply to it."""

    def __init__(self, *indices: int, count: int = 3, **pair: Any) -> None:
        self.clock = FakeClock()
        self.primary = FakeNamespace("contoso", self.clock)
        self.secondary = FakeNamespace("fabrikam", self.clock)
        self.pair = a_pair(count, entities=(), **pair)
        self.admin = LyingAdmin(self.secondary, Lies())
        self.log: list[Mapping[str, Any]] = []
        self.observer = RecordingObserver()
        for index in indices:
            self.secondary.add_queue(path(index), DOCUMENTED_SETTINGS)

    async def plan(self, *, update: bool = False) -> Plan:
        return plan_provision(await self._snapshot(), self.pair, update=update)

    async def cleanup(self, **options: Any) -> Plan:
        return plan_cleanup(await self._snapshot(), self.pair, **options)

    async def _snapshot(self) -> Any:
        return await gather(self.pair, primary=self.primary.admin(), secondary=self.admin, clock=self.clock)

    async def apply(self, plan: Plan, *, browse: bool = False, **how: Any) -> Report:
        return await apply(
            plan,
            admin=self.admin,
            clock=self.clock,
            observer=self.observer,
            peek=peeking(self.secondary.messaging()) if browse else None,
            log=self.log.append,
            how=Applying(**how),
        )

    def indices(self) -> list[int]:
        return sorted(int(one.rsplit("/", 1)[1]) for one in self.secondary.entities)


def results(report: Report) -> list[tuple[str, Result]]:
    return [(one.item, one.result) for one in report.outcomes]


class TestCreate:
    @virtual_time
    async def test_missing_queues_are_made_as_documented(self) -> None:
        bench = Bench(1)
        report = await bench.apply(await bench.plan())
        assert results(report) == [(path(1), Result.UNCHANGED), (path(0), Result.DONE), (path(2), Result.DONE)]
        assert bench.secondary.queue(path(0)).settings == DOCUMENTED_SETTINGS
        assert report.exit is Exit.OK
        assert not (await bench.plan()).steps

    @virtual_time
    async def test_two_runs_of_the_same_plan_both_succeed(self) -> None:
        bench = Bench()
        plan = await bench.plan()
        first = await bench.apply(plan)
        second = await bench.apply(plan)
        assert (first.exit, second.exit) == (Exit.OK, Exit.OK)
        assert {one.result for one in second.outcomes} == {Result.UNCHANGED}
        assert "made by another run" in second.outcomes[0].detail

    @virtual_time
    async def test_a_queue_that_came_about_otherwise_is_used_as_it_is(self) -> None:
        bench = Bench()
        plan = await bench.plan()
        bench.secondary.add_queue(path(0), QueueSettings())
        report = await bench.apply(plan)
        assert report.outcomes[0].result is Result.UNCHANGED
        assert "not the documented ones" in report.outcomes[0].detail

    @virtual_time
    async def test_another_operation_in_progress_is_waited_for(self) -> None:
        bench = Bench(1, 2)
        plan = await bench.plan()
        bench.secondary.fail("admin", ConflictError("40901"), entity=path(0), times=1)
        started = bench.clock.monotonic()
        report = await bench.apply(plan)
        assert report.exit is Exit.OK
        assert bench.clock.monotonic() - started >= 30
        assert bench.log[-1]["tries"] == 2

    @virtual_time
    async def test_an_answer_that_was_lost_is_looked_up(self) -> None:
        bench = Bench(1, 2)
        plan = await bench.plan()
        bench.secondary.fail("admin", OperationTimeoutError("late"), entity=path(0), times=1, after=True)
        report = await bench.apply(plan)
        assert report.outcomes[-1].result is Result.UNCHANGED
        assert bench.admin.calls["create"] == 1

    @virtual_time
    async def test_three_tries_thirty_seconds_apart_then_failed_and_the_others_go_on(self) -> None:
        bench = Bench()
        plan = await bench.plan()
        bench.secondary.fail("admin", ConnectionLostError("gone"), entity=path(1))
        report = await bench.apply(plan)
        assert results(report) == [(path(0), Result.DONE), (path(1), Result.FAILED), (path(2), Result.DONE)]
        failed = report.outcomes[1]
        assert (failed.error_code, failed.detail) == ("connection-lost", "gone (3 tries)")
        assert report.exit is Exit.PARTIAL
        assert 60 <= bench.clock.monotonic() < 62

    @pytest.mark.parametrize("error", [ArgumentRefusedError("MaxDeliveryCount"), UnauthorizedError("Manage")])
    def test_what_cannot_succeed_is_not_tried_again(self, error: Any) -> None:
        @virtual_time
        async def check() -> None:
            bench = Bench(1, 2)
            plan = await bench.plan()
            bench.secondary.fail("admin", error, entity=path(0))
            report = await bench.apply(plan)
            assert report.outcomes[-1].error_code == error.code
            assert bench.admin.calls["create"] == 1

        check()

    @virtual_time
    async def test_busy_is_given_ten_seconds_even_with_a_shorter_pause(self) -> None:
        bench = Bench(1, 2)
        plan = await bench.plan()
        bench.secondary.fail("admin", ServerBusyError("busy"), entity=path(0), times=2)
        started = bench.clock.monotonic()
        await bench.apply(plan, pause_seconds=1.0)
        assert bench.clock.monotonic() - started >= 10

    @virtual_time
    async def test_a_topic_of_that_name_is_a_failure(self) -> None:
        bench = Bench(1, 2)
        plan = await bench.plan()
        bench.secondary.add_queue(path(0), topic=True)
        report = await bench.apply(plan)
        assert report.outcomes[-1].error_code == "entity-exists"

    @virtual_time
    async def test_hundreds_of_steps_are_bounded_and_paced(self) -> None:
        bench = Bench(count=300)
        plan = await bench.plan()
        bench.secondary.delays["admin"] = 0.5
        started = bench.clock.monotonic()
        await bench.apply(plan, concurrency=4, credits_per_second=None)
        assert bench.clock.monotonic() - started == pytest.approx(300 * 0.5 / 4)
        assert bench.indices() == list(range(300))


class TestUpdate:
    @virtual_time
    async def test_changes_what_differs_and_says_what(self) -> None:
        bench = Bench(0, 1, 2)
        bench.secondary.queue(path(1)).settings = replace(DOCUMENTED_SETTINGS, max_delivery_count=10, user_metadata="x")
        report = await bench.apply(await bench.plan(update=True))
        assert bench.secondary.queue(path(1)).settings == replace(DOCUMENTED_SETTINGS, user_metadata="x")
        assert report.outcomes[-1].detail == "maximum delivery count 10 -> 2147483647"

    @virtual_time
    async def test_a_second_run_finds_it_done(self) -> None:
        bench = Bench(0, 1, 2)
        bench.secondary.queue(path(1)).settings = replace(DOCUMENTED_SETTINGS, max_delivery_count=10)
        plan = await bench.plan(update=True)
        await bench.apply(plan)
        assert (await bench.apply(plan)).outcomes[-1].result is Result.UNCHANGED

    @virtual_time
    async def test_a_queue_somebody_changed_meanwhile_is_left_alone(self) -> None:
        bench = Bench(0, 1, 2)
        bench.secondary.queue(path(1)).settings = replace(DOCUMENTED_SETTINGS, max_delivery_count=10)
        plan = await bench.plan(update=True)
        bench.admin.lies.updated_at[path(1)] = EPOCH + 50
        report = await bench.apply(plan)
        assert report.outcomes[-1].result is Result.SKIPPED
        assert bench.admin.calls["update"] == 0

    @virtual_time
    async def test_a_queue_that_is_gone_fails(self) -> None:
        bench = Bench(0, 1, 2)
        bench.secondary.queue(path(1)).settings = replace(DOCUMENTED_SETTINGS, max_delivery_count=10)
        plan = await bench.plan(update=True)
        del bench.secondary.entities[path(1)]
        assert (await bench.apply(plan)).outcomes[-1].error_code == "entity-not-found"

    @virtual_time
    async def test_recreation_is_never_done(self) -> None:
        bench = Bench(0, 1, 2)
        bench.secondary.queue(path(1)).settings = replace(DOCUMENTED_SETTINGS, requires_session=True)
        plan = await bench.plan(update=True)
        assert [step.kind for step in plan.steps] == [StepKind.RECREATE]
        report = await bench.apply(plan)
        assert report.outcomes[-1].result is Result.SKIPPED
        assert report.exit is Exit.PARTIAL
        assert not {"update", "delete", "create"} & set(bench.admin.calls)


class TestDelete:
    @virtual_time
    async def test_empty_extra_queues_go_after_two_looks(self) -> None:
        bench = Bench(0, 1, 2, 3, 4)
        plan = await bench.cleanup()
        before = bench.admin.calls["get"]
        report = await bench.apply(plan, browse=True)
        assert results(report) == [(path(3), Result.DONE), (path(4), Result.DONE)]
        assert bench.indices() == [0, 1, 2]
        assert bench.admin.calls["get"] - before == 4

    @virtual_time
    async def test_a_message_that_came_meanwhile_keeps_the_queue(self) -> None:
        bench = Bench(0, 1, 2, 3)
        plan = await bench.cleanup()
        bench.secondary.put(path(3), MESSAGE)
        report = await bench.apply(plan)
        assert report.outcomes[0].detail == "no longer empty: it holds 1 active"
        assert bench.indices() == [0, 1, 2, 3]

    @virtual_time
    async def test_a_count_that_lies_is_caught_by_the_browse(self) -> None:
        bench = Bench(0, 1, 2, 3)
        bench.secondary.put_dead_letter(path(3), MESSAGE, "test")
        bench.admin.lies.counted_empty = {path(3)}
        report = await bench.apply(await bench.cleanup(), browse=True)
        assert report.outcomes[0].result is Result.SKIPPED
        assert bench.indices() == [0, 1, 2, 3]

    @virtual_time
    async def test_a_browse_that_fails_deletes_nothing(self) -> None:
        bench = Bench(0, 1, 2, 3)
        plan = await bench.cleanup()
        bench.secondary.fail("peek", UnauthorizedError("lacks Listen"))
        report = await bench.apply(plan, browse=True)
        assert report.outcomes[0].error_code == "unauthorized"
        assert bench.indices() == [0, 1, 2, 3]

    @virtual_time
    async def test_a_changed_queue_is_kept(self) -> None:
        bench = Bench(0, 1, 2, 3)
        plan = await bench.cleanup()
        bench.admin.lies.updated_at[path(3)] = EPOCH + 50
        report = await bench.apply(plan)
        assert report.outcomes[0].detail == "it was changed since the plan was made"
        assert bench.indices() == [0, 1, 2, 3]

    @virtual_time
    async def test_what_is_gone_is_fine(self) -> None:
        bench = Bench(0, 1, 2, 3)
        plan = await bench.cleanup()
        del bench.secondary.entities[path(3)]
        report = await bench.apply(plan)
        assert (report.outcomes[0].result, report.exit) == (Result.UNCHANGED, Exit.OK)

    @virtual_time
    async def test_a_confirmed_queue_goes_with_its_messages(self) -> None:
        bench = Bench(0, 1, 2, 3)
        bench.secondary.put(path(3), MESSAGE)
        report = await bench.apply(await bench.cleanup(confirmed=[path(3)]), browse=True)
        assert report.exit is Exit.OK
        assert bench.indices() == [0, 1, 2]

    @virtual_time
    async def test_todays_protection_wins_over_an_old_plan(self) -> None:
        bench = Bench(0, 1, 2, 3)
        plan = await bench.cleanup()
        report = await bench.apply(plan, protected=("contoso/*",))
        assert report.outcomes[0].result is Result.SKIPPED
        assert bench.indices() == [0, 1, 2, 3]

    @virtual_time
    async def test_list_gaps_and_ghosts_delete_nothing_wrong(self) -> None:
        bench = Bench(*range(40), 50, count=40)
        bench.admin.lies.unlisted = {path(index) for index in range(0, 40, 3)}
        bench.admin.lies.ghosts = [QueueFacts(path(60), DOCUMENTED_SETTINGS)]
        report = await bench.apply(await bench.cleanup())
        assert results(report) == [(path(50), Result.DONE)]
        assert bench.indices() == list(range(40))


class TestStaleness:
    @virtual_time
    async def test_an_unchanged_world_passes(self) -> None:
        bench = Bench(0, 1, 2, 3)
        plan = await bench.cleanup()
        await check_fresh(plan, admin=bench.admin, clock=bench.clock)

    @virtual_time
    async def test_every_changed_queue_is_named(self) -> None:
        bench = Bench(0, 1, 2, 3, 4, 5)
        plan = await bench.cleanup()
        bench.admin.lies.updated_at = {path(3): EPOCH + 1, path(5): EPOCH + 1}
        with pytest.raises(
            StalePlanError, match=rf"{path(3)} was changed \(it was written since\); {path(5)} was changed"
        ):
            await check_fresh(plan, admin=bench.admin, clock=bench.clock)

    @virtual_time
    async def test_a_queue_that_got_messages_is_named_with_their_number(self) -> None:
        bench = Bench(0, 1, 2, 3)
        plan = await bench.cleanup()
        bench.secondary.put(path(3), MESSAGE)
        with pytest.raises(StalePlanError, match=rf"{path(3)} holds 1 message now, not 0"):
            await check_fresh(plan, admin=bench.admin, clock=bench.clock)
        bench = Bench(3)
        plan = await bench.cleanup()
        bench.secondary.queue(path(3)).settings = replace(DOCUMENTED_SETTINGS, max_delivery_count=3)
        with pytest.raises(StalePlanError, match=rf"{path(3)} was changed \(max_delivery_count was changed\)"):
            await check_fresh(plan, admin=bench.admin, clock=bench.clock)

    @virtual_time
    async def test_a_step_another_run_did_is_no_staleness_but_a_different_queue_is(self) -> None:
        bench = Bench(1, 2)
        plan = await bench.plan()
        bench.secondary.add_queue(path(0), DOCUMENTED_SETTINGS)
        await check_fresh(plan, admin=bench.admin, clock=bench.clock)
        bench.secondary.add_queue(path(0), QueueSettings())
        with pytest.raises(StalePlanError, match="exists by now, and differently"):
            await check_fresh(plan, admin=bench.admin, clock=bench.clock)

    @virtual_time
    async def test_a_queue_to_update_that_is_gone_is(self) -> None:
        bench = Bench(0, 1, 2)
        bench.secondary.queue(path(1)).settings = QueueSettings()
        plan = await bench.plan(update=True)
        del bench.secondary.entities[path(1)]
        with pytest.raises(StalePlanError, match="is gone"):
            await check_fresh(plan, admin=bench.admin, clock=bench.clock)


@virtual_time
async def test_every_step_is_logged_and_told() -> None:
    bench = Bench(0, 1)
    await bench.apply(await bench.plan(), context={"who": "alice", "credential": "azure-cli"})
    assert bench.log == [
        {
            "at": bench.log[0]["at"],
            "who": "alice",
            "credential": "azure-cli",
            "pair": "orders",
            "namespace": "fabrikam.servicebus.windows.net",
            "action": "create",
            "queue": path(2),
            "result": "done",
            "detail": "created",
            "error_code": None,
            "tries": 1,
        }
    ]
    assert [(one.item, one.result) for one in bench.observer.of(StepDone)] == [(path(2), "done")]


SETTINGS = DOCUMENTED_SETTINGS
THERE = QueueFacts("q", SETTINGS, Counts(active=3))
CHANGED = replace(THERE, settings=replace(SETTINGS, max_delivery_count=3))


@pytest.mark.parametrize(
    ("kind", "expected", "there", "why"),
    [
        (StepKind.CREATE, None, None, None),
        (StepKind.CREATE, None, THERE, None),
        (StepKind.CREATE, None, CHANGED, "exists by now"),
        (StepKind.UPDATE, THERE, None, "is gone"),
        (StepKind.DELETE, THERE, None, None),
        (StepKind.UPDATE, None, CHANGED, None),
        (StepKind.UPDATE, THERE, THERE, None),
        (StepKind.DELETE, THERE, replace(THERE, counts=Counts(active=4)), "holds 4 messages now, not 3"),
        (StepKind.DELETE, THERE, replace(THERE, counts=Counts(active=2)), None),
        (StepKind.UPDATE, THERE, replace(THERE, counts=Counts(active=4)), None),
    ],
)
def test_a_step_is_stale_if_what_it_was_planned_for_has_changed(
    kind: StepKind, expected: QueueFacts | None, there: QueueFacts | None, why: str | None
) -> None:
    step = Step(kind, "q", "why", settings=SETTINGS, expected=None if expected is None else Expected.of(expected))
    told = _staleness(step, there)
    assert told is None if why is None else why in (told or "")


@virtual_time
async def test_a_step_that_does_not_say_what_is_wanted_makes_nothing() -> None:
    for kind in (StepKind.CREATE, StepKind.UPDATE):
        bench = Bench(1, 2)
        plan = await bench.plan()
        [step] = plan.steps[:1]
        plan = replace(plan, steps=(replace(step, kind=kind, settings=None),))
        with pytest.raises(ValueError, match="without settings"):
            await bench.apply(plan)
        assert sorted(bench.secondary.entities) == [path(1), path(2)]


@virtual_time
async def test_tries_are_paced_counted_and_paused_as_their_error_says() -> None:
    for error, tries, seconds in (
        (UnauthorizedError("no"), 1, 0.0),
        (ServerBusyError("busy"), 3, 2 * BUSY_PAUSE_SECONDS),
        (ConnectionLostError("down"), 3, 2 * 1.5),
    ):
        bench = Bench(1, 2)
        plan = await bench.plan()
        bench.secondary.fail("admin", error, entity=path(0))
        began = bench.clock.monotonic()
        report = await bench.apply(plan, tries=3, pause_seconds=1.5, credits_per_second=None)
        [failed] = [one for one in report.outcomes if one.result is Result.FAILED]
        assert failed.detail == (error.message if tries == 1 else f"{error.message} (3 tries)")
        assert bench.clock.monotonic() - began == seconds
    paced = Bench(count=5)
    plan = await paced.plan()
    began = paced.clock.monotonic()
    await paced.apply(plan, credits_per_second=1.0)
    assert paced.clock.monotonic() - began >= 4.0, "each step is billed"
