"""`sbpair exporter`: the figures of namespaces and pairs where Prometheus scrapes them.

Namespaces and pairs that are read again and again, side by side: what `exporter` serves and `top` shows.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import typer

from sbpair import operations
from sbpair.cli import suggestions
from sbpair.cli.context import load_settings, open_sides, run_async
from sbpair.cli.options import Options, address_option, command, duration_option
from sbpair.cli.transfer.entity_ref import NamespaceAuthOption, NamespaceOptions, find_namespace
from sbpair.concurrency import end
from sbpair.core.access import AuthMethod, NamespaceAccess, shown_name
from sbpair.core.errors import SbpairError, UsageError
from sbpair.core.inspection.audit.result import AuditedPair
from sbpair.core.inspection.audit.result import figures as audit_figures
from sbpair.core.inspection.entity import ScrapedNamespace, ScrapeFigures
from sbpair.core.inspection.status import StatusReport, report
from sbpair.core.inspection.status import figures as status_figures
from sbpair.core.pairing import Pair
from sbpair.core.prices import Forecast
from sbpair.core.retry import NAMESPACE_CREDITS_PER_SECOND
from sbpair.core.serialization import metric
from sbpair.core.words import counted
from sbpair.ports import Ends, Sides
from sbpair.render.result import CommandResult, Metric, metrics_of
from sbpair.runtime.inspection.usage import CountedMessaging, Usage, counted_admin

if TYPE_CHECKING:
    from sbpair.settings import Settings


DEFAULT_LISTEN = "127.0.0.1:9464"
MOST_CREDITS_PER_SECOND = NAMESPACE_CREDITS_PER_SECOND / 10
NamespacesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAMESPACE]...",
        help="Name or host of a namespace; by default those of the pairs.",
        autocompletion=suggestions.configured_namespaces,
    ),
]
PairsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--pair",
        help="Pair to show; all without --pair and NAMESPACE.",
        autocompletion=suggestions.pairs,
    ),
]
IntervalOption = Annotated[str, typer.Option(metavar="DURATION", help="Between two reads of a source.")]
T = TypeVar("T")


_Read = Callable[[T | None], Awaitable[T]]
"""Reads something, given what it was before."""


@dataclass
class Source(Generic[T]):
    """What is read again and again: what it was the last two times that it could be read, and why it cannot be now."""

    kind: type[T]
    where: NamespaceAccess | Pair
    read: _Read[T]
    interval_seconds: float
    latest: T | None = None
    before: T | None = None
    read_at: float | None = None
    """When it was last read, UTC epoch seconds."""
    trouble: str = ""
    due: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: it is read now."""

    @property
    def access(self) -> NamespaceAccess | None:
        return self.where if isinstance(self.where, NamespaceAccess) else None

    @property
    def pair(self) -> Pair | None:
        return self.where if isinstance(self.where, Pair) else None

    @property
    def name(self) -> str:
        """Of the namespace or pair."""
        return self.where.name if isinstance(self.where, Pair) else shown_name(self.where)

    @property
    def pause_seconds(self) -> float:
        """Until it is read again. A read of many entities is followed by a longer pause, so that it uses no more than a
        tenth of what a namespace allows."""
        used = self.latest.used if isinstance(self.latest, ScrapedNamespace) else Forecast()
        return max(self.interval_seconds, used.seconds(MOST_CREDITS_PER_SECOND))

    @property
    def sentence(self) -> str:
        what = {ScrapedNamespace: "namespace", StatusReport: "backlog of", AuditedPair: "audit of"}
        return f"The {what[self.kind]} {self.name}"

    async def refresh(self, stop: asyncio.Event, changed: Callable[[], None] = lambda: None) -> None:
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
            waiting = [asyncio.create_task(one.wait()) for one in (stop, self.due)]
            try:
                await asyncio.wait(waiting, timeout=self.pause_seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end(*waiting)


Sources = list[Source[ScrapedNamespace] | Source[StatusReport] | Source[AuditedPair]]


@dataclass
class Watched:
    """Open namespaces and pairs with what is read of them."""

    sources: Sources = field(default_factory=list)
    ends: dict[str, Ends] = field(default_factory=dict)
    """By the host of a namespace."""
    used: dict[str, Forecast] = field(default_factory=lambda: defaultdict(Forecast))
    """What this process has asked of each namespace."""

    async def refresh(self, stop: asyncio.Event, changed: Callable[[], None] = lambda: None) -> None:
        async with asyncio.TaskGroup() as group:
            for source in self.sources:
                group.create_task(source.refresh(stop, changed))


@dataclass(frozen=True, slots=True)
class WatchEnded:
    """What was read until it was left or stopped."""

    namespaces: tuple[str, ...]
    pairs: tuple[str, ...]


@dataclass(frozen=True)
class ToWatch:
    """Which namespaces and pairs are read, and how often."""

    namespaces: Sequence[NamespaceAccess]
    pairs: Sequence[Pair]
    scrape: operations.ScrapeRequest
    interval_seconds: float
    timeout_seconds: float
    audit_seconds: float = 0.0
    """0: without audits."""

    @property
    def ended(self) -> WatchEnded:
        return WatchEnded(tuple(map(shown_name, self.namespaces)), tuple(pair.name for pair in self.pairs))

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Watched]:
        """Connected at the first use; closed with the context."""
        from sbpair.connect import open_ends

        watched = Watched()
        async with AsyncExitStack() as stack:
            for access in self.namespaces:
                ends = watched.ends[access.host] = await stack.enter_async_context(open_ends(access))
                read = self._scrape(watched, ends)
                watched.sources.append(Source(ScrapedNamespace, access, read, self.interval_seconds))
            for pair in self.pairs:
                sides = await stack.enter_async_context(open_sides(pair))
                status = self._status(watched, sides)
                watched.sources.append(Source(StatusReport, pair, status, self.interval_seconds))
                if self.audit_seconds:
                    audit = self._audit(watched, sides)
                    watched.sources.append(Source(AuditedPair, pair, audit, self.audit_seconds))
            yield watched

    def _scrape(self, watched: Watched, ends: Ends) -> _Read[ScrapedNamespace]:
        async def read(before: ScrapedNamespace | None) -> ScrapedNamespace:
            request = replace(self.scrape, before=before)
            found: ScrapedNamespace = await operations.scrape_namespace(ends, request)
            watched.used[shown_name(ends.source_access)] += found.used
            return found

        return read

    def _status(self, watched: Watched, sides: Sides) -> _Read[StatusReport]:
        request = operations.StatusRequest(0, self.timeout_seconds)

        async def read(before: StatusReport | None) -> StatusReport:
            async with _counted(watched, sides) as counted:
                found = await operations.status(counted, request)
            return found if before is None else report(before.status, found.status)

        return read

    def _audit(self, watched: Watched, sides: Sides) -> _Read[AuditedPair]:
        async def read(before: AuditedPair | None) -> AuditedPair:
            async with _counted(watched, sides) as counted:
                return await operations.audit(counted, operations.AuditRequest(others=tuple(self.pairs)))

        return read


@asynccontextmanager
async def _counted(watched: Watched, sides: Sides) -> AsyncIterator[Sides]:
    """The same sides, of which is counted what is asked of them."""
    primary, secondary = Usage(), Usage()
    try:
        yield replace(
            sides,
            primary=CountedMessaging(sides.primary, primary),
            secondary=CountedMessaging(sides.secondary, secondary),
            primary_admin=counted_admin(sides.primary_admin, primary),
            secondary_admin=counted_admin(sides.secondary_admin, secondary),
        )
    finally:
        for access, usage in ((sides.pair.primary, primary), (sides.pair.secondary, secondary)):
            watched.used[shown_name(access)] += usage.forecast()


def seconds_between(interval: str) -> float:
    """What --interval says.

    Raises:
        UsageError: less than a second.
    """
    seconds = duration_option(interval) or 0.0
    if seconds < 1:
        raise UsageError(f"--interval is one second or more, not {interval}.")
    return seconds


def chosen_pairs(settings: "Settings", names: list[str] | None, namespaces: list[str] | None) -> list[Pair]:
    """Those that are named; without any name all that are configured, or the one that the environment tells."""
    if names:
        return [settings.pair(name) for name in names]
    if namespaces:
        return []
    return [settings.pair(name) for name in settings.pair_names() or (None,)]


def chosen_namespaces(
    settings: "Settings", names: list[str] | None, pairs: Sequence[Pair], auth: AuthMethod | None
) -> list[NamespaceAccess]:
    """Those that are named; without any name those of the pairs."""
    named = [find_namespace(settings, NamespaceOptions(namespace=name, auth=auth))[0] for name in names or ()]
    of_pairs = [access for pair in pairs for access in (pair.primary, pair.secondary)] if not names else []
    return list({access.host: access for access in (*named, *of_pairs)}.values())


_log = logging.getLogger("sbpair")


@dataclass(frozen=True)
class _Exported:
    """What the port serves. What cannot be read has no samples: those of before would look like today's."""

    watched: Watched

    def text(self) -> str:
        from sbpair.render.formats import exposition

        return exposition(self._samples())

    def _samples(self) -> Iterator[Metric]:
        for source in self.watched.sources:
            yield from _samples(source)
        for name, used in self.watched.used.items():
            yield from metrics_of(_Used(used.management_calls, used.throttling_credits), ("namespace", name))

    def troubles(self) -> list[str]:
        return [f"{source.sentence}: {source.trouble}" for source in self.watched.sources if source.trouble]


@command(output="cli.inspection.exporter:WatchEnded")
def exporter(
    options: Options,
    namespaces: NamespacesArgument = None,
    pairs: PairsOption = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 selects a free port.")
    ] = DEFAULT_LISTEN,
    interval: IntervalOption = "1m",
    audit_interval: Annotated[
        str, typer.Option(metavar="DURATION", help="Between two audits of a pair; 0 leaves audits out.")
    ] = "1h",
    most_entities: Annotated[
        int, typer.Option(min=1, help="The most entities of a namespace that have samples; of more, the first by path.")
    ] = 5_000,
    browse: Annotated[
        bool,
        typer.Option("--browse/--no-browse", help="Browse for ages, sessions and the causes of dead letters."),
    ] = True,
    auth: NamespaceAuthOption = None,
) -> CommandResult:
    """Serve figures of namespaces and pairs for Prometheus until stopped.

    /metrics has the messages, dead letters by cause, size, sessions and oldest message of every queue and subscription,
    and of each pair the backlog, the reachability of both sides and the findings of the audit: what the rules of
    `sbpair export alerts` and the dashboard read. /healthz names what cannot be read. Reads only. Needs Manage on the
    namespaces, and Listen to browse. Figures are read in the background, --interval apart, with one management call for
    100 entities and for each topic, and one browse for each entity at most; a dead letter is read once. What cannot be
    read has no samples until it can.

    \b
    Examples:
      sbpair exporter
      sbpair exporter contoso-weu contoso-neu --pair orders --listen 0.0.0.0:9464
    """
    settings = load_settings(options)
    host, port = address_option(listen, DEFAULT_LISTEN)
    seconds = seconds_between(interval)
    chosen = chosen_pairs(settings, pairs, namespaces)
    watch = ToWatch(
        chosen_namespaces(settings, namespaces, chosen, auth),
        chosen,
        operations.ScrapeRequest(most_entities=most_entities, browse=browse),
        seconds,
        options.timeout_seconds(operations.StatusRequest().timeout_seconds),
        duration_option(audit_interval) or 0.0,
    )

    async def work(stop: asyncio.Event) -> None:
        from sbpair.cli.transfer.monitored import metrics_port

        async with watch.opened() as watched, metrics_port(_Exported(watched), host, port):
            _log.info(
                f"Reading {counted(len(watch.namespaces), 'namespace')} and {counted(len(chosen), 'pair')} every "
                f"{interval}. Ctrl-C ends it."
            )
            await watched.refresh(stop)

    run_async(options, work)
    return CommandResult(watch.ended, text="")


@dataclass(frozen=True, slots=True)
class _Used:
    """What the exporter itself has asked of a namespace since it began."""

    management_calls: int = field(metadata=metric("sbpair_exporter_management_calls_total"))
    credits: int = field(metadata=metric("sbpair_exporter_credits_total"))


def _samples(source: Source[Any]) -> Iterator[Metric]:
    """Those of what was read last."""
    from sbpair.render.formats import success_stamp

    found = None if source.trouble else source.latest
    if source.kind is ScrapedNamespace and (found is not None or source.trouble):
        yield from _of_namespace(found, ("namespace", source.name))
    elif found is not None:
        status = isinstance(found, StatusReport)
        label = ("pair", source.name)
        yield from metrics_of(status_figures(found) if status else audit_figures(found), label)
        yield success_stamp("status" if status else "audit", label, at=source.read_at)


def _of_namespace(scraped: ScrapedNamespace | None, label: tuple[str, str]) -> Iterator[Metric]:
    if scraped is None:
        yield from metrics_of(ScrapeFigures(0), label)
        return
    yield from metrics_of(scraped.figures(), label)
    for entity in scraped.listed.entities:
        labels = (label, ("entity", entity.path))
        yield from metrics_of(entity, *labels)
        yield from metrics_of(scraped.figures_of(entity), *labels)
