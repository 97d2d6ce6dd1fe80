"""What is judged during a run, and told of it afterwards: ledgers of several runs, dead letters by cause, messages that
are sent to one destination, and how fast they may go. All is drawn; `tests.core.walks` has the digests approved.
"""

import copy
import json
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any

from sbpair.core.editing import Editable, Repair
from sbpair.core.entities import EntityFacts, EntityKind, EntitySettings, QueueFacts, RuleFacts, TopicFacts
from sbpair.core.errors import ConnectionLostError, EntityNotFoundError, SbpairError, ServerBusyError, ServiceError
from sbpair.core.message import Disposition, MessageState, Origin, Received
from sbpair.core.names import dead_letter_path
from sbpair.core.rewrite import TtlMode, compose, for_backlog
from sbpair.core.summary import describe
from sbpair.core.transfer.custody import DEAD_LETTERED, PURGED, REFUSED_OUTCOME
from sbpair.core.transfer.filters import EVERYTHING, MessageFilter, Where
from sbpair.core.transfer.ledger import (
    NOT_SENT,
    RUN_BEGAN,
    RUN_ENDED,
    SENDING,
    STATE_MOVED,
    InDoubt,
    LedgerEntry,
    LedgerLine,
    Way,
    batch_lines,
    between,
    chained,
    follow,
    mark_of,
    run_line,
)
from sbpair.core.transfer.ledger_report import IncidentCounter, LedgerChain
from sbpair.core.transfer.order import Mode, OrderGap, Queues
from sbpair.core.transfer.pace import Load, Pace, Window
from sbpair.core.transfer.resend import (
    Archiver,
    Editor,
    OnlyFor,
    Planned,
    Purger,
    Repairer,
    Resender,
    Selection,
    Settler,
    follower,
    refuse_destination,
    rules_of,
    stays,
)
from sbpair.core.transfer.state import Finish, Limits, key_of
from sbpair.core.transfer.triage import MOST_CAUSES, CauseCounter, ReasonCounter, Triage
from sbpair.core.transfer.verdict import Classifier, DestinationSeen, Judge, Wanted, expected, missing
from sbpair.service import EntityStatus, QueueSettings
from tests.core.examples import FAILURES, Answered, answer, answers, said

NOW = 1_763_000_000.0
RUNS = 120


def drawn(of: Callable[[random.Random], Iterator[str]], what: str, runs: int = RUNS) -> Iterator[Answered]:
    for number in range(runs):
        dice = random.Random(f"{what} {number}")
        yield f"{what} {number}".__str__, [*of(dice)]


def failures() -> Sequence[ServiceError]:
    """Of its own for each who asks: some who get an error write a hint into it."""
    return copy.deepcopy(FAILURES)


def told(example: Any) -> Iterator[str]:
    """An example, and what it says of itself."""
    yield said(example)
    for name, parts in answers(example).items():
        yield from (f"{name}: {part}" for part in parts)


# Ledgers

WAYS = (Way("b.example", "a.example"), Way("b.example", None), Way("c.example", "a.example"), None)
OUTCOMES = ("forwarded", "forwarded", "already-forwarded", DEAD_LETTERED, REFUSED_OUTCOME, "taken", PURGED, STATE_MOVED)


def entry(dice: random.Random, at: float) -> LedgerEntry:
    number = dice.randrange(1, 6)
    time = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}" if dice.random() < 0.95 else "at night"
    return LedgerEntry(
        dice.choice(("q/0", "Q/0", "q/1")),
        number,
        dice.choice((None, f"m{number}")),
        dice.choice((0, -1, round(NOW * 1000) - 1000 * number)),
        dice.choice(("orders", "Orders", "bills", "")),
        dice.choice((None, "s")),
        dice.choice(OUTCOMES),
        time,
        dice.choice((1, 1, 1, 2)),
        dice.choice(("", "TTLExpiredException", "NoDestination")),
    )


def writes(dice: random.Random, way: Way | None) -> Iterator[list[bytes]]:
    """What runs write, one write after the other; some end without a word, some began before runs were recorded."""
    at, told_way = NOW, between(way)
    for run in range(dice.choice((1, 2, 3))):
        if dice.random() < 0.8:
            about = {"who": "me", "command": f"sbpair drain {run}", "reason": "drill", "version": "1"}
            about = {name: one for name, one in about.items() if dice.random() < 0.8}
            yield [run_line(f"r{run}", RUN_BEGAN, f"2026-11-{10 + run}T08:00:00Z", told_way, about)]
        for _ in range(dice.randrange(5)):
            at += dice.choice((0.0, 1.0, 60.0, -5.0))
            some = [entry(dice, at) for _ in range(dice.choice((1, 2, 3, 20)))]
            if (what := dice.random()) < 0.4:
                yield batch_lines(some, SENDING if what < 0.25 else NOT_SENT, told_way)
            if what > 0.15:
                yield [one.line(told_way) for one in some]
        if dice.random() < 0.7:
            left = dice.choice(({}, {"filtered out": 1}, {"x": 2, "y": None, "z": "many"}, "nothing"))
            waiting = dice.choice((None, {"active": 0, "dead_letter": 3}, {"active": None, "transfer_dead": 0}))
            end = {"ended_by": "empty", "left": left, "waiting": waiting}
            yield [run_line(f"r{run}", RUN_ENDED, f"2026-11-{10 + run}T09:00:00Z", told_way, end)]


def file_of(dice: random.Random, way: Way | None) -> list[bytes]:
    """Its lines: chained as now or as by release 1.0.0, or not at all, and perhaps not as they were written."""
    since, text, kind = sha256(mark_of(sha256())), b"", dice.random()
    for lines in writes(dice, way):
        if kind < 0.7:
            added, since = chained(lines, since)
            text += added
        for line in lines if kind >= 0.7 else ():
            body = line[: -len(b"}\n")]
            mark = mark_of(sha256(mark_of(sha256(text)) + body))
            text += body + b', "chain": "' + mark + b'"}\n' if kind < 0.8 else line
        if dice.random() < 0.1:
            text += entry(dice, NOW).line()
    found = text.splitlines(keepends=True)
    for _ in range(dice.choice((0, 0, 0, 1, 2)) if found else 0):
        place, what = dice.randrange(len(found)), dice.randrange(6)
        if what == 0:
            del found[place]
        elif what == 1:
            found.insert(place, dice.choice(found))
        elif what == 2:
            found[place] = found[place].replace(b"orders", b"ORDERS")
        elif what == 3:
            found[-1] = found[-1][: dice.randrange(1, len(found[-1]))]
        elif what == 4:
            found[place] = b"no line\n"
        else:
            found[-1] = found[-1][:-1] + dice.choice((b"", b" ", b"\0\0"))
        if not found:
            break
    return found


def ledger(dice: random.Random) -> Iterator[str]:
    counter, seen = IncidentCounter(), []
    for number in range(dice.choice((1, 2, 3))):
        files = [file_of(dice, dice.choice(WAYS)) for _ in range(dice.choice((1, 1, 2)))]
        chain, doubt, since = LedgerChain(put_together=len(files) > 1 or dice.random() < 0.2), InDoubt(), sha256()
        for text in [line for lines in files for line in lines]:
            line, since = chain.add(text), follow(text, since)
            if line is not None:
                counter.add(line)
                yield f"{line.outcome} {doubt.note(line)} {doubt.destinations()} {chain.not_chained} {chain.parts}"
                yield said(line.spelled({"q/0": "Q/0"}).messages) + str(line.spelled({"q/1": "q/1"}).key)
        yield f"{mark_of(since).decode()} {chain.lines} {chain.cut_off}"
        seen.append(chain.seen(f"{number}.jsonl", ended=counter.over(), signature=None))
    report = counter.report(tuple(seen), verified=dice.random() < 0.5)
    yield from told(report)
    yield from map(said, report.notes())
    yield from map(said, report.figures())


def strange_line(dice: random.Random) -> Iterator[str]:
    """No line of a ledger, or nearly one."""
    fields = asdict(entry(dice, NOW)) | {"outcome": dice.choice((SENDING, "forwarded"))}
    fields["messages"] = dice.choice(([], [[1, "m", 2]], [[1, None, 2], ["1", "m", 2]], [[1]], 5, None))
    for name in dice.sample([*fields], dice.choice((0, 1, 1))):
        fields[name] = dice.choice((None, 1, "1", [], {}))
    fields |= dice.choice(({}, {"dead_letter": True}, {"dead_letter": 1}, {"to_namespace": "a", "from_namespace": 1}))
    yield said(LedgerLine.parse(json.dumps(fields).encode()))
    yield said(LedgerLine.parse(dice.choice((b"", b"[]", b"5", b'"x"', b"{}", b'{"queue": null}', b"[" * 3000))))


# Dead letters

EXCEPTIONS = ("System.TimeoutException", "OrderNotFoundError", "Contoso.Orders.StockException", "java.io.IOException")
TEXTS = (
    "Order 17 of 'Smith' was not found",
    "order 18 of 'Miller'  was not found",
    "The request to https://a.example/orders timed out after 30 s",
    "Cannot parse body: key not found",
    "a.b@c.example is no customer of 5f0c1d9a-1111-2222-3333-444455556666",
    "",
)
FRAMES = (
    "System.TimeoutException: late 5\n   at Contoso.Orders.Handler.Handle(Order order) in H.cs:line 5\n   at B.C()",
    'Traceback\n  File "/app/orders.py", line 3, in handle\n  File "/app/db7.py", line 9, in read\nKeyError: 5',
    "OrderNotFoundError in field x",
    " at async Contoso.Bills9.Go (x)",
)
WORDS = ("apples", "pears", "plums", "nuts", "figs", "dates", "limes", "grapes")
BODIES = (
    '{"id": 1, "size": 2}',
    '{"id": 1, "size": 2, "color": 3}',
    '[{"name": "x", "k1": 2}]',
    "[]",
    "5",
    '"text"',
    "<order xmlns='x'/>",
    "<?xml version='1.0'?>\n<bill/>",
    "plain words",
    "\ufeff {}",
    "{",
    "",
    "   ",
    b"\xff\xfe\0",
    "x" * 70_000,
)


VALUES = (*WORDS, *map(" ".join, zip(WORDS, reversed(WORDS), strict=True)))
ABOUT = ("No {} left in the store", "No {} left in the shop", "{} is gone", "gone: {}", "it is {}")


def of_one_cause(dice: random.Random) -> dict[str, Any]:
    """One sentence about many things."""
    return {"DeadLetterReason": "Failed", "DeadLetterErrorDescription": dice.choice(ABOUT).format(dice.choice(VALUES))}


def of_any_cause(dice: random.Random) -> dict[str, Any]:
    words = f"No {dice.choice(WORDS)} left in {dice.choice(('store', 'shop'))} of the town"
    text = dice.choice((*TEXTS, *FRAMES, words, words, words))
    properties: dict[str, Any] = {"DeadLetterErrorDescription": text} if dice.random() < 0.9 else {}
    if dice.random() < 0.9:
        reason = dice.choice(
            ("Failed", "failed", "TTLExpiredException", "MaxDeliveryCountExceeded", "Error 5", "r" * 300)
        )
        properties["DeadLetterReason"] = reason
    if dice.random() < 0.3:
        name = dice.choice(("NServiceBus.ExceptionInfo.ExceptionType", "MT-Fault-ExceptionType", "exception_type"))
        properties[name] = dice.choice((*EXCEPTIONS, "It's.Error, Assembly", " , x", ""))
    if dice.random() < 0.3:
        properties[dice.choice(("StackTrace", "x-exception-stacktrace"))] = dice.choice((*FRAMES, "nowhere"))
    return properties


def letter(dice: random.Random, number: int, properties: Mapping[str, Any]) -> tuple[Received, Any]:
    payload = compose(body=dice.choice(BODIES), message_id=f"m{number}", application_properties=properties)
    at = dice.choice((None, NOW + number, NOW - number))
    return Received(payload, number, dead_letter_path("orders"), enqueued_at=at), describe(payload)


def letters(dice: random.Random) -> Iterator[str]:
    before: Mapping[str, int] | None = None
    of, entities = dice.choice(((of_any_cause, ("orders", "orders", "news/Subscriptions/all", "Bills")),
                                (of_one_cause, ("orders",))))  # fmt: skip
    for look in range(2):
        reasons, counter = ReasonCounter(), CauseCounter(dice.choice((MOST_CAUSES, MOST_CAUSES, 12)))
        some = dice.choice((3, 12, 60, 120))
        for number in range(some):
            received, summary = letter(dice, number, of(dice))
            reasons.add(received, summary)
            counter.add(dice.choice(entities), received, summary)
        causes = counter.causes("contoso", before, with_body=dice.random() < 0.2)
        before = {key: max(0, number + dice.choice((-1, 0, 1))) for one in causes for key, number in one.parts.items()}
        yield from map(said, (*reasons.reasons(), *causes))
        yield from told(Triage("contoso", counter.messages, 3, causes, left_off=counter.left_off, since_last=look > 0))


# Judges

PATHS = ("orders", "Orders", "news/Subscriptions/all", dead_letter_path("orders"), "contoso/x-servicebus-transfer/1")
CONDITIONS = (
    *("color = 'red'", "COLOR = 'red'", "size > 1", "Colors = 'red'", "sessionids = 1"),
    *("sys.SessionId = 's'", "colour = 'red'", "sys.State = 'active'", "color > 1"),
)


def sent_message(dice: random.Random) -> bytes:
    given: dict[str, Any] = {
        "session_id": dice.choice((None, "s", "S", "other")),
        "ttl_seconds": dice.choice((None, None, 0.0, 5.0, 599.0, 600.0, 86_400.0)),
        "scheduled_at": dice.choice((None, None, NOW + 59.0, NOW + 60.0, NOW + 4000.0)),
    }
    if given["session_id"] is None:
        given["partition_key"] = dice.choice((None, "k"))
    reason = dice.choice(({}, {"DeadLetterReason": dice.choice(("Failed", "TooOld"))}))
    properties = {dice.choice(("color", "Color")): dice.choice(("red", "blue")), "size": dice.choice((1, 2))} | reason
    payload = compose(
        body="x" * dice.choice((1, 10, 400)),
        message_id=dice.choice(("m1", "m2", "m3", "m4", "")),
        application_properties=properties,
        **given,
    )
    return for_backlog(payload, dice.choice(("orders", "Orders", "bills"))) if dice.random() < 0.3 else payload


def received(dice: random.Random, number: int) -> Received:
    payload = dice.choice((b"\0\1", b"")) if dice.random() < 0.04 else sent_message(dice)
    at = dice.choice((None, NOW, NOW - 599.0, NOW - 600.0, NOW - 5000.0))
    origin = Origin("q/1", 7, "m9", 5) if dice.random() < 0.05 else None
    state = dice.choice((MessageState.ACTIVE, MessageState.ACTIVE, *MessageState))
    return Received(payload, number, dice.choice(PATHS), enqueued_at=at, state=state, origin=origin)


def selection(dice: random.Random) -> Selection:
    chosen = MessageFilter(
        destination=dice.choice((None, None, "ORD*", "Bills")),
        session_id=dice.choice((None, None, "s")),
        since=dice.choice((None, None, NOW - 599.0)),
        until=dice.choice((None, None, NOW - 600.0, NOW)),
        where=Where(dice.choice(CONDITIONS)) if dice.random() < 0.3 else None,
    )
    return Selection(
        chosen if dice.random() < 0.3 else EVERYTHING,
        dice.choice(((), (), (), (), ("failed",), ("TOOOLD", "faild"))),
        dice.choice(((), (), (), (), (MessageState.ACTIVE,), (MessageState.SCHEDULED, MessageState.DEFERRED))),
    )


def destination(dice: random.Random) -> DestinationSeen:
    settings = QueueSettings(
        requires_session=dice.random() < 0.3,
        requires_duplicate_detection=dice.random() < 0.4,
        default_message_time_to_live_seconds=dice.choice((None, 300.0, 600.0)),
        status=dice.choice((EntityStatus.ACTIVE, EntityStatus.ACTIVE, *EntityStatus)),
        forward_to=dice.choice((None, None, None, "archive")),
        max_size_in_megabytes=1,
    )
    size, kind = dice.choice((0, 1024**2 - 1, 1024**2)), dice.random()
    topic = TopicFacts("news", settings.status, False, settings.requires_duplicate_detection, 900.0, 1, None, size)
    error = dice.choice((*failures(), ServerBusyError("busy"))) if dice.random() < 0.2 else None
    if isinstance(error, EntityNotFoundError):
        error = EntityNotFoundError("There is no entity 'orders'.")
    return DestinationSeen(
        "orders",
        dice.choice((None, 200, 1024)),
        error,
        QueueFacts("orders", settings, size_in_bytes=size) if kind < 0.6 else None,
        topic if kind > 0.8 else None,
        asked=True,
    )


def subscriptions(dice: random.Random) -> list[EntityFacts]:
    rules = [
        RuleFacts("all"),
        RuleFacts("red", "color = 'red'"),
        RuleFacts("big", "size > 1", action="SET size = 1" if dice.random() < 0.3 else None),
        RuleFacts("odd", "size > 'a'"),
        RuleFacts("one", None, properties=(("color", "blue"),)),
    ]
    return [
        EntityFacts(
            EntityKind.SUBSCRIPTION,
            f"{dice.choice(('news', 'News'))}/Subscriptions/{name}",
            EntitySettings(
                requires_session=dice.random() < 0.2, status=dice.choice((EntityStatus.ACTIVE, EntityStatus.DISABLED))
            ),
            rules=tuple(dice.sample(rules, dice.choice((0, 1, 1, 2)))),
        )
        for name in ("all", "some", "few")[: dice.choice((1, 2, 3))]
    ]


def judge(dice: random.Random, some: Sequence[Received]) -> tuple[Judge, Selection]:
    chosen, seen = selection(dice), destination(dice)
    now = NOW + dice.choice((0.0, 0.0, 1.0, 900.0))
    recent, keep, same = dice.choice(((), ("m1",))), dice.random() < 0.3, dice.random() < 0.5
    resender = Resender(seen, chosen, same_entity=same, now=lambda: now, recent=recent, keep=keep)
    forms = {key_of(one): sent_message(dice) for one in some[:4]}
    changes = dice.choice(({"color": "green"}, {"sys.Subject": "x"}, {"sys.TimeToLive": "90s"}, {"size": "many"}))
    given = subscriptions(dice)
    judges: tuple[Judge, ...] = (
        resender,
        resender,
        OnlyFor(resender, given[0].path.upper(), given),
        OnlyFor(follower, given[0].path, given),
        Editor(resender, forms),
        Repairer(resender, Repair(changes, dice.choice(((), ("colour",), ("sys.SessionId",))))),
        Purger(chosen),
        Archiver(chosen, "there"),
        Settler(key_of(some[0]), Finish(Disposition.COMPLETE, PURGED)),
        follower,
        Classifier(
            now=lambda: now,
            ttl=dice.choice([*TtlMode]),
            verbatim=dice.random() < 0.2,
            destination=dice.choice((None, "elsewhere")),
            wanted=chosen.filter,
            only=dice.choice((None, ("ORDERS",), ("bills", "x"), ())),
        ),
    )
    return dice.choice(judges), chosen


def _said_of(asked: Callable[[Received], Any], message: Received) -> str:
    return said(asked(message))


def judged(dice: random.Random) -> Iterator[str]:
    some = [received(dice, number) for number in range(1, 13)]
    one, chosen = judge(dice, some)
    planned = Planned(one, takes_later=dice.random() < 0.2)
    asked: Judge = one if dice.random() < 0.4 else planned
    for message in some[: dice.choice((6, 12))]:
        for found in answer(partial(_said_of, asked, message)):
            yield f"{message.source}#{message.sequence_number} {message.state}: {found}"
    yield f"{type(one).__name__} {planned.chosen} {planned.without_key} {planned.remarks} {said(chosen.advice)}"
    yield f"{planned.repairs is None} {planned.only_for is None} {said(getattr(one, 'remarks', ''))}"
    yield f"{said(getattr(one, 'changed', ''))} {said(getattr(one, 'rules', ''))} {chosen.is_set}"
    planned.settle()
    part = planned.some(planned.keys[:2])
    for message in [*some, *some[:3]]:
        for held in (planned, part):
            for found in answer(partial(_said_of, held, message)):
                yield f"then {message.sequence_number}: {found} {stays(found[14:-2])}"


def for_one_subscription(dice: random.Random) -> Iterator[str]:
    """What goes to a topic again so that only one of its subscriptions gets it."""
    given, topic = subscriptions(dice), DestinationSeen("news", topic=TopicFacts("news"), asked=True)
    resender = Resender(topic, Selection(), same_entity=False, now=lambda: NOW)
    asked = OnlyFor(resender, dice.choice(given).path.swapcase(), given)
    for number in range(8):
        message = received(dice, number)
        message = message if dice.random() < 0.1 else replace(message, state=MessageState.ACTIVE)
        yield from answer(partial(_said_of, asked, message))


def at_destination(dice: random.Random) -> Iterator[str]:
    """What a destination will not take, before the first message is sent."""
    seen, wanted, sizes = destination(dice), Wanted(), (10, 128 * 1024, 128 * 1024 + 1, 300_000)
    for _ in range(dice.randrange(8)):
        wanted.add(dice.choice(sizes), dice.choice((None, "s", "S", "t")))
    seen = replace(seen, limit_bytes=dice.choice((None, 128 * 1024, 200_000, 300_000)))
    yield f"{said(wanted)} {wanted.behind(200_000)} {missing(seen)}"
    yield from map(said, expected(seen, wanted))
    despite = dice.random() < 0.5
    label = dice.choice((None, "Contoso"))
    yield from answer(lambda: refuse_destination(seen, "contoso", label=label, despite_duplicate_detection=despite))
    if seen.error is not None:
        yield said(seen.error.hint)
    yield said(rules_of(subscriptions(dice)))


def edited(dice: random.Random) -> Iterator[str]:
    """One repair of several messages."""
    names = (
        "color",
        "user.size",
        "sys.Subject",
        "sys.SessionId",
        "sys.TimeToLive",
        "sys.MessageId",
        "USER.Color",
        "new",
    )
    put = {name: dice.choice(("red", "1", "90s", "true", "")) for name in dice.sample(names, dice.choice((0, 1, 1, 2)))}
    try:
        repair = Repair(put, dice.sample(names, dice.choice((0, 0, 1))))
    except SbpairError as error:
        yield error.message
        return
    for number in range(1, 6):
        message = received(dice, number)
        yield from answer(partial(_said_of, repair.form_of, message))
        yield from answer(partial(_said_of, Editable.of, message))


# Rates

BUSY = ServerBusyError("busy")


def window(dice: random.Random) -> Iterator[str]:
    """Receives and sends of three queues beside each other, with what refusals teach."""
    limits = Limits(
        in_flight_messages=dice.choice((4, 64, 2000)),
        in_flight_bytes=dice.choice((1000, 10**6)),
        rate_per_second=dice.choice((None, None, 0.5, 3.0, 40.0)),
        budget_per_second=dice.choice((None, None, 2.0, 50.0)),
        total_messages=dice.choice((None, None, 30)),
        patience_seconds=dice.choice((None, 5.0)),
    )
    queues, now, granted = Queues(limits, deque()), 100.0, Counter[str]()
    made, names = (
        Window(limits, queues, Pace(limits.budget_per_second) if dice.random() < 0.3 else None),
        ("q/0", "Q/1"),
    )
    for name in names:
        queues.add(name, 20.0)
    for step in range(70):
        now += dice.choice((0.0, 0.02, 0.1, 0.5, 1.0, 3.0, 20.0))
        name = dice.choice(names)
        queue, what = queues.of(name), dice.randrange(9)
        if what == 0:
            queue.mode, queue.may_try, queue.came = dice.choice([*Mode]), dice.random() < 0.5, dice.choice((0, 3))
            queue.blocked, queue.rests_until = dice.choice((0, 0, 2)), now + dice.choice((-1.0, 0.0, -1.0, 2.0))
        elif what == 1:
            for number in range(dice.choice((1, 5))):
                queue.going.add(step * 10 + number)
        elif what == 2:
            if queue.gaps:
                queue.close_gap(min(queue.gaps))
            elif dice.random() < 0.3:
                queue.open_gap(step, OrderGap(("orders", "a"), foreign=True), now)
        elif what == 3:
            made.accepted(dice.choice((1, 20, 500)), now)
        elif what == 4:
            yield f"busy: {said(made.too_busy(BUSY if step % 2 else ConnectionLostError('x'), now))}"
        elif what == 5:
            allowed = made.allowance(now)
            made.take(min(allowed, dice.choice((1, 30))))
            yield f"sent of {allowed}"
        elif what == 6 and granted[name]:
            made.returned(granted[name], dice.choice((None, 0, granted[name])))
            granted[name] = 0
        elif what == 7:
            dice.choice((made.receive_again, partial(made.rests, name), partial(made.pause_receiving, now + 1)))()
        else:
            load = Load(
                dice.choice((0, 3, 60)),
                dice.choice((0, 0, 3)),
                dice.choice((0, 900)),
                dice.choice((1.0, 300.0)),
                step // 2,
            )
            source = dice.choice((name, name, name, None))
            got = made.grant(dice.choice((1, 10, 1000)), load, now, source)
            granted[name] += got
            yield f"granted {got}, {queue.may_try}, {queue.careful}"
        waits = [round(one - now, 6) for one in made.deadlines(now, waiting=dice.random() < 0.7)]
        yield f"{now - 100:.2f} {what}: {waits}, {made.receives(now)}, {made.busy_beyond_patience(now)}"
    yield f"{made.busy_until:.4f}"


def pace(dice: random.Random) -> Iterator[str]:
    """One budget over minutes: what a namespace takes in each second, and when it refuses."""
    made, now, spent, second = Pace(dice.choice((None, None, 30.0))), 100.0, 0, 0
    budget, most = dice.choice((1, 20, 300)), dice.choice((5, 50, 1000))
    pauses = dice.choice(((0.01, 0.05), (0.05, 0.3, 1.0), (0.05, 1.0, 5.0, 40.0)))
    for _ in range(250):
        now = round(now + dice.choice(pauses), 3)
        if dice.random() < 0.02:
            budget = dice.choice((1, 20, 300, 5000))
        if int(now) != second:
            second, spent = int(now), 0
        asked = dice.choice((1, most))
        granted = made.grant(asked, now)
        if granted and spent < budget and dice.random() < 0.97:
            spent += granted
            made.accepted(granted, now)
            happened = "taken"
        else:
            happened = f"refused {made.refused(now):.5f}" if granted else f"waits {made.seconds_until_some(now):.5f}"
        rate = made.per_second(now)
        shown = None if rate is None else round(rate, 5)
        yield f"{now - 100:.2f} {granted} {happened}: {shown}, {made.paused_until:.4f}"
    yield f"{made.pauses} {made.waited.seconds:.4f}"


def subjects() -> dict[str, Iterator[Answered]]:
    """By name."""
    return {
        "run ledgers": drawn(ledger, "ledger", 300),
        "run strange lines": drawn(strange_line, "strange line", 200),
        "run dead letters": drawn(letters, "letters", 60),
        "run judges": drawn(judged, "judge", 500),
        "run subscriptions": drawn(for_one_subscription, "subscription", 300),
        "run destinations": drawn(at_destination, "destination", 300),
        "run repairs": drawn(edited, "repair", 200),
        "run windows": drawn(window, "window", 200),
        "run paces": drawn(pace, "pace", 60),
    }
