"""What `status` takes, beside the same calls made bare: by our adapters, and by a script with the SDK's clients.

    python -m tests.benchmarks --only status [--quick]

The namespaces are a process of their own with a round trip of 20 ms. The three take turns in this process, each with
clients of its own that connect anew, and of each the median counts. The two ask for what `status` asks for: both
namespaces' properties, one list of queues, and what ten backlog queues and their dead letters hold, side by side; they
check nothing. Each link of the SDK's clients has a connection of its own.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from azure.servicebus import ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from sbpair.azure.client import authorities
from sbpair.azure.http import make_transport
from sbpair.concurrency import side_by_side
from sbpair.connect import open_sides
from sbpair.core.access import NamespaceAccess
from sbpair.core.pairing import Pair
from sbpair.operations.status import StatusReader
from sbpair.runtime.browse import PAGE_MESSAGES
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.inspection.backlog import CONCURRENCY
from tests.benchmarks.embedded import BACKLOG, DESTINATION, Embedded, embedded
from tests.benchmarks.table import Row

ROUND_TRIP_MS = 20.0
ALLOWED = 1.2


def run(quick: bool) -> list[dict[str, Any]]:
    """All figures, in a minute at most."""
    rounds = 5 if quick else 15
    with embedded() as on:
        rows = []
        for messages in (0, 100):
            on.fill(messages, 1000)
            rows += asyncio.run(_case(on, f"{messages} messages in {len(BACKLOG)} queues", rounds))
    return [row.as_dict() for row in rows]


async def _case(on: Embedded, case: str, rounds: int) -> list[Row]:
    ways: dict[str, Callable[[Embedded], Awaitable[int]]] = {"bare": _bare, "script": _script, "status": _status}
    calls = {}
    for name, way in ways.items():
        on.watch()
        await way(on)
        seen = on.watched().values()
        calls[name] = sum(one["http"] + one["management"] for one in seen)
    on.delay(ROUND_TRIP_MS)
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    waited: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in [*ways][turn % 3 :] + [*ways][: turn % 3]:
            began, started = time.process_time(), time.perf_counter()
            shown = await ways[name](on)
            waited[name].append(time.perf_counter() - started)
            cpu[name].append(time.process_time() - began)
            assert shown == len(BACKLOG)
    times = {name: median(values) for name, values in waited.items()}
    costs = {name: median(values) for name, values in cpu.items()}
    rows = [Row("status", case, f"calls of {name}", count) for name, count in calls.items()]
    for other in ("bare", "script"):
        ratios = {"time": times["status"] / times[other], "CPU": costs["status"] / costs[other]}
        rows += [
            Row("status", case, f"{what}: status / {other}", round(ratio, 2), "x", at_most=ALLOWED)
            for what, ratio in ratios.items()
        ]
    return [
        *rows,
        Row("status", case, "time of status", round(times["status"] * 1000), "ms"),
        Row("status", case, "CPU of status", round(costs["status"] * 1000), "ms"),
    ]


async def _status(on: Embedded) -> int:
    pair = Pair("embedded", on.primary, on.secondary, entities=(DESTINATION,))
    async with open_sides(pair) as sides:
        reader = StatusReader(sides, LoopClock())
        return len((await reader.read()).backlog.existing)


async def _bare(on: Embedded) -> int:
    pair = Pair("embedded", on.primary, on.secondary, entities=(DESTINATION,))
    async with open_sides(pair) as sides:
        home, away = sides.primary_admin, sides.secondary_admin
        await asyncio.gather(home.namespace(), away.namespace())
        counted = {one.path: one.counts async for one in away.list_queues()}

        async def half(path: str, dead_letter: bool) -> None:
            receiver = sides.secondary.receiver(path, dead_letter=dead_letter)
            counts, number = counted[path], 1
            most = PAGE_MESSAGES if (counts.dead_letter if dead_letter else counts.active) else 1
            while page := await receiver.peek(most, from_sequence_number=number):
                number = page[-1].sequence_number + 1
            await receiver.close()

        async def look(path: str) -> None:
            await asyncio.gather(half(path, False), half(path, True))

        await side_by_side(look, list(counted), at_once=CONCURRENCY)
        return len(counted)


async def _script(on: Embedded) -> int:
    home, away = _admin(on.primary), _admin(on.secondary)
    async with ServiceBusClient.from_connection_string(_text(on.secondary)) as client:
        await asyncio.gather(home.get_namespace_properties(), away.get_namespace_properties())
        counted = [one async for one in away.list_queues_runtime_properties()]

        async def look(path: str) -> None:
            await asyncio.gather(*(_head(client, path, part) for part in (None, ServiceBusSubQueue.DEAD_LETTER)))

        await side_by_side(look, [one.name for one in counted], at_once=CONCURRENCY)
    await home.close()
    await away.close()
    return len(counted)


async def _head(client: ServiceBusClient, path: str, part: ServiceBusSubQueue | None) -> None:
    async with client.get_queue_receiver(path, sub_queue=part) as receiver:
        seen = 0
        while page := await receiver.peek_messages(250, sequence_number=seen):
            seen = (page[-1].sequence_number or 0) + 1


def _admin(access: NamespaceAccess) -> ServiceBusAdministrationClient:
    transport = make_transport(authorities(access.ca_file), f"https://{access.host}")
    return ServiceBusAdministrationClient.from_connection_string(_text(access), transport=transport)


def _text(access: NamespaceAccess) -> str:
    assert access.connection_string is not None
    return access.connection_string.reveal()
