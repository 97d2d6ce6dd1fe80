"""Clients that mean no good: they are cut or refused, and everybody else is served on."""

import socket
import struct
from collections.abc import Iterator

import azure.servicebus as sdk
import pytest

from sbpair.amqp.performatives import ATTACH, BEGIN, OPEN, SASL_INIT, SOURCE, TARGET, TRANSFER, perform
from sbpair.amqp.sections import build
from sbpair.amqp.types import Described, Symbol, Ubyte, Uint, Ulong
from sbpair.core.failover.machine import State
from sbpair.gateway.door import DoorConnection
from sbpair.gateway.upward import REMEMBERED_BYTES
from tests.clients.conftest import World, wait_until
from tests.gateway.conftest import KEYS, Running
from tests.gateway.test_diverting import state_of
from tests.gateway.test_passing import client_of

SASL, AMQP = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"
SECONDS = 30.0


def frame(body: bytes, payload: bytes = b"", kind: int = 0, channel: int = 0) -> bytes:
    return struct.pack(">IBBH", 8 + len(body) + len(payload), 2, kind, channel) + body + payload


def attach(entity: str, *, handle: int = 0, receiver: bool = False) -> bytes:
    ends = Described(Ulong(SOURCE), [entity]), Described(Ulong(TARGET), [entity])
    return perform(ATTACH, [f"link{handle}", Uint(handle), receiver, Ubyte(2), Ubyte(0), *ends, None, None, Uint(0)])


def opened(gateway: Running, login: str = "ANONYMOUS", response: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", gateway.gateway.port.number), timeout=SECONDS)
    client.sendall(SASL + frame(perform(SASL_INIT, [Symbol(login), response]), kind=1) + AMQP)
    client.sendall(frame(perform(OPEN, ["hostile", "127.0.0.1"])))
    client.sendall(frame(perform(BEGIN, [None, Uint(0), Uint(5000), Uint(5000)])))
    return client


def signed_in(gateway: Running) -> socket.socket:
    return opened(gateway, "PLAIN", f"\0{KEYS[0].name}\0{KEYS[0].primary_key}".encode())


def everything(client: socket.socket) -> bytes:
    """All that comes until the other side ends the connection."""
    found = b""
    try:
        while data := client.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    return found


@pytest.fixture(autouse=True)
def others_are_served(world: World, gateway: Running) -> Iterator[None]:
    yield
    with client_of(gateway, retry_total=0) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(sdk.ServiceBusMessage("still served"))
    assert world.bodies("orders")[-1] == "still served"


@pytest.mark.parametrize(
    "noise",
    [
        AMQP + b"\xff" * 64,
        SASL + b"\x00" * 64,
        SASL + struct.pack(">IBBH", 0x7FFFFFFF, 2, 1, 0),
        SASL + frame(perform(SASL_INIT, [Symbol("PLAIN"), b"\0app\0wrong"]), kind=1),
        AMQP + frame(perform(TRANSFER, [Uint(0), Uint(0)]), b"x"),
    ],
)
def test_noise_is_cut(gateway: Running, noise: bytes) -> None:
    with socket.create_connection(("127.0.0.1", gateway.gateway.port.number), timeout=SECONDS) as client:
        client.sendall(noise)
        client.shutdown(socket.SHUT_WR)
        everything(client)


def test_without_a_token_nothing_is_attached(gateway: Running) -> None:
    with opened(gateway) as client:
        client.sendall(frame(attach("orders")))
        found = b""
        while b"amqp:unauthorized-access" not in found:
            data = client.recv(65536)
            assert data
            found += data


def test_a_transfer_that_is_cut_short_ends_the_connection(gateway: Running) -> None:
    """Behind the quick reading of transfers the engine's rules hold."""
    with signed_in(gateway) as client:
        client.sendall(frame(attach("orders")))
        found = b""
        while b"link0" not in found:
            found += client.recv(65536)
        client.sendall(frame(b"\x00\x53\x14\xc0\x04\x05\x52"))
        assert b"amqp:" in everything(client)


def test_links_have_a_bound(gateway: Running) -> None:
    with opened(gateway) as client:
        client.sendall(b"".join(frame(attach("$cbs", handle=handle)) for handle in range(70)))
        client.shutdown(socket.SHUT_WR)
        assert b"resource-limit-exceeded" in everything(client)


def test_the_backlog_queues_are_no_targets(gateway: Running) -> None:
    with signed_in(gateway) as client:
        client.sendall(frame(attach("contoso/x-servicebus-transfer/0")))
        found = b""
        while b"amqp:not-allowed" not in found:
            data = client.recv(65536)
            assert data
            found += data


def test_a_message_without_end_has_a_bound(gateway: Running) -> None:
    """Frames of one message that never ends: not remembered beyond the bound, refused by the primary."""
    with signed_in(gateway) as client:
        client.sendall(frame(attach("orders")))
        found = b""
        while b"link0" not in found:
            found += client.recv(65536)
        part = perform(TRANSFER, [Uint(0), Uint(0), b"tag", Uint(0), False, True])
        try:
            for _ in range(400):
                client.sendall(frame(part, b"\0" * 60000))
        except (ConnectionError, TimeoutError):
            return
    assert gateway.gateway.port.memory.used_bytes < 64 * 1024 * 1024


def test_a_message_too_large_to_be_remembered_is_refused_when_the_primary_goes(world: World, gateway: Running) -> None:
    """Half-way, and once; its other frames are dropped, and the link goes on. The rest of one that is remembered is
    awaited."""
    with signed_in(gateway) as client:
        client.sendall(frame(attach("orders")))
        found = b""
        while b"link0" not in found:
            found += client.recv(65536)

        def send(number: int | None, payload: bytes, *, more: bool) -> None:
            tag = None if number is None else b"tag"
            part = [Uint(0), None if number is None else Uint(number), tag, Uint(0), False, more]
            client.sendall(frame(perform(TRANSFER, part), payload))

        def answered() -> bytes:
            found = b""
            while b"\x00\x53\x15" not in found:
                data = client.recv(65536)
                assert data
                found += data
            return found

        for number in range(REMEMBERED_BYTES // 60_000 + 2):
            send(None if number else 0, b"\0" * 60_000, more=True)
        wait_until(lambda: gateway.call(lambda: not remembered(gateway)))
        world.dark()
        assert b"too large to be kept" in answered()
        send(None, b"\0" * 60_000, more=True)
        send(None, b"end", more=False)
        send(1, build(data=[b"small"]), more=False)
        assert b"too large" not in answered()
    assert world.backlog() == ["small"]
    world.light()
    wait_until(lambda: state_of(gateway) is State.HEALTHY)


def remembered(gateway: Running) -> int:
    """What is remembered of the connections; more than nothing until there is too much."""
    doors = gateway.gateway.port.connections
    sizes = [door.remembered_bytes for door in doors if isinstance(door, DoorConnection) and not door.is_settled]
    return sum(sizes) if sizes else 1


def test_a_client_that_goes_leaves_nothing_at_the_primary(world: World, gateway: Running) -> None:
    """Neither its link nor the gateway's connection for it, of which each watches the keys there."""
    namespace = world.emulator.namespace("contoso")
    queue = namespace.get_queue("orders")
    assert queue is not None
    before = len(namespace.key_watchers)
    with signed_in(gateway) as client:
        client.sendall(frame(attach("orders")))
        wait_until(lambda: len(queue.links) == 1)
        assert len(namespace.key_watchers) > before
    wait_until(lambda: (len(queue.links), len(namespace.key_watchers)) == (0, before))
