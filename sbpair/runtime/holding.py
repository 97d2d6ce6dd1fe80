"""Finds out which held sessions have gone home, so that their next message may go to the primary again."""

import asyncio
from collections.abc import Collection
from typing import Protocol

from sbpair.amqp.sections import Section
from sbpair.core import aliases
from sbpair.core.encoded import EncodedMessage
from sbpair.core.errors import MalformedMessageError, ServiceError
from sbpair.core.holding import SessionHolds, SessionKey
from sbpair.ports import Clock, MessageReceiver, Messaging
from sbpair.runtime.bounded import within
from sbpair.runtime.links import close_quietly
from sbpair.tasks import end

POLL_SECONDS = 5.0
SCAN_SHARE = 10
"""After a scan, at least this many times its duration passes before the next."""
PAGE_MESSAGES = 250
"""The most a browse returns (service limit)."""
PAGE_SECONDS = 60.0


class SyphonedPosition(Protocol):
    """Tells how far a backlog queue has been emptied."""

    async def sessions_waiting(self, queue: str) -> Collection[SessionKey] | None:
        """The sessions, as (entity path in lower case, session id), with a message still in the queue.

        None when that cannot be told now. A message is in the queue until the primary accepted it and the backlog copy
        was completed.
        """


class BrowsedPosition:
    """Browses the whole queue; messages under the syphon's lock are seen too, so it is exact, and slow on a big one."""

    def __init__(self, messaging: Messaging) -> None:
        self._messaging = messaging

    async def sessions_waiting(self, queue: str) -> Collection[SessionKey] | None:
        receiver = self._messaging.receiver(queue)
        try:
            return await self._walk(receiver)
        except ServiceError:
            return None
        finally:
            await close_quietly(receiver)

    async def _walk(self, receiver: MessageReceiver) -> set[SessionKey]:
        waiting: set[SessionKey] = set()
        position = 0
        what = f"Browse of {receiver.source}"
        while page := await within(
            PAGE_SECONDS, receiver.peek(PAGE_MESSAGES, from_sequence_number=position), what=what
        ):
            waiting.update(key for received in page if (key := session_key(received.payload)) is not None)
            position = max(received.sequence_number for received in page) + 1
        return waiting


def session_key(payload: bytes) -> SessionKey | None:
    """The session a backlog message belongs to on the primary; None for a sessionless or unreadable message."""
    try:
        message = EncodedMessage(payload)
        path = message.entry(Section.APPLICATION_PROPERTIES, aliases.PATH)
        session = message.entry(Section.APPLICATION_PROPERTIES, aliases.SESSION)
    except MalformedMessageError:
        return None
    return None if path is None or session is None else (str(path).lower(), str(session))


class SessionKeeper:
    """The background task behind `hold_sessions`: runs only while a session is held."""

    def __init__(self, holds: SessionHolds, position: SyphonedPosition, *, clock: Clock) -> None:
        self.holds = holds
        self._position = position
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def watch(self) -> None:
        """See that the task runs if a session is held."""
        if len(self.holds) and not self._stopped and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run(), name="held sessions")

    async def _run(self) -> None:
        pause = POLL_SECONDS
        while len(self.holds):
            await self._clock.sleep(pause)
            started = self._clock.monotonic()
            for queue in self.holds.queues():
                moment = self.holds.start_scan()
                waiting = await self._position.sessions_waiting(queue)
                if waiting is not None:
                    self.holds.scanned(queue, waiting, moment)
            pause = max(POLL_SECONDS, SCAN_SHARE * (self._clock.monotonic() - started))

    async def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            await end(self._task)
