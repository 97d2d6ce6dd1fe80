"""What the failover sender costs while all is well, and what it opens when a thousand fail over at once.

python -m tests.benchmarks.sender [--quick]
"""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from sbpair.azure.administration import DataPlaneAdmin
from sbpair.azure.messaging import AzureMessaging
from sbpair.core.pairing import Pair, SendAvailabilityOptions
from sbpair.core.rewrite import compose
from sbpair.runtime.clock import LoopClock, Quiet
from sbpair.runtime.failover.pairing import PairedNamespaces, PairingContext
from sbpair.runtime.failover.sender import SentTo
from tests.benchmarks.embedded import BACKLOG, DESTINATION, Embedded, embedded
from tests.benchmarks.table import Row, print_rows

SENDERS = 1000
ROUNDS = 5
BODY = "x" * 100

Send = Callable[[], Awaitable[object]]


@asynccontextmanager
async def paired(on: Embedded) -> AsyncIterator[PairedNamespaces]:
    """An open pairing over the embedded namespaces, diverting at the first failure."""
    options = SendAvailabilityOptions(backlog_queue_count=len(BACKLOG), failover_interval_seconds=0.0)
    admin, home, away = DataPlaneAdmin(on.secondary), AzureMessaging(on.primary), AzureMessaging(on.secondary)
    pairing = await PairedNamespaces.open(
        Pair("embedded", on.primary, on.secondary, options),
        PairingContext(primary=home, secondary=away, clock=LoopClock(), observer=Quiet()),
        secondary_admin=admin,
        create_missing=True,
    )
    await admin.close()
    async with pairing:
        yield pairing
    await home.close()
    await away.close()


async def healthy(on: Embedded, messages: int) -> list[Row]:
    """CPU per message against the SDK's own sender, rounds taking turns."""
    from azure.servicebus import ServiceBusMessage
    from azure.servicebus.aio import ServiceBusClient

    assert on.primary.connection_string is not None
    client = ServiceBusClient.from_connection_string(on.primary.connection_string.reveal())
    async with client, client.get_queue_sender(DESTINATION) as sdk, paired(on) as pairing:
        sender, payload = pairing.sender(DESTINATION), compose(body=BODY, message_id="1")

        async def bare() -> None:
            await sdk.send_messages(ServiceBusMessage(BODY, message_id="1"))

        best = await _best_of_turns([bare, lambda: sender.send(payload)], messages)
    theirs, ours = best
    case = f"{messages:,} sends of one message, one after another"
    return [
        Row("sender", case, "CPU: ours / the SDK's sender", round(ours / theirs, 3), "x", at_most=1.05),
        Row("sender", case, "CPU per message: ours", round(ours / messages * 1e6), "us"),
        Row("sender", case, "CPU per message: the SDK's sender", round(theirs / messages * 1e6), "us"),
    ]


async def _best_of_turns(ways: list[Send], messages: int) -> list[float]:
    """CPU seconds of the best round of each way; a first message opens its link."""
    best = [float("inf")] * len(ways)
    for way in ways:
        await way()
    for _ in range(ROUNDS):
        for index, way in enumerate(ways):
            started = time.process_time()
            for _ in range(messages):
                await way()
            best[index] = min(best[index], time.process_time() - started)
    return best


async def failing_over(on: Embedded) -> list[Row]:
    """A thousand senders of one pairing, all diverted at once: the connections that the namespaces saw."""
    on.fill(0, 0)
    async with paired(on) as pairing:
        on.watch()
        on.strike("primary", f"quota:entity={DESTINATION}")
        sends = [
            pairing.sender(DESTINATION).send(compose(body=BODY, message_id=str(number)), timeout_seconds=60)
            for number in range(SENDERS)
        ]
        results = await asyncio.gather(*sends)
        seen = on.watched()
    assert {one.where for one in results} == {SentTo.BACKLOG}
    assert on.counts() == {"home": 0, "backlog": SENDERS}
    case = f"{SENDERS:,} senders fail over at once"
    opened = seen["primary"]["connect"], seen["secondary"]["connect"]
    return [
        Row("sender", case, "connections to the primary", opened[0], at_most=2),
        Row("sender", case, "connections to the secondary", opened[1], at_most=len(BACKLOG) + 1),
    ]


async def _run(quick: bool) -> list[Row]:
    with embedded() as on:
        return [*await healthy(on, 200 if quick else 1000), *await failing_over(on)]


def run(quick: bool) -> list[dict[str, Any]]:
    """All figures, in half a minute at most."""
    return [row.as_dict() for row in asyncio.run(_run(quick))]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sender")
    parser.add_argument("--quick", action="store_true")
    print_rows(run(parser.parse_args().quick))


if __name__ == "__main__":
    main()
