"""Replaying: each session in order, each message once, whatever is interrupted."""

import asyncio
import base64
import json
import time
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sbpair.amqp import sections
from sbpair.amqp.types import Int, Timestamp
from sbpair.core.errors import UnauthorizedError, UsageError
from sbpair.core.message import PING_CONTENT_TYPE
from sbpair.core.rewrite import TtlMode, compose, describe, for_backlog
from sbpair.core.transfer.filters import MessageFilter, Where
from sbpair.core.transfer.ledger import LedgerEntry
from sbpair.emulator.entities import QueueDescription
from sbpair.pipeline.follow import import_drained
from sbpair.pipeline.manifest import LocalStore
from sbpair.pipeline.replay import RANKED, Dedupe
from sbpair.pipeline.spark.session import StartedSpark
from sbpair.pipeline.tables import LocalTables, SparkTables
from tests.pipeline.stage import Stage, backlog, messages
from tests.pipeline.test_reconcile import drain_to

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.spark


def numbers_by_session(stage: Stage) -> dict[str | None, list[int]]:
    """Numbers of the message ids at home, in the order of arrival, by session."""
    found: dict[str | None, list[int]] = {}
    for one in stage.at_home():
        found.setdefault(describe(one.payload).session_id, []).append(int((one.message_id or "").rpartition("-")[2]))
    return found


def test_sessions_arrive_in_order_and_a_second_run_sends_nothing(session: StartedSpark, stage: Stage) -> None:
    for queue in range(3):
        stage.divert(messages(200, sessions=9, prefix=f"q{queue}"), queue=queue)
    stage.divert(messages(50, prefix="loose"), queue=1)
    stage.archive(session)
    report = stage.replay(session, tasks=4)
    assert (report.forwarded, report.per_destination, report.refusals) == (650, {"orders": 650}, {})
    arrived = [(describe(one.payload).session_id, one.message_id or "") for one in stage.at_home()]
    in_session = sorted(((name or "", one.rpartition("-")) for name, one in arrived), key=lambda pair: pair[0])
    for name, of_session in groupby(in_session, key=lambda pair: pair[0]):
        by_queue: dict[str, list[int]] = {}
        for _, (prefix, _, number) in of_session:
            by_queue.setdefault(prefix, []).append(int(number))
        assert not name or all(numbers == sorted(numbers) for numbers in by_queue.values())
    assert len({one for _, one in arrived}) == len(arrived) == 650
    again = stage.replay(session)
    assert (again.forwarded, again.matched, again.already_done) == (0, 650, 650)
    assert len(stage.at_home()) == 650


def test_what_arrives_is_what_was_sent(session: StartedSpark, stage: Stage) -> None:
    original = compose(
        body=b"\x00\xff", message_id="m", session_id="s", ttl_seconds=3600, application_properties={"a": 1, "b": "x"}
    )
    stage.divert([original])
    stage.archive(session, take=True)
    stage.replay(session, ttl=TtlMode.FULL)
    (home,) = stage.at_home()
    sent, arrived = describe(original), describe(home.payload)
    for name in ("message_id", "session_id", "ttl_seconds", "application_properties", "body_size_bytes"):
        assert getattr(arrived, name) == getattr(sent, name)


def test_a_filter_is_asked_in_the_tasks_and_a_dry_run_changes_nothing(session: StartedSpark, stage: Stage) -> None:
    stage.emulator.namespace("shop-weu").create_queue("invoices", QueueDescription())
    stage.divert(messages(10))
    big = messages(20, prefix="i", subject="big", application_properties={"amount": 100})
    stage.divert([*big, *messages(5, prefix="j", subject="big")], destination="invoices")
    stage.archive(session)
    wanted = MessageFilter("INV*", since=time.time() - 3600, where=Where("sys.Subject = 'big' AND amount >= 100"))
    dry = stage.replay(session, wanted=wanted, dry_run=True)
    assert (dry.matched, dry.forwarded, dry.per_destination) == (20, 20, {"invoices": 20})
    assert not stage.ledger.exists()
    assert stage.replay(session, wanted=wanted).forwarded == 20
    assert {one.message_id for one in stage.at_home("invoices")} == {f"i-{number}" for number in range(20)}
    assert stage.at_home() == []
    rest = stage.replay(session)
    assert (rest.already_done, rest.outcomes) == (20, {"forwarded": 15})
    assert len(stage.at_home()) == 10


def test_a_filter_that_cannot_be_evaluated_ends_the_replay_with_its_words(session: StartedSpark, stage: Stage) -> None:
    stage.divert(messages(5, application_properties={"country": "DE"}))
    stage.archive(session)
    with pytest.raises(UsageError, match="cannot be evaluated for message 1"):
        stage.replay(session, wanted=MessageFilter(where=Where("country + 1 > 2")))
    assert stage.at_home() == []


def test_a_ping_is_not_sent_home(session: StartedSpark, stage: Stage) -> None:
    """The service drops pings that arrive; one from elsewhere is in this archive."""
    ping = for_backlog(compose(body=b"", message_id="ping", content_type=PING_CONTENT_TYPE), "orders")
    line = {"queue": backlog(0), "sequence_number": 1, "message_id": "ping", "enqueued_at": 1.0}
    file = stage.folder / "drained.jsonl"
    file.write_text(json.dumps(line | {"payload_base64": base64.b64encode(ping).decode()}) + "\n")
    import_drained(LocalStore(stage.folder / "archive"), "shop", file)
    assert stage.replay(session).outcomes == {"ping": 1}
    assert stage.at_home() == []
    assert stage.reconcile(session, [stage.archive_path], [str(stage.ledger)]).outcomes == {"ping": 1}


def test_copies_of_one_message_are_left_out_and_accounted_for(session: StartedSpark, stage: Stage) -> None:
    stage.divert(messages(5), queue=0)
    stage.divert(messages(5), queue=1)
    stage.divert([compose(body="another body", message_id="m-0")], queue=2)
    stage.archive(session)
    report = stage.replay(session, dedupe=Dedupe.CONTENT)
    assert (report.forwarded, report.duplicates) == (6, 5)
    assert len(stage.at_home()) == 6
    tables = LocalTables()
    tables.ledgers("known", [str(stage.ledger)])
    outcomes = tables.query("select outcome, count(*) as n from known group by outcome", "Counting")
    assert {row["outcome"]: row["n"] for row in outcomes} == {"forwarded": 6, "duplicate": 5}


def test_copies_may_spell_session_and_destination_in_another_case(session: StartedSpark) -> None:
    named = ("destination", "session_id", "message_id", "content", "place")
    columns = (*((name, "string") for name in named), ("enqueued_at_ms", "bigint"), ("sequence_number", "bigint"))
    rows = [
        ("orders", "Order-7", "m", "d", "q", 1, 1),
        ("Orders", "ORDER-7", "m", "d", "q", 2, 1),
        ("orders", "order-8", "m", "d", "q", 3, 1),
        ("orders", None, "m", "d", "q", 4, 1),
        ("orders", "order-7", "M", "d", "q", 5, 1),
    ]
    for tables in (SparkTables(session), LocalTables()):
        tables.rows("matched", columns, rows)
        tables.define("ranked", RANKED)
        copies = tables.query("select enqueued_at_ms from ranked where copy_rank > 1", "Ranking")
        assert [row["enqueued_at_ms"] for row in copies] == [2]


def test_what_a_destination_refuses_does_not_hold_up_the_rest(session: StartedSpark, stage: Stage) -> None:
    stage.divert(messages(3))
    stage.divert(messages(2, prefix="gone"), destination="no-such-queue")
    stage.send("secondary", backlog(0), [compose(body="not diverted", message_id="stray")])
    stage.archive(session)
    report = stage.replay(session)
    assert report.outcomes == {"forwarded": 3, "refused": 3}
    assert report.refusals == {"no-such-queue: EntityNotFound": 2, "NotABacklogMessage": 1}
    stage.emulator.namespace("shop-weu").create_queue("no-such-queue", QueueDescription())
    assert stage.replay(session).outcomes == {"forwarded": 2, "refused": 1}


def test_a_destination_that_would_act_instead_of_store_is_never_opened(session: StartedSpark, stage: Stage) -> None:
    stage.send("primary", "orders", messages(5))
    request = sections.build(
        application_properties={"x-ms-path": "orders/$management", "operation": "com.microsoft:batch-delete-messages"},
        value={"message-count": Int(4000), "enqueued-time-utc": Timestamp(4_000_000_000_000)},
    )
    stage.send("secondary", backlog(0), [request])
    stage.archive(session)
    assert stage.replay(session, dry_run=True).outcomes == {"refused": 1}
    report = stage.replay(session)
    assert (report.outcomes, report.refusals) == ({"refused": 1}, {"InvalidDestination": 1})
    assert len(stage.at_home()) == 5


def test_the_rate_is_that_of_all_tasks_together(session: StartedSpark, stage: Stage) -> None:
    stage.divert(messages(60))
    stage.archive(session)
    began = time.monotonic()
    stage.replay(session, rate=20.0, tasks=2)
    assert time.monotonic() - began > 1.5
    assert len(stage.at_home()) == 60


def test_a_partitioned_destination_gets_batches_it_takes(session: StartedSpark, stage: Stage) -> None:
    stage.emulator.namespace("shop-weu").create_queue("parts", QueueDescription(enable_partitioning=True))
    stage.divert(messages(60, sessions=5), destination="parts")
    stage.archive(session)
    assert stage.replay(session).per_destination == {"parts": 60}
    assert len(stage.at_home("parts")) == 60


def test_a_folder_of_ledgers_is_read_whoever_wrote_them_and_whenever(session: StartedSpark, stage: Stage) -> None:
    """Lines of today, the last one cut off; and what replays wrote before: a field for dead letters."""
    time, folder = "2026-11-21T00:00:00+00:00", stage.ledger
    folder.mkdir()
    today = LedgerEntry("q/$deadletterqueue", 1, "m", 5, "orders", None, "forwarded", time, digest="AAAA")
    (folder / "run-00000-a.jsonl").write_bytes(today.line() + today.line()[:-9])
    before = {"queue": "q", "dead_letter": True, "sequence_number": 2, "enqueued_at_ms": 5, "message_id": "m"}
    before |= {"session_id": None, "destination": "orders", "digest": "AAAA", "outcome": "forwarded", "time": time}
    (folder / "old-00000-0-a.jsonl").write_text(json.dumps(before) + "\n")
    for tables in (SparkTables(session), LocalTables()):
        tables.ledgers("known", [str(folder)])
        rows = tables.query("select * from known order by sequence_number", "Reading")
        assert [(one["place"], one["dead_letter"], one["sequence_number"], one["outcome"]) for one in rows] == [
            ("q", True, number, "forwarded") for number in (1, 2)
        ]
        assert {one["content"] for one in rows} == {"AAAA"}


def test_what_still_waits_in_the_queues_is_refused(session: StartedSpark, stage: Stage) -> None:
    """Archived but not taken: replayed now, the next drain would send every message a second time."""
    stage.divert(messages(20, sessions=2))
    stage.archive(session)
    with pytest.raises(UsageError, match="20 of 20 messages still wait in the backlog queues") as refused:
        stage.replay(session, although_in_queues=False)
    assert "--although-in-the-queues" in refused.value.hint
    assert stage.at_home() == []
    dry = stage.replay(session, although_in_queues=False, dry_run=True)
    assert (dry.waiting, dry.forwarded) == (20, 20)
    assert dry.gone == 0


def test_what_a_drain_has_sent_back_meanwhile_is_refused_without_its_ledger(
    session: StartedSpark, stage: Stage
) -> None:
    """Archived but not taken, then drained: the archive alone cannot know that every message has arrived."""
    stage.divert(messages(20, sessions=2))
    stage.archive(session)
    drained = stage.folder / "drain.jsonl"
    asyncio.run(drain_to(stage.pair, drained, backlog(0), dead_letter=False))
    stage.divert(messages(5, prefix="later"), queue=1)
    stage.archive(session, take=True)
    with pytest.raises(UsageError, match="20 of 25 messages have left the backlog queues") as refused:
        stage.replay(session, although_in_queues=False)
    assert "--ledger drain.jsonl" in refused.value.hint
    assert "--although-gone" in refused.value.hint
    dry = stage.replay(session, although_in_queues=False, dry_run=True)
    assert (dry.waiting, dry.gone, dry.forwarded) == (0, 20, 25)
    assert len(stage.at_home()) == 20
    report = stage.replay(session, although_in_queues=False, drained=(drained,))
    assert (report.matched, report.already_done, report.forwarded, report.gone) == (25, 20, 5, 0)
    assert len(stage.at_home()) == 25
    told = stage.replay(session, although_in_queues=False, although_gone=True)
    assert (told.already_done, told.forwarded, told.gone) == (5, 20, 20)


def test_an_archive_that_was_taken_is_replayed_without_a_look(session: StartedSpark, stage: Stage) -> None:
    stage.divert(messages(10))
    stage.archive(session, take=True)
    stage.divert(messages(5, prefix="later"))
    manifest = LocalStore(Path(stage.archive_path)).manifest()
    assert manifest.perhaps_queued("shop") == []
    stage.emulator.faults("shop-neu").add("dark:for=60s")
    report = stage.replay(session, although_in_queues=False)
    assert (report.forwarded, report.waiting) == (10, 0)


def test_what_cannot_be_looked_at_is_not_sent(session: StartedSpark, stage: Stage) -> None:
    stage.divert(messages(5))
    stage.archive(session)
    stage.emulator.faults("shop-neu").add("fail:operation=management,condition=amqp:unauthorized-access")
    with pytest.raises(UnauthorizedError, match="is not known") as refused:
        stage.replay(session, although_in_queues=False)
    assert "Listen" in refused.value.hint
    assert stage.at_home() == []


def test_only_the_configured_entities_get_messages_if_asked_so(session: StartedSpark, stage: Stage) -> None:
    """What is for others is left and named, until somebody sends it after all."""
    stage.emulator.namespace("shop-weu").create_queue("payroll", QueueDescription())
    stage.divert(messages(6, prefix="o"), destination="ORDERS")
    stage.divert(messages(3, prefix="p"), destination="payroll")
    stage.archive(session)
    for dry_run in (True, False):
        report = stage.replay(session, only=("orders",), dry_run=dry_run)
        assert (report.forwarded, report.elsewhere) == (6, {"payroll": 3})
    again = stage.replay(session, only=("orders",))
    assert (again.forwarded, again.already_done, again.elsewhere) == (0, 6, {"payroll": 3})
    assert stage.replay(session).forwarded == 3
    assert stage.replay(session, only=("orders",)).elsewhere == {}


def test_what_has_expired_into_the_dead_letters_still_waits(session: StartedSpark, stage: Stage) -> None:
    stage.divert(messages(5))
    stage.archive(session)
    stage.dead_letter_all(0, "TTLExpiredException")
    dry = stage.replay(session, although_in_queues=False, dry_run=True)
    assert (dry.waiting, dry.gone) == (5, 0)
    with pytest.raises(UsageError, match="or in their dead-letter queues"):
        stage.replay(session, although_in_queues=False)


def test_a_name_has_one_spelling_in_every_count(session: StartedSpark, stage: Stage) -> None:
    stage.divert(messages(2, prefix="upper"), queue=1, destination="ORDERS")
    stage.divert(messages(7))
    stage.archive(session)
    assert stage.replay(session, dry_run=True).per_destination == {"orders": 9}
    assert stage.replay(session, tasks=3).per_destination == {"orders": 9}
