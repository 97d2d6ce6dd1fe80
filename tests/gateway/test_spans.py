"""Spans join the traces of the applications' messages."""

from collections.abc import Iterator

import azure.servicebus as sdk
import pytest
from azure.servicebus.exceptions import ServiceBusError
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sbpair.amqp.sections import build
from sbpair.amqp.types import Uint
from sbpair.gateway.served import BATCH_FORMAT, SendSpans
from tests.clients.conftest import World
from tests.gateway.conftest import Running
from tests.gateway.test_passing import client_of

TRACE = 0x0AF7651916CD43DD8448EB211C80319C
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(gateway: Running) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    recorded = SendSpans("embedded")
    recorded._tracer, recorded.on = provider.get_tracer("test"), True
    gateway.gateway.house.spans = recorded
    yield exporter
    provider.shutdown()


def message(body: str, name: str = "traceparent") -> sdk.ServiceBusMessage:
    return sdk.ServiceBusMessage(body, application_properties={name: PARENT})


@pytest.mark.parametrize("name", ["traceparent", "Diagnostic-Id"])
def test_a_send_joins_the_trace_of_its_message(
    world: World, gateway: Running, spans: InMemorySpanExporter, name: str
) -> None:
    with client_of(gateway, retry_total=0) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(message("one", name))
        world.dark()
        sender.send_messages(message("two", name))
        sender.send_messages([message("three", name), message("four", name)])
    first, second, batch = spans.get_finished_spans()
    for span, outcome in ((first, "primary"), (second, "backlog")):
        assert span.name == "send orders"
        assert span.context is not None
        assert (span.context.trace_id, span.parent and span.parent.span_id) == (TRACE, 0xB7AD6B7169203331)
        assert span.attributes is not None
        assert span.attributes["sbpair.outcome"] == outcome
        assert span.attributes["messaging.destination.name"] == "orders"
    assert batch.parent is None
    assert [link.context.trace_id for link in batch.links] == [TRACE, TRACE]
    assert took(first) < 60
    (queue,) = (q for q in world.backlog_by_queue() if "two" in q)
    assert queue


def test_a_refusal_is_told_with_its_reason(world: World, gateway: Running, spans: InMemorySpanExporter) -> None:
    world.dark()
    refused = sdk.ServiceBusMessage("x", application_properties={"x-ms-path": "elsewhere"})
    with client_of(gateway, retry_total=0) as client, pytest.raises(ServiceBusError):
        client.get_queue_sender("orders").send_messages(refused)
    (span,) = spans.get_finished_spans()
    assert span.attributes is not None
    assert (span.attributes["sbpair.outcome"], span.attributes["error.type"]) == ("refused", "usage")
    assert span.status.status_code is trace.StatusCode.ERROR


def took(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time >= span.start_time
    return (span.end_time - span.start_time) / 1e9


def test_without_a_recorder_no_message_is_looked_at() -> None:
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    assert not SendSpans("orders").on


NO_CONTEXT = (
    b"",
    b"\xff\xff",
    build(data=[b"\xff"]),
    build(application_properties={"traceparent": Uint(7)}),
    build(application_properties={"traceparent": "00-x"}),
)


@pytest.mark.parametrize("payload", NO_CONTEXT)
def test_what_has_no_context_begins_its_own_trace(payload: bytes) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    recorded = SendSpans("embedded")
    recorded._tracer = provider.get_tracer("test")
    for kind in (0, BATCH_FORMAT):
        recorded.tell("orders", payload, kind, 0.5, False, None)
    assert all(span.parent is None and not span.links for span in exporter.get_finished_spans())
    assert [round(took(span), 3) for span in exporter.get_finished_spans()] == [0.5, 0.5]
