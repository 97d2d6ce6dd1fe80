"""Transactions over the wire, in the words of each client library, and what a restart finds of them."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from sbpair.amqp.performatives import (
    ACCEPTED,
    ATTACH,
    DECLARED,
    DETACH,
    DISPOSITION,
    MODIFIED,
    REJECTED,
    SOURCE,
    TRANSACTIONAL_STATE,
    TRANSFER,
    accepted,
)
from sbpair.amqp.sections import PropertyField, Section, build, read, scan
from sbpair.amqp.types import Array, Described, Int, Long, Symbol, Timestamp, Uint, Ulong
from sbpair.emulator.broker.messages import MessageStateCode
from sbpair.emulator.broker.partitions import partition_of
from sbpair.emulator.entities import QueueDescription
from sbpair.emulator.server import Emulator, NamespaceConfig
from sbpair.emulator.testing import stored_message
from sbpair.engine.auth import ROOT_KEY_NAME
from sbpair.engine.clock import ManualClock
from sbpair.engine.errors import rejected
from sbpair.engine.link import DECLARE_SECONDS
from sbpair.service import Tier
from tests.emulator.broker.conftest import Inbox
from tests.emulator.process import Process
from tests.engine.dialects import DIALECTS, Dialect
from tests.engine.wire_client import Client, Frame, modified, seen

COORDINATOR_HANDLE = 9
EXPIRES_AT = 4e9


@asynccontextmanager
async def connected(emulator: Emulator, dialect: Dialect) -> AsyncIterator[Client]:
    """A client with a session and a token for the whole namespace."""
    host, _, port = emulator.endpoint("primary").partition(":")
    key = emulator.namespace("primary").auth_rules[ROOT_KEY_NAME].primary_key
    async with connected_to(host, int(port), key, dialect) as client:
        yield client


@asynccontextmanager
async def connected_to(host: str, port: int, key: str, dialect: Dialect) -> AsyncIterator[Client]:
    """The same, to any process."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        client = Client(reader, writer, dialect)
        await client.session()
        # .NET opens the coordinator before it has put any token.
        source, coordinator = Described(Ulong(SOURCE), ["me"]), Described(Ulong(0x30), [None])
        modes, count = dialect.send_modes, Uint(0)
        fields = ["coordinator", Uint(COORDINATOR_HANDLE), False, *modes, source, coordinator, None, None, count]
        client.send(ATTACH, fields)
        await client.until(ATTACH)
        assert (await client.put_token(f"sb://{host}:{port}", ROOT_KEY_NAME, key, EXPIRES_AT))[0] == 202
        yield client
    finally:
        writer.transport.abort()


class Asking:
    """Transfers and settlements, numbered, and their outcomes."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._next = 100
        self.passed: list[Frame] = []

    async def send(self, payload: bytes, handle: int = 0, transaction: bytes | None = None) -> Described:
        self._next += 1
        state = None if transaction is None else Described(Ulong(TRANSACTIONAL_STATE), [transaction, None])
        tag = self._next.to_bytes(4)
        fields = [Uint(handle), Uint(self._next), tag, Uint(0), False, False, None, state]
        self.client.send(TRANSFER, fields, payload)
        return (await self._outcome(self._next)).field(4)

    def send_request(self, payload: bytes, transaction: bytes | None) -> None:
        """A settled transfer to a management node on handle 30."""
        self._next += 1
        state = None if transaction is None else Described(Ulong(TRANSACTIONAL_STATE), [transaction, None])
        tag = self._next.to_bytes(4)
        self.client.send(TRANSFER, [Uint(30), Uint(self._next), tag, Uint(0), True, False, None, state], payload)

    async def declare(self) -> bytes:
        request = build(value=Described(Ulong(0x31), []))
        outcome = await self.send(request, COORDINATOR_HANDLE)
        assert outcome.descriptor == DECLARED
        identity: bytes = outcome.value[0]
        return identity

    async def discharge(self, transaction: bytes, *, failed: bool = False) -> Described:
        return await self.send(build(value=Described(Ulong(0x32), [transaction, failed])), COORDINATOR_HANDLE)

    def discharge_unconfirmed(self, transaction: bytes) -> None:
        """Ask for a commit and wait for nothing."""
        self._next += 1
        fields = [Uint(COORDINATOR_HANDLE), Uint(self._next), self._next.to_bytes(4), Uint(0), False, False]
        self.client.send(TRANSFER, fields, build(value=Described(Ulong(0x32), [transaction, False])))

    async def settle(self, delivery: Frame, outcome: Described, transaction: bytes) -> Described:
        """The provisional outcome: the delivery is settled by `settled`, after the commit."""
        number = delivery.field(1)
        self.client.settle(number, None, Described(Ulong(TRANSACTIONAL_STATE), [transaction, outcome]))
        answer = await self._outcome(number)
        assert answer.field(3) in (False, None)
        return answer.field(4)

    async def settled(self, *deliveries: Frame) -> list[int]:
        """The codes of the final outcomes, which the broker sends by itself."""
        answers = [await self._outcome(delivery.field(1)) for delivery in deliveries]
        assert all(answer.field(3) is True for answer in answers)
        return [answer.field(4).descriptor for answer in answers]

    async def _outcome(self, number: int) -> Frame:
        """Of a delivery; what is said of others meanwhile is kept for those who ask."""
        while True:
            known = [one for one in self.passed if one.field(1) <= number <= (one.field(2) or one.field(1))]
            if known:
                self.passed.remove(known[0])
                return known[0]
            self.passed.append(await self.client.until(DISPOSITION))


def message(text: bytes, **properties: Any) -> bytes:
    given = {PropertyField[name.upper()]: value for name, value in properties.items()}
    return build(properties=given or None, data=text)


def texts(queue: Any, box: str = "main") -> list[bytes]:
    return [read(one.payload, scan(one.payload), Section.DATA) for one in getattr(queue, box).log]


@asynccontextmanager
async def a_result_on_its_way(
    emulator: Emulator, dialect: Dialect
) -> AsyncIterator[tuple[Asking, bytes, Frame, Any, Any]]:
    """One message taken from the queue `source` and, in an open transaction, one sent to the queue `target`; with the
    one who asks, the transaction, what was delivered, and the two queues."""
    namespace = emulator.namespace("primary")
    source, target = namespace.create_queue("source"), namespace.create_queue("target")
    source.send(message(b"work"))
    async with connected(emulator, dialect) as client:
        ask = Asking(client)
        await client.receiver("source", 1, credit=5)
        delivery = await client.until(TRANSFER)
        await client.sender("target", 0)
        transaction = await ask.declare()
        await ask.send(message(b"result"), 0, transaction)
        yield ask, transaction, delivery, source, target


class Requests:
    """Requests to a management node, in a transaction or outside."""

    def __init__(self, ask: Asking, entity: str) -> None:
        self.ask = ask
        self.address = f"{entity}/$management"

    async def open(self) -> "Requests":
        await self.ask.client.sender(self.address, 30)
        await self.ask.client.receiver(self.address, 31, credit=100)
        return self

    async def __call__(self, operation: str, transaction: bytes | None, **body: Any) -> tuple[int, Any]:
        """The status, and the body or else the error condition."""
        self.ask.send_request(self._payload(operation, body), transaction)
        answer = await self.ask.client.until(TRANSFER)
        spans = scan(answer.payload)
        said = read(answer.payload, spans, Section.APPLICATION_PROPERTIES)
        return said["statusCode"], said.get("errorCondition") or read(answer.payload, spans, Section.VALUE)

    @staticmethod
    def _payload(operation: str, body: dict[str, Any]) -> bytes:
        return build(
            properties=["1", None, None, None, "reply-31"],
            application_properties={"operation": f"com.microsoft:{operation}"},
            value={name.replace("_", "-"): value for name, value in body.items()},
        )


@asynccontextmanager
async def requesting(
    emulator: Emulator, dialect: Dialect, entity: str = "orders"
) -> AsyncIterator[tuple[Asking, Requests]]:
    """A client with a sender on handle 0 and requests to the entity."""
    async with connected(emulator, dialect) as client:
        ask = Asking(client)
        await client.sender(entity, 0)
        yield ask, await Requests(ask, entity).open()


def scheduled(text: bytes, at_ms: int = 4_000_000_000_000) -> list[dict[str, Any]]:
    """The entry `messages` of a request."""
    at = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(at_ms)}
    return [{"message-id": "1", "message": build(message_annotations=at, data=text)}]


def longs(*numbers: int) -> Array:
    return Array(0x81, tuple(Long(number) for number in numbers))


def condition(outcome: Described) -> str:
    if outcome.descriptor == TRANSACTIONAL_STATE:
        outcome = outcome.value[1]
    assert outcome.descriptor == REJECTED
    return str(outcome.value[0].value[0])


async def test_messages_to_two_entities_appear_together_at_the_commit(emulator: Emulator, dialect: Dialect) -> None:
    namespace = emulator.namespace("primary")
    first, second = namespace.create_queue("first"), namespace.create_queue("second")
    async with connected(emulator, dialect) as client:
        ask = Asking(client)
        await client.sender("first", 0)
        await client.sender("second", 1)
        transaction = await ask.declare()
        for handle in (0, 1):
            outcome = await ask.send(message(b"in"), handle, transaction)
            assert (outcome.descriptor, outcome.value[0]) == (TRANSACTIONAL_STATE, transaction)
            assert outcome.value[1].descriptor == ACCEPTED
        await ask.send(message(b"outside"))
        assert (texts(first), texts(second)) == ([b"outside"], [])
        assert (await ask.discharge(transaction)).descriptor == ACCEPTED
        assert (texts(first), texts(second)) == ([b"outside", b"in"], [b"in"])
        assert condition(await ask.discharge(transaction)) == "amqp:transaction:unknown-id"


async def test_a_rollback_leaves_lock_and_count_and_sends_nothing(emulator: Emulator, dialect: Dialect) -> None:
    async with a_result_on_its_way(emulator, dialect) as (ask, transaction, delivery, source, target):
        confirmed = await ask.settle(delivery, accepted(), transaction)
        assert confirmed.value[1].descriptor == ACCEPTED
        assert (await ask.discharge(transaction, failed=True)).descriptor == ACCEPTED
        assert (texts(source), texts(target)) == ([b"work"], [])
        [kept] = source.main.log
        assert (kept.locked, kept.delivery_count) == (True, 0)
        # The lock is still this receiver's: the next transaction can settle it.
        transaction = await ask.declare()
        await ask.send(message(b"result"), 0, transaction)
        await ask.settle(delivery, accepted(), transaction)
        assert (await ask.discharge(transaction)).descriptor == ACCEPTED
        assert await ask.settled(delivery) == [ACCEPTED]
        assert (texts(source), texts(target)) == ([], [b"result"])


@pytest.mark.parametrize("box", ["main", "dead_letters", "subscription", "session"])
async def test_after_a_rollback_a_delivery_is_settled_outside_transactions(
    emulator: Emulator, dialect: Dialect, box: str
) -> None:
    """A client forgets what is settled: an outcome that can be rolled back is not, wherever the message lies."""
    namespace, filters = emulator.namespace("primary"), None
    queue = namespace.create_queue("orders", QueueDescription(requires_session=box == "session"))
    namespace.create_topic("topic").send(message(b"before anybody subscribes"))
    kept, address = queue.main, "orders"
    if box == "dead_letters":
        queue.send(message(b"work"))
        inbox = Inbox()
        queue.main.want(inbox)
        queue.main.dead_letter(inbox.token, None, None)
        kept, address = queue.dead_letters, "orders/$DeadLetterQueue"
    elif box == "subscription":
        kept, address = namespace.create_subscription("topic", "sub").main, "topic/Subscriptions/sub"
        namespace.get_topic("topic").send(message(b"work"))
    else:
        queue.send(message(b"work", group_id="blue"))
        filters = {Symbol("com.microsoft:session-filter"): "blue"} if box == "session" else None
    async with connected(emulator, dialect) as client:
        ask = Asking(client)
        client.attach(1, address, sends=False, filters=filters)
        client.credit(1)
        delivery = await client.until(TRANSFER)
        for outcome in (accepted(), modified(True), modified(False, True)):
            transaction = await ask.declare()
            await ask.settle(delivery, outcome, transaction)
            await ask.discharge(transaction, failed=True)
        [work] = kept.log
        assert (work.locked, work.delivery_count, work.state) == (True, 0, MessageStateCode.ACTIVE)
        client.settle(delivery.field(1), None, accepted())
        assert await ask.settled(delivery) == [ACCEPTED]
        assert not len(kept.log)


async def test_a_client_that_settles_within_a_transaction_is_told_nothing_more(
    emulator: Emulator, dialect: Dialect
) -> None:
    """Qpid JMS sends its outcomes settled; the commit alone is confirmed."""
    async with a_result_on_its_way(emulator, dialect) as (ask, transaction, delivery, source, target):
        state = Described(Ulong(TRANSACTIONAL_STATE), [transaction, accepted()])
        ask.client.settle(delivery.field(1), None, state, settled=True)
        assert (await ask.discharge(transaction)).descriptor == ACCEPTED
        assert (await ask.send(message(b"next"))).descriptor == ACCEPTED
        assert (texts(source), texts(target), ask.passed) == ([], [b"result", b"next"], [])


async def test_defer_dead_letter_abandon_and_schedule_wait_for_the_commit(emulator: Emulator, dialect: Dialect) -> None:
    namespace = emulator.namespace("primary")
    queue = namespace.create_queue("orders")
    for text in (b"defer", b"dead", b"again"):
        queue.send(message(text))
    later = build(
        message_annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(4_000_000_000_000)}, data=b"later"
    )
    async with connected(emulator, dialect) as client:
        ask = Asking(client)
        await client.sender("orders", 0)
        await client.receiver("orders", 1, credit=3)
        deliveries = [await client.until(TRANSFER) for _ in range(3)]
        transaction = await ask.declare()
        dead = rejected("com.microsoft:dead-letter", None, {"DeadLetterReason": "bad"})
        for delivery, outcome in zip(deliveries, (modified(False, True), dead, modified(True)), strict=True):
            assert (await ask.settle(delivery, outcome, transaction)).descriptor == TRANSACTIONAL_STATE
        await ask.send(later, 0, transaction)
        assert [(one.locked, one.state) for one in queue.main.log] == [(True, MessageStateCode.ACTIVE)] * 3
        assert (await ask.discharge(transaction)).descriptor == ACCEPTED
        kept = {read(one.payload, scan(one.payload), Section.DATA): one for one in queue.main.log}
        assert await ask.settled(*deliveries) == [MODIFIED, REJECTED, MODIFIED]
        assert kept[b"defer"].state is MessageStateCode.DEFERRED
        assert kept[b"later"].state is MessageStateCode.SCHEDULED
        assert (kept[b"again"].delivery_count, kept[b"again"].locked) == (1, False)
        assert texts(queue, "dead_letters") == [b"dead"]


async def test_a_session_is_received_and_sent_on_in_one_transaction(emulator: Emulator, dialect: Dialect) -> None:
    namespace = emulator.namespace("primary")
    queue = namespace.create_queue("orders", QueueDescription(requires_session=True))
    queue.send(message(b"one", group_id="blue"))
    async with connected(emulator, dialect) as client:
        ask = Asking(client)
        await client.sender("orders", 0)
        client.attach(1, "orders", sends=False, filters={Symbol("com.microsoft:session-filter"): "blue"})
        client.credit(1)
        delivery = await client.until(TRANSFER)
        transaction = await ask.declare()
        await ask.settle(delivery, accepted(), transaction)
        await ask.send(message(b"two", group_id="blue"), 0, transaction)
        assert texts(queue) == [b"one"]
        assert (await ask.discharge(transaction)).descriptor == ACCEPTED
        assert texts(queue) == [b"two"]


async def test_what_a_lost_connection_leaves_open_is_rolled_back(emulator: Emulator, dialect: Dialect) -> None:
    namespace = emulator.namespace("primary")
    queue = namespace.create_queue("orders")
    async with connected(emulator, dialect) as client:
        ask = Asking(client)
        await client.sender("orders", 0)
        await ask.send(message(b"lost"), 0, await ask.declare())
        assert len(namespace.transactions) == 1
    await seen(lambda: not len(namespace.transactions))
    assert texts(queue) == []


async def test_a_declare_is_answered_after_the_client_has_its_request_written(
    emulator: Emulator, dialect: Dialect
) -> None:
    """Not before Microsoft.Azure.Amqp 2.6 has read the state of the delivery; several wait side by side."""
    async with connected(emulator, dialect) as client:
        ask = Asking(client)
        began = time.perf_counter()
        await ask.declare()
        assert time.perf_counter() - began >= DECLARE_SECONDS
        request = build(value=Described(Ulong(0x31), []))
        with client.at_once():
            for number in range(200, 230):
                client.send(TRANSFER, [Uint(COORDINATOR_HANDLE), Uint(number), b"t", Uint(0), False, False], request)
        answers = [await client.until(DISPOSITION) for _ in range(30)]
        assert [one.field(1) for one in answers] == list(range(200, 230))
        client.send(TRANSFER, [Uint(COORDINATOR_HANDLE), Uint(300), b"t", Uint(0), False, False], request)
        client.send(DETACH, [Uint(COORDINATOR_HANDLE), True])
        await client.until(DETACH)  # whose transaction is gone before its answer is due
        await asyncio.sleep(2 * DECLARE_SECONDS)
        assert len(emulator.namespace("primary").transactions) == 0


async def test_closing_the_coordinator_rolls_back(emulator: Emulator, dialect: Dialect) -> None:
    namespace = emulator.namespace("primary")
    namespace.create_queue("orders")
    async with connected(emulator, dialect) as client:
        ask = Asking(client)
        await client.sender("orders", 0)
        transaction = await ask.declare()
        client.send(DETACH, [Uint(COORDINATOR_HANDLE), True])
        await client.until(DETACH)
        assert condition(await ask.send(message(b"late"), 0, transaction)) == "amqp:transaction:unknown-id"


async def test_one_part_that_cannot_be_done_any_more_rolls_back_all(emulator: Emulator, dialect: Dialect) -> None:
    async with a_result_on_its_way(emulator, dialect) as (ask, transaction, delivery, source, target):
        await ask.settle(delivery, accepted(), transaction)
        [work] = source.main.log
        [lock] = source.main.locks._locks.values()
        source.main.abandon(lock.token)
        assert condition(await ask.discharge(transaction)) == "amqp:transaction:rollback"
        assert (texts(source), texts(target), work.delivery_count) == ([b"work"], [], 1)


async def test_a_refused_send_makes_the_commit_fail(emulator: Emulator, dialect: Dialect) -> None:
    namespace = emulator.namespace("primary")
    plain = namespace.create_queue("plain")
    namespace.create_queue("sessions", QueueDescription(requires_session=True))
    async with connected(emulator, dialect) as client:
        ask = Asking(client)
        await client.sender("plain", 0)
        await client.sender("sessions", 1)
        transaction = await ask.declare()
        await ask.send(message(b"good"), 0, transaction)
        assert condition(await ask.send(message(b"no session"), 1, transaction)) == "amqp:not-allowed"
        assert condition(await ask.discharge(transaction)) == "amqp:transaction:rollback"
        assert texts(plain) == []


async def test_messages_to_a_partitioned_entity_share_one_key(emulator: Emulator, dialect: Dialect) -> None:
    namespace = emulator.namespace("primary")
    queue = namespace.create_queue("parts", QueueDescription(enable_partitioning=True))
    key = Symbol("x-opt-partition-key")
    async with connected(emulator, dialect) as client:
        ask = Asking(client)
        await client.sender("parts", 0)
        transaction = await ask.declare()
        assert condition(await ask.send(message(b"keyless"), 0, transaction)) == "amqp:not-allowed"
        transaction = await ask.declare()
        await ask.send(build(message_annotations={key: "a"}, data=b"1"), 0, transaction)
        other = await ask.send(build(message_annotations={key: "b"}, data=b"2"), 0, transaction)
        assert condition(other) == "amqp:not-allowed"
        transaction = await ask.declare()
        for text in (b"1", b"2"):
            await ask.send(build(message_annotations={key: "a"}, data=text), 0, transaction)
        assert (await ask.discharge(transaction)).descriptor == ACCEPTED
        assert texts(queue) == [b"1", b"2"]


async def test_the_101st_message_of_a_transaction_is_refused(emulator: Emulator, dialect: Dialect) -> None:
    emulator.namespace("primary").create_queue("orders")
    async with connected(emulator, dialect) as client:
        ask = Asking(client)
        await client.sender("orders", 0)
        transaction = await ask.declare()
        for number in range(100):
            assert (await ask.send(message(b"%d" % number), 0, transaction)).value[1].descriptor == ACCEPTED
        assert condition(await ask.send(message(b"more"), 0, transaction)) == "amqp:not-allowed"


async def test_after_two_minutes_a_transaction_is_rolled_back(dialect: Dialect) -> None:
    clock = ManualClock()
    async with Emulator(["primary"], seed=1, clock=clock) as emulator:
        queue = emulator.namespace("primary").create_queue("orders")
        async with connected(emulator, dialect) as client:
            ask = Asking(client)
            await client.sender("orders", 0)
            transaction = await ask.declare()
            await ask.send(message(b"slow"), 0, transaction)
            clock.advance(119)
            assert len(emulator.namespace("primary").transactions) == 1
            clock.advance(1)
            assert condition(await ask.discharge(transaction)) == "amqp:transaction:timeout"
        assert texts(queue) == []


async def test_a_restart_finds_what_was_committed_and_nothing_else(tmp_path: Path, dialect: Dialect) -> None:
    """The store is copied as a kill would leave it, after every answer that a client has had."""
    import shutil

    folder = tmp_path / "data"
    seen: list[tuple[list[bytes], list[bytes]]] = []

    async def found() -> tuple[list[bytes], list[bytes]]:
        copied = tmp_path / f"copy-{len(seen)}"
        shutil.copytree(folder, copied)
        async with Emulator(["primary"], seed=1, data_dir=copied) as again:
            queues = (again.namespace("primary").get_queue(name) for name in ("source", "target"))
            seen.append(tuple(texts(queue) for queue in queues))
        return seen[-1]

    async with Emulator(["primary"], seed=1, data_dir=folder) as emulator:
        namespace = emulator.namespace("primary")
        source = namespace.create_queue("source")
        namespace.create_queue("target")
        source.send(message(b"work"))
        async with connected(emulator, dialect) as client:
            ask = Asking(client)
            await client.receiver("source", 1, credit=5)
            delivery = await client.until(TRANSFER)
            await client.sender("target", 0)
            transaction = await ask.declare()
            assert await found() == ([b"work"], [])
            await ask.send(message(b"result"), 0, transaction)
            assert await found() == ([b"work"], [])
            await ask.settle(delivery, accepted(), transaction)
            assert await found() == ([b"work"], [])
            await ask.discharge(transaction)
            assert await found() == ([], [b"result"])


STEPS = ("declared", "sent", "settled", "committing", "committed")


# One library a step, since each takes a process.
@pytest.mark.parametrize(("until", "dialect"), list(zip(STEPS, cycle(DIALECTS), strict=False)), ids=str)
async def test_a_kill_at_any_step_leaves_all_of_a_transaction_or_nothing(
    tmp_path: Path, until: str, dialect: Dialect
) -> None:
    folder, done = tmp_path / "data", STEPS.index(until)
    async with Emulator(["primary"], seed=1, data_dir=folder) as emulator:
        namespace = emulator.namespace("primary")
        namespace.create_queue("orders").send(message(b"work"))
        namespace.create_queue("theirs")
    process = Process(tmp_path / "log", folder)
    try:
        async with connected_to(*process.address, process.root_key, dialect) as client:
            ask = Asking(client)
            await client.receiver("orders", 1, credit=5)
            delivery = await client.until(TRANSFER)
            await client.sender("theirs", 0)
            transaction = await ask.declare()
            if done >= 1:
                await ask.send(message(b"result"), 0, transaction)
            if done >= 2:
                await ask.settle(delivery, accepted(), transaction)
            if until == "committing":
                ask.discharge_unconfirmed(transaction)
            if until == "committed":
                await ask.discharge(transaction)
            process.kill()
    finally:
        process.close()
    async with Emulator(["primary"], seed=1, data_dir=folder) as emulator:
        orders, theirs = (emulator.namespace("primary").get_queue(name) for name in ("orders", "theirs"))
        found = texts(orders), texts(theirs)
        assert orders is not None
        assert not any(one.locked for one in orders.main.log)
    nothing, everything = ([b"work"], []), ([], [b"result"])
    expected = {"committing": (nothing, everything), "committed": (everything,)}
    assert found in expected.get(until, (nothing,))


async def test_nobody_sees_what_a_transaction_holds_before_its_end(emulator: Emulator, dialect: Dialect) -> None:
    namespace = emulator.namespace("primary")
    queue = namespace.create_queue("orders", QueueDescription(requires_duplicate_detection=True))
    topic = namespace.create_topic("events")
    subscription = namespace.create_subscription(topic.path, "all")
    async with connected(emulator, dialect) as client:
        ask = Asking(client)
        await client.sender("orders", 0)
        await client.sender("events", 1)
        transaction = await ask.declare()
        await ask.send(message(b"in", message_id="1"), 0, transaction)
        await ask.send(message(b"event"), 1, transaction)
        assert (queue.counts().active, subscription.counts().active) == (0, 0)
        assert queue.main.peek(0, 10, 1000) == []
        assert queue.quota.used_bytes == 0
        # Its id is not known yet: a message with that id from elsewhere is no duplicate, and this one is at the commit.
        queue.send(message(b"from elsewhere", message_id="1"))
        assert (await ask.discharge(transaction)).descriptor == ACCEPTED
    assert (texts(queue), texts(subscription)) == ([b"from elsewhere"], [b"event"])


# Transactions over several entities, as azure-sdk-for-net's TransactionLiveTests have them.


@pytest.mark.law("cross-entity-transactions")
async def test_in_a_group_only_the_first_entity_is_received_from(emulator: Emulator, dialect: Dialect) -> None:
    namespace = emulator.namespace("primary")
    for name in ("first", "second"):
        namespace.create_queue(name).send(message(b"work"))
    async with connected(emulator, dialect) as client:
        ask = Asking(client)
        await client.sender("first", 0)
        await client.sender("second", 1)
        client.attach(2, "second", sends=False)
        condition_, text = (await client.until(DETACH)).error
        assert condition_ == "amqp:not-allowed"
        assert text.startswith("Local transactions cannot span multiple top-level entities such as queue or topic.")
        await client.receiver("first", 3, credit=1)
        delivery = await client.until(TRANSFER)
        transaction = await ask.declare()
        await ask.settle(delivery, accepted(), transaction)
        await ask.send(message(b"result"), 1, transaction)
        assert (await ask.discharge(transaction)).descriptor == ACCEPTED
    assert texts(namespace.get_queue("first")) == []
    assert texts(namespace.get_queue("second")) == [b"work", b"result"]


async def test_a_link_outside_the_group_does_not_know_its_transactions(emulator: Emulator, dialect: Dialect) -> None:
    queue = emulator.namespace("primary").create_queue("orders")
    async with connected(emulator, dialect) as client:
        ask = Asking(client)
        await client.sender("orders", 0)
        await client.begin(channel=1)
        with client.on_channel(1):
            await client.sender("orders", 0)
        transaction = await ask.declare()
        await ask.send(message(b"in"), 0, transaction)
        with client.on_channel(1):
            assert condition(await ask.send(message(b"outside"), 0, transaction)) == "amqp:transaction:unknown-id"
        assert (await ask.discharge(transaction)).descriptor == ACCEPTED
    assert texts(queue) == [b"in"]


async def test_without_a_group_a_transaction_has_one_entity(emulator: Emulator, dialect: Dialect) -> None:
    """The coordinator has an AMQP session of its own, as .NET's without EnableCrossEntityTransactions."""
    namespace = emulator.namespace("primary")
    orders, results = namespace.create_queue("orders"), namespace.create_queue("results")
    namespace.create_topic("topic")
    box = namespace.create_subscription("topic", "sub").main
    orders.send(message(b"work"))
    namespace.get_topic("topic").send(message(b"event"))
    async with connected(emulator, dialect) as client:
        ask = Asking(client)
        await client.begin(channel=1)
        with client.on_channel(1):
            await client.sender("results", 0)
            await client.sender("topic", 1)
            await client.receiver("orders", 2, credit=1)
            work = await client.until(TRANSFER)
            await client.receiver("topic/Subscriptions/sub", 3, credit=1)
            event = await client.until(TRANSFER)

            async def declare() -> bytes:
                with client.on_channel(0):
                    return await ask.declare()

            transaction = await declare()
            await ask.settle(event, accepted(), transaction)
            await ask.send(message(b"next"), 1, transaction)
            with client.on_channel(0):
                assert (await ask.discharge(transaction)).descriptor == ACCEPTED
            assert texts(namespace.get_subscription("topic", "sub")) == [b"next"]
            transaction = await declare()
            await ask.send(message(b"result"), 0, transaction)
            refused = await ask.settle(work, accepted(), transaction)
            assert refused.value[1].value[0].value[1].startswith("Local transactions cannot span multiple entities")
            with client.on_channel(0):
                assert condition(await ask.discharge(transaction)) == "amqp:transaction:rollback"
        [given_back] = orders.main.log
        assert (texts(results), given_back.locked, given_back.delivery_count) == ([], False, 1)
    assert len(box.log) == 1


@pytest.mark.parametrize("sessions", [False, True])
async def test_what_is_sent_through_a_partitioned_entity_is_bound_by_the_transaction_partition_key(
    emulator: Emulator, dialect: Dialect, sessions: bool
) -> None:
    """TransactionGroupReceivesFirst: source and destinations are partitioned, and messages have no other key."""
    settings = QueueDescription(enable_partitioning=True, requires_session=sessions)
    namespace = emulator.namespace("primary")
    source, target = (namespace.create_queue(name, settings) for name in ("source", "target"))

    def keyed(text: bytes, key: str | None) -> bytes:
        annotations = None if key is None else {Symbol("x-opt-via-partition-key"): key}
        session = {PropertyField.GROUP_ID: "Order-7"} if sessions else None
        return build(message_annotations=annotations, properties=session, data=text)

    source.send(keyed(b"work", "Order-7"))
    async with connected(emulator, dialect) as client:
        ask = Asking(client)
        filters = {Symbol("com.microsoft:session-filter"): "Order-7"} if sessions else None
        client.attach(1, "source", sends=False, filters=filters)
        client.credit(1)
        delivery = await client.until(TRANSFER)
        await client.sender("target", 0)
        for key in ("another", None)[: 1 if sessions else 2]:
            transaction = await ask.declare()
            await ask.settle(delivery, accepted(), transaction)
            assert condition(await ask.send(keyed(b"no", key), 0, transaction)) == "amqp:not-allowed"
            await ask.discharge(transaction, failed=True)
        transaction = await ask.declare()
        await ask.settle(delivery, accepted(), transaction)
        await ask.send(keyed(b"result", "Order-7"), 0, transaction)
        assert (await ask.discharge(transaction)).descriptor == ACCEPTED
    assert (texts(source), texts(target)) == ([], [b"result"])


# Requests to a management node, which .NET puts into a transaction whenever there is one.


@pytest.mark.parametrize("kind", ["queue", "topic"])
async def test_a_message_scheduled_by_request_has_its_number_at_once_and_waits_from_the_commit_on(
    emulator: Emulator, dialect: Dialect, kind: str
) -> None:
    namespace = emulator.namespace("primary")
    entity = namespace.create_queue("orders") if kind == "queue" else namespace.create_topic("orders")
    async with requesting(emulator, dialect) as (ask, request):
        transaction = await ask.declare()
        _, reply = await request("schedule-message", transaction, messages=scheduled(b"rolled back"))
        first = reply["sequence-numbers"].items[0]
        assert entity.counts().scheduled == 0
        assert (await ask.discharge(transaction, failed=True)).descriptor == ACCEPTED
        transaction = await ask.declare()
        status, reply = await request("schedule-message", transaction, messages=scheduled(b"later"))
        number = reply["sequence-numbers"].items[0]
        assert (status, number > first) == (200, True)
        await ask.send(message(b"between"), 0)
        assert (await request("cancel-scheduled-message", None, sequence_numbers=longs(number)))[0] == 404
        assert (await ask.discharge(transaction)).descriptor == ACCEPTED
        assert entity.counts().scheduled == 1
        assert (await request("cancel-scheduled-message", None, sequence_numbers=longs(number)))[0] == 200
        assert entity.counts().scheduled == 0


async def test_a_cancellation_is_undone_by_a_rollback(emulator: Emulator, dialect: Dialect) -> None:
    queue = emulator.namespace("primary").create_queue("orders")
    async with requesting(emulator, dialect) as (ask, request):
        _, reply = await request("schedule-message", None, messages=scheduled(b"later"))
        numbers = longs(*reply["sequence-numbers"].items)
        for failed, left in ((True, 1), (False, 0)):
            transaction = await ask.declare()
            assert (await request("cancel-scheduled-message", transaction, sequence_numbers=numbers))[0] == 200
            assert queue.counts().scheduled == 1
            assert (await ask.discharge(transaction, failed=failed)).descriptor == ACCEPTED
            assert queue.counts().scheduled == left


async def test_what_was_cancelled_already_rolls_back_the_transaction(emulator: Emulator, dialect: Dialect) -> None:
    queue = emulator.namespace("primary").create_queue("orders")
    async with requesting(emulator, dialect) as (ask, request):
        _, reply = await request("schedule-message", None, messages=scheduled(b"later") * 2)
        first, second = reply["sequence-numbers"].items
        transaction = await ask.declare()
        await request("cancel-scheduled-message", transaction, sequence_numbers=longs(first))
        again = await request("cancel-scheduled-message", transaction, sequence_numbers=longs(first))
        assert again == (404, "com.microsoft:message-not-found")
        assert condition(await ask.discharge(transaction)) == "amqp:transaction:rollback"
        # Cancelled by somebody else before the commit: nothing of the transaction is done.
        transaction = await ask.declare()
        await request("cancel-scheduled-message", transaction, sequence_numbers=longs(first, second))
        await request("cancel-scheduled-message", None, sequence_numbers=longs(second))
        await ask.send(message(b"result"), 0, transaction)
        assert condition(await ask.discharge(transaction)) == "amqp:transaction:rollback"
        assert (queue.counts().scheduled, queue.counts().active) == (1, 0)


async def test_a_sessions_state_is_set_with_the_completion_of_its_message(emulator: Emulator, dialect: Dialect) -> None:
    queue = emulator.namespace("primary").create_queue("orders", QueueDescription(requires_session=True))
    queue.send(message(b"one", group_id="blue"))
    async with requesting(emulator, dialect) as (ask, request):
        ask.client.attach(1, "orders", sends=False, filters={Symbol("com.microsoft:session-filter"): "blue"})
        ask.client.credit(1)
        delivery = await ask.client.until(TRANSFER)
        for failed, kept in ((True, None), (False, b"done")):
            transaction = await ask.declare()
            await ask.settle(delivery, accepted(), transaction)
            assert (await request("set-session-state", transaction, session_id="blue", session_state=b"done"))[0] == 200
            inside = await request("get-session-state", transaction, session_id="blue")
            assert inside == (200, {"session-state": None})
            assert (await ask.discharge(transaction, failed=failed)).descriptor == ACCEPTED
            assert (await request("get-session-state", None, session_id="blue"))[1] == {"session-state": kept}
        assert texts(queue) == []


async def test_a_state_is_not_set_for_whoever_lost_the_session(emulator: Emulator, dialect: Dialect) -> None:
    queue = emulator.namespace("primary").create_queue("orders", QueueDescription(requires_session=True))
    session_filter = {Symbol("com.microsoft:session-filter"): "blue"}
    async with requesting(emulator, dialect) as (ask, request):
        ask.client.attach(1, "orders", sends=False, filters=session_filter)
        await ask.client.until(ATTACH)
        transaction = await ask.declare()
        await request("set-session-state", transaction, session_id="blue", session_state=b"old")
        ask.client.send(DETACH, [Uint(1), True])
        await ask.client.until(DETACH)
        ask.client.attach(2, "orders", sends=False, filters=session_filter)
        await ask.client.until(ATTACH)
        assert condition(await ask.discharge(transaction)) == "amqp:transaction:rollback"
        sessions = queue.main.sessions
        assert sessions is not None
        assert sessions.require_held("blue").state is None


@pytest.mark.law("transactions-without-management")
async def test_looks_and_renewals_in_a_transaction_are_done_at_once_and_management_is_refused(
    emulator: Emulator, dialect: Dialect
) -> None:
    queue = emulator.namespace("primary").create_queue("orders")
    queue.send(message(b"work"))
    async with requesting(emulator, dialect) as (ask, request):
        await ask.client.receiver("orders", 1, credit=1)
        delivery = await ask.client.until(TRANSFER)
        transaction = await ask.declare()
        seen = await request("peek-message", transaction, from_sequence_number=Long(0), message_count=Int(1))
        assert seen[0] == 200
        token = uuid.UUID(bytes_le=delivery.field(2))
        assert (await request("renew-lock", transaction, lock_tokens=Array(0x98, (token,))))[0] == 200
        await ask.settle(delivery, accepted(), transaction)
        assert (await ask.discharge(transaction)).descriptor == ACCEPTED
        assert texts(queue) == []
        transaction = await ask.declare()
        assert await request("remove-rule", transaction, rule_name="any") == (400, "amqp:not-allowed")
        assert condition(await ask.discharge(transaction)) == "amqp:transaction:rollback"


async def test_settlements_of_one_transaction_belong_to_one_partition(emulator: Emulator, dialect: Dialect) -> None:
    queue = emulator.namespace("primary").create_queue("parts", QueueDescription(enable_partitioning=True))
    key = Symbol("x-opt-partition-key")
    for name in ("a", "a", "b"):
        queue.send(build(message_annotations={key: name}, data=name.encode()))
    async with connected(emulator, dialect) as client:
        ask = Asking(client)
        await client.sender("parts", 0)
        await client.receiver("parts", 1, credit=3)
        by_key: dict[bytes, list[Frame]] = {}
        for _ in range(3):
            delivery = await client.until(TRANSFER)
            by_key.setdefault(read(delivery.payload, scan(delivery.payload), Section.DATA), []).append(delivery)
        transaction = await ask.declare()
        assert (await ask.settle(by_key[b"a"][0], accepted(), transaction)).value[1].descriptor == ACCEPTED
        assert condition(await ask.settle(by_key[b"b"][0], accepted(), transaction)) == "amqp:not-allowed"
        await ask.discharge(transaction, failed=True)
        # The message that was refused is given back: its lock is lost.
        ask.client.settle(by_key[b"b"][0].field(1), None, accepted())
        assert await ask.settled(by_key[b"b"][0]) == [REJECTED]
        assert [one.delivery_count for one in queue.main.log] == [0, 0, 1]
        transaction = await ask.declare()
        for delivery in by_key[b"a"]:
            await ask.settle(delivery, accepted(), transaction)
        other = await ask.send(build(message_annotations={key: "b"}, data=b"new"), 0, transaction)
        assert condition(other) == "amqp:not-allowed"
        await ask.discharge(transaction, failed=True)
        transaction = await ask.declare()
        for delivery in by_key[b"a"]:
            await ask.settle(delivery, accepted(), transaction)
        await ask.send(build(message_annotations={key: "a"}, data=b"new"), 0, transaction)
        assert (await ask.discharge(transaction)).descriptor == ACCEPTED
        assert sorted(texts(queue)) == [b"b", b"new"]


@pytest.mark.parametrize("part", ["settled", "sent"])
async def test_a_partition_that_goes_before_the_commit_rolls_back_all_of_it(dialect: Dialect, part: str) -> None:
    config = NamespaceConfig("primary", tier=Tier.PREMIUM, premium_partitions=4)
    async with Emulator([config], seed=1) as emulator:
        namespace = emulator.namespace("primary")
        parts, results = namespace.create_queue("parts"), namespace.create_queue("results")
        key = Symbol("x-opt-partition-key")
        parts.send(build(message_annotations={key: "a"}, data=b"work"))
        async with connected(emulator, dialect) as client:
            ask = Asking(client)
            await client.receiver("parts", 1, credit=1)
            delivery = await client.until(TRANSFER)
            await client.sender("results" if part == "settled" else "parts", 0)
            transaction = await ask.declare()
            await ask.send(build(message_annotations={key: "a"}, data=b"result"), 0, transaction)
            if part == "settled":
                await ask.settle(delivery, accepted(), transaction)
            [work] = parts.main.log
            away = partition_of(work.sequence_number)
            fault = emulator.faults("primary").add(f"partition-down:partition={away},entity=parts")
            assert condition(await ask.discharge(transaction)) == "amqp:transaction:rollback"
            emulator.faults("primary").remove(fault)
        assert (texts(parts), texts(results), work.delivery_count) == ([b"work"], [], 0)


async def test_a_restart_finds_what_was_scheduled_under_its_number(tmp_path: Path, dialect: Dialect) -> None:
    async with Emulator(["primary"], seed=1, data_dir=tmp_path) as emulator:
        emulator.namespace("primary").create_queue("orders")
        async with requesting(emulator, dialect) as (ask, request):
            transaction = await ask.declare()
            _, reply = await request("schedule-message", transaction, messages=scheduled(b"later"))
            await ask.send(message(b"before the commit"), 0)
            await ask.discharge(transaction)
    async with Emulator(["primary"], seed=1, data_dir=tmp_path) as emulator:
        found = emulator.namespace("primary").get_queue("orders")
        assert found is not None
        assert [one.body for one in map(stored_message, found.main.log) if one.scheduled_enqueue_time] == [b"later"]
        found.cancel_scheduled(list(reply["sequence-numbers"].items))
        assert texts(found) == [b"before the commit"]
