"""Commands as handlers: what they are told, what their exit means, and that nothing of them outlives its attempt."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sbpair.amqp import sections
from sbpair.core.errors import UsageError
from sbpair.core.rewrite import compose
from sbpair.runtime.replication.handlers import CommandHandler, Delivery, HandlerFailed, RetryLater


def delivery(payload: bytes | None = None) -> Delivery:
    composed = compose(
        body="Grüße\n",
        message_id="m1",
        session_id="s 1",
        subject="arrived",
        application_properties={"weight-kg": 7, "fragile": True, "ward": "Über"},
    )
    return Delivery(payload or composed, "s 1", "m1", "stream:3", "secondary", 2, 41, 9)


def shell(script: str, *, timeout_seconds: float = 10.0) -> CommandHandler:
    return CommandHandler(["sh", "-c", script], timeout_seconds=timeout_seconds, environ={"PATH": os.environ["PATH"]})


async def test_the_body_comes_on_stdin_and_the_rest_as_variables(tmp_path: Path) -> None:
    await shell(f"cat > {tmp_path}/body; env > {tmp_path}/env")(delivery())
    assert (tmp_path / "body").read_text() == "Grüße\n"
    told = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    wanted = {
        "SBPAIR_SESSION_ID": "s 1",
        "SBPAIR_MESSAGE_ID": "m1",
        "SBPAIR_PLACE": "stream:3",
        "SBPAIR_REGION": "secondary",
        "SBPAIR_ATTEMPT": "2",
        "SBPAIR_FENCE": "41",
        "SBPAIR_DELIVERY_COUNT": "9",
        "SBPAIR_SUBJECT": "arrived",
        "SBPAIR_PROPERTY_WEIGHT_KG": "7",
        "SBPAIR_PROPERTY_FRAGILE": "true",
        "SBPAIR_PROPERTY_WARD": "Über",
    }
    assert {name: told[name] for name in wanted} == wanted


async def test_the_exit_code_decides() -> None:
    await shell("exit 0")(delivery())
    with pytest.raises(RetryLater, match="closed for the night"):
        await shell("echo closed for the night >&2; exit 75")(delivery())
    with pytest.raises(HandlerFailed, match=r"sh ended with 3\. no such parcel"):
        await shell("echo no such parcel >&2; exit 3")(delivery())


async def test_a_command_that_does_not_read_its_body_may_still_succeed() -> None:
    large = compose(body=b"x" * 200_000, message_id="m1", session_id="s")
    await shell("exit 0")(delivery(large))


async def test_a_command_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    marker = tmp_path / "child"
    began = time.monotonic()
    with pytest.raises(HandlerFailed, match=r"took longer than 0\.3 s"):
        await shell(f"(sleep 1; touch {marker}) & wait", timeout_seconds=0.3)(delivery())
    assert time.monotonic() - began < 1
    await asyncio.sleep(1.0)
    assert not marker.exists()


async def test_a_cancelled_command_is_killed(tmp_path: Path) -> None:
    marker = tmp_path / "late"
    running = asyncio.create_task(shell(f"sleep 1; touch {marker}")(delivery()))
    await asyncio.sleep(0.2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await asyncio.sleep(1.0)
    assert not marker.exists()


async def test_a_command_that_does_not_exist_is_a_failed_attempt() -> None:
    handler = CommandHandler(["/no/such/command"], timeout_seconds=1, environ={})
    with pytest.raises(HandlerFailed, match="cannot be run"):
        await handler(delivery())


def test_a_body_that_is_no_data_is_given_encoded() -> None:
    payload = sections.build(properties={0: "m1"}, value="text")
    assert delivery(payload).body == payload[payload.index(b"\x00\x53\x77") :]


def test_no_command_and_no_time_are_refused() -> None:
    for command, seconds in (([], 1.0), (["true"], 0.0)):
        with pytest.raises(UsageError):
            CommandHandler(command, timeout_seconds=seconds, environ={})


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children that their parent died")
def test_a_command_dies_with_a_consumer_that_is_killed(tmp_path: Path) -> None:
    script = f"""
import asyncio, os
from tests.runtime.test_handlers import delivery, shell
asyncio.run(shell("touch {tmp_path}/begun; sleep 1.5; touch {tmp_path}/ended", timeout_seconds=60)(delivery()))
"""
    root = Path(__file__).parents[2]
    consumer = subprocess.Popen([sys.executable, "-c", script], cwd=root, env=os.environ | {"PYTHONPATH": str(root)})
    deadline = time.monotonic() + 20
    while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    consumer.send_signal(signal.SIGKILL)
    consumer.wait()
    time.sleep(2.0)
    assert not (tmp_path / "ended").exists(), "it would still be at work when another region takes over"
