"""A whole namespace as code: Terraform, Bicep, the `Config.json` of Microsoft's emulator, and a snapshot of our own.

Terraform and Bicep say every setting, since what a provider takes for its default is not always the service's. What a
format cannot hold is left out and told, in a comment where the format has any.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sbpair.azure.management import NEVER_BY_DEFAULT, arm_properties
from sbpair.core.entities import SETTINGS_OF, EntityFacts, EntityKind, EntitySettings, RuleFacts
from sbpair.core.inspection.contents import Contents, FoundNamespace, plan_entities, setting_differences
from sbpair.core.inspection.entity import setting_name, setting_text
from sbpair.core.names import from_arm_name, subscription_of, to_arm_name
from sbpair.core.redact import json_text, printable
from sbpair.render.export import TERRAFORM_NAMES, ExportKind, in_bicep, in_hcl
from sbpair.service import ENTITY_SIZES_MEGABYTES, NEVER, EntityStatus, Tier
from sbpair.version import __version__

API_VERSION = "2026-01-01"
"""Of the resource manager: the one that its client in this release asks, which has the metadata of entities."""


@dataclass(frozen=True, slots=True)
class _Format:
    """A format, and what it has a place for besides texts and the settings of tier Standard."""

    write: "Callable[[_Code], dict[str, str]]"
    typed_values: bool = False
    metadata: bool = True
    topics_without_senders: bool = True
    tier: bool = True
    """It is of a namespace that is there, so that its entities are made one after the other."""

    def fitted(self, one: EntityFacts) -> EntitySettings:
        """The settings as the format can hold them."""
        settings, change = one.settings, dict[str, Any]()
        topic_closed = one.kind is EntityKind.TOPIC and settings.status is EntityStatus.SEND_DISABLED
        if settings.status is EntityStatus.UNKNOWN or (topic_closed and not self.topics_without_senders):
            change["status"] = EntityStatus.ACTIVE
        if not self.metadata:
            change["user_metadata"] = None
        if not self.tier:
            largest = ENTITY_SIZES_MEGABYTES[Tier.STANDARD][-1]
            change["max_size_in_megabytes"] = min(settings.max_size_in_megabytes, largest)
            change["max_message_size_in_kilobytes"] = None
        return replace(settings, **change)

    def refuses(self, rule: RuleFacts) -> str | None:
        """Why the format cannot hold a rule."""
        values = [value for _, value in (*rule.correlation, *rule.properties)]
        if rule.parameters or rule.action_parameters:
            return "its SQL has parameters"
        if any(not isinstance(value, str | int | float if self.typed_values else str) for value in values):
            return "it compares with a value of a type that the file cannot hold"
        return "it compares with an empty text" if "" in values else None


@dataclass(frozen=True, slots=True)
class _Resource:
    """An entity or rule as the resource manager has it."""

    symbol: str
    """Its name in the file, which differs from all others."""
    kind: str
    names: tuple[str, ...]
    """Its own, after those of what it is below."""
    parent: "_Resource | None"
    properties: Mapping[str, Any]
    before: "Sequence[_Resource]" = ()
    """What it forwards to, and stands before it; in a circle nothing can be first."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The collections that its names are in."""
        return (*(self.parent.kinds if self.parent else ()), f"{self.kind}s")

    @property
    def address(self) -> str:
        """In Terraform."""
        return f"azurerm_servicebus_{'subscription_rule' if self.kind == 'rule' else self.kind}.{self.symbol}"


class _Code:
    """A namespace in one of the formats, those entities first that others need."""

    def __init__(self, found: FoundNamespace, form: _Format) -> None:
        by_path = {one.path.lower(): one for one in found.entities}
        self.found = found
        self.resources: dict[str, _Resource] = {}
        self.left_out = [
            "Not in the file: messages, access rules and their keys, roles, network rules, the namespace itself."
        ]
        made: dict[str, _Resource] = {}
        for entity in (by_path[step.path.lower()] for step in plan_entities(found.entities, (), None)):
            self.left_out += _left_out(entity, form, made)
            below = subscription_of(entity.path)
            parent = made[below[0].lower()] if below else None
            name = below[1] if below else to_arm_name(entity.path)
            properties = _properties(entity.kind, form.fitted(entity))
            before = [made[target] for target in _targets(entity) if target in made]
            made[entity.path.lower()] = resource = self._add(entity.kind.value, name, parent, properties, before)
            for rule in entity.rules:
                if not form.refuses(rule):
                    self._add("rule", rule.name, resource, dict(_rule(rule)))

    def _add(self, kind: str, name: str, parent: _Resource | None, properties: Any, before: Any = ()) -> _Resource:
        names = (*(parent.names if parent else ()), name)
        wanted = symbol = re.sub("[^a-z0-9]+", "_", "_".join((kind, *names)).lower()).rstrip("_")
        number = 1
        while symbol in self.resources:
            symbol = f"{wanted}_{(number := number + 1)}"
        made = self.resources[symbol] = _Resource(symbol, kind, names, parent, properties, before)
        return made

    def comment(self, mark: str, *more: str) -> str:
        head = f"The entities of {self.found.namespace}. Written by sbpair {__version__}."
        return "".join(f"{mark} {printable(line)}\n" for line in (head, *more, *self.left_out))


def _targets(one: EntityFacts) -> list[str]:
    """What it forwards to, in lower case."""
    targets = (one.settings.forward_to, one.settings.forward_dead_lettered_messages_to)
    return sorted({target.lower() for target in targets if target})


def _left_out(one: EntityFacts, form: _Format, made: Mapping[str, _Resource]) -> Iterator[str]:
    for name, value, _ in setting_differences(one.kind, one.settings, form.fitted(one)):
        yield f"{one.path}: {setting_name(name)} {setting_text(name, value)} is left out."
    refused = {rule.name: why for rule in one.rules if (why := form.refuses(rule))}
    for name, why in refused.items():
        yield f"{one.path}: rule {name} is left out: {why}."
    if one.kind is EntityKind.SUBSCRIPTION and len(refused) == len(one.rules):
        yield f"{one.path}: there is no rule left; a subscription made from the file gets every message."
    if form.tier and (late := [target for target in _targets(one) if target not in made]):
        yield f"{one.path}: it forwards to {', '.join(late)}, made later: apply the file twice."


def _properties(kind: EntityKind, settings: EntitySettings) -> dict[str, Any]:
    """Settings in the resource manager's names."""
    said = arm_properties(settings, SETTINGS_OF[kind])
    if not settings.requires_duplicate_detection:
        said.pop("duplicateDetectionHistoryTimeWindow", None)
    said |= {name: NEVER for name in NEVER_BY_DEFAULT if said[name] is None}
    return {name: value for name, value in said.items() if value is not None}


def _rule(rule: RuleFacts) -> Iterator[tuple[str, Any]]:
    """A rule in the resource manager's form."""
    if rule.sql is not None:
        yield "filterType", "SqlFilter"
        yield "sqlFilter", {"sqlExpression": rule.sql}
    else:
        values: dict[str, Any] = {
            re.sub("_(.)", lambda found: found[1].upper(), name): value for name, value in rule.correlation
        }
        yield "filterType", "CorrelationFilter"
        yield "correlationFilter", values | ({"properties": dict(rule.properties)} if rule.properties else {})
    if rule.action is not None:
        yield "action", {"sqlExpression": rule.action}


# Terraform.

_HERE = "data.azurerm_servicebus_namespace.this"
_TERRAFORM_HEAD = """
variable "resource_group" {{
  type = string
}}

variable "namespace" {{
  type    = string
  default = {}
}}

data "azurerm_servicebus_namespace" "this" {{
  name                = var.namespace
  resource_group_name = var.resource_group
}}
"""
_DEFAULT_RULES = (
    "A new subscription has a rule $Default, which matches every message; whether a provider removes it depends on its",
    "release, and one that it does not remove makes a $Default of this file an error: import that, or leave it out.",
    "Queues and topics may hold messages: prevent_destroy keeps them.",
)


def _terraform(code: _Code) -> dict[str, str]:
    label = code.found.namespace
    text = code.comment("#", "For Terraform 1.7 and the provider hashicorp/azurerm 4, or newer ones.", *_DEFAULT_RULES)
    text += _TERRAFORM_HEAD.format(in_hcl(label))
    imports = code.comment("#", "Imports existing resources into the state. Delete this file after the first apply.")
    for resource in code.resources.values():
        kind, symbol = resource.address.split(".")
        path = "".join(f"/{part}" for pair in zip(resource.kinds, resource.names, strict=True) for part in pair)
        text += f'\nresource "{kind}" "{symbol}" {{\n{_hcl_lines(_terraform_body(resource))}}}\n'
        imports += f'\nimport {{\n  to = {resource.address}\n  id = "${{{_HERE}.id}}{in_hcl(path)[1:]}\n}}\n'
    return {f"sbpair-{label}.tf": text, f"sbpair-{label}-imports.tf": imports}


def _terraform_body(one: _Resource) -> dict[str, Any]:
    """Arguments of a resource, as Terraform's language writes their values, and its blocks."""
    above, address = (one.parent.kind, one.parent.address) if one.parent else ("namespace", _HERE)
    body: dict[str, Any] = {"name": in_hcl(one.names[-1]), f"{above}_id": f"{address}.id"}
    said = one.properties
    if one.kind != "rule":
        body |= {TERRAFORM_NAMES[name]: in_hcl(value) for name, value in said.items()}
        if one.before:
            body["depends_on"] = f"[{', '.join(other.address for other in one.before)}]"
        return body | {"lifecycle": {"prevent_destroy": "true"}}
    body["filter_type"] = in_hcl(said["filterType"])
    body |= {
        argument: in_hcl(said[name]["sqlExpression"])
        for name, argument in (("sqlFilter", "sql_filter"), ("action", "action"))
        if name in said
    }
    values = dict(said.get("correlationFilter", {}))
    properties = {in_hcl(name): in_hcl(value) for name, value in values.pop("properties", {}).items()}
    named = {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name): in_hcl(text) for name, text in values.items()}
    block = named | ({"properties =": properties} if properties else {})
    return body | ({"correlation_filter": block} if block else {})


def _hcl_lines(values: Mapping[str, Any], indent: str = "  ") -> str:
    """Lines as `terraform fmt` writes them, blocks behind a blank line."""
    plain = {name: value for name, value in values.items() if isinstance(value, str)}
    width = max(map(len, plain), default=0)
    parts = ["".join(f"{indent}{name.ljust(width)} = {value}\n" for name, value in plain.items())] if plain else []
    parts += [
        f"{indent}{name} {{\n{_hcl_lines(inner, indent + '  ')}{indent}}}\n"
        for name, inner in values.items()
        if name not in plain
    ]
    return "\n".join(parts)


# Bicep.


def _bicep(code: _Code) -> dict[str, str]:
    text = code.comment("//", "az deployment group create --resource-group GROUP --template-file FILE")
    text += f"param namespaceName string = {in_bicep(code.found.namespace)}\n"
    text += _bicep_resource("serviceBus", (), "existing ", {"name": _Symbol("namespaceName")})
    for resource in code.resources.values():
        parent = _Symbol(resource.parent.symbol if resource.parent else "serviceBus")
        body = {"parent": parent, "name": resource.names[-1], "properties": resource.properties}
        before = {"dependsOn": [_Symbol(other.symbol) for other in resource.before]} if resource.before else {}
        text += _bicep_resource(resource.symbol, resource.kinds, "", body | before)
    return {f"sbpair-{code.found.namespace}.bicep": text}


class _Symbol(str):
    """A name of the file, not a text."""


def _bicep_resource(symbol: str, kinds: Iterable[str], existing: str, body: Mapping[str, Any]) -> str:
    kind = "/".join(("Microsoft.ServiceBus/namespaces", *kinds))
    return f"\nresource {symbol} '{kind}@{API_VERSION}' {existing}= {_bicep_value(body, '')}\n"


def _bicep_value(value: Any, indent: str) -> str:
    deeper = indent + "  "
    if isinstance(value, Mapping):
        keys = {name: name if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) else in_bicep(name) for name in value}
        lines = (f"{deeper}{keys[name]}: {_bicep_value(item, deeper)}\n" for name, item in value.items())
        return "{\n" + "".join(lines) + indent + "}"
    if isinstance(value, list):
        return "[\n" + "".join(f"{deeper}{item}\n" for item in value) + indent + "]"
    return value if isinstance(value, _Symbol) else in_bicep(value)


# Config.json, and the snapshot.


def _config_json(code: _Code) -> dict[str, str]:
    namespace: dict[str, Any] = {"Name": code.found.namespace, "Queues": [], "Topics": []}
    places: dict[str, dict[str, Any]] = {}
    for resource in code.resources.values():
        usual = {} if resource.kind == "rule" else _properties(EntityKind(resource.kind), EntitySettings())
        given = {name: value for name, value in resource.properties.items() if usual.get(name) != value}
        name = from_arm_name(resource.names[-1]) if resource.parent is None else resource.names[-1]
        places[resource.symbol] = {"Name": name, "Properties": _as_in_net(given)}
        above = namespace if resource.parent is None else places[resource.parent.symbol]
        above.setdefault(f"{resource.kind.capitalize()}s", []).append(places[resource.symbol])
    return {"Config.json": json_text({"UserConfig": {"Namespaces": [namespace]}}, indent=2) + "\n"}


def _as_in_net(said: Mapping[str, Any]) -> dict[str, Any]:
    """The resource manager's properties in the spelling of .NET; names of application properties are as they are."""
    spelled: dict[str, Any] = {}
    for name, value in said.items():
        inner = _as_in_net(value) if isinstance(value, Mapping) and name != "properties" else value
        spelled[name[0].upper() + name[1:]] = value.removesuffix("Filter") if name == "filterType" else inner
    return spelled


def _snapshot(code: _Code) -> dict[str, str]:
    return {f"sbpair-{code.found.namespace}.json": json_text(Contents.of(code.found).to_dict(), indent=1) + "\n"}


FORMATS: Mapping[ExportKind, _Format] = {
    ExportKind.TERRAFORM: _Format(_terraform, metadata=False, topics_without_senders=False),
    ExportKind.BICEP: _Format(_bicep),
    ExportKind.CONFIG_JSON: _Format(_config_json, typed_values=True, tier=False),
    ExportKind.SNAPSHOT: _Format(_snapshot),
}


def written_of(kind: ExportKind, found: FoundNamespace) -> tuple[dict[str, str], tuple[str, ...]]:
    """File name -> text, and what the files do not have. `kind` is one of `FORMATS`."""
    code = _Code(found, FORMATS[kind])
    return FORMATS[kind].write(code), () if kind is ExportKind.SNAPSHOT else tuple(code.left_out)
