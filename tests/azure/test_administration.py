"""The two control planes where they differ, and when they are refused."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from sbpair.azure.administration import DataPlaneAdmin
from sbpair.azure.management import ArmAdmin
from sbpair.core import errors
from sbpair.core.access import NamespaceAccess, Secret
from sbpair.core.entities import EntityStatus, QueueSettings, Tier
from sbpair.core.errors import EntityExistsError
from sbpair.core.pairing import MAX_DELIVERY_COUNT
from sbpair.core.replication.settings import REPLICATED_SETTINGS, problems
from sbpair.emulator.admin.arm_models import ArmFacts
from sbpair.emulator.entities import AuthorizationRule, QueueDescription, SubscriptionDescription, TopicDescription
from sbpair.emulator.server import Emulator, NamespaceConfig
from sbpair.ports import NamespaceAdmin
from sbpair.service import Tier as EmulatedTier
from tests.azure.support import FixedCredential, message
from tests.contract.conftest import access_to, arm_access_to


@pytest.fixture
async def data_plane(emulator: Emulator) -> AsyncIterator[DataPlaneAdmin]:
    admin = DataPlaneAdmin(access_to(emulator))
    yield admin
    await admin.close()


@pytest.fixture
async def arm(emulator: Emulator) -> AsyncIterator[ArmAdmin]:
    admin = ArmAdmin(arm_access_to(emulator), credential=FixedCredential())
    yield admin
    await admin.close()


async def send(emulator: Emulator, path: str, count: int) -> None:
    from sbpair.azure.messaging import AzureMessaging

    messaging = AzureMessaging(access_to(emulator))
    await messaging.sender(path).send([message(str(n)) for n in range(count)], timeout_seconds=5)
    await messaging.close()


async def test_counts_and_times_are_the_same_from_both(
    emulator: Emulator, data_plane: DataPlaneAdmin, arm: ArmAdmin
) -> None:
    await send(emulator, "orders", 3)
    one, other = await data_plane.get_queue("orders"), await arm.get_queue("orders")
    assert one is not None
    assert other is not None
    assert one.counts.active == 3
    assert one.size_in_bytes > 0
    assert replace(one, accessed_at=None) == replace(other, accessed_at=None)
    assert [queue async for queue in data_plane.list_queues()] == [one]
    assert [queue.path async for queue in arm.list_queues()] == ["orders"]
    emulator.namespace("primary").create_queue("Others", QueueDescription())
    assert [queue.path async for queue in arm.list_queues("oth")] == ["Others"]


async def test_a_queue_that_nobody_has_used_has_no_time_of_access(
    emulator: Emulator, data_plane: DataPlaneAdmin, arm: ArmAdmin
) -> None:
    found = [await admin.get_queue("orders") for admin in (data_plane, arm)]
    assert [None if one is None else one.accessed_at for one in found] == [None, None]
    assert None not in found


async def test_topics_are_the_same_from_both(emulator: Emulator, data_plane: DataPlaneAdmin, arm: ArmAdmin) -> None:
    namespace = emulator.namespace("primary")
    namespace.create_topic("a/events", TopicDescription(enable_partitioning=True, max_size_in_megabytes=2048))
    namespace.create_subscription("a/events", "all", SubscriptionDescription())
    topics = [topic async for topic in data_plane.list_topics()]
    assert topics == [topic async for topic in arm.list_topics()]
    assert topics == [await data_plane.get_topic("a/events")] == [await arm.get_topic("a/events")]
    assert await data_plane.get_queue("a/events") is await arm.get_queue("a/events") is None, "it is a topic"
    assert topics[0].subscription_count == 1
    assert topics[0].max_size_in_megabytes == 2048


@pytest.mark.parametrize("plane", ["data_plane", "arm"])
async def test_a_topic_and_a_session_subscription_are_made(
    emulator: Emulator, data_plane: DataPlaneAdmin, arm: ArmAdmin, plane: str
) -> None:
    admin: NamespaceAdmin = data_plane if plane == "data_plane" else arm
    assert await admin.get_subscription("a/events", "all") is None
    assert (await admin.create_topic("a/events")).path == "a/events"
    made = await admin.create_subscription("a/events", "all", REPLICATED_SETTINGS)
    assert made.path == "a/events/Subscriptions/all"
    assert list(problems(made.settings, REPLICATED_SETTINGS)) == []
    for other in (data_plane, arm):
        found = await other.get_subscription("a/events", "all")
        assert found is not None
        assert (found.settings.requires_session, found.settings.max_delivery_count) == (True, MAX_DELIVERY_COUNT)
        assert found.settings == made.settings, "and nothing that only queues have"
    with pytest.raises(EntityExistsError):
        await admin.create_topic("a/events")
    with pytest.raises(EntityExistsError):
        await admin.create_subscription("a/events", "all", REPLICATED_SETTINGS)


async def test_a_queue_s_own_keys_are_named_without_the_keys(emulator: Emulator, data_plane: DataPlaneAdmin) -> None:
    rule = AuthorizationRule(
        name="reader", rights=frozenset({"Listen"}), primary_key="S3cretS3cret", secondary_key="S3cretS3cret"
    )
    emulator.namespace("primary").create_queue("keyed", QueueDescription(authorization_rules=(rule,)))
    facts = await data_plane.get_queue("keyed")
    assert facts is not None
    assert facts.authorization_rules == (("reader", ("Listen",)),)
    assert "S3cret" not in repr(facts)


async def test_a_key_without_manage_is_unauthorized(emulator: Emulator) -> None:
    emulator.namespace("primary").auth_rules["sender"] = AuthorizationRule(
        name="sender", rights=frozenset({"Send"}), primary_key="a2V5", secondary_key="a2V5"
    )
    access = access_to(emulator)
    admin = DataPlaneAdmin(replace(access, connection_string=Secret(emulator.connection_string("primary", "sender"))))
    with pytest.raises(errors.AccessDeniedError):
        await admin.create_queue("new", QueueSettings())
    await admin.close()


async def test_a_key_bound_to_an_entity_administers_that_entity_alone(emulator: Emulator) -> None:
    access = access_to(emulator)
    text = emulator.connection_string("primary") + ";EntityPath=orders"
    admin = DataPlaneAdmin(replace(access, connection_string=Secret(text)))
    assert await admin.get_queue("orders") is not None
    for refused in (
        admin.namespace(),
        admin.get_queue("other"),
        admin.delete_queue("other"),
        anext(admin.list_queues()),
    ):
        with pytest.raises(errors.UnauthorizedError, match="EntityPath=orders"):
            await refused
    await admin.close()


async def test_a_wrong_key_is_an_authentication_failure(emulator: Emulator) -> None:
    access = access_to(emulator)
    assert access.connection_string is not None
    key = access.connection_string.reveal().split("SharedAccessKey=")[1].split(";")[0]
    wrong = access.connection_string.reveal().replace(key, "d3JvbmcgYXMgY2FuIGJl")
    admin = DataPlaneAdmin(replace(access, connection_string=Secret(wrong)))
    with pytest.raises(errors.AuthenticationFailedError):
        await admin.namespace()
    await admin.close()


async def test_entra_works_on_the_data_plane_too(emulator: Emulator) -> None:
    access = replace(arm_access_to(emulator), control_plane="data-plane")
    admin = DataPlaneAdmin(access, credential=FixedCredential())
    assert (await admin.namespace()).name == "primary"
    await admin.close()


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, errors.ServerBusyError), (503, errors.ServerBusyError), (500, errors.ServiceInternalError)],
)
async def test_refusals_of_writes_are_told_at_once(
    emulator: Emulator, data_plane: DataPlaneAdmin, arm: ArmAdmin, status: int, kind: type[errors.ServiceError]
) -> None:
    emulator.faults("primary").add(f"http-status:status={status}")
    with pytest.raises(kind):
        await data_plane.create_queue("new", QueueSettings())
    with pytest.raises(kind):
        await data_plane.delete_queue("orders")


async def test_a_read_is_tried_again(emulator: Emulator, data_plane: DataPlaneAdmin) -> None:
    emulator.faults("primary").add("http-status:status=503,count=1")
    assert (await data_plane.namespace()).name == "primary"


async def test_an_unreachable_administration_is_a_lost_connection() -> None:
    text = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
    admin = DataPlaneAdmin(NamespaceAccess("gone", "127.0.0.1:1", connection_string=Secret(text)))
    with pytest.raises(errors.ConnectionLostError, match="read the properties of gone"):
        await admin.namespace()
    await admin.close()


async def test_settings_and_counts_take_one_request(emulator: Emulator, data_plane: DataPlaneAdmin) -> None:
    for index in range(120):
        emulator.namespace("primary").create_queue(f"{'qQ'[index % 2]}{index:03}", QueueDescription())
    faults = emulator.faults("primary")
    counter = faults.add("fail:op=http,after=1000000")

    def asked() -> int:
        return next(one.seen for one in faults.list() if one.id == counter)

    assert len([one async for one in data_plane.list_queues("Q")]) == 120
    assert asked() == 2, "two pages"
    assert await data_plane.get_queue("q007") is not None
    assert asked() == 3


async def test_names_with_slashes_are_told_apart_on_both(data_plane: DataPlaneAdmin, arm: ArmAdmin) -> None:
    await data_plane.create_queue("a/b/c", QueueSettings())
    facts = await arm.get_queue("a/b/c")
    assert facts is not None
    assert facts.path == "a/b/c"
    disabled = await arm.update_queue("a/b/c", replace(facts.settings, status=EntityStatus.RECEIVE_DISABLED))
    assert disabled.settings.status is EntityStatus.RECEIVE_DISABLED
    await arm.delete_queue("a/b/c")
    assert await data_plane.get_queue("a/b/c") is None


async def test_update_leaves_the_message_size_alone_when_nothing_is_said(arm: ArmAdmin) -> None:
    before = await arm.get_queue("orders")
    assert before is not None
    after = await arm.update_queue("orders", QueueSettings(max_delivery_count=3))
    assert after.settings.max_delivery_count == 3
    assert after.settings.max_message_size_in_kilobytes == before.settings.max_message_size_in_kilobytes


async def test_closing_ends_the_connections_and_the_credential(emulator: Emulator) -> None:
    credential = FixedCredential()
    admin = ArmAdmin(arm_access_to(emulator), credential=credential)
    await admin.get_queue("orders")
    session = admin._client._transport.session
    assert (session.closed, credential.tokens.closed) == (False, False)
    for _ in range(2):
        await admin.close()
    assert (session.closed, credential.tokens.closed) == (True, True)


async def test_the_resource_group_is_found_by_looking(emulator: Emulator) -> None:
    access = replace(arm_access_to(emulator), resource_group=None)
    admin = ArmAdmin(access, credential=FixedCredential())
    assert await admin.get_queue("orders") is not None
    await admin.close()
    capital = ArmAdmin(replace(access, label="Primary"), credential=FixedCredential())
    assert await capital.get_queue("orders") is not None
    await capital.close()
    stranger = ArmAdmin(replace(access, label="unknown"), credential=FixedCredential())
    with pytest.raises(errors.EntityNotFoundError, match="unknown"):
        await stranger.namespace()
    await stranger.close()


async def test_a_namespace_without_keys_asks_for_an_identity(emulator: Emulator, data_plane: DataPlaneAdmin) -> None:
    """What doctor, audit and peek show of a namespace with disableLocalAuth: another key would not help."""
    from sbpair.azure.messaging import AzureMessaging

    emulator.namespace("primary").access.allow_keys(False)
    messaging = AzureMessaging(access_to(emulator))
    for call in (data_plane.get_queue("orders"), messaging.receiver("orders").peek(1)):
        with pytest.raises(errors.AuthenticationFailedError, match="LocalAuthDisabled") as caught:
            await call
        assert "use an identity" in caught.value.hint
        assert "one of this namespace's" not in caught.value.hint
    await messaging.close()


async def test_a_premium_namespace_tells_its_pairing() -> None:
    async with Emulator([NamespaceConfig("primary", tier=EmulatedTier.PREMIUM)]) as emulator:
        namespace = emulator.namespace("primary")
        namespace.messaging_units = 4
        properties: dict[str, Any] = {"partnerNamespace": "/x/far-away", "role": "Primary"}
        namespace.disaster_recovery_configs["the-alias"] = properties
        admin = ArmAdmin(arm_access_to(emulator), credential=FixedCredential())
        facts = await admin.namespace()
        assert (facts.tier, facts.messaging_units) == (Tier.PREMIUM, 4)
        assert (facts.alias, facts.geo_dr_role, facts.geo_dr_partner) == ("the-alias", "Primary", "/x/far-away")
        assert facts.location == ArmFacts().location
        assert facts.local_auth_disabled is False
        data_plane = DataPlaneAdmin(access_to(emulator))
        assert (await data_plane.namespace()).alias == "the-alias"
        await admin.close()
        await data_plane.close()


@pytest.mark.parametrize(
    ("lag", "said"),
    [
        (300, "westeurope (Primary), eastus (Secondary), asynchronous, up to 300 s behind"),
        (0, "westeurope (Primary), eastus (Secondary), synchronous"),
        (None, "westeurope (Primary), eastus (Secondary)"),
    ],
)
async def test_a_premium_namespace_tells_how_it_is_replicated(lag: int | None, said: str) -> None:
    async with Emulator([NamespaceConfig("primary", tier=EmulatedTier.PREMIUM)]) as emulator:
        admin = ArmAdmin(arm_access_to(emulator), credential=FixedCredential())
        assert (await admin.namespace()).geo_replication is None
        places = [
            {"locationName": name, "roleType": role}
            for name, role in (("westeurope", "Primary"), ("eastus", "Secondary"))
        ]
        limit = {} if lag is None else {"maxReplicationLagDurationInSeconds": lag}
        assert emulator._directory is not None
        (emulated,) = emulator._directory.known()
        emulator._directory.facts(emulated).geo_data_replication = {**limit, "locations": places}
        facts = await admin.namespace()
        assert (facts.geo_replication, facts.geo_replication_lag_seconds) == (said, lag)
        await admin.close()


async def test_a_basic_namespace_is_not_told_what_it_refuses() -> None:
    async with Emulator([NamespaceConfig("primary", tier=EmulatedTier.BASIC)]) as emulator:
        for admin in (
            DataPlaneAdmin(access_to(emulator)),
            ArmAdmin(arm_access_to(emulator), credential=FixedCredential()),
        ):
            await admin.create_queue(admin.control_plane, QueueSettings(max_delivery_count=5))
            await admin.close()
        assert len(emulator.namespace("primary").queues()) == 2
