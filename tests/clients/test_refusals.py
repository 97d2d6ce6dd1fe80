"""A namespace that refuses for good (a revoked key, a deleted namespace) counts as faulted, is announced, and is found
again by itself."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import azure.servicebus as sdk
import pytest
from azure.servicebus import ServiceBusMessage, exceptions

from sbpair import ServiceBusClient
from sbpair.clients.failover import sdk_error
from sbpair.core.errors import (
    AuthenticationFailedError,
    Category,
    InterruptedWorkError,
    InvalidNameError,
    MalformedMessageError,
    ServiceError,
)
from sbpair.core.failover.machine import State
from sbpair.core.pairing import expected_backlog_paths
from sbpair.emulator import EmulatorThread
from sbpair.events import FailedOver, SideFaulted, SideRestored
from tests.clients.conftest import World, own_threads, state_of, wait_until
from tests.interop.live_suite.running import TLS_NAMES, environment, public_connection_string

TRIES = {"retry_total": 3, "retry_backoff_factor": 0.01}
"""When a key is revoked the connection is cut; it is the SDK's next try that is told why."""
SHIM = Path(__file__).parents[1] / "interop" / "live_suite" / "shim"


def a_client(world: World, **more: object) -> ServiceBusClient:
    arguments: dict[str, object] = {"pair": world.pair(), "on_event": world.events.append, **TRIES} | more
    return ServiceBusClient.from_connection_string(world.connection_string(), **arguments)  # type: ignore[arg-type]


def of_side(world: World, kind: type, side: str) -> list[object]:
    return [event for event in world.of(kind) if event.side == side]  # type: ignore[attr-defined]


def test_a_revoked_key_of_the_primary_is_the_sdks_error_and_its_end_is_noticed_without_a_send(world: World) -> None:
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("before"))
        world.emulator.namespace("contoso").access.allow_keys(False)
        bare = sdk.ServiceBusClient.from_connection_string(world.connection_string(), retry_total=0)
        with bare, pytest.raises(exceptions.ServiceBusError) as expected:
            bare.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
        for _ in range(2):
            with pytest.raises(type(expected.value)) as raised:
                sender.send_messages(ServiceBusMessage("refused"))
            assert not getattr(raised.value, "__notes__", [])
        state = client.state()
        assert (state.primary, state.secondary) == ("faulted", "unknown")
        assert state_of(state) is State.HEALTHY, "a wrong key is no outage"
        world.emulator.namespace("contoso").access.allow_keys(True)
        wait_until(lambda: client.state().primary == "open")
        assert len(of_side(world, SideFaulted, "primary")) == len(of_side(world, SideRestored, "primary")) == 1
        sender.send_messages(ServiceBusMessage("after"))
    assert world.of(FailedOver) == []
    assert (world.bodies("orders"), world.backlog(), own_threads()) == (["before", "after"], [], [])


def test_a_send_that_the_primary_accepts_again_restores_it_too(world: World) -> None:
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        world.emulator.namespace("contoso").access.allow_keys(False)
        with pytest.raises(exceptions.ServiceBusError):
            sender.send_messages(ServiceBusMessage("refused"))
        world.emulator.namespace("contoso").access.allow_keys(True)
        sender.send_messages(ServiceBusMessage("after"))
        wait_until(lambda: len(of_side(world, SideRestored, "primary")) == 1)
    assert world.bodies("orders") == ["after"]


def test_a_revoked_key_of_the_secondary_is_told_at_once_with_the_primarys_error(world: World) -> None:
    with a_client(world) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("before"))
        world.dark()
        sender.send_messages(ServiceBusMessage("diverted"))
        world.emulator.namespace("fabrikam").access.allow_keys(False)

        def refused() -> bool:
            """The link that was open may fail in another way first."""
            with pytest.raises(exceptions.ServiceBusError) as raised:
                sender.send_messages(ServiceBusMessage("nowhere"), timeout=20)
            assert "The backlog did not take the message either" in raised.value.__notes__[0]
            return client.state().secondary == "faulted"

        wait_until(refused, seconds=90)
        world.emulator.namespace("fabrikam").access.allow_keys(True)
        wait_until(lambda: client.state().secondary == "open", seconds=90)
        assert len(of_side(world, SideFaulted, "secondary")) == len(of_side(world, SideRestored, "secondary")) == 1
        sender.send_messages(ServiceBusMessage("diverted again"))
    assert sorted(world.backlog()) == ["diverted", "diverted again"]


RAISED = {
    Category.TIMEOUT: exceptions.OperationTimeoutError,
    Category.CONNECTION: exceptions.ServiceBusConnectionError,
    Category.DETACHED: exceptions.ServiceBusConnectionError,
    Category.BUSY: exceptions.ServiceBusServerBusyError,
    Category.DISABLED: exceptions.MessagingEntityDisabledError,
    Category.QUOTA: exceptions.ServiceBusQuotaExceededError,
    Category.UNAUTHORIZED: exceptions.ServiceBusAuthorizationError,
    Category.NOT_FOUND: exceptions.MessagingEntityNotFoundError,
    Category.TOO_LARGE: exceptions.MessageSizeExceededError,
}


@pytest.mark.parametrize("category", Category)
def test_a_refusal_of_the_backlog_is_raised_as_the_sdk_raises_such_a_one(category: Category) -> None:
    """Where the primary said nothing, as after `force_failover`. What it said comes first, but for a message that no
    namespace would take."""
    refusal = ServiceError("refused")
    refusal.category = category  # type: ignore[misc]
    assert type(sdk_error(refusal, None)) is RAISED.get(category, exceptions.ServiceBusError)
    primarys = exceptions.OperationTimeoutError(message="of the primary")
    raised = sdk_error(refusal, primarys)
    if category in (Category.TOO_LARGE, Category.ARGUMENT):
        assert str(raised) == "refused"
    else:
        assert (type(raised), raised.__notes__) == (exceptions.OperationTimeoutError, ["refused"])
        assert not hasattr(primarys, "__notes__")


def test_what_is_no_answer_of_a_namespace_is_raised_as_what_it_is() -> None:
    """A message's own fault is a ValueError; a client that was closed meanwhile is not."""
    primarys = exceptions.OperationTimeoutError(message="of the primary")
    for error, kind in (
        (MalformedMessageError("x"), ValueError),
        (InvalidNameError("x"), ValueError),
        (InterruptedWorkError("x"), exceptions.ServiceBusError),
        (AuthenticationFailedError("x"), exceptions.ServiceBusAuthenticationError),
    ):
        assert type(sdk_error(error, None)) is kind
        assert type(sdk_error(error, primarys)) is (type(primarys) if isinstance(error, ServiceError) else kind)


def test_a_send_that_closing_the_client_ends_is_no_fault_of_its_message(world: World) -> None:
    with a_client(world) as client, client.get_queue_sender("orders") as sender, ThreadPoolExecutor(1) as pool:
        client.force_failover("orders")
        sender.send_messages(ServiceBusMessage("diverted"))
        world.emulator.faults("fabrikam").add("silent")
        sending = pool.submit(sender.send_messages, ServiceBusMessage("under way"), timeout=60)
        pairing = client._failover._pairing
        assert pairing is not None
        wait_until(lambda: len(pairing._in_flight) == 1)
        client._failover.call(pairing._in_flight.interrupt())  # as `close` does after ten seconds
        with pytest.raises(exceptions.ServiceBusError, match="may have been stored or not"):
            sending.result()


DELETED = """
import os, socket, sys, time
import live_suite_plugin
socket.getaddrinfo = live_suite_plugin.route

from azure.servicebus import ServiceBusMessage, exceptions
from sbpair import SendAvailabilityOptions, ServiceBusClient

events = []
client = ServiceBusClient.from_connection_string(
    os.environ["PRIMARY"], secondary=os.environ["SECONDARY"], retry_total=0,
    options=SendAvailabilityOptions(2, 0.0, False, 1.0), on_event=events.append,
)

def until(condition):
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline, client.state()
        time.sleep(0.1)

def told():
    found = [event for event in events if type(event).__name__ in ("SideFaulted", "SideRestored")]
    return [" ".join([type(one).__name__, one.side, getattr(one, "error_code", "")]).rstrip() for one in found]

with client, client.get_queue_sender("orders") as sender:
    sender.send_messages(ServiceBusMessage("before"))
    client.force_failover("orders")
    # The namespace is gone, and its name with it.
    port = live_suite_plugin._ports.pop("fabrikam")
    started = time.monotonic()
    try:
        sender.send_messages(ServiceBusMessage("nowhere"))
    except exceptions.ServiceBusConnectionError as error:
        print("raised", time.monotonic() - started < 45)
    print(client.state().secondary, told())
    live_suite_plugin._ports["fabrikam"] = port
    until(lambda: client.state().secondary == "open")
    print(client.state().secondary, told())
    sender.send_messages(ServiceBusMessage("diverted"))
"""


def test_a_deleted_secondary_is_faulted_and_found_again_when_it_is_back() -> None:
    """Its process resolves names as the SDK's live suite does, so that a name can cease to exist."""
    with EmulatorThread(["contoso", "fabrikam"], tls_names=TLS_NAMES) as emulator:
        emulator.namespace("contoso").create_queue("orders")
        paths = expected_backlog_paths("contoso", 2)
        for path in paths:
            emulator.namespace("fabrikam").create_queue(path)
        variables = {**environment(emulator, emulator, "contoso", SHIM.parent)}
        variables["PYTHONPATH"] = os.pathsep.join((str(SHIM), str(Path.cwd())))
        variables["PRIMARY"] = public_connection_string(emulator, "contoso")
        variables["SECONDARY"] = public_connection_string(emulator, "fabrikam")
        done = subprocess.run(
            [sys.executable, "-c", DELETED], env=os.environ | variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.splitlines() == [
            "raised True",
            "faulted ['SideFaulted secondary host-not-found']",
            "open ['SideFaulted secondary host-not-found', 'SideRestored secondary']",
        ]
        assert [body for path in paths for body in World(emulator).bodies(path, "fabrikam")] == ["diverted"]
