"""`sbpair` as the real process, and embedded namespaces as another real process."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import Sbpair
from tests.waiting import LIMIT_SECONDS


@pytest.fixture
def sbpair(tmp_path: Path) -> Sbpair:
    """`sbpair` in an empty home: nothing configured, nothing running."""
    return Sbpair(tmp_path)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sbpair]:
    """`sbpair` in a home where two embedded namespaces run: the pair `local`, on free ports, for one test module."""
    with embedded_pair(Sbpair(tmp_path_factory.mktemp("home"))) as runner:
        yield runner


@pytest.fixture(scope="module")
def provisioned(local: Sbpair) -> Sbpair:
    """`local` with the backlog queues that it should have: each test leaves it so."""
    done = local("provision", "local")
    assert done.code == 0, done
    return local


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Sbpair]:
    """`local` for one test: nothing provisioned, nothing sent."""
    with embedded_pair(Sbpair(tmp_path)) as runner:
        yield runner


@contextmanager
def embedded_pair(runner: Sbpair, *arguments: str, **options: Any) -> Iterator[Sbpair]:
    process = runner.start("emulator", "--port", "0", *arguments, **options)
    try:
        _await_state(process, runner.home / "state" / "sbpair" / "emulator.json")
        yield runner
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 143, (out, err)


def _await_state(process: "subprocess.Popen[str]", state: Path) -> None:
    """Wait until the process has written its state file, which it does when its ports are open."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if state.exists():
            return
        time.sleep(0.05)
    process.kill()
    raise AssertionError(f"the embedded namespaces did not start: {process.communicate()}")


@pytest.fixture
def fault(local: Sbpair) -> Iterator[Callable[[str, str], None]]:
    """Adds a fault to a namespace of `local`; all are taken back afterwards."""
    struck: set[str] = set()

    def add(namespace: str, spec: str) -> None:
        struck.add(namespace)
        added = local("emulator", "fault", "add", namespace, spec)
        assert added.code == 0, added

    yield add
    for namespace in struck:
        cleared = local("emulator", "fault", "clear", namespace)
        assert cleared.code == 0, cleared
