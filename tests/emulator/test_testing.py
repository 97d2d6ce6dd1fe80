"""`EmbeddedNamespace` and the pytest fixture, as the tests of an application use them."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

import sbpair
from sbpair.cli.emulator import compatibility
from sbpair.emulator import EmbeddedNamespace, EmulatorError, EmulatorThread
from sbpair.emulator.namespace import Namespace
from sbpair.emulator.seed import SeedError
from sbpair.engine.clock import AdvancingClock
from sbpair.engine.errors import EntityError
from tests.cli.test_contents import parse
from tests.waiting import LIMIT_SECONDS


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorThread]:
    with EmulatorThread([]) as running:
        yield running


@pytest.fixture
def servicebus(emulator: EmulatorThread) -> Iterator[EmbeddedNamespace]:
    with EmbeddedNamespace(emulator=emulator, trace=True) as namespace:
        yield namespace


def test_entities_are_made_when_they_are_named(servicebus: EmbeddedNamespace) -> None:
    queue = servicebus.queue("orders", lock_duration=timedelta(seconds=5), requires_session=True)
    assert servicebus.queue("orders").path == "orders"
    assert servicebus.queue("orders", lock_duration="PT5S").path == queue.path
    described = servicebus.call(lambda namespace: namespace.queues()[0].description)
    assert (described.lock_duration_seconds, described.requires_session) == (5, True)
    with pytest.raises(EmulatorError, match=r"with another lock_duration$"):
        servicebus.queue("orders", lock_duration=timedelta(seconds=6))
    with pytest.raises(SeedError, match=r"queue: unknown key 'lock_durations'; did you mean 'lock_duration'\?"):
        servicebus.queue("other", lock_durations=5)
    with pytest.raises(EntityError):
        servicebus.queue("other", lock_duration=timedelta(hours=1))
    servicebus.reset()
    with pytest.raises(EmulatorError, match="no queue 'orders' any more"):
        _ = queue.messages


def test_what_was_sent_is_read_as_plain_values(servicebus: EmbeddedNamespace) -> None:
    queue = servicebus.queue("orders")
    queue.send(
        {"number": 7}, session_id="anna", properties={"amount": 12, "name": "ä"}, time_to_live=timedelta(hours=1)
    )
    (message,) = queue.assert_sent(body={"number": 7}, session_id="anna", properties={"amount": 12})
    assert message.json() == {"number": 7}
    assert message.properties == {"amount": 12, "name": "ä"}
    assert [type(value) for value in message.properties.values()] == [int, str]
    assert message.time_to_live == timedelta(hours=1)
    (stored,) = queue.messages
    assert stored.enqueued_time is not None
    assert (stored.sequence_number, stored.delivery_count, stored.text) == (1, 0, '{"number": 7}')
    queue.assert_sent(count=1, body=b'{"number": 7}')
    with pytest.raises(EmulatorError, match="no 'gone' any more"):
        gone = servicebus.queue("gone")
        servicebus.call(lambda namespace: namespace.delete_queue("gone"))
        gone.send("x")


def test_a_failed_assertion_prints_the_difference(servicebus: EmbeddedNamespace) -> None:
    queue = servicebus.queue("orders")
    queue.assert_nothing_sent()
    queue.assert_empty()
    queue.send("one", message_id="1", properties={"kind": "a"})
    queue.send("two", message_id="2")
    with pytest.raises(AssertionError) as failed:
        queue.assert_sent(body="three", properties={"kind": "b"})
    assert str(failed.value).splitlines() == [
        "orders: expected at least one message with body='three', properties={'kind': 'b'}; there are none.",
        "2 messages were sent:",
        "  body=b'one' message_id='1' properties={'kind': 'a'}",
        "    body: expected 'three', is 'one'",
        "    properties['kind']: expected 'b', is 'a'",
        "  body=b'two' message_id='2'",
        "    body: expected 'three', is 'two'",
        "    properties['kind']: expected 'b', is missing",
    ]
    with pytest.raises(AssertionError, match=r"expected 2 messages with body='one'; there is 1\."):
        queue.assert_sent(count=2, body="one")
    with pytest.raises(AssertionError, match="2 messages were sent where none was expected"):
        queue.assert_nothing_sent()
    with pytest.raises(AssertionError, match="orders is not empty"):
        queue.assert_empty()
    with pytest.raises(TypeError, match="a message has no corelation_id"):
        queue.assert_sent(corelation_id="x")


def test_a_subscription_sees_what_its_rule_lets_through(servicebus: EmbeddedNamespace) -> None:
    topic = servicebus.topic("events")
    large, everything = topic.subscription("large", sql="amount > 1000"), topic.subscription("all")
    topic.send("small", properties={"amount": 5})
    topic.send("big", properties={"amount": 5000})
    assert len(topic.sent) == 2
    assert [one.text for one in everything.messages] == ["small", "big"]
    large.assert_sent(count=1, body="big")
    assert [one.text for one in large.messages] == ["big"]


def test_time_moves_on_for_the_namespace_and_not_for_its_clients(servicebus: EmbeddedNamespace) -> None:
    queue = servicebus.queue("orders", lock_duration=timedelta(seconds=30), max_delivery_count=1)
    connecting = ServiceBusClient.from_connection_string(servicebus.connection_string)
    with connecting as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("now"))
        sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(hours=3))
        with client.get_queue_receiver("orders") as receiver:
            assert [str(one) for one in receiver.receive_messages(max_wait_time=30)] == ["now"]
            servicebus.advance(seconds=31)
            queue.assert_dead_lettered(dead_letter_reason="MaxDeliveryCountExceeded", body="now")
            assert [one.text for one in queue.scheduled] == ["later"]
            servicebus.advance(hours=4)
            # The client's token was good for an hour of its own time, and still is.
            (later,) = receiver.receive_messages(max_wait_time=30)
            receiver.complete_message(later)
        sender.send_messages(ServiceBusMessage("again"))
    assert [one.text for one in queue.messages] == ["again"]
    assert [one.text for one in queue.sent] == ["now", "later", "again"]
    assert any("client -> transfer" in frame for frame in servicebus.frames())


def test_what_expires_is_dead_lettered_without_a_receiver(servicebus: EmbeddedNamespace) -> None:
    queue = servicebus.queue("orders", dead_lettering_on_message_expiration=True)
    subscription = servicebus.topic("events").subscription("all", default_message_time_to_live="PT1H")
    queue.send("x", time_to_live=timedelta(hours=2))
    servicebus.topic("events").send("y")
    servicebus.advance(hours=1, minutes=59)
    assert len(queue.messages) == 1
    assert subscription.messages == []
    servicebus.advance(minutes=1)
    queue.assert_dead_lettered(count=1, dead_letter_reason="TTLExpiredException")


async def test_what_falls_due_happens_in_its_order_at_its_own_instant() -> None:
    clock = AdvancingClock()
    begun = clock.now()
    seen: list[tuple[str, int]] = []
    clock.call_at(begun + 20, lambda: seen.append(("second", round(clock.now() - begun))))
    clock.call_at(begun + 90, lambda: seen.append(("not yet", 0)))

    def first() -> None:
        seen.append(("first", round(clock.now() - begun)))
        clock.call_at(begun + 30, lambda: seen.append(("third", round(clock.now() - begun))))

    clock.call_at(begun + 10, first)
    clock.call_at(begun + 11, lambda: seen.append(("cancelled", 0))).cancel()
    clock.advance(60)
    assert seen == [("first", 10), ("second", 20), ("third", 30)]
    assert 60 <= clock.now() - begun < 89
    assert clock.client_now() - begun < 29
    clock.close()
    with pytest.raises(ValueError, match="turned back"):
        clock.advance(-1)


def test_trouble_lasts_as_long_as_its_block(servicebus: EmbeddedNamespace) -> None:
    servicebus.queue("orders")
    options = {"retry_total": 0}
    with ServiceBusClient.from_connection_string(servicebus.connection_string, **options) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("before"))
            with servicebus.throttle("orders"), pytest.raises(ServiceBusError, match="throttled"):
                sender.send_messages(ServiceBusMessage("refused"))
        with servicebus.dark(), pytest.raises(ServiceBusError), client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("lost"))
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("after"))
    assert [one.text for one in servicebus.queue("orders").messages] == ["before", "after"]
    assert servicebus.call(lambda namespace: namespace.faults.list()) == []


def test_faults_with_a_probability_draw_the_same_in_every_run(emulator: EmulatorThread) -> None:
    def draws(seed: str | None = None) -> list[bool]:
        with EmbeddedNamespace(emulator=emulator, seed=seed) as fresh:

            def strike(namespace: Namespace) -> list[bool]:
                namespace.faults.add("throttle:p=0.5")
                return [namespace.faults.check("send", "orders") is not None for _ in range(40)]

            return fresh.call(strike)

    first = draws()
    assert {True, False} == set(first)
    assert draws() == first
    assert first != draws("41c0ffee") == draws("41c0ffee") != draws("41c0ffef")


def test_namespaces_do_not_see_each_other(emulator: EmulatorThread) -> None:
    many = [EmbeddedNamespace(emulator=emulator) for _ in range(50)]
    for number, one in enumerate(many):
        one.open()
        one.queue("orders").send(str(number))
    assert len({one.endpoint for one in many}) == len(many)
    assert [[found.text for found in one.queue("orders").messages] for one in many] == [[str(n)] for n in range(50)]
    for one in many:
        one.close()
    with pytest.raises(EmulatorError, match="is not open"):
        many[0].queue("orders")
    with EmbeddedNamespace("taken", emulator=emulator), pytest.raises(EmulatorError, match="already"):
        EmbeddedNamespace("TAKEN", emulator=emulator).open()


def test_it_runs_alone() -> None:
    with EmbeddedNamespace() as one, EmbeddedNamespace() as other:
        one.queue("orders").send("x")
        other.queue("orders").assert_empty()


SUITE = """
import os
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus import ServiceBusMessage
import pytest

@pytest.mark.parametrize("number", [1, 2])
def test_fresh(servicebus, number):
    servicebus.queue("orders").assert_empty()
    servicebus.queue("orders").send("left behind")

async def send(servicebus):
    async with ServiceBusClient.from_connection_string(servicebus.connection_string) as client:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("wrong"))

def test_fails(servicebus):
    import asyncio
    orders = servicebus.queue("orders")
    asyncio.run(send(servicebus))
    orders.assert_sent(body="right")

@pytest.mark.servicebus(laws={"max-entity-path-characters": "lax"}, tier="Premium")
def test_lax(servicebus):
    assert servicebus.queue("x" * 300).path == "x" * 300
    assert servicebus.call(lambda one: one.tier) == "Premium"

def test_draws(servicebus):
    with servicebus.fault("throttle:p=0.5"):
        hit = servicebus.call(lambda one: [one.faults.check("send", "x") is not None for _ in range(64)])
    with open(os.environ["DRAWN"], "a") as file:
        print(hit, file=file)
"""


def test_the_fixture_is_there_wherever_the_package_is_installed(tmp_path: Path) -> None:
    (tmp_path / "test_application.py").write_text(SUITE)
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--servicebus-trace",
        "--servicebus-seed",
        "random",
        "-p",
        "no:cacheprovider",
        "test_application.py",
    )
    drawn = tmp_path / "drawn"

    def run(*arguments: str) -> str:
        environ = {**os.environ, "DRAWN": str(drawn)}
        done = subprocess.run(
            arguments, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_SECONDS, env=environ
        )
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stdout

    told = run(*command)
    assert "1 failed, 4 passed" in told
    assert "body: expected 'right', is 'wrong'" in told
    assert "Frames of the Service Bus namespace" in told
    assert "client -> attach" in told
    assert "SharedAccessSignature" not in told
    # What a run has drawn is drawn again with what it says, in another order and by several workers.
    (again,) = re.findall(r"--servicebus-seed (\w+)", told)
    run(*command[:4], "--servicebus-seed", again, "-n", "2", "test_application.py")
    run(*command[:4], "--servicebus-seed", "another", "test_application.py")
    first, second, other = drawn.read_text().splitlines()
    assert first == second != other


PAGE = (Path(sbpair.__file__).parent / "cli" / "pages" / "testing.md").read_text(encoding="utf-8")


def test_the_pages_test_case_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(import unittest\n.*?)```", PAGE, re.DOTALL)
    (tmp_path / "orders.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "orders.py"], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert "Ran 1 test" in done.stderr


def test_the_pages_commands_have_their_options() -> None:
    commands = {one for one in re.findall(r"[`\n]sbpair ([a-z][^`\n]*)", PAGE) if "..." not in one}
    assert len(commands) >= 5
    for line in commands:
        parse(line.split())


def test_the_pages_releases_are_those_that_were_tried() -> None:
    tried = {(row["client"], ".".join(row["version"].split(".")[:2])) for row in compatibility()}
    told = re.findall(r"^[A-Z][A-Za-z]+, (\S+) ([0-9.]+):$", PAGE, re.MULTILINE)
    assert len(told) == 3
    assert set(told) <= tried


def test_a_namespace_that_cannot_be_opened_leaves_no_thread() -> None:
    before, namespace = set(threading.enumerate()), EmbeddedNamespace(laws={"no-such-law": "lax"})
    with pytest.raises(EmulatorError, match="no-such-law"):
        namespace.open()
    assert not {one for one in threading.enumerate() if one.name == "sbpair-emulator"} - before
