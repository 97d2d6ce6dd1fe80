"""Reconciling: each message has exactly one outcome, or is listed with the reason."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sbpair.core.errors import UsageError
from sbpair.core.transfer.filters import MessageFilter, parse_where
from sbpair.pipeline.executors import PairByName
from sbpair.pipeline.ledgers import read_ledgers
from sbpair.pipeline.reconcile import reconcile, verdicts
from sbpair.pipeline.schemas import MESSAGE_COLUMNS, OUTCOME_COLUMNS, message_schema, struct
from sbpair.pipeline.spark.session import Session
from tests.pipeline.stage import Stage, backlog, messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

AT = datetime(2026, 11, 21, tzinfo=UTC)
AT_MS = round(AT.timestamp() * 1000)
D1, D2 = bytes(16), bytes(15) + b"\x01"


def archived(spark: "SparkSession", *numbers_and_digests: tuple[int, bytes]) -> "DataFrame":
    rows = [
        {"pair": "shop", "queue": "q", "dead_letter": False, "sequence_number": number, "enqueued_at": AT,
         "message_id": f"m-{number}", "session_id": "s", "destination": "orders", "digest": digest}
        for number, digest in numbers_and_digests
    ]  # fmt: skip
    return spark.createDataFrame(
        [tuple(row.get(name) for name, *_ in MESSAGE_COLUMNS) for row in rows], message_schema()
    )


def ledger(spark: "SparkSession", *lines: dict[str, Any]) -> "DataFrame":
    plain = {
        "queue": "q",
        "dead_letter": False,
        "enqueued_at_ms": AT_MS,
        "outcome": "forwarded",
        "attempts": 1,
        "at": AT,
    }
    rows = [plain | {"message_id": f"m-{line['sequence_number']}"} | line for line in lines]
    return spark.createDataFrame(
        [tuple(row.get(name) for name, *_ in OUTCOME_COLUMNS) for row in rows], struct(OUTCOME_COLUMNS)
    )


def test_every_way_to_go_wrong_has_its_verdict(spark: "SparkSession") -> None:
    rows = archived(spark, *((number, D1) for number in range(1, 13)), (12, D2))
    lines = ledger(
        spark,
        {"sequence_number": 1, "digest": D1},
        {"sequence_number": 2, "outcome": "dead-lettered"},
        {"sequence_number": 3, "outcome": "ping"},
        {"sequence_number": 4, "outcome": "already-forwarded"},
        {"sequence_number": 5},
        {"sequence_number": 5, "outcome": "already-forwarded"},
        {"sequence_number": 6},
        {"sequence_number": 6, "source": "another"},
        {"sequence_number": 7, "outcome": "refused", "reason": "full"},
        {"sequence_number": 8, "message_id": "other"},
        {"sequence_number": 9, "digest": D2},
        {"sequence_number": 10, "enqueued_at_ms": 5},
        {"sequence_number": 11, "outcome": "refused"},
        {"sequence_number": 11, "session_id": "s"},
        {"sequence_number": 12, "digest": D1},
    )
    judged = verdicts(rows, lines).select("sequence_number", "enqueued_at_ms", "verdict").collect()
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


def test_a_drain_and_a_replay_account_for_an_archive_together(session: Session, stage: Stage) -> None:
    stage.divert(messages(20, sessions=2), queue=0)
    stage.divert(messages(30, prefix="replayed"), queue=1)
    stage.divert(messages(3, prefix="dead"), queue=2)
    stage.dead_letter_all(2, "Broken")
    stage.archive(session, dead_letters=(False, True))
    drained = stage.folder / "drain.jsonl"
    asyncio.run(drain_to(stage.pair, drained, backlog(0), dead_letter=False))
    asyncio.run(drain_to(stage.pair, stage.folder / "dead.jsonl", backlog(2), dead_letter=True))
    before = reconcile(session, [stage.archive_path], [str(drained)])
    assert (before.messages, before.verdicts) == (53, {"ok": 20, "unaccounted": 33})
    assert {one.queue for one in before.listed} == {backlog(1), backlog(2)}
    stage.replay(session, wanted=MessageFilter(where=parse_where(f"sys.Queue = '{backlog(1)}'")))
    ledgers = [str(drained), str(stage.folder / "dead.jsonl"), str(stage.ledger)]
    after = reconcile(session, [stage.archive_path], ledgers)
    assert (after.verdicts, after.findings, after.outcomes) == ({"ok": 53}, 0, {"forwarded": 53})
    again = MessageFilter(where=parse_where("sys.MessageId = 'm-3'"))
    stage.replay(session, ledger=stage.folder / "second", wanted=again)
    doubled = reconcile(session, [stage.archive_path], [*ledgers, str(stage.folder / "second")])
    assert [(one.verdict, one.message_id) for one in doubled.listed] == [("doubled", "m-3")]
    assert doubled.listed[0].ledgers == tuple(sorted([str(drained), str(stage.folder / "second")]))


async def drain_to(pair: PairByName, ledger_file: Path, queue: str, *, dead_letter: bool) -> None:
    from sbpair.connect import open_sides
    from sbpair.runtime.clock import Quiet, SystemClock
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
                clock=SystemClock(),
                observer=Quiet(),
                ledger=book,
                stop=asyncio.Event(),
            )
        )
    await book.close()


def test_what_is_not_there_or_no_ledger_is_a_usage_error(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no ledger"):
        read_ledgers(spark, [str(tmp_path / "nothing")])
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(UsageError, match="is not a ledger"):
        read_ledgers(spark, [str(tmp_path / "other.jsonl")])
    assert read_ledgers(spark, []).count() == 0


def test_what_no_ledger_knows_is_looked_for_in_the_queues(session: Session, stage: Stage) -> None:
    stage.divert(messages(3, prefix="kept"), queue=0)
    stage.divert(messages(4, prefix="taken"), queue=1)
    stage.divert(messages(2, prefix="topic"), queue=2, destination="events")
    stage.archive(session, take=True, queues=("1", "2"))
    stage.archive(session, queues=("0",))
    stage.send("primary", "orders", messages(1, prefix="taken"))
    blind = reconcile(session, [stage.archive_path], [])
    assert blind.verdicts == {"unaccounted": 9}
    seeing = reconcile(session, [stage.archive_path], [], look=stage.pair, config=stage.config)
    assert seeing.verdicts == {"waiting": 3, "arrived": 1, "taken": 3, "unaccounted": 2}
    assert seeing.not_looked_at.keys() == {"events"}
    assert {one.message_id for one in seeing.listed if one.verdict == "taken"} == {f"taken-{n}" for n in (1, 2, 3)}
    stage.dead_letter_all(0, "Broken")
    again = reconcile(session, [stage.archive_path], [], look=stage.pair, config=stage.config)
    assert again.verdicts == seeing.verdicts
