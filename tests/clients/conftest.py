"""Two embedded namespaces, the drop-in clients over real sockets, and what became of their messages."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import azure.servicebus as sdk
import pytest

from sbpair.azure.messaging import AzureMessaging
from sbpair.clients.failover import LOOP_NAME
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.failover.machine import State
from sbpair.core.pairing import Pair, SendAvailabilityOptions
from sbpair.emulator import Emulator, EmulatorThread
from sbpair.emulator.namespace import new_auth_rule
from sbpair.emulator.testing import stored_message
from sbpair.events import Event
from sbpair.runtime.clock import LoopClock, Quiet
from sbpair.runtime.failover.pairing import PairingState
from sbpair.runtime.transfer.drain import DrainJob, TransferRequest, drain
from tests.waiting import LIMIT_SECONDS

QUEUES = 3
FAST = {"retry_total": 0}
"""The SDK's retries take 11 seconds; tests that are not about them do without."""


@dataclass
class World:
    emulator: EmulatorThread
    events: list[Event] = field(default_factory=list)

    def pair(self, *, interval: float = 0.0, hold_sessions: bool = False, verify: str = "off") -> Pair:
        options = SendAvailabilityOptions(QUEUES, interval, False, 1.0, hold_sessions=hold_sessions, verify=verify)
        return Pair("embedded", self._access("contoso"), self._access("fabrikam"), options)

    def _access(self, name: str) -> NamespaceAccess:
        text = Secret(self.connection_string(name))
        return NamespaceAccess(name, host_of(text.reveal()), AuthMethod.CONNECTION_STRING, text)

    def connection_string(self, name: str = "contoso") -> str:
        return self.emulator.connection_string(name)

    def other_key(self) -> str:
        """Of the primary, signed with a key of its own."""
        namespace = self.emulator.namespace("contoso")
        namespace.set_auth_rule(new_auth_rule("other", {"Send"}))
        return self.emulator.connection_string("contoso", "other")

    def dark(self) -> None:
        """The primary refuses connections and cuts those it has."""
        self.emulator.stop("contoso")

    def light(self) -> None:
        self.emulator.start("contoso")

    def bodies(self, entity: str, name: str = "contoso") -> list[str]:
        """What is in an entity, in its order. Of the namespace itself: the SDK takes a second to close a receiver."""

        def read(_: Emulator) -> list[str]:
            queue = namespace.get_queue(entity)
            assert queue is not None
            return [stored_message(one).text for one in queue.main.log]

        namespace = self.emulator.call(lambda emulator: emulator.namespace(name))
        return self.emulator.call(read)

    def bodies_after_return(self, entity: str) -> list[str]:
        """The same of a primary that was dark."""
        self.light()
        return self.bodies(entity)

    def raw(self, entity: str, name: str = "contoso") -> list[sdk.ServiceBusReceivedMessage]:
        client = sdk.ServiceBusClient.from_connection_string(self.connection_string(name))
        with client, client.get_queue_receiver(entity) as receiver:
            return receiver.peek_messages(250)

    def backlog(self) -> list[str]:
        """What is in the backlog queues."""
        return [body for queue in self.backlog_by_queue() for body in queue]

    def backlog_by_queue(self) -> list[list[str]]:
        return [self.bodies(backlog_queue(index), "fabrikam") for index in range(QUEUES)]

    def drain(self) -> int:
        """Bring the backlog back; the number of messages."""
        return asyncio.run(self._drain())

    async def _drain(self) -> int:
        pair = self.pair()
        primary, secondary = AzureMessaging(pair.primary), AzureMessaging(pair.secondary)
        report = await drain(
            DrainJob(
                TransferRequest(pair.backlog_paths()),
                secondary=secondary,
                primary=primary,
                clock=LoopClock(),
                observer=Quiet(),
                stop=asyncio.Event(),
            )
        )
        await primary.close()
        await secondary.close()
        return report.forwarded

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


def backlog_queue(index: int) -> str:
    return f"contoso/x-servicebus-transfer/{index}"


def own_threads() -> list[str]:
    """The thread of the drop-in clients (the SDK's senders have one each, to keep their connection alive)."""
    return [thread.name for thread in threading.enumerate() if thread.name == LOOP_NAME]


def wait_until(condition: Callable[[], bool], seconds: float = LIMIT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def state_of(state: PairingState, entity: str = "orders") -> State:
    return next(one.state for one in state.entities if one.entity == entity)


@pytest.fixture
def world() -> Iterator[World]:
    with EmulatorThread(["contoso", "fabrikam"]) as emulator:
        primary, secondary = emulator.namespace("contoso"), emulator.namespace("fabrikam")
        for entity in ("orders", "invoices"):
            primary.create_queue(entity)
        for index in range(QUEUES):
            secondary.create_queue(backlog_queue(index))
        yield World(emulator)
