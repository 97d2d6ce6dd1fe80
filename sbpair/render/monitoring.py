"""Formats for machines that watch: Prometheus textfile, Nagios plugin, GitHub annotations, JUnit XML."""

import time
from collections.abc import Callable, Iterable
from xml.sax.saxutils import quoteattr

from sbpair.core.outcome import Exit
from sbpair.core.redact import defused, printable
from sbpair.render.output import Format
from sbpair.render.result import Check, CommandResult, Metric, Severity

GITHUB_ANNOTATIONS_PER_KIND = 10
"""GitHub drops further annotations of one kind in a step silently."""

_NAGIOS = {
    Severity.OK: 0,
    Severity.INFO: 0,
    Severity.WARNING: 1,
    Severity.ERROR: 2,
    Severity.CRITICAL: 2,
    Severity.UNKNOWN: 3,
    Severity.SKIPPED: 0,
}
_NAGIOS_NAMES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_WORST_FIRST = (2, 3, 1, 0)
_NOT_IN_LABELS = str.maketrans({"'": None, "=": "_", "|": "/"})
_FINE = (Severity.OK, Severity.INFO, Severity.SKIPPED)


def nagios_status(result: CommandResult) -> int:
    """0, 1, 2 or 3 of a Nagios plugin: the worst check (critical, unknown, warning); without any, 3 for a failure."""
    # A plugin's code is the worst of what it saw; unknown comes before warning, since nobody can say it is only that.
    found = {_NAGIOS[check.severity] for check in result.checks or ()}
    if found:
        return next(status for status in _WORST_FIRST if status in found)
    return 0 if result.exit in (Exit.OK, Exit.FINDINGS) else 3


def to_nagios(result: CommandResult) -> str:
    """First line status, summary and perfdata; further lines the checks that are not fine."""
    perfdata = " ".join(f"'{_perf_label(metric)}'={metric.value:.15g}" for metric in result.metrics)
    head = _nagios_text(f"SBPAIR {_NAGIOS_NAMES[nagios_status(result)]} - {result.summary or result.command}")
    lines = [head + (f" | {perfdata}" if perfdata else "")]
    lines += [
        _nagios_text(f"{check.severity.upper()} {check.code} {check.subject}: {check.message}")
        for check in result.checks or ()
        if check.severity not in _FINE
    ]
    return "\n".join(lines) + "\n"


def _nagios_text(text: str) -> str:
    """One line without the sign that begins perfdata."""
    return printable(text.replace("|", "/"))


def _perf_label(metric: Metric) -> str:
    return printable(".".join((metric.name, *(value for _, value in metric.labels))).translate(_NOT_IN_LABELS))


def to_prometheus(result: CommandResult) -> str:
    """Textfile collector format, with a timestamp of this success so that a dead cron job can be seen."""
    return exposition((*result.metrics, success_stamp(result.command)))


def success_stamp(command: str, *labels: tuple[str, str], at: float | None = None) -> Metric:
    """When a command last ran to its end: `at`, UTC epoch seconds, or now."""
    value = round(at or time.time(), 3)
    return Metric("sbpair_last_success_timestamp_seconds", value, (("command", command), *labels))


def exposition(metrics: Iterable[Metric]) -> str:
    """Samples in the Prometheus text format, those of one name together."""
    lines: list[str] = []
    seen: set[str] = set()
    for metric in sorted(metrics, key=lambda item: item.name):
        if metric.name not in seen:
            seen.add(metric.name)
            lines.append(f"# HELP {metric.name} {metric.series.help}")
            lines.append(f"# TYPE {metric.name} {'counter' if metric.series.counter else 'gauge'}")
        labels = ",".join(f'{name}="{_prometheus_value(value)}"' for name, value in metric.labels)
        lines.append(
            f"{metric.name}{{{labels}}} {metric.value:.15g}" if labels else f"{metric.name} {metric.value:.15g}"
        )
    return "\n".join(lines) + "\n"


def _prometheus_value(value: str) -> str:
    """The value between the quotes. The format knows three escapes, so whatever cannot be shown is escaped first."""
    lines = (printable(line) for line in value.split("\n"))
    return "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)


def to_github(result: CommandResult) -> str:
    """Workflow commands, at most ten of a kind; what is left out is counted in one more line."""
    lines: list[str] = []
    for kind, severities in (
        ("error", (Severity.ERROR, Severity.CRITICAL, Severity.UNKNOWN)),
        ("warning", (Severity.WARNING,)),
    ):
        checks = [check for check in result.checks or () if check.severity in severities]
        lines += [_annotation(kind, check) for check in checks[:GITHUB_ANNOTATIONS_PER_KIND]]
        if len(checks) > GITHUB_ANNOTATIONS_PER_KIND:
            lines.append(
                f"{len(checks) - GITHUB_ANNOTATIONS_PER_KIND} more {kind}s are not annotated; see the full table."
            )
    lines.append(defused(printable(result.summary or result.command)))
    return "\n".join(lines) + "\n"


def _annotation(kind: str, check: Check) -> str:
    title = _github_value(f"{check.code} {check.subject}").replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} title={title}::{_github_value(check.message)}"


def _github_value(text: str) -> str:
    return defused(printable(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")))


def to_junit(result: CommandResult) -> str:
    """One test case a check; everything at warning or above is a failure."""
    checks = result.checks or ()
    bad = [check for check in checks if check.severity not in _FINE]
    skipped = [check for check in checks if check.severity is Severity.SKIPPED]
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    lines.append(
        f'<testsuite name={quoteattr("sbpair " + result.command)} tests="{len(checks)}" '
        f'failures="{len(bad)}" skipped="{len(skipped)}">'
    )
    for check in checks:
        head = f"  <testcase classname={_attribute(check.code)} name={_attribute(check.subject)}"
        if check.severity in _FINE and check.severity is not Severity.SKIPPED:
            lines.append(f"{head}/>")
            continue
        kind = "skipped" if check.severity is Severity.SKIPPED else "failure"
        lines.append(f"{head}>")
        severity = f" type={quoteattr(check.severity.value)}" if kind == "failure" else ""
        lines.append(f"    <{kind}{severity} message={_attribute(check.message)}/>")
        lines.append("  </testcase>")
    lines.append("</testsuite>")
    return "\n".join(lines) + "\n"


def _attribute(text: str) -> str:
    """An XML attribute; characters that XML cannot hold are shown as escapes."""
    return quoteattr(printable(text))


WRITERS: dict[Format, Callable[[CommandResult], str]] = {
    Format.NAGIOS: to_nagios,
    Format.PROMETHEUS: to_prometheus,
    Format.GITHUB: to_github,
    Format.JUNIT: to_junit,
}
