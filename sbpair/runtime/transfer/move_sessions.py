"""The move of an entity that hands out messages by session: each session in its order and with its state.

The state is set at the destination before the first message goes, and cleared here once the session holds nothing more.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC
from typing import cast

from sbpair.concurrency import cancel_on, end, side_by_side, waiting
from sbpair.core.errors import Category, ServiceError, SessionUnavailableError
from sbpair.core.message import MessageState
from sbpair.core.transfer.conclusion import waits_for_more
from sbpair.core.transfer.ledger import STATE_MOVED, LedgerEntry
from sbpair.core.transfer.report import FILTERED_OUT, DrainReport, QueueFailure, reasons
from sbpair.core.transfer.resend import HELD, NOT_REACHED, OTHER_STATE, STATE_STAYS
from sbpair.core.transfer.state import LEAST_LOCK_SECONDS, Key, Leave, LockClock, key_of
from sbpair.ports import MessageMover, MessageReceiver
from sbpair.runtime.browse import FIRST_SEQUENCE_NUMBER, pages
from sbpair.runtime.links import close_quietly, closing, keep_session
from sbpair.runtime.transfer.drain import TransferRequest, halt_in_time
from sbpair.runtime.transfer.moving import FOLLOW_WAIT_SECONDS, MoveJob
from sbpair.runtime.transfer.reading import Source
from sbpair.runtime.transfer.sinks import LeftOpen, NamespaceSink, Sink
from sbpair.service import session_key

SESSIONS_AT_ONCE = 8
SESSION_IN_FLIGHT_MESSAGES = 250
SESSION_IDLE_SECONDS = 0.2
"""How long a receive waits before a session counts as idle; a browse then says whether it is empty."""
POLL_AGAIN_SECONDS = 2.0
"""How often sessions are looked for that have got messages: nothing tells of them."""

FOLLOW_SECONDS = 1.0
"""The same where messages are followed."""
PAGES_AT_ONCE = 4
MOST_SESSIONS = 1_000
"""Sessions whose locks are kept at a time: each has a link of its own."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What a browse of an entity that hands out messages by session has shown."""

    held: Mapping[str, int]
    """How many messages are to go, by session; 0 for a session that only has a state."""
    going: frozenset[Key]
    unopened: DrainReport | None
    """What is left in sessions that need not be opened at all."""


class SessionMove:
    """See the module."""

    def __init__(self, job: MoveJob) -> None:
        self._job = job
        self._kept: NamespaceSink | None = None
        """Where messages go while sessions are followed; then a session is kept once it is held."""
        self._recorded: set[Key] | None = None
        """What lies here still although it was sent; None: not known yet."""

    async def followed(self) -> None:
        """Take each session that has messages, and move what comes in it until the job's `stop` is set.

        A session is kept: as long as its earlier messages may wait at the destination, no receiver here gets the next
        ones. One that another receiver holds is asked for again. Beyond `MOST_SESSIONS` further sessions wait.

        Raises:
            SbpairError: the ledger cannot be written.
        """
        stop, number = self._job.stop, FIRST_SEQUENCE_NUMBER
        sink = self._kept = NamespaceSink(self._job.ends.target)
        held: dict[str, asyncio.Task[DrainReport]] = {}
        try:
            while not stop.is_set():
                look = None
                with suppress(ServiceError):  # closed to requests, or not there for now: those that are held go on
                    if self._recorded is None:
                        self._recorded = await cancel_on(stop, self._recorded_here())
                    if self._recorded is not None:
                        look = await cancel_on(stop, self._sessions_from(number))
                for ended in [key for key, task in held.items() if task.done()]:
                    held.pop(ended).result()
                found, number = look or ({}, number)
                for key, session_id in found.items():
                    if key not in held and len(held) < MOST_SESSIONS:
                        held[key] = asyncio.create_task(self._one_session(session_id, 1, self._job.request))
                await cancel_on(stop, self._job.clock.sleep(FOLLOW_SECONDS))
            await asyncio.gather(*held.values())
        finally:
            await end(*held.values())
            await sink.close()

    async def _recorded_here(self) -> set[Key]:
        """Of what the ledger has as sent, what lies here still."""
        mine, here = self._job.recorded, set[Key]()
        async with closing(self._job.ends.source.receiver(self._job.path)) as receiver:
            last = max((key[1] for key in mine), default=0)
            async for page in pages(receiver, last=last, clock=self._job.clock, patience_seconds=0.0):
                here.update(map(key_of, page))
        return mine & here

    async def _sessions_from(self, first: int) -> tuple[dict[str, str], int]:
        """Sessions of the next messages from this number on, and the number from which to look on."""
        found: dict[str, str] = {}
        async with closing(self._job.ends.source.receiver(self._job.path)) as receiver:
            browsed = pages(receiver, first, clock=self._job.clock, patience_seconds=0.0)
            for _ in range(PAGES_AT_ONCE):
                if (page := await anext(browsed, None)) is None:
                    return found, FIRST_SEQUENCE_NUMBER
                active = (one.session_id or "" for one in page if one.state is MessageState.ACTIVE)
                found = {session_key(one): one for one in active} | found
                first = max(one.sequence_number for one in page) + 1
            return found, first

    async def moved_until_idle(self, request: TransferRequest) -> list[DrainReport]:
        """`_sessions`, again as long as messages come: until none has for `idle_seconds`."""
        look = await self._look_for_sessions()
        parts = await self._sessions(request, look)
        now = self._job.clock.monotonic
        came_at = now()
        with waiting("") as wait:
            while (quiet := came_at + request.idle_seconds - now()) > 0:
                rest = self._job.less(request, parts)
                if rest is None:
                    break
                sentence = waits_for_more(self._job.clock.now().timestamp() + quiet)
                wait.detail = lambda sentence=sentence: sentence
                await cancel_on(self._job.stop, self._job.clock.sleep(min(POLL_AGAIN_SECONDS, quiet)))
                before, look = look.going, await self._look_for_sessions()
                if look.going - before:
                    wait.detail = None
                    # What is left is reported by the pass that looks at all of it last.
                    parts = [*map(reported_later, parts), *await self._sessions(rest, look)]
                    came_at = now()  # so that what came during the pass is looked for, however long it took
        return parts

    async def _sessions(self, request: TransferRequest, look: _Look) -> list[DrainReport]:
        """Every session, several at once; one after another where a limit or a rate is for all of them together."""
        held, unopened = look.held, look.unopened
        parts = [] if unopened is None else [unopened]
        bounds = (request.max_messages, request.rate_per_second, request.budget_per_second)
        alone = any(bound is not None for bound in bounds)
        if not alone:
            work = self._one_session
            parts += await side_by_side(
                lambda session_id: work(session_id, held[session_id], request), sorted(held), at_once=SESSIONS_AT_ONCE
            )
            return parts or [DrainReport(confirmed_empty=True)]
        for session_id in sorted(held):
            rest = self._job.less(request, parts)
            if rest is None:
                parts.append(DrainReport(ended_by="stop" if self._job.stop.is_set() else "count"))
                break
            parts.append(await self._one_session(session_id, held[session_id], rest))
        return parts or [DrainReport(confirmed_empty=True)]

    async def _look_for_sessions(self) -> _Look:
        receiver = self._job.ends.source.receiver(self._job.path)
        states = frozenset({MessageState.ACTIVE}) | (self._job.request.also - {MessageState.SCHEDULED})
        going: dict[Key, str] = {}
        others: dict[str, Counter[str]] = {}
        named: dict[str, str] = {}
        """One spelling for each session, by which it is asked for: the service knows it by any."""
        async with closing(receiver):
            async for page in pages(
                receiver, clock=self._job.clock, patience_seconds=self._job.request.patience_seconds
            ):
                for message in page:
                    if message.state not in states:
                        continue
                    verdict, session_id = self._job.judge(message), message.session_id or ""
                    session_id = named.setdefault(session_key(session_id), session_id)
                    if isinstance(verdict, Leave):
                        others.setdefault(session_id, Counter())[verdict.because] += 1
                    else:
                        going[key_of(message)] = session_id
            held = dict(Counter(going.values()))
            if self._job.session_states:
                for spelled in await receiver.session_ids():
                    held.setdefault(named.setdefault(session_key(spelled), spelled), 0)
        left: Counter[str] = Counter()
        for session_id, because in others.items():
            if session_id not in held:
                left += because
        unopened = DrainReport(left=reasons(left), filtered_out=left[FILTERED_OUT]) if left else None
        return _Look(held, frozenset(going), unopened)

    async def _one_session(self, session_id: str, messages: int, request: TransferRequest) -> DrainReport:
        if self._job.stop.is_set():
            return DrainReport(ended_by="stop", left=reasons({NOT_REACHED: messages}))
        mover = None
        if self._job.ends.transactions is None:
            receiver = self._job.ends.source.receiver(self._job.path, session_id=session_id)
        else:
            receiver = mover = self._job.ends.transactions.mover(self._job.path, session_id=session_id)
        try:
            return await self._held_session(receiver, session_id, messages, request, mover)
        except SessionUnavailableError:
            return DrainReport(left=reasons({HELD: max(1, messages)}))
        except ServiceError as error:
            return DrainReport(failures=(QueueFailure(f"session {session_id} of {self._job.path}", error),))
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
        lock_seconds = self._job.lock_seconds or LEAST_LOCK_SECONDS
        keeping = asyncio.create_task(keep_session(receiver, self._job.clock, pause_seconds=lock_seconds / 3))
        try:
            if self._kept is None:
                return await self._locked_session(receiver, session_id, state, messages, request, mover)
            if state is not None and (stays := await self._place_state(session_id, state)) not in (None, STATE_STAYS):
                return DrainReport(left=reasons({stays or "": messages}))
            await self._followed_messages(receiver, keeping, self._kept)
            return DrainReport()
        finally:
            await end(keeping)

    async def _followed_messages(
        self, receiver: MessageReceiver, keeping: "asyncio.Task[None]", sink: NamespaceSink
    ) -> None:
        """What comes in a session, until its lock is lost: then it is taken once more."""
        halt = asyncio.Event()
        keeping.add_done_callback(lambda _: halt.set())
        watching = asyncio.create_task(halt_in_time(halt, self._job.stop, None))
        source = Source(
            self._job.path,
            cast(MessageReceiver, LeftOpen(receiver)),
            LockClock(self._job.lock_seconds),
            wait_seconds=FOLLOW_WAIT_SECONDS,
        )
        try:
            await self._job.followed(self._recorded or set(), [source], cast(Sink, LeftOpen(sink)), stop=halt)
        finally:
            await end(watching)

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
        if state is not None and self._job.session_states:
            stays = await self._place_state(session_id, state)
            if stays is not None and stays != STATE_STAYS:
                return DrainReport(left=reasons({stays: max(1, messages)}))
        report = DrainReport(confirmed_empty=True)
        if messages:
            report = await self._session_messages(receiver, request, mover)
        if state is None or not self._job.session_states:
            return report
        if stays is None and report.confirmed_empty:
            try:
                if await receiver.session_state() == state:
                    await receiver.set_session_state(None)
                else:  # its lock was lost on the way, and another receiver worked on it
                    stays = OTHER_STATE
            except ServiceError as error:  # its messages were moved all the same
                failure = QueueFailure(f"session {session_id} of {self._job.path}", error)
                return replace(report, failures=(*report.failures, failure), confirmed_empty=False)
        if stays is None:
            return replace(report, session_states=1)
        left = Counter({entry.reason: entry.count for entry in report.left}) + Counter({stays: 1})
        return replace(report, left=reasons(left), confirmed_empty=False)

    async def _session_messages(
        self, receiver: MessageReceiver, request: TransferRequest, mover: MessageMover | None
    ) -> DrainReport:
        source = Source(
            self._job.path,
            cast(MessageReceiver, LeftOpen(receiver)),
            LockClock(self._job.lock_seconds),
            wait_seconds=SESSION_IDLE_SECONDS,
        )
        few = min(request.in_flight_messages, SESSION_IN_FLIGHT_MESSAGES)
        request = replace(request, in_flight_messages=few, dead_letter=False, with_dead_letter=False, idle_seconds=0.0)
        return await self._job.drained(request, source, mover)

    async def _place_state(self, session_id: str, state: bytes) -> str | None:
        """Set a session's state at the destination. Why not, if it is not; with `STATE_STAYS` its messages may go all
        the same."""
        queue, topic = self._job.seen.queue, self._job.seen.topic
        path = self._job.states_to or self._job.seen.path
        if (topic is not None and self._job.states_to is None) or (
            queue is not None and not queue.settings.requires_session
        ):
            return STATE_STAYS
        line = self._state_line(session_id)
        spelled = replace(line, message_id=session_id)  # the line of an earlier build
        ledger = self._job.ledger
        if ledger is not None and {_key_of_line(line), _key_of_line(spelled)} & ledger.forwarded:
            return None  # a receiver there may have changed it since
        try:
            async with closing(self._job.ends.target.receiver(path, session_id=session_id)) as receiver:
                there = await receiver.session_state()
                if there is not None and there != state:
                    return OTHER_STATE
                if there is None:
                    await receiver.set_session_state(state)
        except ServiceError as error:
            if queue is None and error.category in (Category.ARGUMENT, Category.NOT_FOUND):
                return STATE_STAYS
            return f"the state of its session cannot be set at the destination ({error.code})"
        if self._job.ledger is not None:
            await self._job.ledger.record([line])
            self._job.ledger.forwarded.add(_key_of_line(line))
        return None

    def _state_line(self, session_id: str) -> LedgerEntry:
        return LedgerEntry(
            queue=self._job.path,
            sequence_number=0,
            message_id=session_key(session_id),
            enqueued_at_ms=0,
            destination=self._job.seen.path,
            session_id=session_id,
            outcome=STATE_MOVED,
            time=self._job.clock.now().astimezone(UTC).isoformat(),
        )


def _key_of_line(line: LedgerEntry) -> Key:
    return line.queue, line.sequence_number, line.message_id, line.enqueued_at_ms


def reported_later(report: DrainReport) -> DrainReport:
    """What it did, without what it left: a later part looks at all of that again, and reports it."""
    return replace(report, left=(), filtered_out=0, locked=(), confirmed_empty=True)
