"""What the commands of `sbpair pipeline` share: Spark's options, the open session, progress on stderr."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.options import Options
from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.render.console import say
from sbpair.render.progress import Shown
from sbpair.settings import state_directory

if TYPE_CHECKING:
    from sbpair.pipeline.executors import PairByName
    from sbpair.pipeline.progress import JobProgress
    from sbpair.pipeline.session import Session

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
    options: Options, master: str | None, conf: list[str] | None, *, rows: int | None, name: str, scanned: bool = False
) -> Iterator["Session"]:
    """The open Spark session of a command, its log among sbpair's state, its start told on stderr. `rows`, `scanned`:
    see `SparkRequest`."""
    from sbpair.pipeline import register
    from sbpair.pipeline.session import LOCAL_MASTER, SparkRequest, open_spark

    request = SparkRequest(
        rows=rows,
        scanned=scanned,
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


class JobTalk(Shown):
    """Progress of Spark jobs."""

    def __init__(self, options: Options) -> None:
        super().__init__("Spark", forecast=False, quiet=options.quiet, color=not options.no_color)
        self._verbose = options.verbose and not options.quiet

    def say(self, text: str) -> None:
        """A step that has no tasks to count."""
        if not self.redraw(completed=0, total=None, description=text) and self._verbose:
            say(text)

    def __call__(self, progress: "JobProgress") -> None:
        total = progress.total or None
        shown = self.redraw(completed=progress.done, total=total, description=progress.label)
        if not shown and self.line_is_due():
            say(line_of(progress))


def line_of(progress: "JobProgress") -> str:
    """`Archiving: 12 of 40 tasks, 20s; 1 attempt(s) failed and run again`."""
    tasks = f"{progress.done:,} of {progress.total:,} tasks" if progress.total else "planning"
    failed = f"; {progress.failed} attempt(s) failed and run again" if progress.failed else ""
    return f"{progress.label}: {tasks}, {format_duration(round(progress.seconds))}{failed}"
