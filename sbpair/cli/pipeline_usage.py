"""`sbpair pipeline usage`: what was used and billed, and what the pair has to do with it, from files of any size."""

import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair.cli.cost_inputs import (
    Scenario,
    parse_counts,
    parse_month,
    parse_syphons,
    price_table,
    size_bytes_of,
    workload_of,
)
from sbpair.cli.cost_usage import billed_table, with_traffic
from sbpair.cli.options import Options, command, duration_option
from sbpair.cli.pipeline_jobs import HtmlOption, spark_jobs, write_report
from sbpair.cli.pipeline_session import ConfOption, MasterOption
from sbpair.core.billing import steps, to_cents
from sbpair.core.cost import Estimate, Workload, estimate
from sbpair.core.errors import UsageError
from sbpair.core.prices import PriceTable
from sbpair.core.scenarios import pairing_costs
from sbpair.core.usage import add_up
from sbpair.render.page import Bar, Bars, Card, Cards, Line, Lines, Page, Section, Text
from sbpair.render.result import Column, CommandResult, Table

if TYPE_CHECKING:
    from sbpair.pipeline.usage import MonthTraffic, Used

_CALENDAR = re.compile(r"\d{4}-\d{2}")
_LINES = 5
ENTITY_COLUMNS = (
    Column("month", "Month"),
    Column("namespace", "Namespace"),
    Column("entity", "Entity"),
    Column("incoming", "Sent", right=True),
    Column("outgoing", "Received", right=True),
    Column("completed", "Completed", right=True),
    Column("abandoned", "Abandoned", right=True),
    Column("operations", "Operations", right=True),
)
EFFECT_COLUMNS = (
    Column("what", "A month"),
    Column("operations", "Operations", right=True),
    Column("amount", "Amount", right=True),
)


@command
def usage(
    options: Options,
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Usage details (CSV), metrics or diagnostic lines (JSON); or URIs."),
    ],
    size_kb: Annotated[float, typer.Option(min=0, help="Size of a message; billed in steps of 64 KB.")] = 1.0,
    outage: Annotated[str, typer.Option(help="An outage whose cost to add, e.g. 4h.")] = "4h",
    queues: Annotated[int, typer.Option(min=1, help="Backlog queues.")] = 10,
    hosts: Annotated[int, typer.Option(min=0, help="Processes that run the syphon.")] = 1,
    syphon: Annotated[str, typer.Option(help="documented, sdk, none, or the length of a poll.")] = "documented",
    processes: Annotated[int, typer.Option(min=0, help="Client processes that send.")] = 1,
    month: Annotated[str, typer.Option(help="30d (the documents'), average, or a month such as 2026-11.")] = "30d",
    prices: Annotated[
        list[Path] | None,
        typer.Option("--prices", help="Retail Prices API JSON (all pages), or our YAML.", show_default=False),
    ] = None,
    region: Annotated[str | None, typer.Option(help="Region of the prices.", show_default=False)] = None,
    currency: Annotated[str | None, typer.Option(help="Currency of the prices.", show_default=False)] = None,
    html: HtmlOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
) -> CommandResult:
    """Add up what was used and billed per entity and month; what the pair adds, and what an outage would.

    For exports too large for `sbpair cost --usage`, which says the same of the same files.

    \b
    Examples:
      sbpair pipeline usage usage-details/*.csv --month 2026-10
      sbpair pipeline usage metrics.json details.csv --outage 8h --prices prices.json --html usage.html
    """
    from sbpair.pipeline.usage import read_usage

    table = price_table(prices or (), region=region, currency=currency, egress_per_gigabyte=None)
    scenario = Scenario(
        messages_per_day=0,
        size_bytes=size_bytes_of(size_kb),
        copies=1,
        outage_seconds=0,
        diverted_share=None,
        redelivered_share=Fraction(0),
        queues=parse_counts(str(queues), "--queues", 1),
        hosts=(hosts,),
        syphons=parse_syphons(syphon),
        tiers=(),
        processes=processes,
        messaging_units=1,
        two_subscriptions=False,
        month=parse_month(month),
        audits_per_day=0,
    )
    outage_seconds = round(duration_option(outage) or 0)
    with spark_jobs(options, master, conf, rows=None, name="usage") as jobs:
        used = jobs.run(lambda: read_usage(jobs.spark, files), "Adding up")
    result = usage_result(used, scenario, outage_seconds, table)
    write_report(result, html)
    return result


def usage_result(used: "Used", scenario: Scenario, outage_seconds: int, prices: PriceTable) -> CommandResult:
    """Operations per entity and month, the bill, and what pairing and outage add."""
    chosen = scenario.month.label if _CALENDAR.fullmatch(scenario.month.label) else None
    billed = add_up(row for row in used.billed if chosen is None or row.month == chosen)
    months = [one for one in used.months if chosen is None or one.month == chosen]
    if not billed and not months:
        raise UsageError(f"No usage of Service Bus{f' in {chosen}' if chosen else ''} in these files.")
    entities = Table("By entity and month", ENTITY_COLUMNS, [_entity(one, scenario.size_bytes) for one in months])
    bill = billed_table(billed, prices)
    effects: Table | None = None
    data: dict[str, Any] = {"currency": prices.currency, "entities": entities.rows, "billed": bill.rows}
    notes = [f"Prices: {prices.source} of {prices.region}, dated {prices.dated}."]
    if used.traffic is not None:
        workload = with_traffic(workload_of(scenario, None, None), used.traffic, scenario.size_bytes)
        effects, numbers = _effects(workload, outage_seconds, prices)
        data |= numbers
        notes += estimate(workload, prices).assumptions[1:]
    tables = [table for table in (effects, entities, bill) if table is not None and table.rows]
    summary = _summary(data, billed)
    return CommandResult(
        "pipeline usage",
        data,
        tuple(tables),
        notes=tuple(notes),
        summary=summary,
        page=_page(tables, effects, months, summary, notes, prices),
    )


def _entity(one: "MonthTraffic", size_bytes: int) -> dict[str, Any]:
    """Operations: each message sent or received counts its steps of 64 KB, each settlement one."""
    traffic, k = one.entity, steps(size_bytes)
    return {
        "month": one.month,
        "namespace": traffic.namespace,
        "entity": traffic.entity,
        "incoming": traffic.incoming,
        "outgoing": traffic.outgoing,
        "completed": traffic.completed,
        "abandoned": traffic.abandoned,
        "operations": (traffic.incoming + traffic.outgoing) * k + traffic.completed + traffic.abandoned,
    }


def _effects(workload: Workload, outage_seconds: int, prices: PriceTable) -> tuple[Table, dict[str, Any]]:
    """The estimate of `sbpair cost`, without the pair, and with an outage of the given length."""
    now = estimate(workload, prices)
    adds = pairing_costs(workload, prices)
    share = workload.share_diverted + Fraction(outage_seconds, workload.month.hours * 3600)
    then = estimate(
        replace(
            workload,
            outage_seconds=workload.outage_seconds + outage_seconds,
            diverted_share=min(Fraction(1), share),
        ),
        prices,
    )
    outage_adds = then.total - now.total
    rows = [
        _effect("as measured, with the pair", now, now.total),
        {"what": "of which the pair adds", "operations": None, "amount": str(to_cents(adds))},
        {
            "what": f"an outage of {outage_seconds / 3600:g} h adds",
            "operations": then.operation_count - now.operation_count,
            "amount": str(to_cents(outage_adds)),
        },
    ]
    numbers = {
        "total": str(now.total),
        "operation_count": now.operation_count,
        "pairing_adds": str(adds),
        "outage_seconds": outage_seconds,
        "outage_adds": str(outage_adds),
        "outage_operations": then.operation_count - now.operation_count,
    }
    return Table(f"Estimate in {prices.currency}", EFFECT_COLUMNS, rows), numbers


def _effect(what: str, found: Estimate, amount: Decimal) -> dict[str, Any]:
    return {"what": what, "operations": found.operation_count, "amount": str(to_cents(amount))}


def _summary(data: dict[str, Any], billed: Sequence[Any]) -> str:
    parts = []
    if billed:
        sums: dict[str, Decimal] = {}
        for one in billed:
            sums[one.currency] = sums.get(one.currency, Decimal(0)) + one.cost
        parts.append("Billed: " + ", ".join(f"{to_cents(cost):,} {name}".strip() for name, cost in sums.items()))
    if "total" in data:
        parts.append(
            f"estimated {to_cents(Decimal(data['total'])):,} {data['currency']} a month; the pairing adds "
            f"{to_cents(Decimal(data['pairing_adds'])):,}, the outage {to_cents(Decimal(data['outage_adds'])):,}"
        )
    return "; ".join(parts) + "."


def _page(
    tables: Sequence[Table],
    effects: Table | None,
    months: "Sequence[MonthTraffic]",
    summary: str,
    notes: Sequence[str],
    prices: PriceTable,
) -> Page:
    sections: list[Section] = []
    if effects is not None:
        sections.append(Cards([Card(row["what"], f"{row['amount']} {prices.currency}") for row in effects.rows]))
    sections += _charts(months)
    sections += [*tables, Text("Assumptions", notes)]
    return Page("What was used", sections, lead=summary, facts=(("Prices", f"{prices.region}, {prices.source}"),))


def _charts(months: "Sequence[MonthTraffic]") -> list[Section]:
    """Messages by month where there are several, else by entity."""
    counted: dict[str, dict[str, int]] = {}
    for one in months:
        name = one.entity.entity or one.entity.namespace
        counted.setdefault(name, {})[one.month] = one.entity.incoming
    ranked = sorted(counted, key=lambda name: (-sum(counted[name].values()), name))
    labels = sorted({one.month for one in months})
    if len(labels) > 1:
        lines = [
            Line(name, [(float(place), counted[name].get(label, 0)) for place, label in enumerate(labels)])
            for name in ranked[:_LINES]
        ]
        return [Lines("Messages sent by month", lines, "Month", "Messages", x_text=lambda x: labels[round(x)])]
    bars = [Bar(name, sum(counted[name].values()), f"{sum(counted[name].values()):,}") for name in ranked]
    return [Bars("Messages sent by entity", bars)] if bars else []
