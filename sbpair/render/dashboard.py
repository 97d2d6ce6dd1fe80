"""The dashboard for Grafana: what waits, how old it is, what the syphon does, what the audit says."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

_WIDTH = 24
"""Of Grafana's grid."""
_SOURCE = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True, slots=True)
class Query:
    """An expression of Prometheus and the name of its lines."""

    expression: str
    legend: str = "{{pair}}"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `bounds` are values from which it is yellow and red; `width` and `height` are in the grid's units."""

    title: str
    explained: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 12
    height: int = 8
    bounds: tuple[float, float] | None = None


_Stat = partial(Panel, kind="stat", width=6, height=5)
_P = '{pair=~"$pair"}'
PANELS = (
    _Stat(
        "Waiting messages",
        "Active messages of the backlog queues, by `sbpair status`.",
        [Query(f"max by (pair) (sbpair_backlog_active_messages{_P})")],
        bounds=(1, 10_000),
    ),
    _Stat(
        "Oldest message",
        "Age of the oldest message of the backlog.",
        [Query(f"max by (pair) (sbpair_backlog_oldest_age_seconds{_P})")],
        unit="s",
        bounds=(3_600, 86_400),
    ),
    _Stat(
        "Dead letters",
        "Dead letters of the backlog queues.",
        [Query(f"max by (pair) (sbpair_backlog_dead_letter_messages{_P})")],
        bounds=(1, 1_000),
    ),
    _Stat(
        "Audit findings",
        "Findings of the last `sbpair audit`, warning and worse.",
        [Query('sum by (pair) (sbpair_audit_findings{pair=~"$pair", severity=~"warning|error|critical"})')],
        bounds=(1, 10),
    ),
    Panel(
        "Namespaces",
        "1 while a namespace answers, else 0.",
        [Query(f"min by (pair, side) (sbpair_namespace_up{_P})", "{{pair}} {{side}}")],
    ),
    Panel(
        "Backlog",
        "Active, deferred, scheduled and dead-lettered messages of the backlog queues.",
        [
            Query(f"max by (pair) (sbpair_backlog_{kind}_messages{_P})", f"{{{{pair}}}} {kind.replace('_', ' ')}")
            for kind in ("active", "deferred", "scheduled", "dead_letter")
        ],
    ),
    Panel(
        "Sent back to the primary",
        "Messages a second, by destination.",
        [
            Query(
                f"sum by (pair, entity) (rate(sbpair_syphon_forwarded_messages_total{_P}[$__rate_interval]))",
                "{{pair}} {{entity}}",
            )
        ],
        unit="mps",
    ),
    Panel(
        "Bytes sent back",
        "Bytes a second.",
        [Query(f"sum by (pair) (rate(sbpair_syphon_forwarded_bytes_total{_P}[$__rate_interval]))")],
        unit="Bps",
    ),
    Panel(
        "Dead-lettered by the syphon",
        "Messages an hour, by reason.",
        [
            Query(
                f"sum by (pair, reason) (increase(sbpair_syphon_dead_lettered_messages_total{_P}[1h]))",
                "{{pair}} {{reason}}",
            )
        ],
    ),
    Panel(
        "Waiting by queue",
        "Messages by backlog queue, as the syphon has last counted them.",
        [Query(f"max by (pair, queue) (sbpair_syphon_waiting_messages{_P})", "{{queue}}")],
    ),
    Panel(
        "Failures of the syphon",
        "Receives that failed, and starts after an error, an hour.",
        [
            Query(
                f"sum by (pair, code) (increase(sbpair_syphon_receive_failures_total{_P}[1h]))",
                "{{pair}} receive {{code}}",
            ),
            Query(f"sum by (pair, code) (increase(sbpair_syphon_restarts_total{_P}[1h]))", "{{pair}} start {{code}}"),
        ],
    ),
    Panel(
        "Held back",
        "Seconds until a destination that refuses is tried again.",
        [Query(f"max by (pair, entity) (sbpair_syphon_pause_left_seconds{_P})", "{{pair}} {{entity}}")],
        unit="s",
    ),
    Panel(
        "Dead letters by cause",
        "Of all entities, in words of `sbpair explain`. See them: sbpair dlq list --namespace NAMESPACE",
        [Query("sum by (namespace, cause) (sbpair_entity_dead_letter_cause_messages)", "{{namespace}} {{cause}}")],
    ),
    Panel(
        "Credits of the exporter",
        "Throttling credits a second that monitoring itself uses, of the 1,000 of a namespace of tier Standard.",
        [
            Query(
                "sum by (namespace) (rate(sbpair_exporter_credits_total[$__rate_interval]))",
                "{{namespace}}",
            )
        ],
    ),
    Panel(
        "Findings by check",
        "Explain one: sbpair audit --explain CODE",
        [Query(f"sum by (pair, code) (sbpair_audit_check_findings{_P})", "{{pair}} {{code}}")],
    ),
    Panel(
        "Since the last check",
        "How long ago each command last ran to its end.",
        [
            Query(
                "time() - max by (instance, command) (sbpair_last_success_timestamp_seconds)",
                "{{instance}} {{command}}",
            )
        ],
        unit="s",
        bounds=(3_600, 10_800),
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it; it asks which Prometheus to read."""
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1}
    return {
        "title": "sbpair",
        "uid": "sbpair",
        "tags": ["azure", "service-bus"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [source, _pair_variable()]},
        "panels": list(_placed()),
    }


def _pair_variable() -> dict[str, Any]:
    query = 'label_values({__name__=~"sbpair_namespace_up|sbpair_syphon_healthy_ratio"}, pair)'
    return {
        "name": "pair",
        "label": "Pair",
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "pair"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _placed() -> Iterator[dict[str, Any]]:
    """The panels in rows from left to right."""
    x = y = lowest = 0
    for number, panel in enumerate(PANELS, start=1):
        if x + panel.width > _WIDTH:
            x, y = 0, lowest
        yield _panel(number, panel) | {"gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height}}
        x, lowest = x + panel.width, y + panel.height


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.bounds is not None:
        steps += [
            {"color": color, "value": bound} for color, bound in zip(("orange", "red"), panel.bounds, strict=True)
        ]
    stat = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "background"}
    lines = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    return {
        "id": number,
        "title": panel.title,
        "description": panel.explained,
        "type": panel.kind,
        "datasource": _SOURCE,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "options": stat if panel.kind == "stat" else lines,
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": one.expression, "legendFormat": one.legend}
            for at, one in enumerate(panel.queries)
        ],
    }
