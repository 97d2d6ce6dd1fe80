"""A result that is shown again and again in the same place of a terminal."""

from types import TracebackType
from typing import Self

from sbpair.render.console import make_console
from sbpair.render.result import CommandResult
from sbpair.render.tables import as_renderable


class LiveView:
    """Shows each new result over the one before; the last one stays."""

    def __init__(self, *, color: bool = True) -> None:
        from rich.live import Live

        self._live = Live(console=make_console(color=color), auto_refresh=False, vertical_overflow="visible")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, result: CommandResult) -> None:
        self._live.update(as_renderable(result), refresh=True)
