"""`sbpair` as the real process, and embedded namespaces as another real process."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import pytest

from tests.cli.process import Sbpair
from tests.waiting import LIMIT_SECONDS, until


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
def embedded_pair(runner: Sbpair, *arguments: str, stdout: IO[str] | None = None) -> Iterator[Sbpair]:
    """Two namespaces in a process of their own, which the tests of `test_emulator.py` start as a user does."""
    with TemporaryFile("w+", encoding="utf-8") as said:
        process = runner.begin("emulator", "--port", "0", *arguments, stdout=stdout or said, stderr=said)
        try:
            state = runner.home / "state" / "sbpair" / "emulator.json"  # written when its ports are open
            until(lambda: state.exists() or process.poll() is not None)
            assert process.poll() is None, _text(said)
            yield runner
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(LIMIT_SECONDS)
        assert code == 143, _text(said)


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


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
