"""kill -9 of a whole restore, replay or taking, and the same once more: nothing is lost, and at most what was under way
comes twice. What goes on is the restore's own process; of the two jobs it is the session of these tests, since one more
JVM would take ten seconds of a processor and prove nothing else."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from sbpair.core.transfer.state import Limits
from sbpair.pipeline.spark.session import StartedSpark
from sbpair.runtime.transfer.ledger import outcomes_in
from tests.pipeline.stage import Stage, messages
from tests.waiting import LIMIT_SECONDS

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="kills a process group"),
]
ROOT = Path(__file__).parents[2]
COUNT = 600
IN_FLIGHT = Limits().in_flight_messages


def start(stage: Stage, *arguments: str) -> "subprocess.Popen[bytes]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SBPAIR_", "XDG_"))}
    return subprocess.Popen(
        [sys.executable, "-m", "sbpair", *arguments, "--config", str(stage.config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=kept | {"HOME": str(stage.folder), "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )


def run(stage: Stage, *arguments: str) -> None:
    with start(stage, *arguments) as process:
        said, _ = process.communicate(timeout=LIMIT_SECONDS)
        assert process.returncode == 0, said.decode()


def killed(stage: Stage, when: Callable[[], bool], *arguments: str) -> None:
    """The command with everything it has started, killed in the middle of its work."""
    with start(stage, *arguments) as process:
        while not when():
            assert process.poll() is None, process.stdout.read().decode() if process.stdout else ""
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def keys_in(ledger: Path) -> Counter[str]:
    """Message ids of the ledger's lines."""
    return Counter(str(key[2]) for file in files_of(ledger) for key, _ in outcomes_in(file))


def files_of(ledger: Path) -> list[Path]:
    """A replay's is a folder, which may be made at any moment."""
    return [ledger] if ledger.is_file() else list(ledger.glob("*.jsonl"))


def lines_of(ledger: Path) -> int:
    """How many lines a ledger has that somebody writes: the last of them may not be whole yet."""
    return sum(file.read_bytes().count(b'"forwarded"') for file in files_of(ledger))


def check_arrivals(stage: Stage, before: Counter[str]) -> None:
    """All are there, none twice that had its line before the kill, and not more twice than may be on their way."""
    arrived = Counter(str(one.message_id) for one in stage.at_home())
    assert set(arrived) == {f"m-{number}" for number in range(COUNT)}
    doubled = {name for name, times in arrived.items() if times > 1}
    assert not doubled & set(before)
    assert len(doubled) <= IN_FLIGHT
    assert max(arrived.values()) <= 2


def test_a_killed_restore_goes_on(stage: Stage) -> None:
    stage.divert(messages(COUNT, sessions=5))
    archive, ledger = stage.folder / "drained", stage.folder / "restored.jsonl"
    run(stage, "drain", "shop", "--archive", str(archive))
    restore = ("restore", str(archive), "--pair", "shop", "--ledger", str(ledger), "--rate", "150")
    killed(stage, lambda: lines_of(ledger) > 100, *restore)
    before = keys_in(ledger)
    assert len(before) < COUNT
    run(stage, "restore", str(archive), "--pair", "shop", "--ledger", str(ledger))
    check_arrivals(stage, before)
    assert set(keys_in(ledger).values()) == {1}


def test_a_killed_replay_goes_on(stage: Stage, session: StartedSpark) -> None:
    stage.divert(messages(COUNT, sessions=5))
    stage.archive(session, take=True)
    replay = ("pipeline", "replay", "shop", "--archive", stage.archive_path, "--ledger", str(stage.ledger))
    killed(stage, lambda: lines_of(stage.ledger) > 100, *replay, "--rate", "100")
    before = keys_in(stage.ledger)
    assert len(before) < COUNT
    stage.replay(session)
    check_arrivals(stage, before)
    assert set(keys_in(stage.ledger).values()) == {1}


def test_a_killed_taking_goes_on(stage: Stage, session: StartedSpark) -> None:
    """What has no line is still in its queue; what has one is in the archive, and at most settled once more."""
    stage.divert(messages(COUNT))
    stage.emulator.faults("shop-neu").add("expire-locks:entity=shop-weu/x-servicebus-transfer/0,lock=3s")
    stage.emulator.faults("shop-neu").add("delay:rtt=40ms")
    ledger = stage.folder / "taken"
    take = ("pipeline", "archive", "shop", "--archive", stage.archive_path, "--take", "--ledger", str(ledger))
    killed(stage, lambda: stage.active_in_backlog() < COUNT, *take)
    queued = {str(one.message_id) for one in stage.browse("secondary", "shop-weu/x-servicebus-transfer/0")}
    assert {f"m-{number}" for number in range(COUNT)} - queued <= set(keys_in(ledger))
    stage.emulator.faults("shop-neu").clear()
    stage.archive(session, take=True, ledger=ledger)
    assert stage.in_backlog() == 0
    assert set(keys_in(ledger)) == {f"m-{number}" for number in range(COUNT)}
    stage.replay(session)
    assert sorted(str(one.message_id) for one in stage.at_home()) == sorted(f"m-{number}" for number in range(COUNT))
