"""Clients that mean harm, on real sockets: the emulator answers or closes, stays small, and serves the others on."""

import asyncio
import base64
import json
import logging
import random
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from sbpair.amqp import sections
from sbpair.amqp.encoding import encode
from sbpair.amqp.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    SOURCE,
    TARGET,
    TRANSFER,
    perform,
)
from sbpair.amqp.sections import Section
from sbpair.amqp.types import Described, Symbol, Ubyte, Uint, Ulong
from sbpair.emulator.entities import CorrelationFilter, QueueDescription, RuleDescription, SqlFilter
from sbpair.emulator.server import Emulator
from sbpair.engine.auth import ROOT_KEY_NAME, make_bearer_token, make_sas_token
from sbpair.engine.budgets import MAX_HELD_BYTES
from sbpair.engine.replies import MOST_WAITING
from tests.emulator.admin.raw import ENTRY
from tests.engine.wire_client import Client
from tests.hostile import MEGABYTE, within
from tests.waiting import LIMIT_SECONDS

AMQP = b"AMQP\x00\x01\x00\x00"
SASL = b"AMQP\x03\x01\x00\x00"
ATOM = "?api-version=2021-05"
ARM_BEARER = f"Bearer {make_bearer_token(4102444800, audience='https://management.azure.com')}"
ARM = (
    "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/g/providers/Microsoft.ServiceBus"
    "/namespaces/primary"
)


class Troubles(logging.Handler):
    """What nobody should see on stderr: errors of the web server, exceptions in the loop."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(self.format(record))


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    """One namespace; after the test it still serves, and nothing went wrong inside."""
    troubles = Troubles()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: troubles.seen.append(repr(context)))
    logging.getLogger().addHandler(troubles)
    try:
        async with Emulator(["primary"], seed=1) as running:
            namespace = running.namespace("primary")
            namespace.create_queue("orders", QueueDescription())
            namespace.create_topic("events")
            namespace.create_subscription("events", "all")
            yield running
            assert (await ask(running, "GET", f"/orders{ATOM}"))[0] == 200
            async with connected(running) as client:
                await client.session()
                await client.put_token("orders", ROOT_KEY_NAME, root_key(running), time.time() + 3600)
    finally:
        logging.getLogger().removeHandler(troubles)
        loop.set_exception_handler(None)
    assert troubles.seen == []


def root_key(emulator: Emulator) -> str:
    return emulator.namespace("primary").auth_rules[ROOT_KEY_NAME].primary_key


def address(emulator: Emulator) -> tuple[str, int]:
    host, _, port = emulator.endpoint("primary").partition(":")
    return host, int(port)


@asynccontextmanager
async def connected(emulator: Emulator) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(*address(emulator))
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


async def say(emulator: Emulator, data: bytes, *, seconds: float = 60.0, end: bool = True) -> bytes:
    """Everything that comes back for these bytes until the emulator closes; with `end` it is told that this was all."""
    reader, writer = await asyncio.open_connection(*address(emulator))
    try:
        writer.write(data)
        if end:
            writer.write_eof()
        async with asyncio.timeout(seconds):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.transport.abort()


async def ask(
    emulator: Emulator, method: str, path: str, body: bytes = b"", authorization: str | None = None
) -> tuple[int, bytes]:
    """Status and body of an answer; the root key's token unless another is given."""
    base = f"http://{emulator.endpoint('primary')}"
    token = authorization or make_sas_token(f"{base}/", ROOT_KEY_NAME, root_key(emulator), time.time() + 3600)
    timeout = aiohttp.ClientTimeout(total=10)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.request(method, base + path, data=body, headers={"Authorization": token}) as answer,
    ):
        return answer.status, await answer.read()


def frame(body: bytes, *, kind: int = 0, channel: int = 0) -> bytes:
    return struct.pack(">IBBH", len(body) + 8, 2, kind, channel) + body


# Bytes ----------------------------------------------------------------------------------------------------------------

OPENED = AMQP + frame(perform(OPEN, ["c", "h"])) + frame(perform(BEGIN, [None, Uint(0), Uint(100), Uint(100)]))


async def test_any_bytes_are_answered_or_the_connection_is_closed(emulator: Emulator) -> None:
    draw = random.Random(7)
    starts = (
        b"",
        AMQP,
        SASL,
        OPENED,
        b"AMQ",
        b"GET / HTTP/1.1\r\n",
        b"PUT /x HTTP/1.1\r\nContent-Length: 5\r\n\r\n",
        b"\x16\x03\x01",
    )
    inputs = [draw.choice(starts) + draw.randbytes(draw.randrange(1, 200)) for _ in range(150)]
    with within(seconds=40):
        for group in (inputs[:75], inputs[75:]):
            await asyncio.gather(*(say(emulator, data) for data in group))


@pytest.mark.parametrize(
    "data",
    [
        AMQP + struct.pack(">IBBH", 2**32 - 1, 2, 0, 0),
        AMQP + struct.pack(">IBBH", 2**31, 2, 0, 0) + b"x" * 100_000,
        AMQP + struct.pack(">IBBH", 7, 2, 0, 0),
        AMQP + struct.pack(">IBBH", 16, 255, 0, 0) + b"x" * 8,
        AMQP + struct.pack(">IBBH", 16, 0, 0, 0) + b"x" * 8,
        AMQP + frame(b"\x00\x53\x10\xd0\xff\xff\xff\xff\xff\xff\xff\xff"),
        AMQP + frame(b"\x00" * 60_000),
        AMQP + frame(b"\x00\x53\x10" + b"\xc0\x04\x01" * 20_000),
        AMQP + frame(perform(OPEN, ["c"]), kind=77),
        SASL + frame(perform(0x41, [Symbol("PLAIN"), b"\x00" * 10_000]), kind=1),
        SASL + frame(perform(0x41, [Symbol("PLAIN"), b"\x00\xff\x00\xff"]), kind=1),
        OPENED[:30],
        OPENED + frame(perform(ATTACH, ["l", Uint(70_000), False, Ubyte(0), Ubyte(0)])),
        OPENED + frame(encode(Described(Ulong(TRANSFER), [Ulong(2**63), Ulong(2**63)]))),
        OPENED + frame(encode(Described(Ulong(FLOW), [None, Ulong(2**63), Uint(0), Uint(0)]))),
        OPENED + frame(encode(Described(Ulong(DISPOSITION), [True, Ulong(2**40), Ulong(2**63), True]))),
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100_000,
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"GET /$servicebus/websocket HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n" + b"\xff" * 1000,
        b"\x16\x03\x01\xff\xff" + b"\x00" * 70_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=range(24),
)
async def test_sizes_and_frames_that_cannot_be_are_refused_at_once(emulator: Emulator, data: bytes) -> None:
    with within(seconds=5, megabytes=20):
        await say(emulator, data)


async def test_a_message_that_never_ends_is_held_no_further_than_its_limit(emulator: Emulator) -> None:
    """Everybody may open links to `$cbs`: without a bound each of them could make the emulator keep 128 MB."""
    part = b"x" * 60_000
    with within(seconds=30, megabytes=20):
        async with connected(emulator) as client:
            await client.session()
            for handle in range(20):
                await client.sender(f"$cbs/{handle}", handle)
            for handle in range(20):
                for _ in range(40):
                    client.transfer(handle, part, handle, more=True)
                await client.writer.drain()
            assert (await client.until(CLOSE)).error[0] == "amqp:resource-limit-exceeded"


async def test_unfinished_messages_of_all_links_share_one_bound(emulator: Emulator) -> None:
    """A Premium queue takes 100 MB a message, but not on a hundred links at once."""
    part = b"x" * 60_000
    async with connected(emulator) as client:
        await client.session()
        await client.put_token("orders", ROOT_KEY_NAME, root_key(emulator), time.time() + 3600)
        links = range(30, 36)
        for handle in links:
            await client.sender("orders/$management", handle)
        for count in range(MAX_HELD_BYTES // len(part) + 50):
            client.transfer(count, part, links[count % len(links)], more=True)
            await client.writer.drain()
        assert (await client.until(CLOSE)).error[0] == "amqp:resource-limit-exceeded"


async def test_who_asks_and_takes_no_answer_is_sent_away(emulator: Emulator) -> None:
    request = sections.build(
        properties=["id", None, None, None, "reply-21"], application_properties={"a": "b"}, value="x"
    )
    async with connected(emulator) as client:
        await client.session()
        await client.sender("$cbs", 20)
        await client.receiver("$cbs", 21, credit=0)
        for count in range(MOST_WAITING + 1):
            client.transfer(count, request, 20)
        while (received := await client.next()).code in (DISPOSITION, FLOW):
            continue
        assert received.error[0] == "amqp:resource-limit-exceeded"


async def test_links_without_end_are_refused(emulator: Emulator) -> None:
    source, target = Described(Ulong(SOURCE), ["$cbs"]), Described(Ulong(TARGET), ["$cbs"])
    with within(seconds=60):
        async with connected(emulator) as client:
            await client.session()
            for handle in range(6000):
                client.send(ATTACH, ["l", Uint(handle), False, Ubyte(0), Ubyte(0), source, target, None, None, Uint(0)])
            client.send(CLOSE, [])
            codes = [(await client.until(CLOSE, END)).code]
        assert codes == [END]


# Patience -------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def hasty() -> AsyncIterator[Emulator]:
    """An emulator that waits for half a second where it else waits for a minute."""
    async with Emulator(["primary"], seed=1) as running:
        running.namespace("primary").create_queue("orders", QueueDescription())
        running._ports["primary"][0].patience_seconds = 0.5
        yield running


@pytest.mark.parametrize(
    "start", [b"", b"A", b"AMQ", b"G", b"GET / HTTP/1.1\r\nHost: x\r\n", b"\x16", b"\x16\x03\x01\x02\x00"]
)
async def test_clients_that_say_next_to_nothing_are_cut_off(hasty: Emulator, start: bytes) -> None:
    opened = [await asyncio.open_connection(*address(hasty)) for _ in range(50)]
    try:
        for _, writer in opened:
            writer.write(start)
        assert (await ask(hasty, "GET", f"/orders{ATOM}"))[0] == 200
        async with asyncio.timeout(LIMIT_SECONDS):
            for reader, _ in opened:
                try:
                    assert await reader.read() == b""
                except ConnectionResetError:
                    continue
    finally:
        for _, writer in opened:
            writer.transport.abort()


async def test_a_request_that_is_slow_but_comes_is_answered(hasty: Emulator) -> None:
    reader, writer = await asyncio.open_connection(*address(hasty))
    for pause in (0.7, 0.0):  # longer than the patience: a connection that has asked is kept for the next request
        writer.write(b"GET /orders HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(LIMIT_SECONDS):
            assert (await reader.readuntil(b"HTTP/1.1 401")).endswith(b"HTTP/1.1 401")
        await asyncio.sleep(pause)
    writer.close()


# Bodies ---------------------------------------------------------------------------------------------------------------


def entry(kind: str, inner: str) -> bytes:
    return ENTRY.format(kind=kind, body=inner).encode()


def laughs() -> str:
    """A billion laughs."""
    steps = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    return f'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY l0 "ha">{steps}]><entry>&l9;</entry>'


XML = {
    "a billion laughs": laughs().encode(),
    "a billion laughs in UTF-16": laughs().encode("utf-16"),
    "a file": b'<!DOCTYPE e [<!ENTITY f SYSTEM "file:///etc/passwd">]><entry>&f;</entry>',
    "a file in UTF-16": '<!DOCTYPE e [<!ENTITY f SYSTEM "file:///etc/passwd">]><entry>&f;</entry>'.encode("utf-16-le"),
    "an address": b'<!DOCTYPE e SYSTEM "http://127.0.0.1:1/x.dtd"><entry/>',
    "an unknown encoding": b'<?xml version="1.0" encoding="nope"?><entry/>',
    "a multi-byte encoding": b'<?xml version="1.0" encoding="shift_jis"?><entry/>',
    "UTF-7": b'<?xml version="1.0" encoding="utf-7"?>+ADw-entry/+AD4-',
    "depth": b"<a>" * 150_000,
    "many attributes": b"<a " + b" ".join(b'a%d="x"' % n for n in range(40_000)) + b"/>",
    "nothing": b"",
    "nulls": b"\x00" * 100,
    "days without end": entry("QueueDescription", f"<LockDuration>P{'9' * 450_000}D</LockDuration>"),
    "seconds without end": entry("QueueDescription", f"<LockDuration>PT0.{'9' * 450_000}S</LockDuration>"),
    "a number without end": entry("QueueDescription", f"<MaxDeliveryCount>{'9' * 450_000}</MaxDeliveryCount>"),
    "keys without end": entry(
        "QueueDescription",
        f"<AuthorizationRules>{'<AuthorizationRule><KeyName>a</KeyName><Rights/></AuthorizationRule>' * 3000}"
        "</AuthorizationRules>",
    ),
}


@pytest.mark.parametrize("body", XML.values(), ids=XML)
async def test_xml_that_means_harm_is_a_bad_request(emulator: Emulator, body: bytes) -> None:
    with within(seconds=8, megabytes=60):
        status, text = await ask(emulator, "PUT", f"/new{ATOM}", body)
    assert status == 400
    assert b"root:" not in text


async def test_a_body_of_ten_megabytes_is_too_large(emulator: Emulator) -> None:
    with within(seconds=10, megabytes=60):
        status, _ = await ask(emulator, "PUT", f"/new{ATOM}", b"x" * (10 * MEGABYTE))
    assert status == 413


def value(kind: str, text: str) -> bytes:
    return entry(
        "RuleDescription",
        '<Filter i:type="SqlFilter"><SqlExpression>x = @a</SqlExpression><Parameters><KeyValueOfstringanyType>'
        f'<Key>@a</Key><Value xmlns:d6p1="http://www.w3.org/2001/XMLSchema" i:type="d6p1:{kind}">{text}</Value>'
        "</KeyValueOfstringanyType></Parameters></Filter>",
    )


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "9" * 5000),
        ("long", "9" * 400),
        ("long", "٣"),
        ("duration", f"P{'9' * 900}D"),
        ("duration", "P99999999999D"),
        ("dateTime", "9999-12-31T23:59:59-23:59"),
        ("double", "1e400"),
        ("decimal", "nan"),
    ],
    ids=range(8),
)
async def test_a_value_of_a_rule_is_taken_and_told_or_refused(emulator: Emulator, kind: str, text: str) -> None:
    path = f"/events/subscriptions/all/rules/r{ATOM}"
    status, _ = await ask(emulator, "PUT", path, value(kind, text))
    assert status in (201, 400)
    assert (await ask(emulator, "GET", path))[0] == 200
    assert (await ask(emulator, "GET", f"/events/subscriptions/all/rules{ATOM}"))[0] == 200


SQL = ("(" * 500 + "1=1" + ")" * 500, "p(" * 300 + "'a'" + ")" * 300 + "=1", "NOT " * 250 + "1=1", "-" * 900 + "1=1")
SQL += ("1" + "+1" * 500 + "=501", "a OR " * 200 + "a", "a LIKE '" + "%a" * 500 + "b'", "9" * 1000 + "=1", "1e999=1")


@pytest.mark.parametrize("expression", SQL, ids=range(len(SQL)))
async def test_an_expression_is_evaluated_soon_or_refused(emulator: Emulator, expression: str) -> None:
    namespace = emulator.namespace("primary")
    status, _ = await ask(
        emulator,
        "PUT",
        f"/events/subscriptions/all/rules/r{ATOM}",
        entry("RuleDescription", f'<Filter i:type="SqlFilter"><SqlExpression>{expression}</SqlExpression></Filter>'),
    )
    assert status in (201, 400)
    with within(seconds=5):
        namespace.find("events").send(  # type: ignore[union-attr]
            sections.build(application_properties={"a": "a" * 20_000}, data=b"x"), 0
        )


JSON = {
    "depth": b"[" * 100_000,
    "objects in objects": b'{"a":' * 50_000,
    "a number without end": b'{"properties": {"maxDeliveryCount": ' + b"9" * 5000 + b"}}",
    "a huge number": b'{"properties": {"maxDeliveryCount": ' + b"9" * 4000 + b"}}",
    "half a character": b'{"properties": {"userMetadata": "\\ud800"}}',
    "not a number": b'{"properties": {"maxDeliveryCount": NaN}}',
    "a list of lists": b'{"properties": {"rights": [[]], "status": []}, "sku": {"name": []}, "location": []}',
    "UTF-16": '{"properties": {}}'.encode("utf-16"),
    "a list": b"[]",
}
RESOURCES = ("", "/queues/q", "/topics/t", "/topics/events/subscriptions/s", "/topics/events/subscriptions/all/rules/r")
RESOURCES += ("/authorizationRules/x", "/networkRuleSets/default", "/failover", "/disasterRecoveryConfigs/d")


@pytest.mark.parametrize("body", JSON.values(), ids=JSON)
async def test_json_that_means_harm_is_answered_and_what_is_there_can_still_be_listed(
    emulator: Emulator, body: bytes
) -> None:
    for resource in RESOURCES:
        for method in ("PUT", "PATCH", "POST"):
            status, _ = await ask(emulator, method, f"{ARM}{resource}?api-version=2021-11-01", body, ARM_BEARER)
            assert status < 500, (method, resource)
    for listed in ("", "/queues", "/topics", "/authorizationRules", "/topics/events/subscriptions/all/rules"):
        status, text = await ask(emulator, "GET", f"{ARM}{listed}?api-version=2021-11-01", authorization=ARM_BEARER)
        assert status == 200
        json.loads(text)


def bearer(claims: bytes) -> str:
    return f"Bearer eyJhbGciOiJSUzI1NiJ9.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.b"


TOKENS = (
    bearer(b"[" * 5000),
    bearer(b'{"exp": ' + b"9" * 400 + b"}"),
    bearer(b'{"aud": "https://servicebus.azure.net", "exp": NaN, "oid": [1]}'),
    bearer(b'{"aud": "https://servicebus.azure.net", "exp": ' + b"9" * 400 + b"}"),
    bearer(b'{"aud": ["https://servicebus.azure.net"], "exp": 4102444800}'),
    bearer(b'{"aud": "https://servicebus.azure.net", "exp": true}'),
    "SharedAccessSignature sr=x&sig=%ff%fe&se=nan&skn=RootManageSharedAccessKey",
    "SharedAccessSignature sr=\udcff&sig=\udcff&se=1&skn=RootManageSharedAccessKey",
    "SharedAccessSignature " + "&" * 5000,
    "SharedAccessSignature sr=x&sig=x&se=" + "9" * 5000 + "&skn=RootManageSharedAccessKey",
    "Bearer " + "." * 5000,
)


@pytest.mark.parametrize("token", TOKENS, ids=range(len(TOKENS)))
async def test_a_token_that_is_none_is_refused_over_http_and_amqp(emulator: Emulator, token: str) -> None:
    request = (
        f"GET /orders{ATOM} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: ".encode()
        + token.encode("utf-8", "surrogateescape")
        + b"\r\n\r\n"
    )
    answer = await say(emulator, request, end=False)
    assert answer[:12] in (b"HTTP/1.1 401", b"HTTP/1.1 400"), answer[:100]
    async with connected(emulator) as client:
        await client.session()
        await client.sender("$cbs", 20)
        await client.receiver("$cbs", 21, credit=5)
        fields = {"operation": "put-token", "name": "orders", "type": "jwt"}
        value_ = token.encode("utf-8", "replace").decode()
        client.transfer(0, sections.build(properties=["id"], application_properties=fields, value=value_), 20)
        said = await client.until(TRANSFER)
        status = sections.read(said.payload, sections.scan(said.payload), Section.APPLICATION_PROPERTIES)
        assert status["status-code"] == 401


PATHS = (
    "/%00",
    "/%ff%fe",
    "/a%2F%2Fb",
    "/" + "a/" * 3000,
    "/$Resources/queues?$skip=999999999&$top=0",
    "//",
    "/$emulator",
)
PATHS += (
    "/$Resources/queues?$skip=%D9%A3",
    "/?a=%ff",
    "/subscriptions/x/y",
    "/$emulator/faults/x/y",
    "/orders?api-version=%00",
)


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "X"])
async def test_any_path_and_verb_is_answered(emulator: Emulator, method: str) -> None:
    for path in PATHS:
        status, _ = await ask(emulator, method, path)
        assert status < 500, path


def test_a_pattern_is_matched_in_time_that_grows_with_the_text_alone() -> None:
    from sbpair.sqlfilter.values import like

    with within(seconds=2):
        assert like("a" * 50_000, "%a" * 400 + "b", None) is False
        assert like("ab" * 20_000, "%a_%b" * 100 + "%", None) is True
    cases: list[tuple[str, str, bool]] = [("abc", "a%c", True), ("abc", "%b%", True), ("aXbXc", "a%X%X%c", True)]
    cases += [
        ("abab", "%ab", True),
        ("aba", "%ab", False),
        ("ab", "a%b%c", False),
        ("", "%", True),
        ("aa", "a%a%a", False),
    ]
    for text, pattern, matches in cases:
        assert like(text, pattern, None) is matches, (text, pattern)


async def test_rules_of_any_text_do_not_keep_a_topic_from_taking_messages(emulator: Emulator) -> None:
    namespace = emulator.namespace("primary")
    for number, text in enumerate(
        ("a / 0 = 1", "a + 'x' = 1", "sys.nonsense = 1", "a LIKE 'x' ESCAPE 'yy'", "newid() = 1")
    ):
        namespace.create_rule("events", "all", f"r{number}", RuleDescription(filter=SqlFilter(expression=text)))
    namespace.create_rule(
        "events", "all", "c", RuleDescription(filter=CorrelationFilter(properties={"a": float("nan")}))
    )
    topic = namespace.find("events")
    for odd in (1, "x", None, b"\xff", float("nan"), True, [True], {"k": None}):
        properties = {"a": odd if not isinstance(odd, int) or isinstance(odd, bool) else Uint(odd)}
        topic.send(sections.build(application_properties=properties, data=b"x"), 0)  # type: ignore[union-attr]


async def test_a_request_is_no_larger_than_what_can_be_sent_and_has_no_more_items_than_anybody_needs(
    emulator: Emulator,
) -> None:
    """A byte on the wire, an empty list, is an object of sixty here: 128 MB of them would take all memory there is."""
    properties = ["id", None, None, None, "reply-3"]
    operation = {"operation": "com.microsoft:peek-message"}
    lists = sections.build(properties=properties, application_properties=operation, value={"x": [[]] * 200_000})
    large = sections.build(properties=properties, application_properties=operation, value={"x": b"x" * 400_000})
    asked = sections.build(properties=properties, application_properties=operation, value={})
    async with connected(emulator) as client:
        await client.session()
        await client.put_token("orders", ROOT_KEY_NAME, root_key(emulator), time.time() + 3600)
        await client.sender("orders/$management", 2)
        await client.receiver("orders/$management", 3, credit=10)
        for number, (request, condition) in enumerate(
            ((lists, "amqp:decode-error"), (large, "amqp:link:message-size-exceeded"))
        ):
            parts = [request[start : start + 60_000] for start in range(0, len(request), 60_000)]
            for part in parts:
                client.transfer(number, part, 2, more=part is not parts[-1])
            outcome = (await client.until(DISPOSITION)).field(4)
            assert outcome.value[0].value[0] == condition
        client.transfer(9, asked, 2)
        assert (await client.until(TRANSFER)).payload
