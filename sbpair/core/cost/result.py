"""The results of an estimate: every line with its arithmetic, alternatives side by side, what was billed, prices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from sbpair.core.cost.model import Estimate, Workload, estimate
from sbpair.core.cost.request import Choices, cheapest, compare, pairing_costs
from sbpair.core.cost.usage import MeterUsage
from sbpair.core.inspection.snapshot import Snapshot
from sbpair.core.prices import UNITS, Meter, PriceTable, retail_query, steps, to_cents, total
from sbpair.core.serialization import HIDDEN, INLINED, OMITTED_IF_NONE, Money, column, named
from sbpair.core.words import counted

# What `sbpair cost -o json` prints: one of these.


@dataclass(frozen=True, slots=True)
class BillLine:
    """A line of the bill with its arithmetic; either operations or an amount of money."""

    part: str = field(metadata=column("Part"))
    what: str = field(metadata=column("What"))
    arithmetic: str = field(metadata=column("Arithmetic", spare=True))
    operations: int | None = field(metadata=column("Operations", counts=True))
    amount: Money | None = field(metadata=column("Amount", right=True))
    source: str = field(metadata=column("Rule", spare=True))


@dataclass(frozen=True, slots=True)
class BilledLine:
    """A line of what was billed."""

    month: str = field(metadata=column("Month"))
    subscription: str = field(metadata=column("Subscription"))
    meter: str = field(metadata=column("Meter"))
    quantity: Money = field(metadata=column("Quantity", right=True))
    cost: Money = field(metadata=column("Billed", right=True))
    currency: str = field(metadata=column("Currency"))
    at_these_prices: Money | None = field(metadata=column("At these prices", right=True))


@dataclass(frozen=True, slots=True)
class Estimated:
    """A month; its total is exact, the lines are rounded to cents."""

    estimate: Estimate = field(metadata=INLINED)
    pair: str | None
    pairing_adds: Money
    lines: tuple[BillLine, ...]
    billed: tuple[BilledLine, ...] | None = field(default=None, metadata=OMITTED_IF_NONE)
    notes: tuple[str, ...] = field(default=(), metadata=HIDDEN)
    """What was assumed, and what a drain of the snapshot's backlog takes."""

    def summary(self) -> str:
        found = self.estimate
        return (
            f"{to_cents(found.total):,} {found.currency} a month ({found.month.label}), {found.operation_count:,} "
            f"operations; the pairing adds {to_cents(self.pairing_adds):,} {found.currency}."
        )


@dataclass(frozen=True, slots=True)
class Alternative:
    alternative: str = field(metadata=column("Alternative"))
    total: Money = field(metadata=column("A month", right=True))
    above_best: Money | None = field(metadata=column("Above best", right=True))
    operations: int = field(metadata=column("Operations", counts=True))
    choice: str = field(metadata=column(""))
    problems: str = field(metadata=column("Does not work, because"))


@dataclass(frozen=True, slots=True)
class Compared:
    currency: str
    month: str
    alternatives: tuple[Alternative, ...]
    """Cheapest first."""
    notes: tuple[str, ...] = field(default=(), metadata=HIDDEN)

    def summary(self) -> str:
        totals = [found.total for found in self.alternatives]
        best = next((found.alternative for found in self.alternatives if found.choice), None)
        cheapest = f"; the cheapest pairing that works: {best}." if best else "; no alternative works."
        return f"Between {min(totals):,} and {max(totals):,} {self.currency} a month{cheapest}"


@dataclass(frozen=True, slots=True)
class Price:
    """A band of a meter; `from` and `to` in units of the meter."""

    meter: str = field(metadata=column("Meter"))
    unit: str = field(metadata=column("Unit"))
    start: Money = field(metadata={**named("from"), **column("From", right=True)})
    end: Money | None = field(metadata={**named("to"), **column("To", right=True)})
    price: Money = field(metadata=column("Price", right=True))
    currency: str = field(metadata=column("Currency"))


@dataclass(frozen=True, slots=True)
class Prices:
    region: str
    dated: str
    source: str
    query: str
    command: str
    prices: tuple[Price, ...]


@dataclass(frozen=True, slots=True)
class BilledAlone:
    currency: str
    billed: tuple[BilledLine, ...]
    summary: str = field(metadata=HIDDEN)


Cost = Estimated | Compared | Prices | BilledAlone


def estimated(
    workload: Workload,
    prices: PriceTable,
    *,
    pair: str | None = None,
    snapshot: Snapshot | None = None,
    billed: Sequence[MeterUsage] = (),
) -> Estimated:
    """The estimate of a month, with what the pairing adds to it and what was billed beside it."""
    found = estimate(workload, prices)
    lines = billed_lines(billed, prices) if billed else None
    notes = (*found.assumptions, *_backlog_note(snapshot))
    return Estimated(found, pair, pairing_costs(workload, prices), tuple(_lines(found)), lines, notes)


def _lines(found: Estimate) -> Iterator[BillLine]:
    for line in found.operations:
        yield BillLine(line.side.value, line.label, line.formula, line.count, None, line.source)
    for charge in found.charges:
        yield BillLine(charge.account, charge.label, charge.formula, None, to_cents(charge.amount), charge.source)
    label = f"{found.month.label}, {found.currency}"
    yield BillLine("total", label, "", found.operation_count, to_cents(found.total), "")


def _backlog_note(snapshot: Snapshot | None) -> Iterator[str]:
    """What it takes to drain what lay in the backlog when the snapshot was taken."""
    if snapshot is None or snapshot.secondary.queues is None:
        return
    label = snapshot.pair.primary_label.lower()
    queues = [queue.facts for name, queue in snapshot.secondary.backlog() if name.primary_label == label]
    messages = sum(queue.counts.active for queue in queues)
    if messages:
        size = sum(queue.size_in_bytes for queue in queues) // messages
        operations = messages * (2 * steps(size) + 1)
        yield (
            f"{counted(messages, 'message')} of about {size:,} bytes in the backlog: {operations:,} operations to "
            f"drain (receive and send in {counted(steps(size), 'billing unit')} of 64 KB each, and complete)."
        )


def compared(workload: Workload, prices: PriceTable, choices: Choices) -> Compared:
    """Every combination of the choices and no pairing, cheapest first."""
    found = compare(workload, prices, choices)
    best = cheapest(found)
    alternatives = tuple(
        Alternative(
            alternative.name,
            to_cents(alternative.total),
            None if best is None else to_cents(alternative.total - best.total),
            alternative.estimate.operation_count,
            "cheapest that works" if alternative is best else "",
            "; ".join(alternative.problems),
        )
        for alternative in found
    )
    return Compared(prices.currency, workload.month.label, alternatives, found[0].estimate.assumptions)


def price_list(prices: PriceTable) -> Prices:
    """The price table with its date and source, and the query for today's."""
    query = retail_query(prices.region, prices.currency)
    command = f"curl -sSfo prices.json '{query}'"
    rows = tuple(
        Price(meter.value, UNITS[meter].name, band.start, end, band.unit_price, prices.currency)
        for meter, bands in prices.meters
        for band, end in zip(bands, (*(one.start for one in bands[1:]), None), strict=True)
    )
    return Prices(prices.region, prices.dated, prices.source, query, command, rows)


def billed_alone(billed: Sequence[MeterUsage], prices: PriceTable) -> BilledAlone:
    """Usage details alone: nothing is estimated."""
    sums: dict[str, Decimal] = {}
    for row in billed:
        sums[row.currency] = sums.get(row.currency, Decimal(0)) + row.cost
    money = ", ".join(f"{to_cents(amount):,} {currency}".strip() for currency, amount in sums.items())
    months = sorted({row.month for row in billed})
    summary = f"Billed for Service Bus: {money} in {', '.join(months)}."
    return BilledAlone(prices.currency, billed_lines(billed, prices), summary)


def billed_lines(billed: Sequence[MeterUsage], prices: PriceTable) -> tuple[BilledLine, ...]:
    """Billed quantities, with what the price table makes of them."""
    return tuple(
        BilledLine(
            one.month,
            one.subscription,
            one.meter,
            Decimal(f"{one.quantity.normalize():f}"),
            to_cents(one.cost),
            one.currency,
            _priced(one, prices),
        )
        for one in billed
    )


def _priced(one: MeterUsage, prices: PriceTable) -> Decimal | None:
    """The same quantity at our prices; None for a meter that they do not have, or in another currency."""
    if one.meter not in list(Meter) or (one.currency and one.currency != prices.currency):
        return None
    meter = Meter(one.meter)
    if not prices.has(meter):
        return None
    return to_cents(total(one.quantity / UNITS[meter].size, prices.bands(meter)))
