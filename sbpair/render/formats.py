"""The line and document formats: JSON, JSON Lines, YAML, TSV, Markdown; and those for machines that watch. Pure
functions from a result to text.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Any

from sbpair.core.errors import SbpairError
from sbpair.core.outcome import Exit
from sbpair.core.redact import DRIVES_A_TERMINAL, defused, json_text, printable
from sbpair.core.serialization import OMITTED_IF_NONE, says, to_plain
from sbpair.render.output import Format
from sbpair.render.page import Bars, Cards, Findings, LineChart, Page, Section, Text
from sbpair.render.result import Column, CommandResult, Grade, Metric, MonitoredCheck, Table
from sbpair.version import __version__


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every command prints with -o json: data or error, never both."""

    command: str = field(metadata={"what": "Empty where the command line could not be read."})
    version: str
    exit_code: Exit
    exit_name: Annotated[str, says(enum=sorted({code.label for code in Exit}))]
    data: Any = field(default=None, metadata=OMITTED_IF_NONE)
    error: SbpairError | None = field(default=None, metadata=OMITTED_IF_NONE)


def envelope(command: str, code: Exit, *, data: Any = None, error: SbpairError | None = None) -> dict[str, Any]:
    """The envelope as plain data."""
    plain: dict[str, Any] = to_plain(Envelope(command, __version__, code, code.label, data, error))
    return plain


def to_json(result: CommandResult) -> str:
    return dump_json(envelope(result.command, result.exit, data=result.data), indent=2) + "\n"


def to_jsonl(result: CommandResult) -> str:
    """One record a line: the rows of the first table, or the data itself when there is none."""
    if result.streamed:
        return ""
    records = result.tables[0].rows if result.tables else [to_plain(result.data)]
    return "".join(dump_json(record) + "\n" for record in records)


def to_yaml(result: CommandResult) -> str:
    """The JSON envelope as YAML; with escapes beyond ASCII where a sign would drive a terminal."""
    import yaml

    plain = json.loads(dump_json(envelope(result.command, result.exit, data=result.data)))
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    if DRIVES_A_TERMINAL.search(text) or defused(text) != text:
        # In double quotes and on one line each, YAML has an escape for whatever must not stand there as it is.
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=False, default_style='"', width=_ONE_LINE)
        return _RUNNER_WORDS.sub(r"\\x23", text)
    return text


_ONE_LINE = 2**31
_RUNNER_WORDS = re.compile(r"#(?=#(?:vso)?\[)", re.IGNORECASE)


def written(table: Table) -> Table:
    """The table without the columns that only a terminal draws."""
    return replace(table, columns=tuple(column for column in table.columns if not column.drawn))


def to_tsv(result: CommandResult) -> str:
    """Heading and rows separated by tabs, never cut to a width. Tabs and line ends in values become spaces."""
    if result.text is not None:
        return result.text
    return "\n".join(_tsv_table(written(table)) for table in result.tables[:1])


def _tsv_table(table: Table) -> str:
    lines = ["\t".join(column.key for column in table.columns)]
    lines += ["\t".join(_flat(row.get(column.key)) for column in table.columns) for row in table.rows]
    return "\n".join(lines) + "\n"


def to_markdown(result: CommandResult) -> str:
    blocks = [markdown_table(written(table)) for table in result.tables]
    tail = [printable(line) for line in (*result.notes, result.summary) if line]
    return "\n\n".join([*blocks, *tail]) + "\n"


def markdown_table(table: Table) -> str:
    """One table, under its title if it has one."""
    head = "| " + " | ".join(column.title for column in table.columns) + " |"
    rule = "|" + "|".join(" ---: " if column.right else " --- " for column in table.columns) + "|"
    rows = ["| " + " | ".join(markdown_cell(row.get(c.key)) for c in table.columns) + " |" for row in table.rows]
    title = [f"### {printable(table.title)}", ""] if table.title else []
    return "\n".join([*title, head, rule, *rows])


def markdown_cell(value: Any) -> str:
    """A value that neither ends its cell nor makes a link, an image or a tag; a bare address leads where it says."""
    return _flat(value).replace("|", "\\|").replace("<", "\\<").replace("](", "]\\(")


# A page as Markdown: the same sections as in HTML, for an issue, a wiki or a post-mortem.

_NAME, _VALUE, _NOTE = Column("name", "What"), Column("value", "Number", right=True), Column("note", "Note")


def page_to_markdown(page: Page) -> str:
    """The whole page; what strangers wrote in it makes no link, tag or new line."""
    blocks = [f"# {markdown_cell(page.title)}"]
    if page.lead:
        blocks.append(f"**{markdown_cell(page.lead)}**")
    if page.facts:
        blocks.append("\n".join(f"- {markdown_cell(name)}: {markdown_cell(value)}" for name, value in page.facts))
    blocks += [block for section in page.sections for block in _section_blocks(section)]
    return "\n\n".join(blocks) + "\n"


def _section_blocks(section: Section) -> Iterator[str]:
    if section.title:
        yield f"## {markdown_cell(section.title)}"
    match section:
        case Table():
            yield markdown_table(Table("", section.columns, section.rows))
        case Cards():
            rows = [{"name": one.label, "value": one.value, "note": one.note} for one in section.cards]
            yield markdown_table(Table("", (_NAME, _VALUE, _NOTE), rows))
        case Bars():
            rows = [{"name": one.label, "value": one.text or f"{one.value:,g}"} for one in section.bars]
            yield markdown_table(Table("", (_NAME, _VALUE), rows))
        case LineChart():
            columns = (_NAME, Column("x", section.x_title, right=True), Column("y", section.y_title, right=True))
            points = [
                {"name": line.name, "x": section.x_text(x), "y": section.y_text(y)}
                for line in section.lines
                for x, y in line.points
            ]
            yield markdown_table(Table("", columns, points))
        case Text():
            for paragraph in section.paragraphs:
                if section.literal:
                    yield "\n".join(f"    {printable(line)}" for line in paragraph.splitlines())
                else:
                    yield markdown_cell(paragraph)
        case Findings():
            line = markdown_cell
            for finding in section.findings:
                yield f"### {line(finding.label)} {line(finding.code)}: {line(finding.title)}"
                yield "\n".join(f"- {line(subject)}: {line(what)}" for subject, what in finding.places)
                if finding.steps:
                    yield "\n".join(f"{place}. {line(step)}" for place, step in enumerate(finding.steps, 1))
    if isinstance(section, Bars | LineChart) and section.note:
        yield markdown_cell(section.note)


def cell(value: Any) -> str:
    """A value as a person reads it in one cell, with control characters but line ends made harmless."""
    return "\n".join(printable(line) for line in _text(value).splitlines())


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return dump_json(value) if isinstance(value, (dict, list, tuple)) else str(value)


def _flat(value: Any) -> str:
    """A value on one line: tabs and line ends become spaces."""
    return printable(_text(value).translate(_TO_SPACES))


_TO_SPACES = str.maketrans("\t\n\r\v\f", "     ")


def dump_json(value: Any, indent: int | None = None) -> str:
    """`core.redact.json_text` with times as ISO 8601, bytes as hex, others as their text."""
    return json_text(value, indent=indent, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


WRITERS: Mapping[Format, Callable[[CommandResult], str]] = {
    Format.JSON: to_json,
    Format.JSONL: to_jsonl,
    Format.YAML: to_yaml,
    Format.TSV: to_tsv,
    Format.MARKDOWN: to_markdown,
}


# Formats for machines that watch: Prometheus textfile, Nagios plugin, GitHub annotations, JUnit XML.

GITHUB_ANNOTATIONS_PER_KIND = 10
"""GitHub drops further annotations of one kind in a step silently."""

_NAGIOS = {
    Grade.OK: 0,
    Grade.INFO: 0,
    Grade.WARNING: 1,
    Grade.ERROR: 2,
    Grade.CRITICAL: 2,
    Grade.UNKNOWN: 3,
    Grade.SKIPPED: 0,
}
_NAGIOS_NAMES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_WORST_FIRST = (2, 3, 1, 0)
_NOT_IN_LABELS = str.maketrans({"'": None, "=": "_", "|": "/"})
_FINE = (Grade.OK, Grade.INFO, Grade.SKIPPED)


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
    for kind, severities in (("error", (Grade.ERROR, Grade.CRITICAL, Grade.UNKNOWN)), ("warning", (Grade.WARNING,))):
        checks = [check for check in result.checks or () if check.severity in severities]
        lines += [_annotation(kind, check) for check in checks[:GITHUB_ANNOTATIONS_PER_KIND]]
        if len(checks) > GITHUB_ANNOTATIONS_PER_KIND:
            lines.append(
                f"{len(checks) - GITHUB_ANNOTATIONS_PER_KIND} more {kind}s are not annotated; see the full table."
            )
    lines.append(defused(printable(result.summary or result.command)))
    return "\n".join(lines) + "\n"


def _annotation(kind: str, check: MonitoredCheck) -> str:
    title = _github_value(f"{check.code} {check.subject}").replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} title={title}::{_github_value(check.message)}"


def _github_value(text: str) -> str:
    return defused(printable(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")))


def to_junit(result: CommandResult) -> str:
    """One test case a check; everything at warning or above is a failure."""
    checks = result.checks or ()
    bad = [check for check in checks if check.severity not in _FINE]
    skipped = [check for check in checks if check.severity is Grade.SKIPPED]
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    lines.append(
        f'<testsuite name={_attribute("sbpair " + result.command)} tests="{len(checks)}" '
        f'failures="{len(bad)}" skipped="{len(skipped)}">'
    )
    for check in checks:
        head = f"  <testcase classname={_attribute(check.code)} name={_attribute(check.subject)}"
        if check.severity in _FINE and check.severity is not Grade.SKIPPED:
            lines.append(f"{head}/>")
            continue
        kind = "skipped" if check.severity is Grade.SKIPPED else "failure"
        lines.append(f"{head}>")
        severity = f" type={_attribute(check.severity.value)}" if kind == "failure" else ""
        lines.append(f"    <{kind}{severity} message={_attribute(check.message)}/>")
        lines.append("  </testcase>")
    lines.append("</testsuite>")
    return "\n".join(lines) + "\n"


def _attribute(text: str) -> str:
    """An XML attribute; characters that XML cannot hold are shown as escapes."""
    from xml.sax.saxutils import quoteattr  # brings along what opens addresses, mail and TLS

    return quoteattr(printable(text))


MONITORING: dict[Format, Callable[[CommandResult], str]] = {
    Format.NAGIOS: to_nagios,
    Format.PROMETHEUS: to_prometheus,
    Format.GITHUB: to_github,
    Format.JUNIT: to_junit,
}
