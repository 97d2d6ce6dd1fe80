"""The consumer of active/active: sessions of both namespaces, each message processed in order and once.

    report = await consume(ConsumeRequest("orders"), primary=..., secondary=..., journal=..., handler=..., stop=...)

On each side the next session that waits is asked for; each session that comes is worked through
(`runtime.replication.session`) beside the others. A side that does not answer is asked again after a growing pause
while the other one goes on; a journal that does not answer stops everything until it is back. Any number of consumers
may run, in any region, for any number of queues and subscriptions with one journal.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Coroutine, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from sbpair.concurrency import abandon_after, end
from sbpair.core.errors import JournalUnavailableError, LockLostError, ServiceError, SessionUnavailableError, UsageError
from sbpair.core.events import NotIdleYet, Paused, ReceiveFailed
from sbpair.core.message import NEXT_AVAILABLE_SESSION, MessageState, Received
from sbpair.core.names import subscription_of
from sbpair.core.pairing import Side
from sbpair.core.replication.ownership import Terms
from sbpair.core.replication.status import ConsumeReport, Copies, NotRead
from sbpair.core.retry import SYPHON, Backoff
from sbpair.core.summary import describe
from sbpair.ports import Journal, MessageReceiver, Messaging, Observer, RuntimeClock
from sbpair.runtime.browse import pages_once
from sbpair.runtime.links import close_quietly, closing
from sbpair.runtime.replication.handlers import Handler
from sbpair.runtime.replication.session import JOURNAL_DOWN, RETRY, SessionWorker, Setup
from sbpair.runtime.replication.store import SessionStore
from sbpair.service import session_key

ACCEPT_WAIT_SECONDS = 5.0
ASK_AGAIN_SECONDS = 0.1
"""Before the next session is asked for when none waited; the service has looked for one for long."""
CONFIRM_SECONDS = 10.0
POLL_AGAIN_SECONDS = 2.0
LEAVING_SECONDS = 30.0
"""Bound of winding up after a stop, on top of the handlers' grace."""


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """What to consume and how. Durations in seconds.

    Raises:
        UsageError: a number out of range.
    """

    source: str
    """Path of a session queue, or `topic/Subscriptions/name`, the same on both sides."""
    terms: Terms = field(default_factory=Terms)
    sides: tuple[Side, ...] = tuple(Side)
    sessions: int = 64
    """Sessions open at once, on each side."""
    concurrency: int = 16
    """Handlers that run at once, both sides together."""
    acceptors: int = 4
    """Requests for the next session under way at once on each side while sessions come; 1 while none does."""
    max_messages: int | None = None
    """Stop after that many were completed or failed."""
    until_idle_seconds: float | None = None
    """Stop when nothing has come for so long, no session is open, and what is scheduled has come."""
    scheduled_seconds: float = 300.0
    """So long after the last message `until_idle_seconds` waits for scheduled ones at most."""
    second_copies_seconds: float = 30.0
    """So long for second copies where what is scheduled cannot be seen: in a topic without the right to listen."""
    for_seconds: float | None = None
    """Stop after so long."""
    name: str = ""
    """Shown as owner in the journal; by default something unique."""
    idle_seconds: float = 1.0
    """How long an emptied session is kept for its next message."""
    hold_seconds: float = 5.0
    """How long a session is kept in which nothing can be done."""
    retry: Backoff = RETRY
    later_seconds: float = 5.0
    """Pause before a message whose handler asked for it again."""
    grace_seconds: float = 10.0
    """How long a running handler gets to end when the consumer stops."""

    def __post_init__(self) -> None:
        if self.sessions < 1 or self.concurrency < 1 or self.acceptors < 1 or not self.sides:
            raise UsageError("Sessions, concurrency and acceptors are 1 or more, and at least one side is read.")

    @property
    def ends_by_itself(self) -> bool:
        """Whether a time of its own ends it, however many messages come."""
        return self.until_idle_seconds is not None or self.for_seconds is not None


class _Consumer:
    def __init__(
        self,
        request: ConsumeRequest,
        sides: dict[Side, Messaging],
        journal: Journal,
        handler: Handler,
        clock: RuntimeClock,
        observer: Observer,
        stop: asyncio.Event,
    ) -> None:
        self._request = request
        self._sides = sides
        self._clock = clock
        self._observer = observer
        self._asked_to_stop = stop
        self._stop = asyncio.Event()
        self._ended_by = "stop"
        self._counts: Counter[tuple[str, str]] = Counter()
        both = len(request.sides) == len(Side)
        self._single: set[CopyKey] | None = set() if request.ends_by_itself and both else None
        """What was finished here and has a second copy that was not met."""
        self._remaining: Remaining | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._active_at = clock.monotonic()
        self._answered: set[Side] = set()
        self._unread: dict[Side, ServiceError] = {}
        self._fatal: Exception | None = None
        self._room = {side: asyncio.Semaphore(request.sessions) for side in Side}
        self._busy = {side: asyncio.Event() for side in Side}
        """Set while sessions come from a side, so that one request at a time is not enough."""
        self._session_requests = 0
        self._setup = Setup(
            request,
            store=SessionStore(journal, request.source, request.terms),
            handler=handler,
            clock=clock,
            observer=observer,
            stop=self._stop,
            handlers=asyncio.Semaphore(request.concurrency),
            name=request.name or f"consumer-{uuid4().hex[:8]}",
            count=self._count,
        )

    async def run(self) -> ConsumeReport:
        began = self._clock.monotonic()
        await self._open_journal()
        self._active_at = self._clock.monotonic()
        acceptors: set[asyncio.Task[None]] = set()
        for side in self._request.sides:
            for number in range(min(self._request.acceptors, self._request.sessions)):
                _spawn(self._accept_on(side, always=number == 0), acceptors, name=f"accept-{side}")
        watch = [
            asyncio.create_task(self._asked_to_stop.wait()),
            asyncio.create_task(self._stop.wait()),
            asyncio.create_task(self._wait_until_idle()),
            asyncio.create_task(self._wait_until_over()),
        ]
        working = [*watch, *acceptors]  # one that breaks leaves its set, not this list
        try:
            # Not `concurrency.cancel_on`: any of many may end it, the first acceptor that breaks among them.
            await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stop.set()
            await end(*working)
            await self._leave()
        unexpected = [error for one in working if not one.cancelled() and (error := one.exception()) is not None]
        if self._fatal is not None or unexpected:
            raise self._fatal or unexpected[0]
        if self._ended_by in ("idle", "time"):
            await asyncio.gather(*(self._confirm(side) for side in self._request.sides))
        if self._ended_by == "time":
            await self._look()
        remaining = self._remaining
        return ConsumeReport(
            tuple(Copies(side, result, count) for (side, result), count in sorted(self._counts.items())),
            self._clock.monotonic() - began,
            self._ended_by,
            tuple(NotRead(side.value, error) for side, error in self._unread.items()),
            None if remaining is None or self._single is None else remaining.second_copies,
            None if remaining is None else remaining.scheduled,
            None if remaining is None else remaining.next_at,
            self._session_requests,
        )

    async def _open_journal(self) -> None:
        failures = 0
        while not self._asked_to_stop.is_set():
            try:
                await self._setup.store.open([one.host for one in self._sides.values()])
                return
            except JournalUnavailableError as error:
                failures += 1
                seconds = JOURNAL_DOWN.seconds(failures)
                self._observer.notify(Paused(self._now(), self._request.source, error.code, seconds))
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._asked_to_stop.wait()

    async def _confirm(self, side: Side) -> None:
        """Whether a side from which nothing came is there at all; that no session waits takes it long to say."""
        if side in self._answered or side in self._unread:
            return
        try:
            async with closing(self._sides[side].receiver(self._request.source)) as receiver:
                what = f"Browse of {self._request.source} ({side})"
                await abandon_after(CONFIRM_SECONDS, receiver.peek(1), what=what, entity=self._request.source)
        except ServiceError as error:
            self._unread[side] = error

    def _heard(self, side: Side) -> None:
        self._answered.add(side)
        self._unread.pop(side, None)

    async def _leave(self) -> None:
        """Workers end by themselves, with the handlers' grace; what takes longer is cut off, and is taken over
        later."""
        try:
            if self._workers:
                await asyncio.wait(set(self._workers), timeout=self._request.grace_seconds + LEAVING_SECONDS)
        finally:
            await end(*set(self._workers))

    def _count(self, side: str, session_id: str, message_id: str, result: str) -> None:
        self._counts[side, result] += 1
        if self._single is not None:
            session_id = session_key(session_id)
            if result in ("completed", "failed"):
                self._single.add((session_id, message_id))
            elif result in ("duplicate", "dead-lettered"):
                self._single.discard((session_id, message_id))
        self._active_at = self._clock.monotonic()
        most = self._request.max_messages
        if (
            most is not None
            and sum(n for (_, one), n in self._counts.items() if one in ("completed", "failed")) >= most
        ):
            self._end("count")

    def _end(self, why: str) -> None:
        if not self._stop.is_set():
            self._ended_by = why
            self._stop.set()

    async def _wait_until_idle(self) -> None:
        seconds = self._request.until_idle_seconds
        if seconds is None:
            await self._stop.wait()
            return
        told: NotIdleYet | None = None
        while True:
            if self._workers:
                self._active_at = self._clock.monotonic()
            since = self._active_at
            if self._clock.monotonic() - since < seconds:
                await self._clock.sleep(min(0.2, seconds))
                continue
            remaining = await self._look()
            if self._workers or self._active_at != since:
                continue
            until = self._worth_waiting_for(remaining)
            if until is None:
                self._end("idle")
                return
            now, pause = self._now(), POLL_AGAIN_SECONDS
            if remaining.next_at is not None:
                pause = max(0.2, min(remaining.next_at - now, until - self._clock.monotonic()))
            messages = remaining.second_copies + (remaining.scheduled or 0)
            not_yet = NotIdleYet(now, self._request.source, messages, remaining.next_at)
            if told is None or (told.messages, told.next_at) != (not_yet.messages, not_yet.next_at):
                self._observer.notify(not_yet)
                told = not_yet
            await self._clock.sleep(pause)

    async def _look(self) -> "Remaining":
        """What is still to come, as far as it can be seen."""
        sides = {side: self._sides[side] for side in self._request.sides if side not in self._unread}
        remaining = await browse_remaining(
            self._request.source, sides, self._single or (), page_seconds=CONFIRM_SECONDS
        )
        for side, error in remaining.errors.items():
            if side not in self._answered:
                self._unread[side] = error
        if remaining.complete and len(sides) == len(self._request.sides):
            self._remaining = remaining
            return remaining
        await self._ask_the_journal()
        self._remaining = remaining.not_seen(len(self._single or ()))
        return self._remaining

    async def _ask_the_journal(self) -> None:
        """Other consumers may have met second copies."""
        single = self._single or set()
        with suppress(JournalUnavailableError):  # then these stay among those that were not met here
            for session_id, message_id in sorted(single):
                if len(await self._setup.store.settled(session_id, message_id)) == len(Side):
                    single.discard((session_id, message_id))

    def _worth_waiting_for(self, remaining: "Remaining") -> float | None:
        """Until when it is waited for what is still to come, on the clock that only goes forward; None: not longer."""
        request, now = self._request, self._clock.monotonic()
        if remaining.scheduled is None:
            until = self._active_at + request.second_copies_seconds
            return until if remaining.second_copies and now < until else None
        until = self._active_at + request.scheduled_seconds
        comes = remaining.next_at is not None and remaining.next_at - self._now() < until - now
        return until if now < until and (comes or remaining.active_second_copies) else None

    async def _wait_until_over(self) -> None:
        if self._request.for_seconds is None:
            await self._stop.wait()
            return
        await self._clock.sleep(self._request.for_seconds)
        self._end("time")

    # Sessions

    async def _accept_on(self, side: Side, *, always: bool) -> None:
        """Take sessions of one side as they come, as many at once as there is room for.

        Each request is billed, also one that finds nothing. So one acceptor alone keeps asking (`always`), letting the
        service look for a session for long; the others join in while sessions come.
        """
        failures, busy = 0, self._busy[side]
        while not self._stop.is_set():
            if not always:
                await busy.wait()
            await self._room[side].acquire()
            taken = False
            receiver = self._sides[side].receiver(self._request.source, session_id=NEXT_AVAILABLE_SESSION)
            self._session_requests += 1
            try:
                first = await receiver.receive(self._setup.window, wait_seconds=ACCEPT_WAIT_SECONDS)
                failures = 0
                self._heard(side)
                taken = bool(first)
                if taken:
                    busy.set()
                    _spawn(self._work_on(side, receiver, first), self._workers, name=f"session-{side}")
            except (SessionUnavailableError, LockLostError):
                failures = 0
                busy.clear()
                self._heard(side)
                await self._clock.sleep(ASK_AGAIN_SECONDS)
            except ServiceError as error:
                failures += 1
                busy.clear()
                self._unread[side] = error
                await self._pause(side, error, failures)
            finally:
                if not taken:
                    self._room[side].release()
                    await close_quietly(receiver)

    async def _pause(self, side: Side, error: ServiceError, failures: int) -> None:
        seconds = SYPHON.seconds(min(failures, 4))
        self._observer.notify(ReceiveFailed(self._now(), f"{self._request.source} ({side})", error.code, seconds))
        await self._clock.sleep(seconds)

    async def _work_on(self, side: Side, receiver: MessageReceiver, first: list[Received]) -> None:
        self._active_at = self._clock.monotonic()
        try:
            await SessionWorker(self._setup, side.value, first[0].session_id or "", receiver).run(first)
        except Exception as error:  # noqa: BLE001 - raised by `run`: the journal's refusal, or a bug
            self._fatal = error
            self._end("stop")
        finally:
            self._room[side].release()

    def _now(self) -> float:
        return self._clock.now().timestamp()


async def consume(
    request: ConsumeRequest,
    *,
    primary: Messaging,
    secondary: Messaging,
    journal: Journal,
    handler: Handler,
    clock: RuntimeClock,
    observer: Observer,
    stop: asyncio.Event,
) -> ConsumeReport:
    """Process the messages of a replicated queue or subscription until `stop`, or until the request says enough.

    A handler gets a `Delivery`; see `runtime.replication.handlers`. It must be able to stop when it is cancelled: that
    is how a lost lease reaches it.

    Raises:
        JournalError: the journal refuses permanently, is of an older edition, or belongs to other namespaces; nothing
            is lost.
    """
    sides = {Side.PRIMARY: primary, Side.SECONDARY: secondary}
    return await _Consumer(request, sides, journal, handler, clock, observer, stop).run()


def _spawn(work: Coroutine[Any, Any, None], tasks: "set[asyncio.Task[None]]", *, name: str) -> None:
    """A task that is kept until it has ended."""
    task = asyncio.create_task(work, name=name)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


CopyKey = tuple[str, str]
"""The session's `service.session_key`, and the message id."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """What was seen to lie on the sides."""

    complete: bool
    """All of it was seen; otherwise the counts are of what was."""
    second_copies: int = 0
    """Of messages that are finished; each message counts once."""
    active_second_copies: int = 0
    """Those of them whose time has come."""
    scheduled: int | None = 0
    """Other messages that are scheduled. None: not known."""
    next_at: float | None = None
    """When the first scheduled one comes, UTC epoch seconds."""
    errors: Mapping[Side, ServiceError] = field(default_factory=dict)
    """Of sides where what is consumed could not be browsed."""

    def not_seen(self, second_copies: int) -> "Remaining":
        """The same where that many second copies were not met, wherever they are."""
        return replace(self, second_copies=second_copies, scheduled=None)


async def browse_remaining(
    source: str, sides: Mapping[Side, Messaging], finished: Collection[CopyKey], *, page_seconds: float
) -> Remaining:
    """Browse the queue, or the subscription and its topic, on these sides to the end: copies may lie there for later.

    A browse shows what is scheduled in a queue. What is scheduled to a topic lies in the topic until its time has come:
    the topic shows it to who may listen there, which a consumer of a subscription need not.

    Args:
        finished: messages whose second copy was not met.
        page_seconds: bounds each page.
    """
    active: set[CopyKey] = set()
    later: Counter[CopyKey] = Counter()
    times: list[float] = []

    async def browse(side: Side, path: str) -> ServiceError | None:
        try:
            async with (
                closing(sides[side].receiver(path)) as receiver,
                aclosing(pages_once(receiver, page_seconds=page_seconds)) as pages,
            ):
                async for page in pages:
                    for message in page:
                        key = (session_key(message.session_id or ""), message.message_id or "")
                        if message.state is MessageState.SCHEDULED:
                            later[key] += 1
                            if (at := describe(message.payload).scheduled_at) is not None:
                                times.append(at)
                        elif key in finished:
                            active.add(key)
        except ServiceError as error:
            return error
        return None

    subscription = subscription_of(source)
    paths = (source,) if subscription is None else (source, subscription[0])
    asked = [(side, path) for side in sides for path in paths]
    answers = await asyncio.gather(*(browse(side, path) for side, path in asked))
    return Remaining(
        not any(answers),
        len(active.union(key for key in later if key in finished)),
        len(active),
        sum(count for key, count in later.items() if key not in finished),
        min(times, default=None),
        {side: error for (side, path), error in zip(asked, answers, strict=True) if path == source and error},
    )
