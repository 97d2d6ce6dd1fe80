"""Where monitoring finds a service: /metrics and /healthz, a textfile for the node exporter, OpenTelemetry, its log."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sbpair.concurrency import end
from sbpair.core.access import shown_name
from sbpair.core.cost.model import of_syphon_hour, polling_syphon
from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.core.events import DeadLettered, Event, Forwarded, Paused, SyphonBegan
from sbpair.core.pairing import Pair
from sbpair.core.prices import in_words
from sbpair.core.words import counted
from sbpair.ports import Observer
from sbpair.render.console import write_atomically
from sbpair.render.formats import exposition, success_stamp
from sbpair.render.result import Metric, metrics_of
from sbpair.render.service import ServiceMetrics
from sbpair.version import __version__

if TYPE_CHECKING:
    from sbpair.core.access import NamespaceAccess
    from sbpair.core.inspection.entity import ScrapedNamespace
    from sbpair.gateway.server import GatewayFront, House
    from sbpair.operations.watching import Watched, WatchedSource

FILE_SECONDS = 15.0
SAY_EVERY_SECONDS = 10.0
_IDLE_SECONDS = 5.0
"""How long a connection without a request is kept."""
_TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
_log = logging.getLogger("sbpair")


class Monitored(Protocol):
    """A service, as monitoring sees it."""

    def text(self) -> str: ...
    def troubles(self) -> list[str]: ...


@asynccontextmanager
async def metrics_port(metrics: Monitored, host: str, port: int) -> AsyncIterator[int]:
    """Serve the metrics while the context lasts; gives the port (0 asks for any free one).

    Raises:
        UsageError: the address cannot be used.
    """
    from aiohttp import web

    async def samples(request: web.Request) -> web.Response:
        return web.Response(text=metrics.text(), headers={"Content-Type": _TEXT_FORMAT})

    async def health(request: web.Request) -> web.Response:
        troubles = metrics.troubles()
        return web.json_response({"healthy": not troubles, "troubles": troubles}, status=503 if troubles else 200)

    app = web.Application(client_max_size=0)
    app.add_routes([web.get("/metrics", samples), web.get("/healthz", health)])
    runner = web.AppRunner(app, access_log=None, handle_signals=False, keepalive_timeout=_IDLE_SECONDS)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, reuse_address=None).start()
        except (OSError, OverflowError) as error:
            raise UsageError(f"Cannot serve metrics on {host}:{port}: {error}") from error
        chosen = int(runner.addresses[0][1])
        _log.info(f"Metrics: http://{host}:{chosen}/metrics, health: http://{host}:{chosen}/healthz")
        yield chosen
    finally:
        await runner.cleanup()


@asynccontextmanager
async def metrics_file(metrics: ServiceMetrics, path: Path) -> AsyncIterator[None]:
    """Keep a textfile up to date: at once, every 15 seconds, and at the end.

    Raises:
        UsageError: it cannot be written at the beginning. Later failures are logged and tried again.
    """
    try:
        await asyncio.to_thread(write_atomically, path, metrics.text())
    except OSError as error:
        raise UsageError(f"Cannot write the metrics file {path}: {error}") from error
    async with _again(FILE_SECONDS, partial(_write, metrics, path)):
        yield


async def _write(metrics: ServiceMetrics, path: Path) -> None:
    try:
        await asyncio.to_thread(write_atomically, path, metrics.text())
    except OSError as error:
        _log.warning(f"Cannot write the metrics file {path}: {error}")


@asynccontextmanager
async def _again(seconds: float, work: Callable[[], Awaitable[None] | None]) -> AsyncIterator[None]:
    """Do that work so often while the context lasts, and at its end."""

    async def once() -> None:
        if (done := work()) is not None:
            await done

    async def now_and_then() -> None:
        while True:
            await asyncio.sleep(seconds)
            await once()

    task = asyncio.create_task(now_and_then())
    try:
        yield
    finally:
        await end(task)
        await once()


# A syphon as a service: metrics, spans and log.


class ServiceObserver:
    """Passes the events of a syphon on to metrics, spans and log; what was forwarded is said in sums, not batch by
    batch.

    Args:
        ledger: its file, which the first line names.
        log: gets the events that are worth a line.
    """

    def __init__(self, pair: Pair, *, poll_seconds: float, ledger: Path | None, log: Observer) -> None:
        self.metrics = ServiceMetrics(pair.name, poll_seconds=poll_seconds)
        self._pair, self._poll_seconds, self._ledger = pair, poll_seconds, ledger
        self._observers: tuple[Observer, ...] = self.metrics, Spans(pair.name), log
        self._forwarded: dict[tuple[str, str], Forwarded] = {}

    def notify(self, event: Event) -> None:
        for observer in self._observers:
            observer.notify(event)
        if isinstance(event, SyphonBegan):
            self._say_what_begins(len(event.queues))
        if isinstance(event, Forwarded):
            key = event.queue, event.entity
            known = self._forwarded.get(key)
            if known is not None:
                messages, size = known.messages + event.messages, known.size_bytes + event.size_bytes
                event = replace(event, messages=messages, size_bytes=size)
            self._forwarded[key] = event

    def _say_what_begins(self, queues: int) -> None:
        pair, ledger = self._pair, "" if self._ledger is None else f", ledger {self._ledger}"
        _log.info(
            f"Syphon of {pair.name}: {shown_name(pair.secondary)} -> {shown_name(pair.primary)}, "
            f"{counted(queues, 'queue')}, polls of {format_duration(self._poll_seconds)}{ledger}. Ctrl-C ends it."
        )
        cost = of_syphon_hour(queues, 1, polling_syphon(round(self._poll_seconds)))
        _log.debug(f"Idle cost per hour: {in_words(cost)}.")

    def say(self) -> None:
        """Log what was forwarded since the last time."""
        for event in self._forwarded.values():
            text = f"{counted(event.messages, 'message')} forwarded from {event.queue} to {event.entity}."
            _log.info(text, extra={"event": event})
        self._forwarded.clear()

    @asynccontextmanager
    async def served(self, address: tuple[str, int] | None, file: Path | None) -> "AsyncIterator[ServiceObserver]":
        """Keep log and monitoring up to date while the context lasts.

        Args:
            address: host and port of /metrics and /healthz.
            file: the textfile.

        Raises:
            UsageError: one of them cannot be used.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(_again(SAY_EVERY_SECONDS, self.say))
            await stack.enter_async_context(telemetry(self.metrics))
            if address is not None:
                await stack.enter_async_context(metrics_port(self.metrics, *address))
            if file is not None:
                await stack.enter_async_context(metrics_file(self.metrics, file))
            yield self


# The syphon's counters and spans for OpenTelemetry, where its API is installed: the samples are those of Prometheus.
#
# Nothing is configured here: `opentelemetry-instrument sbpair syphon ...` and variables `OTEL_...` say where they go.
# Attributes and kinds of spans follow OpenTelemetry's "Semantic conventions for Azure Messaging Systems" as far as they
# are known. A span tells of a batch, so it has no links to the contexts of its messages, which pass unchanged. Samples
# are taken in the service's own thread every 15 seconds and at its end; the exporter's thread reads the last ones.

_ATTRIBUTES = {
    "pair": "sbpair.pair",
    "queue": "sbpair.queue",
    "entity": "messaging.destination.name",
    "code": "error.type",
    "reason": "sbpair.reason",
}
"""Label of a sample -> attribute, as the clients name it."""


def instrument_name(metric: Metric) -> str:
    """`sbpair.syphon.forwarded_messages` for `sbpair_syphon_forwarded_messages_total`."""
    return metric.name.removesuffix("_total").replace("sbpair_syphon_", "sbpair.syphon.", 1)


_UNITS = {
    "seconds": "s",
    "bytes": "By",
    "messages": "{message}",
    "ratio": "1",
    "locks": "{lock}",
    "restarts": "{restart}",
}


def unit_of(metric: Metric) -> str:
    """The unit that the name of a sample ends in, in UCUM's spelling."""
    return _UNITS.get(metric.name.removesuffix("_total").rpartition("_")[2], "1")


class Instruments:
    """An observable instrument for each name of a sample, made when the first sample of that name is there."""

    def __init__(self, metrics: ServiceMetrics, meter: Any, observation: Any) -> None:
        self._metrics, self._meter, self._observation = metrics, meter, observation
        self._last: dict[str, list[Any]] = {}

    def refresh(self) -> None:
        """Take the samples again."""
        found: dict[str, list[Any]] = {}
        made: list[Metric] = []
        for sample in self._metrics.samples():
            name = instrument_name(sample)
            if name not in found and name not in self._last:
                made.append(sample)
            attributes = {_ATTRIBUTES[label]: value for label, value in sample.labels}
            found.setdefault(name, []).append(self._observation(sample.value, attributes))
        self._last = {name: [] for name in self._last} | found
        for one in made:
            self._make(one)

    def _make(self, metric: Metric) -> None:
        name = instrument_name(metric)
        make = self._meter.create_observable_counter if metric.series.counter else self._meter.create_observable_gauge
        make(name, [lambda options: self._last[name]], unit=unit_of(metric), description=metric.series.help)


class Spans:
    """A span without length for what became of messages, and for each destination that is paused; nothing without the
    API."""

    def __init__(self, pair: str) -> None:
        self._pair = pair
        try:
            self._api: Any = import_module("opentelemetry.trace")
        except ImportError:
            self._api = None

    def notify(self, event: Event) -> None:
        if self._api is None:
            return
        match event:
            case Forwarded(queue=queue, entity=entity, messages=messages, size_bytes=size):
                attributes = {
                    "sbpair.queue": queue,
                    "sbpair.size_bytes": size,
                    "messaging.batch.message_count": messages,
                }
                self._tell("forward", entity, event.at, attributes, operation="send")
            case DeadLettered(queue=queue, reason=reason, sequence_number=number):
                attributes = {"sbpair.queue": queue, "sbpair.reason": reason, "error.type": reason}
                attributes["messaging.servicebus.disposition_status"] = "dead_letter"
                attributes["sbpair.sequence_number"] = number
                self._tell("dead-letter", queue, event.at, attributes, operation="settle")
            case Paused(entity=entity, error_code=code):
                self._tell("pause", entity, event.at, {"error.type": code})

    def _tell(
        self, name: str, destination: str, at: float, attributes: dict[str, Any], *, operation: str | None = None
    ) -> None:
        """`operation`: what the conventions call it; None if it is none on a namespace."""
        tracer = self._api.get_tracer("sbpair", __version__)
        every = {"sbpair.pair": self._pair, "messaging.system": "servicebus", "messaging.destination.name": destination}
        if operation is not None:
            every |= {"messaging.operation.name": name, "messaging.operation.type": operation}
        kind = self._api.SpanKind.INTERNAL if operation is None else self._api.SpanKind.CLIENT
        nanoseconds = round(at * 1e9)
        span = tracer.start_span(
            f"{name} {destination}", kind=kind, attributes=every | attributes, start_time=nanoseconds
        )
        if "error.type" in attributes:
            span.set_status(self._api.StatusCode.ERROR)
        span.end(end_time=nanoseconds)


@asynccontextmanager
async def telemetry(metrics: ServiceMetrics) -> AsyncIterator[None]:
    """Give the samples to OpenTelemetry while the context lasts; without its API nothing is done."""
    try:
        api: Any = import_module("opentelemetry.metrics")
    except ImportError:
        yield
        return
    instruments = Instruments(metrics, api.get_meter("sbpair", __version__), api.Observation)
    instruments.refresh()
    async with _again(FILE_SECONDS, instruments.refresh):
        yield


@dataclass(frozen=True, slots=True)
class GatewayMetrics:
    """A gateway, as monitoring sees it."""

    front: "GatewayFront"

    def text(self) -> str:
        return exposition(sample for house in self.front.houses.values() for sample in self._of(house))

    def troubles(self) -> list[str]:
        return self.front.troubles()

    @staticmethod
    def _of(house: "House") -> Iterator[Metric]:
        from sbpair.gateway.server import LATENCIES

        pair = ("pair", house.pair.name)
        for entity, counts in sorted(house.counts.items()):
            of_entity = pair, ("entity", entity)
            passed = counts.accepted - counts.diverted
            for outcome, value in (("primary", passed), ("backlog", counts.diverted), ("refused", counts.refused)):
                yield Metric("sbpair_gateway_messages_total", value, (*of_entity, ("outcome", outcome)))
            yield Metric("sbpair_gateway_send_seconds_total", counts.seconds, of_entity)
            sends = 0
            for bound in LATENCIES:
                sends += counts.within[bound]
                yield Metric("sbpair_gateway_sends_total", sends, (*of_entity, ("le", f"{bound:g}")))
            yield Metric("sbpair_gateway_sends_total", counts.sends, (*of_entity, ("le", "+Inf")))
        for one in house.pairing.state().entities:
            yield Metric("sbpair_gateway_entity_state", 1, (pair, ("entity", one.entity), ("state", one.state.value)))
        told = house.status()
        yield Metric("sbpair_gateway_connections", told.connections, (pair,))
        yield Metric("sbpair_gateway_ready", float(not told.troubles), (pair,))


@dataclass(frozen=True, slots=True)
class Exported:
    """What `sbpair exporter` serves. What cannot be read has no samples: those of before would look like today's."""

    watched: "Watched"

    def text(self) -> str:
        return exposition(self._samples())

    def troubles(self) -> list[str]:
        return [f"{source.sentence}: {source.trouble}" for source in self.watched.sources if source.trouble]

    def _samples(self) -> Iterator[Metric]:
        from sbpair.core.inspection.audit.result import figures as audit_figures  # a syphon has no use for the checks
        from sbpair.core.inspection.status import figures as status_figures

        for source in self.watched.namespaces:
            yield from _samples_of_entities(source)
        for status in self.watched.pairs:
            yield from _samples_of_pair("status", status, status_figures)
        for audit in self.watched.audits:
            yield from _samples_of_pair("audit", audit, audit_figures)
        for name, usage in self.watched.used.items():
            used, labels = usage.forecast(), (("namespace", name),)
            yield Metric("sbpair_exporter_management_calls_total", used.management_calls, labels)
            yield Metric("sbpair_exporter_credits_total", used.throttling_credits, labels)


def _samples_of_pair(
    command: str, source: "WatchedSource[Any, Any]", figures: Callable[[Any], object]
) -> Iterator[Metric]:
    if source.latest is not None and not source.trouble:
        label = ("pair", source.name)
        yield from metrics_of(figures(source.latest), label)
        yield success_stamp(command, label, at=source.read_at)


def _samples_of_entities(source: "WatchedSource[NamespaceAccess, ScrapedNamespace]") -> Iterator[Metric]:
    from sbpair.core.inspection.entity import ScrapeFigures

    scraped, label = source.latest, ("namespace", source.name)
    if source.trouble:
        yield from metrics_of(ScrapeFigures(0), label)
    elif scraped is not None:
        yield from metrics_of(scraped.figures(), label)
        for entity in scraped.listed.entities:
            labels = (label, ("entity", entity.path))
            yield from metrics_of(entity, *labels)
            yield from metrics_of(scraped.figures_of(entity), *labels)
