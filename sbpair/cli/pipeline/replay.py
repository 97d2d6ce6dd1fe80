"""`sbpair pipeline replay`: from archives to the primary."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from sbpair.cli.asking import go_ahead, pair_to_write, side_named
from sbpair.cli.context import load_settings
from sbpair.cli.options import Options, PairArgument, command
from sbpair.cli.pipeline.session import (
    EngineOptions,
    ExplainOption,
    JobLog,
    busy_notes,
    check_folder,
    pair_by_name,
    rows_in,
)
from sbpair.cli.transfer import options as shared
from sbpair.core.errors import UsageError
from sbpair.core.message import TtlMode
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Side
from sbpair.core.transfer.verdict import NOT_CONFIGURED
from sbpair.pipeline.reports import Explained, ReplayReport, ReplayResult
from sbpair.render.result import CommandResult, Table, columns


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
        str, typer.Option(metavar="stored|content", help="content: send only one of several identical messages.")
    ] = "stored",
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
    by.check(installed=True)
    from sbpair.pipeline.replay import Dedupe, ReplayRequest, in_order, prepare, tasks_of
    from sbpair.pipeline.replay import replay as replay_archives
    from sbpair.pipeline.spark.session import explained

    if by.local and (explain or not options.dry_run):
        raise UsageError(
            "--engine local only counts: it needs --dry-run. Spark sends.",
            hint="Leave --engine out. `sbpair restore` sends files of a few messages without Spark.",
        )
    if dedupe not in list(Dedupe):
        raise typer.BadParameter("--dedupe is stored or content.")
    chosen = pair_by_name(options, pair)
    own, drained = _own_and_drained(ledger)
    if not (options.dry_run or explain):
        confirmed = pair_to_write(options, load_settings(options), pair, "Replay to the primary of")
        doing = f"Replay messages of {', '.join(from_)} to {side_named(confirmed, Side.PRIMARY)}"
        go_ahead(options, doing, state="Nothing was sent.")
    request = ReplayRequest(
        chosen,
        options.config,
        tuple(from_),
        own,
        drained,
        although_in_the_queues,
        although_gone,
        filters.wanted(),
        shared.only_entities(chosen.resolve()) if only_entities else None,
        rate,
        reserve,
        ttl,
        Dedupe(dedupe),
        tasks,
        options.dry_run,
    )
    rows = rows_in(from_, of_backlog=True)
    check_folder(own, create=False)
    opened = by.tables(options, rows=rows, name="replay")
    with opened as (tables, session), JobLog(options) as log:
        if explain and session is not None:
            prepare(tables, request)
            text = explained(in_order(session.spark.table("todo"), tasks_of(session, request)))
            return CommandResult(Explained(text), text=text)
        report = replay_archives(tables, request, session=session, tell=log)
    return _result(chosen.name, report)


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


def _result(pair: str, report: ReplayReport) -> CommandResult:
    rows: list[dict[str, Any]] = [
        {"what": "sent", "where": path, "messages": count} for path, count in sorted(report.per_destination.items())
    ]
    rows += [{"what": "refused", "where": why, "messages": n} for why, n in sorted(report.refusals.items())]
    rows += [{"what": "left", "where": NOT_CONFIGURED + path, "messages": n} for path, n in report.elsewhere.items()]
    others = (("already done", report.already_done), ("copies left out", report.duplicates))
    rows += [{"what": what, "where": "", "messages": count} for what, count in others if count]
    verb = "would be sent" if report.dry_run else "sent"
    notes = (
        [f"{report.resent:,} were sent again after an unclear answer, with the same MessageId."]
        if report.resent
        else []
    )
    notes += busy_notes(report.throttled)
    if report.refused_files:
        folder = shlex.quote(str(Path(report.refused_files[0]).parent))
        notes.append(f"What was refused is kept. Send it to a queue of your choice: sbpair restore {folder} --to QUEUE")
    if report.waiting:
        notes.append(
            f"{report.waiting:,} still wait in the backlog queues or their dead-letter queues: without --dry-run this "
            "is refused, because a drain would send them a second time. Drain them, or take them with pipeline archive "
            "--take."
        )
    if report.gone:
        refused = "without --dry-run this is refused unless --although-gone is given" if report.dry_run else "asked for"
        notes.append(
            f"{report.gone:,} have left the backlog queues without being taken by the archive: {refused}, because a "
            "drain may have sent them already. Its ledger (--ledger drain.jsonl) leaves them out."
        )
    from sbpair.core.transfer.conclusion import left_out

    return CommandResult(
        ReplayResult(pair, report),
        (Table("", columns("what: Outcome", "where: Destination or reason", "#messages"), rows),),
        notes=tuple(notes),
        closing=True,
        summary=f"{report.forwarded:,} of {report.matched:,} messages {verb} to the primary"
        f"{left_out(report.already_done)}.",
        exit=_exit(report),
    )


def _exit(report: ReplayReport) -> Exit:
    if report.dry_run:
        return Exit.FINDINGS if report.forwarded else Exit.OK
    if not report.refusals and not report.elsewhere:
        return Exit.OK
    if report.elsewhere:
        return Exit.PARTIAL
    return Exit.PARTIAL if report.forwarded else Exit.FAILED
