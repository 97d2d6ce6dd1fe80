"""Counters and spans, where the application has OpenTelemetry."""

import subprocess
import sys

import pytest

pytest.importorskip("opentelemetry.sdk")

PROGRAM = """
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
metrics.set_meter_provider(MeterProvider([reader]))
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(spans))

from sbpair.clients.failover import record
from sbpair.events import Diverted, FailedBack, FailedOver, PingSent, SideFaulted

for event in (
    FailedOver(1.0, "orders", "timeout"),
    Diverted(1.0, "orders", "q", 3),
    Diverted(1.0, "orders", "q", 2),
    PingSent(1.0, "orders", True, 0.1),
    SideFaulted(1.0, "secondary", "unauthorized", "no"),
    FailedBack(9.0, "orders", 8.0, 5),
):
    record(event, "pair")
for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics:
    for point in metric.data.data_points:
        print(metric.name, getattr(point, "value", None) or point.sum, sorted(point.attributes.items()))
print([span.name for span in spans.get_finished_spans()])
"""


def test_what_happened_is_counted_and_traced() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    of_orders = "('messaging.destination.name', 'orders'), ('messaging.system', 'servicebus'), ('sbpair.pair', 'pair')"
    assert sorted(done.stdout.splitlines()) == [
        "['failover orders', 'failback orders']",
        f"sbpair.failover.duration 8.0 [{of_orders}]",
        f"sbpair.failovers 1 [('error.type', 'timeout'), {of_orders}]",
        f"sbpair.messages.diverted 5 [{of_orders}]",
        "sbpair.side.faults 1 [('error.type', 'unauthorized'), ('messaging.system', 'servicebus'), "
        "('sbpair.pair', 'pair'), ('sbpair.side', 'secondary')]",
    ]
