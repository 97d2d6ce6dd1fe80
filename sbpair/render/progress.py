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

    `seconds_left`: the bar tells the rate, and the time that is left where this knows it; without it the time that has
    passed.
    """

    def __init__(
        self,
        title: str,
        *,
        quiet: bool,
        color: bool,
        now: Callable[[], float] = time.monotonic,
        seconds_left: Callable[[], float | None] | None = None,
    ) -> None:
        self._quiet, self._now = quiet, now
        self._last_line = now()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if not quiet and can_redraw(sys.stderr):
            self._bar, self._task = _make_bar(title, seconds_left, color=color)

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
    """An observer that shows how far a drain or syphon is: done, total as counted, rate, time left.

    `log` gets every event after it was counted. With `quiet` nothing is shown.
    """

    def __init__(
        self,
        title: str,
        *,
        quiet: bool = False,
        color: bool = True,
        log: Callable[[events.Event], None] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(title, quiet=quiet, color=color, now=now, seconds_left=self.seconds_left)
        self._title, self._log = title, log
        self._totals: dict[str, int] = {}
        self.done = 0
        self.size_bytes = 0
        self._began = self._last_move = now()

    @property
    def total(self) -> int | None:
        """Messages counted at the beginning, or moved if more have come since; None while nothing was counted."""
        return max(self.done, sum(self._totals.values())) if self._totals else None

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
        self.done += messages
        self.size_bytes += size_bytes
        self._last_move = self._now()

    def _show(self) -> None:
        if not self.redraw(completed=self.done, total=self.total) and self.line_is_due():
            say(self.line())

    @property
    def _rate(self) -> float:
        """Of the whole run, not of the last seconds: a drain moves in batches, and a rate that jumps forecasts
        nothing."""
        return self.done / max(self._now() - self._began, 1e-9)

    def seconds_left(self) -> float | None:
        """Until all is moved that was counted; None where nothing moves, or nothing is left."""
        left = (self.total or 0) - self.done
        moves = self.done and self._now() - self._last_move < STALLED_SECONDS
        return left / self._rate if moves and left > 0 else None

    def line(self) -> str:
        """`drain: 1,200 of 5,000 messages, 310/s, about 12s left`."""
        total = f" of {self.total:,}" if self.total is not None else ""
        text = f"{self._title}: {self.done:,}{total} messages, {self._rate:,.0f}/s"
        if (left := self.seconds_left()) is not None:
            text += f", about {format_duration(left)} left"
        stalled = self._now() - self._last_move
        if stalled >= STALLED_SECONDS:
            text += f"; nothing moved for {format_duration(stalled)}"
        return text


def _make_bar(title: str, seconds_left: Callable[[], float | None] | None, *, color: bool) -> "tuple[Progress, TaskID]":
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.text import Text

    class Amount(ProgressColumn):
        """`5,983/20,500 1,197/s`: of the whole run, as the plain line has it; no rate where nothing is forecast."""

        def render(self, task: Task) -> Text:
            total = "?" if task.total is None else f"{task.total:,.0f}"
            forecast = seconds_left is not None and task.completed
            rate = f" {task.completed / max(task.elapsed or 0.0, 1e-9):,.0f}/s" if forecast else ""
            return Text(f"{task.completed:,.0f}/{total}{rate}", style="progress.download")

    class Remaining(ProgressColumn):
        """As the plain line has it, which knows when nothing moves."""

        def render(self, task: Task) -> Text:
            left = None if seconds_left is None else seconds_left()
            shown = "-:--:--" if left is None else str(timedelta(seconds=math.ceil(left)))
            return Text(shown, style="progress.remaining")

    clock = TimeElapsedColumn() if seconds_left is None else Remaining()
    columns = (TextColumn("{task.description}"), BarColumn(), Amount(), clock)
    bar = Progress(*columns, console=make_console(color=color, stderr=True), transient=True)
    return bar, bar.add_task(title, total=None)
