"""The audit history over time."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sbpair.core.entities import Counts, QueueFacts, QueueSettings
from sbpair.core.errors import UsageError
from sbpair.core.inspection.audit import AuditReport
from sbpair.core.inspection.audit.result import history_line
from sbpair.core.inspection.snapshot import NamespaceSnapshot, PairFields, QueueSeen, Snapshot
from sbpair.core.inspection.trend import QUEUE_CAPACITY_BYTES, Audit, findings, growth, trend
from sbpair.core.serialization import to_plain
from sbpair.operations.audit import read_history
from sbpair.render.reports import trend_result
from tests.cli.schema_checks import check_data, check_document

START = datetime(2026, 11, 1, tzinfo=UTC)
MEGABYTE = 1024 * 1024


def line(hour: int, active: int, codes: Mapping[str, int], skipped: Sequence[str] = ()) -> dict[str, Any]:
    """What an audit at that hour appends, with another's findings and one queue of 1 MB a message."""
    counts = Counts(active=active, dead_letter=1)
    queue = QueueFacts("shop-weu/x-servicebus-transfer/0", QueueSettings(), counts, active * MEGABYTE)
    seen = NamespaceSnapshot("shop-neu", "shop-neu.servicebus.windows.net", "test", queues=(QueueSeen(queue),))
    pair = PairFields("shop", "shop-weu.servicebus.windows.net", seen.host, "shop-weu", "shop-neu", 10)
    at = (START + timedelta(hours=hour)).timestamp()
    snapshot = Snapshot(1, at, pair, seen, seen)
    written: dict[str, Any] = to_plain(history_line(snapshot, AuditReport("shop", at, (), (), ())))
    return written | {"findings": codes, "skipped": list(skipped)}


def write(folder: Path, lines: Sequence[Mapping[str, Any]]) -> Path:
    text = "".join(json.dumps(one) + "\n" for one in lines)
    (folder / "shop.jsonl").write_text(text, encoding="utf-8")
    return folder


HISTORY = [
    line(0, 10, {"SBP001": 2}),
    line(1, 20, {}),
    line(2, 30, {"SBP001": 1, "SBP009": 4}),
    line(3, 40, {"SBP009": 1}),
    line(4, 50, {}, skipped=["SBP001", "SBP009"]),
]


@pytest.fixture
def history(tmp_path: Path) -> list[Audit]:
    return read_history(write(tmp_path, [*HISTORY, HISTORY[-1]]))


def test_growth_and_time_until_full(history: list[Audit]) -> None:
    (row,) = growth(history)
    assert (row.readings, row.active_first, row.active, row.dead_letter) == (5, 10, 50, 1)
    assert row.messages_per_hour == pytest.approx(10)
    assert row.seconds_until_full == pytest.approx((QUEUE_CAPACITY_BYTES / MEGABYTE - 50) / 10 * 3600)


def test_findings_come_and_go(history: list[Audit]) -> None:
    found = {one.code: one for one in findings(history)}
    first = found["SBP001"]
    assert (first.open, first.seen_in, first.audits, first.changes, first.most) == (False, 2, 4, 3, 2)
    assert (first.first_seen, first.last_seen) == (START.timestamp(), START.timestamp() + 2 * 3600)
    last = found["SBP009"]
    assert (last.open, last.seen_in, last.latest, last.changes) == (True, 2, 1, 1)


def test_the_command_shows_what_flaps(history: list[Audit]) -> None:
    result = trend_result(trend(history))
    check_data("pipeline trend", result.data)
    states = {row["code"]: (row["state"], row["title"]) for row in result.tables[0].rows}
    assert states["SBP001"] == ("flapping", "Backlog queue missing")
    assert states["SBP009"][0] == "open"
    assert "SBP001 of shop came or went 3 times." in result.notes
    assert result.summary.startswith(
        "5 audits from 2026-11-01 00:00 to 2026-11-01 04:00 UTC; 1 kind of findings open, 1"
    )


def test_only_the_last_audits(tmp_path: Path) -> None:
    since = START.timestamp() + 3 * 3600
    assert len(read_history(write(tmp_path, HISTORY), since=since)) == 2


def test_what_is_no_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no"):
        read_history(tmp_path / "absent")
    (tmp_path / "shop.jsonl").write_text('{"taken_at": "yesterday", "pair": "shop"}\n', encoding="utf-8")
    with pytest.raises(UsageError, match="yesterday"):
        read_history(tmp_path)


@pytest.mark.parametrize("taken_at", ["+20000-01-01T00:00:00Z", "-290000-01-01T00:00:00Z", "", "1e9"])
def test_a_time_that_is_no_date_is_refused(tmp_path: Path, taken_at: str) -> None:
    (tmp_path / "shop.jsonl").write_text(json.dumps({"taken_at": taken_at, "pair": "shop"}) + "\n", encoding="utf-8")
    with pytest.raises(UsageError, match="not of an audit history"):
        read_history(tmp_path)


def test_what_may_be_missing_from_a_line_is_taken_for_nothing_but_unread_queues_for_unknown(tmp_path: Path) -> None:
    lines = [
        {"taken_at": "0001-01-01T00:00:00Z", "pair": "\x1b[31m", "findings": None, "queues": None},
        {
            "taken_at": "9999-12-31T23:59:59Z",
            "pair": "shop",
            "findings": {"": None, "SBP999": -5},
            "queues": [None, {}],
        },
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "shop.jsonl").write_text(text, encoding="utf-8")
    history = read_history(tmp_path)
    shown = trend_result(trend(history))
    assert [reading.active for reading in shown.data.readings] == [None, 0]
    assert {found.code: found.state for found in shown.data.findings} == {"": "gone", "SBP999": "gone"}
    assert "What was in the queues is unknown for 1 audit: they could not be read." in shown.notes
    check_data("pipeline trend", shown.data)


def test_the_command_needs_no_java(tmp_path: Path) -> None:
    write(tmp_path, HISTORY)
    environ = {"PATH": "", "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    without = "import sys; sys.modules |= dict.fromkeys(('pyspark', 'pyarrow', 'py4j'))"
    blocked = f"{without}; from sbpair.cli.main import main; main()"
    arguments = ["pipeline", "trend", str(tmp_path), "-o", "json"]
    ran = subprocess.run([sys.executable, "-c", blocked, *arguments], env=environ, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert check_document("pipeline trend", ran.stdout)["data"]["readings"][-1]["active"] == 50
