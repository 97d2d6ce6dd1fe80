"""Audit on two embedded namespaces: findings, snapshots, exit codes, every monitoring format."""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import pytest

from tests.cli.process import Ran, Sbpair

pytestmark = pytest.mark.usefixtures("provisioned")
QUEUE = "local-primary/x-servicebus-transfer/{}"


def codes(ran: Ran) -> set[str]:
    return {row["code"] for row in ran.records}


def test_the_checks_are_listed_and_explained_without_any_configuration(sbpair: Sbpair) -> None:
    listed = sbpair("audit", "--list-checks")
    assert listed.code == 0
    known = [row["code"] for row in listed.records]
    assert len(known) > 20
    assert known == sorted(known)
    explained = sbpair("audit", "--explain", known[0].lower())
    assert explained.code == 0
    assert explained.stdout.startswith(f"{known[0]} (")
    assert "What to do:\n" in explained.stdout
    unknown = sbpair("audit", "--explain", "SBP999")
    assert unknown.code == 2
    assert "--list-checks" in unknown.stderr


def test_missing_queues_are_findings_and_no_findings_are_0(fresh: Sbpair) -> None:
    missing = fresh("audit", "local")
    assert missing.code == 5
    assert "throttling credits" not in missing.stderr
    (one,) = [row for row in missing.records if row["code"] == "SBP001"]
    assert (one["count"], one["subject"]) == ("10", "local-primary/x-servicebus-transfer/0-9")
    each = [row for row in fresh("audit", "local", "-v").records if row["code"] == "SBP001"]
    assert [row["subject"] for row in each] == [QUEUE.format(index) for index in range(10)]
    metrics = fresh("audit", "local", "-o", "prometheus", "--exit-zero")
    assert metrics.code == 0
    assert 'sbpair_audit_check_findings{pair="local",code="SBP001"} 10' in metrics.stdout
    assert fresh("provision", "local").code == 0
    found = fresh("audit", "local", "-o", "json")
    assert found.code == 0
    (pair,) = found.data["pairs"]
    assert {finding["severity"] for finding in pair["findings"]} <= {"info"}
    assert pair["management_calls"] < 12


def test_fail_on_and_ignore_decide_about_the_exit_code(local: Sbpair) -> None:
    assert local("audit", "local", "--fail-on", "info").code == 5
    code = next(iter(codes(local("audit", "local"))))
    ignored = local("audit", "local", "--fail-on", "info", "--ignore", f"{code}:*", "--check", code, "-o", "json")
    assert ignored.code == 0
    assert ignored.data["pairs"][0]["ignored"] > 0
    assert local("audit", "local", "--ignore", "NOPE").code == 2
    assert local("audit", "local", "--check", "NOPE").code == 2


def test_a_saved_snapshot_says_the_same_with_nobody_there(local: Sbpair, sbpair: Sbpair) -> None:
    path = sbpair.home / "snap.json"
    live = local("audit", "local", "--snapshot-out", str(path))
    again = sbpair("audit", "--snapshot", str(path))
    assert again.stdout == live.stdout
    assert "SharedAccessKey=" not in path.read_text(encoding="utf-8")
    assert sbpair("audit", "other", "--snapshot", str(path)).code == 2
    document = json.loads(path.read_text(encoding="utf-8"))
    document["snapshots"][0]["format_version"] = 99
    path.write_text(json.dumps(document), encoding="utf-8")
    assert sbpair("audit", "--snapshot", str(path)).code == 2


def test_a_snapshot_feeds_the_estimate(local: Sbpair) -> None:
    assert local("audit", "local", "--snapshot-out", "for-cost.json").code == 0
    ran = local("cost", "--snapshot", "for-cost.json", "--audits-per-day", "24", "-o", "json")
    assert ran.code == 0
    audits = next(line for line in ran.data["lines"] if line["what"] == "audits")
    assert str(audits["arithmetic"]).startswith("720 audits x ")


def test_history_gets_one_line_an_audit(local: Sbpair) -> None:
    for _ in range(2):
        assert local("audit", "local", "--history", "trend").code == 0
    lines = [json.loads(line) for line in (local.home / "trend" / "local.jsonl").read_text("utf-8").splitlines()]
    assert len(lines) == 2
    assert lines[0]["taken_at"] < lines[1]["taken_at"]
    assert [queue["queue"] for queue in lines[0]["queues"]] == [QUEUE.format(index) for index in range(10)]


def test_monitoring_formats(local: Sbpair) -> None:
    nagios = local("audit", "local", "-o", "nagios")
    assert nagios.code == 0
    assert nagios.stdout.startswith("SBPAIR OK - ")
    assert "'sbpair_backlog_messages.local.active'=0" in nagios.stdout
    path = local.home / "metrics" / "sbpair.prom"
    assert local("audit", "local", "-o", "prometheus", "--outfile", str(path)).code == 0
    assert 'sbpair_audit_findings{pair="local",severity="error"} 0\n' in path.read_text(encoding="utf-8")
    assert [entry.name for entry in path.parent.iterdir()] == ["sbpair.prom"]
    junit = ElementTree.fromstring(local("audit", "local", "-o", "junit").stdout)
    assert junit.attrib["failures"] == "0"
    assert int(junit.attrib["tests"]) > 20
    page = local.home / "step.md"
    github = local("audit", "local", "-o", "github", env={"GITHUB_STEP_SUMMARY": str(page), "GITHUB_ACTIONS": "true"})
    assert github.code == 0
    assert "\x1b" not in github.stdout
    assert page.read_text(encoding="utf-8").startswith("## sbpair audit\n\n| Severity |")


def test_findings_in_monitoring_formats(local: Sbpair) -> None:
    assert local("provision", "local", "--queues", "11").code == 0
    try:
        warned = local("audit", "local", "-o", "nagios")
        assert warned.code == 1
        assert warned.stdout.startswith("SBPAIR WARNING - ")
        annotated = local("audit", "local", "-o", "github")
        assert annotated.code == 5
        assert "::warning title=" in annotated.stdout
        junit = ElementTree.fromstring(local("audit", "local", "-o", "junit").stdout)
        assert int(junit.attrib["failures"]) > 0
    finally:
        assert local("cleanup", "local", "--yes").code == 0


def test_a_missing_right_is_told_once_for_all_that_it_hides(local: Sbpair, fault: Callable[[str, str], None]) -> None:
    fault("local-secondary", "http-status:status=401")
    told = local("audit", "local")
    assert told.code == 4
    assert told.stderr.count("Not read: ") == 1, told.stderr
    assert "Not read: namespace, queues, topics of local-secondary" in told.stderr


def test_an_unreachable_namespace_ends_with_6_and_is_unknown_to_nagios(
    local: Sbpair, fault: Callable[[str, str], None]
) -> None:
    fault("local-secondary", "dark")
    ran = local("audit", "local", "-o", "json")
    assert ran.code == 6
    (pair,) = ran.data["pairs"]
    assert {entry["subject"] for entry in pair["not_read"]} >= {"namespace", "queues"}
    assert all("sbpair ping" in entry["hint"] for entry in pair["not_read"])
    assert pair["skipped"]
    told = local("audit", "local").stderr
    assert "Not read: namespace, queues, topics of local-secondary" in told
    assert "see which side answers with: sbpair ping" in told
    nagios = local("audit", "local", "-o", "nagios")
    assert nagios.code == 3
    assert nagios.stdout.startswith("SBPAIR UNKNOWN - ")


def test_a_refused_credential_ends_with_4(local: Sbpair, fault: Callable[[str, str], None]) -> None:
    fault("local-primary", "unauthorized:operation=http")
    ran = local("audit", "local", "-o", "json")
    assert ran.code == 4


def test_lists_with_gaps_make_no_false_findings(local: Sbpair, fault: Callable[[str, str], None]) -> None:
    fault("local-secondary", "list-gap")
    ran = local("audit", "local", "-o", "json")
    assert ran.code == 0, ran.data["pairs"][0]["findings"]


def test_a_pair_that_cannot_be_reached_holds_up_no_other_one(local: Sbpair) -> None:
    known = json.loads((local.home / "state" / "sbpair" / "emulator.json").read_text(encoding="utf-8"))

    def pair(name: str, authority: str) -> str:
        sides = (
            f"{side}: {{namespace: {one['name']}, host: localhost, ca_file: {authority}, "
            f"connection_string: {{file: {one['connection_string_file']}}}}}"
            for side, one in zip(("primary", "secondary"), known["namespaces"], strict=False)
        )
        return f"{name}: {{{', '.join(sides)}}}"

    pairs = f"{pair('blind', 'gone.pem')}, {pair('mine', known['ca_file'])}"
    (local.home / "two.yaml").write_text(f"version: 1\npairs: {{{pairs}}}\n", encoding="utf-8")
    ran = local("audit", "blind", "mine", "--config", "two.yaml", "-o", "json")
    assert [(one["pair"], bool(one["not_read"])) for one in ran.data["pairs"]] == [("blind", True), ("mine", False)], (
        ran
    )
    assert ran.code == 6
