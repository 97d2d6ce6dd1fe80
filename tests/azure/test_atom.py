"""Our reading of Atom says what the SDK's models say, of what embedded namespaces answer and of what others might."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from sbpair.azure.administration import DataPlaneAdmin, make_administration_client
from sbpair.azure.atom import QUEUE, SUBSCRIPTION, TOPIC, EntityDescription, described, listed, seconds_of
from sbpair.azure.client import LazyClient
from sbpair.core.errors import UnknownServiceError
from sbpair.emulator.entities import AuthorizationRule, QueueDescription, SubscriptionDescription, TopicDescription
from sbpair.emulator.server import Emulator
from sbpair.service import NEVER, EntityStatus
from tests.azure.test_hostile_answers import Server, a_feed, an_entry, certificates, data_plane, server
from tests.contract.conftest import access_to

__all__ = ["certificates", "data_plane", "server"]

_SETTLED = ("default_message_time_to_live", "auto_delete_on_idle")
_WINDOW = "duplicate_detection_history_time_window"
DURATIONS = ("lock_duration", _WINDOW, *_SETTLED)
_OF_ALL = ("enable_batched_operations", "status", "user_metadata", *_SETTLED)
_OF_RECEIVERS = (
    *("lock_duration", "requires_session", "dead_lettering_on_message_expiration", "max_delivery_count"),
    *("forward_to", "forward_dead_lettered_messages_to"),
)
_OF_SENDERS = (
    *("requires_duplicate_detection", "enable_express", "enable_partitioning", "max_size_in_megabytes"),
    *("max_message_size_in_kilobytes", _WINDOW),
)
SETTINGS = {
    QUEUE: (*_OF_ALL, *_OF_RECEIVERS, *_OF_SENDERS),
    TOPIC: (*_OF_ALL, *_OF_SENDERS, "support_ordering"),
    SUBSCRIPTION: (*_OF_ALL, *_OF_RECEIVERS, "dead_lettering_on_filter_evaluation_exceptions"),
}
TIMES = ("created_at_utc", "updated_at_utc", "accessed_at_utc")
_COUNTED = tuple(f"{one}_message_count" for one in ("active", "dead_letter", "transfer", "transfer_dead_letter"))
RUNTIME = {
    QUEUE: (*TIMES, *_COUNTED, "scheduled_message_count", "size_in_bytes"),
    TOPIC: (*TIMES, "scheduled_message_count", "size_in_bytes", "subscription_count"),
    SUBSCRIPTION: (*TIMES, *_COUNTED),
}
GETS = {
    QUEUE: ("get_queue", "get_queue_runtime_properties"),
    TOPIC: ("get_topic", "get_topic_runtime_properties"),
    SUBSCRIPTION: ("get_subscription", "get_subscription_runtime_properties"),
}


def assert_same(kind: str, ours: EntityDescription, settings: Any, runtime: Any) -> None:
    """Whatever ours says is what the SDK's two descriptions say."""
    assert (ours.kind, ours.name) == (kind, settings.name)
    for name in SETTINGS[kind]:
        one, other = getattr(ours, name), getattr(settings, name)
        if name in DURATIONS:
            one, other = seconds_of(one), seconds_of(other)
        assert (name, one) == (name, getattr(other, "value", other))
    for name in RUNTIME[kind]:
        other = getattr(runtime, name, None)  # the SDK's counts raise where the answer has none
        if isinstance(other, datetime) and other.tzinfo is None:
            other = other.replace(tzinfo=UTC)
        assert (name, getattr(ours, name)) == (name, other)
    rules = [(one.key_name, list(one.rights)) for one in ours.authorization_rules or ()]
    theirs = getattr(settings, "authorization_rules", None) or []
    assert rules == [(one.key_name, [getattr(right, "value", right) for right in one.rights]) for one in theirs]


async def compared(client: LazyClient, kind: str, *of: str) -> EntityDescription:
    """An entity as ours, after a comparison with the SDK's."""
    settings, runtime = (getattr(client.sdk, name) for name in GETS[kind])
    ours = await described(client, settings, *of)
    assert_same(kind, ours, await settings(*of), await runtime(*of))
    return ours


@pytest.fixture
async def client(emulator: Emulator) -> AsyncIterator[LazyClient]:
    client = LazyClient(access_to(emulator), None, make_administration_client, "a test")
    yield client
    await client.close()


async def test_lists_and_entities_of_a_namespace_are_what_the_sdk_reads(emulator: Emulator, client: LazyClient) -> None:
    namespace, sdk = emulator.namespace("primary"), client.sdk
    rights = frozenset({"Listen", "Send"})
    key = AuthorizationRule(name="key", rights=rights, primary_key="a2V5", secondary_key="a2V5")
    namespace.create_queue(
        "a/strict",
        QueueDescription(
            lock_duration_seconds=90.5,
            max_size_in_megabytes=2048,
            requires_duplicate_detection=True,
            duplicate_detection_history_time_window_seconds=120.0,
            requires_session=True,
            default_message_time_to_live_seconds=3 * 86_400 + 3600.25,
            auto_delete_on_idle_seconds=300.0,
            dead_lettering_on_message_expiration=True,
            max_delivery_count=2_147_483_647,
            enable_batched_operations=False,
            status=EntityStatus.SEND_DISABLED,
            forward_dead_lettered_messages_to="orders",
            user_metadata="<b> & 'ü' \" \U0001f600 ]]>",
            authorization_rules=(key,),
        ),
    )
    for index in range(103):
        namespace.create_queue(f"Q{index:03}", QueueDescription(user_metadata=f" {index} "))
    partitioned = TopicDescription(enable_partitioning=True, max_size_in_megabytes=2048, user_metadata="")
    namespace.create_topic("t/news", partitioned)
    namespace.create_subscription("t/news", "all", SubscriptionDescription(forward_to="orders", max_delivery_count=3))
    for kind, pages, counted, of, count in (
        (QUEUE, sdk.list_queues, sdk.list_queues_runtime_properties, (), 105),
        (TOPIC, sdk.list_topics, sdk.list_topics_runtime_properties, (), 1),
        (SUBSCRIPTION, sdk.list_subscriptions, sdk.list_subscriptions_runtime_properties, ("t/news",), 1),
    ):
        ours = {one.name: one for one in await listed(client, kind, pages, *of)}
        theirs = {one.name: one async for one in pages(*of)}
        counts = {one.name: one async for one in counted(*of)}
        assert list(ours) == list(theirs)
        assert len(ours) == count
        for name, one in ours.items():
            assert_same(kind, one, theirs[name], counts[name])
            if name in ("a/strict", "t/news", "all"):
                assert await compared(client, kind, *of, name) == one
    assert (await described(client, sdk.get_queue, "t/news")).kind == TOPIC


ODD = (
    "",
    "<LockDuration>PT1M30S</LockDuration><MaxDeliveryCount></MaxDeliveryCount><RequiresSession/>",
    "<RequiresSession>TRUE</RequiresSession><EnableExpress>0</EnableExpress><EnablePartitioning>1</EnablePartitioning>",
    f"<AutoDeleteOnIdle>{NEVER}</AutoDeleteOnIdle><DefaultMessageTimeToLive>P1DT0.25S</DefaultMessageTimeToLive>",
    "<AccessedAt>0001-01-01T00:00:00</AccessedAt><CreatedAt>2026-01-01T00:00:00.1234567Z</CreatedAt>",
    "<UpdatedAt>2026-01-01T02:00:00+02:00</UpdatedAt><Unheard>5</Unheard><New><Of>it</Of></New>",
    '<ForwardTo i:nil="true"/><UserMetadata/><Status>Restoring</Status>',
    "<UserMetadata> &lt;a&gt; &amp;#38; <![CDATA[<raw> & ]]>\u00fc\U0001f600\r\n</UserMetadata>",
    '<x:LockDuration xmlns:x="urn:other">PT5M</x:LockDuration><MaxDeliveryCount>7</MaxDeliveryCount>',
    '<!-- a note --><MaxDeliveryCount>8</MaxDeliveryCount><LockDuration xmlns="urn:other">PT5M</LockDuration>',
    "<SizeInBytes>9223372036854775807</SizeInBytes><CountDetails/>",
    '<CountDetails xmlns:c="http://schemas.microsoft.com/netservices/2011/06/servicebus"><ActiveMessageCount>1'
    "</ActiveMessageCount><c:DeadLetterMessageCount>2</c:DeadLetterMessageCount><c:Other>3</c:Other></CountDetails>",
    "<AuthorizationRules/>",
    '<AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule"><Rights><AccessRights>Listen'
    "</AccessRights><AccessRights>Send</AccessRights></Rights><KeyName>k</KeyName></AuthorizationRule></AuthorizationRules>",
)
WRONG = (
    "<LockDuration>PT1M</LockDuration><LockDuration>PT2M</LockDuration>",
    "<RequiresSession>maybe</RequiresSession>",
    "<MaxDeliveryCount>1e3</MaxDeliveryCount>",
    "<LockDuration>1 minute</LockDuration>",
    "<CreatedAt>yesterday</CreatedAt>",
)


@pytest.mark.parametrize("body", ODD, ids=range(len(ODD)))
async def test_what_is_missing_empty_unknown_or_odd_is_read_as_the_sdk_reads_it(
    server: Server, data_plane: DataPlaneAdmin, body: str
) -> None:
    client = data_plane._client
    server.atom(an_entry(body=body, title="q"))
    entity = await compared(client, QUEUE, "q")
    server.atom(a_feed(an_entry(body=body, title="q"), an_entry(title="r"), an_entry(body=body, title="Q")))
    first, second = await listed(client, QUEUE, client.sdk.list_queues)
    assert first.name == "Q", "listed twice, as happens when a list is changed between its pages; the last one counts"
    assert (first.user_metadata, first.max_delivery_count) == (entity.user_metadata, entity.max_delivery_count)
    assert (second.name, second.max_delivery_count) == ("r", 10)


@pytest.mark.parametrize("body", WRONG, ids=range(len(WRONG)))
async def test_what_the_sdk_refuses_is_refused(server: Server, data_plane: DataPlaneAdmin, body: str) -> None:
    server.atom(an_entry(body=body))
    with pytest.raises(Exception, match=r"(?i)deserialize|several|duration"):
        await data_plane._client.sdk.get_queue("q")
    with pytest.raises(UnknownServiceError, match="Could not read queue q of primary: "):
        await data_plane.get_queue("q")
    server.atom(a_feed(an_entry(), an_entry(body=body, title="r")))
    with pytest.raises(UnknownServiceError, match="Could not list the queues of primary: "):
        [one async for one in data_plane.list_queues()]


@pytest.mark.parametrize(
    "answer", ["<html>hello</html>", a_feed(an_entry("TopicDescription")), an_entry(), a_feed("<entry/>"), ""]
)
async def test_what_is_no_list_of_queues_is_no_empty_list(
    server: Server, data_plane: DataPlaneAdmin, answer: str
) -> None:
    server.atom(answer)
    with pytest.raises(UnknownServiceError, match="the answer "):
        [one async for one in data_plane.list_queues()]


async def test_an_empty_list_is_one_and_says_that_an_entity_is_not_there(
    server: Server, data_plane: DataPlaneAdmin
) -> None:
    server.atom(a_feed())
    assert [one async for one in data_plane.list_queues()] == []
    assert await data_plane.get_queue("q") is None
    assert await data_plane.get_subscription("t", "s") is None
