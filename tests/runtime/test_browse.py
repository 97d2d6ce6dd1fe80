"""Browses: pages and their bounds, what is found in a queue and why it is there, several queues by age."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from sbpair.core.entities import QueueSettings
from sbpair.core.errors import ConnectionLostError, EntityNotFoundError, ServerBusyError, UnauthorizedError
from sbpair.core.message import Disposition, MessageState, Received
from sbpair.core.pairing import Side
from sbpair.core.rewrite import compose, for_backlog
from sbpair.core.transfer.filters import FilterError
from sbpair.core.transfer.state import key_of
from sbpair.runtime import browse
from sbpair.runtime.browse import BrowsedMessages, browse_target, head_of, pages, peeking, survey
from sbpair.runtime.transfer.restore import Restorable, not_known, still_queued
from tests.fakes import EPOCH, FakeClock, FakeMessaging, FakeNamespace, virtual_time

QUEUE = "q"


def a_namespace(*queues: str, messages: int = 0) -> FakeNamespace:
    namespace = FakeNamespace("contoso", FakeClock())
    for queue in queues or (QUEUE,):
        namespace.add_queue(queue, QueueSettings(lock_duration_seconds=600.0))
    namespace.put((queues or (QUEUE,))[0], *(payload(str(number)) for number in range(messages)))
    return namespace


def payload(message_id: str, **more: Any) -> bytes:
    return compose(body=b"x", message_id=message_id, **more)


class Asked(FakeMessaging):
    """Notes what each browse asks for."""

    def __init__(self, namespace: FakeNamespace) -> None:
        super().__init__(namespace)
        self.asked: list[tuple[int, int]] = []

    def receiver(self, path: str, *, dead_letter: bool = False, session_id: str | None = None) -> Any:
        receiver = super().receiver(path, dead_letter=dead_letter, session_id=session_id)
        peek = receiver.peek

        async def noting(most: int, *, from_sequence_number: int = 0) -> list[Received]:
            self.asked.append((most, from_sequence_number))
            return await peek(most, from_sequence_number=from_sequence_number)

        receiver.peek = noting  # type: ignore[method-assign]
        return receiver


async def numbers(messaging: FakeMessaging, *bounds: int, **how: Any) -> list[list[int]]:
    found = pages(messaging.receiver(QUEUE), *bounds, clock=messaging.namespace.clock, **how)
    return [[one.sequence_number for one in page] async for page in found]


@virtual_time
async def test_pages_grow_and_keep_within_first_and_last() -> None:
    messaging = Asked(a_namespace(messages=30))
    assert await numbers(messaging, 2, 25, first_page_messages=1) == [[2], list(range(3, 19)), list(range(19, 26))]
    assert messaging.asked == [(1, 2), (16, 3), (7, 19)]
    messaging.asked.clear()
    assert [len(page) for page in await numbers(messaging)] == [30]
    assert messaging.asked == [(250, 1), (250, 31)], "the end is an empty page"
    assert await numbers(messaging, 31) == []
    del messaging.namespace.queue(QUEUE).messages[5]
    assert await numbers(messaging, 4, 5) == [[4]], "what lies behind the last is not given"
    messaging.asked.clear()
    assert await numbers(messaging, 5, 4) == []
    assert messaging.asked == []


@pytest.mark.parametrize(
    ("error", "how", "seconds"),
    [
        (UnauthorizedError("no"), {}, 0.0),
        (ServerBusyError("busy"), {"patience_seconds": 0.0}, 0.0),
        (ConnectionLostError("down"), {"patience_seconds": 60.0, "unreached_seconds": 9.0}, 9.0),
        (ConnectionLostError("down"), {"patience_seconds": 20.0, "unreached_seconds": 60.0}, 20.0),
    ],
)
def test_a_page_that_fails_is_tried_again_within_its_bounds(error: Any, how: dict[str, float], seconds: float) -> None:
    @virtual_time
    async def story() -> None:
        namespace = a_namespace(messages=1)
        namespace.fail("peek", error)
        with pytest.raises(type(error)):
            await numbers(namespace.messaging(), **how)
        assert namespace.clock.monotonic() <= seconds
        assert (namespace.calls["peek", QUEUE] > 1) is (seconds > 0)
        namespace.heal()
        namespace.fail("peek", ConnectionLostError("down"), times=2)
        assert await numbers(namespace.messaging()) == [[1]]

    story()


@virtual_time
async def test_after_the_first_page_nobody_is_unreached() -> None:
    namespace = a_namespace(messages=300)
    namespace.fail("peek", ConnectionLostError("down"), skip=1)
    began = namespace.clock.monotonic()
    with pytest.raises(ConnectionLostError):
        await numbers(namespace.messaging(), patience_seconds=100.0, unreached_seconds=5.0)
    assert namespace.clock.monotonic() - began > 50.0


@virtual_time
async def test_a_page_has_a_bound_of_its_own_where_that_is_asked_for() -> None:
    namespace = a_namespace(messages=1)
    namespace.delays["peek"] = 1000.0
    with pytest.raises(Exception, match="Browse of q"):
        await numbers(namespace.messaging(), patience_seconds=0.0, page_seconds=7.0)
    assert namespace.clock.monotonic() == pytest.approx(7.0)


async def lying(namespace: FakeNamespace) -> dict[str, Received]:
    """A deferred, a scheduled and two active messages, by id."""
    receiver = namespace.messaging().receiver(QUEUE)
    namespace.put(QUEUE, payload("deferred"))
    [one] = await receiver.receive(1, wait_seconds=0.0)
    await receiver.settle(one, Disposition.DEFER)
    namespace.put(QUEUE, payload("later", scheduled_at=EPOCH + 1e6), payload("left"), payload("odd"))
    return {one.message_id or "": one for one in await receiver.peek(9)}


@virtual_time
async def test_what_lies_in_a_queue_is_told_by_its_state_and_by_what_was_left() -> None:
    namespace = a_namespace()
    there = await lying(namespace)
    left = {key_of(there["left"]): "why"}

    async def surveyed(**how: Any) -> tuple[BrowsedMessages, list[str | None]]:
        visited: list[str | None] = []
        found = await survey(
            namespace.messaging().receiver(QUEUE),
            left,
            clock=namespace.clock,
            patience_seconds=0.0,
            visit=lambda one: visited.append(one.message_id),
            **how,
        )
        return found, visited

    found, visited = await surveyed()
    assert (dict(found.by_state), found.explained, visited, found.whole) == (
        {"deferred": 1, "scheduled": 1},
        1,
        ["odd"],
        True,
    )
    assert found.deferred == [there["deferred"].sequence_number]
    assert found.unexplained == {key_of(there["odd"])}
    found, visited = await surveyed(also={MessageState.DEFERRED})
    assert (dict(found.by_state), visited, found.deferred) == ({"scheduled": 1}, ["deferred", "odd"], [])
    many = a_namespace(messages=browse.PAGE_MESSAGES + 1).messaging()
    for enough, whole in ((browse.PAGE_MESSAGES, False), (browse.PAGE_MESSAGES + 1, True), (None, True)):
        receiver = many.receiver(QUEUE)
        found = await survey(receiver, {}, clock=many.namespace.clock, patience_seconds=0.0, enough=enough)
        assert found.whole is whole, "more than enough is not looked for"
    assert (await survey(namespace.messaging().receiver(QUEUE), {}, clock=namespace.clock, patience_seconds=0.0)).whole


def test_what_the_service_counts_and_a_browse_does_not_show_is_not_visible() -> None:
    assert BrowsedMessages().empty
    one = key_of(Received(b"", 1, QUEUE))
    for found in (
        BrowsedMessages(explained=1),
        BrowsedMessages(unexplained=frozenset({one})),
        BrowsedMessages(not_visible=1),
        BrowsedMessages(whole=False),
        BrowsedMessages(by_state=browse.Counter({"scheduled": 1})),
    ):
        assert not found.empty
    for counted, whole, not_visible in ((None, True, 0), (9, True, 5), (4, True, 0), (3, True, 0), (9, False, 0)):
        found = BrowsedMessages(
            browse.Counter({"deferred": 1, "scheduled": 7}), unexplained=frozenset({one}), explained=2, whole=whole
        )
        found.compare_with(counted)
        assert found.not_visible == not_visible
    found = BrowsedMessages(browse.Counter({"scheduled": 7}), not_visible=5)
    assert dict(found.reasons(())) == {"scheduled": 7, browse.NOT_VISIBLE: 5}
    assert browse.NOT_VISIBLE not in BrowsedMessages().reasons(())


@virtual_time
async def test_the_messages_of_several_queues_come_by_their_age_up_to_a_limit() -> None:
    namespace = a_namespace("a", "b", "c")
    for number, queue in enumerate("abbaab"):
        namespace.put(queue, payload(str(number)))
        await asyncio.sleep(1.0)
    namespace.put_dead_letter("a", payload("dead"), "reason")
    namespace.fail("peek", ServerBusyError("busy"), entity="c")
    found = await browse.browse(namespace.messaging(), ["a", "b", "c"], max_messages=4)
    assert [one.received.message_id for one in found.messages] == ["0", "1", "2", "3"]
    assert (found.looked_at, found.left_off, [one.queue for one in found.failed]) == (4, True, ["c"])
    assert sorted(namespace.closed_receivers) == ["a", "b", "c"]
    found = await browse.browse(
        namespace.messaging(),
        ["a"],
        kinds=(False, True),
        max_messages=9,
        wanted=lambda one: one.received.message_id != "3",
    )
    assert [one.received.message_id for one in found.messages] == ["0", "4", "dead"]
    assert (found.looked_at, found.left_off, found.messages[-1].queue) == (4, False, "a/$deadletterqueue")
    found = await browse.browse(namespace.messaging(), ["a"], max_messages=9, from_sequence_number=5)
    assert [one.received.message_id for one in found.messages] == ["4"]
    assert (await browse.browse(namespace.messaging(), ["a"], max_messages=0)).messages == ()


@virtual_time
async def test_the_head_of_a_queue_and_of_its_dead_letters() -> None:
    namespace = a_namespace(QUEUE)
    peek = peeking(namespace.messaging())
    assert (await peek(QUEUE)).messages == 0
    await asyncio.sleep(5.0)
    namespace.put_dead_letter(QUEUE, payload("dead"), "reason")
    await asyncio.sleep(5.0)
    namespace.put(QUEUE, *(for_backlog(payload(name), name) for name in ("to-b", "to-a", "to-b")))
    found = await peek(QUEUE)
    assert (found.active, found.dead_letter, found.messages, found.destinations) == (True, True, 2, ())
    assert found.oldest_enqueued_at == EPOCH + 5.0
    found = await peeking(namespace.messaging(), dead_letters=False, most=3)(QUEUE)
    assert (found.active, found.dead_letter, found.messages) == (True, False, 3)
    assert (found.destinations, found.oldest_enqueued_at) == (("to-a", "to-b"), EPOCH + 10.0)
    [head] = await head_of(namespace.messaging().receiver(QUEUE), page_seconds=60.0)
    assert head.message_id is not None
    closed = len(namespace.closed_receivers)
    namespace.fail("peek", ServerBusyError("busy"))
    with pytest.raises(ServerBusyError):
        await peek(QUEUE)
    assert len(namespace.closed_receivers) == closed + 1
    namespace.heal()
    target = browse_target(Side.SECONDARY, namespace.messaging(), QUEUE)
    await target.probe()
    await target.close()
    assert (target.side, target.entity, len(namespace.closed_receivers)) == (Side.SECONDARY, QUEUE, closed + 2)


@virtual_time
async def test_what_was_only_browsed_still_lies_there_if_place_and_time_are_the_same() -> None:
    namespace = a_namespace("a", "b")
    namespace.put("a", *(payload(str(number)) for number in range(4)))
    namespace.put_dead_letter("b", payload("dead"), "reason")
    messaging = Asked(namespace)
    of_a = await messaging.receiver("a").peek(9)
    [dead] = await messaging.receiver("b", dead_letter=True).peek(9)

    def restorable(one: Received, *, browsed: bool = True) -> Restorable:
        made = object.__new__(Restorable)
        for name, value in (("received", one), ("browsed", browsed)):
            object.__setattr__(made, name, value)
        return made

    moved = replace(of_a[2], enqueued_at=(of_a[2].enqueued_at or 0.0) + 1.0)
    gone = replace(of_a[0], source="nowhere")
    wanted = [restorable(one) for one in (of_a[1], moved, dead, gone)] + [restorable(of_a[3], browsed=False)]
    messaging.asked.clear()
    assert await still_queued(messaging, wanted, clock=namespace.clock) == 2
    assert messaging.asked[0] == (2, of_a[1].sequence_number), "no more than the numbers that are wanted"
    assert await still_queued(messaging, [], clock=namespace.clock) == 0
    namespace.fail("peek", UnauthorizedError("no"))
    with pytest.raises(UnauthorizedError):
        await still_queued(messaging, wanted, clock=namespace.clock)
    assert "not known whether" in not_known(EntityNotFoundError("gone")).message


class Paced:
    """A pace that grants as it is told, and notes what it learns."""

    def __init__(self, *grants: int) -> None:
        self.grants, self.noted = list(grants), list[tuple[Any, ...]]()

    def grant(self, most: int, now: float) -> int:
        return min(most, self.grants.pop(0))

    def seconds_until_some(self, now: float) -> float:
        return 2.0

    def refused(self, now: float) -> float:
        self.noted.append(("refused", now))
        return 3.0

    def accepted(self, messages: int, now: float) -> None:
        self.noted.append(("accepted", messages, now))

    def take(self, messages: int) -> None:
        self.noted.append(("take", messages))


@virtual_time
async def test_a_page_at_a_pace_asks_for_what_is_granted_and_gives_back_what_did_not_come() -> None:
    messaging = Asked(a_namespace(messages=3))
    pace: Any = Paced(0, 0, 9, 5)
    messaging.namespace.fail("peek", ServerBusyError("busy"), times=1)
    found = await browse.page_from(messaging.receiver(QUEUE), 1, clock=messaging.namespace.clock, pace=pace)
    assert (len(found), messaging.asked) == (3, [(9, 1), (5, 1)])
    assert pace.noted == [("refused", 4.0), ("take", -9), ("accepted", 3, 4.0), ("take", -2)]


@pytest.mark.parametrize(
    ("error", "patience", "noted"),
    [
        (ServerBusyError("busy"), 2.9, [("refused", 0.0), ("take", -9)]),
        (ConnectionLostError("down"), 0.0, [("take", -9)]),
    ],
)
def test_what_a_pace_does_not_cure_is_raised(error: Any, patience: float, noted: list[Any]) -> None:
    @virtual_time
    async def story() -> None:
        namespace = a_namespace(messages=3)
        pace: Any = Paced(9)
        namespace.fail("peek", error)
        receiver = namespace.messaging().receiver(QUEUE)
        with pytest.raises(type(error)):
            await browse._at_pace(
                pace, lambda some: receiver.peek(some, from_sequence_number=1), 99, namespace.clock, patience
            )
        assert pace.noted == noted

    story()


@virtual_time
async def test_what_is_not_wanted_is_counted_apart_and_what_cannot_be_judged_may_be() -> None:
    class Filter:
        def __init__(self, *ids: str) -> None:
            self.ids = ids

        def wants(self, received: Received, summary: Any) -> bool:
            if not self.ids:
                raise FilterError("odd")
            return received.message_id in self.ids

    namespace = a_namespace()
    await lying(namespace)
    for wanted, by_state, not_wanted in (
        (Filter("deferred"), {"deferred": 1}, {"scheduled": 1}),
        (Filter("other"), {}, {"deferred": 1, "scheduled": 1}),
        (Filter(), {"deferred": 1, "scheduled": 1}, {}),
    ):
        receiver = namespace.messaging().receiver(QUEUE)
        found = await survey(receiver, {}, clock=namespace.clock, patience_seconds=0.0, wanted=wanted)  # type: ignore[arg-type]
        assert (dict(found.by_state), dict(found.not_wanted)) == (by_state, not_wanted)
