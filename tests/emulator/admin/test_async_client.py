"""The asynchronous official client over its aiohttp transport."""

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import SqlRuleFilter

from .conftest import AdminServer


def client_of(server: AdminServer, connection_string: str | None = None) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        connection_string or server.connection_string(),
        transport=AioHttpTransport(connection_verify=server.ca_file),
        retry_total=0,
    )


async def test_the_asynchronous_client_manages_entities(server: AdminServer) -> None:
    async with client_of(server) as admin:
        queue = await admin.create_queue("a/b", max_delivery_count=3)
        queue.max_delivery_count = 4
        await admin.update_queue(queue)
        assert (await admin.get_queue("a/b")).max_delivery_count == 4
        assert (await admin.get_queue_runtime_properties("a/b")).total_message_count == 0
        assert [one.name async for one in admin.list_queues()] == ["a/b"]
        await admin.create_topic("t")
        await admin.create_subscription("t", "s")
        await admin.create_rule("t", "s", "r", filter=SqlRuleFilter("x = 1"))
        assert [one.name async for one in admin.list_rules("t", "s")] == ["$Default", "r"]
        assert (await admin.get_namespace_properties()).name == "primary"
        await admin.delete_queue("a/b")
        with pytest.raises(ResourceNotFoundError):
            await admin.get_queue("a/b")


async def test_the_asynchronous_client_lists_across_pages(server: AdminServer) -> None:
    names = [f"q{number:03}" for number in range(205)]
    server.run(lambda: [server.namespace.create_queue(name) for name in names])
    async with client_of(server) as admin:
        assert [one.name async for one in admin.list_queues()] == names


async def test_a_wrong_key_is_refused(server: AdminServer) -> None:
    async with client_of(server, server.connection_string(key="wrong")) as admin:
        with pytest.raises(HttpResponseError) as caught:
            await admin.create_queue("q")
        assert caught.value.status_code == 401
