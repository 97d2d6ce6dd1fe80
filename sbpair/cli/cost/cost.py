"""`sbpair cost`: what a pair costs a month, with the arithmetic."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from sbpair.cli.context import load_settings
from sbpair.cli.cost import inputs
from sbpair.cli.inspection.saved import choose_snapshots
from sbpair.cli.options import Options, PairArgument, command, duration_option
from sbpair.core.cost import result
from sbpair.core.cost.model import active_active
from sbpair.core.cost.request import CostRequest, workload_of
from sbpair.core.errors import UsageError
from sbpair.core.inspection.snapshot import Snapshot
from sbpair.core.pairing import Pair
from sbpair.core.prices import PriceTable, to_cents
from sbpair.operations.cost import compare_costs, estimate_cost
from sbpair.render.result import Column, CommandResult, Metric, Table, table_of


@command(output="core.cost.result:Cost", checks=True)
def cost(
    options: Options,
    pair: PairArgument = None,
    messages_per_day: Annotated[int, typer.Option(min=0, help="Messages sent per day, to all entities together.")] = 0,
    size_kb: Annotated[float, typer.Option(min=0, help="Average size of a message; billed per 64 KB.")] = 1.0,
    copies: Annotated[
        int, typer.Option(min=0, help="Subscriptions that get a copy of each message; 1 for queues.")
    ] = 1,
    outage: Annotated[
        str, typer.Option(help="How long the primary is down in the month, e.g. 4h.", metavar="DURATION")
    ] = "0",
    diverted: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="Messages diverted, e.g. 2%. Default: the outage's share.")
    ] = None,
    redelivered: Annotated[str, typer.Option(metavar="PERCENT", help="Messages delivered again, e.g. 1%.")] = "0%",
    queues: Annotated[
        str | None, typer.Option(metavar="N,...", help="Backlog queues; several to compare, e.g. 5,10,20.")
    ] = None,
    hosts: Annotated[str, typer.Option(metavar="N,...", help="Processes that run a syphon; several to compare.")] = "1",
    syphon: Annotated[
        str, typer.Option(metavar="POLL,...", help="A poll such as 15m, documented, sdk or none; several to compare.")
    ] = "15m",
    consumers: Annotated[int, typer.Option(min=0, help="Processes that consume, with --replicated.")] = 1,
    tier: Annotated[
        str | None, typer.Option(metavar="TIER,...", help="Tier of both namespaces; several to compare.")
    ] = None,
    messaging_units: Annotated[int, typer.Option(min=1, help="Messaging units of each Premium namespace.")] = 1,
    geo_replicated: Annotated[bool, typer.Option(help="Premium namespaces have Geo-Replication.")] = False,
    processes: Annotated[int, typer.Option(min=0, help="Processes that send.")] = 1,
    two_subscriptions: Annotated[
        bool, typer.Option(help="The namespaces are in different Azure subscriptions.")
    ] = False,
    audits_per_day: Annotated[int, typer.Option(min=0, help="Audits per day.")] = 0,
    follow: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="`pipeline follow` looks as often as this, e.g. 30s.",
            show_default="not followed",
        ),
    ] = None,
    replicated: Annotated[bool, typer.Option(help="Active/active: every message goes to both namespaces.")] = False,
    month: Annotated[str, typer.Option(help="30d, average, or a month such as 2026-11.")] = "30d",
    compare: Annotated[bool, typer.Option(help="Compare alternatives, including no pairing.")] = False,
    prices: Annotated[
        list[Path] | None, typer.Option(help="Price list: JSON of the Retail Prices API, or YAML; repeatable.")
    ] = None,
    region: Annotated[str | None, typer.Option(help="Azure region of the prices.")] = None,
    currency: Annotated[str | None, typer.Option(help="Currency of the prices.")] = None,
    egress_per_gb: Annotated[
        str | None, typer.Option(metavar="PRICE", help="Price of 1 GB of traffic between the regions.")
    ] = None,
    snapshot: Annotated[
        Path | None, typer.Option(help="Use the tiers and entities of a snapshot (audit --snapshot-out).")
    ] = None,
    usage: Annotated[
        list[Path] | None,
        typer.Option(help="Actual usage: Azure Monitor metrics (JSON) or usage details (CSV); repeatable."),
    ] = None,
    explain_prices: Annotated[
        bool, typer.Option(help="Show the price list, and the query for today's prices.")
    ] = False,
) -> CommandResult:
    """Estimate what a pair costs per month, line by line, each line with the rule behind it.

    Contacts nothing. The built-in prices are a dated copy of the list prices; give current ones with --prices.

    \b
    Examples:
      sbpair cost orders --messages-per-day 500000 --size-kb 8 --outage 4h --hosts 3
      sbpair cost --messages-per-day 1000000 --queues 5,10,20 --syphon documented,sdk --compare
      sbpair cost --usage usage-details.csv --month 2026-02
      sbpair cost --explain-prices --region eastus
    """
    table = inputs.price_table(prices or (), region=region, currency=currency, egress_per_gigabyte=egress_per_gb)
    if explain_prices:
        return price_rows(result.price_list(table), table)
    chosen, known = _pair_and_snapshot(options, pair, snapshot)
    scenario = CostRequest(
        messages_per_day=messages_per_day,
        size_bytes=inputs.size_bytes_of(size_kb),
        copies=copies,
        outage_seconds=round(duration_option(outage) or 0),
        diverted_share=inputs.parse_share(diverted, "--diverted"),
        redelivered_share=inputs.parse_share(redelivered, "--redelivered") or Fraction(0),
        queues=inputs.parse_counts(queues, "--queues", 1),
        hosts=inputs.parse_counts(hosts, "--hosts", 0),
        syphons=inputs.parse_syphons(syphon),
        tiers=inputs.parse_tiers(tier),
        processes=processes,
        consumers=consumers,
        messaging_units=messaging_units,
        geo_replicated=geo_replicated,
        two_subscriptions=two_subscriptions,
        month=inputs.parse_month(month),
        audits_per_day=audits_per_day,
        follow_every_seconds=_follow_seconds(follow),
    )
    workload = workload_of(scenario, chosen, known)
    used = inputs.read_usage(usage, scenario.month) if usage else inputs.Usage()
    if used.traffic is not None:
        workload = inputs.with_traffic(workload, used.traffic, scenario.size_bytes)
    elif used.billed:
        return billed_result(result.billed_alone(used.billed, table), table)
    if replicated:
        workload = active_active(workload)
    lists: Sequence[Sequence[object]] = (scenario.queues, scenario.hosts, scenario.syphons, scenario.tiers)
    if compare or any(len(values) > 1 for values in lists):
        return comparison(compare_costs(scenario, prices=table, workload=workload))
    return one_estimate(
        estimate_cost(scenario, pair=chosen, snapshot=known, prices=table, workload=workload, billed=used.billed)
    )


def _follow_seconds(text: str | None) -> int:
    seconds = duration_option(text)
    if seconds is not None and seconds < 1:
        raise UsageError(f"--follow is one second or more, not {text}.")
    return round(seconds or 0)


def _pair_and_snapshot(
    options: Options, name: str | None, from_file: Path | None
) -> tuple[Pair | None, Snapshot | None]:
    """The pair and what is known of it; no pair at all is fine when none is configured."""
    if from_file is not None:
        snapshots = choose_snapshots(from_file, [name] if name else None)
        if len(snapshots) != 1:
            known = ", ".join(snapshot.pair.name for snapshot in snapshots)
            raise UsageError(f"{from_file} has snapshots of several pairs ({known}); name the one you mean.")
        return snapshots[0].pair.to_pair(), snapshots[0]
    settings = load_settings(options)
    if name is None and not settings.pair_names():
        return None, None
    return settings.pair(name), None


# Estimates as tables: every line with its arithmetic, alternatives side by side.


def one_estimate(found: result.Estimated) -> CommandResult:
    """The estimate line by line, the total last, with what was billed."""
    currency = found.estimate.currency
    metric = Metric(
        "sbpair_cost_month_total",
        float(to_cents(found.estimate.total)),
        (("pair", found.pair or ""), ("currency", currency)),
    )
    billed = (_billed(found.billed),) if found.billed is not None else ()
    return CommandResult(
        found,
        (table_of(result.Line, found.lines), *billed),
        notes=found.notes,
        summary=found.summary(),
        closing=True,
        checks=(),
        metrics=(metric,),
    )


def comparison(found: result.Compared) -> CommandResult:
    """Alternatives, with a bar for what each costs above the best one."""
    table = table_of(result.Alternative, found.alternatives)
    columns = [column for column in table.columns if column.key != "total"]
    columns.insert(1, Column("total", f"{found.currency} a month", right=True))
    columns.insert(3, Column("above_best", "", drawn=True))
    return CommandResult(
        found, (Table("", tuple(columns), table.rows),), notes=found.notes, summary=found.summary(), closing=True
    )


def price_rows(found: result.Prices, prices: PriceTable) -> CommandResult:
    """The price table with its date and source, and the query for today's."""
    kind = "built-in list prices, not today's" if prices.built_in else "prices"
    return CommandResult(
        found,
        (table_of(result.Price, found.prices),),
        notes=(f"{found.region}: {kind}, dated {found.dated} ({found.source}).",),
        summary=f"Today's prices (follow NextPageLink, if it is not null): {found.command}",
    )


def billed_result(found: result.BilledAlone, prices: PriceTable) -> CommandResult:
    """Usage details alone: nothing is estimated."""
    return CommandResult(
        found,
        (_billed(found.billed),),
        notes=(f"Prices: {prices.source} of {prices.region}, dated {prices.dated}.",),
        summary=found.summary,
    )


def _billed(lines: Sequence[result.BilledLine]) -> Table:
    return table_of(result.BilledLine, lines, "Billed")
