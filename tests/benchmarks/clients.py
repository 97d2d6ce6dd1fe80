"""What the drop-in clients cost while all is well, against the SDK's clients of the same names.

python -m tests.benchmarks.clients [--quick]

CPU time of this process (the namespaces run in another one), and the time an application waits. The two take turns call
by call, and of each the median of its calls counts, so that whatever else the machine does falls on both alike or not
at all.
"""

import argparse
import asyncio
import gc
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import azure.servicebus as sdk
import azure.servicebus.aio as sdk_aio
from azure.servicebus import ServiceBusMessage

import sbpair
import sbpair.aio
from sbpair.core.pairing import Pair, SendAvailabilityOptions
from tests.benchmarks.embedded import DESTINATION, Embedded, embedded
from tests.benchmarks.table import Row, print_rows

BODY = "x" * 100
BATCH = 10
ALLOWED = 1.05

Send = Callable[[], object]
AsyncSend = Callable[[], Awaitable[object]]


def a_message() -> ServiceBusMessage:
    return ServiceBusMessage(BODY, message_id="1")


def a_list() -> list[ServiceBusMessage]:
    return [ServiceBusMessage(BODY, message_id=str(number)) for number in range(BATCH)]


WHAT: dict[str, Callable[[], Any]] = {"one message": a_message, f"a list of {BATCH}": a_list}


def a_pair(on: Embedded) -> Pair:
    return Pair("embedded", on.primary, on.secondary, SendAvailabilityOptions())


def text(on: Embedded) -> str:
    assert on.primary.connection_string is not None
    return on.primary.connection_string.reveal()


def synchronous(on: Embedded, calls: int) -> list[Row]:
    bare_client = sdk.ServiceBusClient.from_connection_string(text(on))
    our_client = sbpair.ServiceBusClient.from_connection_string(text(on), pair=a_pair(on))
    with bare_client, our_client:  # noqa: SIM117
        with bare_client.get_queue_sender(DESTINATION) as bare, our_client.get_queue_sender(DESTINATION) as ours:
            rows = []
            for name, make in WHAT.items():
                ways: list[Send] = [lambda: bare.send_messages(make()), lambda: ours.send_messages(make())]  # noqa: B023
                rows += _rows("synchronous", name, _turns(ways, calls))
            rows.append(_memory(bare, ours, calls))
    return rows


class _Spent:
    """Seconds of CPU, and of waiting, of each call of the two."""

    def __init__(self) -> None:
        self.cpu: tuple[list[float], list[float]] = ([], [])
        self.waited: tuple[list[float], list[float]] = ([], [])

    def medians(self) -> list[tuple[float, float]]:
        """CPU and waiting: of the SDK's, then of ours."""
        return [(statistics.median(self.cpu[one]), statistics.median(self.waited[one])) for one in (0, 1)]


def _turns(ways: list[Send], calls: int) -> _Spent:
    spent = _Spent()
    for way in ways:
        way()
    for call in range(calls):
        for index in (0, 1) if call % 2 else (1, 0):
            cpu, started = time.process_time(), time.perf_counter()
            ways[index]()
            spent.waited[index].append(time.perf_counter() - started)
            spent.cpu[index].append(time.process_time() - cpu)
    return spent


async def asynchronous(on: Embedded, calls: int) -> list[Row]:
    bare_client = sdk_aio.ServiceBusClient.from_connection_string(text(on))
    our_client = sbpair.aio.ServiceBusClient.from_connection_string(text(on), pair=a_pair(on))
    rows = []
    async with bare_client, our_client:  # noqa: SIM117
        async with bare_client.get_queue_sender(DESTINATION) as bare, our_client.get_queue_sender(DESTINATION) as ours:
            for name, make in WHAT.items():
                ways: list[AsyncSend] = [lambda: bare.send_messages(make()), lambda: ours.send_messages(make())]  # noqa: B023
                rows += _rows("asynchronous", name, await _async_turns(ways, calls))
    return rows


async def _async_turns(ways: list[AsyncSend], calls: int) -> _Spent:
    spent = _Spent()
    for way in ways:
        await way()
    for call in range(calls):
        for index in (0, 1) if call % 2 else (1, 0):
            cpu, started = time.process_time(), time.perf_counter()
            await ways[index]()
            spent.waited[index].append(time.perf_counter() - started)
            spent.cpu[index].append(time.process_time() - cpu)
    return spent


def _rows(kind: str, what: str, spent: _Spent) -> list[Row]:
    (bare_cpu, bare_waited), (our_cpu, our_waited) = spent.medians()
    case = f"{kind}, {what} a call"
    return [
        Row("clients", case, "CPU: ours / the SDK's client", round(our_cpu / bare_cpu, 3), "x", at_most=ALLOWED),
        Row("clients", case, "time: ours / the SDK's client", round(our_waited / bare_waited, 3), "x", at_most=ALLOWED),
        Row("clients", case, "CPU per call: the SDK's client", round(bare_cpu * 1e6), "us"),
        Row("clients", case, "time per call: the SDK's client", round(bare_waited * 1e6), "us"),
    ]


def _memory(bare: Any, ours: Any, calls: int) -> Row:
    """What stays allocated per message, beyond what the SDK's own sender leaves."""
    left = []
    tracemalloc.start()
    for sender in (bare, ours):
        for count in (calls // 4, calls):
            for _ in range(count):
                sender.send_messages(a_message())
            gc.collect()
            left.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    growth = ((left[3] - left[2]) - (left[1] - left[0])) / calls
    return Row("clients", "synchronous, one message a call", "memory kept per message", round(growth), "B", at_most=16)


def run(quick: bool) -> list[dict[str, Any]]:
    """All figures, in half a minute at most."""
    calls = 200 if quick else 1000
    with embedded() as on:
        on.fill(0, 0)
        rows = [*synchronous(on, calls), *asyncio.run(asynchronous(on, calls))]
    return [row.as_dict() for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.clients")
    parser.add_argument("--quick", action="store_true")
    print_rows(run(parser.parse_args().quick))


if __name__ == "__main__":
    main()
