"""The primary is back, but not as it was: a destination was deleted, one is disabled, one is full."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sbpair.core.rewrite import compose, describe
from sbpair.emulator.entities import QueueDescription
from sbpair.service import EntityStatus, Tier
from tests.cli.process import Ran, Sbpair
from tests.cli.screens import answer
from tests.pipeline.stage import Stage, backlog, messages, on_stage
from tests.waiting import LIMIT_SECONDS

ROOT = Path(__file__).parents[2]
SMALL_BYTES = 4_000
_COMMAND = re.compile(r"Run: (sbpair [^;\n]+?)(?=$|;|\.(?:\s|$))", re.MULTILINE)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Stage]:
    """Queues `gone`, `off` and `small` beside `orders`; `small` has room for a few KB only, so that it is soon full."""
    with on_stage(tmp_path) as stage:
        primary = stage.emulator.namespace("shop-weu")
        for path in ("gone", "off", "small"):
            primary.create_queue(path, QueueDescription())
        small = primary.get_queue("small")
        assert small is not None
        small.quota.limit_bytes = SMALL_BYTES
        yield stage


def run(world: Stage, line: str) -> Ran:
    """A command line as it would be typed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SBPAIR_", "XDG_"))}
    program, *arguments = shlex.split(line)
    assert program == "sbpair", line
    done = subprocess.run(
        [sys.executable, "-m", "sbpair", *arguments],
        capture_output=True,
        encoding="utf-8",
        env=kept | {"HOME": str(world.folder), "PYTHONPATH": str(ROOT), "SBPAIR_CONFIG": str(world.config)},
        cwd=world.folder,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def test_one_destination_is_deleted_one_disabled_one_full_and_the_advice_brings_all_of_it_back(world: Stage) -> None:
    primary = world.emulator.namespace("shop-weu")
    for queue, path in enumerate(("orders", "gone", "off")):
        world.divert(messages(40, prefix=path, sessions=4), queue=queue, destination=path)
    world.divert(messages(40, prefix="small", subject="x" * 200), queue=0, destination="small")
    primary.delete_queue("gone")
    off = primary.get_queue("off")
    assert off is not None
    primary.update_queue("off", replace(off.description, status=EntityStatus.SEND_DISABLED))

    first = run(world, "sbpair drain shop --give-up-after 4s --ledger drain.jsonl -o json")
    assert first.code == 3, first
    left = {reason.partition("unavailable: ")[2]: number for reason, number in first.data["left"].items()}
    fitted = len(world.at_home("small"))
    assert fitted < 40
    assert left == {"gone (entity-not-found)": 40, "off (entity-disabled)": 40, "small (quota-exceeded)": 40 - fitted}
    assert (first.data["dead_lettered"], first.data["confirmed_empty"]) == (0, False)
    for cure in ("Create it and drain again", "Enable it and drain again", "Make room there"):
        assert cure in first.stderr
    (advice,) = _COMMAND.findall(first.stderr)
    assert advice == "sbpair drain shop --ledger drain.jsonl --give-up-after 4s"
    assert f"{120 - fitted} messages are waiting in 3 queues" in first.stderr

    primary.create_queue("gone", QueueDescription())
    primary.update_queue("off", replace(off.description, status=EntityStatus.ACTIVE))
    small = primary.get_queue("small")
    assert small is not None
    small.quota.limit_bytes = 1_000_000
    second = run(world, advice)
    assert second.code == 0, second
    assert "The backlog is empty" in second.stderr
    for path in ("orders", "gone", "off", "small"):
        arrived = world.at_home(path)
        numbers = [int(str(one.message_id).rpartition("-")[2]) for one in arrived]
        assert sorted(numbers) == list(range(40)), path
        by_session: dict[str | None, list[int]] = {}
        for one, number in zip(arrived, numbers, strict=True):
            by_session.setdefault(describe(one.payload).session_id, []).append(number)
        assert all(some == sorted(some) for session, some in by_session.items() if session is not None), path


def test_every_way_to_be_refused_is_foreseen_asked_about_and_never_answered_by_what_leaves_all_again(
    world: Stage,
) -> None:
    """A session is missing, too large, disabled, full, and no destination at all; eight messages each."""
    primary, secondary = (world.emulator.namespace(name) for name in ("shop-weu", "shop-neu"))
    primary.create_queue("by-session", QueueDescription(requires_session=True))
    secondary.delete_queue(backlog(1))
    world.emulator.call(lambda emulator: setattr(emulator.namespace("shop-neu"), "tier", Tier.PREMIUM))
    secondary.create_queue(backlog(1), QueueDescription(max_message_size_in_kilobytes=1024))
    for path in ("orders", "gone", "off", "by-session"):
        world.divert(messages(8, prefix=path), destination=path)
    world.divert(messages(8, prefix="small", subject="x" * SMALL_BYTES), destination="small")
    for number in range(8):
        big = compose(body=b"x" * 300_000, message_id=f"big-{number}")
        world.divert([big], queue=1, destination="orders")
    primary.delete_queue("gone")
    off = primary.get_queue("off")
    assert off is not None
    primary.update_queue("off", replace(off.description, status=EntityStatus.SEND_DISABLED))
    cured = {"gone (entity-not-found)": 8, "off (entity-disabled)": 8}
    refused = {"refused by by-session (argument-refused)": 8, "refused by orders (message-too-large)": 8}
    unavailable = {f"destination unavailable: {reason}": number for reason, number in cured.items()}

    dry = run(world, "sbpair drain shop --dry-run -o json")
    assert (dry.code, dry.data["per_destination"], dry.data["dead_lettered"]) == (5, {"orders": 8, "small": 8}, 0), dry
    assert dry.data["left"] == unavailable | refused
    told = "16 messages would go back to shop-weu"
    assert told in dry.stderr and "; 32 would stay (" in dry.stderr
    change = run(world, "sbpair drain shop --on-refused dead-letter --dry-run -o json")
    reasons = {"ArgumentRefused": 8, "MessageTooLarge": 8}
    assert (change.data["dead_letter_reasons"], change.data["left"]) == (reasons, unavailable)
    assert "16 would be dead-lettered (ArgumentRefused 8, MessageTooLarge 8); 16 would stay (" in change.stderr
    runner = Sbpair(world.folder, {"SBPAIR_CONFIG": str(world.config), "PYTHONPATH": str(ROOT)})
    asked = answer(runner, "drain", "shop", question="[y/N]", typed="n")
    assert told in " ".join(asked.shown.split()) and "32 would stay" in " ".join(asked.shown.split()), asked.shown

    first = run(world, "sbpair drain shop --give-up-after 4s -o json")
    full = {"destination unavailable: small (quota-exceeded)": 8}
    assert (first.code, first.data["forwarded"], first.data["left"]) == (3, 8, unavailable | refused | full), first
    for cure in ("Create it", "Enable it", "Make room", "Change the destination", "Raise its limit"):
        assert cure in first.stderr
    assert "40 messages are waiting" in first.stderr
    assert "Make the changes above first, or they are left again. Run: sbpair drain shop" in first.stderr

    # What can be cured is; then only the refused ones are left, and no command is offered that leaves them again.
    primary.create_queue("gone", QueueDescription())
    primary.update_queue("off", replace(off.description, status=EntityStatus.ACTIVE))
    small = primary.get_queue("small")
    assert small is not None
    small.quota.limit_bytes = 10_000_000
    second = run(world, "sbpair drain shop -o json")
    assert (second.data["forwarded"], second.data["left"]) == (24, refused), second
    (advice,) = _COMMAND.findall(second.stderr)
    assert advice == "sbpair drain shop --on-refused dead-letter"
    third = run(world, f"{advice} -o json")
    assert (third.data["dead_letter_reasons"], third.data["left"]) == (reasons, {}), third
    # The dead letters are those that this run has refused: to try them once more would leave them.
    assert "; then: sbpair drain shop --dlq --archive shop-kept" in third.stderr
    kept = run(world, "sbpair drain shop --dlq --archive shop-kept -o json")
    assert (kept.code, kept.data["confirmed_empty"]) == (0, True), kept
