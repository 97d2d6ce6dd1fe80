"""One call of the application to a sender, as steps that a synchronous and an asynchronous client carry out alike."""

import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from azure.servicebus import ServiceBusMessage, exceptions

from sbpair.azure.wire import knows_limits, translate_sdk_error
from sbpair.clients.failover import Line, SenderFailover, budget_of, sdk_error
from sbpair.core.errors import SbpairError, ServiceError
from sbpair.core.failover.machine import Route
from sbpair.core.failover.sending import (
    MIN_ATTEMPT_SECONDS,
    Budget,
)


@dataclass(frozen=True, slots=True)
class Offer:
    """Let the SDK's sender try, for so long at most. The answer is what it returned, or AGAIN."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Ask:
    """Run this on the failover's loop. The answer is its result."""

    work: Coroutine[Any, Any, Any]


AGAIN: Final = object()
"""Answer to an Offer that was not made, because the entity left its primary meanwhile."""
DIVERTED: Final = object()
"""Result of a call whose messages went to the backlog."""

offering: ContextVar[bool] = ContextVar("offering", default=False)
"""The SDK's sender is at work in this context: what it calls on itself is no call of the application."""

Steps = Generator[Offer | Ask, Any, Any]
Payloads = Callable[[], list[bytes]]


def steps(
    part: SenderFailover,
    timeout: float | None,
    payloads: Payloads | None,
    *,
    started: float | None = None,
    ticket: int = 0,
    failed: Exception | None = None,
) -> Steps:
    """Offer the call to the primary and do about its failure what the policy says; gives the SDK's result or DIVERTED.

    `payloads` encodes the messages, which only the backlog needs; None for a call without messages (opening a link).
    `started`, `ticket` and `failed`: the primary was asked already, from then on, and this is what came of it. What is
    raised is what the SDK raised, or would raise.
    """
    line = part.line
    budget = budget_of(timeout, started)
    if line.failover.unverified:
        yield Ask(line.failover.required())
    if line.has_to_join:
        yield Ask(part.ready())
    if failed is not None and (yield from _failed(part, failed, ticket, payloads, budget)):
        return DIVERTED
    while True:
        if line.route is Route.BACKLOG or (line.failover.holding and payloads and (yield Ask(part.holds(payloads())))):
            if payloads is not None and (encoded := payloads()):
                yield from _ask(line, Ask(part.divert(encoded, budget)))
            return DIVERTED
        ticket = line.ticket
        try:
            result = yield Offer(max(budget.for_primary(time.monotonic()), MIN_ATTEMPT_SECONDS))
        except exceptions.ServiceBusError as error:
            if (yield from _failed(part, error, ticket, payloads, budget)):
                return DIVERTED
        else:
            if result is not AGAIN:
                line.note_sent()
                return result


class LateTurnError(exceptions.OperationTimeoutError):
    """A call waited for others on the same sender until no time was left. It offered nothing to the primary, and says
    nothing about it."""

    def __init__(self) -> None:
        super().__init__(message="Nothing was asked of the service: other calls on this sender did not end in time.")


def _failed(part: SenderFailover, error: Exception, ticket: int, payloads: Payloads | None, budget: Budget) -> Steps:
    """Whether the call's messages were diverted after this failure; otherwise the primary is to be asked again."""
    if isinstance(error, ValueError | LateTurnError):  # too large: the message's own fault; nothing was offered
        raise error
    failure = translate_sdk_error(error, f"send to {part.line.entity}", part.line.entity)
    encoded = None if payloads is None else payloads()
    taken = yield from _ask(part.line, Ask(part.take_over(encoded, failure, ticket, budget)), failure, error)
    return taken is not None


def _ask(line: Line, request: Ask, failure: ServiceError | None = None, error: Exception | None = None) -> Steps:
    """The answer of the failover; its refusal as the SDK's error."""
    try:
        answer = yield request
    except SbpairError as refusal:
        if error is not None and refusal is failure:
            raise error from error.__cause__
        raise sdk_error(refusal, error or line.primarys_error) from refusal
    return answer


def makes_batch(message: Any) -> bool:
    """The SDK makes a batch of these messages, for which it opens the link in a time that nobody bounds."""
    return isinstance(message, Iterable) and not isinstance(message, Mapping)


def is_simple(sender: Any, message: Any) -> bool:
    """The SDK's sender may have the message as it is: it can be read again, and fits what is known of the link."""
    if type(message) is ServiceBusMessage:
        return True
    return bool(knows_limits(sender)) and not isinstance(message, Iterator)


def reusable(message: Any) -> Any:
    """The messages so that they can be encoded again if the primary does not take them: an iterator gives them once."""
    return list(message) if isinstance(message, Iterator) else message
