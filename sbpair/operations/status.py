"""`status`: does each namespace of a pair answer, what waits in the backlog, and how fast does that change. And what
monitoring reads of a namespace, again and again.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from sbpair.concurrency import abandon_after, run_until, side_by_side
from sbpair.core.access import NamespaceAccess
from sbpair.core.backlog import Backlog, FoundBy, QueueContents
from sbpair.core.entities import EntityKind
from sbpair.core.errors import ServiceError, UnauthorizedError
from sbpair.core.inspection.entity import LettersRead, Listed, ScrapedNamespace
from sbpair.core.inspection.status import LIMITED, REACHABLE, UNREACHABLE, PairStatus, SideStatus, StatusReport
from sbpair.core.summary import describe
from sbpair.core.transfer.explained import cause_of
from sbpair.operations.entity import ListEntitiesRequest, list_entities
from sbpair.ports import Ends, NamespaceAdmin, Observer, RuntimeClock, Sides
from sbpair.runtime.browse import DEFAULT_TIMEOUT_SECONDS as BROWSE_SECONDS
from sbpair.runtime.browse import FIRST_SEQUENCE_NUMBER, PAGE_MESSAGES, page_from, peeking
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.inspection.backlog import DEFAULT_TIMEOUT_SECONDS, FoundQueues, find_queues, read_backlog
from sbpair.runtime.inspection.usage import CountedMessaging, Usage, calls_of_lists
from sbpair.runtime.links import closing

__all__ = ["ScrapeRequest", "StatusReport", "StatusRequest", "scrape_namespace", "status", "watch_status"]


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """How a status is read."""

    interval_seconds: float = 2.0
    """Between two samples, from which rates are computed; 0: a single sample, so no rate."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Of one call."""


async def status(
    sides: Sides, request: StatusRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> StatusReport:
    """Read the status of a pair from two samples. Changes nothing. Needs Listen on the secondary.

    What cannot be read is said in the result.

    Args:
        stop: ends it; after the first sample the result is of that one.

    Raises:
        InterruptedWorkError: `stop` was set before the first sample.
    """
    async with aclosing(watch_status(sides, request, stop=stop, reuse_silence=True)) as samples:
        found = await anext(samples)
        return await anext(samples, found) if request.interval_seconds else found


async def watch_status(
    sides: Sides, request: StatusRequest, *, stop: asyncio.Event | None = None, reuse_silence: bool = False
) -> AsyncGenerator[StatusReport, None]:
    """A status for each sample, `request.interval_seconds` apart, until `stop`.

    Args:
        reuse_silence: a side that did not answer is not asked again.

    Raises:
        InterruptedWorkError: `stop` was set while a sample was read.
    """
    stop = stop or asyncio.Event()
    reader = StatusReader(sides, LoopClock(), request.timeout_seconds)
    before: PairStatus | None = None
    while True:
        after = await run_until(stop, reader.read(before if reuse_silence else None))
        yield StatusReport(after, before)
        before = after
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), request.interval_seconds)
        if stop.is_set():
            return


@dataclass(slots=True)
class StatusReader:
    """Reads the status of one pair again and again; the queues are searched for once.

    What cannot be read is said in the status; nothing is raised for it. `timeout_seconds` bounds each call.
    """

    sides: Sides
    clock: RuntimeClock
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    _found: FoundQueues | None = field(default=None, init=False)

    async def read(self, after: PairStatus | None = None) -> PairStatus:
        """The status now. A side that did not answer when `after` was read, a moment ago, is not waited for again."""
        taken_at = self.clock.now().timestamp()
        silent = [] if after is None else [one for one in (after.primary, after.secondary) if one.state == UNREACHABLE]
        sides, pair = self.sides, self.sides.pair
        first, second = await asyncio.gather(
            self._side("primary", pair.primary, sides.primary_admin, silent),
            self._side("secondary", pair.secondary, sides.secondary_admin, silent),
        )
        backlog = self._unread(taken_at, second) if second.state == UNREACHABLE else await self._backlog()
        # Words differ by what was tried, and the cause is the same: it is told of the side.
        alike = [
            replace(queue, detail=second.detail)
            if queue.error_code and queue.error_code == second.error_code
            else queue
            for queue in backlog.queues
        ]
        backlog = replace(backlog, queues=tuple(alike))
        if second.state == "denied" and any(queue.known for queue in backlog.existing):
            second = replace(second, state=LIMITED, detail=_NO_MANAGE["secondary"], hint="")
        return PairStatus(pair.name, taken_at, first, second, backlog, pair.environment)

    async def _side(
        self, role: str, access: NamespaceAccess, admin: NamespaceAdmin, silent: Sequence[SideStatus]
    ) -> SideStatus:
        for known in silent:
            if known.side == role:
                return known
        side = partial(SideStatus, role, access.host, label=access.label, embedded=access.embedded)
        began = self.clock.monotonic()
        try:
            facts = await abandon_after(self.timeout_seconds, admin.namespace(), what=f"Properties of {access.label}")
        except ServiceError as error:
            if isinstance(error, UnauthorizedError) and error.lacks == "Manage":
                # A namespace that asks for Manage has answered; only what it did not tell is missing.
                ms = (self.clock.monotonic() - began) * 1000
                return side(LIMITED, answered_in_ms=ms, error_code=error.code, detail=_NO_MANAGE[role])
            return side(error.exit_name, error_code=error.code, detail=error.message, hint=error.hint)
        return side(REACHABLE, facts.tier, (self.clock.monotonic() - began) * 1000)

    async def _backlog(self) -> Backlog:
        fresh = self._found is None or self._found.found_by is FoundBy.CONFIGURED
        messaging, admin, seconds = self.sides.secondary, self.sides.secondary_admin, self.timeout_seconds
        if self._found is None or fresh:
            self._found = await find_queues(self.sides.pair, messaging=messaging, admin=admin, timeout_seconds=seconds)
        return await read_backlog(
            self.sides.pair,
            self._found,
            messaging=messaging,
            admin=admin,
            clock=self.clock,
            timeout_seconds=seconds,
            recount=not fresh,
        )

    def _unread(self, taken_at: float, side: SideStatus) -> Backlog:
        """A namespace that does not answer is not asked for each of its queues."""
        queues = tuple(
            QueueContents(path, error_code=side.error_code, exit_name=side.state, detail=side.detail)
            for path in self.sides.pair.backlog_paths()
        )
        return Backlog(self.sides.pair.name, taken_at, queues, FoundBy.CONFIGURED)


_NO_MANAGE = {
    "primary": "Reachable; tier unknown (needs Manage).",
    "secondary": "Reachable; tier unknown (needs Manage). Queues are opened to find them, and browsed.",
}
"""By role."""


# What monitoring reads of a namespace, again and again: counts, ages, sessions, and dead letters by cause.


@dataclass(frozen=True, slots=True)
class ScrapeRequest:
    """What is read for monitoring."""

    pattern: str = "*"
    """Shell pattern of paths; case does not matter."""
    most_entities: int = 5_000
    """Of more, the first by path are read; the others are only counted."""
    browse: bool = True
    """For ages, sessions and the causes of dead letters. Needs Listen."""
    least_credits: int = 1_000
    """For browses, where a namespace has fewer entities: what it may use in a second."""
    before: ScrapedNamespace | None = None
    """What was read last: only dead letters that came since are read."""


async def scrape_namespace(
    ends: Ends, request: ScrapeRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> ScrapedNamespace:
    """The entities of a namespace with counts, ages of their first messages, sessions and causes of dead letters. Reads
    only.

    One management call for each page of entities and each topic. Of browses, one for each entity altogether, or
    `least_credits` where that is more: first an age for each entity with messages, then the sessions, then dead letters
    that were not read before, one credit each. What there was no room for is counted as not read, and is read the next
    time. An entity that cannot be browsed, for want of Listen, has no age, and no sessions or causes.

    Raises:
        ServiceError: the entities could not be read.
    """
    stop, usage = stop or asyncio.Event(), Usage()
    found = await list_entities(ends, ListEntitiesRequest(request.pattern), observer=observer, stop=stop)
    kept = found.entities[: request.most_entities]
    usage.management_calls = calls_of_lists(found.entities)
    reading = _Reading(replace(ends, source=CountedMessaging(ends.source, usage)), request, kept, usage)
    await run_until(stop, reading.read())
    return ScrapedNamespace(
        replace(found, entities=kept),
        len(found.entities) - len(kept),
        LoopClock().now().timestamp(),
        reading.ages,
        reading.sessions,
        reading.letters,
        usage.forecast(),
    )


class _Reading:
    """One read of what the counts do not tell, within its credits."""

    def __init__(self, ends: Ends, request: ScrapeRequest, entities: Sequence[Listed], usage: Usage) -> None:
        self._ends, self._request, self._usage = ends, request, usage
        self._entities = [one for one in entities if one.kind is not EntityKind.TOPIC]
        self._credits = max(request.least_credits, len(entities))
        self._clock = LoopClock()
        self.ages: dict[str, float] = {}
        self.sessions: dict[str, int] = {}
        before = request.before
        self.letters = {} if before is None else dict(before.letters)

    async def read(self) -> None:
        active = [one for one in self._entities if one.active]
        if not self._request.browse:
            return
        await self._each(active, self._age)
        known = () if self._request.before is None else self._request.before.sessions
        with_sessions = [one for one in active if one.requires_session]
        await self._each(sorted(with_sessions, key=lambda one: one.path in known), self._count_sessions)
        self.letters = {one.path: self._known_letters(one) for one in self._entities if one.dead_letter}
        unread = [one for one in self._entities if one.dead_letter and self._is_unread(one)]
        await self._each(unread, self._read_letters)

    async def _each(self, entities: Sequence[Listed], work: Callable[[Listed], Awaitable[None]]) -> None:
        async def within_credits(entity: Listed) -> None:
            if self._credits > 0:
                self._credits -= 1
                try:
                    await work(entity)
                except ServiceError:
                    return  # nothing is known of it, and that is what is shown

        await side_by_side(within_credits, entities)

    async def _age(self, entity: Listed) -> None:
        oldest = (await peeking(self._ends.source, dead_letters=False)(entity.path)).oldest_enqueued_at
        if oldest is not None:
            self.ages[entity.path] = max(0.0, self._clock.now().timestamp() - oldest)

    async def _count_sessions(self, entity: Listed) -> None:
        async with closing(self._ends.source.receiver(entity.path)) as receiver:
            self.sessions[entity.path] = found = len(await receiver.session_ids())
        self._credits -= 1 + found // 100  # the last page is empty

    def _known_letters(self, entity: Listed) -> LettersRead:
        """What is known of its dead letters: nothing where some are gone, since nobody tells which."""
        known = self.letters.get(entity.path, LettersRead())
        return LettersRead() if entity.dead_letter < known.messages else known

    def _is_unread(self, entity: Listed) -> bool:
        return self.letters[entity.path].counted != entity.dead_letter

    async def _read_letters(self, entity: Listed) -> None:
        """Those after the last number that was read. Where that does not find as many as are counted, as in a
        partitioned entity, whose numbers do not rise alone, the next scrape begins from the first one."""
        known = self.letters[entity.path]
        causes, number = Counter(known.by_cause), known.next_number
        receiver = self._ends.source.receiver(entity.path, dead_letter=True)
        self._credits += 1  # what `_each` took; a page takes what it asks for
        async with closing(receiver):
            while missing := entity.dead_letter - causes.total():
                most = min(PAGE_MESSAGES, missing, self._credits)
                if most <= 0:
                    return
                self._credits -= most
                page = await page_from(
                    receiver, number, clock=self._clock, most=most, patience_seconds=0.0, page_seconds=BROWSE_SECONDS
                )
                if not page:
                    break
                causes.update(cause_of(received, describe(received.payload)) for received in page)
                number = max(received.sequence_number for received in page) + 1
                self._usage.browses += len(page) - 1  # a page costs what its messages cost
                self.letters[entity.path] = LettersRead(Counter(causes), number)
            whole = not missing or known.next_number == FIRST_SEQUENCE_NUMBER
            self.letters[entity.path] = LettersRead(causes, number, entity.dead_letter) if whole else LettersRead()
