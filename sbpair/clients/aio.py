"""The asynchronous client: `azure.servicebus.aio.ServiceBusClient` with failover.

    from sbpair.aio import ServiceBusClient      # instead of: from azure.servicebus.aio import ServiceBusClient

    async with ServiceBusClient.from_connection_string(PRIMARY, secondary=SECONDARY) as client: ...

What it knows of the primary outlives the event loop: a client may serve one `asyncio.run` after another, with senders
made in each.
"""

import asyncio
import datetime
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Self, cast

import azure.servicebus as sdk
import azure.servicebus.aio as sdk_aio
from azure.servicebus import exceptions

from sbpair.azure.wire import (
    check_live,
    empty_batch,
    encode_outgoing,
    encode_scheduled,
    knows_limits,
    open_within_async,
)
from sbpair.clients.calls import (
    DIVERTED,
    PRIMARY_SECONDS,
    Offer,
    Steps,
    is_simple,
    makes_batch,
    offering,
    primary_seconds,
    reusable,
    steps,
)
from sbpair.clients.shared import (
    NOT_CANCELLABLE,
    ClientWithFailover,
    SenderWithFailover,
    is_wrong,
    refuse_diverted,
)


class ServiceBusClient(ClientWithFailover["ServiceBusSender"], sdk_aio.ServiceBusClient):
    """The SDK's asynchronous client of the same name; arguments beyond the SDK's as `sbpair.ServiceBusClient`'s.

    Raises:
        TypeError: neither `secondary` nor `pair`, or both.
        ValueError: the pair has another primary; no credential for the secondary.
        SbpairError: the configuration is wrong.
    """

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    async def close(self) -> None:
        """As the SDK's; ends the pings too. The backlog stays for `sbpair drain` or `sbpair syphon`."""
        await super().close()
        if self._failover.is_open:
            await asyncio.to_thread(self._failover.close)


class ServiceBusSender(SenderWithFailover, sdk_aio.ServiceBusSender):  # type: ignore[misc]  # the SDK's own bases disagree
    """The SDK's asynchronous sender of the same name, with failover; made by `ServiceBusClient`."""

    async def __aenter__(self) -> Self:
        check_live(self)
        await self._run(steps(self._part, None, None), lambda seconds: open_within_async(self, seconds))
        return self

    async def close(self) -> None:
        """As the SDK's."""
        await super().close()
        self._part.close()

    async def send_messages(self, message: Any, *, timeout: float | None = None, **kwargs: Any) -> None:
        """As the SDK's: returns when a namespace has the message. Without `timeout`, after 60 seconds at most."""
        if timeout is not None and is_wrong(timeout):
            return await super().send_messages(message, timeout=timeout, **kwargs)
        started = failed = None
        ticket = self._part.line.plain_ticket
        if ticket is not None and is_simple(self, message):
            started = time.monotonic()
            try:
                return await super().send_messages(
                    message, timeout=PRIMARY_SECONDS if timeout is None else primary_seconds(timeout), **kwargs
                )
            except exceptions.ServiceBusError as error:
                failed = error
        message = reusable(message)

        async def offer(seconds: float) -> None:
            if makes_batch(message) and not knows_limits(self):
                started = time.monotonic()
                await open_within_async(self, seconds)
                seconds = max(seconds - (time.monotonic() - started), 0.05)
            await super(ServiceBusSender, self).send_messages(message, timeout=seconds, **kwargs)

        payloads = partial(encode_outgoing, message, self)
        await self._run(self._steps(timeout, payloads, started=started, ticket=ticket or 0, failed=failed), offer)
        return None

    async def schedule_messages(
        self, messages: Any, schedule_time_utc: datetime.datetime, *, timeout: float | None = None, **kwargs: Any
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
        """As the SDK's; says nothing about the primary's health."""
        refuse_diverted(sequence_numbers)
        await super().cancel_scheduled_messages(sequence_numbers, timeout=timeout, **kwargs)

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
                    if isinstance(step, Offer):
                        token = offering.set(True)
                        try:
                            answer = await offer(step.seconds)
                        finally:
                            offering.reset(token)
                    else:
                        answer = await failover.acall(step.work)
                except Exception as error:  # noqa: BLE001 - handed on to the steps, which raise it again
                    step = work.throw(error)
                else:
                    step = work.send(answer)
        except StopIteration as done:
            return done.value


ServiceBusClient._sender_class = ServiceBusSender
