"""The pytest plugin: the fixture `servicebus` is an embedded namespace, fresh for each test.

All tests of a process share one emulator, which starts with the first of them; under pytest-xdist each worker has one.
pytest imports this module in every run wherever sbpair is installed, so it imports nothing else before it is used.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sbpair.emulator.testing import EmbeddedNamespace
    from sbpair.emulator.thread import EmulatorThread

_TRACE = "--servicebus-trace"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("servicebus", "embedded Azure Service Bus namespace").addoption(
        _TRACE, action="store_true", help="show the last AMQP frames of the test's namespace when a test fails"
    )


@pytest.fixture(scope="session")
def servicebus_emulator() -> "Iterator[EmulatorThread]":
    """The emulator that the namespaces of all tests are part of."""
    from sbpair.emulator.thread import EmulatorThread

    with EmulatorThread([]) as emulator:
        yield emulator


@pytest.fixture
def servicebus(servicebus_emulator: "EmulatorThread", request: pytest.FixtureRequest) -> "Iterator[EmbeddedNamespace]":
    """A fresh Service Bus namespace: `servicebus.connection_string`, `servicebus.queue("orders")`."""
    from sbpair.emulator.testing import EmbeddedNamespace

    trace = bool(request.config.getoption(_TRACE))
    with EmbeddedNamespace(emulator=servicebus_emulator, trace=trace) as namespace:
        yield namespace


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[Any]") -> Any:
    """Put the frames behind the report of a failed test, while its namespace is still there."""
    report = yield
    namespace = getattr(item, "funcargs", {}).get("servicebus")
    if report.when == "call" and report.failed and namespace is not None and item.config.getoption(_TRACE):
        report.sections.append(("Frames of the Service Bus namespace", "\n".join(namespace.frames())))
    return report
