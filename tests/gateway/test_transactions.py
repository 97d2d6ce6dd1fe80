"""Transactions: with the primary they pass; without it those that only send are kept until their commit."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import azure.servicebus as sdk
import pytest

from sbpair.amqp.frames import read_header
from sbpair.amqp.performatives import (
    ACCEPTED,
    ATTACH,
    COORDINATOR,
    DECLARE,
    DECLARED,
    DETACH,
    DISCHARGE,
    DISPOSITION,
    FLOW,
    REJECTED,
    SOURCE,
    TRANSACTIONAL_STATE,
    TRANSFER,
    Fields,
    code_of,
    perform,
    read_performative,
)
from sbpair.amqp.sections import build
from sbpair.amqp.types import Array, Described, Long, Symbol, Timestamp, Uint, Ulong
from sbpair.engine.link import DECLARE_SECONDS
from sbpair.gateway.door import DoorConnection
from sbpair.gateway.keys import GatewayKey
from sbpair.gateway.served import MAX_TRANSACTION_MESSAGES
from tests.clients.conftest import World, wait_until
from tests.gateway.conftest import KEYS, Running
from tests.gateway.test_hostile import AMQP, SASL, attach, frame, opened

LATER = Timestamp(int((time.time() + 3600) * 1000))


class Conversation:
    """A client that opens a link to the coordinator, and waits for each answer."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._buffer = b""
        self._next = 0
        for header in (SASL, None, None, AMQP):  # the login's answers
            self._take(8) if header else self._frame()
        target = Described(Ulong(COORDINATOR), [None])
        fields = ["txn", Uint(1), False, None, None, Described(Ulong(SOURCE), ["me"]), target, None, None, Uint(0)]
        self.send(perform(ATTACH, fields))
        self.until(ATTACH)

    def send(self, body: bytes, payload: bytes = b"") -> None:
        self._client.sendall(frame(body, payload))

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = self._client.recv(65536)
            assert data
            self._buffer += data
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def _frame(self) -> tuple[int, list[Any]]:
        head = self._take(8)
        size, _, _, _ = read_header(head, 0, 1 << 20)
        body = self._take(size - 8)
        return read_performative(body)[:2] if body else (0, [])

    def until(self, code: int) -> list[Any]:
        while True:
            found, fields = self._frame()
            if found == code:
                return fields

    def transfer(self, handle: int, payload: bytes, state: Described | None = None) -> Described:
        """Send a message; its outcome."""
        number, self._next = self._next, self._next + 1
        tag = number.to_bytes(4)
        self.send(perform(TRANSFER, [Uint(handle), Uint(number), tag, Uint(0), False, False, None, state]), payload)
        fields = Fields(self.until(DISPOSITION))
        assert fields.required_number(1) == number
        outcome = fields.get(4)
        assert isinstance(outcome, Described)
        return outcome

    def declare(self) -> bytes:
        began = time.perf_counter()
        outcome = self.transfer(1, build(value=Described(Ulong(DECLARE), [None])))
        assert time.perf_counter() - began >= DECLARE_SECONDS, ".NET loses an answer that comes sooner"
        assert code_of(outcome.descriptor) == DECLARED
        number = outcome.value[0]
        assert isinstance(number, bytes)
        return number

    def discharge(self, number: bytes, *, fail: bool = False) -> int | None:
        outcome = self.transfer(1, build(value=Described(Ulong(DISCHARGE), [number, fail])))
        return code_of(outcome.descriptor)

    def within(self, number: bytes, body: str, handle: int = 0) -> int | None:
        outcome = self.transfer(handle, build(data=[body.encode()]), Described(Ulong(TRANSACTIONAL_STATE), [number]))
        inner = outcome.value[1] if code_of(outcome.descriptor) == TRANSACTIONAL_STATE else outcome
        return code_of(inner.descriptor)


@contextmanager
def talking(gateway: Running, *entities: str, key: GatewayKey = KEYS[0]) -> Iterator[Conversation]:
    """A client with links that send to these entities: with the handles 0, 2, 4 and so on."""
    with opened(gateway, "PLAIN", f"\0{key.name}\0{key.primary_key}".encode()) as client:
        talk = Conversation(client)
        for place, entity in enumerate(entities):
            talk.send(attach(entity, handle=2 * place))
            talk.until(ATTACH)
        yield talk


def fail_over(world: World, gateway: Running, *entities: str) -> None:
    world.dark()
    for entity in entities:
        gateway.call(partial(gateway.gateway.house.pairing.force_failover, entity))


@pytest.mark.parametrize("dark", [False, True])
def test_a_commit_sends_and_a_rollback_does_not(world: World, gateway: Running, dark: bool) -> None:
    if dark:
        fail_over(world, gateway, "orders")
    with talking(gateway, "orders") as talk:
        kept, dropped = talk.declare(), talk.declare()
        assert talk.within(kept, "a") == ACCEPTED
        assert talk.within(dropped, "x") == ACCEPTED
        assert talk.within(kept, "b") == ACCEPTED
        assert talk.discharge(dropped, fail=True) == ACCEPTED
        assert talk.discharge(kept) == ACCEPTED
    assert sorted(world.backlog() if dark else world.bodies("orders")) == ["a", "b"]


def test_what_cannot_be_kept_is_refused(world: World, gateway: Running) -> None:
    """Without the primary a transaction has one target, and no other id than its own."""
    fail_over(world, gateway, "orders", "invoices")
    with talking(gateway, "orders", "invoices") as talk:
        number = talk.declare()
        assert talk.within(number, "a") == ACCEPTED
        assert talk.within(number, "b", handle=2) == REJECTED
        assert talk.discharge(number) == REJECTED
        assert talk.within(b"nobody's", "c") == REJECTED
        assert talk.discharge(b"nobody's") == REJECTED
    assert world.backlog() == []


def test_a_transaction_has_one_target_in_whatever_case(world: World, gateway: Running) -> None:
    fail_over(world, gateway, "orders")
    with talking(gateway, "orders", "Orders", "orders") as talk:
        number = talk.declare()
        assert [talk.within(number, body, handle=handle) for handle, body in ((0, "a"), (2, "b"), (4, "c"))] == [
            ACCEPTED
        ] * 3
        assert talk.discharge(number) == ACCEPTED
    assert sorted(world.backlog()) == ["a", "b", "c"]


def test_a_transaction_has_as_many_messages_as_with_the_service(world: World, gateway: Running) -> None:
    fail_over(world, gateway, "orders")
    with talking(gateway, "orders") as talk:
        number = talk.declare()
        said = [talk.within(number, str(index)) for index in range(MAX_TRANSACTION_MESSAGES + 1)]
        assert said == [ACCEPTED] * MAX_TRANSACTION_MESSAGES + [REJECTED]
        assert talk.discharge(number) == REJECTED
    assert world.backlog() == []


@pytest.mark.parametrize("end", ["commit", "rollback", "detach"])
def test_what_a_transaction_holds_is_counted_for_its_connection(world: World, gateway: Running, end: str) -> None:
    def held_bytes() -> int:
        (connection,) = gateway.call(lambda: gateway.gateway.port.connections)
        return gateway.call(lambda: connection.budget.held_bytes)

    fail_over(world, gateway, "orders")
    with talking(gateway, "orders") as talk:
        number, before = talk.declare(), held_bytes()
        assert talk.within(number, "x" * 10_000) == ACCEPTED
        assert held_bytes() - before > 10_000
        if end == "detach":
            talk.send(perform(DETACH, [Uint(1), True]))
            talk.until(DETACH)
        else:
            assert talk.discharge(number, fail=end == "rollback") == ACCEPTED
        assert held_bytes() - before <= 0


def unsettled(gateway: Running) -> DoorConnection:
    """The client's connection, once something of it waits for the primary's answer."""
    (connection,) = gateway.call(lambda: gateway.gateway.port.connections)
    assert isinstance(connection, DoorConnection)
    wait_until(lambda: not gateway.call(lambda: connection.is_settled))
    return connection


def key_of(name: str) -> GatewayKey:
    return next(key for key in KEYS if key.name == name)


def request(operation: str, value: dict[str, Any]) -> bytes:
    properties = ["1", None, None, None, "orders/$management"]
    return build(properties=properties, application_properties={"operation": f"com.microsoft:{operation}"}, value=value)


@pytest.mark.parametrize("fail", [True, False])
def test_a_request_of_a_client_that_only_listens_stays_in_its_transaction(
    world: World, gateway: Running, fail: bool
) -> None:
    """Such a client's requests are read on their way, for its right to each. .NET completes deferred messages so."""
    primary = sdk.ServiceBusClient.from_connection_string(world.connection_string())
    with primary, primary.get_queue_sender("orders") as sender, primary.get_queue_receiver("orders") as receiver:
        sender.send_messages(sdk.ServiceBusMessage("work"))
        token = receiver.receive_messages(1)[0].lock_token
        with talking(gateway, "orders/$management", key=key_of("listener")) as talk:
            talk.send(attach("orders/$management", handle=3, receiver=True))
            talk.until(ATTACH)
            value = {"disposition-status": "completed", "lock-tokens": Array(0x98, (token,))}
            number = talk.declare()
            talk.transfer(0, request("update-disposition", value), Described(Ulong(TRANSACTIONAL_STATE), [number]))
            assert world.bodies("orders") == ["work"]
            assert talk.discharge(number, fail=fail) == ACCEPTED
        assert world.bodies("orders") == (["work"] if fail else [])


def test_both_links_of_requests_meet_in_whatever_case(world: World, gateway: Running) -> None:
    """And are served here although the primary would answer: it was failed over by hand."""
    gateway.call(lambda: gateway.gateway.house.pairing.force_failover("orders"))
    with talking(gateway, "Orders/$Management") as talk:
        talk.send(attach("orders/$management", handle=3, receiver=True))
        talk.until(ATTACH)
        talk.send(perform(FLOW, [Uint(0), Uint(99), Uint(0), Uint(99), Uint(3), Uint(0), Uint(9)]))
        entry = {"message": build(message_annotations={Symbol("x-opt-scheduled-enqueue-time"): LATER}, data=[b"later"])}
        talk.send(
            perform(TRANSFER, [Uint(0), Uint(0), b"t", Uint(0), True, False]),
            request("schedule-message", {"messages": [entry]}),
        )
        assert talk.until(TRANSFER)[0] == 3
    assert world.backlog() == ["later"]


@pytest.mark.parametrize(
    ("name", "operation", "value"),
    [
        ("sender", "schedule-message", {"messages": [{"message": build(data=[b"later"]), "message-id": "1"}]}),
        ("app", "peek-message", {"from-sequence-number": Long(1), "message-count": Uint(1)}),
    ],
)
def test_a_request_that_the_primary_has_not_answered_when_it_goes_is_in_no_backlog(
    world: World, gateway: Running, name: str, operation: str, value: dict[str, Any]
) -> None:
    """Whether it was read for its right or passed as it came: the client loses the links, and asks again."""
    with talking(gateway, "orders", "orders/$management", key=key_of(name)) as talk:
        talk.send(attach("orders/$management", handle=3, receiver=True))
        talk.until(ATTACH)
        world.emulator.faults("contoso").add("silent")
        talk.send(perform(TRANSFER, [Uint(2), Uint(0), b"t", Uint(0), False, False]), request(operation, value))
        connection = unsettled(gateway)
        world.dark()
        assert {talk.until(DETACH)[0] for _ in range(3)} == {1, 2, 3}
        wait_until(lambda: gateway.call(lambda: connection.is_settled))
    assert world.backlog() == []


def test_a_message_in_an_unusual_spelling_is_diverted_when_the_primary_goes(world: World, gateway: Running) -> None:
    """Its transfer is read as a whole, and it is remembered until the primary has answered."""
    with talking(gateway, "orders") as talk:
        world.emulator.faults("contoso").add("silent")
        transfer = perform(TRANSFER, [Uint(0), Uint(0), b"t", Uint(0), False, False])
        talk.send(b"\x00\x80" + TRANSFER.to_bytes(8) + transfer[3:], build(data=[b"diverted"]))
        unsettled(gateway)
        world.dark()
        assert code_of(Fields(talk.until(DISPOSITION)).get(4).descriptor) == ACCEPTED
    assert world.backlog() == ["diverted"]


def test_a_gateway_that_stops_waits_for_what_is_unsettled_and_counts_what_is_left(
    world: World, gateway: Running
) -> None:
    with talking(gateway, "orders") as talk:
        world.emulator.faults("contoso").add("silent")
        talk.send(perform(TRANSFER, [Uint(0), Uint(0), b"t", Uint(0), False, False]), build(data=[b"x"]))
        unsettled(gateway)
        stopping = asyncio.run_coroutine_threadsafe(gateway.gateway.drain(0.5), gateway.loop)
        assert stopping.result() == 1
