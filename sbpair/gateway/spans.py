"""SendSpans of what a gateway has sent, for applications that trace: each joins the trace of its message.

The context comes from the message, as the SDKs of Azure write it: `traceparent` (W3C Trace Context), or `Diagnostic-Id`
of the same form. Messages pass unchanged, so a receiver sees the sender's own context. A batch links to the contexts of
its messages. Nothing is configured here: `opentelemetry-instrument sbpair gateway ...` and the variables `OTEL_...` say
where spans go. Without OpenTelemetry's API, or where nobody records, no message is looked at.
"""

import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

from sbpair.amqp.sections import Section, read, read_span, scan
from sbpair.amqp.types import AmqpError
from sbpair.core.errors import SbpairError, ServiceError
from sbpair.version import __version__

BATCH_FORMAT: Final = 0x80013700
_CONTEXT: Final = ("traceparent", "Diagnostic-Id")
_MOST_ITEMS: Final = 1000
_MOST_LINKS: Final = 128
"""As many links as a span has by default."""


class SendSpans:
    """The spans of one pair. `on`: somebody records them."""

    def __init__(self, pair: str) -> None:
        self.on = False
        self._pair = pair
        try:
            self._api: Any = import_module("opentelemetry.trace")
            self._reader: Any = import_module("opentelemetry.trace.propagation.tracecontext")
        except ImportError:
            return
        self._tracer = self._api.get_tracer("sbpair", __version__)
        probe = self._tracer.start_span("probe")
        self.on = probe.get_span_context().is_valid

    def tell(
        self,
        entity: str,
        payload: bytes,
        message_format: int,
        seconds: float,
        diverted: bool,
        refused: SbpairError | None,
    ) -> None:
        """A send that has ended now, after `seconds`."""
        ended = time.time_ns()
        contexts = list(self._contexts(payload, message_format))
        attributes = {
            "messaging.system": "servicebus",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": entity,
            "sbpair.pair": self._pair,
            "sbpair.outcome": "refused" if refused is not None else "backlog" if diverted else "primary",
        }
        if refused is not None:
            attributes["error.type"] = refused.code if isinstance(refused, ServiceError) else refused.exit_name
        batch = message_format == BATCH_FORMAT
        parent = contexts[0] if contexts and not batch else None
        spans = [self._api.get_current_span(one).get_span_context() for one in contexts] if batch else []
        span = self._tracer.start_span(
            f"send {entity}",
            context=parent,
            kind=self._api.SpanKind.CLIENT,
            links=[self._api.Link(one) for one in spans],
            attributes=attributes,
            start_time=ended - int(seconds * 1e9),
        )
        if refused is not None:
            span.set_status(self._api.StatusCode.ERROR, refused.message)
        span.end(end_time=ended)

    def _contexts(self, payload: bytes, message_format: int) -> Iterator[Any]:
        """The contexts of the first messages that have one."""
        try:
            parts = [payload]
            if message_format == BATCH_FORMAT:
                parts = [read_span(payload, span) for span in scan(payload) if span.section == Section.DATA]
            for part in parts[:_MOST_LINKS]:
                about = read(part, scan(part), Section.APPLICATION_PROPERTIES, max_items=_MOST_ITEMS)
                found = [about[name] for name in _CONTEXT if name in about] if isinstance(about, dict) else []
                if found:
                    carrier = {"traceparent": str(found[0])}
                    yield self._reader.TraceContextTextMapPropagator().extract(carrier)
        except AmqpError:
            return  # what cannot be read is refused elsewhere
