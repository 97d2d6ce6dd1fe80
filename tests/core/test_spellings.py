"""Names and words count in every spelling: each of these answers the same, however they are written."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sbpair.core.access import NamespaceAccess, Secret, cloud_of, entity_path_of, is_at, key_name
from sbpair.core.cost.model import Flow, Workload, estimate
from sbpair.core.durations import parse_duration
from sbpair.core.editing import Repair
from sbpair.core.entities import EntityFacts, EntityKind, EntitySettings, RuleFacts
from sbpair.core.errors import ArgumentRefusedError, EntityNotFoundError, SameNamespaceError, UsageError
from sbpair.core.failover.sending import EntityRules
from sbpair.core.inspection.audit import CHECKS, run
from sbpair.core.inspection.audit.findings import Ignore
from sbpair.core.inspection.audit.result import AuditedPair, distinct_queues
from sbpair.core.inspection.contents import Contents, DeadLettersTo, FoundNamespace, compare, held_for, plan_entities
from sbpair.core.inspection.evacuated import (
    BothNamespaces,
    EvacuateResult,
    EvacuationPlan,
    EvacuationScope,
    Lag,
    WrittenPlan,
)
from sbpair.core.inspection.promotion import Expected, Present, PromotionEvidence, Settled, promotion_report
from sbpair.core.inspection.snapshot import PairFields, Peeked, Snapshot
from sbpair.core.message import Received
from sbpair.core.pairing import Pair
from sbpair.core.prices import built_in
from sbpair.core.rewrite import compose
from sbpair.core.rules import MessageOfRules
from sbpair.core.system_properties import scheduled_ms, time_to_live_ms
from sbpair.core.transfer.state import Key
from sbpair.service import EntityStatus
from tests.core.snapshots import NOW, a_pair, a_queue, healthy, host, path

MESSAGE = compose(body="x", message_id="m", session_id="s", application_properties={"color": "red"})


def string(text: str) -> NamespaceAccess:
    return NamespaceAccess("contoso", host("contoso"), connection_string=Secret(text))


def facts(name: str, kind: EntityKind = EntityKind.QUEUE, *rules: RuleFacts, **settings: Any) -> EntityFacts:
    return EntityFacts(kind, name, EntitySettings(**settings), rules=rules)


def of_rules(*rules: RuleFacts) -> Contents:
    found = [facts("news/Subscriptions/all", EntityKind.SUBSCRIPTION, *rules)]
    return Contents.of(FoundNamespace.of("contoso", None, NOW, found))


def refused(message: str) -> bool:
    rules = EntityRules()
    rules.refused([compose(body="x", message_id="m")], ArgumentRefusedError(message))
    return rules.needs_session


def connections(second: str) -> Any:
    return estimate(Workload(flows=(Flow("orders", 1, 100), Flow(second, 1, 100))), built_in()).charges


def message_of(name: str) -> str:
    """What is wrong with that name of a property."""
    with pytest.raises(UsageError) as caught:
        Repair({name: "x"})
    return caught.value.message.lower()


def shared_queues(named: Callable[[str], str]) -> int:
    """Of two pairs that see the same one, each in its spelling."""
    queue = a_queue(path(0))
    one = replace(healthy(), secondary=replace(healthy().secondary, queues=(queue,)))
    spelled = replace(queue, facts=replace(queue.facts, path=named(queue.path)))
    other = replace(one, secondary=replace(one.secondary, queues=(spelled,)))
    return len(distinct_queues([AuditedPair(run(each, a_pair()), each) for each in (one, other)]))


def checked(look: str, snapshot: Snapshot, pair: Pair, *others: Pair) -> int:
    """How much this check finds."""
    [check] = [one for one in CHECKS if one.look.__name__ == look]
    return len(run(snapshot, pair, checks=[check.code], others=others).findings)


def gone(entity: str) -> int:
    """Findings of destinations that are gone, which an entity of the pair is none of."""
    waiting = a_queue(path(0), peeked=Peeked(True, False, NOW, ("Orders",), 1))
    snapshot = healthy(more=(waiting,))
    snapshot = replace(snapshot, primary=replace(snapshot.primary, queues=(), absent=("orders",)))
    return checked("_destinations_gone", snapshot, a_pair(entities=(entity,)))


def same_name(name: str) -> int:
    primary, secondary = healthy().primary, healthy().secondary
    assert primary.facts is not None and secondary.facts is not None
    one = replace(primary, facts=replace(primary.facts, name="Contoso"))
    other = replace(secondary, facts=replace(secondary.facts, name=name))
    return checked("_independent", replace(healthy(), primary=one, secondary=other), a_pair())


def own_backlog(label: str) -> int:
    pair = replace(a_pair(), primary=NamespaceAccess(label, host("contoso")))
    return len(replace(healthy(), pair=PairFields.of(pair)).own_backlog() or ())


def written_for(to: str) -> str:
    """The host to which a plan of a file goes."""
    scope = EvacuationScope("contoso", "fabrikam", "one", "the other")
    plan = EvacuationPlan.of(scope, BothNamespaces((), (), None, {}, {})).to_file("Here", to)
    return WrittenPlan.parse("plan.json", [plan], "HERE", "there").name


def nothing_gone(place: str) -> bool:
    present = (Present("orders", ("orders", 9, "m", 2), b"x"),)
    now = FoundNamespace.of("contoso", None, NOW, [facts("orders")])
    expected = (Expected(place, "m", NOW, "archive", False),)
    return not promotion_report(PromotionEvidence({}, expected, None, now, present, {}, True)).claims


def same_label(secondary: str) -> int:
    other = NamespaceAccess("contoso", "contoso.servicebus.chinacloudapi.cn")
    pair = replace(a_pair(), name="other", primary=other, secondary=NamespaceAccess("fabrikam", secondary))
    mine = replace(a_pair(), secondary=NamespaceAccess("fabrikam", host("fabrikam").upper()))
    return checked("_same_label", healthy(), mine, pair)


def followed(to: str) -> Sequence[int | None]:
    """What lies where messages went in an earlier run."""
    scope = EvacuationScope("contoso", "fabrikam", "one", "the other", dead_letters=DeadLettersTo.LEAVE)
    plan = EvacuationPlan.of(scope, BothNamespaces((facts(to),), (), None, {}, {}))
    result = replace(
        EvacuateResult.planned(plan, ()), lag=(Lag("orders", 0, 0.0, 7, EntityStatus.ACTIVE, True),), moves=()
    )
    return [move.there_now for move in result.with_followed({}, {"orders": 3}).moves]


def claims(to: str) -> list[str]:
    key: Key = ("a", 1, "m", 1)
    there: Key = ("orders", 9, "m", 2)
    present = (Present("a", key, b"x"), Present("orders", there, b"x"))
    settled: dict[Key, Settled] = {key: Settled("ledger.jsonl", to, True)}
    expected = (Expected(to, "m", NOW, "archive", False),)
    now = FoundNamespace.of("contoso", None, NOW, [facts("orders"), facts("a")])
    evidence = PromotionEvidence(settled, expected, None, now, present, {}, True)
    return [one.claim.value for one in promotion_report(evidence).claims]


SAME: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "a backlog queue": (
        lambda name: EntityNotFoundError("Gone.", entity=name).hint,
        path(0),
        path(0).upper(),
    ),
    "a cloud": (lambda name: cloud_of(NamespaceAccess("a", name)), host("a"), host("a").upper()),
    "a resource manager": (
        lambda url: cloud_of(NamespaceAccess("a", "a.example", management_url=url)),
        "https://management.azure.com",
        "https://MANAGEMENT.azure.com",
    ),
    "the entity of a connection string": (
        lambda name: entity_path_of(string(f"Endpoint=sb://a.example/;EntityPath={name}")),
        "orders",
        " /orders/ ",
    ),
    "the key of a connection string": (
        lambda name: key_name(string(f"Endpoint=sb://a.example/;SharedAccessKeyName={name};SharedAccessKey=a")),
        "drain",
        " drain ",
    ),
    "a part of a connection string": (
        lambda name: key_name(string(f"Endpoint=sb://a.example/;{name}=drain;SharedAccessKey=a")),
        "SharedAccessKeyName",
        "sharedACCESSkeyname ",
    ),
    "an address": (lambda stated: is_at(stated, "[::1]:5672"), "localhost", "[::1]"),
    "what a rule is ignored by": (
        lambda what: compare(of_rules(RuleFacts("EU", "a = 1")), of_rules(), [f"news*:{what}"]).ignored,
        "rule EU*",
        "RULE eu*",
    ),
    "a check": (lambda code: Ignore.parse(code, ["SBP004"]), "SBP004:*", " sbp004 : * "),
    "a duration": (parse_duration, "90s", " 90s "),
    "a time to live": (time_to_live_ms, "PT1H", " PT1H "),
    "a scheduled time": (scheduled_ms, "2026-11-28T12:00:00Z", " 2026-11-28T12:00:00Z "),
    "a property of a rule": (
        MessageOfRules(MESSAGE).system,
        "MessageId",
        "MESSAGEID",
    ),
    "an application property": (
        lambda name: Repair({name: "blue"}).form_of(Received(MESSAGE, 1, "orders")),
        "user.color",
        "USER.color",
    ),
    "a property that there is not": (message_of, "sys.sesionid", "sys.SESIONID"),
    "the word for a session": (refused, "A session is needed.", "A Session is needed."),
    "an entity that is sent to": (connections, "orders", "ORDERS"),
    "entities of a pair": (lambda name: gone(name) < gone("bills"), "orders", "Orders"),
    "a secondary that pairs share": (same_label, host("fabrikam"), host("fabrikam").title()),
    "one namespace": (same_name, "contoso", "CONTOSO"),
    "the queues of a primary": (own_backlog, "contoso", "Contoso"),
    "where a plan goes": (written_for, "there", "There"),
    "where a queue holds messages": (
        lambda name: str(held_for(name, "Contoso")).lower(),
        "evacuated/Contoso/topics/news/all",
        "EVACUATED/contoso/TOPICS/news/all",
    ),
    "where a message lies": (nothing_gone, "orders", "ORDERS"),
    "where messages went": (followed, "orders", "Orders"),
    "where messages were settled": (claims, "orders", "ORDERS"),
}


@pytest.mark.parametrize(("answer", "name", "spelled"), SAME.values(), ids=SAME)
def test_a_spelling_changes_nothing(answer: Callable[[str], Any], name: str, spelled: str) -> None:
    found = answer(name)
    assert found not in (None, [], 0) or found is True
    assert answer(spelled) == found


def test_queues_that_pairs_share_count_once() -> None:
    assert [shared_queues(named) for named in (str, str.upper, str.title)] == [1, 1, 1]


def test_what_others_need_is_created_first_in_any_spelling() -> None:
    steps = plan_entities([facts("A", forward_to="b"), facts("B", forward_to="C"), facts("C")], [], None)
    assert [step.path for step in steps] == ["C", "B", "A"]


def test_a_namespace_is_no_secondary_of_itself() -> None:
    for one, other in (("H.example", "h.EXAMPLE"), ("h.example", "H.example")):
        with pytest.raises(SameNamespaceError):
            Pair("orders", NamespaceAccess("a", one), NamespaceAccess("b", other))
