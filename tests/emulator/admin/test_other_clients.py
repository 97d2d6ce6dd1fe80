"""What clients in other languages ask of the administration, seen on the wire."""

import json

import pytest

from sbpair.engine.auth import make_sas_token, resource_path

from .conftest import ARM_TOKEN, FAR_FUTURE, AdminServer
from .raw import ENTRY, Answer, send

QUEUES = "?api-version=2021-05"
SUBSCRIPTION = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/rg"
TAGS = "/providers/Microsoft.Resources/tags/default?api-version=2022-09-01"


def put(server: AdminServer, target: str, kind: str, body: str = "", **headers: str) -> Answer:
    return send(server, "PUT", target, ENTRY.format(kind=kind, body=body), headers=headers)


def arm(server: AdminServer, method: str, rest: str, body: object = None, **headers: str) -> Answer:
    text = "" if body is None else json.dumps(body)
    given = {"Content-Type": "application/json", "Host": "management.azure.com"} | headers
    path = f"{SUBSCRIPTION}/providers/Microsoft.ServiceBus/namespaces/primary{rest}"
    return send(server, method, path, text, token=f"Bearer {ARM_TOKEN}", headers=given)


def order_of(text: str, *elements: str) -> list[str]:
    """The elements in the order they stand in the answer."""
    return sorted((one for one in elements if f"<{one}" in text), key=lambda one: text.index(f"<{one}"))


def test_a_long_in_a_rule_stays_a_long(server: AdminServer) -> None:
    put(server, f"/t{QUEUES}", "TopicDescription")
    put(server, f"/t/subscriptions/s{QUEUES}", "SubscriptionDescription")
    value = (
        '<Filter i:type="SqlFilter"><SqlExpression>a = @a AND b = @b</SqlExpression><Parameters>'
        "<KeyValueOfstringanyType><Key>@a</Key>"
        '<Value xmlns:x="http://www.w3.org/2001/XMLSchema" i:type="x:long">5</Value>'
        "</KeyValueOfstringanyType><KeyValueOfstringanyType><Key>@b</Key>"
        '<Value xmlns:x="http://www.w3.org/2001/XMLSchema" i:type="x:int">5</Value></KeyValueOfstringanyType>'
        "</Parameters></Filter>"
    )
    assert put(server, f"/t/subscriptions/s/rules/r{QUEUES}", "RuleDescription", value).status == 201
    text = send(server, "GET", f"/t/subscriptions/s/rules/r{QUEUES}").text
    assert 'i:type="d6p1:long">5<' in text
    assert 'i:type="d6p1:int">5<' in text


@pytest.mark.parametrize("kind", ["Queues", "queues"])
def test_the_retired_librarys_list_has_a_slash_and_the_largest_page(server: AdminServer, kind: str) -> None:
    put(server, f"/orders{QUEUES}", "QueueDescription")
    answer = send(server, "GET", f"/$Resources/{kind}/?$skip=0&$top=2147483647&api-version=2014-01")
    assert answer.status == 200
    assert '<title type="text">orders</title>' in answer.text


@pytest.mark.parametrize("kind", ["relays", "eventhubs", "NotificationHubs"])
def test_entities_of_other_namespaces_are_an_empty_feed(server: AdminServer, kind: str) -> None:
    answer = send(server, "GET", f"/$Resources/{kind}{QUEUES}")
    assert (answer.status, "<feed" in answer.text, "<entry" in answer.text) == (200, True, False)


def test_descriptions_stand_in_the_order_of_the_data_contracts(server: AdminServer) -> None:
    metadata = "<UserMetadata>mine</UserMetadata>"
    put(server, f"/q{QUEUES}", "QueueDescription", metadata)
    put(server, f"/t{QUEUES}", "TopicDescription", metadata)
    put(server, f"/t/subscriptions/s{QUEUES}", "SubscriptionDescription", metadata)
    times = ["CreatedAt", "UpdatedAt", "AccessedAt", "UserMetadata"]
    queue = ["Status", *times, "SupportOrdering", "CountDetails", "AutoDeleteOnIdle", "EnablePartitioning"]
    queue += ["EntityAvailabilityStatus", "EnableExpress"]
    topic = ["Status", *times, "SupportOrdering", "CountDetails", "SubscriptionCount", "AutoDeleteOnIdle"]
    subscription = ["Status", *times, "CountDetails", "AutoDeleteOnIdle", "EntityAvailabilityStatus"]
    for path, order in (("/q", queue), ("/t", topic), ("/t/subscriptions/s", subscription)):
        text = send(server, "GET", f"{path}{QUEUES}").text
        assert order_of(text, *reversed(order)) == [one for one in order if f"<{one}" in text]
        assert {*times} <= {*order_of(text, *order)}


def test_every_rule_of_a_list_has_a_link_of_its_own(server: AdminServer) -> None:
    put(server, f"/t{QUEUES}", "TopicDescription")
    put(server, f"/t/subscriptions/s{QUEUES}", "SubscriptionDescription")
    text = send(server, "GET", f"/t/subscriptions/s/rules{QUEUES}").text
    assert "/t/subscriptions/s/rules/$Default?api-version=2021-05</id>" in text
    alone = send(server, "GET", f"/t/subscriptions/s/rules/$Default{QUEUES}").text
    assert "/t/subscriptions/s/rules/$Default?api-version=2021-05</id>" in alone


def test_a_version_that_was_not_asked_for_is_in_no_link(server: AdminServer) -> None:
    put(server, f"/q0{QUEUES}", "QueueDescription")
    assert "/q0</id>" in send(server, "GET", "/$Resources/queues").text
    assert f"/q0{QUEUES}</id>" in send(server, "GET", f"/$Resources/queues{QUEUES}").text


@pytest.mark.parametrize(
    "resource", ["127.0.0.1:{port}", "127.0.0.1", "[::1]:{port}", "contoso.servicebus.windows.net"]
)
def test_a_forwarding_token_may_be_signed_for_the_bare_host(server: AdminServer, resource: str) -> None:
    put(server, f"/target{QUEUES}", "QueueDescription")
    token = make_sas_token(resource.format(port=server.port), "RootManageSharedAccessKey", server.root_key, FAR_FUTURE)
    forward = f"<ForwardTo>https://127.0.0.1:{server.port}/target</ForwardTo>"
    answer = put(server, f"/source{QUEUES}", "QueueDescription", forward, ServiceBusSupplementaryAuthorization=token)
    assert answer.status == 201


def test_a_token_for_an_entity_is_none_for_the_namespace(server: AdminServer) -> None:
    put(server, f"/target{QUEUES}", "QueueDescription")
    token = make_sas_token("other", "RootManageSharedAccessKey", server.root_key, FAR_FUTURE)
    assert resource_path("other") == "other"
    forward = f"<ForwardTo>https://127.0.0.1:{server.port}/target</ForwardTo>"
    answer = put(server, f"/source{QUEUES}", "QueueDescription", forward, ServiceBusSupplementaryAuthorization=token)
    assert answer.status == 401


def test_tags_can_be_changed_as_a_resource_of_their_own(server: AdminServer) -> None:
    assert json.loads(arm(server, "GET", TAGS).text)["properties"] == {"tags": {}}
    first = arm(server, "PATCH", TAGS, {"operation": "Merge", "properties": {"tags": {"a": "1", "b": "2"}}})
    assert json.loads(first.text)["properties"]["tags"] == {"a": "1", "b": "2"}
    arm(server, "PATCH", TAGS, {"operation": "Delete", "properties": {"tags": {"a": "1"}}})
    namespace = json.loads(arm(server, "GET", "?api-version=2024-01-01").text)
    assert namespace["tags"] == {"b": "2"}
    arm(server, "PUT", TAGS, {"properties": {"tags": {"c": "3"}}})
    assert json.loads(arm(server, "GET", TAGS).text)["properties"]["tags"] == {"c": "3"}
    assert arm(server, "PATCH", TAGS, {"operation": "Twist", "properties": {"tags": {}}}).status == 400


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("[::1]", "[::1]"), ("localhost:99", "localhost")]
)
def test_the_endpoint_survives_a_mapped_port(server: AdminServer, host: str, shown: str) -> None:
    answer = json.loads(arm(server, "GET", "?api-version=2024-01-01", Host=host).text)
    assert answer["properties"]["serviceBusEndpoint"].startswith(f"https://{shown}:{server.port}/")


def test_keys_are_refused_once_local_authentication_is_off(server: AdminServer) -> None:
    body = {"location": "here", "properties": {"disableLocalAuth": True}}
    assert arm(server, "PATCH", "?api-version=2024-01-01", body).status == 200
    assert send(server, "GET", f"/$Resources/queues{QUEUES}").status == 401
    body["properties"] = {"disableLocalAuth": False}
    arm(server, "PATCH", "?api-version=2024-01-01", body)
    assert send(server, "GET", f"/$Resources/queues{QUEUES}").status == 200
