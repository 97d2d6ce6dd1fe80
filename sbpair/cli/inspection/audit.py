"""`sbpair audit`: read, judge, show."""

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair import operations
from sbpair.cli import suggestions
from sbpair.cli.context import Stop, choose_pairs, event_log, load_settings, run_async, run_until
from sbpair.cli.options import AllPairsArgument, Options, command
from sbpair.cli.transfer.entity_ref import NamespaceAuthOption
from sbpair.core.access import NamespaceAccess
from sbpair.core.errors import SbpairError, UsageError
from sbpair.core.outcome import Severity
from sbpair.core.pairing import Pair
from sbpair.render.console import check_writable
from sbpair.render.result import CommandResult, Grade, MonitoredCheck, metrics_of, table_of

if TYPE_CHECKING:
    from sbpair.core.inspection.audit.result import AuditedPair, AuditResult


AT_ONCE = 8
"""Pairs or namespaces."""


@command(output="core.inspection.audit.result:Printed", checks=True, page=True)
def audit(
    options: Options,
    pairs: AllPairsArgument = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Check this namespace instead of pairs, by name or host, for what loses messages; repeatable.",
            autocompletion=suggestions.configured_namespaces,
        ),
    ] = None,
    auth: NamespaceAuthOption = None,
    snapshot_out: Annotated[
        Path | None, typer.Option(help="Save what was read to this file; it holds no keys.")
    ] = None,
    snapshot: Annotated[Path | None, typer.Option(help="Check this saved snapshot instead; contacts nothing.")] = None,
    check: Annotated[
        list[str] | None,
        typer.Option(metavar="CODE", help="Run only this check; repeatable.", autocompletion=suggestions.check_codes),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CODE[:PATTERN]", help="Ignore these findings; repeatable.", autocompletion=suggestions.check_codes
        ),
    ] = None,
    history: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Append one line per pair to a file in this folder.")
    ] = None,
    fail_on: Annotated[Severity, typer.Option(help="Minimum severity that yields exit code 5.")] = Severity.WARNING,
    list_checks: Annotated[bool, typer.Option(help="List the checks and exit.")] = False,
    explain: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="Explain one check and exit.", autocompletion=suggestions.check_codes),
    ] = None,
) -> CommandResult:
    """Find stranded messages, and backlog queues that are missing, extra or set up wrong; or what loses messages.

    Reads only, and reads twice before it reports a finding. A check that cannot run is reported as skipped, with the
    reason. Exit code: 5 findings, 6 a namespace cannot be reached, 4 access denied.

    With --namespace one namespace, of a pair or not, is checked alone: expiry without dead-lettering, forwarding in
    circles or to nothing, rules that never match, entities that nobody reads, quotas, keys, and more (--list-checks).
    It reads each subscription's rules at 200 credits a second.

    \b
    Examples:
      sbpair audit orders
      sbpair audit --namespace contoso-weu -o nagios
      sbpair audit --snapshot-out today.json && sbpair audit --snapshot today.json
      sbpair audit --explain SBP001
      sbpair audit --ignore 'SBP002:contoso-old/*' --fail-on error -o prometheus --outfile sbpair.prom
    """
    if list_checks:
        return _listed()
    if explain is not None:
        return _explained(explain, pairs[0] if pairs and len(pairs) == 1 else None)
    for path in (snapshot_out, history / "a pair.jsonl" if history else None):
        if path is not None:
            check_writable(path)
    if snapshot is not None and snapshot_out is not None:
        raise UsageError("--snapshot reads a saved snapshot; there is nothing to save with --snapshot-out.")
    from sbpair.cli.inspection import saved
    from sbpair.core.inspection.audit.result import AuditResult

    request, notes = operations.AuditRequest(check or (), ignore or ()), list[str]()
    if namespace:
        if pairs or snapshot is not None or snapshot_out is not None:
            raise UsageError(
                "--namespace checks namespaces: no PAIR, --snapshot or --snapshot-out.",
                hint="Entities and rules are saved by: sbpair export snapshot --namespace NAME",
            )
        settings = load_settings(options)
        places = [settings.named_namespace(name, auth) for name in namespace]
        result = _of_each(options, places, operations.audit_namespace, request)
    elif auth is not None:
        raise UsageError("--auth is for --namespace; a pair says itself how it is reached.")
    elif snapshot is not None:
        snapshots = saved.choose_snapshots(snapshot, pairs)
        request = replace(request, others=tuple(one.pair.to_pair() for one in snapshots))
        result = AuditResult(tuple(operations.audit_snapshot(one, request) for one in snapshots))
    else:
        settings = load_settings(options)
        chosen = choose_pairs(settings, pairs)
        others, notes = saved.configured_pairs(settings, "the checks across pairs")
        request = replace(request, others=tuple(others))
        result = _of_each(options, chosen, operations.audit, request, _announcement(chosen))
    if snapshot_out is not None:
        saved.write_snapshots(snapshot_out, [pair.snapshot for pair in result.pairs])
    if history is not None:
        for pair in result.pairs:
            operations.append_history(history, pair)
    if result.errors and not result.pairs:
        raise result.errors[0].error
    return _shown(result, (*notes, *result.notes()), fail_on, each=options.verbose)


def _of_each(
    options: Options,
    chosen: Sequence[Pair | NamespaceAccess],
    verb: Callable[..., Awaitable["AuditedPair"]],
    request: "operations.AuditRequest",
    announcement: str = "",
) -> "AuditResult":
    """Pairs or namespaces, several at a time; one that cannot be read holds up no other."""
    from sbpair.concurrency import side_by_side
    from sbpair.connect import opened
    from sbpair.core.inspection.audit.result import AuditedPair, AuditResult, FailedPair

    async def audited(place: Pair | NamespaceAccess) -> AuditedPair | FailedPair:
        try:
            async with opened(place) as ends:
                return await verb(ends, request, observer=event_log(options))
        except SbpairError as error:
            return FailedPair(place.name if isinstance(place, Pair) else place.label, error)

    async def work(stop: Stop) -> list[AuditedPair | FailedPair]:
        if announcement:
            logging.getLogger("sbpair").debug(announcement)
        return await run_until(stop, side_by_side(audited, chosen, at_once=AT_ONCE))

    found = run_async(options, work)
    return AuditResult(
        tuple(one for one in found if isinstance(one, AuditedPair)),
        tuple(one for one in found if isinstance(one, FailedPair)),
    )


def _announcement(pairs: Sequence[Pair]) -> str:
    """What the audit is going to use, as far as that is known before the queues are counted."""
    from sbpair.core.inspection.audit.result import of_audit
    from sbpair.core.prices import Forecast, in_words

    expected = [of_audit(0, expected=pair.options.backlog_queue_count) for pair in pairs]
    least = in_words(sum(expected, Forecast()))
    return f"At least {least}; 1 call more for each 100 entities, and for each that needs a second look."


def _shown(result: "AuditResult", notes: Sequence[str], fail_on: Severity, *, each: bool) -> CommandResult:
    from sbpair.core.inspection.audit.result import FindingRow, SkippedRow, figures, finding_rows, skipped_rows
    from sbpair.render.audit_page import audit_page

    reports = result.reports
    found = table_of(FindingRow, finding_rows(reports, each=each))
    on_screen = table_of(FindingRow, finding_rows(reports, each=each, lines=True))
    skipped = table_of(SkippedRow, skipped_rows(reports), "Not checked")
    return CommandResult(
        result,
        (found, skipped) if skipped.rows else (found,),
        screen=(on_screen, skipped) if skipped.rows else (on_screen,),
        notes=tuple(notes),
        details=(result.calls_sentence(),),
        summary=result.summary(),
        exit=result.exit(fail_on),
        checks=tuple(_checks(result)),
        metrics=tuple(
            sample
            for number, pair in enumerate(result.pairs)
            for sample in metrics_of(
                figures(pair, result.pairs[:number]), ("namespace" if pair.snapshot.alone else "pair", pair.report.pair)
            )
        ),
        page=audit_page(result, notes),
    )


def _checks(result: "AuditResult") -> Iterator[MonitoredCheck]:
    """Every check with what it said, or that it found nothing; and what could not be read at all."""
    from sbpair.core.inspection import audit as checks

    for pair in result.pairs:
        for entry in pair.not_read:
            yield MonitoredCheck(entry.code, f"{entry.subject} of {entry.namespace}", Grade.UNKNOWN, entry.reason)
    for failed in result.errors:
        yield MonitoredCheck(failed.error.code, failed.pair, Grade.UNKNOWN, failed.error.message)
    for report in result.reports:
        for finding in report.findings:
            text = f"{finding.message} {checks.in_one_line(finding.remedy)}"
            yield MonitoredCheck(finding.code, finding.subject, Grade(finding.severity.value), text)
        for skipped in report.skipped:
            yield MonitoredCheck(skipped.code, report.pair, Grade.SKIPPED, f"Skipped, because {skipped.reason}")
        told = {finding.code for finding in report.findings} | {skipped.code for skipped in report.skipped}
        for code in report.checks:
            if code not in told:
                yield MonitoredCheck(code, report.pair, Grade.OK, checks.explain(code).title)


def _listed() -> CommandResult:
    from sbpair.core.inspection import audit as checks
    from sbpair.core.inspection.audit.result import AllChecks

    return CommandResult(
        AllChecks(checks.CHECKS),
        (table_of(checks.Check, checks.CHECKS, show=("code", "severity", "scope", "title")),),
        summary="Explain one with: sbpair audit --explain CODE",
    )


def _explained(code: str, pair: str | None) -> CommandResult:
    """The text of a check. Without a `pair` its commands say where to name one."""
    from sbpair.core.inspection import audit as checks

    check = checks.explain(code)
    remedy = check.remedy.replace("{pair}", pair or "PAIR").replace("{subject}", "ENTITY")
    text = f"{check.code} ({check.severity.value}): {check.title}\n\n{check.explanation}\n\nWhat to do:\n{remedy}\n"
    return CommandResult(check, text=text, prose=True)
