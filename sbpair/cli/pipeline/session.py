"""What the commands of `sbpair pipeline` share: Spark's options, the open session, progress on stderr."""

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.asking import go_ahead, pair_to_write, side_named
from sbpair.cli.context import load_settings
from sbpair.cli.options import Options, OptionSet
from sbpair.cli.transfer.options import BacklogOptions, ReserveOption, budget_of
from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.core.redact import quoted
from sbpair.core.words import counted
from sbpair.files import try_folder
from sbpair.render.console import say, write_file
from sbpair.render.progress import Shown
from sbpair.render.result import CommandResult
from sbpair.settings import state_directory

if TYPE_CHECKING:
    from sbpair.pipeline.archive import ArchiveRequest
    from sbpair.pipeline.executors import PairByName
    from sbpair.pipeline.spark.session import JobProgress, StartedSpark
    from sbpair.pipeline.tables import Tables

_log = logging.getLogger("sbpair")

ExplainOption = Annotated[bool, typer.Option("--explain-plan", help="Only show Spark's plan.")]
ArchivesArgument = Annotated[
    list[str], typer.Argument(metavar="ARCHIVE...", help="Folders or URIs that `sbpair pipeline archive` wrote.")
]
IntoOption = Annotated[
    str, typer.Option("--archive", metavar="DIR", help="The archive: a folder, or a URI such as abfss://...")
]


SMALL_ROWS = 100_000
"""Of messages that the JVM does not see, it may be small."""


class Engine(StrEnum):
    SPARK = "spark"
    LOCAL = "local"


class ArchiveFormat(StrEnum):
    PARQUET = "parquet"
    DELTA = "delta"


@dataclass(frozen=True, slots=True)
class SparkOptions(OptionSet):
    """Where Spark runs, and how."""

    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Spark master, e.g. spark://host:7077.", show_default="every core of this machine"
        ),
    ] = None
    conf: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Spark property; repeatable.")] = None

    @contextmanager
    def session(
        self, options: Options, *, rows: int | None, name: str, sources: bool = True
    ) -> Iterator["StartedSpark"]:
        """The open Spark session of a command, its log among sbpair's state, its start told on stderr. `rows`: see
        `open_spark`. `sources`: the job may read or write by our data sources, which cost seconds to register."""
        from sbpair.pipeline.source.datasource import register_backlog
        from sbpair.pipeline.spark.session import LOCAL_MASTER, open_spark

        opening = open_spark(
            rows=rows,
            master=self.master or LOCAL_MASTER,
            conf=_properties(self.conf),
            name=f"sbpair pipeline {name}",
            log_directory=state_directory(os.environ) / "spark",
            prepare=register_backlog if sources else None,
        )
        with ExitStack() as stack:
            with JobLog(options) as log:
                log.say("Starting Spark")
                session = stack.enter_context(opening)
            if options.verbose and not options.quiet:
                java, sizing = session.java, session.sizing
                say(f"Spark {session.context.version} on {java}, heap {sizing.heap}; log: {session.log}")
            yield session

    @contextmanager
    def job(self, options: Options, *, name: str) -> Iterator["tuple[StartedSpark, JobLog]"]:
        """The session of a command that reads no queues and whose JVM only passes results on, however many messages
        there are; and what shows the progress of its jobs."""
        with self.session(options, rows=SMALL_ROWS, name=name, sources=False) as session, JobLog(options) as log:
            yield session, log


@dataclass(frozen=True, slots=True)
class EngineOptions(SparkOptions):
    """Spark, or this process alone."""

    engine: Annotated[
        Engine, typer.Option(metavar="spark|local", help="local: in this process, without Spark and Java.")
    ] = Engine.SPARK

    @property
    def local(self) -> bool:
        return self.engine is Engine.LOCAL

    def check(self, *, tables: bool = False) -> None:
        """Refuse an engine whose packages are missing. `tables`: the work is done in these, else in columns of Arrow.

        Raises:
            SparkUnavailableError: it is not installed.
        """
        from sbpair.pipeline.spark.session import check_columnar, check_installed

        if tables or not self.local:
            check_installed()  # the package, not a JVM: tables of both engines use its types
        if self.local or not tables:
            check_columnar()

    @contextmanager
    def tables(
        self, options: Options, *, rows: int | None, name: str
    ) -> "Iterator[tuple[Tables, StartedSpark | None]]":
        """The tables of the engine, and the session where that is Spark."""
        from sbpair.pipeline.tables import LocalTables, SparkTables

        if self.local:
            yield LocalTables(), None
            return
        with self.session(options, rows=rows, name=name) as session:
            yield SparkTables(session), session


@dataclass(frozen=True, slots=True)
class ArchivingOptions(OptionSet):
    """What `archive` and `follow` share: which queues, in which form, and whether the messages leave them."""

    backlog: BacklogOptions
    format_: Annotated[
        ArchiveFormat,
        typer.Option(
            "--format", metavar="parquet|delta", help="delta: the folder is a Delta table as well, and stays one."
        ),
    ] = ArchiveFormat.PARQUET
    take: Annotated[
        bool, typer.Option(help="Remove archived messages from the queues; the archive then holds the only copy.")
    ] = False
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --take: record each message that was removed in this folder."),
    ] = None
    reserve: ReserveOption = None
    spark: SparkOptions = SparkOptions()

    def ask_to_take(self, options: Options, pair: str | None, into: str, *, besides: str = "") -> None:
        """Have it confirmed that messages leave their queues. `besides`: what else does."""
        confirmed = pair_to_write(options, load_settings(options), pair, "Take the backlog of")
        what = f"Take the messages of the backlog queues on {side_named(confirmed)}"
        doing = f"{what} into {into}, which then has the only copy{besides}"
        go_ahead(options, doing, state="Nothing was taken.")

    def request(self, options: Options, pair: str | None, into: str) -> "ArchiveRequest":
        """What is asked of the archive, as far as that can be done: Spark is started for it afterwards.

        Raises:
            UsageError: options that contradict each other, or a folder that cannot be written into.
            SparkUnavailableError: a package is missing.
        """
        if self.ledger is not None and not self.take:
            raise UsageError("--ledger records what --take removes. Give both, or neither.")
        from sbpair.pipeline.spark.session import check_installed

        check_installed()
        from sbpair.pipeline.archive import ArchiveRequest
        from sbpair.pipeline.delta import check_delta
        from sbpair.pipeline.manifest import LocalStore, is_folder

        delta = self.format_ is ArchiveFormat.DELTA
        if is_folder(into):
            check_delta(LocalStore(Path(into)), wanted=delta)
            check_folder(Path(into))
        elif delta:
            raise UsageError("--format delta writes into a folder, not a URI.")
        chosen = pair_by_name(options, pair)
        return ArchiveRequest(
            chosen,
            into,
            tuple(self.backlog.queue or ()),
            dead_letters=(False, True) if self.backlog.with_dlq else (self.backlog.dlq,),
            take=self.take,
            ledger=None if self.ledger is None else self.ledger.expanduser().absolute(),
            delta=delta,
            budget_per_second=budget_of(self.reserve),
        )


def _properties(conf: list[str] | None) -> dict[str, str]:
    properties = {}
    for text in conf or ():
        key, equals, value = text.partition("=")
        if not equals or not key.startswith("spark."):
            raise UsageError(f"--conf is spark.KEY=VALUE, not {quoted(key if value else text)}.")
        properties[key] = value
    return properties


def check_folder(folder: Path) -> None:
    """Make sure that a folder can be made and written into, before Spark is started for it.

    Raises:
        UsageError: it cannot.
    """
    try:
        there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
        if not there.is_dir():
            raise UsageError(f"Cannot write into {folder}: {there} is a file.")
        try_folder(there)
    except OSError as error:
        raise UsageError(f"Cannot write into {folder}: {(error.strerror or str(error)).lower()}.") from error


def pair_by_name(options: Options, pair: str | None) -> "PairByName":
    """The pair in the form that may travel to executors."""
    from sbpair.pipeline.executors import PairByName

    return PairByName.load(pair, options.config)


_LABEL_CHARACTERS = 22
"""With the bar, the count and the clock behind it a line of 80 columns is full."""


class JobLog(Shown):
    """Progress of Spark jobs."""

    def __init__(self, options: Options) -> None:
        super().__init__("Spark", quiet=options.quiet, color=not options.no_color)
        self._verbose = options.verbose and not options.quiet

    def say(self, text: str) -> None:
        """A step that has no tasks to count."""
        if not self.redraw(completed=0, total=None, description=text) and self._verbose:
            say(text)

    def __call__(self, progress: "JobProgress") -> None:
        total = progress.total or None
        shown = self.redraw(completed=progress.done, total=total, description=progress.label[:_LABEL_CHARACTERS])
        if not shown and self.line_is_due():
            say(line_of(progress))


def line_of(progress: "JobProgress") -> str:
    """`Archiving: 12 of 40 tasks, 20s; 1 attempt failed and run again`."""
    tasks = f"{progress.done:,} of {progress.total:,} tasks" if progress.total else "planning"
    failed = f"; {counted(progress.failed, 'attempt')} failed and run again" if progress.failed else ""
    return f"{progress.label}: {tasks}, {format_duration(round(progress.seconds))}{failed}"


HtmlOption = Annotated[Path | None, typer.Option(help="Write the report here.")]


def write_report(result: CommandResult, html: Path | None) -> None:
    """Write the page of a result to a file, if one is wanted.

    Raises:
        SbpairError: it cannot be written.
    """
    from sbpair.render.html import to_html

    if html is not None and result.page is not None:
        write_file(html, to_html(result.page))
        _log.info(f"Report written to {html}.")
