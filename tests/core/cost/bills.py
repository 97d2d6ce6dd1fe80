"""What was used and what it costs, drawn: rows of usage details, answers of Azure Monitor, price lists, and estimates
beside what was billed. `tests.core.walks` has the digests approved.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

from sbpair.core.cost.model import (
    AVERAGE_MONTH,
    DOCUMENTED_MONTH,
    SYPHON_MODELS,
    Billed,
    Flow,
    Workload,
    active_active,
    calendar_month,
    estimate,
    polling_syphon,
    without_pairing,
)
from sbpair.core.cost.request import Choices, CostRequest, problems, workload_of
from sbpair.core.cost.result import billed_alone, billed_lines, compared, estimated, price_list
from sbpair.core.cost.usage import (
    COLUMNS,
    BilledRow,
    UsageField,
    add_up,
    billed_row,
    is_header,
    map_columns,
    read_metrics,
)
from sbpair.core.entities import Counts, NamespaceFacts, Tier
from sbpair.core.errors import SbpairError
from sbpair.core.prices import PriceTable, built_in, charge, check_bands, exact, steps, to_cents, total
from tests.core.examples import Answered, Mixer, NoExampleError, answer, said
from tests.core.snapshots import a_pair, healthy, path

METERS = (
    *("Standard Base Unit", "standard messaging operations", "Premium Messaging Units", "Hybrid Connection"),
    *("Standard Brokered Connections", "Basic Messaging Operations"),
)
CELLS: dict[UsageField, tuple[str, ...]] = {
    UsageField.DATE: (
        "2026-02-28",
        "02/28/2026",
        "20260228",
        "2026-02-28T00:00:00",
        "13/01/2026",
        "0/1/2026",
        "yesterday",
    ),
    UsageField.CATEGORY: ("Service Bus", "Microsoft.ServiceBus", "Storage", ""),
    UsageField.METER: METERS,
    UsageField.QUANTITY: ("1", "2.5", "1,000", "0", "-3", "NaN", "many", "1e3", "Infinity"),
    UsageField.UNIT: (
        "",
        "1M",
        "10K",
        "1 Hour",
        "1/Hour",
        "100 Hours",
        "1 Month",
        " 2 Months ",
        "10 Ks",
        "1.5 m",
        "dozen 5",
    ),
    UsageField.COST: ("", "1.25", "-2", "x", "0"),
    UsageField.CURRENCY: ("usd", "EUR", " Usd", "", "eur "),
    UsageField.RESOURCE: ("/subscriptions/1/namespaces/Contoso", "contoso ", ""),
    UsageField.SUBSCRIPTION: (" /subscriptions/ABC", "abc", ""),
    UsageField.CHARGE_TYPE: ("Usage", "Purchase", "Tax", ""),
}
NAMES = (
    "IncomingMessages",
    "incoming messages",
    "OutgoingMessages",
    "CompleteMessage",
    "abandon_message",
    "ServerErrors",
)
TOTALS: tuple[Any, ...] = (3, 1, 7, 1200.5, None, 10**15, 10**15 - 1, -1, "5", True)
SPANS = ("2026-02-01T00:00:00Z/2026-02-01T01:00:00Z", "2026-02-01T00:00:00Z/2026-02-02T00:00:00+00:00")


def rows(dice: random.Random) -> Iterator[str]:
    """A file of usage details: its header, its rows, and what they add up to."""
    fields = [field for field in UsageField if dice.random() < 0.95]
    headers = [dice.choice(COLUMNS[field]).title() + dice.choice(("", " ", "_")) for field in fields]
    headers += [dice.choice(COLUMNS[field]) for field in dice.sample([*UsageField], 2)]
    yield str(is_header(headers)) + str(is_header(headers[: dice.randrange(len(headers))]))
    columns, found, well = {}, list[BilledRow](), dice.random() < 0.7
    try:
        columns = map_columns(headers)
    except SbpairError as error:
        yield error.message
    for number in range(8 if columns else 0):
        cells = [dice.choice(CELLS[field][: 3 if well else None]) for field in fields]
        cells += [dice.choice(("1", "usd")) for _ in range(2)]
        try:
            row = billed_row(columns, cells[: dice.choice((len(cells), len(cells), 9))], f"row {number}")
        except SbpairError as error:
            yield error.message
        else:
            yield said(row)
            found += [] if row is None else [row]
    billed, prices = add_up(found), built_in()
    yield from map(said, billed)
    if billed:
        yield from map(said, (*billed_lines(billed, prices), billed_alone(billed, prices)))
        workload = Mixer(Workload, str(dice.random())).example(Workload)
        yield from answer(lambda: said(estimated(workload, prices, billed=billed)))


def metric(dice: random.Random, well: float) -> Any:
    """One metric of an answer, with what else may stand in its place."""

    def or_else(value: Any, *others: Any) -> Any:
        return value if dice.random() < well else dice.choice((None, 5, [], {}, *others))

    series = []
    for _ in range(dice.choice((1, 1, 2))):
        entity = dice.choice(("orders", "bills", path(0), "-NamespaceOnlyMetric-"))
        named = [{"name": {"value": dice.choice(("EntityName", "entityname"))}, "value": entity}]
        points = [{"total": dice.choice(TOTALS[: 5 if well == 1.0 else None])} for _ in range(dice.randrange(4))]
        points = [one if dice.random() < 0.9 else {} for one in points]
        empty = dice.random() < 0.01
        series.append({"metadataValues": or_else(named), "data": or_else([{}, {}] if empty else points)})
    place = dice.choice(("/namespaces/Contoso/x", "/NAMESPACES/CONTOSO", "nowhere"))
    return or_else({"name": or_else({"value": dice.choice(NAMES)}), "id": place, "TimeSeries": or_else(series, "x")})


def metrics(dice: random.Random) -> Iterator[str]:
    well, documents = dice.choice((1.0, 1.0, 0.97)), []
    for number in range(dice.choice((1, 1, 2))):
        span = SPANS[0] if dice.random() < 0.9 else dice.choice((*SPANS, "2026-02-01/2026-01-01", None, "x/y"))
        document: Any = {"value": [metric(dice, well) for _ in range(dice.choice((1, 2, 4)))], "TimeSpan": span}
        if dice.random() > well:
            document = dice.choice(([], {"value": {}}, None))
        documents.append((f"{number}.json", document))
    try:
        traffic = read_metrics(documents)
    except SbpairError as error:
        yield f"{error.message} {error.hint}"
        return
    yield said(traffic) + said(traffic.diverted_share)
    yield from map(said, (*traffic.flows(730, 1024), *traffic.flows(1, 100_000)))


def sums(dice: random.Random) -> Iterator[str]:
    """Exact sums of money by bands, in units of 64 KB, and what a backlog adds to an estimate."""
    amount = Decimal(dice.choice(("0", "0.005", "0.015", "12.345", "1e6", "13000000", "-1.235")))
    yield f"{to_cents(amount)} {steps(dice.choice((0, 1, 65_535, 65_536, 65_537, 10**6)))}"
    for meter, bands in built_in().meters:
        quantity = dice.choice((0, 1, 13_000_000, 13_000_001, 100_000_000, 2_500_000_001))
        yield f"{meter}: {said(answer(partial(total, Decimal(quantity), bands)))}"
        last = bands[dice.randrange(len(bands)) :]
        yield f"{meter}: {said(answer(partial(check_bands, meter.value, last)))}"
    mixer = Mixer(PriceTable, str(dice.random()))
    for function in (charge, exact, price_list):
        try:
            given = mixer.arguments(function)
        except NoExampleError:
            continue
        yield from answer(partial(function, **given))
    workload, snapshot = mixer.example(Workload), healthy()
    secondary = snapshot.secondary
    some = tuple(
        replace(
            one,
            facts=replace(one.facts, counts=Counts(dice.choice((0, 0, 1, 7))), size_in_bytes=dice.choice((0, 70_000))),
        )
        for one in secondary.queues or ()
    )
    pair = replace(snapshot.pair, primary_label=dice.choice(("contoso", "Contoso")))
    snapshot = replace(snapshot, pair=pair, secondary=replace(secondary, queues=some if dice.random() < 0.8 else None))
    yield from answer(lambda: said(estimate(workload, built_in())))
    yield from answer(lambda: said(estimated(workload, built_in(), pair="orders", snapshot=snapshot).notes))


SYPHONS = (None, *SYPHON_MODELS, polling_syphon(7), polling_syphon(900))


def namespace(dice: random.Random) -> Billed:
    return Billed(dice.choice([*Tier]), dice.choice((1, 4)), dice.choice(("one", "one", "two")), dice.choice((1, 1, 2)))


def estimates(dice: random.Random) -> Iterator[str]:
    """A month's operations and money, alternatives beside each other, and the workload that a request is about."""
    sizes, prices = (0, 900, 65_536, 65_537, 262_145), built_in()
    workload = Workload(
        flows=tuple(
            Flow(name, dice.choice((0, 7, 10**6, 10**8)), dice.choice(sizes), dice.choice((1, 1, 3)))
            for name in ("orders", "Orders", "news")[: dice.choice((0, 1, 2, 3))]
        ),
        primary=namespace(dice),
        secondary=namespace(dice) if dice.random() < 0.8 else None,
        month=dice.choice((DOCUMENTED_MONTH, AVERAGE_MONTH, calendar_month(2028, 2))),
        queues=dice.choice((0, 1, 2, 10)),
        hosts=dice.choice((0, 1, 2)),
        syphon=dice.choice(SYPHONS),
        outage_seconds=dice.choice((0, 0, 61, 3600, 10**8)),
        diverted_share=dice.choice((None, None, Fraction(1, 3), Fraction(1))),
        processes=dice.choice((0, 1, 3)),
        ping_interval_seconds=dice.choice((1, 60)),
        redelivered_share=dice.choice((Fraction(0), Fraction(1, 7))),
        peek_lock=dice.random() < 0.7,
        audits=dice.choice((0, 3)),
        calls_per_audit=dice.choice((0, 5)),
        follow_every_seconds=dice.choice((0, 0, 7, 300, 301)),
        crossings=dice.choice((0, 1, 2)),
        connections_per_process=dice.choice((1, 2)),
        consumers=dice.choice((1, 3)),
    )
    workload = active_active(workload) if dice.random() < 0.2 else workload
    found = estimated(workload, prices, pair="orders")
    yield f"{said(found)} {found.summary()} {problems(workload)}"
    choices = Choices(*(dice.choice(((), some)) for some in ((1, 400), (0, 2), SYPHONS[:2], tuple(Tier))))
    beside = compared(workload, prices, choices)
    yield f"{said(beside)} {beside.summary()} {without_pairing(workload).share_diverted}"
    request = CostRequest(
        messages_per_day=dice.choice((0, 5, 1001)),
        copies=dice.choice((1, 2)),
        outage_seconds=dice.choice((0, 60)),
        queues=dice.choice(((), (3, 4))),
        hosts=dice.choice(((1,), (2, 3), ())),
        syphons=dice.choice(((None,), (SYPHONS[-1], None))),
        tiers=dice.choice(((), (Tier.PREMIUM, Tier.BASIC))),
        messaging_units=dice.choice((1, 4)),
        geo_replicated=dice.random() < 0.3,
        two_subscriptions=dice.random() < 0.3,
        month=workload.month,
        audits_per_day=dice.choice((0, 0, 2)),
        follow_every_seconds=dice.choice((0, 60)),
    )
    pair = a_pair(dice.choice((2, 5)), entities=dice.choice(((), ("orders", "bills", "news"))))
    facts = NamespaceFacts(
        "contoso",
        "contoso.example",
        tier=dice.choice([*Tier]),
        messaging_units=dice.choice((None, 2)),
        geo_replication_locations=dice.choice(((), ("a", "b", "c"))),
    )
    snapshot = healthy()
    snapshot = replace(snapshot, primary=replace(snapshot.primary, facts=dice.choice((None, facts))))
    yield said(workload_of(request, dice.choice((None, pair)), dice.choice((None, snapshot))))


def drawn(of: Callable[[random.Random], Iterator[str]], what: str, runs: int) -> Iterator[Answered]:
    for number in range(runs):
        yield f"{what} {number}".__str__, [*of(random.Random(f"{what} {number}"))]


def subjects() -> dict[str, Iterator[Answered]]:
    """By name."""
    return {
        "run bills": drawn(rows, "bill", 150),
        "run metrics": drawn(metrics, "metrics", 400),
        "run sums": drawn(sums, "sums", 60),
        "run estimates": drawn(estimates, "estimate", 200),
    }
