"""Looks for messages that an earlier run may have sent, before this one sends them again."""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC

from sbpair.core.errors import MalformedMessageError, ServiceError
from sbpair.core.message import Received
from sbpair.core.names import split_source
from sbpair.core.rewrite import as_sent
from sbpair.core.transfer.state import Forward, Key, key_of
from sbpair.core.transfer.verdict import Judge
from sbpair.ports import Clock, Messaging
from sbpair.runtime.browse import pages
from sbpair.runtime.links import close_quietly
from sbpair.runtime.transfer.ledger import Entry, Ledger

FOUND = "found at its destination"
"""Reason in the line of a message that an earlier run had sent."""


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


async def record_what_arrived(
    ledger: Ledger, judge: Judge, *, source: Messaging, target: Messaging, clock: Clock
) -> int:
    """Browse the destinations of messages in doubt, and record those as sent that lie there; how many.

    A message counts as found if one with its MessageId, its bytes and a later time is there. A MessageId that several
    messages have proves nothing. What cannot be found, since it is not there, was consumed already, went to a topic or
    may not be browsed, is sent again.

    Raises:
        ServiceError: a queue of messages in doubt cannot be browsed.
        LedgerError: the ledger cannot be written.
    """
    ids = Counter(key[2] for key in {*ledger.doubtful, *ledger.forwarded})
    doubtful = {key for key in ledger.doubtful if key[2] is not None and ids[key[2]] == 1}
    sought: dict[str, dict[str, _Sought]] = {}
    for queue in {key[0] for key in doubtful}:
        for destination, one in await _still_there(source, queue, doubtful, judge, clock):
            sought.setdefault(destination, {})[str(one.key[2])] = one
    arrived = [
        Entry(*one.key, destination, one.session_id, "forwarded", clock.now().astimezone(UTC).isoformat(), reason=FOUND)
        for destination, by_id in sought.items()
        for one in await _found_in(target, destination, by_id, clock)
    ]
    await ledger.record(arrived)
    ledger.forwarded |= {(one.queue, one.sequence_number, one.message_id, one.enqueued_at_ms) for one in arrived}
    return len(arrived)


async def _still_there(
    source: Messaging, queue: str, doubtful: set[Key], judge: Judge, clock: Clock
) -> list[tuple[str, _Sought]]:
    numbers = [key[1] for key in doubtful if key[0] == queue]
    path, dead_letter = split_source(queue)
    receiver = source.receiver(path, dead_letter=dead_letter)
    found = []
    try:
        async for page in pages(receiver, min(numbers), max(numbers), clock=clock):
            for received in page:
                verdict = judge(received) if key_of(received) in doubtful else None
                if isinstance(verdict, Forward):
                    sent = as_sent(verdict.payload).payload
                    one = _Sought(key_of(received), sent, verdict.session_id, received.enqueued_at or 0.0)
                    found.append((verdict.destination, one))
    finally:
        await close_quietly(receiver)
    return found


async def _found_in(target: Messaging, destination: str, by_id: dict[str, _Sought], clock: Clock) -> list[_Sought]:
    """Of a topic, or where browsing is not allowed: nothing."""
    receiver = target.receiver(destination)
    found: dict[str, _Sought] = {}
    try:
        async for page in pages(receiver, clock=clock, patience_seconds=0.0):
            for received in page:
                one = by_id.get(received.message_id or "")
                if one is not None and one.is_in(received):
                    found[received.message_id or ""] = one
    except ServiceError:
        return list(found.values())
    finally:
        await close_quietly(receiver)
    return list(found.values())
