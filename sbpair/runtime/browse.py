"""Browses queues without locks: pages through each, and merges several into one stream, oldest message first.

Nothing is received, so no delivery count rises and nobody has to wait for a lock. A page may be short although there is
more, and a partitioned queue answers from one partition at a time, so only an empty page is the end; and it is asked
from number 1, since from 0 its partitions take turns and the lower ones would be left out.
"""

import asyncio
import heapq
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from sbpair.concurrency import abandon_after, patiently
from sbpair.core.errors import Category, ServiceError
from sbpair.core.inspection.snapshot import Peeked
from sbpair.core.message import MessageState, Received
from sbpair.core.pairing import Side
from sbpair.core.retry import PATIENCE_SECONDS, UNREACHED_SECONDS
from sbpair.core.summary import MessageSummary, describe
from sbpair.core.transfer.filters import EVERYTHING, FilterError, MessageFilter
from sbpair.core.transfer.order import why_left
from sbpair.core.transfer.pace import Pace
from sbpair.core.transfer.peeked import NotBrowsed
from sbpair.core.transfer.state import Key, key_of
from sbpair.ports import MessageReceiver, Messaging, RuntimeClock
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.failover.ping import PING_TIMEOUT_SECONDS, PingTarget
from sbpair.runtime.links import close_quietly

# Whether a queue really is empty: counts may read 0 while a namespace throttles, a browse does not lie about that.

Peek = Callable[[str], Awaitable[Peeked]]
"""Browses the head of a queue and of its dead-letter sub-queue, given the queue's path."""
PEEKS_PER_QUEUE = 2


def peeking(messaging: Messaging, *, dead_letters: bool = True, most: int = 1) -> Peek:
    """A `Peek` over the messaging side of a namespace. Takes no locks and raises no delivery counts.

    `dead_letters`: look at those as well; a topic has none. `most`: messages that are browsed of the queue itself.
    """

    async def peek(path: str) -> Peeked:
        head = await _head(messaging, path, dead_letter=False, most=most)
        dead = await _head(messaging, path, dead_letter=True) if dead_letters else []
        times = [message.enqueued_at for message in (*head, *dead) if message.enqueued_at is not None]
        going_to = (describe(message.payload).destination for message in head) if most > 1 else ()
        return Peeked(
            active=bool(head),
            dead_letter=bool(dead),
            oldest_enqueued_at=min(times, default=None),
            destinations=tuple(sorted({path for path in going_to if path})),
            messages=len(head) + len(dead),
        )

    return peek


async def _head(messaging: Messaging, path: str, *, dead_letter: bool, most: int = 1) -> list[Received]:
    receiver = messaging.receiver(path, dead_letter=dead_letter)
    try:
        return await receiver.peek(most)
    finally:
        await receiver.close()


# Looks at what a queue still holds, by browsing, and says why each message is there.

PAGE_MESSAGES = 250
"""The service gives no more at once."""
PAGE_GROWTH = 16
"""This many times as much the next page of a browse asks for that began with a small one."""
FIRST_SEQUENCE_NUMBER = 1
NOT_VISIBLE = "counted by the service, but not visible to a browse"


@dataclass(slots=True)
class BrowsedMessages:
    """What a browse found in one queue."""

    by_state: Counter[str] = field(default_factory=Counter)
    """Deferred and scheduled messages: they cannot be received."""
    not_wanted: Counter[str] = field(default_factory=Counter)
    """The same, of messages that were not asked for."""
    unexplained: frozenset[Key] = frozenset()
    """Active messages that were not to be had, and that nothing here accounts for."""
    explained: int = 0
    """Messages that were left on purpose."""
    not_visible: int = 0
    deferred: list[int] = field(default_factory=list)
    """Sequence numbers of the deferred ones."""
    whole: bool = True
    """It was browsed to its end; otherwise there is more of everything."""

    @property
    def empty(self) -> bool:
        return self.whole and not (
            self.by_state or self.not_wanted or self.unexplained or self.explained or self.not_visible
        )

    def compare_with(self, counted: int | None) -> None:
        """Hold it against the administration's count of active (and deferred) messages, if there is one.

        Counting less than was seen proves nothing: a namespace that throttles counts 0.
        """
        if counted is not None and self.whole:
            deferred = self.by_state[MessageState.DEFERRED.value] + self.not_wanted[MessageState.DEFERRED.value]
            seen = deferred + len(self.unexplained) + self.explained
            self.not_visible = max(0, counted - seen)
            self.by_state = +self.by_state

    def reasons(self, forwarded: Collection[Key], locked: Collection[int] | None = None) -> Counter[str]:
        """Why messages are left, besides those that were left on purpose; `locked` as in `why_left`."""
        reasons = Counter(self.by_state) + why_left(self.unexplained, forwarded=forwarded, locked=locked)
        reasons[NOT_VISIBLE] += self.not_visible
        return +reasons


async def page_from(
    receiver: MessageReceiver,
    number: int,
    *,
    clock: RuntimeClock,
    most: int = PAGE_MESSAGES,
    patience_seconds: float = PATIENCE_SECONDS,
    unreached_seconds: float = UNREACHED_SECONDS,
    page_seconds: float | None = None,
    pace: Pace | None = None,
) -> list[Received]:
    """One page from this number on; tried again while it fails in a way that may pass. `page_seconds` bounds each try,
    where the receiver's own bound is not enough. As long as nobody answers `unreached_seconds` bounds all of them.
    With a `pace`, pages come no faster than it allows, and it learns from the namespace's refusals.

    Raises:
        ServiceError: waiting does not help, or did not for `patience_seconds`.
    """

    def peek(some: int = most) -> Awaitable[list[Received]]:
        asked = receiver.peek(some, from_sequence_number=number)
        if page_seconds is None:
            return asked
        return abandon_after(page_seconds, asked, what=f"Browse of {receiver.source}", entity=receiver.source)

    return await patiently(
        peek if pace is None else lambda: _at_pace(pace, peek, most, clock, patience_seconds),
        patience_seconds=patience_seconds,
        unreached_seconds=unreached_seconds,
        now=clock.monotonic,
        sleep=clock.sleep,
    )


async def _at_pace(
    pace: Pace,
    peek: Callable[[int], Awaitable[list[Received]]],
    most: int,
    clock: RuntimeClock,
    patience_seconds: float,
) -> list[Received]:
    """One page, of as many messages as may be asked for when there are some."""
    began = clock.monotonic()
    while True:
        while not (some := pace.grant(most, clock.monotonic())):
            await clock.sleep(pace.seconds_until_some(clock.monotonic()))
        page: list[Received] = []
        try:
            page = await peek(some)
        except ServiceError as error:
            now = clock.monotonic()
            if error.category is not Category.BUSY or now + pace.refused(now) - began > patience_seconds:
                raise
        else:
            pace.accepted(len(page), clock.monotonic())
            return page
        finally:
            pace.take(len(page) - some)


async def pages(
    receiver: MessageReceiver,
    first: int = FIRST_SEQUENCE_NUMBER,
    last: int | None = None,
    *,
    clock: RuntimeClock,
    patience_seconds: float = PATIENCE_SECONDS,
    unreached_seconds: float = UNREACHED_SECONDS,
    page_seconds: float | None = None,
    first_page_messages: int = PAGE_MESSAGES,
    pace: Pace | None = None,
) -> AsyncGenerator[list[Received], None]:
    """What lies in a queue from `first` to `last` (None: its end), page by page in the order of numbers. Pages grow
    from `first_page_messages` on, for those who may not need all. `pace`: see `page_from`.

    Raises:
        ServiceError: the queue cannot be browsed, as `page_from`.
    """
    number, page_messages = first, first_page_messages
    while last is None or number <= last:
        most = page_messages if last is None else min(page_messages, last - number + 1)
        page_messages = min(PAGE_MESSAGES, PAGE_GROWTH * page_messages)
        page = await page_from(
            receiver,
            number,
            clock=clock,
            most=most,
            patience_seconds=patience_seconds,
            unreached_seconds=unreached_seconds if number == first else patience_seconds,
            page_seconds=page_seconds,
            pace=pace,
        )
        if not page:
            return
        if wanted := page if last is None else [one for one in page if one.sequence_number <= last]:
            yield wanted
        number = max(one.sequence_number for one in page) + 1


def pages_once(
    receiver: MessageReceiver, first: int = FIRST_SEQUENCE_NUMBER, *, page_seconds: float
) -> AsyncGenerator[list[Received], None]:
    """`pages` to the end, each asked for once and within a bound: for those who look and do not insist."""
    return pages(receiver, first, clock=LoopClock(), patience_seconds=0.0, page_seconds=page_seconds)


async def head_of(receiver: MessageReceiver, *, page_seconds: float) -> list[Received]:
    """The first message, if there is one; asked for once and within a bound."""
    return await page_from(
        receiver, FIRST_SEQUENCE_NUMBER, clock=LoopClock(), most=1, patience_seconds=0.0, page_seconds=page_seconds
    )


async def survey(
    receiver: MessageReceiver,
    left: Mapping[Key, str],
    *,
    clock: RuntimeClock,
    patience_seconds: float,
    unreached_seconds: float = UNREACHED_SECONDS,
    visit: Callable[[Received], None] | None = None,
    also: Collection[MessageState] = (),
    wanted: MessageFilter = EVERYTHING,
    enough: int | None = None,
) -> BrowsedMessages:
    """Browse a queue to its end, or until `enough` messages are seen that nothing accounts for. `left`: what was left
    on purpose; `visit` is shown every active message, and those in the states `also` as if they were active. Of the
    others those are told that are `wanted`, or may be: the filter cannot be evaluated for them.

    A page that fails is tried again, with pauses, for up to `patience_seconds`; the first one, as long as nobody
    answers, for `unreached_seconds`.

    Raises:
        ServiceError: the queue cannot be browsed.
    """
    found = BrowsedMessages()
    unexplained: set[Key] = set()
    asked = pages(receiver, clock=clock, patience_seconds=patience_seconds, unreached_seconds=unreached_seconds)
    async for page in asked:
        if enough is not None and len(unexplained) >= enough:
            found.whole = False
            break
        for received in page:
            if key_of(received) in left:
                found.explained += 1
            elif received.state is not MessageState.ACTIVE and received.state not in also:
                counts = found.by_state if _may_be_wanted(received, wanted) else found.not_wanted
                counts[received.state.value] += 1
                if received.state is MessageState.DEFERRED:
                    found.deferred.append(received.sequence_number)
            else:
                unexplained.add(key_of(received))
                if visit is not None:
                    visit(received)
    found.unexplained = frozenset(unexplained)
    return found


def _may_be_wanted(received: Received, wanted: MessageFilter) -> bool:
    try:
        return wanted == EVERYTHING or wanted.wants(received, describe(received.payload))
    except FilterError:
        return True


DEFAULT_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Browsed:
    """A message as it lies in its queue, with the facts a person reads."""

    queue: str
    """Path of the queue; its dead-letter sub-queue ends in `/$deadletterqueue`."""
    received: Received
    summary: MessageSummary


@dataclass(frozen=True, slots=True)
class BrowseReport:
    """Messages that were wanted, the oldest first; `looked_at` counts the others too."""

    messages: tuple[Browsed, ...]
    looked_at: int
    left_off: bool
    """The limit was reached; there may be more."""
    failed: tuple[NotBrowsed, ...] = ()


@dataclass
class _Queue:
    """One queue being paged through."""

    path: str
    receiver: MessageReceiver
    pages: AsyncGenerator[list[Received], None]
    buffer: deque[Received] = field(default_factory=deque)
    error: ServiceError | None = None

    async def fill(self) -> None:
        """Fetch the next page, if the last one is used up; an error ends the queue and is kept."""
        if self.buffer:
            return
        try:
            page = await anext(self.pages, None)  # None once it has ended, be it by an error
            self.buffer.extend(page or ())
        except ServiceError as error:
            self.error = error

    @property
    def age_key(self) -> float:
        return self.buffer[0].enqueued_at or 0.0


async def browse(
    messaging: Messaging,
    queues: Sequence[str],
    *,
    kinds: Sequence[bool] = (False,),
    max_messages: int,
    from_sequence_number: int = FIRST_SEQUENCE_NUMBER,
    wanted: Callable[[Browsed], bool] = lambda message: True,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
) -> BrowseReport:
    """Up to `max_messages` wanted messages of the queues, by the time they were put there.

    `kinds`: False for the messages of a queue, True for its dead letters. A queue that cannot be browsed does not stop
    the others. `timeout_seconds` bounds each page.
    """
    opened = []
    for path, dead_letter in product(queues, kinds):
        receiver = messaging.receiver(path, dead_letter=dead_letter)
        first = max(from_sequence_number, FIRST_SEQUENCE_NUMBER)
        opened.append(_Queue(path, receiver, pages_once(receiver, first, page_seconds=timeout_seconds)))
    try:
        await asyncio.gather(*(queue.fill() for queue in opened))
        found, looked_at = await _merged(opened, max_messages, wanted)
    finally:
        await asyncio.gather(*(close_quietly(queue.receiver) for queue in opened))
    failed = {queue.path: NotBrowsed(queue.path, queue.error) for queue in opened if queue.error is not None}
    return BrowseReport(tuple(found), looked_at, any(queue.buffer for queue in opened), tuple(failed.values()))


async def _merged(queues: Sequence[_Queue], limit: int, wanted: Callable[[Browsed], bool]) -> tuple[list[Browsed], int]:
    heap = [(queue.age_key, index) for index, queue in enumerate(queues) if queue.buffer]
    heapq.heapify(heap)
    found: list[Browsed] = []
    looked_at = 0
    while heap and len(found) < limit:
        _, index = heapq.heappop(heap)
        queue = queues[index]
        received = queue.buffer.popleft()
        looked_at += 1
        message = Browsed(received.source, received, describe(received.payload))
        if wanted(message):
            found.append(message)
        await queue.fill()
        if queue.buffer:
            heapq.heappush(heap, (queue.age_key, index))
    return found, looked_at


def browse_target(
    side: Side, messaging: Messaging, path: str, *, timeout_seconds: float = PING_TIMEOUT_SECONDS
) -> PingTarget:
    """Measure by browsing the head of a queue: needs the Listen right, sends nothing.

    For backlog queues: a ping message whose second is over would be dead-lettered there, as documented queues do with
    what expires.
    """
    receiver = messaging.receiver(path)

    async def probe() -> None:
        await abandon_after(timeout_seconds, receiver.peek(1), what=f"Browse of {path}", entity=path)

    async def close() -> None:
        await close_quietly(receiver)

    return PingTarget(side, path, probe, close)
