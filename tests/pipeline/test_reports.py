"""What the reports of a pipeline say of themselves: their exit code, notes and sentence, without Spark."""

from pathlib import Path

import pytest

from sbpair.core.outcome import Exit
from sbpair.pipeline.reports import (
    ArchiveReport,
    Fate,
    FollowReport,
    Imported,
    ReconcileFinding,
    ReconcileReport,
    ReplayReport,
)
from sbpair.pipeline.spans import NumberRange


def test_an_archive_says_what_it_left_and_how_long_it_waited() -> None:
    report = ArchiveReport("shop", "there", "run", rows=3, total_rows=9, take=True, settled=1, left={"locked": 2})
    report.throttled, report.waited_seconds, report.gone = 1, 61.0, 2
    assert (report.exit, report.summary()) == (
        Exit.PARTIAL,
        "3 messages added to there, which has 9; 1 removed from their queues.",
    )
    left, throttled, waited, gone = report.notes()
    assert left == "Left in the queue: 2 (locked)"
    assert throttled == "1 request came when the namespace was too busy, and waited."
    assert "waited 1m1s in all" in waited
    assert gone.startswith("2 archived messages had left the queues before")


def test_a_dry_run_finds_what_is_not_archived_yet() -> None:
    nothing = ArchiveReport("shop", "there", "run", dry_run=True)
    some = ArchiveReport("shop", "there", "run", (NumberRange("q", False, 1, 5),), dry_run=True)
    assert (nothing.exit, some.exit) == (Exit.OK, Exit.FINDINGS)
    assert some.summary() == "1 sequence-number range not archived yet; nothing was changed."


@pytest.mark.parametrize(
    ("ended", "left", "code", "begins"),
    [
        ("time", {}, Exit.OK, "The time is over. 0 messages added to there"),
        ("idle", {"locked": 1}, Exit.PARTIAL, "Nothing new has come. "),
        ("terminated", {"locked": 1}, Exit.TERMINATED, "Terminated. "),
    ],
)
def test_the_end_of_a_follow_is_its_exit_code(ended: str, left: dict[str, int], code: Exit, begins: str) -> None:
    report = FollowReport("shop", "there", ended=ended, left=left)
    assert (report.exit, report.summary().startswith(begins)) == (code, True), report.summary()


def test_an_import_names_the_lines_without_a_message_and_the_command_that_adds_them() -> None:
    again = Imported("shop", "there", Path("drained.jsonl"), {}, 0)
    assert (again.exit, again.rows) == (Exit.OK, 0)
    assert again.summary() == "drained.jsonl had been added before; nothing was added."
    some = Imported("shop", "there", Path("drained.jsonl"), {"q": 2, "r": 1}, 2, (2, 5, 7, 9), (Path("unsent/a"),))
    assert (some.exit, some.rows, some.unreadable) == (Exit.PARTIAL, 3, 4)
    assert "3 messages of drained.jsonl added. 4 lines (line 2, 5, 7, ...) held no message" in some.summary()
    assert some.summary().endswith("sbpair pipeline archive shop --archive there --import unsent/a")


@pytest.mark.parametrize(
    ("sent", "refused", "elsewhere", "dry_run", "code"),
    [
        (2, 0, 0, False, Exit.OK),
        (0, 0, 0, False, Exit.OK),
        (2, 1, 0, False, Exit.PARTIAL),
        (0, 1, 0, False, Exit.FAILED),
        (0, 0, 1, False, Exit.PARTIAL),
        (0, 1, 1, False, Exit.PARTIAL),
        (2, 1, 1, True, Exit.FINDINGS),
        (0, 0, 1, True, Exit.OK),
    ],
)
def test_the_exit_code_of_a_replay(sent: int, refused: int, elsewhere: int, dry_run: bool, code: Exit) -> None:
    report = ReplayReport("shop", "run", "ledger", dry_run=dry_run, outcomes={"forwarded": sent})
    report.refusals = {"quota": refused} if refused else {}
    report.elsewhere = {"other": elsewhere} if elsewhere else {}
    assert report.exit is code


def test_a_replay_lists_each_fate_once() -> None:
    report = ReplayReport("shop", "run", "ledger", outcomes={"forwarded": 3}, per_destination={"b": 1, "a": 2})
    report.refusals, report.already_done, report.matched = {"quota": 1}, 4, 8
    fates = list(report.fates())
    assert fates[:3] == [Fate("sent", "a", 2), Fate("sent", "b", 1), Fate("refused", "quota", 1)]
    assert fates[3:] == [Fate("already done", "", 4)]
    assert report.summary().startswith("3 of 8 messages sent to the primary")


def test_a_reconciliation_advises_to_search_only_where_nobody_has() -> None:
    finding = ReconcileFinding("unaccounted", "shop", "q", False, 7, None, None, None, "it is in no ledger", ())
    for searched in (False, True):
        report = ReconcileReport(9, {"ok": 7, "unaccounted": 2}, {}, 0, 0, {"orders": "no right"}, (finding,), searched)
        assert (report.exit, report.counts.unaccounted, report.counts.taken) == (Exit.FINDINGS, 2, 0)
        notes = " ".join(report.notes())
        assert ("With --pair NAME" in notes) is not searched
        assert "orders could not be looked into: no right" in notes
        assert "1 of 2 findings are listed" in notes
        assert report.summary().startswith("7 of 9 archived messages have exactly one outcome; 2 unaccounted, 0 taken")
