"""The rules of the monitoring formats: Nagios status, GitHub's limits, well-formed XML, Prometheus syntax."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from sbpair.core.outcome import Exit
from sbpair.render import formats
from sbpair.render.console import emit
from sbpair.render.output import Format
from sbpair.render.result import Column, CommandResult, Grade, Metric, MonitoredCheck, Table


def result(*severities: Grade, exit_code: Exit = Exit.OK, message: str = "because") -> CommandResult:
    checks = tuple(
        MonitoredCheck(f"C{number}", f"s{number}", severity, message) for number, severity in enumerate(severities)
    )
    return CommandResult({}, summary="done", exit=exit_code, checks=checks, command="audit")


@pytest.mark.parametrize(
    ("severities", "status"),
    [
        ((), 0),
        ((Grade.OK, Grade.INFO, Grade.SKIPPED), 0),
        ((Grade.OK, Grade.WARNING), 1),
        ((Grade.WARNING, Grade.ERROR), 2),
        ((Grade.CRITICAL,), 2),
        ((Grade.WARNING, Grade.UNKNOWN), 3),
        ((Grade.UNKNOWN, Grade.CRITICAL), 2),
    ],
)
def test_nagios_status_is_that_of_the_worst_check(severities: tuple[Grade, ...], status: int) -> None:
    assert formats.nagios_status(result(*severities)) == status


@pytest.mark.parametrize("code", [Exit.FAILED, Exit.DENIED, Exit.UNREACHABLE, Exit.PARTIAL])
def test_nagios_is_unknown_when_nothing_could_be_looked_at(code: Exit) -> None:
    assert formats.nagios_status(result(exit_code=code)) == 3


def test_nagios_begins_with_status_and_perfdata_on_one_line() -> None:
    one = CommandResult(
        {},
        summary="a | b",
        checks=(),
        metrics=(Metric("sbpair_ping_connect_seconds", 1.5, (("e", "x'=|"),)),),
        command="ping",
    )
    assert formats.to_nagios(one) == "SBPAIR OK - a / b | 'sbpair_ping_connect_seconds.x_/'=1.5\n"


def test_github_annotates_ten_of_a_kind_and_counts_the_rest() -> None:
    text = formats.to_github(result(*[Grade.ERROR] * 13, *[Grade.WARNING] * 2))
    lines = text.splitlines()
    assert sum(line.startswith("::error ") for line in lines) == 10
    assert sum(line.startswith("::warning ") for line in lines) == 2
    assert "3 more errors are not annotated; see the full table." in lines


def test_github_escapes_what_would_end_an_annotation() -> None:
    check = MonitoredCheck("A:B", "x,y", Grade.ERROR, "50%\r\n::error::forged")
    text = formats.to_github(CommandResult({}, checks=(check,), command="audit"))
    assert text.splitlines()[0] == "::error title=A%3AB x%2Cy::50%25%0D%0A::error::forged"


def test_github_adds_the_table_to_the_step_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "summary.md"
    page.write_text("before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    table = Table("", (Column("code", "Code"),), [{"code": "C0"}])
    emit(CommandResult({}, (table,), checks=(), command="audit"), Format.GITHUB, outfile=tmp_path / "out.txt")
    assert page.read_text(encoding="utf-8") == "before\n## sbpair audit\n\n| Code |\n| --- |\n| C0 |\n\n"


def test_github_step_summary_stays_below_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    table = Table("", (Column("code", "Code"),), [{"code": "C" * 100}] * 15_000)
    emit(CommandResult({}, (table,), checks=(), command="audit"), Format.GITHUB, outfile=tmp_path / "out.txt")
    assert 0 < page.stat().st_size < 1000


def test_junit_is_xml_whatever_the_messages_hold() -> None:
    root = ElementTree.fromstring(
        formats.to_junit(result(Grade.ERROR, Grade.OK, Grade.SKIPPED, message='\x00<&"\x1b]]>'))
    )
    assert (root.attrib["tests"], root.attrib["failures"], root.attrib["skipped"]) == ("3", "1", "1")
    failure = root.find("testcase/failure")
    assert failure is not None
    assert failure.attrib == {"type": "error", "message": '\\x00<&"\\x1b]]>'}
    assert root.find("testcase/skipped") is not None


def test_prometheus_writes_help_and_type_once_and_keeps_a_metric_together() -> None:
    metrics = (
        Metric("sbpair_syphon_restarts_total", 1),
        Metric("sbpair_ping_connect_seconds", 0.5, (("side", "primary"),)),
        Metric("sbpair_ping_connect_seconds", 1e15, (("side", "secondary\n"),)),
    )
    text = formats.to_prometheus(CommandResult({}, checks=(), metrics=metrics, command="ping"))
    lines = text.splitlines()
    assert lines[3:] == [
        "# HELP sbpair_ping_connect_seconds The first accepted ping, which connects.",
        "# TYPE sbpair_ping_connect_seconds gauge",
        'sbpair_ping_connect_seconds{side="primary"} 0.5',
        'sbpair_ping_connect_seconds{side="secondary\\n"} 1e+15',
        "# HELP sbpair_syphon_restarts_total Times the service started again after an error.",
        "# TYPE sbpair_syphon_restarts_total counter",
        "sbpair_syphon_restarts_total 1",
    ]
    assert lines[2].startswith('sbpair_last_success_timestamp_seconds{command="ping"} ')
