"""One message of any entity, changed and sent in its place."""

import asyncio
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

from sbpair.concurrency import run_until
from sbpair.core.access import shown_name
from sbpair.core.editing import Edit, Editable
from sbpair.core.errors import MalformedMessageError, SbpairError, UsageError, unchanged
from sbpair.core.message import State
from sbpair.core.retry import PATIENCE_SECONDS
from sbpair.core.transfer.destinations import DestinationSeen
from sbpair.core.transfer.resend import ALL_MESSAGES, Editor
from sbpair.core.transfer.summary import Act, EditResult, MovePlan
from sbpair.core.transfer.verdict import Judge
from sbpair.operations.entity_run import EntityRun, run_entity
from sbpair.operations.move import check_destination, resender
from sbpair.operations.resubmit import own_destination
from sbpair.ports import Ends, Observer
from sbpair.runtime.browse import page_from
from sbpair.runtime.clock import SystemClock
from sbpair.runtime.links import close_quietly
from sbpair.runtime.transfer.drain import ToQueue, TransferRequest

__all__ = ["EditRequest", "EditResult", "edit", "find_message"]

UNCHANGED = "Nothing was sent; the message is as it was."


@dataclass(frozen=True, slots=True)
class EditRequest:
    """Which message is changed, how, and where its new form goes."""

    source: str
    """Path of a queue or subscription."""
    number: int
    """The sequence number of the message."""
    text: str = ""
    """The message as JSON, as `find_message` gives it, with the changes. What is not changed keeps its bytes."""
    _: KW_ONLY
    to: str = ""
    """Path of a queue or topic of the target namespace; empty: the queue itself."""
    dead_letter: bool = False
    """The message is a dead letter."""
    found: Editable | None = None
    """The message, if `find_message` has found it already."""
    despite_duplicate_detection: bool = False
    """Send although the destination detects duplicates and drops a MessageId that it has got before."""
    patience_seconds: float = PATIENCE_SECONDS
    """How long the source or the destination may fail before the message is left."""
    ledger: Path | None = None
    """The file that records the message. What it already has is not sent again."""
    new_ledger: bool = False
    """Begin a new ledger; the old file stays beside it as FILE.N."""
    plan: MovePlan | None = None
    """What a dry run has decided, to do exactly that."""
    dry_run: bool = False


async def find_message(ends: Ends, request: EditRequest, *, stop: asyncio.Event | None = None) -> Editable:
    """The message that a request is about; its `text` is what can be edited. Needs Listen on the source.

    Raises:
        UsageError: no message has this number.
        SbpairError: the message cannot be read.
        ServiceError: the entity cannot be browsed.
        InterruptedWorkError: `stop` was set before an answer came.
    """
    receiver = ends.source.receiver(request.source, dead_letter=request.dead_letter)
    try:
        with unchanged(UNCHANGED):
            asked = page_from(
                receiver, request.number, clock=SystemClock(), most=1, patience_seconds=request.patience_seconds
            )
            page = await run_until(stop or asyncio.Event(), asked)
    finally:
        await close_quietly(receiver)
    found = next((message for message in page if message.sequence_number == request.number), None)
    if found is None:
        place = f"{request.source} on {shown_name(ends.source_access)}"
        where = f"the dead-letter queue of {place}" if request.dead_letter else place
        peek = f"sbpair {'dlq' if request.dead_letter else 'entity'} peek {ends.source_access.label}:{request.source}"
        raise UsageError(f"No message with the number {request.number} lies in {where}.", hint=f"See: {peek}")
    try:
        return Editable.of(found)
    except MalformedMessageError as error:
        raise SbpairError(f"{error.message} {UNCHANGED}", hint="`sbpair move` sends it as it is.") from error


async def edit(
    ends: Ends, request: EditRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> EditResult:
    """Send one message in another form, and complete the original: active, deferred, scheduled or dead letter.

    The new form goes to the end of its queue, in a session behind the session's other messages. Within a namespace that
    has transactions the original is completed in the one that sends the new form; elsewhere a crash may leave both.
    Needs Listen on the source and Send on the destination.

    Args:
        ends: the open namespaces, or one twice.
        request: what to do. With `dry_run` the entity is browsed and the destination asked; the result says how the
            message would change, and its `plan` makes a second call do exactly that.
        observer: gets the events on the way.
        stop: ends the run once it is set; the result says what was done until then.

    Returns:
        How the message was changed, and what became of it.

    Raises:
        UsageError: no message has this number, the text changes nothing or says something that a message cannot have,
            the message is one of a subscription and no destination is named; otherwise as `move`.
        SbpairError: the message cannot be read, the destination takes nothing, or the ledger cannot be written.
        ServiceError: the entity cannot be read. Nothing was sent.
        InterruptedWorkError: `stop` was set before the message was sent.
    """
    to = request.to or own_destination(request.source)
    check_destination(to)
    found = request.found or await find_message(ends, request, stop=stop)
    changed = found.changed(request.text)
    if changed is None:
        place = f"{request.source} on {shown_name(ends.source_access)}"
        raise UsageError(f"Nothing was changed in message {request.number} of {place}. {UNCHANGED}")
    done = await run_entity(_run(ends, replace(request, to=to), found, changed), ends, observer, stop)
    return EditResult(request.number, changed.diff, done)


def _run(ends: Ends, request: EditRequest, found: Editable, changed: Edit) -> EntityRun:
    """The run that sends this one message and looks for it where it lies."""
    resend = resender(ends, request.source, request.to, ALL_MESSAGES)

    def make_judge(seen: DestinationSeen, recent: frozenset[str]) -> Judge:
        return Editor(resend(seen, recent), found.received, changed.payload)

    transfer = TransferRequest(
        (request.source,),
        dead_letter=request.dead_letter,
        deferred=found.received.state is State.DEFERRED,
        scheduled=found.received.state is State.SCHEDULED,
        to=ToQueue(request.to),
        leave_missing=True,
        max_messages=1,
        patience_seconds=request.patience_seconds,
        dry_run=request.dry_run,
    )
    return EntityRun(
        Act("sent", "edited message", edited=True),
        transfer,
        make_judge,
        request.to,
        despite_duplicate_detection=request.despite_duplicate_detection,
        single_message=True,
        ledger=request.ledger,
        new_ledger=request.new_ledger,
        plan=request.plan,
    )
