"""Tokens of the applications' own: judged for their audience here, for their rights by the primary."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import azure.servicebus as sdk
import pytest
from azure.core.credentials import AccessToken
from azure.servicebus.exceptions import ServiceBusError

from sbpair.engine.auth import AuthError, make_bearer_token, make_sas_token, read_token
from sbpair.gateway.tokens import MOST_PROOFS, SAS, CbsToken, Proofs
from tests.clients.conftest import World
from tests.gateway.conftest import QUICK, Running, gateway_of
from tests.gateway.test_passing import AtOnce

NOW = 1_000_000.0
HOST = "contoso.servicebus.windows.net"


@pytest.fixture
def passing(world: World, tmp_path: Path) -> Iterator[Running]:
    """A gateway with no keys of its own."""
    with gateway_of(world.pair(), folder=tmp_path, keys=(), settings=replace(QUICK, pass_tokens=True)) as running:
        running.warm()
        yield running


def client(text: str, gateway: Running, **options: Any) -> sdk.ServiceBusClient:
    """With a connection string of the primary's, and the gateway in its way."""
    address = f"sb://{gateway.gateway.endpoint()}"
    return AtOnce.from_connection_string(text, custom_endpoint_address=address, retry_total=0, **options)


def send(sender: sdk.ServiceBusSender, body: str) -> None:
    sender.send_messages(sdk.ServiceBusMessage(body))


def test_the_primary_judges_their_rights(world: World, passing: Running) -> None:
    """A key of the primary's that only sends: it sends through the gateway as it does directly, and reads nothing."""
    with client(world.other_key(), passing) as mine:
        with mine.get_queue_sender("orders") as sender:
            send(sender, "one")
            (door,) = passing.gateway.port.connections
            kept = passing.call(lambda: [len(one.text) for one in door._passed_tokens.values()])
            assert kept
            assert passing.call(lambda: door.budget.held_bytes) >= sum(kept), "tokens count for their connection"
        with pytest.raises(ServiceBusError), mine.get_queue_receiver("orders") as receiver:
            receiver.receive_messages(1, max_wait_time=1)
    with client(world.connection_string(), passing) as mine, mine.get_queue_receiver("orders") as receiver:
        assert [str(message) for message in receiver.peek_messages(5)] == ["one"]
    wrong = world.connection_string().replace("SharedAccessKey=", "SharedAccessKey=x")
    with client(wrong, passing) as mine, pytest.raises(ServiceBusError):
        mine.get_queue_sender("orders").__enter__()


def test_what_the_primary_has_taken_is_diverted(world: World, passing: Running) -> None:
    """A link that is open goes on; a token that nobody has judged opens none."""
    with client(world.other_key(), passing) as mine, mine.get_queue_sender("orders") as sender:
        send(sender, "before")
        world.dark()
        send(sender, "during")
        with client(world.connection_string(), passing) as other, pytest.raises(ServiceBusError):
            send(other.get_queue_sender("orders"), "never")
        with pytest.raises(ServiceBusError):
            send(mine.get_queue_sender("invoices"), "never")
        send(sender, "still")
    assert world.backlog() != []
    assert sorted(world.backlog()) == ["during", "still"]


class Bearer:
    """An identity whose token is the same for an hour, as the libraries of Entra ID keep it."""

    def __init__(self, **claims: object) -> None:
        self.token = make_bearer_token(time.time() + 3600, **claims)

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken(self.token, int(time.time() + 3600))


def test_a_bearer_token_that_the_primary_has_taken_opens_links_in_an_outage(world: World, passing: Running) -> None:
    def mine(credential: Bearer) -> sdk.ServiceBusClient:
        host = world.connection_string().partition("sb://")[2].partition(";")[0]
        return sdk.ServiceBusClient(
            host,
            credential,  # type: ignore[arg-type]
            custom_endpoint_address=f"sb://{passing.gateway.endpoint()}",
            connection_verify=str(passing.tls.ca_path),
            retry_total=0,
        )

    known, unknown = Bearer(oid="app-1"), Bearer(oid="app-2")
    with mine(known) as one, one.get_queue_sender("orders") as sender:
        send(sender, "before")
    world.dark()
    with mine(known) as one, one.get_queue_sender("orders") as sender:
        send(sender, "during")
    with mine(unknown) as one, pytest.raises(ServiceBusError):
        send(one.get_queue_sender("orders"), "never")
    elsewhere = Bearer(oid="app-1", aud="https://vault.azure.net")
    world.light()
    with mine(elsewhere) as one, pytest.raises(ServiceBusError):
        send(one.get_queue_sender("orders"), "never")
    assert world.backlog() == ["during"]


def test_tokens_for_others_are_refused_before_they_go_anywhere() -> None:
    def read(token: str, resource: str = f"sb://{HOST}/orders") -> str | None:
        claims = read_token(token, resource, NOW, host=HOST, audiences=("https://servicebus.azure.net",))
        assert claims.rights == frozenset()
        return claims.key_name

    assert read(make_sas_token(f"sb://{HOST}/orders", "app", "k" * 40, NOW + 60)) == "app"
    assert read(make_sas_token(f"https://{HOST}:443/", "app", "k" * 40, NOW + 60)) == "app"
    assert read(make_bearer_token(NOW + 60, oid="me")) == "me"
    for token in (
        make_sas_token("sb://fabrikam.servicebus.windows.net/orders", "app", "k" * 40, NOW + 60),
        make_sas_token(f"sb://{HOST}.evil.example/orders", "app", "k" * 40, NOW + 60),
        make_sas_token(f"sb://{HOST}/invoices", "app", "k" * 40, NOW + 60),
        make_sas_token(f"sb://{HOST}/orders", "app", "k" * 40, NOW - 60),
        make_bearer_token(NOW - 60),
        make_bearer_token(NOW + 60, audience="https://vault.azure.net"),
        "SharedAccessSignature sr=x",
        "",
        "nonsense",
    ):
        with pytest.raises(AuthError):
            read(token)


def test_what_is_known_of_tokens_has_a_bound_and_goes_to_a_successor_of_the_same_owner_only() -> None:
    def token(text: str, owner: str | None = "app") -> CbsToken:
        return CbsToken("orders", text, SAS, NOW, owner)

    proofs, first = Proofs(), token("first")
    proofs.add(first, "Orders")
    assert proofs.has(token("first"), "orders")
    assert not proofs.has(first, "invoices")
    assert proofs.knows(token("second"), first)
    for stranger in (token("third", "other"), token("fourth", None)):
        assert not proofs.knows(stranger, first)
        proofs.renew(first, stranger)
        assert not proofs.has(stranger, "orders")
    assert not proofs.knows(token("fifth"), None)
    proofs.renew(first, token("second"))
    assert proofs.has(token("second"), "orders")
    for number in range(MOST_PROOFS):
        proofs.add(token(f"{number}"), "orders")
    assert not proofs.has(first, "orders")
