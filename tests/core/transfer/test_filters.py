"""Which messages a command is about: Service Bus SQL over the message as it was sent, and the options beside it."""

import pickle

import pytest

from sbpair.core.errors import UsageError
from sbpair.core.message import MessageState, Origin, Received
from sbpair.core.rewrite import compose, describe, for_backlog
from sbpair.core.transfer.filters import EVERYTHING, SYSTEM_PROPERTIES, MessageFilter, Where
from sbpair.core.transfer.peeked import GroupKey, grouped, peeked

MESSAGE = for_backlog(
    compose(
        body=b"12345",
        message_id="m-1",
        subject="invoice for DE",
        content_type="application/json",
        session_id="s",
        application_properties={"country": "DE", "amount": 1200, "urgent": True, "subject": "another"},
        ttl_seconds=60,
    ),
    "invoices/incoming",
)
AT = 1_790_000_000.0  # 2026-09-21T14:13:20Z
RECEIVED = Received(MESSAGE, sequence_number=5, source="q", enqueued_at=AT, delivery_count=2)


def wants(**given: object) -> bool:
    return MessageFilter(**given).wants(RECEIVED, describe(MESSAGE))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "sys.MessageId = 'm-1'",
        "sys.messageid='m-1'",
        "sys.Subject LIKE 'invoice%'",
        "sys.Label = 'invoice for DE'",
        "user.subject = 'another'",
        "sys.Destination = 'invoices/incoming' AND sys.SessionId = 's'",
        "sys.ContentType LIKE 'application/%'",
        "country IN ('DE', 'FR')",
        "user.amount > 1000 AND amount <= 1200",
        "urgent = TRUE",
        "sys.DeliveryCount >= 2",
        "sys.EnqueuedTimeUtc < '2027-01-01'",
        "sys.EnqueuedTimeUtc >= '2026-09-21T14:13:20.000Z'",
        "sys.TimeToLive = 60",
        "sys.MessageId = 'other' OR sys.SequenceNumber = 5",
        "sys.DeadLetterReason IS NULL",
        "NOT EXISTS(user.test)",
        "sys.Size > 9 AND sys.BodySize >= 5",
        "sys.State = 'active' AND sys.Queue = 'q'",
    ],
)
def test_conditions_that_match(text: str) -> None:
    assert wants(where=Where(text))


@pytest.mark.parametrize(
    "text",
    [
        "sys.MessageId <> 'm-1'",
        "country IN ('FR', 'IT')",
        "missing = 'x'",
        "missing <> 'x'",
        "amount < 1000",
        "amount = '1200'",
        "sys.EnqueuedTimeUtc > '2027'",
        "sys.SessionId = 's' AND sys.MessageId = 'other'",
        "sys.DeadLetterReason = 'TTLExpiredException'",
    ],
)
def test_conditions_that_do_not(text: str) -> None:
    assert not wants(where=Where(text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "Service Bus SQL"),
        ("sys.Subject = ", "expected a value"),
        ("sys.Colour = 'red'", "no property sys.Colour"),
        ("sys.Size > 1 OR sys.Colour = 'red'", "no property sys.Colour"),
        ("newid() = 'x'", "newid"),
        ("sys.Size / 0 > 1 AND 1 / 0 > 1", "Division by zero"),
        ("a = 'b", "Unexpected character"),
        # The language before 0.1, with the new spelling of what it named.
        ("subject = invoice and size_bytes > 1000", "sys.Subject"),
        ("size_bytes > 1000", "sys.Size"),
        ("properties.country in DE,FR or content_type ~ application/*", "user.country"),
        ("enqueued_at < 2026-10-01T00:00:00Z", "sys.EnqueuedTimeUtc"),
        ("dead_letter_reason != TTLExpiredException", "sys.DeadLetterReason"),
        ("path = 'orders' AND age < INTERVAL 1 DAY", "sys.Destination"),
    ],
)
def test_what_is_no_condition_says_how_to_write_it(text: str, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        Where(text)
    assert told in f"{refused.value.message} {refused.value.hint}"


def test_a_condition_that_cannot_be_evaluated_is_named_with_its_message() -> None:
    with pytest.raises(UsageError, match="cannot be evaluated for message 5"):
        wants(where=Where("country + 1 > 2"))


def test_every_property_that_is_told_can_be_asked_for() -> None:
    for name in SYSTEM_PROPERTIES:
        Where(f"sys.{name} = 'x' OR EXISTS(sys.{name})")


def test_all_that_is_given_has_to_match() -> None:
    assert wants(destination="INVOICES/*", session_id="s", since=AT, until=AT, where=Where("amount = 1200"))
    assert not wants(destination="orders")
    assert not wants(session_id="other")
    assert wants(session_id="S")  # the service does not tell one spelling of a session from another
    assert not wants(since=AT + 0.001)
    assert not wants(until=AT - 0.001)
    assert not wants(destination="invoices/*", where=Where("amount = 1"))
    assert not MessageFilter(since=1.0).wants(Received(MESSAGE, 1, "q"), describe(MESSAGE))


def test_a_message_out_of_an_archive_keeps_its_number_and_queue() -> None:
    stored = Received(MESSAGE, 1, "archive", origin=Origin("q/$deadletterqueue", 7, "m-1", 5))
    condition = Where("sys.SequenceNumber = 7 AND sys.Queue LIKE '%/$deadletterqueue'")
    assert condition.matches(describe(MESSAGE), stored)


def test_a_filter_travels_to_other_processes_and_names_itself() -> None:
    given = MessageFilter(destination="orders", since=AT, where=Where("amount = 1"))
    assert pickle.loads(pickle.dumps(given)) == given
    assert given.text() == "destination orders, since 2026-09-21T14:13:20.000Z, where amount = 1"
    assert (EVERYTHING.text(), EVERYTHING.is_set, given.is_set) == ("", False, True)


def test_groups_have_one_line_for_a_session_in_all_its_spellings() -> None:
    shown = []
    for number, session in enumerate(("Order-7", "ORDER-7", "other")):
        payload = for_backlog(compose(body=b"", message_id=f"m{number}", session_id=session), "orders")
        shown.append(peeked("q", Received(payload, number, "q"), describe(payload), with_body=False))
    groups = grouped(shown, (GroupKey.SESSION,))
    assert [(one.values, one.messages) for one in groups] == [({"session": "Order-7"}, 2), ({"session": "other"}, 1)]


def test_messages_are_grouped_by_everything_at_once() -> None:
    payload = for_backlog(compose(body=b"", message_id="m1", session_id="s", subject="paid"), "orders")
    received = Received(payload, 1, "q", enqueued_at=AT, state=MessageState.DEFERRED)
    (group,) = grouped([peeked("q", received, describe(payload), with_body=False)], tuple(GroupKey))
    assert {name: value for name, value in group.values.items() if value is not None} == {
        "destination": "orders",
        "session": "s",
        "queue": "q",
        "subject": "paid",
        "state": "deferred",
        "day": "2026-09-21",
        "hour": "2026-09-21T14",
        "minute": "2026-09-21T14:13",
    }
