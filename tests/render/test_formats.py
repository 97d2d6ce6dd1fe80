"""Every output format against approved texts: one result with the values that tend to break a format."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from sbpair import __version__
from sbpair.core.errors import UsageError
from sbpair.core.outcome import Exit
from sbpair.core.redact import printable
from sbpair.render.console import render
from sbpair.render.output import Format
from sbpair.render.result import Column, CommandResult, Grade, Metric, MonitoredCheck, Table

APPROVED = Path(__file__).parent.parent / "approved" / "render"

RESULT = CommandResult(
    command="audit",
    data={"findings": [{"code": "SBP001", "at": datetime(2026, 11, 21, 8, 30, tzinfo=UTC), "raw": b"\x00\xff"}]},
    tables=(
        Table(
            "Findings",
            (Column("severity", "Severity"), Column("subject", "Subject"), Column("messages", "Messages", right=True)),
            [
                {"severity": "error", "subject": "contoso/x-servicebus-transfer/0", "messages": 12},
                {"severity": "warning", "subject": "tab\there|pipe\nline", "messages": None},
                {"severity": "ok", "subject": "\x1b[31mred\x07 Grüße \u202e\x9b2J", "messages": 0},
                {"severity": "info", "subject": {"a": [1, "ü"]}, "messages": True},
            ],
            style_key="severity",
        ),
        Table("More", (Column("why", "Why"),), [{"why": "second table"}]),
    ),
    summary="1 error, 1 warning | done.",
    notes=("A note with \x1b[2J in it.",),
    exit=Exit.FINDINGS,
    checks=(
        MonitoredCheck(
            "SBP001", "contoso/x-servicebus-transfer/0", Grade.ERROR, "Missing: create it,\nthen 100% fine."
        ),
        MonitoredCheck("SBP002", "a:b,c", Grade.WARNING, "Extra | odd <tag> & \"quotes\" \x1b[31m"),
        MonitoredCheck("SBP003", "orders", Grade.SKIPPED, "Skipped, because the tier is not known"),
        MonitoredCheck("SBP004", "orders", Grade.OK, "All there"),
        MonitoredCheck("SBP005", "orders", Grade.INFO, "Good to know\x9b2J"),
        MonitoredCheck("unreachable", "host", Grade.UNKNOWN, "no answer"),
    ),
    metrics=(
        Metric("sbpair_backlog_messages", 1234567, (("pair", 'o"\\d'), ("kind", "active"))),
        Metric("sbpair_backlog_messages", 2, (("pair", "it's"), ("kind", "dead-letter"))),
        Metric("sbpair_ping_latency_seconds", 0.0125),
        Metric("sbpair_syphon_restarts_total", 3),
    ),
)  # fmt: skip

TEXT_FORMATS = [
    Format.TABLE,
    Format.JSON,
    Format.JSONL,
    Format.YAML,
    Format.TSV,
    Format.MARKDOWN,
    Format.PROMETHEUS,
    Format.NAGIOS,
    Format.GITHUB,
    Format.JUNIT,
]


def stable(text: str) -> str:
    """Without what changes from run to run: the version and the time of the last success."""
    text = text.replace(f'"{__version__}"', '"VERSION"').replace(f"version: {__version__}", "version: VERSION")
    return re.sub(r"(last_success_timestamp_seconds\{.*\}) \d+(\.\d+)?", r"\1 NOW", text)


@pytest.mark.parametrize("chosen", TEXT_FORMATS)
def test_matches_the_approved_text(chosen: Format) -> None:
    approved = (APPROVED / f"{chosen.value}.txt").read_text(encoding="utf-8")
    assert stable(render(RESULT, chosen)) == approved


@pytest.mark.parametrize("chosen", TEXT_FORMATS)
def test_message_content_cannot_drive_a_terminal(chosen: Format) -> None:
    text = render(RESULT, chosen)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)


def test_json_is_the_envelope_and_parses() -> None:
    document = json.loads(render(RESULT, Format.JSON))
    assert list(document) == ["command", "version", "exit_code", "exit_name", "data"]
    assert (document["command"], document["exit_code"], document["exit_name"]) == ("audit", 5, "findings")
    assert document["data"]["findings"][0] == {"code": "SBP001", "at": "2026-11-21T08:30:00.000Z", "raw": "00ff"}


def test_yaml_says_the_same_as_json() -> None:
    assert yaml.safe_load(render(RESULT, Format.YAML)) == json.loads(render(RESULT, Format.JSON))


def test_every_jsonl_line_is_a_record() -> None:
    lines = render(RESULT, Format.JSONL).splitlines()
    assert len(lines) == 4
    assert json.loads(lines[1])["subject"] == "tab\there|pipe\nline"


def test_tsv_has_as_many_cells_in_every_line() -> None:
    lines = render(RESULT, Format.TSV).splitlines()
    assert len(lines) == 5
    assert {line.count("\t") for line in lines} == {2}


def test_a_wide_table_as_text_is_not_cut() -> None:
    long = "q" * 3000
    result = CommandResult({}, (Table("", (Column("queue", "Queue"),), [{"queue": long}]),), command="peek")
    assert long in render(result, Format.TABLE)
    assert long in render(result, Format.TSV)


def test_a_document_is_printed_as_it_is() -> None:
    result = CommandResult({"shell": "bash"}, text="line one\n\x09indented\n", command="completion")
    assert render(result, Format.TSV) == "line one\n\x09indented\n"
    assert render(result, Format.TABLE) == "line one\n\x09indented\n"


@pytest.mark.parametrize("chosen", [Format.PROMETHEUS, Format.NAGIOS, Format.GITHUB, Format.JUNIT, Format.HTML])
def test_a_command_without_checks_has_no_monitoring_formats(chosen: Format) -> None:
    with pytest.raises(UsageError, match=chosen.value):
        render(CommandResult({}, command="config show"), chosen)


def test_printable_leaves_ordinary_text_alone_and_escapes_the_rest() -> None:
    assert printable("Grüße, 日本 – ok") == "Grüße, 日本 – ok"
    assert printable("a\x1bb\u202ec\x9b") == "a\\x1bb\\u202ec\\x9b"
