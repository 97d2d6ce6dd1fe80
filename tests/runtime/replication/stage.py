"""A replicated queue on two embedded namespaces, a journal in a file, and what its consumers did."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sbpair.azure.messaging import AzureMessaging
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.message import Received
from sbpair.core.pairing import Side
from sbpair.core.replication.ownership import SessionEntry, Terms
from sbpair.core.replication.status import ConsumeReport
from sbpair.core.retry import Backoff
from sbpair.core.rewrite import compose
from sbpair.emulator import Emulator
from sbpair.emulator.entities import QueueDescription
from sbpair.journal.sqlite import SqliteJournal
from sbpair.ports import Journal
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.replication.consumer import ConsumeRequest, consume
from sbpair.runtime.replication.handlers import Delivery, Handler
from sbpair.runtime.replication.sender import DualSender
from sbpair.runtime.replication.store import SessionStore
from tests.fakes import RecordingObserver

QUEUE = "orders"
SIDES = (Side.PRIMARY, Side.SECONDARY)
BRISK = Terms(lease_seconds=2.0, margin_seconds=0.2, max_attempts=3)
SOON = Backoff(first_seconds=0.05, most_seconds=0.2)


def access_to(emulator: Emulator, name: str) -> NamespaceAccess:
    text = emulator.connection_string(name)
    return NamespaceAccess(
        label=name, host=host_of(text), auth=AuthMethod.CONNECTION_STRING, connection_string=Secret(text)
    )


@dataclass
class Stage:
    """Both namespaces, clients of them, a journal, and the record of the handler `work`."""

    emulator: Emulator
    journal: Journal
    messaging: dict[Side, AzureMessaging]
    done: list[tuple[str, str, str]] = field(default_factory=list)
    """(session, message, side) of every message a handler finished."""
    observer: RecordingObserver = field(default_factory=RecordingObserver)

    async def work(self, delivery: Delivery) -> None:
        self.done.append((delivery.session_id, delivery.message_id, delivery.region))

    def sender(self, *, entity: str = QUEUE, **options: Any) -> DualSender:
        return DualSender(
            entity,
            primary=self.messaging[Side.PRIMARY],
            secondary=self.messaging[Side.SECONDARY],
            clock=LoopClock(),
            **{"journal": self.journal, "delay_seconds": 0.0} | options,
        )

    async def send(self, *messages: tuple[str, str], **options: Any) -> None:
        """Send (session, message id) pairs to both sides, each call a sender of its own."""
        sender = self.sender(**options)
        for session, message in messages:
            await sender.send(compose(body=message, message_id=message, session_id=session), timeout_seconds=60)
        await sender.close()

    async def consume(
        self, handler: Handler | None = None, *, stop: asyncio.Event | None = None, **options: Any
    ) -> ConsumeReport:
        """One consumer of both sides; by default until nothing has come for a while."""
        settings: dict[str, Any] = {
            "terms": BRISK,
            "until_idle_seconds": 2.5,
            "idle_seconds": 0.1,
            "hold_seconds": 1.0,
            "retry": SOON,
            "later_seconds": 0.1,
            "grace_seconds": 1.0,
        }
        request = replace(ConsumeRequest(QUEUE), **settings | options)
        return await consume(
            request,
            primary=self.messaging[Side.PRIMARY],
            secondary=self.messaging[Side.SECONDARY],
            journal=self.journal,
            handler=handler or self.work,
            clock=LoopClock(),
            observer=self.observer,
            stop=stop or asyncio.Event(),
        )

    @asynccontextmanager
    async def consuming(self, handler: Handler | None = None, **options: Any) -> AsyncIterator[asyncio.Event]:
        """A consumer beside the test; stopped in the end."""
        stop = asyncio.Event()
        running = asyncio.create_task(self.consume(handler, stop=stop, **{"until_idle_seconds": None} | options))
        try:
            yield stop
        finally:
            stop.set()
            await running

    async def entry(self, session: str) -> SessionEntry:
        known = await SessionStore(self.journal, QUEUE, BRISK).read(session)
        assert known.raw is not None, f"no entry of {session}"
        return known.entry

    def left(self, side: Side) -> tuple[int, int]:
        """(active and scheduled, dead-lettered) messages of a side."""
        queue = self.emulator.namespace(side.value).get_queue(QUEUE)
        assert queue is not None
        counts = queue.counts()
        return counts.active + counts.scheduled, counts.dead_letter

    async def dead_letters(self, side: Side) -> list[Received]:
        receiver = self.messaging[side].receiver(QUEUE, dead_letter=True)
        found = await receiver.peek(100)
        await receiver.close()
        return found

    def dark(self, side: Side) -> str:
        return str(self.emulator.faults(side.value).add("dark"))

    def light(self, side: Side) -> None:
        self.emulator.faults(side.value).clear()


@asynccontextmanager
async def stage(folder: Path, *, lock_seconds: float = 5.0, duplicate_detection: bool = False) -> AsyncIterator[Stage]:
    async with Emulator([side.value for side in SIDES], seed=1) as emulator:
        for side in SIDES:
            description = QueueDescription(
                requires_session=True,
                lock_duration_seconds=lock_seconds,
                max_delivery_count=2_000_000,
                requires_duplicate_detection=duplicate_detection,
            )
            emulator.namespace(side.value).create_queue(QUEUE, description)
        journal = SqliteJournal(folder / "journal.db")
        messaging = {side: AzureMessaging(access_to(emulator, side.value)) for side in SIDES}
        try:
            yield Stage(emulator, journal, messaging)
        finally:
            for one in messaging.values():
                await one.close()
            await journal.close()


async def eventually(condition: Callable[[], bool], *, seconds: float = 90.0) -> None:
    """Wait until something is so."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.02)
    assert condition()
