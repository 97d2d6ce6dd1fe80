"""`sbpair pipeline replication-audit`: archives of both sides of active/active, held against its journal."""

import os
from typing import Annotated

import typer

from sbpair.cli.context import system_clock
from sbpair.cli.options import Options, command, moment_option
from sbpair.cli.pipeline.session import EngineOptions
from sbpair.cli.replication.replicate import JournalOptions, MemoryOptions, read_journal
from sbpair.core.replication.ownership import Terms
from sbpair.core.serialization import to_plain
from sbpair.core.words import counted
from sbpair.pipeline.reports import GRAVE, VERDICTS, AuditedDestination, ReplicationFinding, ReplicationReport
from sbpair.render.result import CommandResult, Grade, Metric, MonitoredCheck, concluded, table_of


@command(output="pipeline.reports:ReplicationReport", checks=True)
def replication_audit(
    options: Options,
    primary: Annotated[
        list[str],
        typer.Option(
            "--primary-archive",
            metavar="DIR|FILE",
            help="Archive of the primary's queues, or what peek -o jsonl printed; repeatable.",
        ),
    ],
    secondary: Annotated[
        list[str],
        typer.Option("--secondary-archive", metavar="DIR|FILE", help="The same of the secondary; repeatable."),
    ],
    *,
    journal: JournalOptions,
    memory: MemoryOptions,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Only messages that were there by then: ISO 8601, or how long ago. Default: all."
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="List at most this many findings.")] = 1_000,
    by: EngineOptions,
) -> CommandResult:
    """Find messages of active/active that are missing, unprocessed, out of order, begun twice or on one side only.

    Take the archives first, let the consumers work, then run this: it reads the journal when it starts. --remember and
    --retention are those of the consumers; of messages that are older, the journal may have forgotten that they were
    processed, and they count as unknown. Without stamps of sbpair's senders, a message that neither side has is not
    noticed, and order is that of each side's queue. Changes nothing. Exit code 5 if anything is found.

    \b
    Examples:
      sbpair pipeline archive orders-pair --archive p --entity parcels --side primary
      sbpair pipeline archive orders-pair --archive s --entity parcels --side secondary
      sbpair pipeline replication-audit --primary-archive p --secondary-archive s --journal sqlite:j.db
    """
    by.check()
    from sbpair.pipeline.replication.audit import AuditTerms, archive_parts, audit, journal_parts

    terms = Terms(**memory.seconds())
    store = journal.open()
    now = system_clock().now().timestamp()
    asked = AuditTerms(
        as_of=now,
        remember_seconds=terms.remember_seconds,
        retention_seconds=terms.retention_seconds,
        until=None if until is None else moment_option(until, "--until", now),
        limit=limit,
    )
    parts = archive_parts(primary, secondary, at_least=os.cpu_count() or 1)
    parts += read_journal(options, store, journal_parts)
    if by.local or not parts:  # nothing to spread
        return result_of(audit(parts, asked, journal=store.name))
    with by.job(options, name="replication-audit") as (session, log):
        return result_of(audit(parts, asked, journal=store.name, session=session, tell=log))


def result_of(report: ReplicationReport) -> CommandResult:
    """The report as it is shown."""
    counts = to_plain(report.counts)
    return concluded(
        report,
        table_of(AuditedDestination, report.destinations, "Queues"),
        table_of(ReplicationFinding, report.listed, "Findings"),
        checks=tuple(
            MonitoredCheck(
                name,
                "replication",
                Grade.OK if not counts[name] else Grade.ERROR if name in GRAVE else Grade.WARNING,
                f"{counted(counts[name], 'message')} {words}",
            )
            for name, words in VERDICTS.items()
        ),
        metrics=tuple(
            Metric("sbpair_replication_audit_findings", counts[name], (("verdict", name),)) for name in VERDICTS
        ),
    )
