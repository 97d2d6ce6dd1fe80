"""NamespaceAdmin over Azure Resource Manager: azure-mgmt-servicebus, with bodies and answers as plain JSON.

Plain JSON because the client's models serialise durations through floats (1 minute becomes `PT01M00S`, "never" a value
that is not TimeSpan.MaxValue). In resource names `~` stands for the `/` of entity paths.
"""

from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any

from sbpair.azure.administration import bare_path, configured_size, entity_status
from sbpair.azure.calls import READ, WRITE, bounded, changing, every_item
from sbpair.azure.client import LazyClient
from sbpair.azure.credentials import NamedCredential
from sbpair.azure.durations import NEVER, seconds_of, to_iso
from sbpair.azure.errors import translating
from sbpair.core.access import NamespaceAccess
from sbpair.core.entities import Counts, NamespaceFacts, QueueFacts, QueueSettings, Tier, TopicFacts
from sbpair.core.errors import ConfigurationError, EntityExistsError, EntityNotFoundError
from sbpair.core.names import from_arm_name, to_arm_name

Json = Mapping[str, Any]

_DEFAULTS = QueueSettings()
_FLAGS = {
    "requiresDuplicateDetection": "requires_duplicate_detection",
    "requiresSession": "requires_session",
    "enableExpress": "enable_express",
    "enablePartitioning": "enable_partitioning",
}
_NEVER_BY_DEFAULT = ("defaultMessageTimeToLive", "autoDeleteOnIdle")
_READ_ONLY = ("countDetails", "createdAt", "updatedAt", "accessedAt", "sizeInBytes", "messageCount")


class ArmAdmin:
    """Queues and topics of one namespace by Entra ID, with the facts only the resource manager knows."""

    def __init__(self, access: NamespaceAccess, *, credential: NamedCredential | None = None) -> None:
        """`credential`: instead of the one that `access` names.

        Raises:
            ConfigurationError: no subscription is given; the API has no way to ask for it.
        """
        if not access.subscription:
            raise ConfigurationError(
                f"The resource manager needs the subscription of {access.label}.",
                hint="Set `subscription` in the configuration, or use --control-plane data-plane.",
            )
        self._access = access
        self._client = LazyClient(access, credential, _make_client, f"the resource manager's client for {access.label}")
        self._group: str | None = access.resource_group

    @property
    def control_plane(self) -> str:
        return "arm"

    async def namespace(self) -> NamespaceFacts:
        group = await self._resource_group()
        with translating(f"read namespace {self._access.label} from the resource manager"):
            found: Json = await bounded(self._client.sdk.namespaces.get(group, self._access.label, **READ))
        properties, sku = found.get("properties") or {}, found.get("sku") or {}
        tier = Tier(sku["name"]) if sku.get("name") in list(Tier) else None
        recovery = await self._recovery(group) if tier is Tier.PREMIUM else {}
        replication = properties.get("geoDataReplication") or {}
        return NamespaceFacts(
            name=found["name"],
            host=self._access.host,
            tier=tier,
            messaging_units=sku.get("capacity") if tier is Tier.PREMIUM else None,
            location=found.get("location"),
            partitioned=int(properties.get("premiumMessagingPartitions") or 1) > 1,
            alias=recovery.get("name"),
            geo_dr_role=(recovery.get("properties") or {}).get("role"),
            geo_dr_partner=(recovery.get("properties") or {}).get("partnerNamespace"),
            geo_replication_locations=tuple(
                f"{place.get('locationName')} ({place.get('roleType')})" for place in replication.get("locations") or ()
            ),
            local_auth_disabled=properties.get("disableLocalAuth"),
            status=properties.get("status"),
            service_time=self._client.service_time,
            control_plane=self.control_plane,
            extra=_extra(properties),
        )

    async def _recovery(self, group: str) -> Json:
        """The Geo-DR configuration, empty if there is none. A namespace has one at most."""
        with translating(f"read the Geo-DR configuration of {self._access.label}"):
            found = await every_item(self._client.sdk.disaster_recovery_configs.list(group, self._access.label, **READ))
        return found[0] if found else {}

    async def list_queues(self, prefix: str = "") -> AsyncIterator[QueueFacts]:
        group = await self._resource_group()
        with translating(f"list the queues of {self._access.label}"):
            found = await every_item(self._client.sdk.queues.list_by_namespace(group, self._access.label, **READ))
        for one in found:
            facts = _queue(one)
            if facts.path.lower().startswith(prefix.lower()):
                yield facts

    async def get_queue(self, path: str) -> QueueFacts | None:
        found = await self._get(self._client.sdk.queues, "queue", path)
        return None if found is None else _queue(found)

    async def _get(self, operations: Any, kind: str, path: str) -> Json | None:
        group = await self._resource_group()
        try:
            with translating(f"read {kind} {path} of {self._access.label}", path):
                found: Json = await bounded(operations.get(group, self._access.label, to_arm_name(path), **READ))
        except EntityNotFoundError:
            return None
        return found

    async def create_queue(self, path: str, settings: QueueSettings) -> QueueFacts:
        if await self.get_queue(path) is not None:
            raise EntityExistsError(f"Could not create queue {path} on {self._access.label}: it exists.", entity=path)
        properties = {name: value for name, value in _properties(settings).items() if value is not None}
        for name, attribute in _FLAGS.items():
            if not getattr(settings, attribute):
                del properties[name]
        if not settings.requires_duplicate_detection:
            del properties["duplicateDetectionHistoryTimeWindow"]
        return await self._put(f"create queue {path} on {self._access.label}", path, properties)

    async def update_queue(self, path: str, settings: QueueSettings) -> QueueFacts:
        tried = f"update queue {path} on {self._access.label}"
        present = await self._get(self._client.sdk.queues, "queue", path)
        if present is None:
            raise EntityNotFoundError(f"Could not {tried}: there is no such queue.", entity=path)
        before = {name: value for name, value in present["properties"].items() if name not in _READ_ONLY}
        after = before | _properties(settings)
        if settings.max_message_size_in_kilobytes is None:
            after["maxMessageSizeInKilobytes"] = before.get("maxMessageSizeInKilobytes")
        for name in _NEVER_BY_DEFAULT:
            if after[name] is None and seconds_of(before.get(name)) is not None:
                after[name] = NEVER
        return await self._put(tried, path, {name: value for name, value in after.items() if value is not None})

    async def _put(self, tried: str, path: str, properties: dict[str, Any]) -> QueueFacts:
        group = await self._resource_group()
        with translating(tried, path):
            made = await bounded(
                self._client.sdk.queues.create_or_update(
                    group, self._access.label, to_arm_name(path), {"properties": properties}, **WRITE
                )
            )
        return _queue(made)

    async def delete_queue(self, path: str) -> None:
        tried = f"delete queue {path} on {self._access.label}"
        if await self.get_queue(path) is None:
            raise EntityNotFoundError(f"Could not {tried}: there is no such queue.", entity=path)
        group = await self._resource_group()
        with changing(tried, path):
            await bounded(self._client.sdk.queues.delete(group, self._access.label, to_arm_name(path), **WRITE))

    async def list_topics(self) -> AsyncIterator[TopicFacts]:
        group = await self._resource_group()
        with translating(f"list the topics of {self._access.label}"):
            found = await every_item(self._client.sdk.topics.list_by_namespace(group, self._access.label, **READ))
        for one in found:
            yield _topic(one)

    async def get_topic(self, path: str) -> TopicFacts | None:
        found = await self._get(self._client.sdk.topics, "topic", path)
        return None if found is None else _topic(found)

    async def close(self) -> None:
        await self._client.close()

    async def _resource_group(self) -> str:
        """The configured resource group, or the one found by looking through the subscription's namespaces once."""
        if self._group is None:
            with translating(f"look for namespace {self._access.label} in the subscription"):
                found = await every_item(self._client.sdk.namespaces.list(**READ))
            match = next((one for one in found if one["name"].lower() == self._access.label.lower()), None)
            if match is None:
                raise EntityNotFoundError(
                    f"There is no namespace {self._access.label} in subscription {self._access.subscription}.",
                    hint="Check `subscription`, or that the credential may read it.",
                )
            parts = match["id"].split("/")
            self._group = parts[[part.lower() for part in parts].index("resourcegroups") + 1]
        return self._group


def _make_client(client: LazyClient, transport: Any) -> Any:
    from azure.mgmt.servicebus.aio import ServiceBusManagementClient

    access = client.access
    options: dict[str, Any] = {"transport": transport}
    if access.management_url is not None:
        base_url = access.management_url.rstrip("/")
        options |= {"base_url": base_url, "credential_scopes": [f"{base_url}/.default"]}
    return ServiceBusManagementClient(client.credential(), access.subscription or "", **options)


def _properties(settings: QueueSettings) -> dict[str, Any]:
    """The settable properties as JSON; None is "never" or "not set"."""
    ttl, idle = settings.default_message_time_to_live_seconds, settings.auto_delete_on_idle_seconds
    return {
        "lockDuration": to_iso(settings.lock_duration_seconds),
        "maxSizeInMegabytes": settings.max_size_in_megabytes,
        "requiresDuplicateDetection": settings.requires_duplicate_detection,
        "duplicateDetectionHistoryTimeWindow": to_iso(settings.duplicate_detection_history_time_window_seconds),
        "requiresSession": settings.requires_session,
        "defaultMessageTimeToLive": None if ttl is None else to_iso(ttl),
        "autoDeleteOnIdle": None if idle is None else to_iso(idle),
        "deadLetteringOnMessageExpiration": settings.dead_lettering_on_message_expiration,
        "maxDeliveryCount": settings.max_delivery_count,
        "enableBatchedOperations": settings.enable_batched_operations,
        "enablePartitioning": settings.enable_partitioning,
        "enableExpress": settings.enable_express,
        "status": settings.status.value,
        "forwardTo": settings.forward_to,
        "forwardDeadLetteredMessagesTo": settings.forward_dead_lettered_messages_to,
        "userMetadata": settings.user_metadata,
        "maxMessageSizeInKilobytes": settings.max_message_size_in_kilobytes,
    }


def _queue(found: Json) -> QueueFacts:
    properties = found.get("properties") or {}
    counts = properties.get("countDetails") or {}
    return QueueFacts(
        path=from_arm_name(found["name"]),
        settings=_settings(properties),
        counts=Counts(
            active=counts.get("activeMessageCount") or 0,
            dead_letter=counts.get("deadLetterMessageCount") or 0,
            scheduled=counts.get("scheduledMessageCount") or 0,
            transfer=counts.get("transferMessageCount") or 0,
            transfer_dead_letter=counts.get("transferDeadLetterMessageCount") or 0,
        ),
        size_in_bytes=properties.get("sizeInBytes") or 0,
        created_at=_epoch(properties.get("createdAt")),
        updated_at=_epoch(properties.get("updatedAt")),
        accessed_at=_epoch(properties.get("accessedAt")),
    )


def _settings(properties: Json) -> QueueSettings:
    partitioned = bool(properties.get("enablePartitioning"))
    lock_seconds = seconds_of(properties.get("lockDuration"))
    window = seconds_of(properties.get("duplicateDetectionHistoryTimeWindow"))
    return QueueSettings(
        lock_duration_seconds=_DEFAULTS.lock_duration_seconds if lock_seconds is None else lock_seconds,
        max_size_in_megabytes=configured_size(properties.get("maxSizeInMegabytes"), partitioned),
        requires_duplicate_detection=bool(properties.get("requiresDuplicateDetection")),
        duplicate_detection_history_time_window_seconds=(
            _DEFAULTS.duplicate_detection_history_time_window_seconds if window is None else window
        ),
        requires_session=bool(properties.get("requiresSession")),
        default_message_time_to_live_seconds=seconds_of(properties.get("defaultMessageTimeToLive")),
        auto_delete_on_idle_seconds=seconds_of(properties.get("autoDeleteOnIdle")),
        dead_lettering_on_message_expiration=bool(properties.get("deadLetteringOnMessageExpiration")),
        max_delivery_count=properties.get("maxDeliveryCount") or _DEFAULTS.max_delivery_count,
        enable_batched_operations=properties.get("enableBatchedOperations") is not False,
        enable_partitioning=partitioned,
        enable_express=bool(properties.get("enableExpress")),
        status=entity_status(properties.get("status")),
        forward_to=bare_path(properties.get("forwardTo")),
        forward_dead_lettered_messages_to=bare_path(properties.get("forwardDeadLetteredMessagesTo")),
        user_metadata=properties.get("userMetadata"),
        max_message_size_in_kilobytes=properties.get("maxMessageSizeInKilobytes"),
    )


def _topic(found: Json) -> TopicFacts:
    properties = found.get("properties") or {}
    partitioned = bool(properties.get("enablePartitioning"))
    return TopicFacts(
        path=from_arm_name(found["name"]),
        status=entity_status(properties.get("status")),
        enable_partitioning=partitioned,
        requires_duplicate_detection=bool(properties.get("requiresDuplicateDetection")),
        max_size_in_megabytes=configured_size(properties.get("maxSizeInMegabytes"), partitioned),
        max_message_size_in_kilobytes=properties.get("maxMessageSizeInKilobytes"),
        size_in_bytes=properties.get("sizeInBytes") or 0,
        subscription_count=properties.get("subscriptionCount"),
    )


def _extra(properties: Json) -> tuple[tuple[str, str], ...]:
    wanted = ("publicNetworkAccess", "minimumTlsVersion", "zoneRedundant")
    return tuple((name, str(properties[name])) for name in wanted if properties.get(name) is not None)


def _epoch(text: str | None) -> float | None:
    return None if not text else datetime.fromisoformat(text).timestamp()
