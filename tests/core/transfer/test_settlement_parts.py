"""The small parts around the pump: lock clock, back-off, filter."""

from sbpair.core.retry import REFUSED, SYPHON, TokenBucket
from sbpair.core.transfer.state import LockClock


def test_a_fresh_lock_lasts_its_whole_duration_whatever_the_local_clock_says():
    for skew in (-3600.0, 0.0, 3600.0):
        clock = LockClock(60.0)
        assert clock.deadline(1060.0, now_utc=1000.0 + skew, now=5.0) == 65.0


def test_an_aged_lock_is_shorter_by_its_age():
    clock = LockClock(60.0)
    clock.deadline(1060.0, now_utc=1300.0, now=5.0)
    assert clock.deadline(1060.0, now_utc=1345.0, now=50.0) == 65.0


def test_a_lock_without_an_end_lasts_from_now():
    assert LockClock(30.0).deadline(None, now_utc=0.0, now=7.0) == 37.0


def test_a_lock_of_unknown_duration_lasts_no_longer_than_it_says():
    clock = LockClock()
    assert clock.deadline(1012.0, now_utc=1000.0, now=5.0) == 17.0
    assert clock.lock_seconds == 12.0
    assert clock.deadline(1030.0, now_utc=1010.0, now=15.0) == 35.0  # a fresher one: the first had lain a while
    assert clock.lock_seconds == 20.0


def test_a_lock_of_unknown_duration_is_the_documented_one_where_the_clocks_are_far_apart():
    for skew in (-3600.0, 3600.0):
        clock = LockClock()
        assert clock.deadline(1060.0, now_utc=1000.0 + skew, now=5.0) == 65.0
    clock = LockClock()
    assert clock.deadline(1060.0, now_utc=1059.0, now=5.0) == 10.0  # the shortest that there is


def test_back_off_grows_to_its_bound():
    assert [SYPHON.seconds(failures) for failures in (0, 1, 2, 3, 8, 9, 10_000)] == [0, 1, 2, 4, 120, 120, 120]
    assert REFUSED.seconds(1) == 10


def test_a_bucket_saves_up_so_much_and_lets_a_debt_be_paid():
    bucket = TokenBucket(2.0, most=4.0, tokens=1.0)
    assert bucket.tokens(10.0) == 1.0
    assert bucket.tokens(11.0) == 3.0
    assert bucket.tokens(20.0) == 4.0
    bucket.take(7)
    assert bucket.seconds_until(1, 20.0) == 2.0
    assert bucket.seconds_until(1, 21.0) == 1.0
    assert bucket.seconds_until(0, 30.0) == 0.0


def test_a_bucket_without_savings_spaces_evenly():
    bucket, now = TokenBucket(10.0, most=0.0), 0.0
    times = []
    for _ in range(3):
        now += bucket.seconds_until(0, now)
        bucket.take(5)
        times.append(now)
    assert times == [0.0, 0.5, 1.0]
