"""One port: AMQP, TLS, HTTP, HTTPS, WebSocket; down and up again."""

import asyncio
import socket
import ssl
from typing import Any

import aiohttp
import pytest

from sbpair.amqp.performatives import CLOSE, DISPOSITION, OPEN
from sbpair.engine.clock import AdvancingClock, ManualClock, Timer
from tests.engine.wire_client import seen
from tests.waiting import LIMIT_SECONDS


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


async def test_a_manual_clock_calls_in_order_also_what_is_arranged_meanwhile() -> None:
    clock = ManualClock(0.0)
    seen: list[tuple[str, float]] = []
    clock.call_at(2.0, lambda: seen.append(("b", clock.now())))
    cancelled = clock.call_at(1.5, lambda: seen.append(("never", 0.0)))
    clock.call_at(1.0, lambda: clock.call_at(3.0, lambda: seen.append(("c", clock.now()))))
    clock.call_at(4.0, lambda: clock.call_at(0.5, lambda: seen.append(("late", clock.now()))))
    cancelled.cancel()
    clock.advance(5.0)
    assert seen == [("b", 2.0), ("c", 3.0), ("late", 4.0)]
    assert clock.now() == 5.0
    clock.call_at(6.0, lambda: clock.advance(10.0))
    clock.advance(2.0)
    assert clock.now() == 16.0, "time is not turned back"
    with pytest.raises(ValueError, match="turned back"):
        clock.advance(-1.0)
    assert clock.now() == 16.0


async def test_a_clock_that_is_moved_on_calls_in_order_at_each_ones_instant() -> None:
    clock = AdvancingClock()
    began = clock.now()
    made: list[tuple[str, float]] = []

    def call(name: str, after_seconds: float) -> Timer:
        return clock.call_at(began + after_seconds, lambda: made.append((name, clock.now())))

    call("c", 300.0)
    call("b", 200.0)
    clock.call_at(began + 250.0, lambda: call("late", 100.0))
    call("never", 100.0).cancel()
    call("at once", -10.0)
    clock.advance(400.0)
    clock.advance(0.0)
    assert [name for name, _ in made] == ["at once", "b", "late", "c"]
    at_once, *instants = (instant for _, instant in made)
    assert began <= at_once < began + 200.0, "nothing is made before it was arranged"
    assert instants == [began + 200.0, began + 250.0, began + 300.0]
    assert clock.now() >= began + 400.0 > clock.client_now()
    with pytest.raises(ValueError, match="turned back"):
        clock.advance(-1.0)
    clock.close()


async def test_a_clock_that_can_be_moved_on_goes_on_by_itself() -> None:
    """Also where the next call is one that was arranged later, or before one that was given up."""
    clock, rung = AdvancingClock(), asyncio.Event()
    clock.call_at(clock.now() + 3600.05, lambda: rung.set())
    clock.call_at(clock.now() + 0.02, rung.set)
    clock.call_at(clock.now() + 0.01, lambda: None).cancel()
    async with asyncio.timeout(LIMIT_SECONDS):
        await rung.wait()
        rung.clear()
        clock.advance(3600.0)
        await rung.wait()
    clock.call_at(clock.now() + 0.01, rung.clear)
    clock.close()
    await asyncio.sleep(0.05)
    assert rung.is_set(), "nothing is called any more"


async def test_a_port_that_stops_waits_for_no_client_that_has_said_nothing(port: Any) -> None:
    port.patience_seconds = 10 * LIMIT_SECONDS
    with socket.create_connection(("127.0.0.1", port.number)) as client:
        await seen(lambda: len(port._tasks) > 1)
        async with asyncio.timeout(60):
            await port.stop()
        assert client.recv(1) == b""


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
