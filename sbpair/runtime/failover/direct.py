"""Sending to a namespace that has no partner: what it does not take is tried again for a while, and has failed then."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable

from sbpair.concurrency import cancel_on, end, map_concurrently, patiently, with_timeout
from sbpair.core.errors import InterruptedWorkError, SbpairError, ServiceError
from sbpair.ports import MessageSender
from sbpair.runtime.failover.sender import SendResult, Sent, Where, session_of

AFTER_STOP_SECONDS = 3.0
"""What sends under way get to end after `stop`; then they count as failed, and may have been stored or not."""


async def send_all(
    payloads: AsyncIterable[bytes],
    sender: MessageSender,
    *,
    overlap: int,
    timeout_seconds: float,
    retry_seconds: float,
    stop: asyncio.Event,
) -> AsyncGenerator[Sent, None]:
    """Send encoded messages to one queue or topic, up to `overlap` at once, those of a session one after another.

    Yields one `Sent` per message, in the order given. `retry_seconds`: for so long a message is tried again after an
    error that time may cure. A result after such a try is `uncertain` if an earlier one may have stored the message.
    """
    halt = asyncio.Event()

    async def soon_after_stop() -> None:
        await stop.wait()
        await asyncio.sleep(AFTER_STOP_SECONDS)
        halt.set()

    async def accepted(payload: bytes) -> SendResult:
        uncertain = False

        async def attempt() -> None:
            nonlocal uncertain
            try:
                sending = sender.send([payload], timeout_seconds=timeout_seconds)
                await with_timeout(timeout_seconds, sending, what=f"Sending to {sender.entity}", entity=sender.entity)
            except ServiceError as error:
                uncertain = error.uncertain = uncertain or error.uncertain
                raise

        await patiently(attempt, patience_seconds=0.0 if stop.is_set() else retry_seconds)
        return SendResult(Where.NAMESPACE, uncertain=uncertain)

    async def one(position: int, payload: bytes) -> Sent:
        try:
            result = await cancel_on(halt, accepted(payload))
        except SbpairError as error:
            return Sent(position, error=error)
        if result is None:
            unknown = f"{sender.entity} had not answered when this was stopped: it may have the message, or not."
            return Sent(position, error=InterruptedWorkError(unknown))
        return Sent(position, result)

    stopping = asyncio.create_task(soon_after_stop(), name="end what is under way after a signal")
    sending = map_concurrently(payloads, one, overlap=overlap, lane=session_of)
    try:
        async for sent in sending:
            yield sent
    finally:
        await sending.aclose()
        await end(stopping)
