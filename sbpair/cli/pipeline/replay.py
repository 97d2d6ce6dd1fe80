"""`sbpair pipeline replay`: from archives to the primary; `reconcile`: the proof that nothing was lost."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from sbpair.cli.asking import go_ahead, pair_to_write, side_named
from sbpair.cli.context import load_settings
from sbpair.cli.options import Options, PairArgument, command
from sbpair.cli.pipeline.session import (
    ArchivesArgument,
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
from sbpair.core.serialization import to_plain
from sbpair.core.transfer.verdict import NOT_CONFIGURED
from sbpair.core.words import counted
from sbpair.pipeline.reports import FINDINGS, Explained, ReplayReport
from sbpair.render.result import Check, CommandResult, Metric, Severity, Table, columns


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
    by.check(tables=True)
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
        Dedupe(dedupe),
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
    return _result(report)


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


def _result(report: ReplayReport) -> CommandResult:
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
    notes += busy_notes(report)
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
        report,
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


# `sbpair pipeline reconcile`: the proof that nothing was lost.

_COLUMNS = columns(
    "verdict", "queue", ">sequence_number: Number", "message_id", "session_id: Session", "destination", "why"
)


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
    from sbpair.pipeline.reconcile import reconcile as hold_together

    look = None if pair is None else pair_by_name(options, pair)
    rows = rows_in(archives, of_backlog=True)
    for one in ledger or ():
        if not Path(one).expanduser().exists():
            raise UsageError(f"There is no ledger {one}.")
    with by.tables(options, rows=rows, name="reconcile") as (tables, _), JobLog(options) as log:
        report = hold_together(tables, archives, ledger or [], look=look, tell=log, listed=listed)
    counts = to_plain(report.counts)
    notes = []
    if report.perhaps_doubled:
        notes.append(f"{report.perhaps_doubled:,} may have arrived twice, with the same MessageId: an answer got lost.")
    if report.not_archived:
        notes.append(f"{counted(report.not_archived, 'ledger line')} for messages that these archives do not contain.")
    notes += [f"{place} could not be looked into: {why}" for place, why in sorted(report.not_looked_at.items())]
    if counts["unaccounted"] and pair is None:
        notes.append("With --pair NAME the queues are searched for unaccounted messages.")
    if counts["taken"]:
        notes.append(
            "Taken: only the archive has these, unless a replay without its ledger sent them (replay --dry-run)."
        )
    if report.findings > len(report.listed):
        notes.append(f"{len(report.listed):,} of {report.findings:,} findings are listed; see --limit.")
    said = ", ".join(f"{counts[kind]:,} {kind}" for kind in FINDINGS)
    good = report.verdicts.get("ok", 0) + report.verdicts.get("arrived", 0)
    return CommandResult(
        report,
        (Table("", _COLUMNS, to_plain(report.listed), style_key="verdict"),),
        notes=tuple(notes),
        closing=True,
        summary=f"{good:,} of {report.messages:,} archived messages have exactly one outcome; {said}.",
        exit=Exit.FINDINGS if report.findings else Exit.OK,
        checks=tuple(
            Check(kind, "archive", Severity.ERROR if count else Severity.OK, f"{count:,} messages {kind}")
            for kind, count in counts.items()
        ),
        metrics=tuple(
            Metric("sbpair_reconcile_messages", report.verdicts.get(kind, 0), (("verdict", kind),))
            for kind in ("ok", "arrived", *FINDINGS)
        ),
    )
