"""Tables for people: a grid where it can be read, else one block of lines a row.

The 80 columns of a remote shell are what an operator has in an outage, and rows of this program hold paths of 60. Left
to itself rich folds those letter by letter, one column beside the other; nobody can copy such a name.

What a grid drops or shortens before it gives up, in this order: drawn bars, columns without a value, columns that say
the same in every row, the folder that all paths share and the day that all times share (said once, above it), parts of
times, columns that are marked as spare.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from io import StringIO
from typing import TYPE_CHECKING, Any

from sbpair.core.redact import printable
from sbpair.core.words import counted
from sbpair.render import formats
from sbpair.render.prose import laid_out
from sbpair.render.result import Column, CommandResult, Table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table as RichTable


READABLE_COLUMNS = 20
"""A cell that is folded needs this much width to be read."""
NAME_COLUMNS = 40
"""Up to this length a name is not folded, because it has no place where it may be."""
SHARED_COLUMNS = 8
"""A shared beginning shorter than this is not worth a word."""
_NEVER_CUT = 100_000
BAR_COLUMNS = 24

_STYLES = {
    word: style
    for style, words in {
        "bold red": ("critical", "unreachable", "production"),
        "red": ("error", "failed", "delete", "denied", "missing", "dead letters"),
        "yellow": ("warning", "skipped", "update", "limited", "unknown", "waiting", "deferred", "scheduled"),
        "green": ("ok", "done", "create", "reachable", "empty"),
    }.items()
    for word in words
}


def as_renderable(result: CommandResult, *, folded: bool = False) -> "RenderableType":
    """Tables, notes and summary as one thing for a rich console. `folded`: commands that are longer than the console is
    wide are broken, too, as a view has to that is drawn over itself."""
    from rich.console import Group
    from rich.text import Text

    lines = [_Sentence(printable(line), folded) for line in (*result.notes, result.summary) if line]
    tables = [one for one in result.screen or result.tables if one.rows or not lines]  # words say that there is nothing
    gap = [Text()] if lines and tables and tables[-1].compact else []
    return Group(*map(_Fitted, tables), *gap, *lines)


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A note or the summary as the width of the console allows. `folded`: a command too long for a line goes on after a
    backslash, so that a shell takes what is copied as one."""

    text: str
    folded: bool

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RenderableType]":
        from rich.text import Text

        for line in laid_out(self.text, options.max_width, fold_commands=self.folded):
            yield Text(line) if self.folded else Text(line, no_wrap=True, overflow="ignore")


def as_text(result: CommandResult) -> str:
    """The same without a width: nothing is folded or left out."""
    from rich.console import Console

    sheet = StringIO()
    console = Console(file=sheet, width=_NEVER_CUT, highlight=False, color_system=None)
    for table in result.screen or result.tables:
        console.print(_Fitted(table))
    for line in (*result.notes, result.summary):
        if line:
            console.print(printable(line), markup=False, soft_wrap=True)
    return "\n".join(line.rstrip() for line in sheet.getvalue().splitlines()) + "\n"


@dataclass(frozen=True, slots=True)
class _Fitted:
    """A table as the width of the console allows."""

    table: Table

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RenderableType]":
        from rich.text import Text

        width, table = options.max_width, self.table
        if table.compact and table.title:  # a line of its own, since a table's title is folded to the table's width
            yield Text(printable(table.title), style=_STYLES.get(table.title_style or "", "bold"))
            table = replace(table, title="")
        if _least_width(table, gap=_WIDE_GAP) <= width:
            yield _grid(table)
            return
        if not table.rows:
            return
        table, everywhere = _shortened(table)
        if everywhere:
            yield Text(everywhere)
        if _least_width(table, gap=_NARROW_GAP) > width and (spared := [one for one in table.columns if one.spare]):
            table = replace(table, columns=tuple(one for one in table.columns if not one.spare))
            yield Text(f"No room here for: {', '.join(map(_label, spared))}; -o tsv has all.")
        if _least_width(table, gap=_NARROW_GAP) <= width:
            yield _grid(table, narrow=True)
            if not table.compact:
                yield Text()
        else:
            yield from _blocks(table, width)


_WIDE_GAP, _NARROW_GAP = 3, 2


def _least_width(table: Table, *, gap: int) -> int:
    """The width at which every column has what it needs, or enough to be read folded."""
    return sum(_needed(table, column) + gap for column in table.columns)


def _shortened(table: Table) -> tuple[Table, str]:
    """The table without what can be spared, and what every row says as one line."""
    columns, rows, said = [], [dict(row) for row in table.rows], []
    for column in table.columns:
        cells = [_cell(row, column) for row in rows]
        if column.drawn or not any(cells):
            continue
        if len(rows) > 2 and len(set(cells)) == 1:
            said.append(f"{_label(column)} {' '.join(cells[0].split())}")
            continue
        columns.append(column)
        if shared := _shared_folder(cells):
            said.append(f"{_label(column)} {shared}...")
            for row, cell in zip(rows, cells, strict=True):
                row[column.key] = cell.removeprefix(shared)
        elif times := _short_times(cells):
            day, short = times
            if day:
                said.append(f"{_label(column)} {day} UTC")
            for row, cell in zip(rows, short, strict=True):
                row[column.key] = cell
    shorter = replace(table, columns=tuple(columns) or table.columns[:1], rows=rows)
    return shorter, f"Same in all {counted(len(rows), 'row')}: {'; '.join(said)}" if said else ""


def _shared_folder(paths: list[str]) -> str:
    """`contoso-weu/x-servicebus-transfer/` if all paths begin with it, and it is long enough to be worth it."""
    folders = {path.rpartition("/")[0] for path in paths}
    folder = next(iter(folders)) if len(paths) > 2 and len(folders) == 1 else ""
    return f"{folder}/" if len(folder) >= SHARED_COLUMNS and " " not in folder else ""


_TIME = re.compile(r"(\d{4})-(\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z")


def _short_times(cells: list[str]) -> tuple[str, list[str]] | None:
    """Times without what can be spared, and the day if it is the same for all; None if not all of them are times."""
    found = [_TIME.fullmatch(cell) for cell in cells if cell]
    times = [one for one in found if one is not None]
    if not times or len(times) < len(found):
        return None
    days = {f"{one[1]}-{one[2]}" for one in times}
    if len(days) == 1 and len(times) > 2:
        return days.pop(), [_TIME.sub(r"\3", cell) for cell in cells]
    return "", [_TIME.sub(r"\2 \3", cell) for cell in cells]


def _cell(row: Mapping[str, Any], column: Column) -> str:
    value = row.get(column.key)
    return f"{value:,}" if column.counts and isinstance(value, int) else formats.cell(value)


def _needed(table: Table, column: Column) -> int:
    from rich.cells import cell_len

    if column.drawn:
        return BAR_COLUMNS
    cells = [_cell(row, column) for row in table.rows]
    longest_line = max(cell_len(line) for cell in (column.title, *cells) for line in cell.splitlines() or [""])
    longest_word = max(cell_len(word) for cell in (column.title, *cells) for word in cell.split() or [""])
    return min(longest_line, max(READABLE_COLUMNS, min(longest_word, NAME_COLUMNS)))


def _grid(table: Table, *, narrow: bool = False) -> "RichTable":
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable(
        title=Text(printable(table.title), style="table.title") if table.title else None,
        title_justify="left",
        box=None if table.compact else box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=not (narrow or table.compact),
        padding=(0, 1, 0, 0) if narrow else (0, 1),
    )
    for column in table.columns:
        grid.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    drawn = [index for index, column in enumerate(table.columns) if column.drawn]
    bars = {index: terminal_bars(table, table.columns[index]) for index in drawn}
    for number, row in enumerate(table.rows):
        cells = (
            bars[index][number] if index in bars else _cell(row, column) for index, column in enumerate(table.columns)
        )
        grid.add_row(*map(Text, cells), style=_style(table, number))
    return grid


def _blocks(table: Table, width: int) -> "Iterator[RenderableType]":
    """One block a row: headings with their values, as many on a line as fit, empty ones left out."""
    from rich.text import Text

    if table.title:
        yield Text(table.title, style="italic")
    for number, row in enumerate(table.rows):
        fields = ((_label(column), _cell(row, column)) for column in table.columns)
        yield from _flowing([field for field in fields if field[1]], width, _style(table, number))
        yield Text()


def _flowing(fields: list[tuple[str, str]], width: int, style: str) -> "Iterator[RenderableType]":
    from rich.table import Table as RichTable
    from rich.text import Text

    line = Text()
    for label, value in fields:
        field = Text.assemble((f"{label}: ", "bold"), (value, style))
        fits = field.cell_len <= width and "\n" not in value
        if line and (not fits or line.cell_len + _FIELD_GAP + field.cell_len > width):
            yield line
            line = Text()
        if fits:
            line = Text.assemble(line, " " * _FIELD_GAP, field) if line else field
            continue
        hanging = RichTable.grid()
        hanging.add_column(width=len(label) + 2, style="bold")
        hanging.add_column(overflow="fold")
        hanging.add_row(Text(f"{label}:"), Text(value, style=style))
        yield hanging
    if line:
        yield line


_FIELD_GAP = 3


def _label(column: Column) -> str:
    return column.title or column.key


def _style(table: Table, number: int) -> str:
    return _STYLES.get(str(table.rows[number].get(table.style_key)), "") if table.style_key else ""


def terminal_bars(table: Table, column: Column, *, width: int = BAR_COLUMNS) -> list[str]:
    """A drawn column as text, one bar a row, all on one scale from 0."""
    values = [float(row.get(column.key) or 0) for row in table.rows]
    scale = width / highest if (highest := max(values, default=0.0)) > 0 else 0.0
    # A value that is there gets a sign, however small it is beside the largest.
    return [_BLOCK * max(round(value * scale), int(value > 0)) for value in values]


_BLOCK = "\u2588"
