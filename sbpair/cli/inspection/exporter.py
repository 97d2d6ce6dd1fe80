"""`sbpair exporter`: the figures of namespaces and pairs where Prometheus scrapes them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair import operations
from sbpair.cli import suggestions
from sbpair.cli.context import load_settings, open_sides, run_async
from sbpair.cli.options import Options, command, duration_option
from sbpair.cli.transfer.entity_ref import NamespaceAuthOption, NamespaceOptions, find_namespace
from sbpair.core.access import NamespaceAccess, shown_name
from sbpair.core.errors import SbpairError, UsageError
from sbpair.core.inspection.audit.result import figures as audit_figures
from sbpair.core.inspection.entity import EntityFigures, ScrapedNamespace, ScrapeFigures
from sbpair.core.inspection.status import figures as status_figures
from sbpair.core.pairing import Pair
from sbpair.core.words import counted
from sbpair.render.result import CommandResult, Metric, metrics_of
from sbpair.service import EntityStatus

if TYPE_CHECKING:
    from sbpair.settings import Settings

_log = logging.getLogger("sbpair")


@dataclass
class _Source:
    """What is read again and again: the samples of the last time that it could be, and since when it cannot."""

    name: str
    read: Callable[[], Awaitable[list[Metric]]]
    dark: tuple[Metric, ...] = ()
    """Its samples while it cannot be read: stale figures are left out, since they would look like today's."""
    samples: Sequence[Metric] = ()
    trouble: str = ""

    async def refresh(self, stop: asyncio.Event, interval_seconds: float) -> None:
        """Read until `stop`, so that a slow or dark source holds up no other one."""
        while not stop.is_set():
            try:
                self.samples = await self.read()
                if self.trouble:
                    _log.info(f"{self.name} is read again.")
                self.trouble = ""
            except SbpairError as error:
                if error.message != self.trouble:
                    _log.warning(f"{self.name} cannot be read: {error.message}")
                self.samples, self.trouble = self.dark, error.message
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), interval_seconds)


@dataclass(frozen=True, slots=True)
class ExporterEnded:
    """What was read until it was stopped."""

    namespaces: tuple[str, ...]
    pairs: tuple[str, ...]


@dataclass
class _Exported:
    """What the port serves."""

    sources: list[_Source] = field(default_factory=list)

    def text(self) -> str:
        from sbpair.render.monitoring import exposition

        return exposition(metric for source in self.sources for metric in source.samples)

    def troubles(self) -> list[str]:
        return [f"{source.name}: {source.trouble}" for source in self.sources if source.trouble]


@command(output="cli.inspection.exporter:ExporterEnded")
def exporter(
    options: Options,
    namespaces: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAMESPACE]...",
            help="Name or host of a namespace; by default those of the pairs.",
            autocompletion=suggestions.configured_namespaces,
        ),
    ] = None,
    pairs: Annotated[
        list[str] | None,
        typer.Option(
            "--pair",
            help="Pair whose backlog is shown; all without --pair and NAMESPACE.",
            autocompletion=suggestions.pairs,
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where it serves; port 0 takes a free one.")
    ] = "127.0.0.1:9464",
    interval: Annotated[str, typer.Option(metavar="DURATION", help="Between two reads of a source.")] = "1m",
    audit_interval: Annotated[
        str, typer.Option(metavar="DURATION", help="Between two audits of a pair; 0 leaves audits out.")
    ] = "1h",
    most_entities: Annotated[
        int, typer.Option(min=1, help="The most entities of a namespace that have samples; of more, the first by path.")
    ] = 5_000,
    oldest: Annotated[
        bool, typer.Option("--oldest/--no-oldest", help="Browse one message of each entity with messages for its age.")
    ] = True,
    auth: NamespaceAuthOption = None,
) -> CommandResult:
    """Serve figures of namespaces and pairs for Prometheus until stopped.

    /metrics has the messages, dead letters, size and oldest message of every queue and subscription, and of each pair
    the backlog, the reachability of both sides and the findings of the audit: what the rules of `sbpair export alerts`
    and the dashboard read. /healthz names what cannot be read. Reads only. Needs Manage on the namespaces, and Listen
    for ages. A scrape costs the namespaces nothing: figures are read in the background, --interval apart, and what
    cannot be read has no samples until it can.

    \b
    Examples:
      sbpair exporter
      sbpair exporter contoso-weu contoso-neu --pair orders --listen 0.0.0.0:9464
    """
    settings = load_settings(options)
    host, port = _address(listen)
    seconds = duration_option(interval) or 0.0
    if seconds < 1:
        raise UsageError(f"--interval is one second or more, not {interval}.")
    audit_seconds = duration_option(audit_interval) or 0.0
    chosen = _pairs(settings, pairs, namespaces)
    places = _namespaces(settings, namespaces, chosen, auth)
    request = operations.ScrapeRequest(most_entities=most_entities, oldest=oldest)

    async def work(stop: asyncio.Event) -> None:
        from sbpair.cli.transfer.metrics_endpoint import metrics_port
        from sbpair.connect import open_ends

        exported = _Exported()
        async with AsyncExitStack() as stack:
            reading: list[tuple[_Source, float]] = []
            for access in places:
                ends = await stack.enter_async_context(open_ends(access))
                reading.append((_of_namespace(access, ends, request), seconds))
            for pair in chosen:
                sides = await stack.enter_async_context(open_sides(pair))
                timeout_seconds = options.timeout_seconds(operations.StatusRequest().timeout_seconds)
                reading.append((_of_status(pair, sides, timeout_seconds), seconds))
                if audit_seconds:
                    reading.append((_of_audit(pair, sides, tuple(chosen)), audit_seconds))
            exported.sources = [source for source, _ in reading]
            await stack.enter_async_context(metrics_port(exported, host, port))
            _log.info(
                f"Reading {counted(len(places), 'namespace')} and {counted(len(chosen), 'pair')} every {interval}. "
                "Ctrl-C ends it."
            )
            async with asyncio.TaskGroup() as group:
                for source, wait_seconds in reading:
                    group.create_task(source.refresh(stop, wait_seconds))

    run_async(options, work)
    ended = ExporterEnded(tuple(map(shown_name, places)), tuple(pair.name for pair in chosen))
    return CommandResult("exporter", ended, text="")


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise UsageError(f"--listen is HOST:PORT, such as 127.0.0.1:9464, not {text}.")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104  (what `:9464` asks for)


def _pairs(settings: "Settings", names: list[str] | None, namespaces: list[str] | None) -> list[Pair]:
    """Those that are named; without any name all that are configured, or the one that the environment tells."""
    if names:
        return [settings.pair(name) for name in names]
    if namespaces:
        return []
    return [settings.pair(name) for name in settings.pair_names() or (None,)]


def _namespaces(
    settings: "Settings", names: list[str] | None, pairs: Sequence[Pair], auth: Any
) -> list[NamespaceAccess]:
    named = [find_namespace(settings, NamespaceOptions(namespace=name, auth=auth))[0] for name in names or ()]
    of_pairs = [access for pair in pairs for access in (pair.primary, pair.secondary)] if not names else []
    return list({access.host.lower(): access for access in (*named, *of_pairs)}.values())


def _of_namespace(access: NamespaceAccess, ends: operations.Ends, request: operations.ScrapeRequest) -> _Source:
    name = shown_name(access)
    label = ("namespace", name)

    async def read() -> list[Metric]:
        return list(_samples(await operations.scrape_namespace(ends, request), label))

    return _Source(f"The namespace {name}", read, tuple(metrics_of(ScrapeFigures(0, None, None), label)))


def _samples(scraped: ScrapedNamespace, label: tuple[str, str]) -> "list[Metric]":
    entities = scraped.listed.entities
    found = list(metrics_of(ScrapeFigures(1, len(entities) + scraped.left_out, scraped.left_out), label))
    for entity in entities:
        labels = (label, ("entity", entity.path))
        enabled = int(entity.status == EntityStatus.ACTIVE.value)
        found += metrics_of(entity, *labels)
        found += metrics_of(EntityFigures(enabled, scraped.oldest_age_seconds.get(entity.path)), *labels)
    return found


def _of_status(pair: Pair, sides: operations.Sides, timeout_seconds: float) -> _Source:
    request = operations.StatusRequest(0, timeout_seconds)

    async def read() -> list[Metric]:
        found = await operations.status(sides, request)
        return [*metrics_of(status_figures(found), ("pair", pair.name)), _stamp("status", pair)]

    return _Source(f"The backlog of {pair.name}", read)


def _of_audit(pair: Pair, sides: operations.Sides, others: tuple[Pair, ...]) -> _Source:
    request = operations.AuditRequest(others=others)

    async def read() -> list[Metric]:
        found = await operations.audit(sides, request)
        return [*metrics_of(audit_figures(found), ("pair", pair.name)), _stamp("audit", pair)]

    return _Source(f"The audit of {pair.name}", read)


def _stamp(command_name: str, pair: Pair) -> Metric:
    from sbpair.render.monitoring import success_stamp

    return success_stamp(command_name, ("pair", pair.name))
