"""`sbpair gateway` as a process: what it prints, what it serves, how it ends and how it is killed."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import azure.servicebus as sdk
import pytest

from sbpair.core.access import AuthMethod
from tests.clients.conftest import World
from tests.gateway.test_passing import AtOnce
from tests.waiting import until

COMMAND = [sys.executable, "-m", "sbpair"]


def configuration(world: World, folder: Path, interval: str = "0s") -> dict[str, str]:
    """A pair `orders` in a file, its secrets in the environment."""
    file = folder / "sbpair.yaml"
    file.write_text(
        f"version: 1\nauth: {AuthMethod.CONNECTION_STRING}\npairs:\n  orders:\n"
        "    primary: {namespace: contoso, connection_string: {env: PRIMARY}, host: 127.0.0.1}\n"
        "    secondary: {namespace: fabrikam, connection_string: {env: SECONDARY}, host: 127.0.0.1}\n"
        f"    backlog_queues: 3\n    failover_interval: {interval}\n    ping_interval: 1s\n"
    )
    texts = {"PRIMARY": world.connection_string(), "SECONDARY": world.connection_string("fabrikam")}
    return {**os.environ, **texts, "SBPAIR_CONFIG": str(file), "XDG_STATE_HOME": str(folder / "state")}


@contextmanager
def started(
    world: World, folder: Path, *options: str, listen: str = "127.0.0.1:0"
) -> Iterator[tuple["subprocess.Popen[str]", list[str]]]:
    """The process, and the connection strings that it has printed."""
    process = subprocess.Popen(
        [*COMMAND, "gateway", "orders", "--listen", listen, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=configuration(world, folder),
    )
    assert process.stdout is not None
    try:
        count = max(1, options.count("--key"))
        lines = [process.stdout.readline() for _ in range(count)]
        assert all(lines), process.communicate()
        yield process, [line.partition("'")[2].rstrip("'\n") for line in lines]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def send(text: str, body: str) -> None:
    with AtOnce.from_connection_string(text, retry_total=0) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(sdk.ServiceBusMessage(body))


def read(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def asked_for(world: World, folder: Path, listen: str, code: int = 0) -> list[dict[str, Any]]:
    """What `sbpair gateway status` says of the one that listens there."""
    line = [*COMMAND, "gateway", "status", "--listen", listen, "-o", "json"]
    ran = subprocess.run(line, capture_output=True, text=True, env=configuration(world, folder))
    assert ran.returncode == code, ran.stderr
    found = json.loads(ran.stdout)
    return found["data"] if code == 0 else [found["error"]]  # type: ignore[no-any-return]


def test_the_status_of_a_gateway_that_is_not_there(world: World, tmp_path: Path) -> None:
    (error,) = asked_for(world, tmp_path, "127.0.0.1:9", code=6)
    assert "--listen" in error["hint"]
    administration = world.emulator.connection_string("contoso").partition("sb://")[2].partition(";")[0]
    (error,) = asked_for(world, tmp_path, administration, code=2)
    assert "is not a gateway" in error["message"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_it_serves_tells_and_stops(world: World, tmp_path: Path, number: signal.Signals, code: int) -> None:
    with started(world, tmp_path, "--metrics-port", "0", "-o", "json") as (process, (text,)):
        send(text, "one")
        world.dark()
        send(text, "two")
        endpoint = re.search(r"sb://([^;]+);", text)
        assert endpoint is not None
        (pair,) = asked_for(world, tmp_path, endpoint[1])
        assert (pair["pair"], pair["troubles"]) == ("orders", [])
        (entity,) = pair["entities"]
        assert (entity["entity"], entity["state"]) == ("orders", "failed-over")
        assert (entity["accepted"], entity["diverted"], entity["refused"]) == (2, 1, 0)
        assert entity["mean_milliseconds"] > 0
        assert read(f"http://{endpoint[1]}/health") == (200, '{"alive": true}')
        assert read(f"http://{endpoint[1]}/ready")[0] == 200
        assert process.stderr is not None
        metrics = until(lambda: re.search(r"Metrics: (\S+),", process.stderr.readline()), process)  # type: ignore[union-attr]
        status, samples = read(metrics[1])
        assert status == 200
        assert 'sbpair_gateway_messages_total{pair="orders",entity="orders",outcome="primary"} 1' in samples
        assert 'sbpair_gateway_messages_total{pair="orders",entity="orders",outcome="backlog"} 1' in samples
        assert 'sbpair_gateway_sends_total{pair="orders",entity="orders",le="+Inf"} 2' in samples
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == code
    told = json.loads(output)["data"]
    assert (told["accepted"], told["diverted"], told["refused"]) == (2, 1, 0)
    assert world.backlog() == ["two"]


def test_keys_of_a_file_change_while_it_runs(world: World, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("keys: [{name: old, key: the-first-secret-of-all, rights: [send]}]")
    with started(world, tmp_path, "--keys", str(file)) as (process, (text,)):
        send(text, "one")
        file.write_text("keys: [{name: new, key: another-secret-than-that, rights: [send]}]")
        assert process.stderr is not None
        until(lambda: "in force" in process.stderr.readline(), process)  # type: ignore[union-attr]
        with pytest.raises(sdk.exceptions.ServiceBusError):
            send(text, "two")
        send(text.replace("=old;", "=new;").replace("the-first-secret-of-all", "another-secret-than-that"), "three")
    assert world.bodies("orders") == ["one", "three"]


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="a signal of POSIX")
def test_a_signal_has_keys_and_pairs_read_again(world: World, tmp_path: Path) -> None:
    """Links stay; what cannot be read changes nothing."""
    file, secret = tmp_path / "keys.yaml", tmp_path / "secret"
    secret.write_text("the-first-secret-of-all")
    file.write_text(f"keys: [{{name: app, key: {{file: {secret}}}, rights: [send]}}]")
    options = ("--keys", str(file), "--domain", "gateway.internal", "--pass-tokens")
    with started(world, tmp_path, *options) as (process, (text,)):
        assert process.stderr is not None
        other = text.replace("the-first-secret-of-all", "another-secret-than-that")

        def again(said: str) -> None:
            process.send_signal(signal.SIGUSR1)
            until(lambda: said in process.stderr.readline(), process)  # type: ignore[union-attr]

        with AtOnce.from_connection_string(text, retry_total=0) as client, client.get_queue_sender("orders") as sender:
            sender.send_messages(sdk.ServiceBusMessage("one"))
            configured = (tmp_path / "sbpair.yaml").read_text()
            (tmp_path / "sbpair.yaml").write_text(configured.replace("backlog_queues: 3", "backlog_queues: 2"))
            again("orders: new connections get it as it is configured now")
            (tmp_path / "sbpair.yaml").write_text("pairs: nonsense")
            again("that were in force stay")
            (tmp_path / "sbpair.yaml").write_text(configured)
            sender.send_messages(sdk.ServiceBusMessage("two"))
        secret.write_text("another-secret-than-that")
        again("Other keys are in force")
        with pytest.raises(sdk.exceptions.ServiceBusError):
            send(text, "never")
        send(other, "three")
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=60)
    assert process.returncode == 143
    assert world.bodies("orders") == ["one", "two", "three"]


@pytest.mark.parametrize(
    "options", [["--listen", "nowhere"], ["--listen", "0.0.0.0:0"], ["--key", "x"], ["--key", "a=own"], ["--cert", "x"]]
)
def test_what_makes_no_sense_is_refused(world: World, tmp_path: Path, options: list[str]) -> None:
    told = subprocess.run(
        [*COMMAND, "gateway", "orders", *options], capture_output=True, text=True, env=configuration(world, tmp_path)
    )
    assert told.returncode == 2
    assert told.stdout == ""
