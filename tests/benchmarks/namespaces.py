"""What the embedded namespaces spend on a message of an official client, and keep of a stored one.

    python -m tests.benchmarks --only namespaces [--quick]

The client is azure-servicebus in this process; the namespaces are a process of their own, whose CPU time is counted.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from sbpair.core.access import NamespaceAccess
from tests.benchmarks.embedded import BACKLOG, DESTINATION, Embedded, embedded
from tests.benchmarks.processes import cpu_seconds, resident_bytes
from tests.benchmarks.table import Row

RECEIVE = 100
KB = 1000


def run(quick: bool) -> list[dict[str, Any]]:
    """All figures; `quick` takes about half a minute."""
    messages, stored = (1_000, 20_000) if quick else (5_000, 100_000)
    with embedded() as on:
        rows = [*_kept(on, stored), *asyncio.run(_spent(on, messages, ""))]
    with embedded(durable=True) as on:
        rows += asyncio.run(_spent(on, messages, ", kept on disk"))
    return [row.as_dict() for row in rows]


def _kept(on: Embedded, messages: int) -> Iterator[Row]:
    before = resident_bytes(on.process.pid)
    on.fill(messages, KB)
    grown = resident_bytes(on.process.pid) - before
    case = f"{messages:,} x 1 KB stored"
    yield Row("namespaces", case, "memory", round(grown / 1_000_000), "MB", at_most=150 * messages / 100_000)
    yield Row("namespaces", case, "memory of a message", round(grown / messages), "bytes")


async def _spent(on: Embedded, messages: int, how: str) -> list[Row]:
    on.fill(messages * len(BACKLOG), KB)
    received = await _receive(on, messages)
    one_by_one = await _send(on, messages, batch=1)
    in_batches = await _send(on, messages, batch=RECEIVE)
    case = f"{messages:,} x 1 KB by the SDK{how}"
    most = (150, 150) if how else (80, 25)
    return [
        Row("namespaces", case, "CPU of receive and complete", round(received), "us", at_most=most[0]),
        Row("namespaces", case, "CPU of a send, one at a time", round(one_by_one), "us"),
        Row("namespaces", case, f"CPU of a send in batches of {RECEIVE}", round(in_batches), "us", at_most=most[1]),
    ]


async def _receive(on: Embedded, messages: int) -> float:
    """Microseconds for each message."""
    async with (
        ServiceBusClient.from_connection_string(_text(on.secondary)) as client,
        client.get_queue_receiver(BACKLOG[0]) as receiver,
    ):
        assert await receiver.receive_messages(1, max_wait_time=5)  # connected, attached and warm
        began, done = cpu_seconds(on.process.pid), 0
        while done < messages - 1:
            received = await receiver.receive_messages(min(RECEIVE, messages - 1 - done), max_wait_time=5)
            await asyncio.gather(*(receiver.complete_message(one) for one in received))
            done += len(received)
        return (cpu_seconds(on.process.pid) - began) * 1e6 / done


async def _send(on: Embedded, messages: int, *, batch: int) -> float:
    """Microseconds for each message."""
    sent = [ServiceBusMessage(bytes(KB), message_id=f"message-{number:08}") for number in range(batch)]
    async with (
        ServiceBusClient.from_connection_string(_text(on.primary)) as client,
        client.get_queue_sender(DESTINATION) as sender,
    ):
        await sender.send_messages(sent[0])
        began = cpu_seconds(on.process.pid)
        for _ in range(messages // batch):
            await sender.send_messages(sent if batch > 1 else sent[0])
        return (cpu_seconds(on.process.pid) - began) * 1e6 / messages


def _text(access: NamespaceAccess) -> str:
    assert access.connection_string is not None
    return access.connection_string.reveal()
