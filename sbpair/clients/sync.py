"""The synchronous client: `azure.servicebus.ServiceBusClient` with failover.

    from sbpair import ServiceBusClient          # instead of: from azure.servicebus import ServiceBusClient

    client = ServiceBusClient.from_connection_string(PRIMARY, secondary=SECONDARY)

From several threads: a sender may be shared, its calls then take turns (the SDK's own senders must not be shared).
After a fork: the child connects again and has its own view of the primary; what the parent does is not disturbed.
Clients of one process share what they know of an outage, if they are for the same namespaces with the same options and
key: whichever meets it, the others divert at once. It is kept for five minutes after the last one was closed. What is
not shared: connections, credentials, and which sessions are held (`hold_sessions` wants a client that stays open).
"""

import datetime
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Self, cast

import azure.servicebus as sdk
from azure.servicebus import exceptions

from sbpair.azure.wire import (
    begin_close,
    check_live,
    close_forgotten,
    empty_batch,
    encode_outgoing,
    encode_scheduled,
    forget_connection,
    knows_limits,
    open_in_time,
    open_within,
)
from sbpair.clients.failover import Failover, budget_of
from sbpair.clients.shared import (
    AGAIN,
    DIVERTED,
    NOT_CANCELLABLE,
    WAIT_SLICE_SECONDS,
    Ask,
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


class ServiceBusClient(ClientWithFailover["ServiceBusSender"], sdk.ServiceBusClient):
    """The SDK's client of the same name; its senders divert to the secondary namespace while the primary is away.

    All arguments, methods, results and exceptions are the SDK's. In addition:

    Args:
        secondary: connection string of the secondary namespace, or its host.
        secondary_credential: for a host; by default the primary's, if that is one of Entra ID.
        pair: instead of `secondary`: the name of a pair in the configuration (sbpair.yaml, SBPAIR_...), or a `Pair`.
            Its primary is the namespace of this client.
        options: intervals, policy, number of backlog queues, held sessions; by default the pair's, or the documented
            ones ("Asynchronous Messaging Patterns and High Availability").
        on_event: is told what happens beside the sends (`sbpair.events`), in the thread in which all clients of the
            process divert: it must return soon, and must not send.

        verify: `warn` (the default) tries in the background, from the first sender on, what an outage will need, and
            again every `verify_interval`: what is wrong is logged and announced. `require`: the first call raises for
            it. `off`: nothing is asked of the secondary before the primary fails. `client.verify()` does it at once.
        create_missing: create missing backlog queues with the first sender, which takes the Manage right there.

    The other keys of a pair in sbpair.yaml are keywords as well, see `sbpair.pair_options`. On the secondary the Send
    right is enough; the backlog queues are created by `sbpair provision`.

    Raises:
        TypeError: neither `secondary` nor `pair`, or both.
        ValueError: the pair has another primary; no credential for the secondary.
        SbpairError: the configuration is wrong.
    """

    def __enter__(self) -> Self:
        super().__enter__()
        self._failover.closed = False
        return self

    def verify(self) -> Verification:
        """Try what an outage of the primary will need: backlog queues, the Send right, keys and sizes of both sides. No
        message is written. What is wrong is in `problems`; `ready` says whether messages could be diverted."""
        return self._failover.call(self._failover.verify())

    def close(self) -> None:
        """As the SDK's; ends the pings too. The backlog stays for `sbpair drain` or `sbpair syphon`."""
        super().close()
        self._failover.close()


class ServiceBusSender(SenderWithFailover, sdk.ServiceBusSender):  # type: ignore[misc]  # the SDK's own bases disagree
    """The SDK's sender of the same name, with failover; made by `ServiceBusClient`."""

    _turn: Any

    @classmethod
    def _from_sdk(cls, sender: Any, failover: Failover) -> Self:
        made = super()._from_sdk(sender, failover)
        made._turn = threading.RLock()
        _senders.add(made)
        return made

    def __enter__(self) -> Self:
        check_live(self)
        self._run(steps(self._part, None, None), lambda seconds: open_within(self, seconds))
        return self

    def close(self) -> None:
        """As the SDK's; a call that is under way in another thread is broken off."""
        begin_close(self)
        if self._turn.acquire(blocking=False):
            try:
                super().close()
            finally:
                self._turn.release()
        self._forget_link()
        self._part.close()

    def _open(self, timeout: float | None = None) -> None:
        if not self._running:
            limit = {} if timeout is None else {"timeout": timeout}
            open_in_time(lambda sender: sdk.ServiceBusSender._open(sender, **limit), self, timeout)

    def send_messages(
        self, message: Messages | sdk.ServiceBusMessageBatch, *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """As the SDK's: returns when a namespace has the message. Without `timeout`, after 60 seconds at most."""
        if timeout is not None and is_wrong(timeout):
            return super().send_messages(message, timeout=timeout, **kwargs)
        started = failed = None
        ticket = self._part.line.plain_ticket
        if ticket is not None and is_simple(self, message) and self._turn.acquire(blocking=False):
            started = time.monotonic()
            try:
                with self._serving():
                    return super().send_messages(
                        message, timeout=budget_of(timeout, started).for_primary(started), **kwargs
                    )
            except exceptions.ServiceBusError as error:
                failed = error
            finally:
                self._turn.release()
        message = reusable(message)

        def offer(seconds: float) -> None:
            if makes_batch(message) and not knows_limits(self):
                started = time.monotonic()
                open_within(self, seconds)
                seconds = max(seconds - (time.monotonic() - started), MIN_ATTEMPT_SECONDS)
            super(ServiceBusSender, self).send_messages(message, timeout=seconds, **kwargs)

        payloads = partial(encode_outgoing, message, self)
        self._run(self._steps(timeout, payloads, started=started, ticket=ticket or 0, failed=failed), offer)
        return None

    def schedule_messages(
        self, messages: Messages, schedule_time_utc: datetime.datetime, *, timeout: float | None = None, **kwargs: Any
    ) -> list[int]:
        """As the SDK's. While the primary is away the numbers are 0: such messages cannot be cancelled."""
        if is_wrong(timeout):
            return super().schedule_messages(messages, schedule_time_utc, timeout=timeout, **kwargs)
        messages = reusable(messages)
        encoded: list[bytes] = []

        def payloads() -> list[bytes]:
            encoded[:] = encode_scheduled(messages, schedule_time_utc)
            return encoded

        def offer(seconds: float) -> list[int]:
            scheduling = super(ServiceBusSender, self).schedule_messages
            return scheduling(messages, schedule_time_utc, timeout=seconds, **kwargs)

        numbers = self._run(self._steps(timeout, payloads), offer)
        return [NOT_CANCELLABLE] * len(encoded) if numbers is DIVERTED else cast("list[int]", numbers)

    def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None, **kwargs: Any
    ) -> None:
        """As the SDK's; says nothing about the primary's health. Without `timeout`, after 60 seconds at most."""
        refuse_diverted(sequence_numbers)
        if is_wrong(timeout):
            return super().cancel_scheduled_messages(sequence_numbers, timeout=timeout, **kwargs)
        until = time.monotonic() + (seconds := DEFAULT_SEND_SECONDS if timeout is None else timeout)
        if not self._turn.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            raise LateTurnError()
        try:
            with self._serving():
                left = max(until - time.monotonic(), MIN_ATTEMPT_SECONDS)
                return super().cancel_scheduled_messages(sequence_numbers, timeout=left, **kwargs)
        finally:
            self._turn.release()

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> sdk.ServiceBusMessageBatch:
        """As the SDK's. While the primary is away, of the size of the Standard tier unless more is known."""
        if offering.get() or knows_limits(self):
            return super().create_message_batch(max_size_in_bytes)
        check_live(self)
        opened = self._run(steps(self._part, None, None), lambda seconds: open_within(self, seconds))
        if opened is DIVERTED:
            return cast("sdk.ServiceBusMessageBatch", empty_batch(self, max_size_in_bytes))
        return super().create_message_batch(max_size_in_bytes)

    def _run(self, work: Steps, offer: Callable[[float], Any]) -> Any:
        try:
            step = next(work)
            while True:
                try:
                    answer = self._offer(offer, step.seconds) if isinstance(step, PrimaryAttempt) else self._ask(step)
                except Exception as error:  # noqa: BLE001 - handed on to the steps, which raise it again
                    step = work.throw(error)
                else:
                    step = work.send(answer)
        except StopIteration as done:
            return done.value

    def _ask(self, step: Ask) -> Any:
        return self._part.line.failover.call(step.work)

    def _offer(self, offer: Callable[[float], Any], seconds: float) -> Any:
        """One call at a time. AGAIN if the entity left its primary while this one waited for another."""
        if not self._turn.acquire(blocking=False):
            started = time.monotonic()
            if not self._wait_for_turn(started + seconds):
                return AGAIN
            seconds = max(seconds - (time.monotonic() - started), MIN_ATTEMPT_SECONDS)
        try:
            with self._serving():
                return offer(seconds)
        finally:
            self._turn.release()

    def _wait_for_turn(self, until: float) -> bool:
        """Whether this call's turn has come; False: the entity has left its primary. Raises when it is too late."""
        while (left := until - time.monotonic()) > 0:
            taken = self._turn.acquire(timeout=min(left, WAIT_SLICE_SECONDS))
            if self._part.line.route is not Route.BACKLOG:
                if taken:
                    return True
                continue
            if taken:
                self._turn.release()
            return False
        raise LateTurnError()

    def _forget_link(self) -> None:
        close_forgotten(forget_connection(self))

    def _after_fork(self) -> None:
        _OF_PARENTS.append(forget_connection(self))
        self._turn = threading.RLock()


ServiceBusClient._sender_class = ServiceBusSender


_senders: "weakref.WeakSet[ServiceBusSender]" = weakref.WeakSet()
_OF_PARENTS: list[object] = []
"""Connections that a child process has from its parent and must not close."""


def _after_fork() -> None:
    for sender in tuple(_senders):
        sender._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
