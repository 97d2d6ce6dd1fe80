"""What is said at the end of runs: of drains, of moves of one entity, of several runs together. All is drawn;
`tests.core.walks` has the digests approved.
"""

import random
from collections.abc import Iterator
from pathlib import Path

from sbpair.core.backlog import Backlog, FoundBy, QueueContents, advice, grade_of
from sbpair.core.backlog import headline as headline_of
from sbpair.core.prices import Forecast
from sbpair.core.transfer.conclusion import ENDED, ONLY_ENTITIES, Asked, DrainResult, headline, hindered_by, left_out
from sbpair.core.transfer.report import (
    DEAD_LETTERED,
    FILTERED_OUT,
    TOO_MANY_LEFT,
    UNDELIVERABLE,
    CounterKind,
    DrainReport,
    Left,
    LockedQueue,
    QueueFailure,
    fields_of,
    numbers,
    parts_together,
    reasons,
    together,
)
from sbpair.core.transfer.resend import CAME_LATER, DUE, NOT_PLANNED, TOO_LARGE
from sbpair.core.transfer.summary import (
    Act,
    Emptied,
    Grown,
    MessageDifference,
    MovePlan,
    MoveResult,
    Repaired,
    StepResult,
    guaranteed,
    with_unreached,
)
from sbpair.core.transfer.verdict import NOT_CONFIGURED, REFUSED_BY
from tests.core.examples import Answered, planned, said
from tests.core.snapshots import path
from tests.core.transfer.runs import NOW, destination, drawn, failures, told

COUNTS, QUIET = (0, 0, 0, 1, 2, 1500), (0, 0, 0, 0, 0, 0, 0, 1)
AWAY = tuple(
    f"destination unavailable: orders ({code})"
    for code in ("entity-not-found", "entity-disabled", "quota-exceeded", "connection-lost", "unauthorized")
)
LEFT: tuple[tuple[str, ...], ...] = (
    AWAY[:3],
    AWAY[3:4],
    AWAY[4:],
    AWAY,
    (f"{REFUSED_BY}orders (argument-refused)", f"{REFUSED_BY}bills (message-too-large)"),
    (f"{UNDELIVERABLE}NotABacklogMessage", f"{UNDELIVERABLE}NoDestination"),
    (f"{NOT_CONFIGURED}Billing", f"{NOT_CONFIGURED}invoices"),
    ("deferred", "scheduled"),
    (CAME_LATER, NOT_PLANNED, DUE, TOO_LARGE),
)
"""Reasons for which messages are left, by what is to be done about them."""


def left(dice: random.Random) -> tuple[Left, ...]:
    kinds = dice.sample(LEFT, dice.choice((0, 1, 1, 2)))
    some = [one for kind in kinds for one in dice.sample(kind, min(len(kind), dice.choice((1, 2))))]
    found = {
        one: dice.choice((1, 3, 1500))
        for one in (*some, *(("deferred", "locked elsewhere") if dice.random() < 0.1 else ()))
    }
    return reasons(found) if dice.random() < 0.8 else tuple(Left(one, dice.choice((0, 2))) for one in found)


def report(dice: random.Random) -> DrainReport:
    some = dice.choice((COUNTS, QUIET))
    counted = {one.name: dice.choice(some) for one in numbers()}
    counted["forwarded_bytes"] = counted["forwarded"] * dice.choice((100, 65_536, 65_537))
    names = {
        one.name: tuple((name, dice.choice((1, 2))) for name in ("Orders", "bills")[: dice.choice((0, 0, 1, 2))])
        for one in fields_of(CounterKind.BY_NAME)
    }
    return DrainReport(
        **counted,
        **names,
        left=left(dice),
        failures=tuple(
            QueueFailure(path(n), one) for n, one in enumerate(dice.sample(failures(), dice.choice((0, 0, 0, 1, 2))))
        ),
        confirmed_empty=dice.random() < 0.3,
        ended_by=dice.choice((*["empty"] * 8, *ENDED)),
        broken_off=dice.choice((None, None, None, "The filter cannot be evaluated.")),
        archive=dice.choice((None, None, Path("kept"))),
        dry_run=dice.random() < 0.3,
        locked=tuple(LockedQueue(path(n), NOW + n) for n in range(dice.choice((0, 0, 1, 2)))),
        unchecked=dice.choice(((), (), ("orders",), ("orders", "bills"))),
        seconds=1.5,
    )


def contents(dice: random.Random, number: int) -> QueueContents:
    if dice.random() < 0.1:
        return QueueContents(path(number), dice.random() < 0.7, missing=True)
    known = [dice.choice((0, 0, 0, 1, 7)) if dice.random() < 0.95 else None for _ in range(4)]
    return QueueContents(
        path(number),
        dice.random() < 0.8,
        False,
        *known,
        at_least=dice.random() < 0.1,
        oldest_enqueued_at=dice.choice((None, None, NOW - 90)),
        error_code=dice.choice((*[None] * 9, "unauthorized")),
        detail=dice.choice(("", "No right.")),
    )


def backlog(dice: random.Random) -> Backlog:
    return Backlog(
        "orders",
        NOW,
        tuple(contents(dice, number) for number in range(dice.choice((0, 1, 1, 2, 3)))),
        dice.choice((FoundBy.LISTED, *FoundBy)),
        dice.random() < 0.8,
        dice.choice(((), (), (path(7),), (path(7), path(8)))),
    )


def drain(dice: random.Random) -> Iterator[str]:
    done, found = report(dice), backlog(dice)
    asked = Asked(
        "orders",
        "contoso",
        dice.choice(("sbpair drain orders", f"sbpair drain orders {ONLY_ENTITIES} --rate 5")),
        dead_letter=dice.random() < 0.3,
        filtered=dice.random() < 0.3,
        ledger=dice.choice((None, Path("l.jsonl"), Path("my ledger.jsonl"))),
        queue=dice.choice((None, None, "inbox")),
    )
    seen = found if dice.random() < 0.9 else None
    yield from told(DrainResult.of(asked, done, seen, Forecast(message_operations=3), {path(0): 5}))
    yield f"{headline(done, seen, asked)} {hindered_by(done)} {hindered_by(done, apart_from=AWAY[:3])}"
    yield f"{found.verdict} {found.confirmed_empty} {headline_of(found)} {grade_of(found)} {left_out(done.pings)}"
    yield from map(str, advice(found, drain=dice.choice((None, "go on")), recorded=dice.choice(("", " --ledger x"))))
    yield f"{done.has_moved} {found.oldest_age_seconds} {found.active} {found.dead_letter} {found.next_commands}"


ACTS = (
    Act("sent", "dead letter", command="dlq resubmit"),
    Act("moved"),
    Act("copied", keep=True, recorded=False),
    Act("deleted", recorded=False),
    Act(DEAD_LETTERED),
    Act("sent", edited=True, command="edit"),
)


def move(dice: random.Random) -> Iterator[str]:
    done, before, to = report(dice), report(dice), dice.choice((None, "bills", "bills"))
    within = dice.choice((None, None, "two namespaces"))
    guarantee, why = guaranteed(done, "bills", within=within, keyless=dice.choice((0, 1, 2, 1500)))
    steps = tuple(StepResult(number, 1, 0, 0, 1.5) for number in (1, 2, 5)[: dice.choice((0, 1, 3))])
    same = (MessageDifference(1, ("---", "+++", "-a", "+b")), MessageDifference(2, ("---", "+++", "-c")))
    plan = MovePlan(
        planned(dice.choice((0, 2))), before, destination(dice), {}, dice.random() < 0.2, why, dice.random() < 0.3
    )
    result = MoveResult(
        "contoso",
        "orders",
        None if to is None else "fabrikam",
        to,
        done,
        dice.choice(ACTS),
        plan,
        guarantee if dice.random() < 0.8 else None,
        why,
        plan.remarks("orders"),
        dice.choice((None, Repaired(1, same), Repaired(2, ()))),
        dice.choice((None, None, Grown(steps), Grown(steps, "one came back"))),
    )
    yield from told(result)
    yield from (result.closing("sbpair go on"), f"{plan.has_work} {plan.keyless} {plan.until} {plan.repaired}")
    yield said(with_unreached(done, before))
    yield from Emptied("orders", "contoso", done, before).notes


def several(dice: random.Random) -> Iterator[str]:
    some = [report(dice) for _ in range(dice.choice((0, 1, 2, 3)))]
    yield said(together(some, seconds=2.0))
    yield said(parts_together(some, seconds=2.0))
    yield said(reasons({FILTERED_OUT: 1, TOO_MANY_LEFT: dice.choice((0, 1)), "b": 1}))


def subjects() -> dict[str, Iterator[Answered]]:
    """By name."""
    return {
        "run ends of drains": drawn(drain, "end of a drain", 600),
        "run ends of moves": drawn(move, "end of a move", 400),
        "run ends together": drawn(several, "ends", 100),
    }
