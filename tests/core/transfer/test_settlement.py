"""The pump's machine by hand: what it wants done after what it was told. No clock, no I/O."""

import gc
import sys
from dataclasses import replace
from types import FunctionType, ModuleType

import pytest

from sbpair.core.errors import (
    ArgumentRefusedError,
    ConnectionLostError,
    EntityNotFoundError,
    LockLostError,
    MessageTooLargeError,
    OperationTimeoutError,
    QuotaExceededError,
    SendIncompleteError,
    ServerBusyError,
)
from sbpair.core.message import BATCH_ENVELOPE_BYTES, Disposition, MessageState, Received
from sbpair.core.names import dead_letter_path
from sbpair.core.transfer.delivery import HOLD_SECONDS
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.order import TRY_AFTER_SECONDS, SkippedNumbers
from sbpair.core.transfer.state import (
    Finish,
    Forward,
    Leave,
    Limits,
    LockMet,
    Measure,
    PauseBegan,
    PauseEnded,
    PollAgain,
    Renew,
    Sample,
    Send,
    Settle,
)

QUEUE = "contoso/x-servicebus-transfer/0"


def received(number, *, receipt=1, source=QUEUE):
    return Received(
        payload=b"", sequence_number=number, source=source, message_id=f"m{number}", enqueued_at=1.0, receipt=receipt
    )


class Pump:
    """A machine whose link limits are known, and short words for telling it things."""

    def __init__(self, *, limit_bytes=100_000, forwarded=(), source=QUEUE, **limits):
        self.machine = Settlement(Limits(**limits), forwarded=forwarded)
        self.source = source
        self.limit_bytes = limit_bytes
        self.now = 0.0

    def arrive(self, number, *, to="orders", session=None, size=100, lock=60.0, verdict=None, receipt=1, key=None):
        verdict = verdict or Forward(bytes(size), to, session, key)
        one = received(number, receipt=receipt, source=self.source)
        self.machine.arrived(one, verdict, lock_until=self.now + lock, lock_seconds=lock, now=self.now)

    def poll(self):
        """The machine's wishes; limits are answered at once."""
        actions = self.machine.poll(self.now)
        for action in [action for action in actions if isinstance(action, Measure)]:
            self.machine.destinations.limit_known(action.destination, self.limit_bytes)
            actions += self.machine.poll(self.now)
        return [action for action in actions if not isinstance(action, Measure)]

    def sends(self):
        return [action.batch for action in self.poll() if isinstance(action, Send)]

    def settles(self):
        return [action for action in self.poll() if isinstance(action, Settle)]

    def fail(self, batch, error):
        self.machine.destinations.send_failed(batch, error, self.now)

    def confirm(self, settles):
        for settle in settles:
            self.machine.custody.settled([settle])


def numbers(batch):
    return [item.received.sequence_number for item in batch.items]


def test_messages_of_one_destination_go_out_as_one_batch_and_are_completed():
    pump = Pump()
    for number in range(3):
        pump.arrive(number)
    [batch] = pump.sends()
    assert numbers(batch) == [0, 1, 2]
    pump.machine.destinations.sent(batch, 0.0)
    settles = pump.settles()
    assert [settle.disposition for settle in settles] == [Disposition.COMPLETE] * 3
    pump.confirm(settles)
    assert (pump.machine.custody.live, pump.machine.tally.numbers["completed"], pump.machine.custody.uncompleted) == (
        0,
        3,
        frozenset(),
    )


def test_a_batch_leaves_room_for_its_envelope():
    pump = Pump(limit_bytes=BATCH_ENVELOPE_BYTES + 2 * 508)
    for number in range(3):
        pump.arrive(number, size=500)
    assert [numbers(batch) for batch in pump.sends()] == [[0, 1], [2]]


def test_a_message_alone_may_use_the_whole_limit():
    pump = Pump(limit_bytes=1000)
    pump.arrive(1, size=1000)
    pump.arrive(2, size=1001)
    actions = pump.poll()
    assert [numbers(action.batch) for action in actions if isinstance(action, Send)] == [[1]]
    [settle] = [action for action in actions if isinstance(action, Settle)]
    assert (settle.disposition, settle.reason) == (Disposition.DEAD_LETTER, "MessageTooLarge")


def test_one_session_never_has_two_batches_on_their_way():
    pump = Pump(limit_bytes=BATCH_ENVELOPE_BYTES + 2 * 508)
    for number in range(4):
        pump.arrive(number, session="s", size=500)
    [first] = pump.sends()
    assert numbers(first) == [0, 1]
    assert pump.sends() == []
    pump.machine.destinations.sent(first, 0.0)
    assert [numbers(batch) for batch in pump.sends()] == [[2, 3]]


def test_a_failed_session_batch_goes_again_before_what_came_later():
    pump = Pump()
    pump.arrive(1, session="s")
    [batch] = pump.sends()
    pump.arrive(2, session="s")
    pump.fail(batch, ConnectionLostError("down"))
    pump.now = 1.5
    assert [numbers(batch) for batch in pump.sends()] == [[1, 2]]


def test_a_session_waits_for_a_message_that_was_lost():
    pump = Pump()
    pump.arrive(1, session="s", lock=5.0)
    [batch] = pump.sends()
    pump.arrive(2, session="s", lock=60.0)
    pump.now = 6.0
    pump.fail(batch, ConnectionLostError("down"))
    pump.now = 7.5
    actions = pump.poll()
    assert PollAgain(QUEUE) in actions
    pump.confirm([action for action in actions if isinstance(action, Settle)])
    assert pump.sends() == []
    pump.arrive(1, session="s", receipt=2)
    pump.arrive(2, session="s", receipt=2)
    assert [numbers(batch) for batch in pump.sends()] == [[1, 2]]


def skip(pump, number, session="s"):
    """A browse showed this message, which a receive had passed over."""
    pump.machine.expect(received(number), Forward(b"", "orders", session), pump.now)


def lead(pump, number=1):
    """Send one message of the queue, so that this pump is the one that goes on there."""
    pump.arrive(number, session="first")
    [batch] = pump.sends()
    pump.machine.destinations.sent(batch, pump.now)
    pump.confirm(pump.settles())


def answer(pump, sample, *numbers, state=MessageState.ACTIVE):
    page = [replace(received(number), state=state) for number in numbers]
    pump.machine.queues.sampled(sample, page, in_hand=pump.machine.queues.in_hand(QUEUE), now=pump.now)


def samples(actions):
    return [action for action in actions if isinstance(action, Sample)]


def test_time_alone_closes_no_gap():
    pump = Pump()
    lead(pump)
    skip(pump, 2)
    pump.arrive(3, session="s", lock=1e9)
    for hour in range(100):
        pump.now = 3600.0 * hour
        for action in pump.poll():
            assert not isinstance(action, Send)
            if isinstance(action, Sample):
                answer(pump, action, 2, 3)
            elif isinstance(action, Settle):
                assert action.disposition is Disposition.RELEASE
                pump.machine.custody.settled([action])


@pytest.mark.parametrize("state", [None, MessageState.DEFERRED])
def test_a_gap_closes_when_a_browse_shows_that_its_message_is_gone_or_deferred(state):
    pump = Pump()
    lead(pump)
    skip(pump, 2)
    pump.arrive(3, session="s")
    assert pump.sends() == []
    pump.now = 0.3
    [sample] = samples(pump.poll())
    assert sample.first == 2
    if state is None:
        answer(pump, sample, 3)
    else:
        pump.machine.queues.sampled(sample, [replace(received(2), state=state)], in_hand=frozenset(), now=pump.now)
    assert [numbers(batch) for batch in pump.sends()] == [[3]]


def test_a_queue_is_opened_with_one_message_and_read_on_as_long_as_most_of_it_can_go():
    pump = Pump()
    assert pump.machine.grant(100, pump.now, QUEUE) == 1
    pump.machine.window.returned(1)
    pump.arrive(1, session="s")
    assert pump.machine.grant(100, pump.now, QUEUE) == 100


def test_whoever_opens_a_queue_gives_way_to_what_others_have_before_it_whatever_its_session():
    pump = Pump()
    skip(pump, 1)
    assert pump.machine.queues.hopeless_now([received(2)])
    pump.machine.queues.gave_way(QUEUE, pump.now)
    pump.machine.custody.refused(received(2), lock_until=60.0, lock_seconds=60.0)
    [release] = pump.settles()
    assert (release.disposition, release.received.sequence_number) == (Disposition.RELEASE, 2)
    assert pump.machine.queues.standing_back(QUEUE)
    assert pump.machine.grant(100, pump.now, QUEUE) == 0


def test_whoever_has_the_smaller_part_of_a_queue_gives_way_at_once():
    pump = Pump()
    lead(pump)
    for number in range(2, 5):
        skip(pump, number)
    pump.arrive(5, session="s")
    [release] = pump.settles()
    assert (release.disposition, release.item.received.sequence_number) == (Disposition.RELEASE, 5)
    assert pump.machine.queues.standing_back(QUEUE)


def test_where_browses_are_answered_slowly_nobody_asks_a_leader_soon():
    def first_try(round_trip_seconds):
        pump = Pump()
        skip(pump, 1)
        pump.arrive(2, session="s")
        pump.confirm(pump.settles())
        while not pump.machine.grant(100, pump.now, QUEUE):
            pump.now += 0.5
            for sample in samples(pump.poll()):
                pump.now += round_trip_seconds
                answer(pump, sample, 1)
        return pump.now

    assert first_try(0.01) < 3 < 4 < first_try(0.5)


def test_a_leader_waits_a_moment_then_releases_what_is_blocked_and_stands_back():
    pump = Pump()
    lead(pump)
    skip(pump, 2)
    pump.arrive(3, session="s")
    pump.arrive(4, session="free")
    assert [numbers(batch) for batch in pump.sends()] == [[4]]
    pump.now = 2 * TRY_AFTER_SECONDS - 0.1
    assert pump.settles() == []
    pump.now = 2 * TRY_AFTER_SECONDS + 0.5
    [release] = pump.settles()
    assert (release.disposition, release.item.received.sequence_number) == (Disposition.RELEASE, 3)
    assert pump.machine.grant(100, pump.now, QUEUE) == 0


def test_whoever_is_behind_another_releases_at_once_and_asks_for_one_when_the_head_stands_still():
    pump = Pump()
    skip(pump, 1)
    pump.arrive(2, session="s")
    [release] = pump.settles()
    assert release.disposition is Disposition.RELEASE
    pump.confirm([release])
    assert pump.machine.grant(100, pump.now, QUEUE) == 0
    for head, may_receive in ((1, 0), (5, 0), (9, 0), (9, 0), (9, 1)):  # two times as long as it stood still before
        pump.now += 1.0
        [sample] = samples(pump.poll())
        assert sample.first == 1
        answer(pump, sample, head, head + 1)
        granted = pump.machine.grant(100, pump.now, QUEUE)
        assert granted == may_receive
    pump.machine.window.returned(1)
    pump.machine.queues.tried(QUEUE, [received(9)], pump.now)
    pump.arrive(9, session="s")
    assert [numbers(batch) for batch in pump.sends()] == [[9]]
    assert pump.machine.grant(100, pump.now, QUEUE) == 100


def test_what_was_asked_for_and_released_is_noticed_when_somebody_else_takes_it():
    pump = Pump()
    skip(pump, 1)
    pump.arrive(2, session="s")
    pump.confirm(pump.settles())
    skip(pump, 3)
    pump.machine.queues.proved(QUEUE, SkippedNumbers(1, 5))
    pump.arrive(5, session="s")
    [release] = pump.settles()
    assert release.disposition is Disposition.RELEASE
    assert pump.machine.queues.skipped([received(6)], [Forward(b"", "orders", "s")]) == [SkippedNumbers(1, 6)]


def test_what_was_released_while_standing_back_is_not_overtaken_by_what_came_with_it():
    pump = Pump()
    skip(pump, 1)
    pump.arrive(2, session="s")
    pump.confirm(pump.settles())
    skip(pump, 1)
    pump.arrive(3, session="s")  # one receive brought 3 to 5: this one waits for 1 and goes back,
    pump.arrive(4, session="free")  # this one may go, so the queue is read again,
    [batch] = pump.sends()
    pump.machine.destinations.sent(batch, pump.now)
    pump.arrive(5, session="s")  # and this one is held
    pump.now += 0.3
    for sample in samples(pump.poll()):
        answer(pump, sample, 3, 5)  # 1 is done
    pump.now += 0.3
    assert 5 not in [number for batch in pump.sends() for number in numbers(batch)]


def test_whoever_is_handed_the_head_knows_nothing_of_what_lies_before_it():
    """It may have been ours when the head was browsed, and somebody else's since."""
    pump = Pump()
    skip(pump, 1)
    pump.arrive(2, session="s")
    pump.confirm(pump.settles())
    pump.now += 1.0
    [sample] = samples(pump.poll())
    answer(pump, sample, 9)
    pump.machine.queues.tried(QUEUE, [received(7)], pump.now)
    assert not pump.machine.queues.standing_back(QUEUE)
    assert pump.machine.queues.skipped([received(7)], [Forward(b"", "orders", "s")]) == [SkippedNumbers(1, 7)]


def test_a_browse_during_which_something_was_released_proves_nothing():
    pump = Pump()
    before = pump.machine.queues.forgotten(QUEUE)
    skip(pump, 1)
    pump.arrive(2, session="s")
    assert pump.machine.queues.forgotten(QUEUE) == before
    pump.settles()
    assert pump.machine.queues.forgotten(QUEUE) > before


def test_what_comes_before_its_release_is_confirmed_goes_back_if_more_was_released_meanwhile():
    pump = Pump()
    skip(pump, 1)
    pump.arrive(2, session="s")
    [first] = pump.settles()
    assert first.disposition is Disposition.RELEASE
    pump.arrive(2, session="s", receipt=2)
    pump.arrive(3, session="s")
    pump.confirm([first])
    releases = pump.settles()
    assert [(one.received.sequence_number, one.disposition) for one in releases] == [
        (3, Disposition.RELEASE),
        (2, Disposition.RELEASE),
    ]
    pump.confirm(releases)
    assert (pump.machine.custody.live, pump.machine.tally.numbers["forwarded"]) == (0, 0)


def test_what_goes_back_unseen_goes_back_also_if_its_release_was_not_confirmed_yet():
    pump = Pump()
    skip(pump, 1)
    pump.arrive(2, session="s")
    [first] = pump.settles()
    pump.machine.custody.refused(received(2, receipt=2), lock_until=60.0, lock_seconds=60.0)
    pump.confirm([first])
    [second] = pump.settles()
    assert (second.disposition, second.received) == (Disposition.RELEASE, received(2, receipt=2))


def test_a_head_that_does_not_move_is_held_for_so_that_other_sessions_go_on():
    pump = Pump(in_flight_messages=10, lock_wait_seconds=65.0)
    skip(pump, 1)
    pump.arrive(2, session="s")
    pump.confirm(pump.settles())
    met = []
    while pump.machine.queues.standing_back(QUEUE):
        pump.now += 1.0
        actions = pump.poll()
        for sample in samples(actions):
            answer(pump, sample, 1, 2, 3)
        if granted := pump.machine.grant(100, pump.now, QUEUE):
            pump.machine.window.returned(granted)
            pump.machine.queues.tried(QUEUE, [], pump.now)
            met += [action for action in pump.poll() if isinstance(action, LockMet)]
    assert [(lock.sequence_number, lock.seconds) for lock in met] == [(1, 60.0)]
    assert 3.0 <= pump.now <= 5.0
    skip(pump, 1)
    for number in range(2, 6):
        pump.arrive(number, session="s")
    pump.arrive(6, session="free")
    assert [numbers(batch) for batch in pump.sends()] == [[6]]
    assert pump.machine.grant(100, pump.now, QUEUE) == 9  # the window but what is on its way: held ones do not fill it
    pump.machine.window.returned(9)
    for number in range(7, 10):
        pump.arrive(number, session="s")
    pump.now += 0.2
    assert pump.settles() == [], "what is more than half of the window stays locked, and only its bytes go"
    assert sorted(number for _, number, *_ in pump.machine.custody.left()) == [4, 5, 7, 8, 9]
    assert pump.machine.grant(100, pump.now, QUEUE) == 9
    pump.machine.window.returned(9)
    assert not pump.machine.queues.stalled(QUEUE, pump.now)
    pump.now += 65.0
    assert pump.machine.queues.stalled(QUEUE, pump.now)
    assert pump.machine.queues.known_locked(QUEUE) == {1}


def test_what_is_parked_comes_again_when_what_it_waits_for_has_come():
    pump = Pump(in_flight_messages=4, lock_wait_seconds=65.0)
    pump.machine.queues.of(QUEUE).hold(pump.now)
    skip(pump, 1)
    for number in range(2, 5):
        pump.arrive(number, session="s")
    pump.now += 0.2
    pump.poll()
    assert [number for _, number, *_ in pump.machine.custody.left()] == [3, 4]
    pump.arrive(1, session="s")
    pump.arrive(5, session="s")
    actions = pump.poll()
    batches = [action.batch for action in actions if isinstance(action, Send)]
    assert [numbers(batch) for batch in batches] == [[1, 2]]
    releases = [action for action in actions if isinstance(action, Settle)]
    assert [settle.item.received.sequence_number for settle in releases] == [4, 3]
    pump.confirm(releases)
    pump.machine.destinations.sent(batches[0], pump.now)
    assert pump.sends() == [], "nothing of the session goes before what was parked is back"


def test_what_was_sent_by_an_earlier_run_closes_its_gap():
    pump = Pump(forwarded=[(QUEUE, 1, "m1", 1000)])
    pump.arrive(2, session="s")
    pump.arrive(1, session="s")
    actions = pump.poll()
    [settle] = [action for action in actions if isinstance(action, Settle)]
    assert settle.outcome == "already-forwarded"
    pump.confirm([settle])
    assert pump.machine.tally.numbers["already_forwarded"] == 1
    assert pump.machine.tally.numbers["forwarded"] == 0


def test_not_found_buries_the_whole_batch():
    pump = Pump()
    pump.arrive(1)
    pump.arrive(2)
    [batch] = pump.sends()
    pump.fail(batch, EntityNotFoundError("no such queue"))
    settles = pump.settles()
    assert [(settle.disposition, settle.reason) for settle in settles] == [
        (Disposition.DEAD_LETTER, "EntityNotFound")
    ] * 2
    assert settles[0].description == "no such queue"


@pytest.mark.parametrize("error", [MessageTooLargeError("big"), ArgumentRefusedError("no")])
def test_the_culprit_of_a_batch_is_found_one_by_one(error):
    pump = Pump()
    for number in range(3):
        pump.arrive(number)
    [batch] = pump.sends()
    pump.fail(batch, error)
    batches = pump.sends()
    assert sorted(numbers(batch) for batch in batches) == [[0], [1], [2]]
    pump.fail(batches[0], error)
    assert len(pump.settles()) == 1


def test_a_mixture_that_is_refused_is_sent_apart():
    pump = Pump()
    for number in range(6):
        pump.arrive(number, session=f"s{number % 2}")
    [batch] = pump.sends()
    pump.fail(batch, ArgumentRefusedError("partition keys differ"))
    assert sorted(numbers(batch) for batch in pump.sends()) == [[0, 2, 4], [1, 3, 5]]


def test_a_batch_accepted_in_part_is_not_sent_twice():
    pump = Pump()
    for number in range(3):
        pump.arrive(number)
    [batch] = pump.sends()
    error = SendIncompleteError("half", accepted=(0, 1))
    error.__cause__ = ConnectionLostError("down")
    pump.fail(batch, error)
    assert [settle.item.received.sequence_number for settle in pump.settles()] == [0, 1]
    pump.now = 2.0
    assert [numbers(batch) for batch in pump.sends()] == [[2]]


def test_server_busy_stops_every_send_and_receive_for_longer_each_time():
    pump = Pump()
    pump.arrive(1)
    [batch] = pump.sends()
    pump.fail(batch, ServerBusyError("throttled"))
    pump.arrive(2, to="invoices")
    for began, seconds in [(0.0, 1.0), (1.0, 2.0), (3.0, 4.0), (7.0, 8.0), (15.0, 10.0)]:
        assert PauseBegan("", "server-busy", seconds) in pump.poll()
        pump.now = began + seconds - 0.1
        assert pump.sends() == []
        assert pump.machine.grant(10, pump.now) == 0
        pump.now = began + seconds
        batches = pump.sends()
        assert len(batches) == 2
        for batch in batches:
            pump.fail(batch, ServerBusyError("throttled"))


def test_one_probe_at_a_time_until_it_works():
    pump = Pump(limit_bytes=BATCH_ENVELOPE_BYTES + 108)
    for number in range(3):
        pump.arrive(number)
    batches = pump.sends()
    assert len(batches) == 3
    for batch in batches:
        pump.fail(batch, ConnectionLostError("down"))
    pump.now = 5.0
    [probe] = pump.sends()
    assert pump.sends() == []
    pump.machine.destinations.sent(probe, pump.now)
    actions = pump.poll()
    assert PauseEnded("orders") in actions
    assert len([action for action in actions if isinstance(action, Send)]) == 2


def try_and_fail(pump, error, times):
    """Let the destination fail so often; the pauses, and how often the message was given back meanwhile."""
    waits, given_back = [], 0
    for _ in range(times):
        if not pump.machine.custody.live:
            pump.arrive(1, lock=10_000.0)
        [batch] = pump.sends()
        pump.fail(batch, error)
        actions = pump.poll()
        [wait] = [action.seconds for action in actions if isinstance(action, PauseBegan)]
        waits.append(wait)
        resumes = pump.now + wait
        pump.now += min(1.5, wait / 2)
        released = [action for action in actions + pump.poll() if isinstance(action, Settle)]
        assert all(settle.disposition is Disposition.RELEASE for settle in released)
        pump.confirm(released)
        given_back += len(released)
        pump.now = resumes
    return waits, given_back


def test_quota_backs_off_slowly_and_never_buries():
    pump = Pump()
    waits, _ = try_and_fail(pump, QuotaExceededError("full"), 6)
    assert waits == [10, 20, 40, 80, 120, 120]
    assert pump.machine.tally.numbers["dead_lettered"] == 0


def test_a_long_outage_gives_everything_back_and_receives_nothing_until_the_next_try():
    pump = Pump()
    waits, given_back = try_and_fail(pump, ConnectionLostError("down"), 7)
    assert waits == [1, 2, 4, 8, 16, 32, 64]
    assert given_back == 2
    began = pump.now - waits[-1]
    assert pump.machine.grant(10, began + HOLD_SECONDS) == 0
    assert pump.machine.grant(10, pump.now - 0.1) == 0
    assert pump.machine.grant(10, pump.now) == 10


def test_a_lock_about_to_end_is_renewed_and_one_that_ended_is_not_sent():
    pump = Pump()
    pump.arrive(1, session="s", lock=60.0)
    [batch] = pump.sends()
    pump.now = 46.0
    [renew] = [action for action in pump.poll() if isinstance(action, Renew)]
    pump.machine.custody.renewed(renew, 106.0)
    pump.now = 92.0
    [renew] = [action for action in pump.poll() if isinstance(action, Renew)]
    pump.machine.custody.renew_failed(renew, LockLostError("gone"), pump.now)
    pump.fail(batch, ConnectionLostError("down"))
    pump.poll()
    assert (pump.machine.custody.live, pump.machine.tally.numbers["locks_lost"]) == (0, 1)


def test_the_newest_receipt_is_the_one_that_is_settled():
    pump = Pump()
    pump.arrive(1, receipt="old")
    [batch] = pump.sends()
    pump.arrive(1, receipt="new")
    pump.machine.destinations.sent(batch, 0.0)
    [settle] = pump.settles()
    assert settle.received.receipt == "new"


def test_a_completion_refused_for_an_old_receipt_is_tried_with_the_new_one():
    pump = Pump()
    pump.arrive(1, receipt="old")
    [batch] = pump.sends()
    pump.machine.destinations.sent(batch, 0.0)
    [settle] = pump.settles()
    pump.arrive(1, receipt="new")
    pump.machine.custody.settle_failed(settle, LockLostError("gone"), 0.0)
    [again] = pump.settles()
    assert again.received.receipt == "new"


def test_forwarded_but_not_completed_is_remembered():
    pump = Pump()
    pump.arrive(1)
    [batch] = pump.sends()
    pump.machine.destinations.sent(batch, 0.0)
    [settle] = pump.settles()
    pump.machine.custody.settle_failed(settle, ConnectionLostError("gone"), 0.0)
    assert len(pump.machine.custody.uncompleted) == 1
    pump.arrive(1, receipt=2)
    [settle] = pump.settles()
    assert (settle.disposition, settle.outcome) == (Disposition.COMPLETE, "already-forwarded")
    pump.confirm([settle])
    assert pump.machine.custody.uncompleted == frozenset()
    assert pump.sends() == []


def test_a_released_message_may_come_back_before_its_release_is_confirmed():
    pump = Pump()
    pump.arrive(1, verdict=Leave("filtered out"))
    pump.machine.custody.release_left()
    [settle] = pump.settles()
    pump.arrive(1, receipt=2)
    assert pump.machine.custody.live == 1
    pump.confirm([settle])
    [batch] = pump.sends()
    assert batch.items[0].received.receipt == 2


def test_pings_are_completed_and_left_ones_kept():
    pump = Pump()
    pump.arrive(1, verdict=Finish(Disposition.COMPLETE, "ping"))
    pump.arrive(2, verdict=Leave("filtered out"))
    pump.confirm(pump.settles())
    assert pump.machine.tally.numbers["pings"] == 1
    assert list(pump.machine.custody.left().values()) == ["filtered out"]
    assert pump.machine.custody.live == 0


def test_what_is_a_dead_letter_already_is_left_where_it_lies():
    pump = Pump(source=dead_letter_path(QUEUE))
    pump.arrive(1, verdict=Finish(Disposition.DEAD_LETTER, "dead-lettered", "NotABacklogMessage", "x"))
    assert pump.settles() == []
    assert list(pump.machine.custody.left().values()) == ["undeliverable: NotABacklogMessage"]


def test_the_bounds_hold():
    pump = Pump(in_flight_messages=10, sends=1)
    assert pump.machine.grant(100, 0.0) == 10
    assert pump.machine.grant(100, 0.0) == 0
    pump.machine.window.returned(10)
    for number in range(10):
        pump.arrive(number)
    assert pump.machine.grant(100, 0.0) == 0
    pump.poll()
    pump.arrive(11, to="invoices")
    assert pump.sends() == []


def test_bytes_are_bounded_by_what_messages_have_turned_out_to_weigh():
    pump = Pump(in_flight_bytes=1_000_000, limit_bytes=10_000_000)
    for number in range(4):
        pump.arrive(number, size=240_000)
    assert pump.machine.grant(100, 0.0) < 10


def test_patience_leaves_what_waits_and_what_comes():
    pump = Pump(patience_seconds=30.0)
    pump.arrive(1)
    [batch] = pump.sends()
    pump.fail(batch, ConnectionLostError("down"))
    pump.now = 31.0
    pump.poll()
    pump.arrive(2)
    assert set(pump.machine.custody.left().values()) == {"destination unavailable: orders (connection-lost)"}
    assert (pump.machine.custody.live, pump.sends()) == (0, [])


def test_the_patience_with_a_silent_destination_counts_from_when_its_first_try_began():
    pump = Pump(patience_seconds=120.0, unreached_seconds=20.0)
    pump.arrive(1)
    [batch] = pump.sends()
    pump.now = 15.0  # so long nothing was heard
    pump.fail(batch, OperationTimeoutError("silent"))
    assert PauseBegan("orders", "timeout", 1.0, abandoned_in_seconds=5.0) in pump.poll()
    pump.now = 19.0
    assert len(pump.sends()) == 1
    pump.now = 20.0
    pump.poll()
    assert pump.sends() == []
    pump.arrive(2)
    assert set(pump.machine.custody.left().values()) == {"destination unavailable: orders (timeout)"}


def test_a_destination_that_took_messages_all_the_time_has_its_whole_patience():
    pump = Pump(patience_seconds=30.0)
    pump.arrive(1)
    [batch] = pump.sends()
    for pump.now in (40.0, 80.0):
        pump.machine.destinations.sent(batch, pump.now)
        pump.arrive(int(pump.now))
        [batch] = pump.sends()
    pump.now = 90.0
    pump.fail(batch, ConnectionLostError("down"))
    assert PauseBegan("orders", "connection-lost", 1.0, abandoned_in_seconds=20.0) in pump.poll()


def test_a_namespace_that_is_too_busy_for_everything_is_left_after_the_patience():
    pump = Pump(patience_seconds=30.0)
    pump.arrive(1)
    pump.arrive(2, to="invoices")
    tries = 0
    while pump.now < 30.0:
        for batch in pump.sends():
            pump.fail(batch, ServerBusyError("throttled"))
            tries += 1
        pump.poll()
        pump.now += 1.0
    assert tries > 4
    pump.poll()
    pump.arrive(3, to="other")
    pump.poll()
    said = {f"destination unavailable: {path} (server-busy)" for path in ("orders", "invoices", "other")}
    assert set(pump.machine.custody.left().values()) == said


def test_a_namespace_that_takes_something_now_and_then_is_not_too_busy():
    pump = Pump(patience_seconds=30.0)
    pump.arrive(1)
    for number in range(2, 20):
        pump.arrive(number)
        for batch in pump.sends():
            if number % 2:
                pump.fail(batch, ServerBusyError("throttled"))
            else:
                pump.machine.destinations.sent(batch, pump.now)
        pump.poll()
        pump.now += 11.0
    assert not pump.machine.custody.left()


def test_stop_gives_back_what_waits_and_settles_what_is_on_its_way():
    pump = Pump(sends=1)
    pump.arrive(1)
    [batch] = pump.sends()
    pump.arrive(2)
    pump.machine.stop(0.0)
    [release] = pump.settles()
    assert (release.disposition, release.item.received.sequence_number) == (Disposition.RELEASE, 2)
    pump.machine.destinations.sent(batch, 0.0)
    [complete] = pump.settles()
    assert complete.disposition is Disposition.COMPLETE
    pump.confirm([release, complete])
    assert (pump.machine.custody.live, pump.machine.grant(1, 0.0)) == (0, 0)


def test_stop_gives_back_what_fails_on_its_way():
    pump = Pump()
    pump.arrive(1)
    [batch] = pump.sends()
    pump.machine.stop(0.0)
    pump.fail(batch, ConnectionLostError("down"))
    assert [settle.disposition for settle in pump.settles()] == [Disposition.RELEASE]


def test_a_rate_is_kept_over_time():
    pump = Pump(rate_per_second=10.0)
    for number in range(100):
        pump.arrive(number)
    sent = 0
    for tick in range(51):
        pump.now = tick / 10
        for batch in pump.sends():
            sent += len(batch.items)
            pump.machine.destinations.sent(batch, pump.now)
    assert 50 <= sent <= 52


def test_a_busy_backlog_gets_its_settlements_later():
    pump = Pump()
    pump.arrive(1)
    [batch] = pump.sends()
    pump.machine.destinations.sent(batch, 0.0)
    [settle] = pump.settles()
    pump.machine.custody.settle_failed(settle, ServerBusyError("throttled"), 0.0)
    pump.now = 9.0
    assert pump.settles() == []
    pump.now = 10.0
    assert pump.settles() == [settle]


def held_bytes(root):
    """Memory of everything that an object leads to, classes and code aside."""
    seen, left, total = {id(root)}, [root], 0
    while left:
        one = left.pop()
        total += sys.getsizeof(one)
        for other in gc.get_referents(one):
            if id(other) not in seen and not isinstance(other, type | FunctionType | ModuleType):
                seen.add(id(other))
                left.append(other)
    return total


@pytest.mark.parametrize("sessions", [0, 20])
def test_what_is_settled_is_forgotten(sessions):
    """A syphon runs for months."""
    pump = Pump()
    after = []
    for number in range(1, 40_001):
        pump.arrive(number << 8, session=f"s{number % sessions}" if sessions else None)
        if number % 100 == 0:
            while batches := pump.sends():
                for batch in batches:
                    pump.machine.destinations.sent(batch, pump.now)
                pump.confirm(pump.settles())
            pump.now += 1.0
        if number in (4_000, 40_000):
            assert pump.machine.custody.live == 0
            after.append(held_bytes(pump.machine))
    assert after[1] < 1.5 * after[0], after
