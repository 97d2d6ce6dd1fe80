"""Names and words count in every spelling: each of these answers the same, however they are written."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sbpair.core.access import (
    NamespaceAccess,
    Secret,
    check_credential,
    cloud_of,
    entity_path_of,
    has_own_host,
    is_at,
    key_name,
    spoken_name,
)
from sbpair.core.cost.model import Flow, Workload, estimate
from sbpair.core.durations import parse_duration
from sbpair.core.editing import Repair
from sbpair.core.entities import EntityFacts, EntityKind, EntitySettings, RuleFacts
from sbpair.core.errors import (
    ArgumentRefusedError,
    EntityNotFoundError,
    InvalidNameError,
    SameNamespaceError,
    UsageError,
)
from sbpair.core.failover.sending import EntityRules
from sbpair.core.inspection.audit import CHECKS, explain, run
from sbpair.core.inspection.audit.findings import Ignore
from sbpair.core.inspection.audit.result import AuditedPair, distinct_queues
from sbpair.core.inspection.contents import (
    Contents,
    DeadLettersTo,
    FoundNamespace,
    compare,
    held_for,
    is_holding,
    plan_entities,
)
from sbpair.core.inspection.drilled import Mark, label_of, mark
from sbpair.core.inspection.evacuated import (
    BothNamespaces,
    EvacuateResult,
    EvacuationPlan,
    EvacuationScope,
    Lag,
    WrittenPlan,
)
from sbpair.core.inspection.promotion import (
    ExpectedMessage,
    Present,
    PromotionEvidence,
    SettledMessage,
    promotion_report,
)
from sbpair.core.inspection.snapshot import PairFields, Peeked, Snapshot
from sbpair.core.message import Received
from sbpair.core.names import check_namespace_label, is_dead_letter_path, split_source
from sbpair.core.pairing import Pair
from sbpair.core.prices import built_in, from_retail, required_text
from sbpair.core.rewrite import compose, for_backlog
from sbpair.core.rules import MessageOfRules
from sbpair.core.summary import describe
from sbpair.core.system_properties import scheduled_ms, time_to_live_ms
from sbpair.core.transfer.explained import cause_of
from sbpair.core.transfer.filters import MessageFilter, Where
from sbpair.core.transfer.resend import Selection
from sbpair.core.transfer.state import Forward, Key
from sbpair.service import EntityStatus
from tests.core.snapshots import NOW, a_pair, a_queue, healthy, host, path

DEAD = "orders/$deadletterqueue"
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


def checked(name: str, snapshot: Snapshot, pair: Pair, *others: Pair) -> int:
    """How much this check finds."""
    [check] = [one for one in CHECKS if one.find.__name__ == name]
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
    fields = replace(PairFields.of(a_pair()), primary_label=label)
    return len(replace(healthy(), pair=fields).own_backlog() or ())


def written_for(to: str) -> str:
    """The host to which a plan of a file goes."""
    scope = EvacuationScope("contoso", "fabrikam", "one", "the other")
    plan = EvacuationPlan.of(scope, BothNamespaces((), (), None, {}, {})).to_file("Here", to)
    return WrittenPlan.parse("plan.json", [plan], "HERE", "there").name


def nothing_gone(place: str) -> bool:
    present = (Present("orders", ("orders", 9, "m", 2), b"x"),)
    now = FoundNamespace.of("contoso", None, NOW, [facts("orders")])
    expected = (ExpectedMessage(place, "m", NOW, "archive", False),)
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
    settled: dict[Key, SettledMessage] = {key: SettledMessage("ledger.jsonl", to, True)}
    expected = (ExpectedMessage(to, "m", NOW, "archive", False),)
    now = FoundNamespace.of("contoso", None, NOW, [facts("orders"), facts("a")])
    evidence = PromotionEvidence(settled, expected, None, now, present, {}, True)
    return [one.claim.value for one in promotion_report(evidence).claims]


def in_two_places(place: str) -> list[str]:
    """Where a message is missed of which another place has one of the same id."""
    present = (Present("orders", ("orders", 9, "m", 2), b"x"),)
    now = FoundNamespace.of("contoso", None, NOW, [facts("orders"), facts("a")])
    expected = tuple(ExpectedMessage(one, "m", NOW, "archive", False) for one in ("a", place))
    found = promotion_report(PromotionEvidence({}, expected, None, now, present, {}, True)).claims
    return [one.entity for one in found]


def twice(place: str) -> list[str]:
    """Of two that are the same, of which files name one."""
    present = tuple(Present("orders", ("orders", number, "m", 2), b"x") for number in (8, 9))
    now = FoundNamespace.of("contoso", None, NOW, [facts("orders")])
    expected = (ExpectedMessage(place, "m", NOW, "archive", False),)
    found = promotion_report(PromotionEvidence({}, expected, None, now, present, {}, True)).claims
    return [one.claim.value for one in found]


def marked(named: Callable[[str], str]) -> Any:
    settings = EntitySettings(user_metadata=mark("a1", NOW))
    return Mark.of(EntityFacts(EntityKind.QUEUE, named(f"{label_of('a1')}/orders"), settings))


def cause(**properties: str) -> str:
    payload = compose(body="x", message_id="m", application_properties=properties)
    return cause_of(Received(payload, 1, "orders/$deadletterqueue"), describe(payload))


def wanted(text: str, **message: Any) -> bool:
    payload = compose(body="x", message_id="m", **message)
    return Where(text).matches(describe(payload), Received(payload, 1, "orders"))


def chosen(choice: MessageFilter) -> bool:
    payload = for_backlog(compose(body="x", message_id="m", session_id="One"), "Orders")
    return choice.wants(Received(payload, 1, "q/0"), describe(payload))


def advice(**properties: str) -> int:
    """Sentences after nothing was selected: those about a name that was found are none."""
    payload = compose(body="x", message_id="m", application_properties={"DeadLetterReason": "Failed", **properties})
    selection = Selection(MessageFilter(where=Where("color = 'blue'")), ("FAILED",))
    assert not selection.selects(Received(payload, 1, "orders"), describe(payload))
    return 1 + len(selection.advice)


def credential(host_name: str) -> str:
    shared = Secret(f"Endpoint=sb://{host_name}/;SharedAccessKeyName=a;SharedAccessKey=b")
    return check_credential(replace(string(""), connection_string=shared, host_stated=False))


def refused_label(label: str) -> bool:
    with pytest.raises(InvalidNameError):
        check_namespace_label(label)
    return True


def priced(**spelled: str) -> Any:
    row = {
        "serviceName": "Service Bus",
        "type": "Consumption",
        "meterName": "Standard Messaging Operations",
        "unitOfMeasure": "1M",
        "armRegionName": "westeurope",
        "currencyCode": "EUR",
        "effectiveStartDate": "2026-01-01",
        "tierMinimumUnits": 0,
        "unitPrice": 0.8,
        "retailPrice": 0.8,
    }
    return from_retail([{"Items": [row | spelled]}]).meters


SAME: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "a backlog queue": (lambda name: EntityNotFoundError("Gone.", entity=name).hint, path(0), path(0).upper()),
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
    "a property of a rule": (MessageOfRules(MESSAGE).system, "MessageId", "MESSAGEID"),
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
        lambda name: (held_for(name, "Contoso") or "").lower(),
        "evacuated/Contoso/topics/news/all",
        "EVACUATED/contoso/TOPICS/news/all",
    ),
    "where a message lies": (nothing_gone, "orders", "ORDERS"),
    "where messages went": (followed, "orders", "Orders"),
    "where messages were settled": (claims, "orders", "ORDERS"),
    "where a message is missed": (in_two_places, "orders", "ORDERS"),
    "where a message lies twice": (twice, "orders", "ORDERS"),
    "a label": (lambda label: NamespaceAccess(label, "a.example").label, "contoso", "CONTOSO"),
    "a host of Azure": (lambda name: has_own_host("contoso", name), host("contoso"), f"{host('contoso').upper()}."),
    "the label of a host of Azure": (lambda label: has_own_host(label, host("contoso")), "contoso", "Contoso"),
    "this machine": (lambda name: spoken_name("a", name).lower(), "localhost:5672", "LOCALHOST:5672"),
    "where a credential may go": (credential, host("contoso"), host("contoso").upper()),
    "the scheme of a resource manager": (
        lambda url: check_credential(NamespaceAccess("a", host("a"), management_url=url), resource_manager=True),
        "https://management.azure.com",
        "HTTPS://management.azure.com",
    ),
    "the code of a check": (lambda code: explain(code).code, "SBP004", " sbp004 "),
    "a queue that holds messages": (
        lambda name: is_holding(name, "Contoso"),
        "evacuated/Contoso/topics/news/all",
        "EVACUATED/contoso/TOPICS/news/all",
    ),
    "a label that is refused": (refused_label, "contoso-sb", "contoso-SB"),
    "dead letters of a queue": (
        lambda name: split_source(name)[1],
        "orders/$deadletterqueue",
        "orders/$DeadLetterQueue",
    ),
    "a dead-letter queue": (is_dead_letter_path, "orders/$deadletterqueue", "orders/$DeadLetterQueue"),
    "a text that is required": (lambda text: required_text({"a": text}, "a", "here"), "x", " x "),
    "the meter of a price": (
        lambda name: priced(meterName=name),
        "Standard Messaging Operations",
        "standard MESSAGING operations",
    ),
    "the unit of a price": (lambda unit: priced(unitOfMeasure=unit), "1M", " 1m "),
    "the service of a price": (lambda name: priced(serviceName=name), "Service Bus", "SERVICE bus"),
    "the region of a price": (lambda name: priced(armRegionName=name), "westeurope", "WestEurope"),
    "a user property of a rule": (MessageOfRules(MESSAGE).user, "color", "COLOR"),
    "a reason of the service": (
        lambda reason: cause(DeadLetterReason=reason),
        "Auto-forward failed",
        "AUTO-FORWARD failed",
    ),
    "a reason of a transfer": (
        lambda said: cause(DeadLetterReason=said, DeadLetterErrorDescription=said),
        "forward to the transfer queue",
        "FORWARD to the TRANSFER queue",
    ),
    "a property of a condition": (
        lambda name: wanted(f"{name} = 1", application_properties={"color": 1}),
        "color",
        "COLOR",
    ),
    "a system property of a condition": (lambda name: wanted(f"sys.{name} = 'm'"), "MessageId", "messageID"),
    "a property of a message": (lambda name: wanted("color = 1", application_properties={name: 1}), "color", "Color"),
    "where messages go that are chosen": (lambda path: chosen(MessageFilter(path)), "orders", "ORDERS"),
    "a session that is chosen": (lambda name: chosen(MessageFilter(session_id=name)), "One", "ONE"),
    "a property that is there": (lambda name: advice(**{name: "red"}), "color", "COLOR"),
}


@pytest.mark.parametrize(("answer", "name", "spelled"), SAME.values(), ids=SAME)
def test_a_spelling_changes_nothing(answer: Callable[[str], Any], name: str, spelled: str) -> None:
    found = answer(name)
    assert found not in (None, [], 0, "") or found is True
    assert answer(spelled) == found


def test_queues_that_pairs_share_count_once() -> None:
    assert [shared_queues(named) for named in (str, str.upper, str.title)] == [1, 1, 1]


def test_what_others_need_is_created_first_in_any_spelling() -> None:
    steps = plan_entities([facts("A", forward_to="b"), facts("B", forward_to="C"), facts("C")], [], None)
    assert [step.path for step in steps] == ["C", "B", "A"]


def test_the_queues_of_a_drill_are_known_by_their_mark() -> None:
    assert marked(str) == marked(str.upper) != None  # noqa: E711
    assert marked(lambda name: f"other-{name}") is None


def test_a_session_is_one_in_any_spelling() -> None:
    lanes = {Forward(b"", path, session).lane for path, session in (("orders", "a"), ("ORDERS", "A"))}
    assert len(lanes) == 1


def test_a_namespace_is_no_secondary_of_itself() -> None:
    for one, other in (("H.example", "h.EXAMPLE"), ("h.example", "H.example")):
        with pytest.raises(SameNamespaceError):
            Pair("orders", NamespaceAccess("a", one), NamespaceAccess("b", other))
