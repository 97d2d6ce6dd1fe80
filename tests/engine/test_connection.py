"""Headers, SASL, open, sessions, heartbeats, and what becomes of nonsense."""

from typing import Any

import pytest

from sbpair.amqp.performatives import ATTACH, BEGIN, CLOSE, DETACH, END, OPEN
from sbpair.amqp.types import Uint


async def test_sasl_offers_what_the_service_offers_and_lets_anonymous_in(connect: Any) -> None:
    client = await connect()
    outcome = await client.login()
    assert outcome.field(0) == 0
    reply = await client.open()
    assert reply.code == OPEN
    assert reply.field(2) == 65536
    assert reply.field(4) == 240_000


async def test_sasl_plain_takes_a_key_of_the_namespace_only(connect: Any, root_key: str) -> None:
    good, bad = await connect(), await connect()
    assert (await good.login("PLAIN", b"\x00root\x00" + root_key.encode())).field(0) == 0
    assert (await bad.login("PLAIN", b"\x00root\x00wrong")).field(0) == 1
    assert await bad.closed() == b""


async def test_an_unknown_protocol_is_answered_with_the_one_we_speak(connect: Any) -> None:
    client = await connect()
    client.raw(b"AMQP\x02\x01\x00\x00")
    assert await client.closed() == b"AMQP\x03\x01\x00\x00"


async def test_everything_pipelined_in_one_piece_is_understood(connect: Any) -> None:
    client = await connect()
    client.raw(b"AMQP\x00\x01\x00\x00")
    client.send(OPEN, ["me", "host"])
    client.send(BEGIN, [None, Uint(0), Uint(10), Uint(10)])
    client.attach(3, "amqps://localhost:1/Orders?x=1", sends=True)
    assert await client.header() == b"AMQP\x00\x01\x00\x00"
    codes = [(await client.next()).code for _ in range(3)]
    assert codes == [OPEN, BEGIN, ATTACH]


async def test_frames_on_ended_or_unknown_channels_are_ignored(connect: Any) -> None:
    client = await connect()
    await client.session()
    client.send(END, [])
    client.send(DETACH, [Uint(4), True])
    assert (await client.next()).code == END
    client.send(DETACH, [Uint(4), True], channel=9)
    assert (await client.begin(channel=1)).code == BEGIN


async def test_a_handle_never_attached_ends_the_session_not_the_connection(connect: Any) -> None:
    client = await connect()
    await client.session()
    client.transfer(0, b"x", handle=77)
    ended = await client.next()
    assert (ended.code, ended.error[0]) == (END, "amqp:session:unattached-handle")
    assert (await client.begin()).code == BEGIN


async def test_a_handle_in_use_ends_the_session(connect: Any) -> None:
    client = await connect()
    await client.session()
    await client.sender("q", 0)
    client.attach(0, "q", sends=True)
    assert (await client.until(END)).error[0] == "amqp:session:handle-in-use"


async def test_close_is_answered_and_the_handlers_are_told(connect: Any, service: Any) -> None:
    client = await connect()
    await client.session()
    await client.sender("q", 0)
    client.send(CLOSE, [])
    assert (await client.next()).code == CLOSE
    assert await client.closed() == b""
    assert service.handlers[0].detached == [(False, False)]


async def test_a_lost_connection_is_told_as_lost(connect: Any, service: Any, port: Any) -> None:
    client = await connect()
    await client.session()
    await client.sender("q", 0)
    port.cut_all()
    assert await client.closed() == b""
    assert service.handlers[0].detached == [(False, True)]


@pytest.mark.parametrize(
    ("data", "condition"),
    [
        (b"\x00\x00\x00\x04\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x10\x01\x00\x00\x00" + b"\x00" * 8, "amqp:connection:framing-error"),
        (b"\x7f\xff\xff\xff\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (b"\x00\x00\x00\x09\x02\x01\x00\x00\x40", "amqp:decode-error"),
        (b"\x00\x00\x00\x0b\x02\x00\x00\x00\x00\x53\xff", "amqp:decode-error"),
        (b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x14\x45", "amqp:decode-error"),
    ],
)
async def test_nonsense_closes_the_connection_with_the_right_condition(
    connect: Any, data: bytes, condition: str
) -> None:
    client = await connect()
    await client.session()
    client.raw(data)
    closed = await client.until(CLOSE)
    assert closed.error[0] == condition
    assert await client.closed() == b""


async def test_heartbeats_come_at_half_the_time_the_client_asked_for(connect: Any) -> None:
    client = await connect()
    await client.login()
    await client.open(idle_ms=100)
    heard = [await client.reader.readexactly(8) for _ in range(3)]
    assert heard == [b"\x00\x00\x00\x08\x02\x00\x00\x00"] * 3


async def test_frames_before_open_are_refused(connect: Any) -> None:
    client = await connect()
    client.raw(b"AMQP\x00\x01\x00\x00")
    client.send(BEGIN, [None, Uint(0), Uint(10), Uint(10)])
    await client.header()
    assert await client.closed() == b""


async def test_bytes_may_arrive_one_by_one(connect: Any, service: Any) -> None:
    client = await connect()
    await client.session()
    await client.sender("q", 0)
    before = client.writer.write
    sent: list[bytes] = []
    client.writer.write = sent.append
    client.transfer(0, b"payload")
    for octet in b"".join(sent):
        before(bytes((octet,)))
        await client.writer.drain()
    await client.next()
    assert service.handlers[0].deliveries[0].payload == b"payload"
