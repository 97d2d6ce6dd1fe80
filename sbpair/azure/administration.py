"""NamespaceAdmin over the data plane: the SDK's asynchronous ServiceBusAdministrationClient (ATOM over HTTPS)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

from sbpair.azure.client import READ, WRITE, LazyClient, a_text, changing, check_scope
from sbpair.azure.credentials import NamedCredential
from sbpair.azure.durations import seconds_of
from sbpair.azure.errors import translating
from sbpair.core.access import NamespaceAccess
from sbpair.core.entities import Counts, EntityStatus, NamespaceFacts, QueueFacts, QueueSettings, Tier, TopicFacts
from sbpair.core.errors import EntityNotFoundError
from sbpair.core.names import subscription_path

F = TypeVar("F", QueueFacts, TopicFacts)

PARTITIONS = 16
"""A partitioned entity reports its configured size times this."""

_DEFAULTS = QueueSettings()
_OPTIONAL = ("requires_duplicate_detection", "requires_session", "enable_express", "enable_partitioning")
"""Sent only when on: the Basic tier refuses the mere mention of them."""
_OF_SUBSCRIPTIONS = (
    "lock_duration",
    "requires_session",
    "default_message_time_to_live",
    "auto_delete_on_idle",
    "dead_lettering_on_message_expiration",
    "max_delivery_count",
    "enable_batched_operations",
    "forward_to",
    "forward_dead_lettered_messages_to",
    "user_metadata",
)
"""What a subscription can be created with; the rest is the topic's."""


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
        """Two listings, joined; a queue that only one of them shows is asked for itself."""
        client = self._client.sdk
        with self._reading(f"list the queues of {self._access.label}"):
            properties, runtimes = await asyncio.gather(
                self._client.items(client.list_queues(**READ)),
                self._client.items(client.list_queues_runtime_properties(**READ)),
            )
            described = _by_name(properties, prefix)
            counted = _by_name(runtimes, prefix)
            queues = {name: _queue(one, counted[name]) for name, one in described.items() if name in counted}
        for name in described | counted:
            if name in queues:
                yield queues[name]
            elif (facts := await self.get_queue((described.get(name) or counted[name]).name)) is not None:
                yield facts

    async def get_queue(self, path: str) -> QueueFacts | None:
        sdk = self._client.sdk
        return await self._get(
            "queue", path, _queue, sdk.get_queue, sdk.get_queue_runtime_properties, otherwise=sdk.get_topic
        )

    async def _get(
        self,
        kind: str,
        path: str,
        facts: Callable[[Any, Any], F],
        describe: Callable[..., Awaitable[Any]],
        count: Callable[..., Awaitable[Any]],
        *,
        otherwise: Callable[..., Awaitable[Any]],
    ) -> F | None:
        """A queue or a topic; None if there is none of that path. `otherwise`: reads what else may have it."""
        try:
            with self._reading(f"read {kind} {path} of {self._access.label}", path):
                try:
                    found, runtime = await asyncio.gather(
                        self._client.answer(describe(path, **READ)), self._client.answer(count(path, **READ))
                    )
                except AttributeError:
                    # That is what the SDK makes of the description of a topic when it was asked for a queue, and
                    # the other way round.
                    await self._client.answer(otherwise(path, **READ))
                    return None
                return facts(found, runtime)
        except EntityNotFoundError:
            return None

    async def create_queue(self, path: str, settings: QueueSettings) -> QueueFacts:
        with self._reading(f"create queue {path} on {self._access.label}", path):
            made = await self._client.answer(self._client.sdk.create_queue(path, **_create_options(settings), **WRITE))
            return _queue(made, None)

    async def update_queue(self, path: str, settings: QueueSettings) -> QueueFacts:
        client, tried = self._client.sdk, f"update queue {path} on {self._access.label}"
        check_scope(self._access, path, tried)
        with changing(tried, path):
            present = await self._client.answer(client.get_queue(path, **READ))
            for name, value in _all_options(settings).items():
                if value is not None or name != "max_message_size_in_kilobytes":
                    setattr(present, name, value)
            await self._client.answer(client.update_queue(present, **WRITE))
        updated = await self.get_queue(path)
        if updated is None:
            raise EntityNotFoundError(f"Queue {path} of {self._access.label} is gone after its update.", entity=path)
        return updated

    async def delete_queue(self, path: str) -> None:
        tried = f"delete queue {path} on {self._access.label}"
        check_scope(self._access, path, tried)
        with changing(tried, path):
            await self._client.answer(self._client.sdk.delete_queue(path, **WRITE))

    async def list_topics(self) -> AsyncIterator[TopicFacts]:
        client = self._client.sdk
        with self._reading(f"list the topics of {self._access.label}"):
            properties, runtimes = await asyncio.gather(
                self._client.items(client.list_topics(**READ)),
                self._client.items(client.list_topics_runtime_properties(**READ)),
            )
            counted = _by_name(runtimes)
            topics = [_topic(found, counted.get(name)) for name, found in _by_name(properties).items()]
        for topic in topics:
            yield topic

    async def get_topic(self, path: str) -> TopicFacts | None:
        sdk = self._client.sdk
        return await self._get(
            "topic", path, _topic, sdk.get_topic, sdk.get_topic_runtime_properties, otherwise=sdk.get_queue
        )

    async def create_topic(self, path: str) -> TopicFacts:
        with self._reading(f"create topic {path} on {self._access.label}", path):
            # The SDK takes every further argument of this one call for a property of the topic.
            return _topic(await self._client.answer(self._client.sdk.create_topic(path)), None)

    async def get_subscription(self, topic: str, name: str) -> QueueFacts | None:
        path = subscription_path(topic, name)
        try:
            with self._reading(f"read {path} of {self._access.label}", topic):
                found = await self._client.answer(self._client.sdk.get_subscription(topic, name, **READ))
                return QueueFacts(path=path, settings=_subscription_settings(found))
        except EntityNotFoundError:
            return None

    async def create_subscription(self, topic: str, name: str, settings: QueueSettings) -> QueueFacts:
        path = subscription_path(topic, name)
        options = {key: value for key, value in _create_options(settings).items() if key in _OF_SUBSCRIPTIONS}
        with self._reading(f"create {path} on {self._access.label}", topic):
            made = await self._client.answer(self._client.sdk.create_subscription(topic, name, **options, **WRITE))
            return QueueFacts(path=path, settings=_subscription_settings(made))

    @contextmanager
    def _reading(self, tried: str, path: str | None = None) -> Iterator[None]:
        """Around one call about an entity, or (no path) about the namespace as a whole."""
        check_scope(self._access, path, tried)
        with translating(tried, path, within_seconds=self._access.call_seconds):
            yield

    async def close(self) -> None:
        await self._client.close()


def _by_name(listed: Iterable[Any], prefix: str = "") -> dict[str, Any]:
    """What a list holds, by names in lower case."""
    found = {a_text(one.name, "title").lower(): one for one in listed}
    return {name: one for name, one in found.items() if name.startswith(prefix.lower())}


def make_administration_client(client: LazyClient, transport: Any) -> Any:
    """The SDK's client for the namespace of `client`."""
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

    secret = client.access.connection_string
    if secret is not None:
        return ServiceBusAdministrationClient.from_connection_string(secret.reveal(), transport=transport)
    return ServiceBusAdministrationClient(client.access.host, client.credential(), transport=transport)


def _create_options(settings: QueueSettings) -> dict[str, Any]:
    """What to say in a create: no "never" (it is the default, and the SDK would write it above the maximum), and
    nothing a tier could refuse to hear unless it is wanted."""
    options = {name: value for name, value in _all_options(settings).items() if value is not None}
    for name in _OPTIONAL:
        if not options[name]:
            del options[name]
    if not settings.requires_duplicate_detection:
        del options["duplicate_detection_history_time_window"]
    if settings.status is EntityStatus.ACTIVE:
        del options["status"]
    return options


def _all_options(settings: QueueSettings) -> dict[str, Any]:
    """Every settable property by the SDK's names; None stands for "never" or "not set" and is not sent."""
    return {
        "lock_duration": timedelta(seconds=settings.lock_duration_seconds),
        "max_size_in_megabytes": settings.max_size_in_megabytes,
        "requires_duplicate_detection": settings.requires_duplicate_detection,
        "duplicate_detection_history_time_window": timedelta(
            seconds=settings.duplicate_detection_history_time_window_seconds
        ),
        "requires_session": settings.requires_session,
        "default_message_time_to_live": _timedelta(settings.default_message_time_to_live_seconds),
        "auto_delete_on_idle": _timedelta(settings.auto_delete_on_idle_seconds),
        "dead_lettering_on_message_expiration": settings.dead_lettering_on_message_expiration,
        "max_delivery_count": settings.max_delivery_count,
        "enable_batched_operations": settings.enable_batched_operations,
        "enable_partitioning": settings.enable_partitioning,
        "enable_express": settings.enable_express,
        "status": settings.status.value,
        "forward_to": settings.forward_to,
        "forward_dead_lettered_messages_to": settings.forward_dead_lettered_messages_to,
        "user_metadata": settings.user_metadata,
        "max_message_size_in_kilobytes": settings.max_message_size_in_kilobytes,
    }


def _timedelta(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def access_rules_of(found: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Names and rights of an entity's own shared access rules; a subscription has none."""
    return tuple(
        (
            a_text(rule.key_name, "the name of a key"),
            tuple(str(getattr(right, "value", right)) for right in rule.rights or ()),
        )
        for rule in getattr(found, "authorization_rules", None) or ()
    )


def _queue(found: Any, runtime: Any | None) -> QueueFacts:
    rules = access_rules_of(found)
    if runtime is None:
        return QueueFacts(path=found.name, settings=_settings(found), authorization_rules=rules)
    return QueueFacts(
        path=found.name,
        settings=_settings(found),
        counts=counts_of(runtime),
        size_in_bytes=runtime.size_in_bytes or 0,
        created_at=_epoch(runtime.created_at_utc),
        updated_at=_epoch(runtime.updated_at_utc),
        accessed_at=_epoch(runtime.accessed_at_utc),
        authorization_rules=rules,
    )


def counts_of(runtime: Any) -> Counts:
    """What the SDK counted; a topic has scheduled messages only."""

    def count(name: str) -> int:
        return getattr(runtime, f"{name}_message_count", None) or 0

    return Counts(
        active=count("active"),
        dead_letter=count("dead_letter"),
        scheduled=count("scheduled"),
        transfer=count("transfer"),
        transfer_dead_letter=count("transfer_dead_letter"),
    )


def _settings(found: Any) -> QueueSettings:
    partitioned = bool(found.enable_partitioning)
    lock_seconds = seconds_of(found.lock_duration)
    window = seconds_of(found.duplicate_detection_history_time_window)
    return QueueSettings(
        lock_duration_seconds=_DEFAULTS.lock_duration_seconds if lock_seconds is None else lock_seconds,
        max_size_in_megabytes=configured_size(found.max_size_in_megabytes, partitioned),
        requires_duplicate_detection=bool(found.requires_duplicate_detection),
        duplicate_detection_history_time_window_seconds=(
            _DEFAULTS.duplicate_detection_history_time_window_seconds if window is None else window
        ),
        requires_session=bool(found.requires_session),
        default_message_time_to_live_seconds=seconds_of(found.default_message_time_to_live),
        auto_delete_on_idle_seconds=seconds_of(found.auto_delete_on_idle),
        dead_lettering_on_message_expiration=bool(found.dead_lettering_on_message_expiration),
        max_delivery_count=found.max_delivery_count or _DEFAULTS.max_delivery_count,
        enable_batched_operations=found.enable_batched_operations is not False,
        enable_partitioning=partitioned,
        enable_express=bool(found.enable_express),
        status=entity_status(found.status),
        forward_to=bare_path(found.forward_to),
        forward_dead_lettered_messages_to=bare_path(found.forward_dead_lettered_messages_to),
        user_metadata=found.user_metadata,
        max_message_size_in_kilobytes=found.max_message_size_in_kilobytes,
    )


def _subscription_settings(found: Any) -> QueueSettings:
    lock_seconds = seconds_of(found.lock_duration)
    return QueueSettings(
        lock_duration_seconds=_DEFAULTS.lock_duration_seconds if lock_seconds is None else lock_seconds,
        requires_session=bool(found.requires_session),
        default_message_time_to_live_seconds=seconds_of(found.default_message_time_to_live),
        auto_delete_on_idle_seconds=seconds_of(found.auto_delete_on_idle),
        dead_lettering_on_message_expiration=bool(found.dead_lettering_on_message_expiration),
        max_delivery_count=found.max_delivery_count or _DEFAULTS.max_delivery_count,
        enable_batched_operations=found.enable_batched_operations is not False,
        status=entity_status(found.status),
        forward_to=bare_path(found.forward_to),
        forward_dead_lettered_messages_to=bare_path(found.forward_dead_lettered_messages_to),
        user_metadata=found.user_metadata,
    )


def _topic(found: Any, runtime: Any | None) -> TopicFacts:
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
        size_in_bytes=(runtime.size_in_bytes or 0) if runtime is not None else 0,
        subscription_count=runtime.subscription_count if runtime is not None else None,
    )


def configured_size(reported_megabytes: int | None, partitioned: bool) -> int:
    """Maximum size as configured: a partitioned entity reports that of its 16 partitions together."""
    if reported_megabytes is None:
        return _DEFAULTS.max_size_in_megabytes
    return reported_megabytes // PARTITIONS if partitioned else reported_megabytes


def entity_status(value: Any) -> EntityStatus:
    """The status, UNKNOWN for passing states (Creating, Deleting, ...)."""
    text = str(getattr(value, "value", value or EntityStatus.ACTIVE.value))
    return EntityStatus(text) if text in list(EntityStatus) else EntityStatus.UNKNOWN


def bare_path(forward: str | None) -> str | None:
    """A forwarding target as an entity path; the data plane reports it as a URL."""
    if not forward:
        return None
    return urlsplit(forward).path.strip("/") if "://" in forward else forward


def _tier(sku: Any) -> Tier | None:
    text = str(getattr(sku, "value", sku))
    return Tier(text) if text in list(Tier) else None


def _epoch(moment: datetime | None) -> float | None:
    # The service says the year 1 of what has not happened: nobody has accessed the entity.
    return None if moment is None or moment.year == 1 else moment.timestamp()
