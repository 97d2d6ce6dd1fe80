"""A line of `sbpair doctor`: what was checked, what came of it, what to do."""

from dataclasses import dataclass
from enum import StrEnum

from sbpair.core.errors import SbpairError


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
    exit_name: str = "ok"

    @classmethod
    def of_error(cls, check: str, subject: str, error: SbpairError, *, verdict: Verdict = Verdict.ERROR) -> "Diagnosis":
        """A row that says what an error says."""
        return cls(check, subject, verdict, error.message, error.hint, error.exit_name)
