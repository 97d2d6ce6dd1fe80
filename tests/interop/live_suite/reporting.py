"""Counts what the suite's reports say and gives a reason for each test that does not pass."""

import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree import ElementTree

REASONS = Path(__file__).with_name("reasons.toml")
CLIENT_REASONS = Path(__file__).with_name("reasons-clients.toml")
GATEWAY_REASONS = Path(__file__).with_name("reasons-gateway.toml")
DIVERTING_REASONS = Path(__file__).with_name("reasons-diverting.toml")


class Kind(StrEnum):
    """Why a test does not pass. Only the last two say something about the emulator."""

    SKIPPED = "skipped by the suite"
    NOT_APPLICABLE = "not applicable"
    BROKEN_UPSTREAM = "broken upstream"
    KNOWN_GAP = "known gap"
    UNKNOWN = "failed"


APPLICABLE = (Kind.KNOWN_GAP, Kind.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Reason:
    """An entry of reasons.toml: tests by a pattern over `module.Class.test[parameters]`, and why they do not pass."""

    pattern: str
    kind: Kind
    sentence: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A test that did not pass."""

    test: str
    kind: Kind
    sentence: str


@dataclass(frozen=True, slots=True)
class Summary:
    """One group's outcome."""

    group: str
    passed: int
    verdicts: tuple[Verdict, ...]

    @property
    def failures(self) -> int:
        """Tests that failed for no known reason."""
        return sum(verdict.kind is Kind.UNKNOWN for verdict in self.verdicts)

    def text(self) -> str:
        """Counts, then each test that did not pass with its reason."""
        kinds = Counter(verdict.kind for verdict in self.verdicts)
        applicable = self.passed + sum(kinds[kind] for kind in APPLICABLE)
        share = 100 * self.passed / applicable if applicable else 100.0
        counts = [f"{kinds[kind]} {kind}" for kind in Kind if kinds[kind]]
        title = f"{self.group}: {self.passed} of {applicable} applicable tests passed ({share:.1f} %)"
        lines = [f"{title}; {', '.join(counts)}" if counts else title]
        lines += [f"  {one.kind}: {one.test}: {one.sentence}" for one in sorted(self.verdicts, key=_order)]
        return "\n".join(lines)


def load_reasons(path: Path = REASONS) -> list[Reason]:
    """The known reasons."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["reason"]
    return [
        Reason(pattern, Kind(entry["kind"].replace("-", " ")), entry["sentence"])
        for entry in entries
        for pattern in entry["tests"]
    ]


def summarize(group: str, report: Path, reasons: Iterable[Reason]) -> Summary:
    """Judge one JUnit report. A group whose report is missing or empty has one failure."""
    known = list(reasons)
    if not report.exists():
        return Summary(group, 0, (Verdict(group, Kind.UNKNOWN, "pytest ended without a report"),))
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    verdicts = [verdict for case in cases if (verdict := _judge(case, known)) is not None]
    return Summary(group, len(cases) - len(verdicts), tuple(verdicts))


def _judge(case: ElementTree.Element, reasons: list[Reason]) -> Verdict | None:
    """None for a test that passed."""
    test = ".".join(part for part in (case.get("classname"), case.get("name")) if part)
    skipped = case.find("skipped")
    if skipped is not None:
        return Verdict(test, Kind.SKIPPED, skipped.get("message") or "no reason given")
    problem = case.find("failure")
    if problem is None:
        problem = case.find("error")
    if problem is None:
        return None
    for reason in reasons:
        if fnmatchcase(test, reason.pattern.replace("[", "[[]")):
            return Verdict(test, reason.kind, reason.sentence)
    message = (problem.get("message") or problem.text or "").strip().splitlines()
    return Verdict(test, Kind.UNKNOWN, message[0] if message else "no message")


def _order(verdict: Verdict) -> tuple[int, str]:
    return list(Kind).index(verdict.kind), verdict.test
