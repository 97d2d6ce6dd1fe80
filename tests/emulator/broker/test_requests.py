"""The management operations, as calls without links."""

import uuid

import pytest

from sbpair.amqp.types import Array, Described, Int, Long, Symbol, Timestamp, Ulong
from sbpair.emulator.broker.addresses import locate
from sbpair.emulator.entities import CorrelationFilter, RuleDescription, SqlAction, SqlFilter
from sbpair.emulator.requests.node import OPERATIONS
from sbpair.emulator.requests.operations import Call
from sbpair.engine.budgets import finish
from sbpair.engine.errors import (
    ARGUMENT_ERROR,
    ARGUMENT_OUT_OF_RANGE,
    ENTITY_EXISTS,
    MESSAGE_LOCK_LOST,
    MESSAGE_NOT_FOUND,
    NOT_ALLOWED,
    NOT_FOUND,
    SESSION_LOCK_LOST,
    BrokerError,
)

ALL_SESSIONS = Timestamp(253_402_300_800_000)


@pytest.fixture
def perform(bench):
    def call(operation, address, **body):
        location = locate(bench.namespace, address)
        entries = {name.replace("_", "-"): value for name, value in body.items()}
        return finish(OPERATIONS[f"com.microsoft:{operation}"].perform(Call(bench.namespace, location, entries)))

    return call


def refused(perform, *args, **kwargs):
    with pytest.raises(BrokerError) as caught:
        perform(*args, **kwargs)
    return caught.value.condition


def longs(*values):
    return Array(0x81, tuple(Long(value) for value in values))


def uuids(*values):
    return Array(0x98, tuple(values))


async def test_peek(bench, perform, sections_of):
    queue = bench.queue()
    bench.send(queue, "a", "b", "c")
    bench.receive(queue, 1)
    reply = perform("peek-message", "orders", from_sequence_number=Long(2), message_count=Int(10))
    bodies = [sections_of(entry["message"]) for entry in reply.body["messages"]]
    assert reply.status == 200
    assert [list(body.values())[-1] for body in bodies] == [b"b", b"c"]
    nothing = perform("peek-message", "orders", from_sequence_number=Long(4), message_count=Int(10))
    assert (nothing.status, nothing.body) == (204, {})


async def test_a_peek_page_is_bounded_in_number_and_bytes(bench, perform):
    queue = bench.queue()
    bench.send(queue, *map(str, range(300)))
    page = perform("peek-message", "orders", from_sequence_number=Long(0), message_count=Int(1000))
    assert len(page.body["messages"]) == 250
    big = bench.queue("big")
    for _ in range(3):
        big.send(bench.message(b"x" * 200_000))
    page = perform("peek-message", "big", from_sequence_number=Long(0), message_count=Int(3))
    assert len(page.body["messages"]) == 1


async def test_renew_lock(bench, perform):
    queue = bench.queue(lock_duration_seconds=30)
    bench.send(queue, "a")
    inbox = bench.receive(queue)
    bench.clock.advance(10)
    reply = perform("renew-lock", "orders", lock_tokens=uuids(inbox.token))
    assert reply.body["expirations"].items == (Timestamp(round((bench.clock.now() + 30) * 1000)),)
    assert refused(perform, "renew-lock", "orders", lock_tokens=uuids(uuid.uuid4())) == MESSAGE_LOCK_LOST


async def test_schedule_and_cancel(bench, perform):
    queue = bench.queue()
    payload = bench.message("later", at=bench.clock.now() + 10)
    reply = perform("schedule-message", "orders", messages=[{"message-id": "1", "message": payload}] * 2)
    assert reply.body["sequence-numbers"] == longs(1, 2)
    assert perform("cancel-scheduled-message", "orders", sequence_numbers=longs(1)).status == 200
    assert refused(perform, "cancel-scheduled-message", "orders", sequence_numbers=longs(1)) == MESSAGE_NOT_FOUND
    bench.clock.advance(10)
    assert bench.receive(queue).texts == ["later"]


async def test_scheduling_needs_a_time_and_a_message(bench, perform):
    bench.queue()
    untimed = [{"message": bench.message("x")}]
    assert refused(perform, "schedule-message", "orders", messages=untimed) == ARGUMENT_ERROR
    assert refused(perform, "schedule-message", "orders", messages=[{"message": "text"}]) == ARGUMENT_ERROR
    assert refused(perform, "schedule-message", "orders") == ARGUMENT_ERROR


async def test_deferred_messages(bench, perform):
    queue = bench.queue()
    bench.send(queue, "a", "b")
    for token in bench.receive(queue).tokens:
        queue.main.defer(token)
    reply = perform("receive-by-sequence-number", "orders", sequence_numbers=longs(1), receiver_settle_mode=Int(1))
    [entry] = reply.body["messages"]
    perform("update-disposition", "orders", disposition_status="completed", lock_tokens=uuids(entry["lock-token"]))
    reply = perform("receive-by-sequence-number", "orders", sequence_numbers=longs(2), receiver_settle_mode=Int(0))
    assert "lock-token" not in reply.body["messages"][0]
    assert queue.counts().active == 0
    body = {"sequence_numbers": longs(9), "receiver_settle_mode": Int(1)}
    assert refused(perform, "receive-by-sequence-number", "orders", **body) == MESSAGE_NOT_FOUND


@pytest.mark.parametrize(
    ("status", "active", "dead"), [("completed", 0, 0), ("abandoned", 1, 0), ("defered", 1, 0), ("suspended", 0, 1)]
)
async def test_update_disposition(bench, perform, status, active, dead):
    queue = bench.queue()
    bench.send(queue, "a")
    token = bench.receive(queue, 1).token
    body = {
        "disposition_status": status,
        "lock_tokens": uuids(token),
        "deadletter_reason": "r",
        "properties_to_modify": {"more": "x"},
    }
    assert perform("update-disposition", "orders", **body).status == 200
    assert (queue.counts().active, queue.counts().dead_letter) == (active, dead)
    assert refused(perform, "update-disposition", "orders", **body) == MESSAGE_LOCK_LOST
    body["disposition_status"] = "vanished"
    assert refused(perform, "update-disposition", "orders", **body) == ARGUMENT_ERROR


@pytest.mark.parametrize("empty", [None, b""])
async def test_session_operations(bench, perform, empty):
    queue = bench.queue(requires_session=True, lock_duration_seconds=30)
    bench.send(queue, "x", session="b")
    inbox = bench.accept(queue, "a")
    assert perform("set-session-state", "orders", session_id="a", session_state=b"s").status == 200
    assert perform("get-session-state", "orders", session_id="a").body == {"session-state": b"s"}
    bench.clock.advance(10)
    expiration = perform("renew-session-lock", "orders", session_id="a").body["expiration"]
    assert expiration == Timestamp(round((bench.clock.now() + 30) * 1000))
    listed = perform("get-message-sessions", "orders", last_updated_time=ALL_SESSIONS, skip=Int(0), top=Int(10))
    assert listed.body == {"sessions-ids": Array(0xB1, ("a", "b")), "skip": Int(2)}
    rest = perform("get-message-sessions", "orders", last_updated_time=ALL_SESSIONS, skip=Int(2), top=Int(10))
    assert rest.status == 204
    perform("set-session-state", "orders", session_id="a", session_state=empty)
    assert perform("get-session-state", "orders", session_id="a").body == {"session-state": None}
    queue.main.leave(inbox)
    assert refused(perform, "renew-session-lock", "orders", session_id="a") == SESSION_LOCK_LOST
    bench.queue("plain")
    assert refused(perform, "renew-session-lock", "plain", session_id="a") == NOT_ALLOWED


async def test_rule_operations(bench, perform):
    bench.namespace.create_topic("t")
    bench.namespace.create_subscription("t", "s")
    address = "t/Subscriptions/s"
    sql = {"sql-filter": {"expression": "a = 1"}, "sql-rule-action": {"expression": "SET b = 2"}}
    perform("add-rule", address, rule_name="sql", rule_description=sql)
    correlation = {"correlation-filter": {"label": "x", "to": None, "properties": {"n": Int(1)}}}
    perform("add-rule", address, rule_name="corr", rule_description=correlation)
    assert refused(perform, "add-rule", address, rule_name="sql", rule_description=sql) == ENTITY_EXISTS
    bad = {"sql-filter": {"expression": "a ="}}
    assert refused(perform, "add-rule", address, rule_name="bad", rule_description=bad) == ARGUMENT_ERROR
    rules = {rule.name: rule.description for rule in bench.namespace.rules("t", "s")}
    assert rules["sql"] == RuleDescription(
        filter=SqlFilter(expression="a = 1"), action=SqlAction(expression="SET b = 2")
    )
    assert rules["corr"] == RuleDescription(filter=CorrelationFilter(label="x", properties={"n": Int(1)}))
    listed = [
        entry["rule-description"]
        for entry in perform("enumerate-rules", address, skip=Int(0), top=Int(10)).body["rules"]
    ]
    assert [(one.descriptor, one.value[2]) for one in listed] == [
        (Ulong(0x13700000004), "$Default"),
        (Ulong(0x13700000004), "corr"),
        (Ulong(0x13700000004), "sql"),
    ]
    assert listed[0].value[0] == Described(Ulong(0x1370000007), [])
    assert listed[2].value[0].value[0] == "a = 1"
    perform("remove-rule", address, rule_name="sql")
    assert refused(perform, "remove-rule", address, rule_name="sql") == NOT_FOUND
    assert perform("enumerate-rules", address, skip=Int(2), top=Int(10)).status == 204


async def test_batch_delete(bench, perform):
    queue = bench.queue()
    bench.send(queue, *map(str, range(5)))
    cutoff = Timestamp(round(bench.clock.now() * 1000) + 500)
    locked = bench.receive(queue, 1)
    bench.clock.advance(1)
    bench.send(queue, "young")
    reply = perform("batch-delete-messages", "orders", message_count=Int(3), enqueued_time_utc=cutoff)
    assert reply.body == {"message-count": Int(3)}
    reply = perform("batch-delete-messages", "orders", message_count=Int(30), enqueued_time_utc=cutoff)
    assert reply.body == {"message-count": Int(1)}
    assert perform("batch-delete-messages", "orders", message_count=Int(1), enqueued_time_utc=cutoff).status == 204
    queue.main.release(locked.token)
    assert sorted(bench.receive(queue).texts) == ["0", "young"]
    body = {"message_count": Int(0), "enqueued_time_utc": cutoff}
    assert refused(perform, "batch-delete-messages", "orders", **body) == ARGUMENT_OUT_OF_RANGE
    bench.queue("p", enable_partitioning=True)
    assert refused(perform, "batch-delete-messages", "p", message_count=Int(1)) == NOT_ALLOWED


async def test_a_topic_holds_nothing_to_receive(bench, perform):
    bench.namespace.create_topic("t")
    assert refused(perform, "renew-lock", "t", lock_tokens=uuids(uuid.uuid4())) == NOT_ALLOWED
    assert perform("peek-message", "t", from_sequence_number=Long(0), message_count=Int(1)).status == 204


@pytest.mark.parametrize("tokens", [None, [], ["x"], Array(0xB1, ("x",)), Symbol("x")])
async def test_mistyped_entries(bench, perform, tokens):
    bench.queue()
    assert refused(perform, "renew-lock", "orders", lock_tokens=tokens) == ARGUMENT_ERROR
