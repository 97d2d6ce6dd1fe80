"""What the gateway costs: its CPU time for each message, and what it adds to the time of a send.

python -m tests.benchmarks.gateway [--quick]

Two embedded namespaces in a process of their own, the gateway in another, and a client of plain AMQP here that sends
bodies of 1 KB directly and through the gateway, turn by turn. CPU is read from /proc of the gateway and of the
namespaces.

To compare: a router in C (Apache Qpid Dispatch 1.19, link-routing to the same namespace, on such a machine in 2026)
took 300 us a message for single sends over 1 connection, 115 over 10, 90 over 50, and 35 pipelined; the gateway 145,
104, 105, 22, and 4 a message in batches of 100 (November 2026, two cores with much other work beside).
"""

import argparse
import asyncio
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sbpair.amqp.frames import read_header, transfer_continuation, transfer_head
from sbpair.amqp.performatives import (
    ATTACH,
    BEGIN,
    DISPOSITION,
    FLOW,
    OPEN,
    SASL_INIT,
    SOURCE,
    TARGET,
    Fields,
    perform,
    read_performative,
)
from sbpair.amqp.sections import build
from sbpair.amqp.types import Described, Symbol, Ubyte, Uint, Ulong
from sbpair.core.access import host_of, parse_connection_string
from tests.benchmarks.embedded import DESTINATION, Embedded, embedded
from tests.benchmarks.processes import cpu_seconds

BODY = build(data=[b"x" * 1024])
BATCH = build(data=[BODY] * 100)
BATCH_FORMAT = 0x80013700
_PART = 60_000
_SASL, _AMQP = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"


class Raw:
    """One connection with one link that sends, as little as AMQP allows."""

    def __init__(self, text: str, entity: str) -> None:
        self._parts = parse_connection_string(text)
        self._host, self._entity = host_of(text), entity
        self._next, self._credit = 0, 0
        self._settled = 0
        self._some = asyncio.Event()

    async def open(self) -> None:
        host, _, port = self._host.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        self._writer.write(_SASL)
        await self._reader.readexactly(8)
        key = f"\0{self._parts['sharedaccesskeyname']}\0{self._parts['sharedaccesskey']}".encode()
        self._frame(perform(SASL_INIT, [Symbol("PLAIN"), key]), kind=1)
        while (await self._read())[0] != 0x44:
            pass
        self._writer.write(_AMQP)
        await self._reader.readexactly(8)
        self._frame(perform(OPEN, ["bench", host, Uint(65536)]))
        self._frame(perform(BEGIN, [None, Uint(0), Uint(65536), Uint(65536)]))
        ends = Described(Ulong(SOURCE), ["bench"]), Described(Ulong(TARGET), [self._entity])
        self._frame(perform(ATTACH, ["bench", Uint(0), False, Ubyte(2), Ubyte(0), *ends, None, None, Uint(0)]))
        self._reading = asyncio.create_task(self._read_on())
        self._reading.add_done_callback(lambda _: self._some.set())
        await self._until(lambda: self._credit > 0)

    async def close(self) -> None:
        self._reading.cancel()
        self._writer.close()

    async def send(self, payload: bytes, message_format: int, count: int, window: int) -> None:
        """Send so many transfers, at most `window` of them unsettled."""
        done = self._next + count
        while self._settled < done:
            while self._next < done and self._next - self._settled < window and self._next < self._credit:
                tag = self._next.to_bytes(4)
                parts = [payload[at : at + _PART] for at in range(0, len(payload), _PART)]
                head = transfer_head(0, self._next, tag, message_format, settled=False, more=len(parts) > 1)
                self._frame(head, parts[0])
                for index, part in enumerate(parts[1:], start=2):
                    self._frame(transfer_continuation(0, settled=False, more=index < len(parts)), part)
                self._next += 1
            self._some.clear()
            if self._settled < done:
                await self._wait()

    async def _until(self, condition: "object") -> None:
        while not condition():  # type: ignore[operator]
            self._some.clear()
            await self._wait()

    async def _wait(self) -> None:
        """Until something has come. Raises what has ended the reading."""
        await self._some.wait()
        if self._reading.done():
            self._reading.result()

    def _frame(self, body: bytes, payload: bytes = b"", kind: int = 0) -> None:
        self._writer.write(struct.pack(">IBBH", 8 + len(body) + len(payload), 2, kind, 0) + body + payload)

    async def _read(self) -> tuple[int, Fields]:
        head = await self._reader.readexactly(8)
        size, start, _, _ = read_header(head, 0, 1 << 20)
        body = await self._reader.readexactly(size - 8)
        if size == start:
            return 0, Fields([])
        code, values, _ = read_performative(body)
        return code, Fields(values)

    async def _read_on(self) -> None:
        while True:
            code, fields = await self._read()
            if code == DISPOSITION:
                first = fields.required_number(1)
                assert fields.get(4).descriptor == 0x24, fields.get(4)
                self._settled += (fields.number(2) or first) - first + 1
            elif code == FLOW and fields.number(4) is not None:
                self._credit = (fields.number(5) or 0) + (fields.number(6) or 0)
            self._some.set()


async def measure(
    pid: int, text: str, connections: int, payload: bytes, message_format: int, each: int, window: int
) -> tuple[float, float]:
    """Seconds that the sends took, and seconds of CPU of the gateway meanwhile."""
    links = [Raw(text, DESTINATION) for _ in range(connections)]
    await asyncio.gather(*(link.open() for link in links))
    await asyncio.gather(*(link.send(payload, message_format, 20, window) for link in links))
    began, spent = time.perf_counter(), cpu_seconds(pid)
    await asyncio.gather(*(link.send(payload, message_format, each, window) for link in links))
    took = time.perf_counter() - began, cpu_seconds(pid) - spent
    await asyncio.gather(*(link.close() for link in links))
    return took


async def latencies(text: str, count: int) -> list[float]:
    """Of single sends over one connection, in milliseconds."""
    link = Raw(text, DESTINATION)
    await link.open()
    found = []
    for _ in range(count):
        began = time.perf_counter()
        await link.send(BODY, 0, 1, 1)
        found.append((time.perf_counter() - began) * 1000)
    await link.close()
    return found


def gateway(on: Embedded, folder: Path) -> "tuple[subprocess.Popen[str], str]":
    """The process, and its connection string."""
    assert on.primary.connection_string is not None
    assert on.secondary.connection_string is not None
    file = folder / "sbpair.yaml"
    file.write_text(
        "version: 1\nauth: connection-string\npairs:\n  bench:\n"
        f"    primary: {{namespace: {on.primary.label}, connection_string: {{env: P}}, host: 127.0.0.1}}\n"
        f"    secondary: {{namespace: {on.secondary.label}, connection_string: {{env: S}}, host: 127.0.0.1}}\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "sbpair", "gateway", "bench", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={
            **os.environ,
            "P": on.primary.connection_string.reveal(),
            "S": on.secondary.connection_string.reveal(),
            "SBPAIR_CONFIG": str(file),
            "XDG_STATE_HOME": str(folder),
        },
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    return process, line.partition("'")[2].rstrip("'\n")


SHAPES = {
    "single, 1 connection": (1, BODY, 0, 1500, 1, 1),
    "single, 10 connections": (10, BODY, 0, 300, 1, 1),
    "single, 50 connections": (50, BODY, 0, 80, 1, 1),
    "pipelined, 1 connection": (1, BODY, 0, 5000, 200, 1),
    "batches of 100": (1, BATCH, BATCH_FORMAT, 100, 1, 100),
}


async def run(quick: bool) -> None:
    with embedded() as on, tempfile.TemporaryDirectory() as folder:
        direct = on.primary.connection_string
        assert direct is not None
        process, through = gateway(on, Path(folder))
        try:
            for name, (connections, payload, kind, each, window, per) in SHAPES.items():
                each = each // 10 if quick else each
                messages = connections * each * per
                shape = connections, payload, kind, each, window
                seconds, own = await measure(on.process.pid, direct.reveal(), *shape)
                slower, spent = await measure(process.pid, through, *shape)
                print(
                    f"{name:26} CPU a message: gateway {spent / messages * 1e6:6.1f} us, "
                    f"namespace {own / messages * 1e6:6.1f} us; messages/s: {messages / seconds:7.0f} direct, "
                    f"{messages / slower:7.0f} through it",
                    flush=True,
                )
            count = 200 if quick else 2000
            alone, with_it = sorted(await latencies(direct.reveal(), count)), sorted(await latencies(through, count))
            for name, found in (("direct", alone), ("through the gateway", with_it)):
                tail = found[int(len(found) * 0.99)]
                print(f"latency {name:20} p50 {statistics.median(found):6.2f} ms  p99 {tail:6.2f} ms")
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    asyncio.run(run(parser.parse_args().quick))
