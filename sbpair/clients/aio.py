"""The asynchronous client: `azure.servicebus.aio.ServiceBusClient` with failover.

    from sbpair.aio import ServiceBusClient      # instead of: from azure.servicebus.aio import ServiceBusClient

    async with ServiceBusClient.from_connection_string(PRIMARY, secondary=SECONDARY) as client: ...

What it knows of the primary outlives the event loop: a client may serve one `asyncio.run` after another, with senders
made in each.
"""

import asyncio
import datetime
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Self, cast

import azure.servicebus as sdk
import azure.servicebus.aio as sdk_aio
from azure.servicebus import exceptions

from sbpair.azure.wire import (
    begin_close,
    check_live,
    close_forgotten_async,
    empty_batch,
    encode_outgoing,
    encode_scheduled,
    forget_connection,
    knows_limits,
    open_within_async,
)
from sbpair.clients.failover import Failover, budget_of
from sbpair.clients.shared import (
    AGAIN,
    DIVERTED,
    NOT_CANCELLABLE,
    WAIT_SLICE_SECONDS,
    ClientWithFailover,
    LateTurnError,
    Messages,
    PrimaryAttempt,
    SenderWithFailover,
    Steps,
    is_simple,
    is_wrong,
    makes_batch,
    offering,
    refuse_diverted,
    reusable,
    steps,
)
from sbpair.core.failover.machine import Route
from sbpair.core.failover.sending import DEFAULT_SEND_SECONDS, MIN_ATTEMPT_SECONDS
from sbpair.core.inspection.diagnosis import Verification


class ServiceBusClient(ClientWithFailover["ServiceBusSender"], sdk_aio.ServiceBusClient):
    """The SDK's asynchronous client of the same name; arguments beyond the SDK's as `sbpair.ServiceBusClient`'s.

    Raises:
        TypeError: neither `secondary` nor `pair`, or both.
        ValueError: the pair has another primary; no credential for the secondary.
        SbpairError: the configuration is wrong.
    """

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._failover.closed = False
        return self

    async def verify(self) -> Verification:
        """Try what an outage of the primary will need: backlog queues, the Send right, keys and sizes of both sides. No
        message is written. What is wrong is in `problems`; `ready` says whether messages could be diverted."""
        return cast("Verification", await self._failover.acall(self._failover.verify()))

    async def close(self) -> None:
        """As the SDK's; ends the pings too. The backlog stays for `sbpair drain` or `sbpair syphon`."""
        await super().close()
        if self._failover.used:
            await asyncio.to_thread(self._failover.close)
        else:
            self._failover.close()


class _Turn:
    """One call after another on an asynchronous sender.

    The SDK's sender has one link, and each of its calls reads that by itself. Calls that overlap take each other's
    answers for up to 0.2 seconds at a time, and the first that closes the link makes the others fail on what is no
    longer there.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take_if_free(self) -> bool:
        """Take the turn if no call has it."""
        if self._loop is not (loop := asyncio.get_running_loop()):
            # A client may serve several event loops one after another; nothing of the last one goes on.
            self._loop, self._taken = loop, False
            self._waiting.clear()
        if self._taken:
            return False
        self._taken = True
        return True

    async def take(self, until: float, gone: Callable[[], bool]) -> bool:
        """Wait for the turn; False if `gone` says first that it is not needed any more.

        Raises:
            OperationTimeoutError: it did not come until then (monotonic seconds).
        """
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        taken = False
        try:
            while not mine.done():
                if (left := until - time.monotonic()) <= 0:
                    raise LateTurnError()
                await asyncio.wait({mine}, timeout=min(left, WAIT_SLICE_SECONDS))
                if gone():
                    return False
            taken = True
            return True
        finally:
            if not taken and not mine.cancel():
                self.release()

    def release(self) -> None:
        """Hand the turn to the call that has waited longest."""
        while self._waiting:
            if not (first := self._waiting.popleft()).done():
                first.set_result(None)
                return
        self._taken = False


class ServiceBusSender(SenderWithFailover, sdk_aio.ServiceBusSender):  # type: ignore[misc]  # the SDK's own bases disagree
    """The SDK's asynchronous sender of the same name, with failover; made by `ServiceBusClient`. Any number of
    coroutines may share it: their calls take turns."""

    _turn: _Turn

    @classmethod
    def _from_sdk(cls, sender: Any, failover: Failover) -> Self:
        made = super()._from_sdk(sender, failover)
        made._turn = _Turn()
        return made

    async def __aenter__(self) -> Self:
        check_live(self)
        await self._run(steps(self._part, None, None), lambda seconds: open_within_async(self, seconds))
        return self

    async def close(self) -> None:
        """As the SDK's; a call that is under way in another task is broken off."""
        begin_close(self)
        if (connection := forget_connection(self)) is not None:
            await close_forgotten_async(connection)
        self._part.close()

    async def send_messages(
        self, message: Messages | sdk.ServiceBusMessageBatch, *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """As the SDK's: returns when a namespace has the message. Without `timeout`, after 60 seconds at most."""
        if timeout is not None and is_wrong(timeout):
            return await super().send_messages(message, timeout=timeout, **kwargs)
        started = failed = None
        ticket = self._part.line.plain_ticket
        if ticket is not None and is_simple(self, message) and self._turn.take_if_free():
            started = time.monotonic()
            try:
                with self._serving():
                    return await super().send_messages(
                        message, timeout=budget_of(timeout, started).for_primary(started), **kwargs
                    )
            except exceptions.ServiceBusError as error:
                failed = error
            finally:
                self._turn.release()
        message = reusable(message)

        async def offer(seconds: float) -> None:
            if makes_batch(message) and not knows_limits(self):
                started = time.monotonic()
                await open_within_async(self, seconds)
                seconds = max(seconds - (time.monotonic() - started), MIN_ATTEMPT_SECONDS)
            await super(ServiceBusSender, self).send_messages(message, timeout=seconds, **kwargs)

        payloads = partial(encode_outgoing, message, self)
        await self._run(self._steps(timeout, payloads, started=started, ticket=ticket or 0, failed=failed), offer)
        return None

    async def schedule_messages(
        self, messages: Messages, schedule_time_utc: datetime.datetime, *, timeout: float | None = None, **kwargs: Any
    ) -> list[int]:
        """As the SDK's. While the primary is away the numbers are 0: such messages cannot be cancelled."""
        if is_wrong(timeout):
            return await super().schedule_messages(messages, schedule_time_utc, timeout=timeout, **kwargs)
        messages = reusable(messages)
        encoded: list[bytes] = []

        def payloads() -> list[bytes]:
            encoded[:] = encode_scheduled(messages, schedule_time_utc)
            return encoded

        def offer(seconds: float) -> Awaitable[list[int]]:
            scheduling = super(ServiceBusSender, self).schedule_messages
            return scheduling(messages, schedule_time_utc, timeout=seconds, **kwargs)

        numbers = await self._run(self._steps(timeout, payloads), offer)
        return [NOT_CANCELLABLE] * len(encoded) if numbers is DIVERTED else cast("list[int]", numbers)

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """As the SDK's; says nothing about the primary's health. Without `timeout`, after 60 seconds at most."""
        refuse_diverted(sequence_numbers)
        if is_wrong(timeout):
            return await super().cancel_scheduled_messages(sequence_numbers, timeout=timeout, **kwargs)
        until = time.monotonic() + (DEFAULT_SEND_SECONDS if timeout is None else timeout)
        if not self._turn.take_if_free():
            await self._turn.take(until, lambda: False)
        try:
            with self._serving():
                left = max(until - time.monotonic(), MIN_ATTEMPT_SECONDS)
                return await super().cancel_scheduled_messages(sequence_numbers, timeout=left, **kwargs)
        finally:
            self._turn.release()

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> sdk.ServiceBusMessageBatch:
        """As the SDK's. While the primary is away, of the size of the Standard tier unless more is known."""
        if offering.get() or knows_limits(self):
            return await super().create_message_batch(max_size_in_bytes)
        check_live(self)
        opened = await self._run(steps(self._part, None, None), lambda seconds: open_within_async(self, seconds))
        if opened is DIVERTED:
            return cast("sdk.ServiceBusMessageBatch", empty_batch(self, max_size_in_bytes))
        return await super().create_message_batch(max_size_in_bytes)

    async def _run(self, work: Steps, offer: Callable[[float], Awaitable[Any]]) -> Any:
        failover = self._part.line.failover
        try:
            step = next(work)
            while True:
                try:
                    if isinstance(step, PrimaryAttempt):
                        answer = await self._offer(offer, step.seconds)
                    else:
                        answer = await failover.acall(step.work)
                except Exception as error:  # noqa: BLE001 - handed on to the steps, which raise it again
                    step = work.throw(error)
                else:
                    step = work.send(answer)
        except StopIteration as done:
            return done.value

    async def _offer(self, offer: Callable[[float], Awaitable[Any]], seconds: float) -> Any:
        """One call at a time. AGAIN if the entity left its primary while this one waited for another."""
        if not self._turn.take_if_free():
            started = time.monotonic()
            if not await self._turn.take(started + seconds, lambda: self._part.line.route is Route.BACKLOG):
                return AGAIN
            seconds = max(seconds - (time.monotonic() - started), MIN_ATTEMPT_SECONDS)
        try:
            with self._serving():
                return await offer(seconds)
        finally:
            self._turn.release()

    def _forget_link(self) -> None:
        if (connection := forget_connection(self)) is not None:
            closing = asyncio.create_task(close_forgotten_async(connection), name="link that is not used again")
            _closing.add(closing)
            closing.add_done_callback(_closing.discard)


_closing: set[asyncio.Task[None]] = set()
"""Kept so that they are not collected while they run."""

ServiceBusClient._sender_class = ServiceBusSender
