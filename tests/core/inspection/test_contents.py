"""What has to be created on another namespace, what stands in the way, and where the messages go."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sbpair.core.entities import (
    AccessRule,
    Counts,
    EntityFacts,
    EntityKind,
    EntitySettings,
    EntityStatus,
    RuleFacts,
    Tier,
)
from sbpair.core.errors import UsageError
from sbpair.core.inspection.contents import (
    PLAN_VERSION,
    UNFINISHED,
    Action,
    DeadLettersTo,
    as_planned,
    changed_since,
    plan_entities,
    plan_moves,
)
from sbpair.core.inspection.evacuated import Lag, WrittenPlan
from sbpair.core.names import by_path
from sbpair.core.serialization import to_plain

ONE = Counts(active=1)
QUEUE, TOPIC, SUBSCRIPTION = EntityKind.QUEUE, EntityKind.TOPIC, EntityKind.SUBSCRIPTION


def entity(path: str, kind: EntityKind = QUEUE, counts: Counts = ONE, **settings: Any) -> EntityFacts:
    return EntityFacts(kind, path, EntitySettings(**settings), counts)


def test_what_others_need_is_created_first() -> None:
    source = [
        entity("a", forward_to="z/last"),
        entity("news/Subscriptions/all", SUBSCRIPTION, forward_to="a"),
        entity("news", TOPIC),
        entity("z/last", forward_dead_lettered_messages_to="news"),
        entity("round", forward_to="Round"),
    ]
    steps = plan_entities(source, [], Tier.STANDARD)
    paths = [step.path for step in steps]
    assert sorted(paths) == sorted(one.path for one in source)
    assert paths.index("news") < paths.index("z/last") < paths.index("a") < paths.index("news/Subscriptions/all")
    assert {step.action for step in steps} == {Action.CREATE}


def test_a_circle_of_forwarding_is_planned_as_it_comes() -> None:
    steps = plan_entities([entity("a", forward_to="b"), entity("b", forward_to="a")], [], Tier.STANDARD)
    assert [step.path for step in steps] == ["a", "b"]


@pytest.mark.parametrize(
    ("tier", "given", "created", "said"),
    [
        (Tier.PREMIUM, {"enable_partitioning": True}, {"max_size_in_megabytes": 20480}, "not partitioned"),
        (Tier.PREMIUM, {"enable_express": True}, {"enable_express": False}, "not express"),
        (Tier.PREMIUM, {"max_message_size_in_kilobytes": 256}, {"max_message_size_in_kilobytes": None}, ""),
        (Tier.PREMIUM, {"max_message_size_in_kilobytes": 1024}, {"max_message_size_in_kilobytes": 1024}, ""),
        (Tier.STANDARD, {"max_message_size_in_kilobytes": 256}, {"max_message_size_in_kilobytes": None}, ""),
        (Tier.STANDARD, {"max_size_in_megabytes": 81920}, {"max_size_in_megabytes": 5120}, "at most 5,120 MB"),
        (Tier.STANDARD, {"max_message_size_in_kilobytes": 4096}, {"max_message_size_in_kilobytes": None}, "above 256"),
        (Tier.STANDARD, {"status": EntityStatus.SEND_DISABLED}, {"status": EntityStatus.ACTIVE}, "created active"),
    ],
)
def test_settings_are_made_to_fit_the_tier_and_the_difference_is_named(
    tier: Tier, given: dict[str, Any], created: dict[str, Any], said: str
) -> None:
    (step,) = plan_entities([entity("orders", **given)], [], tier)
    assert step.action is Action.CREATE
    assert {name: getattr(step.settings, name) for name in created} == created
    assert not step.settings.enable_partitioning
    assert said in " ".join(step.notes)
    assert bool(said) is bool(step.notes)


def test_basic_has_no_topics_and_no_sessions() -> None:
    source = [entity("news", TOPIC), entity("orders", requires_session=True), entity("plain")]
    steps = {step.path: step for step in plan_entities(source, [], Tier.BASIC)}
    assert [steps[path].action for path in ("news", "orders", "plain")] == [*[Action.CONFLICT] * 2, Action.CREATE]
    assert "sessions" in " ".join(steps["orders"].notes) or "requires session" in " ".join(steps["orders"].notes)


@pytest.mark.parametrize(
    ("here", "there", "said"),
    [
        ({}, {"requires_session": True}, "requires sessions there"),
        ({"requires_session": True}, {}, "does not require sessions there"),
        ({}, {"forward_to": "other"}, "forwards to other there"),
        ({}, {"status": EntityStatus.SEND_DISABLED}, "SendDisabled there"),
        ({}, {"requires_duplicate_detection": True}, "detects duplicates there"),
    ],
)
def test_what_would_lose_or_refuse_messages_is_a_conflict(
    here: dict[str, Any], there: dict[str, Any], said: str
) -> None:
    (step,) = plan_entities([entity("orders", **here)], [entity("ORDERS", **there)], Tier.STANDARD)
    assert step.action is Action.CONFLICT
    assert said in step.notes[0]


def test_a_queue_for_a_topic_is_a_conflict() -> None:
    (step,) = plan_entities([entity("orders")], [entity("orders", TOPIC)], Tier.STANDARD)
    assert (step.action, step.notes) == (Action.CONFLICT, ("it is a topic there, and a queue here",))


def test_duplicate_detection_is_no_conflict_by_consent_without_messages_or_for_what_a_run_has_made() -> None:
    orders = entity("orders", requires_duplicate_detection=True)
    made = replace(orders, settings=replace(orders.settings, user_metadata=UNFINISHED))
    empty = replace(orders, counts=Counts())
    (consented,) = plan_entities([orders], [orders], Tier.STANDARD, despite_duplicate_detection=True)
    (nothing,) = plan_entities([empty], [orders], Tier.STANDARD)
    (gone_on,) = plan_entities([orders], [made], Tier.STANDARD)
    assert [step.action for step in (consented, nothing, gone_on)] == [Action.KEEP, Action.KEEP, Action.FINISH]


def test_other_settings_and_rules_are_named_and_stay() -> None:
    here = replace(entity("news/Subscriptions/all", SUBSCRIPTION), rules=(RuleFacts("a"), RuleFacts("b")))
    there = replace(
        entity("news/Subscriptions/all", SUBSCRIPTION, max_delivery_count=3, lock_duration_seconds=30.0),
        rules=(RuleFacts("a", "x = 1"), RuleFacts("c")),
    )
    (step,) = plan_entities([here], [there], Tier.STANDARD)
    assert step.action is Action.KEEP
    assert set(step.notes) == {
        "max delivery count is 3 there, 10 here",
        "lock duration is 30s there, 1m here",
        "rule a is another one there",
        "rule b is missing there",
        "rule c is not here",
    }


def test_where_messages_go_and_why_some_stay() -> None:
    counts = Counts(active=2, dead_letter=3, scheduled=4, transfer=5)
    source = [
        entity("orders", counts=counts),
        entity("news", TOPIC, Counts(scheduled=6)),
        entity("news/Subscriptions/all", SUBSCRIPTION, Counts(active=7, dead_letter=8), requires_session=True),
        entity("off", counts=Counts(active=9), status=EntityStatus.SEND_DISABLED),
        entity("onward", counts=Counts(active=10), forward_to="orders"),
    ]
    steps = by_path(plan_entities(source, [], Tier.STANDARD))
    moves, left = plan_moves(source, steps, "old", DeadLettersTo.HOLD)
    assert {(move.entity, move.dead_letter): (move.to, move.counted) for move in moves if move.counted} == {
        ("orders", False): ("orders", 6),
        ("orders", True): ("evacuated/old/queues/orders/dead-letters", 3),
        ("news", False): ("news", 6),
        ("news/Subscriptions/all", False): ("evacuated/old/topics/news/all", 7),
        ("news/Subscriptions/all", True): ("evacuated/old/topics/news/all/dead-letters", 8),
    }
    assert [move.by_session for move in moves if move.entity.startswith("news/")] == [True, False]
    assert {one.entity: one.messages for one in left} == {"orders": 5, "off": 9, "onward": 10}
    again, _ = plan_moves(source, steps, "old", DeadLettersTo.RESUBMIT)
    assert next(move.to for move in again if move.entity == "orders" and move.dead_letter) == "orders"
    _, stays = plan_moves(source, steps, "old", DeadLettersTo.LEAVE)
    assert {one.entity for one in stays} >= {"orders/$deadletterqueue", "news/Subscriptions/all/$deadletterqueue"}
    nothing, all_left = plan_moves(source, {}, "old", DeadLettersTo.HOLD)
    assert nothing == ()
    assert {one.reason for one in all_left} >= {"excluded"}


def test_a_plan_in_a_file_holds_until_something_else_would_be_done_and_a_run_after_a_crash_still_fits() -> None:
    hours = RuleFacts("old", "age > @h", parameters=(("@h", timedelta(hours=2)),))
    source = [
        entity("orders", status=EntityStatus.RECEIVE_DISABLED, lock_duration_seconds=30.0),
        entity("news", TOPIC),
        replace(entity("news/Subscriptions/all", SUBSCRIPTION), rules=(hours,)),
    ]
    planned = json.loads(json.dumps(as_planned(plan_entities(source, [], Tier.PREMIUM))))
    assert changed_since(planned, plan_entities(source, [], Tier.PREMIUM)) == ()
    crashed = [replace(one, rules=(), settings=replace(one.settings, user_metadata=UNFINISHED)) for one in source[1:]]
    assert changed_since(planned, plan_entities(source, crashed, Tier.PREMIUM)) == ()
    ended = [replace(there, rules=here.rules) for there, here in zip(_created(source), source, strict=True)]
    assert changed_since(planned, plan_entities(source, ended, Tier.PREMIUM)) == (), "its last step was done"
    assert changed_since(planned, plan_entities(source, [*ended[:2], crashed[1]], Tier.PREMIUM)) == ()
    there = [entity("ORDERS", lock_duration_seconds=60.0)]
    assert changed_since(planned, plan_entities(source, there, Tier.PREMIUM)) == ("orders",)
    more = [*source, entity("more")]
    assert changed_since(planned, plan_entities(more, [], Tier.PREMIUM)) == ("more",)
    assert changed_since(planned, plan_entities(source[:2], [], Tier.PREMIUM)) == ("news/Subscriptions/all",)


def _created(source: list[EntityFacts]) -> list[EntityFacts]:
    """The entities as an evacuation into Premium leaves them there."""
    steps = {step.path: step.settings for step in plan_entities(source, [], Tier.PREMIUM)}
    return [replace(one, counts=Counts(), settings=steps[one.path]) for one in source]


def test_access_rules_are_named_with_their_rights_since_nobody_gets_their_keys() -> None:
    keyed = replace(entity("orders"), access_rules=(AccessRule("shop", ("Send",)), AccessRule("b", ("Listen", "Send"))))
    (step,) = plan_entities([keyed], [], Tier.STANDARD)
    assert step.notes == ("its own access rules are not copied, nor their keys: shop (Send), b (Listen, Send)",)


@pytest.mark.parametrize(("source", "target"), [("a.example", "b.example"), ("A.example", "B.EXAMPLE")])
def test_a_written_plan_is_for_its_two_namespaces_in_every_spelling(source: str, target: str) -> None:
    plan = {
        "format_version": PLAN_VERSION,
        "from": "A.Example",
        "to": "b.example",
        "except": [],
        "dead_letters": DeadLettersTo.HOLD.value,
        "despite_duplicate_detection": False,
        "entities": [],
    }
    assert WrittenPlan.parse("plan.json", [plan], source, target).name == "plan.json"
    for other in ((target, source), (source, "c.example"), ("c.example", target)):
        with pytest.raises(UsageError, match=r"plan\.json is a plan from a\.example to b\.example"):
            WrittenPlan.parse("plan.json", [plan], *other)


def test_ages_have_no_more_digits_than_say_something() -> None:
    lag = Lag("orders", 1, 12.345678901, 0, EntityStatus.ACTIVE, True)
    assert to_plain(lag)["age_seconds"] == 12.3
