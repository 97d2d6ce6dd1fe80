"""Terminals of any size, and what commands show in them.

`show` starts the real process on a pseudo-terminal; `answer` has it forked, and answers what it asks. `show_each` is
for hundreds of combinations: a process that has imported everything forks a child for each, which runs the console
script on its own pseudo-terminal.
"""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from tests.cli.forked import can_fork
from tests.cli.process import Sbpair
from tests.waiting import LIMIT_SECONDS

_STYLES = re.compile(r"\x1b\[[0-9;?]*[hlm]")
_MOVES = re.compile(r"(\x1b\[[0-9;]*[A-HJK])+")


@dataclass(frozen=True)
class Screen:
    """What came onto a terminal, and what went to the other stream beside it."""

    code: int
    shown: str
    talk: str

    @property
    def lines(self) -> list[str]:
        """Lines as they were written, without colours; where the cursor goes elsewhere a line begins."""
        text = _MOVES.sub("\n", _STYLES.sub("", self.shown))
        return [line.rstrip() for line in text.replace("\r", "").split("\n")]

    @property
    def colours(self) -> list[str]:
        """Colours asked for; bold and italics are none."""
        parts = [part for codes in re.findall(r"\x1b\[([0-9;]*)m", self.shown) for part in codes.split(";")]
        return [part for part in parts if re.fullmatch(r"3[0-8]|4[0-8]|9[0-7]|10[0-7]", part)]


@dataclass(frozen=True)
class Job:
    """One command line on one terminal; without a reader, into a pipe that nobody reads from."""

    arguments: Sequence[str]
    columns: int = 80
    environ: Mapping[str, str] = field(default_factory=dict)
    encoding: str = "utf-8"
    reader: bool = True


def show(runner: Sbpair, *arguments: str, columns: int = 80, environ: Mapping[str, str] | None = None) -> Screen:
    """Run a command as a process of its own with stdout on a terminal of that width."""
    controller, terminal = _terminal(columns)
    process = runner.start(*arguments, stdout=terminal, env=runner.variables({"TERM": "xterm"} | dict(environ or {})))
    os.close(terminal)
    shown = _read_to_the_end(controller)
    _, talk = process.communicate(timeout=LIMIT_SECONDS)
    return Screen(process.returncode, shown.decode(), talk)


def answer(
    runner: Sbpair,
    *arguments: str,
    question: str,
    typed: str,
    ahead: str = "",
    environ: Mapping[str, str] | None = None,
) -> Screen:
    """Run a command whose stdin and stderr are a terminal, and type something when it asks. `ahead`: typed before."""
    controller, terminal = _terminal(80)
    os.write(controller, ahead.encode())
    start = runner.begin if can_fork(arguments, environ or {}) else runner.start
    process = start(*arguments, stdin=terminal, stderr=terminal, env=runner.variables(environ))
    os.close(terminal)
    shown, deadline = b"", time.monotonic() + LIMIT_SECONDS
    while question.encode() not in shown and time.monotonic() < deadline:
        if select.select([controller], [], [], 0.2)[0]:
            try:
                shown += os.read(controller, 65_536)
            except OSError:  # Linux says so when nobody has the terminal open any more
                raise AssertionError(f"It ended with {process.wait()} and did not ask: {shown.decode()}") from None
    os.write(controller, f"{typed}\n".encode())
    shown += _read_to_the_end(controller)
    out, _ = process.communicate(timeout=LIMIT_SECONDS)
    return Screen(process.returncode, shown.decode(), out)


def show_each(runner: Sbpair, jobs: Sequence[Job]) -> list[Screen]:
    """Run many command lines, each on a terminal of its own."""
    given = json.dumps([asdict(job) for job in jobs])
    said = runner.python(_SHOW_EACH, stdin=given, timeout=LIMIT_SECONDS)
    return [Screen(**screen) for screen in json.loads(said)]


_SHOW_EACH = "from tests.cli.screens import show_those_asked_for; show_those_asked_for()"


def show_those_asked_for() -> None:
    """What `show_each` runs: reads its jobs, shows each on a terminal of a forked copy of this process, writes them."""
    wanted = json.load(sys.stdin)
    _preload()
    file = Path(f"talk-{os.getpid()}")
    screens = [asdict(_forked(job, file)) for job in wanted]
    file.unlink(missing_ok=True)
    json.dump(screens, sys.stdout)


def _terminal(columns: int) -> tuple[int, int]:
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    return controller, terminal


def _unread() -> tuple[int, int]:
    reading, writing = os.pipe()
    os.close(reading)
    return -1, writing


def _read_to_the_end(controller: int) -> bytes:
    """Everything until the last process has let go of the terminal."""
    if controller < 0:
        return b""
    shown, deadline = b"", time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        if not select.select([controller], [], [], 0.2)[0]:
            continue
        try:
            piece = os.read(controller, 65_536)
        except OSError:  # how Linux says that nobody holds the other end any more
            piece = b""
        if not piece:
            break
        shown += piece
    os.close(controller)
    return shown


def _preload() -> None:
    """Import what a running command imports, so that the children need not."""
    import importlib

    from sbpair.cli.app import COMMANDS

    for entry in COMMANDS.values():
        importlib.import_module(f"sbpair.cli.{entry.module}")
    for name in (
        "sbpair.azure",
        "sbpair.azure.links",
        "sbpair.runtime.inspection.gather",
        "sbpair.render.tables",
        "rich.live",
    ):
        importlib.import_module(name)


def _forked(job: dict[str, Any], talk: Path) -> Screen:
    controller, terminal = _terminal(job["columns"]) if job["reader"] else _unread()
    child = os.fork()
    if child == 0:
        _become(job, terminal, talk)
    os.close(terminal)
    shown = _read_to_the_end(controller)
    _, status = os.waitpid(child, 0)
    return Screen(os.waitstatus_to_exitcode(status), shown.decode(job["encoding"]), talk.read_text(encoding="utf-8"))


def _become(job: dict[str, Any], terminal: int, talk: Path) -> None:
    """Turn this child into the command; it does not return."""
    os.dup2(terminal, 1)
    os.dup2(os.open(talk, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
    os.close(terminal)
    os.environ.update({"TERM": "xterm"} | job["environ"])
    sys.stdout = sys.__stdout__ = TextIOWrapper(os.fdopen(1, "wb"), encoding=job["encoding"], line_buffering=True)
    sys.stderr = TextIOWrapper(os.fdopen(2, "wb"), encoding="utf-8", errors="backslashreplace", line_buffering=True)
    from sbpair.cli.main import main

    code = 70
    try:
        main(job["arguments"])
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
