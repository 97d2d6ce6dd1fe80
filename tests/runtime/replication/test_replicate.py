"""Active/active over real sockets: order, once, take-over, poison, gaps, a journal that goes away."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sbpair.core.errors import JournalError, JournalUnavailableError
from sbpair.core.events import MessageHandled, NotIdleYet, Paused
from sbpair.core.pairing import Side
from sbpair.core.replication.ownership import DAY_SECONDS, Finished, Granularity, MessageRecord, SessionState
from sbpair.core.rewrite import compose
from sbpair.core.summary import describe
from sbpair.emulator.entities import SubscriptionDescription, TopicDescription
from sbpair.journal.sqlite import SqliteJournal
from sbpair.ports import Entry
from sbpair.runtime.replication.handlers import Delivery, RetryLater
from sbpair.runtime.replication.store import DESTINATION, MESSAGE, SESSION, SessionStore, key_of
from tests.runtime.replication.stage import BRISK, QUEUE, SIDES, Stage, eventually, stage

PRIMARY, SECONDARY = SIDES


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(tmp_path) as ready:
        yield ready


def messages(sessions: int, each: int) -> list[tuple[str, str]]:
    return [(f"s{session}", f"s{session}-{number:03}") for number in range(each) for session in range(sessions)]


def in_order(done: list[tuple[str, str, str]]) -> bool:
    """Each message once, those of a session in the order of their ids."""
    ids = [message for _, message, _ in done]
    by_session: dict[str, list[str]] = {}
    for session, message, _ in done:
        by_session.setdefault(session, []).append(message)
    return len(ids) == len(set(ids)) and all(found == sorted(found) for found in by_session.values())


@pytest.mark.parametrize("granularity", Granularity)
async def test_every_message_is_processed_once_and_in_order(both: Stage, granularity: Granularity) -> None:
    await both.send(*messages(6, 5))
    report = await both.consume(terms=replace(BRISK, granularity=granularity))
    assert len(both.done) == 30
    assert in_order(both.done)
    assert (report.total("completed"), report.total("duplicate"), report.ended_by) == (30, 30, "idle")
    assert both.left(PRIMARY) == both.left(SECONDARY) == (0, 0)
    entry = await both.entry("s0")
    assert (entry.state, entry.owner, entry.completed_count) == (SessionState.COMPLETED, "", 5)
    records = [MessageRecord.from_dict(one.document) async for one in both.journal.scan(MESSAGE)]
    assert len(records) == 30
    assert {(one.finished.state, one.settled) for one in records} == {(SessionState.COMPLETED, SIDES)}
    assert entry.recent == (), "what is recorded leaves the entry"
    assert report.second_copies_out == 0


async def test_two_consumers_share_the_sessions_and_never_run_one_at_once(both: Stage) -> None:
    running: set[str] = set()

    async def work(delivery: Delivery) -> None:
        assert delivery.session_id not in running
        running.add(delivery.session_id)
        await asyncio.sleep(0.01)
        running.discard(delivery.session_id)
        await both.work(delivery)

    await both.send(*messages(5, 6))
    terms = replace(BRISK, granularity=Granularity.MESSAGE)
    await asyncio.gather(*(both.consume(work, terms=terms, until_idle_seconds=1.5) for _ in range(2)))
    assert len(both.done) == 30
    assert in_order(both.done)


async def test_what_only_one_side_accepted_is_waited_for(both: Stage) -> None:
    """The second message is on the dark side alone; the third, on both, waits until the light is back."""
    sender = both.sender()

    async def send(message: str) -> tuple[Side, ...]:
        result = await sender.send(compose(body="", message_id=message, session_id="s"), timeout_seconds=2)
        return result.accepted

    assert await send("m1") == (PRIMARY, SECONDARY)
    both.dark(SECONDARY)
    assert await send("m2") == (PRIMARY,)
    both.dark(PRIMARY)
    both.light(SECONDARY)
    assert await send("m3") == (SECONDARY,)
    async with both.consuming():
        await eventually(lambda: len(both.done) == 1)
        await asyncio.sleep(0.7)
        assert [message for _, message, _ in both.done] == ["m1"], "m3 does not begin before m2"
        gap = (await both.entry("s")).gap
        assert gap is not None
        assert (gap.missing_id, gap.waiting_id) == ("m2", "m3")
        both.light(PRIMARY)
        await eventually(lambda: len(both.done) == 3)
    assert [message for _, message, _ in both.done] == ["m1", "m2", "m3"]
    await sender.close()


async def test_a_dead_owners_message_is_taken_over_after_its_lease(both: Stage) -> None:
    await both.send(("s", "m1"), ("s", "m2"))
    begun = asyncio.Event()

    async def die(delivery: Delivery) -> None:
        begun.set()
        await asyncio.Event().wait()

    dying = asyncio.create_task(both.consume(die, until_idle_seconds=None))
    await begun.wait()
    taken_at = asyncio.get_running_loop().time()
    dying.cancel()  # no stop: nothing is written, as after kill -9
    await asyncio.gather(dying, return_exceptions=True)
    await both.consume(until_idle_seconds=3.5)
    assert [message for _, message, _ in both.done] == ["m1", "m2"]
    assert asyncio.get_running_loop().time() - taken_at > BRISK.lease_seconds


async def test_a_long_handler_keeps_its_lease(both: Stage) -> None:
    terms = replace(BRISK, lease_seconds=0.6, margin_seconds=0.1)

    async def slow(delivery: Delivery) -> None:
        await asyncio.sleep(1.5)
        await both.work(delivery)

    await both.send(("s", "m1"))
    await asyncio.gather(*(both.consume(slow, terms=terms, until_idle_seconds=1.5) for _ in range(2)))
    assert len(both.done) == 1


@pytest.mark.parametrize("granularity", Granularity)
async def test_a_poisoned_message_is_dead_lettered_on_both_sides_and_the_session_goes_on(
    both: Stage, granularity: Granularity
) -> None:
    attempts: list[int] = []

    async def refuse_the_first(delivery: Delivery) -> None:
        if delivery.message_id == "bad":
            attempts.append(delivery.attempt)
            raise ValueError("no such parcel")
        await both.work(delivery)

    await both.send(("s", "bad"), ("s", "good"))
    report = await both.consume(refuse_the_first, terms=replace(BRISK, granularity=granularity))
    assert attempts == [1, 2, 3]
    assert [message for _, message, _ in both.done] == ["good"]
    for side in SIDES:
        (dead,) = await both.dead_letters(side)
        summary = describe(dead.payload)
        assert (summary.message_id, summary.dead_letter_reason) == ("bad", "HandlerFailed")
        assert summary.dead_letter_description == "no such parcel"
    assert (report.total("failed"), report.total("dead-lettered"), report.total("again")) == (1, 1, 2)
    record = await both.journal.read(MESSAGE, key_of(QUEUE, "s", "bad"))
    assert record is not None
    assert MessageRecord.from_dict(record.document).settled == SIDES


async def test_a_handler_can_ask_for_its_message_later(both: Stage) -> None:
    asked: list[int] = []

    async def not_yet(delivery: Delivery) -> None:
        asked.append(delivery.attempt)
        if len(asked) < 5:
            raise RetryLater("the mainframe is closed")
        await both.work(delivery)

    await both.send(("s", "m1"))
    await both.consume(not_yet)
    assert asked == [1] * 5, "no attempt is counted"
    assert len(both.done) == 1


async def test_a_message_whose_place_makes_no_sense_is_dead_lettered_with_the_reason(both: Stage) -> None:
    sender = both.messaging[PRIMARY].sender(QUEUE)
    properties = {"x-sbpair-number": 0}
    odd = compose(body="", message_id="odd", session_id="s", application_properties=properties)
    nameless = compose(body="", message_id="", session_id="s")
    await sender.send([odd, nameless], timeout_seconds=30)
    report = await both.consume()
    reasons = {describe(one.payload).dead_letter_reason for one in await both.dead_letters(PRIMARY)}
    assert reasons == {"OrderUnknown", "MessageIdMissing"}
    assert both.done == []
    assert report.total("dead-lettered") == 2


# Any producer


async def send_as_anybody(both: Stage, *messages: tuple[str, str], sides: tuple[Side, ...] = SIDES) -> None:
    """As a program of the article does it: the same ids on both sides, the second copy scheduled, no stamps. Each side
    gets them together, so that all of a side become visible together, however long sending takes."""
    from azure.servicebus import ServiceBusMessage
    from azure.servicebus.aio import ServiceBusClient

    for side in sides:
        later = datetime.now(UTC) + timedelta(seconds=1.5) if side is SECONDARY else None
        text = both.emulator.connection_string(side.value)
        async with ServiceBusClient.from_connection_string(text) as client, client.get_queue_sender(QUEUE) as sender:
            await sender.send_messages(
                [
                    ServiceBusMessage(message, session_id=session, message_id=message, scheduled_enqueue_time_utc=later)
                    for session, message in messages
                ]
            )


@pytest.mark.parametrize("granularity", Granularity)
async def test_messages_of_any_producer_are_processed_once_and_in_order(both: Stage, granularity: Granularity) -> None:
    await send_as_anybody(both, *messages(4, 5))
    report = await both.consume(terms=replace(BRISK, granularity=granularity))
    assert len(both.done) == 20
    assert in_order(both.done)
    assert (report.total("completed"), report.total("duplicate")) == (20, 20)
    assert both.left(PRIMARY) == both.left(SECONDARY) == (0, 0)


async def test_without_stamps_a_dark_side_is_not_waited_for_and_its_copies_are_not_run_again(both: Stage) -> None:
    await send_as_anybody(both, ("s", "m1"), ("s", "m2"))
    both.dark(PRIMARY)
    async with both.consuming():
        await eventually(lambda: len(both.done) == 2)
        both.light(PRIMARY)
        await eventually(lambda: both.left(PRIMARY) == (0, 0))
    assert both.done == [("s", "m1", SECONDARY), ("s", "m2", SECONDARY)]


@pytest.mark.parametrize("granularity", Granularity)
@pytest.mark.parametrize("ours", [True, False], ids=["ours", "anybody"])
async def test_a_message_id_sent_twice_runs_once(both: Stage, granularity: Granularity, ours: bool) -> None:
    """In one run, again while it waits, and again after it was processed."""
    lines = (("s", "r1"), ("s", "r2"), ("s", "r1"))
    send = both.send if ours else partial(send_as_anybody, both)
    terms = replace(BRISK, granularity=granularity)
    for _ in range(2):
        await send(*lines)
    await both.consume(terms=terms)
    await send(*lines, ("s", "r3"))
    await both.consume(terms=terms)
    assert [message for _, message, _ in both.done] == ["r1", "r2", "r3"]
    assert both.left(PRIMARY) == both.left(SECONDARY) == (0, 0)


async def test_a_gap_that_the_brokers_made_by_dropping_duplicates_closes(tmp_path: Path) -> None:
    async with stage(tmp_path, duplicate_detection=True) as both:
        await both.send(("s", "r1"), ("s", "r2"))
        await both.send(("s", "r1"), ("s", "r2"), ("s", "r3"))
        report = await both.consume()
        assert [message for _, message, _ in both.done] == ["r1", "r2", "r3"]
        assert report.total("duplicate") == 3, "the brokers dropped the second r1 and r2 on both sides"
        await both.send(("s", "r1"), ("s", "r3"), ("s", "r4"))
        await both.consume()
        assert [message for _, message, _ in both.done] == ["r1", "r2", "r3", "r4"]
        assert both.left(PRIMARY) == both.left(SECONDARY) == (0, 0)


# One journal, several destinations


def subscribed(both: Stage, *names: str) -> None:
    """The topic `events` with these subscriptions, on both sides."""
    for side in SIDES:
        namespace = both.emulator.namespace(side.value)
        namespace.create_topic("events", TopicDescription())
        for name in names:
            settings = SubscriptionDescription(requires_session=True, max_delivery_count=2_000_000)
            namespace.create_subscription("events", name, settings)


async def test_one_journal_serves_several_subscriptions_and_queues(both: Stage) -> None:
    subscribed(both, "s1", "s2")
    await both.send(("u", "m1"), ("u", "m2"), entity="events")
    await both.send(("u", "m1"), ("u", "m2"))
    for source in ("events/Subscriptions/s1", "events/Subscriptions/s2", QUEUE):
        both.done.clear()
        report = await both.consume(source=source, until_idle_seconds=1.5)
        assert [message for _, message, _ in both.done] == ["m1", "m2"], source
        assert (report.total("completed"), report.total("duplicate")) == (2, 2)


async def test_a_journal_of_other_namespaces_is_refused(both: Stage) -> None:
    await both.consume(until_idle_seconds=0.3)
    known = await both.journal.read(DESTINATION, QUEUE)
    assert known is not None
    await both.journal.replace(known, {**known.document, "namespaces": ["a", "b"]}, ttl_seconds=60)
    with pytest.raises(JournalError, match="belongs to orders in a and b"):
        await both.consume(until_idle_seconds=0.3)


async def test_a_journal_of_the_first_edition_is_refused_with_what_to_do(both: Stage) -> None:
    await both.journal.create("session", "s", {"session_id": "s", "state": "completed"}, ttl_seconds=60)
    await both.send(("s", "m1"))
    with pytest.raises(JournalError, match="identifies sessions by their id alone") as caught:
        await both.consume()
    assert "new journal" in (caught.value.hint or "")
    assert both.left(PRIMARY)[0] == 1


async def test_a_record_is_kept_for_long_while_a_copy_is_out_and_shorter_afterwards(both: Stage) -> None:
    """Both copies settled: for `remember`; a session of any producer's messages leaves nothing longer either."""
    await send_as_anybody(both, ("s", "one-side"), sides=(PRIMARY,))
    await send_as_anybody(both, ("t", "both"))
    await both.consume(until_idle_seconds=2.0)
    kept: dict[str, float] = {}
    with sqlite3.connect(both.journal.name.removeprefix("sqlite:")) as file:
        for kind, key, forget_at in file.execute("SELECT kind, key, forget_at FROM entries"):
            kept[f"{kind} {key}"] = round((forget_at - time.time()) / DAY_SECONDS)
    assert kept == {
        "replicated-destination orders": 14,
        "replicated-message orders/s/one-side": 14,
        "replicated-message orders/t/both": 1,
        "replicated-session orders/s": 1,
        "replicated-session orders/t": 1,
    }


async def test_an_idle_consumer_asks_for_sessions_with_one_request_at_a_time(both: Stage) -> None:
    assert (await both.consume(until_idle_seconds=1.5)).session_requests == len(SIDES)
    await both.send(*messages(12, 1))
    report = await both.consume(until_idle_seconds=1.5)
    assert len(both.done) == 12
    assert report.session_requests >= 24 + len(SIDES), "one for every session on each side, and those that wait"


class FlakyJournal(SqliteJournal):
    """Goes away, or answers too late, as told."""

    away = False
    lose_answers = 0

    def _refuse(self) -> None:
        if self.away:
            raise JournalUnavailableError("gone")

    def _lose(self) -> None:
        if self.lose_answers:
            self.lose_answers -= 1
            raise JournalUnavailableError("written, but the answer was lost")

    async def read(self, kind: str, key: str) -> Entry | None:
        self._refuse()
        return await super().read(kind, key)

    async def create(self, kind: str, key: str, document: Mapping[str, Any], *, ttl_seconds: float) -> Entry:
        self._refuse()
        created = await super().create(kind, key, document, ttl_seconds=ttl_seconds)
        self._lose()
        return created

    async def replace(self, entry: Entry, document: Mapping[str, Any], *, ttl_seconds: float) -> Entry:
        self._refuse()
        replaced = await super().replace(entry, document, ttl_seconds=ttl_seconds)
        self._lose()
        return replaced


@pytest.fixture
async def flaky(both: Stage, tmp_path: Path) -> AsyncIterator[FlakyJournal]:
    journal = FlakyJournal(tmp_path / "flaky.db")
    both.journal = journal
    yield journal
    await journal.close()


async def test_without_its_journal_nothing_is_processed_and_nothing_is_lost(both: Stage, flaky: FlakyJournal) -> None:
    await both.send(*messages(3, 2))
    flaky.away = True
    async with both.consuming():
        await eventually(lambda: len(both.observer.of(Paused)) >= 3)
        assert both.done == []
        await asyncio.sleep(1.0)
        pauses = len(both.observer.of(Paused))
        assert pauses < 40, "a journal that is away is no reason for a hot loop"
        assert both.left(PRIMARY) == both.left(SECONDARY) == (6, 0)
        flaky.away = False
        await eventually(lambda: both.left(PRIMARY) == both.left(SECONDARY) == (0, 0))
    assert len(both.done) == 6
    assert in_order(both.done)


async def test_a_journal_that_goes_away_during_the_work_does_not_make_it_run_twice(
    both: Stage, flaky: FlakyJournal
) -> None:
    async def work(delivery: Delivery) -> None:
        flaky.away = True
        asyncio.get_running_loop().call_later(0.8, lambda: setattr(flaky, "away", False))
        await both.work(delivery)

    await both.send(("s", "m1"))
    await both.consume(work, until_idle_seconds=2.0)
    assert len(both.done) == 1
    assert both.left(PRIMARY) == both.left(SECONDARY) == (0, 0)


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_answers_of_the_journal_that_get_lost_count_nothing_twice(
    both: Stage, flaky: FlakyJournal, lost: int
) -> None:
    attempts: list[int] = []

    async def work(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        await both.work(delivery)

    await both.consume(until_idle_seconds=0.2)  # the journal knows the queue from then on
    await both.send(("s", "m1"), ("s", "m2"))
    flaky.lose_answers = lost
    await both.consume(work, until_idle_seconds=1.5)
    assert [message for _, message, _ in both.done] == ["m1", "m2"]
    assert attempts == [1, 1]
    assert (await both.entry("s")).completed_count == 2


async def test_a_journal_that_refuses_for_good_ends_the_consumer(both: Stage) -> None:
    await both.journal.create(SESSION, key_of(QUEUE, "s"), {"what": "is this"}, ttl_seconds=60)
    await both.send(("s", "m1"))
    with pytest.raises(JournalError, match="unknown key 'what'"):
        await both.consume(until_idle_seconds=None)
    assert both.left(PRIMARY)[0] == 1


async def test_a_consumer_that_is_stopped_lets_its_handlers_end(both: Stage) -> None:
    begun = asyncio.Event()

    async def slow(delivery: Delivery) -> None:
        begun.set()
        await asyncio.sleep(0.3)
        await both.work(delivery)

    await both.send(("s", "m1"), ("s", "m2"))
    async with both.consuming(slow) as stop:
        await begun.wait()
        stop.set()
    assert [message for _, message, _ in both.done] == ["m1"]
    entry = await both.entry("s")
    assert (entry.state, entry.owner) == (SessionState.COMPLETED, ""), "the session is given up at once"


async def test_a_handler_that_does_not_end_in_time_gives_its_message_back_uncounted(both: Stage) -> None:
    begun = asyncio.Event()

    async def endless(delivery: Delivery) -> None:
        begun.set()
        await asyncio.Event().wait()

    await both.send(("s", "m1"))
    async with both.consuming(endless, grace_seconds=0.2) as stop:
        await begun.wait()
        stop.set()
    entry = await both.entry("s")
    assert entry.current is not None
    assert (entry.state, entry.current.attempts) == (SessionState.PENDING, 0)


async def test_a_lost_session_lock_does_not_disturb_the_work(both: Stage) -> None:
    async def work(delivery: Delivery) -> None:
        for side in SIDES:
            both.emulator.faults(side.value).add("drop")
        await asyncio.sleep(0.2)
        await both.work(delivery)

    await both.send(("s", "m1"))
    await both.consume(work, until_idle_seconds=2.0)
    assert len(both.done) == 1
    assert both.left(PRIMARY) == both.left(SECONDARY) == (0, 0)


async def test_idle_because_a_side_does_not_answer_is_told(both: Stage) -> None:
    await both.send(("s", "m1"))
    both.dark(SECONDARY)
    report = await both.consume(until_idle_seconds=1.0, second_copies_seconds=3.0)
    assert (report.total("completed"), report.ended_by) == (1, "idle")
    assert [(one.side, one.error.code) for one in report.not_read] == [(SECONDARY.value, "connection-lost")]


async def test_idle_before_a_side_could_answer_is_confirmed_with_a_browse(both: Stage) -> None:
    both.emulator.faults(PRIMARY.value).add("fail:operation=management,condition=amqp:not-found")
    report = await both.consume(until_idle_seconds=0.5)
    assert [one.side for one in report.not_read] == [PRIMARY.value], (
        "no session came from either, only one can be browsed"
    )


async def test_idle_is_only_when_the_scheduled_copies_have_come(both: Stage) -> None:
    await both.send(("s", "m1"), ("s", "m2"), delay_seconds=6.0)
    await send_as_anybody(both, ("t", "m3"), sides=(SECONDARY,))  # the only copy, and scheduled
    report = await both.consume()
    assert sorted(message for _, message, _ in both.done) == ["m1", "m2", "m3"]
    assert (report.total("completed"), report.total("duplicate"), report.ended_by) == (3, 2, "idle")
    assert (report.second_copies_out, report.scheduled, report.next_scheduled_at) == (0, 0, None)
    assert both.left(PRIMARY) == both.left(SECONDARY) == (0, 0)
    assert all(one.source == QUEUE and one.next_at for one in both.observer.of(NotIdleYet))


async def test_what_comes_too_late_to_be_waited_for_is_counted(both: Stage) -> None:
    await both.send(("s", "m1"), delay_seconds=600.0)
    sender = both.messaging[SECONDARY].sender(QUEUE)
    tomorrow = time.time() + DAY_SECONDS
    await sender.send([compose(body="", message_id="m2", session_id="t", scheduled_at=tomorrow)], timeout_seconds=60)
    await sender.close()
    for limits, ended_by in (({"until_idle_seconds": 2.5}, "idle"), ({"for_seconds": 2.0}, "time")):
        report = await both.consume(**{"until_idle_seconds": None} | limits)
        assert (report.ended_by, report.scheduled) == (ended_by, 1 if ended_by == "idle" else 2), (
            "the second run has not finished m1 itself"
        )
        assert report.second_copies_out == (1 if ended_by == "idle" else 0)
        assert report.next_scheduled_at is not None
        assert 300 < report.next_scheduled_at - time.time() < 600
    one_side = await both.consume(sides=(SECONDARY,))
    assert (one_side.second_copies_out, one_side.scheduled) == (None, 2)


async def only_on_primary(both: Stage, message_id: str) -> None:
    sender = both.messaging[PRIMARY].sender("events")
    await sender.send([compose(body="", message_id=message_id, session_id="u")], timeout_seconds=60)
    await sender.close()


async def test_second_copies_that_lie_in_a_topic_are_waited_for(both: Stage) -> None:
    subscribed(both, "s1")
    source = "events/Subscriptions/s1"
    await both.send(("u", "m1"), ("u", "m2"), entity="events", delay_seconds=6.0)
    report = await both.consume(source=source)
    assert (report.total("completed"), report.total("duplicate")) == (2, 2)
    assert (report.second_copies_out, report.scheduled) == (0, 0)
    await both.send(("u", "m3"), entity="events", delay_seconds=600.0)
    report = await both.consume(source=source)
    assert (report.total("completed"), report.second_copies_out, report.scheduled) == (1, 1, 0)


async def test_second_copies_in_a_topic_that_shows_nothing_are_waited_for_a_while(both: Stage) -> None:
    subscribed(both, "s1")
    source = "events/Subscriptions/s1"
    for side in SIDES:
        both.emulator.faults(side.value).add(
            "fail:entity=events,operation=management,condition=amqp:unauthorized-access"
        )
    await only_on_primary(both, "m1")
    report = await both.consume(source=source, second_copies_seconds=3.0)
    assert (report.total("completed"), report.second_copies_out, report.scheduled) == (1, 1, None), (
        "it was not met, whether it exists or not"
    )
    await only_on_primary(both, "m2")
    running = asyncio.create_task(both.consume(source=source, second_copies_seconds=600.0))
    await eventually(lambda: len(both.done) == 2)
    store = SessionStore(both.journal, source, BRISK)
    await store.record("u", Finished("m2", SessionState.COMPLETED, time.time()), (SECONDARY.value,))
    assert (await running).second_copies_out == 0, "as if another consumer had met it"


async def test_a_count_ends_it(both: Stage) -> None:
    await both.send(*messages(1, 5))
    report = await both.consume(max_messages=2, until_idle_seconds=None)
    assert report.ended_by == "count"
    assert len(both.done) == 2
    assert {event.result for event in both.observer.of(MessageHandled)} >= {"completed"}
