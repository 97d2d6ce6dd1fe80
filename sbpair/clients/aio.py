"""The asynchronous client: `azure.servicebus.aio.ServiceBusClient` with failover.

    from sbpair.aio import ServiceBusClient      # instead of: from azure.servicebus.aio import ServiceBusClient

    async with ServiceBusClient.from_connection_string(PRIMARY, secondary=SECONDARY) as client: ...

What it knows of the primary outlives the event loop: a client may serve one `asyncio.run` after another, with senders
made in each.
"""

import asyncio
import datetime
import time
import weakref
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
    Offer,
    Payloads,
    Steps,
    is_simple,
    makes_batch,
    offering,
    primary_seconds,
    reusable,
    steps,
)
from sbpair.clients.failover import Failover, OnEvent, SenderFailover
from sbpair.clients.setup import make_failover
from sbpair.clients.sync import NOT_CANCELLABLE, is_wrong, refuse_diverted
from sbpair.core.failover.machine import Route
from sbpair.core.pairing import Pair, SendAvailabilityOptions
from sbpair.runtime.failover.pairing import PairingState


class ServiceBusClient(sdk_aio.ServiceBusClient):
    """The SDK's asynchronous client of the same name; arguments beyond the SDK's as `sbpair.ServiceBusClient`'s.

    Raises:
        TypeError: neither `secondary` nor `pair`, or both.
        ValueError: the pair has another primary; no credential for the secondary.
        SbpairError: the configuration is wrong.
    """

    def __init__(
        self,
        fully_qualified_namespace: str,
        credential: Any,
        *,
        secondary: str | None = None,
        secondary_credential: Any = None,
        pair: str | Pair | None = None,
        options: SendAvailabilityOptions | None = None,
        on_event: OnEvent | None = None,
        **sdk_options: Any,
    ) -> None:
        super().__init__(fully_qualified_namespace, credential, **sdk_options)
        self._failover: Failover = make_failover(
            self.fully_qualified_namespace,
            credential,
            sdk_options,
            secondary=secondary,
            secondary_credential=secondary_credential,
            pair=pair,
            options=options,
            on_event=on_event,
        )
        weakref.finalize(self, self._failover.close).atexit = False

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    def get_queue_sender(self, queue_name: str, **options: Any) -> "ServiceBusSender":
        """As the SDK's."""
        return ServiceBusSender._from_sdk(super().get_queue_sender(queue_name, **options), self._failover)

    def get_topic_sender(self, topic_name: str, **options: Any) -> "ServiceBusSender":
        """As the SDK's."""
        return ServiceBusSender._from_sdk(super().get_topic_sender(topic_name, **options), self._failover)

    def state(self) -> PairingState:
        """What the client knows of its entities, backlog queues and namespaces."""
        return self._failover.state()

    def force_failover(self, entity: str) -> None:
        """Divert the entity's messages, healthy or not, until `fail_back`."""
        self._failover.force(entity)

    def fail_back(self, entity: str) -> None:
        """Send the entity's messages to the primary again, whatever the pings say."""
        self._failover.fail_back(entity)

    async def close(self) -> None:
        """As the SDK's; ends the pings too. The backlog stays for `sbpair drain` or `sbpair syphon`."""
        await super().close()
        await asyncio.to_thread(self._failover.close)


class ServiceBusSender(sdk_aio.ServiceBusSender):
    """The SDK's asynchronous sender of the same name, with failover; made by `ServiceBusClient`."""

    _part: SenderFailover

    @classmethod
    def _from_sdk(cls, sender: sdk_aio.ServiceBusSender, failover: Failover) -> "ServiceBusSender":
        """The SDK's own object from now on answers as this class: it stays the one that its client closes."""
        sender.__class__ = cls
        made = cast("ServiceBusSender", sender)
        made._part = SenderFailover(failover.line(made.entity_name))
        return made

    async def __aenter__(self) -> Self:
        check_live(self)
        await self._run(steps(self._part, None, None), lambda seconds: open_within_async(self, seconds))
        return self

    async def send_messages(self, message: Any, *, timeout: float | None = None, **kwargs: Any) -> None:
        """As the SDK's: returns when a namespace has the message. Without `timeout`, after 60 seconds at most."""
        if is_wrong(timeout):
            return await super().send_messages(message, timeout=timeout, **kwargs)
        started = failed = None
        ticket = self._part.line.ticket
        if self._part.line.plain and is_simple(self, message):
            started = time.monotonic()
            try:
                return await super().send_messages(message, timeout=primary_seconds(timeout), **kwargs)
            except exceptions.ServiceBusError as error:
                failed = error
        message = reusable(message)

        async def offer(seconds: float) -> None:
            if makes_batch(message) and not knows_limits(self):
                started = time.monotonic()
                await open_within_async(self, seconds)
                seconds = max(seconds - (time.monotonic() - started), 0.05)
            await super(ServiceBusSender, self).send_messages(message, timeout=seconds, **kwargs)

        payloads = partial(encode_outgoing, message)
        await self._run(self._steps(timeout, payloads, started=started, ticket=ticket, failed=failed), offer)
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

    def _steps(self, timeout: float | None, payloads: Payloads, **before: Any) -> Steps:
        if self._part.line.route is Route.BACKLOG:
            check_live(self)
        return steps(self._part, timeout, payloads, **before)

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
