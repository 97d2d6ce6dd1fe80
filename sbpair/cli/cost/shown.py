"""Estimates as rows: every line with its arithmetic, alternatives side by side."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal

from sbpair.cli.cost.inputs import Scenario
from sbpair.core.cost.model import Estimate, Workload, estimate
from sbpair.core.cost.scenarios import Choices, cheapest, compare, pairing_costs
from sbpair.core.inspection.snapshot import Snapshot
from sbpair.core.prices import PriceTable, explain, retail_query, steps, to_cents
from sbpair.core.serialization import INLINED, OMITTED_IF_NONE, Money, named, to_plain
from sbpair.core.words import counted
from sbpair.render.result import Column, CommandResult, Metric, Table

# What `sbpair cost -o json` prints: one of these.


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the bill with its arithmetic; either operations or an amount of money."""

    part: str
    what: str
    arithmetic: str
    operations: int | None
    amount: Money | None
    source: str


@dataclass(frozen=True, slots=True)
class BilledLine:
    """A line of what was billed."""

    month: str
    subscription: str
    meter: str
    quantity: Money
    cost: Money
    currency: str
    at_these_prices: Money | None


@dataclass(frozen=True, slots=True)
class Estimated:
    """A month; its total is exact, the lines are rounded to cents."""

    estimate: Estimate = field(metadata=INLINED)
    pair: str | None
    pairing_adds: Money
    lines: tuple[Line, ...]
    billed: tuple[BilledLine, ...] | None = field(default=None, metadata=OMITTED_IF_NONE)


@dataclass(frozen=True, slots=True)
class Alternative:
    alternative: str
    total: Money
    above_best: Money | None
    operations: int
    choice: str
    problems: str


@dataclass(frozen=True, slots=True)
class Compared:
    currency: str
    month: str
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class Price:
    """A band of a meter; `from` and `to` in units of the meter."""

    meter: str
    unit: str
    start: Money = field(metadata=named("from"))
    end: Money | None = field(metadata=named("to"))
    price: Money
    currency: str


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


Cost = Estimated | Compared | Prices | BilledAlone

LINE_COLUMNS = (
    Column("part", "Part"),
    Column("what", "What"),
    Column("arithmetic", "Arithmetic", spare=True),
    Column("operations", "Operations", right=True, counts=True),
    Column("amount", "Amount", right=True),
    Column("source", "Rule", spare=True),
)
PRICE_COLUMNS = (
    Column("meter", "Meter"),
    Column("unit", "Unit"),
    Column("from", "From", right=True),
    Column("to", "To", right=True),
    Column("price", "Price", right=True),
    Column("currency", "Currency"),
)


def one_estimate(workload: Workload, prices: PriceTable, pair: str | None, snapshot: Snapshot | None) -> CommandResult:
    """The estimate line by line, the total last."""
    found = estimate(workload, prices)
    extra = pairing_costs(workload, prices)
    lines = tuple(_lines(found))
    total = to_cents(found.total)
    metric = Metric(
        "sbpair_cost_month_total",
        "Estimated cost of a month in the labelled currency.",
        float(total),
        (("pair", pair or ""), ("currency", found.currency)),
    )
    return CommandResult(
        "cost",
        Estimated(found, pair, extra, lines),
        (Table("", LINE_COLUMNS, to_plain(lines)),),
        notes=(*found.assumptions, *_backlog_note(snapshot)),
        summary=f"{total:,} {found.currency} a month ({found.month.label}), {found.operation_count:,} operations; "
        f"the pairing adds {to_cents(extra):,} {found.currency}.",
        closing=True,
        checks=(),
        metrics=(metric,),
    )


def _lines(found: Estimate) -> Iterator[Line]:
    for line in found.operations:
        yield Line(line.side.value, line.label, line.formula, line.count, None, line.source)
    for charge in found.charges:
        yield Line(charge.account, charge.label, charge.formula, None, to_cents(charge.amount), charge.source)
    label = f"{found.month.label}, {found.currency}"
    yield Line("total", label, "", found.operation_count, to_cents(found.total), "")


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


def comparison(workload: Workload, prices: PriceTable, scenario: Scenario) -> CommandResult:
    """Every combination of the listed values and no pairing, cheapest first."""
    choices = Choices(
        queues=scenario.queues,
        hosts=scenario.hosts,
        syphons=scenario.syphons,
        tiers=scenario.tiers,
    )
    found = compare(workload, prices, choices)
    best = cheapest(found)
    alternatives = tuple(
        Alternative(
            one.name,
            to_cents(one.total),
            None if best is None else to_cents(one.total - best.total),
            one.estimate.operation_count,
            "cheapest that works" if one is best else "",
            "; ".join(one.problems),
        )
        for one in found
    )
    columns = (
        Column("alternative", "Alternative"),
        Column("total", f"{prices.currency} a month", right=True),
        Column("above_best", "Above best", right=True),
        Column("above_best", "", drawn=True),
        Column("operations", "Operations", right=True, counts=True),
        Column("choice", ""),
        Column("problems", "Does not work, because"),
    )
    most = max((one.total for one in found), default=Decimal(0))
    summary = f"Between {to_cents(found[0].total):,} and {to_cents(most):,} {prices.currency} a month"
    summary += f"; the cheapest pairing that works: {best.name}." if best else "; no alternative works."
    return CommandResult(
        "cost",
        Compared(prices.currency, workload.month.label, alternatives),
        (Table("", columns, to_plain(alternatives)),),
        notes=found[0].estimate.assumptions,
        summary=summary,
        closing=True,
    )


def price_rows(prices: PriceTable) -> CommandResult:
    """The price table with its date and source, and the query for today's."""
    rows = tuple(Price(*row.values()) for row in explain(prices))
    kind = "built-in list prices, not today's" if prices.built_in else "prices"
    query = retail_query(prices.region, prices.currency)
    command = f"curl -sSfo prices.json '{query}'"
    return CommandResult(
        "cost",
        Prices(prices.region, prices.dated, prices.source, query, command, rows),
        (Table("", PRICE_COLUMNS, to_plain(rows)),),
        notes=(f"{prices.region}: {kind}, dated {prices.dated} ({prices.source}).",),
        summary=f"Today's prices (follow NextPageLink, if it is not null): {command}",
    )
