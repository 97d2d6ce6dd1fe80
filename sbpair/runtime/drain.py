"""One pass over the backlog: everything home, then a look that nothing is left.

An empty receive is not an empty queue: messages may be locked elsewhere, an answer may have got lost, counts may read 0
while a namespace throttles. So when nothing comes any more the queues are browsed, what is found is explained message
by message, what has no explanation is tried again, and the counts of the administration are compared where they can be
had.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from sbpair.core.entities import QueueFacts
from sbpair.core.errors import ServiceError
from sbpair.core.events import BacklogCounted
from sbpair.core.lanes import Key
from sbpair.core.settlement import Settlement
from sbpair.ports import Clock, Messaging, NamespaceAdmin, Observer
from sbpair.runtime.draining import (
    DrainReport,
    DrainRequest,
    facts_of,
    facts_unless_stopped,
    give_up_what_still_fails,
    make_classifier,
    make_limits,
    make_outlet,
    make_report,
    make_sources,
    raise_if_none_was_readable,
)
from sbpair.runtime.ledger import Ledger
from sbpair.runtime.mover import Mover, Source
from sbpair.runtime.outlets import Outlet
from sbpair.runtime.rehearsal import rehearse
from sbpair.runtime.survey import Found, survey

IDLE_SECONDS = 1.0
"""How long a receive waits before a source counts as idle."""
MOST_IDLE_SECONDS = 5.0
LOCK_GRACE_SECONDS = 5.0


async def drain(
    request: DrainRequest,
    *,
    secondary: Messaging,
    primary: Messaging,
    admin: NamespaceAdmin | None,
    clock: Clock,
    observer: Observer,
    ledger: Ledger | None,
    stop: asyncio.Event,
) -> DrainReport:
    """Bring the backlog home once. `admin` is the secondary's, None if there is none.

    Setting `stop` ends it within about 10 seconds: what is on its way is settled, what waits is given back.

    Raises:
        ServiceError: no queue at all could be read; the first one's error.
        UsageError: the filter compares things that cannot be compared.
        OSError: the ledger or archive cannot be written.
    """
    facts = await facts_unless_stopped(admin, request.queues, stop)
    sources = make_sources(request, secondary, facts, wait_seconds=IDLE_SECONDS)
    for path, known in facts.items():
        if known is not None:
            observer.notify(BacklogCounted(clock.now().timestamp(), path, _expected(request, known)))
    if request.dry_run:
        return await rehearse(request, sources, make_classifier(request, clock), clock=clock, stop=stop)
    outlet = make_outlet(request, primary, clock)
    try:
        return await _Run(request, sources, admin, clock, observer).carry_out(outlet, ledger, stop)
    finally:
        await outlet.close()


def _expected(request: DrainRequest, facts: QueueFacts) -> int:
    return facts.counts.dead_letter if request.dead_letter else facts.counts.active


class _Run:
    """One drain."""

    def __init__(
        self,
        request: DrainRequest,
        sources: Sequence[Source],
        admin: NamespaceAdmin | None,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self._request = request
        self._sources = sources
        self._admin = admin
        self._clock = clock
        self._observer = observer
        self._classify = make_classifier(request, clock)
        self._began = clock.monotonic()
        self._found: dict[str, Found] = {}
        self._fetched: set[tuple[str, int]] = set()

    async def carry_out(self, outlet: Outlet, ledger: Ledger | None, stop: asyncio.Event) -> DrainReport:
        sent_before = ledger.forwarded if ledger is not None else frozenset()
        limits = make_limits(self._request, patience_seconds=self._request.patience_seconds)
        machine = Settlement(limits, can_dead_letter=not self._request.dead_letter, forwarded=sent_before)
        mover = Mover(
            self._sources,
            machine,
            self._classify,
            outlet,
            clock=self._clock,
            observer=self._observer,
            ledger=ledger,
            endless=False,
            patience_seconds=self._request.patience_seconds,
        )
        halt = asyncio.Event()
        watch = asyncio.create_task(self._watch(stop, halt))
        mover.start()
        try:
            empty = await self._until_confirmed(mover, halt)
        finally:
            watch.cancel()
            left = Counter(machine.left().values())
            await mover.finish()
        if mover.fatal is not None:
            raise mover.fatal
        if halt.is_set() and not stop.is_set():
            give_up_what_still_fails(self._sources)
        raise_if_none_was_readable(self._sources)
        for found in self._found.values():
            left += found.reasons(machine.uncompleted)
        return make_report(
            machine,
            self._classify,
            self._sources,
            left=left,
            sent_before=sent_before,
            seconds=self._clock.monotonic() - self._began,
            confirmed_empty=empty,
            ended_by=self._ended_by(stop, halt, machine),
            outlet=outlet,
        )

    async def _watch(self, stop: asyncio.Event, halt: asyncio.Event) -> None:
        """Set `halt` when asked to stop or when the time is up."""
        try:
            async with asyncio.timeout(self._request.for_seconds):
                await stop.wait()
        except TimeoutError:
            pass  # the time is up: the same as being asked to stop
        halt.set()

    def _ended_by(self, stop: asyncio.Event, halt: asyncio.Event, machine: Settlement) -> str:
        if stop.is_set():
            return "stop"
        if halt.is_set():
            return "time"
        return "count" if machine.total_reached else "empty"

    async def _until_confirmed(self, mover: Mover, halt: asyncio.Event) -> bool:
        """Whether all sources were seen to hold nothing. Ends when all that is left is explained, or on `halt`."""
        patience = _LockPatience(self._request.lock_wait_seconds, self._clock.monotonic)
        wait_seconds = IDLE_SECONDS
        while await mover.settle_down(halt):
            if mover.machine.total_reached or mover.machine.parked_full:
                return False
            unexplained = await self._look_unless(halt, mover)
            if unexplained is None:
                return False
            if await self._take_deferred(mover):
                continue
            if not unexplained:
                return all(found.empty for found in self._found.values()) and len(self._found) == len(self._sources)
            if patience.exhausted(unexplained, self._sources):
                return False
            mover.look_again(
                [source for source in self._sources if source.path in unexplained], wait_seconds=wait_seconds
            )
            wait_seconds = min(wait_seconds * 2, MOST_IDLE_SECONDS)
        return False

    async def _take_deferred(self, mover: Mover) -> bool:
        """Fetch what is deferred, each message once; whether there was any."""
        if not self._request.deferred:
            return False
        wanted = {
            source: [number for number in found.deferred if (source.path, number) not in self._fetched]
            for source in self._sources
            if (found := self._found.get(source.path)) is not None
        }
        for source, numbers in wanted.items():
            self._fetched |= {(source.path, number) for number in numbers}
            await mover.take_deferred(source, numbers)
        return any(wanted.values())

    async def _look_unless(self, halt: asyncio.Event, mover: Mover) -> dict[str, frozenset[Key]] | None:
        """`_look`, given up on `halt`."""
        looking = asyncio.create_task(self._look(mover))
        halted = asyncio.create_task(halt.wait())
        try:
            await asyncio.wait({looking, halted}, return_when=asyncio.FIRST_COMPLETED)
            return await looking if looking.done() else None
        finally:
            looking.cancel()
            halted.cancel()

    async def _look(self, mover: Mover) -> dict[str, frozenset[Key]]:
        """Browse the sources that could be read; what has no explanation yet, by source."""
        readable = [source for source in self._sources if source.failed is None]
        explained = mover.machine.left()
        patience = self._request.patience_seconds
        browsed = await asyncio.gather(
            *(
                survey(source.receiver, explained, sleep=self._clock.sleep, patience_seconds=patience)
                for source in readable
            ),
            return_exceptions=True,
        )
        facts = await facts_of(self._admin, [source.path for source in readable])
        unexplained: dict[str, frozenset[Key]] = {}
        for source, found in zip(readable, browsed, strict=True):
            if isinstance(found, ServiceError):
                source.failed = found
                continue
            if isinstance(found, BaseException):
                raise found
            known = facts.get(source.path)
            found.compare_with(None if known is None else _expected(self._request, known))
            self._found[source.path] = found
            if found.unexplained:
                unexplained[source.path] = found.unexplained
        return unexplained


class _LockPatience:
    """How long to go on for messages that cannot be had: as long as a lock lasts, from the last change, and until they
    were asked for once more after that."""

    def __init__(self, seconds: float | None, now: Callable[[], float]) -> None:
        self._seconds = seconds
        self._now = now
        self._since = now()
        self._asked_at = self._since
        self._seen: dict[str, frozenset[Key]] = {}
        self._looks = 0

    def exhausted(self, unexplained: dict[str, frozenset[Key]], sources: Sequence[Source]) -> bool:
        """Whether to give up; if not, the caller asks for the messages again now."""
        now = self._now()
        if unexplained != self._seen:
            self._seen, self._since, self._asked_at, self._looks = unexplained, now, now, 0
        self._looks += 1
        longest = max(source.locks.lock_seconds for source in sources)
        seconds = self._seconds if self._seconds is not None else longest + LOCK_GRACE_SECONDS
        if self._looks > 2 and self._asked_at - self._since >= seconds:
            return True
        self._asked_at = now
        return False
