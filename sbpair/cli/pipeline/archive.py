"""`sbpair pipeline archive` and `follow`: a backlog into Parquet, once or while it grows."""

import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli import suggestions
from sbpair.cli.context import configure_logging
from sbpair.cli.options import Options, PairArgument, command, duration_option
from sbpair.cli.pipeline.session import (
    ArchivingOptions,
    IntoOption,
    JobLog,
    SparkOptions,
    busy_notes,
)
from sbpair.cli.transfer.options import Filters, ForOption, UntilIdleOption
from sbpair.core.errors import UsageError
from sbpair.core.names import check_source_path
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Side
from sbpair.core.serialization import to_plain
from sbpair.core.words import counted
from sbpair.pipeline.reports import ArchiveReport, FollowReport, Imported
from sbpair.render.result import CommandResult, Table, columns

if TYPE_CHECKING:
    from sbpair.pipeline.archive import ArchiveRequest
    from sbpair.pipeline.spark.session import Session

_log = logging.getLogger("sbpair")

_SMALL_ROWS = 100_000
"""Where tasks write the files themselves, the JVM sees a row per file: it may be small."""


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
    """What is archived instead of the backlog.

    Raises:
        UsageError: options that contradict each other, or no path of an entity.
    """
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
        return _result(request, report)
    rows = _SMALL_ROWS if folder else None
    sources = not folder or request.take  # what is taken is looked for in the queues by the source
    with spark.session(options, rows=rows, name="archive", sources=sources) as session, JobLog(options) as log:
        report = archive_backlog(session, request, plan=plan, tell=log)
    return _result(request, report)


def _import(request: "ArchiveRequest", file: Path) -> CommandResult:
    from sbpair.pipeline.delta import publish
    from sbpair.pipeline.follow import import_drained
    from sbpair.pipeline.manifest import LocalStore, is_folder

    pair, into = request.pair.name, request.into
    if not is_folder(into):
        raise UsageError("--import writes into a folder, not a URI.")
    store = LocalStore(Path(into))
    added, unreadable, kept_in = import_drained(store, pair, file)
    publish(store, wanted=request.delta)
    rows = sum(one.rows for one in added)
    data = Imported(into, file, rows, len(added), len(unreadable))
    summary = (
        f"{counted(rows, 'message')} of {file} added." if added else f"{file} had been added before; nothing was added."
    )
    if unreadable:
        numbers = ", ".join(str(one.line) for one in unreadable[:3]) + (", ..." if len(unreadable) > 3 else "")
        summary += (
            f" {counted(len(unreadable), 'line')} (line {numbers}) held no message; kept in "
            f"{kept_in[0]}. Correct and add them: sbpair pipeline archive {pair} --archive {into} --import {kept_in[0]}"
        )
    code = Exit.PARTIAL if unreadable else Exit.OK
    per_queue = Counter[str]()
    for one in added:
        per_queue[one.queue] += one.rows
    return CommandResult(data, (_table(per_queue),), summary=summary, closing=True, exit=code)


def _table(per_queue: Mapping[str, int]) -> Table:
    rows = [{"queue": path, "messages": count} for path, count in sorted(per_queue.items())]
    return Table("", columns("queue", "#messages"), rows)


def _result(request: "ArchiveRequest", report: ArchiveReport) -> CommandResult:
    if report.dry_run:
        spans = to_plain(report.spans)
        summary = f"{counted(len(spans), 'sequence-number range')} not archived yet; nothing was changed."
        exit_code = Exit.FINDINGS if spans else Exit.OK
        return CommandResult(
            report,
            (
                Table(
                    "", columns("queue", "dead_letter: Dead letters", "first: First number", "last: Last number"), spans
                ),
            ),
            summary=summary,
            exit=exit_code,
            closing=True,
        )
    notes = [f"Left in the queue: {count:,} ({reason})" for reason, count in sorted(report.left.items())]
    notes += busy_notes(report)
    if report.gone:
        notes.append(
            f"{counted(report.gone, 'archived message')} had left the queues before: removed by an interrupted run of "
            "this command, or sent back by a drain. Give the drain's ledger to `sbpair pipeline replay`."
        )
    if report.unnamed:
        notes.append(
            f"{counted(report.unnamed, 'file')} under data/ {'is' if report.unnamed == 1 else 'are'} not part of the "
            "archive and will go in a day. Do not read data/ by a glob: the commands of `sbpair pipeline` read what "
            "the commits name, and so do readers of Delta tables with --format delta."
        )
    taken = f"; {report.settled:,} removed from their queues" if request.take else ""
    return CommandResult(
        report,
        (_table(report.per_queue),),
        notes=tuple(notes),
        closing=True,
        summary=f"{counted(report.rows, 'message')} added to {report.archive}, which has {report.total_rows:,}{taken}.",
        exit=Exit.PARTIAL if report.left else Exit.OK,
    )


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
    pause = duration_option(every) or 0.0
    if pause < 1:
        raise UsageError(f"--every is one second or more, not {every}.")
    archived = archiving.request(options, pair, into)
    from sbpair.pipeline.follow import FollowRequest
    from sbpair.pipeline.follow import follow as keep_up_to_date
    from sbpair.pipeline.manifest import is_folder

    if archiving.take:
        archiving.ask_to_take(options, pair, into, besides=", and those that come later")
    request = FollowRequest(archived, pause, duration_option(for_), duration_option(until_idle))
    configure_logging(options)
    with ExitStack() as stack:
        opened: list[Session] = []
        progress = JobLog(options)

        def session() -> "Session":
            if not opened:
                sources = archiving.take or not is_folder(into)
                spark = archiving.spark.session(options, rows=None, name="follow", sources=sources)
                opened.append(stack.enter_context(spark))
                stack.enter_context(progress)
            return opened[0]

        def begun() -> None:
            _log.info(f"Following {archived.pair.name} into {into}, every {every}.")

        report = keep_up_to_date(session, request, tell=progress, begun=begun, added=_say_added)
    return _followed(report, take=archiving.take)


def _say_added(added: ArchiveReport) -> None:
    taken = f", {added.settled:,} removed from their queues" if added.settled else ""
    _log.info(f"{counted(added.rows, 'message')} added{taken}; the archive has {added.total_rows:,}.")


_EXITS = {"interrupted": Exit.INTERRUPTED, "terminated": Exit.TERMINATED}
_ENDED = {
    "time": "The time is over",
    "idle": "Nothing new has come",
    "interrupted": "Interrupted",
    "terminated": "Terminated",
}


def _followed(report: FollowReport, *, take: bool) -> CommandResult:
    taken = f"; {report.settled:,} removed from their queues" if take else ""
    row = {"rounds": report.rounds, "rows": report.rows}
    return CommandResult(
        report,
        (Table("", columns(">rounds", ">rows: Added"), [row]),),
        notes=tuple(f"Left in the queue: {count:,} ({reason})" for reason, count in sorted(report.left.items())),
        closing=True,
        summary=(
            f"{_ENDED[report.ended]}. {counted(report.rows, 'message')} added to {report.archive}, "
            f"which has {report.total_rows:,}{taken}."
        ),
        exit=_EXITS.get(report.ended) or (Exit.PARTIAL if report.left else Exit.OK),
    )
