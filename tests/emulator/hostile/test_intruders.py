"""Who gets in and who does not: web pages of other origins, made-up tokens, keys of other entities, deleted keys."""

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from urllib.parse import quote, quote_plus

import aiohttp
import pytest

from sbpair.amqp.performatives import ATTACH, DETACH, TRANSFER
from sbpair.amqp.sections import Section, build, read, scan
from sbpair.emulator.entities import AuthorizationRule, QueueDescription
from sbpair.emulator.server import Emulator, NamespaceConfig
from sbpair.engine.auth import ALL_RIGHTS, ROOT_KEY_NAME, make_bearer_token, make_sas_token
from tests.emulator.hostile.test_hostile import ARM, ARM_BEARER, address, ask, connected, root_key, say
from tests.engine.conftest import Client

KEY = base64.b64encode(b"o" * 32).decode()
KEY_2 = base64.b64encode(b"p" * 32).decode()
WEBSOCKET = "/$servicebus/websocket"
ATOM = "?api-version=2021-05"


def rule(name: str, key: str = KEY, rights: frozenset[str] = frozenset({"Send", "Listen"})) -> AuthorizationRule:
    return AuthorizationRule(name=name, rights=rights, primary_key=key, secondary_key=KEY_2)


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    async with Emulator(["primary"], control_port=0) as running:
        namespace = running.namespace("primary")
        namespace.create_queue(
            "orders", QueueDescription(authorization_rules=(rule("mine"), rule(ROOT_KEY_NAME, rights=ALL_RIGHTS)))
        )
        namespace.create_queue("orders/eu", QueueDescription())
        yield running


# Web pages ------------------------------------------------------------------------------------------------------------


async def status_of(emulator: Emulator, head: str) -> bytes:
    answer = await say(emulator, head.replace("\n", "\r\n").encode() + b"\r\n\r\n", end=False, seconds=2)
    return answer[9:12]


def upgrade(host: str, *more: str) -> str:
    lines = (
        f"GET {WEBSOCKET} HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        *more,
    )
    return "\n".join(lines)


@pytest.mark.parametrize("origin", ["http://evil.example", "https://localhost:1", "null", "http://127.0.0.1", "x"])
async def test_a_page_of_another_origin_opens_no_websocket_and_asks_nothing(emulator: Emulator, origin: str) -> None:
    own = emulator.endpoint("primary")
    assert await status_of(emulator, upgrade(own, f"Origin: {origin}")) == b"403"
    head = f"GET /orders{ATOM} HTTP/1.1\nHost: {own}\nConnection: close\nOrigin: {origin}"
    assert await status_of(emulator, head) == b"403"


async def test_the_ports_own_origin_opens_a_websocket(emulator: Emulator) -> None:
    """The synchronous Python client sends one."""
    reader, writer = await asyncio.open_connection(*address(emulator))
    own = emulator.endpoint("primary")
    writer.write((upgrade(own, f"Origin: http://{own}") + "\n\n").replace("\n", "\r\n").encode())
    assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 101")
    writer.transport.abort()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "", "127.0.0.1.nip.io"])
async def test_a_name_that_was_pointed_here_gets_nothing(emulator: Emulator, host: str) -> None:
    """DNS rebinding: the page's own name leads to this machine, so the browser lets it read the answers."""
    assert await status_of(emulator, upgrade(host)) == b"421"
    keys = f"{ARM}/authorizationRules/{ROOT_KEY_NAME}/listKeys?api-version=2021-11-01"
    answer = await say(
        emulator,
        f"POST {keys} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nAuthorization: {ARM_BEARER}\r\n\r\n".encode(),
        end=False,
    )
    assert answer[9:12] == b"421"
    assert root_key(emulator).encode() not in answer


async def test_two_hosts_or_none_are_no_host(emulator: Emulator) -> None:
    for lines in ("", "\nHost: localhost\nHost: evil.example"):
        assert await status_of(emulator, f"GET /orders{ATOM} HTTP/1.1{lines}\nConnection: close") in (b"421", b"400")


async def test_the_control_port_keeps_to_its_names_too(emulator: Emulator) -> None:
    url = f"https://{emulator.control_endpoint}/primary/$emulator/faults"
    token = make_sas_token(url.replace("/primary", ""), ROOT_KEY_NAME, root_key(emulator), time.time() + 3600)
    trusting = ssl.create_default_context(cafile=emulator.ca_path)
    async with aiohttp.ClientSession() as session:
        for headers, status in (({}, 200), ({"Host": "evil.example"}, 421), ({"Origin": "https://evil.example"}, 403)):
            sent = headers | {"Authorization": token}
            async with session.get(url, headers=sent, ssl=trusting) as answer:
                assert answer.status == status


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "x.localhost", "[::1]:5", "10.1.2.3", "a.example.com"])
async def test_names_that_are_ours(host: str) -> None:
    async with Emulator(["primary"], tls_names=["*.example.com"]) as running:
        assert await status_of(running, f"GET /orders{ATOM} HTTP/1.1\nHost: {host}\nConnection: close") == b"401"


# Tokens ---------------------------------------------------------------------------------------------------------------


def sas(resource: str, name: str = ROOT_KEY_NAME, key: str = "wrong", word: str = "SharedAccessSignature") -> str:
    return word + make_sas_token(resource, name, key, time.time() + 600).removeprefix("SharedAccessSignature")


def unsigned(**claims: object) -> str:
    return make_bearer_token(time.time() + 600, **claims)  # type: ignore[arg-type]


HEADER = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
# Made when the test runs: a suite may come to it long after this file was read.
MADE_UP: dict[str, Callable[[], str]] = {
    "letter": lambda: "x",
    "basic": lambda: "Basic dXNlcjpwYXNz",
    "lower case": lambda: sas("orders", word="sharedaccesssignature"),
    "misspelt": lambda: sas("orders", word="SharedAccessSignatures"),
    "tab": lambda: sas("orders", word="SharedAccessSignature").replace(" ", "\t", 1),
    "three parts": lambda: "a.b.c",
    "no algorithm": lambda: f"Bearer {HEADER}.{unsigned().split('.')[1]}.x",
    "no signature": lambda: f"Bearer {unsigned().rsplit('.', 1)[0]}.",
    "another service": lambda: f"Bearer {unsigned(audience='https://vault.azure.net')}",
    "the resource manager": lambda: ARM_BEARER,
    "a resource that begins alike": lambda: f"Bearer {unsigned(audience='https://servicebus.azure.net.evil.example')}",
    "another namespace": lambda: f"Bearer {unsigned(audience='https://secondary.servicebus.windows.net')}",
    "expired": lambda: f"Bearer {make_bearer_token(time.time() - 1)}",
    "not yet": lambda: f"Bearer {unsigned(nbf=time.time() + 7200)}",
    "no audience": lambda: f"Bearer {unsigned(aud=None)}",
}


async def put(client: Client, token: str, name: str) -> int:
    await client.sender("$cbs", 20)
    await client.receiver("$cbs", 21, credit=5)
    request = {"operation": "put-token", "name": name, "type": "jwt"}
    client.transfer(0, build(properties=["id"], application_properties=request, value=token), 20)
    answer = await client.until(TRANSFER)
    return int(read(answer.payload, scan(answer.payload), Section.APPLICATION_PROPERTIES)["status-code"])


@pytest.mark.parametrize("make", MADE_UP.values(), ids=MADE_UP)
async def test_what_is_neither_a_good_signature_nor_a_token_for_this_namespace_is_refused(
    emulator: Emulator, make: Callable[[], str]
) -> None:
    token = make()
    assert (await ask(emulator, "GET", f"/orders{ATOM}", authorization=token))[0] == 401
    async with connected(emulator) as client:
        await client.session()
        assert await put(client, token.removeprefix("Bearer "), "orders") == 401


@pytest.mark.parametrize("audience", ["https://servicebus.azure.net/", "https://primary.servicebus.windows.net"])
async def test_a_token_for_the_service_or_this_namespace_is_taken(emulator: Emulator, audience: str) -> None:
    token = unsigned(audience=audience, nbf=time.time() + 100)
    assert (await ask(emulator, "GET", f"/orders{ATOM}", authorization=f"Bearer {token}"))[0] == 200


@pytest.mark.parametrize(("host", "allowed", "status"), [("127.0.0.1", None, 200), ("127.0.0.1", False, 401)])
async def test_the_switch_counts_for_the_resource_manager_too(host: str, allowed: bool | None, status: int) -> None:
    async with Emulator(["primary", "secondary"], host=host, allow_entra=allowed) as running:
        found = await ask(running, "GET", f"{ARM}?api-version=2021-11-01", authorization=ARM_BEARER)
        assert found[0] == status
        assert (await ask(running, "GET", f"/x{ATOM}", authorization=f"Bearer {unsigned()}"))[0] == status
        assert (await ask(running, "GET", f"/x{ATOM}"))[0] == 200


@pytest.mark.law("other-machines")
def test_beyond_loopback_no_bearer_token_is_taken_unless_asked_for() -> None:
    def taken(host: str, **options: bool) -> bool:
        return Emulator(host=host, **options)._takes_bearer_tokens(NamespaceConfig("contoso"))

    assert [taken(host) for host in ("127.0.0.1", "::1", "localhost")] == [True] * 3
    assert [taken(host) for host in ("0.0.0.0", "::", "10.0.0.1", "box")] == [False] * 4
    assert taken("0.0.0.0", allow_entra=True)
    assert not Emulator()._takes_bearer_tokens(NamespaceConfig("contoso", host="10.0.0.1"))


# Signatures -----------------------------------------------------------------------------------------------------------


def signed(fields: str, resource: str, expires_at: int, key: str) -> str:
    digest = hmac.new(key.encode(), f"{quote_plus(resource)}\n{expires_at}".encode(), hashlib.sha256).digest()
    return fields.replace("SIG", quote(base64.b64encode(digest).decode(), safe=""))


@pytest.mark.parametrize(
    "smuggled", ["%73r=NS", "sr=NS", "s%72=NS", "se=9999999999", "%73e=9999999999", "skn=x", "other=1", ""]
)
@pytest.mark.parametrize("first", [True, False])
async def test_nothing_is_slipped_in_beside_what_was_signed(emulator: Emulator, smuggled: str, first: bool) -> None:
    base = f"http://{emulator.endpoint('primary')}"
    expires_at = int(time.time()) + 3600
    good = f"sr={quote_plus(base + '/orders')}&sig=SIG&se={expires_at}&skn={ROOT_KEY_NAME}"
    extra = smuggled.replace("NS", quote_plus(base + "/"))
    text = "&".join([extra, good] if first else [good, extra])
    token = "SharedAccessSignature " + signed(text, f"{base}/orders", expires_at, root_key(emulator))
    for path in ("/orders", "/orders/eu", "/$Resources/queues"):
        assert (await ask(emulator, "GET", f"{path}{ATOM}", authorization=token))[0] == 401
    clean = "SharedAccessSignature " + signed(good, f"{base}/orders", expires_at, root_key(emulator))
    assert (await ask(emulator, "GET", f"/orders{ATOM}", authorization=clean))[0] == 200


async def refusal_of(client: Client, address: str, handle: int) -> str | None:
    """The condition an attach of a sender ends with; None if the link opens."""
    client.attach(handle, address, sends=True)
    attached = await client.until(ATTACH)
    if attached.field(6) is not None:
        return None
    return str((await client.until(DETACH)).error[0])


async def test_the_key_of_an_entity_opens_that_entity_alone(emulator: Emulator) -> None:
    async with connected(emulator) as client:
        await client.session()
        assert await client.put_token("orders", "mine", KEY, time.time() + 3600) == (202, "Accepted")
        assert await refusal_of(client, "orders", 0) is None
        assert await refusal_of(client, "orders/eu", 1) == "amqp:unauthorized-access"
        assert await refusal_of(client, "ORDERS\\eu", 2) == "amqp:unauthorized-access"


async def test_the_namespaces_key_for_a_path_opens_what_is_below_it(emulator: Emulator) -> None:
    async with connected(emulator) as client:
        await client.session()
        assert (await client.put_token("orders", ROOT_KEY_NAME, root_key(emulator), time.time() + 3600))[0] == 202
        assert await refusal_of(client, "orders/eu", 1) is None


async def test_a_rule_with_the_root_keys_name_does_not_hide_it(emulator: Emulator) -> None:
    assert (await ask(emulator, "GET", f"/orders{ATOM}"))[0] == 200
    async with connected(emulator) as client:
        await client.session()
        assert (await client.put_token("orders", ROOT_KEY_NAME, root_key(emulator), time.time() + 3600))[0] == 202
    async with connected(emulator) as client:
        await client.session()
        assert (await client.put_token("orders", ROOT_KEY_NAME, KEY, time.time() + 3600))[0] == 202


# Keys that are gone ---------------------------------------------------------------------------------------------------


async def test_with_a_rule_go_the_links_that_stood_on_it(emulator: Emulator) -> None:
    namespace = emulator.namespace("primary")
    namespace.set_auth_rule(rule("ours"))
    async with connected(emulator) as client, connected(emulator) as other:
        for one, key_name, key in ((client, "ours", KEY), (other, ROOT_KEY_NAME, root_key(emulator))):
            await one.session()
            assert (await one.put_token("orders", key_name, key, time.time() + 3600))[0] == 202
            assert await refusal_of(one, "orders", 0) is None
        namespace.access.delete("ours")
        gone = await client.until(DETACH)
        assert (gone.field(0), gone.error[0]) == (0, "amqp:unauthorized-access")
        assert await refusal_of(client, "orders", 5) == "amqp:unauthorized-access"
        assert await refusal_of(other, "orders/eu", 5) is None


async def test_a_login_with_a_key_ends_with_the_key(emulator: Emulator) -> None:
    namespace = emulator.namespace("primary")
    namespace.set_auth_rule(rule("ours"))
    async with connected(emulator) as client:
        await client.login("PLAIN", b"\x00ours\x00" + KEY.encode())
        await client.open()
        await client.begin()
        assert await refusal_of(client, "orders", 0) is None
        namespace.set_auth_rule(rule("ours", base64.b64encode(b"n" * 32).decode()))
        assert (await client.until(DETACH)).error[0] == "amqp:unauthorized-access"
        assert await refusal_of(client, "orders", 1) == "amqp:unauthorized-access"


@pytest.mark.parametrize("path", ["../x", "a/./b", "..", "a/..", "a/.../b"])
async def test_names_that_walk_through_folders_are_none(emulator: Emulator, path: str) -> None:
    status, text = await ask(
        emulator, "PUT", f"{ARM}/queues/{path.replace('/', '~')}?api-version=2021-11-01", b"{}", ARM_BEARER
    )
    assert status in (400, 404), json.loads(text)
    assert emulator.namespace("primary").get_queue(path) is None


# What one client can do to all others ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["\\ud800", "\\u0001", "\\ufffe", "a\\u0000b"])
async def test_what_no_list_could_hold_is_refused_at_the_entrance(emulator: Emulator, text: str) -> None:
    emulator.namespace("primary").create_topic("events")
    emulator.namespace("primary").create_subscription("events", "all")
    bodies = {
        "queues/orders": '{"properties": {"userMetadata": "%s"}}',
        "topics/events/subscriptions/all/rules/r": '{"properties": {"filterType": "SqlFilter", "sqlFilter": '
        '{"sqlExpression": "a = \'%s\'"}}}',
        "topics/events/subscriptions/all/rules/c": '{"properties": {"filterType": "CorrelationFilter", '
        '"correlationFilter": {"properties": {"%s": "x"}}}}',
    }
    for resource, body in bodies.items():
        status, _ = await ask(
            emulator, "PUT", f"{ARM}/{resource}?api-version=2021-11-01", (body % text).encode(), ARM_BEARER
        )
        assert status == 400, resource
    for listed in ("/$Resources/queues", "/events/subscriptions", "/events/subscriptions/all/rules"):
        assert (await ask(emulator, "GET", f"{listed}{ATOM}"))[0] == 200


@pytest.mark.parametrize("credit", [1, 2**31 - 1, 2**31, 2**32 - 1])
async def test_a_great_deal_of_credit_is_no_debt(emulator: Emulator, credit: int) -> None:
    async with connected(emulator) as client:
        await client.session()
        assert (await client.put_token("orders", ROOT_KEY_NAME, root_key(emulator), time.time() + 3600))[0] == 202
        await client.sender("orders", 0)
        client.transfer(1, build(data=b"x"), 0)
        await client.receiver("orders", 1, credit=credit)
        assert (await client.until(TRANSFER)).payload


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "nonsense"])
async def test_a_body_that_is_not_encoded_as_it_says_is_a_bad_request(emulator: Emulator, encoding: str) -> None:
    base = f"http://{emulator.endpoint('primary')}"
    token = make_sas_token(f"{base}/", ROOT_KEY_NAME, root_key(emulator), time.time() + 3600)
    headers = {"Authorization": token, "Content-Encoding": encoding}
    async with (
        aiohttp.ClientSession() as session,
        session.put(f"{base}/new{ATOM}", data=b"plain", headers=headers) as answer,
    ):
        assert answer.status == 400, await answer.text()


@pytest.mark.parametrize("key", ["é", "x", "", "A" * 44])
async def test_a_key_that_is_none_is_a_bad_request(emulator: Emulator, key: str) -> None:
    emulator.namespace("primary").set_auth_rule(rule("ours"))
    path = f"{ARM}/authorizationRules/ours/regenerateKeys?api-version=2021-11-01"
    body = json.dumps({"keyType": "PrimaryKey", "key": key}).encode()
    assert (await ask(emulator, "POST", path, body, ARM_BEARER))[0] == 400
