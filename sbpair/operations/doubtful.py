"""Looks for messages that an earlier run may have sent, before this one sends them again."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC

from sbpair.concurrency import cancel_on
from sbpair.core.errors import MalformedMessageError, ServiceError
from sbpair.core.message import PARTITION_SHIFT, Received, State
from sbpair.core.names import split_source
from sbpair.core.rewrite import as_sent
from sbpair.core.transfer.ledger import Entry
from sbpair.core.transfer.state import Forward, Key, key_of
from sbpair.core.transfer.verdict import Judge
from sbpair.ports import Clock, MessageReceiver, Messaging
from sbpair.runtime.browse import FIRST_SEQUENCE_NUMBER, page_from, pages
from sbpair.runtime.links import close_quietly, closing
from sbpair.runtime.transfer.ledger import Ledger

FOUND = "found at its destination"
"""Reason in the line of a message that an earlier run had sent."""
VERIFY_SECONDS = 30.0
"""Bound for browsing all destinations together. What is not found by then is sent again."""
_CLOCKS_APART_SECONDS = 60.0
"""How far the clocks of two namespaces may differ without a message being passed over."""


@dataclass(slots=True)
class _Sought:
    """A message in doubt that is still in its queue."""

    key: Key
    payload: bytes
    """As it was sent, without what a service adds."""
    session_id: str | None
    since: float
    """When it was put into its queue: what its destination got before is another message."""

    def is_in(self, received: Received) -> bool:
        try:
            return (received.enqueued_at or 0.0) >= self.since and as_sent(received.payload).payload == self.payload
        except MalformedMessageError:
            return False


Verify = Callable[[Ledger], Awaitable[int]]
"""What `open_ledger` takes."""


def looking_for(
    judge: Judge,
    *,
    source: Messaging | Sequence[Received],
    target: Messaging,
    clock: Clock,
    stop: asyncio.Event,
) -> Verify:
    """`record_what_arrived` for `open_ledger`, until `stop` is set."""

    async def look(ledger: Ledger) -> int:
        arrived = record_what_arrived(ledger, judge, source=source, target=target, clock=clock)
        return await cancel_on(stop, arrived) or 0

    return look


async def record_what_arrived(
    ledger: Ledger, judge: Judge, *, source: Messaging | Sequence[Received], target: Messaging, clock: Clock
) -> int:
    """Browse the destinations of messages in doubt, and record those as sent that lie there; how many.

    A message counts as found if one with its MessageId, its bytes and a later time is there. A MessageId that several
    messages have proves nothing. What cannot be found, since it is not there, was consumed already, went to a topic or
    may not be browsed, is sent again.

    Args:
        judge: says what is sent of a message, and where.
        source: where the messages still lie; or they themselves, out of files.

    Raises:
        LedgerError: the ledger cannot be written.
    """
    if not ledger.doubtful:
        return 0
    ids = Counter(key[2] for key in {*ledger.doubtful, *ledger.forwarded})
    doubtful = {key for key in ledger.doubtful if key[2] is not None and ids[key[2]] == 1}
    sought: dict[str, dict[str, _Sought]] = {}
    found: list[tuple[str, _Sought]] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(VERIFY_SECONDS):
            if isinstance(source, Sequence):
                _seek(source, doubtful, judge, sought)
            else:
                for queue in {key[0] for key in doubtful}:
                    await _look_for_rest(source, queue, doubtful, judge, clock, sought)
            for destination, by_id in sought.items():
                await _look_in(target, destination, by_id, clock, found)
    time = clock.now().astimezone(UTC).isoformat()
    arrived = [Entry(*one.key, to, one.session_id, "forwarded", time, reason=FOUND) for to, one in found]
    await ledger.record(arrived)
    ledger.forwarded |= {(one.queue, one.sequence_number, one.message_id, one.enqueued_at_ms) for one in arrived}
    return len(arrived)


async def _look_for_rest(
    source: Messaging,
    queue: str,
    doubtful: set[Key],
    judge: Judge,
    clock: Clock,
    sought: dict[str, dict[str, _Sought]],
) -> None:
    """Add what is still in its queue, by destination and MessageId. Where it cannot be browsed: nothing."""
    numbers = [key[1] for key in doubtful if key[0] == queue]
    path, dead_letter = split_source(queue)
    try:
        async with closing(source.receiver(path, dead_letter=dead_letter)) as receiver:
            async for page in pages(receiver, min(numbers), max(numbers), clock=clock, patience_seconds=0.0):
                _seek(page, doubtful, judge, sought)
    except ServiceError:
        return


def _seek(
    messages: Iterable[Received], doubtful: set[Key], judge: Judge, sought: dict[str, dict[str, _Sought]]
) -> None:
    """Add those that are in doubt, by destination and MessageId."""
    for received in messages:
        verdict = judge(received) if key_of(received) in doubtful else None
        if isinstance(verdict, Forward):
            sent = as_sent(verdict.payload).payload
            one = _Sought(key_of(received), sent, verdict.session_id, received.enqueued_at or 0.0)
            sought.setdefault(verdict.destination, {})[str(received.message_id)] = one


async def _look_in(
    target: Messaging, destination: str, by_id: dict[str, _Sought], clock: Clock, found: list[tuple[str, _Sought]]
) -> None:
    """Add what is there. Of a topic, or where browsing is not allowed: nothing."""
    receiver = target.receiver(destination)
    since = min(one.since for one in by_id.values()) - _CLOCKS_APART_SECONDS
    number = FIRST_SEQUENCE_NUMBER
    try:
        while page := await page_from(receiver, number, clock=clock, patience_seconds=0.0):
            for received in page:
                one = by_id.get(received.message_id or "")
                if one is not None and one.is_in(received):
                    found.append((destination, by_id.pop(received.message_id or "")))
            if not by_id:
                return
            last = page[-1]
            number = last.sequence_number + 1
            if _is_before(last, since):
                number = await _first_since(receiver, last.sequence_number, since, clock)
    except ServiceError:
        return
    finally:
        await close_quietly(receiver)


async def _first_since(receiver: MessageReceiver, number: int, since: float, clock: Clock) -> int:
    """A number after this one with no message of its partition between that came at `since` or later: a destination
    may hold a million messages that were there long before."""
    end = ((number >> PARTITION_SHIFT) + 1) << PARTITION_SHIFT
    step, low, high = 1, number, end
    while high - low > 1:
        middle = min(low + step, (low + high) // 2) if high == end else (low + high) // 2
        page = await page_from(receiver, middle, clock=clock, most=1, patience_seconds=0.0)
        if page and page[0].sequence_number < end and _is_before(page[0], since):
            low, step = page[0].sequence_number, 2 * step
        else:
            high = middle
    return low + 1


def _is_before(received: Received, since: float) -> bool:
    """What is scheduled has the time at which it will be there."""
    return received.state is not State.SCHEDULED and (received.enqueued_at or since) < since
