"""A line of `sbpair doctor`: what was checked, what came of it, what to do."""

from dataclasses import dataclass, field
from enum import StrEnum

from sbpair.core.errors import SbpairError
from sbpair.core.serialization import HIDDEN


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`next_step` is empty where there is nothing to do; `exit_name` counts for errors only."""

    check: str
    subject: str
    result: Verdict
    detail: str
    next_step: str = ""
    exit_name: str = field(default="ok", metadata=HIDDEN)

    @classmethod
    def of_error(cls, check: str, subject: str, error: SbpairError, *, verdict: Verdict = Verdict.ERROR) -> "Diagnosis":
        """A row that says what an error says."""
        return cls(check, subject, verdict, error.message, error.hint, error.exit_name)


@dataclass(frozen=True, slots=True)
class Diagnoses:
    """All lines, as `doctor -o json` prints them; no pair where the configuration names none."""

    pair: str | None
    checks: tuple[Diagnosis, ...]
