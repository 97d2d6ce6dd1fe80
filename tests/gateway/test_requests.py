"""Requests to `$management` while the primary is away: messages are scheduled, all else has to be tried again."""

from datetime import UTC, datetime, timedelta

import azure.servicebus as sdk
import pytest
from azure.servicebus.exceptions import MessageNotFoundError, ServiceBusError

from sbpair.core.failover.machine import State
from tests.clients.conftest import World, wait_until
from tests.gateway.conftest import Running
from tests.gateway.test_diverting import state_of
from tests.gateway.test_passing import client_of

LATER = datetime.now(UTC) + timedelta(hours=1)


def test_messages_are_scheduled_in_the_backlog(world: World, gateway: Running) -> None:
    """Numbers of those that went there are 0, and such a message cannot be cancelled; the others can, afterwards."""
    with client_of(gateway, retry_total=2) as client, client.get_queue_sender("orders") as sender:
        (early,) = sender.schedule_messages(sdk.ServiceBusMessage("early"), LATER)
        assert early > 0
        world.dark()
        sender.send_messages(sdk.ServiceBusMessage("now"))
        assert sender.schedule_messages([sdk.ServiceBusMessage("a"), sdk.ServiceBusMessage("b")], LATER) == [0, 0]
        with pytest.raises(MessageNotFoundError):
            sender.cancel_scheduled_messages(0)
        with pytest.raises(ServiceBusError):
            sender.cancel_scheduled_messages(early)
        world.light()
        wait_until(lambda: state_of(gateway) is State.HEALTHY)
        sender.cancel_scheduled_messages(early)
        (late,) = sender.schedule_messages(sdk.ServiceBusMessage("late"), LATER)
        assert late > 0
        sender.cancel_scheduled_messages(late)
    assert sorted(world.backlog()) == ["a", "b", "now"]
    world.drain()
    assert sorted(world.bodies("orders")) == ["a", "b", "now"]
    scheduled = {str(one): one.scheduled_enqueue_time_utc for one in world.raw("orders")}
    assert scheduled["now"] is None
    assert scheduled["a"] is not None
    assert abs((scheduled["a"] - LATER).total_seconds()) < 1


def test_a_program_that_only_schedules_is_diverted_too(world: World, gateway: Running) -> None:
    world.dark()
    with client_of(gateway, retry_total=0) as client, client.get_queue_sender("orders") as sender:
        assert sender.schedule_messages(sdk.ServiceBusMessage("a"), LATER) == [0]
        page = {b"from-sequence-number": 1, b"message-count": 1}
        status = sender._mgmt_request_response_with_retry(b"com.microsoft:peek-message", page, lambda *a, **_: a[0])
        assert status == 408
    assert world.backlog() == ["a"]


def test_requests_need_their_right(world: World, gateway: Running) -> None:
    """A key that sends may schedule, and reads nothing."""
    world.dark()
    with client_of(gateway, "sender", retry_total=0) as client, client.get_queue_sender("orders") as sender:
        assert sender.schedule_messages(sdk.ServiceBusMessage("a"), LATER) == [0]
    with client_of(gateway, "listener", retry_total=0) as client, pytest.raises(ServiceBusError):
        client.get_queue_sender("orders").__enter__()
    assert world.backlog() == ["a"]
