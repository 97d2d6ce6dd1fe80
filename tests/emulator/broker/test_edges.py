"""Edges of mailboxes and transactions that clients seldom meet."""

import asyncio
from dataclasses import dataclass, replace

import pytest

from sbpair.amqp.sections import Section
from sbpair.emulator.broker.messages import MessageStateCode
from sbpair.emulator.broker.transactions import ROLLED_BACK, TransactionGroup, Transactions
from sbpair.emulator.laws import Laws
from sbpair.engine.errors import DISABLED, MESSAGE_NOT_FOUND, NOT_ALLOWED, SESSION_LOCK_LOST, BrokerError
from sbpair.service import EntityStatus
from tests.emulator.broker.conftest import Inbox
from tests.emulator.spender import Spender


def refused(call, *args, **kwargs) -> str:
    with pytest.raises(BrokerError) as caught:
        call(*args, **kwargs)
    return caught.value.condition


@dataclass(eq=False)
class Wary(Inbox):
    """A consumer that says itself for how long it locks, or turns messages down."""

    seconds: float | None = None

    def admit(self, lock_seconds):
        return self.seconds


async def test_nothing_expires_while_nobody_receives(bench):
    queue = bench.queue()
    bench.send(queue, "short", ttl=10)
    bench.send(queue, "long", ttl=100)
    bench.clock.advance(11)
    bench.send(queue, "now")
    assert queue.counts().active == 3
    inbox = bench.receive(queue, 1)
    assert (inbox.texts, queue.counts().active) == (["long"], 2)
    queue.main.release(inbox.token)
    queue.main.leave(inbox)
    bench.clock.advance(89)
    assert bench.receive(queue).texts == ["now"]


async def test_who_turns_a_message_down_is_passed_over(bench):
    queue = bench.queue()
    box, wary, other = queue.main, Wary(), Inbox()
    for consumer in (wary, other):
        box.want(consumer)
    bench.send(queue, "a", "b")
    assert (wary.texts, other.texts) == ([], ["a", "b"])


@pytest.mark.parametrize("session", [None, "s"])
async def test_many_messages_are_handed_out_in_several_turns(bench, session):
    queue = bench.queue(requires_session=session is not None)
    texts = [str(number) for number in range(120)]
    bench.send(queue, *texts, session=session)
    inbox = bench.receive(queue) if session is None else bench.accept(queue, session)
    while queue.main.handout.is_serving(inbox):
        assert 0 < len(inbox.texts) < 120
        await asyncio.sleep(0)
    assert inbox.texts == texts
    bench.send(queue, "more", session=session)
    assert inbox.texts[120:] == ["more"]


@pytest.mark.parametrize(("seconds", "lost_after"), [(5.0, 5), (30.0, 30)])
async def test_a_consumer_may_shorten_the_lock_of_its_session(bench, seconds, lost_after):
    queue = bench.queue(requires_session=True, lock_duration_seconds=30)
    consumer = Wary(session_id="s", seconds=seconds)
    queue.main.sessions.hold("s", consumer)
    bench.clock.advance(1)
    bench.send(queue, "a", session="s")
    queue.main.want(consumer)
    bench.clock.advance(lost_after - (1 if seconds == 30 else 0) - 0.5)
    assert queue.main.sessions.get("s").holder is consumer
    bench.clock.advance(0.5)
    assert queue.main.sessions.get("s").holder is None


@pytest.mark.parametrize("verb", ["abandon", "defer", "dead_letter"])
async def test_properties_go_with_each_way_to_give_a_message_back(bench, verb):
    queue = bench.queue()
    bench.send(queue, "a")
    lock = ("why", None) if verb == "dead_letter" else ()
    getattr(queue.main, verb)(bench.receive(queue, 1).token, *lock, {"tried": "once"})
    [message] = [one for box in queue.mailboxes for one in box.log]
    assert message.section(Section.APPLICATION_PROPERTIES)["tried"] == "once"
    assert queue.counts().size_in_bytes == len(message.payload)


async def test_a_renewal_and_a_deferred_message_are_a_use_of_a_queue(bench):
    queue = bench.queue(auto_delete_on_idle_seconds=300, lock_duration_seconds=250)
    bench.send(queue, "a", "b")
    inbox = bench.receive(queue)
    queue.main.defer(inbox.tokens[0])
    for use in (
        lambda: queue.main.renew(inbox.tokens[1]),
        lambda: queue.main.receive_deferred([1], settled=True),
        lambda: queue.main.abandon(inbox.token),
    ):
        bench.clock.advance(200)
        use()
        assert queue.used_at == bench.clock.now()
    assert bench.namespace.find("orders") is queue


async def test_what_a_session_queue_has_not_is_not_found(bench):
    queue = bench.queue(requires_session=True, lock_duration_seconds=30)
    bench.send(queue, "active", "deferred", session="s")
    queue.send(bench.message("later", session="s", at=bench.clock.now() + 100))
    inbox = bench.accept(queue, "s")
    queue.main.defer(inbox.tokens[1])
    assert queue.main.peek(0, 10, 1000, "t") == []
    for numbers in ([9], [1], [3], [2, 9]):
        assert refused(queue.main.receive_deferred, numbers, settled=False, session_id="s") == MESSAGE_NOT_FOUND
    for numbers in ([9], [1], [2], [3, 1]):
        assert refused(queue.main.cancel_scheduled, numbers) == MESSAGE_NOT_FOUND
    assert refused(queue.main.receive_deferred, [2], settled=False, session_id="t") == SESSION_LOCK_LOST
    bench.clock.advance(10)
    [(message, lock)] = queue.main.receive_deferred([2], settled=False, session_id="s")
    assert lock.until == queue.main.sessions.get("s").locked_until == bench.clock.now() + 20
    assert queue.main.locks.partition_of(lock.token) == 0
    queue.main.complete(lock.token)
    assert (queue.main.locks.partition_of(lock.token), message.state) == (None, MessageStateCode.DEFERRED)


async def test_all_locks_are_freed_uncounted(bench):
    queue = bench.queue(requires_session=True)
    bench.send(queue, "a", session="s")
    queue.main.leave(bench.accept(queue, "t"))
    inbox = bench.accept(queue, "s")
    plain = bench.queue("plain")
    bench.send(plain, "b")
    other = bench.receive(plain, 1)
    for one in (queue, plain):
        one.main.free_all()
        assert [(message.locked, message.delivery_count) for message in one.main.log] == [(False, 0)]
        assert one.main.locks.tokens() == []
    assert queue.main.sessions.get("s").holder is None
    assert (inbox.texts, other.texts) == (["a"], ["b"])


async def test_what_is_scheduled_in_a_queue_goes_with_it(bench):
    queue = bench.queue()
    queue.send(bench.message("later", at=bench.clock.now() + 10))
    bench.namespace.delete_queue("orders")
    bench.clock.advance(10)
    assert (queue.counts().total, queue.counts().size_in_bytes) == (0, 0)


class Bank:
    """Transactions of a bench, each of a client of its own."""

    def __init__(self, bench, laws=None) -> None:
        self.bench, self.client = bench, Spender()
        self.transactions = Transactions(bench.clock, Laws(bent=laws))

    def declare(self, group=None):
        return self.transactions.declare(self.client.budget, group)

    def read(self, entity, *bodies, **fields):
        return [one for body in bodies for one in entity.intake.read(self.bench.message(body, **fields), 0)]

    def commit(self, transaction) -> str:
        """Nothing, or the refusal's words."""
        try:
            list(self.transactions.committing(transaction.id, self.client.budget))
        except BrokerError as error:
            assert error.condition == ROLLED_BACK
            return error.description
        return ""


async def test_a_refused_send_spoils_the_commit_and_the_first_refusal_is_told(bench):
    bank, queue = Bank(bench), bench.queue()
    transaction = bank.declare()
    transaction.send(queue, bank.read(queue, "a"))
    bench.namespace.update_queue("orders", replace(queue.description, status=EntityStatus.DISABLED))
    assert refused(transaction.send, queue, bank.read(queue, "b")) == DISABLED
    bench.namespace.update_queue("orders", replace(queue.description, status=EntityStatus.ACTIVE))
    assert refused(transaction.send, queue, bank.read(queue, *map(str, range(100)))) == NOT_ALLOWED
    assert "disabled" in bank.commit(transaction)
    assert queue.counts().active == 0


@pytest.mark.parametrize("scheduled", [False, True])
async def test_a_transaction_has_one_hundred_messages_at_most(bench, scheduled):
    bank, queue = Bank(bench), bench.queue()
    transaction = bank.declare()
    at = bench.clock.now() + 10 if scheduled else None
    send = transaction.schedule if scheduled else transaction.send
    for count in (60, 40):
        send(queue, bank.read(queue, *map(str, range(count)), at=at))
    assert refused(send, queue, bank.read(queue, "more", at=at)) == NOT_ALLOWED
    assert "more than 100 messages" in bank.commit(transaction)


async def test_a_topic_that_is_deleted_takes_a_cancellation_down(bench):
    bank, topic = Bank(bench), bench.namespace.create_topic("events")
    bench.send(topic, "later", at=bench.clock.now() + 10)
    [message] = topic.scheduled.log
    transaction = bank.declare()
    transaction.cancel_scheduled(topic, [message.sequence_number])
    again = transaction.cancel_scheduled
    assert refused(again, topic, [message.sequence_number]) == MESSAGE_NOT_FOUND
    bench.namespace.delete_topic("events")
    assert "has been deleted" in bank.commit(transaction)


def keys_of(queue, *, together: bool) -> tuple[str, str]:
    """Two keys of one partition, or of two."""
    names = [f"k{number}" for number in range(100)]
    found = [name for name in names[1:] if (queue.numbering.of_key(name) == queue.numbering.of_key("k0")) is together]
    return "k0", found[0]


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(("form", "accepted"), [({}, False), ({"transaction-one-partition": "lax"}, True)])
async def test_two_keys_in_one_transaction(bench, together, form, accepted):
    bank, queue = Bank(bench, form), bench.queue(enable_partitioning=True)
    first, second = keys_of(queue, together=together)
    transaction = bank.declare()
    transaction.send(queue, bank.read(queue, "a", key=first))
    if not accepted:
        with pytest.raises(BrokerError, match="must have the same partition key"):
            transaction.send(queue, bank.read(queue, "b", key=second))
    else:
        transaction.send(queue, bank.read(queue, "b", key=second))
    assert (bank.commit(transaction) == "") is accepted
    assert queue.counts().active == (2 if accepted else 0)


async def test_spellings_of_a_session_are_one_key(bench):
    bank, queue = Bank(bench), bench.queue(enable_partitioning=True)
    transaction = bank.declare()
    for name in ("s", "S"):
        transaction.send(queue, bank.read(queue, name, session=name))
    assert bank.commit(transaction) == ""
    assert queue.counts().active == 2


async def test_through_a_partitioned_queue_a_session_binds_what_has_no_key_for_that(bench):
    bank, via, end = Bank(bench), bench.queue("via", enable_partitioning=True), bench.queue("end")
    group = TransactionGroup()
    group.via = via
    transaction = bank.declare(group)
    transaction.send(end, bank.read(end, "a", session="s"))
    assert refused(transaction.send, end, bank.read(end, "b")) == NOT_ALLOWED
    assert "without partition key or session id" in bank.commit(transaction)
    group.check_receiver("via")
    assert refused(group.check_receiver, "end") == NOT_ALLOWED


async def test_what_was_found_out_of_a_message_holds_when_it_is_published(bench):
    """It has one number, and the copies that the rules of then made of it."""
    topic = bench.namespace.create_topic("events")
    subscription = bench.namespace.create_subscription("events", "s")
    work = topic.accepting(topic.intake.read(bench.message("a"), 0))
    next(work)
    bench.namespace.delete_rule("events", "s", "$Default")
    list(work)
    assert (topic.numbering.last, bench.receive(subscription).texts) == ([1], ["a"])


@pytest.mark.parametrize(("form", "pages"), [({}, 4), ({"peek-one-partition": "lax"}, 1)])
async def test_a_page_of_a_partitioned_queue_has_one_partition_or_all(make_bench, form, pages):
    bench = make_bench(laws=form)
    queue = bench.queue(enable_partitioning=True)
    bench.send(queue, *"abcd")
    assert len(bench.peek(queue)) == 4 // pages
