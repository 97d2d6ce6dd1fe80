"""Where monitoring finds a service: /metrics and /healthz, a textfile for the node exporter, OpenTelemetry."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from sbpair.concurrency import end
from sbpair.core.errors import UsageError
from sbpair.core.events import DeadLettered, Event, Forwarded, Paused
from sbpair.render.console import write_atomically
from sbpair.render.result import Metric
from sbpair.render.service import ServiceMetrics
from sbpair.version import __version__

FILE_SECONDS = 15.0
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
    writing = asyncio.create_task(_keep_writing(metrics, path))
    try:
        yield
    finally:
        await end(writing)
        await _write(metrics, path)


async def _keep_writing(metrics: ServiceMetrics, path: Path) -> None:
    while True:
        await asyncio.sleep(FILE_SECONDS)
        await _write(metrics, path)


async def _write(metrics: ServiceMetrics, path: Path) -> None:
    try:
        await asyncio.to_thread(write_atomically, path, metrics.text())
    except OSError as error:
        _log.warning(f"Cannot write the metrics file {path}: {error}")


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

    async def now_and_then() -> None:
        while True:
            await asyncio.sleep(FILE_SECONDS)
            instruments.refresh()

    task = asyncio.create_task(now_and_then())
    try:
        yield
    finally:
        await end(task)
        instruments.refresh()
