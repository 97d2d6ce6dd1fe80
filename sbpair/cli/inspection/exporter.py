"""`sbpair exporter`: the figures of namespaces and pairs where Prometheus scrapes them."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from sbpair import operations
from sbpair.cli.context import load_settings, run_async
from sbpair.cli.inspection.sources import (
    IntervalOption,
    NamespacesArgument,
    PairsOption,
    Source,
    ToWatch,
    Watched,
    chosen_namespaces,
    chosen_pairs,
    seconds_between,
)
from sbpair.cli.options import Options, command, duration_option
from sbpair.cli.transfer.entity_ref import NamespaceAuthOption
from sbpair.core.errors import UsageError
from sbpair.core.inspection.audit.result import figures as audit_figures
from sbpair.core.inspection.entity import ScrapedNamespace, ScrapeFigures
from sbpair.core.inspection.status import StatusReport
from sbpair.core.inspection.status import figures as status_figures
from sbpair.core.serialization import metric
from sbpair.core.words import counted
from sbpair.render.result import CommandResult, Metric, metrics_of

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


@command(output="cli.inspection.sources:WatchEnded")
def exporter(
    options: Options,
    namespaces: NamespacesArgument = None,
    pairs: PairsOption = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 selects a free port.")
    ] = "127.0.0.1:9464",
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
    host, port = _address(listen)
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


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise UsageError(f"--listen is HOST:PORT, such as 127.0.0.1:9464, not {text}.")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104  (what `:9464` asks for)


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
