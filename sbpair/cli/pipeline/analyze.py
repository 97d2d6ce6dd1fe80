"""`sbpair pipeline analyze`: what is in archived backlogs."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.cost import price_table
from sbpair.cli.inspection.saved import read_snapshots
from sbpair.cli.options import Options, command, duration_option, moment_option
from sbpair.cli.pipeline.session import (
    ArchivesArgument,
    EngineOptions,
    HtmlOption,
    JobLog,
    check_folder,
    rows_in,
    write_report,
)
from sbpair.core.errors import UsageError
from sbpair.core.inspection.snapshot import Snapshot
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    from sbpair.pipeline.analysis.analyze import Found
    from sbpair.pipeline.analysis.partials import Question
    from sbpair.pipeline.analysis.units import Engine

_ONE_TASK_ROWS = 500_000
"""Up to here one task is done before Spark has started a second."""
_JVM_ROWS = 100_000
"""The JVM only passes partial results on, however many messages there are."""


@command(output="pipeline.analysis.analyze:Analysis", page=True)
def analyze(
    options: Options,
    archives: ArchivesArgument,
    snapshot: Annotated[
        Path | None, typer.Option(help="Check the destinations against this snapshot (audit --snapshot-out).")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Ages are as of then: ISO 8601, or how long ago. Default: now.")
    ] = None,
    rate: Annotated[
        float, typer.Option("--assume-rate", min=0.001, help="Messages a second that a drain would send.")
    ] = 200.0,
    max_size_kb: Annotated[int, typer.Option(min=1, help="Largest message that the primary accepts.")] = 256,
    quiet_gap: Annotated[
        str, typer.Option(metavar="DURATION", help="An outage ends after this long without a diverted message.")
    ] = "10m",
    top: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="List this many sessions and duplicates, the worst first.")
    ] = 20,
    html: HtmlOption = None,
    parquet: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write every table in full to this folder.")
    ] = None,
    prices: Annotated[
        list[Path] | None, typer.Option(help="Price list: JSON of the Retail Prices API, or YAML.")
    ] = None,
    region: Annotated[str | None, typer.Option(help="Azure region of the prices.")] = None,
    *,
    by: EngineOptions,
) -> CommandResult:
    """Report what is in archived backlogs: destinations, sizes, ages, sessions, duplicates, outages, drain forecast.

    Sends nothing and changes nothing.

    \b
    Examples:
      sbpair pipeline analyze backlog/ --html backlog.html
      sbpair pipeline analyze backlog/ --engine local
      sbpair pipeline analyze monday/ tuesday/ --snapshot today.json --assume-rate 500 -o json
    """
    by.check()
    from sbpair.pipeline.spark.session import check_columnar

    check_columnar()
    from sbpair.pipeline.analysis.partials import Question

    if not rate < math.inf:  # typer takes `nan` for a number above any other
        raise UsageError(f"--assume-rate is a number of messages a second, not {rate}.")
    now = datetime.now(UTC).timestamp()
    question = Question(
        as_of=now if at is None else moment_option(at, "--at", now),
        limit_bytes=max_size_kb * 1024,
        messages_per_second=rate,
        quiet_minutes=max(1, round((duration_option(quiet_gap) or 0) / 60)),
    )
    table = price_table(prices or (), region=region, currency=None, egress_per_gigabyte=None)
    wanted = _Wanted(question, top, read_snapshots(snapshot) if snapshot is not None else (), parquet)
    for folder in [parquet] if parquet is not None else [html.parent] if html is not None else []:
        check_folder(folder, create=False)
    found = _by_spark(options, archives, wanted, by) if not by.local else _here(archives, wanted)
    from sbpair.cli.pipeline.analyze_shown import result_of
    from sbpair.pipeline.analysis.analyze import to_analysis

    result = result_of(to_analysis(found, archives, question, table), question)
    write_report(result, html)
    return result


@dataclass(frozen=True, slots=True)
class _Wanted:
    question: "Question"
    top: int
    snapshots: Sequence[Snapshot]
    parquet: Path | None

    def of(self, engine: "Engine", rows: int) -> "Found":
        from sbpair.pipeline.analysis.analyze import analyse

        return analyse(engine, self.question, rows=rows, top=self.top, snapshots=self.snapshots, folder=self.parquet)


def _here(archives: list[str], wanted: _Wanted) -> "Found":
    """In this process, without Spark and Java."""
    from sbpair.pipeline.analysis.units import LocalEngine, units_in

    rows = rows_in(archives)
    if rows is None:
        raise UsageError("--engine local reads folders, not URIs.", hint="Leave --engine out: Spark reads them.")
    cores = os.cpu_count() or 1
    units = units_in(_files(archives), at_least=cores)
    return wanted.of(LocalEngine(units, cores=cores), rows)


def _by_spark(options: Options, archives: list[str], wanted: _Wanted, by: EngineOptions) -> "Found":
    """Archives in folders are opened by the tasks; what lies elsewhere Spark reads for them."""
    from sbpair.pipeline.spark.session import check_installed

    check_installed()
    from sbpair.pipeline.analysis.units import LocalEngine, SparkEngine, together, units_in
    from sbpair.pipeline.archive import open_store, read_archives
    from sbpair.pipeline.manifest import check_archive

    rows = rows_in(archives)
    units = units_in(_files(archives), at_least=os.cpu_count() or 1) if rows is not None else []
    if rows is not None and not units:
        return wanted.of(LocalEngine((), cores=1), 0)  # nothing to spread
    if units and sum(unit.rows for unit in units) <= _ONE_TASK_ROWS:
        units = [together(units)]
    spark = by.session(options, rows=_JVM_ROWS, name="analyze", sources=False)
    with spark as session, JobLog(options) as log:
        if rows is not None:
            return wanted.of(SparkEngine.over_units(session, units, log), rows)
        stores = [open_store(session.context, one) for one in archives]
        rows = sum(check_archive(store).rows for store in stores)
        messages = read_archives(session.spark, archives, stores=stores)
        return wanted.of(SparkEngine.over_rows(session, messages, rows, log), rows)


def _files(archives: Sequence[str]) -> list[str]:
    from sbpair.pipeline.manifest import LocalStore, check_archive

    stores = [LocalStore(Path(one)) for one in archives]
    return [str(store.root / file.path) for store in stores for file in check_archive(store).files]
