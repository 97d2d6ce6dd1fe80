"""The one place where the process ends: its streams and signals, from the first moment to the last.

It imports nothing of weight before it listens to signals, so that an early Ctrl-C is a sentence too.
"""

import contextlib
import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, TextIO

CLOSED_PIPE = 0
"""A reader that has seen enough (`| head`) is no failure."""
_FAILED, _INTERRUPTED, _TERMINATED = 1, 130, 143


class Terminated(BaseException):
    """SIGTERM or SIGHUP came while nothing was in flight that wants to be settled: files are tidied up."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Console script: run the command line and end the process with its exit code."""
    _open_missing_streams()
    sys.stdout, sys.stderr = _outlives_terminal(sys.stdout), _outlives_terminal(sys.stderr)
    code = _guarded(sys.argv[1:] if arguments is None else list(arguments))
    _let_signals_end_us()
    # The interpreter's last look for cycles takes longer than all else at the end, and the system takes the memory back
    # anyhow. What is still to be written is written: streams above, and files where they were opened. DuckDB's binding
    # would tell stderr of each object of its own that nobody took back.
    if "_duckdb" not in sys.modules:
        gc.freeze()
    # A Ctrl-C that came while `exec` ran a text, as for a dataclass, has `python -m` end by the signal although it was
    # caught; the next text that is run takes that back.
    exec("")  # noqa: S102
    sys.exit(code)


def _guarded(arguments: list[str]) -> int:
    """The exit code of a command line; closed pipes and signals are no tracebacks."""
    try:
        signal.signal(signal.SIGTERM, _on_sigterm)
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup ignores it
            signal.signal(signal.SIGHUP, _on_sigterm)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore it
            signal.signal(signal.SIGINT, _on_sigint)
        from sbpair.cli.running import run

        return _flushed(run(arguments))
    except BrokenPipeError:
        _point_at_nothing(sys.stdout)
        return CLOSED_PIPE
    except KeyboardInterrupt:
        return _ended("Interrupted.", _INTERRUPTED)
    except Terminated:
        return _ended("Terminated.", _TERMINATED)
    finally:
        _flush_talk()


def _flushed(code: int) -> int:
    """The exit code after what is still buffered was written; output that cannot be written is no success."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _point_at_nothing(sys.stdout)
        said = f"Error: Cannot write the output: {error.strerror or error}. Make room, or redirect it elsewhere."
        return code or _ended(said, _FAILED)
    return code


_came: list[signal.Signals] = []


def signal_that_came() -> signal.Signals | None:
    """The first signal that came before there was a loop to take it; None if there was none. The caller still runs:
    so the exception of its handler has been lost. Python loses what a handler raises while it compiles a module."""
    return _came[0] if _came else None


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    _came.append(signal.Signals(number))
    raise Terminated


def _on_sigint(number: int, frame: FrameType | None) -> None:
    _came.append(signal.SIGINT)
    raise KeyboardInterrupt


def _ended(text: str, code: int) -> int:
    with contextlib.suppress(OSError):
        sys.stderr.write(text + "\n")
    return code


def _flush_talk() -> None:
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        _point_at_nothing(sys.stderr)


def handled_signals() -> list[signal.Signals]:
    """The signals that end a run. A signal that was ignored when the process began stays ignored."""
    numbers = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", None))
    return [one for one in numbers if one is not None and signal.getsignal(one) is not signal.SIG_IGN]


def _let_signals_end_us() -> None:
    """The exit code is settled: a signal from now on ends the process at once instead of raising in the interpreter's
    own tidying up."""
    for number in handled_signals():
        signal.signal(number, signal.SIG_DFL)


def _point_at_nothing(stream: TextIO | io.FileIO) -> None:
    """So that the interpreter's own flush at exit stays quiet."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


class _Terminal(io.FileIO):
    """A terminal that may be closed while the work goes on, under nohup or until what is in flight is settled."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            _point_at_nothing(self)
            return len(data)


def _outlives_terminal(stream: TextIO) -> TextIO:
    """The stream, which no longer fails once its terminal is gone."""
    if not stream.isatty():
        return stream
    raw = io.BufferedWriter(_Terminal(stream.fileno(), "w", closefd=False))
    return io.TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=True)


def _open_missing_streams() -> None:
    """A daemon's parent may have closed them (`>&-`): then there is nobody to write to, which is no trouble."""
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
