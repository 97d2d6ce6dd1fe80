"""What browsed messages are shown as, and why one lies where it lies; and messages out of files. All is drawn;
`tests.core.walks` has the digests approved.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sbpair.amqp import sections, types
from sbpair.amqp.sections import PropertyField
from sbpair.core.entities import EntityFacts, EntityKind, EntitySettings, RuleFacts
from sbpair.core.message import MessageState, Received
from sbpair.core.names import dead_letter_path
from sbpair.core.summary import describe
from sbpair.core.transfer.explained import MessageContext, Near, cause_of, explain
from sbpair.core.transfer.peeked import (
    DeadLetters,
    GroupKey,
    Groups,
    Messages,
    NotBrowsed,
    SessionList,
    explain_reasons,
    grouped,
    peeked,
    sessions_of,
)
from sbpair.core.transfer.restored import Restorable, Restored, RestorePlan, RestoreResult, Unsendable
from sbpair.core.transfer.state import Forward
from sbpair.service import EntityStatus
from tests.core.examples import Answered, said
from tests.core.transfer.runs import EXCEPTIONS, FRAMES, NOW, TEXTS, drawn, failures, told

REASONS = (
    *("TTLExpiredException", "MaxDeliveryCountExceeded", "Session id is null.", "MaxTransferHopCountExceeded"),
    *("EntityNotFound", "ArgumentRefused", "NotABacklogMessage", "InvalidDestination", "MessageTooLarge", "TooOld"),
    *("Auto-Forward failed", "Transfer failed", "FilterEvaluationException", "HeaderSizeExceeded"),
    "Destination queue not indicated in message when fetched from backlog.",
    "The message cannot be delivered to the destination.",
    "Invalid type in property.",
)
SAID = (*TEXTS, *FRAMES, "It could not Forward.", "MessagingEntityNotFoundException: gone")
ODD: tuple[Any, ...] = (
    None,
    True,
    types.Long(7),
    1.5,
    float("inf"),
    b"\xff",
    types.Described(types.Symbol("com.microsoft:timespan"), types.Long(15_000)),
    types.Described(types.Symbol("x"), "y"),
    types.Timestamp(7),
)


def message(dice: random.Random, number: int) -> Received:
    """As it is browsed, with what a broker and frameworks put on it."""
    reason, session, at = dice.choice((None, None, *REASONS)), dice.choice((None, None, "s", "S")), NOW - number * 1000
    given: dict[str, Any] = {"color": dice.choice(("red", "blue", *ODD))}
    given |= {"DeadLetterReason": reason} if reason else {}
    given |= {"DeadLetterErrorDescription": dice.choice(SAID)} if dice.random() < 0.6 else {}
    given |= {"x-ms-path": dice.choice(("orders", "Orders", "x" * 400))} if dice.random() < 0.3 else {}
    given |= {"x-ms-timetolive": dice.choice((types.Uint(5), "soon", "PT1M"))} if dice.random() < 0.1 else {}
    given |= {"NServiceBus.FailedQ": "carts"} if dice.random() < 0.1 else {}
    given |= {"exception_type": dice.choice(EXCEPTIONS)} if dice.random() < 0.1 else {}
    given |= {dice.choice(("traceparent", "Diagnostic-Id")): "00-1"} if dice.random() < 0.1 else {}
    annotations: dict[str, Any] = {
        "x-opt-enqueue-sequence-number": types.Long(dice.choice((number, 99))),
        "x-opt-deadletter-source": dice.choice(("orders", "ORDERS", "carts")),
        "x-opt-scheduled-enqueue-time": dice.choice((types.Timestamp(1_763_000_123_000), "late", True)),
        "x-opt-partition-key": "k",
    }
    kept = {types.Symbol(name): value for name, value in annotations.items() if dice.random() < 0.4}
    fields = {
        PropertyField.MESSAGE_ID: dice.choice((None, "m1", "m2")),
        PropertyField.GROUP_ID: session,
        PropertyField.SUBJECT: dice.choice((None, "new")),
        PropertyField.CONTENT_TYPE: dice.choice((None, "text/plain")),
        PropertyField.CORRELATION_ID: dice.choice((None, "c", types.Ulong(7))),
    }
    body = dice.choice(({"data": b"hello"}, {"data": b"\xff"}, {"value": "text"}, {"value": {"a": dice.choice(ODD)}}))
    header = dice.choice((None, {sections.HeaderField.TTL: types.Uint(dice.choice((0, 500, 60_000)))}))
    payload = sections.build(
        header=header, message_annotations=kept or None, properties=fields, application_properties=given, **body
    )
    payload = b"\0\1" if dice.random() < 0.03 else payload
    place = dice.choice(("orders", "news/Subscriptions/all"))
    source = dice.choice((place, place, dead_letter_path(place)))
    return Received(
        payload,
        number,
        source,
        dice.choice((None, "m1")),
        session,
        None,
        dice.choice((None, at, at)),
        dice.choice((None, None, None, NOW - 1, NOW, NOW + 1)),
        dice.choice((0, 0, 1, 9, 10)),
        dice.choice((MessageState.ACTIVE, MessageState.ACTIVE, *MessageState)),
    )


def looks(dice: random.Random) -> Iterator[str]:
    some, with_body = [message(dice, number) for number in range(dice.choice((0, 1, 12)))], dice.random() < 0.5
    shown = tuple(peeked(one.queue, one, describe(one.payload), with_body=with_body) for one in some)
    groups = grouped(shown, tuple(dice.sample([*GroupKey], dice.choice((1, 1, 2)))))
    failed = tuple(NotBrowsed("orders", one) for one in dice.sample(failures(), dice.choice((0, 0, 1, 2))))
    about = "orders", 12, dice.random() < 0.3, failed, ()
    for one in (Messages(*about, shown), Groups(*about, groups)):
        yield from told(one)
        yield f"{one.exit} {one.closing} {one.notes}"
    yield from told(DeadLetters("contoso", "orders", 12, about[2], shown, groups, "message", ()))
    yield from explain_reasons(shown, "orders")
    sessions = sessions_of(some, dice.choice(((), ("S", "other"))))
    locked = tuple(replace(one, locked=dice.choice((None, True, False))) for one in sessions.values())
    yield said(sessions)
    yield from told(SessionList("contoso", "orders", locked))


def explained(dice: random.Random) -> Iterator[str]:
    one = message(dice, 7)
    settings = EntitySettings(
        status=dice.choice((*[EntityStatus.ACTIVE] * 6, *EntityStatus)),
        forward_to=dice.choice((*[None] * 6, "carts")),
        requires_session=dice.random() < 0.3,
        max_delivery_count=dice.choice((9, 10)),
        default_message_time_to_live_seconds=dice.choice((None, None, 1000.0, 7000.0, 8000.0)),
        dead_lettering_on_message_expiration=dice.random() < 0.5,
    )
    rules = (
        RuleFacts("red", "color = 'red'"),
        RuleFacts("blue", "color = 'blue'", action="SET x = 1"),
        RuleFacts("no", "(("),
    )
    facts = EntityFacts(EntityKind.QUEUE, "orders", settings, rules=rules)
    near = [Near(number, dice.random() < 0.3, dice.choice([*MessageState])) for number in range(1, 8)]
    known = MessageContext(
        "contoso",
        dice.choice(("orders", "news/Subscriptions/all")),
        one,
        facts if dice.random() < 0.8 else None,
        dice.choice((None, None, near[: dice.choice((0, 1, 2))])),
        near[: dice.choice((0, 0, 1, 7))],
        NOW,
        dice.random() < 0.8,
    )
    yield from told(explain(known))
    yield cause_of(one, describe(one.payload))


def restored(dice: random.Random) -> Iterator[str]:
    lines = tuple(
        Unsendable(Path("a b.jsonl"), number, 0, 9, dice.choice(("InvalidDestination", "NoDestination")), "It is odd.")
        for number in range(dice.choice((0, 0, 1, 3, 4, 5)))
    )
    some = tuple(Restorable(message(dice, number), Forward(b"", "orders")) for number in range(dice.choice((0, 2))))
    plan = RestorePlan(some, dice.choice(({}, {"not allowed": 2})), lines)
    done = Restored(
        dice.choice(({}, {"b": 1, "a": 2})),
        dice.choice(({}, plan.left, {"y": 1, "x": 2})),
        dice.choice((0, 0, 1, 2)),
        dice.choice((0, 1)),
        dice.choice((None, *failures())),
    )
    files = dice.choice(((), (Path("kept 1.jsonl"),), (Path("a"), Path("b"))))
    label = dice.choice((None, "orders"))
    yield f"{plan.chosen} {plan.left}"
    yield from told(RestoreResult(label, "contoso", dice.random() < 0.3, plan.chosen, done, plan, files))


def subjects() -> dict[str, Iterator[Answered]]:
    """By name."""
    return {
        "run looks": drawn(looks, "look", 150),
        "run explained messages": drawn(explained, "explained", 600),
        "run restores": drawn(restored, "restore", 100),
    }
