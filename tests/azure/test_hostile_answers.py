"""What a namespace, or whoever sits in its place, answers to our client: nonsense becomes one error of ours, soon, in
bounded memory; nothing goes round for ever. All over real sockets."""

import asyncio
import gzip
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp import sections
from sbpair.amqp.performatives import BEGIN, CLOSE, OPEN, perform
from sbpair.amqp.sections import PropertyField, Section
from sbpair.amqp.types import Array, Described, Int, Long, Symbol, Timestamp, Ubyte, Uint, Ulong, Ushort
from sbpair.azure.administration import DataPlaneAdmin
from sbpair.azure.http import MOST_ANSWER_BYTES
from sbpair.azure.management import ArmAdmin
from sbpair.azure.messaging import AzureMessaging
from sbpair.azure.receiver import to_received
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret
from sbpair.core.entities import QueueFacts, QueueSettings, TopicFacts
from sbpair.core.errors import SbpairError, ServiceError
from sbpair.core.serialization import from_plain, to_plain
from sbpair.engine.errors import error as amqp_error
from sbpair.engine.link import IncomingDelivery, Link
from sbpair.engine.tls import TlsFiles
from tests.azure.support import FixedCredential, message
from tests.core.test_fuzz import BACKLOG, ODD
from tests.emulator.admin.raw import ENTRY
from tests.hostile import SECRET, assert_told_well, bounded, damaged, mutated, within
from tests.waiting import LIMIT_SECONDS

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """A web server over TLS that answers whatever the test wants."""

    def __init__(self, tls: TlsFiles) -> None:
        self._tls = tls
        self._runner: web.AppRunner | None = None
        self.asked = 0
        self.body: bytes = b""
        self.headers: dict[str, str] = {}
        self.status = 200
        self.answer: Answer = self._plain

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls.server_context()).start()
        self.host = f"127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        return await self.answer(request)

    async def _plain(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=self.status, body=self.body, headers=self.headers)

    def json(self, document: Any) -> None:
        self.body, self.headers = json.dumps(document).encode(), {"Content-Type": "application/json"}

    def atom(self, text: str | bytes) -> None:
        self.body = text.encode() if isinstance(text, str) else text
        self.headers = {"Content-Type": "application/atom+xml;charset=utf-8"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """Made once: that takes longer than most tests here."""
    made = TlsFiles(tmp_path_factory.mktemp("tls"))
    made.server_context()
    return made


@pytest.fixture
async def server(certificates: TlsFiles) -> AsyncIterator[Server]:
    started = Server(certificates)
    await started.start()
    yield started
    await started.stop()


def authority(server: Server) -> str:
    return str(server._tls.ca_path)


@pytest.fixture
async def arm(server: Server) -> AsyncIterator[ArmAdmin]:
    access = NamespaceAccess(
        label="primary",
        host=server.host,
        auth=AuthMethod.AZURE_CLI,
        ca_file=authority(server),
        resource_group="rg",
        subscription="00000000-0000-0000-0000-000000000001",
        management_url=f"https://{server.host}",
    )
    admin = ArmAdmin(access, credential=FixedCredential())
    yield admin
    await admin.close()


def connection_string(host: str) -> str:
    return f"Endpoint=sb://{host};SharedAccessKeyName=Root;SharedAccessKey={SECRET};UseDevelopmentEmulator=true"


@pytest.fixture
async def data_plane(server: Server) -> AsyncIterator[DataPlaneAdmin]:
    access = NamespaceAccess(
        label="primary",
        host=server.host,
        auth=AuthMethod.CONNECTION_STRING,
        connection_string=Secret(connection_string(server.host)),
        ca_file=authority(server),
    )
    admin = DataPlaneAdmin(access)
    yield admin
    await admin.close()


async def everything(admin: ArmAdmin | DataPlaneAdmin) -> None:
    """Every reading call; each ends in a value of the right types or in an error of ours."""

    async def queues() -> list[QueueFacts]:
        return [one async for one in admin.list_queues()]

    async def topics() -> list[TopicFacts]:
        return [one async for one in admin.list_topics()]

    for call in (admin.namespace, queues, topics, lambda: admin.get_queue("q"), lambda: admin.get_topic("t")):
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                found = await call()
        except ServiceError as error:
            assert_told_well(error)
            continue
        for one in found if isinstance(found, list) else [found]:
            if one is not None:
                from_plain(type(one), to_plain(one), "facts")


# ARM ------------------------------------------------------------------------------------------------------------------

QUEUE = {
    "id": "/x/queues/q",
    "name": "q",
    "properties": {
        "lockDuration": "PT1M",
        "maxSizeInMegabytes": 1024,
        "requiresSession": False,
        "defaultMessageTimeToLive": "P10675199DT2H48M5.4775807S",
        "maxDeliveryCount": 10,
        "status": "Active",
        "forwardTo": "x",
        "countDetails": {"activeMessageCount": 1, "deadLetterMessageCount": 0},
        "sizeInBytes": 5,
        "createdAt": "2026-01-01T00:00:00Z",
        "subscriptionCount": 1,
        "geoDataReplication": {"locations": [{"locationName": "a", "roleType": "Primary"}]},
        "premiumMessagingPartitions": 2,
        "disableLocalAuth": True,
    },
    "sku": {"name": "Premium", "capacity": 1},
    "location": "westeurope",
}
PAGE = {"value": [QUEUE, QUEUE | {"name": "r"}]} | QUEUE
"""A list and a resource at once: whichever is asked for."""


@bounded(30)
@given(document=mutated(PAGE))
async def test_an_answer_of_arm_with_anything_exchanged_is_told_or_refused(
    server: Server, arm: ArmAdmin, document: Any
) -> None:
    server.json(document)
    with within(seconds=30):
        await everything(arm)


BODIES = {
    "nothing": b"",
    "null": b"null",
    "a list": b"[1, 2]",
    "a text": b'"x"',
    "not JSON": b"<html>proxy</html>",
    "depth": b"[" * 100_000,
    "a number without end": b'{"name": ' + b"9" * 5000 + b"}",
    "bytes": b"\xff\xfe\x00\xd8",
}


@pytest.mark.parametrize("status", [200, 404, 403, 302, 204, 418])
async def test_bodies_of_arm_that_are_none_are_one_error(server: Server, arm: ArmAdmin, status: int) -> None:
    for body in BODIES.values():
        server.json(None)
        server.body, server.status = body, status
        with pytest.raises(ServiceError) as refused:
            await arm.namespace()
        assert_told_well(refused.value)


async def test_a_list_of_arm_that_leads_back_to_itself_ends(server: Server, arm: ArmAdmin) -> None:
    server.json({"value": [QUEUE], "nextLink": f"https://{server.host}/again"})
    with within(seconds=10), pytest.raises(ServiceError, match="the list does not end"):
        [one async for one in arm.list_queues()]
    assert server.asked < 5


async def test_a_list_of_arm_that_always_goes_on_ends(server: Server, arm: ArmAdmin) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"value": [], "nextLink": f"https://{server.host}/page/{server.asked}"})

    server.answer = answer
    with within(seconds=60), pytest.raises(ServiceError, match="the list does not end"):
        [one async for one in arm.list_queues()]
    assert server.asked < 400


async def test_an_answer_without_end_is_not_taken_in(server: Server, arm: ArmAdmin) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while request.transport is not None and not request.transport.is_closing():
            await response.write(b"x" * 1_000_000)
            await asyncio.sleep(0)
        return response

    server.answer = answer
    with within(seconds=60, megabytes=200), pytest.raises(ServiceError, match=r"more than 33,554,432 bytes"):
        await arm.namespace()


async def test_a_small_answer_that_unpacks_to_much_is_not_taken_in(server: Server, arm: ArmAdmin) -> None:
    server.json(None)
    server.body = gzip.compress(b" " * (8 * MOST_ANSWER_BYTES))
    server.headers |= {"Content-Encoding": "gzip"}
    assert len(server.body) < 1_000_000
    with within(seconds=60), pytest.raises(ServiceError):
        await arm.namespace()


async def test_a_date_that_is_none_does_not_spoil_the_answer(server: Server, arm: ArmAdmin) -> None:
    server.json(PAGE)
    for date in ("yesterday", "Mon, 99 Foo 99999 99:99:99 GMT", "Thu, 01 Jan 9999999999 00:00:00 GMT", ","):
        server.headers["Date"] = date
        assert (await arm.namespace()).service_time is None


# ATOM -----------------------------------------------------------------------------------------------------------------

FEED = (
    '<feed xmlns="http://www.w3.org/2005/Atom"><title type="text">Queues</title><id>https://x/</id>'
    '<updated>2026-01-01T00:00:00Z</updated><link rel="self" href="https://x/"/>{next}{entries}</feed>'
)
DESCRIPTION = (
    "<LockDuration>PT1M</LockDuration><MaxSizeInMegabytes>1024</MaxSizeInMegabytes><MaxDeliveryCount>10</MaxDeliveryCount>"
    "<Status>Active</Status><CreatedAt>2026-01-01T00:00:00Z</CreatedAt>"
    '<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">'
    "<d2p1:ActiveMessageCount>3</d2p1:ActiveMessageCount></CountDetails>"
)


def an_entry(kind: str = "QueueDescription", body: str = DESCRIPTION, title: str = "q") -> str:
    return ENTRY.format(kind=kind, body=body).replace("<content", f'<title type="text">{title}</title><content')


def a_feed(*entries: str, follow: str = "") -> str:
    more = f'<link rel="next" href="{follow}"/>' if follow else ""
    return FEED.format(next=more, entries="".join(entries))


KINDS = ("QueueDescription", "TopicDescription", "NamespaceInfo")


@bounded(30)
@given(
    text=st.sampled_from([a_feed(an_entry(kind)) for kind in KINDS] + [an_entry(kind) for kind in KINDS]).flatmap(
        lambda text: damaged(text.encode())
    )
)
async def test_damaged_atom_is_told_or_refused(server: Server, data_plane: DataPlaneAdmin, text: bytes) -> None:
    server.atom(text)
    with within(seconds=30):
        await everything(data_plane)


@pytest.mark.parametrize(
    "body",
    [
        an_entry(body="<MaxDeliveryCount>many</MaxDeliveryCount>"),
        an_entry(body="<MaxDeliveryCount>" + "9" * 5000 + "</MaxDeliveryCount>"),
        an_entry(body="<LockDuration>P" + "9" * 5000 + "D</LockDuration>"),
        an_entry(body="<CreatedAt>0000-00-00</CreatedAt>"),
        an_entry(body="<AuthorizationRules><AuthorizationRule/></AuthorizationRules>"),
        an_entry(title=""),
        a_feed(an_entry(title="")),
        a_feed(an_entry() * 2),
        "<a>" * 20_000,
        '<!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]>' + an_entry(title="&c;"),
        "",
        "not XML",
        '<?xml version="1.0" encoding="nope"?><entry/>',
    ],
    ids=range(13),
)
async def test_atom_that_is_none_is_told_or_refused(server: Server, data_plane: DataPlaneAdmin, body: str) -> None:
    server.atom(body)
    with within(seconds=30):
        await everything(data_plane)


async def test_a_feed_that_leads_back_to_itself_ends(server: Server, data_plane: DataPlaneAdmin) -> None:
    link = f"https://{server.host}/$Resources/queues?$skip=100&amp;$top=100"
    server.atom(a_feed(an_entry(), follow=link))
    with within(seconds=10), pytest.raises(ServiceError, match="the list does not end"):
        [one async for one in data_plane.list_queues()]
    assert server.asked < 10


async def test_a_refused_write_with_nonsense_is_one_error(server: Server, data_plane: DataPlaneAdmin) -> None:
    for status, body in ((400, b"\xff"), (409, b"<Error"), (500, b"x" * 100_000), (201, b"<a/>")):
        server.atom(body)
        server.status = status
        with pytest.raises(ServiceError) as refused:
            await data_plane.create_queue("q", QueueSettings())
        assert_told_well(refused.value)


# AMQP -----------------------------------------------------------------------------------------------------------------


class Oracle:
    """Answers every request to `$management` with what the test wants."""

    def __init__(self) -> None:
        self.receivers: list[Link] = []
        self.status: Any = Int(200)
        self.body: Any = {}
        self.raw: bytes | None = None

    def attach(self, link: Link) -> "Oracle":
        link.open(max_message_size=1_000_000)
        if not link.client_sends:
            self.receivers.append(link)
        return self

    def on_transfer(self, delivery: IncomingDelivery) -> None:
        asked = sections.read(delivery.payload, sections.scan(delivery.payload), Section.PROPERTIES)
        answer = sections.build(
            properties={PropertyField.CORRELATION_ID: sections.field(asked, PropertyField.MESSAGE_ID)},
            application_properties={"statusCode": self.status, "statusDescription": "OK"},
            value=self.body,
        )
        for link in self.receivers:
            if link.is_open() and link.credit > 0:
                link.send(answer if self.raw is None else self.raw, b"tag", settled=True)

    def on_disposition(self, delivery_id: int, state: Described | None, settled: bool) -> None:
        """The test looks at answers only."""

    def on_credit(self) -> None:
        """Answers go out when they are asked for."""

    def on_detach(self, closed: bool, connection_lost: bool) -> None:
        self.receivers = [link for link in self.receivers if link.is_open()]


@pytest.fixture
async def oracle(certificates: TlsFiles) -> AsyncIterator[tuple[Oracle, AzureMessaging]]:
    from tests.engine.conftest import PlainNamespace, open_port

    one = Oracle()
    async with open_port(PlainNamespace(), one, certificates) as port:
        host = f"127.0.0.1:{port.number}"
        text = connection_string(host).replace(SECRET, port.namespace.rules[0].primary_key)  # type: ignore[attr-defined]
        access = NamespaceAccess(
            label="primary",
            host=host,
            auth=AuthMethod.CONNECTION_STRING,
            connection_string=Secret(text.replace("Root;", "root;")),
        )
        messaging = AzureMessaging(access)
        yield one, messaging
        await messaging.close()


REPLIES: dict[str, Any] = {
    "nothing": None,
    "a text": "x",
    "a number": Long(5),
    "an empty map": {},
    "messages that are a number": {"messages": Long(2**40)},
    "messages that are texts": {"messages": ["x"]},
    "a message that is a number": {"messages": [{"message": Long(2**40)}]},
    "a message that is a list": {"messages": [{"message": [Long(2**40), Long(-1)]}]},
    "a message that is a text": {"messages": [{"message": "x"}]},
    "a lock token that is none": {"messages": [{"message": b"\x00Su\xa0\x01x", "lock-token": "x"}]},
    "times that are none": {"expirations": "x", "expiration": []},
    "times without end": {"expirations": Array(0x83, (Timestamp(2**63 - 1),)), "expiration": Timestamp(2**63 - 1)},
    "numbers that are none": {"sequence-numbers": ["x"]},
    "a described map": Described(Ulong(5), {"messages": []}),
    "symbols": {Symbol("messages"): [{Symbol("message"): b"\xff"}]},
}


async def ask_all(messaging: AzureMessaging) -> None:
    """Every request that is answered by `$management`; each ends in a value or in an error of ours, in time."""
    receiver, sender = messaging.receiver("orders"), messaging.sender("orders")
    received = to_received(message("a"), "orders")
    calls = (
        lambda: receiver.peek(5),
        lambda: receiver.receive_deferred([5]),
        lambda: sender.schedule([message("a")], timeout_seconds=5),
        lambda: sender.cancel_scheduled([5], timeout_seconds=5),
        lambda: receiver.renew_lock(received),
    )
    for call in calls:
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                await call()
        except SbpairError as error:
            assert_told_well(error)


@pytest.mark.parametrize("body", REPLIES.values(), ids=REPLIES)
async def test_replies_of_wrong_types_are_one_error(oracle: tuple[Oracle, AzureMessaging], body: Any) -> None:
    answering, messaging = oracle
    answering.body = body
    with within(seconds=30, megabytes=100):
        await ask_all(messaging)


@pytest.mark.parametrize("status", [Int(-1), Int(204), Int(404), Int(500), Int(2**31 - 1)], ids=range(5))
async def test_states_that_nobody_knows_are_one_error(oracle: tuple[Oracle, AzureMessaging], status: Any) -> None:
    answering, messaging = oracle
    answering.status = status
    with within(seconds=30):
        await ask_all(messaging)


async def test_a_page_that_never_gets_further_ends_a_browse(oracle: tuple[Oracle, AzureMessaging]) -> None:
    answering, messaging = oracle
    same = sections.build(message_annotations={Symbol("x-opt-sequence-number"): Long(5)}, data=b"x")
    answering.body = {"messages": [{"message": same}] * 3}
    receiver = messaging.receiver("orders")
    assert {one.sequence_number for one in await receiver.peek(5, from_sequence_number=1)} == {5}
    assert await receiver.peek(5, from_sequence_number=6) == []


def a_frame(body: bytes, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", len(body) + 8, 2, kind, 0) + body


def a_bomb() -> bytes:
    """Some kilobytes that stand for gigabytes: a performative with lists of nulls that take no byte each."""
    nulls = b"\xf0" + struct.pack(">IIB", 5, 65_536, 0x40)
    many = b"\xd0" + struct.pack(">II", len(nulls) * 5_000 + 4, 5_000) + nulls * 5_000
    return b"\x00\x53\x11\xd0" + struct.pack(">II", len(many) + 4, 1) + many


SASL, AMQP = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"
MECHANISMS = a_frame(perform(0x40, [Array(0xA3, (Symbol("ANONYMOUS"), Symbol("MSSBCBS"), Symbol("EXTERNAL")))]), 1)
LET_IN = [SASL + MECHANISMS + a_frame(perform(0x44, [Ubyte(0)]), 1)]
OPENED = AMQP + a_frame(perform(OPEN, ["x", None, Uint(65536), Ushort(100)]))
REFUSED = amqp_error("amqp:unauthorized-access", f"SharedAccessKey={SECRET}")

GREETINGS: dict[str, list[bytes | None]] = {
    "nothing": [],
    "zeros": [bytes(100)],
    "another protocol": [b"HTTP/1.1 400 Bad\r\n\r\n"],
    "an end": [None],
    "an end after the header": [SASL, None],
    "nonsense in place of the mechanisms": [SASL + b"\xff" * 50],
    "a refusal": [SASL + MECHANISMS + a_frame(perform(0x44, [Ubyte(1)]), 1)],
    "a frame of 4 GB": [*LET_IN, AMQP + struct.pack(">IBBH", 2**32 - 1, 2, 0, 0)],
    "an open that is cut short": [*LET_IN, AMQP + a_frame(b"\x00\x53\x10\xc0\xff\xff")],
    "an open of wrong types": [*LET_IN, AMQP + a_frame(perform(OPEN, [Uint(1), Uint(2), "x", "y", "z"]))],
    "a begin of wrong types": [*LET_IN, OPENED + a_frame(perform(BEGIN, ["x", "y", "z"]))],
    "a close with a secret": [*LET_IN, OPENED + a_frame(perform(CLOSE, [REFUSED]))],
    "a close of wrong type": [*LET_IN, OPENED + a_frame(perform(CLOSE, ["x"]))],
    "an unknown performative": [*LET_IN, OPENED + a_frame(perform(0x99, []))],
    "a performative that unpacks to much": [*LET_IN, OPENED + a_frame(a_bomb())],
    "a performative nested deep": [*LET_IN, OPENED + a_frame(b"\x00\x53\x11" + b"\xc0\x04\x01" * 5000)],
}


@pytest.mark.parametrize("greeting", GREETINGS.values(), ids=GREETINGS)
async def test_whatever_greets_us_in_place_of_a_namespace_is_one_error(greeting: list[bytes | None]) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in greeting:
            await reader.read(8)
            if part is None:
                break
            writer.write(part)
        else:
            await reader.read()
        writer.close()

    listening = await asyncio.start_server(greet, "127.0.0.1", 0)
    host = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    text = Secret(connection_string(host))
    access = NamespaceAccess(label="primary", host=host, auth=AuthMethod.CONNECTION_STRING, connection_string=text)
    messaging = AzureMessaging(access)
    try:
        with within(seconds=20, megabytes=50), pytest.raises(ServiceError) as refused:
            await messaging.sender("orders").send([message("a")], timeout_seconds=1)
        assert_told_well(refused.value)
    finally:
        await messaging.close()
        listening.close()
        await listening.wait_closed()


@bounded(100)
@given(st.just(BACKLOG).flatmap(damaged) | ODD.map(lambda value: sections.build(value=value)))
def test_any_payload_is_received_with_what_is_known_of_it(payload: bytes) -> None:
    received = to_received(payload, "q", locked_until=5.0)
    assert received.payload == payload
    assert 0 <= received.sequence_number < 2**63
