"""`sbpair schema`: the approved schemas, and that real outputs have no field and no value the schemas do not name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sbpair.cli.app import COMMANDS as ALL_COMMANDS
from sbpair.cli.schemas import COMMANDS, DRAFT, envelope_schema
from tests.cli.process import Ran, Sbpair
from tests.core.test_usage import answer, metric

APPROVED = Path(__file__).parent.parent / "approved" / "schemas"
NO_JSON = {"emulator", "pipeline", "replicate", "config"}
"""Groups, and what runs until it is stopped."""


def closed(schema: Any) -> Any:
    """The schema with every object of named fields closed: what a test may demand, but no script."""
    if isinstance(schema, dict):
        shut = {key: closed(value) for key, value in schema.items()}
        if "properties" in shut and "$schema" not in shut:
            shut.setdefault("additionalProperties", False)
        return shut
    return [closed(item) for item in schema] if isinstance(schema, list) else schema


def check(command: str, ran: Ran) -> Any:
    document = json.loads(ran.stdout)
    jsonschema.Draft202012Validator(closed(envelope_schema(command))).validate(document)
    return document


@pytest.mark.parametrize("command", COMMANDS)
def test_matches_the_approved_schema(command: str) -> None:
    document = envelope_schema(command)
    jsonschema.Draft202012Validator.check_schema(document)
    assert document["$schema"] == DRAFT
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    assert (APPROVED / f"{command.replace(' ', '-')}.json").read_text(encoding="utf-8") == text


def test_every_command_has_a_schema() -> None:
    assert {name.split()[0] for name in COMMANDS} >= set(ALL_COMMANDS) - NO_JSON


def test_a_command_without_a_schema_suggests_one(sbpair: Sbpair) -> None:
    ran = sbpair("schema", "audti")
    assert ran.code == 2
    assert "'audit'" in ran.stderr
    assert [row["command"] for row in sbpair("schema").records] == list(COMMANDS)
    assert json.loads(sbpair("schema", "config", "show").stdout) == envelope_schema("config show")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("audit", ["--list-checks"]),
        ("audit", ["--explain", "SBP001"]),
        ("audit", []),
        ("cost", ["--messages-per-day", "1000", "--outage", "1h"]),
        ("cost", ["--queues", "5,10", "--compare"]),
        ("cost", ["--sensitivity"]),
        ("cost", ["--explain-prices"]),
        ("doctor", []),
        ("config show", []),
        ("config check", []),
        ("config schema", []),
        ("completion", ["bash"]),
        ("help", ["exit-codes"]),
        ("help", ["permissions"]),
        ("help", ["environment"]),
        ("help", ["config"]),
        ("schema", []),
        ("schema", ["audit"]),
        ("status", []),
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

    assert run("provision", "--dry-run", "--count", "11")["exit_code"] == 5
    assert run("provision", "--count", "11")["data"]["used"]["management_calls"] == 11
    assert run("audit")["exit_code"] == 5
    assert run("cleanup")["data"]["forecast"]["management_calls"] > 0
    assert run("cleanup", "--apply")["exit_code"] == 0
    assert run("peek")["data"]["messages"] == []
    run("peek", "--group-by", "path,reason")
    assert run("drain", "--dry-run")["data"]["forecast"]["operations"] == 0
    assert run("drain")["data"]["confirmed_empty"] is True
    run("ping", "--side", "secondary", "-c", "1")
    assert run("status", "--interval", "0")["data"]["active"] == 0
    assert run("doctor")["exit_code"] == 0
    run("config use")
    fault("local-secondary", "dark")
    assert run("audit", "--timeout", "3s")["exit_code"] == 6
    assert run("status", "--interval", "0", "--timeout", "3s")["exit_code"] == 6
    assert "error" in run("provision", "--timeout", "3s")


def test_the_demo_and_a_send_that_cannot_be(sbpair: Sbpair, local: Sbpair) -> None:
    check("demo", sbpair("demo", "-q", "-o", "json", timeout=240))
    sent = local("send", "local", "nowhere", "-o", "json", stdin="one\n")
    check("send", sent)
