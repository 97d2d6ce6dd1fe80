"""NamespaceAdmin over the data plane: the SDK's asynchronous ServiceBusAdministrationClient (ATOM over HTTPS)."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sbpair.azure.atom import QUEUE, SUBSCRIPTION, TOPIC, EntityDescription, described, listed, seconds_of
from sbpair.azure.client import READ, WRITE, LazyClient, a_text, changing, check_scope, connection_string_of
from sbpair.azure.credentials import NamedCredential
from sbpair.azure.errors import translating
from sbpair.concurrency import side_by_side
from sbpair.core.access import NamespaceAccess
from sbpair.core.entities import (
    SETTINGS_OF,
    AccessRule,
    Counts,
    EntityFacts,
    EntityKind,
    EntitySettings,
    NamespaceFacts,
    QueueFacts,
    RuleFacts,
    TopicFacts,
    Values,
)
from sbpair.core.errors import EntityNotFoundError
from sbpair.core.names import subscription_of, subscription_path
from sbpair.service import CORRELATION_FIELDS, PARTITION_COUNT, EntityStatus, QueueSettings, Tier

F = TypeVar("F", QueueFacts, TopicFacts)

S = TypeVar("S", bound=QueueSettings)

_DEFAULTS = QueueSettings()
_UNLESS_DEFAULT = (
    "requires_duplicate_detection",
    "requires_session",
    "enable_express",
    "enable_partitioning",
    "support_ordering",
    "status",
)
"""Said in a create only where it is not the default: the Basic tier refuses the mere mention of some."""


class DataPlaneAdmin:
    """Queues and topics of one namespace, by connection string or Entra ID."""

    def __init__(self, access: NamespaceAccess, *, credential: NamedCredential | None = None) -> None:
        """`credential`: instead of the one that `access` names."""
        self._access = access
        self._client = LazyClient(
            access, credential, make_administration_client, f"the administration of {access.label}"
        )

    @property
    def control_plane(self) -> str:
        return "data-plane"

    async def namespace(self) -> NamespaceFacts:
        with self._reading(f"read the properties of {self._access.label}"):
            found = await self._client.answer(self._client.sdk.get_namespace_properties(**READ))
            return NamespaceFacts(
                name=a_text(found.name, "Name"),
                host=self._access.host,
                tier=_tier(found.messaging_sku),
                messaging_units=found.messaging_units or None,
                alias=found.alias or None,
                service_time=self._client.service_time,
                control_plane=self.control_plane,
                extra=(("namespace_type", str(getattr(found.namespace_type, "value", found.namespace_type))),),
            )

    async def list_queues(self, prefix: str = "") -> AsyncIterator[QueueFacts]:
        client = self._client
        with self._reading(f"list the queues of {self._access.label}"):
            found = await listed(client, QUEUE, client.sdk.list_queues)
            queues = [queue_facts(one) for one in found if one.name.lower().startswith(prefix.lower())]
        for queue in queues:
            yield queue

    async def get_queue(self, path: str) -> QueueFacts | None:
        return await self._get(
            f"read queue {path}", path, self._client.sdk.get_queue, path, kind=QUEUE, facts=queue_facts
        )

    async def _get(
        self,
        tried: str,
        path: str,
        get: Callable[..., Awaitable[Any]],
        *of: str,
        kind: str,
        facts: Callable[[EntityDescription], F],
    ) -> F | None:
        """What the SDK's call `get` of `of` says; None if there is nothing of that name and kind."""
        try:
            with self._reading(f"{tried} of {self._access.label}", path):
                found = await described(self._client, get, *of)
                return facts(found) if found.kind == kind else None
        except EntityNotFoundError:
            return None

    async def create_queue(self, path: str, settings: QueueSettings) -> QueueFacts:
        options = create_options(EntityKind.QUEUE, settings)
        with self._reading(f"create queue {path} on {self._access.label}", path):
            made = await self._client.answer(self._client.sdk.create_queue(path, **options, **WRITE))
            return QueueFacts(
                path=path,
                settings=settings_of(QueueSettings, EntityKind.QUEUE, made),
                authorization_rules=access_rules_of(made),
            )

    async def update_queue(self, path: str, settings: QueueSettings) -> QueueFacts:
        client = self._client.sdk
        with self._changing(f"update queue {path} on {self._access.label}", path):
            present = await self._client.answer(client.get_queue(path, **READ))
            for name in SETTINGS_OF[EntityKind.QUEUE]:
                value = getattr(settings, name)
                if value is not None or name != "max_message_size_in_kilobytes":
                    setattr(present, sdk_name(name), sdk_value(name, value))
            await self._client.answer(client.update_queue(present, **WRITE))
        updated = await self.get_queue(path)
        if updated is None:
            raise EntityNotFoundError(f"Queue {path} of {self._access.label} is gone after its update.", entity=path)
        return updated

    async def delete_queue(self, path: str) -> None:
        with self._changing(f"delete queue {path} on {self._access.label}", path):
            await self._client.answer(self._client.sdk.delete_queue(path, **WRITE))

    async def list_topics(self) -> AsyncIterator[TopicFacts]:
        client = self._client
        with self._reading(f"list the topics of {self._access.label}"):
            topics = [topic_facts(one) for one in await listed(client, TOPIC, client.sdk.list_topics)]
        for topic in topics:
            yield topic

    async def get_topic(self, path: str) -> TopicFacts | None:
        return await self._get(
            f"read topic {path}", path, self._client.sdk.get_topic, path, kind=TOPIC, facts=topic_facts
        )

    async def create_topic(self, path: str) -> TopicFacts:
        with self._reading(f"create topic {path} on {self._access.label}", path):
            # The SDK takes every further argument of this one call for a property of the topic.
            return topic_facts(await self._client.answer(self._client.sdk.create_topic(path)))

    async def get_subscription(self, topic: str, name: str) -> QueueFacts | None:
        path = subscription_path(topic, name)

        def facts(found: EntityDescription) -> QueueFacts:
            return QueueFacts(path=path, settings=settings_of(QueueSettings, EntityKind.SUBSCRIPTION, found))

        get = self._client.sdk.get_subscription
        return await self._get(f"read {path}", topic, get, topic, name, kind=SUBSCRIPTION, facts=facts)

    async def create_subscription(self, topic: str, name: str, settings: QueueSettings) -> QueueFacts:
        path = subscription_path(topic, name)
        options = create_options(EntityKind.SUBSCRIPTION, settings)
        with self._reading(f"create {path} on {self._access.label}", topic):
            made = await self._client.answer(self._client.sdk.create_subscription(topic, name, **options, **WRITE))
            return QueueFacts(path=path, settings=settings_of(QueueSettings, EntityKind.SUBSCRIPTION, made))

    @contextmanager
    def _reading(self, tried: str, path: str | None = None) -> Iterator[None]:
        """Around one call about an entity, or (no path) about the namespace as a whole."""
        check_scope(self._access, path, tried)
        with translating(tried, path, within_seconds=self._access.call_seconds):
            yield

    @contextmanager
    def _changing(self, tried: str, path: str) -> Iterator[None]:
        """Around an update or a delete."""
        check_scope(self._access, path, tried)
        with changing(tried, path):
            yield

    async def close(self) -> None:
        await self._client.close()


def make_administration_client(client: LazyClient, transport: Any) -> Any:
    """The SDK's client for the namespace of `client`."""
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

    class Administration(ServiceBusAdministrationClient):
        """Before 7.15 the SDK's own client makes its pipeline without the transport that it is given."""

        def _build_pipeline(self, **settings: Any) -> Any:
            return super()._build_pipeline(**{**settings, "transport": transport})

    if client.access.connection_string is not None:
        return Administration.from_connection_string(connection_string_of(client.access), transport=transport)
    return Administration(client.access.host, client.credential(), transport=transport)


def create_options(kind: EntityKind, settings: QueueSettings) -> dict[str, Any]:
    """What to say in a create, by the SDK's names: no "never" (it is the default, and the SDK would write it above the
    maximum), no "not set", and nothing a tier could refuse to hear unless it is wanted."""
    options = {}
    for name in SETTINGS_OF[kind]:
        value = getattr(settings, name, None)
        if value is None or (name in _UNLESS_DEFAULT and value == _DEFAULTS_OF[type(settings)][name]):
            continue
        if name == "duplicate_detection_history_time_window_seconds" and not settings.requires_duplicate_detection:
            continue
        options[sdk_name(name)] = sdk_value(name, value)
    return options


def sdk_name(name: str) -> str:
    """A setting's name in the SDK."""
    return name.removesuffix("_seconds")


def sdk_value(name: str, value: Any) -> Any:
    """A setting's value as the SDK takes it; None stands for "never" or "not set"."""
    if name.endswith("_seconds") and value is not None:
        return timedelta(seconds=value)
    return value.value if isinstance(value, EntityStatus) else value


def settings_of(of: type[S], kind: EntityKind, found: Any) -> S:
    """What was read, or what the SDK tells of an entity that was made; what it does not say is at its default."""
    values: dict[str, Any] = {}
    for name, theirs, read, default in _READ[of, kind]:
        value = getattr(found, theirs, None)
        value = value if read is None else read(value)
        values[name] = default if value is None else value
    if kind is not EntityKind.SUBSCRIPTION:
        values["max_size_in_megabytes"] = configured_size(found.max_size_in_megabytes, bool(found.enable_partitioning))
    return of(**values)


def _reader(name: str) -> Callable[[Any], Any] | None:
    if name.endswith("_seconds"):
        return seconds_of
    if name == "status":
        return entity_status
    return bare_path if name.startswith("forward") else None


def access_rules_of(found: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Names and rights of an entity's own shared access rules; a subscription has none."""
    return tuple(
        (
            a_text(rule.key_name, "the name of a key"),
            tuple(str(getattr(right, "value", right)) for right in rule.rights or ()),
        )
        for rule in getattr(found, "authorization_rules", None) or ()
    )


def queue_facts(found: EntityDescription) -> QueueFacts:
    """A queue, as either control plane has described it."""
    return QueueFacts(
        path=found.name,
        settings=settings_of(QueueSettings, EntityKind.QUEUE, found),
        counts=counts_of(found),
        size_in_bytes=found.size_in_bytes or 0,
        created_at=epoch_of(found.created_at_utc),
        updated_at=epoch_of(found.updated_at_utc),
        accessed_at=epoch_of(found.accessed_at_utc),
        authorization_rules=access_rules_of(found),
    )


def counts_of(found: EntityDescription) -> Counts:
    """What was counted; a topic has scheduled messages only."""
    return Counts(
        active=found.active_message_count or 0,
        dead_letter=found.dead_letter_message_count or 0,
        scheduled=found.scheduled_message_count or 0,
        transfer=found.transfer_message_count or 0,
        transfer_dead_letter=found.transfer_dead_letter_message_count or 0,
    )


def topic_facts(found: Any) -> TopicFacts:
    """What was read, or the SDK's description of a topic that was made, which counts nothing."""
    partitioned = bool(found.enable_partitioning)
    window = seconds_of(found.duplicate_detection_history_time_window)
    return TopicFacts(
        path=found.name,
        status=entity_status(found.status),
        enable_partitioning=partitioned,
        requires_duplicate_detection=bool(found.requires_duplicate_detection),
        duplicate_detection_history_time_window_seconds=(
            _DEFAULTS.duplicate_detection_history_time_window_seconds if window is None else window
        ),
        max_size_in_megabytes=configured_size(found.max_size_in_megabytes, partitioned),
        max_message_size_in_kilobytes=found.max_message_size_in_kilobytes,
        size_in_bytes=getattr(found, "size_in_bytes", None) or 0,
        subscription_count=getattr(found, "subscription_count", None),
    )


def configured_size(reported_megabytes: int | None, partitioned: bool) -> int:
    """Maximum size as configured: a partitioned entity reports that of its 16 partitions together."""
    if reported_megabytes is None:
        return _DEFAULTS.max_size_in_megabytes
    return reported_megabytes // PARTITION_COUNT if partitioned else reported_megabytes


_STATUSES = {status.value: status for status in EntityStatus}


def entity_status(value: Any) -> EntityStatus:
    """The status, UNKNOWN for passing states (Creating, Deleting, ...)."""
    text = str(getattr(value, "value", value or EntityStatus.ACTIVE.value))
    return _STATUSES.get(text, EntityStatus.UNKNOWN)


def bare_path(forward: str | None) -> str | None:
    """A forwarding target as an entity path; the data plane reports it as a URL."""
    if not forward:
        return None
    return urlsplit(forward).path.strip("/") if "://" in forward else forward


def _tier(sku: Any) -> Tier | None:
    text = str(getattr(sku, "value", sku))
    return Tier(text) if text in list(Tier) else None


def epoch_of(moment: datetime | None) -> float | None:
    # The service says the year 1 of what has not happened: nobody has accessed the entity.
    return None if moment is None or moment.year == 1 else moment.timestamp()


_DEFAULTS_OF: Mapping[type, Mapping[str, Any]] = {
    of: {field.name: field.default for field in fields(of)} for of in (QueueSettings, EntitySettings)
}
_READ = {
    (of, kind): [(name, sdk_name(name), _reader(name), known[name]) for name in SETTINGS_OF[kind] if name in known]
    for of, known in _DEFAULTS_OF.items()
    for kind in EntityKind
}
"""Settings of a kind of entity: our name, the SDK's, how its value is read, and the default."""


# Topology: every entity of a namespace with all its settings.


READS_AT_ONCE = 8
"""Topics, or subscriptions, that are read at a time."""


class DataPlaneTopology(DataPlaneAdmin):
    """Every entity of one namespace, by connection string or Entra ID (Azure Service Bus Data Owner)."""

    async def entities(self, *, rules: bool) -> list[EntityFacts]:
        sdk = self._client.sdk
        with self._reading(f"list the entities of {self._access.label}"):
            queues = await self._listed(QUEUE, sdk.list_queues)
            topics = await self._listed(TOPIC, sdk.list_topics)
            below = await side_by_side(self._subscriptions_of, [topic.path for topic in topics], at_once=READS_AT_ONCE)
            subscriptions = [one for found in below for one in found]
            if rules:
                subscriptions = await side_by_side(self._with_rules, subscriptions, at_once=READS_AT_ONCE)
            return [*queues, *topics, *subscriptions]

    async def _subscriptions_of(self, topic: str) -> list[EntityFacts]:
        return await self._listed(SUBSCRIPTION, self._client.sdk.list_subscriptions, topic)

    async def subscriptions(self, topic: str, *, rules: bool) -> list[EntityFacts]:
        with self._reading(f"list the subscriptions of {topic} on {self._access.label}", topic):
            found = await self._subscriptions_of(topic)
            return await side_by_side(self._with_rules, found, at_once=READS_AT_ONCE) if rules else found

    async def rules(self, subscription: EntityFacts) -> EntityFacts:
        path = subscription.path
        with self._reading(f"read the rules of {path} on {self._access.label}", path):
            return await self._with_rules(subscription)

    async def _listed(self, kind: str, pages: Callable[..., Any], *of: str) -> list[EntityFacts]:
        """In the order of their names."""
        found = await listed(self._client, kind, pages, *of)
        return [_facts(one, *of) for one in sorted(found, key=lambda one: one.name.lower())]

    async def entity(self, path: str) -> EntityFacts | None:
        sdk = self._client.sdk
        try:
            with self._reading(f"read {path} of {self._access.label}", path):
                if (below := subscription_of(path)) is not None:
                    found = _facts(await described(self._client, sdk.get_subscription, *below), below[0])
                    return await self._with_rules(found)
                return _facts(await described(self._client, sdk.get_queue, path))  # a queue or a topic
        except EntityNotFoundError:
            return None

    async def _with_rules(self, subscription: EntityFacts) -> EntityFacts:
        topic, name = _parts(subscription.path)
        found = await self._client.items(self._client.sdk.list_rules(topic, name, **READ))
        return replace(subscription, rules=tuple(sorted(map(_rule, found), key=lambda rule: rule.name.lower())))

    async def create(self, kind: EntityKind, path: str, settings: EntitySettings) -> None:
        sdk, options = self._client.sdk, create_options(kind, settings)
        with self._reading(f"create {kind.value} {path} on {self._access.label}", path):
            if kind is EntityKind.QUEUE:
                await self._client.answer(sdk.create_queue(path, **options, **WRITE))
            elif kind is EntityKind.TOPIC:
                # The SDK takes every further argument of this one call for a property of the topic.
                await self._client.answer(sdk.create_topic(path, **options))
            else:
                await self._client.answer(sdk.create_subscription(*_parts(path), **options, **WRITE))

    async def update(self, path: str, change: Mapping[str, Any]) -> None:
        sdk = self._client.sdk
        with self._changing(tried := f"change {path} on {self._access.label}", path):
            present = await self.entity(path)
            if present is None:
                raise EntityNotFoundError(f"Could not {tried}: it does not exist.", entity=path)
            if present.kind is EntityKind.SUBSCRIPTION:
                topic, name = _parts(path)
                found = await self._client.answer(sdk.get_subscription(topic, name, **READ))
                await self._client.answer(sdk.update_subscription(topic, _changed(found, change), **WRITE))
            elif present.kind is EntityKind.TOPIC:
                found = await self._client.answer(sdk.get_topic(path, **READ))
                await self._client.answer(sdk.update_topic(_changed(found, change), **WRITE))
            else:
                found = await self._client.answer(sdk.get_queue(path, **READ))
                await self._client.answer(sdk.update_queue(_changed(found, change), **WRITE))

    async def delete(self, path: str) -> None:
        sdk = self._client.sdk
        with self._changing(f"delete {path} on {self._access.label}", path):
            if (below := subscription_of(path)) is not None:
                await self._client.answer(sdk.delete_subscription(*below, **WRITE))
            else:
                await self._client.answer(sdk.delete_queue(path, **WRITE))  # a topic is deleted at the same address

    async def create_rule(self, subscription: str, rule: RuleFacts) -> None:
        from azure.servicebus.management import CorrelationRuleFilter, SqlRuleAction, SqlRuleFilter

        topic, name = _parts(subscription)
        made: Any
        if rule.sql is not None:
            made = SqlRuleFilter(rule.sql, dict(rule.parameters) or None)
        else:
            made = CorrelationRuleFilter(**dict(rule.correlation), properties=dict(rule.properties) or None)  # type: ignore[arg-type]
        action = None if rule.action is None else SqlRuleAction(rule.action, dict(rule.action_parameters) or None)
        with self._reading(f"create rule {rule.name} of {subscription} on {self._access.label}", subscription):
            making = self._client.sdk.create_rule(topic, name, rule.name, filter=made, action=action, **WRITE)
            await self._client.answer(making)

    async def delete_rule(self, subscription: str, name: str) -> None:
        with self._changing(f"delete rule {name} of {subscription} on {self._access.label}", subscription):
            await self._client.answer(self._client.sdk.delete_rule(*_parts(subscription), name, **WRITE))


def _parts(subscription: str) -> tuple[str, str]:
    found = subscription_of(subscription)
    if found is None:
        raise EntityNotFoundError(f"{subscription} is no subscription.", entity=subscription)
    return found


def _changed(found: Any, change: Mapping[str, Any]) -> Any:
    for name, value in change.items():
        setattr(found, sdk_name(name), sdk_value(name, value))
    return found


_KINDS = {QUEUE: EntityKind.QUEUE, TOPIC: EntityKind.TOPIC, SUBSCRIPTION: EntityKind.SUBSCRIPTION}


def _facts(found: EntityDescription, topic: str = "") -> EntityFacts:
    kind = _KINDS[found.kind]
    return EntityFacts(
        kind=kind,
        path=subscription_path(topic, found.name) if topic else found.name,
        settings=settings_of(EntitySettings, kind, found),
        counts=counts_of(found),
        size_in_bytes=found.size_in_bytes or 0,
        access_rules=tuple(AccessRule(*rule) for rule in access_rules_of(found)),
        accessed_at=epoch_of(found.accessed_at_utc),
    )


def _rule(found: Any) -> RuleFacts:
    action = None if found.action is None else found.action.sql_expression
    parameters = () if action is None else _values(found.action.parameters)
    if hasattr(found.filter, "sql_expression"):
        return RuleFacts(
            name=found.name,
            sql=a_text(found.filter.sql_expression, "SqlExpression"),
            parameters=_values(found.filter.parameters),
            action=action,
            action_parameters=parameters,
        )
    named = ((name, getattr(found.filter, name, None)) for name in CORRELATION_FIELDS)
    return RuleFacts(
        name=found.name,
        sql=None,
        correlation=tuple((name, value) for name, value in named if value is not None),
        properties=_values(found.filter.properties if found.filter else None),
        action=action,
        action_parameters=parameters,
    )


def _values(found: Mapping[str, Any] | None) -> Values:
    return tuple(sorted((found or {}).items()))
