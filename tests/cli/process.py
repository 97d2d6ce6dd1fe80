"""Starts the real `sbpair` process in a home of its own.

One that only has to run and end is forked from a process that has the imports behind it (`tests.cli.forked`).
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cli.forked import FORKS, SERVER, Forked, can_fork
from tests.cli.schema_checks import check_any_document
from tests.waiting import LIMIT_SECONDS

ROOT = Path(__file__).parents[2]
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts a suite in the background hands this down to every process; Ctrl-C must count in the tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
_OWN_VARIABLES = ("SBPAIR_", "XDG_", "AZURE_", "GITHUB_", "FORCE_COLOR", "NO_COLOR", "TERM", "COLUMNS", "CI")


_MAKE_QUEUE = """\
import asyncio, sys
from sbpair.connect import open_sides
from sbpair.core.entities import QueueSettings
from sbpair.settings import load

async def main(path):
    async with open_sides(load().pair("local")) as sides:
        await sides.primary_admin.create_queue(path, QueueSettings())

asyncio.run(main(sys.argv[1]))
"""


@dataclass(frozen=True)
class Ran:
    """A process that ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def data(self) -> Any:
        return self._document["data"]

    @property
    def error(self) -> Any:
        return self._document["error"]

    @property
    def _document(self) -> Any:
        """The JSON envelope: it has every field of its schema and no other, and its exit code is the process's."""
        document = check_any_document(self.stdout)
        assert document["exit_code"] == self.code, document
        return document

    @property
    def records(self) -> list[dict[str, str]]:
        """Rows of TSV."""
        head, *lines = self.stdout.splitlines()
        return [dict(zip(head.split("\t"), line.split("\t"), strict=True)) for line in lines]


@dataclass(frozen=True)
class Sbpair:
    """Starts `sbpair` with a home and working directory of its own; `environ` is added to a clean environment."""

    home: Path
    environ: Mapping[str, str] = field(default_factory=dict)

    def __call__(
        self,
        *arguments: str,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = LIMIT_SECONDS,
    ) -> Ran:
        more = {**self.environ, **(env or {})}
        if can_fork(arguments, more):
            return Ran(*SERVER.run(arguments, env=self.variables(env), cwd=self.home, stdin=stdin, timeout=timeout))
        done = subprocess.run(
            self.command(arguments),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            encoding="utf-8",
            env=self.variables(env),
            cwd=self.home,
            timeout=timeout,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def command(self, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "sbpair", *arguments]

    def start(self, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
        """Start without waiting; stdout and stderr are pipes unless told otherwise."""
        return subprocess.Popen(self.command(arguments), **self._settings | options)

    def begin(self, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
        """The same, forked: where nothing is asked of the interpreter's start, which is most of what a start costs.
        Options are the streams."""
        return Forked(arguments, **self._settings | options) if FORKS else self.start(*arguments, **options)

    @property
    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return settings | {"encoding": "utf-8", "env": self.variables(), "cwd": self.home}

    def python(self, code: str, *arguments: str, stdin: str = "", timeout: float = LIMIT_SECONDS) -> str:
        """Run Python code in the same home; it has to succeed. Returns what it wrote."""
        if FORKS:
            given: dict[str, Any] = {"env": self.variables(), "cwd": self.home, "stdin": stdin, "timeout": timeout}
            done = Ran(*SERVER.run(arguments, code=code, **given))
        else:
            given = {"env": self.variables(), "cwd": self.home, "input": stdin, "timeout": timeout}
            command = [sys.executable, "-c", code, *arguments]
            ended = subprocess.run(command, capture_output=True, check=False, encoding="utf-8", **given)
            done = Ran(ended.returncode, ended.stdout, ended.stderr)
        assert done.code == 0, done.stderr
        return done.stdout

    def make_queue(self, path: str) -> None:
        """Create a queue on the primary of the pair `local`."""
        self.python(_MAKE_QUEUE, path)

    def variables(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
        own = {
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(self.home / "state"),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "PYTHONPATH": str(ROOT),
            "PYTHONIOENCODING": "utf-8",
        }
        return kept | own | dict(self.environ) | dict(more or {})

    @property
    def operations(self) -> list[dict[str, Any]]:
        """Lines of the operations log."""
        return [json.loads(line) for line in self._log_lines()]

    @property
    def operations_so_far(self) -> list[dict[str, Any]]:
        """The same beside a command that writes: what has no end yet is no line."""
        return [json.loads(line) for line in self._log_lines() if line.endswith("\n")]

    def _log_lines(self) -> list[str]:
        path = self.home / "state" / "sbpair" / "operations.jsonl"
        return path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []


def listens_to_sigterm(pid: int) -> bool:
    """Whether the process has a handler of its own, as a command has once it is under way."""
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
