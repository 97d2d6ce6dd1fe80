"""A session that is locked stays locked while nothing of it is in hand, over the embedded namespace."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from sbpair.azure.messaging import AzureMessaging
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.errors import LockLostError, SessionUnavailableError
from sbpair.core.message import Disposition
from sbpair.core.rewrite import compose
from sbpair.emulator import Emulator, ManualClock, NamespaceConfig
from sbpair.emulator.entities import QueueDescription
from sbpair.runtime.links import keep_session

LOCK_SECONDS = 10.0
RENEWALS = 12
"""Four lock durations long."""


class Passing:
    """Where somebody sleeps, the namespace's time passes. `slept` once that has happened often enough."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._sleeps = 0
        self.slept = asyncio.Event()

    def monotonic(self) -> float:
        return self._clock.now()

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now(), UTC)

    async def sleep(self, seconds: float) -> None:
        if self._sleeps == RENEWALS:
            self.slept.set()
            await asyncio.Event().wait()
        self._sleeps += 1
        self._clock.advance(seconds)


@pytest.fixture
async def namespace() -> AsyncIterator[tuple[ManualClock, AzureMessaging]]:
    clock = ManualClock(math.floor(time.time()))  # the tokens of real clients are to be valid
    async with Emulator([NamespaceConfig("contoso")], clock=clock) as emulator:
        orders = QueueDescription(requires_session=True, lock_duration_seconds=LOCK_SECONDS)
        emulator.namespace("contoso").create_queue("orders", orders).send(
            compose(body=b"one", message_id="m1", session_id="s1")
        )
        text = emulator.connection_string("contoso")
        access = NamespaceAccess("contoso", host_of(text), AuthMethod.CONNECTION_STRING, connection_string=Secret(text))
        messaging = AzureMessaging(access)
        yield clock, messaging
        await messaging.close()


async def test_a_kept_session_outlives_its_lock_with_nothing_of_it_in_hand(
    namespace: tuple[ManualClock, AzureMessaging],
) -> None:
    clock, messaging = namespace
    receiver, passing = messaging.receiver("orders", session_id="s1"), Passing(clock)
    assert await receiver.session_state() is None
    keeping = asyncio.create_task(keep_session(receiver, passing, pause_seconds=LOCK_SECONDS / 3))
    async with asyncio.timeout(60):
        await passing.slept.wait()
    with pytest.raises(SessionUnavailableError):
        await messaging.receiver("orders", session_id="s1").session_state()
    [one] = await receiver.receive(1, wait_seconds=30)
    await receiver.settle(one, Disposition.COMPLETE)
    keeping.cancel()


async def test_a_session_that_nobody_keeps_goes_to_the_next_who_asks(
    namespace: tuple[ManualClock, AzureMessaging],
) -> None:
    clock, messaging = namespace
    receiver = messaging.receiver("orders", session_id="s1")
    [one] = await receiver.receive(1, wait_seconds=30)
    clock.advance(LOCK_SECONDS + 1)
    other = messaging.receiver("orders", session_id="s1")
    assert await other.session_state() is None
    with pytest.raises(LockLostError):
        await receiver.settle(one, Disposition.COMPLETE)
