"""Whole dialogues with the emulator, in the words of each client library."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sbpair.amqp.performatives import ATTACH, DETACH, DISPOSITION, SOURCE, TARGET, TRANSFER, accepted
from sbpair.amqp.sections import PropertyField, Section, build, field, read, scan
from sbpair.amqp.types import Described, Symbol, Uint, Ulong, same
from sbpair.emulator.entities import QueueDescription
from sbpair.emulator.server import Emulator, NamespaceConfig
from sbpair.engine.auth import ROOT_KEY_NAME
from sbpair.engine.errors import rejected
from sbpair.service import Tier
from tests.engine.dialects import Dialect
from tests.engine.wire_client import Client, Frame

SESSION_FILTER = Symbol("com.microsoft:session-filter")
EXPIRES_AT = 4e9


@asynccontextmanager
async def logged_in(emulator: Emulator, dialect: Dialect, entity: str, name: str = "primary") -> AsyncIterator[Client]:
    """A client with a session and a token for one entity."""
    host, _, port = emulator.endpoint(name).partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        client = Client(reader, writer, dialect)
        await client.session()
        key = emulator.namespace(name).auth_rules[ROOT_KEY_NAME].primary_key
        assert (await client.put_token(entity, ROOT_KEY_NAME, key, EXPIRES_AT))[0] == 202
        yield client
    finally:
        writer.transport.abort()


def body(frame: Frame) -> Any:
    return read(frame.payload, scan(frame.payload), Section.DATA)


def lease_session(client: Client, address: str, handle: int = 1, credit: int = 10) -> None:
    """Ask for the next available session; .NET's processor with prefetch gives credit in the same breath."""
    source = Described(Ulong(SOURCE), [address, *[None] * 6, {SESSION_FILTER: None}])
    target = Described(Ulong(TARGET), ["here"])
    modes = list(client.dialect.receive_modes)
    client.send(ATTACH, [f"session-{handle}", Uint(handle), True, *modes, source, target])
    client.credit(credit, handle)


async def taken(client: Client, address: str, handle: int = 1) -> Frame:
    await client.receiver(address, handle, credit=1)
    return await client.until(TRANSFER)


async def test_send_receive_and_complete(emulator: Emulator, dialect: Dialect) -> None:
    queue = emulator.namespace("primary").create_queue("orders")
    async with logged_in(emulator, dialect, "orders") as client:
        await client.sender("orders")
        client.transfer(1, build(data=b"hello"))
        assert (await client.until(DISPOSITION)).field(4).descriptor == 0x24
        await client.receiver("orders", credit=1)
        delivery = await client.until(TRANSFER)
        assert body(delivery) == b"hello"
        client.settle(delivery.field(1), None, accepted())
        confirmed = await client.until(DISPOSITION)
        assert (confirmed.field(0), confirmed.field(1), confirmed.field(3)) == (False, delivery.field(1), True)
    assert queue.counts().active == 0


async def test_a_session_that_comes_after_the_credit_is_served(emulator: Emulator, dialect: Dialect) -> None:
    queue = emulator.namespace("primary").create_queue("orders", QueueDescription(requires_session=True))
    async with logged_in(emulator, dialect, "orders") as client:
        lease_session(client, "orders")
        await client.sender("$cbs/another", 30)  # an answer to something sent later: the attach has been seen
        queue.send(build(properties={PropertyField.GROUP_ID: "blue"}, data=b"first"))
        granted = await client.until(ATTACH)
        assert granted.field(5).value[7] == {"com.microsoft:session-filter": "blue"}
        assert body(await client.until(TRANSFER)) == b"first"


@pytest.mark.law("browsing-links")
async def test_a_link_in_peek_mode_locks_and_counts_nothing(emulator: Emulator, dialect: Dialect) -> None:
    queue = emulator.namespace("primary").create_queue("orders")
    for text in (b"one", b"two"):
        queue.send(build(data=text))
    async with logged_in(emulator, dialect, "orders") as client:
        source, target = Described(Ulong(SOURCE), ["orders"]), Described(Ulong(TARGET), ["here"])
        peek_mode = {Symbol("com.microsoft:peek-mode"): True}
        unsaid = [None] * 6
        client.send(ATTACH, ["peek", Uint(1), True, *dialect.receive_modes, source, target, *unsaid, peek_mode])
        client.credit(5)
        shown = [await client.until(TRANSFER) for _ in range(2)]
        assert [(body(one), one.field(4)) for one in shown] == [(b"one", True), (b"two", True)]
        assert read(shown[0].payload, scan(shown[0].payload), Section.DELIVERY_ANNOTATIONS) in (None, {})
        queue.send(build(data=b"three"))
        assert body(await client.until(TRANSFER)) == b"three"
        await client.receiver("orders", handle=2, credit=5)
        taken = [await client.until(TRANSFER) for _ in range(3)]
        assert [body(one) for one in taken] == [b"one", b"two", b"three"]
        assert all(read(one.payload, scan(one.payload), Section.HEADER)[4] == 0 for one in taken)


async def test_a_queue_browser_of_jms_gets_copies_and_the_messages_stay(emulator: Emulator, dialect: Dialect) -> None:
    queue = emulator.namespace("primary").create_queue("orders")
    queue.send(build(data=b"one"))
    async with logged_in(emulator, dialect, "orders") as client:
        copies = ["orders", *[None] * 5, Symbol("copy")]
        source, target = Described(Ulong(SOURCE), copies), Described(Ulong(TARGET), ["here"])
        client.send(ATTACH, ["browse", Uint(1), True, *dialect.receive_modes, source, target])
        client.credit(5)
        shown = await client.until(TRANSFER)
        assert (body(shown), shown.field(4)) == (b"one", True)
    assert queue.counts().active == 1


@pytest.mark.law("jms")
@pytest.mark.parametrize("descriptor", [Symbol("apache.org:selector-filter:string"), Ulong(0x468C00000004)])
async def test_a_selector_of_jms_is_refused_and_not_left_out(
    emulator: Emulator, dialect: Dialect, descriptor: Any
) -> None:
    emulator.namespace("primary").create_queue("orders")
    async with logged_in(emulator, dialect, "orders") as client:
        client.attach(1, "orders", sends=False, filters={"jms-selector": Described(descriptor, "country = 'FR'")})
        refused = await client.until(DETACH)
        assert refused.error[0] == "amqp:not-implemented"


async def test_a_large_premium_message_is_received_on_a_link_without_a_largest_size(dialect: Dialect) -> None:
    async with Emulator([NamespaceConfig("big", Tier.PREMIUM)], seed=1) as emulator:
        description = QueueDescription(max_message_size_in_kilobytes=4096)
        queue = emulator.namespace("big").create_queue("orders", description)
        queue.send(build(data=bytes(2 * 1024 * 1024)))
        async with logged_in(emulator, dialect, "orders", "big") as client:
            attached = await client.receiver("orders", credit=1)
            assert attached.field(10) is None
            size = 0
            while True:
                frame = await client.until(TRANSFER)
                size += len(frame.payload)
                if not frame.field(5):
                    break
        assert size > 2 * 1024 * 1024


async def test_a_message_without_an_id_gets_one_from_the_broker(emulator: Emulator, dialect: Dialect) -> None:
    queue = emulator.namespace("primary").create_queue("orders")
    async with logged_in(emulator, dialect, "orders") as client:
        await client.sender("orders")
        client.transfer(1, build(data=b"nameless"))
        client.transfer(2, build(properties=["mine"], data=b"named"))
        await client.receiver("orders", credit=2)
        ids = []
        for _ in range(2):
            payload = (await client.until(TRANSFER)).payload
            ids.append(field(read(payload, scan(payload), Section.PROPERTIES), PropertyField.MESSAGE_ID))
    assert len(ids[0]) == 32
    assert ids[1] == "mine"
    assert queue.counts().active == 2


async def test_a_reason_to_dead_letter_keeps_its_type(emulator: Emulator, dialect: Dialect) -> None:
    queue = emulator.namespace("primary").create_queue("Orders")
    queue.send(build(data=b"bad"))
    async with logged_in(emulator, dialect, "Orders") as client:
        delivery = await taken(client, "Orders")
        reasons = {"DeadLetterReason": Uint(42), "DeadLetterErrorDescription": "why"}
        client.settle(delivery.field(1), None, rejected("com.microsoft:dead-letter", None, reasons))
        assert (await client.until(DISPOSITION)).field(4) == rejected()
        buried = await taken(client, "Orders/$DeadLetterQueue", handle=2)
    said = read(buried.payload, scan(buried.payload), Section.APPLICATION_PROPERTIES)
    assert same(said, reasons)
    assert (
        read(buried.payload, scan(buried.payload), Section.MESSAGE_ANNOTATIONS)["x-opt-deadletter-source"] == "orders"
    )


async def test_without_local_authentication_links_of_keys_go_and_no_key_is_taken(
    emulator: Emulator, dialect: Dialect
) -> None:
    namespace = emulator.namespace("primary")
    namespace.create_queue("orders")
    async with logged_in(emulator, dialect, "orders") as client:
        await client.sender("orders")
        namespace.access.allow_keys(False)
        assert (await client.until(DETACH)).error[0] == "amqp:unauthorized-access"
        client.send(DETACH, [Uint(20), True])
        client.send(DETACH, [Uint(21), True])
        key = namespace.auth_rules[ROOT_KEY_NAME].primary_key
        assert (await client.put_token("orders", ROOT_KEY_NAME, key, EXPIRES_AT))[0] == 401


@pytest.mark.parametrize("descriptor", [None, Symbol("com.microsoft:session-filter"), Ulong(0x137000000C)])
async def test_a_session_filter_is_answered_with_the_descriptor_it_was_asked_with(
    emulator: Emulator, dialect: Dialect, descriptor: Any
) -> None:
    emulator.namespace("primary").create_queue("orders", QueueDescription(requires_session=True))
    asked = "blue" if descriptor is None else Described(descriptor, "blue")
    async with logged_in(emulator, dialect, "orders") as client:
        client.attach(1, "orders", sends=False, filters={SESSION_FILTER: asked})
        granted = await client.until(ATTACH)
        assert granted.field(5).value[7] == {SESSION_FILTER: asked}
