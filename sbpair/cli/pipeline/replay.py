"""`sbpair pipeline replay`: from archives to the primary; `reconcile`: the proof that nothing was lost."""

from pathlib import Path
from typing import Annotated

import typer

from sbpair.cli.asking import go_ahead, pair_to_write, side_named
from sbpair.cli.context import load_settings
from sbpair.cli.options import Options, PairArgument, command
from sbpair.cli.pipeline.session import (
    ArchivesArgument,
    EngineOptions,
    ExplainOption,
    JobLog,
    check_folder,
    pair_by_name,
)
from sbpair.cli.transfer import options as shared
from sbpair.core.errors import UsageError
from sbpair.core.message import TtlMode
from sbpair.core.pairing import Side
from sbpair.core.serialization import to_plain
from sbpair.pipeline.reports import FINDINGS, Dedupe, Explained, Fate, ReconcileFinding
from sbpair.render.result import CommandResult, Grade, Metric, MonitoredCheck, concluded, table_of


@command(
    output="pipeline.reports:ReplayPrinted",
    asks=True,
    dry_run="Only count what would be sent where; exit 5 if anything would.",
)
def replay(
    options: Options,
    from_: Annotated[
        list[str], typer.Option("--archive", metavar="DIR", help="Archive to send from: a folder or URI; repeatable.")
    ],
    ledger: Annotated[
        list[Path],
        typer.Option(
            metavar="DIR|FILE",
            help="Folder to record what was sent in; also ledger files of drains, whose messages are left out.",
        ),
    ],
    pair: PairArgument = None,
    *,
    filters: shared.Filters,
    only_entities: shared.OnlyEntitiesOption = False,
    rate: shared.RateOption = None,
    reserve: shared.ReserveOption = None,
    ttl: shared.TtlOption = TtlMode.FULL,
    dedupe: Annotated[
        Dedupe, typer.Option(metavar="stored|content", help="content: send only one of several identical messages.")
    ] = Dedupe.STORED,
    tasks: Annotated[
        int | None, typer.Option("--concurrency", min=1, help="Concurrent tasks.", show_default="one per core")
    ] = None,
    although_in_the_queues: shared.AlthoughInTheQueuesOption = False,
    although_gone: Annotated[
        bool, typer.Option(help="Also send messages that have left the queues, although no archive took them.")
    ] = False,
    explain: ExplainOption = False,
    by: EngineOptions,
) -> CommandResult:
    """Send archived messages to their destinations on the primary, each session in order.

    Messages that a ledger has are not sent again, so the same command continues after an interruption. Messages that
    are still in the backlog queues are refused, since a drain would send them again; so are those that have left them
    without --take, since a drain may have sent them. Needs Send on the primary, and Listen on the secondary unless
    they were archived with --take.

    \b
    Examples:
      sbpair pipeline replay orders --archive /data/outage-2026-11 --ledger /data/replayed --dry-run --engine local
      sbpair pipeline replay orders --archive /data/outage-2026-11 --ledger /data/replayed --ledger drain.jsonl
      sbpair pipeline replay --archive A --archive B --ledger L --destination 'orders/*' --since 1d
    """
    by.check(tables=True)
    from sbpair.pipeline.manifest import rows_in
    from sbpair.pipeline.replay import ReplayRequest, in_order, prepare, tasks_of
    from sbpair.pipeline.replay import replay as replay_archives
    from sbpair.pipeline.spark.session import explained

    if by.local and (explain or not options.dry_run):
        raise UsageError(
            "--engine local only counts: it needs --dry-run. Spark sends.",
            hint="Leave --engine out. `sbpair restore` sends files of a few messages without Spark.",
        )
    chosen = pair_by_name(options, pair)
    own, drained = _own_and_drained(ledger)
    if not (options.dry_run or explain):
        confirmed = pair_to_write(options, load_settings(options), pair, "Replay to the primary of")
        doing = f"Replay messages of {', '.join(from_)} to {side_named(confirmed, Side.PRIMARY)}"
        go_ahead(options, doing, state="Nothing was sent.")
    request = ReplayRequest(
        chosen,
        tuple(from_),
        own,
        drained,
        although_in_the_queues,
        although_gone,
        filters.wanted(),
        shared.only_entities_of(chosen.resolve()) if only_entities else None,
        rate,
        reserve,
        ttl,
        dedupe,
        tasks,
        options.dry_run,
    )
    rows = rows_in(from_, of_backlog=True)
    check_folder(own)
    opened = by.tables(options, rows=rows, name="replay")
    with opened as (tables, session), JobLog(options) as log:
        if explain and session is not None:
            prepare(tables, request)
            text = explained(in_order(session.spark.table("todo"), tasks_of(session, request)))
            return CommandResult(Explained(text), text=text)
        report = replay_archives(tables, request, session=session, tell=log)
    return concluded(report, table_of(Fate, report.fates()))


def _own_and_drained(ledgers: list[Path]) -> tuple[Path, tuple[Path, ...]]:
    """The folder that this replay writes, and the files that are only read."""
    files = tuple(one for one in ledgers if one.is_file())
    folders = [one for one in ledgers if one not in files]
    if len(folders) != 1:
        told = f"{files[0]} is the ledger of a drain. " if files and not folders else ""
        raise UsageError(
            f"{told}A replay writes exactly one ledger folder of its own; {len(folders)} were named.",
            hint="For example: --ledger replayed --ledger drain.jsonl",
        )
    return folders[0], files


# `sbpair pipeline reconcile`: the proof that nothing was lost.


@command(output="pipeline.reports:ReconcileReport", checks=True)
def reconcile(
    options: Options,
    archives: ArchivesArgument,
    ledger: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR|FILE", help="Ledger file of a drain or syphon, or folder of a replay; repeatable."),
    ] = None,
    pair: Annotated[
        str | None, typer.Option(help="Search the queues of this pair for messages that no ledger has.")
    ] = None,
    listed: Annotated[int, typer.Option("--limit", "-n", min=1, help="List at most this many findings.")] = 1_000,
    *,
    by: EngineOptions,
) -> CommandResult:
    """Check archives against the ledgers of drains and replays: each message has exactly one outcome, or is listed.

    Unaccounted: no ledger has it. With --pair its queues are searched too: it is waiting if it is still in the backlog,
    taken if it was taken out and is in neither queue: the archive has it. Doubled: sent twice. Altered: sent with
    another id or content. Exit code 5 if any is listed.

    \b
    Examples:
      sbpair pipeline reconcile /data/outage-2026-11 --ledger drain.jsonl --ledger /data/replayed
      sbpair pipeline reconcile /data/outage-2026-11 --ledger drain.jsonl --pair orders --engine local
      sbpair pipeline reconcile A B --ledger /data/replayed -o json | jq .data.counts
    """
    by.check(tables=True)
    from sbpair.pipeline.manifest import rows_in
    from sbpair.pipeline.reconcile import reconcile as hold_together

    searched_pair = None if pair is None else pair_by_name(options, pair)
    rows = rows_in(archives, of_backlog=True)
    for one in ledger or ():
        if not Path(one).expanduser().exists():
            raise UsageError(f"There is no ledger {one}.")
    with by.tables(options, rows=rows, name="reconcile") as (tables, _), JobLog(options) as log:
        report = hold_together(tables, archives, ledger or [], searched_pair=searched_pair, tell=log, listed=listed)
    return concluded(
        report,
        table_of(ReconcileFinding, report.listed),
        checks=tuple(
            MonitoredCheck(kind, "archive", Grade.ERROR if count else Grade.OK, f"{count:,} messages {kind}")
            for kind, count in to_plain(report.counts).items()
        ),
        metrics=tuple(
            Metric("sbpair_reconcile_messages", report.verdicts.get(kind, 0), (("verdict", kind),))
            for kind in ("ok", "arrived", *FINDINGS)
        ),
    )
