"""`--timeout`: no command waits longer for one answer, also not a management call to a host that says nothing."""

import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.cli.process import Sbpair

CONNECTION = "Endpoint=sb://127.0.0.1:{port}/;SharedAccessKeyName=k;SharedAccessKey=AAAA"
AT_MOST_SECONDS = 50.0
"""Opening a pairing tries three times, on a busy machine. Without the option one call takes a minute."""


@pytest.fixture
def mute(sbpair: Sbpair) -> Iterator[Sbpair]:
    """A pair whose two namespaces take connections and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        environ = {
            f"SBPAIR_{side}_{name}": value
            for side, server in (("PRIMARY", one), ("SECONDARY", other))
            for name, value in (
                ("NAMESPACE", f"mute-{side.lower()}"),
                ("HOST", "localhost"),
                ("CONNECTION_STRING", CONNECTION.format(port=server.getsockname()[1])),
            )
        }
        yield replace(sbpair, environ=environ)


@pytest.mark.parametrize(
    "line",
    [
        "audit",
        "provision environment",
        "cleanup environment",
        "drain environment",
        "peek",
        "send environment orders --retry-for 0",
        "status",
        "replicate send environment orders --session-id s",
    ],
)
def test_a_namespace_that_says_nothing_is_given_up_when_told(mute: Sbpair, line: str) -> None:
    began = time.monotonic()
    ran = mute(*line.split(), "--timeout", "2s", stdin="one\n")
    took = time.monotonic() - began
    assert ran.code == 6, ran
    assert 1 < took < AT_MOST_SECONDS, (took, ran.stderr)  # a send keeps a part of its time for the backlog


def test_a_variable_says_it_for_every_command_and_the_option_comes_first(mute: Sbpair) -> None:
    for line, variable in (("status", "1s"), ("status --timeout 1s", "1h")):
        ran = mute(*line.split(), env={"SBPAIR_TIMEOUT": variable})
        assert (ran.code, "no answer within 1s" in ran.stderr) == (6, True), ran
    ran = mute("status", env={"SBPAIR_TIMEOUT": "soon"})
    assert (ran.code, "SBPAIR_TIMEOUT: " in ran.stderr) == (2, True), ran


def test_no_time_at_all_is_a_second(mute: Sbpair) -> None:
    ran = mute("audit", "--timeout", "0s")
    assert ran.code == 6, ran
