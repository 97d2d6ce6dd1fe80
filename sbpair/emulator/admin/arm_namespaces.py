"""The namespace itself in the resource manager, and what hangs on it without being an entity or a key.

There is one namespace to create or delete: DELETE removes all entities and hides it until the next PUT.
"""

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sbpair.emulator import geo
from sbpair.emulator.admin.arm_models import (
    ArmDirectory,
    ArmFacts,
    Json,
    ResourceScope,
    namespace_resource,
    object_at,
    rule_rights,
    text,
    wrong_type,
)
from sbpair.emulator.admin.calls import AdminCall, AdminReply, json_reply, listed, method_not_allowed, only, page_of
from sbpair.emulator.entities import ROOT_KEY_NAME, AuthorizationRule
from sbpair.emulator.geo import ALONE, PRIMARY, SECONDARY
from sbpair.emulator.geo import wrong_state as _wrong_state
from sbpair.emulator.namespace import Namespace, delete_all, new_auth_rule
from sbpair.engine.errors import bad_request, not_found
from sbpair.service import Tier

MESSAGING_UNITS = (1, 2, 4, 8, 16)
EMPTY_COLLECTIONS = frozenset(
    {"privateendpointconnections", "migrationconfigurations", "networksecurityperimeterconfigurations"}
)
_NETWORK_RULES = (
    "defaultAction",
    "publicNetworkAccess",
    "trustedServiceAccessEnabled",
    "virtualNetworkRules",
    "ipRules",
)


@dataclass(frozen=True, slots=True)
class NamespaceResources:
    """One request's namespace."""

    namespace: Namespace
    facts: ArmFacts
    scope: ResourceScope
    host: str

    def handle(self, call: AdminCall, rest: tuple[str, ...]) -> AdminReply:
        """Answer a request for the namespace or a collection on it; `rest` follows the namespace's name."""
        words = tuple(part.lower() for part in rest)
        match words:
            case ():
                return self._namespace(call)
            case ("networkrulesets",):
                return listed([self._network_rules()])
            case ("networkrulesets", "default"):
                return self._network_rule_set(call)
            case ("privatelinkresources",):
                return listed([self._private_link()])
            case ("failover",) if call.method == "POST":
                return self._fail_over(call)
            case (collection,) if collection in EMPTY_COLLECTIONS and call.method == "GET":
                return listed([])
            case (collection, _) if collection in EMPTY_COLLECTIONS and call.method == "DELETE":
                return AdminReply(204)
        raise not_found(f"The requested resource '{'/'.join(rest)}' does not exist.")

    def _namespace(self, call: AdminCall) -> AdminReply:
        handlers: dict[str, Callable[[AdminCall], AdminReply]] = {
            "GET": lambda _: self._reply(),
            "PUT": self._put,
            "PATCH": self._patch,
            "DELETE": lambda _: self._delete(),
        }
        if call.method not in handlers:
            raise method_not_allowed(call)
        return handlers[call.method](call)

    def _reply(self) -> AdminReply:
        return json_reply(namespace_resource(self.scope, self.namespace, self.facts, self.host))

    def _put(self, call: AdminCall) -> AdminReply:
        body = call.json_object()
        location = text(body.get("location"), "location")
        self._set_sku(object_at(body, "sku"))
        self._set_properties(object_at(body, "properties"))
        self.facts.location = location
        self.facts.tags = _tags(body)
        self.facts.deleted = False
        self.namespace.updated_at = call.now
        return self._reply()

    def _patch(self, call: AdminCall) -> AdminReply:
        body = call.json_object()
        if body.get("sku") is not None:
            self._set_sku(object_at(body, "sku"))
        self._set_properties(object_at(body, "properties"))
        if body.get("tags") is not None:
            self.facts.tags = _tags(body)
        self.namespace.updated_at = call.now
        return self._reply()

    def tags(self, call: AdminCall) -> AdminReply:
        """The namespace's tags as a resource of their own, which the .NET management client changes them by."""
        if call.method in ("PUT", "PATCH"):
            body = call.json_object()
            given = _tags(object_at(body, "properties"))
            operation = "replace" if call.method == "PUT" else text(body.get("operation"), "operation").lower()
            if operation not in ("replace", "merge", "delete"):
                raise bad_request(f"The operation '{operation}' is not one of Replace, Merge and Delete.")
            kept = {} if operation == "replace" else self.facts.tags
            if operation == "delete":
                self.facts.tags = {name: value for name, value in kept.items() if given.get(name) != value}
            else:
                self.facts.tags = kept | given
        elif call.method == "DELETE":
            self.facts.tags = {}
        elif call.method != "GET":
            raise method_not_allowed(call)
        return json_reply(self.scope.tags(self.facts.tags))

    def _delete(self) -> AdminReply:
        if self.facts.deleted:
            return AdminReply(204)
        delete_all(self.namespace)
        self.namespace.disaster_recovery_configs.clear()
        self.facts.deleted = True
        return AdminReply(200)

    def _set_sku(self, sku: Json) -> None:
        name = sku.get("name") or self.namespace.tier.value
        tier = next((tier for tier in Tier if tier.value.lower() == str(name).lower()), None)
        if tier is None:
            raise bad_request(f"The SKU '{name}' is not one of Basic, Standard and Premium.")
        if Tier.PREMIUM in (tier, self.namespace.tier) and tier is not self.namespace.tier:
            raise bad_request(f"The tier cannot be changed from '{self.namespace.tier.value}' to '{tier.value}'.")
        self.namespace.tier = tier
        capacity = sku.get("capacity")
        if tier is Tier.PREMIUM and capacity is not None:
            if capacity not in MESSAGING_UNITS:
                raise bad_request(f"The capacity must be one of {MESSAGING_UNITS}, not '{capacity}'.")
            self.namespace.messaging_units = int(str(capacity))

    def _set_properties(self, properties: Json) -> None:
        disable_local_auth = properties.get("disableLocalAuth", self.facts.disable_local_auth)
        zone_redundant = properties.get("zoneRedundant", self.facts.zone_redundant)
        if type(disable_local_auth) is not bool or type(zone_redundant) is not bool:
            raise bad_request("'disableLocalAuth' and 'zoneRedundant' are true or false.")
        access = text(properties.get("publicNetworkAccess", self.facts.public_network_access), "publicNetworkAccess")
        tls = text(properties.get("minimumTlsVersion", self.facts.minimum_tls_version), "minimumTlsVersion")
        replication = properties.get("geoDataReplication", self.facts.geo_data_replication)
        if replication is not None and not isinstance(replication, dict):
            raise wrong_type("geoDataReplication", replication)
        self.facts.disable_local_auth, self.facts.zone_redundant = disable_local_auth, zone_redundant
        self.namespace.access.allow_keys(not disable_local_auth)
        self.facts.public_network_access, self.facts.minimum_tls_version = access, tls
        if replication != self.facts.geo_data_replication:
            lag = (replication or {}).get("maxReplicationLagDurationInSeconds", 0)
            if type(lag) is not int or lag < 0:
                raise wrong_type("maxReplicationLagDurationInSeconds", lag)
            self.namespace.replicate_geo(None if replication is None else float(lag))
        self.facts.geo_data_replication = replication

    def _network_rules(self) -> Json:
        return self.scope.child("networkRuleSets", "default", properties=self.facts.network_rules)

    def _network_rule_set(self, call: AdminCall) -> AdminReply:
        if call.method == "PUT":
            given = object_at(call.json_object(), "properties")
            self.facts.network_rules |= {name: given[name] for name in _NETWORK_RULES if given.get(name) is not None}
        elif call.method != "GET":
            raise method_not_allowed(call)
        return json_reply(self._network_rules())

    def _private_link(self) -> Json:
        properties = {
            "groupId": "namespace",
            "requiredMembers": ["namespace"],
            "requiredZoneNames": ["privatelink.servicebus.windows.net"],
        }
        return self.scope.child("privateLinkResources", "namespace", properties=properties)

    def _fail_over(self, call: AdminCall) -> AdminReply:
        """Promote another location of a geo-replicated namespace; the `Location` says where to look. Without `force`
        it is done when that has everything (`emulator.geo`)."""
        replication = self.facts.geo_data_replication
        properties = object_at(call.json_object(), "properties")
        wanted = properties.get("primaryLocation")
        locations = replication.get("locations") if replication else None
        if not isinstance(locations, list) or not all(isinstance(place, dict) for place in locations):
            raise bad_request("The namespace is not geo-replicated.")
        if _plain(str(wanted)) not in [_plain(str(place.get("locationName"))) for place in locations]:
            raise bad_request(f"'{wanted}' is not a location of this namespace.")

        def promoted() -> None:
            for place in locations:
                is_primary = _plain(str(place.get("locationName"))) == _plain(str(wanted))
                place["roleType"] = "Primary" if is_primary else "Secondary"

        if self.namespace.geo_replication is None or self.namespace.read_only:
            raise bad_request("The namespace is not geo-replicated, or a promotion is under way.")
        self.namespace.geo_replication.promote(promoted, forced=properties.get("force") is True)
        status_url = f"{call.base_url}{self.scope.id}?api-version={call.query.get('api-version', '')}"
        return AdminReply(202, headers={"Location": status_url})


def _tags(body: Json) -> dict[str, str]:
    return {key: text(value, f"tags.{key}") for key, value in object_at(body, "tags").items()}


def _plain(location: str) -> str:
    """`West Europe` and `westeurope` are the same place."""
    return location.replace(" ", "").lower()


_COLLECTION = "disasterRecoveryConfigs"


@dataclass(frozen=True, slots=True)
class RecoveryConfigs:
    """Geo-disaster-recovery pairings of one namespace: aliases that join a primary and a secondary.

    Pairing, breaking and failing over (see `emulator.geo`) take effect at once, where the service takes
    minutes. An alias has an address only if the emulator was started with it. `directory` leads to the partner, if this
    resource manager knows it.
    """

    _directory: ArmDirectory
    _namespace: Namespace
    _scope: ResourceScope
    _host: str

    def handle(self, call: AdminCall, tail: tuple[str, ...]) -> AdminReply:
        """A request to `…/disasterRecoveryConfigs` and below; `tail` is what follows that word."""
        if not tail:
            return listed(self._resource(alias) for alias in sorted(self._configs))
        if len(tail) == 1 and tail[0].lower() == "checknameavailability":
            return self._check_name(call)
        if len(tail) == 1:
            return self._one(call, tail[0])
        if len(tail) == 2 and call.method == "POST" and tail[1].lower() == "breakpairing":
            return self._break_pairing(tail[0])
        if len(tail) == 2 and call.method == "POST" and tail[1].lower() == "failover":
            return self._fail_over(tail[0])
        if tail[1].lower() == "authorizationrules":
            return self._keys(call, tail[0], tail[2:])
        raise not_found(f"The resource '{call.path}' does not exist.")

    @property
    def _configs(self) -> dict[str, Json]:
        return self._namespace.disaster_recovery_configs

    def _config(self, alias: str) -> Json:
        config = self._configs.get(alias)
        if config is None:
            raise not_found(f"The disaster recovery alias '{alias}' does not exist.")
        return config

    def _resource(self, alias: str) -> Json:
        return self._scope.child(_COLLECTION, alias, properties=self._config(alias))

    def _check_name(self, call: AdminCall) -> AdminReply:
        only(call, "POST")
        name = text(call.json_object().get("name"), "name")
        taken = name in self._configs or self._directory.find(name) is not None
        reason = "NameInUse" if taken else "None"
        message = f"The name '{name}' is in use." if taken else ""
        return json_reply({"nameAvailable": not taken, "reason": reason, "message": message})

    def _one(self, call: AdminCall, alias: str) -> AdminReply:
        if call.method == "GET":
            return json_reply(self._resource(alias))
        if call.method == "PUT":
            created = alias not in self._configs
            self._pair(alias, object_at(call.json_object(), "properties"))
            return json_reply(self._resource(alias), 201 if created else 200)
        if call.method == "DELETE":
            return self._delete(alias)
        raise method_not_allowed(call)

    def _pair(self, alias: str, properties: Json) -> None:
        if self._namespace.tier is not Tier.PREMIUM:
            raise bad_request("Geo-disaster recovery is only available for namespaces of the 'Premium' tier.")
        old = self._configs.get(alias, {})
        partner_id = text(properties.get("partnerNamespace") or "", "partnerNamespace")
        if old.get("role") == SECONDARY:
            raise _wrong_state("The pairing can only be changed on the primary namespace.")
        if old.get("partnerNamespace") and partner_id != old["partnerNamespace"]:
            raise _wrong_state(f"The alias '{alias}' is paired already; break the pairing first.")
        partner = self._partner(partner_id)
        if partner is self._namespace:
            raise bad_request("A namespace cannot be its own partner.")
        own = _config(PRIMARY if partner_id else ALONE, partner_id, properties)
        if partner is None:
            self._configs[alias] = own
        else:
            there = _config(SECONDARY, self._scope.id, properties)
            geo.pair(alias, self._namespace, partner, (own, there))

    def _delete(self, alias: str) -> AdminReply:
        config = self._configs.get(alias)
        if config is None:
            return AdminReply(204)
        if config["partnerNamespace"]:
            raise _wrong_state(f"The alias '{alias}' is paired; break the pairing before deleting it.")
        del self._configs[alias]
        return AdminReply(200)

    def _break_pairing(self, alias: str) -> AdminReply:
        config = self._config(alias)
        if config["role"] != PRIMARY:
            raise _wrong_state("The pairing can only be broken on the primary namespace.")
        geo.part(alias, self._namespace)
        return AdminReply(200)

    def _fail_over(self, alias: str) -> AdminReply:
        self._config(alias)
        geo.fail_over(alias, self._namespace)
        return AdminReply(200)

    def _keys(self, call: AdminCall, alias: str, tail: tuple[str, ...]) -> AdminReply:
        self._config(alias)
        holder = namespace_holder(self._namespace)
        if len(tail) == 2 and tail[1].lower() == "listkeys" and call.method == "POST":
            rule = holder.find(tail[0])
            if rule is None:
                raise not_found(f"The authorization rule '{tail[0]}' does not exist.")
            return json_reply(access_keys(rule, self._host, alias=alias))
        only(call, "GET")
        return handle_rules(call, self._scope, holder, tail, self._host)

    def _partner(self, partner_id: str) -> Namespace | None:
        found = self._directory.find(partner_id.rpartition("/")[2]) if partner_id else None
        return None if found is None else found[0]


def _config(role: str, partner: str, properties: Json) -> Json:
    config: Json = {
        "provisioningState": "Succeeded",
        "pendingReplicationOperationsCount": 0,
        "partnerNamespace": partner,
        "role": role,
    }
    if properties.get("alternateName"):
        config["alternateName"] = text(properties["alternateName"], "alternateName")
    return config


# Authorization rules of the resource manager: of a namespace, a queue or a topic, and their keys.


@dataclass(frozen=True, slots=True)
class RuleHolder:
    """Something with authorization rules: how to read and replace them, and where they live in resource ids."""

    read: Callable[[], Sequence[AuthorizationRule]]
    put: Callable[[AuthorizationRule], object]
    delete: Callable[[str], object]
    parent: tuple[str, ...]
    entity_path: str = ""

    def find(self, name: str) -> AuthorizationRule | None:
        """The rule of that name, whatever its case."""
        return next((rule for rule in self.read() if rule.name.lower() == name.lower()), None)


def namespace_holder(namespace: Namespace) -> RuleHolder:
    return RuleHolder(
        read=lambda: [rule for _, rule in sorted(namespace.auth_rules.items())],
        put=namespace.set_auth_rule,
        delete=namespace.access.delete,
        parent=(),
    )


def entity_holder(namespace: Namespace, kind: str, path: str) -> RuleHolder:
    """The rules of one queue or topic (`kind` is `queues` or `topics`); EntityError 404 if it does not exist."""
    found = namespace.get_queue(path) if kind == "queues" else namespace.get_topic(path)
    if found is None:
        raise not_found(f"The messaging entity '{path}' could not be found in the namespace '{namespace.name}'.")

    def current() -> tuple[AuthorizationRule, ...]:
        return found.description.authorization_rules

    def replace_all(rules: Iterable[AuthorizationRule]) -> None:
        kept = tuple(sorted(rules, key=lambda rule: rule.name))
        namespace.update(path, replace(found.description, authorization_rules=kept))

    return RuleHolder(
        read=current,
        put=lambda rule: replace_all([*(one for one in current() if one.name != rule.name), rule]),
        delete=lambda name: replace_all(one for one in current() if one.name != name),
        parent=(kind, found.path),
        entity_path=found.path,
    )


def handle_rules(
    call: AdminCall, scope: ResourceScope, holder: RuleHolder, tail: tuple[str, ...], host: str
) -> AdminReply:
    """A request to `…/authorizationRules` and below; `tail` is what follows that word."""
    if not tail:
        return _list(call, scope, holder)
    name = tail[0]
    if len(tail) == 2 and call.method == "POST":
        rule = holder.find(name)
        if rule is None:
            raise _missing(name)
        if tail[1].lower() == "listkeys":
            return json_reply(access_keys(rule, host, holder.entity_path))
        if tail[1].lower() == "regeneratekeys":
            renewed = _regenerated(rule, call)
            holder.put(renewed)
            return json_reply(access_keys(renewed, host, holder.entity_path))
    if len(tail) != 1:
        raise not_found(f"The resource '{call.path}' does not exist.")
    return _one(call, scope, holder, name)


def access_keys(rule: AuthorizationRule, host: str, entity_path: str = "", alias: str = "") -> Json:
    """The keys of a rule with ready connection strings. They carry the mark that lets clients keep the port."""
    keys: Json = {
        "primaryConnectionString": _connection_string(host, rule.name, rule.primary_key, entity_path),
        "secondaryConnectionString": _connection_string(host, rule.name, rule.secondary_key, entity_path),
        "primaryKey": rule.primary_key,
        "secondaryKey": rule.secondary_key,
        "keyName": rule.name,
    }
    if alias:
        keys["aliasPrimaryConnectionString"] = _connection_string(alias, rule.name, rule.primary_key, entity_path)
        keys["aliasSecondaryConnectionString"] = _connection_string(alias, rule.name, rule.secondary_key, entity_path)
    return keys


def rule_resource(scope: ResourceScope, holder: RuleHolder, rule: AuthorizationRule) -> Json:
    return scope.child(*holder.parent, "authorizationRules", rule.name, properties=rule_rights(rule))


def _list(call: AdminCall, scope: ResourceScope, holder: RuleHolder) -> AdminReply:
    only(call, "GET")
    rules = page_of(call).cut(list(holder.read()), call.entries_to_drop)
    return json_reply({"value": [rule_resource(scope, holder, rule) for rule in rules]})


def _one(call: AdminCall, scope: ResourceScope, holder: RuleHolder, name: str) -> AdminReply:
    rule = holder.find(name)
    if call.method == "PUT":
        made = _from_body(name, rule, call)
        holder.put(made)
        return json_reply(rule_resource(scope, holder, made))
    if call.method == "GET":
        if rule is None:
            raise _missing(name)
        return json_reply(rule_resource(scope, holder, rule))
    if call.method == "DELETE":
        if rule is None:
            return AdminReply(204)
        if rule.name == ROOT_KEY_NAME and not holder.parent:
            raise bad_request(f"The authorization rule '{ROOT_KEY_NAME}' cannot be deleted.")
        holder.delete(rule.name)
        return AdminReply(200)
    raise method_not_allowed(call)


def _from_body(name: str, old: AuthorizationRule | None, call: AdminCall) -> AuthorizationRule:
    rights = object_at(call.json_object(), "properties").get("rights")
    if not isinstance(rights, list) or not all(isinstance(right, str) for right in rights):
        raise wrong_type("rights", rights)
    if old is not None:
        return replace(old, rights=frozenset(rights))
    return new_auth_rule(name, rights)


def _regenerated(rule: AuthorizationRule, call: AdminCall) -> AuthorizationRule:
    body = call.json_object()
    fresh = new_auth_rule(rule.name, rule.rights).primary_key
    key = fresh if body.get("key") is None else _checked_key(text(body["key"], "key"))
    match body.get("keyType"):
        case "PrimaryKey":
            return replace(rule, primary_key=key)
        case "SecondaryKey":
            return replace(rule, secondary_key=key)
    raise bad_request("'keyType' must be 'PrimaryKey' or 'SecondaryKey'.")


def _checked_key(key: str) -> str:
    try:
        length = len(base64.b64decode(key, validate=True))
    except ValueError as error:
        raise bad_request("The key must be 32 bytes in base64.") from error
    if length != 32:
        raise bad_request("The key must be 32 bytes in base64.")
    return key


def _missing(name: str) -> Exception:
    return not_found(f"The authorization rule '{name}' does not exist.")


def _connection_string(host: str, name: str, key: str, entity_path: str) -> str:
    entity = f";EntityPath={entity_path}" if entity_path else ""
    # Without a port it is the service's own, where clients need no hint that this is no service.
    emulator = ";UseDevelopmentEmulator=true" if host.rpartition(":")[2].isdecimal() else ""
    return f"Endpoint=sb://{host}/;SharedAccessKeyName={name};SharedAccessKey={key}{entity}{emulator}"
