"""One message of any entity, or a few of them, changed and sent in their place."""

import asyncio
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

from sbpair.concurrency import run_until
from sbpair.core.access import shown_name
from sbpair.core.editing import Edit, Editable, Editables
from sbpair.core.errors import MalformedMessageError, SbpairError, UsageError, unchanged
from sbpair.core.message import Received, State
from sbpair.core.summary import describe
from sbpair.core.transfer.destinations import DestinationSeen
from sbpair.core.transfer.resend import ALL_MESSAGES, Editor, Selection
from sbpair.core.transfer.state import key_of
from sbpair.core.transfer.summary import Act, EditResult
from sbpair.core.transfer.verdict import Judge
from sbpair.operations.entity_run import EntityRun, RecordedRequest, run_entity
from sbpair.operations.move import check_destination, resender
from sbpair.operations.resubmit import own_destination
from sbpair.ports import Ends, Observer
from sbpair.runtime.browse import FIRST_SEQUENCE_NUMBER, PAGE_MESSAGES, pages
from sbpair.runtime.clock import SystemClock
from sbpair.runtime.links import closing
from sbpair.runtime.transfer.drain import ToQueue

__all__ = ["EditRequest", "EditResult", "edit", "find_message"]

UNCHANGED = "Nothing was sent; the message is as it was."
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
    with unchanged(UNCHANGED):
        found = await run_until(stop or asyncio.Event(), _found(ends, request))
    place = f"{request.source} on {shown_name(ends.source_access)}"
    where = f"the dead-letter queue of {place}" if request.dead_letter else place
    peek = f"sbpair {'dlq' if request.dead_letter else 'entity'} peek {ends.source_access.label}:{request.source}"
    if not found:
        what = "that is selected" if request.number is None else f"with the number {request.number}"
        raise UsageError(f"No message {what} lies in {where}.", hint=f"See: {peek}")
    if len(found) > MOST_EDITED:
        raise UsageError(
            f"More than {MOST_EDITED} messages of {where} are selected, the most for one document. {UNCHANGED}",
            hint="Select fewer, or change all dead letters in one way: sbpair dlq resubmit --set NAME=VALUE",
        )
    return found


async def _found(ends: Ends, request: EditRequest) -> list[Received]:
    receiver = ends.source.receiver(request.source, dead_letter=request.dead_letter)
    first, found = request.number or FIRST_SEQUENCE_NUMBER, []
    browsed = pages(
        receiver,
        first,
        request.number,
        clock=SystemClock(),
        patience_seconds=request.patience_seconds,
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
        ends: the open namespaces, or one twice.
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
        raise UsageError(f"Nothing was changed in {what} of {place}. {UNCHANGED}")
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
        dead_letter=request.dead_letter,
        deferred=State.DEFERRED in states,
        scheduled=State.SCHEDULED in states,
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
