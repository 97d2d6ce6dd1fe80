"""Progress on stderr, where it is no terminal: a plain line every ten seconds, nothing when quiet."""

import re
import sys
from contextlib import redirect_stderr
from io import StringIO

import pytest

from sbpair.cli.options import Options
from sbpair.cli.pipeline.session import JobLog
from sbpair.core.events import BacklogCounted, Forwarded
from sbpair.pipeline.spark.session import JobProgress
from sbpair.render.progress import LINE_EVERY_SECONDS, MoveProgress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("quiet", [False, True])
def test_a_move_says_a_line_when_it_is_time(capsys: pytest.CaptureFixture[str], quiet: bool) -> None:
    clock = Clock()
    with MoveProgress("drain", quiet=quiet, now=clock) as progress:
        progress.notify(BacklogCounted(0.0, "q", 100))
        clock.now += LINE_EVERY_SECONDS - 0.1
        progress.notify(Forwarded(0.0, "q", "orders", 40, 4_000))
        assert capsys.readouterr().err == ""
        clock.now += 0.1
        progress.notify(Forwarded(0.0, "q", "orders", 10, 1_000))
        progress.notify(Forwarded(0.0, "q", "orders", 10, 1_000))
    said = capsys.readouterr().err
    wanted = "" if quiet else r"drain: 50 of 100 messages, 5/s, about 10s left \(\d\d:\d\d:\d\d\)\n"
    assert re.fullmatch(wanted, said)
    assert (progress.done, progress.size_bytes) == (60, 6_000)


def test_no_time_left_is_told_of_what_does_not_move() -> None:
    clock = Clock()
    progress = MoveProgress("drain", quiet=True, now=clock)
    progress.notify(BacklogCounted(0.0, "q", 17))
    progress.notify(Forwarded(0.0, "q", "orders", 5, 500))
    clock.now += 5.0
    assert progress.line().startswith("drain: 5 of 17 messages, 1/s, about 12s left (")
    clock.now += 5.0
    assert progress.seconds_left() is None
    assert progress.line().endswith("/s; nothing moved for 10s"), "what is held back has no pace"
    clock.now += 500.0
    progress.notify(Forwarded(0.0, "q", "orders", 1, 100))
    clock.now += 2.0
    progress.notify(Forwarded(0.0, "q", "orders", 4, 400))
    assert progress.line().startswith("drain: 10 of 17 messages, 2/s, about 3.5s left ("), (
        "the pause is no part of the pace"
    )


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [40, 80])
def test_the_numbers_stay_in_one_line_of_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    clock = Clock()
    with redirect_stderr(Terminal()) as screen, MoveProgress("big", color=False, now=clock) as progress:
        progress.notify(BacklogCounted(0.0, "q", 400))
        clock.now += 5.0
        progress.notify(Forwarded(0.0, "q", "orders", 149, 351_000))
    shown = [
        line for line in re.split(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]+", screen.getvalue()) if "149" in line or "kB" in line
    ]
    assert shown
    assert all(re.search(r"149/400 30/s 351.0 kB", line) for line in shown), shown


def test_what_a_limit_leaves_is_no_part_of_the_total() -> None:
    progress = MoveProgress("drain", quiet=True, max_messages=5)
    progress.notify(BacklogCounted(0.0, "q", 3))
    assert progress.total == 3
    progress.notify(BacklogCounted(0.0, "r", 14))
    assert progress.total == 5


def test_a_bar_tells_the_rate_and_large_numbers_as_the_line_does(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with MoveProgress("drain") as progress:
        progress.notify(BacklogCounted(0.0, "q", 20_500))
        progress.notify(Forwarded(0.0, "q", "orders", 5_983, 4_000))
    assert re.search(r"5,983/20,500 [\d,]+/s 4.0 kB", terminal.getvalue()), terminal.getvalue()


@pytest.mark.parametrize(
    ("options", "said"),
    [(Options(), ""), (Options(verbose=True), "Starting Spark\n"), (Options(verbose=True, quiet=True), "")],
)
def test_a_step_without_tasks_is_told_to_who_wants_to_hear(
    capsys: pytest.CaptureFixture[str], options: Options, said: str
) -> None:
    with JobLog(options) as talk:
        talk.say("Starting Spark")
        talk(JobProgress("Archiving", 1, 4, 0, 1.0))
    assert capsys.readouterr().err == said
