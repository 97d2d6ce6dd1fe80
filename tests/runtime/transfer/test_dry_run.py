"""What a dry run asks of destinations, and what it does without the right to ask."""

import asyncio

from sbpair.core.errors import EntityNotFoundError, UnauthorizedError
from sbpair.core.transfer.destinations import DestinationSeen
from sbpair.runtime.transfer.dry_run import ask_destinations
from sbpair.runtime.transfer.sinks import NamespaceSink
from tests.fakes import FakeClock, FakeNamespace, virtual_time


@virtual_time
async def test_a_destination_that_only_a_sender_may_ask_tells_its_limit() -> None:
    namespace = FakeNamespace("contoso", FakeClock())
    namespace.add_queue("orders")
    sink, stop = NamespaceSink(namespace.messaging()), asyncio.Event()
    paths = ["orders", "gone"]
    orders, gone = await ask_destinations(paths, sink=sink, admin=namespace.admin(), stop=stop)
    assert (orders.path, orders.limit_bytes, orders.asked) == ("orders", namespace.max_message_bytes, True)
    assert orders.queue is not None
    assert isinstance(gone.error, EntityNotFoundError)
    namespace.fail("admin", UnauthorizedError("needs Manage"))
    for admin in (namespace.admin(), None):
        orders, gone = await ask_destinations(paths, sink=sink, admin=admin, stop=stop)
        assert orders == DestinationSeen("orders", namespace.max_message_bytes)
        assert (gone.path, type(gone.error)) == ("gone", EntityNotFoundError)
    stop.set()
    assert await ask_destinations(paths, sink=sink, admin=None, stop=stop) == []
    await sink.close()
