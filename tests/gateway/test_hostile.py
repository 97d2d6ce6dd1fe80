"""Clients that mean no good: they are cut or refused, and everybody else is served on."""

import socket
import struct
from collections.abc import Iterator

import azure.servicebus as sdk
import pytest

from sbpair.amqp.types import Described, Symbol, Ubyte, Uint, Ulong
from sbpair.engine.performatives import ATTACH, BEGIN, OPEN, SASL_INIT, SOURCE, TARGET, TRANSFER, perform
from tests.clients.conftest import World
from tests.gateway.conftest import KEYS, Running
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
