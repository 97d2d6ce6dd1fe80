"""Estimates as rows: every line with its arithmetic, alternatives side by side, what moves the bill."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sbpair.cli.cost_inputs import Scenario
from sbpair.cli.cost_page import comparison_page, estimate_page, sensitivity_page
from sbpair.core.billing import steps, to_cents
from sbpair.core.cost import HOUR_SECONDS, Estimate, Workload, estimate
from sbpair.core.plain import to_plain
from sbpair.core.prices import Meter, PriceTable, explain, retail_query
from sbpair.core.scenarios import Choices, break_even_operations, by_size, cheapest, compare, pairing_costs, tornado
from sbpair.core.snapshot import Snapshot
from sbpair.render.result import Column, CommandResult, Metric, Table

LINE_COLUMNS = (
    Column("part", "Part"),
    Column("what", "What"),
    Column("arithmetic", "Arithmetic"),
    Column("operations", "Operations", right=True),
    Column("amount", "Amount", right=True),
    Column("source", "Rule"),
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
    rows = list(_lines(found))
    table = Table("", LINE_COLUMNS, rows)
    total = to_cents(found.total)
    notes = [*found.assumptions, *_backlog_note(snapshot)]
    metric = Metric(
        "sbpair_cost_month_total",
        "Estimated cost of a month in the labelled currency.",
        float(total),
        (("pair", pair or ""), ("currency", found.currency)),
    )
    return CommandResult(
        "cost",
        found.to_dict() | {"pair": pair, "pairing_adds": str(extra), "lines": rows},
        (table,),
        notes=tuple(notes),
        summary=f"{total:,} {found.currency} a month ({found.month.label}), {found.operation_count:,} operations; "
        f"the pairing adds {to_cents(extra):,} {found.currency}.",
        checks=(),
        metrics=(metric,),
        page=estimate_page(pair, workload, prices, found, extra, table),
    )


def _lines(found: Estimate) -> Iterator[dict[str, Any]]:
    for line in found.operations:
        yield {
            "part": line.side.value,
            "what": line.label,
            "arithmetic": line.formula,
            "operations": line.count,
            "amount": None,
            "source": line.source,
        }
    for charge in found.charges:
        yield {
            "part": charge.account,
            "what": charge.label,
            "arithmetic": charge.formula,
            "operations": None,
            "amount": str(to_cents(charge.amount)),
            "source": charge.source,
        }
    yield {
        "part": "total",
        "what": f"{found.month.label}, {found.currency}",
        "arithmetic": "",
        "operations": found.operation_count,
        "amount": str(to_cents(found.total)),
        "source": "",
    }


def _backlog_note(snapshot: Snapshot | None) -> Iterator[str]:
    """What it takes to bring home what lay in the backlog when the snapshot was taken."""
    if snapshot is None or snapshot.secondary.queues is None:
        return
    label = snapshot.pair.primary_label.lower()
    queues = [queue.facts for name, queue in snapshot.secondary.backlog() if name.primary_label == label]
    messages = sum(queue.counts.active for queue in queues)
    if messages:
        size = sum(queue.size_in_bytes for queue in queues) // messages
        operations = messages * (2 * steps(size) + 1)
        yield (
            f"{messages:,} messages of about {size:,} bytes lie in the backlog: {operations:,} operations to bring "
            f"them home (receive and send in {steps(size)} step(s) of 64 KB each, and complete)."
        )


def comparison(workload: Workload, prices: PriceTable, scenario: Scenario) -> CommandResult:
    """Every combination of the listed values and no pairing, cheapest first."""
    choices = Choices(
        queues=scenario.queues,
        hosts=scenario.hosts,
        syphons=scenario.syphons,
        tiers=scenario.tiers,
    )
    alternatives = compare(workload, prices, choices)
    best = cheapest(alternatives)
    rows = [
        {
            "alternative": one.name,
            "total": str(to_cents(one.total)),
            "above_best": None if best is None else str(to_cents(one.total - best.total)),
            "operations": one.estimate.operation_count,
            "choice": "cheapest that will do" if one is best else "",
            "problems": "; ".join(one.problems),
        }
        for one in alternatives
    ]
    columns = (
        Column("alternative", "Alternative"),
        Column("total", f"{prices.currency} a month", right=True),
        Column("total", "", drawn=True),
        Column("above_best", "Above best", right=True),
        Column("operations", "Operations", right=True),
        Column("choice", ""),
        Column("problems", "Will not do, because"),
    )
    table = Table("", columns, rows)
    dearest = max((one.total for one in alternatives), default=Decimal(0))
    summary = f"Between {to_cents(alternatives[0].total):,} and {to_cents(dearest):,} {prices.currency} a month"
    summary += f"; the cheapest pairing that will do: {best.name}." if best else "; no alternative will do."
    return CommandResult(
        "cost",
        {"currency": prices.currency, "month": workload.month.label, "alternatives": rows},
        (table,),
        notes=alternatives[0].estimate.assumptions,
        summary=summary,
        page=comparison_page(table, alternatives, best, summary),
    )


def sensitivity(workload: Workload, prices: PriceTable) -> CommandResult:
    """Each input halved and doubled; the total at the 64 KB steps; break-even against Premium."""
    now = estimate(workload, prices).total
    swings = [
        {
            "input": swing.name,
            "halved": str(to_cents(swing.half)),
            "now": str(to_cents(now)),
            "doubled": str(to_cents(swing.double)),
            "swing": str(to_cents(swing.width)),
        }
        for swing in tornado(workload, prices)
    ]
    sizes = [
        {"size_bytes": point.size_bytes, "steps": point.steps, "total": str(to_cents(point.total))}
        for point in by_size(workload, prices)
    ]
    swing_columns = (
        *(Column(key, key.capitalize(), right=key != "input") for key in swings[0]),
        Column("doubled", "Half to double", drawn=True, drawn_from="halved"),
    )
    size_columns = (
        *(Column(key, key.replace("_", " ").capitalize(), right=True) for key in sizes[0]),
        Column("total", "", drawn=True),
    )
    even = break_even(workload, prices)
    return CommandResult(
        "cost",
        {
            "currency": prices.currency,
            "swings": swings,
            "sizes": sizes,
            "break_even_operations": even.premium_operations,
            "break_even": even.to_dict(),
        },
        (Table("What moves the bill", swing_columns, swings), Table("By message size", size_columns, sizes)),
        notes=even.without_pairing,
        summary=even.premium,
        page=sensitivity_page(workload, prices, now, (even.premium, *even.without_pairing)),
    )


@dataclass(frozen=True, slots=True)
class BreakEven:
    """From where on something else is cheaper. `outage_hour_value`: what an hour of outage has to cost for the pairing
    to pay; None without an outage."""

    currency: str
    premium_operations: int | None
    pairing_adds: Decimal
    outage_hour_value: Decimal | None

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_plain(self)
        return plain

    @property
    def premium(self) -> str:
        if self.premium_operations is None:
            return "Standard never gets dearer than Premium."
        return (
            "One Standard subscription costs less than a Premium messaging unit up to "
            f"{self.premium_operations:,} operations."
        )

    @property
    def without_pairing(self) -> tuple[str, ...]:
        adds = f"The pairing adds {to_cents(self.pairing_adds):,} {self.currency} a month"
        if self.outage_hour_value is None:
            return (f"{adds}; give --outage to see from what value of an hour on that pays.",)
        return (
            f"{adds}: it pays if an hour of outage costs {to_cents(self.outage_hour_value):,} {self.currency} or more.",
        )


def break_even(workload: Workload, prices: PriceTable) -> BreakEven:
    """Against Premium, and against no pairing."""
    known = prices.has(Meter.PREMIUM_UNIT) and prices.has(Meter.STANDARD_OPERATIONS)
    adds = pairing_costs(workload, prices)
    hours = Decimal(workload.outage_seconds) / HOUR_SECONDS
    return BreakEven(
        prices.currency,
        break_even_operations(prices, hours=workload.month.hours) if known else None,
        adds,
        adds / hours if hours else None,
    )


def price_rows(prices: PriceTable) -> CommandResult:
    """The price table with its date and source, and the query for today's."""
    rows = explain(prices)
    kind = "built-in list prices, not today's" if prices.built_in else "prices"
    query = retail_query(prices.region, prices.currency)
    command = f"curl -sSfo prices.json '{query}'"
    data = {"region": prices.region, "dated": prices.dated, "source": prices.source, "query": query}
    return CommandResult(
        "cost",
        data | {"command": command, "prices": rows},
        (Table("", PRICE_COLUMNS, rows),),
        notes=(f"{prices.region}: {kind}, dated {prices.dated} ({prices.source}).",),
        summary=f"Today's prices (follow NextPageLink, if it is not null): {command}",
    )
