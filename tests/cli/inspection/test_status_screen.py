"""The screen of `sbpair status`: what it leaves out where a pair has more than fits, and what it marks."""

from dataclasses import replace

import pytest

from sbpair.cli.inspection.status import MOST_ROWS, result
from sbpair.core.backlog import Backlog, QueueContents
from sbpair.core.inspection.status import REACHABLE, PairStatus, SideStatus, StatusReport

PRIMARY = SideStatus("primary", "127.0.0.1:1", REACHABLE, label="contoso-weu")
SECONDARY = SideStatus("secondary", "contoso-neu.servicebus.windows.net", REACHABLE)


def queue(index: int, active: int | None = 0, at: float | None = None) -> QueueContents:
    path = f"contoso-weu/x-servicebus-transfer/{index}"
    return QueueContents(path, active=active, deferred=0, scheduled=0, dead_letter=0, oldest_enqueued_at=at)


def status(*queues: QueueContents, environment: str | None = None) -> PairStatus:
    return PairStatus("orders", 1000.0, PRIMARY, SECONDARY, Backlog("orders", 1000.0, queues), environment)


def test_of_many_queues_those_that_are_empty_are_only_counted() -> None:
    many = [queue(index) for index in range(40)]
    many[7] = queue(7, 3, 940.0)
    many[31] = queue(31, None)
    _, shown = result(StatusReport(status(*many))).screen
    assert [row["name"] for row in shown.rows] == ["7", "31", "total"]
    assert shown.title == "Backlog queues contoso-weu/x-servicebus-transfer/... (38 of 40 are empty)"
    assert shown.rows[-1]["active"] == "unknown", "a sum of what is not known is not known"
    assert shown.rows[-1]["oldest"] == "1m"
    (table,) = result(StatusReport(status(*many))).tables
    assert len(table.rows) == 42, "programs get every row"


def test_what_fits_is_shown_whole() -> None:
    _, shown = result(StatusReport(status(*map(queue, range(MOST_ROWS))))).screen
    assert len(shown.rows) == MOST_ROWS + 1
    assert shown.title.endswith("/...")


def test_without_a_queue_there_is_no_table_of_queues() -> None:
    (sides,) = result(StatusReport(status())).screen
    assert [row["name"] for row in sides.rows] == ["contoso-weu at 127.0.0.1:1", "contoso-neu.servicebus.windows.net"]


@pytest.mark.parametrize(
    ("environment", "leave", "title"),
    [
        (None, "", "orders"),
        ("production", "", "orders [production]"),
        ("test", "Ctrl-C leaves", "orders [test], Ctrl-C leaves"),
    ],
)
def test_the_heading_names_pair_environment_and_the_way_out(environment: str | None, leave: str, title: str) -> None:
    sides, _ = result(StatusReport(status(queue(0), environment=environment)), leave=leave).screen
    assert (sides.title, sides.title_style) == (title, environment)


def test_why_a_side_does_not_answer_is_told_once() -> None:
    why = "Could not read the properties of contoso-neu: connection refused"
    silent = SideStatus("secondary", "127.0.0.1:2", "unreachable", detail=why, label="contoso-neu")
    queues = tuple(replace(queue(index, None), detail=why, error_code="connection-lost") for index in range(3))
    now = PairStatus("orders", 1000.0, PRIMARY, silent, Backlog("orders", 1000.0, queues))
    told = result(StatusReport(now))
    assert " ".join([*told.notes, told.summary]).count(why) == 1
    assert told.summary.startswith("Not read: contoso-weu/x-servicebus-transfer/0 and 2 more. Run: ")
    assert all(not row["detail"] for row in told.screen[1].rows if row["name"] != "total")
    details = {row["detail"] for table in told.tables for row in table.rows if row["what"] == "backlog queue"}
    assert details == {"connection-lost"}


def test_what_helps_both_sides_is_told_once() -> None:
    hint = "Check that the key is one of this namespace's."
    sides = [
        SideStatus(side, f"{side}.example", "denied", detail=f"{side} refuses.", hint=hint)
        for side in ("primary", "secondary")
    ]
    told = result(StatusReport(PairStatus("orders", 1000.0, sides[0], sides[1], Backlog("orders", 1000.0, ()))))
    assert told.notes[:2] == (
        "Primary primary.example: primary refuses.",
        f"Secondary secondary.example: secondary refuses. {hint}",
    )
