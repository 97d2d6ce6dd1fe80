"""Spellings, tables and bounds of the adapters: what is the same to the service, and what each word stands for."""

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from xml.etree.ElementTree import Element, fromstring

import pytest
from azure.servicebus import TransportType

from sbpair.amqp import sections
from sbpair.amqp.sections import PropertyField
from sbpair.amqp.types import Int, Long, Symbol
from sbpair.azure import administration, atom, client, frames, http, management
from sbpair.azure.administration import DataPlaneAdmin, DataPlaneTopology
from sbpair.azure.atom import QUEUE, SUBSCRIPTION, TOPIC, listed
from sbpair.azure.client import LazyClient, check_scope
from sbpair.azure.credentials import _NEEDS, token_credential
from sbpair.azure.errors import WireError, translate
from sbpair.azure.links import OPEN_SECONDS
from sbpair.azure.management import ArmAdmin
from sbpair.azure.messaging import AzureMessaging
from sbpair.core import errors
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, Transport
from sbpair.core.entities import EntityKind, EntitySettings, EntityStatus, QueueSettings, RuleFacts, Tier
from sbpair.core.message import NEXT_AVAILABLE_SESSION, MessageState
from sbpair.emulator.entities import QueueDescription, SubscriptionDescription, TopicDescription
from sbpair.emulator.server import Emulator
from tests.azure.support import FixedCredential
from tests.azure.test_errors import http as answered
from tests.contract.conftest import access_to, arm_access_to

HOST = "contoso.servicebus.windows.net"


def keyed(entity_path: str = "", **more: Any) -> NamespaceAccess:
    text = f"Endpoint=sb://{HOST}/;SharedAccessKeyName=k;SharedAccessKey=a2V5"
    path = f";EntityPath={entity_path}" if entity_path else ""
    return NamespaceAccess("contoso", HOST, AuthMethod.CONNECTION_STRING, Secret(text + path), **more)


@pytest.mark.parametrize(
    ("bound", "entity", "allowed"),
    [
        ("", None, True),
        ("", "q", True),
        ("Orders", "orders", True),
        ("orders", "ORDERS", True),
        ("orders", "orders/Subscriptions/s", True),
        ("orders", "orders2", False),
        ("orders", "order", False),
        ("orders", None, False),
    ],
)
def test_a_key_of_one_entity_is_for_that_and_what_is_below_it(bound: str, entity: str | None, allowed: bool) -> None:
    if allowed:
        check_scope(keyed(bound), entity, "read")
        return
    with pytest.raises(errors.UnauthorizedError, match="is for orders alone"):
        check_scope(keyed(bound), entity, "read")


async def test_queues_are_listed_by_a_prefix_in_any_spelling(emulator: Emulator) -> None:
    emulator.namespace("primary").create_queue("Others/x", QueueDescription())
    arm_access = arm_access_to(emulator)
    by_label = replace(arm_access, label=arm_access.label.upper(), resource_group=None)
    for admin in (
        DataPlaneAdmin(access_to(emulator)),
        ArmAdmin(arm_access, credential=FixedCredential()),
        ArmAdmin(by_label, credential=FixedCredential()),
    ):
        for prefix, found in (("OTHERS/", ["Others/x"]), ("others/X", ["Others/x"]), ("x", [])):
            assert [queue.path async for queue in admin.list_queues(prefix)] == found
        await admin.close()


async def test_entities_and_rules_are_in_the_order_of_their_names_whatever_their_case(emulator: Emulator) -> None:
    namespace = emulator.namespace("primary")
    for name in ("b", "A", "C"):
        namespace.create_queue(name, QueueDescription())
    for name in ("y", "X"):
        namespace.create_topic(name, TopicDescription())
        namespace.create_subscription(name, f"of-{name}", SubscriptionDescription())
    topology = DataPlaneTopology(access_to(emulator))
    for name in ("b", "A", "C"):
        await topology.create_rule("y/Subscriptions/of-y", RuleFacts(name, sql="1=1"))
    found = await topology.entities(rules=True)
    assert [(one.kind, one.path) for one in found] == [
        *((EntityKind.QUEUE, path) for path in ("A", "b", "C", "orders")),
        *((EntityKind.TOPIC, path) for path in ("X", "y")),
        *((EntityKind.SUBSCRIPTION, f"{topic}/Subscriptions/of-{topic}") for topic in "Xy"),
    ]
    assert [rule.name for rule in found[-1].rules] == ["$Default", "A", "b", "C"]
    assert await topology.entity("y/Subscriptions/of-y") == found[-1]
    assert await topology.rules(replace(found[-1], rules=())) == found[-1]
    assert [one.rules for one in await topology.subscriptions("y", rules=False)] == [()]
    assert await topology.subscriptions("y", rules=True) == [found[-1]]
    assert (await topology.entity("X")) == found[4]
    assert await topology.entity("nowhere") is None
    for path, settings in (("y/Subscriptions/of-y", "max_delivery_count"), ("C", "max_delivery_count")):
        await topology.update(path, {settings: 7})
        changed = await topology.entity(path)
        assert changed is not None
        assert changed.settings.max_delivery_count == 7
    await topology.update("X", {"max_size_in_megabytes": 2048})
    topic = await topology.entity("X")
    assert topic is not None
    assert topic.settings.max_size_in_megabytes == 2048
    with pytest.raises(errors.EntityNotFoundError, match="does not exist"):
        await topology.update("nowhere", {})
    for path in ("y/Subscriptions/of-y", "X", "C"):
        await topology.delete(path)
    assert [one.path for one in await topology.entities(rules=False)] == ["A", "b", "orders", "y"]
    await topology.close()


def feed(*titles: str, kind: str = "QueueDescription") -> Element:
    namespace = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
    entries = "".join(
        f'<entry><title>{one}</title><content><{kind} xmlns="{namespace}"/></content></entry>' for one in titles
    )
    return fromstring(f'<feed xmlns="http://www.w3.org/2005/Atom">{entries}</feed>')


async def test_an_entity_that_is_listed_twice_counts_once_and_of_its_kind_alone() -> None:
    async def items(pages: Any) -> list[Any]:
        return []

    sdk: Any = SimpleNamespace(items=items)

    def pages(titles: Element) -> Callable[..., Any]:
        return lambda *of, cls, **options: cls(None, titles, None)

    found = await listed(sdk, QUEUE, pages(feed("Orders", "orders", "b")))
    assert [(one.kind, one.name) for one in found] == [(QUEUE, "orders"), (QUEUE, "b")]
    with pytest.raises(ValueError, match="has an entry that is no"):
        await listed(sdk, TOPIC, pages(feed("a")))
    assert [one.kind for one in await listed(sdk, TOPIC, pages(feed("a", kind="TopicDescription")))] == [TOPIC]
    found = await listed(sdk, SUBSCRIPTION, pages(feed("a", kind="SubscriptionDescription")))
    assert [one.kind for one in found] == [SUBSCRIPTION]


def test_what_the_data_plane_says_is_read_whatever_its_spelling() -> None:
    assert [atom._flag(text) for text in ("True", "false", "TRUE", "", None)] == [True, False, True, None, None]
    assert administration.bare_path("sb://host/a/b/") == "a/b"
    assert administration.sdk_name("lock_duration_seconds") == "lock_duration"
    assert administration.sdk_value("lock_duration_seconds", 5) == timedelta(seconds=5)
    assert administration.sdk_value("lock_duration_seconds", None) is None
    assert administration.sdk_value("status", EntityStatus.DISABLED) == "Disabled"
    assert administration.entity_status("Disabled") is EntityStatus.DISABLED
    assert administration.configured_size(None, partitioned=True) == QueueSettings().max_size_in_megabytes
    assert (administration._tier("Premium"), administration._tier("Gold")) == (Tier.PREMIUM, None)
    assert administration.epoch_of(datetime(1, 1, 1, tzinfo=UTC)) is None
    assert administration.epoch_of(datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)) == 5.0


def test_only_what_is_wanted_is_said_of_an_entity_that_is_made() -> None:
    plain = administration.create_options(EntityKind.QUEUE, QueueSettings())
    assert "duplicate_detection_history_time_window" not in plain
    assert None not in plain.values()
    detecting = QueueSettings(requires_duplicate_detection=True, duplicate_detection_history_time_window_seconds=60.0)
    told = administration.create_options(EntityKind.QUEUE, detecting)
    assert told["duplicate_detection_history_time_window"] == timedelta(seconds=60)
    assert "forward_to" not in administration.create_options(EntityKind.SUBSCRIPTION, QueueSettings())
    assert "lock_duration" not in administration.create_options(EntityKind.TOPIC, EntitySettings())
    said = management.properties_to_create(QueueSettings())
    assert not {"requiresSession", "requiresDuplicateDetection", "duplicateDetectionHistoryTimeWindow"} & set(said)
    said = management.properties_to_create(replace(detecting, requires_session=True, lock_duration_seconds=61.0))
    assert (said["requiresSession"], said["duplicateDetectionHistoryTimeWindow"], said["lockDuration"]) == (
        *(True, "PT1M"),
        "PT1M1S",
    )


def test_what_the_resource_manager_says_of_a_namespace() -> None:
    manager = NamespaceAccess("", "", AuthMethod.AZURE_CLI, subscription="s")
    found = {
        "name": "Contoso",
        "id": "/subscriptions/s/RESOURCEGROUPS/rg-1/providers/Microsoft.ServiceBus/namespaces/Contoso",
        "properties": {"serviceBusEndpoint": f"https://{HOST}:443/"},
    }
    access = management._access(found, manager)
    assert (access.host, access.resource_group, access.host_from_list) == (HOST, "rg-1", True)


@pytest.mark.parametrize(
    ("foreign", "kind"),
    [
        (answered(401, "Manage CLAIMS required"), errors.UnauthorizedError),
        (answered(409, "ANOTHER conflicting operation"), errors.ConflictError),
        (answered(429, "it is in progress"), errors.ConflictError),
        (answered(500, "another"), errors.ServiceInternalError),
        (answered(403, "Over the Quota"), errors.QuotaExceededError),
        (answered(403, "the limit"), errors.QuotaExceededError),
        (answered(400, "exceeded"), errors.ArgumentRefusedError),
        (answered(499, "?"), errors.ArgumentRefusedError),
        (answered(399, "?"), errors.UnknownServiceError),
        (WireError(None, "?", status=500), errors.ServiceInternalError),
        (WireError("amqp:unknown-error", "?", status=404), errors.EntityNotFoundError),
        (WireError(None, "?"), errors.UnknownServiceError),
        (WireError("amqp:internal-error", "Error code: 50009"), errors.ServiceInternalError),
    ],
)
def test_answers_are_classified_in_any_spelling(foreign: Exception, kind: type[errors.ServiceError]) -> None:
    assert type(translate(foreign, "do it")) is kind


def test_details_name_condition_or_status_beside_the_text() -> None:
    def told(error: Exception) -> str:
        return translate(error, "do it").message.removeprefix("Could not do it: ")

    assert told(WireError("amqp:not-found", "")) == "amqp:not-found"
    assert told(WireError(None, "", status=404)) == "status 404"
    assert told(WireError(None, "text", status=404)) == "text (status 404)"
    assert told(WireError(None, "text")) == "text"
    assert told(TimeoutError()) == "no answer in time"
    assert told(TimeoutError("why")) == "why"
    assert told(RuntimeError()) == "RuntimeError"
    assert told(KeyError("x")) == "the answer is not what this service answers (KeyError: 'x')"
    other = OSError("why")
    other.status_code = 404  # type: ignore[attr-defined]
    assert type(translate(other, "do it")) is errors.ConnectionLostError, "only HTTP has the statuses of HTTP"
    own = errors.ServerBusyError("own")
    assert translate(own, "do it") is own


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("HTTPS://Host/a", "https://host:443/b", True),
        ("http://host", "http://host:80", True),
        ("http://host", "https://host", False),
        ("https://host:1", "https://host:2", False),
        ("https://host", "https://other", False),
    ],
)
def test_an_origin_is_scheme_host_and_port(one: str, other: str, same: bool) -> None:
    assert (http._origin_of(one) == http._origin_of(other)) is same


def test_a_date_is_read_or_unknown() -> None:
    assert http._epoch_of("Thu, 01 Jan 1970 00:00:07 GMT") == 7.0
    assert http._epoch_of("soon") is None


MADE = {
    AuthMethod.AZURE_CLI: ("AzureCliCredential", "Sign in with"),
    AuthMethod.MANAGED_IDENTITY: ("ManagedIdentityCredential", "identity assigned"),
    AuthMethod.WORKLOAD_IDENTITY: ("WorkloadIdentityCredential", "AZURE_FEDERATED_TOKEN_FILE"),
    AuthMethod.ENVIRONMENT: ("EnvironmentCredential", "secret or certificate"),
    AuthMethod.BROWSER: ("_BrowserCredential", "browser"),
    AuthMethod.DEFAULT: ("DefaultAzureCredential", "--auth azure-cli"),
}


@pytest.mark.parametrize("method", MADE)
async def test_each_method_has_its_credential_and_its_advice(
    method: AuthMethod, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "token"))
    credential = token_credential(NamespaceAccess("contoso", HOST, auth=method))
    name, advice = MADE[method]
    assert (type(credential._inner).__name__, advice in _NEEDS[method]) == (name, True)
    assert [one for one in _NEEDS if advice in _NEEDS[one]] == [method]
    await credential.close()


class SdkClient:
    """Stands in for the SDK's client: what it was made with."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.arguments, self.options = arguments, options

    @classmethod
    def from_connection_string(cls, text: str, **options: Any) -> "SdkClient":
        return cls(text, **options)

    def get_queue_sender(self, entity: str, **options: Any) -> Any:
        return entity, options

    def get_queue_receiver(self, entity: str, **options: Any) -> Any:
        return entity, options


EMULATED = "Endpoint=sb://127.0.0.1:5671;SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"


@pytest.mark.parametrize(
    ("text", "transport", "endpoint", "kind"),
    [
        (EMULATED, Transport.AMQP, None, None),
        (EMULATED, Transport.WEBSOCKET, "sb://127.0.0.1:5671", TransportType.AmqpOverWebsocket),
        (EMULATED.rpartition(";")[0], Transport.AMQP, "sb://127.0.0.1:5671", TransportType.Amqp),
    ],
)
async def test_the_sdk_s_client_is_made_for_the_transport_and_the_port(
    text: str, transport: Transport, endpoint: str | None, kind: TransportType | None
) -> None:
    access = NamespaceAccess("local", "127.0.0.1:5671", AuthMethod.CONNECTION_STRING, Secret(text), transport=transport)
    messaging = AzureMessaging(access, client_class=SdkClient, client_options={"user_agent": "mine"})
    made = messaging._sdk_client()
    assert messaging._sdk_client() is made
    assert (made.options.get("custom_endpoint_address"), made.options.get("transport_type")) == (endpoint, kind)
    assert (made.options["retry_total"], made.options["user_agent"]) == (0, "mine")
    assert made.options["ssl_context"] is not None
    await messaging.close()


async def test_links_are_opened_within_their_bound_and_forgotten_once_closed() -> None:
    def seconds(call_seconds: float, session: str | None = None) -> float:
        messaging = AzureMessaging(keyed(call_seconds=call_seconds), client_class=SdkClient, next_session_seconds=7.0)
        return messaging.receiver("q", session_id=session)._open_seconds

    assert (seconds(1.0), seconds(1000.0)) == (1.0, OPEN_SECONDS)
    assert (seconds(1.0, NEXT_AVAILABLE_SESSION), seconds(1000.0, NEXT_AVAILABLE_SESSION)) == (8.0, OPEN_SECONDS + 7.0)
    assert seconds(1.0, "a") == 1.0
    messaging = AzureMessaging(keyed(call_seconds=2.0), client_class=SdkClient)
    assert messaging.mover("q")._open_seconds == 2.0
    receiver, dead = messaging.receiver("q"), messaging.receiver("q", dead_letter=True)
    assert (receiver.source, dead.source) == ("q", "q/$deadletterqueue")
    assert messaging.mover("q", dead_letter=True).source == "q/$deadletterqueue"
    sender = messaging.sender("q")
    assert len(messaging._open) == 5
    for link in (receiver, sender):
        await link.close()
    assert len(messaging._open) == 3
    assert messaging._make_sender("q")[0] == "q"
    with pytest.raises(errors.ArgumentRefusedError, match="not the path"):
        messaging._make_sender("https://elsewhere/q")
    await messaging.close()
    assert messaging._client is None


@pytest.mark.parametrize(
    ("number", "state"),
    [(None, MessageState.ACTIVE), (1, MessageState.DEFERRED), (2, MessageState.SCHEDULED), (9, MessageState.ACTIVE)],
)
def test_the_state_of_a_message_is_what_its_annotation_says(number: int | None, state: MessageState) -> None:
    annotations: dict[Any, Any] = {} if number is None else {Symbol("x-opt-message-state"): Int(number)}
    payload = sections.build(message_annotations={**annotations, Symbol("x-opt-sequence-number"): Long(5)}, data=b"x")
    found = frames.read_received(payload, "q")
    assert (found.state, found.sequence_number) == (state, 5)


def test_a_batch_and_a_scheduled_message_are_placed_by_the_first() -> None:
    key = Symbol("x-opt-partition-key")

    def payload(properties: dict[int, Any], annotations: dict[Any, Any] | None = None) -> bytes:
        return sections.build(properties=properties, message_annotations=annotations, data=b"x")

    first = payload({PropertyField.MESSAGE_ID: "m", PropertyField.GROUP_ID: "s"}, {key: "k", Symbol("other"): "x"})
    bare = payload({PropertyField.MESSAGE_ID: "n"})
    found = frames.read_received(frames.batch([first, bare]), "q")
    assert (found.message_id, found.session_id, found.partition_key) == ("m", "s", "k")
    found = frames.read_received(frames.batch([bare, first]), "q")
    assert (found.message_id, found.session_id, found.partition_key) == ("n", None, None)
    assert frames.schedule_entry(first) == {
        "message-id": "m",
        "session-id": "s",
        "partition-key": "k",
        "message": bytearray(first),
    }
    assert frames.schedule_entry(bare) == {"message-id": "n", "message": bytearray(bare)}
    assert frames.schedule_entry(b"nonsense") == {"message-id": None, "message": bytearray(b"nonsense")}


def test_an_answer_is_taken_at_its_word_only_where_it_is_of_the_right_type() -> None:
    assert (client.an_object(None, "x"), client.a_list(None, "x"), client.a_count(None, "x")) == ({}, [], 0)
    assert (client.a_count(0, "x"), client.a_count(2**63 - 1, "x"), client.a_count_or_none(None, "x")) == (
        *(0, 2**63 - 1),
        None,
    )
    assert (client.a_text("a", "x"), client.a_text_or_none("", "x"), client.a_flag(False, "x")) == ("a", None, False)
    for read, wrong, what in (
        (client.an_object, [], "an object"),
        (client.a_list, {}, "a list"),
        (client.a_text, "", "a text"),
        (client.a_text, 5, "a text"),
        (client.a_count, True, "a whole number"),
        (client.a_count, -1, "a whole number"),
        (client.a_count, 2**63, "a whole number"),
        (client.a_flag, 1, "true or false"),
    ):
        with pytest.raises(ValueError, match=f"for `field`, which is not {what}"):
            read(wrong, "field")


class Pages:
    """A list of the SDK in pages, each with the link to the next."""

    def __init__(self, links: list[str | None]) -> None:
        self.links, self.continuation_token = list(links), ""

    def by_page(self) -> "Pages":
        return self

    def __aiter__(self) -> "Pages":
        return self

    async def __anext__(self) -> Any:
        if not self.links:
            raise StopAsyncIteration
        self.continuation_token = self.links.pop(0) or ""

        async def items() -> Any:
            yield len(self.links)

        return items()


async def test_a_list_is_read_to_its_end_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_PAGES", 3)
    lazy = LazyClient(keyed(), None, lambda lazy, transport: None, "nothing")
    assert lazy.service_time is None
    assert await lazy.items(Pages(["a", "b", None])) == [2, 1, 0]
    with pytest.raises(ValueError, match="more than 3 pages"):
        await lazy.items(Pages(["a", "b", "c", "d"]))
    with pytest.raises(ValueError, match="page 3 leads back"):
        await lazy.items(Pages(["a", "b", "a"]))
    await lazy.close()
    await lazy.close()


def test_the_sdk_is_kept_quiet_once() -> None:
    logger = logging.getLogger("azure")
    before = list(logger.handlers)
    try:
        logger.handlers[:] = [logging.StreamHandler()]
        client.quiet_sdk()
        client.quiet_sdk()
        assert [type(one) for one in logger.handlers] == [logging.StreamHandler, logging.NullHandler]
    finally:
        logger.handlers[:] = before


def test_what_is_broken_behind_the_properties_takes_nothing_from_what_is_known() -> None:
    whole = sections.build(
        header={},
        message_annotations={Symbol("x-opt-sequence-number"): Long(5)},
        properties={PropertyField.MESSAGE_ID: "m"},
    )
    for rest in (b"", b"\x00\x53\x75\xb0\xff\xff\xff\xff"):
        found = frames.read_received(whole + rest, "q")
        assert (found.message_id, found.sequence_number) == ("m", 5)
