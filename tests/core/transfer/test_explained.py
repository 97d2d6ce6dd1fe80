"""Forty messages that lie where they lie for known causes: the right one is named in each, and what cannot be known."""

from dataclasses import replace
from typing import Any

import pytest

from sbpair.amqp import sections
from sbpair.amqp.types import Long, Symbol
from sbpair.core.encoded import EncodedMessage
from sbpair.core.entities import EntityFacts, EntityKind, EntitySettings, RuleFacts
from sbpair.core.message import MessageState, Received
from sbpair.core.rewrite import compose, for_backlog
from sbpair.core.transfer.explained import ExplainedMessage, MessageContext, Near, explain
from sbpair.service import EntityStatus

NOW = 1_763_000_000.0
ACTIVE, DEFERRED, SCHEDULED = MessageState.ACTIVE, MessageState.DEFERRED, MessageState.SCHEDULED


def annotated(payload: bytes, **annotations: Any) -> bytes:
    message = EncodedMessage(payload)
    put = {Symbol("x-opt-" + name.replace("_", "-")): value for name, value in annotations.items()}
    message.edit_map(sections.Section.MESSAGE_ANNOTATIONS, (), put)
    return message.result()


def planted(
    *,
    dead: tuple[str | None, str | None] | None = None,
    state: MessageState = ACTIVE,
    entity: str = "orders",
    settings: dict[str, Any] | None = None,
    rules: tuple[RuleFacts, ...] = (),
    manage: bool = True,
    payload: bytes | None = None,
    properties: dict[str, Any] | None = None,
    annotations: dict[str, Any] | None = None,
    before: list[Near] | None = None,
    same_id: tuple[Near, ...] = (),
    locked_for: float | None = None,
    delivered: int = 0,
    age: float = 3600.0,
    **message: Any,
) -> MessageContext:
    more = dict(properties or {})
    if dead is not None:
        reason, description = dead
        more |= {"DeadLetterReason": reason} if reason is not None else {}
        more |= {"DeadLetterErrorDescription": description} if description is not None else {}
    body = payload or compose(body="x", message_id="m", application_properties=more, **message)
    if annotations:
        body = annotated(body, **annotations)
    source = f"{entity}/$deadletterqueue" if dead is not None else entity
    kind = EntityKind.SUBSCRIPTION if "/Subscriptions/" in entity else EntityKind.QUEUE
    received = Received(
        body,
        4711,
        source,
        message_id="m",
        session_id=message.get("session_id"),
        enqueued_at=NOW - age,
        locked_until=None if locked_for is None else NOW + locked_for,
        delivery_count=delivered,
        state=state,
    )
    facts = EntityFacts(kind, entity, EntitySettings(**(settings or {})), rules=rules) if manage else None
    return MessageContext("contoso", entity, received, facts, before, same_id, NOW)


def near(number: int, state: MessageState = ACTIVE, *, dead: bool = False) -> Near:
    return Near(number, dead, state)


NET = "System.TimeoutException: no answer\n   at Shop.Billing.Charge(Order o) in F.cs:line 7"
AUDIT = "news/Subscriptions/audit"
SITUATIONS: dict[str, tuple[MessageContext, str, str]] = {
    # Dead letters
    "delivered too often": (
        planted(dead=("MaxDeliveryCountExceeded", "x"), delivered=10),
        "too-many-deliveries",
        "10 times",
    ),
    "the same without Manage": (
        planted(dead=("MaxDeliveryCountExceeded", "x"), delivered=3, manage=False),
        "too-many-deliveries",
        "3 times, and no",
    ),
    "expired": (planted(dead=("TTLExpiredException", "The message expired")), "expired", "time to live ended"),
    "header too large": (planted(dead=("HeaderSizeExceeded", "x")), "header-too-large", "64 KB"),
    "no session id": (planted(dead=("Session id is null.", "x")), "no-session-id", "no session id"),
    "a circle": (planted(dead=("MaxTransferHopCountExceeded", "x")), "too-many-hops", "circle"),
    "a rule that fails": (
        planted(dead=("FilterEvaluationException", "x"), entity=AUDIT),
        "rule-failed",
        "could not be evaluated",
    ),
    "an exception": (
        planted(dead=("Failed", NET)),
        "consumer-exception",
        "System.TimeoutException at Shop.Billing.Charge",
    ),
    "an exception in a header": (
        planted(dead=("Failed", "no"), properties={"NServiceBus.ExceptionInfo.ExceptionType": "Shop.StockException"}),
        "consumer-exception",
        "Shop.StockException",
    ),
    "a python exception": (
        planted(dead=("Failed", 'Traceback:\n  File "/app/w.py", line 3, in price\nKeyError: 1')),
        "consumer-exception",
        "w.py price",
    ),
    "a consumer's reason": (planted(dead=("OutOfStock", "none left")), "consumer-rejected", "'OutOfStock': none left"),
    "a reason alone": (planted(dead=("OutOfStock", None)), "consumer-rejected", "'OutOfStock'"),
    "no reason": (planted(dead=(None, None)), "unknown-reason", "without a reason"),
    "the destination was missing": (planted(dead=("EntityNotFound", "x")), "destination-missing", "did not exist"),
    "too large for it": (
        planted(dead=("MessageTooLarge", "x")),
        "too-large-for-destination",
        "too large for its destination",
    ),
    "refused by it": (planted(dead=("ArgumentRefused", "x")), "refused-by-destination", "refuses it"),
    "no destination": (planted(dead=("NotABacklogMessage", "x")), "no-destination", "no destination"),
    "a bad destination": (planted(dead=("InvalidDestination", "x")), "invalid-destination", "not the path"),
    "the retired library: no destination": (
        planted(dead=("Destination queue not indicated in message when fetched from backlog.", "x")),
        "no-destination",
        "retired library",
    ),
    "the retired library: wrong type": (
        planted(dead=("Invalid type in property.", "x")),
        "wrong-property-type",
        "retired library",
    ),
    # Alive
    "waits": (planted(), "waits", "waits for a consumer"),
    "scheduled": (
        planted(state=SCHEDULED, scheduled_at=NOW + 60),
        "scheduled",
        "becomes active at 2025-11-13 02:14:20 UTC",
    ),
    "deferred": (planted(state=DEFERRED), "deferred", "by its sequence number only"),
    "disabled": (planted(settings={"status": EntityStatus.DISABLED}), "entity-disabled", "Disabled"),
    "not to be received from": (
        planted(settings={"status": EntityStatus.RECEIVE_DISABLED}),
        "entity-disabled",
        "ReceiveDisabled",
    ),
    "forwards": (planted(settings={"forward_to": "other"}), "waits-for-forwarding", "forwards to other"),
    "expired, not removed": (planted(ttl_seconds=60.0), "expired-not-removed", "ended 59m ago"),
    "the queue's own time to live": (
        planted(settings={"default_message_time_to_live_seconds": 600.0}),
        "expired-not-removed",
        "ended 50m ago",
    ),
    "no session in a queue of sessions": (planted(settings={"requires_session": True}), "no-session-id", "requires"),
    "locked": (planted(locked_for=30.0), "locked", "until"),
    "behind one": (
        planted(session_id="s", before=[near(7)]),
        "behind-in-session",
        "1 message of its session stands before it, first 7",
    ),
    "behind many": (
        planted(session_id="s", before=[near(7), near(8), near(9)]),
        "behind-in-session",
        "3 messages of its session stand",
    ),
    "behind one that is deferred": (
        planted(session_id="s", before=[near(7, DEFERRED)]),
        "behind-deferred",
        "the number 7",
    ),
    "first of its session": (planted(session_id="s", before=[]), "waits", "waits"),
    "fails at its consumers": (planted(delivered=4), "fails-at-consumers", "4 times"),
    "diverted": (
        planted(payload=for_backlog(compose(body="x", message_id="m"), "invoices")),
        "diverted",
        "to invoices",
    ),
    "resubmitted with its reason": (
        planted(properties={"DeadLetterReason": "Old"}),
        "resubmitted",
        "dead letter before",
    ),
    "of a subscription": (planted(entity=AUDIT, rules=(RuleFacts("all"),)), "waits", "waits"),
    "of a lock that is over": (planted(locked_for=-5.0, delivered=1), "fails-at-consumers", "1 time"),
    "not expired yet": (planted(ttl_seconds=7200.0), "waits", "waits"),
}


def told(found: ExplainedMessage, about: str) -> str:
    return " | ".join(one.text for one in found.statements if one.about == about)


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_right_cause_is_named(name: str) -> None:
    known, cause, said = SITUATIONS[name]
    found = explain(known)
    assert (found.cause, said in found.because) == (cause, True), found
    assert found.command.startswith("sbpair ")
    assert "{" not in found.command
    assert "  " not in found.because
    assert found.because[-1] != "."


def test_there_are_forty_situations_and_every_cause_has_one() -> None:
    assert len(SITUATIONS) == 40
    assert len({cause for _, cause, _ in SITUATIONS.values()}) >= 25


def test_where_it_came_from_is_read_from_its_bytes() -> None:
    annotations = {"enqueue_sequence_number": Long(12), "deadletter_source": "billing"}
    found = explain(
        planted(annotations=annotations, properties={"NServiceBus.FailedQ": "shop", "traceparent": "00-ab"})
    )
    origin = told(found, "origin")
    for said in ("number 12", "dead letter of billing", "from shop (NServiceBus.FailedQ)", "trace is 00-ab"):
        assert said in origin


def test_the_rule_that_takes_it_is_named() -> None:
    rules = (
        RuleFacts("german", sql="country = 'DE'"),
        RuleFacts("french", sql="country = 'FR'"),
        RuleFacts("labelled", sql=None, correlation=(("label", "invoice"),), action="SET a = 1"),
        RuleFacts("fails", sql="country + 1 > 2"),
    )
    known = planted(entity=AUDIT, rules=rules, properties={"country": "DE"}, subject="invoice")
    assert (
        told(explain(known), "rule") == "taken by the rule german, labelled; an action of labelled may have changed it"
    )
    none = planted(entity=AUDIT, rules=rules[:2], properties={"country": "US"})
    assert told(explain(none), "rule").startswith("no rule matches it now")
    unknown = explain(planted(entity=AUDIT, manage=False))
    assert [one.known for one in unknown.statements if one.about == "rule"] == [False]


def test_what_a_time_to_live_means_now() -> None:
    letters = {"dead_lettering_on_message_expiration": True}
    assert told(explain(planted(ttl_seconds=7200.0)), "time to live").endswith("then it is removed without a trace")
    assert "ends in 1h" in told(explain(planted(ttl_seconds=7200.0)), "time to live")
    assert told(explain(planted(ttl_seconds=7200.0, settings=letters)), "time to live").endswith(
        "then it is dead-lettered"
    )
    assert told(explain(planted()), "time to live") == "it does not expire"
    assert "do not expire" in told(explain(planted(dead=("x", "y"), ttl_seconds=1.0)), "time to live")
    without = explain(planted(manage=False))
    assert [one.known for one in without.statements if one.about == "time to live"] == [False]


def test_what_cannot_be_known_is_said() -> None:
    found = explain(planted(manage=False))
    unknown = {one.about for one in found.statements if not one.known}
    assert unknown == {"sender", "time to live", "lock", "receivers"}
    cut = explain(replace(planted(), whole=False))
    assert "more messages lie there than were looked through" in told(cut, "neighbours")
    assert [one.known for one in cut.statements if one.about == "neighbours"] == [False]


def test_others_with_its_id_and_before_it_in_its_session_are_counted() -> None:
    known = planted(session_id="s", before=[near(1), near(2, DEFERRED)], same_id=(near(3, dead=True),))
    found = explain(known)
    assert told(found, "duplicates") == "1 other of its MessageId: 3 (dead letter)"
    assert told(found, "session") == "before it in its session 's': 1 active, 1 deferred"
    assert found.command == "sbpair explain contoso:orders 1"
