"""The durable store: everything is back after a restart, nothing is confirmed before it is safe, kill -9 included."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import uuid

import pytest

from sbpair.amqp.sections import build
from sbpair.amqp.types import Int, Symbol
from sbpair.emulator.broker.messages import MessageStateCode
from sbpair.emulator.entities import (
    AuthorizationRule,
    CorrelationFilter,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    TopicDescription,
)
from sbpair.emulator.namespace import Namespace
from sbpair.emulator.store import open_store
from sbpair.engine.errors import BrokerError, StoreError
from tests.waiting import LIMIT_SECONDS


@pytest.fixture
def durable(bench, tmp_path):
    """Opens the namespace on the same file again and again, as restarts do."""
    opened: list[Namespace] = []

    def start() -> Namespace:
        if opened:
            opened.pop().close()
        bench.namespace = Namespace("bench", clock=bench.clock, store=open_store(tmp_path / "bench"))
        opened.append(bench.namespace)
        return bench.namespace

    yield start
    opened.pop().close()


async def test_entities_with_all_settings_come_back(bench, durable):
    namespace = durable()
    key = AuthorizationRule(name="k", rights=frozenset({"Send"}), primary_key="a", secondary_key="b")
    queue = namespace.create_queue("A/b", QueueDescription(max_delivery_count=7, authorization_rules=(key,)))
    description, created_at = queue.description, queue.created_at
    namespace.create_topic("t", TopicDescription(enable_partitioning=True))
    namespace.create_subscription("t", "s")
    rule = RuleDescription(
        filter=SqlFilter(expression="a = @p", parameters={"p": Int(5), "q": uuid.UUID(int=1), "r": 1}),
        action=SqlAction(expression="SET a = 1"),
    )
    namespace.create_rule("t", "s", "r", rule)
    other = RuleDescription(filter=CorrelationFilter(label="x", properties={"n": Symbol("sym")}))
    namespace.create_rule("t", "s", "c", other)
    secret = namespace.auth_rules["RootManageSharedAccessKey"].primary_key
    bench.clock.advance(3)
    namespace = durable()
    assert namespace.get_queue("a/B").description == description
    assert namespace.get_queue("a/B").created_at == created_at
    assert [one.description for one in namespace.rules("t", "s")] == [RuleDescription(), other, rule]
    assert namespace.get_topic("t").description.enable_partitioning
    assert namespace.auth_rules["RootManageSharedAccessKey"].primary_key == secret


@pytest.mark.law("locks-survive-restart")
async def test_messages_come_back_with_bytes_counts_and_states(bench, durable):
    queue = durable().create_queue("q")
    payload = build(header=[True], properties=["id"], application_properties={"n": Int(1)}, data=[b"a", b"b"])
    queue.send(payload)
    bench.send(queue, "deferred", "dead", "done", "locked")
    queue.send(bench.message("scheduled", at=bench.clock.now() + 100))
    first = bench.receive(queue, 1)
    queue.main.abandon(first.token)
    inbox = bench.receive(queue)
    queue.main.defer(inbox.tokens[1])
    queue.main.dead_letter(inbox.tokens[2], "why", None)
    queue.main.complete(inbox.tokens[3])
    size = queue.counts().size_in_bytes
    queue = durable().get_queue("q")
    assert [(one.sequence_number, one.state, one.delivery_count) for one in queue.main.log] == [
        (1, MessageStateCode.ACTIVE, 1),
        (2, MessageStateCode.DEFERRED, 1),
        (5, MessageStateCode.ACTIVE, 0),
        (6, MessageStateCode.SCHEDULED, 0),
    ]
    assert bench.peek(queue)[0].payload == payload
    assert bench.receive(queue.dead_letters).texts == ["dead"]
    assert queue.counts().size_in_bytes == size
    bench.clock.advance(101)
    assert bench.receive(queue).texts[-1] == "scheduled"


async def test_numbers_are_never_given_twice(bench, durable):
    queue = durable().create_queue("q")
    bench.send(queue, "a", "b")
    for token in bench.receive(queue).tokens:
        queue.main.complete(token)
    queue = durable().get_queue("q")
    bench.send(queue, "c")
    assert bench.peek(queue)[0].sequence_number == 3


async def test_sessions_duplicates_topics_and_transfers_come_back(bench, durable, make_inbox):
    namespace = durable()
    settings = QueueDescription(requires_session=True, requires_duplicate_detection=True)
    queue = namespace.create_queue("q", settings)
    bench.send(queue, "a", session="s", message_id="1")
    bench.accept(queue, "s")
    namespace.journal.put_session(queue, queue.main.sessions.set_state("s", b"state"))
    topic = namespace.create_topic("t")
    namespace.create_subscription("t", "sub")
    topic.accept(topic.intake.read(bench.message("later", at=bench.clock.now() + 50), 0))
    end = namespace.create_queue("end")
    end.quota.limit_bytes = 1
    bench.send(namespace.create_queue("start", QueueDescription(forward_to="end")), "moving")
    namespace = durable()
    queue = namespace.get_queue("q")
    bench.send(queue, "again", session="s", message_id="1")
    waiter = make_inbox()
    assert queue.main.sessions.wait(waiter)
    queue.main.want(waiter)
    assert (waiter.session_id, waiter.texts) == ("s", ["a"])
    assert queue.main.sessions.get("s").state == b"state"
    assert namespace.get_queue("start").counts().transfer == 1
    bench.clock.advance(51)
    assert bench.receive(namespace.get_queue("end")).texts == ["moving"]
    assert bench.receive(namespace.get_subscription("t", "sub")).texts == ["later"]


async def test_deleting_takes_everything_along(bench, durable, tmp_path):
    namespace = durable()
    topic = namespace.create_topic("t")
    namespace.create_subscription("t", "s")
    namespace.create_topic("t2")
    namespace.create_subscription("t2", "s")
    bench.send(topic, "a")
    namespace.delete_topic("t")
    namespace = durable()
    assert [one.path for one in namespace.topics()] == ["t2"]
    assert len(namespace.subscriptions("t2")) == 1
    namespace.close()
    with sqlite3.connect(tmp_path / "bench" / "namespace.sqlite3") as database:
        assert database.execute("SELECT count(*) FROM messages").fetchone() == (0,)


async def test_confirmation_waits_for_the_commit_and_keeps_order(bench, durable):
    namespace = durable()
    queue = namespace.create_queue("q")
    await asyncio.sleep(0)
    told = []
    bench.send(queue, "a")
    namespace.when_durable(lambda: told.append("sent"))
    namespace.when_durable(lambda: told.append("second"))
    assert told == []
    await asyncio.sleep(0)
    assert told == ["sent", "second"]
    namespace.when_durable(lambda: told.append("nothing pending"))
    assert told[-1] == "nothing pending"


async def test_headers_that_dead_lettering_made_too_large_come_back(bench, durable):
    queue = durable().create_queue("q")
    bench.send(queue, "a", properties={"p": "x" * 65_000})
    queue.main.dead_letter(bench.receive(queue).token, "r" * 1000, None)
    queue = durable().get_queue("q")
    assert bench.receive(queue.dead_letters).texts == ["a"]


async def test_a_failing_disk_confirms_nothing_and_is_tried_again(bench, durable):
    namespace = durable()
    queue = namespace.create_queue("q")
    namespace.journal.flush()
    told = []
    bench.send(queue, "a")
    namespace.when_durable(lambda: told.append("sent"))
    queue.main.log.first().payload = object()
    namespace.journal.put_message(queue, "main", queue.main.log.first())
    with pytest.raises(sqlite3.Error):
        namespace.journal.flush()
    assert told == []
    namespace.journal._pending.pop()
    namespace.journal.flush()
    assert told == ["sent"]
    queue.main.log.first().payload = bench.message("a")


async def test_two_processes_cannot_share_a_store(durable, tmp_path):
    durable()
    with pytest.raises(StoreError):
        open_store(tmp_path / "bench")


async def test_a_file_that_is_no_store(tmp_path):
    (tmp_path / "namespace.sqlite3").write_bytes(b"this is not a database" * 100)
    with pytest.raises(StoreError):
        open_store(tmp_path)


VICTIM = """
import asyncio, sys
from pathlib import Path
from sbpair.amqp.sections import build
from sbpair.engine.clock import SystemClock
from sbpair.engine.errors import BrokerError
from sbpair.emulator.namespace import Namespace
from sbpair.emulator.store import open_store

async def main():
    namespace = Namespace("n", clock=SystemClock(), store=open_store(Path(sys.argv[1])))
    queue = namespace.create_queue("q")
    for number in range(1_000_000):
        queue.send(build(data=str(number).encode()))
        namespace.when_durable(lambda number=number: print(number, flush=True))
        if number % 3 == 0:
            await asyncio.sleep(0)

asyncio.run(main())
"""


async def test_what_was_confirmed_survives_kill_9(bench, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", VICTIM, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    confirmed = [int(process.stdout.readline()) for _ in range(50)]
    os.kill(process.pid, signal.SIGKILL)
    confirmed += [int(line) for line in process.stdout.read().split()]
    process.wait()
    process.stdout.close()
    namespace = Namespace("n", clock=bench.clock, store=open_store(tmp_path))
    queue = namespace.get_queue("q")
    inbox = bench.receive(queue, 1_000_000)
    while queue.main.handout.is_serving(inbox):  # some messages in each turn of the loop
        await asyncio.sleep(0)
    stored = inbox.texts
    namespace.close()
    assert stored[: len(confirmed)] == [str(number) for number in confirmed]
    assert stored == [str(number) for number in range(len(stored))]


async def test_a_new_key_is_safe_as_soon_as_that_is_said(bench, durable, tmp_path):
    namespace = durable()
    await asyncio.sleep(0)
    rule = AuthorizationRule(name="ours", rights=frozenset({"Send"}), primary_key="a", secondary_key="b")
    told = asyncio.Event()
    namespace.set_auth_rule(rule)
    namespace.when_durable(told.set)
    await told.wait()
    # What the file holds now is what a killed process leaves behind; the store itself has locked it for others.
    kept = namespace.journal._database.execute("SELECT value FROM settings").fetchone()[0]
    assert '"ours"' in kept


async def test_a_full_disk_refuses_before_anything_changes_and_goes_on_by_itself(bench, durable, caplog):
    namespace = durable()
    queue = namespace.create_queue("q")
    namespace.journal.flush()
    database = namespace.journal._database
    pages = database.execute("PRAGMA page_count").fetchone()[0]
    database.execute(f"PRAGMA max_page_count = {pages}")
    told = []
    bench.send(queue, "x" * 100_000)
    namespace.when_durable(lambda: told.append("safe"), lambda: told.append("unknown"))
    namespace.when_durable(lambda: told.append("delivered"))
    async with asyncio.timeout(LIMIT_SECONDS):
        while namespace.journal.failure is None:
            await asyncio.sleep(0)
    assert told == ["unknown"]
    with pytest.raises(BrokerError, match="Nothing was changed"):
        namespace.check_store()
    database.execute("PRAGMA max_page_count = 1000000")
    async with asyncio.timeout(LIMIT_SECONDS):
        while namespace.journal.failure is not None:
            await asyncio.sleep(0.05)
    assert told == ["unknown", "delivered"]
    namespace.check_store()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert bench.receive(durable().get_queue("q")).texts == ["x" * 100_000]


async def test_what_was_forwarded_before_a_restart_is_not_forwarded_again(bench, durable):
    """Neither what went on at once nor what had to wait for a destination."""
    namespace = durable()
    end, start = namespace.create_queue("end"), namespace.create_queue("start", QueueDescription(forward_to="end"))
    bench.send(start, "at once")
    end.quota.limit_bytes = 1
    bench.send(start, "later")
    assert start.counts().transfer == 1
    end.quota.limit_bytes = 1000
    bench.clock.advance(6)
    namespace = durable()
    assert namespace.get_queue("start").counts().transfer == 0
    bench.clock.advance(6)
    assert bench.receive(namespace.get_queue("end")).texts == ["at once", "later"]


async def test_a_number_in_use_does_not_hide_the_last_one(bench, durable):
    queue = durable().create_queue("q")
    bench.send(queue, "a", "b", "c")
    inbox = bench.receive(queue)
    queue.main.dead_letter(inbox.tokens[0], None, None)
    queue.main.complete(inbox.tokens[2])
    queue = durable().get_queue("q")
    bench.send(queue, "d")
    assert [message.sequence_number for message in bench.peek(queue)] == [2, 4]
