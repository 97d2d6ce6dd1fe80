"""The dead letters of a whole namespace by cause: nothing is locked or changed."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from sbpair.concurrency import run_until, side_by_side
from sbpair.core.access import shown_name
from sbpair.core.entities import EntityKind
from sbpair.core.errors import ServiceError, UsageError
from sbpair.core.summary import describe
from sbpair.core.transfer.peeked import NotBrowsed
from sbpair.core.transfer.resend import ALL_MESSAGES, Selection
from sbpair.core.transfer.triage import Cause, CauseCounter, Triage
from sbpair.ports import Ends, Observer
from sbpair.runtime.browse import DEFAULT_TIMEOUT_SECONDS, pages_once
from sbpair.runtime.links import close_quietly

__all__ = ["Cause", "Triage", "TriageRequest", "list_causes"]

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

    Args:
        ends: the open namespace, as `source`.
        request: which dead letters.
        observer: gets nothing.
        stop: ends the browse at once when it is set.

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
        receiver = ends.source.receiver(path, dead_letter=True)
        try:
            async for page in pages_once(receiver, page_seconds=request.timeout_seconds):
                for received in page:
                    summary = describe(received.payload)
                    if request.selection.selects(received, summary):
                        counter.add(path, received, summary)
        except ServiceError as error:
            failed.append(NotBrowsed(path, error))
        finally:
            await close_quietly(receiver)

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
