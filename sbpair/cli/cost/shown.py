"""Estimates as tables: every line with its arithmetic, alternatives side by side."""

from collections.abc import Sequence

from sbpair.core.cost.result import Alternative, BilledAlone, BilledLine, Compared, Estimated, Line, Price, Prices
from sbpair.core.prices import PriceTable, to_cents
from sbpair.render.result import Column, CommandResult, Metric, Table, table_of


def one_estimate(found: Estimated) -> CommandResult:
    """The estimate line by line, the total last, with what was billed."""
    currency = found.estimate.currency
    metric = Metric(
        "sbpair_cost_month_total",
        "Estimated cost of a month in the labelled currency.",
        float(to_cents(found.estimate.total)),
        (("pair", found.pair or ""), ("currency", currency)),
    )
    billed = (_billed(found.billed),) if found.billed is not None else ()
    return CommandResult(
        "cost",
        found,
        (table_of(Line, found.lines), *billed),
        notes=found.notes,
        summary=found.summary(),
        closing=True,
        checks=(),
        metrics=(metric,),
    )


def comparison(found: Compared) -> CommandResult:
    """Alternatives, with a bar for what each costs above the best one."""
    table = table_of(Alternative, found.alternatives)
    columns = [column for column in table.columns if column.key != "total"]
    columns.insert(1, Column("total", f"{found.currency} a month", right=True))
    columns.insert(3, Column("above_best", "", drawn=True))
    return CommandResult(
        "cost",
        found,
        (Table("", tuple(columns), table.rows),),
        notes=found.notes,
        summary=found.summary(),
        closing=True,
    )


def price_rows(found: Prices, prices: PriceTable) -> CommandResult:
    """The price table with its date and source, and the query for today's."""
    kind = "built-in list prices, not today's" if prices.built_in else "prices"
    return CommandResult(
        "cost",
        found,
        (table_of(Price, found.prices),),
        notes=(f"{found.region}: {kind}, dated {found.dated} ({found.source}).",),
        summary=f"Today's prices (follow NextPageLink, if it is not null): {found.command}",
    )


def billed_result(found: BilledAlone, prices: PriceTable) -> CommandResult:
    """Usage details alone: nothing is estimated."""
    return CommandResult(
        "cost",
        found,
        (_billed(found.billed),),
        notes=(f"Prices: {prices.source} of {prices.region}, dated {prices.dated}.",),
        summary=found.summary,
    )


def _billed(lines: Sequence[BilledLine]) -> Table:
    return table_of(BilledLine, lines, "Billed")
