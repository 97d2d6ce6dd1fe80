"""Administration over HTTP passes to the primary, for keys that may manage."""

import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ResourceNotFoundError
from azure.servicebus.management import ServiceBusAdministrationClient

from sbpair.engine.auth import make_sas_token
from tests.clients.conftest import World
from tests.gateway.conftest import Running, gateway_of


@pytest.fixture
def administered(world: World, tmp_path: Path) -> Iterator[Running]:
    pair = world.pair()
    primary = replace(pair.primary, ca_file=str(world.emulator.ca_path))
    with gateway_of(replace(pair, primary=primary), folder=tmp_path) as running:
        yield running


def administration(gateway: Running, key: str) -> ServiceBusAdministrationClient:
    text = gateway.text(key, plain=False)
    return ServiceBusAdministrationClient.from_connection_string(
        text, connection_verify=str(gateway.tls.ca_path), retry_total=0
    )


def test_entities_are_managed_through_it(world: World, administered: Running) -> None:
    with administration(administered, "admin") as client:
        client.create_queue("made/through")
        client.create_topic("topic")
        client.create_subscription("topic", "sub")
        assert sorted(queue.name for queue in client.list_queues()) == ["invoices", "made/through", "orders"]
        queue = client.get_queue("made/through")
        queue.max_delivery_count = 3
        client.update_queue(queue)
        assert client.get_queue("made/through").max_delivery_count == 3
        client.delete_queue("made/through")
        with pytest.raises(ResourceNotFoundError):
            client.get_queue("made/through")
    assert not world.emulator.namespace("contoso").entity_exists("made/through")


def test_a_token_for_one_entity_manages_that_one(administered: Running) -> None:
    """Go's client signs each address by itself."""
    url = f"https://{administered.gateway.endpoint()}/only"
    key = next(one for one in administered.gateway.front.ring.keys if one.name == "admin")
    headers = {"Authorization": make_sas_token(url, key.name, key.primary_key, 4e9)}
    context = ssl.create_default_context(cafile=str(administered.tls.ca_path))
    with urlopen(Request(url, headers=headers), context=context) as answer:
        assert b"<feed" in answer.read()  # as the service answers for a queue that is not there
    with pytest.raises(HTTPError) as caught:
        urlopen(Request(url.replace("/only", "/other"), headers=headers), context=context)
    assert caught.value.code == 401


def test_other_keys_manage_nothing(world: World, administered: Running) -> None:
    for key in ("app", "sender"):
        with administration(administered, key) as client, pytest.raises((ClientAuthenticationError, HttpResponseError)):
            client.create_queue("nothing")
    assert not world.emulator.namespace("contoso").entity_exists("nothing")


def test_a_dark_primary_administers_nothing(world: World, administered: Running) -> None:
    world.dark()
    with administration(administered, "admin") as client, pytest.raises(HttpResponseError) as caught:
        client.create_queue("nothing")
    assert caught.value.status_code == 503
