"""The asynchronous drop-in client, over real sockets."""

import asyncio
import datetime
from collections.abc import Awaitable, Callable

import azure.servicebus.aio as sdk_aio
import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusMessage, exceptions

from sbpair.aio import ServiceBusClient, ServiceBusSender
from sbpair.clients.shared import BorrowedCredential
from sbpair.core.failover.machine import State
from sbpair.engine.faults import parse_text
from tests.clients.conftest import FAST, World, own_threads, state_of
from tests.waiting import LIMIT_SECONDS


def a_client(world: World, **more: object) -> ServiceBusClient:
    arguments: dict[str, object] = {"pair": world.pair(), "on_event": world.events.append, **FAST} | more
    return ServiceBusClient.from_connection_string(world.connection_string(), **arguments)  # type: ignore[arg-type]


async def until(condition: Callable[[], bool], seconds: float = LIMIT_SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


async def off_loop(work: Callable[[], object]) -> None:
    await asyncio.to_thread(work)


async def test_through_an_outage_and_back(world: World) -> None:
    async with a_client(world) as client, client.get_queue_sender("orders") as sender:
        assert isinstance(client, sdk_aio.ServiceBusClient)
        assert isinstance(sender, sdk_aio.ServiceBusSender)
        assert isinstance(sender, ServiceBusSender)
        await sender.send_messages(ServiceBusMessage("before"))
        assert own_threads() == []
        await off_loop(world.dark)
        await sender.send_messages(ServiceBusMessage("single"))
        await sender.send_messages([ServiceBusMessage("listed"), {"body": "as a dict"}])
        batch = await sender.create_message_batch()
        batch.add_message(ServiceBusMessage("batched"))
        await sender.send_messages(batch)
        async with client.get_queue_sender("orders") as late:
            await late.send_messages(ServiceBusMessage("late"))
        await off_loop(world.light)
        await until(lambda: state_of(client.state()) is State.HEALTHY)
        await sender.send_messages(ServiceBusMessage("after"))
    assert await asyncio.to_thread(world.bodies, "orders") == ["before", "after"]
    assert sorted(await asyncio.to_thread(world.backlog)) == ["as a dict", "batched", "late", "listed", "single"]


async def test_sends_side_by_side_are_all_diverted_and_the_loop_goes_on(world: World) -> None:
    async with a_client(world) as client, client.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        await off_loop(world.dark)
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        await asyncio.gather(*(sender.send_messages(ServiceBusMessage(str(number))) for number in range(20)))
        ticking.cancel()
        assert ticks > 1
    assert set(await asyncio.to_thread(world.backlog)) == {str(number) for number in range(20)}


async def test_a_cancelled_send_leaves_the_sender_usable(world: World) -> None:
    async with a_client(world) as client, client.get_queue_sender("orders") as sender:
        client.force_failover("orders")
        sending = asyncio.create_task(sender.send_messages(ServiceBusMessage("cancelled")))
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await sender.send_messages(ServiceBusMessage("sent"))
    assert "sent" in await asyncio.to_thread(world.backlog)


async def test_a_sender_that_was_closed_asks_nobody(world: World) -> None:
    async with a_client(world) as client:
        sender = client.get_queue_sender("orders")
        await sender.close()
        await off_loop(world.dark)
        with pytest.raises(ValueError, match="shutdown"):
            await sender.__aenter__()
        assert client.state().entities == ()


async def test_a_closed_client_opens_nothing_again_until_it_is_used_again(world: World) -> None:
    async with a_client(world) as client:
        pass
    with pytest.raises(ValueError, match="The client is closed"):
        client.force_failover("orders")
    with pytest.raises(ValueError, match="The client is closed"):
        await client.verify()
    async with client:
        assert (await client.verify()).ready


async def test_while_all_is_well_messages_are_scheduled_and_cancelled_by_their_numbers(world: World) -> None:
    later = datetime.datetime(2035, 1, 1, tzinfo=datetime.UTC)
    async with a_client(world) as client, client.get_queue_sender("orders") as sender:
        both = [ServiceBusMessage("dropped"), ServiceBusMessage("kept")]
        dropped, kept = await sender.schedule_messages(both, later)
        await sender.cancel_scheduled_messages(dropped)
        (found,) = await asyncio.to_thread(world.raw, "orders")
    assert (str(found), found.sequence_number, found.scheduled_enqueue_time_utc) == ("kept", kept, later)


async def test_a_list_is_diverted_within_its_time_where_the_primary_never_opened_a_link(world: World) -> None:
    async with a_client(world) as client:
        client.force_failover("orders")
        async with client.get_queue_sender("orders") as first:  # opens the way to the backlog, as in a busy application
            await first.send_messages(ServiceBusMessage("first"))
        client.fail_back("orders")
        sender = client.get_queue_sender("orders")
        world.emulator.faults("contoso").add("silent")
        async with asyncio.timeout(20):
            await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], timeout=8)
        world.emulator.faults("contoso").clear()
        await sender.close()
    assert await asyncio.to_thread(world.backlog) == ["first", "a", "b"]


async def test_a_message_that_was_scheduled_in_an_outage_cannot_be_cancelled(world: World) -> None:
    async with a_client(world) as client, client.get_queue_sender("orders") as sender:
        client.force_failover("orders")
        later = datetime.datetime(2035, 1, 1, tzinfo=datetime.UTC)
        numbers = await sender.schedule_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], later)
        assert numbers == [0, 0]
        with pytest.raises(exceptions.MessageNotFoundError, match="has no sequence number yet"):
            await sender.cancel_scheduled_messages(numbers)


async def test_both_sides_dark_raise_the_primarys_error_with_a_note(world: World) -> None:
    async with a_client(world) as client, client.get_queue_sender("orders") as sender:
        await off_loop(world.dark)
        await off_loop(lambda: world.emulator.stop("fabrikam"))
        with pytest.raises(exceptions.ServiceBusError) as raised:
            await sender.send_messages(ServiceBusMessage("nowhere"), timeout=3)
        assert "The backlog did not take the message either" in raised.value.__notes__[0]


def test_one_client_serves_one_event_loop_after_another_and_remembers_the_outage(world: World) -> None:
    client = a_client(world)

    async def send(body: str) -> None:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage(body))

    asyncio.run(send("one"))
    world.dark()
    asyncio.run(send("two"))
    assert state_of(client.state()) is State.FAILED_OVER
    asyncio.run(send("three"))
    asyncio.run(client.close())
    assert (world.bodies_after_return("orders"), sorted(world.backlog())) == (["one"], ["three", "two"])


class OwnCredential:
    """An asynchronous credential that, as azure-identity's, belongs to the loop it is first used on."""

    def __init__(self) -> None:
        self.loops: set[asyncio.AbstractEventLoop] = set()

    async def get_token(self, *scopes: str, **options: object) -> AccessToken:
        self.loops.add(asyncio.get_running_loop())
        return AccessToken("token", 2**31)


async def from_another_thread(work: Callable[[], Awaitable[object]]) -> object:
    async def run() -> object:
        return await work()

    return await asyncio.to_thread(lambda: asyncio.run(run()))


async def test_an_asynchronous_credential_is_asked_on_the_applications_loop_and_once() -> None:
    own = OwnCredential()
    borrowed = BorrowedCredential(own)
    borrowed.loop = asyncio.get_running_loop()
    for _ in range(2):
        token = await from_another_thread(lambda: borrowed.get_token("scope"))
        assert isinstance(token, AccessToken)
    assert own.loops == {asyncio.get_running_loop()}


async def test_without_a_loop_the_credential_says_so() -> None:
    with pytest.raises(RuntimeError, match="event loop of the credential has ended"):
        await BorrowedCredential(OwnCredential()).get_token("scope")


async def test_overlapping_sends_of_one_sender_come_back_after_each_outage(world: World) -> None:
    async with a_client(world, retry_total=1, retry_backoff_factor=0.05) as client:
        sender = client.get_queue_sender("orders")

        async def send(*bodies: str) -> list[BaseException | None]:
            sending = (sender.send_messages(ServiceBusMessage(body)) for body in bodies)
            return await asyncio.gather(*sending, return_exceptions=True)

        for outage in range(2):
            names = [f"{outage}-{number}" for number in range(20)]
            assert await send(*names) == [None] * 20
            await off_loop(world.dark)
            assert await send(*names) == [None] * 20
            await off_loop(world.light)
            await until(lambda: state_of(client.state()) is State.HEALTHY)
        assert await send(*names) == [None] * 20
    assert len(await asyncio.to_thread(world.bodies, "orders")) == 60
    assert len(await asyncio.to_thread(world.backlog)) == 40


async def test_a_send_that_is_cancelled_half_way_costs_the_next_one_nothing(world: World) -> None:
    async with a_client(world) as client, client.get_queue_sender("orders") as sender:
        for number in range(20):
            sending = asyncio.create_task(sender.send_messages(ServiceBusMessage(f"cancelled {number}" + "x" * 50_000)))
            for _ in range(number):
                await asyncio.sleep(0)
            sending.cancel()
            await asyncio.wait({sending})
            await sender.send_messages(ServiceBusMessage(f"sent {number}"))
    found = [body for body in await asyncio.to_thread(world.bodies, "orders") if body.startswith("sent")]
    assert found == [f"sent {number}" for number in range(20)]


async def test_whoever_waits_for_another_call_is_diverted_as_soon_as_the_entity_is(world: World) -> None:
    async with a_client(world) as client, client.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        world.emulator.faults("contoso").add(parse_text("silent"))
        first = asyncio.create_task(sender.send_messages(ServiceBusMessage("first"), timeout=30))
        await asyncio.sleep(0.2)
        second = asyncio.create_task(sender.send_messages(ServiceBusMessage("second"), timeout=30))
        await asyncio.sleep(0.2)
        await off_loop(lambda: client.force_failover("orders"))
        async with asyncio.timeout(10):
            await second
        assert not first.done()
        world.emulator.faults("contoso").clear()
        await first
    assert "second" in await asyncio.to_thread(world.backlog)


class GoneSession:
    """What is left of one whose socket is gone."""

    def __getattr__(self, name: str) -> object:
        raise OSError(f"{name} of a socket that is gone")


@pytest.mark.parametrize("kind", [object, GoneSession])
async def test_a_broken_link_fails_one_call_and_counts_as_a_lost_connection(world: World, kind: type) -> None:
    pair = world.pair(interval=60.0)
    async with a_client(world, pair=pair) as client, client.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("before"))
        sender._handler._link, sender._handler._session = None, kind()
        with pytest.raises(exceptions.ServiceBusConnectionError):
            await sender.send_messages(ServiceBusMessage("on no link"))
        assert state_of(client.state()) is State.SUSPECT
        await sender.send_messages(ServiceBusMessage("after"))
    assert await asyncio.to_thread(world.bodies, "orders") == ["before", "after"]
