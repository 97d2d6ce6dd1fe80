"""Messages of a seed lie where it says; what is bad in a seed is told by its line."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sbpair.emulator import EmbeddedNamespace, Emulator
from sbpair.emulator.seed import SeedError, plant, seed_of
from sbpair.settings import parse_yaml_with_lines

SEED = """\
queues:
  orders:
    requires_duplicate_detection: true
    messages:
      - body: {number: 7}
        message_id: order-7
        subject: new
        properties: {amount: 12, large: 5000000000, paid: true, at: 2026-11-22T10:00:00Z, share: 0.5}
      - {content_type: text/plain, correlation_id: c, to: there, reply_to: here, time_to_live_seconds: 3600}
      - {body: later, scheduled_in_seconds: 7200}
      - {body: much later, scheduled_enqueue_time: 2099-01-01}
      - {body: broken, session_id: anna, dead_letter: {reason: NotJson, description: It is a text.}}
      - {count: 3}
  by-session:
    requires_session: true
    messages: [{body: one, session_id: anna}]
  old: {messages: [{body: !!binary aGVsbG8=, time_to_live_seconds: 60}], dead_lettering_on_message_expiration: true}
topics:
  events:
    messages: [{body: large, properties: {amount: 1001}}, {body: small, properties: {amount: 1}}]
    subscriptions:
      large: {rules: {amount: {sql: "amount > 1000"}}}
      own: {rules: {none: {sql: "1=0"}}, messages: [{body: here}, {body: bad, dead_letter: {reason: Broken}}]}
"""


@pytest.fixture(scope="module")
def servicebus() -> Iterator[EmbeddedNamespace]:
    with EmbeddedNamespace() as running:
        yield running


def test_messages_lie_where_the_seed_says(servicebus: EmbeddedNamespace) -> None:
    servicebus.reset()
    seed = parse_yaml_with_lines(SEED)
    servicebus.call(lambda namespace: plant(namespace, seed))
    servicebus.call(lambda namespace: plant(namespace, seed))  # what is there already gets no second helping
    orders = servicebus.queue("orders")
    first, second, *rest = orders.messages
    assert (first.json(), first.message_id, first.subject) == ({"number": 7}, "order-7", "new")
    assert first.properties == {
        "amount": 12,
        "large": 5_000_000_000,
        "paid": True,
        "at": datetime(2026, 11, 22, 10, tzinfo=UTC),
        "share": 0.5,
    }
    assert (second.content_type, second.to, second.reply_to, second.time_to_live) == (
        "text/plain",
        "there",
        "here",
        timedelta(hours=1),
    )
    assert [one.body for one in rest] == [b""] * 3
    later, much_later = sorted(orders.scheduled, key=lambda one: one.scheduled_enqueue_time or datetime.max)
    assert later.body == b"later"
    assert much_later.scheduled_enqueue_time == datetime(2099, 1, 1, tzinfo=UTC)
    orders.assert_dead_lettered(body="broken", dead_letter_reason="NotJson", count=1)
    assert orders.dead_letters[0].properties["DeadLetterErrorDescription"] == "It is a text."
    assert [one.session_id for one in servicebus.queue("by-session").messages] == ["anna"]
    events = servicebus.topic("events")
    assert [one.text for one in events.subscription("large").messages] == ["large"]
    own = events.subscription("own")
    assert ([one.text for one in own.messages], [one.text for one in own.dead_letters]) == (["here"], ["bad"])
    servicebus.advance(minutes=2)
    servicebus.queue("old").assert_dead_lettered(body="hello", dead_letter_reason="TTLExpiredException")
    servicebus.advance(hours=2)
    orders.assert_sent(body="later", count=1)
    assert "later" in [one.text for one in orders.messages]


@pytest.mark.parametrize(
    ("seed", "says"),
    [
        ("queues:\n  a:\n    messages:\n      - body: x\n        sesion_id: y", r"line 5: .*did you mean 'session_id'"),
        ("queues:\n  a:\n    messages: 3", "a list of messages"),
        ("queues:\n  a:\n    messages:\n      -\n        - x", r"line 5: a.messages\[0\]: a mapping"),
        ("queues:\n  a:\n    messages:\n      - count: -1", r"line 4: a.messages\[0\].count: a number"),
        ("queues:\n  a:\n    messages:\n      - message_id: 7", "line 4: .*put a number in quotes"),
        ("queues:\n  a:\n    messages:\n      - properties: {a: [1]}", "line 4: .*properties.a: a text"),
        ("queues:\n  a:\n    messages:\n      - scheduled_enqueue_time: soon", "line 4: .*a time such as"),
        ("queues:\n  a:\n    messages:\n      - time_to_live_seconds: -1", "line 4: .*a number of seconds"),
        ("queues:\n  a:\n    messages:\n      - body: x\n        dead_letter: {why: y}", "line 5: .*unknown key 'why'"),
        ("queues:\n  a: {requires_session: true, messages:\n    [{body: x}]}", r"line 3: a.messages\[0\]: "),
        ("topics:\n  a:\n    messages:\n      - dead_letter: {reason: x}", "line 4: .*a topic has no dead letters"),
        ("queues:\n  a: {}\n  b:\n    lock_duration_seconds: 9999", "line 3: b: "),
        ("queues:\n  a:\n    max_delivery_count: many", "line 3: a.max_delivery_count: a whole number is"),
        (
            "topics:\n  t:\n    subscriptions:\n      s:\n        rules:\n          r:\n            sql: '('",
            "line 6: r: ",
        ),
        ("keys:\n  sender:\n    rights: [Send]\n    key: {env: NOT_SET}", "line 4: .*NOT_SET is not set"),
    ],
)
def test_what_is_bad_is_told_by_its_line(servicebus: EmbeddedNamespace, seed: str, says: str) -> None:
    servicebus.reset()
    with pytest.raises(SeedError, match=says):
        servicebus.call(lambda namespace: plant(namespace, parse_yaml_with_lines(seed)))


MICROSOFT = """\
{
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns",
        "Queues": [
          {"Name": "orders", "Properties": {
            "LockDuration": "PT1M",
            "%s": %s
          }}
        ]
      }
    ]
  }
}
"""


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("DefaultMessageTimeToLive", '"an hour"', "line 9: .*DefaultMessageTimeToLive: an ISO 8601"),
        ("MaxDeliveryCounts", "3", "line 9: .*did you mean 'MaxDeliveryCount'"),
        ("MaxDeliveryCount", '"3"', "line 9: .*MaxDeliveryCount: a whole number is expected"),
        ("MaxDeliveryCount", "-3", "line 7: orders: "),
    ],
)
def test_so_it_is_in_microsofts_file(servicebus: EmbeddedNamespace, name: str, value: str, says: str) -> None:
    servicebus.reset()
    with pytest.raises(SeedError, match=says):
        seed = seed_of(parse_yaml_with_lines(MICROSOFT % (name, value)))["sbemulatorns"]
        servicebus.call(lambda namespace: plant(namespace, seed))


async def test_a_durable_namespace_keeps_them_and_gets_no_more(tmp_path: Path) -> None:
    for _ in range(2):
        async with Emulator(["contoso"], data_dir=tmp_path) as emulator:
            plant(
                emulator.namespace("contoso"), parse_yaml_with_lines("queues: {a: {messages: [{body: x, count: 2}]}}")
            )
            queue = emulator.namespace("contoso").get_queue("a")
            assert queue is not None
            assert queue.counts().active == 2
