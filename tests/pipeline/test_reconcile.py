"""Reconciling: each message has exactly one outcome, or is listed with the reason."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sbpair.core.errors import UsageError
from sbpair.core.transfer.filters import MessageFilter, Where
from sbpair.pipeline.executors import PairByName
from sbpair.pipeline.reconcile import verdicts
from sbpair.pipeline.spark.session import StartedSpark
from sbpair.pipeline.tables import PLACE_COLUMNS, LocalTables, SparkTables, Tables
from tests.pipeline.stage import Stage, backlog, messages

pytestmark = pytest.mark.spark

AT = datetime(2026, 11, 21, tzinfo=UTC)
AT_MS = round(AT.timestamp() * 1000)
D1, D2 = "AAAA", "AAAB"


ARCHIVED = (
    *PLACE_COLUMNS,
    ("pair", "string"),
    ("queue", "string"),
    ("destination", "string"),
    ("session_id", "string"),
)
LEDGER = (
    *(*PLACE_COLUMNS, ("session_id", "string"), ("destination", "string"), ("outcome", "string"), ("reason", "string")),
    *(("attempts", "int"), ("content", "string"), ("source", "int"), ("from_namespace", "string")),
)


def archived(tables: Tables, *numbers_and_digests: tuple[int, str]) -> None:
    rows = [
        ("q", False, number, AT_MS, f"m-{number}", "shop", "q", "orders", "s", digest)
        for number, digest in numbers_and_digests
    ]
    tables.rows("archived", (*ARCHIVED, ("content", "string")), rows)


def ledger(tables: Tables, *lines: dict[str, Any]) -> None:
    plain = {"place": "q", "dead_letter": False, "enqueued_at_ms": AT_MS, "outcome": "forwarded", "attempts": 1}
    rows = [plain | {"message_id": f"m-{line['sequence_number']}"} | line for line in lines]
    tables.rows("ledgers", LEDGER, [tuple(row.get(name) for name, _ in LEDGER) for row in rows])


@pytest.fixture(params=["spark", "local"])
def tables(request: pytest.FixtureRequest) -> Tables:
    return SparkTables(request.getfixturevalue("session")) if request.param == "spark" else LocalTables()


def test_every_way_to_go_wrong_has_its_verdict(tables: Tables) -> None:
    archived(tables, *((number, D1) for number in range(1, 13)), (12, D2))
    ledger(
        tables,
        {"sequence_number": 1, "content": D1},
        {"sequence_number": 2, "outcome": "dead-lettered"},
        {"sequence_number": 3, "outcome": "ping"},
        {"sequence_number": 4, "outcome": "already-forwarded"},
        {"sequence_number": 5},
        {"sequence_number": 5, "outcome": "already-forwarded"},
        {"sequence_number": 6},
        {"sequence_number": 6, "source": 1},
        {"sequence_number": 7, "outcome": "refused", "reason": "full"},
        {"sequence_number": 8, "message_id": "other"},
        {"sequence_number": 9, "content": D2},
        {"sequence_number": 10, "enqueued_at_ms": 5},
        {"sequence_number": 11, "outcome": "refused"},
        {"sequence_number": 11, "session_id": "s"},
        {"sequence_number": 12, "content": D1},
    )
    verdicts(tables)
    judged = tables.query("select sequence_number, enqueued_at_ms, verdict from judged", "Judging")
    found = {row["sequence_number"]: row["verdict"] for row in judged if row["enqueued_at_ms"] == AT_MS}
    assert found == {
        1: "ok",
        2: "ok",
        3: "ok",
        4: "ok",
        5: "ok",
        6: "doubled",
        7: "unaccounted",
        8: "altered",
        9: "altered",
        10: "unaccounted",
        11: "ok",
        12: "altered",
    }
    assert [row["verdict"] for row in judged if row["enqueued_at_ms"] == 5] == ["not archived"]


def test_a_drain_and_a_replay_account_for_an_archive_together(session: StartedSpark, stage: Stage) -> None:
    stage.divert(messages(20, sessions=2), queue=0)
    stage.divert(messages(30, prefix="replayed"), queue=1)
    stage.divert(messages(3, prefix="dead"), queue=2)
    stage.dead_letter_all(2, "Broken")
    stage.archive(session, dead_letters=(False, True))
    drained = stage.folder / "drain.jsonl"
    asyncio.run(drain_to(stage.pair, drained, backlog(0), dead_letter=False))
    asyncio.run(drain_to(stage.pair, stage.folder / "dead.jsonl", backlog(2), dead_letter=True))
    before = stage.reconcile(session, [stage.archive_path], [str(drained)])
    assert (before.messages, before.verdicts) == (53, {"ok": 20, "unaccounted": 33})
    assert {one.queue for one in before.listed} == {backlog(1), backlog(2)}
    stage.replay(session, wanted=MessageFilter(where=Where(f"sys.Queue = '{backlog(1)}'")))
    ledgers = [str(drained), str(stage.folder / "dead.jsonl"), str(stage.ledger)]
    after = stage.reconcile(session, [stage.archive_path], ledgers)
    assert (after.verdicts, after.findings, after.outcomes) == ({"ok": 53}, 0, {"forwarded": 53})
    again = MessageFilter(where=Where("sys.MessageId = 'm-3'"))
    stage.replay(session, ledger=stage.folder / "second", wanted=again)
    doubled = stage.reconcile(session, [stage.archive_path], [*ledgers, str(stage.folder / "second")])
    assert [(one.verdict, one.message_id) for one in doubled.listed] == [("doubled", "m-3")]
    assert doubled.listed[0].ledgers == tuple(sorted([str(drained), str(stage.folder / "second")]))


async def drain_to(pair: PairByName, ledger_file: Path, queue: str, *, dead_letter: bool) -> None:
    from sbpair.connect import open_sides
    from sbpair.runtime.clock import LoopClock, Quiet
    from sbpair.runtime.transfer.drain import DrainJob, TransferRequest, drain
    from sbpair.runtime.transfer.ledger import Ledger

    book = Ledger(ledger_file)
    async with open_sides(pair.resolve()) as sides:
        await drain(
            DrainJob(
                TransferRequest((queue,), dead_letter=dead_letter),
                secondary=sides.secondary,
                primary=sides.primary,
                admin=None,
                clock=LoopClock(),
                observer=Quiet(),
                ledger=book,
                stop=asyncio.Event(),
            )
        )
    await book.close()


def test_what_is_not_there_or_no_ledger_is_a_usage_error(tables: Tables, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no ledger"):
        tables.ledgers("known", [str(tmp_path / "nothing")])
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(UsageError, match="is not a ledger"):
        tables.ledgers("known", [str(tmp_path / "other.jsonl")])
    tables.ledgers("known", [])
    assert tables.query("select * from known", "Reading") == []


def test_what_no_ledger_knows_is_looked_for_in_the_queues(session: StartedSpark, stage: Stage) -> None:
    stage.divert(messages(3, prefix="kept"), queue=0)
    stage.divert(messages(4, prefix="taken"), queue=1)
    stage.divert(messages(2, prefix="topic"), queue=2, destination="events")
    stage.archive(session, take=True, queues=("1", "2"))
    stage.archive(session, queues=("0",))
    stage.send("primary", "orders", messages(1, prefix="taken"))
    blind = stage.reconcile(session, [stage.archive_path], [])
    assert blind.verdicts == {"unaccounted": 9}
    seeing = stage.reconcile(session, [stage.archive_path], [], searched_pair=stage.pair)
    assert seeing.verdicts == {"waiting": 3, "arrived": 1, "taken": 3, "unaccounted": 2}
    assert seeing.not_looked_at.keys() == {"events"}
    assert {one.message_id for one in seeing.listed if one.verdict == "taken"} == {f"taken-{n}" for n in (1, 2, 3)}
    stage.dead_letter_all(0, "Broken")
    again = stage.reconcile(session, [stage.archive_path], [], searched_pair=stage.pair)
    assert again.verdicts == seeing.verdicts
