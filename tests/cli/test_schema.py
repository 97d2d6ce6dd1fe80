"""`sbpair schema`: the approved schemas, and that real outputs have no field and no value the schemas do not name.

After a change of what a command prints: `python -m tests.cli.approve_schemas`, which says what the change breaks.
"""

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from sbpair.cli.help import envelope_schema, outputs
from tests.cli.approve_schemas import differences
from tests.cli.exit_codes import TABLE as EVERY_COMMAND
from tests.cli.process import Ran, Sbpair
from tests.cli.schema_checks import check_document
from tests.core.cost.test_usage import answer, metric

OUTPUTS = outputs()


def check(command: str, ran: Ran) -> Any:
    return check_document(command, ran.stdout)


@pytest.mark.parametrize("command", OUTPUTS)
def test_the_schema_is_one(command: str) -> None:
    jsonschema.Draft202012Validator.check_schema(envelope_schema(command, OUTPUTS[command]))


def test_every_schema_is_as_approved() -> None:
    assert not (found := differences()), "\n".join(
        ("Approve it with: python -m tests.cli.approve_schemas", *map(str, found))
    )


def test_every_command_has_a_schema() -> None:
    assert set(OUTPUTS) == set(EVERY_COMMAND)


def test_what_is_no_json_is_said(sbpair: Sbpair) -> None:
    notes = {row["command"]: row["note"] for row in sbpair("schema").records}
    assert {command for command, note in notes.items() if note} == {
        command for command, output in OUTPUTS.items() if output.besides
    }
    assert "NAMESPACE<TAB>CONNECTION STRING" in notes["emulator"]
    assert json.loads(sbpair("schema", "status").stdout)["description"] == notes["status"]
    group = sbpair("schema", "replicate")
    assert group.code == 2
    assert "'replicate' is a group" in group.stderr
    assert "replicate send, replicate consume" in group.stderr


def test_a_command_without_a_schema_suggests_one(sbpair: Sbpair) -> None:
    ran = sbpair("schema", "audti")
    assert ran.code == 2
    assert "'audit'" in ran.stderr
    assert [row["command"] for row in sbpair("schema").records] == list(OUTPUTS)
    assert json.loads(sbpair("schema", "config", "show").stdout) == envelope_schema(
        "config show", OUTPUTS["config show"]
    )


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("audit", ["--list-checks"]),
        ("audit", ["--explain", "SBP001"]),
        ("audit", []),
        ("cost", ["--messages-per-day", "1000", "--outage", "1h"]),
        ("cost", ["--queues", "5,10", "--compare"]),
        ("cost", ["--explain-prices"]),
        ("doctor", []),
        ("config show", []),
        ("config check", []),
        ("config schema", []),
        ("completion", ["bash"]),
        ("help", ["terms"]),
        ("help", ["pipeline", "archive"]),
        ("help", ["exit-codes"]),
        ("help", ["permissions"]),
        ("help", ["environment"]),
        ("help", ["config"]),
        ("schema", []),
        ("schema", ["audit"]),
        ("status", []),
        ("status", ["--no-such-option"]),
        ("emulator", ["--not-emulated"]),
        ("emulator", ["--laws"]),
        ("emulator", ["--law", "partitioned-batch-key"]),
        ("emulator fault list", []),
        ("emulator env", []),
        ("pipeline reconcile", ["nowhere"]),
    ],
)
def test_outputs_and_errors_without_a_namespace(sbpair: Sbpair, command: str, arguments: list[str]) -> None:
    check(command, sbpair(*command.split(), *arguments, "-o", "json"))


def test_outputs_of_real_usage(sbpair: Sbpair) -> None:
    document = answer(metric("IncomingMessages", {"orders": [1000]}))
    (sbpair.home / "metrics.json").write_text(json.dumps(document), encoding="utf-8")
    row = "2026-02-01,Service Bus,Standard Base Unit,24,1 Hour,0.32,USD,s\n"
    header = "Date,MeterCategory,MeterName,Quantity,UnitOfMeasure,Cost,BillingCurrency,SubscriptionId\n"
    (sbpair.home / "usage.csv").write_text(header + row, encoding="utf-8")
    check("cost", sbpair("cost", "--usage", "usage.csv", "-o", "json"))
    check("cost", sbpair("cost", "--usage", "usage.csv", "--usage", "metrics.json", "-o", "json"))


def test_outputs_on_running_namespaces(local: Sbpair, fault: Callable[[str, str], None]) -> None:
    """Each command once where it finds something and, where that looks different, once where it does not."""

    def run(command: str, *arguments: str) -> Any:
        return check(command, local(*command.split(), "local", *arguments, "-o", "json"))

    assert run("provision", "--dry-run", "--queues", "11")["exit_code"] == 5
    assert run("provision", "--queues", "11")["data"]["used"]["management_calls"] == 11
    assert run("audit")["exit_code"] == 5
    assert run("cleanup")["data"]["forecast"]["management_calls"] > 0
    assert run("cleanup", "--yes")["exit_code"] == 0
    assert run("peek")["data"]["messages"] == []
    run("peek", "--group-by", "destination,reason")
    assert run("drain", "--dry-run")["data"]["forecast"]["operations"] == 0
    assert run("drain")["data"]["confirmed_empty"] is True
    run("ping", "--side", "secondary", "-c", "1")
    assert run("status", "--interval", "0")["data"]["active"] == 0
    assert run("doctor")["exit_code"] == 0
    run("config use")
    check("emulator fault list", local("emulator", "fault", "list", "local-secondary", "-o", "json"))
    check("emulator env", local("emulator", "env", "-o", "json"))
    added = local("emulator", "fault", "add", "local-primary", "quota:entity=nobody", "-o", "json")
    number = check("emulator fault add", added)["data"]["id"]
    cleared = local("emulator", "fault", "clear", "local-primary", "--id", number, "-o", "json")
    assert check("emulator fault clear", cleared)["exit_code"] == 0
    fault("local-secondary", "dark")
    assert run("audit", "--timeout", "3s")["exit_code"] == 6
    assert run("status", "--interval", "0", "--timeout", "3s")["exit_code"] == 6
    assert "error" in run("provision", "--timeout", "3s")


def test_outputs_of_active_active(local: Sbpair) -> None:
    """From a queue that is missing over one message done and one failed to what the journal remembers."""
    journal = ("--journal", "sqlite:schema.db", "-o", "json")

    def run(command: str, *arguments: str, stdin: str = "") -> Any:
        return check(command, local(*command.split(), *arguments, *journal, stdin=stdin))

    assert run("replicate provision", "local", "boxes", "--dry-run")["exit_code"] == 5
    assert run("replicate provision", "local", "boxes")["exit_code"] == 0
    sent = "".join(json.dumps({"session_id": session, "body": session}) + "\n" for session in ("good", "bad"))
    assert run("replicate send", "local", "boxes", "--delay", "0", stdin=sent + "{broken\n")["data"]["both"] == 2
    judge = "sh -c 'test $(cat) = good'"
    consume = ("local", "boxes", "--exec", judge, "--attempts", "1", "--until-idle", "8s")
    assert run("replicate consume", *consume)["exit_code"] == 3
    assert {one["state"] for one in run("replicate status")["data"]["sessions"]} == {"completed", "failed"}


def test_the_demo_and_a_send_that_cannot_be(sbpair: Sbpair, local: Sbpair) -> None:
    check("demo", sbpair("demo", "-q", "-o", "json", timeout=240))
    sent = local("send", "local", "nowhere", "-o", "json", stdin="one\n")
    check("send", sent)
