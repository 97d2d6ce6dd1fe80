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

from sbpair.core.rewrite import describe
from sbpair.emulator.entities import EntityStatus, QueueDescription
from tests.cli.process import Ran
from tests.pipeline.stage import Stage, messages, on_stage
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
    assert left == {
        "gone (entity-not-found)": 40,
        "off (entity-disabled)": 40,
        "small (quota-exceeded)": 40 - fitted,
    }
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
