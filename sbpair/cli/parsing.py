"""The context in which each command is parsed and helped: quick values, and a help that fits a narrow terminal."""

import shutil
from collections.abc import Sequence
from typing import Any

import typer
from typer._click.formatting import HelpFormatter

from sbpair.cli.coercion import lighten

NARROW_COLUMNS = 52
"""Below this width the columns of a help page get other proportions."""
_NARROWEST = 20


class _Formatter(HelpFormatter):
    """A help page for the terminal that is there, also where the usual one does not go below 50 columns."""

    def __init__(self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None) -> None:
        columns = shutil.get_terminal_size().columns
        narrow = max(columns, _NARROWEST) if columns < NARROW_COLUMNS else None
        super().__init__(indent_increment, width or narrow, max_width)

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl(rows, col_max if self.width >= NARROW_COLUMNS - 2 else 2, col_spacing)


class CommandContext(typer.Context):
    """Context of every command of sbpair."""

    formatter_class = _Formatter

    def __init__(self, command: Any, *arguments: Any, **settings: Any) -> None:
        super().__init__(command, *arguments, **settings)
        lighten(command.get_params(self))


def parse_in_our_context(command: Any) -> None:
    """Let a command and those below it be parsed in a `CommandContext`; not yet loaded ones are when they are."""
    command.context_class = CommandContext
    known = getattr(command, "commands", None)
    for below in known.values() if isinstance(known, dict) else ():
        parse_in_our_context(below)
