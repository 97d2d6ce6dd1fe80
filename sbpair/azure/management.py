"""NamespaceAdmin over Azure Resource Manager: azure-mgmt-servicebus, with bodies and answers as plain JSON.

Plain JSON because the client's models serialise durations through floats (1 minute becomes `PT01M00S`, "never" a value
that is not TimeSpan.MaxValue). In resource names `~` stands for the `/` of entity paths.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, TypeVar

from sbpair.azure.administration import queue_facts, settings_of, topic_facts
from sbpair.azure.atom import QUEUE, SUBSCRIPTION, TOPIC, EntityDescription, seconds_of
from sbpair.azure.client import (
    READ,
    WRITE,
    Json,
    LazyClient,
    a_count,
    a_count_or_none,
    a_flag,
    a_list,
    a_text,
    a_text_or_none,
    an_object,
    changing,
)
from sbpair.azure.credentials import NamedCredential
from sbpair.azure.errors import translating
from sbpair.core.access import NamespaceAccess, resource_manager_url
from sbpair.core.durations import as_utc
from sbpair.core.entities import SETTINGS_OF, EntityKind, NamespaceFacts, QueueFacts, TopicFacts
from sbpair.core.errors import (
    AuthenticationFailedError,
    ConfigurationError,
    EntityExistsError,
    EntityNotFoundError,
    ServerBusyError,
    ServiceError,
    UnauthorizedError,
)
from sbpair.core.names import from_arm_name, namespace_label, subscription_path, to_arm_name
from sbpair.service import NEVER, QueueSettings, Tier, duration_text

T = TypeVar("T")

NEVER_BY_DEFAULT = ("defaultMessageTimeToLive", "autoDeleteOnIdle")
"""Properties that are "never" where they are not given."""
_LAG = "maxReplicationLagDurationInSeconds"
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
                hint="Set `subscription` in the configuration, or `management: data-plane`.",
            )
        self._access = access
        purpose = f"the resource manager's client for {access.label}"
        self._client = LazyClient(access, credential, _make_client, purpose, resource_manager=True)
        self._group: str | None = access.resource_group

    @property
    def control_plane(self) -> str:
        return "arm"

    async def namespace(self) -> NamespaceFacts:
        group = await self._resource_group()
        with _of_manager(f"read namespace {self._access.label} from the resource manager"):
            answer = await self._client.answer(self._client.sdk.namespaces.get(group, self._access.label, **READ))
            found = an_object(answer, "namespace")
            sku = an_object(found.get("sku"), "sku")
            tier = Tier(sku["name"]) if sku.get("name") in list(Tier) else None
            recovery = await self._recovery(group) if tier is Tier.PREMIUM else {}
            return self._namespace_facts(found, sku, tier, recovery)

    def _namespace_facts(self, found: Json, sku: Json, tier: Tier | None, recovery: Json) -> NamespaceFacts:
        properties = an_object(found.get("properties"), "properties")
        replication = an_object(properties.get("geoDataReplication"), "geoDataReplication")
        places = [an_object(place, "locations") for place in a_list(replication.get("locations"), "locations")]
        local_auth = properties.get("disableLocalAuth")
        pairing = an_object(recovery.get("properties"), "properties")
        return NamespaceFacts(
            name=a_text(found.get("name"), "name"),
            host=self._access.host,
            tier=tier,
            messaging_units=a_count_or_none(sku.get("capacity"), "capacity") if tier is Tier.PREMIUM else None,
            location=a_text_or_none(found.get("location"), "location"),
            partitioned=a_count(properties.get("premiumMessagingPartitions"), "premiumMessagingPartitions") > 1,
            alias=a_text_or_none(recovery.get("name"), "name"),
            geo_dr_role=a_text_or_none(pairing.get("role"), "role"),
            geo_dr_partner=a_text_or_none(pairing.get("partnerNamespace"), "partnerNamespace"),
            geo_replication_locations=tuple(f"{one.get('locationName')} ({one.get('roleType')})" for one in places),
            geo_replication_lag_seconds=a_count_or_none(replication.get(_LAG), _LAG),
            local_auth_disabled=None if local_auth is None else a_flag(local_auth, "disableLocalAuth"),
            status=a_text_or_none(properties.get("status"), "status"),
            service_time=self._client.service_time,
            control_plane=self.control_plane,
            extra=_extra(properties),
        )

    async def _recovery(self, group: str) -> Json:
        """The Geo-DR configuration, empty if there is none. A namespace has one at most."""
        with translating(f"read the Geo-DR configuration of {self._access.label}"):
            configurations = self._client.sdk.disaster_recovery_configs
            found = await self._client.items(configurations.list(group, self._access.label, **READ))
            return an_object(found[0], "disasterRecoveryConfigs") if found else {}

    async def list_queues(self, prefix: str = "") -> AsyncIterator[QueueFacts]:
        group = await self._resource_group()
        with _of_manager(f"list the queues of {self._access.label}"):
            listing = self._client.sdk.queues.list_by_namespace(group, self._access.label, **READ)
            found = await self._client.items(listing)
            queues = [_queue(one) for one in found]
        for facts in queues:
            if facts.path.lower().startswith(prefix.lower()):
                yield facts

    async def get_queue(self, path: str) -> QueueFacts | None:
        return await self._get(self._client.sdk.queues, f"queue {path}", path, _queue)

    async def _get(self, operations: Any, what: str, path: str, read: Callable[[Json], T], *below: str) -> T | None:
        """`below`: the name of the subscription of the topic `path`."""
        group = await self._resource_group()
        try:
            with translating(f"read {what} of {self._access.label}", path):
                asking = operations.get(group, self._access.label, to_arm_name(path), *below, **READ)
                return read(an_object(await self._client.answer(asking), what.partition(" ")[0]))
        except EntityNotFoundError:
            return None

    async def create_queue(self, path: str, settings: QueueSettings) -> QueueFacts:
        if await self.get_queue(path) is not None:
            raise EntityExistsError(f"Could not create queue {path} on {self._access.label}: it exists.", entity=path)
        tried = f"create queue {path} on {self._access.label}"
        return await self._put(self._client.sdk.queues, tried, path, properties_to_create(settings), _queue)

    async def update_queue(self, path: str, settings: QueueSettings) -> QueueFacts:
        tried = f"update queue {path} on {self._access.label}"
        present = await self._get(self._client.sdk.queues, f"queue {path}", path, _properties_of)
        if present is None:
            raise EntityNotFoundError(f"Could not {tried}: there is no such queue.", entity=path)
        with translating(tried, path):
            before = {name: value for name, value in present.items() if name not in _READ_ONLY}
            after = before | arm_properties(settings)
            if settings.max_message_size_in_kilobytes is None:
                after["maxMessageSizeInKilobytes"] = before.get("maxMessageSizeInKilobytes")
            for name in NEVER_BY_DEFAULT:
                if after[name] is None and seconds_of(before.get(name)) is not None:
                    after[name] = NEVER
        said = {name: value for name, value in after.items() if value is not None}
        return await self._put(self._client.sdk.queues, tried, path, said, _queue)

    async def _put(
        self, operations: Any, tried: str, path: str, properties: dict[str, Any], read: Callable[[Json], T], *below: str
    ) -> T:
        group = await self._resource_group()
        body = {"properties": properties} if properties else {}
        with translating(tried, path):
            names = (group, self._access.label, to_arm_name(path), *below)
            made = await self._client.answer(operations.create_or_update(*names, body, **WRITE))
            return read(an_object(made, "entity"))

    async def delete_queue(self, path: str) -> None:
        tried = f"delete queue {path} on {self._access.label}"
        if await self.get_queue(path) is None:
            raise EntityNotFoundError(f"Could not {tried}: there is no such queue.", entity=path)
        group = await self._resource_group()
        with changing(tried, path):
            operations = self._client.sdk.queues
            await self._client.answer(operations.delete(group, self._access.label, to_arm_name(path), **WRITE))

    async def list_topics(self) -> AsyncIterator[TopicFacts]:
        group = await self._resource_group()
        with translating(f"list the topics of {self._access.label}"):
            listing = self._client.sdk.topics.list_by_namespace(group, self._access.label, **READ)
            found = await self._client.items(listing)
            topics = [_topic(one) for one in found]
        for topic in topics:
            yield topic

    async def get_topic(self, path: str) -> TopicFacts | None:
        return await self._get(self._client.sdk.topics, f"topic {path}", path, _topic)

    async def create_topic(self, path: str) -> TopicFacts:
        tried = f"create topic {path} on {self._access.label}"
        if await self.get_topic(path) is not None:
            raise EntityExistsError(f"Could not {tried}: it exists.", entity=path)
        return await self._put(self._client.sdk.topics, tried, path, {}, _topic)

    async def get_subscription(self, topic: str, name: str) -> QueueFacts | None:
        path, operations = subscription_path(topic, name), self._client.sdk.subscriptions
        return await self._get(operations, path, topic, lambda found: _subscription(path, found), name)

    async def create_subscription(self, topic: str, name: str, settings: QueueSettings) -> QueueFacts:
        path, operations = subscription_path(topic, name), self._client.sdk.subscriptions
        tried = f"create {path} on {self._access.label}"
        if await self.get_subscription(topic, name) is not None:
            raise EntityExistsError(f"Could not {tried}: it exists.", entity=path)
        names = (name for name in SETTINGS_OF[EntityKind.SUBSCRIPTION] if name != "status")
        said = {key: value for key, value in arm_properties(settings, names).items() if value is not None}
        return await self._put(operations, tried, topic, said, lambda made: _subscription(path, made), name)

    async def close(self) -> None:
        await self._client.close()

    async def _resource_group(self) -> str:
        """The configured resource group, or the one found by looking through the subscription's namespaces once."""
        if self._group is None:
            with _of_manager(f"look for namespace {self._access.label} in the subscription", _ON_SUBSCRIPTION):
                found = await self._client.items(self._client.sdk.namespaces.list(**READ))
                match = next((one for one in found if one["name"].lower() == self._access.label), None)
                if match is None:
                    raise EntityNotFoundError(
                        f"There is no namespace {self._access.label} in subscription {self._access.subscription}.",
                        hint="Check `subscription`, or that the credential may read it.",
                    )
                self._group = _group_in(a_text(match.get("id"), "id"))
        return self._group


_SIGN_IN = (
    "The login is of another tenant or cloud than the subscription, or has ended: sign in with `az login`, choose with "
    "`az account set --subscription ID`, and outside the public cloud with --cloud."
)
_ON_NAMESPACE: Mapping[type[ServiceError], str] = {
    AuthenticationFailedError: _SIGN_IN,
    UnauthorizedError: "The login needs the role Reader on the namespace, or `management: data-plane` with Manage.",
    EntityNotFoundError: "Check `subscription` and `resource_group`: `az servicebus namespace list` shows both.",
    ServerBusyError: "The resource manager counts the requests of a login; try again in a minute.",
}
_ON_SUBSCRIPTION: Mapping[type[ServiceError], str] = {
    **_ON_NAMESPACE,
    UnauthorizedError: (
        "The login needs the role Reader on the subscription, or on a resource group: name that with --resource-group. "
        "Namespaces can be named instead: sbpair discover contoso-neu --auth azure-cli"
    ),
    EntityNotFoundError: "Check the id; `az account list` shows those that the login may see, each of one cloud.",
}
"""What helps where the resource manager refuses: rights are roles there, and a login is throttled, not a namespace."""


@contextmanager
def _of_manager(tried: str, advice: Mapping[type[ServiceError], str] = _ON_NAMESPACE) -> Iterator[None]:
    """`translating`, with advice for what the resource manager refuses."""
    try:
        with translating(tried):
            yield
    except ServiceError as error:
        error.hint = advice.get(type(error), error.hint)
        raise


async def list_namespaces(
    manager: NamespaceAccess, *, credential: NamedCredential | None = None
) -> list[NamespaceAccess]:
    """Every Service Bus namespace of a subscription (or of one resource group in it) that the credential may see.

    Args:
        manager: subscription, credential and management URL; it names no namespace.
        credential: instead of the one that `manager` names.

    Raises:
        ServiceError: the resource manager did not answer, or refused.
    """
    subscription = manager.subscription or ""
    client = LazyClient(manager, credential, _make_client, "the resource manager's client", resource_manager=True)
    try:
        with _of_manager(f"list the Service Bus namespaces of subscription {subscription}", _ON_SUBSCRIPTION):
            namespaces = client.sdk.namespaces
            group = manager.resource_group
            listing = namespaces.list_by_resource_group(group, **READ) if group else namespaces.list(**READ)
            return [_access(an_object(one, "namespace"), manager) for one in await client.items(listing)]
    finally:
        await client.close()


def _access(found: Json, manager: NamespaceAccess) -> NamespaceAccess:
    """How a namespace of a list is reached. Its host was written by the server: a token goes there only if it is one of
    Azure's own."""
    properties = an_object(found.get("properties"), "properties")
    endpoint = a_text(properties.get("serviceBusEndpoint"), "serviceBusEndpoint")
    return replace(
        manager,
        label=namespace_label(a_text(found.get("name"), "name")),
        host=endpoint.partition("://")[2].partition("/")[0].removesuffix(":443"),
        resource_group=_group_in(a_text(found.get("id"), "id")),
        host_from_list=True,
    )


def _group_in(resource_id: str) -> str:
    parts = resource_id.split("/")
    return parts[[part.lower() for part in parts].index("resourcegroups") + 1]


def _make_client(client: LazyClient, transport: Any) -> Any:
    from azure.mgmt.servicebus.aio import ServiceBusManagementClient

    access = client.access
    base_url = resource_manager_url(access)
    scopes = [f"{base_url}/.default"]
    return ServiceBusManagementClient(
        client.credential(), access.subscription or "", base_url=base_url, credential_scopes=scopes, transport=transport
    )


def properties_to_create(settings: QueueSettings) -> dict[str, Any]:
    """What a queue is created with, as JSON; what is the service's default goes without saying."""
    said = arm_properties(settings)
    for name in _FLAGS:
        if not getattr(settings, name):
            del said[_json_name(name)]
    if not settings.requires_duplicate_detection:
        del said["duplicateDetectionHistoryTimeWindow"]
    return {name: value for name, value in said.items() if value is not None}


_FLAGS = ("requires_duplicate_detection", "requires_session", "enable_express", "enable_partitioning")
"""Said only when on: the Basic tier refuses the mere mention of them."""


def arm_properties(settings: QueueSettings, names: Iterable[str] = SETTINGS_OF[EntityKind.QUEUE]) -> dict[str, Any]:
    """The settable properties as JSON; None is "never" or "not set"."""
    values = {name: getattr(settings, name, None) for name in names}
    return {
        _json_name(name): duration_text(value)
        if name.endswith("_seconds") and value is not None
        else getattr(value, "value", value)
        for name, value in values.items()
    }


def _json_name(name: str) -> str:
    """`lockDuration` of `lock_duration_seconds`."""
    first, *others = name.removesuffix("_seconds").split("_")
    return first + "".join(map(str.capitalize, others))


def _properties_of(found: Json) -> Json:
    return an_object(found.get("properties"), "properties")


def _moment(value: Any, what: str) -> datetime:
    return as_utc(datetime.fromisoformat(a_text(value, what)))


_READERS: Mapping[Any, Callable[[Any, str], Any]] = {
    str | None: a_text_or_none,
    int | None: a_count,
    bool | None: a_flag,
    datetime | None: _moment,
}
_KNOWN = [
    (field.name, _json_name(field.name.removesuffix("_utc")), _READERS[field.type])
    for field in fields(EntityDescription)
    if field.type in _READERS
]
"""What is read of an entity: attribute, property, and how."""


def _described(kind: str, found: Json) -> EntityDescription:
    """An entity as an Atom entry would describe it, so that the facts of both control planes are made in one way."""
    properties = _properties_of(found)
    said = {**properties, **an_object(properties.get("countDetails"), "countDetails")}
    values = {attribute: read(said[name], name) for attribute, name, read in _KNOWN if said.get(name) is not None}
    return EntityDescription(kind, from_arm_name(a_text(found.get("name"), "name")), **values)


def _queue(found: Json) -> QueueFacts:
    return queue_facts(_described(QUEUE, found))


def _topic(found: Json) -> TopicFacts:
    return topic_facts(_described(TOPIC, found))


def _subscription(path: str, found: Json) -> QueueFacts:
    settings = settings_of(QueueSettings, EntityKind.SUBSCRIPTION, _described(SUBSCRIPTION, found))
    return QueueFacts(path=path, settings=settings)


def _extra(properties: Json) -> tuple[tuple[str, str], ...]:
    wanted = ("publicNetworkAccess", "minimumTlsVersion", "zoneRedundant")
    return tuple((name, str(properties[name])) for name in wanted if properties.get(name) is not None)
