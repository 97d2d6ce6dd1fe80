"""The JavaScript client @azure/service-bus, unmodified, against the embedded namespace.

Needs Node.js and npm; the package is installed into a cache folder at test time.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sbpair.emulator import Emulator, EmulatorThread
from sbpair.emulator.entities import QueueDescription
from tests.waiting import LIMIT_SECONDS

HERE = Path(__file__).parent / "javascript"
NAMESPACE = "js-primary"
INSTALL_SECONDS = 300

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(shutil.which("npm") is None, reason="Node.js with npm is not installed"),
    pytest.mark.timeout(INSTALL_SECONDS + 60),
]

Scenario = Callable[[str], Any]


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the scenarios and the installed package."""
    folder = tmp_path_factory.mktemp("javascript")
    for name in ("package.json", "scenarios.mjs"):
        shutil.copy(HERE / name, folder)
    npm = shutil.which("npm")
    assert npm is not None
    command = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=INSTALL_SECONDS)
    return folder


@pytest.fixture
def scenario(node_folder: Path) -> Iterator[Scenario]:
    """Runs one scenario against a fresh namespace and returns what it printed."""
    with EmulatorThread([NAMESPACE]) as emulator:

        def prepare(inner: Emulator) -> None:
            namespace = inner.namespace(NAMESPACE)
            namespace.create_queue("plain")
            namespace.create_queue("sessions", QueueDescription(requires_session=True))
            namespace.create_topic("topic")
            namespace.create_subscription("topic", "filtered")

        emulator.call(prepare)
        environ = os.environ | {
            "CONNECTION": emulator.connection_string(NAMESPACE),
            "NODE_EXTRA_CA_CERTS": str(emulator.ca_path),
        }

        def run(name: str) -> Any:
            command = ["node", "scenarios.mjs", name]
            done = subprocess.run(
                command, cwd=node_folder, env=environ, capture_output=True, text=True, timeout=LIMIT_SECONDS
            )
            assert done.returncode == 0, done.stderr
            return json.loads(done.stdout)

        yield run


def test_send_receive_complete(scenario: Scenario) -> None:
    answer = scenario("sendAndComplete")
    assert answer["seen"]["body"] == {"hello": "world"}
    assert answer["seen"]["properties"] == {"n": 1, "t": "ü", "b": True}
    assert answer["seen"]["subject"] == "s"
    assert answer["rest"] == 0


def test_batches(scenario: Scenario) -> None:
    answer = scenario("batch")
    assert answer["count"] == 150
    assert (answer["first"]["messageId"], answer["last"]["messageId"]) == ("b0", "l49")
    assert answer["limit"] == 262144


def test_every_way_to_settle(scenario: Scenario) -> None:
    answer = scenario("settle")
    assert answer["again"]["messageId"] == "abandon"
    assert answer["again"]["deliveryCount"] == 1
    assert answer["again"]["properties"]["touched"] == "yes"
    assert answer["deferred"]["messageId"] == "defer"
    assert answer["dead"]["reason"] == "why"
    assert answer["dead"]["description"] == "because"
    assert answer["dead"]["properties"]["extra"] == 7


def test_peek_schedule_and_cancel(scenario: Scenario) -> None:
    answer = scenario("peekAndSchedule")
    assert [message["state"] for message in answer["peeked"]] == ["scheduled"]
    assert answer["message"]["messageId"] == "later"
    assert answer["onTime"]


def test_sessions(scenario: Scenario) -> None:
    answer = scenario("sessions")
    assert answer["state"] == {"step": 3}
    assert answer["renewed"]
    assert answer["first"] == [0, 2]
    assert (answer["nextId"], answer["second"]) == ("b", [1, 3])
    assert answer["refused"] == "SessionCannotBeLocked"


def test_rules(scenario: Scenario) -> None:
    assert scenario("rules") == {"names": ["big", "red"], "bodies": ["large", "red"]}


def test_a_streaming_receiver(scenario: Scenario) -> None:
    assert scenario("subscribe") == list(range(20))


def test_errors_have_the_services_codes(scenario: Scenario) -> None:
    assert scenario("errors") == {
        "missing": "MessagingEntityNotFound",
        "large": "MessageSizeExceeded",
        "sessionless": "GeneralError",
    }


def test_administration(scenario: Scenario) -> None:
    answer = scenario("administration")
    assert answer["name"] == NAMESPACE
    assert answer["sku"] == "Standard"
    assert answer["queue"]["requiresSession"] is True
    assert answer["changed"] == 7
    assert answer["rule"] == {
        "filter": {"sqlExpression": "x = @one", "sqlParameters": {"@one": 1}},
        "action": {"sqlExpression": "SET y = @two", "sqlParameters": {"@two": "2"}},
    }
    assert "made/by-js" in answer["names"]
    assert answer["exists"] is False
