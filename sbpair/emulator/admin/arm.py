"""The resource manager's REST API for Service Bus namespaces.

Any subscription id that is a GUID and any resource group will do; the namespace must be one of the directory. Entities
are named with `~` where their path has `/`. Everything takes effect at once: what the service does in the background
answers `Succeeded` straight away. Bearer tokens only, and every valid one may do everything; a namespace that takes
none (`allow_entra`) does not exist here.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from sbpair.emulator.admin.arm_models import (
    PROVIDER,
    ArmDirectory,
    ArmFacts,
    Json,
    ResourceScope,
    entity_path,
    entity_properties,
    namespace_resource,
    object_at,
    read_rule,
    read_settings,
    rule_properties,
    text,
)
from sbpair.emulator.admin.arm_namespaces import (
    NamespaceResources,
    RecoveryConfigs,
    entity_holder,
    handle_rules,
    namespace_holder,
)
from sbpair.emulator.admin.calls import (
    JSON_CONTENT_TYPE,
    AdminCall,
    AdminReply,
    arm_error,
    json_reply,
    listed,
    only,
    page_of,
    unchanged_left_out,
)
from sbpair.emulator.admin.fields import runtime_of
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Subscription, Topic
from sbpair.emulator.entities import QueueDescription, SubscriptionDescription, TopicDescription
from sbpair.emulator.filters import Rule
from sbpair.emulator.namespace import Namespace
from sbpair.engine.auth import RESOURCE_MANAGER_AUDIENCES, AuthError, authenticate
from sbpair.engine.errors import EntityError, not_found

TAGS_API_VERSION = "2022-09-01"
API_VERSIONS = frozenset(
    {
        "2017-04-01",
        "2018-01-01-preview",
        "2021-01-01-preview",
        "2021-06-01-preview",
        "2021-11-01",
        "2022-01-01-preview",
        "2022-10-01-preview",
        "2023-01-01-preview",
        "2024-01-01",
        "2025-05-01-preview",
        "2026-01-01",
    }
)
_GUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
Item = TypeVar("Item")


def is_arm_path(segments: Sequence[str]) -> bool:
    """Whether a path belongs to the resource manager: `/subscriptions/{GUID}/…` or `/providers/…`."""
    first = segments[0].lower() if segments else ""
    if first == "providers":
        return True
    return first == "subscriptions" and len(segments) > 1 and _GUID.fullmatch(segments[1]) is not None


class ArmApi:
    """The resource manager over a directory of namespaces."""

    def __init__(self, directory: ArmDirectory) -> None:
        self._directory = directory

    def handle(self, call: AdminCall) -> AdminReply:
        """Answer one request; a refusal becomes the documented error body."""
        try:
            self._check_token(call)
            _check_api_version(call)
            return self._route(call)
        except EntityError as error:
            return arm_error(error, call)

    def _check_token(self, call: AdminCall) -> None:
        token = call.headers.get("authorization", "")
        if not token.startswith("Bearer "):
            raise _unauthenticated(
                "Authentication failed. The 'Authorization' header is missing or is no bearer token."
            )
        allowed = bool(self._directory.known())
        try:
            authenticate((), token, "", call.now, allow_entra=allowed, audiences=RESOURCE_MANAGER_AUDIENCES)
        except AuthError as error:
            raise _unauthenticated(f"Authentication failed. {error}") from error

    def _route(self, call: AdminCall) -> AdminReply:
        words = tuple(segment.lower() for segment in call.segments)
        provider = PROVIDER.lower()
        match words:
            case ("providers", name, "operations") if name == provider:
                return listed([])
            case ("subscriptions", _, "providers", name, "namespaces") if name == provider:
                return self._namespaces(call, "emulator")
            case ("subscriptions", _, "providers", name, "checknameavailability") if name == provider:
                return self._check_name(call)
            case ("subscriptions", _, "resourcegroups", _, "providers", name, "namespaces") if name == provider:
                return self._namespaces(call, call.segments[3])
            case ("subscriptions", _, "resourcegroups", _, "providers", name, "namespaces", *_) if name == provider:
                return self._in_namespace(call)
        raise not_found(f"The resource '{call.path}' does not exist.")

    def _namespaces(self, call: AdminCall, resource_group: str) -> AdminReply:
        only(call, "GET")
        resources = []
        for namespace in self._directory.all():
            facts = self._directory.facts(namespace)
            scope = ResourceScope(call.segments[1], resource_group, namespace.name, facts.location)
            resources.append(namespace_resource(scope, namespace, facts, host_of(namespace, call)))
        return listed(resources)

    def _check_name(self, call: AdminCall) -> AdminReply:
        only(call, "POST")
        name = text(call.json_object().get("name"), "name")
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{4,48}[A-Za-z0-9]", name):
            message = f"The namespace name '{name}' is not valid."
            return json_reply({"nameAvailable": False, "reason": "InvalidName", "message": message})
        taken = any(namespace.name.lower() == name.lower() for namespace in self._directory.all())
        reason = "NameInUse" if taken else "None"
        return json_reply({"nameAvailable": not taken, "reason": reason, "message": ""})

    def _in_namespace(self, call: AdminCall) -> AdminReply:
        subscription_id, group, name = call.segments[1], call.segments[3], call.segments[7]
        found = self._directory.find(name)
        if found is None:
            raise _no_namespace(name, group)
        namespace, reported_name = found
        facts = self._directory.facts(namespace)
        rest = call.segments[8:]
        if facts.deleted and (rest or call.method not in ("PUT", "DELETE")):
            raise _no_namespace(name, group)
        scope = ResourceScope(subscription_id, group, reported_name, facts.location)
        context = Context(self._directory, namespace, facts, scope, host_of(namespace, call))
        return context.handle(call, rest)


@dataclass(frozen=True, slots=True)
class Context:
    """One request's namespace, with what is needed to write resource ids."""

    directory: ArmDirectory
    namespace: Namespace
    facts: ArmFacts
    scope: ResourceScope
    host: str

    def handle(self, call: AdminCall, rest: tuple[str, ...]) -> AdminReply:
        """Answer a request for the namespace or something below it; `rest` follows the namespace's name."""
        words = tuple(part.lower() if at % 2 == 0 else entity_path(part) for at, part in enumerate(rest))
        match words:
            case ("queues",):
                return self._list(call, self.namespace.queues(), self._entity)
            case ("queues", path):
                return self._one_entity(call, path, self.namespace.get_queue(path), QueueDescription)
            case ("topics",):
                return self._list(call, self.namespace.topics(), self._entity)
            case ("topics", path):
                return self._one_entity(call, path, self.namespace.get_topic(path), TopicDescription)
            case ("queues" | "topics" as kind, path, "authorizationrules", *_):
                holder = entity_holder(self.namespace, kind, path)
                return handle_rules(call, self.scope, holder, rest[3:], self.host)
            case ("topics", path, "subscriptions"):
                return self._list(call, self.namespace.subscriptions(path), self._entity)
            case ("topics", path, "subscriptions", name):
                return self._one_subscription(call, path, name)
            case ("topics", path, "subscriptions", name, "rules"):
                rules = self.namespace.rules(path, name)
                return self._list(call, rules, lambda _, rule: self._rule(path, name, rule))
            case ("topics", path, "subscriptions", name, "rules", rule):
                return self._one_rule(call, path, name, rule)
            case ("authorizationrules", *_):
                return handle_rules(call, self.scope, namespace_holder(self.namespace), rest[1:], self.host)
            case ("providers", "microsoft.resources" | "Microsoft.Resources", "tags", "default"):
                return NamespaceResources(self.namespace, self.facts, self.scope, self.host).tags(call)
            case ("disasterrecoveryconfigs", *_):
                configs = RecoveryConfigs(self.directory, self.namespace, self.scope, self.host)
                return configs.handle(call, rest[1:])
        return NamespaceResources(self.namespace, self.facts, self.scope, self.host).handle(call, rest)

    # -- one entity

    def _one_entity(
        self,
        call: AdminCall,
        path: str,
        found: Queue | Topic | None,
        kind: type[QueueDescription] | type[TopicDescription],
    ) -> AdminReply:
        def put() -> Queue | Topic:
            given = read_settings(object_at(call.json_object(), "properties"), kind)
            if found is None:
                return self.namespace.create(path, kind(**given), named=frozenset(given))  # type: ignore[arg-type]
            rules, named = found.description.authorization_rules, unchanged_left_out(given, found.description)
            return self.namespace.update(path, kind(**given, authorization_rules=rules), named=named)  # type: ignore[arg-type]

        write: Callable[[AdminCall, Any], Json] = self._entity
        return self._one(call, found, path, write, put, lambda: self.namespace.delete(path))

    def _one_subscription(self, call: AdminCall, topic: str, name: str) -> AdminReply:
        spaces, found = self.namespace, self.namespace.get_subscription(topic, name)

        def put() -> Subscription:
            given = read_settings(object_at(call.json_object(), "properties"), SubscriptionDescription)
            description = SubscriptionDescription(**given)  # type: ignore[arg-type]
            return (spaces.update_subscription if found else spaces.create_subscription)(topic, name, description)

        path = f"{topic}/Subscriptions/{name}"
        return self._one(call, found, path, self._entity, put, lambda: spaces.delete_subscription(topic, name))

    def _one_rule(self, call: AdminCall, topic: str, subscription: str, name: str) -> AdminReply:
        spaces, found = self.namespace, self.namespace.get_rule(topic, subscription, name)

        def put() -> Rule:
            description = read_rule(object_at(call.json_object(), "properties"))
            return (spaces.update_rule if found else spaces.create_rule)(topic, subscription, name, description)

        def write(call: AdminCall, rule: Rule) -> Json:
            return self._rule(topic, subscription, rule)

        path = f"{topic}/Subscriptions/{subscription}/Rules/{name}"
        return self._one(call, found, path, write, put, lambda: spaces.delete_rule(topic, subscription, name))

    @staticmethod
    def _one(
        call: AdminCall,
        found: Item | None,
        path: str,
        write: Callable[[AdminCall, Item], Json],
        put: Callable[[], Item],
        delete: Callable[[], None],
    ) -> AdminReply:
        """Any of the three verbs. Deleting what is not there is no error for the resource manager."""
        if call.method == "PUT":
            return json_reply(write(call, put()))
        if call.method == "DELETE":
            if found is None:
                return AdminReply(204)
            delete()
            return AdminReply(200)
        only(call, "GET")
        if found is None:
            raise not_found(f"The requested resource '{path}' does not exist.")
        return json_reply(write(call, found))

    # -- writing

    def _entity(self, call: AdminCall, entity: Queue | Topic | Subscription) -> Json:
        if isinstance(entity, Subscription):
            path: tuple[str, ...] = ("topics", entity.topic.path, "subscriptions", entity.name)
        else:
            path = ("queues" if isinstance(entity, Queue) else "topics", entity.path)
        properties = entity_properties(entity.description, runtime_of(entity, call.zero_counts))
        return self.scope.child(*path, properties=properties)

    def _rule(self, topic: str, subscription: str, rule: Rule) -> Json:
        path = ("topics", topic, "subscriptions", subscription, "rules", rule.name)
        return self.scope.child(*path, properties=rule_properties(rule.description))

    def _list(self, call: AdminCall, items: Sequence[Item], write: Callable[[AdminCall, Item], Json]) -> AdminReply:
        only(call, "GET")
        page = page_of(call)
        shown = page.cut(list(items), call.entries_to_drop)
        following = page.following(len(items), call.query)
        link = "" if following is None else f', "nextLink": {json.dumps(call.url_with(following))}'
        values = (f"{', ' if at else ''}{json.dumps(write(call, item))}".encode() for at, item in enumerate(shown))
        return AdminReply(200, b'{"value": [', JSON_CONTENT_TYPE, parts=chain(values, [f"]{link}}}".encode()]))


def host_of(namespace: Namespace, call: AdminCall) -> str:
    """Host and port of a namespace: the host the client used, and the port the namespace listens on. On the service's
    own port each namespace has an address of its own, and that is its whole endpoint, as its start prints it."""
    if namespace.service_address is not None:
        return namespace.service_address
    name, separator, port = call.host.rpartition(":")
    # A port mapping or a proxy may send a Host without a port, and an IPv6 address has colons of its own.
    host = name if separator and port.isdecimal() and not call.host.endswith("]") else call.host
    return f"{host}:{namespace.port}" if namespace.port else call.host


def _unauthenticated(message: str) -> EntityError:
    return EntityError(401, None, message, "AuthenticationFailed")


def _check_api_version(call: AdminCall) -> None:
    version = call.query.get("api-version", "")
    if not version:
        message = "The api-version query parameter (?api-version=) is required for all requests."
        raise EntityError(400, None, message, "MissingApiVersionParameter")
    is_tags = tuple(segment.lower() for segment in call.segments[-3:]) == ("microsoft.resources", "tags", "default")
    if version not in API_VERSIONS and not (is_tags and version == TAGS_API_VERSION):
        message = f"The api-version '{version}' is not supported; supported are {', '.join(sorted(API_VERSIONS))}."
        raise EntityError(400, None, message, "InvalidResourceType")


def _no_namespace(name: str, group: str) -> EntityError:
    message = f"The Resource '{PROVIDER}/namespaces/{name}' under resource group '{group}' was not found."
    return EntityError(404, None, message, "ResourceNotFound")


def entity_of(segments: Sequence[str]) -> str:
    """The queue's, topic's or subscription's path a request is about, "" if it is about none."""
    rest = segments[8:]
    if len(rest) < 2 or rest[0].lower() not in ("queues", "topics"):
        return ""
    path = entity_path(rest[1])
    if len(rest) >= 4 and rest[2].lower() == "subscriptions":
        return f"{path}/Subscriptions/{rest[3]}"
    return path
