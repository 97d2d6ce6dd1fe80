"""Dead letters of any entity by reason, those of a namespace by cause, and messages of any entity: all by browsing."""

import asyncio
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

from sbpair.concurrency import run_until, side_by_side
from sbpair.core.access import shown_name
from sbpair.core.entities import EntityKind
from sbpair.core.errors import ServiceError, UsageError
from sbpair.core.summary import describe
from sbpair.core.transfer.peeked import DeadLetters, GroupKey, NotBrowsed, grouped, peeked
from sbpair.core.transfer.resend import ALL_MESSAGES, Selection
from sbpair.core.transfer.triage import (
    Cause,
    CauseCounter,
    DeadLetterReason,
    DeadLetterReasons,
    ReasonCounter,
    Triage,
)
from sbpair.operations.peek import MOST_MESSAGES, MOST_MESSAGES_GROUPED
from sbpair.ports import Ends, Observer
from sbpair.runtime.browse import DEFAULT_TIMEOUT_SECONDS, browse, pages_once
from sbpair.runtime.links import closing

__all__ = [
    "BrowseRequest",
    "Cause",
    "DeadLetterReason",
    "DeadLetterReasons",
    "Triage",
    "TriageRequest",
    "browse_messages",
    "list_causes",
    "list_dead_letters",
]


@dataclass(frozen=True, slots=True)
class BrowseRequest:
    """Which messages of an entity are browsed."""

    source: str
    """Path of a queue or subscription."""
    _: KW_ONLY
    selection: Selection = ALL_MESSAGES
    dead_letter: bool = False
    """Browse the dead letters instead; `list_dead_letters` does that always."""
    max_messages: int | None = None
    """The oldest first; None: 50, or 10,000 where they are grouped. `list_dead_letters` counts all."""
    from_sequence_number: int = 0
    group_by: tuple[GroupKey, ...] = ()
    """Count the messages by these instead."""
    with_body: bool = False
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Longest wait for a page of messages."""


async def list_dead_letters(
    ends: Ends, request: BrowseRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> DeadLetterReasons:
    """Count all dead letters of a queue or subscription by reason, with their ages. Needs Listen.

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
    async with closing(ends.source.receiver(request.source, dead_letter=True)) as receiver:
        async for page in pages_once(receiver, page_seconds=request.timeout_seconds):
            for received in page:
                summary = describe(received.payload)
                if request.selection.selects(received, summary):
                    counter.add(received, summary)
    return counter


async def browse_messages(
    ends: Ends, request: BrowseRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> DeadLetters:
    """Browse the messages of a queue or subscription, or its dead letters, the oldest first. Needs Listen.

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
        max_messages=request.max_messages or (MOST_MESSAGES_GROUPED if request.group_by else MOST_MESSAGES),
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
    groups = grouped(messages, request.group_by) if request.group_by else None
    shown = () if request.group_by else messages
    return DeadLetters(shown_name(ends.source_access), request.source, report.looked_at, report.left_off, shown, groups)


# The dead letters of a whole namespace by cause.

ENTITIES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class TriageRequest:
    """Which dead letters of a namespace are grouped."""

    selection: Selection = ALL_MESSAGES
    before: Mapping[str, int] | None = None
    """The `Cause.parts` of the last look together; None: nobody has looked."""
    since_last: bool = False
    """Only causes that are new or grow count as findings."""
    with_body: bool = False
    """The body of one letter of each cause."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Longest wait for a page of messages."""


async def list_causes(
    ends: Ends, request: TriageRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> Triage:
    """Browse the dead letters of every queue and subscription that counts some, and group them by cause.

    Needs Listen on them, and Manage to know which they are.

    Returns:
        The causes, the most frequent one first. An entity that could not be browsed is named in `not_read`.

    Raises:
        UsageError: the entities of the namespace cannot be listed.
        ServiceError: as that.
        FilterError: the filter cannot be evaluated for a message.
        InterruptedWorkError: `stop` was set.
    """
    return await run_until(stop or asyncio.Event(), _grouped(ends, request))


async def _grouped(ends: Ends, request: TriageRequest) -> Triage:
    if ends.topology is None:
        raise UsageError("The entities of this namespace cannot be listed: name one.")
    known = await ends.topology.entities(rules=False)
    paths = [one.path for one in known if one.kind is not EntityKind.TOPIC and one.counts.dead_letter]
    counter = CauseCounter()
    failed: list[NotBrowsed] = []

    async def browse(path: str) -> None:
        try:
            async with closing(ends.source.receiver(path, dead_letter=True)) as receiver:
                async for page in pages_once(receiver, page_seconds=request.timeout_seconds):
                    for received in page:
                        summary = describe(received.payload)
                        if request.selection.selects(received, summary):
                            counter.add(path, received, summary)
        except ServiceError as error:
            failed.append(NotBrowsed(path, error))

    await side_by_side(browse, paths, at_once=ENTITIES_AT_ONCE)
    label = ends.source_access.label
    causes = counter.causes(label, request.before, with_body=request.with_body)
    return Triage(
        shown_name(ends.source_access),
        counter.messages,
        len(paths),
        causes,
        tuple(failed),
        counter.left_off,
        request.since_last,
    )
