"""What `sbpair audit -o json` prints: findings, the list of checks, or one check."""

from dataclasses import dataclass, field

from sbpair.core.cost.forecast import Forecast
from sbpair.core.errors import SbpairError
from sbpair.core.inspection.audit.findings import AuditReport, Check
from sbpair.core.serialization import INLINED


@dataclass(frozen=True, slots=True)
class NotRead:
    """A whole part of a namespace that could not be read."""

    namespace: str
    subject: str
    code: str
    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class AuditedPair:
    report: AuditReport = field(metadata=INLINED)
    management_calls: int
    throttling_credits: int
    not_read: tuple[NotRead, ...]


@dataclass(frozen=True, slots=True)
class FailedPair:
    """A pair that could not be opened."""

    pair: str
    error: SbpairError = field(metadata=INLINED)


@dataclass(frozen=True, slots=True)
class AuditResult:
    pairs: tuple[AuditedPair, ...]
    errors: tuple[FailedPair, ...]
    used: Forecast


@dataclass(frozen=True, slots=True)
class AllChecks:
    checks: tuple[Check, ...]


Printed = AuditResult | AllChecks | Check
