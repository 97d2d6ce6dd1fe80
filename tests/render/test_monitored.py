"""The syphon's counters as OpenTelemetry gets them."""

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sbpair.core import events
from sbpair.render.monitored import Instruments, instrument_name
from sbpair.render.result import Metric
from sbpair.render.service import ServiceMetrics
from tests.readme import ROOT, TEXTS

QUEUE = "p/x-servicebus-transfer/0"


def of_every_kind() -> tuple[events.Event, ...]:
    return (
        events.Polled(1000.0, QUEUE, 1),
        events.ReceiveFailed(1000.0, QUEUE, "timeout", 1.0),
        events.BacklogCounted(1000.0, QUEUE, 3),
        events.Forwarded(1000.0, QUEUE, "orders", 5, 500),
        events.DeadLettered(1000.0, QUEUE, 7, "TooLarge", ""),
        events.Paused(1000.0, "orders", "timeout", 5.0),
        events.Restarting(1000.0, "error", "text", 1.0),
    )


class Meter:
    """A written meter: keeps the callbacks, and reads them as an exporter does."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[str, Any]] = {}

    def create_observable_counter(self, name: str, callbacks: list[Any], unit: str, description: str) -> None:
        assert name not in self.made, "an instrument is made once"
        self.made[name] = "counter", callbacks[0]

    def create_observable_gauge(self, name: str, callbacks: list[Any], unit: str, description: str) -> None:
        assert name not in self.made, "an instrument is made once"
        self.made[name] = "gauge", callbacks[0]

    def read(self) -> dict[str, list[tuple[float, dict[str, str]]]]:
        return {name: list(callback(None)) for name, (_, callback) in self.made.items()}


def watched() -> tuple[ServiceMetrics, Meter, Instruments]:
    metrics, meter = ServiceMetrics("orders", poll_seconds=900, now=lambda: 1000.0), Meter()
    return metrics, meter, Instruments(metrics, meter, lambda value, attributes: (value, attributes))


def test_every_sample_is_told_once_with_the_attributes_of_its_labels() -> None:
    metrics, meter, instruments = watched()
    for event in of_every_kind():
        metrics.notify(event)
    instruments.refresh()
    samples = list(metrics.samples())
    assert len(samples) > 8
    assert sum(map(len, meter.read().values())) == len(samples)
    assert {name: kind for name, (kind, _) in meter.made.items()} == {
        instrument_name(one): "counter" if one.series.counter else "gauge" for one in samples
    }
    where = {"sbpair.pair": "orders", "sbpair.queue": QUEUE, "messaging.destination.name": "orders"}
    assert meter.read()["sbpair.syphon.forwarded_messages"] == [(5, where)]


def test_what_comes_later_gets_its_instrument_then_and_what_goes_is_told_no_more() -> None:
    metrics, meter, instruments = watched()
    instruments.refresh()
    assert "sbpair.syphon.pause_left_seconds" not in meter.made
    metrics.notify(events.Paused(1000.0, "orders", "timeout", 5.0))
    instruments.refresh()
    ((seconds, attributes),) = meter.read()["sbpair.syphon.pause_left_seconds"]
    assert (seconds, attributes["messaging.destination.name"]) == (5.0, "orders")
    metrics.notify(events.Resumed(1001.0, "orders"))
    instruments.refresh()
    assert meter.read()["sbpair.syphon.pause_left_seconds"] == []
    metrics.notify(events.Paused(1000.0, "orders", "timeout", 2.0))
    instruments.refresh()
    assert len(meter.read()["sbpair.syphon.pause_left_seconds"]) == 1


def test_names() -> None:
    counter = Metric("sbpair_syphon_forwarded_bytes_total", 1)
    assert instrument_name(counter) == "sbpair.syphon.forwarded_bytes"


@contextmanager
def sdk_reader() -> Iterator[Any]:
    """A reader of the real SDK, for which the API's provider is exchanged."""
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = export.InMemoryMetricReader()
    provider = sdk.MeterProvider([reader])
    try:
        yield reader, provider
    finally:
        provider.shutdown()


def test_the_sdk_takes_the_instruments() -> None:
    api = pytest.importorskip("opentelemetry.metrics")
    metrics, _, _ = watched()
    with sdk_reader() as (reader, provider):
        instruments = Instruments(metrics, provider.get_meter("sbpair"), api.Observation)
        for event in of_every_kind():
            metrics.notify(event)
        instruments.refresh()
        (scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
        found = {one.name: one.data.data_points for one in scope.metrics}
        assert set(found) == {instrument_name(one) for one in metrics.samples()}
        (point,) = found["sbpair.syphon.forwarded_messages"]
        assert (point.value, point.attributes["messaging.destination.name"]) == (5, "orders")
        units = {one.name: one.unit for one in scope.metrics}
        assert units["sbpair.syphon.forwarded_bytes"] == "By"
        assert units["sbpair.syphon.start_timestamp_seconds"] == "s"
        assert {unit for name, unit in units.items() if name.endswith("_messages")} == {"{message}"}


PROGRAM = """
import asyncio
from opentelemetry import metrics as api, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from sbpair.render.monitored import Spans, telemetry
from sbpair.core.events import DeadLettered, Forwarded, Polled
from sbpair.render.service import ServiceMetrics

reader = InMemoryMetricReader()
api.set_meter_provider(MeterProvider([reader]))
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)

async def main():
    metrics = ServiceMetrics("orders", poll_seconds=900)
    async with telemetry(metrics):
        metrics.notify(Forwarded(1.0, "q", "orders", 5, 500))

asyncio.run(main())
spans = Spans("orders")
for event in (Forwarded(1.5, "q", "orders", 5, 500), DeadLettered(2.0, "q", 7, "TooLarge", ""), Polled(3.0, "q", 0)):
    spans.notify(event)
for span in exporter.get_finished_spans():
    many = span.attributes.get("messaging.batch.message_count")
    print(span.name, span.start_time, span.status.status_code.name, many, span.kind.name)
    assert span.attributes["messaging.system"] == "servicebus", "what the conventions require"
    assert span.name.endswith(span.attributes["messaging.destination.name"])
    assert span.attributes["messaging.operation.type"] in ("send", "settle")
    assert span.status.is_ok or span.attributes["error.type"] == "TooLarge"
for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics:
    for point in metric.data.data_points:
        print(metric.name, point.value)
"""


def test_a_service_tells_at_its_end_what_came_after_the_last_time() -> None:
    """In a process of its own, since the API's provider is set once."""
    pytest.importorskip("opentelemetry.sdk.metrics")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "sbpair.syphon.forwarded_messages 5" in done.stdout.splitlines()
    assert "sbpair.syphon.healthy_ratio 1" in done.stdout.splitlines()
    spans = [line for line in done.stdout.splitlines() if not line.startswith("sbpair.")]
    assert spans == ["forward orders 1500000000 UNSET 5 CLIENT", "dead-letter q 2000000000 ERROR None CLIENT"]


def test_the_readme_names_the_protocol_of_the_exporter_that_the_extra_brings() -> None:
    """Without it the distribution asks for gRPC's exporter, and ends before it tells anything."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = project["optional-dependencies"]["otel"]
    assert [one for one in extra if one.startswith("opentelemetry-exporter-otlp-proto-http")]
    told = " ".join(TEXTS["recovery"].split())
    assert told.count("opentelemetry-instrument") == told.count(
        "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf opentelemetry-instrument"
    )
