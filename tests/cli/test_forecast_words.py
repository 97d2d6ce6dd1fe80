"""With --verbose, what an action is going to use is said before it starts, and what it used afterwards."""

import os

from tests.cli.process import Sbpair


def test_a_plan_says_its_calls_and_credits_and_the_run_what_it_took(local: Sbpair) -> None:
    plan = local("provision", "local", "--dry-run", "-o", "json")
    assert plan.data["forecast"] == {
        "management_calls": 10,
        "message_operations": 0,
        "operations": 10,
        "throttling_credits": 100,
        "money_at_most": "0.0000080",
        "currency": "USD",
    }
    words = local("provision", "local", "--dry-run", "-v", "-o", "markdown").stdout
    assert "Applying it takes 10 management calls: 100 throttling credits, less than 0.01 USD." in words
    assert "Applying it takes" not in local("provision", "local", "--dry-run", "-o", "markdown").stdout
    done = local("provision", "local", "-v", "-o", "markdown")
    assert "It took 10 management calls: 100 throttling credits" in done.stdout
    again = local("provision", "local", "--dry-run", "-o", "json")
    assert again.data["forecast"]["operations"] == 0


def test_an_audit_says_it_before_to_who_asks_for_more(local: Sbpair) -> None:
    ran = local("audit", "local", "-v", "-o", "json")
    assert ("At least 6 management calls and 20 message operations: 80 throttling credits") in ran.stderr
    assert ran.data["used"]["management_calls"] == ran.data["pairs"][0]["management_calls"]
    assert "At least" not in local("audit", "local", "-o", "json").stderr


def test_a_drain_tells_the_operations_that_it_really_made(local: Sbpair) -> None:
    dry = local("drain", "local", "--dry-run", "-v", "-o", "markdown")
    assert "Moving them would take 0 message operations" in dry.stdout  # what looking took is over
    used = local("drain", "local", "-o", "json").data["used"]
    assert used["management_calls"] >= 2  # two listings
    assert used["message_operations"] >= 40  # 10 queues: a receive, a browse, and a browse of each half at the end


def test_the_step_summary_gets_the_whole_table(local: Sbpair) -> None:
    page = local.home / "summary.md"
    page.write_text("before\n", encoding="utf-8")
    ran = local("audit", "local", "--check", "SBP025", "-o", "github", env={"GITHUB_STEP_SUMMARY": os.fspath(page)})
    assert ran.code == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n## sbpair audit\n")
    assert "| SBP025 | local | 2 |" in text  # equal findings are one line
