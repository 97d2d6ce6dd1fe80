"""An interrupted test run leaves no process behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.process import ROOT
from tests.survivors import CAN_GUARD, VARIABLE, marked
from tests.waiting import LIMIT_SECONDS, until

pytestmark = pytest.mark.skipif(not CAN_GUARD, reason="needs Linux")


def mark_of(run: "subprocess.Popen[bytes]") -> str:
    return f"{os.environ.get(VARIABLE, '')}/{run.pid}."


def programs(mark: str) -> list[str]:
    found = []
    for process in marked(mark):
        try:
            found.append(Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        except FileNotFoundError:
            continue
    return found


@pytest.fixture(params=[(), ("-n", "1")], ids=["in its own process", "with a worker"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A run of `tests/cli/leaving.py` whose test waits for ever."""
    ready = tmp_path / "ready"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *request.param, "tests/cli/leaving.py"]
    environ = os.environ | {"READY_FILE": str(ready)}
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=said, stderr=said, start_new_session=True)
    try:
        until(lambda: ready.exists() or process.poll() is not None)
        assert process.poll() is None, (tmp_path / "said").read_text()
        below = programs(mark_of(process))
        # The server that forks, the embedded namespaces and the command, which are its children.
        assert sum("tests.cli.forked" in one for one in below) >= 3, below
        for program in ("time.sleep(600)", "trap ''", "py4j.GatewayServer"):
            assert any(program in one for one in below), (program, below)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda one: one.name)
def test_no_process_outlives_an_interrupted_run(run: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    run.send_signal(number)
    assert run.wait(LIMIT_SECONDS) != 0
    until(lambda: not programs(mark_of(run)))
