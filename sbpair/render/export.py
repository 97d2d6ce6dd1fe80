"""Files for what operators install: alert rules, a dashboard, units, manifests, templates of the backlog queues.

The texts are templates in `install/`, the dashboard is made below. Only what differs from pair to pair is filled
in; every value goes through the quoting of the file's own language. Settings of queues come from
`sbpair.core.pairing.backlog_settings` ("Paired Namespaces: Implementation Details and Cost") in the resource manager's
names, so that a template makes the queues that `sbpair provision` makes.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Self

from sbpair.core.inspection.audit.findings import Thresholds
from sbpair.core.names import BACKLOG_INFIX
from sbpair.core.pairing import backlog_settings
from sbpair.core.redact import printable
from sbpair.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment


class ExportKind(StrEnum):
    """What files are for."""

    check: str
    """How the files are looked over by their own tool before they count."""

    ALERTS = "alerts", "promtool check rules sbpair-alerts.yml"
    DASHBOARD = "dashboard", "Import it in Grafana: Dashboards, New, Import."
    SYSTEMD = "systemd", "systemd-analyze verify sbpair-*.service sbpair-*.timer"
    KUBERNETES = "kubernetes", "kubectl diff -f FILE"
    CONTAINER_APPS = "container-apps", "az deployment group what-if --resource-group GROUP --template-file FILE"
    DOCKERFILE = "dockerfile", "docker build ."
    EMULATOR = "emulator", "docker compose build && docker compose up --wait"
    BICEP = "bicep", "az deployment group what-if --resource-group GROUP --template-file FILE"
    TERRAFORM = "terraform", "terraform plan"
    CONFIG_JSON = "config-json", "sbpair emulator --seed Config.json"
    SNAPSHOT = "snapshot", "sbpair diff FILE NAMESPACE"
    GITHUB_ACTION = "github-action", "Run the workflow on a branch, with provision left at false."
    DRILL_GITHUB = "drill-github-action", "Run the workflow by hand (workflow_dispatch)."
    DRILL_KUBERNETES = "drill-kubernetes", "kubectl diff -f FILE"
    GATEWAY_SYSTEMD = "gateway-systemd", "systemd-analyze verify sbpair-gateway-*.service"
    GATEWAY_KUBERNETES = "gateway-kubernetes", "kubectl patch deployment NAME --patch-file FILE --dry-run=server"
    GATEWAY_COMPOSE = "gateway-compose", "docker compose -f FILE config"
    GATEWAY_CONTAINER_APPS = (
        "gateway-container-apps",
        "az deployment group what-if --resource-group GROUP --template-file FILE",
    )

    def __new__(cls, name: str, check: str) -> Self:
        member = str.__new__(cls, name)
        member._value_, member.check = name, check
        return member

    @property
    def of_a_pair(self) -> bool:
        """Whether the files are for one pair; the others serve all of them, or are of a namespace."""
        return self in _FILES and self not in (ExportKind.ALERTS, ExportKind.DOCKERFILE, ExportKind.EMULATOR)


@dataclass(frozen=True, slots=True)
class ExportedPair:
    """A pair by names alone, without its secrets. `primary` and `secondary` are labels."""

    name: str
    primary: str
    secondary: str
    queues: int
    keys: tuple[str, ...]
    """Sides that are reached by a connection string, the others by an identity."""
    environment: Mapping[str, str]
    """Variables that say the rest of its configuration."""
    resource_group: str | None = None
    """Of the secondary."""

    @property
    def identity(self) -> bool:
        """Whether a side is reached by an identity."""
        return len(self.keys) < len(("primary", "secondary"))


OVERDUE_SECONDS = 3 * 3600
"""A check that has not run for so long is overdue."""
API_VERSION = "2024-01-01"
"""Of the resource manager's description of queues."""
TERRAFORM_NAMES = {
    "lockDuration": "lock_duration",
    "maxSizeInMegabytes": "max_size_in_megabytes",
    "requiresDuplicateDetection": "requires_duplicate_detection",
    "duplicateDetectionHistoryTimeWindow": "duplicate_detection_history_time_window",
    "requiresSession": "requires_session",
    "defaultMessageTimeToLive": "default_message_ttl",
    "autoDeleteOnIdle": "auto_delete_on_idle",
    "deadLetteringOnMessageExpiration": "dead_lettering_on_message_expiration",
    "deadLetteringOnFilterEvaluationExceptions": "dead_lettering_on_filter_evaluation_error",
    "maxDeliveryCount": "max_delivery_count",
    "enableBatchedOperations": "batched_operations_enabled",
    "enablePartitioning": "partitioning_enabled",
    "enableExpress": "express_enabled",
    "supportOrdering": "support_ordering",
    "status": "status",
    "forwardTo": "forward_to",
    "forwardDeadLetteredMessagesTo": "forward_dead_lettered_messages_to",
    "maxMessageSizeInKilobytes": "max_message_size_in_kilobytes",
}
"""The resource manager's name of a property -> the attribute of the entity's resource (provider azurerm 4)."""
_K8S_NAME_CHARACTERS = 40
_JOB_NAME_CHARACTERS = 32
"""Limits of the names of Kubernetes' and of Container Apps' jobs, less what is put after or before them."""


_LOCKED = "requirements.txt"
"""What sbpair needs, in the versions and with the hashes that this release was tested with: no template."""
_FILES: Mapping[ExportKind, Mapping[str, str]] = {
    ExportKind.ALERTS: {"sbpair-alerts.yml": "alerts.yml"},
    ExportKind.SYSTEMD: {
        "sbpair-syphon-{}.service": "syphon.service",
        "sbpair-check-{}.service": "check.service",
        "sbpair-check-{}.timer": "check.timer",
        "sbpair.conf": "sysusers.conf",
    },
    ExportKind.KUBERNETES: {"sbpair-{}.yaml": "kubernetes.yaml"},
    ExportKind.CONTAINER_APPS: {"sbpair-drain-{}.bicep": "job.bicep"},
    ExportKind.DOCKERFILE: {"Dockerfile": "Dockerfile", _LOCKED: _LOCKED},
    ExportKind.EMULATOR: {
        "Containerfile": "Containerfile",
        "compose.yaml": "compose.yaml",
        "servicebus-tests.yml": "workflow.yml",
        _LOCKED: _LOCKED,
    },
    ExportKind.BICEP: {"sbpair-queues-{}.bicep": "queues.bicep"},
    ExportKind.TERRAFORM: {"sbpair-queues-{}.tf": "queues.tf", "sbpair-imports-{}.tf": "imports.tf"},
    ExportKind.GITHUB_ACTION: {"action.yml": "action.yml"},
    ExportKind.DRILL_GITHUB: {"sbpair-drill-{}.yml": "drill.yml"},
    ExportKind.DRILL_KUBERNETES: {"sbpair-drill-{}.yaml": "drill.yaml"},
    ExportKind.GATEWAY_SYSTEMD: {"sbpair-gateway-{}.service": "gateway.service"},
    ExportKind.GATEWAY_KUBERNETES: {"sbpair-gateway-{}.yaml": "gateway.yaml"},
    ExportKind.GATEWAY_COMPOSE: {"sbpair-gateway-{}-compose.yaml": "gateway-compose.yaml"},
    ExportKind.GATEWAY_CONTAINER_APPS: {"sbpair-gateway-{}.bicep": "gateway.bicep"},
}
"""Names of the files, `{}` for the name of the pair, and their templates."""


def written(kind: ExportKind, pair: ExportedPair | None, *, image: str) -> dict[str, str]:
    """File name -> text. `pair` is given for the kinds that are of a pair."""
    if kind is ExportKind.DASHBOARD:
        return {"sbpair-dashboard.json": json.dumps(dashboard(), indent=2) + "\n"}
    values = {"version": __version__, "image": image, **_limits(), **({} if pair is None else _of_pair(pair))}
    made = {}
    for pattern, template in _FILES[kind].items():
        name = pattern if pair is None else pattern.format(pair.name)
        filled = _template(_LOCKED) if template == _LOCKED else None
        made[name] = filled or _templates().get_template(f"{template}.j2").render(file=name, **values)
    return made


def _limits() -> dict[str, Any]:
    """Of the alerts."""
    limits = Thresholds()
    seconds = {"old": limits.stranded_warning_seconds, "very_old": limits.stranded_error_seconds}
    return {**{name: f"{value:g}" for name, value in seconds.items()}, "overdue": OVERDUE_SECONDS}


def _of_pair(pair: ExportedPair) -> dict[str, Any]:
    return {
        "pair": pair,
        "dns": dns_name(f"sbpair-{pair.name}", _K8S_NAME_CHARACTERS),
        "job": dns_name(f"sbpair-drain-{pair.name}", _JOB_NAME_CHARACTERS),
        "name": f"sbpair_{re.sub('[^A-Za-z0-9]', '_', pair.name)}",
        "environment": partial(_environment, pair),
        "properties": queue_properties(),
        "attributes": queue_attributes(),
        "width": max(map(len, queue_attributes())),
        "api_version": API_VERSION,
        "infix": BACKLOG_INFIX,
    }


def queue_properties() -> dict[str, Any]:
    """A backlog queue's documented properties in the resource manager's names. "Never" is written out, so that a
    template also corrects a queue that has another value."""
    from sbpair.azure.management import NEVER_BY_DEFAULT, properties_to_create
    from sbpair.service import NEVER

    return properties_to_create(backlog_settings(None)) | dict.fromkeys(NEVER_BY_DEFAULT, NEVER)


def queue_attributes() -> dict[str, Any]:
    """The same in the names of Terraform's provider."""
    return {TERRAFORM_NAMES[name]: value for name, value in queue_properties().items()}


def _environment(pair: ExportedPair, method: str) -> dict[str, str]:
    """The pair as variables, with the credential that a container has."""
    chosen = {"SBPAIR_AUTH": method} if pair.identity else {}
    return {"SBPAIR_PAIR": pair.name, **pair.environment, **chosen}


def dns_name(name: str, most: int) -> str:
    """`name` as the label of a host can be written: lower case, digits and hyphens, at most that many characters.
    One that had to be changed ends in a digest of what it was: two pairs never share objects."""
    label = re.sub(r"[^a-z0-9-]", "-", name.lower())
    if label == name and len(label) <= most and not label.endswith("-"):
        return label
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{label[: most - len(digest) - 1].rstrip('-')}-{digest}"


_DIGEST_CHARACTERS = 5


def _template(name: str) -> str:
    return files("sbpair.render").joinpath("install", name).read_text("utf-8")


@cache
def _templates() -> "Environment":
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    # Not the usual brackets, which Prometheus and GitHub have a use for; no HTML is written.
    environment = Environment(  # noqa: S701
        loader=FunctionLoader(_template),
        variable_start_string="<<",
        variable_end_string=">>",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"yaml": in_yaml, "action": in_action, "hcl": in_hcl, "bicep": in_bicep, "shell": in_shell}
    return environment


def in_yaml(value: object) -> str:
    """A value as YAML writes it. It has JSON's escapes, but none that needs two of them for one sign."""
    return _LINE_ENDS.sub(lambda sign: f"\\u{ord(sign[0]):04x}", json.dumps(value, ensure_ascii=False))


_LINE_ENDS = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")


def in_action(value: object) -> str:
    """A value in a file of GitHub Actions; nothing in a text is taken for an expression."""
    return in_yaml(value).replace("${{", "${{ '${{' }}")


def in_shell(text: str) -> str:
    """A word of a command line that stands in a comment."""
    return shlex.quote(printable(text))


def in_hcl(value: object) -> str:
    """A value as Terraform's language writes it; nothing in a text is taken for a template."""
    text = _JSON_ALONE.sub(lambda sign: sign[1] + _HCL_SIGNS[sign[2]], json.dumps(value, ensure_ascii=False))
    return text.replace("${", "$${").replace("%{", "%%{")


_HCL_SIGNS = {"\\b": "\\u0008", "\\f": "\\u000c"}
_JSON_ALONE = re.compile(r"((?<!\\)(?:\\\\)*)(\\[bf])")
"""Escapes of JSON that Terraform's language does not have."""


def in_bicep(value: object) -> str:
    """A value as Bicep writes it; nothing in a text is taken for a template."""
    if not isinstance(value, str):
        return json.dumps(value)
    signs = {"\\": "\\\\", "'": "\\'", "${": "\\${", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    text = re.sub(r"[\\'\n\r\t]|\$\{", lambda sign: signs[sign[0]], value)
    return "'" + _UNPRINTED.sub(lambda sign: f"\\u{{{ord(sign[0]):x}}}", text) + "'"


_UNPRINTED = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]")


# The dashboard for Grafana: what waits, how old it is, what the syphon does, what the audit says.


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
        [Query("sum by (namespace) (rate(sbpair_exporter_credits_total[$__rate_interval]))", "{{namespace}}")],
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
