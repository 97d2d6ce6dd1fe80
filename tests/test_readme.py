"""Every command, file and program in the README works as printed, in order, against the embedded namespace."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sbpair.core.failover.machine import diagram
from sbpair.pipeline.spark.java import find_java, launcher_home
from tests.readme import ROOT, Block, Place, blocks, reader


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with reader(tmp_path_factory.mktemp("reader")) as ready:
        provisioned = ready.run("sbpair provision orders")
        assert provisioned.returncode == 0, provisioned.stderr
        yield ready


@pytest.mark.timeout(1800)  # some sixty commands: as many processes, and a few JVMs
def test_every_shell_block_works_in_the_order_printed(place: Place) -> None:
    """One test, because later blocks use what earlier ones made."""
    for block in blocks("sh"):
        if block.note.startswith(("command:", "runs until stopped", "elsewhere")):
            continue
        if block.note == "with a backlog":
            place.divert_messages()
        done = place.run(block.body, timeout=600)
        assert done.returncode in block.exit_codes, f"{block.body}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("block", blocks("sh", "runs until stopped"), ids=lambda block: block.body.split()[1])
def test_what_runs_until_stopped_starts_and_stops(place: Place, block: Block, tmp_path: Path) -> None:
    environment = place.environment | {"XDG_STATE_HOME": str(tmp_path)}
    process = subprocess.Popen(
        ["bash", "-c", f"exec {block.body.strip()}"],
        cwd=place.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said, _, _ = select.select([process.stdout, process.stderr], [], [], 120)
        assert said, "nothing was said: it has not started to serve"
        assert process.poll() is None, process.communicate()[1]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=90)
    finally:
        process.kill()  # a syphon that goes on would take the messages of the tests after this
        process.wait()
    assert not errors.startswith("Error"), errors
    assert process.returncode == 130, errors
    assert "Traceback" not in errors


def test_the_program_runs(place: Place) -> None:
    for block in blocks("python", "python"):
        done = place.run(f"python - <<'EOF'\n{block.body}\nEOF")
        assert done.returncode == 0, done.stderr
        assert "primary" in done.stdout


@pytest.mark.timeout(630)
def test_the_spark_program_runs(place: Place, tmp_path: Path) -> None:
    """With the JDK of the extra where the machine has none."""
    place.divert_messages()
    environment = place.environment | {"JAVA_HOME": str(launcher_home(find_java(), tmp_path / "java"))}
    program = "\n".join(block.body for note in ("spark program", "spark stream") for block in blocks("python", note))
    done = replace(place, environment=environment).run(f"python - <<'EOF'\n{program}\nEOF", timeout=600)
    assert done.returncode == 0, done.stderr
    assert "|contoso-weu/x-ser" in done.stdout
    assert list((place.folder / "backlog").glob("*.parquet"))
    assert [json.loads(line)["outcome"] for file in (place.folder / "sent").glob("*.jsonl") for line in file.open()]


@pytest.mark.timeout(300)  # it is idle for 20 seconds at its end
def test_the_consumer_program_runs(place: Place) -> None:
    (block,) = blocks("python", "consumer program")
    done = place.run(
        "sbpair replicate provision orders parcels\n"
        "echo arrived | sbpair replicate send orders parcels --session-id parcel-8\n"
        f"python - <<'EOF'\n{block.body}\nEOF",
        timeout=270,
    )
    assert done.returncode == 0, done.stderr
    assert "parcel-8 arrived" in done.stdout


def test_the_diagram_is_drawn_from_the_table() -> None:
    (drawn,) = blocks("mermaid")
    assert drawn.body.strip() == diagram().strip()


@pytest.mark.timeout(930)
def test_the_demo_command_does_its_own_set_up(tmp_path: Path) -> None:
    """As pasted, in a copy of the sources, with a new HOME and nothing of this environment on the PATH."""
    copy = tmp_path / "clone"
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "node_modules", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=ignored)
    python = Path(sys.base_prefix) / "bin"
    (block,) = blocks("sh", "command: demo")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.body],
        cwd=copy,
        env={"HOME": str(tmp_path), "PATH": f"{python}{os.pathsep}/usr/bin{os.pathsep}/bin", **_package_index()},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert "PROVED" in done.stdout + done.stderr


def _package_index() -> dict[str, str]:
    """Where pip finds packages on this machine, if it is told by the environment."""
    return {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")}
