"""The same filters on every command that takes messages of a backlog or an archive; real commands in a fresh world."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbpair.emulator.entities import QueueDescription
from tests.pipeline.stage import Stage, backlog, messages, on_stage
from tests.waiting import LIMIT_SECONDS, until

ROOT = Path(__file__).parents[2]
WHERE = "sys.Subject = 'invoice' AND country IN ('DE', 'FR')"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Stage]:
    """30 messages: 20 invoices of DE and IT for `invoices`, 10 of a session for `orders`."""
    with on_stage(tmp_path) as stage:
        stage.emulator.namespace("shop-weu").create_queue("invoices", QueueDescription())
        for prefix, country in (("de", "DE"), ("it", "IT")):
            some = messages(10, prefix=prefix, subject="invoice", application_properties={"country": country})
            stage.divert(some, destination="invoices")
        stage.divert(messages(10, prefix="s", sessions=1), queue=1)
        yield stage


def command_line(world: Stage, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "sbpair", *arguments, "--config", str(world.config), "-o", "json", "--no-input"]


def environment(world: Stage) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SBPAIR_", "XDG_"))}
    return kept | {"HOME": str(world.folder), "PYTHONPATH": str(ROOT)}


def sbpair(world: Stage, *arguments: str, code: int = 0) -> Any:
    ran = subprocess.run(
        command_line(world, *arguments), capture_output=True, text=True, env=environment(world), timeout=LIMIT_SECONDS
    )
    assert ran.returncode == code, (ran.stdout, ran.stderr)
    document = json.loads(ran.stdout)
    return document["data"] if "data" in document else document["error"]


def ids(world: Stage, queue: str) -> set[str]:
    return {str(one.message_id) for one in world.at_home(queue)}


def names(prefix: str) -> set[str]:
    return {f"{prefix}-{number}" for number in range(10)}


def test_peek_and_drain_agree_and_what_is_filtered_out_is_not_left(world: Stage) -> None:
    seen = sbpair(world, "peek", "shop", "--where", WHERE)
    assert {one["message_id"] for one in seen["messages"]} == names("de")
    dry = sbpair(world, "drain", "shop", "--where", WHERE, "--dry-run", code=5)
    assert dry["forwarded"] == 10
    drained = sbpair(world, "drain", "shop", "--where", WHERE)  # exit code 0: what the filter leaves aside is not left
    assert drained["forwarded"] == 10
    assert (ids(world, "invoices"), ids(world, "orders")) == (names("de"), set())
    sbpair(world, "drain", "shop", "--session-id", "s-0", "--destination", "ORD*", "--since", "1h")
    assert ids(world, "orders") == names("s")
    assert sbpair(world, "drain", "shop", "--until", "1h")["forwarded"] == 0
    assert len(world.browse("secondary", backlog(0))) == 10


def test_restore_takes_the_same_filters(world: Stage) -> None:
    archive = str(world.folder / "archive")
    sbpair(world, "drain", "shop", "--archive", archive)
    ledger = str(world.folder / "restored.jsonl")
    restore = ("restore", archive, "--pair", "shop", "--ledger", ledger)
    assert sbpair(world, *restore, "--where", WHERE)["sent"] == {"invoices": 10}
    assert ids(world, "invoices") == names("de")
    assert sbpair(world, *restore, "--until", "1h")["sent"] == {}
    assert sbpair(world, *restore, "--session-id", "s-0", "--since", "1h")["sent"] == {"orders": 10}
    assert sbpair(world, *restore, "--destination", "INV*")["sent"] == {"invoices": 10}


def test_a_filter_that_cannot_be_evaluated_ends_a_drain_with_its_report(world: Stage) -> None:
    """What was moved before is told, what is left is counted, and nothing stays locked."""
    none = sbpair(world, "drain", "shop", "--where", "country + 1 > 2", code=2)
    assert none["message"].endswith("Nothing was moved.")
    assert world.in_backlog() == 30
    world.divert(messages(5, prefix="n", application_properties={"amount": 5}))
    drain = subprocess.Popen(
        command_line(world, "drain", "shop", "--where", "amount + 1 > 1", "--until-idle", "4m"),
        stdout=subprocess.PIPE,
        text=True,
        env=environment(world),
    )
    until(lambda: len(world.at_home()) >= 5)
    world.divert(messages(5, prefix="t", sessions=1, application_properties={"amount": "five"}))
    said, _ = drain.communicate(timeout=LIMIT_SECONDS)
    ended = json.loads(said)
    assert ended["exit_code"] == 3
    assert (ended["data"]["ended_by"], ended["data"]["forwarded"]) == ("filter", 5)
    assert "cannot be evaluated for message" in ended["data"]["broken_off"]
    rest = sbpair(world, "drain", "shop", "--where", "amount = 'five'")
    assert (rest["forwarded"], rest["left"], rest["filtered_out"]) == (5, {}, 30)


@pytest.mark.parametrize("command", ["peek", "drain", "syphon"])
def test_the_language_before_is_refused_with_the_new_spelling(world: Stage, command: str) -> None:
    refused = sbpair(world, command, "shop", "--where", "subject = invoice and size_bytes > 10", code=2)
    assert "Service Bus SQL" in refused["message"]
    assert "sys.Subject" in refused["hint"]
    assert world.in_backlog() == 30


def test_the_table_does_not_call_left_what_a_filter_leaves_aside(world: Stage) -> None:
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "sbpair",
            "drain",
            "shop",
            "--where",
            WHERE,
            "--config",
            str(world.config),
            "--no-input",
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(world.folder), "PYTHONPATH": str(ROOT)},
        timeout=LIMIT_SECONDS,
    )
    rows = [line.split("\t") for line in ran.stdout.splitlines()]
    assert ["filtered out", "", "20"] in rows
    assert not any(row[0] == "left" for row in rows)
