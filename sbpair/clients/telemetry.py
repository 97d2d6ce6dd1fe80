"""Counts what the clients do, where the application has OpenTelemetry's API installed; otherwise nothing."""

from functools import lru_cache
from importlib import import_module
from typing import Any

from sbpair.core.events import Diverted, Event, FailedBack, FailedOver, SideFaulted
from sbpair.version import __version__


def record(event: Event, pair: str) -> None:
    """Add one event to the counters."""
    counters = _counters()
    if counters is None:
        return
    match event:
        case Diverted(entity=entity, messages=messages):
            counters["diverted"].add(messages, {**_of(pair), "messaging.destination.name": entity})
        case FailedOver(entity=entity, cause=cause):
            attributes = {**_of(pair), "messaging.destination.name": entity, "error.type": cause}
            counters["failovers"].add(1, attributes)
            _span(f"failover {entity}", attributes)
        case FailedBack(entity=entity, seconds_away=seconds):
            attributes = {**_of(pair), "messaging.destination.name": entity}
            counters["away"].record(seconds, attributes)
            _span(f"failback {entity}", attributes)
        case SideFaulted(side=side, error_code=code):
            counters["faults"].add(1, {**_of(pair), "sbpair.side": side, "error.type": code})
        case _:
            return


def _of(pair: str) -> dict[str, Any]:
    return {"sbpair.pair": pair, "messaging.system": "servicebus"}


def _span(name: str, attributes: dict[str, Any]) -> None:
    trace: Any = import_module("opentelemetry.trace")
    trace.get_tracer("sbpair", __version__).start_span(name, attributes=attributes).end()


@lru_cache(maxsize=1)
def _counters() -> dict[str, Any] | None:
    try:
        metrics: Any = import_module("opentelemetry.metrics")
    except ImportError:
        return None
    meter = metrics.get_meter("sbpair", __version__)
    return {
        "diverted": meter.create_counter("sbpair.messages.diverted", "{message}", "Messages put into the backlog"),
        "failovers": meter.create_counter("sbpair.failovers", "{failover}", "Entities that left their primary"),
        "faults": meter.create_counter("sbpair.side.faults", "{fault}", "Namespaces that refuse permanently"),
        "away": meter.create_histogram("sbpair.failover.duration", "s", "How long an entity was away"),
    }
