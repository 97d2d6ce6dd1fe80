"""`sbpair incident` on a backlog as an outage leaves it: the commands of the script, and the same ones run in a row."""

import json
from pathlib import Path

from tests.cli.process import Sbpair


def test_the_script_has_the_commands_and_runs_none(local: Sbpair) -> None:
    ran = local("incident", "local", "--script", "--into", "kept")
    assert ran.code == 0, ran
    commands = [line for line in ran.stdout.splitlines() if not line.startswith("#")]
    assert [line.split()[1] for line in commands] == ["discover", "doctor", "drain", "drain", "status", "peek", "dlq"]
    assert "--dry-run" in commands[2]
    assert commands[3] == "sbpair drain local --ledger kept/ledger.jsonl --report kept/report.html --yes"
    assert not Path(local.home, "kept").exists()


def test_it_asks_before_it_drains_and_refuses_where_nobody_answers(local: Sbpair) -> None:
    ran = local("incident", "local")
    assert (ran.code, "Nothing was done" in ran.stderr, "--script" in ran.stderr) == (2, True, True), ran


def test_every_step_is_printed_and_run_and_the_exit_code_is_that_of_the_drain(local: Sbpair) -> None:
    assert local("provision", "local", "--yes").code in (0, 5)
    ran = local("incident", "local", "--into", "kept", "--yes", "-o", "json")
    assert [one["number"] for one in ran.data["steps"]] == [1, 2, 3, 4, 5, 6, 7], ran
    drained = ran.data["steps"][3]
    assert (drained["exit_name"], ran.code) in (("ok", 0), ("partial", 3)), ran
    for one in ran.data["steps"]:
        assert f"$ {one['command']}" in ran.stderr.splitlines()
    kept = Path(local.home, "kept")
    assert {one.name for one in kept.iterdir()} >= {"ledger.jsonl", "report.html"}
    assert all(json.loads(line) for line in (kept / "ledger.jsonl").read_text().splitlines())
    again = local("incident", "local", "--into", "kept", "--yes", "-o", "json")
    assert again.code == ran.code, again


def test_it_ends_where_a_namespace_cannot_be_reached(sbpair: Sbpair) -> None:
    ran = sbpair(
        "incident",
        "contoso-weu.invalid:contoso-neu.invalid",
        "--yes",
        "--timeout",
        "2s",
        env={"SBPAIR_AUTH": "azure-cli", "SBPAIR_TIMEOUT": "2s"},
    )
    assert ran.code not in (0, 5), ran
    assert "Step 4 of 7" not in ran.stderr
