"""`sbpair pipeline` as the real process: quiet, with exit codes, and ended at once by Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbpair.pipeline.java import find_java
from sbpair.pipeline.jvm import class_archive
from tests.cli.schema_checks import check_document
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
    data = check_document("pipeline archive", archived.stdout)["data"]
    assert (data["rows"], data["settled"], data["left"]) == (50, 50, {})
    lost = run(shared, "reconcile", shared.archive_path, "-o", "json")
    assert lost.returncode == 5
    assert check_document("pipeline reconcile", lost.stdout)["data"]["counts"] == {
        "lost": 50,
        "altered": 0,
        "doubled": 0,
    }
    replayed = run(
        shared, "replay", "shop", "--from", shared.archive_path, "--ledger", str(shared.ledger), "-q", "-o", "json"
    )
    assert (replayed.returncode, replayed.stderr) == (0, "")
    assert check_document("pipeline replay", replayed.stdout)["data"]["per_destination"] == {"orders": 50}
    assert len(shared.at_home()) == 50
    key = shared.key("shop-neu")
    logs = list((shared.folder / ".local" / "state" / "sbpair" / "spark").glob("spark-*.log"))
    assert logs
    assert all(key not in log.read_text() for log in logs)


def test_what_is_warm_is_left_as_it_is(shared: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = class_archive(find_java())
    file.parent.mkdir(parents=True)
    file.write_bytes(b"classes")
    ran = run(shared, "warm", "-o", "json", XDG_CACHE_HOME=str(tmp_path))
    assert (ran.returncode, ran.stderr) == (0, "")
    data = check_document("pipeline warm", ran.stdout)["data"]
    assert (data["file"], data["bytes"], data["existed"]) == (str(file), 7, True)


def test_what_is_no_archive_is_said_before_spark_is_started(shared: Stage) -> None:
    for arguments in (("analyze", "nowhere"), ("replay", "shop", "--from", "nowhere", "--ledger", "there")):
        ran = run(shared, *arguments, "-v", "-o", "json")
        assert ran.returncode == 2
        assert "is not an archive" in check_document(f"pipeline {arguments[0]}", ran.stdout)["error"]["message"]
        assert "Starting Spark" not in ran.stderr


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
    ran = run(shared, "trend", str(shared.folder), SBPAIR_JAVA=str(shared.folder / "no-java"))
    assert ran.returncode == 2
    assert ran.stderr.startswith("Error: SBPAIR_JAVA names no usable Java")
    assert "pip install 'sbpair[spark,java]'" in ran.stderr
    assert "Traceback" not in ran.stderr
