"""Laws that show between a client and the namespace only."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sbpair.amqp.performatives import ATTACH, DETACH, DISPOSITION, SOURCE, TARGET, TRANSFER
from sbpair.amqp.sections import PropertyField, Section, build, read, scan
from sbpair.amqp.types import Described, Symbol, Timestamp, Ubyte, Uint, Ulong
from sbpair.emulator.entities import QueueDescription
from sbpair.emulator.server import Emulator, NamespaceConfig
from sbpair.engine.auth import ROOT_KEY_NAME
from sbpair.engine.clock import AdvancingClock
from sbpair.service import EntityStatus
from tests.engine.dialects import AZURE_SERVICEBUS, Dialect
from tests.engine.test_dialogues import EXPIRES_AT, SESSION_FILTER, body, logged_in
from tests.waiting import LIMIT_SECONDS


@asynccontextmanager
async def emulators(**forms: str) -> Any:
    """An emulator with the namespaces `strict` and `lax`."""
    lax = NamespaceConfig("lax", laws={name.replace("_", "-"): form for name, form in forms.items()})
    async with Emulator([NamespaceConfig("strict"), lax], seed=1) as running:
        yield running


@pytest.mark.law("local-auth-disabled")
async def test_a_namespace_without_keys_says_so(dialect: Dialect) -> None:
    async with emulators(local_auth_disabled="lax") as emulator:
        for name, said in (
            ("strict", "LocalAuthDisabled: Authorization failed because SAS"),
            ("lax", "InvalidSignature"),
        ):
            namespace = emulator.namespace(name)
            namespace.create_queue("orders")
            async with logged_in(emulator, dialect, "orders", name) as client:
                namespace.access.allow_keys(False)
                client.send(DETACH, [Uint(20), True])
                client.send(DETACH, [Uint(21), True])
                key = namespace.auth_rules[ROOT_KEY_NAME].primary_key
                status, text = await client.put_token("orders", ROOT_KEY_NAME, key, EXPIRES_AT)
                assert (status, text.partition(" TrackingId")[0][: len(said)]) == (401, said)


@pytest.mark.law("session-receivers-match")
async def test_receivers_of_sessions_are_for_entities_with_sessions(emulator: Emulator, dialect: Dialect) -> None:
    namespace = emulator.namespace("primary")
    namespace.create_queue("orders")
    namespace.create_queue("sessions", QueueDescription(requires_session=True))
    for path, filters, said in (
        ("orders", {SESSION_FILTER: None}, "does not require sessions"),
        ("sessions", None, "non-sessionful message receiver"),
    ):
        async with logged_in(emulator, dialect, path) as client:
            client.attach(1, path, sends=False, filters=filters)
            condition, text = (await client.until(DETACH)).error
            assert condition == "amqp:not-allowed"
            assert said in text


@pytest.mark.law("forwarded-entity-has-no-receiver")
async def test_nobody_receives_from_an_entity_that_forwards(emulator: Emulator, dialect: Dialect) -> None:
    namespace = emulator.namespace("primary")
    namespace.create_queue("results")
    namespace.create_queue("orders", QueueDescription(forward_to="results"))
    async with logged_in(emulator, dialect, "orders") as client:
        client.attach(1, "orders", sends=False)
        condition, text = (await client.until(DETACH)).error
        assert condition == "amqp:not-allowed"
        assert "auto-forwarding" in text


@pytest.mark.law("disabled-entities")
@pytest.mark.parametrize(
    ("status", "refused"),
    [
        (EntityStatus.DISABLED, {"receive", "send", "request"}),
        (EntityStatus.SEND_DISABLED, {"send", "request"}),
        (EntityStatus.RECEIVE_DISABLED, {"receive"}),
    ],
)
async def test_what_a_status_refuses(
    emulator: Emulator, dialect: Dialect, status: EntityStatus, refused: set[str]
) -> None:
    emulator.namespace("primary").create_queue("orders", QueueDescription(status=status))
    found = set()
    for what, address, sends in (
        ("receive", "orders", False),
        ("send", "orders", True),
        ("request", "orders/$management", True),
    ):
        async with logged_in(emulator, dialect, "orders") as client:
            client.attach(1, address, sends=sends)
            frames = [await client.until(ATTACH)]
            if frames[0].field(6 if sends else 5) is None:
                assert (await client.until(DETACH)).error[0] == "com.microsoft:entity-disabled"
                found.add(what)
    assert found == refused


@pytest.mark.law("send-via-link")
async def test_a_link_that_names_another_entity_sends_directly(emulator: Emulator) -> None:
    namespace = emulator.namespace("primary")
    orders, via = namespace.create_queue("orders"), namespace.create_queue("via")
    async with logged_in(emulator, AZURE_SERVICEBUS, "orders") as client:
        source, target = Described(Ulong(SOURCE), [None]), Described(Ulong(TARGET), [client.dialect.address("orders")])
        properties = {Symbol("viaEntityPath"): "via"}
        modes = AZURE_SERVICEBUS.send_modes
        unsaid = [None, None, Uint(0), None, None, None]
        client.send(ATTACH, ["via", Uint(1), False, *modes, source, target, *unsaid, properties])
        await client.until(ATTACH)
        client.transfer(0, build(data=b"x"), 1)
        await client.until(DISPOSITION)
    assert (orders.counts().active, via.counts().active) == (1, 0)


@pytest.mark.law("idle-links")
async def test_a_link_stays_however_long_nothing_passes() -> None:
    clock = AdvancingClock()
    async with Emulator(["primary"], clock=clock, seed=1) as emulator:
        queue = emulator.namespace("primary").create_queue("orders")
        async with logged_in(emulator, AZURE_SERVICEBUS, "orders") as client:
            await client.receiver("orders", credit=1)
            clock.advance(3600)
            queue.send(build(data=b"x"))
            assert body(await client.until(TRANSFER)) == b"x"
    clock.close()


@pytest.mark.law("message-formats", "flags-without-effect", "longest-own-ttl")
async def test_what_is_carried_without_effect(emulator: Emulator) -> None:
    queue = emulator.namespace("primary").create_queue("orders", QueueDescription(enable_express=True))
    times = {PropertyField.CREATION_TIME: Timestamp(0), PropertyField.ABSOLUTE_EXPIRY_TIME: Timestamp(1)}
    payload = build(header=[True, Ubyte(9), None, True], properties=times, data=b"x")
    queue.send(payload, 7)
    async with logged_in(emulator, AZURE_SERVICEBUS, "orders") as client:
        await client.receiver("orders", credit=1)
        frame = await client.until(TRANSFER)
        assert frame.field(3) in (None, 0)
        header = read(frame.payload, scan(frame.payload), Section.HEADER)
        assert header[:2] == [True, 9]
    assert queue.description.enable_express


@pytest.mark.law("sbmp")
async def test_a_client_without_amqp_is_sent_away(emulator: Emulator) -> None:
    host, _, port = emulator.endpoint("primary").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"\x00\x01\x00\x00net.tcp" * 10)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), LIMIT_SECONDS)
    assert not answer.startswith(b"AMQP")
    assert not answer or answer.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400"))
    writer.close()
