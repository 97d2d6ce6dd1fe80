"""`sbpair pipeline reconcile`: the proof that nothing was lost."""

from pathlib import Path
from typing import Annotated

import typer

from sbpair.cli.options import Options, command
from sbpair.cli.pipeline import session
from sbpair.core.errors import UsageError
from sbpair.core.outcome import Exit
from sbpair.core.serialization import to_plain
from sbpair.core.words import counted
from sbpair.pipeline.reports import FINDINGS
from sbpair.render.result import Check, CommandResult, Metric, Severity, Table, columns

_COLUMNS = columns(
    "verdict", "queue", ">sequence_number: Number", "message_id", "session_id: Session", "destination", "why"
)


@command(output="pipeline.reports:ReconcileReport", checks=True)
def reconcile(
    options: Options,
    archives: session.ArchivesArgument,
    ledger: Annotated[
        list[str] | None,
        typer.Option(metavar="DIR|FILE", help="Ledger file of a drain or syphon, or folder of a replay; repeatable."),
    ] = None,
    pair: Annotated[
        str | None, typer.Option(help="Search the queues of this pair for messages that no ledger has.")
    ] = None,
    listed: Annotated[int, typer.Option("--limit", "-n", min=1, help="List at most this many findings.")] = 1_000,
    *,
    by: session.EngineOptions,
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
    by.check(installed=True)
    from sbpair.pipeline.reconcile import reconcile as hold_together

    look = None if pair is None else session.pair_by_name(options, pair)
    rows = session.rows_in(archives, of_backlog=True)
    for one in ledger or ():
        if not Path(one).expanduser().exists():
            raise UsageError(f"There is no ledger {one}.")
    with by.tables(options, rows=rows, name="reconcile") as (tables, _), session.JobLog(options) as log:
        report = hold_together(
            tables, archives, ledger or [], look=look, config=options.config, tell=log, listed=listed
        )
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
