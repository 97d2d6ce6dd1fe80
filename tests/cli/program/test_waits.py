"""A command that waits says so: never silent for long, and never about what nobody waits for."""

import asyncio
import logging
import re
import signal
import sys
import time
from types import ModuleType

import pytest

from sbpair.cli.context import EventLog
from sbpair.cli.running import Notices, ProcessorTime, in_words, scheduled, waits_in
from sbpair.concurrency import Wait, abandon_after, patiently, retried, waiting, waits
from sbpair.core.errors import ConnectionLostError, ServerBusyError, ServiceError, for_pair
from sbpair.core.events import Paused, Resumed
from tests.cli.process import Sbpair
from tests.cli.program.test_timeout import mute
from tests.waiting import LIMIT_SECONDS

__all__ = ["mute"]


@pytest.mark.parametrize(
    ("waits", "known", "said"),
    [
        ([Wait("browse orders on neu", 90.0)], "", "Waiting 10s for an answer: browse orders on neu."),
        (
            [Wait("list queues of neu", 97.0, until=127.0), Wait("browse orders on neu", 98.0)],
            "",
            "Waiting 3s for an answer: list queues of neu, given up in 27s at the latest; 1 other call is waiting.",
        ),
        ([Wait("", 96.0, "Refused.", 130.0)], "", "Refused; trying again after 4s, given up in 30s at the latest."),
        (
            [Wait("", 90.0, "Refused.", 102.0, "sent to the backlog")],
            "Refused.",
            "Still failing after 10s; trying again, sent to the backlog in 2s at the latest.",
        ),
        ([Wait("list queues of neu", 60.0, until=90.0)], "", "Waiting 40s for an answer: list queues of neu."),
        (
            [Wait("browse orders on neu", 90.0, "Wait 3 seconds. (TrackingId 7a-b_B0) (busy)")],
            "Wait 10 seconds. (TrackingId c4-d_B0) (busy)",
            "Still failing to browse orders on neu after 10s; trying again.",
        ),
        ([Wait("", 90.0, until=102.0, detail=lambda: "Waiting for 2 messages")], "", "Waiting for 2 messages."),
    ],
)
def test_what_is_waited_for_in_words(waits: list[Wait], known: str, said: str) -> None:
    assert in_words(waits, 100.0, known=known) == said


class Machine:
    """Four looks a second at what is waited for, with the processor time that the process had between them."""

    def __init__(self, *, ran: float = 0.001, delayed: float = 0.0) -> None:
        self.now = 100.0
        self.ran, self.delayed = ran, delayed
        self.notices = Notices()
        self._had = ProcessorTime(0.5, 0.5 * delayed / ran)

    def said(self, wait: Wait, seconds: float, *, silent_since: float = 0.0) -> list[tuple[float, str]]:
        """What is said while the wait goes on for so long, and after how many seconds of it."""
        lines = []
        for _ in range(round(seconds / 0.25)):
            self._had = ProcessorTime(self._had.ran + self.ran, self._had.delayed + self.delayed)
            if text := self.notices.due([wait], self.now, self.now - silent_since, self._had):
                lines.append((self.now - wait.since, text))
                silent_since = self.now
            self.now += 0.25
        return lines


def test_a_missing_answer_is_reported_after_three_seconds_once() -> None:
    first, second = Machine().said(Wait("browse orders", 100.0), 50)
    assert first == (3, "Waiting 3s for an answer: browse orders.")
    assert second[0] >= 33, second


def test_what_was_asked_for_only_now_is_not_missed_however_long_nobody_spoke() -> None:
    machine = Machine()
    assert machine.said(Wait("list queues", 100.0), 2.5) == []
    assert machine.said(Wait("browse orders", 102.5), 2.5) == []


@pytest.mark.parametrize(
    ("ran", "delayed", "least"),
    [(0.02, 0.1, 17), (0.24, 0.0, 60), (0.001, 0.24, 25)],
    ids=["a sixth of a processor", "computing", "hardly ever scheduled"],
)
def test_a_busy_machine_is_no_missing_answer(ran: float, delayed: float, least: float) -> None:
    said = Machine(ran=ran, delayed=delayed).said(Wait("browse orders", 100.0), 120)
    assert not said or said[0][0] >= least, said


def test_the_time_in_which_the_process_was_stopped_is_not_waited() -> None:
    machine, wait = Machine(), Wait("browse orders", 100.0)
    assert machine.said(wait, 1) == []
    machine.now += 140
    assert machine.said(wait, 1) == []
    assert len(machine.said(wait, 3)) == 1


def test_an_error_and_a_known_lock_are_reported_whatever_the_machine_does() -> None:
    for wait in (Wait("", 100.0, "Refused."), Wait("", 100.0, detail=lambda: "Waiting for 2 messages")):
        ((after, _),) = Machine(ran=0.001, delayed=0.24).said(wait, 5)
        assert after <= 1, wait


def test_the_processor_time_of_this_thread_is_known() -> None:
    before = scheduled()
    while time.thread_time() < before.ran + 0.05:
        pass
    assert scheduled().ran - before.ran >= 0.02
    assert scheduled().delayed >= before.delayed


def test_nobody_waits_before_the_module_is_imported_whole() -> None:
    assert waits_in({}) == []
    assert waits_in({"sbpair.concurrency": ModuleType("sbpair.concurrency")}) == []
    with waiting("browse orders"):
        assert [one.tried for one in waits_in(sys.modules)] == ["browse orders"]


def test_who_waits_for_nothing_any_more_is_silent_before_its_block_ends() -> None:
    left = ["Waiting for 2 messages"]
    with waiting("") as wait:
        wait.detail = lambda: "".join(left)
        assert [one.sentence for one in waits()] == left
        left.clear()
        assert waits() == []


def test_a_wait_ends_with_its_block_however_that_ends() -> None:
    with pytest.raises(ValueError, match="broken"), waiting("browse orders", 30.0):
        (known,) = waits()
        assert known.until is not None
        assert (known.tried, round(known.until - known.since)) == ("browse orders", 30)
        raise ValueError("broken")
    assert waits() == []


async def test_a_wait_within_another_ends_with_it() -> None:
    """Ten seconds for a look at a queue are over after ten, however long its requests might take."""
    bounds = []

    async def call() -> None:
        with waiting("browse orders", 30.0):
            (known,) = [one for one in waits() if one.tried]
            assert known.until is not None
            bounds.append(round(known.until - known.since))

    await call()
    await abandon_after(10.0, call(), what="Look")
    await patiently(call, patience_seconds=120, unreached_seconds=20)
    with waiting("", 5.0):
        later = asyncio.create_task(call())
    await later
    assert bounds == [30, 10, 20, 30], "a task that outlives what began it has its own bound"
    assert waits() == []


class Clock:
    """Time passes while somebody sleeps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.mark.parametrize(
    ("error", "least", "most"), [(ConnectionLostError("Refused."), 10, 30), (ServerBusyError("Busy."), 100, 120)]
)
async def test_who_never_answers_is_given_up_sooner_than_who_is_busy(
    error: ServiceError, least: float, most: float
) -> None:
    clock = Clock()
    known: list[str] = []

    async def call() -> None:
        known.extend(one.error for one in waits())
        raise error

    with pytest.raises(type(error)):
        await patiently(call, patience_seconds=120, unreached_seconds=30, now=clock.now, sleep=clock.sleep)
    assert least < clock.seconds <= most
    assert set(known) == {error.message}, "only what has failed is told"


@pytest.mark.parametrize("line", ["cleanup environment --dry-run", "peek"])
def test_a_silent_namespace_is_named_while_it_is_waited_for(mute: Sbpair, line: str) -> None:
    process = mute.begin(*line.split(), "--timeout", "4m")
    assert process.stderr is not None
    said = []
    for text in process.stderr:
        said.append(text)
        if re.match(r"Waiting \d+s for an answer: .* mute-secondary", text):
            break
    else:
        raise AssertionError(said)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130


def test_quiet_is_quiet_while_it_waits(mute: Sbpair) -> None:
    ran = mute("cleanup", "environment", "--dry-run", "--timeout", "5s", "-q")
    assert ran.code == 6, ran
    assert "still trying" not in ran.stderr


def test_pauses_between_tries_of_one_destination_are_told_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    def paused(at: float, entity: str = "orders") -> Paused:
        return Paused(at, entity, "timeout", 1.0, 20.0)

    events = [paused(0.0), paused(1.0), paused(2.0, "events"), paused(29.0), paused(31.0), Resumed(32.0, "orders")]
    log, all_of_it = EventLog(), EventLog(verbose=True)
    with caplog.at_level(logging.INFO, logger="sbpair"):
        for event in (*events, paused(33.0)):
            log.notify(event)
        said = [record.message.partition(":")[0] for record in caplog.records if "retry in" in record.message]
        assert said == ["orders", "events", "orders", "orders"]
        caplog.clear()
        for event in events:
            all_of_it.notify(event)
        assert len(caplog.records) == len(events)


def test_pauses_between_tries_are_waits() -> None:
    told: list[str] = []

    async def busy() -> None:
        raise ServerBusyError("The namespace is throttling.")

    async def sleep(seconds: float) -> None:
        told.extend(wait.error for wait in waits())

    async def work() -> None:
        await retried(busy, lambda error, failures: 10.0 if failures < 3 else None, sleep=sleep)

    with pytest.raises(ServerBusyError):
        asyncio.run(work())
    assert told == ["The namespace is throttling."] * 2


@pytest.mark.parametrize(
    ("hint", "pair", "said"),
    [
        ("See which side answers with: sbpair ping", "orders", "See which side answers with: sbpair ping orders"),
        ("See which side answers with: sbpair ping", None, "See which side answers with: sbpair ping"),
        ("Look: sbpair provision --dry-run", "orders", "Look: sbpair provision orders --dry-run"),
        ("Look: sbpair provision other", "orders", "Look: sbpair provision other"),
        ("Ask sbpair ping or else.", "orders", "Ask sbpair ping or else."),
    ],
)
def test_a_hint_names_the_pair(hint: str, pair: str | None, said: str) -> None:
    assert for_pair(hint, pair) == said
