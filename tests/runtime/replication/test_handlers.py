"""Commands as handlers: what they are told, what their exit means, and that nothing of them outlives its attempt."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sbpair.amqp import sections
from sbpair.core.errors import UsageError
from sbpair.core.rewrite import compose
from sbpair.runtime.replication.handlers import CommandHandler, Delivery, HandlerFailed, RetryLater
from tests.runtime.replication.stage import eventually


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


def is_at_work(file: Path) -> bool:
    """Whether the process whose id is in the file runs; one that nobody has waited for yet does not."""
    number = int(file.read_text())
    try:
        os.kill(number, 0)
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:
        return not Path("/proc/self").exists()


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
    with pytest.raises(HandlerFailed, match=r"sh ended with 4\. told on stdout"):
        await shell("echo told on stdout; exit 4")(delivery())
    with pytest.raises(RetryLater, match="closed for the night"):
        await shell("echo closed for the night >&2; exit 75")(delivery())
    with pytest.raises(HandlerFailed, match=r"sh ended with 3\. no such parcel"):
        await shell("echo no such parcel >&2; exit 3")(delivery())
    with pytest.raises(HandlerFailed, match=r"sh ended with 5\.$"):
        await shell("exit 5")(delivery())


async def test_a_command_that_does_not_read_its_body_may_still_succeed() -> None:
    large = compose(body=b"x" * 200_000, message_id="m1", session_id="s")
    await shell("exit 0")(delivery(large))


async def test_a_command_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    for patience in (0.3, 3.0, 30.0):  # the shell has to come to it before its time is up
        with pytest.raises(HandlerFailed, match=rf"took longer than {patience:g} s"):
            await shell(f"sleep 600 & echo $! > {child}; wait", timeout_seconds=patience)(delivery())
        if child.exists() and child.read_text().strip():
            break
    await eventually(lambda: not is_at_work(child))


async def test_a_cancelled_command_is_killed(tmp_path: Path) -> None:
    own = tmp_path / "own"
    running = asyncio.create_task(shell(f"echo $$ > {own}; exec sleep 600", timeout_seconds=600)(delivery()))
    await eventually(lambda: own.exists() and bool(own.read_text().strip()))
    assert is_at_work(own)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await eventually(lambda: not is_at_work(own))


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
    own = tmp_path / "own"
    script = f"""
import asyncio, os
from tests.runtime.replication.test_handlers import delivery, shell
asyncio.run(shell("echo $$ > {own}; exec sleep 600", timeout_seconds=600)(delivery()))
"""
    root = Path(__file__).parents[3]
    consumer = subprocess.Popen([sys.executable, "-c", script], cwd=root, env=os.environ | {"PYTHONPATH": str(root)})
    asyncio.run(eventually(lambda: own.exists() and bool(own.read_text().strip())))
    assert is_at_work(own)
    consumer.send_signal(signal.SIGKILL)
    consumer.wait()
    # Otherwise it would still be at work when another region takes over.
    asyncio.run(eventually(lambda: not is_at_work(own)))
