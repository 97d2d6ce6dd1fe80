"""Messages of any entity, deleted; archived first unless the request says otherwise."""

import asyncio
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

from sbpair.core.names import subscription_of
from sbpair.core.transfer.destinations import DestinationSeen
from sbpair.core.transfer.filters import MessageFilter, Where
from sbpair.core.transfer.resend import ALL_MESSAGES, Archiver, Purger, Selection
from sbpair.core.transfer.summary import Act, MoveResult
from sbpair.core.transfer.verdict import Judge
from sbpair.operations.entity_run import EntityRequest, EntityRun, run_entity
from sbpair.ports import Ends, Observer
from sbpair.runtime.transfer.drain import ToArchive, ToPrimary

__all__ = ["PurgeRequest", "purge"]


@dataclass(frozen=True, slots=True)
class PurgeRequest(EntityRequest):
    """Which messages of an entity are deleted."""

    archive: Path | None
    """The folder where a file with the messages is written before they are deleted, which `restore` reads. None: they
    are deleted without one."""
    _: KW_ONLY
    dead_letter: bool = False
    """Delete the dead letters instead."""
    number: int | None = None
    """Only the message with this sequence number."""
    selection: Selection = ALL_MESSAGES
    max_messages: int | None = None


async def purge(
    ends: Ends, request: PurgeRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> MoveResult:
    """Delete what an entity holds now: active, deferred and scheduled messages, or its dead letters.

    Without an archive, a filter or a limit the service deletes active messages in batches, where it does so. An entity
    that requires sessions is emptied session by session; their states stay. Needs Listen, and Send for scheduled
    messages.

    Args:
        request: what to do. With `dry_run` the entity is browsed; the result says what would be deleted, and its `plan`
            makes a second call delete exactly that.

    Returns:
        How many messages were deleted, the archive that has them, and why others are left.

    Raises:
        UsageError: the entity is a topic, and its dead letters were asked for.
        SbpairError: the archive cannot be written. What it does not have is not deleted.
        ServiceError: the entity cannot be read. Nothing was deleted.
        InterruptedWorkError: `stop` was set before the first message was deleted.
    """
    if request.number is not None:
        only = Where(f"sys.SequenceNumber = {request.number}")
        request = replace(request, selection=Selection(MessageFilter(where=only)), max_messages=1)
    sent_from = subscription_of(request.source)
    restored_to = request.source if sent_from is None else sent_from[0]

    def make_judge(seen: DestinationSeen, recent: frozenset[str]) -> Judge:
        return Purger(request.selection) if request.archive is None else Archiver(request.selection, restored_to)

    transfer = request.transfer(
        dead_letter=request.dead_letter,
        to=ToPrimary() if request.archive is None else ToArchive(request.archive),
        max_messages=request.max_messages,
        deferred=not request.dead_letter,
        scheduled=not request.dead_letter,
    )
    act = Act("deleted", "dead letter" if request.dead_letter else "message")
    asked_for = None if request.number is None else 1
    whole = request.archive is None and not request.selection.is_set and request.max_messages is None
    in_batches = whole and request.number is None
    run = EntityRun(act, transfer, make_judge, asked_for=asked_for, plan=request.plan, in_batches=in_batches)
    return await run_entity(run, ends, observer, stop)
