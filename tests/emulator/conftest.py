"""A running emulator: on the test's own loop, or on a thread for synchronous clients."""

from collections.abc import AsyncIterator, Iterator

import pytest

from sbpair.emulator.server import Emulator
from sbpair.emulator.thread import EmulatorThread
from tests.engine.dialects import DIALECTS, Dialect


@pytest.fixture(params=DIALECTS, ids=lambda one: one.name)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    """How the test's client writes: as one library, then as the next. A test that starts processes may name its own."""
    chosen: Dialect = request.param
    return chosen


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    """Two empty namespaces, `primary` and `secondary`."""
    async with Emulator(["primary", "secondary"], seed=1) as running:
        yield running


@pytest.fixture
def emulator_thread() -> Iterator[EmulatorThread]:
    """The same on a thread of its own."""
    with EmulatorThread(["primary", "secondary"], seed=1) as running:
        yield running
