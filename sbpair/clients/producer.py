"""Active/active for applications that send: each message goes to both namespaces, in order within its session.

async with Producer("parcels", pair="orders-pair", journal="sqlite:journal.db") as producer:
    await producer.send(ServiceBusMessage("arrived", session_id="parcel-7", message_id="scan-1"))
"""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import AsyncExitStack, aclosing
from types import TracebackType
from typing import Self

from azure.servicebus import ServiceBusMessage

from sbpair.azure.wire import encode_outgoing
from sbpair.clients.consumer import opened
from sbpair.core.arguments import check_types
from sbpair.core.errors import UsageError
from sbpair.core.names import check_entity_path
from sbpair.core.pairing import Pair, Side
from sbpair.core.replication.ownership import Terms
from sbpair.journal import check_journal
from sbpair.ports import Journal
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.replication.sender import (
    DEFAULT_DELAY_SECONDS,
    DEFAULT_TIMEOUT_SECONDS,
    DualResult,
    DualSender,
    DualSent,
)


class Producer:
    """Sends to a queue or topic that both namespaces have, for `async with`.

    A message needs a session id, and a message id of its own if it may be sent again. It counts as sent when one
    namespace has accepted it: the result says which, and why the other did not. Each copy carries the message's
    position in its session.

    Args:
        entity: queue or topic, the same on both namespaces.
        pair: name of a configured pair, or a `Pair`.
        journal: as for `Consumer`: positions go on where earlier producers stopped. None: the order holds among the
            messages of this producer.
        prefer: the namespace whose copy is delivered first.
        delay_seconds: how much later the other copy is delivered.
        terms: of the consumers; only their retention matters here.

    Raises, when its block is entered:
        SbpairError: the pair or the journal is configured wrongly, or refuses permanently. Nothing was sent.
    """

    def __init__(
        self,
        entity: str,
        *,
        pair: str | Pair,
        journal: str | Journal | None = None,
        prefer: Side = Side.PRIMARY,
        delay_seconds: float = DEFAULT_DELAY_SECONDS,
        terms: Terms | None = None,
    ) -> None:
        check_types(entity=entity, pair=pair, delay_seconds=delay_seconds, terms=terms)
        check_journal(journal or "")
        self._entity = check_entity_path(entity)
        self._pair, self._journal = pair, journal
        self._prefer, self._delay_seconds, self._terms = Side(prefer), delay_seconds, terms
        self._stack = AsyncExitStack()
        self._sender: DualSender | None = None

    async def __aenter__(self) -> Self:
        sides, journal = await opened(self._stack, self._pair, self._journal)
        self._sender = DualSender(
            self._entity,
            primary=sides.primary,
            secondary=sides.secondary,
            clock=LoopClock(),
            journal=journal,
            preferred=self._prefer,
            delay_seconds=self._delay_seconds,
            terms=self._terms,
        )
        self._stack.push_async_callback(self._sender.close)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def send(self, message: ServiceBusMessage, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS) -> DualResult:
        """Send one message; `timeout_seconds` for both namespaces, which are asked at the same time.

        After an error send the same message again before any other of its session: it keeps its position then.

        Raises:
            NeitherSideError: no namespace accepted it.
            UsageError: it has no session id or message id.
            InterruptedWorkError: the block was left.
        """
        return await self._entered().send(_encoded(message), timeout_seconds=timeout_seconds)

    async def send_all(
        self,
        messages: Iterable[ServiceBusMessage] | AsyncIterable[ServiceBusMessage],
        *,
        overlap: int = 32,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> AsyncGenerator[DualSent, None]:
        """Send many with up to `overlap` under way, those of one session one after another; for each, in their order,
        its result or its error. What is not asked for is not sent."""

        async def encoded() -> AsyncIterator[bytes]:
            if isinstance(messages, AsyncIterable):
                async for message in messages:
                    yield _encoded(message)
            else:
                for message in messages:
                    yield _encoded(message)

        sending = self._entered().send_all(encoded(), overlap=overlap, timeout_seconds=timeout_seconds)
        async with aclosing(sending):
            async for sent in sending:
                yield sent

    def _entered(self) -> DualSender:
        if self._sender is None:
            raise RuntimeError("Enter the producer first: async with Producer(...) as producer.")
        return self._sender


def _encoded(message: ServiceBusMessage) -> bytes:
    payloads = encode_outgoing(message)
    if len(payloads) != 1:
        raise UsageError(f"A producer sends one message at a time, not {len(payloads)}.", hint="Call send_all.")
    return payloads[0]
