"""Tokens: signatures, bearer tokens, `$cbs`, and links whose token runs out."""

import base64
import json
from typing import Any

import pytest

from sbpair.amqp.performatives import DETACH
from sbpair.amqp.types import Uint
from sbpair.engine.auth import (
    ALL_RIGHTS,
    LISTEN,
    NO_RIGHTS,
    SEND,
    AuthError,
    authenticate,
    make_bearer_token,
    make_sas_token,
    resource_path,
    rights_for,
)
from tests.engine.conftest import SEND_KEY

NOW = 1_000_000.0
ORDERS = "sb://127.0.0.1:5671/Orders"


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("sb://127.0.0.1:5671/Orders", "Orders"),
        ("amqps://h/a/Subscriptions/b/$DeadLetterQueue?x=1", "a/Subscriptions/b/$DeadLetterQueue"),
        ("/plain/", "plain"),
        ("sb://h:1", ""),
        ("https://h/a%20b", "a b"),
    ],
)
def test_the_path_of_a_resource(uri: str, path: str) -> None:
    assert resource_path(uri) == path


def test_a_good_signature_carries_its_keys_rights(namespace: Any) -> None:
    token = make_sas_token(ORDERS, "sender", SEND_KEY, NOW + 60)
    assert authenticate(namespace.signers(""), token, ORDERS + "/$management", NOW).rights == {SEND}
    secondary = make_sas_token(ORDERS, "both", "second", NOW + 60)
    assert authenticate(namespace.signers(""), secondary, ORDERS, NOW).rights == {SEND, LISTEN}


def test_a_token_for_the_namespace_is_good_for_all_of_it(namespace: Any, root_key: str) -> None:
    token = make_sas_token("sb://127.0.0.1:5671", "root", root_key, NOW + 60)
    claims = authenticate(namespace.signers(""), token, ORDERS, NOW)
    assert (claims.path, claims.rights, claims.expires_at, claims.key_name) == ("orders", ALL_RIGHTS, NOW + 60, "root")


def test_a_token_for_an_address_of_the_namespaces_own_is_good_for_the_namespace(namespace: Any, root_key: str) -> None:
    token = make_sas_token("https://127.0.0.1:1/$Resources/queues?$skip=0", "root", root_key, NOW + 60)
    assert authenticate(namespace.signers(""), token, "", NOW).rights == ALL_RIGHTS


@pytest.mark.parametrize(
    ("key_name", "key", "resource", "expires_in", "word"),
    [
        ("root", "wrong", ORDERS, 60, "signature"),
        ("nobody", None, ORDERS, 60, "signature"),
        ("root", None, ORDERS, 0, "expired"),
        ("root", None, ORDERS + "2", 60, "not for 'orders'"),
    ],
)
def test_a_bad_signature_is_refused(
    namespace: Any, root_key: str, key_name: str, key: str | None, resource: str, expires_in: int, word: str
) -> None:
    token = make_sas_token(resource, key_name, key or root_key, NOW + expires_in)
    with pytest.raises(AuthError, match=word):
        authenticate(namespace.signers(""), token, ORDERS, NOW)


@pytest.mark.parametrize("cut", ["sr", "sig", "se", "skn"])
def test_a_signature_with_a_part_missing_is_refused(namespace: Any, root_key: str, cut: str) -> None:
    prefix, _, fields = make_sas_token(ORDERS, "root", root_key, NOW + 60).partition(" ")
    kept = "&".join(part for part in fields.split("&") if not part.startswith(cut + "="))
    with pytest.raises(AuthError, match=cut):
        authenticate(namespace.signers(""), f"{prefix} {kept}", ORDERS, NOW)


def bearer(*, exp: object = NOW + 60, **claims: object) -> str:
    return make_bearer_token(exp, **claims)  # type: ignore[arg-type]


@pytest.mark.law("identities")
def test_bearer_tokens_are_believed_until_they_expire(namespace: Any) -> None:
    claims = authenticate((), bearer(exp=NOW + 5, oid="me"), ORDERS, NOW)
    assert (claims.rights, claims.expires_at, claims.key_name) == (ALL_RIGHTS, NOW + 5, "me")
    with pytest.raises(AuthError, match="expired"):
        authenticate((), bearer(exp=NOW - 1), ORDERS, NOW)
    with pytest.raises(AuthError, match="not accepted"):
        authenticate((), bearer(exp=NOW + 5), ORDERS, NOW, allow_entra=False)


@pytest.mark.parametrize("algorithm", ["none", "None", None])
def test_a_token_that_says_that_it_is_not_signed_is_refused(algorithm: str | None) -> None:
    header = json.dumps({} if algorithm is None else {"alg": algorithm}).encode()
    token = f"{base64.urlsafe_b64encode(header).decode()}.{bearer().partition('.')[2]}"
    with pytest.raises(AuthError, match="MalformedToken"):
        authenticate((), token, ORDERS, NOW)


def test_configured_principals_have_their_rights_and_others_none() -> None:
    rights = {"me": frozenset({LISTEN})}
    assert authenticate((), bearer(oid="me"), ORDERS, NOW, entra_rights=rights).rights == {LISTEN}
    assert authenticate((), bearer(oid="you"), ORDERS, NOW, entra_rights=rights).rights == NO_RIGHTS


@pytest.mark.law("rights-of-links")
async def test_cbs_accepts_a_good_token_and_the_rights_count_below_its_path(
    connect: Any, service: Any, root_key: str
) -> None:
    client = await connect()
    await client.session()
    assert await client.put_token(ORDERS, "root", root_key) == (202, "Accepted")
    await client.sender(ORDERS + "/$management", 0)
    connection = service.handlers[0].link.connection
    assert rights_for(connection, "Orders/$Management") == ALL_RIGHTS
    assert rights_for(connection, "orders2") == NO_RIGHTS


async def test_cbs_says_401_for_a_bad_key_and_404_for_no_entity(connect: Any, namespace: Any, root_key: str) -> None:
    namespace.missing.add("orders")
    first, second = await connect(), await connect()
    await first.session()
    assert (await first.put_token(ORDERS, "root", "wrong"))[0] == 401
    assert first.cbs_condition == "amqp:unauthorized-access"
    await second.session()
    assert (await second.put_token(ORDERS, "root", root_key))[0] == 404
    assert second.cbs_condition == "amqp:not-found"
    namespace.missing.clear()
    third = await connect()
    await third.session()
    assert (await third.put_token(ORDERS, "root", root_key))[0] == 202
    assert third.cbs_condition is None


@pytest.mark.law("tokens-end-links")
async def test_a_link_goes_when_its_newest_token_runs_out(
    connect: Any, namespace: Any, service: Any, root_key: str
) -> None:
    client = await connect()
    await client.session()
    await client.put_token(ORDERS, "root", root_key, expires_at=namespace.clock.now() + 60)
    await client.sender("orders", 0)
    await client.sender("elsewhere", 1)
    namespace.clock.advance(59)
    assert service.handlers[0].detached == []
    namespace.clock.advance(1)
    detach = await client.until(DETACH)
    assert (detach.field(0), detach.error[0]) == (0, "amqp:unauthorized-access")
    assert [handler.detached for handler in service.handlers] == [[(True, False)], []]


async def test_each_link_goes_when_its_own_token_runs_out(
    connect: Any, namespace: Any, service: Any, root_key: str
) -> None:
    client = await connect()
    await client.session()
    for number, entity in enumerate(("first", "second", "third")):
        until = namespace.clock.now() + 60 * (number + 1)
        await client.put_token(f"sb://127.0.0.1:5671/{entity}", "root", root_key, expires_at=until)
        for handle in (20, 21):  # those to `$cbs`, for the next one
            client.send(DETACH, [Uint(handle), True])
            await client.until(DETACH)
        await client.sender(entity, number)
    for number in range(3):
        assert service.handlers[number].detached == []
        namespace.clock.advance(60)
        assert (await client.until(DETACH)).field(0) == number


async def test_a_key_that_stays_keeps_its_links_when_another_goes(connect: Any, namespace: Any, service: Any) -> None:
    """Requests need any of the two rights: a key that only sends has links to `$management` in both directions."""
    client = await connect()
    await client.session()
    assert (await client.put_token(ORDERS, "sender", SEND_KEY))[0] == 202
    await client.sender("Orders/$management", 0)
    await client.receiver("Orders/$management", 1)
    namespace.rules = [rule for rule in namespace.rules if rule.name != "both"]
    for changed in list(namespace.key_watchers):
        changed()
    assert [handler.detached for handler in service.handlers] == [[], []]
    namespace.rules.clear()
    for changed in list(namespace.key_watchers):
        changed()
    assert {(await client.until(DETACH)).field(0) for _ in range(2)} == {0, 1}


async def test_a_key_opens_a_connection_under_its_own_name_only(connect: Any, root_key: str) -> None:
    client = await connect()
    assert (await client.login("PLAIN", b"\x00sender\x00" + root_key.encode())).field(0) == 1
