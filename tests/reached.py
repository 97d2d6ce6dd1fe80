"""Which test runs which line of the product: recorded once for each test file, and used to run those tests alone.

`python -m tests.mutants` loads it into pytest (`-p tests.reached`). With FOLDER in the environment it writes there what
each test of the run reaches; with SELECTED, a file of test ids, it runs these alone, file after file as they are there.

What a test runs in a process of its own is not seen: a file with such a test says so in its record. A fixture that
several tests share counts as run by the first of them.
"""

import hashlib
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

FOLDER, SELECTED = "SBPAIR_REACHED_FOLDER", "SBPAIR_REACHED_SELECTED"
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}
ENOUGH_CALLS = 30
"""A function that was called so often by a test, and ran no new line in as many calls,"""
FEW_CALLS = 16
"""is looked at only once in so many calls from then on: a drawn history runs some lines very seldom."""
QUIET_CALLS = 300_000
"""After so many calls without a new line a test goes on without the tracer."""


@dataclass(slots=True)
class Reached:
    """One test: its seconds (under the tracer), and the lines that it ran, by file."""

    seconds: float = 0.0
    lines: dict[str, list[int]] = field(default_factory=dict)
    passed: bool = True


@dataclass(slots=True)
class Record:
    """One test file, as it was when it was recorded: digests of itself and of the product's files."""

    digest: str
    sources: dict[str, str]
    processes: bool = False
    """Whether a test of it starts processes."""
    tests: dict[str, Reached] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, file: str) -> "Record | None":
        try:
            found = json.loads(_place(folder, file).read_text("utf-8"))
        except FileNotFoundError:
            return None
        tests = {name: Reached(**one) for name, one in found.pop("tests").items()}
        return cls(**found, tests=tests)

    def write(self, folder: Path, file: str) -> None:
        _place(folder, file).write_text(json.dumps(asdict(self)), "utf-8")

    def holds(self, root: Path, file: str, sources: Mapping[str, str]) -> bool:
        """Whether neither the test file has changed since, nor what it reaches of these files of the product.

        Args:
            sources: the files, and their digests now.
        """
        reached = {source for test in self.tests.values() for source in test.lines}
        return self.digest == digest(root / file) and all(
            self.sources.get(one) == now for one, now in sources.items() if one in reached or one not in self.sources
        )


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def _place(folder: Path, file: str) -> Path:
    return folder / (file.replace("/", ".") + ".json")


class Tracer:
    """The lines of the product that run between `begin` and `end`, on all threads."""

    def __init__(self, root: Path) -> None:
        self._prefix = str(root) + os.sep
        self._files: dict[CodeType, str] = {}
        """Empty: none of the product's."""
        self._lines: defaultdict[str, set[int]] = defaultdict(set)
        self._calls: defaultdict[CodeType, int] = defaultdict(int)
        self._quiet = 0

    def begin(self) -> None:
        self._lines, self._calls, self._quiet = defaultdict(set), defaultdict(int), 0

    def end(self) -> dict[str, list[int]]:
        return {file: sorted(lines) for file, lines in self._lines.items()}

    def __call__(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        self._quiet += 1
        if self._quiet > QUIET_CALLS:
            sys.settrace(None)
            return None
        code = frame.f_code
        file = self._files.get(code)
        if file is None:
            name = code.co_filename
            own = name.startswith(self._prefix + "sbpair" + os.sep) and code.co_name != "<module>"
            file = self._files[code] = name.removeprefix(self._prefix) if own else ""
        calls = self._calls[code]
        self._calls[code] += 1
        if not file or (calls > ENOUGH_CALLS and calls % FEW_CALLS):
            return None
        lines = self._lines[file]
        ran = 0

        def line(frame: FrameType, event: str, _arg: Any) -> Any:
            nonlocal ran
            if event == "line":
                if frame.f_lineno not in lines:
                    lines.add(frame.f_lineno)
                    self._calls[code] = self._quiet = ran = 0
                ran += 1
                frame.f_trace_lines = ran < 100 * ENOUGH_CALLS
            return line

        return line


class Recorder:
    """Writes the record of each file once its last test has run."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._root = folder, Path.cwd()
        self._tracer = Tracer(self._root)
        self._now: Record | None = None
        self._records: dict[str, Record] = {}
        sys.addaudithook(self._heard)

    def _heard(self, event: str, _arguments: object) -> None:
        if event in STARTS and self._now is not None:
            self._now.processes = True

    def pytest_collection_finish(self) -> None:
        product = (self._root / "sbpair").rglob("*.py")
        self._sources = {one.relative_to(self._root).as_posix(): digest(one) for one in product}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        file = item.nodeid.partition("::")[0]
        self._now = self._records.setdefault(file, Record(digest(self._root / file), self._sources))
        reached = self._now.tests[item.nodeid] = Reached()
        self._tracer.begin()
        began = time.monotonic()
        threading.settrace(self._tracer)
        sys.settrace(self._tracer)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            reached.seconds = round(time.monotonic() - began, 3)
            reached.lines = self._tracer.end()
            if nextitem is None or nextitem.nodeid.partition("::")[0] != file:
                self._now.write(self._folder, file)
            self._now = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._now is not None and report.nodeid in self._now.tests and not report.passed:
            self._now.tests[report.nodeid].passed = False


class Selection:
    """Runs the tests of a list alone, in the order of their files in it."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self._wanted = frozenset(wanted)
        files = dict.fromkeys(one.partition("::")[0] for one in wanted)
        self._order = {file: place for place, file in enumerate(files)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._wanted]
        items.sort(key=lambda item: self._order[item.nodeid.partition("::")[0]])


def pytest_configure(config: pytest.Config) -> None:
    if (folder := os.environ.get(FOLDER)) and (
        hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    ):
        config.pluginmanager.register(Recorder(Path(folder)))
    if selected := os.environ.get(SELECTED):
        config.pluginmanager.register(Selection(Path(selected).read_text("utf-8").splitlines()))


def reached_by(record: Record, file: str, lines: range) -> Iterator[str]:
    """Tests that run one of these lines; without lines, any of the file."""
    for name, test in record.tests.items():
        ran = test.lines.get(file, [])
        if test.passed and (any(one in lines for one in ran) if lines else ran):
            yield name
