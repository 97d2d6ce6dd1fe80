"""Four ways to bring a backlog home, each in a process of its own that tells what it cost.

naive      the SDK: receive one, send one, complete one, from one of the queues
careful    the SDK: receive 100, send them as a batch, complete them at once; queues side by side
bare       our wire without a pump: receive 100, send the very bytes as a batch, settle; nothing edited, nor decoded
ours       `sbpair drain`, without a ledger; `ours+ledger` with one, `ours+chains` with one whose chain is computed
             `MORE_CHAINS` times more
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sbpair.amqp import sections
from sbpair.amqp.performatives import accepted
from sbpair.azure import frames
from sbpair.azure.messaging import AzureMessaging
from sbpair.azure.wire import ReceiverWire, SenderWire, make_sdk_receiver, make_sdk_sender
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.message import Disposition, Received
from sbpair.runtime.clock import LoopClock, Quiet
from sbpair.runtime.transfer import ledger as ledgers
from sbpair.runtime.transfer.drain import DrainJob, TransferRequest, drain
from sbpair.runtime.transfer.ledger import Ledger
from tests.benchmarks.embedded import BACKLOG, DESTINATION, Embedded
from tests.benchmarks.processes import peak_rss_mb

RECEIVE = 100
BARE_BATCH_BYTES = 200 * 1024


@dataclass(frozen=True)
class Cost:
    """What moving so many messages took."""

    messages: int
    seconds: float
    """Until the last one was settled, connecting included."""
    steady_seconds: float
    """From the first one settled to the last."""
    cpu_seconds: float
    peak_rss_mb: float
    rooms: dict[str, float]
    """Share of the CPU time by place, when it was profiled."""


def measure(on: Embedded, way: str, messages: int, *, profile: bool = False) -> Cost:
    """Run one way in a fresh process, for so many messages of what lies in the backlog."""
    sides = [one.connection_string.reveal() for one in (on.primary, on.secondary) if one.connection_string]
    command = [sys.executable, "-m", "tests.benchmarks.movers", way, str(messages), *sides]
    done = subprocess.run([*command, *(["--profile"] if profile else [])], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Cost(**json.loads(done.stdout))


class Goal:
    """Knows when the first and the last message was settled."""

    def __init__(self, messages: int) -> None:
        self.left = messages
        self.began = time.perf_counter()
        self.first_seconds = 0.0
        self.seconds = 0.0

    def reached(self, messages: int = 1) -> None:
        self.left -= messages
        now = time.perf_counter() - self.began
        self.first_seconds = self.first_seconds or now
        if self.left <= 0 and not self.seconds:
            self.seconds = now


async def naive(primary: str, secondary: str, goal: Goal) -> None:
    from azure.servicebus.aio import ServiceBusClient

    async with (
        ServiceBusClient.from_connection_string(primary) as home,
        ServiceBusClient.from_connection_string(secondary) as away,
        home.get_queue_sender(DESTINATION) as sender,
        away.get_queue_receiver(BACKLOG[0]) as receiver,
    ):
        while goal.left > 0:
            for one in await receiver.receive_messages(1, max_wait_time=1):
                await sender.send_messages(_restored(one))
                await receiver.complete_message(one)
                goal.reached()


async def careful(primary: str, secondary: str, goal: Goal) -> None:
    from azure.servicebus.aio import ServiceBusClient

    async with (
        ServiceBusClient.from_connection_string(primary) as home,
        ServiceBusClient.from_connection_string(secondary) as away,
    ):
        await asyncio.gather(*(_careful_queue(home, away, path, goal) for path in BACKLOG))


async def _careful_queue(home: Any, away: Any, path: str, goal: Goal) -> None:
    async with home.get_queue_sender(DESTINATION) as sender, away.get_queue_receiver(path) as receiver:
        while goal.left > 0:
            if not (received := await receiver.receive_messages(RECEIVE, max_wait_time=1)):
                continue  # an empty receive is not an empty queue
            batch = await sender.create_message_batch()
            for one in received:
                try:
                    batch.add_message(_restored(one))
                except ValueError:
                    await sender.send_messages(batch)
                    batch = await sender.create_message_batch()
                    batch.add_message(_restored(one))
            await sender.send_messages(batch)
            await asyncio.gather(*(receiver.complete_message(one) for one in received))
            goal.reached(len(received))


def _restored(received: Any) -> Any:
    """The message as most scripts would write it; types and several fields are lost on the way."""
    from azure.servicebus import ServiceBusMessage

    properties = {_text(key): _text(value) for key, value in (received.application_properties or {}).items()}
    for name in ("x-ms-path", "x-ms-sessionid", "x-ms-timetolive", "x-ms-scheduledenqueuetimeutc"):
        properties.pop(name, None)
    return ServiceBusMessage(
        b"".join(received.body),
        message_id=received.message_id,
        subject=received.subject,
        content_type=received.content_type,
        correlation_id=received.correlation_id,
        application_properties=properties,
    )


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


async def bare(primary: str, secondary: str, goal: Goal) -> None:
    from azure.servicebus.aio import ServiceBusClient

    home = ServiceBusClient.from_connection_string(primary, retry_total=0)
    away = ServiceBusClient.from_connection_string(secondary, retry_total=0)
    sender = SenderWire(make_sdk_sender(home, DESTINATION))
    await sender.open()
    await asyncio.gather(*(_bare_queue(away, sender, path, goal) for path in BACKLOG))
    await sender.close()


async def _bare_queue(away: Any, sender: SenderWire, path: str, goal: Goal) -> None:
    options: dict[str, Any] = {"dead_letter": False, "session_id": None, "next_session_seconds": None}
    receiver = ReceiverWire(make_sdk_receiver(away, path, **options))
    await receiver.open()
    while goal.left > 0:
        receiver.grant(RECEIVE)
        try:
            async with asyncio.timeout(0.5):
                await receiver.arrival.wait()
        except TimeoutError:
            continue
        await asyncio.sleep(0)
        deliveries = [receiver.arrived.popleft() for _ in range(len(receiver.arrived))]
        receiver.arrival.clear()
        for some in parts([one.payload for one in deliveries]):
            await sender.send(sections.build(data=some), frames.BATCH_FORMAT).confirmed
        await asyncio.gather(*(receiver.settle(one, accepted(), "accepted") for one in deliveries))
        goal.reached(len(deliveries))
    await receiver.close()


def parts(payloads: list[bytes]) -> list[list[bytes]]:
    """Batches of up to BARE_BATCH_BYTES."""
    parts: list[list[bytes]] = [[]]
    size = 0
    for payload in payloads:
        if parts[-1] and size + len(payload) > BARE_BATCH_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(payload)
        size += len(payload)
    return parts


class _Timed(AzureMessaging):
    """Notes when the last message was settled."""

    goal: Goal

    def receiver(self, *arguments: Any, **options: Any) -> Any:
        receiver = super().receiver(*arguments, **options)
        settle_all, goal = receiver.settle_all, self.goal

        async def timed(received: Sequence[Received], disposition: Disposition) -> AsyncGenerator[Any, None]:
            async for answers in settle_all(received, disposition):
                goal.reached(len(answers))
                yield answers

        receiver.settle_all = timed  # type: ignore[method-assign]
        return receiver


async def ours(primary: str, secondary: str, goal: Goal, ledger: Ledger | None = None) -> None:
    home, away = AzureMessaging(_access("primary", primary)), _Timed(_access("secondary", secondary))
    away.goal = goal
    await drain(
        DrainJob(
            TransferRequest(BACKLOG),
            secondary=away,
            primary=home,
            clock=LoopClock(),
            observer=Quiet(),
            ledger=ledger,
            stop=asyncio.Event(),
        )
    )
    await home.close()
    await away.close()


async def with_ledger(primary: str, secondary: str, goal: Goal) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.jsonl")
        await ours(primary, secondary, goal, ledger)
        await ledger.close()


MORE_CHAINS = 20
"""What one chain costs of a drain is less than two runs differ by chance; this many cost enough to be seen."""


async def with_chains(primary: str, secondary: str, goal: Goal) -> None:
    chained = ledgers.chained

    def again(lines: Sequence[bytes], since: Any) -> tuple[bytes, Any]:
        for _ in range(MORE_CHAINS):
            chained(lines, since)
        return chained(lines, since)

    ledgers.chained = again  # type: ignore[attr-defined]
    await with_ledger(primary, secondary, goal)


def _access(name: str, text: str) -> NamespaceAccess:
    return NamespaceAccess(name, host_of(text), AuthMethod.CONNECTION_STRING, Secret(text))


WAYS: dict[str, Callable[[str, str, Goal], Awaitable[None]]] = {
    "naive": naive,
    "careful": careful,
    "bare": bare,
    "ours": ours,
    "ours+ledger": with_ledger,
    "ours+chains": with_chains,
}
_PLACES = (
    ("/sbpair/amqp/", "amqp"),
    ("/sbpair/core/", "core"),
    ("/sbpair/runtime/", "runtime"),
    ("/sbpair/azure/", "azure adapters"),
    ("/azure/servicebus/", "SDK"),
    ("/asyncio/", "asyncio"),
    ("selectors.py", "asyncio"),
)
_WIRE = ("socket", "select", "epoll", "_asyncio")


def _profiled(run: Callable[[], None]) -> dict[str, float]:
    """Run it under cProfile; share of the time by room, without what was called from there."""
    import cProfile
    import pstats

    profile = cProfile.Profile()
    profile.runcall(run)
    stats: Any = pstats.Stats(profile)
    spent: dict[str, float] = {}
    for (file, _, name), (_, _, own_seconds, _, _) in stats.stats.items():
        if "'poll'" in name or "'acquire'" in name:
            continue  # waiting is no CPU time
        place = next((place for part, place in _PLACES if part in file), None)
        if place is None:
            place = "asyncio" if any(word in name for word in _WIRE) else "Python's own"
        spent[place] = spent.get(place, 0.0) + own_seconds
    total = sum(spent.values())
    return {place: round(seconds / total, 3) for place, seconds in sorted(spent.items(), key=lambda one: -one[1])}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("messages", type=int)
    parser.add_argument("primary")
    parser.add_argument("secondary")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    import azure.servicebus.aio  # noqa: F401 - loaded before the clock starts

    goal = Goal(arguments.messages)
    started = time.process_time()

    def run() -> None:
        async def work() -> None:
            await WAYS[arguments.way](arguments.primary, arguments.secondary, goal)

        asyncio.run(work())

    rooms: dict[str, float] = {}
    if arguments.profile:
        rooms = _profiled(run)
    else:
        run()
    cost = Cost(
        arguments.messages - max(0, goal.left),
        goal.seconds,
        goal.seconds - goal.first_seconds,
        time.process_time() - started,
        peak_rss_mb(),
        rooms,
    )
    print(json.dumps(asdict(cost)))


if __name__ == "__main__":
    main()
