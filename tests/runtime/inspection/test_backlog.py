"""Finding and reading every backlog queue: with and without Manage, with extra, missing and unreadable queues."""

from dataclasses import replace

import pytest

from sbpair.core.access import NamespaceAccess
from sbpair.core.backlog import Backlog, BacklogVerdict, FoundBy
from sbpair.core.errors import (
    ConnectionLostError,
    EntityDisabledError,
    OperationTimeoutError,
    ServiceError,
    UnauthorizedError,
)
from sbpair.core.message import MessageState
from sbpair.core.pairing import Pair, SendAvailabilityOptions
from sbpair.core.rewrite import compose, for_backlog
from sbpair.operations.status import StatusReader
from sbpair.ports import Sides
from sbpair.runtime.browse import PAGE_MESSAGES
from sbpair.runtime.inspection.backlog import MOST_BROWSED_MESSAGES, FoundQueues, find_queues, read_backlog
from tests.fakes import FakeClock, FakeNamespace, virtual_time
from tests.runtime.inspection.admin_fake import Lies, LyingAdmin

PAIR = Pair(
    name="orders",
    primary=NamespaceAccess(label="contoso", host="contoso.servicebus.windows.net"),
    secondary=NamespaceAccess(label="other-place", host="other-place.servicebus.windows.net"),
    options=SendAvailabilityOptions(backlog_queue_count=3),
)
PATH = "contoso/x-servicebus-transfer/{}"
MESSAGE = for_backlog(compose(body=b"x", message_id="1"), "orders")


def world(*indexes: int) -> FakeNamespace:
    namespace = FakeNamespace("other-place", FakeClock())
    for index in indexes:
        namespace.add_queue(PATH.format(index))
    namespace.add_queue("somebody/x-servicebus-transfer/7")
    return namespace


async def find(namespace: FakeNamespace, *, manage: bool = True, lies: Lies | None = None) -> FoundQueues:
    admin = LyingAdmin(namespace, lies) if manage else None
    return await find_queues(PAIR, messaging=namespace.messaging(), admin=admin)


async def read(namespace: FakeNamespace, *, manage: bool = True, lies: Lies | None = None) -> Backlog:
    admin = LyingAdmin(namespace, lies) if manage else None
    found = await find(namespace, manage=manage, lies=lies)
    return await read_backlog(
        PAIR, found, messaging=namespace.messaging(), admin=admin, clock=namespace.clock, recount=True
    )


def sides_of(primary: FakeNamespace, secondary: FakeNamespace) -> Sides:
    return Sides(PAIR, primary.messaging(), secondary.messaging(), primary.admin(), secondary.admin())


def paths(*indexes: int) -> tuple[str, ...]:
    return tuple(PATH.format(index) for index in indexes)


@virtual_time
async def test_listing_finds_queues_beyond_the_configured_number_in_their_order() -> None:
    found = await find(world(0, 2, 9, 10, 19))
    assert (found.existing, found.missing, found.found_by) == (paths(0, 2, 9, 10, 19), paths(1), FoundBy.LISTED)


@virtual_time
async def test_a_queue_that_the_listing_left_out_is_asked_for() -> None:
    found = await find(world(0, 1, 2), lies=Lies(unlisted={PATH.format(1)}))
    assert (found.existing, found.missing) == (paths(0, 1, 2), ())


@virtual_time
async def test_without_manage_queues_are_found_by_opening_them_upwards_until_two_do_not_exist() -> None:
    namespace = world(0, 2, 3, 5, 8)
    namespace.fail("admin", UnauthorizedError("Manage is needed."))
    found = await find(namespace)
    assert (found.existing, found.missing, found.found_by) == (paths(0, 2, 3, 5), paths(1), FoundBy.PROBED)
    assert (await find(namespace, manage=False)).existing == paths(0, 2, 3, 5)


@pytest.mark.parametrize("error", [ConnectionLostError("gone"), OperationTimeoutError("late")])
def test_where_nothing_answers_the_configured_queues_are_given_and_named_as_such(error: ServiceError) -> None:
    @virtual_time
    async def run() -> None:
        namespace = world(0, 1, 2)
        namespace.fail("*", error)
        found = await find(namespace)
        assert (found.existing, found.found_by) == (paths(0, 1, 2), FoundBy.CONFIGURED)
        assert (await read(namespace)).verdict is BacklogVerdict.UNKNOWN

    run()


@virtual_time
async def test_a_disabled_queue_exists_and_is_told_as_unread() -> None:
    namespace = world(0, 1, 2)
    namespace.fail("peek", EntityDisabledError("It is disabled."), entity=PATH.format(1))
    found = await find(namespace, manage=False)
    assert found.existing == paths(0, 1, 2)
    backlog = await read(namespace, manage=False)
    assert [queue.queue for queue in backlog.unread] == [PATH.format(1)]
    assert backlog.verdict is BacklogVerdict.UNKNOWN


@pytest.mark.parametrize("manage", [True, False])
def test_every_kind_of_message_is_counted(manage: bool) -> None:
    @virtual_time
    async def run() -> None:
        namespace = world(0, 1, 2, 4)
        assert (await read(namespace, manage=manage)).confirmed_empty
        namespace.put(PATH.format(0), MESSAGE, MESSAGE, MESSAGE)
        stored = list(namespace.queue(PATH.format(0)).messages.values())
        stored[1].state = MessageState.DEFERRED
        stored[2].state = MessageState.SCHEDULED
        namespace.put_dead_letter(PATH.format(1), MESSAGE, "Why")
        backlog = await read(namespace, manage=manage)
        assert (backlog.active, backlog.deferred, backlog.scheduled, backlog.dead_letter) == (1, 1, 1, 1)
        assert backlog.verdict is BacklogVerdict.WAITING

    run()


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize(("more", "waiting"), [([4, 3, 2], 2), ([2, 2, 0], 0), ([0, 5, 5], 5)])
def test_what_is_counted_before_and_after_a_browse_that_does_not_show_it_is_waiting(
    more: list[int], waiting: int, dead: bool
) -> None:
    """Listed, counted anew before the browse, and after it: a partition of the queue may be away."""

    @virtual_time
    async def run() -> None:
        told = {PATH.format(1): list(more)}
        backlog = await read(world(0, 1, 2), lies=Lies(counted_dead=told) if dead else Lies(counted_more=told))
        [_, queue, _] = backlog.queues
        assert (queue.active, queue.dead_letter) == ((0, waiting) if dead else (waiting, 0))
        if waiting:
            assert queue.detail == f"{waiting} messages are counted by the service, but not visible to a browse."
        assert backlog.verdict is (
            BacklogVerdict.EMPTY if not waiting else BacklogVerdict.UNKNOWN if dead else BacklogVerdict.WAITING
        )

    run()


@virtual_time
async def test_where_the_second_count_fails_the_queue_is_unread() -> None:
    namespace, lies = world(0, 1, 2), Lies(counted_more={PATH.format(1): [4, 4]})
    namespace.fail("admin", ConnectionLostError("gone"), entity=PATH.format(1), skip=1)
    [_, queue, _] = (await read(namespace, lies=lies)).queues
    assert (queue.active, queue.error_code, queue.detail) == (4, "connection-lost", "gone")


@virtual_time
async def test_the_oldest_message_is_the_first_one_of_all_that_are_browsed() -> None:
    namespace = world(0)
    namespace.put(PATH.format(0), MESSAGE)
    began = namespace.clock.now().timestamp()
    await namespace.clock.sleep(60.0)
    namespace.put(PATH.format(0), MESSAGE)
    assert (await read(namespace, manage=False)).queues[0].oldest_enqueued_at == began


@virtual_time
async def test_an_extra_queue_keeps_the_backlog_from_being_called_empty() -> None:
    namespace = world(0, 1, 2, 3)
    namespace.put(PATH.format(3), MESSAGE)
    for manage in (True, False):
        backlog = await read(namespace, manage=manage)
        assert backlog.verdict is BacklogVerdict.WAITING
        assert [queue.queue for queue in backlog.queues if not queue.configured] == [PATH.format(3)]


@virtual_time
async def test_counts_that_read_zero_are_not_believed() -> None:
    namespace = world(0, 1, 2)
    namespace.put(PATH.format(0), MESSAGE)
    namespace.put_dead_letter(PATH.format(1), MESSAGE, "Why")
    backlog = await read(namespace, lies=Lies(counted_empty=set(paths(0, 1, 2))))
    assert (backlog.active, backlog.dead_letter) == (1, 1)


@virtual_time
async def test_a_large_queue_is_not_browsed_to_its_end() -> None:
    namespace, most = world(0, 1, 2), MOST_BROWSED_MESSAGES
    namespace.put(PATH.format(0), *[MESSAGE] * (most + 1))
    namespace.put(PATH.format(2), *[MESSAGE] * PAGE_MESSAGES)
    for _ in range(most + 1):
        namespace.put_dead_letter(PATH.format(1), MESSAGE, "Why")
    counted = await read(namespace)
    numbers = [(queue.active, queue.dead_letter, queue.at_least) for queue in counted.queues]
    assert numbers == [(most + 1, 0, False), (0, most + 1, False), (PAGE_MESSAGES, 0, False)]
    assert [namespace.calls["peek", path] for path in paths(0, 2)] == [1, 2], (
        "what one page shows is browsed to its end"
    )
    browsed = await read(namespace, manage=False)
    numbers = [(queue.active, queue.dead_letter, queue.at_least) for queue in browsed.queues]
    assert numbers == [(most, 0, True), (0, most, True), (PAGE_MESSAGES, 0, False)]


@virtual_time
async def test_some_queues_only_are_never_the_whole_backlog() -> None:
    namespace = world(0, 1, 2)
    found = await find(namespace)
    backlog = await read_backlog(
        PAIR, found, messaging=namespace.messaging(), admin=None, clock=namespace.clock, only=paths(1)
    )
    assert (backlog.whole, backlog.not_asked) == (False, paths(0, 2))
    assert not backlog.confirmed_empty


@virtual_time
async def test_messages_held_by_a_forwarding_rule_are_not_called_nothing() -> None:
    namespace = world(0, 1, 2)
    found = await find(namespace)
    facts = dict(found.facts)
    path = PATH.format(0)
    facts[path] = replace(facts[path], counts=replace(facts[path].counts, transfer_dead_letter=4))
    backlog = await read_backlog(
        PAIR,
        replace(found, facts=facts),
        messaging=namespace.messaging(),
        admin=namespace.admin(),
        clock=namespace.clock,
        recount=False,
    )
    assert backlog.verdict is BacklogVerdict.UNKNOWN
    assert "forwarding rule" in backlog.unread[0].detail


@virtual_time
async def test_a_status_without_manage_counts_by_browsing_and_says_so() -> None:
    """The namespace that asks for Manage has answered; it is neither denied nor unknown."""
    secondary = world(0, 1, 2)
    primary = FakeNamespace("contoso", secondary.clock)
    for namespace in (primary, secondary):
        namespace.fail("admin", UnauthorizedError.lacking("Manage", "read it"))
    secondary.put(PATH.format(2), MESSAGE)
    reader = StatusReader(sides_of(primary, secondary), secondary.clock)
    status = await reader.read()
    assert (status.primary.state, status.secondary.state) == ("limited", "limited")
    assert (status.backlog.active, status.backlog.found_by) == (1, FoundBy.PROBED)


@virtual_time
async def test_a_secondary_that_does_not_answer_is_not_asked_for_every_queue() -> None:
    secondary = world(0, 1, 2)
    secondary.go_dark()
    reader = StatusReader(sides_of(FakeNamespace("contoso", secondary.clock), secondary), secondary.clock)
    status = await reader.read()
    assert status.secondary.state == "unreachable"
    assert status.backlog.verdict is BacklogVerdict.UNKNOWN
    assert not any(operation == "peek" for operation, _ in secondary.calls)


@pytest.mark.parametrize("manage", [True, False])
def test_names_are_the_same_in_every_spelling(manage: bool) -> None:
    """Other labels and paths than in lower case: the same queues, counts and verdict."""

    @virtual_time
    async def run() -> None:
        told = []
        for spelled in (str.lower, str.upper, str.title):
            namespace = world()
            for index in (0, 2, 4):
                namespace.add_queue(spelled(PATH.format(index)))
            namespace.put(PATH.format(2), MESSAGE)
            lies = Lies(unlisted={PATH.format(0)}, counted_more={PATH.format(2): [3, 3, 3]})
            pair = replace(PAIR, primary=replace(PAIR.primary, label=spelled("contoso")))
            admin = LyingAdmin(namespace, lies) if manage else None
            found = await find_queues(pair, messaging=namespace.messaging(), admin=admin)
            assert (found.existing, found.missing) == (paths(0, 2, 4), paths(1))
            for recount in (False, True):
                backlog = await read_backlog(
                    pair,
                    found,
                    messaging=namespace.messaging(),
                    admin=admin,
                    clock=namespace.clock,
                    only=tuple(spelled(one) for one in paths(0, 1, 2)),
                    recount=recount,
                )
                assert backlog.not_asked == paths(4)
                asked = (admin and admin.calls["get"], admin and admin.calls["list"])
                told.append((recount, spelled, asked, str(backlog).lower()))
        for recount in (False, True):
            assert len({one[2:] for one in told if one[0] is recount}) == 1

    run()


@virtual_time
async def test_what_was_just_listed_is_not_asked_for_again_whatever_its_spelling() -> None:
    namespace = world(0)
    found = await find(namespace)
    admin = LyingAdmin(namespace)
    spelled = replace(found, existing=(PATH.format(0).title(),))
    await read_backlog(
        PAIR, spelled, messaging=namespace.messaging(), admin=admin, clock=namespace.clock, recount=False
    )
    assert admin.calls["get"] == 0
