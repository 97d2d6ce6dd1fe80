"""What `sbpair audit` does, once its command line is read: snapshots, checks, findings, history."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sbpair.cli.context import choose_pairs, load_settings
from sbpair.cli.inspection.audit_shown import (
    audit_page,
    calls_of,
    checks_of,
    findings_table,
    history_line,
    metrics_of,
    skipped_table,
    summary_of,
)
from sbpair.cli.inspection.snapshots import (
    choose_snapshots,
    configured_pairs,
    essential_unread,
    gather_snapshots,
    gravest,
    with_hint,
    write_snapshots,
)
from sbpair.cli.options import Options
from sbpair.core.errors import SbpairError, for_pair
from sbpair.core.forecast import Forecast, in_words
from sbpair.core.inspection import audit as checks
from sbpair.core.inspection.audit import AuditReport, Severity
from sbpair.core.inspection.audit.result import (
    AllChecks,
    AuditedPair,
    AuditResult,
    FailedPair,
    NotRead,
    of_audit,
    of_calls,
)
from sbpair.core.inspection.snapshot import Snapshot, Unread
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair
from sbpair.core.serialization import to_plain
from sbpair.files import make_private_folder, open_private
from sbpair.render.console import unwritable
from sbpair.render.formats import dump_json
from sbpair.render.result import Column, CommandResult, Table


@dataclass(frozen=True, slots=True)
class Audited:
    """One pair: what was seen and what the checks say."""

    snapshot: Snapshot
    report: AuditReport


@dataclass(frozen=True, slots=True)
class Request:
    """What an audit is asked to do: which pairs, from where, kept where, by which checks."""

    pairs: list[str] | None
    from_file: Path | None
    save: Path | None
    history: Path | None
    codes: Sequence[str] | None
    ignore: Sequence[str]
    fail_on: Severity


def run(options: Options, request: Request) -> CommandResult:
    """Gather or read the snapshots, run the checks, keep what was asked to be kept."""
    if request.from_file is not None:
        snapshots: list[Snapshot | SbpairError] = [*choose_snapshots(request.from_file, request.pairs)]
        chosen = [snapshot.pair.to_pair() for snapshot in snapshots if isinstance(snapshot, Snapshot)]
        others: list[Pair] = chosen
        notes: list[str] = []
    else:
        settings = load_settings(options)
        chosen = choose_pairs(settings, request.pairs)
        others, notes = configured_pairs(settings, "the checks across pairs")
        _check_codes(request.codes, request.ignore)
        snapshots = gather_snapshots(options, chosen, announce=_announce(chosen))
    audited, errors = _audit(snapshots, chosen, others, request.codes, request.ignore)
    if request.save is not None:
        write_snapshots(request.save, [one.snapshot for one in audited])
    if request.history is not None:
        _append_history(request.history, audited)
    if errors and not audited:
        raise errors[0][1]
    return _result(audited, errors, notes, request.fail_on, each=options.verbose)


def _check_codes(codes: Sequence[str] | None, ignore: Sequence[str] | None) -> None:
    """Refuse unknown codes before anything is read."""
    for code in (*(codes or ()), *(entry.partition(":")[0] for entry in ignore or ())):
        checks.explain(code)


def _announce(pairs: Sequence[Pair]) -> str:
    """What the audit is going to use, as far as that is known before the queues are counted."""
    expected = [of_audit(0, expected=pair.options.backlog_queue_count) for pair in pairs]
    least = in_words(sum(expected, Forecast()))
    return f"At least {least}; 1 call more for each 100 entities, and for each that needs a second look."


def _audit(
    snapshots: Sequence[Snapshot | SbpairError],
    pairs: Sequence[Pair],
    configured: Sequence[Pair],
    codes: Sequence[str] | None,
    ignore: Sequence[str],
) -> tuple[list[Audited], list[tuple[str, SbpairError]]]:
    audited: list[Audited] = []
    errors: list[tuple[str, SbpairError]] = []
    for pair, snapshot in zip(pairs, snapshots, strict=True):
        if isinstance(snapshot, SbpairError):
            errors.append((pair.name, snapshot))
            continue
        others = [other for other in configured if other.name != pair.name]
        report = checks.run(snapshot, pair, checks=codes or None, ignore=ignore, others=others)
        audited.append(Audited(snapshot, report))
    return audited, errors


def _append_history(folder: Path, audited: Sequence[Audited]) -> None:
    try:
        make_private_folder(folder)
        for one in audited:
            line = dump_json(to_plain(history_line(one.snapshot, one.report)))
            with open_private(folder / f"{quote(one.report.pair, safe=' ')}.jsonl", "ab") as file:
                file.write(line.encode() + b"\n")
    except OSError as error:
        raise unwritable(folder, error) from error


def _result(
    audited: Sequence[Audited],
    errors: Sequence[tuple[str, SbpairError]],
    notes: Sequence[str],
    fail_on: Severity,
    *,
    each: bool,
) -> CommandResult:
    reports = [one.report for one in audited]
    snapshots = [one.snapshot for one in audited]
    found, skipped = findings_table(reports, each=each), skipped_table(reports)
    used = sum((of_calls(snapshot.calls) for snapshot in snapshots), Forecast())
    failed = (f"{name}: {with_hint(error.message, for_pair(error.hint, name))}" for name, error in errors)
    shown = (*notes, *_not_read(snapshots), *failed)
    return CommandResult(
        "audit",
        AuditResult(
            tuple(_audited_pair(one) for one in audited), tuple(FailedPair(name, error) for name, error in errors), used
        ),
        (found, skipped) if skipped.rows else (found,),
        screen=(findings_table(reports, each=each, lines=True), *((skipped,) if skipped.rows else ())),
        notes=shown,
        details=(calls_of(snapshots),),
        summary=summary_of(reports, snapshots),
        exit=_exit(audited, errors, fail_on),
        checks=checks_of(reports, snapshots, errors),
        metrics=tuple(metrics_of(reports, snapshots)),
        page=audit_page(reports, snapshots, errors, shown),
    )


def _audited_pair(one: Audited) -> AuditedPair:
    unread = (
        NotRead(host, entry.subject, entry.error_code, entry.reason, for_pair(entry.hint, one.snapshot.pair.name))
        for host, entry in essential_unread(one.snapshot)
    )
    calls = one.snapshot.calls
    return AuditedPair(one.report, calls.management, calls.throttling_credits, tuple(unread))


def _not_read(snapshots: Sequence[Snapshot]) -> Iterator[str]:
    """What could not be read and what to do, said once for each host and reason."""
    for snapshot in snapshots:
        # By code, not by the reason's words: those differ by what was read and by the service's tracking id.
        unread: dict[tuple[str, str, str], list[Unread]] = {}
        for host, entry in essential_unread(snapshot):
            unread.setdefault((host, entry.error_code, entry.hint), []).append(entry)
        for (host, _, hint), entries in unread.items():
            what = ", ".join(entry.subject for entry in entries)
            yield f"Not read: {what} of {host}: {with_hint(entries[0].reason, for_pair(hint, snapshot.pair.name))}"


def _exit(audited: Sequence[Audited], errors: Sequence[tuple[str, SbpairError]], fail_on: Severity) -> Exit:
    """What could not be looked at comes before what was found: unreachable, denied, findings, partial."""
    unread = [entry.exit_name for one in audited for _, entry in essential_unread(one.snapshot)]
    failed = gravest([*unread, *(error.exit_name for _, error in errors)])
    if failed in (Exit.UNREACHABLE, Exit.DENIED):
        return failed
    return Exit.FINDINGS if any(one.report.at_least(fail_on) for one in audited) else failed


def listed() -> CommandResult:
    rows = to_plain(checks.CHECKS)
    columns = (Column("code", "Code"), Column("severity", "Severity"), Column("title", "What it finds"))
    return CommandResult(
        "audit",
        AllChecks(checks.CHECKS),
        (Table("", columns, rows, style_key="severity"),),
        summary="Explain one with: sbpair audit --explain CODE",
    )


def explained(code: str, pair: str | None = None) -> CommandResult:
    """The text of a check. Without a `pair` its commands say where to name one."""
    one = checks.explain(code)
    remedy = one.remedy.replace("{pair}", pair or "PAIR").replace("{subject}", "ENTITY")
    text = f"{one.code} ({one.severity.value}): {one.title}\n\n{one.explanation}\n\nWhat to do:\n{remedy}\n"
    return CommandResult("audit", one, text=text, prose=True)
