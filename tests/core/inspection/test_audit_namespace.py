"""Every check of a namespace that is looked at alone: silent on a healthy one, loud on exactly what it is for."""

from dataclasses import replace
from typing import Any

import pytest

from sbpair.core.entities import AccessRule, Counts, EntityFacts, EntityKind, EntitySettings, RuleFacts, Tier
from sbpair.core.errors import UsageError
from sbpair.core.inspection.audit import CHECKS, Scope, Severity, run
from sbpair.core.inspection.snapshot import EntitySeen, PairFields, Snapshot, Unread
from sbpair.core.rules import catch_all_of
from sbpair.service import EntityStatus
from tests.core.snapshots import NOW, a_namespace, a_pair, a_snapshot, healthy

HOUR, DAY = 3600.0, 86_400.0
LOSING = {"dead_lettering_on_message_expiration": False}
SAFE = EntitySettings(dead_lettering_on_message_expiration=True)


def alone(**facts: Any) -> Snapshot:
    side = a_namespace("contoso", **facts)
    nobody = replace(side, label="", host="", facts=None, queues=None, topics=None)
    fields = PairFields("contoso", side.host, "", "contoso", "", 1)
    return replace(a_snapshot(a_pair(), replace(side, queues=None, topics=None), nobody), pair=fields)


def queue(path: str = "orders", oldest: float | None = None, **changes: Any) -> EntitySeen:
    of_facts = {name: changes.pop(name) for name in ("counts", "size_in_bytes", "access_rules", "accessed_at")
                if name in changes}  # fmt: skip
    return EntitySeen(EntityFacts(EntityKind.QUEUE, path, replace(SAFE, **changes), **of_facts), oldest)


def topic(path: str = "news", **changes: Any) -> EntitySeen:
    return EntitySeen(EntityFacts(EntityKind.TOPIC, path, replace(SAFE, **changes)))


def subscription(name: str, *rules: RuleFacts, of: str = "news", **changes: Any) -> EntitySeen:
    path = f"{of}/Subscriptions/{name}"
    return EntitySeen(EntityFacts(EntityKind.SUBSCRIPTION, path, replace(SAFE, **changes), rules=rules))


def found(code: str, *entities: EntitySeen, **facts: Any) -> list[tuple[str, Severity, str]]:
    """All findings, which must be of this code."""
    snapshot = alone(**facts)
    report = run(snapshot, snapshot.pair.to_pair(), found=entities)
    assert {one.code for one in report.findings} <= {code}, report.findings
    assert report.skipped == ()
    return [(one.subject, one.severity, one.message) for one in report.findings]


GERMAN, AUSTRIAN = (RuleFacts("own", f"country = '{one}'") for one in ("DE", "AT"))
ALL = RuleFacts("$Default", "1=1")
FORWARDING = [queue(f"q{number}", forward_to=f"q{number + 1}") for number in range(5)]
CATCH_ALL = catch_all_of([subscription("german", GERMAN).facts]).rule
assert CATCH_ALL is not None
WORLDS: dict[str, tuple[tuple[EntitySeen, ...], Severity, str]] = {
    "SBP029": ((queue(**LOSING, default_message_time_to_live_seconds=DAY),),
               Severity.WARNING, "waits for 1d is deleted"),
    "SBP030": ((queue(oldest=NOW - 50 * 60, default_message_time_to_live_seconds=HOUR),),
               Severity.WARNING, "has waited 50m, and messages live 1h"),
    "SBP031": ((queue(auto_delete_on_idle_seconds=HOUR, counts=Counts(3)),), Severity.ERROR, "3 active, which go"),
    "SBP032": ((*FORWARDING, queue("q5")), Severity.ERROR, "q0 -> q1 -> q2 -> q3 -> q4 -> q5"),
    "SBP033": ((queue(forward_dead_lettered_messages_to="gone"),), Severity.ERROR, "letters to gone, which does not"),
    "SBP034": ((topic(), subscription("odd", RuleFacts("own", "a = 1 AND a = 2"))), Severity.WARNING, "never match"),
    "SBP035": ((queue(oldest=NOW - 2 * HOUR, counts=Counts(1), accessed_at=NOW - 2 * HOUR),),
               Severity.WARNING, "nobody has touched it since"),
    "SBP036": ((queue(max_size_in_megabytes=1, size_in_bytes=1_000_000),), Severity.CRITICAL, "95% of its size"),
    "SBP037": ((queue(access_rules=tuple(AccessRule(f"r{n}", ("Send",)) for n in range(11))),),
               Severity.WARNING, "11 of at most 12 shared access rules"),
    "SBP038": ((queue(requires_duplicate_detection=True, duplicate_detection_history_time_window_seconds=20.0),),
               Severity.WARNING, "for 20s"),
    "SBP039": ((queue(access_rules=(AccessRule("app", ("Listen", "Send")),)),), Severity.INFO, "share a key"),
    "SBP041": ((topic(), subscription("at", AUSTRIAN), subscription("rest", CATCH_ALL)),
               Severity.WARNING, "it should take country <> 'AT' OR country IS NULL"),
}  # fmt: skip


@pytest.mark.parametrize(
    "check", [check for check in CHECKS if check.scope is Scope.NAMESPACE], ids=lambda one: one.code
)
def test_each_check_has_a_world_that_raises_it_alone(check: Any) -> None:
    entities, severity, said = WORLDS[check.code]
    (one,) = found(check.code, *entities)[:1]
    assert (one[1], said in one[2]) == (severity, True), one
    assert "(" in check.explanation, "the source is named"


def test_a_healthy_namespace_has_no_findings() -> None:
    healthy_one = (
        queue(oldest=NOW - 60, counts=Counts(1), accessed_at=NOW, default_message_time_to_live_seconds=DAY),
        queue("chain", forward_to="news"),
        topic(),
        subscription("german", GERMAN),
        subscription("rest", CATCH_ALL),  # type: ignore[arg-type]
        queue("once", requires_duplicate_detection=True, access_rules=(AccessRule("s", ("Send",)),)),
    )
    assert found("none", *healthy_one) == []


@pytest.mark.parametrize(
    ("code", "entities", "said"),
    [
        ("SBP029", (topic(default_message_time_to_live_seconds=DAY), subscription("s", ALL, **LOSING)), "1d"),
        ("SBP032", (queue("a", forward_to="t"), topic("T"), subscription("s", ALL, of="T", forward_to="A")), "circle"),
        ("SBP032", (queue("Q0", forward_to="q1"), *FORWARDING[1:], queue("q5")), "q0 -> q1 -> q2 -> q3 -> q4 -> q5"),
        ("SBP033", (queue("a", forward_to="b"), queue("b", status=EntityStatus.DISABLED)), "which is Disabled"),
        ("SBP034", (topic(), subscription("none")), "has no rule"),
        ("SBP041", (topic(), subscription("g", GERMAN), subscription("rest", CATCH_ALL, ALL)), "1 more rule"),
        ("SBP039", (queue(access_rules=(AccessRule("s", ("Send",)),), accessed_at=NOW - 100 * DAY),), "still opens it"),
    ],
)  # fmt: skip
def test_other_forms_of_a_finding(code: str, entities: tuple[EntitySeen, ...], said: str) -> None:
    findings = found(code, *entities)
    assert said in findings[0][2], findings


def test_three_hops_and_four_are_allowed_and_partitions_multiply_the_size() -> None:
    assert found("none", *FORWARDING[1:], queue("q5")) == []
    assert found("none", queue(max_size_in_megabytes=1, enable_partitioning=True, size_in_bytes=1_000_000)) == []


def test_what_a_subscription_holds_counts_for_its_topic() -> None:
    full = subscription("s", ALL, max_size_in_megabytes=1)
    full = replace(full, facts=replace(full.facts, size_in_bytes=1_000_000))
    assert found("none", topic(), full) == []


def test_quotas_follow_the_tier() -> None:
    many = [queue(f"q{number}") for number in range(950)]
    assert found("none", *many) == []
    assert "950 of at most 1,000" in found("SBP037", *many, tier=Tier.PREMIUM, messaging_units=1)[0][2]
    assert found("none", *many, tier=Tier.PREMIUM, messaging_units=2) == []


def test_what_could_not_be_read_is_skipped_and_no_pass() -> None:
    snapshot = alone()
    denied = Unread("rules of news/Subscriptions/s", "AccessDenied", "no Manage", "denied")
    some = replace(snapshot, primary=replace(snapshot.primary, unread=(denied,)))
    report = run(some, some.pair.to_pair(), found=(topic(), subscription("s")))
    assert {one.code for one in report.skipped} == {"SBP034", "SBP041"}
    nothing = run(snapshot, snapshot.pair.to_pair(), found=None)
    assert len(nothing.skipped) == sum(check.scope is Scope.NAMESPACE for check in CHECKS)


def test_a_check_of_a_pair_is_none_of_a_namespace_and_back() -> None:
    snapshot = alone()
    with pytest.raises(UsageError, match="SBP001 is a check of a pair"):
        run(snapshot, snapshot.pair.to_pair(), checks=["SBP001"])
    with pytest.raises(UsageError, match="SBP029 is a check of a namespace"):
        run(healthy(), a_pair(), checks=["SBP029"])


def test_a_topic_is_named_as_it_is_spelled() -> None:
    many = [subscription(f"s{number}", ALL, of="NEWS") for number in range(1_800)]
    assert [subject for subject, *_ in found("SBP037", topic("News"), *many)] == ["News", "News"], (
        "subscriptions and their filters"
    )
