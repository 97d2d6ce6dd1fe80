"""All that an entity holds, sent to another one, archived or deleted: what is active by the pump as in a drain, the
rest by ways of its own.

* A queue that hands out messages by session is emptied session by session, each in its order and with its state: the
  state is set at the destination before the first message goes, and cleared here once the session holds nothing more.
* Scheduled messages cannot be received. They are browsed, sent with their times, and cancelled here once the
  destination has them. What is due soon waits until it is active. A topic holds nothing else.
* Within a namespace that has transactions a message is sent and completed, or cancelled, in one: a crash leaves it in
  one place. Elsewhere it is completed or cancelled afterwards, and a crash in between leaves it in both.
* Deferred messages are received by their numbers, after all others, and are active at the destination.
* A copy browses only: nothing is locked, and what it sent stands in its ledger.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC
from typing import Any, cast

from sbpair.concurrency import end, side_by_side, unless, waiting
from sbpair.core.entities import QueueFacts
from sbpair.core.errors import Category, LocksLostError, ServiceError, SessionUnavailableError
from sbpair.core.message import Disposition, Origin, Received, State
from sbpair.core.names import subscription_of
from sbpair.core.transfer.conclusion import waits_for_more
from sbpair.core.transfer.destinations import DestinationSeen
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.report import FILTERED_OUT, DrainReport, QueueFailure, parts_together, reasons
from sbpair.core.transfer.resend import HELD, IN_DOUBT, NOT_REACHED, NOT_SCHEDULED, OTHER_STATE, STATE_STAYS
from sbpair.core.transfer.state import LEAST_LOCK_SECONDS, Finish, Forward, Key, Leave, LockClock, Verdict, key_of
from sbpair.core.transfer.verdict import Judge
from sbpair.ports import (
    MOST_MOVED_AT_ONCE,
    Clock,
    Ends,
    MessageMover,
    MessageReceiver,
    MessageSender,
    Observer,
    ScheduledMover,
)
from sbpair.runtime.browse import pages
from sbpair.runtime.links import close_quietly, keep_session
from sbpair.runtime.transfer.drain import (
    IDLE_SECONDS,
    DrainJob,
    ToArchive,
    TransferRequest,
    drain,
    halt_in_time,
    make_archive,
    make_limits,
    make_report,
    make_sources,
)
from sbpair.runtime.transfer.ledger import STATE_MOVED, Entry, Ledger
from sbpair.runtime.transfer.reading import Source
from sbpair.runtime.transfer.restore import send_stored
from sbpair.runtime.transfer.sinks import ArchiveSink, NamespaceSink, Sink, TransactionSink
from sbpair.runtime.transfer.stored import StoredMessages
from sbpair.service import session_key

SESSIONS_AT_ONCE = 8
SESSION_IN_FLIGHT_MESSAGES = 250
SESSION_IDLE_SECONDS = 0.2
"""How long a receive waits before a session counts as idle; a browse then says whether it is empty."""
LOOK_AGAIN_SECONDS = 2.0
"""How often sessions are looked for that have got messages: nothing tells of them."""
CANCEL_SECONDS = 30.0
_DEALT_WITH = "dealt with while it was browsed"


async def move(
    request: TransferRequest,
    ends: Ends,
    judge: Judge,
    *,
    seen: DestinationSeen,
    facts: Mapping[str, QueueFacts | None],
    clock: Clock,
    observer: Observer,
    ledger: Ledger | None,
    stop: asyncio.Event,
    keep: bool = False,
    session_states: bool = True,
    topic: bool = False,
) -> DrainReport:
    """Send what lies in the one entity of `request.queues` to where `judge` says, and complete it.

    Args:
        request: `deferred` and `scheduled` ask for those too, `with_dead_letter` for the dead letters; a dry run is
            a browse of all that is asked for.
        judge: `Resender`, `Purger` or `Archiver`, or a `Planned` around it, which leaves what came later.
        seen: what was learnt about the destination, where session states go.
        facts: of the source, by its path; they say whether it hands out messages by session.
        ledger: what it has is completed without being sent again.
        keep: copy; nothing is completed.
        session_states: take the states of sessions along. Not where only some messages are meant.
        topic: the source is one: what is scheduled is all that can be seen and taken there.

    Raises:
        ServiceError: nothing could be read, and nothing was moved.
        FilterError: as `drain`.
        OSError: the ledger cannot be written.
    """
    seconds = None if request.dry_run else request.for_seconds
    async with _ended_in_time(seconds, stop) as halt:
        timeless = replace(request, for_seconds=None)
        run = _Move(timeless, ends, judge, seen, facts, clock, observer, ledger, halt, session_states, topic)
        if request.dry_run:
            return await run.drained(timeless)
        report = await (run.copied() if keep else run.moved_or_archived())
    return replace(report, ended_by="time") if report.ended_by == "stop" and not stop.is_set() else report


@asynccontextmanager
async def _ended_in_time(seconds: float | None, stop: asyncio.Event) -> AsyncIterator[asyncio.Event]:
    """An event that `stop` or the end of `seconds` sets: a bound for all parts of a run, which end as when stopped."""
    if seconds is None:
        yield stop
        return
    halt = asyncio.Event()
    watching = asyncio.create_task(halt_in_time(halt, stop, seconds))
    try:
        yield halt
    finally:
        await end(watching)


@dataclass(frozen=True, slots=True)
class _Look:
    """What a browse of an entity that hands out messages by session has shown."""

    held: Mapping[str, int]
    """How many messages are to go, by session; 0 for one that only has a state."""
    going: frozenset[Key]
    unopened: DrainReport | None
    """What is left in sessions that need not be opened at all."""


@dataclass(frozen=True, slots=True)
class _Move:
    request: TransferRequest
    ends: Ends
    judge: Judge
    seen: DestinationSeen
    facts: Mapping[str, QueueFacts | None]
    clock: Clock
    observer: Observer
    ledger: Ledger | None
    stop: asyncio.Event
    session_states: bool
    topic: bool
    archive: ArchiveSink | None = None
    """Where all parts put their messages, instead of sending them."""

    @property
    def path(self) -> str:
        return self.request.queues[0]

    @property
    def _lock_seconds(self) -> float | None:
        known = self.facts.get(self.path)
        return known.settings.lock_duration_seconds if known is not None else None

    async def by_session(self) -> bool:
        """Whether the entity hands out messages by session. Who may not ask for its settings asks for its sessions:
        only such an entity has some."""
        known = self.facts.get(self.path)
        if known is not None:
            return known.settings.requires_session
        receiver = self.ends.source.receiver(self.path)
        try:
            return bool(await receiver.session_ids())
        except ServiceError as error:
            if error.category in (Category.ARGUMENT, Category.NOT_FOUND):
                return False
            raise
        finally:
            await close_quietly(receiver)

    async def moved_or_archived(self) -> DrainReport:
        """`moved`, with one archive for all parts where that is where they go."""
        if not isinstance(self.request.to, ToArchive):
            return await self.moved()
        archive = make_archive(self.request.to, self.clock)
        try:
            return replace(await replace(self, archive=archive).moved(), archive=archive.path)
        finally:
            await archive.close()

    async def moved(self) -> DrainReport:
        """Scheduled messages first, before they become active; then what can be received."""
        began = self.clock.monotonic()
        parts: list[DrainReport] = []
        of_the_queue = self.request.kinds != (True,)
        scheduled = self.request.scheduled and of_the_queue and subscription_of(self.path) is None
        if scheduled:
            parts.append(await self._scheduled(self.request))
        rest = None if self.topic else self._less(self.request, parts)
        if rest is not None and of_the_queue and await self.by_session():
            parts += await self._sessions_until_idle(rest)
            rest = self._less(self.request, parts)
            if rest is not None and True in self.request.kinds:
                rest = replace(rest, dead_letter=True, with_dead_letter=False, idle_seconds=0.0)
                parts.append(await self._safely(rest, parts))
        elif rest is not None and self.ends.transactions is None:
            parts.append(await self._safely(rest, parts))
        elif rest is not None:
            for dead_letter in rest.kinds:  # a transaction holds what one receiver has received
                if (request := self._less(self.request, parts)) is not None:
                    request = replace(request, dead_letter=dead_letter, with_dead_letter=False)
                    if dead_letter and len(rest.kinds) > 1:
                        request = replace(request, idle_seconds=0.0)
                    parts.append(await self._safely(request, parts))
        if scheduled and not parts[0].failures:
            parts[1:] = [_without_scheduled(part) for part in parts[1:]]
            if self.request.idle_seconds and (request := self._less(self.request, parts)) is not None:
                parts[0] = _told_later(parts[0])
                parts.append(await self._scheduled(request))  # what was scheduled meanwhile
        return parts_together(parts, seconds=self.clock.monotonic() - began)

    def _less(self, request: TransferRequest, parts: list[DrainReport]) -> TransferRequest | None:
        """What is still asked for after these parts; None: nothing."""
        if self.stop.is_set() or any(part.broken_off is not None for part in parts):
            return None
        if request.max_messages is None:
            return request
        rest = request.max_messages - sum(part.forwarded + part.purged for part in parts)
        return replace(request, max_messages=rest) if rest > 0 else None

    async def _safely(self, request: TransferRequest, before: list[DrainReport]) -> DrainReport:
        """A drain whose failure does not hide what has moved before."""
        try:
            if self.ends.transactions is None:
                return await self.drained(request)
            mover = self.ends.transactions.mover(self.path, dead_letter=request.dead_letter)
            return await self.drained(request, mover=mover)
        except ServiceError as error:
            if not any(part.has_moved for part in before):
                raise
            return DrainReport(failures=(QueueFailure(self.path, error),))

    async def drained(
        self, request: TransferRequest, source: Source | None = None, mover: MessageMover | None = None
    ) -> DrainReport:
        """`drain` of what can be received. `source`: one session instead of the entity. `mover`: what receives, if it
        moves in transactions as well."""
        sources = None if source is None else [source]
        if source is None and mover is not None:
            sources = [Source(self.path, mover, LockClock(self._lock_seconds), wait_seconds=IDLE_SECONDS)]
        return await drain(
            DrainJob(
                request,
                secondary=self.ends.source,
                primary=self.ends.target,
                admin=self.ends.admin if source is None else None,  # counts are of all sessions
                primary_admin=self.ends.target_admin,
                clock=self.clock,
                observer=self.observer,
                ledger=self.ledger,
                stop=self.stop,
                facts=self.facts if source is None else {},
                judge=self.judge,
                undeliverable=None,
                sources=sources,
                mover=mover,
                archive=self.archive,
            )
        )

    # Copies and scheduled messages: browsed

    async def copied(self) -> DrainReport:
        began = self.clock.monotonic()
        wanted = frozenset({State.ACTIVE}) | self.request.also
        parts: list[DrainReport] = []
        for source in make_sources(self.request, self.ends.source, self.facts, wait_seconds=0.0):
            try:
                rest = self._less(self.request, parts)
                if rest is not None:
                    parts.append(await self._browsed(source, rest, wanted, None))
            finally:
                await close_quietly(source.receiver)
        # Nothing was completed: the counter of the pump says that it was told to.
        return replace(parts_together(parts, seconds=self.clock.monotonic() - began), completed=0)

    async def _scheduled(self, request: TransferRequest) -> DrainReport:
        receiver, sender = self.ends.source.receiver(self.path), self.ends.source.sender(self.path)
        mover = None if self.ends.transactions is None else self.ends.transactions.scheduled_mover(self.path)
        source = Source(self.path, receiver)
        try:
            return await self._browsed(source, request, frozenset({State.SCHEDULED}), sender, mover)
        finally:
            for one in (receiver, sender, mover):
                if one is not None:
                    await close_quietly(one)

    async def _browsed(
        self,
        source: Source,
        request: TransferRequest,
        states: frozenset[State],
        canceller: MessageSender | None,
        mover: ScheduledMover | None = None,
    ) -> DrainReport:
        """Send what a browse shows in these states; `canceller` takes it away then, or `mover` does both at once."""
        began = self.clock.monotonic()
        sent_before = self.ledger.forwarded if self.ledger is not None else frozenset()
        limits = make_limits(request, patience_seconds=request.patience_seconds, lock_wait_seconds=None)
        stored = _Browsed(canceller)
        sink: Sink = NamespaceSink(self.ends.target)
        if self.archive is not None:
            sink = cast(Sink, _KeptOpen(self.archive))
        elif mover is not None:
            limits = replace(limits, batch_messages=MOST_MOVED_AT_ONCE)
            sink = TransactionSink(_MovesBrowsed(stored, mover), self.ends.target)
        machine = Settlement(limits, undeliverable=None, leave_missing=True, forwarded=sent_before)
        feeding = asyncio.create_task(self._feed(source, stored, states, canceller))
        try:
            left = await send_stored(
                stored,
                stored.verdict_of,
                machine,
                sink,
                ledger=self.ledger,
                clock=self.clock,
                observer=self.observer,
                stop=self.stop,
                settled_by_us=canceller is None,
            )
        except BaseException:
            await end(feeding)
            raise
        fed = await feeding
        if not machine.total_reached:
            numbers = machine.tally.numbers
            dealt_with = numbers["forwarded"] + numbers["already_forwarded"] + numbers["purged"] + left.total()
            left[NOT_REACHED] += max(0, stored.handed_over - dealt_with)
        left += fed
        report = make_report(
            machine,
            [source],
            left=left,
            sent_before=sent_before,
            seconds=self.clock.monotonic() - began,
            confirmed_empty=not left and source.failed is None,
            ended_by="stop" if self.stop.is_set() else "count" if machine.total_reached else "empty",
            sink=sink,
        )
        if source.failed is not None and not source.was_read:
            raise source.failed.with_state("Nothing was moved.")
        return report

    async def _feed(
        self, source: Source, stored: "_Browsed", states: frozenset[State], canceller: MessageSender | None
    ) -> Counter[str]:
        """Browse, and hand over what may go; the rest by reason. A browse that fails is the source's failure."""
        left: Counter[str] = Counter()
        may_cancel: bool | None = None if canceller is not None else True
        try:
            browsed = pages(source.receiver, clock=self.clock, patience_seconds=self.request.patience_seconds)
            async for page in browsed:
                source.was_read = True
                going: list[tuple[Received, Forward | Finish]] = []
                for one in page:
                    if one.state not in states:
                        continue
                    verdict = self.judge(one)
                    if isinstance(verdict, Leave):
                        left[verdict.because] += 1
                    else:
                        going.append((one, verdict))
                if going and may_cancel is None and canceller is not None:
                    # Before the first one is sent: without the right to cancel it here it would be in both places.
                    await canceller.max_message_bytes()
                    may_cancel = True
                if not await stored.hand_over(going) and self.request.max_messages is not None:
                    break
            source.was_read = True
        except ServiceError as error:
            source.failed = error
        finally:
            await stored.end()
        return left

    # Sessions

    async def _sessions_until_idle(self, request: TransferRequest) -> list[DrainReport]:
        """`_sessions`, again as long as messages come: until none has for `idle_seconds`."""
        look = await self._look_for_sessions()
        parts = await self._sessions(request, look)
        now = self.clock.monotonic
        came_at = now()
        with waiting("") as wait:
            while (quiet := came_at + request.idle_seconds - now()) > 0:
                rest = self._less(request, parts)
                if rest is None:
                    break
                sentence = waits_for_more(self.clock.now().timestamp() + quiet)
                wait.told = lambda sentence=sentence: sentence
                await unless(self.stop, self.clock.sleep(min(LOOK_AGAIN_SECONDS, quiet)))
                before, look = look.going, await self._look_for_sessions()
                if look.going - before:
                    wait.told = None
                    # What is left is told by the pass that looks at all of it last.
                    parts = [*map(_told_later, parts), *await self._sessions(rest, look)]
                    came_at = now()  # so that what came during the pass is looked for, however long it took
        return parts

    async def _sessions(self, request: TransferRequest, look: "_Look") -> list[DrainReport]:
        """Every session, several at once; one after another where a limit or a rate is for all of them together."""
        held, unopened = look.held, look.unopened
        parts = [] if unopened is None else [unopened]
        bounds = (request.max_messages, request.rate_per_second, request.budget_per_second)
        alone = any(bound is not None for bound in bounds)
        if not alone:
            work = self._one_session
            parts += await side_by_side(
                lambda one: work(one, held[one], request), sorted(held), at_once=SESSIONS_AT_ONCE
            )
            return parts or [DrainReport(confirmed_empty=True)]
        for session_id in sorted(held):
            rest = self._less(request, parts)
            if rest is None:
                parts.append(DrainReport(ended_by="stop" if self.stop.is_set() else "count"))
                break
            parts.append(await self._one_session(session_id, held[session_id], rest))
        return parts or [DrainReport(confirmed_empty=True)]

    async def _look_for_sessions(self) -> "_Look":
        receiver = self.ends.source.receiver(self.path)
        states = frozenset({State.ACTIVE}) | (self.request.also - {State.SCHEDULED})
        going: dict[Key, str] = {}
        others: dict[str, Counter[str]] = {}
        named: dict[str, str] = {}
        """One spelling for each session, by which it is asked for: the service knows it by any."""
        try:
            async for page in pages(receiver, clock=self.clock, patience_seconds=self.request.patience_seconds):
                for one in page:
                    if one.state not in states:
                        continue
                    verdict, session_id = self.judge(one), one.session_id or ""
                    session_id = named.setdefault(session_key(session_id), session_id)
                    if isinstance(verdict, Leave):
                        others.setdefault(session_id, Counter())[verdict.because] += 1
                    else:
                        going[key_of(one)] = session_id
            held = dict(Counter(going.values()))
            if self.session_states:
                for spelled in await receiver.session_ids():
                    held.setdefault(named.setdefault(session_key(spelled), spelled), 0)
        finally:
            await close_quietly(receiver)
        left: Counter[str] = Counter()
        for session_id, because in others.items():
            if session_id not in held:
                left += because
        unopened = DrainReport(left=reasons(left), filtered_out=left[FILTERED_OUT]) if left else None
        return _Look(held, frozenset(going), unopened)

    async def _one_session(self, session_id: str, messages: int, request: TransferRequest) -> DrainReport:
        if self.stop.is_set():
            return DrainReport(ended_by="stop", left=reasons({NOT_REACHED: messages}))
        mover = None
        if self.ends.transactions is None:
            receiver = self.ends.source.receiver(self.path, session_id=session_id)
        else:
            receiver = mover = self.ends.transactions.mover(self.path, session_id=session_id)
        try:
            return await self._held_session(receiver, session_id, messages, request, mover)
        except SessionUnavailableError:
            return DrainReport(left=reasons({HELD: max(1, messages)}))
        except ServiceError as error:
            return DrainReport(failures=(QueueFailure(f"session {session_id} of {self.path}", error),))
        finally:
            await close_quietly(receiver)

    async def _held_session(
        self,
        receiver: MessageReceiver,
        session_id: str,
        messages: int,
        request: TransferRequest,
        mover: MessageMover | None,
    ) -> DrainReport:
        """One session, whose lock is kept from the look at its state to the end."""
        state = await receiver.session_state()
        lock_seconds = self._lock_seconds or LEAST_LOCK_SECONDS
        keeping = asyncio.create_task(keep_session(receiver, self.clock, pause_seconds=lock_seconds / 3))
        try:
            return await self._locked_session(receiver, session_id, state, messages, request, mover)
        finally:
            await end(keeping)

    async def _locked_session(
        self,
        receiver: MessageReceiver,
        session_id: str,
        state: bytes | None,
        messages: int,
        request: TransferRequest,
        mover: MessageMover | None,
    ) -> DrainReport:
        stays: str | None = None
        if state is not None and self.session_states:
            stays = await self._place_state(session_id, state)
            if stays is not None and stays != STATE_STAYS:
                return DrainReport(left=reasons({stays: max(1, messages)}))
        report = DrainReport(confirmed_empty=True)
        if messages:
            report = await self._session_messages(receiver, request, mover)
        if state is None or not self.session_states:
            return report
        if stays is None and report.confirmed_empty:
            try:
                if await receiver.session_state() == state:
                    await receiver.set_session_state(None)
                else:  # its lock was lost on the way, and somebody worked on it
                    stays = OTHER_STATE
            except ServiceError as error:  # its messages were moved all the same
                failure = QueueFailure(f"session {session_id} of {self.path}", error)
                return replace(report, failures=(*report.failures, failure), confirmed_empty=False)
        if stays is None:
            return replace(report, session_states=1)
        kept = Counter({one.reason: one.count for one in report.left}) + Counter({stays: 1})
        return replace(report, left=reasons(kept), confirmed_empty=False)

    async def _session_messages(
        self, receiver: MessageReceiver, request: TransferRequest, mover: MessageMover | None
    ) -> DrainReport:
        source = Source(
            self.path,
            cast(MessageReceiver, _KeptOpen(receiver)),
            LockClock(self._lock_seconds),
            wait_seconds=SESSION_IDLE_SECONDS,
        )
        few = min(request.in_flight_messages, SESSION_IN_FLIGHT_MESSAGES)
        request = replace(request, in_flight_messages=few, dead_letter=False, with_dead_letter=False, idle_seconds=0.0)
        return await self.drained(request, source, mover)

    async def _place_state(self, session_id: str, state: bytes) -> str | None:
        """Set a session's state at the destination. Why not, if it is not; with `STATE_STAYS` its messages may go all
        the same."""
        queue, topic = self.seen.queue, self.seen.topic
        if topic is not None or (queue is not None and not queue.settings.requires_session):
            return STATE_STAYS
        line = self._state_line(session_id)
        spelled = replace(line, message_id=session_id)  # the line of an earlier build
        if self.ledger is not None and {_key_of_line(line), _key_of_line(spelled)} & self.ledger.forwarded:
            return None  # whoever works there may have changed it since
        receiver = self.ends.target.receiver(self.seen.path, session_id=session_id)
        try:
            there = await receiver.session_state()
            if there is not None and there != state:
                return OTHER_STATE
            if there is None:
                await receiver.set_session_state(state)
        except ServiceError as error:
            if queue is None and error.category in (Category.ARGUMENT, Category.NOT_FOUND):
                return STATE_STAYS
            return f"the state of its session cannot be set at the destination ({error.code})"
        finally:
            await close_quietly(receiver)
        if self.ledger is not None:
            await self.ledger.record([line])
        return None

    def _state_line(self, session_id: str) -> Entry:
        return Entry(
            queue=self.path,
            sequence_number=0,
            message_id=session_key(session_id),
            enqueued_at_ms=0,
            destination=self.seen.path,
            session_id=session_id,
            outcome=STATE_MOVED,
            time=self.clock.now().astimezone(UTC).isoformat(),
        )


class _KeptOpen:
    """A receiver, with the lock of its session, or a sink that outlives the pump it is lent to."""

    def __init__(self, lent: MessageReceiver | Sink) -> None:
        self._lent = lent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lent, name)

    async def close(self) -> None:
        """Its owner closes it."""


class _Browsed(StoredMessages):
    """Messages that a browse has shown, with what was decided of each. Once one is dealt with, `canceller` takes it out
    of its queue; None: it stays there."""

    def __init__(self, canceller: MessageSender | None) -> None:
        super().__init__()
        self._canceller = canceller
        self._verdicts: dict[Key, Verdict] = {}
        self.handed_over = 0

    async def hand_over(self, going: Sequence[tuple[Received, Verdict]]) -> bool:
        """As `put`, with what is to become of each; `handed_over` counts also what nobody takes any more."""
        browsed = [replace(one, origin=_origin(one)) for one, _ in going]
        self._verdicts.update((key_of(one), verdict) for one, (_, verdict) in zip(browsed, going, strict=True))
        self.handed_over += len(going)
        return await self.put(browsed)

    def verdict_of(self, received: Received) -> Verdict:
        return self._verdicts.get(key_of(received)) or Leave(_DEALT_WITH)

    async def settle(
        self, received: Received, disposition: Disposition, *, reason: str = "", description: str = ""
    ) -> None:
        if disposition is Disposition.COMPLETE and self._canceller is not None and received.origin is not None:
            await self._canceller.cancel_scheduled([received.origin.sequence_number], timeout_seconds=CANCEL_SECONDS)
        await super().settle(received, disposition, reason=reason, description=description)

    def forget(self, received: Received) -> None:
        self._verdicts.pop(key_of(received), None)
        super().forget(received)

    async def leave(self, messages: Sequence[Received], because: str) -> None:
        """They are handed out again, to be left for this reason."""
        self._verdicts.update((key_of(one), Leave(because)) for one in messages)
        await self.give_back(messages)


class _MovesBrowsed:
    """`sbpair.ports.Moves` for what a browse has shown: by the numbers under which it lies in its queue."""

    def __init__(self, browsed: _Browsed, mover: ScheduledMover) -> None:
        self._browsed = browsed
        self._mover = mover

    async def max_message_bytes(self, entity: str) -> int:
        return await self._mover.max_message_bytes(entity)

    async def move(
        self, received: Sequence[Received], payloads: Sequence[bytes], entity: str, *, timeout_seconds: float
    ) -> None:
        there = [replace(one, sequence_number=key_of(one)[1]) for one in received]
        try:
            await self._mover.move(there, payloads, entity, timeout_seconds=timeout_seconds)
        except LocksLostError as error:
            lost = [received[place] for place in error.lost]
            await self._browsed.leave(lost, IN_DOUBT if error.uncertain else NOT_SCHEDULED)
            raise
        for one in received:
            self._browsed.forget(one)


def _origin(one: Received) -> Origin:
    queue, number, message_id, enqueued_ms = key_of(one)
    return Origin(queue, number, message_id, enqueued_ms)


def _key_of_line(line: Entry) -> Key:
    return line.queue, line.sequence_number, line.message_id, line.enqueued_at_ms


def _told_later(report: DrainReport) -> DrainReport:
    """What it did, without what it left: a later part looks at all of that again, and tells of it."""
    return replace(report, left=(), filtered_out=0, locked=(), confirmed_empty=True)


def _without_scheduled(report: DrainReport) -> DrainReport:
    """Scheduled messages have had their turn: what the later part saw of them is told there already."""
    return replace(report, left=tuple(one for one in report.left if one.reason != State.SCHEDULED.value))
