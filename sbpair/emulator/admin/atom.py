"""The data-plane administration API: Atom entries and feeds over HTTP.

Behaviour, as the official clients find it:
* GET of something missing answers 200 with an empty feed; DELETE and update of it answer 404.
* PUT creates (201; 409 if the name is taken), PUT with `If-Match: *` replaces the whole description (200).
* Lists come in pages of at most 100; the second link of a feed leads to the next page.
* Manage is needed for everything but the rules of a subscription, for which Listen is enough.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar
from xml.etree.ElementTree import Element

from sbpair.emulator.admin import atom_xml
from sbpair.emulator.admin.atom_xml import (
    COUNTS_NS,
    MalformedBody,
    Node,
    child,
    child_text,
    describe_rule,
    local_name,
    node,
    read_rule,
    text_node,
)
from sbpair.emulator.admin.atom_xml import description as description_node
from sbpair.emulator.admin.calls import (
    AdminCall,
    AdminReply,
    atom_error,
    check_items,
    method_not_allowed,
    only,
    page_of,
    unchanged_left_out,
)
from sbpair.emulator.admin.fields import (
    FIELDS,
    RIGHTS,
    Description,
    Runtime,
    counts_of,
    facts_of,
    format_time,
    runtime_of,
    setting_from_text,
    setting_to_text,
)
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Subscription, Topic
from sbpair.emulator.entities import (
    DEFAULT_RULE_NAME,
    AuthorizationRule,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    target_path,
)
from sbpair.emulator.filters import Rule
from sbpair.emulator.namespace import Namespace, new_auth_rule
from sbpair.engine.auth import LISTEN, MANAGE, SEND, AuthError, Rights, authenticate, service_bus_audiences
from sbpair.engine.errors import EntityError, bad_request, conflict, not_found
from sbpair.service import Tier

# Who may administer what on the data plane.
#
# Manage on the entity or above it is needed for everything, except that the rules of a subscription may be handled with
# Listen (the service's table of rights for shared access signatures). Entra tokens carry the rights the namespace maps.

# A queue or topic that is not there is no secret: every holder of a key may be told so.

_OPERATIONS = {"PUT": "EntityWrite", "DELETE": "EntityDelete"}
_SUBSCRIPTION_OPERATIONS = {"PUT": "CreateOrUpdateSubscription", "DELETE": "DeleteSubscription"}


def allow(namespace: Namespace, call: AdminCall, path: str, *, rules: bool = False) -> None:
    """Raise EntityError 401 unless the request's token has the rights for `path`; `rules`: Listen is enough."""
    # Clients sign what they ask for, which may lie below `path`: a rule of a subscription, a page of a list.
    rights = token_rights(namespace, call, path, resource=call.path)
    if MANAGE in rights or (rules and LISTEN in rights):
        return
    raise unauthorized(_refusal(call, path))


def _refusal(call: AdminCall, path: str) -> str:
    """Why somebody without Manage is refused, in the service's words, as the Go client's live tests have them."""
    topic, found, subscription = path.partition("/subscriptions")
    if found:
        operation = _SUBSCRIPTION_OPERATIONS.get(call.method, "GetSubscription")
        if operation == "GetSubscription" and not subscription.strip("/"):
            operation = "EnumerateSubscriptions"
        return (
            f"401 SubCode=40100: Unauthorized : Unauthorized access for '{operation}' operation on endpoint "
            f"'sb://{call.host}/{topic}/Subscriptions{subscription}'."
        )
    if call.method in _OPERATIONS:
        return f"Authorization failed for specified action: {MANAGE},{_OPERATIONS[call.method]}."
    return f"{MANAGE},EntityRead claims required for this operation."


def token_rights(namespace: Namespace, call: AdminCall, path: str, *, resource: str | None = None) -> Rights:
    """The rights of the request's token on `path`; EntityError 401 if there is none or it is not valid.

    `resource` is what the token must be for, if that is not `path` itself.
    """
    token = call.headers.get("authorization", "")
    if not token:
        raise unauthorized("MissingToken: The 'Authorization' header of the request is missing.")
    try:
        claims = authenticate(
            namespace.signers(path),
            token,
            path if resource is None else resource,
            call.now,
            allow_entra=namespace.allow_entra,
            entra_rights=namespace.entra_rights,
            audiences=service_bus_audiences(namespace.name),
        )
    except AuthError as error:
        raise unauthorized(str(error)) from error
    return claims.rights


def unauthorized(message: str, sub_code: int | None = None) -> EntityError:
    return EntityError(401, sub_code, message, "Unauthorized")


CONTENT_TYPE = "application/atom+xml;type=entry;charset=utf-8"
FEED_CONTENT_TYPE = "application/atom+xml;type=feed;charset=utf-8"
API_VERSIONS = frozenset({"2013-10", "2014-01", "2014-09", "2015-01", "2016-07", "2017-04", "2021-05", "2024-05"})
OLDEST_VERSION = min(API_VERSIONS)

_ELSEWHERE = frozenset({"relays", "eventhubs", "notificationhubs"})
"""Kinds of entities that other namespaces hold; this one answers that it has none of them."""

_SUB_QUEUES = ("$deadletterqueue", "$deadletter")
"""400, in azure-sdk-for-net's ThrowsWhenAttemptingToUseDeadLetterPath..."""

Item = TypeVar("Item")


class AtomApi:
    """The data-plane administration of one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def handle(self, call: AdminCall) -> AdminReply:
        """Answer one request; a refusal becomes the documented error body."""
        try:
            _check_api_version(call)
            return self._route(call)
        except EntityError as error:
            return atom_error(error, call)
        except MalformedBody as error:
            return atom_error(bad_request(str(error)), call)

    def _route(self, call: AdminCall) -> AdminReply:
        # The retired library's lists are asked for with a slash at the end.
        segments = call.segments[:-1] if len(call.segments) > 1 and not call.segments[-1] else call.segments
        match segments:
            case (name,) if name.lower() == "$namespaceinfo":
                allow(self._namespace, call, "")
                return self._namespace_info(call)
            case (first, kind) if first.lower() == "$resources":
                allow(self._namespace, call, "")
                return self._list(call, kind.lower())
        topic, subscription, rule = split_path(call.path)
        if subscription is None:
            if not self._may_hear_of_nothing(call, topic):
                allow(self._namespace, call, topic)
            return self._entity(call, topic)
        if rule is None:
            allow(self._namespace, call, f"{topic}/subscriptions/{subscription}".rstrip("/"))
            return self._subscription(call, topic, subscription)
        allow(self._namespace, call, f"{topic}/subscriptions/{subscription}", rules=True)
        return self._rule(call, topic, subscription, rule)

    def _may_hear_of_nothing(self, call: AdminCall, path: str) -> bool:
        """Whether a queue or topic is asked for that is not there, by somebody with any right."""
        if call.method != "GET" or not path or self._namespace.find(path) is not None:
            return False
        return bool(token_rights(self._namespace, call, path, resource=call.path))

    # -- the namespace and lists

    def _namespace_info(self, call: AdminCall) -> AdminReply:
        only(call, "GET")
        namespace = self._namespace
        aliases = sorted(namespace.disaster_recovery_configs)
        info = atom_xml.description(
            "NamespaceInfo",
            *(atom_xml.text_node("Alias", alias) for alias in aliases[:1]),
            atom_xml.text_node("CreatedTime", format_time(namespace.created_at)),
            atom_xml.text_node("MessagingSKU", namespace.tier.value),
            *(
                [atom_xml.text_node("MessagingUnits", namespace.messaging_units)]
                if namespace.tier is Tier.PREMIUM
                else []
            ),
            atom_xml.text_node("ModifiedTime", format_time(namespace.updated_at)),
            atom_xml.text_node("Name", namespace.name),
            atom_xml.text_node("NamespaceType", "Messaging"),
        )
        entry = self._entry_node(call, call.path, namespace.name, namespace.created_at, namespace.updated_at, info)
        return _entry_reply(entry)

    def _list(self, call: AdminCall, kind: str) -> AdminReply:
        only(call, "GET")
        if kind == "queues":
            return self._feed(call, "Queues", self._namespace.queues(), self._entity_entry)
        if kind == "topics":
            return self._feed(call, "Topics", self._namespace.topics(), self._entity_entry)
        if kind in _ELSEWHERE:
            return self._nothing(call)
        raise not_found(f"The resource type '{kind}' does not exist.")

    # -- queues and topics

    def _entity(self, call: AdminCall, path: str) -> AdminReply:
        if call.method == "GET" and not path:
            raise bad_request("The entity path must not be empty.")
        namespace = self._namespace
        entry: Callable[[AdminCall, Any], Node] = self._entity_entry
        put, delete = partial(self._put_entity, call, path), partial(namespace.delete, path)
        return self._one(call, namespace.find(path), entry, put, delete)

    def _put_entity(self, call: AdminCall, path: str) -> Queue | Topic:
        element = _description_of(call)
        tag = atom_xml.local_name(element)
        renamed = any(name.lower() == "newpath" for name in (*call.query, *call.headers))
        if renamed or atom_xml.child(element, "NewPath") is not None:
            raise bad_request(f"'{path}' was not renamed: entities keep their names here.")
        kind = next((one for one in (QueueDescription, TopicDescription) if one.__name__ == tag), None)
        if kind is None:
            raise bad_request(f"A queue or topic description is expected, not '{tag}'.")
        given, rules = read_settings(element, kind), read_authorization_rules(element)
        description = kind(**given, authorization_rules=rules)  # type: ignore[arg-type]
        old = self._namespace.find(path)
        if isinstance(description, QueueDescription):
            self._check_forwarding(call, description)
        if not _is_update(call):
            return self._namespace.create(path, description, named=frozenset(given))
        named = unchanged_left_out(given, old.description if old else None)
        return self._namespace.update(path, description, named=named)

    # -- subscriptions

    def _subscription(self, call: AdminCall, topic: str, name: str) -> AdminReply:
        namespace = self._namespace
        if not name and call.method == "GET":
            return self._feed(call, "Subscriptions", namespace.subscriptions(topic), self._entity_entry)

        def put() -> Subscription:
            element = _description_of(call)
            if atom_xml.local_name(element) != "SubscriptionDescription":
                raise bad_request("A subscription description is expected.")
            description = SubscriptionDescription(**read_settings(element, SubscriptionDescription))  # type: ignore[arg-type]
            self._check_forwarding(call, description)
            if _is_update(call):
                return namespace.update_subscription(topic, name, description)
            rule_name, rule = _default_rule(element)
            return namespace.create_subscription(topic, name, description, rule_name=rule_name, rule=rule)

        found = namespace.get_subscription(topic, name)
        return self._one(call, found, self._entity_entry, put, lambda: namespace.delete_subscription(topic, name))

    # -- rules

    def _rule(self, call: AdminCall, topic: str, subscription: str, name: str) -> AdminReply:
        namespace = self._namespace
        if not name and call.method == "GET":
            return self._feed(call, "Rules", namespace.rules(topic, subscription), self._rule_entry)

        def put() -> Rule:
            element = _description_of(call)
            if atom_xml.local_name(element) != "RuleDescription":
                raise bad_request("A rule description is expected.")
            change = namespace.update_rule if _is_update(call) else namespace.create_rule
            return change(topic, subscription, name, read_rule(element))

        found = namespace.get_rule(topic, subscription, name)
        return self._one(call, found, self._rule_entry, put, lambda: namespace.delete_rule(topic, subscription, name))

    def _one(
        self,
        call: AdminCall,
        found: Item | None,
        entry: Callable[[AdminCall, Item], Node],
        put: Callable[[], Item],
        delete: Callable[[], None],
    ) -> AdminReply:
        """Any of the three verbs."""
        if call.method == "GET":
            return self._nothing(call) if found is None else _entry_reply(entry(call, found))
        if call.method == "DELETE":
            delete()
            return AdminReply(200)
        if call.method == "PUT":
            return _entry_reply(entry(call, put()), created=not _is_update(call))
        raise method_not_allowed(call)

    # -- writing

    def _entity_entry(self, call: AdminCall, entity: Queue | Topic | Subscription) -> Node:
        node = describe(entity.description, runtime_of(entity, call.zero_counts), _style(call))
        title = entity.name if isinstance(entity, Subscription) else entity.path
        return self._entry_node(call, entity.path, title, entity.created_at, entity.updated_at, node)

    def _rule_entry(self, call: AdminCall, rule: Rule) -> Node:
        node = describe_rule(rule.name, rule.description, rule.created_at)
        # In a list every entry has a link of its own: the JavaScript client reads the rule's name from it.
        listed = split_path(call.path)[2] == ""
        path = f"{call.path.rstrip('/')}/{rule.name}" if listed else call.path
        return self._entry_node(call, path, rule.name, rule.created_at, rule.created_at, node)

    def _entry_node(
        self, call: AdminCall, path: str, title: str, created_at: float, updated_at: float, description: Node
    ) -> Node:
        url = replace(call, segments=tuple(path.split("/"))).url_with(
            {name: call.query[name] for name in ("api-version",) if name in call.query}
        )
        head = atom_xml.AtomEntry(url, title, format_time(created_at), format_time(updated_at), self._namespace.name)
        return atom_xml.entry(head, description)

    def _feed(
        self, call: AdminCall, title: str, items: Sequence[Item], entry: Callable[[AdminCall, Item], Node]
    ) -> AdminReply:
        if call.query.get("$filter", "").strip():
            raise bad_request("Lists cannot be filtered here; leave out '$filter' and choose from the whole list.")
        page = page_of(call)
        following = page.following(len(items), call.query)
        shown = page.cut(list(items), call.entries_to_drop)
        feed = atom_xml.feed(
            title, call.url, format_time(call.now), next_url=None if following is None else call.url_with(following)
        )
        head, tail = atom_xml.open_feed(feed)
        entries = (entry(call, item).render().encode() for item in shown)
        return AdminReply(200, head, FEED_CONTENT_TYPE, parts=chain(entries, [tail]))

    def _nothing(self, call: AdminCall) -> AdminReply:
        """What the service answers to a GET of something that is not there."""
        feed = atom_xml.feed("Publicly Listed Services", call.url, format_time(call.now))
        return AdminReply(200, feed.render().encode(), FEED_CONTENT_TYPE)

    def _check_forwarding(self, call: AdminCall, description: QueueDescription | SubscriptionDescription) -> None:
        """The target of a forwarding must allow Send to a token in a header of its own, or to the caller's token."""
        targets = {
            "servicebussupplementaryauthorization": description.forward_to,
            "servicebusdlqsupplementaryauthorization": description.forward_dead_lettered_messages_to,
        }
        for header, target in targets.items():
            if target is None:
                continue
            target = target_path(target)
            token = call.headers.get(header) or call.headers.get("authorization", "")
            rights = token_rights(self._namespace, replace(call, headers={"authorization": token}), target)
            if not rights & {MANAGE, SEND}:
                raise unauthorized(f"Unauthorized access to the forwarding destination '{target}'.", 40100)


def _description_of(call: AdminCall) -> Element:
    check_items(call.body, b"<=&\n")
    return atom_xml.parse_body(call.body)


def split_path(path: str) -> tuple[str, str | None, str | None]:
    """Entity, subscription and rule of a path; "" asks for the list of subscriptions or rules, None means not asked.

    Entity paths may contain slashes, so the fixed words are looked for from the right.
    """
    parts = path.rstrip("/").split("/")  # the retired NamespaceManager ends paths of subscriptions with a slash
    words = [part.lower() for part in parts]
    if words[-1] in _SUB_QUEUES:
        raise bad_request(f"'{path}' is a sub-queue; it is administered with the entity that it belongs to.")
    if "subscriptions" not in words[1:]:
        return path.strip("/"), None, None
    at = len(words) - 1 - words[::-1].index("subscriptions")
    topic, rest = "/".join(parts[:at]), parts[at + 1 :]
    if len(rest) <= 1:
        return topic, rest[0] if rest else "", None
    if rest[1].lower() == "rules" and len(rest) <= 3:
        return topic, rest[0], rest[2] if len(rest) == 3 else ""
    raise not_found(f"The resource '{path}' does not exist.")


def _default_rule(element: Element) -> tuple[str, RuleDescription | None]:
    rule = atom_xml.child(element, "DefaultRuleDescription")
    if rule is None:
        return DEFAULT_RULE_NAME, None
    return atom_xml.child_text(rule, "Name") or DEFAULT_RULE_NAME, read_rule(rule)


def _is_update(call: AdminCall) -> bool:
    """Whether a PUT replaces. Only `*` is known as an entity tag: the service gives none out."""
    tag = call.headers.get("if-match", "")
    if tag not in ("", "*"):
        raise conflict("The entity tag of the 'If-Match' header does not match; only '*' is supported.")
    return tag == "*"


def _version(call: AdminCall) -> str:
    return call.query.get("api-version", OLDEST_VERSION)


def _style(call: AdminCall) -> "Style":
    return Style(forward_base=f"sb://{call.host}/", api_version=_version(call))


def _check_api_version(call: AdminCall) -> None:
    """A request without a version is one of the oldest; an unknown version is refused."""
    version = _version(call)
    if version not in API_VERSIONS:
        raise bad_request(f"The api-version '{version}' is not supported; the newest is '{NEWEST_VERSION}'.")


def _entry_reply(node: Node, *, created: bool = False) -> AdminReply:
    return AdminReply(201 if created else 200, node.render().encode(), CONTENT_TYPE)


def entity_of(path: str) -> str:
    """The queue's, topic's or subscription's path a request is about, "" for the namespace and its lists."""
    if path.startswith("$"):
        return ""
    try:
        entity, subscription, _ = split_path(path)
    except EntityError:
        return path
    return f"{entity}/Subscriptions/{subscription}" if subscription else entity


FIRST_VERSION_WITH_MESSAGE_SIZE = "2021-05"
FIRST_VERSION_WITH_FILTER_COUNTS = "2024-05"
NEWEST_VERSION = "2024-05"

_ORDERS: Mapping[type, str] = {
    QueueDescription: (
        "LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession DefaultMessageTimeToLive "
        "DeadLetteringOnMessageExpiration DuplicateDetectionHistoryTimeWindow MaxDeliveryCount EnableBatchedOperations "
        "SizeInBytes MessageCount IsAnonymousAccessible AuthorizationRules Status ForwardTo CreatedAt UpdatedAt "
        "AccessedAt UserMetadata SupportOrdering CountDetails AutoDeleteOnIdle EnablePartitioning "
        "EntityAvailabilityStatus ForwardDeadLetteredMessagesTo EnableExpress MaxMessageSizeInKilobytes"
    ),
    TopicDescription: (
        "DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection DuplicateDetectionHistoryTimeWindow "
        "EnableBatchedOperations SizeInBytes FilteringMessagesBeforePublishing IsAnonymousAccessible "
        "AuthorizationRules Status ForwardTo CreatedAt UpdatedAt AccessedAt UserMetadata SupportOrdering CountDetails "
        "SubscriptionCount SqlFilterCount CorrelationFilterCount AutoDeleteOnIdle EnablePartitioning "
        "EntityAvailabilityStatus EnableSubscriptionPartitioning EnableExpress MaxMessageSizeInKilobytes"
    ),
    SubscriptionDescription: (
        "LockDuration RequiresSession DefaultMessageTimeToLive DeadLetteringOnMessageExpiration "
        "DeadLetteringOnFilterEvaluationExceptions MessageCount MaxDeliveryCount EnableBatchedOperations Status "
        "ForwardTo CreatedAt UpdatedAt AccessedAt UserMetadata CountDetails ForwardDeadLetteredMessagesTo "
        "AutoDeleteOnIdle EntityAvailabilityStatus"
    ),
}


@dataclass(frozen=True, slots=True)
class Style:
    """How one answer is written: the API version asked for, and the URL base put before forwarding targets."""

    forward_base: str
    api_version: str = NEWEST_VERSION


def describe(description: Description, runtime: Runtime, style: Style) -> Node:
    """The description element of an entity with its runtime facts.

    The elements are written in the order of the service's data contracts, because readers built on them skip what comes
    out of order. Reading is as lenient as the service: unknown and read-only elements are ignored.
    """
    known = _settings(description, style) | _runtime(description, runtime) | _kind_specific(description, runtime, style)
    kind = type(description)
    return description_node(kind.__name__, *(known[name] for name in _ORDERS[kind].split() if name in known))


def read_settings(element: Element, kind: type[Description]) -> dict[str, object]:
    """The settings given in a description element; EntityError 40000 for a value that does not fit."""
    given = {}
    for field in FIELDS[kind]:
        text = child_text(element, field.element)
        if text is not None:
            given[field.attribute] = setting_from_text(field, text)
    return given


def read_authorization_rules(element: Element) -> tuple[AuthorizationRule, ...]:
    """The authorization rules of a queue or topic description; keys left out are made up, as the service does."""
    rules = child(element, "AuthorizationRules")
    return () if rules is None else tuple(_read_rule(rule) for rule in rules)


def _settings(description: Description, style: Style) -> dict[str, Node]:
    nodes = {}
    for field in FIELDS[type(description)]:
        text = setting_to_text(field, getattr(description, field.attribute), style.forward_base)
        if text is not None:
            nodes[field.element] = text_node(field.element, text)
    if style.api_version < FIRST_VERSION_WITH_MESSAGE_SIZE:
        nodes.pop("MaxMessageSizeInKilobytes", None)
    return nodes


def _runtime(description: Description, runtime: Runtime) -> dict[str, Node]:
    facts = facts_of(description, runtime)
    facts["EntityAvailabilityStatus"] = "Limited" if runtime.is_limited else "Available"
    if not isinstance(description, SubscriptionDescription):
        facts["IsAnonymousAccessible"] = False
    counts = (text_node(f"d2p1:{name}", number) for name, number in counts_of(runtime.counts).items())
    details = Node("CountDetails", tuple(counts), {"xmlns:d2p1": COUNTS_NS})
    return {name: text_node(name, value) for name, value in facts.items()} | {"CountDetails": details}


def _kind_specific(description: Description, runtime: Runtime, style: Style) -> dict[str, Node]:
    if isinstance(description, SubscriptionDescription):
        return {}
    nodes = {"AuthorizationRules": node("AuthorizationRules", *map(_write_rule, description.authorization_rules))}
    if isinstance(description, QueueDescription):
        return nodes | {"SupportOrdering": text_node("SupportOrdering", not description.enable_partitioning)}
    nodes["EnableSubscriptionPartitioning"] = text_node("EnableSubscriptionPartitioning", False)
    if style.api_version >= FIRST_VERSION_WITH_FILTER_COUNTS:
        nodes["SqlFilterCount"] = text_node("SqlFilterCount", runtime.sql_filter_count)
        nodes["CorrelationFilterCount"] = text_node("CorrelationFilterCount", runtime.correlation_filter_count)
    return nodes


def _write_rule(rule: AuthorizationRule) -> Node:
    times = {"CreatedTime": rule.created_time, "ModifiedTime": rule.modified_time}
    return Node(
        "AuthorizationRule",
        (
            text_node("ClaimType", "SharedAccessKey"),
            text_node("ClaimValue", "None"),
            node("Rights", *(text_node("AccessRights", right) for right in RIGHTS if right in rule.rights)),
            *(text_node(name, time) for name, time in times.items() if time is not None),
            text_node("KeyName", rule.name),
            text_node("PrimaryKey", rule.primary_key),
            text_node("SecondaryKey", rule.secondary_key),
        ),
        {"i:type": "SharedAccessAuthorizationRule"},
    )


def _read_rule(element: Element) -> AuthorizationRule:
    name = child_text(element, "KeyName")
    rights = child(element, "Rights")
    if local_name(element) != "AuthorizationRule" or not name or rights is None:
        raise bad_request("An authorization rule needs a key name and rights.")
    rule = new_auth_rule(name, [(right.text or "").strip() for right in rights])
    return replace(
        rule,
        primary_key=child_text(element, "PrimaryKey") or rule.primary_key,
        secondary_key=child_text(element, "SecondaryKey") or rule.secondary_key,
        created_time=child_text(element, "CreatedTime"),
        modified_time=child_text(element, "ModifiedTime"),
    )
