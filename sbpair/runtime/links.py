"""One sending link per entity of a namespace, shared by everybody: a thousand senders do not open a thousand. And what
is done with every link: close it within a bound, keep the session it has locked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol, TypeVar

from sbpair.concurrency import abandon_after
from sbpair.core.errors import LockLostError, ServiceError
from sbpair.ports import MessageReceiver, MessageSender, Messaging, RuntimeClock

CLOSE_SECONDS = 5.0


class Links:
    """The senders of one namespace by entity path, opened on first use."""

    def __init__(self, messaging: Messaging) -> None:
        self._messaging = messaging
        self._senders: dict[str, MessageSender] = {}

    def to(self, entity: str) -> MessageSender:
        key = entity.lower()
        if (sender := self._senders.get(key)) is None:
            sender = self._senders[key] = self._messaging.sender(entity)
        return sender

    @property
    def empty(self) -> bool:
        return not self._senders

    async def close(self) -> None:
        """Close all of them, each within a bound."""
        senders, self._senders = self._senders, {}
        await asyncio.gather(*(close_quietly(sender) for sender in senders.values()))


class _Closable(Protocol):
    async def close(self) -> None: ...


_Link = TypeVar("_Link", bound=_Closable)


async def close_quietly(closable: _Closable) -> None:
    """Close within a bound, whether or not the other side takes part: what is gone cannot be closed, and need not."""
    with suppress(ServiceError):
        await abandon_after(CLOSE_SECONDS, closable.close(), what="Closing")


@asynccontextmanager
async def closing(link: _Link) -> AsyncIterator[_Link]:
    """Close a link at the end, as `close_quietly` does."""
    try:
        yield link
    finally:
        await close_quietly(link)


async def keep_session(receiver: MessageReceiver, clock: RuntimeClock, *, pause_seconds: float) -> None:
    """Renew the lock of a receiver's session every `pause_seconds`, until cancelled or until the lock is lost.

    Settling does not prolong it, and there are not always messages in hand whose locks are renewed.
    """
    while True:
        await clock.sleep(pause_seconds)
        try:
            await receiver.renew_session()
        except LockLostError:
            return
        except ServiceError:
            continue  # asked again; if the namespace stays away, settling says that the lock is lost
