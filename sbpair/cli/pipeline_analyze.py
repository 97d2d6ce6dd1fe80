"""`sbpair pipeline analyze`: what is in archived backlogs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair.cli.cost_inputs import price_table
from sbpair.cli.options import Options, command, duration_option
from sbpair.cli.pipeline_jobs import HtmlOption, Jobs, plan_text, spark_jobs, write_report
from sbpair.cli.pipeline_session import ArchivesArgument, ConfOption, ExplainOption, MasterOption, rows_in
from sbpair.cli.snapshots import read_snapshots
from sbpair.core.errors import UsageError
from sbpair.core.prices import PriceTable
from sbpair.core.snapshot import Snapshot
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sbpair.pipeline.analysis.analyze import Analysis
    from sbpair.pipeline.analysis.question import Question
    from sbpair.pipeline.manifest import Store


@command
def analyze(
    options: Options,
    archives: ArchivesArgument,
    snapshot: Annotated[
        Path | None,
        typer.Option("--from", help="Snapshot (audit --save): do the destinations exist?", show_default=False),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", help="Moment for ages: ISO 8601, or how long ago; default now.", show_default=False),
    ] = None,
    rate: Annotated[float, typer.Option("--rate", min=0.001, help="Messages a second the drain takes home.")] = 200.0,
    max_size_kb: Annotated[int, typer.Option("--max-size-kb", min=1, help="Largest message the primary takes.")] = 256,
    quiet_gap: Annotated[
        str, typer.Option("--quiet-gap", help="An outage is over after so long without diverted messages.")
    ] = "10m",
    top: Annotated[int, typer.Option("--top", min=0, help="Sessions and duplicates to list, the worst first.")] = 20,
    html: HtmlOption = None,
    parquet: Annotated[
        str | None, typer.Option("--parquet", help="Write every table in full into this folder.", show_default=False)
    ] = None,
    prices: Annotated[
        list[Path] | None, typer.Option("--prices", help="Retail Prices API JSON, or our YAML.", show_default=False)
    ] = None,
    region: Annotated[str | None, typer.Option(help="Region of the prices.", show_default=False)] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    explain: ExplainOption = False,
) -> CommandResult:
    """Say what is in archived backlogs: destinations, sizes, ages, sessions, duplicates, outages, the way home.

    Reads archives of `sbpair pipeline archive`. Nothing is sent or changed.

    \b
    Examples:
      sbpair pipeline analyze backlog/ --html backlog.html
      sbpair pipeline analyze monday/ tuesday/ --from today.json --rate 500 -o json
    """
    from sbpair.pipeline.analysis.question import Question

    if not rate < math.inf:  # typer takes `nan` for a number above any other
        raise UsageError(f"--rate is a number of messages a second, not {rate}.")
    question = Question(
        as_of=_moment(at),
        limit_bytes=max_size_kb * 1024,
        messages_per_second=rate,
        quiet_minutes=max(1, round((duration_option(quiet_gap) or 0) / 60)),
    )
    snapshots = read_snapshots(snapshot) if snapshot is not None else []
    table = price_table(prices or (), region=region, currency=None, egress_per_gigabyte=None)
    local = master is None or master.startswith("local")
    with spark_jobs(options, master, conf, rows=rows_in(archives), name="analyze", scanned=local) as jobs:
        analysis = _analysis(jobs, archives, question, snapshots, local)
        if explain:
            text = plan_text(analysis.frames["destinations"])
            return CommandResult("pipeline analyze", {"plan": text}, text=text)
        try:
            found = collect(jobs, analysis, top, table)
            if parquet is not None:
                _write_parquet(jobs, analysis, parquet)
        finally:
            analysis.close()
    return _shown(found, archives, question, html)


@dataclass(frozen=True, slots=True)
class Collected:
    """The tables of an analysis as rows, `sessions` and `duplicates` cut to the worst, and how many there are."""

    tables: dict[str, list[dict[str, Any]]]
    forecasts: list[dict[str, Any]]
    counts: dict[str, int]


def _moment(text: str | None) -> float:
    """UTC epoch seconds of an ISO 8601 time (no offset: UTC), or of a duration, which means that long ago."""
    now = datetime.now(UTC)
    if text is None:
        return now.timestamp()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return now.timestamp() - (duration_option(text) or 0)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _analysis(
    jobs: Jobs, archives: Sequence[str], question: "Question", snapshots: Sequence[Snapshot], local: bool
) -> "Analysis":
    """The scan needs files that the executors can open by path; on other machines or storage Spark reads them."""
    from sbpair.pipeline.analysis.analyze import Analysis
    from sbpair.pipeline.archive import open_store, read_archives

    spark = jobs.spark
    stores = [open_store(spark, one) for one in archives]
    files = _local_files(stores) if local else []
    return jobs.run(
        lambda: Analysis.of(
            spark,
            lambda: read_archives(spark, archives, stores=stores),
            question,
            files=files,
            snapshots=snapshots,
            cores=spark.sparkContext.defaultParallelism,
        ),
        "Reading footers",
    )


def _local_files(stores: "Sequence[Store]") -> list[str]:
    from sbpair.pipeline.manifest import LocalStore

    if not all(isinstance(store, LocalStore) for store in stores):
        return []
    return [
        str(store.root / one.path)
        for store in stores
        if isinstance(store, LocalStore)
        for one in store.manifest().files
    ]


_WORST_FIRST = {
    "sessions": ("inversions", "queues", "messages"),
    "duplicates": ("copies", "last_at"),
}


def collect(jobs: Jobs, analysis: "Analysis", top: int, prices: PriceTable) -> Collected:
    """Compute every table."""
    from pyspark.sql import functions as F

    from sbpair.pipeline.analysis.analyze import RESULTS, forecast

    tables: dict[str, list[dict[str, Any]]] = {}
    counts: dict[str, int] = {}
    for name in RESULTS:
        frame, label = analysis.frames[name], f"Table {name.replace('_', ' ')}"
        if name not in _WORST_FIRST:
            tables[name] = jobs.rows(frame, label)
            continue
        troubled = frame.where("inversions > 0 or queues > 1") if name == "sessions" else frame
        counts[name] = jobs.run(troubled.count, label)
        tables[name] = jobs.rows(troubled.orderBy(*(F.desc(one) for one in _WORST_FIRST[name])).limit(top), label)
    return Collected(tables, [forecast(row, analysis.question, prices) for row in tables["totals"]], counts)


def _write_parquet(jobs: Jobs, analysis: "Analysis", folder: str) -> None:
    from sbpair.pipeline.analysis.analyze import RESULTS

    for name in RESULTS:
        jobs.run(_writing(analysis.frames[name], f"{folder.rstrip('/')}/{name}"), f"Writing {name.replace('_', ' ')}")


def _writing(frame: "DataFrame", path: str) -> Callable[[], None]:
    return lambda: frame.write.mode("overwrite").parquet(path)


def _shown(found: Collected, archives: Sequence[str], question: "Question", html: Path | None) -> CommandResult:
    from sbpair.cli.pipeline_analyze_shown import result_of

    result = result_of(found, archives, question)
    write_report(result, html)
    return result
