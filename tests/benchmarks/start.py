"""How long `sbpair emulator` takes to its first connection and message, and to stop.

    python -m tests.benchmarks --only start [--quick]

Each start is a process of its own, and what counts is the least of several: what else runs on the machine can only add.
A new client of azure-servicebus takes half a second for its first message to any namespace, most of it waits of its
own. So a second new client does the same, and what it takes is not counted as the start's.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from sbpair.core.access import parse_connection_string
from tests.benchmarks.table import Row

SEED = "contoso-weu: {queues: {orders: {}}}\n"


@dataclass(frozen=True)
class Started:
    """Seconds since the process was started; of CPU those of the process alone."""

    connected: float
    connected_cpu: float
    sent: float
    """Less what the same takes a client once the namespace has had one."""
    sent_cpu: float
    sent_later: float
    """What it takes then."""
    stopped: float
    """Since it was told to stop."""
    stopped_cpu: float


def run(quick: bool) -> list[dict[str, Any]]:
    """All figures; `quick` takes about ten seconds."""
    with TemporaryDirectory() as folder:
        seed = Path(folder) / "seed.yaml"
        seed.write_text(SEED, encoding="utf-8")
        own = ("HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "PYTHONPYCACHEPREFIX")
        environ = os.environ | dict.fromkeys(own, folder)
        environ.pop("PYTHONDONTWRITEBYTECODE", None)  # pip compiles what it installs; here the first start does
        command = [sys.executable, "-m", "sbpair", "emulator", "--namespace", "contoso-weu", "--port", "0"]
        starts = [_start([*command, "--seed", str(seed)], environ) for _ in range(6 if quick else 21)][1:]
    return [row.as_dict() for row in _rows(starts)]


def _rows(starts: list[Started]) -> Iterator[Row]:
    case = f"sbpair emulator, least of {len(starts)}"
    for name, figure, most in (
        ("connected", "start to the first connection", 0.35),
        ("sent", "start to the first message, less the client's waits", 0.5),
        ("stopped", "stop", 0.2),
    ):
        seconds = min(getattr(one, name) for one in starts)
        cpu = min(getattr(one, f"{name}_cpu") for one in starts)
        yield Row("start", case, figure, round(seconds, 3), "s", at_most=most)
        yield Row("start", case, f"{figure}, CPU", round(cpu, 3), "s")
    later = min(one.sent_later for one in starts)
    yield Row("start", case, "a new client's message to a running namespace", round(later, 3), "s")


def _start(command: list[str], environ: dict[str, str]) -> Started:
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ) as it:
        assert it.stdout is not None
        text = it.stdout.readline().partition("\t")[2].strip()
        host, _, port = parse_connection_string(text)["endpoint"].partition("//")[2].strip("/").partition(":")
        with socket.create_connection((host, int(port)), timeout=60):
            connected, connected_cpu = time.monotonic() - began, _cpu_seconds(it.pid)
        first, sent_cpu = _send(text), _cpu_seconds(it.pid)
        later = _send(text)
        stopping_from = _cpu_seconds(it.pid)
        it.send_signal(signal.SIGTERM)
        told = time.monotonic()
        _, status, used = os.wait4(it.pid, 0)
        stopped = time.monotonic() - told
        it.returncode = os.waitstatus_to_exitcode(status)
        assert it.returncode == 128 + signal.SIGTERM, it.returncode
    total = used.ru_utime + used.ru_stime
    sent = connected + max(0.0, first - later)
    return Started(connected, connected_cpu, sent, sent_cpu, later, stopped, max(0.0, total - stopping_from))


def _send(connection_string: str) -> float:
    """Seconds of a new client until its message was accepted."""
    began = time.monotonic()
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_sender("orders", keep_alive=0) as sender,
    ):
        sender.send_messages(ServiceBusMessage("first"))
        return time.monotonic() - began


def _cpu_seconds(pid: int) -> float:
    """Of all threads; finer than the ticks of /proc/PID/stat."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
