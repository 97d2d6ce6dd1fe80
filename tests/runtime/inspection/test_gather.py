"""Gathering: few calls, nothing believed that was only listed, everything unreadable said."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from sbpair.core.access import AuthMethod, Secret
from sbpair.core.entities import EntityStatus, QueueFacts, QueueSettings, Tier
from sbpair.core.errors import ConnectionLostError, ServerBusyError, UnauthorizedError
from sbpair.core.events import GatherProgress
from sbpair.core.inspection.audit import Severity, run
from sbpair.core.inspection.snapshot import Calls, How, Snapshot
from sbpair.core.pairing import DOCUMENTED_SETTINGS, Pair
from sbpair.core.rewrite import compose, for_backlog
from sbpair.runtime.browse import peeking
from sbpair.runtime.inspection.gather import CreditPacer, GatherScope, _key_name, gather
from tests.core.snapshots import a_pair, path
from tests.fakes import EPOCH, FakeClock, FakeNamespace, RecordingObserver, run_virtual, virtual_time
from tests.runtime.inspection.admin_fake import Lies, LyingAdmin

MESSAGE = compose(body=b"hello", message_id="1")


@dataclass
class World:
    """A provisioned pair."""

    clock: FakeClock
    primary: FakeNamespace
    secondary: FakeNamespace
    pair: Pair
    lies: Lies

    async def gather(self, **options: object) -> Snapshot:
        return await gather(
            self.pair,
            primary=LyingAdmin(self.primary, Lies(unlisted=self.lies.unlisted)),
            secondary=LyingAdmin(self.secondary, self.lies),
            clock=self.clock,
            **options,  # type: ignore[arg-type]
        )


def world(count: int = 3, **pair: object) -> World:
    clock = FakeClock()
    primary, secondary = FakeNamespace("contoso", clock), FakeNamespace("fabrikam", clock)
    primary.add_queue("orders")
    made = a_pair(count, **pair)  # type: ignore[arg-type]
    for one in made.backlog_paths():
        secondary.add_queue(one, DOCUMENTED_SETTINGS)
    return World(clock, primary, secondary, made, Lies())


@virtual_time
async def test_a_healthy_pair_takes_three_reads_a_side_and_has_no_findings() -> None:
    here = world()
    snapshot = await here.gather()
    assert snapshot.primary.calls == snapshot.secondary.calls == Calls(namespace_reads=1, list_pages=2)
    assert [queue.how for queue in snapshot.secondary.queues or ()] == [How.LISTED] * 3
    report = run(snapshot, here.pair)
    assert report.at_least(Severity.WARNING) == ()
    assert {one.code for one in report.skipped} == {"SBP026", "SBP028"}


@virtual_time
async def test_an_unlisted_queue_is_found_by_a_get_and_not_reported_missing() -> None:
    here = world()
    here.lies.unlisted = {path(1)}
    snapshot = await here.gather()
    queue = snapshot.secondary.queue(path(1))
    assert queue is not None and queue.how is How.CONFIRMED
    assert run(snapshot, here.pair).findings == ()
    assert snapshot.secondary.calls.gets == 1


@virtual_time
async def test_a_really_missing_queue_is_confirmed_to_be() -> None:
    here = world()
    del here.secondary.entities[path(1)]
    snapshot = await here.gather()
    assert snapshot.secondary.absent == (path(1),)
    assert [one.code for one in run(snapshot, here.pair).at_least(Severity.ERROR)] == ["SBP001"]


@virtual_time
async def test_ghosts_and_repetitions_of_a_listing_are_no_findings() -> None:
    here = world()
    here.lies.ghosts = [QueueFacts(path(7), DOCUMENTED_SETTINGS), QueueFacts(path(0, "adatum"), DOCUMENTED_SETTINGS)]
    here.lies.twice = True
    snapshot = await here.gather()
    assert len(snapshot.secondary.queues or ()) == 3
    assert run(snapshot, here.pair).findings == ()
    assert set(snapshot.secondary.absent) == {path(7), path(0, "adatum")}


@virtual_time
async def test_what_looks_odd_is_read_again() -> None:
    here = world()
    here.secondary.add_queue(path(0), replace(DOCUMENTED_SETTINGS, max_delivery_count=10))
    here.secondary.add_queue(path(1), replace(DOCUMENTED_SETTINGS, status=EntityStatus.DISABLED))
    here.secondary.add_queue(path(5), DOCUMENTED_SETTINGS)
    snapshot = await here.gather()
    confirmed = {queue.path for queue in snapshot.secondary.queues or () if queue.how is How.CONFIRMED}
    assert confirmed == {path(0), path(1), path(5)}
    assert {one.code for one in run(snapshot, here.pair).findings} == {"SBP002", "SBP003", "SBP004", "SBP007"}


@virtual_time
async def test_backlog_queues_on_the_primary_and_entities_are_confirmed() -> None:
    here = world(entities=("orders", "news", "gone"))
    here.primary.add_queue("news", topic=True)
    here.primary.add_queue(path(0), DOCUMENTED_SETTINGS)
    here.primary.entities["orders"].settings = QueueSettings(status=EntityStatus.DISABLED)
    snapshot = await here.gather()
    assert {one.code for one in run(snapshot, here.pair).findings} == {"SBP005", "SBP018", "SBP020"}
    assert snapshot.primary.absent == ("gone",)
    assert snapshot.primary.calls.gets == 4


@virtual_time
async def test_unlisted_entities_are_asked_for_first_as_queues_and_those_that_are_none_as_topics() -> None:
    here = world(entities=("orders", "News"))
    here.primary.add_queue("news", topic=True)
    here.lies.unlisted = {"orders", "news"}
    snapshot = await here.gather()
    assert (run(snapshot, here.pair).findings, snapshot.primary.absent) == ((), ())
    assert snapshot.primary.calls.gets == 3


@virtual_time
async def test_what_a_browse_shows_is_told_of_the_queue_in_whatever_spelling() -> None:
    here = world()
    del here.secondary.entities[path(1)]
    here.secondary.add_queue(path(1, "Contoso"), DOCUMENTED_SETTINGS)
    here.secondary.put(path(1, "Contoso"), MESSAGE)
    snapshot = await here.gather(peek=peeking(here.secondary.messaging()))
    peeked = [queue.peeked for queue in snapshot.secondary.queues or ()]
    assert snapshot.secondary.calls.gets == 0, "it is the queue that is looked for"
    assert [one.messages for one in peeked if one is not None] == [0, 1, 0]


@virtual_time
async def test_a_browse_confirms_zero_counts_and_tells_the_age() -> None:
    here = world()
    here.secondary.put(path(1), MESSAGE)
    here.secondary.put_dead_letter(path(2), MESSAGE, "test")
    here.lies.counted_empty = {path(1), path(2)}
    snapshot = await here.gather(peek=peeking(here.secondary.messaging()))
    first, second = snapshot.secondary.queue(path(1)), snapshot.secondary.queue(path(2))
    assert first is not None and first.peeked is not None and first.peeked.oldest_enqueued_at == pytest.approx(EPOCH)
    assert second is not None and not second.empty
    assert {(one.code, one.subject) for one in run(snapshot, here.pair).findings} == {
        ("SBP008", path(1)),
        ("SBP009", path(2)),
    }
    assert snapshot.secondary.calls.peeks == 6
    assert len(here.secondary.closed_receivers) == 6


@virtual_time
async def test_a_browse_that_fails_is_recorded() -> None:
    here = world()
    here.secondary.fail("peek", UnauthorizedError("lacks Listen"), entity=path(1))
    snapshot = await here.gather(peek=peeking(here.secondary.messaging()))
    assert [(one.subject, one.exit_name) for one in snapshot.secondary.unread] == [(f"messages of {path(1)}", "denied")]


@virtual_time
async def test_a_dark_namespace_is_asked_once_and_the_other_is_still_read() -> None:
    here = world()
    here.primary.go_dark()
    snapshot = await here.gather()
    assert {one.subject for one in snapshot.primary.unread} == {"namespace", "queues", "topics"}
    assert sum(here.primary.calls.values()) == 1
    assert {one.exit_name for one in snapshot.primary.unread} == {"unreachable"}
    assert len(snapshot.secondary.queues or ()) == 3


@virtual_time
async def test_whoever_does_not_tolerate_gets_the_error() -> None:
    here = world()
    here.secondary.go_dark()
    with pytest.raises(ConnectionLostError):
        await here.gather(tolerant=False)


@virtual_time
async def test_a_busy_namespace_is_given_ten_seconds() -> None:
    here = world()
    here.secondary.fail("admin", ServerBusyError("busy"), entity="$namespaceinfo", times=2)
    snapshot = await here.gather()
    assert snapshot.secondary.unread == ()
    assert here.clock.monotonic() >= 20


@virtual_time
async def test_a_namespace_that_stays_busy_is_recorded_as_unread() -> None:
    here = world()
    here.secondary.fail("admin", ServerBusyError("busy"), entity="$namespaceinfo")
    snapshot = await here.gather()
    assert [(one.subject, one.error_code) for one in snapshot.secondary.unread] == [("namespace", "server-busy")]


@virtual_time
async def test_three_thousand_queues_are_paced_and_bounded() -> None:
    here = world(3000, entities=())
    here.lies.unlisted = {path(index) for index in range(0, 3000, 100)}
    admin = LyingAdmin(here.secondary, here.lies)
    here.secondary.delays["admin"] = 2.0
    snapshot = await gather(
        here.pair,
        primary=here.primary.admin(),
        secondary=admin,
        clock=here.clock,
        credits_per_second=100.0,
        concurrency=4,
    )
    calls = snapshot.secondary.calls
    assert (calls.list_pages, calls.gets) == (30 + 1, 30)
    assert run(snapshot, here.pair).findings == ()
    assert admin.most_at_once == 4
    assert here.clock.monotonic() >= (calls.throttling_credits - 10) / 100


@virtual_time
async def test_only_the_secondarys_queues_are_read_for_provisioning() -> None:
    here = world()
    for number in range(250):
        here.secondary.add_queue(f"other-{number}")
    snapshot = await here.gather(scope=GatherScope.BACKLOG)
    assert snapshot.secondary.calls == Calls(namespace_reads=1, list_pages=3)
    assert not here.primary.calls
    assert not snapshot.secondary.unread
    assert run(snapshot, here.pair, checks=["SBP018"]).skipped != ()


@virtual_time
async def test_tier_basic_has_no_topics_to_list() -> None:
    here = world()
    here.secondary.tier = Tier.BASIC
    snapshot = await here.gather()
    assert snapshot.secondary.topics == ()
    assert here.secondary.calls["admin", "$topics"] == 0


@virtual_time
async def test_the_snapshot_names_the_rule_but_never_the_key() -> None:
    here = world()
    text = "Endpoint=sb://fabrikam.servicebus.windows.net/;SharedAccessKeyName=watch;SharedAccessKey=c2VjcmV0"
    access = replace(here.pair.secondary, auth=AuthMethod.CONNECTION_STRING, connection_string=Secret(text))
    here.pair = replace(here.pair, secondary=access)
    snapshot = await here.gather()
    assert snapshot.secondary.key_name == "watch"
    assert "c2VjcmV0" not in json.dumps(snapshot.to_dict())


@virtual_time
async def test_progress_is_told() -> None:
    here, observer = world(), RecordingObserver()
    here.lies.unlisted = {path(0)}
    await here.gather(observer=observer)
    told = {(one.namespace.split(".")[0], one.stage, one.done, one.total) for one in observer.of(GatherProgress)}
    assert ("fabrikam", "listing queues", 2, 2) in told
    assert ("fabrikam", "confirming", 1, 1) in told


@virtual_time
async def test_clock_skew_is_seen() -> None:
    here = world()
    here.clock.skew_seconds = 42.0
    report = run(await here.gather(), here.pair)
    assert {one.code for one in report.findings} == {"SBP021"}


@virtual_time
async def test_credits_are_handed_out_at_their_rate_and_the_first_at_once() -> None:
    clock = FakeClock()
    pacer, times = CreditPacer(clock, 20.0), []
    for _ in range(4):
        await pacer.spend(10)
        times.append(clock.monotonic())
    assert times == [pytest.approx(0.5 * number) for number in range(4)]
    endless = CreditPacer(clock, None)
    await endless.spend(10_000)
    assert clock.monotonic() == times[-1]


def in_order(value: Any) -> Any:
    """Lists sorted: their order may go by the spelling."""
    if isinstance(value, dict):
        return {name: in_order(one) for name, one in value.items()}
    return sorted(map(in_order, value), key=json.dumps) if isinstance(value, list) else value


def test_names_are_the_same_in_every_spelling() -> None:
    """A pair of which each thing is odd is read as the same, whichever case its namespaces have given the names."""

    async def read(spelled: Callable[[str], str], asked: Callable[[str], str]) -> str:
        entities = ("orders", "news", "unlisted", "topic/unlisted", "gone", "closed")
        here = world(5, entities=tuple(map(asked, entities)))
        primary, secondary = (replace(one, label=asked(one.label)) for one in (here.pair.primary, here.pair.secondary))
        here.pair = replace(here.pair, primary=primary, secondary=secondary)
        here.secondary.entities.clear()
        for index in (0, 1, 2, 7):
            settings = replace(DOCUMENTED_SETTINGS, max_delivery_count=10) if index == 2 else DOCUMENTED_SETTINGS
            here.secondary.add_queue(spelled(path(index)), settings)
        here.secondary.add_queue(spelled("other"))
        here.lies.unlisted = {path(1), "unlisted", "topic/unlisted", "seen/unlisted", "waiting/unlisted"}
        here.lies.ghosts = [QueueFacts(spelled(path(9)), DOCUMENTED_SETTINGS)]
        here.primary.entities.clear()
        for name in (
            "orders",
            "unlisted",
            "waiting/unlisted",
            "closed",
            path(3),
            path(3, "fabrikam"),
            path(3, "adatum"),
        ):
            here.primary.add_queue(spelled(name))
        here.primary.entities["closed"].settings = QueueSettings(status=EntityStatus.DISABLED)
        for name in ("news", "topic/unlisted", "seen/unlisted"):
            here.primary.add_queue(spelled(name), topic=True)
        for name in ("orders", "unlisted", "topic/unlisted", "gone", "seen/unlisted", "waiting/unlisted", "seen/gone"):
            here.secondary.put(path(0), for_backlog(MESSAGE, asked(name)))
        snapshot = await here.gather(peek=peeking(here.secondary.messaging(), most=9))
        primary = {queue.path.lower(): queue.how for queue in snapshot.primary.queues or ()}
        assert primary["waiting/unlisted"] is How.CONFIRMED, "a destination of what waits"
        assert {"gone", "seen/gone"} == {*map(str.lower, snapshot.primary.absent)}
        assert {"news", "topic/unlisted", "seen/unlisted"} == {
            one.path.lower() for one in snapshot.primary.topics or ()
        }
        assert (primary["orders"], primary[path(3, "adatum")]) == (How.LISTED, How.LISTED), "nothing is odd about these"
        findings = sorted((one.code, one.subject) for one in run(snapshot, here.pair).findings)
        assert {"SBP001", "SBP002"} <= {code for code, _ in findings}
        return json.dumps(in_order(json.loads(json.dumps([snapshot.to_dict(), findings]).lower())))

    plain = run_virtual(read(str.lower, str.lower))
    for spelled in (str.upper, str.title):
        assert run_virtual(read(spelled, str.lower)) == plain
        assert run_virtual(read(str.lower, spelled)) == plain


@virtual_time
async def test_nothing_is_looked_at_again_on_a_side_that_was_not_listed() -> None:
    here = world()
    here.secondary.put(path(0), for_backlog(MESSAGE, "gone"))
    here.secondary.go_dark()
    snapshot = await here.gather(peek=peeking(here.secondary.messaging(), most=5))
    assert (snapshot.secondary.queues, snapshot.secondary.calls.gets, len(snapshot.primary.queues or ())) == (
        None,
        0,
        1,
    )
    here.secondary.heal()
    here.primary.fail("admin", UnauthorizedError("no list"), entity="")
    snapshot = await here.gather(peek=peeking(here.secondary.messaging(), most=5))
    assert (snapshot.primary.queues, snapshot.primary.topics, snapshot.primary.absent) == (None, (), ())
    assert snapshot.primary.calls.gets == 0


def test_a_key_has_a_name_where_there_is_a_connection_string() -> None:
    access = a_pair().primary
    text = Secret("Endpoint=sb://h/;SharedAccessKeyName=watch;SharedAccessKey=c2VjcmV0")
    for auth, known, name in (
        (AuthMethod.CONNECTION_STRING, text, "watch"),
        (AuthMethod.CONNECTION_STRING, None, None),
        (AuthMethod.DEFAULT, text, None),
    ):
        assert _key_name(replace(access, auth=auth, connection_string=known)) == name
