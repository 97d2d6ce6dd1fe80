"""`sbpair pipeline archive` and `follow`: a backlog into Parquet, once or while it grows."""

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli import suggestions
from sbpair.cli.context import configure_logging
from sbpair.cli.options import Options, PairArgument, command, duration_option, pause_option
from sbpair.cli.pipeline.session import SMALL_ROWS, ArchivingOptions, IntoOption, JobLog, SparkOptions
from sbpair.cli.transfer.options import Filters, ForOption, UntilIdleOption
from sbpair.core.errors import UsageError
from sbpair.core.names import check_source_path
from sbpair.core.pairing import Side
from sbpair.core.serialization import to_plain
from sbpair.core.words import counted
from sbpair.pipeline.reports import ArchiveReport
from sbpair.render.result import CommandResult, Table, columns, concluded

if TYPE_CHECKING:
    from sbpair.pipeline.archive import ArchiveRequest
    from sbpair.pipeline.spark.session import StartedSpark

_log = logging.getLogger("sbpair")


@command(
    output="pipeline.reports:ArchivePrinted",
    asks=True,
    dry_run="Only show messages not yet archived; exit 5 if there are any.",
)
def archive(
    options: Options,
    into: IntoOption,
    pair: PairArgument = None,
    entity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENTITY",
            help="This queue or TOPIC/Subscriptions/NAME instead of the backlog; repeatable.",
            autocompletion=suggestions.entities,
        ),
    ] = None,
    side: Annotated[Side, typer.Option(help="With --entity: the namespace it is on.")] = Side.SECONDARY,
    from_sequence: Annotated[int, typer.Option(min=1, help="First sequence number.")] = 1,
    to_sequence: Annotated[int | None, typer.Option(min=1, help="Last sequence number (inclusive).")] = None,
    *,
    archiving: ArchivingOptions,
    filters: Filters,
    unit: Annotated[int, typer.Option(min=100, help="Messages per task.")] = 10_000,
    compact: Annotated[bool, typer.Option("--compact/--no-compact", help="Merge small files afterwards.")] = True,
    import_: Annotated[Path | None, typer.Option("--import", help="Add a file that `drain --archive` wrote.")] = None,
) -> CommandResult:
    """Save a backlog as Parquet files, by pair, queue and date. Running it again adds only what is new.

    The queues keep their messages; --take removes each one after the file that holds it is part of the archive. Needs
    Listen on the secondary. With --entity it is any queue or subscription of either side, which keeps its messages.

    \b
    Examples:
      sbpair pipeline archive orders --archive /data/outage-2026-11
      sbpair pipeline archive orders --archive /data/outage-2026-11 --take --with-dlq
      sbpair pipeline archive orders --archive /data/parcels-weu --entity parcels --side primary
      sbpair pipeline archive orders --archive abfss://backlog@lake.dfs.core.windows.net/orders --master spark://head:7077
    """
    entities = _entities(entity, archiving.backlog.queue, side, take=archiving.take)
    request = archiving.request(options, pair, into)
    if import_ is not None:
        return _import(request, import_)
    if archiving.take and not options.dry_run:
        archiving.ask_to_take(options, pair, into)
    request = replace(
        request,
        entities=entities,
        side=side,
        first=from_sequence,
        last=to_sequence,
        wanted=filters.wanted(),
        unit_messages=unit,
        compact=compact,
        dry_run=options.dry_run,
    )
    return _run(options, request, archiving.spark)


def _entities(entity: list[str] | None, queue: list[str] | None, side: Side, *, take: bool) -> tuple[str, ...]:
    """What is archived instead of the backlog."""
    if entity is None:
        if side is Side.PRIMARY:
            raise UsageError("--side primary needs --entity: the backlog queues are on the secondary.")
        return ()
    if queue:
        raise UsageError("--entity selects an entity instead of the backlog queues (--queue). Give one of them.")
    if take:
        raise UsageError(
            "--take empties backlog queues; what --entity names keeps its messages.",
            hint="`sbpair purge` empties any queue or subscription into files.",
        )
    return tuple(dict.fromkeys(check_source_path(one) for one in entity))


def _run(options: Options, request: "ArchiveRequest", spark: SparkOptions) -> CommandResult:
    from sbpair.pipeline.archive import archive as archive_backlog
    from sbpair.pipeline.archive import plan_archive, without_work
    from sbpair.pipeline.manifest import LocalStore, is_folder

    folder = is_folder(request.into)
    plan = plan_archive(request, LocalStore(Path(request.into)).manifest()) if folder else None
    if plan is not None and (report := without_work(request, plan)) is not None:
        return _result(report)
    rows = SMALL_ROWS if folder else None  # the tasks write the files themselves
    sources = not folder or request.take  # what is taken is looked for in the queues by the source
    with spark.session(options, rows=rows, name="archive", sources=sources) as session, JobLog(options) as log:
        report = archive_backlog(session, request, plan=plan, tell=log)
    return _result(report)


def _import(request: "ArchiveRequest", file: Path) -> CommandResult:
    from sbpair.pipeline.delta import publish
    from sbpair.pipeline.follow import import_drained
    from sbpair.pipeline.manifest import LocalStore, is_folder

    if not is_folder(request.into):
        raise UsageError("--import writes into a folder, not a URI.")
    store = LocalStore(Path(request.into))
    done = import_drained(store, request.pair.name, file)
    publish(store, wanted=request.delta)
    return concluded(done, _table(done.per_queue))


def _table(per_queue: Mapping[str, int]) -> Table:
    rows = [{"queue": path, "messages": count} for path, count in sorted(per_queue.items())]
    return Table("", columns("queue", "#messages"), rows)


_SPANS = columns("queue", "dead_letter: Dead letters", "first: First number", "last: Last number")


def _result(report: ArchiveReport) -> CommandResult:
    spans = Table("", _SPANS, to_plain(report.spans))
    return concluded(report, spans if report.dry_run else _table(report.per_queue))


@command(output="pipeline.reports:FollowReport", asks=True)
def follow(
    options: Options,
    into: IntoOption,
    pair: PairArgument = None,
    every: Annotated[str, typer.Option(metavar="DURATION", help="Pause between two looks.")] = "30s",
    for_: ForOption = None,
    until_idle: UntilIdleOption = None,
    *,
    archiving: ArchivingOptions,
) -> CommandResult:
    """Keep an archive up to date while a backlog grows: look every --every, and add what is new.

    The archive is that of `pipeline archive`: `analyze` and `replay` read it at any time. The queues keep their
    messages; --take removes each one after the file that holds it is part of the archive. SIGTERM, Ctrl-C and the end
    of --for or --until-idle leave a whole archive; the same command goes on. Needs Listen on the secondary.

    \b
    Examples:
      sbpair pipeline follow orders --archive /data/outage-2026-11
      sbpair pipeline follow orders --archive /data/outage-2026-11 --format delta
      sbpair pipeline follow orders --archive /data/outage-2026-11 --every 5s --until-idle 10m --take --with-dlq
    """
    pause = pause_option(every, "--every")
    archived = archiving.request(options, pair, into)
    from sbpair.pipeline.follow import FollowRequest
    from sbpair.pipeline.follow import follow as keep_up_to_date
    from sbpair.pipeline.manifest import is_folder

    if archiving.take:
        archiving.ask_to_take(options, pair, into, besides=", and those that come later")
    request = FollowRequest(archived, pause, duration_option(for_), duration_option(until_idle))
    configure_logging(options)
    with ExitStack() as stack:
        progress = JobLog(options)

        @cache
        def session() -> "StartedSpark":
            sources = archiving.take or not is_folder(into)
            spark = archiving.spark.session(options, rows=None, name="follow", sources=sources)
            opened = stack.enter_context(spark)
            stack.enter_context(progress)
            return opened

        def begun() -> None:
            _log.info(f"Following {archived.pair.name} into {into}, every {every}.")

        report = keep_up_to_date(session, request, tell=progress, begun=begun, added=_say_added)
    row = {"rounds": report.rounds, "rows": report.rows}
    return concluded(report, Table("", columns(">rounds", ">rows: Added"), [row]))


def _say_added(added: ArchiveReport) -> None:
    taken = f", {added.settled:,} removed from their queues" if added.settled else ""
    _log.info(f"{counted(added.rows, 'message')} added{taken}; the archive has {added.total_rows:,}.")
