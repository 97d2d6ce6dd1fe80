"""What open transactions may take, who may open them, and whose they are."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sbpair.amqp.performatives import (
    ACCEPTED,
    ATTACH,
    DECLARE,
    DETACH,
    REJECTED,
    TRANSACTIONAL_STATE,
    TRANSFER,
    accepted,
)
from sbpair.amqp.sections import build
from sbpair.amqp.types import Described, Ulong
from sbpair.emulator.broker.transactions import MAX_PARTS_PER_TRANSACTION, UNKNOWN_ID, Transactions
from sbpair.emulator.laws import Laws
from sbpair.emulator.server import Emulator
from sbpair.engine import errors
from sbpair.engine.budgets import (
    MAX_HELD_BYTES,
    MAX_OPEN_TRANSACTIONS,
    MAX_OPEN_TRANSACTIONS_BEFORE_TOKEN,
    TRANSACTION_BYTES,
    TRANSACTION_HEADROOM_BYTES,
    Memory,
)
from sbpair.engine.clock import ManualClock
from sbpair.engine.errors import BrokerError
from tests.emulator.broker.test_transactions import COORDINATOR_HANDLE, Asking, connected, message, texts
from tests.emulator.spender import Spender
from tests.engine.dialects import Dialect
from tests.engine.wire_client import Client, seen

DECLARATION = build(value=Described(Ulong(DECLARE), []))


def condition(outcome: Described) -> str:
    """The error of a rejection, in a transaction or outside any."""
    if outcome.descriptor == TRANSACTIONAL_STATE:
        outcome = outcome.value[1]
    assert outcome.descriptor == REJECTED
    return str(outcome.value[0].value[0])


async def coordinator(emulator: Emulator, dialect: Dialect) -> Client:
    """A connection without a token, with a link to the coordinator."""
    host, _, port = emulator.endpoint("primary").partition(":")
    client = Client(*await asyncio.open_connection(host, int(port)), dialect)
    await client.session()
    client.attach(COORDINATOR_HANDLE, "x", sends=True, target=Described(Ulong(0x30), [None]))
    await client.until(ATTACH)
    return client


Use = Callable[[Asking, bytes], Awaitable[Described]]


async def _send(ask: Asking, transaction: bytes) -> Described:
    await ask.client.sender("orders", 3)
    return await ask.send(message(b"theirs"), 3, transaction)


async def _settle(ask: Asking, transaction: bytes) -> Described:
    await ask.client.receiver("source", 4, credit=1)
    return await ask.settle(await ask.client.until(TRANSFER), accepted(), transaction)


async def _commit(ask: Asking, transaction: bytes) -> Described:
    return await ask.discharge(transaction)


async def _roll_back(ask: Asking, transaction: bytes) -> Described:
    return await ask.discharge(transaction, failed=True)


@pytest.mark.parametrize("use", [_send, _settle, _commit, _roll_back], ids=["send", "settle", "commit", "rollback"])
async def test_a_transaction_is_known_to_its_own_connection_only(
    emulator: Emulator, dialect: Dialect, use: Use
) -> None:
    namespace = emulator.namespace("primary")
    queue, source = namespace.create_queue("orders"), namespace.create_queue("source")
    source.send(message(b"work"))
    async with connected(emulator, dialect) as owner, connected(emulator, dialect) as other:
        ask = Asking(owner)
        await owner.sender("orders", 0)
        transaction = await ask.declare()
        await ask.send(message(b"mine"), 0, transaction)
        assert condition(await use(Asking(other), transaction)) == UNKNOWN_ID
        assert texts(queue) == []
        assert (await ask.discharge(transaction)).descriptor == ACCEPTED
    assert (texts(queue), texts(source)) == ([b"mine"], [b"work"])


async def test_a_connection_without_a_token_declares_few_and_does_nothing_in_them(
    emulator: Emulator, dialect: Dialect
) -> None:
    """.NET declares before its first token where a program begins with a TransactionScope."""
    client = await coordinator(emulator, dialect)
    try:
        for _ in range(MAX_OPEN_TRANSACTIONS_BEFORE_TOKEN):
            await Asking(client).declare()
        assert condition(await Asking(client).send(DECLARATION, COORDINATOR_HANDLE)) == errors.QUOTA
        assert len(emulator.namespace("primary").transactions) == MAX_OPEN_TRANSACTIONS_BEFORE_TOKEN
        emulator.namespace("primary").create_queue("orders")
        client.attach(3, "orders", sends=True)
        assert (await client.until(DETACH)).error[0] == errors.UNAUTHORIZED
    finally:
        client.writer.transport.abort()


async def test_each_connection_has_its_own_number_of_open_transactions(emulator: Emulator, dialect: Dialect) -> None:
    namespace = emulator.namespace("primary")
    async with connected(emulator, dialect) as greedy, connected(emulator, dialect) as healthy:
        asking = Asking(greedy)
        declared = [await asking.declare() for _ in range(MAX_OPEN_TRANSACTIONS)]
        assert condition(await asking.send(DECLARATION, COORDINATOR_HANDLE)) == errors.QUOTA
        await Asking(healthy).declare()
        await asking.discharge(declared[0], failed=True)
        await asking.declare()
        assert len(namespace.transactions) == MAX_OPEN_TRANSACTIONS + 1
    await seen(lambda: not len(namespace.transactions))


async def test_what_open_transactions_hold_counts_for_their_connection(emulator: Emulator) -> None:
    """Sends beyond the limit are refused, and a transaction with such a send cannot be committed."""
    transactions = Transactions(ManualClock(), Laws())
    queue = emulator.namespace("primary").create_queue("orders")
    memory = Memory()
    client, other = Spender(memory), Spender(memory)
    large = message(b"x" * 200_000)
    accepted_count = 0
    with pytest.raises(BrokerError) as caught:
        while True:
            transaction = transactions.declare(client.budget)
            for _ in range(100):
                transaction.send(queue, queue.intake.read(large, 0))
                accepted_count += 1
    assert caught.value.condition == errors.QUOTA
    most = MAX_HELD_BYTES - TRANSACTION_HEADROOM_BYTES
    assert 0.99 * most < accepted_count * len(large) <= memory.used_bytes <= most
    assert client.ended_with is None
    with pytest.raises(BrokerError, match="too many bytes"):
        list(transactions.committing(transaction.id, client.budget))
    transactions.declare(other.budget).send(queue, queue.intake.read(large, 0))
    transactions.close()
    assert (memory.used_bytes, client.budget.open_transactions, other.budget.open_transactions) == (0, 0, 0)
    assert queue.counts().active == 0


async def test_transactions_of_all_connections_together_have_a_limit_and_the_largest_goes(emulator: Emulator) -> None:
    transactions = Transactions(ManualClock(), Laws())
    queue = emulator.namespace("primary").create_queue("orders")
    memory = Memory(limit_bytes=1_000_000)
    small, large = Spender(memory), Spender(memory)
    transactions.declare(small.budget).send(queue, queue.intake.read(message(b"x" * 200_000), 0))
    transaction = transactions.declare(large.budget)
    for _ in range(4):
        transaction.send(queue, queue.intake.read(message(b"x" * 200_000), 0))
    assert (small.ended_with, large.ended_with) == (None, errors.QUOTA)


async def test_a_declaration_for_which_there_is_no_memory_leaves_nothing(emulator: Emulator) -> None:
    transactions = Transactions(ManualClock(), Laws())
    client = Spender(Memory(limit_bytes=TRANSACTION_BYTES - 1))
    with pytest.raises(BrokerError) as caught:
        transactions.declare(client.budget)
    assert caught.value.condition == errors.QUOTA
    assert client.ended_with == errors.QUOTA
    assert (len(transactions), client.budget.open_transactions, client.budget.held_bytes) == (0, 0, 0)


async def test_a_commit_does_so_many_things_at_once_and_no_more(emulator: Emulator) -> None:
    transactions, client = Transactions(ManualClock(), Laws()), Spender()
    transaction = transactions.declare(client.budget)
    for _ in range(MAX_PARTS_PER_TRANSACTION):
        transaction.change(lambda: None, lambda: None)
    with pytest.raises(BrokerError) as caught:
        transaction.change(lambda: None, lambda: None)
    assert caught.value.condition == errors.QUOTA
    with pytest.raises(BrokerError, match="rolled back"):
        list(transactions.committing(transaction.id, client.budget))
    assert client.budget.held_bytes == 0


async def test_a_request_that_outlives_its_transaction_holds_nothing(emulator: Emulator) -> None:
    transactions, client = Transactions(ManualClock(), Laws()), Spender()
    transaction = transactions.declare(client.budget)
    transactions.roll_back(transaction.id, client.budget)
    with pytest.raises(BrokerError) as caught:
        transaction.hold(1000)
    assert (caught.value.condition, client.budget.held_bytes) == (UNKNOWN_ID, 0)


async def test_a_commit_that_is_broken_off_while_rules_are_gone_through_is_a_rollback(emulator: Emulator) -> None:
    transactions, client = Transactions(ManualClock(), Laws()), Spender()
    namespace = emulator.namespace("primary")
    topic = namespace.create_topic("events")
    subscription = namespace.create_subscription("events", "all")
    transaction = transactions.declare(client.budget)
    for body in (b"one", b"two"):
        transaction.send(topic, topic.intake.read(message(body), 0))
    work = transactions.committing(transaction.id, client.budget)
    next(work)
    assert subscription.counts().active == 0
    work.close()
    assert (subscription.counts().active, len(transactions), client.budget.held_bytes) == (0, 0, 0)
