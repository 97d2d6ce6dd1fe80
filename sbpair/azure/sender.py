"""MessageSender over azure-servicebus: encoded messages, pipelined on one link of one connection."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sbpair.azure import frames
from sbpair.azure.errors import WireError, translate, translating
from sbpair.azure.frames import batch, schedule_entry
from sbpair.azure.links import OPEN_SECONDS, SharedWire
from sbpair.azure.wire import Answer, Outgoing, SenderWire, SendingLink
from sbpair.concurrency import waiting
from sbpair.core.errors import MessageTooLargeError, OperationTimeoutError, SbpairError, SendIncompleteError

_MAX_BATCH_BYTES = 1024 * 1024
"""Largest batch where the link names no limit for batches and takes larger single messages (Premium)."""
_SILENT_SECONDS = 2.0
"""A connection without one frame for this long when a send runs out of time is given up."""
_SCHEDULE = b"com.microsoft:schedule-message"
CANCEL = b"com.microsoft:cancel-scheduled-message"


class AzureSender:
    """Sends to one queue or topic. Any number of concurrent calls share one link and are confirmed in any order."""

    def __init__(self, host: str, entity: str, make_sdk: Callable[[], Any], on_close: Callable[[object], None]) -> None:
        self._host = host
        self._entity = entity
        self._link = SharedWire(lambda: SenderWire(make_sdk()))
        self._on_close = on_close

    @property
    def entity(self) -> str:
        return self._entity

    async def max_message_bytes(self) -> int:
        tried = f"open a link to {self._entity} on {self._host}"
        with translating(tried, self._entity, within_seconds=OPEN_SECONDS):
            wire = await self._link.get(timeout_seconds=60.0)
            return wire.max_message_bytes

    async def send(self, payloads: Sequence[bytes], *, timeout_seconds: float) -> None:
        if not payloads:
            return
        tried = f"send to {self._entity} on {self._host}"
        with waiting(tried, timeout_seconds):
            await self._send(payloads, tried, timeout_seconds)

    async def _send(self, payloads: Sequence[bytes], tried: str, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        try:
            wire = await self._link.get(timeout_seconds=timeout_seconds)
        except Exception as error:
            raise self._certain(error, tried) from error
        accepted = 0
        for count, payload, message_format in transfers(wire, payloads):
            try:
                await self._transfer(wire, tried, payload, message_format, deadline)
            except SbpairError as error:
                if accepted:
                    raise SendIncompleteError(
                        f"{accepted} of {len(payloads)} messages were accepted: {error.message}",
                        accepted=tuple(range(accepted)),
                    ) from error
                raise
            accepted += count

    def _certain(self, error: Exception, tried: str) -> SbpairError:
        """The error of a failure before anything was sent: nothing can have arrived."""
        if isinstance(error, SbpairError) and not hasattr(error, "uncertain"):
            return error
        translated = translate(error, tried, self._entity)
        translated.uncertain = False
        return translated

    async def _transfer(
        self, wire: SenderWire, tried: str, payload: bytes, message_format: int, deadline: float
    ) -> None:
        limit = wire.max_message_bytes
        if len(payload) > limit:
            raise MessageTooLargeError(
                f"Could not {tried}: {len(payload)} bytes exceed the limit of {limit}.", entity=self._entity
            )
        outgoing: Outgoing | None = None
        try:
            outgoing = wire.send(payload, message_format)
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + deadline - time.monotonic()):
                await outgoing.confirmed
        except Exception as error:
            written = outgoing is not None and outgoing.written
            unanswered = written and outgoing is not None and not outgoing.answered
            if unanswered and isinstance(error, TimeoutError):
                await self._give_up_silent(wire)
            translated = translate(_with_text(error, unanswered), tried, self._entity)
            # The answer that the service ran out of time does not say whether it has stored the message.
            translated.uncertain = unanswered or (written and isinstance(translated, OperationTimeoutError))
            raise translated from error

    async def _give_up_silent(self, wire: SenderWire) -> None:
        """A peer from which nothing at all came within the whole call gets no second one on this connection."""
        if wire.silent_for() > _SILENT_SECONDS and self._link.current is wire:
            await self._link.drop()

    async def schedule(self, payloads: Sequence[bytes], *, timeout_seconds: float) -> list[int]:
        if not payloads:
            return []
        tried = f"schedule messages on {self._entity} of {self._host}"
        with translating(tried, self._entity, within_seconds=timeout_seconds):
            async with asyncio.timeout(timeout_seconds):
                body = {"messages": [schedule_entry(payload) for payload in payloads]}
                answer = await self._request(_SCHEDULE, body, timeout_seconds)
                return [int(number) for number in answer.value[b"sequence-numbers"]]

    async def cancel_scheduled(self, sequence_numbers: Sequence[int], *, timeout_seconds: float) -> None:
        if not sequence_numbers:
            return
        tried = f"cancel scheduled messages on {self._entity} of {self._host}"
        with translating(tried, self._entity, within_seconds=timeout_seconds):
            async with asyncio.timeout(timeout_seconds):
                wire = await self._link.get(timeout_seconds=timeout_seconds)
                numbers = wire.array([wire.integer(number, "long") for number in sequence_numbers])
                await self._request(CANCEL, {"sequence-numbers": numbers}, timeout_seconds)

    async def _request(self, operation: bytes, body: dict[str, Any], timeout_seconds: float) -> Answer:
        wire = await self._link.get(timeout_seconds=timeout_seconds)
        answer = await wire.request(operation, body, timeout_seconds=timeout_seconds)
        if answer.status != 200:
            raise WireError(answer.condition, answer.description, status=answer.status)
        return answer

    async def close(self) -> None:
        await self._link.close()
        self._on_close(self)


def _with_text(error: Exception, unanswered: bool) -> Exception:
    if isinstance(error, TimeoutError) and not str(error):
        return TimeoutError("no confirmation in time" if unanswered else "the service granted no link credit in time")
    return error


def transfers(wire: SenderWire | SendingLink, messages: Sequence[bytes]) -> Iterator[tuple[int, bytes, int]]:
    """What to send, as (messages, payload, message format): one message plain, several as one batch.

    Only an entity that takes larger messages than batches can need several batches for one call.
    """
    if len(messages) == 1:
        yield 1, messages[0], frames.MESSAGE_FORMAT
        return
    together = batch(messages)
    limit = wire.max_message_bytes
    batch_limit = wire.max_batch_bytes or min(limit, _MAX_BATCH_BYTES)
    if len(together) <= batch_limit or batch_limit >= limit:
        yield len(messages), together, frames.BATCH_FORMAT
        return
    half = len(messages) // 2
    yield from transfers(wire, messages[:half])
    yield from transfers(wire, messages[half:])
