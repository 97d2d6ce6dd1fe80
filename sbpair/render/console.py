"""Where output goes: stdout is data, stderr is talk. Files are written to a temporary name, then renamed."""

import errno
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.core.errors import SbpairError, UsageError
from sbpair.render import formats
from sbpair.render.result import CHECK_FORMATS, Column, CommandResult, Format, Table

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table as RichTable

_STYLES = {
    "critical": "bold red",
    "error": "red",
    "failed": "red",
    "warning": "yellow",
    "skipped": "yellow",
    "ok": "green",
    "done": "green",
    "create": "green",
    "update": "yellow",
    "delete": "red",
}

_WRITERS: dict[Format, Callable[[CommandResult], str]] = {
    Format.JSON: formats.to_json,
    Format.JSONL: formats.to_jsonl,
    Format.YAML: formats.to_yaml,
    Format.TSV: formats.to_tsv,
    Format.MARKDOWN: formats.to_markdown,
}


def choose_format(wanted: Format | None, *, to_file: bool) -> Format:
    """The asked-for format, or a table on a terminal and TSV elsewhere."""
    if wanted is not None:
        return wanted
    return Format.TABLE if sys.stdout.isatty() and not to_file else Format.TSV


def emit(result: CommandResult, wanted: Format | None, *, outfile: Path | None = None, color: bool = True) -> None:
    """Write a result to stdout or `outfile` in the wanted format.

    Raises:
        UsageError: the format does not exist for this command.
    """
    chosen = choose_format(wanted, to_file=outfile is not None)
    if chosen is Format.TABLE and outfile is None and sys.stdout.isatty():
        _print_tables(result, color=color)
        return
    text = render(result, chosen)
    if chosen is Format.GITHUB:
        _append_step_summary(result)
    if outfile is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_file(outfile, text)


def _append_step_summary(result: CommandResult) -> None:
    """Add the full table to the page of the workflow step, where there is one: annotations show ten of a kind only."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    text = f"## sbpair {result.command}\n\n{formats.to_markdown(result)}\n"
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(text if len(text.encode()) <= _STEP_SUMMARY_BYTES else _TOO_LONG)


_STEP_SUMMARY_BYTES = 1_000_000
"""GitHub refuses more than 1 MiB a step."""
_TOO_LONG = "## sbpair\n\nThe table is too long for this page; write it to an artifact with `-o markdown --outfile`.\n"


def render(result: CommandResult, chosen: Format) -> str:
    """The result as text in any format but the terminal's table."""
    if chosen in CHECK_FORMATS and result.checks is not None:
        from sbpair.render import monitoring

        return monitoring.WRITERS[chosen](result)
    if chosen is Format.HTML and result.page is not None:
        from sbpair.render.html import to_html

        return to_html(result.page)
    if chosen is Format.TABLE:
        return _tables_as_text(result)
    if chosen not in _WRITERS:
        raise UsageError(f"{result.command} has no output format {chosen.value!r}.")
    return _WRITERS[chosen](result)


def write_atomically(path: Path, text: str, *, private: bool = False) -> None:
    """Write to a temporary file beside `path`, flush it to disk, then rename: readers never see half a file.

    `private` files are readable by their owner only; others get the permissions any new file gets.

    Raises:
        OSError: the file cannot be written.
    """
    if path.exists() and not path.is_file():  # a device or a pipe: renaming over it would take it away from everybody
        path.write_text(text, encoding="utf-8", newline="\n")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if not private:
            temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_file(path: Path, text: str) -> None:
    """`write_atomically` for a file the user named.

    Raises:
        SbpairError: the file cannot be written.
    """
    try:
        write_atomically(path, text)
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> SbpairError:
    """The error for a file that cannot be written."""
    return SbpairError(
        f"Cannot write {path}: {error.strerror or error}.",
        hint="Name a file in a folder that exists or can be made, may be written and has room.",
    )


def check_writable(path: Path) -> None:
    """Refuse a file that cannot be written before any work is done for it.

    Raises:
        SbpairError: its folder cannot be made or written, or it is a folder.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():
            return
        if path.parent.exists() and not path.parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        os.close(handle)
        Path(name).unlink()
    except OSError as error:
        raise unwritable(path, error).with_state("Nothing was done.") from error


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current


def make_console(*, color: bool, stderr: bool = False) -> "Console":
    """A rich console that never forces escapes into a pipe, whatever the CI variables say."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    return Console(
        file=stream,
        force_terminal=terminal,
        no_color=not color or bool(os.environ.get("NO_COLOR")),
        highlight=False,
        soft_wrap=not terminal,
        legacy_windows=False if not terminal else None,
    )


def _print_tables(result: CommandResult, *, color: bool) -> None:
    if result.text is not None:
        sys.stdout.write(result.text)
        return
    make_console(color=color).print(as_renderable(result))


def as_renderable(result: CommandResult) -> "RenderableType":
    """Tables, notes and summary as one thing for a rich console."""
    from rich.console import Group
    from rich.text import Text

    lines = (Text(formats.printable(line)) for line in (*result.notes, result.summary) if line)
    return Group(*map(_rich_table, result.tables), *lines)


def _tables_as_text(result: CommandResult) -> str:
    from io import StringIO

    from rich.console import Console

    if result.text is not None:
        return result.text
    buffer = StringIO()
    console = Console(file=buffer, width=_NEVER_CUT, highlight=False, color_system=None)
    for table in result.tables:
        console.print(_rich_table(table))
    for line in (*result.notes, result.summary):
        if line:
            console.print(formats.printable(line), markup=False, soft_wrap=True)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


_NEVER_CUT = 100_000


def _rich_table(table: Table) -> "RichTable":
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    rich_table = RichTable(title=table.title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        rich_table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    # rich replaces sys.stdout by a stand-in while it redraws; the encoding is that of the real one.
    sign = bar_sign(getattr(sys.__stdout__, "encoding", None))
    drawn = [index for index, column in enumerate(table.columns) if column.drawn]
    bars = {index: terminal_bars(table, table.columns[index], sign=sign) for index in drawn}
    for number, row in enumerate(table.rows):
        style = _STYLES.get(str(row.get(table.style_key)), "") if table.style_key else ""
        cells = (
            bars[index][number] if index in bars else formats.cell(row.get(column.key))
            for index, column in enumerate(table.columns)
        )
        rich_table.add_row(*map(Text, cells), style=style)
    return rich_table


def bar_sign(encoding: str | None) -> str:
    """What bars are made of: a plain sign where the terminal may have no block."""
    return "\u2588" if (encoding or "").lower().replace("-", "") == "utf8" else "#"


def terminal_bars(table: Table, column: Column, *, sign: str, width: int = 24) -> list[str]:
    """A drawn column as text, one bar a row, all on one scale."""
    ends = [float(row.get(column.key) or 0) for row in table.rows]
    starts = [float(row.get(column.drawn_from) or 0) if column.drawn_from else 0.0 for row in table.rows]
    low, high = min((*starts, *ends), default=0.0), max((*starts, *ends), default=0.0)
    scale = width / (high - low) if high > low else 0.0
    bars = []
    for start, end in zip(starts, ends, strict=True):
        left, right = sorted((round((start - low) * scale), round((end - low) * scale)))
        bars.append(" " * left + sign * max(right - left, int(end != start)))
    return bars
