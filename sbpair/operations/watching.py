"""Namespaces and pairs that are read again and again, side by side: what `sbpair exporter` serves and `top` shows."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

from sbpair.concurrency import cancel_on
from sbpair.core.access import NamespaceAccess, shown_name
from sbpair.core.errors import SbpairError
from sbpair.core.inspection.audit.result import AuditedPair
from sbpair.core.inspection.entity import ScrapedNamespace
from sbpair.core.inspection.status import StatusReport
from sbpair.core.pairing import Pair
from sbpair.core.retry import NAMESPACE_CREDITS_PER_SECOND
from sbpair.operations.audit import AuditRequest, audit
from sbpair.operations.status import ScrapeRequest, StatusRequest, scrape_namespace, status
from sbpair.ports import Ends, Sides
from sbpair.runtime.inspection.usage import CountedMessaging, Usage, counted_admin

MOST_CREDITS_PER_SECOND = NAMESPACE_CREDITS_PER_SECOND / 10
W = TypeVar("W", NamespaceAccess, Pair)
T = TypeVar("T")
_log = logging.getLogger("sbpair")


@dataclass
class WatchedSource(Generic[W, T]):
    """What is read again and again: what it was the last two times that it could be read, and why it cannot be now."""

    what: str
    """What is read of the namespace or pair, as sentences begin: `The backlog of`."""
    where: W
    read: Callable[[T | None], Awaitable[T]]
    """Reads it, given what it was before."""
    interval_seconds: float
    latest: T | None = None
    before: T | None = None
    read_at: float | None = None
    """When it was last read, UTC epoch seconds."""
    trouble: str = ""
    due: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: it is read now."""

    @property
    def name(self) -> str:
        """Of the namespace or pair."""
        return self.where.name if isinstance(self.where, Pair) else shown_name(self.where)

    @property
    def sentence(self) -> str:
        return f"{self.what} {self.name}"

    @property
    def pause_seconds(self) -> float:
        """Until it is read again. A read of many entities is followed by a longer pause, so that it uses no more than a
        tenth of what a namespace allows."""
        if isinstance(self.latest, ScrapedNamespace):
            return max(self.interval_seconds, self.latest.used.seconds(MOST_CREDITS_PER_SECOND))
        return self.interval_seconds

    async def refresh(self, stop: asyncio.Event, changed: Callable[[], None]) -> None:
        """Read until `stop`, so that a slow or dark source holds up no other one. `changed` is called after each."""
        while not stop.is_set():
            self.due.clear()
            try:
                self.before, self.latest = self.latest, await self.read(self.latest)
                self.read_at = time.time()
                if self.trouble:
                    _log.info(f"{self.sentence} is read again.")
                self.trouble = ""
            except SbpairError as error:
                if error.message != self.trouble:
                    _log.warning(f"{self.sentence} cannot be read: {error.message}")
                self.trouble = error.message
            changed()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.pause_seconds):
                    await cancel_on(stop, self.due.wait())


@dataclass
class Watched:
    """Open namespaces and pairs with what is read of them."""

    namespaces: list[WatchedSource[NamespaceAccess, ScrapedNamespace]] = field(default_factory=list)
    pairs: list[WatchedSource[Pair, StatusReport]] = field(default_factory=list)
    audits: list[WatchedSource[Pair, AuditedPair]] = field(default_factory=list)
    ends: dict[str, Ends] = field(default_factory=dict)
    """By the host of a namespace."""
    used: dict[str, Usage] = field(default_factory=lambda: defaultdict(Usage))
    """What this process has asked of each namespace."""

    @property
    def sources(self) -> Sequence[WatchedSource[Any, Any]]:
        return (*self.namespaces, *self.pairs, *self.audits)

    async def refresh(self, stop: asyncio.Event, changed: Callable[[], None] = lambda: None) -> None:
        """Read all of it until `stop`. `changed` is called after each read."""
        async with asyncio.TaskGroup() as group:
            for source in self.sources:
                group.create_task(source.refresh(stop, changed))

    def counted(self, sides: Sides) -> Sides:
        """The same sides, of which is counted what is asked of them."""
        primary, secondary = self.used[shown_name(sides.pair.primary)], self.used[shown_name(sides.pair.secondary)]
        return replace(
            sides,
            primary=CountedMessaging(sides.primary, primary),
            secondary=CountedMessaging(sides.secondary, secondary),
            primary_admin=counted_admin(sides.primary_admin, primary),
            secondary_admin=counted_admin(sides.secondary_admin, secondary),
        )


@dataclass(frozen=True, slots=True)
class WatchEnded:
    """What was read until it was left or stopped."""

    namespaces: tuple[str, ...]
    pairs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """Which namespaces and pairs are read, and how often."""

    namespaces: Sequence[NamespaceAccess]
    pairs: Sequence[Pair]
    interval_seconds: float
    """Between two reads of a source."""
    status: StatusRequest
    scrape: ScrapeRequest
    audit_seconds: float = 0.0
    """Between two audits of a pair; 0: none."""

    @property
    def ended(self) -> WatchEnded:
        return WatchEnded(tuple(map(shown_name, self.namespaces)), tuple(pair.name for pair in self.pairs))


@asynccontextmanager
async def watching(
    request: WatchRequest, opened: Callable[[NamespaceAccess | Pair], AbstractAsyncContextManager[Any]]
) -> AsyncIterator[Watched]:
    """What is to be read, open: connected at the first use, closed with the context. `opened` opens the ends of a
    namespace or the sides of a pair."""
    watched, every = Watched(), request.interval_seconds
    async with AsyncExitStack() as stack:
        for access in request.namespaces:
            ends = watched.ends[access.host] = await stack.enter_async_context(opened(access))
            scrape = partial(_scrape, ends, request.scrape, watched.used[shown_name(access)])
            watched.namespaces.append(WatchedSource("The namespace", access, scrape, every))
        for pair in request.pairs:
            sides = watched.counted(await stack.enter_async_context(opened(pair)))
            watched.pairs.append(WatchedSource("The backlog of", pair, partial(_status, sides, request.status), every))
            if request.audit_seconds:
                judge = partial(_audit, sides, AuditRequest(others=tuple(request.pairs)))
                watched.audits.append(WatchedSource("The audit of", pair, judge, request.audit_seconds))
        yield watched


async def _scrape(
    ends: Ends, request: ScrapeRequest, usage: Usage, before: ScrapedNamespace | None
) -> ScrapedNamespace:
    found = await scrape_namespace(ends, replace(request, before=before))
    usage.add(Usage(found.used.management_calls, found.used.message_operations))
    return found


async def _status(sides: Sides, request: StatusRequest, before: StatusReport | None) -> StatusReport:
    found = await status(sides, request)
    return replace(found, before=None if before is None else before.status)


async def _audit(sides: Sides, request: AuditRequest, before: AuditedPair | None) -> AuditedPair:
    return await audit(sides, request)
