"""Why one message lies where it lies. Nothing is locked or changed."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

from sbpair.concurrency import run_until
from sbpair.core.entities import EntityFacts
from sbpair.core.errors import ServiceError
from sbpair.core.message import Received
from sbpair.core.summary import describe
from sbpair.core.transfer.explained import ExplainedMessage, MessageContext, Near, explain
from sbpair.operations.edit import EditRequest, find_received
from sbpair.ports import Ends, Observer
from sbpair.runtime.browse import DEFAULT_TIMEOUT_SECONDS, pages_once
from sbpair.runtime.links import closing
from sbpair.service import session_key

__all__ = ["ExplainRequest", "ExplainedMessage", "explain_message"]

MOST_BROWSED = 10_000
"""Messages that are looked through, in the queue and in its dead letters each, for those of the same session and id."""


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """Which message is explained."""

    source: str
    """Path of a queue or subscription."""
    number: int
    dead_letter: bool = False
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Longest wait for a page of messages."""


async def explain_message(
    ends: Ends, request: ExplainRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> ExplainedMessage:
    """Say what is known of one message: where it came from, why it lies there, what stands before it, what to do next.

    Needs Listen; with Manage also the entity's settings and rules.

    Returns:
        What is known, and what cannot be.

    Raises:
        UsageError: no message has this number.
        ServiceError: the entity cannot be browsed.
        InterruptedWorkError: `stop` was set.
    """
    wanted = EditRequest(request.source, request.number, dead_letter=request.dead_letter)
    (received,) = await find_received(ends, wanted, stop=stop)
    return await run_until(stop or asyncio.Event(), _explained(ends, request, received))


async def _explained(ends: Ends, request: ExplainRequest, received: Received) -> ExplainedMessage:
    summary = describe(received.payload)
    message_id = summary.message_id or received.message_id
    session = None if summary.session_id is None else session_key(summary.session_id)
    before: list[Near] = []
    same_id: list[Near] = []
    whole = True
    for dead_letter in (False, True):
        browsed, ended = await _browsed(ends, request, dead_letter=dead_letter)
        whole = whole and ended
        for other in browsed:
            if other.sequence_number == request.number and dead_letter == request.dead_letter:
                continue
            near = Near(other.sequence_number, dead_letter, other.state)
            if message_id is not None and other.message_id == message_id:
                same_id.append(near)
            earlier = not dead_letter and other.sequence_number < request.number
            if earlier and session is not None and session == session_key(other.session_id or ""):
                before.append(near)
    return explain(
        MessageContext(
            ends.source_access.label,
            request.source,
            received,
            await _facts(ends, request),
            None if session is None or request.dead_letter else before,
            same_id,
            datetime.now(UTC).timestamp(),
            whole,
        )
    )


async def _browsed(ends: Ends, request: ExplainRequest, *, dead_letter: bool) -> tuple[list[Received], bool]:
    receiver = ends.source.receiver(request.source, dead_letter=dead_letter)
    found: list[Received] = []
    async with closing(receiver):
        async for page in pages_once(receiver, page_seconds=request.timeout_seconds):
            found += page
            if len(found) >= MOST_BROWSED:
                return found, False
    return found, True


async def _facts(ends: Ends, request: ExplainRequest) -> EntityFacts | None:
    """The entity's settings; None without Manage, or where there is no answer."""
    try:
        return None if ends.topology is None else await ends.topology.entity(request.source)
    except ServiceError:
        return None
