"""One port: AMQP, TLS, HTTP, HTTPS, WebSocket; down and up again."""

import asyncio
import socket
import ssl
from typing import Any

import aiohttp
import pytest

from sbpair.amqp.performatives import CLOSE, DISPOSITION, OPEN
from sbpair.engine.clock import ManualClock
from tests.engine.wire_client import seen


async def test_amqp_over_tls_is_told_apart(connect: Any) -> None:
    client = await connect(secure=True)
    await client.session()
    await client.sender("q")
    client.transfer(0, b"m")
    assert (await client.until(DISPOSITION)).field(1) == 0


async def test_http_and_https_are_told_apart(port: Any, tls: Any) -> None:
    context = ssl.create_default_context(cafile=tls.ca_path)
    async with aiohttp.ClientSession() as session:
        for scheme in ("http", "https"):
            async with session.get(f"{scheme}://localhost:{port.number}/x/y", ssl=context) as answer:
                assert await answer.text() == f"{scheme} /x/y"


@pytest.mark.parametrize("end", ["", "/"], ids=["as the others ask", "as .NET asks"])
@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_amqp_over_websocket(port: Any, tls: Any, scheme: str, service: Any, end: str) -> None:
    context = ssl.create_default_context(cafile=tls.ca_path)
    url = f"{scheme}://127.0.0.1:{port.number}/$servicebus/websocket{end}"
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, protocols=["AMQPWSB10"], ssl=context) as web_socket,
    ):
        assert web_socket.protocol == "AMQPWSB10"
        await web_socket.send_bytes(b"AMQP\x00\x01\x00\x00")
        assert await web_socket.receive_bytes() == b"AMQP\x00\x01\x00\x00"
        opened = b"\x00\x53\x10\xc0\x04\x01\xa1\x01c"
        await web_socket.send_bytes((len(opened) + 8).to_bytes(4) + b"\x02\x00\x00\x00" + opened)
        reply = await web_socket.receive_bytes()
        assert reply[8:11] == bytes((0, 0x53, OPEN))
        await web_socket.send_bytes(b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x18\x45")
        assert (await web_socket.receive_bytes())[8:11] == bytes((0, 0x53, CLOSE))
        assert (await web_socket.receive()).type is aiohttp.WSMsgType.CLOSE


async def test_a_plain_request_to_the_websocket_address_is_refused(port: Any) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port.number}/$servicebus/websocket") as answer,
    ):
        assert answer.status == 400


async def test_stop_refuses_and_start_listens_on_the_same_number(port: Any, connect: Any) -> None:
    number = port.number
    client = await connect()
    await client.session()
    await port.stop()
    assert await client.closed() == b""
    with pytest.raises(ConnectionRefusedError):
        await connect()
    await port.start()
    assert port.number == number
    await (await connect()).session()


async def test_faults_that_come_and_go_within_one_turn_leave_the_port_listening(
    port: Any, namespace: Any, connect: Any
) -> None:
    for _ in range(3):
        namespace.faults.remove(namespace.faults.add("dark"))
    await (await connect()).session()


async def test_a_client_that_had_not_spoken_yet_is_refused_as_well_when_it_gets_dark(
    namespace: Any, connect: Any
) -> None:
    client = await connect()
    await asyncio.sleep(0.01)
    namespace.faults.add("dark")
    client.raw(b"AMQP\x00\x01\x00\x00")
    with pytest.raises(ConnectionResetError):
        await client.closed()


async def test_a_client_that_says_nothing_does_not_hold_up_the_others(connect: Any) -> None:
    await connect()
    await (await connect()).session()


async def test_a_full_client_gets_no_more_until_it_reads(connect: Any, service: Any) -> None:
    service.stock["q"].extend([b"x" * 60_000] * 400)
    client = await connect()
    await client.session()
    await client.receiver("q", credit=1000)
    await seen(lambda: service.handlers[0].link.connection.write_paused)
    left = len(service.handlers[0].stock)
    assert left > 0
    assert service.handlers[0].link.credit == 0
    received = 0
    while received < 400:
        received += (await client.next()).payload == b"x" * 60_000
    assert not service.handlers[0].stock


def test_a_manual_clock_calls_in_order_also_what_is_arranged_meanwhile() -> None:
    clock, seen = ManualClock(0.0), []
    clock.call_at(2.0, lambda: seen.append(("b", clock.now())))
    cancelled = clock.call_at(1.5, lambda: seen.append(("never", 0.0)))
    clock.call_at(1.0, lambda: clock.call_at(3.0, lambda: seen.append(("c", clock.now()))))
    cancelled.cancel()
    clock.advance(5.0)
    assert seen == [("b", 2.0), ("c", 3.0)]
    assert clock.now() == 5.0


async def test_the_door_may_close_on_whoever_is_about_to_enter(port: Any) -> None:
    """A client whose connection is ready to be accepted in the very step of the loop in which the port goes dark."""
    trouble: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: trouble.append(context))
    faults = port.namespace.faults
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port.number)):
            await asyncio.sleep(0)
            faults.add("dark")
            await asyncio.sleep(0.01)
        faults.clear()
        await asyncio.sleep(0.01)
    assert trouble == []


@pytest.mark.skipif(not hasattr(socket, "TCP_MAXSEG"), reason="this system does not set the size of segments")
async def test_segments_fit_a_client_with_a_small_receive_buffer(port: Any) -> None:
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        client.connect(("127.0.0.1", port.number))
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= 1448
