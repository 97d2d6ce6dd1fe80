"""What the healthy path costs: CPU per message against the bare SDK, with the emulator in another process."""

import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from sbpair.azure.administration import DataPlaneAdmin
from sbpair.azure.messaging import AzureMessaging
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.pairing import Pair, SendAvailabilityOptions
from sbpair.core.rewrite import compose
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.failover.pairing import PairedNamespaces, PairingContext
from tests.fakes import RecordingObserver

MESSAGES = 300
ALLOWED = 1.05

EMULATOR = """
import asyncio
import sys
from sbpair.emulator import Emulator

async def main():
    async with Emulator(["primary", "secondary"]) as emulator:
        emulator.namespace("primary").create_queue("orders")
        for name in emulator.names:
            print(emulator.connection_string(name), flush=True)
        print(emulator.ca_path, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@pytest.fixture
def embedded() -> Iterator[tuple[NamespaceAccess, NamespaceAccess]]:
    with subprocess.Popen(
        [sys.executable, "-c", EMULATOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        primary, secondary, ca_file = (process.stdout.readline().strip() for _ in range(3))
        yield access("primary", primary, ca_file), access("secondary", secondary, ca_file)
        assert process.stdin is not None
        process.stdin.close()


def access(label: str, text: str, ca_file: str) -> NamespaceAccess:
    auth = AuthMethod.CONNECTION_STRING
    return NamespaceAccess(label, host_of(text), auth, Secret(text), ca_file=ca_file)


async def cpu_seconds(send: Callable[[], Awaitable[object]]) -> float:
    """CPU time of this process for the messages, the best of three rounds; a first message opens the link."""
    await send()
    rounds = []
    for _ in range(3):
        started = time.process_time()
        for _ in range(MESSAGES):
            await send()
        rounds.append(time.process_time() - started)
    return min(rounds)


async def test_the_healthy_path_costs_no_more_cpu_than_the_bare_sdk_sender(
    embedded: tuple[NamespaceAccess, NamespaceAccess],
) -> None:
    primary, secondary = embedded
    assert primary.connection_string is not None
    client = ServiceBusClient.from_connection_string(primary.connection_string.reveal())
    async with client, client.get_queue_sender("orders") as sdk_sender:
        bare = await cpu_seconds(lambda: sdk_sender.send_messages(ServiceBusMessage("x" * 100, message_id="1")))
    admin = DataPlaneAdmin(secondary)
    pairing = await PairedNamespaces.open(
        Pair("embedded", primary, secondary, SendAvailabilityOptions(backlog_queue_count=1)),
        PairingContext(
            primary=AzureMessaging(primary),
            secondary=AzureMessaging(secondary),
            clock=LoopClock(),
            observer=RecordingObserver(),
        ),
        secondary_admin=admin,
        create_missing=True,
    )
    await admin.close()
    async with pairing:
        sender, payload = pairing.sender("orders"), compose(body="x" * 100, message_id="1")
        ours = await cpu_seconds(lambda: sender.send(payload))
    assert ours <= bare * ALLOWED, f"{ours / bare:.2f} times the CPU of the SDK's sender"
