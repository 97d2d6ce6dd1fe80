"""The secondary side of a pairing: puts messages into backlog queues, rotates the queues, keeps sessions together."""

import asyncio
import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum

from sbpair.amqp.sections import Section
from sbpair.concurrency import end, with_timeout
from sbpair.core import system_properties
from sbpair.core.encoded import EncodedMessage
from sbpair.core.errors import (
    Category,
    HostNotFoundError,
    InterruptedWorkError,
    MalformedMessageError,
    OperationTimeoutError,
    SbpairError,
    SendIncompleteError,
    ServiceError,
)
from sbpair.core.events import BacklogQueueLeft, BacklogQueueReturned
from sbpair.core.failover.machine import BUSY_PAUSE_SECONDS
from sbpair.core.failover.sending import (
    MIN_ATTEMPT_SECONDS,
    Budget,
    QueueStanding,
    Rotation,
    SessionHolds,
    SessionKey,
    first_that_fit,
    keys_of,
)
from sbpair.core.rewrite import for_backlog
from sbpair.ports import MessageSender, Messaging, Observer, RuntimeClock
from sbpair.runtime.browse import pages_once
from sbpair.runtime.links import Links, closing
from sbpair.service import session_key

# Finds out which held sessions are back on the primary, so that their next message may go to the primary again.

POLL_SECONDS = 5.0
SCAN_SHARE = 10
"""After a scan, at least this many times its duration passes before the next."""
PAGE_SECONDS = 60.0


async def sessions_waiting(messaging: Messaging, queue: str) -> set[SessionKey] | None:
    """The sessions, by their keys, with a message still in a backlog queue. None when that cannot be told now.

    A message is in the queue until the primary accepted it and the backlog copy was completed. All of the queue is
    browsed: messages under the syphon's lock are seen too, so it is exact, and slow on a big queue.
    """
    waiting: set[SessionKey] = set()
    try:
        async with closing(messaging.receiver(queue)) as receiver:
            async for page in pages_once(receiver, page_seconds=PAGE_SECONDS):
                waiting.update(key for received in page if (key := waiting_session(received.payload)) is not None)
    except ServiceError:
        return None
    return waiting


def waiting_session(payload: bytes) -> SessionKey | None:
    """The session a backlog message belongs to on the primary; None for a sessionless or unreadable message."""
    try:
        message = EncodedMessage(payload)
        path = message.entry(Section.APPLICATION_PROPERTIES, system_properties.PATH)
        session = message.entry(Section.APPLICATION_PROPERTIES, system_properties.SESSION)
    except MalformedMessageError:
        return None
    return None if path is None or session is None else (str(path).lower(), session_key(str(session)))


class SessionKeeper:
    """The background task behind `hold_sessions`: runs only while a session is held."""

    def __init__(self, holds: SessionHolds, messaging: Messaging, *, clock: RuntimeClock) -> None:
        self.holds = holds
        self._messaging = messaging
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def watch(self) -> None:
        """See that the task runs if a session is held."""
        if len(self.holds) and not self._stopped and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run(), name="held sessions")

    async def _run(self) -> None:
        pause = POLL_SECONDS
        while len(self.holds):
            await self._clock.sleep(pause)
            started = self._clock.monotonic()
            for queue in self.holds.queues():
                moment = self.holds.start_scan()
                waiting = await sessions_waiting(self._messaging, queue)
                if waiting is not None:
                    self.holds.scanned(queue, waiting, moment)
            pause = max(POLL_SECONDS, SCAN_SHARE * (self._clock.monotonic() - started))

    async def stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            await end(self._task)


PROBE_SECONDS = 15.0
"""Bound of opening one link while the secondary is probed."""
PROBE_POLL_SECONDS = 0.25
"""How often to look again while every queue is out and being probed by others."""

IDLE_SECONDS = 30.0
"""How long links to backlog queues stay open after the last use: an outage ends with as many connections as before."""

MESSAGE_AT_FAULT = frozenset({Category.TOO_LARGE, Category.ARGUMENT})
"""Errors that say nothing against the queue."""


_REFUSALS = frozenset({Category.UNAUTHORIZED, Category.NOT_FOUND})


def _is_refusal(error: ServiceError) -> bool:
    """The next try gets this answer as well, until somebody changes something on the secondary."""
    return error.category in _REFUSALS or isinstance(error, HostNotFoundError)


@dataclass(slots=True)
class StickyQueue:
    """The backlog queue that one sender drew and keeps while it works; None before its first diverted message."""

    queue: str | None = None


class Batching(IntEnum):
    """What a backlog queue takes in one transfer. A partitioned entity refuses a batch of several session ids or
    partition keys, and under duplicate detection perhaps of several message ids ("Enable partitioning in Azure Service
    Bus", and the service's error texts)."""

    ANY = 0
    ONE_KEY = 1
    SINGLE = 2


@dataclass(frozen=True, slots=True)
class MessageToDivert:
    """One message to divert: its position in the caller's send and its backlog form."""

    position: int
    payload: bytes


@dataclass
class Diversion:
    """What became of the messages of one diverted send, as far as it got."""

    on_accepted: Callable[[str, int], None]
    """Told about each accepted transfer: queue and number of messages."""
    accepted: list[int] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)
    uncertain: bool = False

    def add(self, queue: str, items: Sequence[MessageToDivert]) -> None:
        if not items:
            return
        self.accepted.extend(item.position for item in items)
        if queue not in self.queues:
            self.queues.append(queue)
        self.on_accepted(queue, len(items))


class BacklogQueues:
    """The backlog queues of one pairing, as its senders use them."""

    def __init__(
        self,
        messaging: Messaging,
        rotation: Rotation,
        *,
        clock: RuntimeClock,
        observer: Observer,
        draw: Callable[[], float],
        keeper: SessionKeeper | None = None,
    ) -> None:
        self._links = Links(messaging)
        self._rotation = rotation
        self._clock = clock
        self._observer = observer
        self._draw = draw
        self._keeper = keeper
        self._uses = 0
        """Transfers and probes under way."""
        self._used_at = 0.0
        self._closing: asyncio.Task[None] | None = None
        self._refusal: str | None = None
        self._refused: dict[str, ServiceError] = {}
        self._keyed: set[str] = set()
        """The queues that have refused a batch: from then on theirs have one key each."""
        self.on_refused: Callable[[ServiceError], None] = lambda error: None
        """Told when the last queue refused permanently, as often as that happens."""
        self.on_accepted: Callable[[], None] = lambda: None
        """Told when one accepted a message or a link, after all had refused."""

    @property
    def refused(self) -> bool:
        """Every queue refused permanently: there is none, or the credential may not send to it."""
        return len(self._refused) == len(self._rotation.queues)

    @property
    def queues(self) -> tuple[str, ...]:
        return self._rotation.queues

    def standings(self) -> tuple[QueueStanding, ...]:
        return self._rotation.standings(self._clock.monotonic())

    @property
    def usable(self) -> tuple[str, ...]:
        """The queues that have not refused: messages may be tried there."""
        return tuple(queue for queue in self._rotation.queues if queue not in self._refused)

    @property
    def seen(self) -> bool:
        """A queue has answered, whatever it said."""
        return any(one.in_rotation is not None for one in self.standings())

    def tried(self, queue: str, error: ServiceError | None) -> None:
        """What came of a link that was attached beforehand."""
        if error is None:
            self._accepted(queue)
        else:
            self._judge(queue, error)

    def refuse(self, why: str) -> None:
        """Take no more messages."""
        self._refusal = why

    def is_held(self, session: SessionKey) -> bool:
        """The session has messages in the backlog that are not back on the primary (with `hold_sessions` only)."""
        return self._keeper is not None and self._keeper.holds.queue_of(session) is not None

    async def probe(self) -> bool:
        """Open a link to the queues that refused, one after another, until one opens. No message is sent."""
        for queue in tuple(self._refused):
            try:
                with self._link(queue) as link:
                    await with_timeout(PROBE_SECONDS, link.max_message_bytes(), what=f"Link to {queue}", entity=queue)
            except ServiceError as error:
                self._refused[queue] = error if _is_refusal(error) else self._refused[queue]
            else:
                self._accepted(queue)
                return True
        return False

    async def divert(
        self,
        entity: str,
        payloads: Sequence[bytes],
        budget: Budget,
        on_accepted: Callable[[str, int], None],
        sticky: StickyQueue | None = None,
    ) -> Diversion:
        """Put messages for `entity` into backlog queues, the messages of one session into one queue and in order.

        A queue that does not exist is one that fails: the next one is tried. Nothing but the right to send is needed.
        `sticky` is the sender's own queue, for its messages without a session.

        Raises:
            ReservedPropertyError, MalformedMessageError: a message has no backlog form; nothing was sent.
            MessageTooLargeError: the backlog form is larger than the queue takes.
            SendIncompleteError: some were accepted, then the rest failed.
            ServiceError: nothing was accepted; `uncertain` if something may have been stored.
        """
        diversion = Diversion(on_accepted)
        for session, items in _by_session(entity, payloads).items():
            try:
                await self._place(session, items, budget, diversion, sticky or StickyQueue())
            except (ServiceError, InterruptedWorkError) as error:
                if not diversion.accepted:
                    if isinstance(error, ServiceError):
                        error.uncertain = error.uncertain or diversion.uncertain
                    raise
                raise incomplete(diversion.accepted, len(payloads), error) from error
        return diversion

    async def _place(
        self,
        session: SessionKey | None,
        items: Sequence[MessageToDivert],
        budget: Budget,
        diversion: Diversion,
        sticky: StickyQueue,
    ) -> None:
        """Get all items of one session (or all sessionless ones) accepted, by whichever queues it takes."""
        rest = list(items)
        failure: ServiceError | None = None
        batching = Batching.ANY
        while rest:
            queue = await self._take_queue(session, budget, failure, sticky)
            together = _together(rest, max(batching, Batching.ONE_KEY if queue in self._keyed else Batching.ANY))
            try:
                accepted = await self._attempt(queue, session, together, budget)
            except ServiceError as error:
                failure = error
                accepted = [together[position] for position in accepted_of(error)]
                diversion.uncertain = diversion.uncertain or error.uncertain
                diversion.add(queue, accepted)
                if error.category is Category.ARGUMENT and len(together) > 1:
                    # The queue takes each of them, perhaps, but not in one batch.
                    batching = Batching.SINGLE if queue in self._keyed else Batching.ONE_KEY
                    self._keyed.add(queue)
                    continue
                await self._after_failure(error, budget)
            else:
                diversion.add(queue, accepted)
                if session is None:
                    sticky.queue = queue
            done = {item.position for item in accepted}
            rest = [item for item in rest if item.position not in done]

    async def _take_queue(
        self, session: SessionKey | None, budget: Budget, failure: ServiceError | None, sticky: StickyQueue
    ) -> str:
        """A queue to try, waiting for one to come up for its probe if all are out. A held session keeps its queue.

        Raises:
            ServiceError: no time is left, or every queue has refused permanently, which waiting does not cure.
        """
        while True:
            if self._refusal is not None:
                raise InterruptedWorkError(f"Nothing was diverted: {self._refusal}")
            now = self._clock.monotonic()
            if budget.left(now) < MIN_ATTEMPT_SECONDS:
                raise failure or OperationTimeoutError("No backlog queue could be tried within the time-out.")
            among = self._bound_to(session)
            queue = self._rotation.choose(session=session, draw=self._draw(), now=now, among=among, sticky=sticky.queue)
            if queue is not None:
                return queue
            if (refusal := self._refusal_of(among)) is not None:
                raise failure or refusal
            chance = self._rotation.next_chance(among)
            pause = PROBE_POLL_SECONDS if chance is None else max(chance - now, MIN_ATTEMPT_SECONDS)
            await self._clock.sleep(min(pause, budget.left(now)))

    def _refusal_of(self, among: Collection[str] | None) -> ServiceError | None:
        """Why waiting is useless: the refusal of a queue if every one that may be used has refused, as a new error."""
        queues = self._rotation.queues if among is None else among
        if not all(queue in self._refused for queue in queues):
            return None
        refusal = copy.copy(self._refused[next(iter(queues))])
        refusal.uncertain = False
        return refusal

    def _bound_to(self, session: SessionKey | None) -> tuple[str, ...] | None:
        held = None if self._keeper is None or session is None else self._keeper.holds.queue_of(session)
        return None if held is None else (held,)

    async def _attempt(
        self, queue: str, session: SessionKey | None, items: Sequence[MessageToDivert], budget: Budget
    ) -> Sequence[MessageToDivert]:
        """One transfer to one queue: as many of the items as fit. Whatever happens, the queue's probe and the session's
        hold are released."""
        stored = True
        self._hold(session, queue)
        try:
            sent = await self._transfer(queue, items, budget)
        except ServiceError as error:
            stored = error.uncertain or bool(accepted_of(error))
            self._judge(queue, error)
            raise
        finally:
            self._release(session, stored=stored)
            self._rotation.released(queue)
        self._accepted(queue)
        return sent

    def _accepted(self, queue: str) -> None:
        """The queue took a message, or a link that it had refused: it is in rotation."""
        was_refused = self.refused
        self._refused.pop(queue, None)
        if self._rotation.succeeded(queue):
            self._observer.notify(BacklogQueueReturned(self._at(), queue))
        if was_refused:
            self.on_accepted()

    async def _transfer(
        self, queue: str, items: Sequence[MessageToDivert], budget: Budget
    ) -> Sequence[MessageToDivert]:
        with self._link(queue) as link:
            limit_bytes = await self._limit(link, budget)
            fitting = items[: first_that_fit((item.payload for item in items), limit_bytes, queue=queue)]
            seconds = self._seconds(queue, budget)
            sending = link.send([item.payload for item in fitting], timeout_seconds=seconds)
            await with_timeout(seconds, sending, what=f"Send to the backlog queue {queue}", entity=queue)
            return fitting

    @contextmanager
    def _link(self, queue: str) -> Iterator[MessageSender]:
        """The link to a queue, for one use; all are closed when none has been used for a while."""
        self._uses += 1
        try:
            yield self._links.to(queue)
        finally:
            self._uses -= 1
            self._used_at = self._clock.monotonic()
            if self._closing is None or self._closing.done():
                self._closing = asyncio.create_task(self._close_when_idle(), name="idle links to the backlog")

    async def _close_when_idle(self) -> None:
        while not self._links.empty:
            left = self._used_at + IDLE_SECONDS - self._clock.monotonic()
            if self._uses or left > 0:
                await self._clock.sleep(max(left, 1.0))
            else:
                await self._links.close()

    async def close(self) -> None:
        """Close all links, each within a bound."""
        if self._closing is not None:
            await end(self._closing)
        await self._links.close()

    async def _limit(self, link: MessageSender, budget: Budget) -> int:
        """What the link takes. Nothing has been sent yet, so no failure is uncertain."""
        seconds = self._seconds(link.entity, budget)
        try:
            return await with_timeout(
                seconds, link.max_message_bytes(), what=f"Link to {link.entity}", entity=link.entity
            )
        except ServiceError as error:
            error.uncertain = False
            raise

    def _seconds(self, queue: str, budget: Budget) -> float:
        now = self._clock.monotonic()
        alternatives = sum(other != queue for other in self._rotation.candidates(now))
        return max(budget.for_backlog(now, alternatives=alternatives), MIN_ATTEMPT_SECONDS)

    def _judge(self, queue: str, error: ServiceError) -> None:
        """Take the queue out of everybody's rotation, unless the message is at fault or the server is only busy."""
        if error.category in MESSAGE_AT_FAULT or error.category is Category.BUSY:
            return
        if _is_refusal(error):
            self._refused[queue] = error
            if self.refused:
                self.on_refused(error)
        if (pause := self._rotation.failed(queue, self._clock.monotonic())) is not None:
            self._observer.notify(BacklogQueueLeft(self._at(), queue, error.code, pause))

    async def _after_failure(self, error: ServiceError, budget: Budget) -> None:
        """Leave a busy server alone for a while; raise what no other queue would take either."""
        if error.category in MESSAGE_AT_FAULT:
            raise error
        if error.category is Category.BUSY:
            if not budget.allows_pause(BUSY_PAUSE_SECONDS, budget.left(self._clock.monotonic())):
                raise error
            await self._clock.sleep(BUSY_PAUSE_SECONDS)

    def _hold(self, session: SessionKey | None, queue: str) -> None:
        if self._keeper is not None and session is not None:
            self._keeper.holds.begin(session, queue)
            self._keeper.watch()

    def _release(self, session: SessionKey | None, *, stored: bool) -> None:
        if self._keeper is not None and session is not None:
            self._keeper.holds.end(session, stored=stored)

    def _at(self) -> float:
        return self._clock.now().timestamp()


def _together(items: Sequence[MessageToDivert], batching: Batching) -> Sequence[MessageToDivert]:
    """Those that may go in one transfer with the first of them, in their order."""
    if batching is Batching.ANY or len(items) == 1:
        return items
    if batching is Batching.SINGLE:
        return items[:1]
    key = keys_of(items[0].payload)
    return [item for item in items if keys_of(item.payload) == key]


def accepted_of(error: SbpairError) -> tuple[int, ...]:
    """Positions, within one transfer, of the messages that were accepted before it failed."""
    return error.accepted if isinstance(error, SendIncompleteError) else ()


def incomplete(accepted: Sequence[int], total: int, error: SbpairError) -> SendIncompleteError:
    """The error for a send of which only a part was accepted."""
    failed = SendIncompleteError(
        f"{len(accepted)} of {total} messages were accepted, the rest was not: {error.message}",
        accepted=tuple(sorted(accepted)),
        hint=error.hint,
    )
    failed.uncertain = isinstance(error, ServiceError) and error.uncertain
    return failed


def _by_session(entity: str, payloads: Sequence[bytes]) -> dict[SessionKey | None, list[MessageToDivert]]:
    """The messages in backlog form by session, in their order; the sessionless ones under None."""
    groups: dict[SessionKey | None, list[MessageToDivert]] = {}
    for position, payload in enumerate(payloads):
        session_id = keys_of(payload).session_id
        key = None if session_id is None else (entity.lower(), session_key(session_id))
        groups.setdefault(key, []).append(MessageToDivert(position, for_backlog(payload, entity)))
    return groups
