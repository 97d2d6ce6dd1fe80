"""Attach, transfers both ways, credit, settlement, refusals."""

import re
from typing import Any

import pytest

from sbpair.amqp.performatives import ACCEPTED, ATTACH, DETACH, DISPOSITION, END, FLOW, REJECTED, TRANSFER, accepted
from sbpair.amqp.types import Described, Symbol, Uint
from sbpair.engine.budgets import MAX_HELD_BYTES_BEFORE_TOKEN, MAX_LINKS_BEFORE_TOKEN
from sbpair.engine.errors import rejected
from sbpair.engine.link import Link
from tests.engine.wire_client import modified, seen


async def test_attach_is_echoed_and_credit_granted(connect: Any, service: Any) -> None:
    client = await connect()
    await client.session()
    reply = await client.sender("amqps://localhost:99/Orders/$management", 4)
    assert reply.field(2) is True
    assert reply.field(6).value[0] == "amqps://localhost:99/Orders/$management"
    assert reply.field(10) == 200_000
    assert service.handlers[0].link.address == "Orders/$management"
    client.attach(5, "x", sends=True)
    flow = await client.until(FLOW)
    assert (flow.field(4), flow.field(6)) == (5, 1000)


async def test_neighbouring_settlements_become_one_range(connect: Any) -> None:
    """Unless the connection's slice of time ends in between, as it may on a busy machine."""
    client = await connect()
    await client.session()
    await client.sender("q")
    for first in range(0, 200, 5):
        with client.at_once():  # what comes in several pieces may be answered in several
            for number in range(first, first + 5):
                client.transfer(number, b"m%d" % number)
        ranges = []
        while not ranges or ranges[-1][1] < first + 4:
            frame = await client.until(DISPOSITION)
            assert (frame.field(3), frame.field(4).descriptor) == (True, ACCEPTED)
            ranges.append((frame.field(1), frame.field(1) if frame.field(2) is None else frame.field(2)))
        assert [number for begin, end in ranges for number in range(begin, end + 1)] == [*range(first, first + 5)]
        if len(ranges) == 1:
            return
    pytest.fail("no neighbours were settled together")


async def test_credit_is_given_back_at_half_and_never_enforced(connect: Any, service: Any) -> None:
    service.special["q"] = lambda link: link.open(credit=10)
    client = await connect()
    await client.session()
    await client.sender("q")
    for number in range(30):
        client.transfer(number, b"m")
    flow = await client.until(FLOW)
    assert (flow.field(5), flow.field(6)) == (5, 10)
    await seen(lambda: len(service.handlers[0].deliveries) == 30)


async def test_a_message_in_many_frames_is_put_together(connect: Any, service: Any) -> None:
    client = await connect()
    await client.session()
    await client.sender("q")
    client.transfer(0, b"one ", more=True)
    client.transfer(0, b"two ", more=True)
    client.transfer(0, b"three")
    disposition = await client.until(DISPOSITION)
    assert (disposition.field(1), disposition.field(2)) == (0, None)
    assert service.handlers[0].deliveries[0].payload == b"one two three"


def abort(client: Any, number: int) -> None:
    client.send(TRANSFER, [Uint(0), Uint(number), b"t", Uint(0), False, False, None, None, None, True])


async def test_an_aborted_message_is_none_and_has_used_its_credit(connect: Any, service: Any) -> None:
    """Both ends count it (§2.7.5): else each would cost the client a credit for ever."""
    service.special["q"] = lambda link: link.open(credit=10)
    client = await connect()
    await client.session()
    await client.sender("q")
    for number in range(5):
        client.transfer(number, b"begun", more=True)
        abort(client, number)
    flow = await client.until(FLOW)
    assert (flow.field(5), flow.field(6)) == (5, 10)
    client.transfer(5, b"whole")
    assert (await client.until(DISPOSITION)).field(1) == 5
    assert [delivery.payload for delivery in service.handlers[0].deliveries] == [b"whole"]


async def test_a_message_is_settled_if_any_of_its_frames_says_so(connect: Any, service: Any) -> None:
    client = await connect()
    await client.session()
    await client.sender("q")
    client.transfer(0, b"one ", more=True)
    client.transfer(0, b"two", settled=True)
    client.transfer(1, b"loud")
    assert (await client.until(DISPOSITION)).field(1) == 1
    assert [delivery.settled for delivery in service.handlers[0].deliveries] == [True, True]


async def test_a_message_may_be_as_large_as_the_links_limit(connect: Any, service: Any) -> None:
    client = await connect()
    await client.session()
    await client.sender("q")
    for turn in range(4):
        client.transfer(0, b"x" * 50_000, more=turn < 3)
    assert (await client.until(DISPOSITION)).field(4).descriptor == ACCEPTED
    for turn in range(4):
        client.transfer(1, b"x" * (50_000 + (turn == 3)), more=turn < 3)
    assert (await client.until(DISPOSITION)).field(4).descriptor == REJECTED


async def test_the_engines_own_detach_is_told_also_before_the_link_is_open(connect: Any, service: Any) -> None:
    """Whoever waits for a session waits no more."""
    service.special["q"] = lambda link: None
    client = await connect()
    await client.session()
    client.attach(1, "q", sends=False)
    await seen(lambda: service.handlers)
    service.handlers[0].link.force_off("amqp:unauthorized-access", "The token is expired.")
    assert (await client.until(DETACH)).error[0] == "amqp:unauthorized-access"
    assert service.handlers[0].detached == [(True, False)]


async def test_a_settled_message_gets_no_disposition(connect: Any, service: Any) -> None:
    client = await connect()
    await client.session()
    await client.sender("q")
    client.transfer(0, b"quiet", settled=True)
    client.transfer(1, b"loud")
    assert (await client.until(DISPOSITION)).field(1) == 1
    assert len(service.handlers[0].deliveries) == 2


async def test_a_message_above_the_links_limit_is_refused(connect: Any, service: Any) -> None:
    client = await connect()
    await client.session()
    await client.sender("q")
    for turn in range(4):
        client.transfer(0, b"x" * 60_000, more=turn < 3)
    state = (await client.until(DISPOSITION)).field(4)
    assert state.value[0].value[0] == "amqp:link:message-size-exceeded"
    client.transfer(1, b"small")
    assert (await client.until(DISPOSITION)).field(4).descriptor == ACCEPTED
    assert [delivery.payload for delivery in service.handlers[0].deliveries] == [b"small"]


async def test_a_settled_message_above_the_limit_detaches_the_link(connect: Any, service: Any) -> None:
    client = await connect()
    await client.session()
    await client.sender("q")
    for turn in range(4):
        client.transfer(0, b"x" * 60_000, more=turn < 3, settled=True)
    assert (await client.until(DETACH)).error[0] == "amqp:link:message-size-exceeded"
    assert service.handlers[0].detached == [(True, False)]


async def test_a_refused_send_carries_an_error_of_three_fields(connect: Any, service: Any) -> None:
    client = await connect()
    await client.session()
    await client.sender("q")
    service.handlers[0].answer = lambda delivery: rejected("amqp:not-allowed", "no")
    client.transfer(0, b"m")
    state = (await client.until(DISPOSITION)).field(4)
    assert state.descriptor == REJECTED
    condition, description, info = state.value[0].value
    assert (condition, info) == ("amqp:not-allowed", {})
    assert re.fullmatch(r"no TrackingId:[0-9a-f-]{36}_B0, SystemTracker:\S+, Timestamp:\S+", description)


async def test_deliveries_stop_at_the_credit_and_go_on_with_more(connect: Any, service: Any) -> None:
    service.stock["q"].extend(b"m%d" % number for number in range(5))
    client = await connect()
    await client.session()
    await client.receiver("q", credit=2)
    got = [(await client.until(TRANSFER)).payload for _ in range(2)]
    assert service.handlers[0].link.credit == 0
    client.credit(3, count=2)
    got += [(await client.until(TRANSFER)).payload for _ in range(3)]
    assert got == [b"m0", b"m1", b"m2", b"m3", b"m4"]


async def test_credit_counts_from_the_last_delivery_that_the_client_has_seen(connect: Any, service: Any) -> None:
    """What is on its way to it has used up its part already (§2.6.7)."""
    service.stock["q"].extend(b"m%d" % number for number in range(10))
    client = await connect()
    await client.session()
    await client.receiver("q", credit=3)
    for _ in range(3):
        await client.until(TRANSFER)
    client.credit(5, count=1)
    assert [(await client.until(TRANSFER)).payload for _ in range(3)] == [b"m3", b"m4", b"m5"]
    link = service.handlers[0].link
    assert (link.sent, link.credit, len(service.stock["q"])) == (6, 0, 4)


async def test_drain_uses_up_the_credit_and_says_so(connect: Any, service: Any) -> None:
    service.stock["q"].append(b"only")
    client = await connect()
    await client.session()
    await client.receiver("q")
    client.credit(10, drain=True)
    assert (await client.until(TRANSFER)).payload == b"only"
    flow = await client.until(FLOW)
    assert (flow.field(5), flow.field(6), flow.field(8)) == (10, 0, True)
    for _ in range(2):
        client.credit(0, count=10, drain=True)
        assert (await client.until(FLOW)).field(8) is True, "each is answered, also where nothing has changed"
    service.stock["q"].append(b"after")
    client.credit(1, count=10)
    assert (await client.until(TRANSFER)).payload == b"after"
    client.send(FLOW, [Uint(1), Uint(100), Uint(0), Uint(2048), Uint(1), Uint(11), Uint(0), None, False, True])
    assert (await client.until(FLOW)).field(8) is None, "the drain is over"


async def test_a_drain_before_the_link_is_open_is_answered_once_it_is(connect: Any, service: Any) -> None:
    """Also one that gives no credit, for which nothing else is to be done."""
    service.special["q"] = lambda link: None
    client = await connect()
    await client.session()
    client.attach(1, "q", sends=False)
    client.credit(0, drain=True)
    await seen(lambda: service.handlers and service.handlers[0].link.drain)
    service.handlers[0].link.open()
    assert (await client.until(FLOW)).field(8) is True


async def test_a_large_message_is_cut_to_the_clients_frame_size(connect: Any, service: Any) -> None:
    payload = bytes(range(256)) * 12
    service.stock["q"].append(payload)
    client = await connect()
    await client.session(max_frame_size=512)
    await client.receiver("q", credit=1)
    frames = [await client.until(TRANSFER)]
    while frames[-1].field(5):
        frames.append(await client.until(TRANSFER))
    assert b"".join(frame.payload for frame in frames) == payload
    assert all(len(frame.payload) <= 512 for frame in frames)
    assert [frame.field(1) for frame in frames] == [1] + [None] * (len(frames) - 1)


async def test_the_sessions_window_is_kept(connect: Any, service: Any) -> None:
    service.stock["q"].extend([b"a", b"b", b"c"])
    client = await connect()
    await client.session(window=2)
    await client.receiver("q")
    client.credit(10, window=2)
    assert [(await client.until(TRANSFER)).payload for _ in range(2)] == [b"a", b"b"]
    client.send(FLOW, [Uint(3), Uint(0), Uint(0), Uint(9), None, None, None, None, None, True])
    assert (await client.next()).code == FLOW
    client.send(FLOW, [Uint(3), Uint(5), Uint(0), Uint(9)])
    assert (await client.until(TRANSFER)).payload == b"c"


async def test_deliveries_go_on_behind_those_that_waited_for_the_window(connect: Any, service: Any) -> None:
    service.stock["q"].extend([b"%d" % number for number in range(6)])
    client = await connect()
    await client.session(window=2)
    await client.receiver("q")
    client.credit(10, window=2)
    got = [(await client.until(TRANSFER)).payload for _ in range(2)]
    client.send(FLOW, [Uint(3), Uint(100), Uint(0), Uint(9)])
    got += [(await client.until(TRANSFER)).payload for _ in range(4)]
    assert got == [b"%d" % number for number in range(6)]


async def test_links_that_are_gone_leave_nothing_behind(connect: Any, service: Any) -> None:
    """However they went, and more of them than a client without a token may have at once."""
    client = await connect()
    await client.session()
    name = "q" * 2000
    for number in range(MAX_HELD_BYTES_BEFORE_TOKEN // (2 * len(name))):
        await client.sender(name)
        if number % 2:
            client.send(DETACH, [Uint(0), True])
            await client.until(DETACH)
        else:
            # Its answer is the next attach: clients may take the handle again at once (§2.6.6).
            service.handlers[-1].link.detach("amqp:link:detach-forced", "moved")
            await client.until(DETACH)
    connection = service.handlers[0].link.connection
    assert connection.links_left >= MAX_LINKS_BEFORE_TOKEN - 1
    assert connection.budget.held_bytes < 5 * len(name)


async def test_deliveries_that_waited_for_the_window_are_forgotten_with_their_session(
    connect: Any, service: Any
) -> None:
    service.stock["q"].extend([b"x" * 1000] * 20)
    client = await connect()
    await client.session(window=2)
    await client.receiver("q")
    client.credit(20, window=2)
    for _ in range(2):
        await client.until(TRANSFER)
    connection = service.handlers[0].link.connection
    assert connection.budget.held_bytes >= 1000
    client.send(END, [])
    await client.until(END)
    assert connection.budget.held_bytes == 0


async def test_a_settlement_is_confirmed_with_the_same_outcome(connect: Any, service: Any) -> None:
    service.stock["q"].extend([b"a", b"b", b"c"])
    client = await connect()
    await client.session()
    await client.receiver("q", credit=3)
    ids = [(await client.until(TRANSFER)).field(1) for _ in range(3)]
    client.settle(ids[0], ids[2], accepted())
    # In one frame, or in several where the connection's slice of time ended in between.
    answered: list[int] = []
    while len(answered) < len(ids):
        confirmed = await client.until(DISPOSITION)
        first, last = confirmed.field(1), confirmed.field(2)
        assert (confirmed.field(0), confirmed.field(3)) == (False, True)
        answered += range(first, (first if last is None else last) + 1)
    assert answered == ids
    assert [one[0] for one in service.handlers[0].dispositions] == ids


async def test_a_settlement_that_was_confirmed_is_over(connect: Any, service: Any) -> None:
    service.stock["q"].append(b"m")
    client = await connect()
    await client.session()
    await client.receiver("q", credit=1)
    number = (await client.until(TRANSFER)).field(1)
    client.settle(number, None, accepted())
    await client.until(DISPOSITION)
    client.settle(number, None, modified(True))
    await client.sender("other", 7)
    assert [state.descriptor for _, state, _ in service.handlers[0].dispositions] == [ACCEPTED]


async def test_a_huge_range_settles_what_there_is(connect: Any, service: Any) -> None:
    service.stock["q"].extend([b"a", b"b"])
    client = await connect()
    await client.session()
    await client.receiver("q", credit=2)
    for _ in range(2):
        await client.until(TRANSFER)
    client.settle(0, 0x7FFFFFFF, modified(True), settled=True)
    client.send(FLOW, [Uint(3), Uint(5), Uint(0), Uint(9), None, None, None, None, None, True])
    await client.next()
    assert [(number, settled) for number, _, settled in service.handlers[0].dispositions] == [(1, True), (2, True)]


async def test_dispositions_after_a_detach_are_ignored(connect: Any, service: Any) -> None:
    service.stock["q"].append(b"a")
    client = await connect()
    await client.session()
    await client.receiver("q", credit=1)
    await client.until(TRANSFER)
    client.send(DETACH, [Uint(1), True])
    client.settle(1, None, accepted())
    await client.until(DETACH)
    assert (await client.begin(channel=1)).channel == 1
    assert service.handlers[0].dispositions == []
    assert service.handlers[0].detached == [(True, False)]


async def test_dispositions_after_the_brokers_own_detach_are_ignored(connect: Any, service: Any) -> None:
    """A settlement that was under way is not applied to a link that is closed."""
    service.stock["q"].append(b"a")
    client = await connect()
    await client.session()
    await client.receiver("q", credit=1)
    number = (await client.until(TRANSFER)).field(1)
    service.handlers[0].link.detach("amqp:link:detach-forced", "moved")
    client.settle(number, None, accepted())
    await client.until(DETACH)
    await client.sender("other", 7)
    assert service.handlers[0].dispositions == []


async def test_a_refused_attach_has_no_terminus_and_then_the_reason(connect: Any, service: Any) -> None:
    service.special["gone"] = lambda link: link.reject("amqp:not-found", "no such entity")
    client = await connect()
    await client.session()
    for handle, sends in ((1, True), (2, False)):
        client.attach(handle, "gone", sends=sends)
        attach, detach = await client.until(ATTACH), await client.until(DETACH)
        # Neither source nor target: go-amqp takes an attach with one of them for a link, and its error is lost.
        assert (attach.field(5), attach.field(6)) == (None, None)
        assert detach.field(1) is True
        condition, description = detach.error
        assert condition == "amqp:not-found"
        assert description.startswith("no such entity TrackingId:")


@pytest.mark.parametrize("described", [False, True], ids=["plain", "described"])
async def test_an_attach_may_be_answered_later_and_with_other_filters(
    connect: Any, service: Any, described: bool
) -> None:
    held: list[Link] = []
    service.special["q"] = held.append
    client = await connect()
    await client.session()
    key = Symbol("com.microsoft:session-filter")
    client.attach(1, "q", sends=False, filters={key: Described(Symbol(key), None) if described else None})
    await seen(lambda: held)
    assert held[0].filters == {key: None}
    held[0].open(filter_replies={key: "room 1"}, properties={"com.microsoft:locked-until-utc": "x"})
    reply = await client.until(ATTACH)
    assert reply.field(5).value[7] == {key: Described(Symbol(key), "room 1") if described else "room 1"}
    assert reply.field(9) == 0
    assert reply.field(13) == {"com.microsoft:locked-until-utc": "x"}


async def test_the_brokers_own_detach_does_not_come_back_to_it(connect: Any, service: Any) -> None:
    client = await connect()
    await client.session()
    await client.sender("q")
    service.handlers[0].link.detach("amqp:resource-deleted", "gone")
    detach = await client.until(DETACH)
    assert detach.error[0] == "amqp:resource-deleted"
    client.transfer(0, b"late")
    client.send(DETACH, [Uint(0), True])
    client.attach(0, "q", sends=True)
    assert (await client.until(ATTACH)).field(1) == 0
    assert service.handlers[0].detached == []
    assert service.handlers[0].deliveries == []


async def test_credit_given_before_the_attach_is_answered_is_kept(connect: Any, service: Any) -> None:
    service.special["q"] = lambda link: None  # answered later: it waits for a session
    service.stock["q"].extend((b"one", b"two"))
    client = await connect()
    await client.session()
    client.attach(1, "q", sends=False)
    client.credit(2)
    await seen(lambda: service.handlers and service.handlers[0].link.credit)
    assert len(service.stock["q"]) == 2
    service.handlers[0].link.open()
    assert (await client.next()).code == ATTACH
    assert [(await client.until(TRANSFER)).payload for _ in range(2)] == [b"one", b"two"]


async def test_a_drain_before_the_attach_is_answered_is_answered_when_the_link_opens(
    connect: Any, service: Any
) -> None:
    service.special["q"] = lambda link: None
    client = await connect()
    await client.session()
    client.attach(1, "q", sends=False)
    client.credit(5, drain=True)
    await seen(lambda: service.handlers and service.handlers[0].link.drain)
    service.handlers[0].link.open()
    flow = await client.until(FLOW)
    assert (flow.field(5), flow.field(6), flow.field(8)) == (5, 0, True)


@pytest.mark.parametrize("window", [3, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
async def test_a_window_is_a_count_however_large(connect: Any, service: Any, window: int) -> None:
    service.stock["q"].extend(b"m%d" % number for number in range(3))
    client = await connect()
    await client.session(window=window)
    client.attach(1, "q", sends=False)
    client.credit(3, window=window)
    assert [(await client.until(TRANSFER)).payload for _ in range(3)] == [b"m0", b"m1", b"m2"]


async def test_a_window_behind_transfers_that_are_on_their_way_lets_nothing_through(connect: Any, service: Any) -> None:
    service.stock["q"].extend(b"m%d" % number for number in range(4))
    client = await connect()
    await client.session(window=2)
    await client.receiver("q")
    client.credit(10, window=2)
    assert [(await client.until(TRANSFER)).payload for _ in range(2)] == [b"m0", b"m1"]
    client.credit(10, window=1)  # written before the client has seen either of the two: the window is used up
    client.credit(10, window=1, next_in=3)
    assert (await client.until(TRANSFER)).payload == b"m2"
