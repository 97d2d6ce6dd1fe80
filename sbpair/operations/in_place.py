"""Messages dealt with where they lie: explained, edited, purged, dead-lettered, rescheduled, made active again."""

import asyncio
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from sbpair.concurrency import run_until
from sbpair.core.access import shown_name
from sbpair.core.editing import Edit, Editable, Editables, as_document, document_text
from sbpair.core.entities import EntityFacts
from sbpair.core.errors import MalformedMessageError, SbpairError, ServiceError, UsageError, unchanged
from sbpair.core.message import Disposition, MessageState, Received
from sbpair.core.names import subscription_of
from sbpair.core.summary import describe
from sbpair.core.transfer.explained import ExplainedMessage, MessageContext, Near, explain
from sbpair.core.transfer.filters import MessageFilter, Where
from sbpair.core.transfer.peeked import PeekedMessage, peeked
from sbpair.core.transfer.report import DEAD_LETTERED
from sbpair.core.transfer.resend import ALL_MESSAGES, Archiver, Editor, Purger, Selection, Settler
from sbpair.core.transfer.state import Finish, key_of
from sbpair.core.transfer.summary import Act, EditResult, MoveResult
from sbpair.core.transfer.verdict import DestinationSeen, Judge
from sbpair.operations.entity_run import EntityRequest, EntityRun, RecordedRequest, run_entity
from sbpair.operations.move import ResendRequest, check_destination, resender, resending
from sbpair.operations.resubmit import own_destination
from sbpair.ports import Ends, Observer
from sbpair.runtime.browse import DEFAULT_TIMEOUT_SECONDS, FIRST_SEQUENCE_NUMBER, PAGE_MESSAGES, pages, pages_once
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.links import closing
from sbpair.runtime.transfer.drain import ToArchive, ToPrimary, ToQueue
from sbpair.service import session_key

__all__ = [
    "DeadLetterRequest",
    "EditRequest",
    "EditResult",
    "ExplainRequest",
    "ExplainedMessage",
    "PurgeRequest",
    "RescheduleRequest",
    "UndeferRequest",
    "dead_letter_message",
    "edit",
    "explain_message",
    "find_message",
    "purge",
    "reschedule_message",
    "show_message",
    "undefer",
]

UNCHANGED = "Nothing was sent or changed."
MOST_EDITED = 50
"""Messages in one text; for more `resubmit` has `repair`."""


@dataclass(frozen=True, slots=True)
class EditRequest(RecordedRequest):
    """Which message is changed, or which few, how, and where the new form goes."""

    number: int | None
    """The sequence number of the message; None: those of `selection`."""
    text: str = ""
    """The message as JSON, as `find_message` gives it, with the changes. What is not changed keeps its bytes."""
    _: KW_ONLY
    to: str = ""
    """Path of a queue or topic of the target namespace; empty: the queue itself."""
    dead_letter: bool = False
    """The message is a dead letter."""
    selection: Selection = ALL_MESSAGES
    """Without a number: which messages, at most `MOST_EDITED`, in one text."""
    found: Editables | None = None
    """The message, if `find_message` has found it already."""


async def find_message(ends: Ends, request: EditRequest, *, stop: asyncio.Event | None = None) -> Editables:
    """The message or messages that a request is about; `text` is what can be edited. Needs Listen on the source.

    Raises:
        UsageError: as `find_received`.
        SbpairError: a message cannot be read.
        ServiceError: the entity cannot be browsed.
        FilterError: the filter cannot be evaluated for a message.
        InterruptedWorkError: `stop` was set before an answer came.
    """
    found = await find_received(ends, request, stop=stop)
    try:
        return Editables(tuple(map(Editable.of, found)), several=request.number is None)
    except MalformedMessageError as error:
        raise SbpairError(f"{error.message} {UNCHANGED}", hint="`sbpair move` sends it as it is.") from error


async def find_received(ends: Ends, request: EditRequest, *, stop: asyncio.Event | None = None) -> list[Received]:
    """The same as they lie there.

    Raises:
        UsageError: no message has this number or is selected, or too many are.
        ServiceError: the entity cannot be browsed.
        FilterError: the filter cannot be evaluated for a message.
        InterruptedWorkError: `stop` was set before an answer came.
    """
    found = await run_until(stop or asyncio.Event(), _found(ends, request))
    place = f"{request.source} on {shown_name(ends.source_access)}"
    where = f"the dead-letter queue of {place}" if request.dead_letter else place
    peek = f"sbpair {'dlq' if request.dead_letter else 'entity'} peek {ends.source_access.label}:{request.source}"
    if not found:
        what = "that is selected" if request.number is None else f"with the number {request.number}"
        hint = f"See: {peek}"
        if request.number is not None and await _lies_beside(ends, request):
            which, option = ("message that is no dead letter", "") if request.dead_letter else ("dead letter", " --dlq")
            explained = f"{ends.source_access.label}:{request.source} {request.number}{option}"
            hint = f"A {which} has this number: sbpair explain {explained}"
        raise UsageError(f"No message {what} lies in {where}.", hint=hint)
    if len(found) > MOST_EDITED:
        raise UsageError(
            f"More than {MOST_EDITED} messages of {where} are selected, the most for one document. {UNCHANGED}",
            hint="Select fewer, or change all dead letters in one way: sbpair dlq resubmit --set NAME=VALUE",
        )
    return found


async def _one(
    ends: Ends, source: str, number: int, seconds: float, stop: asyncio.Event | None, dead_letter: bool = False
) -> Received:
    wanted = EditRequest(source, number, dead_letter=dead_letter, patience_seconds=seconds)
    return (await find_received(ends, wanted, stop=stop))[0]


async def show_message(
    ends: Ends, request: "ExplainRequest", *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> PeekedMessage:
    """One message completely, with its body. Needs Listen. Errors are those of `explain_message`."""
    source, number, seconds = request.source, request.number, request.timeout_seconds
    received = await _one(ends, source, number, seconds, stop, request.dead_letter)
    return peeked(received.source, received, describe(received.payload), with_body=True)


async def _lies_beside(ends: Ends, request: EditRequest) -> bool:
    """Whether the other one of entity and dead-letter queue has a message of that number, as far as that may be
    known."""
    try:
        return bool(await _found(ends, replace(request, dead_letter=not request.dead_letter)))
    except ServiceError:
        return False


async def _found(ends: Ends, request: EditRequest) -> list[Received]:
    receiver = ends.source.receiver(request.source, dead_letter=request.dead_letter)
    first, found = request.number or FIRST_SEQUENCE_NUMBER, []
    browsed = pages(
        receiver,
        first,
        request.number,
        clock=LoopClock(),
        patience_seconds=request.patience_seconds,
        page_seconds=min(request.patience_seconds, DEFAULT_TIMEOUT_SECONDS),
        first_page_messages=PAGE_MESSAGES if request.number is None else 1,
    )
    async with closing(receiver):
        async for page in browsed:
            found += [one for one in page if request.selection.selects(one, describe(one.payload))]
            if len(found) > MOST_EDITED:
                break
    return found


async def edit(
    ends: Ends, request: EditRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> EditResult:
    """Send messages in another form, and complete the originals: active, deferred, scheduled or dead letters.

    The new form goes to the end of its queue, in a session behind the session's other messages. Within a namespace that
    has transactions the original is completed in the one that sends the new form; elsewhere a crash may leave both.
    Needs Listen on the source and Send on the destination.

    Args:
        request: what to do. With `dry_run` the entity is browsed and the destination asked; the result says how the
            message would change, and its `plan` makes a second call do exactly that.

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
    if not changed:
        what = "any message" if request.number is None else f"message {request.number}"
        place = f"{request.source} on {shown_name(ends.source_access)}"
        raise UsageError(f"Nothing was changed in {what} of {place}. Nothing was sent.")
    done = await run_entity(_run(ends, replace(request, to=to), changed), ends, observer, stop)
    numbers = tuple(one.received.sequence_number for one, _ in changed)
    return EditResult(numbers, tuple(line for _, edit in changed for line in edit.diff), done)


def _run(ends: Ends, request: EditRequest, changed: Sequence[tuple[Editable, Edit]]) -> EntityRun:
    """The run that sends these messages and looks for them where they lie."""
    forms = {key_of(one.received): edit.payload for one, edit in changed}
    states = {one.received.state for one, _ in changed}
    resend = resender(ends, request.source, request.to, ALL_MESSAGES)

    def make_judge(seen: DestinationSeen, recent: frozenset[str]) -> Judge:
        return Editor(resend(seen, recent), forms)

    transfer = request.transfer(
        deferred=MessageState.DEFERRED in states,
        scheduled=MessageState.SCHEDULED in states,
        to=ToQueue(request.to),
        leave_missing=True,
        max_messages=len(forms),
    )
    return EntityRun(
        Act("sent", "edited message", edited=True),
        transfer,
        make_judge,
        request.to,
        asked_for=len(forms),
        **request.recorded(),
    )


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
        UsageError: no message has this number, or the entity is a topic, and its dead letters were asked for.
        SbpairError: the archive cannot be written. What it does not have is not deleted.
        ServiceError: the entity cannot be read. Nothing was deleted.
        InterruptedWorkError: `stop` was set before the first message was deleted.
    """
    if request.number is not None:
        if request.plan is None:
            await _one(ends, request.source, request.number, request.patience_seconds, stop, request.dead_letter)
        only = Where(f"sys.SequenceNumber = {request.number}")
        request = replace(request, selection=Selection(MessageFilter(where=only)), max_messages=1)
    sent_from = subscription_of(request.source)
    restored_to = request.source if sent_from is None else sent_from[0]

    def make_judge(seen: DestinationSeen, recent: frozenset[str]) -> Judge:
        return Purger(request.selection) if request.archive is None else Archiver(request.selection, restored_to)

    transfer = request.transfer(
        to=ToPrimary() if request.archive is None else ToArchive(request.archive),
        deferred=not request.dead_letter,
        scheduled=not request.dead_letter,
    )
    act = Act("deleted", "dead letter" if request.dead_letter else "message")
    asked_for = None if request.number is None else 1
    in_batches = request.archive is None and not request.selection.is_set and request.max_messages is None
    run = EntityRun(act, transfer, make_judge, asked_for=asked_for, plan=request.plan, in_batches=in_batches)
    return await run_entity(run, ends, observer, stop)


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
    with unchanged(UNCHANGED):
        received = await _one(ends, request.source, request.number, request.patience_seconds, stop)
    if received.state is MessageState.SCHEDULED:
        raise UsageError(
            f"Message {request.number} of {request.source} is scheduled: it cannot be dead-lettered.",
            hint="Delete it with `sbpair message complete`, or wait until it is active.",
        )
    finish = Finish(Disposition.DEAD_LETTER, DEAD_LETTERED, request.reason, request.description)
    transfer = request.transfer(
        deferred=received.state is MessageState.DEFERRED, active=received.state is MessageState.ACTIVE, max_messages=1
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
    if message.received.state is not MessageState.SCHEDULED:
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
    selection = replace(request.selection, states=frozenset({MessageState.DEFERRED}))
    request = replace(request, to=request.to or own_destination(request.source), selection=selection)
    run = resending(Act("sent", "deferred message"), ends, request)
    transfer = replace(run.transfer, scheduled=False, active=False)
    return await run_entity(replace(run, transfer=transfer), ends, observer, stop)


MOST_BROWSED = 10_000
"""Messages that are looked through, in the queue and in its dead letters each, for those of the same session and id."""


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """Which message is explained or shown."""

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
    """
    source, number, seconds = request.source, request.number, request.timeout_seconds
    received = await _one(ends, source, number, seconds, stop, request.dead_letter)
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
