"""The dead letters of any entity by reason, and the messages of any entity, browsed: nothing is locked or changed."""

import asyncio
from dataclasses import KW_ONLY, dataclass

from sbpair.concurrency import run_until
from sbpair.core.access import shown_name
from sbpair.core.summary import describe
from sbpair.core.transfer.dead_letters import DeadLetterReason, DeadLetterReasons, ReasonCounter
from sbpair.core.transfer.peeked import DeadLetters, peeked
from sbpair.core.transfer.resend import ALL_MESSAGES, Selection
from sbpair.ports import Ends, Observer
from sbpair.runtime.browse import DEFAULT_TIMEOUT_SECONDS, browse, pages_once
from sbpair.runtime.links import close_quietly

__all__ = ["BrowseRequest", "DeadLetterReason", "DeadLetterReasons", "browse_messages", "list_dead_letters"]


@dataclass(frozen=True, slots=True)
class BrowseRequest:
    """Which messages of an entity are browsed."""

    source: str
    """Path of a queue or subscription."""
    _: KW_ONLY
    selection: Selection = ALL_MESSAGES
    dead_letter: bool = False
    """Browse the dead letters instead; `list_dead_letters` does that always."""
    max_messages: int = 50
    """At most this many, the oldest first; `list_dead_letters` counts all."""
    from_sequence_number: int = 0
    with_body: bool = False
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Longest wait for a page of messages."""


async def list_dead_letters(
    ends: Ends, request: BrowseRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> DeadLetterReasons:
    """Count all dead letters of a queue or subscription by reason, with their ages. Needs Listen.

    Args:
        ends: the open namespace, as `source`.
        request: which dead letters.
        observer: gets nothing.
        stop: ends the browse at once when it is set.

    Returns:
        The reasons, the most frequent one first.

    Raises:
        ServiceError: the dead-letter queue cannot be browsed.
        FilterError: the filter cannot be evaluated for a message.
        InterruptedWorkError: `stop` was set.
    """
    counter = await run_until(stop or asyncio.Event(), _counted(ends, request))
    reasons = counter.reasons()
    total = sum(reason.messages for reason in reasons)
    return DeadLetterReasons(shown_name(ends.source_access), request.source, total, reasons)


async def _counted(ends: Ends, request: BrowseRequest) -> ReasonCounter:
    counter = ReasonCounter()
    receiver = ends.source.receiver(request.source, dead_letter=True)
    try:
        async for page in pages_once(receiver, page_seconds=request.timeout_seconds):
            for received in page:
                summary = describe(received.payload)
                if request.selection.selects(received, summary):
                    counter.add(received, summary)
    finally:
        await close_quietly(receiver)
    return counter


async def browse_messages(
    ends: Ends, request: BrowseRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> DeadLetters:
    """Browse the messages of a queue or subscription, or its dead letters, the oldest first. Needs Listen.

    Args:
        ends: the open namespace, as `source`.
        request: which messages.
        observer: gets nothing.
        stop: ends the browse at once when it is set.

    Returns:
        The messages, how many were browsed for them, and whether there may be more.

    Raises:
        ServiceError: the entity cannot be browsed.
        FilterError: the filter cannot be evaluated for a message.
        InterruptedWorkError: `stop` was set.
    """
    browsing = browse(
        ends.source,
        [request.source],
        kinds=(request.dead_letter,),
        max_messages=request.max_messages,
        from_sequence_number=request.from_sequence_number,
        wanted=lambda message: request.selection.selects(message.received, message.summary),
        timeout_seconds=request.timeout_seconds,
    )
    report = await run_until(stop or asyncio.Event(), browsing)
    if report.failed:
        raise report.failed[0].error
    messages = tuple(
        peeked(message.queue, message.received, message.summary, with_body=request.with_body)
        for message in report.messages
    )
    return DeadLetters(shown_name(ends.source_access), request.source, report.looked_at, report.left_off, messages)
