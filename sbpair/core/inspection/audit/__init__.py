"""The audit: coded checks over a snapshot. `CHECKS` lists them, `run` runs them, `explain` describes one.

Codes are stable: a check may get better, its code never means something else. A check that cannot run says why.
"""

from collections.abc import Iterable, Sequence

from sbpair.core.errors import UsageError
from sbpair.core.inspection.audit import anywhere, namespaces, pairs
from sbpair.core.inspection.audit.findings import (
    AuditReport,
    Check,
    CheckedSide,
    Finding,
    FindingGroup,
    Ignore,
    Scope,
    Severity,
    Skipped,
    Thresholds,
    View,
    alike,
    in_one_line,
)
from sbpair.core.inspection.snapshot import EntitySeen, Snapshot
from sbpair.core.pairing import Pair

__all__ = [
    "CHECKS",
    "AuditReport",
    "Check",
    "Finding",
    "FindingGroup",
    "Ignore",
    "Severity",
    "Skipped",
    "Thresholds",
    "alike",
    "explain",
    "in_one_line",
    "run",
]

CHECKS: tuple[Check, ...] = tuple(
    sorted(
        (
            *pairs.CHECKS,
            *pairs.CONTENT_CHECKS,
            *namespaces.CHECKS,
            *pairs.ENTITY_CHECKS,
            *namespaces.REPLICATION_CHECKS,
            *anywhere.CHECKS,
        ),
        key=lambda check: check.code,
    )
)
_BY_CODE = {check.code: check for check in CHECKS}


def explain(code: str) -> Check:
    """The check of that code, whatever its case.

    Raises:
        UsageError: no such check.
    """
    check = _BY_CODE.get(code.strip().upper())
    if check is None:
        raise UsageError(f"There is no check {code!r}.", hint="List them with: sbpair audit --list-checks")
    return check


def run(
    snapshot: Snapshot,
    pair: Pair,
    *,
    checks: Iterable[str] | None = None,
    ignore: Iterable[str] = (),
    others: Sequence[Pair] = (),
    found: tuple[EntitySeen, ...] | None = None,
) -> AuditReport:
    """Run the checks (all, or those of the codes given) on one snapshot.

    `ignore`: `CODE` or `CODE:PATTERN` of subjects. `others`: the other pairs of the configuration, for checks that look
    across pairs. `found`: the entities of a namespace that is looked at alone; None: they could not be read.

    Raises:
        UsageError: an unknown code, or the code of a check of something else.
    """
    scopes = (Scope.NAMESPACE if snapshot.alone else Scope.PAIR, Scope.BOTH)
    chosen = tuple(check for check in CHECKS if check.scope in scopes)
    if checks is not None:
        chosen = tuple(explain(code) for code in checks)
        for check in chosen:
            if check.scope not in scopes:
                raise UsageError(
                    f"{check.code} is a check of a {check.scope}, and this is a {scopes[0]}.",
                    hint="A namespace alone is checked with: sbpair audit --namespace NAME",
                )
    ignored = [Ignore.parse(text, _BY_CODE) for text in ignore]
    view = View(
        snapshot,
        pair,
        CheckedSide.of("namespace" if snapshot.alone else "primary", snapshot.primary, snapshot.pair.primary_label),
        CheckedSide.of("secondary", snapshot.secondary, snapshot.pair.secondary_label),
        others,
        Thresholds(),
        found,
    )
    findings: list[Finding] = []
    skipped: list[Skipped] = []
    for check in chosen:
        of_check, reason = check.run(view)
        findings.extend(of_check)
        if reason is not None:
            skipped.append(reason)
    kept = [finding for finding in findings if not any(entry.covers(finding) for entry in ignored)]
    kept.sort(key=lambda finding: (-finding.severity.rank, finding.code))
    return AuditReport(
        pair=pair.name,
        taken_at=snapshot.taken_at,
        findings=tuple(kept),
        skipped=tuple(skipped),
        checks=tuple(check.code for check in chosen),
        ignored=len(findings) - len(kept),
    )
