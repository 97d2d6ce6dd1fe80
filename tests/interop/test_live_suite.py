"""How the live suite judges reports; the suite itself runs by its own command."""

from pathlib import Path

import pytest

from tests.interop.live_suite import go
from tests.interop.live_suite.reporting import (
    CLIENT_REASONS,
    DIVERTING_REASONS,
    GATEWAY_REASONS,
    Kind,
    Reason,
    load_reasons,
    summarize,
)

REPORT = """<testsuites><testsuite>
  <testcase classname="test_queues.TestQueue" name="test_passes[pyamqp]"/>
  <testcase classname="test_queues.TestQueue" name="test_gap[pyamqp]"><failure message="E1&#10;E2"/></testcase>
  <testcase classname="test_queues.TestQueue" name="test_fails"><failure message="boom&#10;more"/></testcase>
  <testcase classname="test_queues.TestQueue" name="test_crashes"><error>  text only</error></testcase>
  <testcase classname="test_queues.TestQueue" name="test_skips"><skipped message="not here"/></testcase>
</testsuite></testsuites>"""
REASONS = """[[reason]]
tests = ["*.test_gap[pyamqp]", "*.test_passes*"]
kind = "known-gap"
sentence = "Not yet."
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "report.xml").write_text(REPORT)
    (tmp_path / "reasons.toml").write_text(REASONS)
    return tmp_path


def test_every_test_that_does_not_pass_has_a_reason(folder: Path) -> None:
    summary = summarize("data", folder / "report.xml", load_reasons(folder / "reasons.toml"))
    assert {verdict.test.rpartition(".")[2]: (verdict.kind, verdict.sentence) for verdict in summary.verdicts} == {
        "test_gap[pyamqp]": (Kind.KNOWN_GAP, "Not yet."),
        "test_fails": (Kind.UNKNOWN, "boom"),
        "test_crashes": (Kind.UNKNOWN, "text only"),
        "test_skips": (Kind.SKIPPED, "not here"),
    }
    assert (summary.passed, summary.failures) == (1, 2)
    assert summary.text().splitlines()[0] == (
        "data: 1 of 4 applicable tests passed (25.0 %); 1 skipped by the suite, 1 known gap, 2 failed"
    )


def test_no_report_is_a_failure(tmp_path: Path) -> None:
    assert summarize("data", tmp_path / "missing.xml", []).failures == 1


def test_the_known_reasons_can_be_read() -> None:
    for reason in (
        load_reasons() + load_reasons(CLIENT_REASONS) + load_reasons(DIVERTING_REASONS) + load_reasons(GATEWAY_REASONS)
    ):
        assert reason.kind in (Kind.NOT_APPLICABLE, Kind.BROKEN_UPSTREAM, Kind.KNOWN_GAP)
        assert reason.sentence.endswith(".")


GO_OUTPUT = """=== RUN   TestWhole
--- PASS: TestWhole (0.01s)
--- FAIL: TestWithParts (0.02s)
    --- PASS: TestWithParts/good (0.01s)
    --- FAIL: TestWithParts/known (0.01s)
    --- FAIL: TestWithParts/new (0.01s)
--- SKIP: TestElsewhere (0.00s)
"""


def test_go_tests_are_counted_by_their_parts() -> None:
    known = [Reason("TestWithParts/known", Kind.KNOWN_GAP, "Not yet.")]
    summary = go.judged("data", GO_OUTPUT.splitlines(), True, known)
    assert (summary.passed, summary.failures) == (2, 1)
    assert {one.test: one.kind for one in summary.verdicts} == {
        "TestWithParts/known": Kind.KNOWN_GAP,
        "TestWithParts/new": Kind.UNKNOWN,
        "TestElsewhere": Kind.SKIPPED,
    }
    assert go.judged("data", GO_OUTPUT.splitlines(), False, known).failures == 2
    assert go.judged("data", [], True, known).failures == 1


def test_the_reasons_of_go_can_be_read() -> None:
    assert {reason.kind for reason in load_reasons(go.GATEWAY_REASONS)} <= set(Kind)
