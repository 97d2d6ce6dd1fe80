"""Resources of the resource manager as JSON, and the facts about a namespace that only the resource manager knows."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sbpair.emulator.admin.fields import (
    FIELDS,
    RIGHTS,
    Description,
    Runtime,
    capitalized,
    counts_of,
    facts_of,
    format_time,
    setting_from_json,
    setting_to_json,
    small,
)
from sbpair.emulator.entities import AuthorizationRule, CorrelationFilter, RuleDescription, SqlAction, SqlFilter
from sbpair.emulator.namespace import Namespace
from sbpair.engine.errors import EntityError, bad_request
from sbpair.service import CORRELATION_FIELDS, Tier

Json = dict[str, object]
PROVIDER = "Microsoft.ServiceBus"


@dataclass(slots=True)
class ArmFacts:
    """What the resource manager says about a namespace beyond its entities. A fixture may set any of it.

    `geo_data_replication` is the JSON object of that name or None; `deleted` is true between a DELETE and the next PUT.
    """

    location: str = "westeurope"
    tags: dict[str, str] = field(default_factory=dict)
    status: str = "Active"
    zone_redundant: bool = False
    disable_local_auth: bool = False
    public_network_access: str = "Enabled"
    minimum_tls_version: str = "1.2"
    geo_data_replication: Json | None = None
    network_rules: Json = field(
        default_factory=lambda: {
            "defaultAction": "Allow",
            "publicNetworkAccess": "Enabled",
            "trustedServiceAccessEnabled": False,
            "virtualNetworkRules": [],
            "ipRules": [],
        }
    )
    deleted: bool = False


class ArmDirectory:
    """The namespaces one resource manager endpoint answers for, with their facts.

    `namespaces` is asked each time, so namespaces may come and go. A namespace is known by its name and by the
    `host:port` it listens on.
    """

    def __init__(self, namespaces: Callable[[], Iterable[Namespace]]) -> None:
        self._namespaces = namespaces
        self._facts: dict[str, ArmFacts] = {}

    def known(self) -> list[Namespace]:
        """All namespaces that take bearer tokens, deleted or not: the others have no resource manager."""
        return [one for one in self._namespaces() if one.allow_entra]

    def all(self) -> list[Namespace]:
        """All namespaces that are not deleted."""
        return [one for one in self.known() if not self.facts(one).deleted]

    def facts(self, namespace: Namespace) -> ArmFacts:
        """The facts of a namespace, made on first use."""
        return self._facts.setdefault(namespace.name.lower(), ArmFacts())

    def find(self, name: str) -> tuple[Namespace, str] | None:
        """The namespace of that name, deleted or not, and the name it reports."""
        for namespace in self.known():
            if name.lower() in (namespace.name.lower(), *_addresses(namespace)):
                return namespace, name if ":" in name else namespace.name
        return None


def _addresses(namespace: Namespace) -> tuple[str, ...]:
    """The `host:port` texts a namespace goes by."""
    return tuple(f"{host}:{namespace.port}" for host in (namespace.host, "127.0.0.1", "localhost"))


@dataclass(frozen=True, slots=True)
class ResourceScope:
    """Where a resource lives: the id and type of its namespace, and the location it reports."""

    subscription_id: str
    resource_group: str
    namespace_name: str
    location: str

    @property
    def id(self) -> str:
        """The resource id of the namespace."""
        return (
            f"/subscriptions/{self.subscription_id}/resourceGroups/{self.resource_group}"
            f"/providers/{PROVIDER}/namespaces/{self.namespace_name}"
        )

    def tags(self, tags: Mapping[str, str]) -> Json:
        kind = "Microsoft.Resources/tags"
        return {
            "id": f"{self.id}/providers/{kind}/default",
            "name": "default",
            "type": kind,
            "properties": {"tags": dict(tags)},
        }

    def child(self, *path: str, properties: Mapping[str, object]) -> Json:
        """A resource below the namespace; `path` alternates collection and name: `("queues", "a/b")`."""
        names = [arm_name(part) if at % 2 else part for at, part in enumerate(path)]
        return {
            "id": "/".join((self.id, *names)),
            "name": names[-1],
            "type": "/".join((f"{PROVIDER}/namespaces", *path[::2])),
            "location": self.location,
            "properties": dict(properties),
        }


def arm_name(path: str) -> str:
    """An entity path as the resource manager names it: `~` for `/`, which separates the parts of a resource id."""
    return path.replace("/", "~")


def entity_path(name: str) -> str:
    """The entity path behind a resource name; both `~` and an escaped `/` are understood."""
    return name.replace("~", "/")


def namespace_resource(scope: ResourceScope, namespace: Namespace, facts: ArmFacts, host: str) -> Json:
    sku: Json = {"name": namespace.tier.value, "tier": namespace.tier.value}
    properties: Json = {
        "provisioningState": "Succeeded",
        "status": facts.status,
        "createdAt": format_time(namespace.created_at),
        "updatedAt": format_time(namespace.updated_at),
        "serviceBusEndpoint": f"https://{namespace.public_host or host}/",
        "metricId": f"{scope.subscription_id}:{scope.namespace_name.lower()}",
        "zoneRedundant": facts.zone_redundant,
        "disableLocalAuth": facts.disable_local_auth,
        "publicNetworkAccess": facts.public_network_access,
        "minimumTlsVersion": facts.minimum_tls_version,
        "privateEndpointConnections": [],
        "geoDataReplication": facts.geo_data_replication,
    }
    if namespace.tier is Tier.PREMIUM:
        sku["capacity"] = namespace.messaging_units
        properties["premiumMessagingPartitions"] = namespace.premium_partitions
    return {
        "id": scope.id,
        "name": scope.namespace_name,
        "type": f"{PROVIDER}/Namespaces",
        "location": facts.location,
        "tags": facts.tags,
        "sku": sku,
        "properties": properties,
    }


def entity_properties(description: Description, runtime: Runtime) -> Json:
    """The `properties` of a queue, topic or subscription."""
    properties: Json = {}
    for setting in FIELDS[type(description)]:
        value = setting_to_json(setting, getattr(description, setting.attribute))
        if value is not None:
            properties[setting.property] = value
    properties["countDetails"] = {small(name): number for name, number in counts_of(runtime.counts).items()}
    return properties | {small(name): value for name, value in facts_of(description, runtime).items()}


def read_settings(properties: Json, kind: type[Description]) -> Json:
    """The settings given in a resource's `properties`; null counts as not given. EntityError 40000 for nonsense."""
    return {
        setting.attribute: setting_from_json(setting, properties[setting.property])
        for setting in FIELDS[kind]
        if properties.get(setting.property) is not None
    }


def rule_properties(rule: RuleDescription) -> Json:
    """The `properties` of a subscription rule. True and false filters are SQL filters here."""
    action: Json = {}
    if rule.action is not None:
        action = {"sqlExpression": rule.action.expression, "compatibilityLevel": 20, "requiresPreprocessing": False}
    if isinstance(rule.filter, CorrelationFilter):
        compared: Json = {
            small(capitalized(name)): getattr(rule.filter, name)
            for name in CORRELATION_FIELDS
            if getattr(rule.filter, name) is not None
        }
        compared["properties"] = {key: str(value) for key, value in rule.filter.properties.items()}
        return {"action": action, "filterType": "CorrelationFilter", "correlationFilter": compared}
    sql: Json = {"sqlExpression": rule.filter.expression, "compatibilityLevel": 20}
    return {"action": action, "filterType": "SqlFilter", "sqlFilter": sql}


def read_rule(properties: Json) -> RuleDescription:
    """A rule out of its `properties`; without a filter it matches everything. EntityError 40000 for nonsense."""
    action = object_at(properties, "action").get("sqlExpression")
    sql, correlation = object_at(properties, "sqlFilter"), object_at(properties, "correlationFilter")
    kind = properties.get("filterType") or ("CorrelationFilter" if correlation else "SqlFilter")
    sql_action = None if action is None else SqlAction(expression=text(action, "sqlExpression"))
    if kind == "CorrelationFilter":
        return RuleDescription(filter=_correlation_filter(correlation), action=sql_action)
    if kind != "SqlFilter":
        raise bad_request(f"The filter type '{kind}' is not known.")
    if not sql:
        return RuleDescription(action=sql_action)
    expression = text(sql.get("sqlExpression"), "sqlExpression")
    return RuleDescription(filter=SqlFilter(expression=expression), action=sql_action)


def rule_rights(rule: AuthorizationRule) -> Json:
    """The `properties` of an authorization rule."""
    return {"rights": [right for right in RIGHTS if right in rule.rights]}


def object_at(parent: Json, name: str) -> Json:
    """The object of that name, empty if it is absent or null."""
    value = parent.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong_type(name, value)
    return value


def text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(name, value)
    return value


def wrong_type(name: str, value: object) -> EntityError:
    """The refusal of a JSON value of the wrong type."""
    return bad_request(f"The value '{value}' of '{name}' has the wrong type.")


def _correlation_filter(compared: Json) -> CorrelationFilter:
    fields = {
        attribute: text(compared[name], name)
        for attribute, name in ((one, small(capitalized(one))) for one in CORRELATION_FIELDS)
        if compared.get(name) is not None
    }
    properties = {key: text(value, key) for key, value in object_at(compared, "properties").items()}
    return CorrelationFilter(properties=properties, **fields)
