"""Browse the messages of a pair's backlog, or of any queue, without touching them."""

import asyncio
from dataclasses import dataclass

from sbpair.concurrency import run_until
from sbpair.core.pairing import Side
from sbpair.core.transfer.filters import EVERYTHING, MessageFilter
from sbpair.core.transfer.peeked import GroupKey, Groups, Messages, PeekResult, explain_reasons, grouped, peeked
from sbpair.operations.backlog import no_queue
from sbpair.ports import Observer, Sides
from sbpair.runtime import browse
from sbpair.runtime.inspection import backlog

__all__ = ["PeekRequest", "peek"]

MOST_MESSAGES = 50
MOST_MESSAGES_GROUPED = 10_000


@dataclass(frozen=True, slots=True)
class PeekRequest:
    """Which messages are browsed, and how they are shown."""

    queues: tuple[str, ...] = ()
    """Paths of queues or `TOPIC/Subscriptions/NAME` on `side`; none: every backlog queue that exists."""
    side: Side = Side.SECONDARY
    dead_letter: bool = False
    """Browse their dead-letter queues instead."""
    with_dead_letter: bool = False
    """Browse their dead-letter queues as well."""
    wanted: MessageFilter = EVERYTHING
    max_messages: int | None = None
    """The oldest first; None: 50, or 10,000 where they are grouped."""
    from_sequence_number: int = 0
    group_by: tuple[GroupKey, ...] = ()
    """Count the messages by these instead."""
    with_body: bool = False
    timeout_seconds: float | None = None
    """Longest wait for one answer; None: 30 seconds for a page of messages, 10 for the list of queues."""

    @property
    def kinds(self) -> tuple[bool, ...]:
        """What is browsed of each queue: False for itself, True for its dead-letter queue."""
        return (False, True) if self.with_dead_letter else (self.dead_letter,)


async def peek(
    sides: Sides, request: PeekRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> PeekResult:
    """Browse messages, the oldest first. Locks nothing and changes nothing. Needs Listen on the side of the request.

    Returns:
        The messages, or with `group_by` how many there are of each kind. A queue that could not be browsed is named in
        `not_read`.

    Raises:
        SbpairError: no backlog queue exists.
        ServiceError: no queue could be browsed; the first one's error.
        FilterError: the filter cannot be evaluated for a message.
        InterruptedWorkError: `stop` was set.
    """
    paths, found = await run_until(stop or asyncio.Event(), _browse(sides, request))
    if len(found.failed) == len(paths) and not found.messages:
        raise found.failed[0].error
    messages = tuple(
        peeked(message.queue, message.received, message.summary, with_body=request.with_body)
        for message in found.messages
    )
    common = sides.pair.name, found.looked_at, found.left_off, found.failed
    explained = explain_reasons(messages, sides.pair.name) if True in request.kinds else ()
    if request.group_by:
        return Groups(*common, grouped(messages, request.group_by), explained)
    return Messages(*common, messages, explained)


async def _browse(sides: Sides, request: PeekRequest) -> tuple[tuple[str, ...], browse.BrowseReport]:
    most = MOST_MESSAGES_GROUPED if request.group_by else MOST_MESSAGES
    paths = request.queues or await _every_queue(sides, request)
    return paths, await browse.browse(
        sides.primary if request.side is Side.PRIMARY else sides.secondary,
        paths,
        kinds=request.kinds,
        max_messages=request.max_messages or most,
        from_sequence_number=request.from_sequence_number,
        wanted=lambda message: request.wanted.wants(message.received, message.summary),
        timeout_seconds=request.timeout_seconds or browse.DEFAULT_TIMEOUT_SECONDS,
    )


async def _every_queue(sides: Sides, request: PeekRequest) -> tuple[str, ...]:
    pair = sides.pair
    found = await backlog.find_queues(
        pair,
        messaging=sides.secondary,
        admin=sides.secondary_admin,
        timeout_seconds=request.timeout_seconds or backlog.DEFAULT_TIMEOUT_SECONDS,
    )
    if not found.existing:
        raise no_queue(pair)
    return found.existing
