"""All destinations: which batch goes next, what a refused one means, how long to go on, and when to ask again."""

import pytest

from sbpair.core.errors import (
    ArgumentRefusedError,
    ConnectionLostError,
    EntityDisabledError,
    EntityNotFoundError,
    MessageTooLargeError,
    SendIncompleteError,
    ServerBusyError,
)
from sbpair.core.message import Disposition, Received
from sbpair.core.rewrite import compose
from sbpair.core.transfer.delivery import CALM_SECONDS, HOLD_SECONDS, PROBE_SECONDS
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.order import OrderGap
from sbpair.core.transfer.state import (
    Forward,
    Limits,
    Measure,
    PauseBegan,
    PauseEnded,
    PollAgain,
    Send,
    Settle,
    Stage,
    key_of,
)
from sbpair.core.transfer.verdict import WAITS_IN_SESSION

QUEUE = "backlog/0"
SILENCE = ConnectionLostError("silence")
LARGE = compose(body=bytes(200), message_id="1")


class Bench:
    """A machine, its destinations, and what it wants done."""

    def __init__(self, *, limit_bytes=100_000, undeliverable="", **options):
        limits = {name: options.pop(name) for name in Limits.__dataclass_fields__ if name in options}
        options |= {} if undeliverable == "" else {"undeliverable": undeliverable}
        self.machine = Settlement(Limits(**limits), **options)
        self.destinations, self.custody = self.machine.destinations, self.machine.custody
        self.limit_bytes = limit_bytes
        self.now = 10.0

    def arrive(self, *numbers, to="orders", session=None, size=100, key=None):
        for number in numbers:
            received = Received(payload=b"", sequence_number=number, source=QUEUE)
            verdict = Forward(bytes(size), to, session, key)
            self.machine.arrived(received, verdict, lock_until=self.now + 600, lock_seconds=600.0, now=self.now)

    def item(self, number):
        return self.custody.find(key_of(Received(payload=b"", sequence_number=number, source=QUEUE)))

    def poll(self):
        actions = []
        for action in self.machine.poll(self.now):
            if isinstance(action, Measure) and self.limit_bytes is not None:
                self.destinations.limit_known(action.destination, self.limit_bytes)
                actions += self.poll()
            else:
                actions.append(action)
        return actions

    def of(self, kind):
        return [action for action in self.poll() if isinstance(action, kind)]

    def sends(self):
        return [action.batch for action in self.of(Send)]

    def waits(self):
        """Seconds until the machine is to be asked again."""
        return self.machine.deadline(self.now) - self.now


def numbers(batch):
    return [item.received.sequence_number for item in batch.items]


def test_destinations_take_turns_and_no_more_batches_go_than_may_be_on_their_way():
    bench = Bench(sends=3, batch_messages=2)
    bench.destinations.limit_known("orders", 100_000)
    bench.destinations.limit_known("Bills", 100_000)
    bench.arrive(1, 2, 3, 4, to="orders")
    bench.arrive(5, 6, to="Bills")
    bench.arrive(7, 8, to="BILLS")
    batches = bench.sends()
    assert [(batch.destination, numbers(batch)) for batch in batches] == [
        ("orders", [1, 2]),
        ("Bills", [5, 6]),
        ("orders", [3, 4]),
    ]
    assert bench.sends() == []
    bench.destinations.sent(batches[0], bench.now)
    assert [numbers(batch) for batch in bench.sends()] == [[7, 8]]


def test_a_link_is_measured_once_before_anything_is_sent():
    bench = Bench(limit_bytes=None)
    bench.arrive(1)
    assert bench.of(Measure) == [Measure("orders")]
    assert bench.poll() == []
    bench.destinations.limit_known("ORDERS", 100_000)
    assert [numbers(batch) for batch in bench.sends()] == [[1]]


def test_what_turns_out_too_large_is_dead_lettered_when_the_limit_is_known():
    bench = Bench(limit_bytes=None)
    bench.arrive(1, size=100)
    bench.arrive(2, size=101)
    bench.poll()
    bench.destinations.limit_known("orders", 100)
    [settle] = bench.of(Settle)
    assert (settle.received.sequence_number, settle.reason) == (2, "MessageTooLarge")
    assert settle.description == "The message is larger than the 100 bytes that orders accepts."


def test_after_a_failure_a_destination_gets_a_single_batch_at_a_time():
    bench = Bench(batch_messages=1)
    bench.arrive(1, 2)
    first, second = bench.sends()
    bench.destinations.send_failed(first, SILENCE, bench.now)
    bench.now += 1.0
    assert bench.sends() == [], "the other is still on its way"
    bench.destinations.send_failed(second, SILENCE, bench.now)
    bench.now += 2.0
    assert len(bench.sends()) == 1


def test_a_trouble_is_announced_with_the_end_of_the_patience():
    bench = Bench(patience_seconds=100.0, unreached_seconds=30.0)
    bench.arrive(1)
    [batch] = bench.sends()
    bench.now += 4.0
    bench.destinations.send_failed(batch, SILENCE, bench.now)
    assert bench.of(PauseBegan) == [PauseBegan("orders", SILENCE.code, 1.0, 26.0)]
    bench.now += 1.0
    [batch] = bench.sends()
    bench.destinations.sent(batch, bench.now)
    assert bench.of(PauseEnded) == [PauseEnded("orders")]


def test_past_the_patience_what_waits_is_left_and_what_comes():
    bench = Bench(patience_seconds=30.0)
    bench.arrive(1)
    [batch] = bench.sends()
    bench.destinations.send_failed(batch, SILENCE, bench.now)
    bench.now += 29.9
    bench.poll()
    assert bench.custody.left() == {}
    bench.now += 0.1
    bench.poll()
    assert bench.custody.left_messages == 0, "a batch is on its way: its answer decides"
    assert bench.destinations.given_up() == {"orders": SILENCE}
    bench.arrive(2)
    assert bench.custody.left() == {bench.item(2).key: f"destination unavailable: orders ({SILENCE.code})"}
    bench.destinations.window.pause_receiving(bench.now + 60.0)
    bench.now += 1.0
    bench.poll()
    assert not bench.destinations.window.receives(bench.now), "a destination is given up once: a pause for others stays"


def test_an_error_that_is_not_to_be_waited_for_ends_all_patience():
    disabled = EntityDisabledError("disabled")
    bench = Bench(patience_seconds=1000.0, no_use_waiting=frozenset({disabled.category}))
    bench.arrive(1)
    [batch] = bench.sends()
    bench.destinations.send_failed(batch, disabled, bench.now)
    assert bench.poll() == []
    assert (bench.item(1).stage, bench.destinations.given_up()) == (Stage.LEFT, {"orders": disabled})


def test_a_namespace_too_busy_for_longer_than_the_patience_is_given_up_where_something_waits():
    busy = ServerBusyError("busy")
    bench = Bench(patience_seconds=30.0)
    bench.arrive(1)
    bench.arrive(2, to="bills")
    first, second = bench.sends()
    bench.destinations.sent(second, 9.0)
    bench.destinations.send_failed(first, busy, bench.now)
    bench.now += 30.0
    bench.poll()
    assert bench.destinations.given_up() == {"orders": busy}


def test_a_missing_destination_dead_letters_what_waits_or_leaves_it():
    missing = EntityNotFoundError("There is no orders.")
    for leave in (False, True):
        bench = Bench(limit_bytes=None, leave_missing=leave)
        bench.arrive(1)
        bench.poll()
        bench.destinations.limit_failed("orders", missing, bench.now)
        settles = [(settle.reason, settle.description) for settle in bench.of(Settle)]
        assert settles == ([] if leave else [("EntityNotFound", "There is no orders.")])
        assert (bench.custody.left_messages, bool(bench.destinations.given_up())) == (int(leave), leave)


def test_a_link_that_cannot_be_opened_is_a_trouble_and_one_that_fails_again_in_the_pause_is_not():
    bench = Bench(limit_bytes=None)
    bench.arrive(1)
    bench.poll()
    bench.destinations.limit_failed("orders", SILENCE, bench.now)
    assert bench.of(PauseBegan) == [PauseBegan("orders", SILENCE.code, 1.0, None)]
    destination = bench.destinations.of("orders")
    bench.now += 0.5
    bench.destinations.limit_failed("orders", SILENCE, bench.now)
    assert (destination.failures, destination.probe_at) == (1, bench.now + PROBE_SECONDS)
    bench.now += 0.5
    bench.destinations.limit_failed("orders", SILENCE, bench.now)
    assert destination.failures == 2, "the pause was over"


def test_paused_destinations_are_probed_when_that_is_due():
    bench = Bench(limit_bytes=None)
    destination = bench.destinations.of("orders")
    destination.limit_bytes = 1000
    for _ in range(5):
        destination.failed(SILENCE, bench.now)
    bench.now += PROBE_SECONDS - 0.1
    assert bench.of(Measure) == []
    assert bench.waits() == pytest.approx(0.1)
    bench.now += 0.1
    assert bench.of(Measure) == [Measure("orders")]
    assert bench.of(Measure) == []


def test_nothing_is_probed_once_we_stop():
    bench = Bench()
    for _ in range(5):
        bench.destinations.of("orders").failed(SILENCE, bench.now)
    bench.machine.stop(bench.now)
    bench.now += PROBE_SECONDS
    assert bench.of(Measure) == []
    assert PROBE_SECONDS not in [when - bench.now for when in bench.destinations.deadlines(bench.now)]


@pytest.mark.parametrize(("certain", "attempts"), [(True, 0), (False, 1)])
def test_a_send_that_was_refused_for_certain_is_no_attempt(certain, attempts):
    bench = Bench()
    bench.arrive(1)
    [batch] = bench.sends()
    error = EntityDisabledError("disabled") if certain else SILENCE
    assert error.uncertain is not certain
    bench.destinations.send_failed(batch, error, bench.now)
    assert (bench.item(1).attempts, bench.item(1).stage) == (attempts, Stage.WAITING)


def test_the_culprit_of_a_batch_is_found_by_sending_its_messages_alone():
    bench = Bench()
    bench.arrive(1, 2)
    [batch] = bench.sends()
    bench.destinations.send_failed(batch, MessageTooLargeError("too large"), bench.now)
    batches = bench.sends()
    assert sorted(map(numbers, batches)) == [[1], [2]]
    bench.destinations.send_failed(batches[0], MessageTooLargeError("too large"), bench.now)
    [settle] = bench.of(Settle)
    assert (settle.reason, settle.description) == ("MessageTooLarge", "too large")


def test_a_mixture_that_was_refused_is_first_sent_apart_and_then_alone():
    bench = Bench()
    bench.arrive(1, 2, key="a")
    bench.arrive(3, key="b")
    [batch] = bench.sends()
    refused = ArgumentRefusedError("mixed")
    bench.destinations.send_failed(batch, refused, bench.now)
    batches = bench.sends()
    assert len(batches) == 2
    assert [item.alone for batch in batches for item in batch.items] == [False] * 3
    pair = next(batch for batch in batches if len(batch.items) == 2)
    bench.destinations.send_failed(pair, refused, bench.now)
    assert sorted(map(numbers, bench.sends())) == [[1], [2]]


def test_of_a_batch_accepted_in_part_the_rest_goes_again():
    bench = Bench()
    bench.arrive(1, 2, 3)
    [batch] = bench.sends()
    error = SendIncompleteError("cut off", accepted=(0, 2))
    error.__cause__ = EntityDisabledError("disabled")
    bench.destinations.send_failed(batch, error, bench.now)
    assert [bench.item(number).stage for number in (1, 2, 3)] == [Stage.SETTLING, Stage.WAITING, Stage.SETTLING]
    assert bench.custody.uncompleted == {bench.item(1).key, bench.item(3).key}


def test_locks_that_were_lost_in_a_transaction_take_their_messages_along():
    bench = Bench()
    bench.arrive(1, 2, session="s")
    [batch] = bench.sends()
    bench.destinations.locks_lost(batch, [0], bench.now)
    assert (bench.item(1), bench.item(2).attempts) == (None, 0)
    assert bench.machine.tally.numbers["locks_lost"] == 1
    assert bench.sends() == [], "what comes before it in its session is on its way back"


def test_while_we_stop_what_fails_goes_back_even_if_its_destination_is_given_up():
    bench = Bench()
    bench.arrive(1)
    [batch] = bench.sends()
    bench.machine.stop(bench.now)
    bench.destinations.of("orders").abandon(SILENCE)
    bench.destinations.send_failed(batch, SILENCE, bench.now)
    assert [settle.disposition for settle in bench.of(Settle)] == [Disposition.RELEASE]


def test_what_a_given_up_destination_does_not_take_is_left():
    bench = Bench()
    bench.arrive(1)
    [batch] = bench.sends()
    bench.destinations.of("orders").abandon(SILENCE)
    bench.destinations.send_failed(batch, ServerBusyError("busy"), bench.now)
    assert bench.item(1).stage is Stage.LEFT


def test_a_session_goes_no_further_than_a_message_that_had_to_be_left():
    bench = Bench(sessions_wait=True, undeliverable=None, limit_bytes=None)
    bench.arrive(1, 2, 3, session="s")
    bench.arrive(4, session="t")
    bench.item(2).payload = LARGE
    bench.poll()
    bench.destinations.limit_known("orders", 150)
    assert bench.custody.left() == {
        bench.item(2).key: "undeliverable: MessageTooLarge",
        bench.item(3).key: WAITS_IN_SESSION,
    }
    bench.arrive(5, session="s")
    bench.arrive(0, session="s")
    assert (bench.item(5).left_because, bench.item(0).stage) == (WAITS_IN_SESSION, Stage.WAITING)


def test_a_refused_message_stays_with_what_follows_in_its_session_and_the_others_go():
    bench = Bench(leave_refused=True, limit_bytes=100)
    bench.arrive(2, session="s", size=101)
    bench.arrive(3, session="s")
    bench.arrive(4, session="t")
    [batch] = bench.sends()
    assert numbers(batch) == [4]
    bench.arrive(5)
    [alone] = bench.sends()
    bench.destinations.send_failed(alone, ArgumentRefusedError("a session id is needed"), bench.now)
    assert bench.custody.left() == {
        bench.item(2).key: "refused by orders (message-too-large)",
        bench.item(3).key: WAITS_IN_SESSION,
        bench.item(5).key: "refused by orders (argument-refused)",
    }
    assert not bench.of(Settle)


def test_elsewhere_a_session_goes_on_after_a_message_that_had_to_be_left():
    bench = Bench(undeliverable=None, limit_bytes=None)
    bench.arrive(1, 2, session="s")
    bench.item(1).payload = LARGE
    bench.poll()
    bench.destinations.limit_known("orders", 150)
    assert [numbers(batch) for batch in bench.sends()] == [[2]]


def failing(bench, *, times):
    """One message waits, and its destination has refused so many batches."""
    bench.arrive(1)
    for _ in range(times):
        bench.now = max(bench.now, bench.destinations.of("orders").paused_until)
        [batch] = bench.sends()
        bench.destinations.send_failed(batch, EntityDisabledError("disabled"), bench.now)
    bench.destinations.of("orders").probe_at = None


def test_in_a_long_pause_everything_goes_back_once_nothing_comes_any_more():
    bench = Bench()
    failing(bench, times=6)
    resumes = bench.destinations.of("orders").paused_until
    assert resumes - bench.now > HOLD_SECONDS
    bench.custody.last_arrival = bench.now
    bench.now += CALM_SECONDS - 0.1
    assert bench.of(Settle) == []
    bench.now += 0.1
    assert [settle.disposition for settle in bench.of(Settle)] == [Disposition.RELEASE]
    assert bench.machine.grant(10, resumes - 0.1) == 0
    assert bench.machine.grant(10, resumes) == 10


def test_a_link_that_opens_ends_the_pause_of_the_receives():
    bench = Bench()
    failing(bench, times=6)
    bench.now += CALM_SECONDS
    assert len(bench.of(Settle)) == 1
    assert bench.machine.grant(10, bench.now) == 0
    bench.destinations.limit_known("orders", 100_000)
    assert bench.machine.grant(10, bench.now) == 10


@pytest.mark.parametrize(("pause", "releases"), [(HOLD_SECONDS, False), (HOLD_SECONDS + 0.1, True)])
def test_a_pause_is_long_if_locks_would_be_held_for_too_long(pause, releases):
    bench = Bench()
    failing(bench, times=1)
    bench.now += CALM_SECONDS
    bench.destinations.of("orders").paused_until = bench.now + pause
    assert bool(bench.of(Settle)) is releases


def test_everything_is_held_as_long_as_one_destination_may_be_tried_soon():
    bench = Bench()
    failing(bench, times=1)
    bench.arrive(2, to="bills")
    [batch] = bench.sends()
    bench.destinations.send_failed(batch, EntityDisabledError("disabled"), bench.now)
    bench.poll()
    bench.now += CALM_SECONDS / 2
    bench.destinations.of("orders").paused_until = bench.now + 100
    bench.destinations.of("bills").paused_until = bench.now + 5
    bench.custody.last_arrival = 0.0
    assert bench.of(Settle) == []
    bench.destinations.of("bills").paused_until = bench.now + 50
    assert len(bench.of(Settle)) == 2


def test_what_still_comes_during_the_pause_is_held():
    bench = Bench()
    failing(bench, times=1)
    bench.destinations.of("orders").paused_until = bench.now + 100
    bench.custody.last_arrival = 0.0
    assert len(bench.of(Settle)) == 1
    bench.arrive(2)
    bench.custody.last_arrival = 0.0
    assert bench.of(Settle) == []


def test_a_first_measurement_decides_before_everything_goes_back():
    bench = Bench()
    failing(bench, times=1)
    destination = bench.destinations.of("orders")
    destination.paused_until, destination.measuring, bench.custody.last_arrival = bench.now + 100, True, 0.0
    assert bench.of(Settle) == []
    destination.probe_at = bench.now
    assert len(bench.of(Settle)) == 1


def test_a_release_makes_what_follows_in_the_session_wait_or_not():
    bench = Bench(limit_bytes=None)
    queue = bench.machine.queues.of(QUEUE)
    bench.arrive(1, 2, session="s")
    bench.destinations.release(bench.item(1), bench.now)
    assert queue.gaps == {1: OrderGap(("orders", "s"), foreign=False)}
    bench.destinations.release(bench.item(2), bench.now, comes_first=False)
    assert set(queue.gaps) == {1}


def test_a_lost_message_waits_no_more():
    bench = Bench(limit_bytes=None)
    bench.arrive(1)
    bench.destinations.lost(bench.item(1), bench.now)
    assert (bench.item(1), bench.destinations.of("orders").waiting_count) == (None, 0)
    assert [action for action in bench.poll() if isinstance(action, PollAgain)] == [PollAgain(QUEUE)]


def test_the_machine_is_asked_again_when_a_paused_destination_may_be_tried():
    bench = Bench()
    failing(bench, times=1)
    bench.poll()
    bench.custody._lock_check_at = bench.now + 500
    assert bench.waits() == 1.0
    bench.now += 0.4
    assert bench.waits() == pytest.approx(0.6)
    over = bench.destinations.of("orders").paused_until
    assert over not in bench.destinations.deadlines(over), "it may be tried now"
    bench.destinations.release_all(bench.now)
    assert list(bench.destinations.deadlines(bench.now)) == [], "nothing waits for it"


def test_the_machine_is_never_asked_in_the_past():
    bench = Bench()
    assert bench.waits() == 0.0


def test_what_is_held_is_what_waits_for_a_destination_in_a_pause():
    bench = Bench()
    failing(bench, times=1)
    bench.arrive(2, to="bills")
    assert [bench.destinations.held(when) for when in (bench.now, bench.now + 0.9, bench.now + 1.0)] == [1, 1, 0]
