"""Where output goes: data to stdout, everything else to stderr, files to a temporary name that is then renamed."""

import codecs
import errno
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from sbpair.core.errors import UsageError, unwritable
from sbpair.core.redact import defused, in_build_runner, printable
from sbpair.core.words import listed
from sbpair.files import make_private_folder, try_folder
from sbpair.render.output import CHECK_FORMATS, OF_ALL, Format

if TYPE_CHECKING:
    from rich.console import Console

    from sbpair.render.result import CommandResult


ESCAPE = "sbpair.escape"
"""Error handler of streams: a sign that stdout lacks is written as `\\u2588`, beyond the first plane two of them, and
half a surrogate pair from a file's name too. JSON reads them back as what they were."""


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    escaped = (f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
    return "".join(escaped), error.end


codecs.register_error(ESCAPE, _escape)


def escape_what_stdout_lacks() -> None:
    """From now on no sign makes a write to stdout fail, whatever its encoding (`PYTHONIOENCODING=ascii`)."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors=ESCAPE)


def choose_format(wanted: Format | None, *, to_file: bool) -> Format:
    """The asked-for format, or a table on a terminal and TSV elsewhere."""
    if wanted is not None:
        return wanted
    return Format.TABLE if sys.stdout.isatty() and not to_file else Format.TSV


def emit(result: "CommandResult", wanted: Format | None, *, outfile: Path | None = None, color: bool = True) -> None:
    """Write a result to stdout or `outfile` in the wanted format.

    Raises:
        UsageError: the format does not exist for this command.
    """
    chosen = choose_format(wanted, to_file=outfile is not None)
    if chosen is Format.TABLE and outfile is None and sys.stdout.isatty():
        _show(result, color=color)
        return
    text = render(result, chosen)
    if chosen is Format.GITHUB:
        _append_step_summary(result)
    if outfile is None:
        put(text if chosen is Format.GITHUB else safe_for_readers(text, chosen))
        sys.stdout.flush()
    else:
        write_file(outfile, text)


def _show(result: "CommandResult", *, color: bool) -> None:
    if result.text is None:
        from sbpair.render.tables import as_renderable

        # Uncropped: a command that is longer than the terminal is wide stays one line, which the terminal breaks.
        make_console(color=color).print(as_renderable(result), crop=False)
    else:
        from sbpair.render.prose import wrapped

        text = wrapped(result.text) if result.prose else result.text
        if result.paged and sys.stdin.isatty():
            import pydoc

            os.environ.setdefault("LESS", "-FRX")  # what fits on the screen is printed, and nothing waits for a key
            pydoc.pager(text)
        else:
            put(text)
    sys.stdout.flush()


def put(text: str) -> None:
    sys.stdout.write(text)


def safe_for_readers(text: str, chosen: Format) -> str:
    """The text for a stdout that a build runner may read: in a format with no escape of its own for the runner's
    commands they are broken up there, and nowhere else."""
    if chosen in (Format.JSON, Format.JSONL, Format.YAML) or not in_build_runner(os.environ):
        return text
    return text.replace("##", "#&#35;") if chosen in (Format.HTML, Format.JUNIT) else defused(text)


def _append_step_summary(result: "CommandResult") -> None:
    """Add the full table to the page of the workflow step, where there is one: annotations show ten of a kind only."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    from sbpair.render import formats

    text = f"## sbpair {result.command}\n\n{formats.to_markdown(result)}\n"
    with Path(path).open("a", encoding="utf-8", errors=ESCAPE) as file:
        file.write(text if len(text.encode()) <= _STEP_SUMMARY_BYTES else _TOO_LONG)


_STEP_SUMMARY_BYTES = 1_000_000
"""GitHub refuses more than 1 MiB a step."""
_TOO_LONG = "## sbpair\n\nThe table is too long for this page; write it to an artifact with `-o markdown --outfile`.\n"


def render(result: "CommandResult", chosen: Format) -> str:
    """The result as text, which no terminal's width cuts."""
    from sbpair.render import formats

    if chosen in CHECK_FORMATS and result.checks is not None:
        return formats.MONITORING[chosen](result)
    if chosen is Format.HTML and result.page is not None:
        from sbpair.render.html import to_html

        return to_html(result.page)
    if chosen is Format.MARKDOWN and result.page is not None and result.page_only:
        return formats.page_to_markdown(result.page)
    if chosen is Format.TABLE:
        from sbpair.render.tables import as_text

        return as_text(result) if result.text is None else result.text
    check_format(result.command, chosen, checks=result.checks is not None, page=result.page is not None)
    return formats.WRITERS[chosen](result)


def check_format(command: str, chosen: Format | None, *, checks: bool, page: bool) -> None:
    """Refuse a format that the command does not have. `checks`: it has those of monitoring; `page`: it has HTML.

    Raises:
        UsageError: it has not, and which ones it has.
    """
    known = (Format.TABLE, *OF_ALL, *(CHECK_FORMATS if checks else ()), *((Format.HTML,) if page else ()))
    if chosen is not None and chosen not in known:
        names = listed([one.value for one in known], most=len(Format))
        raise UsageError(f"{command} has no output format {chosen.value!r}; it has {names}.")


def write_atomically(path: Path, text: str, *, private: bool = False) -> None:
    """Write to a temporary file beside `path`, flush it to disk, then rename: readers never see half a file.

    `private` files are readable by their owner only; others get the permissions any new file gets.

    Raises:
        OSError: the file cannot be written.
    """
    if path.exists() and not path.is_file():  # a device or a pipe: renaming over it would take it away from everybody
        path.write_text(text, encoding="utf-8", newline="\n")
        return
    import tempfile

    if private:
        make_private_folder(path.parent)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            # Without it a power cut after the rename may leave the new name with nothing in it.
            os.fsync(file.fileno())
        if not private:
            temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_file(path: Path, text: str, *, private: bool = False) -> None:
    """`write_atomically` for a file the user named. Plans and snapshots are private; what `--outfile` writes is not: it
    may be for another user's monitoring.

    Raises:
        SbpairError: the file cannot be written.
    """
    try:
        write_atomically(path, text, private=private)
    except OSError as error:
        raise unwritable(path, error) from error


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
        try_folder(path.parent)
    except OSError as error:
        raise unwritable(path, error).with_state("Nothing was done.") from error


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current


def can_redraw(stream: TextIO) -> bool:
    """Whether it is a terminal that can go back and write over what it showed."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def colors_wanted(no_color: bool) -> bool:
    """Whether neither the option nor the environment (no-color.org) forbids colours."""
    return not no_color and not os.environ.get("NO_COLOR")


def say_lines(text: str) -> None:
    """Write a text of our own to stderr, which has its line ends where they belong: a help page, a stack."""
    for line in text.splitlines():
        say(line)


_said_at = time.monotonic()


def silent_seconds() -> float:
    """How long nothing has been said on stderr, or this process has existed."""
    return time.monotonic() - _said_at


def say(text: str) -> None:
    """Write one line to stderr, whatever is in the text: a line end in a foreign value must not begin another record.
    When nobody is there to listen any more the work goes on without it.

    `sys.stderr` is asked for every time, because a progress bar puts itself in between while it is shown.
    """
    global _said_at
    _said_at = time.monotonic()
    line = printable(text)
    try:
        if sys.stderr.isatty() and not line.startswith("{"):  # a line of JSON is one line
            from sbpair.render.prose import laid_out, terminal_columns

            line = "\n".join(laid_out(line, terminal_columns(sys.stderr)))
        sys.stderr.write((defused(line) if in_build_runner(os.environ) else line) + "\n")
        sys.stderr.flush()
    except BrokenPipeError:
        silence(sys.stderr)
    except (OSError, ValueError):
        return  # a full disk, a closed file: the next line may fare better


def write_record(record: Any) -> None:
    """Write a dataclass as a JSON line, at once. When nobody reads any more the work it tells about goes on."""
    from sbpair.core.serialization import to_plain
    from sbpair.render import formats

    try:
        sys.stdout.write(formats.dump_json(to_plain(record)) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        silence(sys.stdout)


def silence(stream: TextIO) -> None:
    """Point a stream whose reader has gone at nothing, so that the interpreter's own flush at exit stays quiet."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    except (OSError, ValueError):
        return  # it has no descriptor, or is closed: nothing will be flushed


def make_console(*, color: bool, stderr: bool = False) -> "Console":
    """A rich console that never forces escapes into a pipe, whatever the CI variables say."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    terminal = can_redraw(stream)
    return Console(
        file=stream,
        force_terminal=terminal,
        no_color=not colors_wanted(not color),
        highlight=False,
        soft_wrap=not terminal,
        legacy_windows=False if not terminal else None,
    )
