"""The pytest plugin: the fixture `servicebus` is an embedded namespace, fresh for each test.

All tests of a process share one emulator, which starts with the first of them; under pytest-xdist each worker has one.
pytest imports this module in every run wherever sbpair is installed, so it imports nothing else before it is used.
"""

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sbpair.emulator.testing import EmbeddedNamespace
    from sbpair.emulator.thread import EmulatorThread

_TRACE = "--servicebus-trace"
_SEED = "--servicebus-seed"
_RANDOM = "random"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("servicebus", "embedded Azure Service Bus namespace")
    group.addoption(
        _TRACE, action="store_true", help="show the last AMQP frames of the test's namespace when a test fails"
    )
    group.addoption(
        _SEED,
        metavar="SEED",
        help="decides which operations faults with a probability hit; `random` takes another seed in each run and "
        "prints it, so that the run can be repeated",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "servicebus(laws={NAME: 'lax'}, tier='Premium'): what the namespace of the fixture `servicebus` is like",
    )
    if config.getoption(_SEED) == _RANDOM:  # workers of pytest-xdist are given the number that is drawn here
        config.option.servicebus_seed = secrets.token_hex(4)


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter", config: pytest.Config) -> None:
    # At the end, where -q prints it, too. pytest has the name of that class since 8.4 only.
    if (seed := config.getoption(_SEED)) is not None:
        terminalreporter.write_line(f"The same faults once more: {_SEED} {seed}")


@pytest.fixture(scope="session")
def servicebus_emulator() -> "Iterator[EmulatorThread]":
    """The emulator that the namespaces of all tests are part of."""
    from sbpair.emulator.thread import EmulatorThread

    with EmulatorThread([]) as emulator:
        yield emulator


@pytest.fixture
def servicebus(servicebus_emulator: "EmulatorThread", request: pytest.FixtureRequest) -> "Iterator[EmbeddedNamespace]":
    """A fresh Service Bus namespace: `servicebus.connection_string`, `servicebus.queue("orders")`.

    `@pytest.mark.servicebus(laws={"partitioned-batch-key": "lax"})` makes it one that does not keep
    that law of the service.
    """
    from sbpair.emulator.testing import EmbeddedNamespace

    trace, seed = bool(request.config.getoption(_TRACE)), request.config.getoption(_SEED)
    marker = request.node.get_closest_marker("servicebus")
    like = {} if marker is None else marker.kwargs
    with EmbeddedNamespace(emulator=servicebus_emulator, trace=trace, seed=seed, **like) as namespace:
        yield namespace


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[Any]") -> Any:
    """Put the frames behind the report of a failed test, while its namespace is still there."""
    report = yield
    namespace = getattr(item, "funcargs", {}).get("servicebus")
    if report.when == "call" and report.failed and namespace is not None and item.config.getoption(_TRACE):
        frames = namespace.frames() or ["none: no client has connected"]
        report.sections.append(("Frames of the Service Bus namespace", "\n".join(frames)))
    return report
