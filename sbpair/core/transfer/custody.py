"""The messages in our hands: their locks, how they are settled, and what is remembered of them.

A message is in our hands from its receipt until the broker confirms its settlement, or its lock is lost:

    take_in ──> WAITING, SENDING (`core.transfer.delivery`) ──> accepted ──> SETTLING (complete) ──> settled
       │                 │                                                        ^
       │                 └── release ──> SETTLING (release) ──> settled           │ SETTLING (dead-letter)
       └── leave ──> LEFT ── release_left ──^             dead_letter, finish ────┘

*Remembered.* The namespace has what it accepted, whatever happens to us afterwards. So its key is remembered from
before the ledger's line is written until its completion is confirmed; a message that comes again with a remembered key
is completed, not sent. At the end the report names what is still remembered.

*Locks.* A lock is renewed while its message is in our hands and is not being settled. A message whose lock ran out
before it was sent comes again; a message that is on its way keeps its receipt, and the settlement's answer decides.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from sbpair.core.errors import Category, LockLostError, SbpairError, ServiceError
from sbpair.core.message import Disposition, Received
from sbpair.core.names import is_dead_letter_path
from sbpair.core.retry import SERVER_BUSY_SECONDS
from sbpair.core.transfer.order import Queues
from sbpair.core.transfer.report import UNDELIVERABLE, Accepted, Moment, Tally, alike
from sbpair.core.transfer.state import Action, Finish, Item, Key, PollAgain, Renew, Settle, Stage, key_of

DEAD_LETTERED, REFUSED_OUTCOME = "dead-lettered", "refused"
"""The ledger's words for what cannot be delivered: put into the dead-letter queue, or left where it is stored."""
TAKEN = "taken"
"""The ledger's word for what an archive has and its queue has no more."""
PURGED = "purged"
"""The ledger's word for what was deleted on request."""
MAX_REMEMBERED = 200_000
LOCK_CHECK_SECONDS = 1.0


class Custody:
    """See the module. Times are seconds of one monotonic clock.

    Args:
        actions: gets what is to be done.
        forwarded: what earlier runs have sent.
        undeliverable: the ledger's word for a message that is dead-lettered because it cannot be delivered; None where
            it can only be left, as it is in a dead-letter queue.
    """

    def __init__(
        self,
        queues: Queues,
        actions: deque[Action],
        tally: Tally,
        *,
        forwarded: Collection[Key],
        undeliverable: str | None,
    ) -> None:
        self._queues = queues
        self._actions = actions
        self._tally = tally
        self._undeliverable = undeliverable
        self._items: dict[Key, Item] = {}
        self._forwarded: dict[Key, None] = dict.fromkeys(forwarded)
        self._most_remembered = MAX_REMEMBERED + len(self._forwarded)
        self._later: list[tuple[float, int, Settle]] = []
        """Settlements that the namespace was too busy for, with the time of the next try."""
        self._tie = itertools.count()
        self._lock_check_at = 0.0
        self.stopping = False
        self.last_arrival = 0.0
        """When a message came last; 0 if none has."""
        self.left_messages = 0
        """Messages that stay where they are, under lock."""
        self.counted = 0
        """Messages that count towards the number wanted."""
        self.size_bytes = 0
        """Payloads in memory."""
        self.mean_bytes = 1024.0
        """Of a payload lately."""
        self.taken = 0
        """Completed because an archive has them."""

    # What is known

    @property
    def live(self) -> int:
        """Messages neither left nor done."""
        return len(self._items) - self.left_messages

    @property
    def uncompleted(self) -> frozenset[Key]:
        """What was forwarded and whose completion was not confirmed; remembered so that it is not sent again."""
        return frozenset(self._forwarded)

    def left(self) -> dict[Key, str]:
        """The messages that were left, with why they stay."""
        return {key: item.left_because for key, item in self._items.items() if item.stage is Stage.LEFT}

    def left_behind(self, because: str) -> Iterator[Item]:
        """The messages that were left for this reason."""
        return (item for item in self._items.values() if item.stage is Stage.LEFT and item.left_because == because)

    def find(self, key: Key) -> Item | None:
        """The message, if it is in our hands."""
        return self._items.get(key)

    def was_forwarded(self, key: Key) -> bool:
        """Whether the message was sent, by us or by an earlier run."""
        return key in self._forwarded

    def accounts_for(self, key: Key) -> bool:
        """Whether nobody else has the message: it is in our hands and stays there, or was sent."""
        item = self._items.get(key)
        return (item is not None and not item.releasing) or key in self._forwarded

    # Taking in

    def take_in(self, key: Key, received: Received, *, lock_until: float, lock_seconds: float) -> Item:
        """A message was received that was not in our hands."""
        item = self._items[key] = Item(key, received, lock_until, lock_seconds)
        return item

    def received_again(self, item: Item, received: Received, lock_until: float) -> None:
        """Its lock ran out while it was here: the newest receipt is the one that can be settled."""
        item.received, item.lock_until, item.renewing = received, lock_until, False

    def refused(self, received: Received, *, lock_until: float, lock_seconds: float) -> None:
        """What its receive skipped could not be browsed, or need not be: it goes back, since it may not overtake."""
        self._queues.of(received.source).forget()  # who takes a part of it now has to be noticed when the rest comes
        key = key_of(received)
        known = self._items.get(key)
        if known is None:
            item = self.take_in(key, received, lock_until=lock_until, lock_seconds=lock_seconds)
            self.settle(item, Disposition.RELEASE)
        elif known.releasing:
            known.comes_again = partial(self.refused, received, lock_until=lock_until, lock_seconds=lock_seconds)
        else:
            self.received_again(known, received, lock_until)

    def add_payload(self, item: Item, payload: bytes) -> None:
        """What is to be sent of it. From now on it counts and is weighed."""
        item.counted = True
        self.counted += 1
        item.payload = payload
        item.size_bytes = size_bytes = len(payload)
        self.size_bytes += size_bytes
        self.mean_bytes += (size_bytes - self.mean_bytes) / 64

    def replace_payload(self, item: Item, payload: bytes) -> None:
        """Something shorter is to be sent of it."""
        self.size_bytes += len(payload) - len(item.payload)
        item.payload, item.size_bytes = payload, len(payload)

    def _forget_payload(self, item: Item) -> None:
        self.size_bytes -= len(item.payload)
        item.payload = b""

    def _uncount(self, item: Item) -> None:
        if item.counted:
            item.counted = False
            self.counted -= 1

    # What becomes of it

    def finish(self, item: Item, verdict: Finish) -> None:
        """It is settled without being sent."""
        dead_letter = verdict.disposition is Disposition.DEAD_LETTER
        if dead_letter or verdict.outcome in (TAKEN, PURGED):
            item.counted = True
            self.counted += 1
        if dead_letter:
            self.dead_letter(item, verdict.reason, verdict.description)
        else:
            self.settle(item, verdict.disposition, verdict.outcome)

    def complete_again(self, item: Item) -> None:
        """It was sent before: only its completion is missing."""
        self.settle(item, Disposition.COMPLETE, "already-forwarded")

    def dead_letter(self, item: Item, reason: str, description: str) -> bool:
        """It can never be delivered; False if it had to be left where it lies."""
        self._forget_payload(item)
        if self._undeliverable is None or is_dead_letter_path(item.received.source):
            self.leave(item, f"{UNDELIVERABLE}{reason}")  # it lies where it belongs
            return False
        if self._undeliverable == REFUSED_OUTCOME and item.destination:
            reason = f"{item.destination}: {reason}"  # no dead-letter queue keeps it together with its message
        self.settle(item, Disposition.DEAD_LETTER, self._undeliverable, reason, description)
        return True

    def leave(self, item: Item, because: str) -> None:
        """It stays where it is, under lock and without its bytes, so that it does not come round again."""
        self._forget_payload(item)
        if not item.renewing:  # the answer belongs to the receipt as it is
            item.received = replace(item.received, payload=b"", decoded=None, head=None)
        self._uncount(item)
        item.stage = Stage.LEFT
        self._queues.of(item.received.source).going.discard(item.received.sequence_number)
        item.left_because = because
        self.left_messages += 1

    def release(self, item: Item) -> None:
        """It goes back, unsent."""
        if item.stage is Stage.LEFT:
            self.left_messages -= 1
        self._uncount(item)
        self.settle(item, Disposition.RELEASE)

    def release_left(self) -> None:
        """Release what was left, so that others see it without waiting for the locks to run out."""
        for item in list(self._items.values()):
            if item.stage is Stage.LEFT:
                self.release(item)

    def settle(
        self, item: Item, disposition: Disposition, outcome: str = "", reason: str = "", description: str = ""
    ) -> None:
        """Settle the newest receipt. `outcome`: the ledger's word for it; empty: nothing about the message."""
        item.stage = Stage.SETTLING
        item.releasing = disposition is Disposition.RELEASE
        if item.releasing:
            # From now on others may have it, long before the release is confirmed.
            self._queues.of(item.received.source).out_of_hand(item.received.sequence_number)
        self._actions.append(Settle(item, item.received, disposition, outcome, reason, description))

    # What was sent

    def remember(self, items: Iterable[Item]) -> None:
        """The namespace has these, whatever happens to us before `Destinations.sent`: they must not go there again."""
        for item in items:
            self._forwarded[item.key] = None

    def accepted(self, items: Sequence[Item], destination: str) -> None:
        """The namespace has these, and the ledger their lines: they are completed."""
        self.remember(items)
        self._tally.note(Moment.ACCEPTED, Accepted(items, destination))
        actions = self._actions
        for item in items:
            item.stage = Stage.SETTLING
            item.releasing = False
            actions.append(Settle(item, item.received, Disposition.COMPLETE, "forwarded"))
            self._forget_payload(item)
        while len(self._forwarded) > self._most_remembered:
            del self._forwarded[next(iter(self._forwarded))]

    def unrecorded(self, items: Iterable[Item]) -> None:
        """The ledger could not be written, before these were sent or after the namespace accepted them: what has no
        line is not completed. It goes back at once instead of staying locked. What was accepted stays remembered: the
        next run of this process completes it, and only another one sends it again, with the same message ids."""
        self.stopping = True
        for item in items:
            if item.completed:
                self._discard(item)
            else:
                self.settle(item, Disposition.RELEASE)

    def not_recorded(self, settle: Settle) -> None:
        """The ledger could not be written: the message goes back instead."""
        self.settle(settle.item, Disposition.RELEASE)

    # Answers of the broker

    def settled(self, settles: Sequence[Settle]) -> None:
        """The broker confirmed all of these."""
        self._tally.note(Moment.SETTLED, *alike(settles))
        for settle in settles:
            item = settle.item
            self._discard(item)
            if settle.disposition is Disposition.COMPLETE:
                self._forwarded.pop(item.key, None)
                if settle.outcome == TAKEN:
                    self.taken += 1
            elif settle.disposition is not Disposition.DEAD_LETTER and not self.stopping:
                self._actions.append(PollAgain(settle.received.source))

    def settle_failed(self, settle: Settle, error: SbpairError, now: float) -> None:
        """The receipt was refused, or no confirmation came. What was forwarded stays remembered."""
        item = settle.item
        if isinstance(error, ServiceError) and error.category is Category.BUSY and not self.stopping:
            again = now + SERVER_BUSY_SECONDS
            if again < item.lock_until:
                heapq.heappush(self._later, (again, next(self._tie), settle))
                return
        if settle.received is not item.received and not self.stopping:
            self.settle(item, settle.disposition, settle.outcome, settle.reason, settle.description)
            return
        self.drop(item, now, lost=isinstance(error, LockLostError))

    def settle_again(self, now: float) -> None:
        """Try once more what the namespace was too busy for."""
        while self._later and self._later[0][0] <= now:
            self._actions.append(heapq.heappop(self._later)[2])

    def drop(self, item: Item, now: float, *, lost: bool) -> None:
        """It is out of our hands without having been settled; the broker will deliver it again. `lost`: its lock is
        gone."""
        if item.stage is Stage.LEFT:
            self.left_messages -= 1
            if item.lane is not None:
                self._queues.of(item.received.source).not_parked(item.lane, item.received.sequence_number)
        if lost:
            self._tally.note(Moment.LOCK_LOST, item)
        if item.key not in self._forwarded:
            self._uncount(item)
            if item.destination:
                self._queues.await_return(item, now)
        self._discard(item)
        if not self.stopping:
            self._actions.append(PollAgain(item.received.source))

    def _discard(self, item: Item) -> None:
        if item.payload:
            self._forget_payload(item)
        self._items.pop(item.key, None)
        received = item.received
        self._queues.of(received.source).out_of_hand(received.sequence_number)
        if item.comes_again is not None:
            item.comes_again()

    # Locks

    def expired(self, now: float) -> Iterator[Item]:
        """Renew the locks that will run out soon; the unsent messages whose locks have run out. The caller drops each
        before it asks for the next."""
        if now < self._lock_check_at:
            return
        self._lock_check_at = now + LOCK_CHECK_SECONDS
        for item in list(self._items.values()):
            left_seconds = item.lock_until - now
            if item.stage is Stage.SETTLING:
                continue
            if left_seconds <= 0 and item.stage is not Stage.SENDING:
                yield item
            elif 0 < left_seconds <= item.margin() and not item.renewing:
                item.renewing = True
                self._actions.append(Renew(item, item.received))

    def renewed(self, renew: Renew, lock_until: float) -> None:
        """The lock holds until then."""
        if renew.item.received is renew.received:
            renew.item.lock_until = lock_until
        renew.item.renewing = False

    def renew_failed(self, renew: Renew, error: SbpairError, now: float) -> None:
        """A lock that is lost takes its message along; otherwise it is tried again until it has run out."""
        item = renew.item
        item.renewing = False
        if item.received is not renew.received or item.key not in self._items:
            return
        if isinstance(error, LockLostError):
            item.lock_until = now
            self._lock_check_at = now

    def stop(self) -> None:
        """Nothing is put off any more."""
        self.stopping = True
        self._actions.extend(settle for _, _, settle in self._later)
        self._later.clear()

    def deadlines(self) -> Iterator[float]:
        """When locks are to be checked, or a settlement is to be tried again."""
        yield self._lock_check_at
        if self._later:
            yield self._later[0][0]
