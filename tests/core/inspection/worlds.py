"""Arguments for whatever inspects a namespace or a pair, out of one small world: names that belong together, and are
spelled in several ways, as the service lets them be.

What is drawn from any names (`tests.core.examples`) hardly ever finds in one namespace what another one mentions.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

from sbpair.core.access import NamespaceAccess
from sbpair.core.entities import Counts, EntityFacts, EntityKind, QueueFacts, RuleFacts, Tier, TopicFacts
from sbpair.core.errors import SbpairError
from sbpair.core.inspection.audit import run
from sbpair.core.inspection.contents import (
    Contents,
    DeadLettersTo,
    FoundNamespace,
    as_planned,
    changed_since,
    compare,
    plan_entities,
)
from sbpair.core.inspection.diagnosis import Diagnosis
from sbpair.core.inspection.drilled import (
    LIVE_COUNT,
    NOT_REMOVED,
    ORDER,
    Drilled,
    DrilledEntity,
    DrillLine,
    Mark,
    Proof,
    Reaction,
    fingerprint,
    live_differences,
    plan_drill,
    sample,
)
from sbpair.core.inspection.evacuated import BothNamespaces, EvacuateResult, EvacuationPlan, EvacuationScope, Lag
from sbpair.core.inspection.plan import (
    as_confirmed,
    check_confirmed,
    check_still_extra,
    check_target,
    check_unused,
    plan_cleanup,
    plan_provision,
    user_of,
    without_queues,
)
from sbpair.core.inspection.snapshot import EntitySeen, NamespaceSnapshot, Peeked, QueueSeen, Snapshot, Unread
from sbpair.core.names import dead_letter_path
from sbpair.core.pairing import Pair, SendAvailabilityOptions, Side, backlog_settings
from sbpair.service import QueueSettings
from tests.core.examples import (
    Answered,
    Mixer,
    NoExampleError,
    answer,
    answers,
    called,
    functions,
    kinds,
    modules,
    said,
)
from tests.core.snapshots import NOW, a_snapshot, host, path

CALLS, WORLDS = 32, 80
PLACES = ("backlog", "errors", "entities", "names", "pairing", "rules")
"""Besides the room."""
QUEUES = ("orders", "bills", *map(path, range(3)), path(4), path(0, "tailspin"))
TOPICS = ("news", "news/Subscriptions/all", "news/Subscriptions/some")
LABELS = ("contoso", "fabrikam", "tailspin")
GIVEN: dict[Any, tuple[Any, ...]] = {
    int: (0, 0, 1, 2, 3),
    float: (0.0, 60.0, 3600.0, 7200.0, NOW - 30, NOW - 5000, NOW - 90_000),
    RuleFacts: (RuleFacts("$Default", "1=1"), RuleFacts("eu", "country = 'DE'"), RuleFacts("EU", "country = 'AT'")),
}


class World(Mixer):
    def value(self, hint: Any) -> Any:
        dice = self.dice
        if hint is str:
            return self.spelled(dice.choice((*QUEUES, *TOPICS, *LABELS, *map(host, LABELS), "SBP004:*", "order*")))
        if hint in GIVEN:
            return dice.choice(GIVEN[hint])
        if hint is Snapshot:
            return self.snapshot()
        if hint is Pair:
            return self.pair()
        if hint is QueueSettings and dice.random() < 0.6:
            return backlog_settings(dice.choice((None, *Tier)), partitioned=dice.random() < 0.2)
        if hint is Counts:
            return Counts(*(dice.choice((0, 0, 0, 2)) for _ in range(5)))
        return super().value(hint)

    def spelled(self, name: str) -> str:
        return self.dice.choice((name, name, name.upper(), name.title()))

    def of_field(self, one: Any, hint: Any) -> Any:
        if one.name in ("path", "entity", "queue", "forward_to", "subject") and hint in (str, str | None):
            name = self.spelled(self.dice.choice((*QUEUES, *TOPICS)))
            return None if hint is not str and self.dice.random() < 0.5 else name
        return super().of_field(one, hint)

    def pair(self) -> Pair:
        dice, (one, other) = self.dice, self.dice.sample(LABELS, 2) if self.dice.random() < 0.3 else LABELS[:2]
        return Pair(
            dice.choice(("orders", "other")),
            NamespaceAccess(self.spelled(one), self.spelled(host(one) if dice.random() < 0.8 else f"{one}.example")),
            NamespaceAccess(self.spelled(other), self.spelled(host(other))),
            SendAvailabilityOptions(backlog_queue_count=dice.choice((1, 2, 3, 5))),
            tuple(self.spelled(name) for name in ("orders", "news") if dice.random() < 0.5),
            tuple(self.spelled(name) for name in ("*/1", "tail*") if dice.random() < 0.2),
        )

    def snapshot(self) -> Snapshot:
        """Of a pair, or of a namespace alone; much is as it should be, and little was not read."""
        one, other = (self.namespace(label) for label in LABELS[:2])
        snapshot = a_snapshot(self.pair(), one, other)
        alone = replace(snapshot.pair, secondary_host="", secondary_label="")
        return replace(snapshot, pair=alone) if self.dice.random() < 0.2 else snapshot

    def namespace(self, label: str) -> NamespaceSnapshot:
        there = [name for name in QUEUES if self.dice.random() < 0.7]
        queues = tuple(replace(self.example(QueueSeen), facts=self.queue(name)) for name in there)
        topics = (replace(self.example(TopicFacts), path=self.spelled("news")),)
        absent = tuple(
            self.spelled(name) for name in (*QUEUES, "news") if name not in there and self.dice.random() < 0.5
        )
        unread = self.value(tuple[Unread, ...]) if self.dice.random() < 0.2 else ()
        known = {"label": label, "host": host(label), "topics": topics, "absent": absent, "unread": unread}
        return replace(self.example(NamespaceSnapshot), queues=queues if self.dice.random() < 0.9 else None, **known)

    def entities(self) -> list[EntityFacts]:
        """Of one namespace, each once; what forwards forwards to some of these."""
        found = []
        for name in (*QUEUES, *TOPICS):
            kind = EntityKind.QUEUE if name in QUEUES else EntityKind.SUBSCRIPTION if "/" in name else EntityKind.TOPIC
            if self.dice.random() < 0.7:
                found.append(replace(self.example(EntityFacts), kind=kind, path=self.spelled(name)))
        return found

    def queue(self, name: str) -> QueueFacts:
        return replace(self.example(QueueFacts), path=self.spelled(name))


def told(kind: type) -> Iterator[Answered]:
    """What examples of a class say of themselves."""
    world = World(kind, f"world {kind.__module__} {kind.__qualname__}")
    for example in (world.example(kind) for _ in range(CALLS)):
        lines = [f"{name}: {part}" for name, parts in answers(example).items() for part in parts]
        yield partial(said, example), lines


def audits() -> Iterator[Answered]:
    """Of pairs as they were configured when they were seen, or by now, and of namespaces alone."""
    for number in range(WORLDS):
        world = World(Snapshot, f"world of an audit {number}")
        dice, snapshot = world.dice, world.snapshot()
        given = {
            "pair": snapshot.pair.to_pair() if snapshot.alone or dice.random() < 0.6 else world.pair(),
            "ignore": dice.sample(("SBP004", "SBP007:*/X-*", "SBP013:CONTOSO*"), dice.choice((0, 0, 2))),
            "others": world.value(tuple[Pair, ...]),
            "found": tuple(map(EntitySeen, world.entities())) if snapshot.alone and dice.random() < 0.9 else None,
        }
        yield partial(str, f"world {number}"), answer(partial(run, snapshot, **given))


def cleanups() -> Iterator[Answered]:
    """What a plan creates and deletes, of which queues a person has named some."""
    for number in range(WORLDS):
        world = World(Snapshot, f"world of a cleanup {number}")
        dice, snapshot, pair, others = world.dice, world.snapshot(), world.pair(), (world.pair(), world.pair())
        named, again = ([world.spelled(name) for name in QUEUES[2:] if dice.random() < 0.4] for _ in range(2))
        left = [world.spelled(name) for name in LABELS if dice.random() < 0.5]
        lines = answer(partial(plan_provision, snapshot, pair, update=dice.random() < 0.7))
        with suppress(SbpairError):
            plan = plan_cleanup(snapshot, pair, confirmed=named, also_primaries=left, others=dice.choice(((), others)))
            asked: list[Callable[[], Any]] = [
                partial(iter, (*plan.steps, *plan.unchanged, plan.primary_label)),
                partial(as_confirmed, plan, again),
                partial(check_still_extra, pair, plan, others),
                partial(check_confirmed, [plan], again),
                partial(without_queues, plan, "fabrikam", [label.lower() for label in left]),
                partial(check_target, plan, others[0]),
                partial(check_unused, pair, [label.lower() for label in left], others),
                *(partial(user_of, path, world.spelled(host("fabrikam")), others) for path in again),
            ]
            lines += [line for ask in asked for line in answer(ask)]
        yield partial(str, f"world {number}"), lines


def evacuations() -> Iterator[Answered]:
    """What is created on another namespace and moved there, and how the two differ."""
    for number in range(WORLDS):
        world = World(EntityFacts, f"world of an evacuation {number}")
        dice, source, target = world.dice, world.entities(), world.entities()
        tier, before = world.value(Tier | None), plan_entities(source[1:], target[1:], None)
        browsed = {one.path.lower(): world.example(Peeked) for one in source if dice.random() < 0.5}
        both = BothNamespaces(tuple(source), tuple(target), tier, browsed, world.value(dict[str, str]))
        flags = {name: dice.random() < 0.5 for name in ("despite_duplicate_detection", "follows")}
        left_out = tuple(dice.sample(("ORD*", "news*some", "*/X-*"), dice.choice((0, 1))))
        scope = EvacuationScope("contoso", "Fabrikam", "it", "the other", left_out, world.value(DeadLettersTo), **flags)
        plan = EvacuationPlan.of(scope, both)
        numbers = {dead_letter_path(path) if dice.random() < 0.3 else path: dice.randrange(5) for path in browsed}
        one, other = (Contents.of(FoundNamespace.of("contoso", tier, NOW, some)) for some in (source, target))
        asked: tuple[Callable[[], Any], ...] = (
            partial(iter, plan.steps),
            partial(changed_since, as_planned(before), plan.steps),
            partial(both.moves, scope, plan.steps),
            partial(plan.to_file, "here", "there"),
            partial(EvacuateResult.planned(plan, world.value(tuple[Lag, ...])).with_followed, numbers, numbers),
            partial(compare, one, other, dice.sample(("ORDERS", "*:Forward*", "news*:rule*"), 1)),
        )
        yield partial(str, f"world {number}"), [line for ask in asked for line in answer(ask)]


CHECKS = (NOT_REMOVED, LIVE_COUNT, ORDER, "right to send")


def proof(dice: random.Random) -> Proof:
    wrong = [dice.choice(((), (), (), (), ("m1",), ("m1", "m2"))) for _ in range(4)]
    return Proof("orders", 60, dice.choice((60, 60, 60, 59)), *wrong)


def drilled(dice: random.Random, entity: str) -> DrilledEntity:
    seconds = [dice.choice((None, 0.25, 7.126)) for _ in range(4)]
    diverted, failed = dice.choice((0, 0, 30)), dice.choice((0, 0, 0, 1))
    expects = Reaction.REFUSED if failed else Reaction.DIVERTED if diverted else Reaction.WAITED
    expects = expects if dice.random() < 0.8 else dice.choice([*Reaction])
    trouble = dice.choice(("", "", "It was late."))
    overtaken = dice.choice((0, 0, 0, 2))
    return DrilledEntity("dark", entity, 60, diverted, failed, *seconds, overtaken, expects, proof(dice), trouble)


def drills() -> Iterator[Answered]:
    """What a drill creates and is marked with, and what is told of it."""
    for number in range(WORLDS):
        world = World(EntityFacts, f"world of a drill {number}")
        dice, both = (
            world.dice,
            [{(side, one.path.lower()): one for one in world.entities()} for side in (*Side, *Side)],
        )
        before, after = both[0] | both[1], both[0] | both[1] | both[3]
        tiers = {side: world.value(Tier | None) for side in Side}
        wanted = [one for one in both[0].values() if one.kind is not EntityKind.SUBSCRIPTION]
        wanted = [replace(one, path=one.path * dice.choice((1, 1, 1, 60))) for one in wanted]
        plan = plan_drill("r1", NOW, before, wanted, [path(n) for n in range(number % 5)], tiers, dice.choice((3, 60)))
        lines = [said(plan), said(plan.forecast), *map(said, live_differences(before, after))]
        for shadow in plan.shadows:
            text = shadow.settings.user_metadata or ""
            for marked in (text, text.replace("r1;", "r2;"), text.replace("2026", "20x6"), f"{text}x", text[1:]):
                settings = replace(shadow.settings, user_metadata=marked)
                lines.append(said(Mark.of(EntityFacts(shadow.kind, world.spelled(shadow.path), settings))))
        findings = (world.example(Diagnosis) for _ in range(dice.choice((0, 0, 1, 3))))
        told = Drilled(
            "orders",
            NOW,
            dice.random() < 0.3,
            plan.shadows,
            dice.choice((1, 7)),
            tuple(drilled(dice, name) for name in ("orders", "news")[: dice.choice((0, 1, 2))]),
            tuple(replace(one, check=dice.choice(CHECKS)) for one in findings),
            None,
            dice.choice(((), (), ("a", "b"))),
            world.value(tuple[DrillLine, ...]),
            dice.random() < 0.1,
            plan if dice.random() < 0.7 else None,
        )
        asked = sample(
            number, "m", dice.choice((None, "s")), dice.choice((None, NOW + 0.4)), expires=dice.random() < 0.3
        )
        lines += [f"{name}: {part}" for name, parts in answers(told).items() for part in parts]
        lines += [f"{told.proved} {[one.sentence for one in told.entities]}", repr(asked), fingerprint(asked)]
        yield partial(str, f"world {number}"), lines


def subjects() -> dict[str, Iterator[Answered]]:
    """Rooms and files by name."""
    found = {"world of audits": audits(), "world of cleanups": cleanups(), "world of evacuations": evacuations()}
    found["world of drills"] = drills()
    for module in modules():
        place = module.__name__.removeprefix("sbpair.core.")
        if place.startswith("inspection.") or place in PLACES:
            found[f"world {place}"] = _of_module(module)
    return found


def _of_module(module: ModuleType) -> Iterator[Answered]:
    """What its functions, methods and classes answer."""
    for function in functions(module):
        with suppress(NoExampleError):
            yield from called(function, World, CALLS)
    for kind in kinds(module):
        with suppress(NoExampleError):
            yield from told(kind)
