"""A line of `sbpair doctor`: what was checked, what came of it, what to do."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from sbpair.core.errors import SbpairError
from sbpair.core.outcome import Exit
from sbpair.core.serialization import HIDDEN, column
from sbpair.core.words import with_hint


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`next_step` is empty where there is nothing to do; `exit_name` counts for errors only."""

    check: str = field(metadata=column("Check"))
    subject: str = field(metadata=column("Subject"))
    result: Verdict = field(metadata=column("Result", colours=True))
    detail: str = field(metadata=column("Detail"))
    next_step: str = field(default="", metadata=column("What to do"))
    exit_name: str = field(default="ok", metadata=HIDDEN)

    @classmethod
    def of_error(cls, check: str, subject: str, error: SbpairError, *, verdict: Verdict = Verdict.ERROR) -> "Diagnosis":
        """A row that says what an error says."""
        return cls(check, subject, verdict, error.message, error.hint, error.exit_name)


COMMAND, VERSIONS = "command", "versions"
"""Checks of what a command may do, and of what is installed."""
_GRAVEST_FIRST = (Exit.UNREACHABLE, Exit.DENIED, Exit.USAGE)


@dataclass(frozen=True, slots=True)
class Diagnoses:
    """All lines, as `doctor -o json` prints them; no pair where the configuration names none."""

    pair: str | None
    checks: tuple[Diagnosis, ...]

    @property
    def exit(self) -> Exit:
        """By the errors alone: unreachable, denied, configuration, anything else."""
        names = {row.exit_name for row in self.checks if row.result is Verdict.ERROR}
        for code in _GRAVEST_FIRST:
            if code.label in names:
                return code
        return Exit.FAILED if names else Exit.OK

    def summary(self) -> str:
        """`12 ok, 1 warning.`, and what the credentials can do where they cannot do everything."""
        counts = Counter(row.result for row in self.checks)
        results = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])
        commands = [row for row in self.checks if row.check == COMMAND]
        unable = [row.subject for row in commands if row.result is Verdict.WARNING]
        if not unable:
            return f"{results}."
        able = [row.subject for row in commands if row.result is Verdict.OK]
        enough = f" These credentials are enough for: {', '.join(able)}." if able else ""
        return f"{results}.{enough} Not for: {', '.join(unable)}."


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether an outage of the primary would find what it needs, as tried at one moment. `at`: UTC epoch seconds."""

    at: float
    checks: tuple[Diagnosis, ...]
    usable_queues: tuple[str, ...]
    """The backlog queues that took a link."""

    @property
    def ready(self) -> bool:
        """Messages could be diverted; what is not as it should be otherwise is in `problems`."""
        return all(check.result is not Verdict.ERROR for check in self.checks)

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong and what to do, one sentence or two each."""
        wrong = (check for check in self.checks if check.result in (Verdict.ERROR, Verdict.WARNING))
        return tuple(with_hint(check.detail, check.next_step) for check in wrong)
