"""Progress of long work on stderr: a bar on a terminal, one plain line every ten seconds elsewhere."""

import math
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from sbpair.core import events
from sbpair.core.durations import format_duration
from sbpair.render.console import can_redraw, make_console, say
from sbpair.render.result import CommandResult
from sbpair.render.tables import as_renderable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


# A result that is shown again and again in the same place of a terminal.


class LiveView:
    """Shows each new result over the one before; the last one stays."""

    def __init__(self, *, color: bool = True) -> None:
        from rich.live import Live

        self._live = Live(console=make_console(color=color), auto_refresh=False, vertical_overflow="ellipsis")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, result: CommandResult) -> None:
        self._live.update(as_renderable(result, folded=True), refresh=True)


LINE_EVERY_SECONDS = 10.0
STALLED_SECONDS = 10.0
"""Where nothing has moved for so long, that is said, and no time left: what is held back has no pace."""


class Shown:
    """How far something is, on stderr while the context is open; nothing when `quiet`.

    `pace`: what the bar shows behind the amount, and as its clock; without it the clock shows the time that has passed.
    """

    def __init__(
        self,
        title: str,
        *,
        quiet: bool,
        color: bool,
        now: Callable[[], float] = time.monotonic,
        pace: Callable[[], tuple[str, str]] | None = None,
    ) -> None:
        self._quiet, self._now = quiet, now
        self._last_line = now()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if not quiet and can_redraw(sys.stderr):
            self._bar, self._task = _make_bar(title, pace, color=color)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def redraw(self, *, completed: int, total: int | None, **more: Any) -> bool:
        """Whether there is a bar, which then shows this; `more` as rich's `Progress.update` takes it."""
        if self._bar is None or self._task is None:
            return False
        self._bar.update(self._task, completed=completed, total=total, **more)
        return True

    def line_is_due(self) -> bool:
        """Whether it is time for a line where there is no bar; asked once for each."""
        if self._bar is not None or self._quiet or self._now() - self._last_line < LINE_EVERY_SECONDS:
            return False
        self._last_line = self._now()
        return True


class MoveProgress(Shown):
    """An observer that shows how far a drain or move is: done, total as counted, rate, bytes, time left, end.

    `max_messages`: no more are moved, however many were counted. `log` gets every event after it was counted. With
    `quiet` nothing is shown.
    """

    def __init__(
        self,
        title: str,
        *,
        quiet: bool = False,
        color: bool = True,
        log: Callable[[events.Event], None] | None = None,
        max_messages: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(title, quiet=quiet, color=color, now=now, pace=self._pace)
        self._title, self._log, self._max_messages = title, log, max_messages
        self._totals: dict[str, int] = {}
        self.done = 0
        self.size_bytes = 0
        self._began = self._last_move = now()
        self._done_before = 0

    @property
    def total(self) -> int | None:
        """Messages counted at the beginning, or moved if more have come since; None while nothing was counted."""
        if not self._totals:
            return None
        counted = sum(self._totals.values())
        return max(self.done, counted if self._max_messages is None else min(counted, self._max_messages))

    def notify(self, event: events.Event) -> None:
        """Count what moved, pass the event on, show something when it is time."""
        match event:
            case events.BacklogCounted(queue=queue, messages=messages):
                self._totals[queue] = messages
            case events.Forwarded(messages=messages, size_bytes=size):
                self._moved(messages, size)
            case events.DeadLettered():
                self._moved(1, 0)
        if self._log is not None:
            self._log(event)
        self._show()

    def _moved(self, messages: int, size_bytes: int) -> None:
        now = self._now()
        resumed = self.done > 0 and self._stalled(now)
        self.done += messages
        self.size_bytes += size_bytes
        self._last_move = now
        if resumed:  # what has just come says nothing of the pace yet
            self._began, self._done_before = now, self.done

    def _stalled(self, now: float) -> bool:
        return now - self._last_move >= STALLED_SECONDS

    def _show(self) -> None:
        if not self.redraw(completed=self.done, total=self.total) and self.line_is_due():
            say(self.line())

    @property
    def _rate(self) -> float:
        """Since the start, or since the last pause; not of the last seconds: a drain moves in batches, and a rate that
        jumps forecasts nothing."""
        return (self.done - self._done_before) / max(self._now() - self._began, 1e-9)

    def seconds_left(self) -> float | None:
        """Until all is moved that was counted; None where nothing moves, or nothing is left."""
        left = (self.total or 0) - self.done
        moves = self._rate > 0 and not self._stalled(self._now())
        return left / self._rate if moves and left > 0 else None

    def _pace(self) -> tuple[str, str]:
        """`1,197/s 36.2 MB`, and `0:00:36 10:13:02`: what is left, and the time of day when it ends."""
        from rich.filesize import decimal

        if not self.done:
            return "", "-:--:--"
        left = self.seconds_left()
        clock = "-:--:--" if left is None else f"{timedelta(seconds=math.ceil(left))} {_time_of_day(left)}"
        return f" {self._rate:,.0f}/s {decimal(self.size_bytes)}", clock

    def line(self) -> str:
        """`drain: 1,200 of 5,000 messages, 310/s, about 12s left (10:13:02)`."""
        total = f" of {self.total:,}" if self.total is not None else ""
        text = f"{self._title}: {self.done:,}{total} messages, {self._rate:,.0f}/s"
        if (left := self.seconds_left()) is not None:
            text += f", about {format_duration(left)} left ({_time_of_day(left)})"
        if self._stalled(now := self._now()):
            text += f"; nothing moved for {format_duration(now - self._last_move)}"
        return text


def _time_of_day(seconds: float) -> str:
    """The local time after `seconds`, as the user's clock shows it."""
    return time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))


_COLUMNS_OF_A_BAR = 70
"""In fewer columns the numbers alone have room."""


def _make_bar(title: str, pace: Callable[[], tuple[str, str]] | None, *, color: bool) -> "tuple[Progress, TaskID]":
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
    from rich.table import Column
    from rich.text import Text

    class Amount(ProgressColumn):
        """`5,983/20,500`, and the pace."""

        def render(self, task: Task) -> Text:
            total = "?" if task.total is None else f"{task.total:,.0f}"
            return Text(f"{task.completed:,.0f}/{total}{pace()[0] if pace else ''}", style="progress.download")

    class TimeColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(pace()[1] if pace else "", style="progress.remaining")

    console = make_console(color=color, stderr=True)
    # Narrow, so that what is told beside it fits into 80 columns.
    bar = () if console.width < _COLUMNS_OF_A_BAR else (BarColumn(bar_width=20 if pace else 40),)
    amount = Amount(table_column=Column(no_wrap=True))
    clock = TimeColumn(table_column=Column(no_wrap=True)) if pace else TimeElapsedColumn()
    shown = Progress(TextColumn("{task.description}"), *bar, amount, clock, console=console, transient=True)
    return shown, shown.add_task(title, total=None)
