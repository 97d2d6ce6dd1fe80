"""What may be sent again where: judged from the destination's settings and the message alone."""

import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from sbpair.amqp.sections import Section
from sbpair.amqp.types import Symbol
from sbpair.core.encoded import EncodedMessage
from sbpair.core.entities import (
    EntityFacts,
    EntityKind,
    EntitySettings,
    EntityStatus,
    QueueFacts,
    QueueSettings,
    RuleFacts,
    TopicFacts,
)
from sbpair.core.errors import EntityNotFoundError, SbpairError, UsageError
from sbpair.core.message import MessageState, Received
from sbpair.core.rewrite import as_sent, compose, for_backlog
from sbpair.core.summary import describe
from sbpair.core.transfer.filters import EVERYTHING, MessageFilter, Where
from sbpair.core.transfer.report import FILTERED_OUT
from sbpair.core.transfer.resend import (
    CAME_LATER,
    DUE,
    NEEDS_SESSION,
    NO_TIME_TO_LIVE,
    SAME_ID,
    TOO_LARGE,
    UNREADABLE,
    Editor,
    OnlyFor,
    Planned,
    Resender,
    Selection,
    refuse_destination,
)
from sbpair.core.transfer.state import Forward, Leave, key_of
from sbpair.core.transfer.verdict import NOT_CONFIGURED, Classifier, DestinationSeen

NOW = 1_700_000_000.0
DEAD = "orders/$deadletterqueue"


def dead(
    payload: bytes, number: int = 1, *, reason: str | None = "Broken", enqueued_at: float = NOW - 3600
) -> Received:
    """As the service gives a dead letter out."""
    message = EncodedMessage(payload)
    message.edit_map(Section.APPLICATION_PROPERTIES, (), {"DeadLetterReason": reason})
    message.edit_map(Section.MESSAGE_ANNOTATIONS, (), {Symbol("x-opt-deadletter-source"): "orders"})
    message.edit_map(Section.DELIVERY_ANNOTATIONS, (), {Symbol("x-opt-lock-token"): uuid.UUID(int=number)})
    return Received(message.result(), number, DEAD, enqueued_at=enqueued_at)


ALL = Selection()


def resender(
    wanted: Selection = ALL, *, same: bool = False, topic: TopicFacts | None = None, **settings: object
) -> Resender:
    queue = None if topic else QueueFacts("orders", QueueSettings(**settings))  # type: ignore[arg-type]
    seen = DestinationSeen("orders", 1000, queue=queue, topic=topic, asked=True)
    return Resender(seen, wanted, same_entity=same, now=lambda: NOW)


def test_a_message_loses_what_the_service_added_and_nothing_else() -> None:
    sent = compose(body=b"\x00", message_id="a", session_id="s", application_properties={"n": 1}, ttl_seconds=60)
    assert as_sent(dead(sent).payload, from_dead_letter=True).payload == sent


def test_a_browsed_message_has_an_empty_section_that_goes_too() -> None:
    sent = compose(body=b"\x00", message_id="a")
    assert as_sent(b"\x00Sq\xc1\x01\x00" + sent).payload == sent


def test_an_application_property_of_that_name_stays_where_nothing_was_dead_lettered() -> None:
    sent = compose(body=b"", message_id="a", application_properties={"DeadLetterReason": "mine"})
    assert as_sent(sent).payload == sent


@pytest.mark.parametrize(
    ("judge", "payload", "why"),
    [
        (resender(), compose(body=b"x" * 2000, message_id="a"), TOO_LARGE),
        (resender(requires_session=True), compose(body=b"", message_id="a"), NEEDS_SESSION),
        (resender(), compose(body=b"", message_id="a", ttl_seconds=0), NO_TIME_TO_LIVE),
    ],
)
def test_what_would_be_refused_stays(judge: Callable[[Received], object], payload: bytes, why: str) -> None:
    assert judge(dead(payload)) == Leave(why)


def test_what_expires_soon_after_it_is_sent_goes_and_is_named() -> None:
    judge = resender(default_message_time_to_live_seconds=300.0)
    for number, seconds in enumerate((1, 3600, None)):
        judge(dead(compose(body=b"", message_id="a", ttl_seconds=seconds), number))
    said = "3 messages expire within 10m of being sent, the first after 1s"
    assert [one.partition(":")[0] for one in judge.remarks] == [said]
    lasting = resender()
    lasting(dead(compose(body=b"", message_id="a", ttl_seconds=3600)))
    assert lasting.remarks == ()


def test_an_edited_dead_letter_is_counted_under_the_reason_it_had() -> None:
    found = dead(compose(body=b"a", message_id="a"))
    verdict = Editor(resender(), {key_of(found): compose(body=b"b", message_id="a")})(found)
    assert isinstance(verdict, Forward)
    assert (verdict.fault, verdict.payload) == ("Broken", compose(body=b"b", message_id="a"))


def test_what_is_no_message_stays() -> None:
    assert resender()(Received(b"\xff\xff", 0, DEAD)) == Leave(UNREADABLE)


@pytest.mark.parametrize(("age_seconds", "same", "sent"), [(599, True, False), (601, True, True), (599, False, True)])
@pytest.mark.parametrize("topic", [False, True])
def test_the_window_of_duplicate_detection_counts_where_the_message_was_sent_before(
    age_seconds: float, same: bool, sent: bool, topic: bool
) -> None:
    facts = TopicFacts("orders", requires_duplicate_detection=True) if topic else None
    judge = resender(same=same, topic=facts, **({} if topic else {"requires_duplicate_detection": True}))
    verdict = judge(dead(compose(body=b"", message_id="a"), enqueued_at=NOW - age_seconds))
    assert isinstance(verdict, Forward) is sent


def test_the_first_of_two_with_one_id_is_the_same_each_time_it_is_judged() -> None:
    judge = resender(requires_duplicate_detection=True)
    first, second = (dead(compose(body=b"", message_id="a"), number) for number in (1, 2))
    assert isinstance(judge(first), Forward)
    assert judge(second) == Leave(SAME_ID)
    assert isinstance(judge(first), Forward)


def test_reasons_match_in_any_case_and_together_with_the_filter() -> None:
    judge = resender(Selection(EVERYTHING, ["BROKEN"]))
    assert isinstance(judge(dead(compose(body=b"", message_id="a"))), Forward)
    assert judge(dead(compose(body=b"", message_id="a"), reason="Other")) == Leave(FILTERED_OUT)
    narrow = resender(Selection(replace(EVERYTHING, where=Where("sys.MessageId = 'b'")), ["broken"]))
    assert narrow(dead(compose(body=b"", message_id="a"))) == Leave(FILTERED_OUT)
    assert isinstance(narrow(dead(compose(body=b"", message_id="b"))), Forward)


def test_a_run_keeps_to_its_plan() -> None:
    planned = Planned(resender(requires_session=True))
    going, staying, later = (
        dead(compose(body=b"", message_id=name, session_id=session), number)
        for number, (name, session) in enumerate((("a", "s"), ("b", None), ("c", "s")), 1)
    )
    for one in (going, staying):
        planned(one)
    planned.settle()
    assert isinstance(planned(going), Forward)
    assert planned(staying) == Leave(NEEDS_SESSION)
    assert planned(later) == Leave(CAME_LATER)


def test_a_part_of_a_plan_knows_which_of_its_messages_have_no_key() -> None:
    planned = Planned(resender())
    sessions = (None, "s", None)
    found = [dead(compose(body=b"", message_id=None, session_id=one), n) for n, one in enumerate(sessions, 1)]
    for one in found:
        planned(one)
    keys = [key_of(one) for one in found]
    assert [planned.some(part).without_key for part in (keys, keys[:2], keys[1:2])] == [2, 1, 0]


@pytest.mark.parametrize(
    "seen",
    [
        DestinationSeen("orders", error=EntityNotFoundError("There is no orders.")),
        DestinationSeen("orders", 1000, queue=QueueFacts("orders", QueueSettings(status=EntityStatus.DISABLED))),
        DestinationSeen("orders", 1000, queue=QueueFacts("orders", QueueSettings(forward_to="other"))),
        DestinationSeen("news", 1000, topic=TopicFacts("news", status=EntityStatus.SEND_DISABLED)),
    ],
)
def test_a_destination_that_takes_nothing_ends_it_before_it_begins(seen: DestinationSeen) -> None:
    with pytest.raises(SbpairError, match="Nothing was moved"):
        refuse_destination(seen, "contoso")


def test_a_destination_of_which_little_is_known_may_take_all() -> None:
    refuse_destination(DestinationSeen("orders", 1000), "contoso")
    missing = DestinationSeen("orders", error=EntityNotFoundError("There is no orders."))
    with pytest.raises(EntityNotFoundError) as caught:
        refuse_destination(missing, "contoso at 127.0.0.1:5671", label="contoso")
    assert str(caught.value.hint).endswith("create it: sbpair entity create contoso:orders")


@pytest.mark.parametrize(
    "seen",
    [
        DestinationSeen("a", 1000, queue=QueueFacts("a", QueueSettings(requires_duplicate_detection=True)), asked=True),
        DestinationSeen("a", 1000, topic=TopicFacts("a", requires_duplicate_detection=True), asked=True),
    ],
)
def test_a_queue_or_topic_that_may_drop_messages_unseen_is_refused_unless_told(seen: DestinationSeen) -> None:
    with pytest.raises(UsageError, match="detects duplicates"):
        refuse_destination(seen, "contoso")
    refuse_destination(seen, "contoso", despite_duplicate_detection=True)


def test_what_is_due_within_a_minute_is_not_moved_but_may_be_copied() -> None:
    seen = DestinationSeen("orders", 1000)
    for seconds, keep, going in ((59, False, False), (61, False, True), (59, True, True), (-5, False, False)):
        payload = compose(body=b"", message_id="a", scheduled_at=NOW + seconds)
        judge = Resender(seen, ALL, same_entity=False, now=lambda: NOW, keep=keep)
        verdict = judge(Received(payload, 1, "orders", state=MessageState.SCHEDULED))
        assert isinstance(verdict, Forward) if going else verdict == Leave(DUE)


def test_what_was_not_selected_is_told_with_the_reasons_that_are_there() -> None:
    """A reason counts in every spelling; messages for other destinations are left under the first spelling of each."""
    selection = Selection(reasons=("TOO old", "expird"))
    payloads = [
        compose(body="x", message_id="m", application_properties={"DeadLetterReason": reason})
        for reason in ("Too Old", "Too Old", "Expired")
    ]
    selected = [selection.selects(Received(one, 1, "orders"), describe(one)) for one in payloads]
    assert selected == [True, True, False]
    [said] = selection.advice
    assert said.endswith("has the reason 'expird'. Did you mean 'Expired'? There are: Too Old (2), Expired (1).")


@pytest.mark.parametrize("name", ["colour", "COLOUR"])
def test_an_expression_that_selects_nothing_is_told_with_the_properties_that_are_there(name: str) -> None:
    selection = Selection(MessageFilter(where=Where(f"{name} = 'red'")))
    payload = compose(body="x", message_id="m", application_properties={"color": "red"})
    assert not selection.selects(Received(payload, 1, "orders"), describe(payload))
    [said] = selection.advice
    assert f"'{name}'" in said and "'color'" in said


def test_what_a_rule_of_the_subscription_fails_at_is_not_sent_to_its_topic() -> None:
    rule = RuleFacts("odd", "size / 0 = 1")
    path = "news/Subscriptions/all"
    subscription = EntityFacts(EntityKind.SUBSCRIPTION, path, EntitySettings(), rules=(rule,))
    payload = compose(body="", message_id="m", application_properties={"size": 1})
    verdict = OnlyFor(resender(topic=TopicFacts("news")), path, [subscription])(Received(payload, 1, path))
    assert verdict == Leave("rule odd of the subscription would change it")


def test_messages_for_others_are_left_under_one_spelling() -> None:
    classify = Classifier(now=lambda: 0.0, only=["Orders"])
    verdicts = [
        classify(Received(for_backlog(compose(body="x", message_id="m"), name), 1, "a/x-servicebus-transfer/0"))
        for name in ("ORDERS", "Billing", "billing")
    ]
    assert isinstance(verdicts[0], Forward)
    assert [one.because for one in verdicts[1:] if isinstance(one, Leave)] == [f"{NOT_CONFIGURED}Billing"] * 2
