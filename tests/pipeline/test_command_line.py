"""`sbpair pipeline` as the real process: quiet, with exit codes, and ended at once by Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.stage import Stage, messages, on_stage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with on_stage(tmp_path_factory.mktemp("stage")) as opened:
        yield opened


def command(stage: Stage, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "sbpair", "pipeline", *arguments, "--config", str(stage.config)]


def environment(stage: Stage, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SBPAIR_", "XDG_"))}
    return kept | {"HOME": str(stage.folder), "PYTHONPATH": str(ROOT)} | more


def run(stage: Stage, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(stage, *arguments), capture_output=True, text=True, env=environment(stage, **more), timeout=110
    )


def test_archive_replay_and_reconcile(shared: Stage) -> None:
    shared.divert(messages(50, sessions=3))
    archived = run(shared, "archive", "shop", "--into", shared.archive_path, "--take", "-q", "-o", "json")
    assert (archived.returncode, archived.stderr) == (0, "")
    data = json.loads(archived.stdout)["data"]
    assert (data["rows"], data["settled"], data["left"]) == (50, 50, {})
    lost = run(shared, "reconcile", shared.archive_path, "-o", "json")
    assert lost.returncode == 5
    assert json.loads(lost.stdout)["data"]["counts"] == {"lost": 50, "altered": 0, "doubled": 0}
    replayed = run(
        shared, "replay", "shop", "--from", shared.archive_path, "--ledger", str(shared.ledger), "-q", "-o", "json"
    )
    assert (replayed.returncode, replayed.stderr) == (0, "")
    assert json.loads(replayed.stdout)["data"]["per_destination"] == {"orders": 50}
    assert len(shared.at_home()) == 50
    key = shared.key("shop-neu")
    logs = list((shared.folder / ".local" / "state" / "sbpair" / "spark").glob("spark-*.log"))
    assert logs
    assert all(key not in log.read_text() for log in logs)


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_cancels_the_job_at_once(shared: Stage) -> None:
    shared.divert(messages(400, prefix="slow"))
    shared.emulator.faults("shop-neu").add("delay:rtt=2s")
    asked = command(shared, "archive", "shop", "--into", str(shared.folder / "stopped"), "--unit", "100", "-v")
    with subprocess.Popen(asked, env=environment(shared), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = ""
        while "Spark 4" not in said:
            said += process.stderr.readline()
        time.sleep(2.0)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        code = process.wait(timeout=60)
        rest = process.stderr.read()
    shared.emulator.faults("shop-neu").clear()
    assert code == 130, rest
    assert time.monotonic() - began < 30
    assert "Traceback" not in rest


def test_without_java_one_sentence_says_what_to_do(shared: Stage) -> None:
    ran = run(shared, "reconcile", shared.archive_path, SBPAIR_JAVA=str(shared.folder / "no-java"))
    assert ran.returncode == 2
    assert ran.stderr.startswith("Error: SBPAIR_JAVA names no usable Java")
    assert "pip install 'sbpair[spark,java]'" in ran.stderr
    assert "Traceback" not in ran.stderr
