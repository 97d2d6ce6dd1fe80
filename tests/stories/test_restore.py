"""What drain and peek wrote into files goes back to where it was to go: real commands in a fresh world."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sbpair.core.rewrite import describe
from sbpair.emulator.entities import QueueDescription
from sbpair.runtime.transfer.ledger import outcomes_in
from tests.pipeline.stage import Stage, backlog, messages, on_stage
from tests.waiting import LIMIT_SECONDS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Stage]:
    with on_stage(tmp_path) as stage:
        stage.emulator.namespace("shop-weu").create_queue("invoices", QueueDescription())
        yield stage


def sbpair(world: Stage, *arguments: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SBPAIR_", "XDG_"))}
    return subprocess.run(
        [sys.executable, "-m", "sbpair", *arguments, "--config", str(world.config)],
        capture_output=True,
        text=True,
        env=kept | {"HOME": str(world.folder), "PYTHONPATH": str(ROOT)},
        timeout=LIMIT_SECONDS,
    )


def restored(world: Stage, *arguments: str, code: int = 0) -> Mapping[str, Any]:
    ran = sbpair(world, "restore", *arguments, "--pair", "shop", "-o", "json")
    assert ran.returncode == code, ran.stderr
    document: Mapping[str, Any] = json.loads(ran.stdout)
    return document["data"] if "data" in document else document["error"]


def test_an_archive_goes_back_to_each_destination_in_order_and_once(world: Stage) -> None:
    world.divert(messages(60, sessions=3), queue=0)
    world.divert(messages(40, prefix="other"), queue=1, destination="invoices")
    archive = world.folder / "archive"
    drained = sbpair(world, "drain", "shop", "--archive", str(archive))
    assert drained.returncode == 0, drained.stderr
    shown = restored(world, str(archive), "--dry-run", code=5)
    assert shown["sent"] == {"invoices": 40, "orders": 60}
    assert world.at_home() == []

    ledger = str(world.folder / "restored.jsonl")
    some = restored(world, str(archive), "--ledger", ledger, "--destination", "ord*", "-n", "20")
    assert some["sent"] == {"orders": 20}
    rest = restored(world, str(archive), "--ledger", ledger)
    assert (rest["sent"], rest["already_sent"], rest["left"]) == ({"invoices": 40, "orders": 40}, 20, {})
    again = restored(world, str(archive), "--ledger", ledger)
    assert (again["sent"], again["already_sent"]) == ({}, 100)

    numbers: dict[str | None, list[int]] = {}
    for one in world.at_home():
        numbers.setdefault(describe(one.payload).session_id, []).append(int((one.message_id or "").split("-")[1]))
    assert {session: sorted(of_session) for session, of_session in numbers.items()} == numbers
    assert sum(map(len, numbers.values())) == 60
    assert len(world.at_home("invoices")) == 40

    anew = restored(world, str(archive), "--ledger", ledger, "--new-ledger", "-n", "1")
    assert (anew["sent"], anew["already_sent"]) == ({"orders": 1}, 0)
    assert [len(list(outcomes_in(Path(one)))) for one in (ledger, f"{ledger}.1")] == [1, 100]


def test_what_was_only_browsed_is_refused_while_it_waits(world: Stage) -> None:
    world.divert(messages(10))
    file = world.folder / "seen.jsonl"
    file.write_text(sbpair(world, "peek", "shop", "-o", "jsonl").stdout, encoding="utf-8")
    refused = restored(world, str(file), code=2)
    assert refused["message"].startswith("10 of 10 messages still wait in the backlog queues")
    assert "--although-in-the-queues" in refused["hint"]
    assert world.at_home() == []
    drained = str(world.folder / "drained.jsonl")
    assert sbpair(world, "drain", "shop", "--limit", "4", "--ledger", drained).returncode == 3
    world.emulator.namespace("shop-neu").delete_queue(backlog(0))
    refused = restored(world, str(file), code=2)
    assert refused["message"].startswith("10 of 10 messages were only browsed and have left their queues since")
    assert "--although-gone" in refused["hint"]
    again = restored(world, str(file), "--ledger", drained, "--although-gone", "--dry-run", code=5)
    assert (again["sent"], again["already_sent"]) == ({"orders": 6}, 4)
    assert restored(world, str(file), "--ledger", drained, "--although-gone")["sent"] == {"orders": 6}
    assert {one.message_id for one in world.at_home()} == {f"m-{number}" for number in range(10)}


def test_a_destination_that_is_gone_leaves_its_messages_and_says_so(world: Stage) -> None:
    world.divert(messages(5, sessions=1), destination="gone")
    world.divert(messages(5, prefix="fine"))
    archive = world.folder / "archive"
    sbpair(world, "drain", "shop", "--archive", str(archive))
    report = restored(world, str(archive), code=3)
    assert report["sent"] == {"orders": 5}
    ((reason, count),) = report["left"].items()
    assert (reason, count) == ("destination unavailable: gone (entity-not-found)", 5)


def test_a_primary_that_refuses_or_is_away_is_the_reason_why_all_is_left(world: Stage) -> None:
    world.divert(messages(3))
    archive = world.folder / "archive"
    sbpair(world, "drain", "shop", "--archive", str(archive))
    wrong = world.emulator.connection_string("shop-weu").replace(world.key("shop-weu"), "QUFBQQ==")
    (world.folder / "shop-weu.key").write_text(wrong)
    denied = restored(world, str(archive), "--timeout", "2s", code=4)
    assert (denied["sent"], sum(denied["left"].values())) == ({}, 3)
    (world.folder / "shop-weu.key").write_text(world.emulator.connection_string("shop-weu"))
    world.emulator.faults("shop-weu").add("dark")
    away = restored(world, str(archive), "--timeout", "2s", code=6)
    assert (away["sent"], sum(away["left"].values())) == ({}, 3)


def test_what_is_no_archive_is_refused_before_anything_is_sent(world: Stage) -> None:
    (world.folder / "notes.jsonl").write_text('{"a": 1}\n', encoding="utf-8")
    assert "is no archive" in restored(world, str(world.folder / "notes.jsonl"), code=2)["message"]
    assert "There is no" in restored(world, str(world.folder / "absent"), code=2)["message"]
