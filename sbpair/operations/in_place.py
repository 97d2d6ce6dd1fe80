"""Messages dealt with where they lie: one by its number, or deferred ones made active again."""

import asyncio
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime

from sbpair.core.editing import as_document, document_text
from sbpair.core.errors import UsageError
from sbpair.core.message import Disposition, State
from sbpair.core.transfer.report import DEAD_LETTERED
from sbpair.core.transfer.resend import Settler
from sbpair.core.transfer.state import Finish, key_of
from sbpair.core.transfer.summary import Act, EditResult, MoveResult
from sbpair.operations.edit import EditRequest, edit, find_message, find_received
from sbpair.operations.entity_run import EntityRequest, EntityRun, run_entity
from sbpair.operations.move import ResendRequest, resending
from sbpair.operations.resubmit import own_destination
from sbpair.ports import Ends, Observer

__all__ = [
    "DeadLetterRequest",
    "RescheduleRequest",
    "UndeferRequest",
    "dead_letter_message",
    "reschedule_message",
    "undefer",
]


@dataclass(frozen=True, slots=True)
class DeadLetterRequest(EntityRequest):
    """Which message is dead-lettered, and why."""

    number: int
    """The sequence number of an active or deferred message."""
    _: KW_ONLY
    reason: str
    description: str = ""


async def dead_letter_message(
    ends: Ends, request: DeadLetterRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> MoveResult:
    """Move one message to the dead letters of its queue or subscription. Needs Listen.

    To reach an active message, the ones before it are locked for a moment and released.

    Args:
        request: what to do. With `dry_run` the entity is browsed, and the result's `plan` makes a second call do
            exactly that.

    Returns:
        What became of the message.

    Raises:
        UsageError: no message has this number, or it is scheduled: nothing can receive it.
        ServiceError: the entity cannot be read. Nothing was done.
        InterruptedWorkError: `stop` was set before the message was settled.
    """
    wanted = EditRequest(request.source, request.number, patience_seconds=request.patience_seconds)
    (received,) = await find_received(ends, wanted, stop=stop)
    if received.state is State.SCHEDULED:
        raise UsageError(
            f"Message {request.number} of {request.source} is scheduled: it cannot be dead-lettered.",
            hint="Delete it with `sbpair message complete`, or wait until it is active.",
        )
    finish = Finish(Disposition.DEAD_LETTER, DEAD_LETTERED, request.reason, request.description)
    transfer = request.transfer(
        deferred=received.state is State.DEFERRED, active=received.state is State.ACTIVE, max_messages=1
    )
    run = EntityRun(
        Act(DEAD_LETTERED),
        transfer,
        lambda seen, recent: Settler(key_of(received), finish),
        asked_for=1,
        plan=request.plan,
    )
    return await run_entity(run, ends, observer, stop)


@dataclass(frozen=True, slots=True)
class RescheduleRequest(EntityRequest):
    """Which scheduled message is to become active when."""

    number: int
    at: float
    """UTC epoch seconds."""


async def reschedule_message(
    ends: Ends, request: RescheduleRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> EditResult:
    """Schedule a message for another time: a new one is scheduled and the old one cancelled, in one transaction.

    Args, results and errors are those of `edit`.

    Raises:
        UsageError: no message has this number, it is not scheduled, or it has this time already.
    """
    wanted = EditRequest(
        request.source,
        request.number,
        patience_seconds=request.patience_seconds,
        plan=request.plan,
        dry_run=request.dry_run,
    )
    found = await find_message(ends, wanted, stop=stop)
    message = found.messages[0]
    if message.received.state is not State.SCHEDULED:
        raise UsageError(f"Message {request.number} of {request.source} is {message.received.state}, not scheduled.")
    at = datetime.fromtimestamp(request.at, UTC).isoformat(timespec="milliseconds")
    text = document_text({**as_document(message.payload), "scheduled_at": at})
    done = await edit(ends, replace(wanted, found=found, text=text), observer=observer, stop=stop)
    return replace(done, moved=replace(done.moved, act=replace(done.moved.act, recorded=False)))


@dataclass(frozen=True, slots=True)
class UndeferRequest(ResendRequest):
    """Which deferred messages of a queue become active, and how. Durations in seconds."""

    to: str = ""
    """Path of a queue or topic of the target namespace; empty: the queue itself."""


async def undefer(
    ends: Ends, request: UndeferRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> MoveResult:
    """Send deferred messages to their queue again, where they are active, and complete the deferred ones.

    They go to the end of the queue, in a session behind its other messages. Nothing else is received. Within a
    namespace that has transactions each message is sent and completed in one. Needs Listen and Send.

    Args, results and errors are those of `move`.

    Raises:
        UsageError: they are those of a subscription, and no destination is named; otherwise as `move`.
    """
    selection = replace(request.selection, states=frozenset({State.DEFERRED}))
    request = replace(request, to=request.to or own_destination(request.source), selection=selection)
    run = resending(Act("sent", "deferred message"), ends, request)
    transfer = replace(run.transfer, scheduled=False, active=False)
    return await run_entity(replace(run, transfer=transfer), ends, observer, stop)
