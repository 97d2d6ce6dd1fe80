"""Per-item outcomes, the report they add up to, and the exit code table (the command line's contract)."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum

# How bad what an audit finds is; apart from the audit, so that a command line can name it without the checks.


class Severity(StrEnum):
    """How bad a finding is. `rank` orders them."""

    INFO = "info"
    """Worth knowing; nothing to do."""
    WARNING = "warning"
    """Will bite one day, or costs money for nothing."""
    ERROR = "error"
    """A failover or the move back to the primary would not work as configured."""
    CRITICAL = "critical"
    """Messages are being lost or refused now."""

    @property
    def rank(self) -> int:
        return list(Severity).index(self)

    def at_least(self, other: "Severity") -> bool:
        return self.rank >= other.rank


class Exit(IntEnum):
    """Process exit codes, in the order of the contract's table."""

    OK = 0
    FAILED = 1
    USAGE = 2
    PARTIAL = 3
    DENIED = 4
    FINDINGS = 5
    UNREACHABLE = 6
    INTERRUPTED = 130
    TERMINATED = 143

    @property
    def label(self) -> str:
        return "interrupted" if self in (Exit.INTERRUPTED, Exit.TERMINATED) else self.name.lower()

    @classmethod
    def from_label(cls, label: str) -> "Exit":
        """The code of an error's `exit_name`."""
        return cls[label.upper()]


class Result(StrEnum):
    DONE = "done"
    UNCHANGED = "unchanged"
    """Nothing to do; never makes a run partial."""
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one item. `detail` is a sentence for a person; `error_code` the error's stable code."""

    item: str
    result: Result
    detail: str = ""
    error_code: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All outcomes of one run, in the order they were planned."""

    outcomes: tuple[Outcome, ...]

    @property
    def exit(self) -> Exit:
        """0 if nothing failed or was skipped, 1 if everything that was tried failed, otherwise 3."""
        return exit_for(self.outcomes)


def exit_for(outcomes: Iterable[Outcome]) -> Exit:
    """Exit code of a run: see `Report.exit`."""
    results = [outcome.result for outcome in outcomes]
    if not any(result in (Result.FAILED, Result.SKIPPED) for result in results):
        return Exit.OK
    if all(result is Result.FAILED for result in results):
        return Exit.FAILED
    return Exit.PARTIAL


def exit_of_failures(exit_names: Collection[str]) -> Exit:
    """Exit code of a run in which everything failed, by the `exit_name`s of the errors: unreachable or denied if all
    failed for that, otherwise only that it failed."""
    for code in (Exit.UNREACHABLE, Exit.DENIED):
        if set(exit_names) == {code.label}:
            return code
    return Exit.FAILED


def gravest(exit_names: Iterable[str]) -> Exit:
    """Exit code of a run in which these things failed: unreachable before denied before partial; ok if none did."""
    names = set(exit_names) - {Exit.OK.label}
    for code in (Exit.UNREACHABLE, Exit.DENIED):
        if code.label in names:
            return code
    return Exit.PARTIAL if names else Exit.OK
