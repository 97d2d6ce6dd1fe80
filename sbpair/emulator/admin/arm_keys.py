"""Authorization rules of the resource manager: of a namespace, a queue or a topic, and their keys."""

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from sbpair.emulator.admin.arm_models import Json, Scope, object_at, rule_rights, text, wrong_type
from sbpair.emulator.admin.calls import Call, Reply, json_reply, method_not_allowed, only, page_of
from sbpair.emulator.entities import ROOT_KEY_NAME, AuthorizationRule
from sbpair.emulator.namespace import Namespace, new_auth_rule
from sbpair.engine.errors import bad_request, not_found


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


def handle_rules(call: Call, scope: Scope, holder: RuleHolder, tail: tuple[str, ...], host: str) -> Reply:
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


def rule_resource(scope: Scope, holder: RuleHolder, rule: AuthorizationRule) -> Json:
    return scope.child(*holder.parent, "authorizationRules", rule.name, properties=rule_rights(rule))


def _list(call: Call, scope: Scope, holder: RuleHolder) -> Reply:
    only(call, "GET")
    rules = page_of(call).cut(list(holder.read()), call.entries_to_drop)
    return json_reply({"value": [rule_resource(scope, holder, rule) for rule in rules]})


def _one(call: Call, scope: Scope, holder: RuleHolder, name: str) -> Reply:
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
            return Reply(204)
        if rule.name == ROOT_KEY_NAME and not holder.parent:
            raise bad_request(f"The authorization rule '{ROOT_KEY_NAME}' cannot be deleted.")
        holder.delete(rule.name)
        return Reply(200)
    raise method_not_allowed(call)


def _from_body(name: str, old: AuthorizationRule | None, call: Call) -> AuthorizationRule:
    rights = object_at(call.json_object(), "properties").get("rights")
    if not isinstance(rights, list) or not all(isinstance(right, str) for right in rights):
        raise wrong_type("rights", rights)
    if old is not None:
        return replace(old, rights=frozenset(rights))
    return new_auth_rule(name, rights)


def _regenerated(rule: AuthorizationRule, call: Call) -> AuthorizationRule:
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
