"""Dead letters by cause: on a labelled corpus of varied texts, and what a cause tells."""

import json
import random
import time
import tracemalloc
import uuid
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from sbpair.core.errors import ConnectionLostError, ServiceError, UnauthorizedError
from sbpair.core.message import Received
from sbpair.core.outcome import Exit
from sbpair.core.rewrite import compose
from sbpair.core.summary import describe
from sbpair.core.transfer.peeked import NotBrowsed
from sbpair.core.transfer.triage import MOST_CAUSES, CauseCounter, Triage, fields_of_body, template_of

Said = tuple[str | None, str, dict[str, object]]
"""Reason, description, headers."""
NAMES = [
    f"{first} {last}"
    for first in ("Alice", "Bob", "Chloe", "Dmitri", "Eva", "Farid", "Grace", "Hugo", "Ines", "Jan")
    for last in ("Adams", "Brown", "Costa", "Dubois", "Endo", "Fischer", "Garcia", "Hansen", "Ito", "Jansen")
]
CITIES = [
    "Berlin",
    "Paris",
    "Oslo",
    "Madrid",
    "Rome",
    "Vienna",
    "Prague",
    "Lisbon",
    "Dublin",
    "Athens",
    "Warsaw",
    "Zagreb",
]


def number(r: random.Random) -> str:
    return r.choice(
        [str(r.randint(1, 10**7)), f"{r.uniform(0, 9999):.2f}", f"-{r.randint(1, 99)}", f"{r.randint(1, 999):,}"]
    )


def identity(r: random.Random) -> str:
    return r.choice(
        [
            str(uuid.UUID(int=r.getrandbits(128))),
            f"ORD-{r.randint(1, 10**6)}",
            f"{r.getrandbits(48):012x}1",
            f"cust_{r.randint(1, 9999)}",
            uuid.UUID(int=r.getrandbits(128)).hex,
        ]
    )


def when(r: random.Random) -> str:
    return f"2026-{r.randint(1, 12):02}-{r.randint(1, 28):02}T{r.randint(0, 23):02}:{r.randint(0, 59):02}:17Z"


def order(r: random.Random) -> dict[str, object]:
    body: dict[str, object] = {
        "orderId": identity(r),
        "country": r.choice(CITIES),
        "amount": r.random(),
        "lines": [1, 2],
    }
    return body | ({"coupon": identity(r)} if r.random() < 0.3 else {}) | ({"note": "x"} if r.random() < 0.2 else {})


def shipment(r: random.Random) -> dict[str, object]:
    return {"parcel": identity(r), "carrier": r.choice(CITIES), "weight": r.random(), "to": {"zip": number(r)}}


def net(exception: str, method: str, text: Callable[[random.Random], str]) -> Callable[[random.Random], Said]:
    def made(r: random.Random) -> Said:
        stack = f"   at {method}(Order order) in /src/{identity(r)}/File.cs:line {r.randint(1, 900)}\n   at Pump.Run()"
        return "MaxDeliveryCountExceeded", f"{exception}: {text(r)}\n{stack}", {}

    return made


def headers(exception: str, method: str, text: Callable[[random.Random], str]) -> Callable[[random.Random], Said]:
    def made(r: random.Random) -> Said:
        stack = f"{exception}: {text(r)}\n   at {method}(IMessage m) in C:\\b\\{number(r)}.cs:line {r.randint(1, 900)}"
        return (
            "Failed",
            text(r),
            {
                "NServiceBus.ExceptionInfo.ExceptionType": exception,
                "NServiceBus.ExceptionInfo.StackTrace": stack,
                "NServiceBus.FailedQ": r.choice(CITIES),
            },
        )

    return made


def python(exception: str, function: str, text: Callable[[random.Random], str]) -> Callable[[random.Random], Said]:
    def made(r: random.Random) -> Said:
        frames = "".join(f'  File "/app/work.py", line {r.randint(1, 99)}, in {name}\n' for name in ("run", function))
        return "ProcessingFailed", f"Traceback (most recent call last):\n{frames}{exception}: {text(r)}", {}

    return made


def java(exception: str, method: str, text: Callable[[random.Random], str]) -> Callable[[random.Random], Said]:
    def made(r: random.Random) -> Said:
        return (
            "Error",
            f"{exception}: {text(r)}\n\tat {method}(Handler.java:{r.randint(1, 900)})\n\tat Pump.go(Pump.java:1)",
            {},
        )

    return made


def plain(reason: str | None, text: Callable[[random.Random], str]) -> Callable[[random.Random], Said]:
    return lambda r: (reason, text(r), {})


CAUSES: list[tuple[Callable[[random.Random], Said], Callable[[random.Random], object]]] = [
    (plain("ValidationError", lambda r: f"Field 'country' of order {identity(r)} is empty"), order),
    (plain("ValidationError", lambda r: f"Field 'zip' of order {identity(r)} has {number(r)} characters"), order),
    (plain("ValidationError", lambda r: f"Amount {number(r)} EUR exceeds the limit of {number(r)} EUR"), order),
    (plain("ValidationError", lambda r: f"Currency of {identity(r)} is not supported at {when(r)}"), order),
    (
        plain("ValidationError", lambda r: f"Parcel {identity(r)} weighs {number(r)} kg, more than {number(r)}"),
        shipment,
    ),
    (plain("CustomerNotFound", lambda r: f"Customer {r.choice(NAMES)} does not exist"), order),
    (plain("CustomerNotFound", lambda r: f"Customer {r.choice(NAMES)} is blocked since {when(r)}"), order),
    (plain("OutOfStock", lambda r: f"Warehouse {r.choice(CITIES)} has {number(r)} left of {identity(r)}"), order),
    (plain("OutOfStock", lambda r: f"Warehouse {r.choice(CITIES)} is closed until {when(r)}"), order),
    (plain("TTLExpiredException", lambda r: "The message expired and was dead lettered."), order),
    (plain("HeaderSizeExceeded", lambda r: f"The header has {number(r)} bytes, at most 65536 are allowed"), shipment),
    (plain("MaxDeliveryCountExceeded", lambda r: "Message could not be consumed after 10 delivery attempts."), order),
    (
        plain(None, lambda r: f"request to https://api.example.com/orders/{identity(r)}?t={number(r)} returned 503"),
        order,
    ),
    (plain(None, lambda r: f"lock of {identity(r)} lost after {number(r)} seconds"), shipment),
    (plain("Duplicate", lambda r: f"mail to {identity(r)}@example.com was sent on {when(r)}"), shipment),
    (
        plain("Malformed", lambda r: f'Unexpected token at position {number(r)} near "{identity(r)}"'),
        lambda r: "{not json " + identity(r),
    ),
    (
        plain("Malformed", lambda r: f"Premature end of file in line {number(r)}"),
        lambda r: f"<order id='{identity(r)}'>",
    ),
    (
        net(
            "System.TimeoutException",
            "Shop.Billing.Charge",
            lambda r: f"Timed out after {number(r)} ms for {r.choice(NAMES)}",
        ),
        order,
    ),
    (
        net(
            "System.TimeoutException",
            "Shop.Mail.Send",
            lambda r: f"Timed out after {number(r)} ms for {r.choice(NAMES)}",
        ),
        order,
    ),
    (
        net(
            "System.NullReferenceException",
            "Shop.Orders.Price",
            lambda r: "Object reference not set to an instance of an object.",
        ),
        order,
    ),
    (
        net(
            "System.NullReferenceException",
            "Shop.Orders.Tax",
            lambda r: "Object reference not set to an instance of an object.",
        ),
        order,
    ),
    (
        net(
            "Npgsql.PostgresException",
            "Npgsql.Connector.Read",
            lambda r: f"{number(r)}: duplicate key value {identity(r)}",
        ),
        order,
    ),
    (
        headers(
            "System.Text.Json.JsonException",
            "Shop.Reader.Read",
            lambda r: f"'{identity(r)}' is invalid at line {number(r)}",
        ),
        order,
    ),
    (
        headers(
            "System.FormatException",
            "Shop.Reader.Read",
            lambda r: f"Input {r.choice(NAMES)} was not in a correct format",
        ),
        order,
    ),
    (
        headers(
            "Azure.RequestFailedException", "Azure.Storage.Put", lambda r: f"Status {number(r)}, request {identity(r)}"
        ),
        shipment,
    ),
    (python("KeyError", "price_of", lambda r: f"'{identity(r)}'"), order),
    (python("KeyError", "tax_of", lambda r: f"'{r.choice(CITIES)}'"), order),
    (python("ValueError", "price_of", lambda r: f"could not convert string to float: '{r.choice(NAMES)}'"), order),
    (
        python(
            "sqlalchemy.exc.OperationalError",
            "save",
            lambda r: f"(psycopg2) server {r.choice(CITIES)} closed at {when(r)}",
        ),
        shipment,
    ),
    (
        java(
            "java.lang.IllegalStateException",
            "com.shop.Cart.pay",
            lambda r: f"cart {identity(r)} of {r.choice(NAMES)} is closed",
        ),
        order,
    ),
    (java("java.net.SocketTimeoutException", "java.net.Socket.read", lambda r: f"Read timed out ({number(r)})"), order),
    (
        java(
            "com.shop.StockException", "com.shop.Stock.take", lambda r: f"{r.choice(CITIES)} has none of {identity(r)}"
        ),
        shipment,
    ),
]


def corpus(letters: int, seed: int) -> list[tuple[str, int, Received]]:
    """Entity, label and letter; some causes are frequent, others rare."""
    r = random.Random(seed)
    weights = [r.choice([1, 2, 5, 20, 60]) for _ in CAUSES]
    found = []
    for n in range(letters):
        label = r.choices(range(len(CAUSES)), weights)[0]
        explain, body = CAUSES[label]
        entity = ("orders", "billing", "news/Subscriptions/audit")[r.randrange(3)]
        reason, description, more = explain(r)
        content = body(r)
        properties = {**more, "DeadLetterErrorDescription": description[:4096], "tenant": identity(r)}
        if reason is not None:
            properties["DeadLetterReason"] = reason
        text = content if isinstance(content, str) else json.dumps(content)
        payload = compose(body=text, message_id=identity(r), application_properties=properties)
        found.append((entity, label, Received(payload, n + 1, f"{entity}/$deadletterqueue", enqueued_at=1.7e9 + n)))
    return found


def counted(letters: list[tuple[str, int, Received]]) -> CauseCounter:
    counter = CauseCounter()
    for entity, _, received in letters:
        counter.add(entity, received, describe(received.payload))
    return counter


def pairs(sizes: Counter[object]) -> int:
    return sum(size * (size - 1) // 2 for size in sizes.values())


@pytest.mark.parametrize("seed", range(3))
def test_letters_of_one_cause_fall_together_and_others_do_not(seed: int) -> None:
    letters = corpus(5000, seed)
    labels = {received.sequence_number: (entity, label) for entity, label, received in letters}
    causes = counted(letters).causes("contoso", None)
    assert sum(one.messages for one in causes) == 5000
    cluster_of = {number: one.key for one in causes for number in one.numbers}
    assert len(cluster_of) == 5000
    together = pairs(Counter((cluster_of[number], label) for number, label in labels.items()))
    precision = together / pairs(Counter(cluster_of.values()))
    recall = together / pairs(Counter(labels.values()))
    assert precision >= 0.95, precision
    assert recall >= 0.95, recall
    assert len(causes) <= 2 * len(set(labels.values())), "rare causes are not torn apart either"


def test_keys_stay_the_same_while_letters_come_and_go() -> None:
    first = counted(corpus(1000, 1)).causes("contoso", None)
    before = {part: count for one in first for part, count in one.parts.items()}
    again = counted(corpus(1000, 1)[:800]).causes("contoso", before)
    assert {one.trend for one in again} <= {"steady", "shrinking"}
    more = counted([*corpus(1000, 1), *corpus(100, 1)]).causes("contoso", before)
    assert {one.trend for one in more} == {"steady", "growing"}
    new = counted(corpus(50, 1)).causes("contoso", {})
    assert {one.trend for one in new} == {"new"}


@pytest.mark.timeout(300)
def test_twenty_thousand_letters_take_less_than_twelve_seconds() -> None:
    letters = corpus(2000, 7)
    began = time.process_time()
    counter = CauseCounter()
    for _ in range(10):
        for entity, _, received in letters:
            counter.add(entity, received, describe(received.payload))
    assert counter.messages == 20_000
    assert counter.causes("contoso", None)
    assert time.process_time() - began < 12


def test_a_text_is_told_with_stars_for_what_differs() -> None:
    for text in (
        "Order ORD-17 of 'Alice' failed after 3.5 s at 2026-01-01T00:00:00Z",
        "Order ORD-4711 of 'Bob' failed after 17 s at 2026-02-03T04:05:06Z",
    ):
        assert template_of(text) == "order * of * failed after * s at *"


def test_a_body_is_read_up_to_a_size() -> None:
    envelope = len(compose(body="x" * 60_000, message_id="m")) - 60_000
    fits = compose(body="x" * (64 * 1024 - envelope), message_id="m")
    more = compose(body="x" * (64 * 1024 - envelope + 1), message_id="m")
    assert (len(fits), fields_of_body(fits), fields_of_body(more)) == (64 * 1024, {"<text>"}, {"<large>"})


def cause(reason: str | None, description: str, count: int, entity: str = "orders", **headers: str) -> str:
    properties = {"DeadLetterErrorDescription": description, **headers} | (
        {"DeadLetterReason": reason} if reason else {}
    )
    counter = CauseCounter()
    for n in range(count):
        payload = compose(body="{}", message_id=f"m{n}", application_properties=properties)
        counter.add(entity, Received(payload, n + 1, entity), describe(payload))
    (found,) = counter.causes("contoso", None)
    return found.command


def test_each_cause_has_the_command_that_deals_with_it() -> None:
    assert cause("Timeout", "no answer", 3) == "sbpair dlq resubmit contoso:orders --reason Timeout --grow 1,2,5,20,100"
    assert cause("TTLExpiredException", "expired", 3) == (
        "sbpair dlq purge contoso:orders --reason TTLExpiredException --archive purged"
    )
    assert (
        cause("ValidationError", "country is empty", 3) == "sbpair edit contoso:orders --dlq --reason ValidationError"
    )
    assert cause("ValidationError", "country is empty", 82) == (
        "sbpair dlq resubmit contoso:orders --reason ValidationError --set NAME=VALUE --archive originals"
    )
    assert cause(None, "no answer", 2, "news/Subscriptions/a") == (
        "sbpair dlq resubmit contoso:news/Subscriptions/a --to QUEUE --reason '(no reason)' --grow 1,2,5,20,100"
    )


def told_apart(texts: Sequence[str], most_causes: int = MOST_CAUSES) -> CauseCounter:
    """Letters with one reason, the newest one first."""
    counter = CauseCounter(most_causes)
    for number, text in enumerate(texts):
        properties = {"DeadLetterReason": "Failed", "DeadLetterErrorDescription": text}
        payload = compose(body="{}", message_id=f"m{number}", application_properties=properties)
        counter.add("orders", Received(payload, len(texts) - number, "orders"), describe(payload))
    return counter


def test_a_cause_names_a_thousand_of_its_letters() -> None:
    for texts in (["no answer"], [f"no answer of {word}" for word in "abcdefgh"]):
        [found] = told_apart((texts * 1001)[:1001]).causes("contoso", None)
        assert (found.messages, len(found.numbers)) == (1001, 1000)


def test_more_texts_than_are_told_apart_fall_together_and_no_command_is_for_all_of_them() -> None:
    texts = [f"{word} {word} {word}" for word in "abcde"]
    counter = told_apart(texts * 2, most_causes=3)
    *own, rest = sorted(counter.causes("contoso", None), key=lambda one: one.messages)
    assert ([(one.messages, one.reason) for one in own], counter.left_off) == ([(2, "Failed")] * 3, True)
    assert (rest.messages, rest.reason, rest.text) == (4, "(others)", "(others)")
    assert rest.command == "sbpair dlq list contoso:orders"
    assert not told_apart(texts, most_causes=5).left_off


def test_texts_that_are_not_told_apart_take_no_memory() -> None:
    long = "x" * 300
    texts = [long + f"{number:b}".replace("0", "a").replace("1", "b") for number in range(3000)]
    tracemalloc.start()
    try:
        counter = told_apart(texts, most_causes=1)
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()
    assert counter.messages == 3000


def test_of_two_causes_with_one_reason_each_command_selects_its_own() -> None:
    counter = CauseCounter()
    for n, text in enumerate(("System.TimeoutException: slow", "System.IO.IOException: gone")):
        payload = compose(
            body="{}",
            message_id=f"m{n}",
            application_properties={"DeadLetterReason": "Failed", "DeadLetterErrorDescription": text},
        )
        counter.add("orders", Received(payload, n + 1, "orders"), describe(payload))
    assert sorted(one.command.split("--where ")[1].split(" --grow")[0] for one in counter.causes("contoso", None)) == [
        "'sys.DeadLetterErrorDescription LIKE '\"'\"'%System.IO.IOException%'\"'\"''",
        "'sys.DeadLetterErrorDescription LIKE '\"'\"'%System.TimeoutException%'\"'\"''",
    ]


def test_what_is_asked_since_the_last_time_decides_what_is_a_finding() -> None:
    causes = counted(corpus(100, 3)).causes("contoso", None)
    known = {part: count for one in causes for part, count in one.parts.items()}
    steady = counted(corpus(100, 3)).causes("contoso", known)
    assert Triage("contoso", 100, 3, steady).exit is Exit.FINDINGS
    assert Triage("contoso", 100, 3, steady, since_last=True).exit is Exit.OK
    assert Triage("contoso", 0, 3, ()).exit is Exit.OK
    assert Triage("contoso", 100, 3, steady, since_last=True).closing == (
        f"contoso has 100 dead letters of {len(steady)} causes, 0 new or growing."
    )


def test_rights_are_spoken_of_only_where_they_are_missing() -> None:
    def closing(*errors: ServiceError) -> str:
        return Triage("contoso", 0, 3, (), tuple(NotBrowsed("orders", error) for error in errors)).closing

    lost, denied = ConnectionLostError("gone"), UnauthorizedError("no")
    assert closing(lost) == "No dead letter of contoso was seen. 1 entity could not be read."
    assert closing(lost, denied) == (
        "No dead letter of contoso was seen. 2 entities could not be read. What it needs: sbpair help permissions"
    )
