"""What `sbpair audit -o json` prints: findings, the list of checks, or one check."""

from dataclasses import dataclass, field

from sbpair.core.errors import SbpairError
from sbpair.core.forecast import Forecast
from sbpair.core.inspection.audit.findings import AuditReport, Check
from sbpair.core.inspection.snapshot import Calls
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


# What an audit is going to use, and what it used.

PAGE_SIZE = 100
"""Entities per page of a listing."""


def of_audit(queues: int, *, expected: int = 0) -> Forecast:
    """An audit of a pair with `queues` queues on both sides together, by the data plane.

    Counted are two namespaces, the pages of their queues (the last one of each is never full) and one page of topics
    each, and a look at `expected` backlog queues and their dead letters.
    """
    pages = queues // PAGE_SIZE + 2 + 2
    return Forecast(2 + pages, 2 * expected)


def of_calls(calls: Calls) -> Forecast:
    """What a snapshot did use."""
    return Forecast(calls.management, calls.peeks)
