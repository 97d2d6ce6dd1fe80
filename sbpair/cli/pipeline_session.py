"""What the commands of `sbpair pipeline` share: Spark's options, the open session, progress on stderr."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self

import typer

from sbpair.cli.options import Options
from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.render.console import can_redraw, make_console, say
from sbpair.settings import state_directory

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from sbpair.pipeline.executors import PairByName
    from sbpair.pipeline.progress import JobProgress
    from sbpair.pipeline.session import Session

LINE_EVERY_SECONDS = 10.0

MasterOption = Annotated[
    str | None,
    typer.Option("--master", help="Spark master, e.g. spark://host:7077.", show_default="every core of this machine"),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A property of Spark; repeatable.", show_default=False),
]
ExplainOption = Annotated[bool, typer.Option("--explain", help="Show Spark's plan instead of carrying it out.")]
ArchivesArgument = Annotated[
    list[str], typer.Argument(metavar="ARCHIVE...", help="Folders or URIs that `pipeline archive` has written.")
]


@contextmanager
def spark_session(
    options: Options, master: str | None, conf: list[str] | None, *, rows: int | None, name: str
) -> Iterator["Session"]:
    """The open Spark session of a command, its log among sbpair's state, its start told on stderr."""
    from sbpair.pipeline import register
    from sbpair.pipeline.session import LOCAL_MASTER, SparkRequest, open_spark

    request = SparkRequest(
        rows=rows,
        master=master or LOCAL_MASTER,
        conf=_properties(conf),
        name=f"sbpair pipeline {name}",
        log_directory=state_directory(os.environ) / "spark",
    )
    with JobTalk(options) as talk:
        talk.say("Starting Spark")
        with open_spark(request) as session:
            register(session.spark)
            talk.say(f"Spark {session.spark.version} on {session.java}, heap {session.sizing.heap}; log: {session.log}")
            yield session


def _properties(conf: list[str] | None) -> dict[str, str]:
    properties = {}
    for one in conf or ():
        key, equals, value = one.partition("=")
        if not equals or not key.startswith("spark."):
            raise UsageError(f"--conf is spark.KEY=VALUE, not {one.partition('=')[0]!r}.")
        properties[key] = value
    return properties


def rows_in(archives: list[str]) -> int | None:
    """How many rows archives hold, where their manifests can be read without Spark.

    Raises:
        UsageError: one of them is no archive; said before Spark is started for it.
    """
    from sbpair.pipeline.manifest import LocalStore, check_archive

    if any("://" in one or one.startswith("file:") for one in archives):
        return None
    return sum(check_archive(LocalStore(Path(one))).rows for one in archives)


def pair_by_name(options: Options, pair: str | None) -> "PairByName":
    """The pair in the form that may travel to executors."""
    from sbpair.pipeline.executors import PairByName

    return PairByName.load(pair, options.config)


class JobTalk:
    """Progress of Spark jobs: a bar on a terminal, one plain line every ten seconds elsewhere, nothing when quiet."""

    def __init__(self, options: Options) -> None:
        self._quiet, self._verbose = options.quiet, options.verbose
        self._last_line = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if not options.quiet and can_redraw(sys.stderr):
            self._bar, self._task = _make_bar(color=not options.no_color)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """A step that has no tasks to count."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=text, total=None)
        elif self._verbose:
            say(text)

    def __call__(self, progress: "JobProgress") -> None:
        if self._bar is not None and self._task is not None:
            total = progress.total or None
            self._bar.update(self._task, description=progress.label, completed=progress.done, total=total)
        elif not self._quiet and time.monotonic() - self._last_line >= LINE_EVERY_SECONDS:
            self._last_line = time.monotonic()
            say(line_of(progress))


def line_of(progress: "JobProgress") -> str:
    """`Archiving: 12 of 40 tasks, 20s; 1 attempt(s) failed and run again`."""
    tasks = f"{progress.done:,} of {progress.total:,} tasks" if progress.total else "planning"
    failed = f"; {progress.failed} attempt(s) failed and run again" if progress.failed else ""
    return f"{progress.label}: {tasks}, {format_duration(round(progress.seconds))}{failed}"


def _make_bar(*, color: bool) -> "tuple[Progress, TaskID]":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=make_console(color=color, stderr=True), transient=True)
    return bar, bar.add_task("Spark", total=None)
