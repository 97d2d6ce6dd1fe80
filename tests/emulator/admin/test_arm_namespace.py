"""The namespace, its keys, its pairings and the rest of the resource manager through the official client."""

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ResourceNotFoundError
from azure.mgmt.servicebus import ServiceBusManagementClient
from azure.servicebus.management import ServiceBusAdministrationClient

from sbpair.emulator.admin.arm_models import ArmDirectory
from sbpair.emulator.namespace import Namespace
from sbpair.engine.auth import make_bearer_token
from sbpair.service import Tier

from .conftest import ARM_TOKEN, GROUP, SUBSCRIPTION_ID, AdminServer, FakeCredential
from .raw import sas, send

BASE = f"/subscriptions/{SUBSCRIPTION_ID}/resourceGroups/{GROUP}/providers/Microsoft.ServiceBus/namespaces"
Start = Callable[..., AdminServer]


def test_a_namespace_tells_about_itself(server: AdminServer, arm: ServiceBusManagementClient) -> None:
    namespace = arm.namespaces.get(GROUP, "PRIMARY")
    assert namespace.name == "primary"
    assert namespace.id == f"{BASE}/primary"
    assert namespace.location == "westeurope"
    assert namespace.sku is not None
    assert (namespace.sku.name, namespace.sku.tier) == ("Standard", "Standard")
    properties = namespace.properties
    assert properties is not None
    assert (properties.provisioning_state, properties.status) == ("Succeeded", "Active")
    assert properties.service_bus_endpoint == f"https://127.0.0.1:{server.port}/"
    assert properties.geo_data_replication is None
    assert properties.disable_local_auth is False
    assert properties.created_at is not None
    assert [one.name for one in arm.namespaces.list()] == ["primary"]
    assert [one.name for one in arm.namespaces.list_by_resource_group(GROUP)] == ["primary"]


def test_the_namespace_is_known_by_its_address_too(server: AdminServer, arm: ServiceBusManagementClient) -> None:
    address = f"127.0.0.1:{server.port}"
    assert arm.namespaces.get(GROUP, address).name == address
    body = {"location": "westus", "sku": {"name": "Standard"}, "disableLocalAuth": True}
    made = arm.namespaces.begin_create_or_update(GROUP, address, body).result(10)
    assert (made.name, made.location) == (address, "westus")
    keys = arm.namespaces.list_keys(GROUP, address, "RootManageSharedAccessKey")
    assert keys.primary_key == server.root_key


def test_unknown_names_are_not_found(start: Start) -> None:
    body: Any = {"location": "westus", "sku": {"name": "Standard"}}
    with pytest.raises(ResourceNotFoundError):
        start().arm().namespaces.begin_create_or_update(GROUP, "randomname", body)


def test_a_namespace_is_changed_deleted_and_made_again(server: AdminServer, arm: ServiceBusManagementClient) -> None:
    server.admin().create_queue("q")
    changed = arm.namespaces.update(GROUP, "primary", {"tags": {"team": "a"}, "sku": {"name": "Basic"}})
    assert changed.tags == {"team": "a"}
    assert changed.sku is not None
    assert changed.sku.name == "Basic"
    assert server.admin().get_namespace_properties().messaging_sku == "Basic"
    for sku in ("Premium", "Huge"):
        with pytest.raises(HttpResponseError) as caught:
            arm.namespaces.update(GROUP, "primary", {"sku": {"name": sku}})
        assert caught.value.status_code == 400
    arm.namespaces.begin_delete(GROUP, "primary").result(10)
    with pytest.raises(ResourceNotFoundError):
        arm.namespaces.get(GROUP, "primary")
    assert list(arm.namespaces.list()) == []
    assert list(server.admin().list_queues()) == []
    body = {"location": "northeurope", "sku": {"name": "Standard"}}
    again = arm.namespaces.begin_create_or_update(GROUP, "primary", body).result(10)
    assert again.location == "northeurope"


@pytest.mark.law("geo-replication")
def test_premium_has_capacity_and_replication(start: Start) -> None:
    server = start(Tier.PREMIUM)
    arm = server.arm()
    places = [
        {"locationName": "westeurope", "roleType": "Primary"},
        {"locationName": "eastus", "roleType": "Secondary"},
    ]
    replication = {"maxReplicationLagDurationInSeconds": 60, "locations": places}

    def replicate() -> None:
        server.directory.facts(server.namespace).geo_data_replication = replication
        server.namespace.replicate_geo(0.0)

    server.run(replicate)
    body = {"location": "westeurope", "sku": {"name": "Premium", "capacity": 4}}
    made = arm.namespaces.begin_create_or_update(GROUP, "primary", body).result(10)
    assert made.sku is not None
    assert made.sku.capacity == 4
    assert server.admin().get_namespace_properties().messaging_units == 4
    wanted = {"properties": {"primaryLocation": "East US", "force": False}}
    arm.namespaces.begin_failover(GROUP, "primary", wanted, polling_interval=0).result(10)
    read = arm.namespaces.get(GROUP, "primary").properties
    assert read is not None
    assert read.geo_data_replication is not None
    assert [place.role_type for place in read.geo_data_replication.locations or []] == ["Secondary", "Primary"]
    with pytest.raises(HttpResponseError):
        arm.namespaces.begin_failover(GROUP, "primary", {"properties": {"primaryLocation": "mars"}})


def test_names_are_checked(arm: ServiceBusManagementClient) -> None:
    def check(name: str) -> tuple[bool | None, str | None]:
        result = arm.namespaces.check_name_availability({"name": name})
        return result.name_available, result.reason

    assert check("free-name") == (True, "None")
    assert check("Primary") == (False, "NameInUse")
    assert check("1x") == (False, "InvalidName")


def test_keys_of_the_namespace(server: AdminServer, arm: ServiceBusManagementClient) -> None:
    rules = arm.namespaces.list_authorization_rules(GROUP, "primary")
    assert [rule.name for rule in rules] == ["RootManageSharedAccessKey"]
    keys = arm.namespaces.list_keys(GROUP, "primary", "rootmanagesharedaccesskey")
    assert keys.primary_key == server.root_key
    assert keys.primary_connection_string is not None
    assert server.admin(keys.primary_connection_string).get_namespace_properties().name == "primary"
    body: Any = {"properties": {"rights": ["Send", "Listen"]}}
    arm.namespaces.create_or_update_authorization_rule(GROUP, "primary", "mine", body)
    made = arm.namespaces.get_authorization_rule(GROUP, "primary", "mine")
    assert made.properties is not None
    assert made.properties.rights == ["Send", "Listen"]
    before = arm.namespaces.list_keys(GROUP, "primary", "mine")
    after = arm.namespaces.regenerate_keys(GROUP, "primary", "mine", {"keyType": "PrimaryKey"})
    assert after.primary_key != before.primary_key
    assert after.secondary_key == before.secondary_key
    own = base64.b64encode(b"k" * 32).decode()
    chosen: Any = {"keyType": "SecondaryKey", "key": own}
    assert arm.namespaces.regenerate_keys(GROUP, "primary", "mine", chosen).secondary_key == own
    arm.namespaces.delete_authorization_rule(GROUP, "primary", "mine")
    arm.namespaces.delete_authorization_rule(GROUP, "primary", "mine")
    with pytest.raises(ResourceNotFoundError):
        arm.namespaces.list_keys(GROUP, "primary", "mine")


def test_a_regenerated_key_stops_the_old_one(server: AdminServer, arm: ServiceBusManagementClient) -> None:
    old = server.connection_string()
    body: Any = {"keyType": "PrimaryKey"}
    arm.namespaces.regenerate_keys(GROUP, "primary", "RootManageSharedAccessKey", body)
    with pytest.raises(ClientAuthenticationError):
        server.admin(old).get_namespace_properties()
    assert server.admin().get_namespace_properties().name == "primary"


@pytest.mark.parametrize("rights", [[], ["Manage"], ["Read"], "Send", None])
def test_rights_that_make_no_sense(arm: ServiceBusManagementClient, rights: object) -> None:
    body: Any = {"properties": {"rights": rights}}
    with pytest.raises(HttpResponseError) as caught:
        arm.namespaces.create_or_update_authorization_rule(GROUP, "primary", "mine", body)
    assert caught.value.status_code == 400


def test_the_root_rule_stays_and_keys_are_checked(arm: ServiceBusManagementClient) -> None:
    with pytest.raises(HttpResponseError):
        arm.namespaces.delete_authorization_rule(GROUP, "primary", "RootManageSharedAccessKey")
    for body in ({"keyType": "ThirdKey"}, {"keyType": "PrimaryKey", "key": "short"}):
        with pytest.raises(HttpResponseError) as caught:
            arm.namespaces.regenerate_keys(GROUP, "primary", "RootManageSharedAccessKey", body)
        assert caught.value.status_code == 400


@pytest.mark.parametrize("kind", ["queues", "topics"])
def test_keys_of_an_entity(server: AdminServer, arm: ServiceBusManagementClient, kind: str) -> None:
    operations: Any = getattr(arm, kind)
    operations.create_or_update(GROUP, "primary", "a~b", {"properties": {}})
    for name in ("two", "one"):
        body = {"properties": {"rights": ["Manage", "Send", "Listen"]}}
        operations.create_or_update_authorization_rule(GROUP, "primary", "a~b", name, body)
    assert [rule.name for rule in operations.list_authorization_rules(GROUP, "primary", "a~b")] == ["one", "two"]
    keys = operations.list_keys(GROUP, "primary", "a~b", "one")
    assert "EntityPath=a/b" in keys.primary_connection_string
    token = sas(server, "a/b", name="one", key=keys.primary_key)
    assert send(server, "GET", "/a/b", token=token).status == 200
    renewed = operations.regenerate_keys(GROUP, "primary", "a~b", "one", {"keyType": "PrimaryKey"})
    assert renewed.primary_key != keys.primary_key
    assert send(server, "GET", "/a/b", token=token).status == 401
    operations.delete_authorization_rule(GROUP, "primary", "a~b", "one")
    assert [rule.name for rule in operations.list_authorization_rules(GROUP, "primary", "a~b")] == ["two"]
    with pytest.raises(ResourceNotFoundError):
        operations.get_authorization_rule(GROUP, "primary", "a~b", "one")


def test_network_rules_and_empty_collections(arm: ServiceBusManagementClient) -> None:
    rules = arm.namespaces.get_network_rule_set(GROUP, "primary")
    assert rules.properties is not None
    assert (rules.name, rules.properties.default_action, rules.properties.ip_rules) == ("default", "Allow", [])
    body: Any = {"properties": {"defaultAction": "Deny", "ipRules": [{"ipMask": "1.2.3.4", "action": "Allow"}]}}
    arm.namespaces.create_or_update_network_rule_set(GROUP, "primary", body)
    (listed,) = arm.namespaces.list_network_rule_sets(GROUP, "primary")
    assert listed.properties is not None
    assert listed.properties.default_action == "Deny"
    assert list(arm.private_endpoint_connections.list(GROUP, "primary")) == []
    assert [one.name for one in arm.private_link_resources.get(GROUP, "primary").value] == ["namespace"]
    with pytest.raises(ResourceNotFoundError):
        arm.private_endpoint_connections.get(GROUP, "primary", "x")


def pair(start: Start) -> tuple[ServiceBusManagementClient, AdminServer, AdminServer]:
    """Two Premium namespaces under one resource manager."""
    both: list[Namespace] = []
    first = start(Tier.PREMIUM, directory=ArmDirectory(lambda: both))
    second = start(Tier.PREMIUM, "secondary")
    both += [first.namespace, second.namespace]
    return first.arm(), first, second


def test_one_resource_manager_may_know_several_namespaces(start: Start) -> None:
    arm, _, second = pair(start)
    assert [namespace.name for namespace in arm.namespaces.list()] == ["primary", "secondary"]
    keys = arm.namespaces.list_keys(GROUP, "secondary", "RootManageSharedAccessKey")
    assert keys.primary_connection_string is not None
    assert f"sb://127.0.0.1:{second.port}/" in keys.primary_connection_string


def test_a_pairing_is_made_broken_and_deleted(start: Start) -> None:
    arm, first, _ = pair(start)
    configs = arm.disaster_recovery_configs
    free: Any = {"name": "the-alias"}
    assert configs.check_name_availability(GROUP, "primary", free).name_available is True
    body: Any = {"properties": {"partnerNamespace": f"{BASE}/secondary"}}
    configs.create_or_update(GROUP, "primary", "the-alias", body)
    roles = [configs.get(GROUP, name, "the-alias").properties for name in ("primary", "secondary")]
    assert [role.role for role in roles if role] == ["Primary", "Secondary"]
    assert [one.name for one in configs.list(GROUP, "primary")] == ["the-alias"]
    assert first.admin().get_namespace_properties().alias == "the-alias"
    assert configs.check_name_availability(GROUP, "primary", free).name_available is False
    keys = configs.list_keys(GROUP, "primary", "the-alias", "RootManageSharedAccessKey")
    assert keys.alias_primary_connection_string is not None
    assert [one.name for one in configs.list_authorization_rules(GROUP, "primary", "the-alias")] == [
        "RootManageSharedAccessKey"
    ]
    for refused in (
        lambda: configs.delete(GROUP, "primary", "the-alias"),
        lambda: configs.fail_over(GROUP, "primary", "the-alias"),
        lambda: configs.break_pairing(GROUP, "secondary", "the-alias"),
    ):
        with pytest.raises(HttpResponseError) as caught:
            refused()
        assert caught.value.status_code == 409
    configs.break_pairing(GROUP, "primary", "the-alias")
    left = configs.get(GROUP, "primary", "the-alias").properties
    assert left is not None
    assert (left.role, left.partner_namespace) == ("PrimaryNotReplicating", "")
    assert list(configs.list(GROUP, "secondary")) == []
    configs.delete(GROUP, "primary", "the-alias")
    with pytest.raises(ResourceNotFoundError):
        configs.get(GROUP, "primary", "the-alias")


def test_a_failover_makes_the_secondary_the_primary(start: Start) -> None:
    arm, _, _ = pair(start)
    configs = arm.disaster_recovery_configs
    body: Any = {"properties": {"partnerNamespace": f"{BASE}/secondary"}}
    configs.create_or_update(GROUP, "primary", "the-alias", body)
    configs.fail_over(GROUP, "secondary", "the-alias")
    promoted = configs.get(GROUP, "secondary", "the-alias").properties
    assert promoted is not None
    assert promoted.role == "PrimaryNotReplicating"
    assert list(configs.list(GROUP, "primary")) == []


def test_standard_namespaces_have_no_pairings(arm: ServiceBusManagementClient) -> None:
    body: Any = {"properties": {"partnerNamespace": "other"}}
    with pytest.raises(HttpResponseError) as caught:
        arm.disaster_recovery_configs.create_or_update(GROUP, "primary", "the-alias", body)
    assert caught.value.status_code == 400
    assert list(arm.disaster_recovery_configs.list(GROUP, "primary")) == []


def expired_token() -> str:
    return make_bearer_token(time.time() - 60, audience="https://management.azure.com")


def test_tokens_are_needed(server: AdminServer, admin: ServiceBusAdministrationClient) -> None:
    target = f"{BASE}/primary?api-version=2026-01-01"
    for token in (None, sas(server), "Bearer", f"Bearer {expired_token()}"):
        answer = send(server, "GET", target, token=token)
        assert answer.status == 401
        assert json.loads(answer.text)["error"]["code"] == "AuthenticationFailed"
    with pytest.raises(ClientAuthenticationError):
        server.arm(FakeCredential(expired_token())).namespaces.get(GROUP, "primary")


@pytest.mark.law("diagnostics", "namespaces-through-arm")
def test_requests_that_make_no_sense(server: AdminServer) -> None:
    def code(method: str, target: str, body: str = "") -> tuple[int, str]:
        answer = send(server, method, target, body, token=f"Bearer {ARM_TOKEN}")
        return answer.status, json.loads(answer.text)["error"]["code"]

    version = "api-version=2026-01-01"
    assert code("GET", f"{BASE}/primary") == (400, "MissingApiVersionParameter")
    assert code("GET", f"{BASE}/primary?api-version=1999-01-01") == (400, "InvalidResourceType")
    assert code("GET", f"{BASE}/elsewhere?{version}") == (404, "ResourceNotFound")
    assert code("PUT", f"{BASE}/primary/queues/q?{version}", "{")[0] == 400
    assert code("PUT", f"{BASE}/primary/queues/q?{version}", "[]")[0] == 400
    assert code("PUT", f"{BASE}/primary/queues/q?{version}", '{"properties": 1}')[0] == 400
    assert code("PATCH", f"{BASE}/primary/queues/q?{version}") == (405, "MethodNotAllowed")
    assert code("POST", f"{BASE}/primary/queues?{version}") == (405, "MethodNotAllowed")
    assert code("GET", f"{BASE}/primary/teapots?{version}")[0] == 404
    assert code("PUT", f"{BASE}/elsewhere?{version}", '{"location": "here"}')[0] == 404
    assert code("GET", f"{BASE}/primary/providers/Microsoft.Insights/metrics?{version}")[0] == 404
    assert code("GET", f"{BASE}/primary/queues?{version}&$skip=-1")[0] == 400
    assert code("GET", f"/subscriptions/{SUBSCRIPTION_ID}/providers/Microsoft.Web/sites?{version}")[0] == 404
