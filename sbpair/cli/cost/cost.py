"""`sbpair cost`: what a pair costs a month, with the arithmetic."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from sbpair.cli.context import load_settings
from sbpair.cli.cost import shown
from sbpair.cli.cost.inputs import (
    Scenario,
    parse_counts,
    parse_month,
    parse_share,
    parse_syphons,
    parse_tiers,
    price_table,
    size_bytes_of,
    workload_of,
)
from sbpair.cli.cost.usage import Usage, billed_result, read_usage, with_billed, with_traffic
from sbpair.cli.inspection.snapshots import choose_snapshots
from sbpair.cli.options import Options, PairArgument, command, duration_option
from sbpair.core.cost.model import active_active
from sbpair.core.errors import UsageError
from sbpair.core.inspection.snapshot import Snapshot
from sbpair.core.pairing import Pair
from sbpair.render.result import CommandResult


@command(output="cli.cost.shown:Cost")
def cost(
    options: Options,
    pair: PairArgument = None,
    messages_per_day: Annotated[int, typer.Option(min=0, help="Messages sent a day, to all entities together.")] = 0,
    size_kb: Annotated[float, typer.Option(min=0, help="Size of a message; billed in units of 64 KB.")] = 1.0,
    copies: Annotated[int, typer.Option(min=0, help="Subscriptions that each get a copy; 1 for queues.")] = 1,
    outage: Annotated[
        str, typer.Option(help="How long the primary is unavailable in the month, e.g. 4h.", metavar="DURATION")
    ] = "0",
    diverted: Annotated[
        str | None, typer.Option(help="Share diverted, e.g. 2%; default: the outage's share.", show_default=False)
    ] = None,
    redelivered: Annotated[str, typer.Option(help="Share of deliveries that are redelivered, e.g. 1%.")] = "0%",
    queues: Annotated[
        str | None, typer.Option(help="Backlog queues; several to compare: 5,10,20.", show_default=False)
    ] = None,
    hosts: Annotated[str, typer.Option(help="Processes that run the syphon; several to compare.")] = "1",
    syphon: Annotated[
        str, typer.Option(help="documented, sdk, none, or the length of a poll; several to compare.")
    ] = "documented",
    tier: Annotated[
        str | None, typer.Option(help="Tier of both namespaces; several to compare.", show_default=False)
    ] = None,
    messaging_units: Annotated[int, typer.Option(min=1, help="Messaging units of a Premium namespace.")] = 1,
    processes: Annotated[int, typer.Option(min=0, help="Client processes that send.")] = 1,
    two_subscriptions: Annotated[
        bool, typer.Option("--two-subscriptions", help="The namespaces are in two Azure subscriptions.")
    ] = False,
    audits_per_day: Annotated[int, typer.Option(min=0, help="Audits a day.")] = 0,
    replicated: Annotated[
        bool, typer.Option("--replicated", help="Active/active: every message to both namespaces, no backlog.")
    ] = False,
    month: Annotated[str, typer.Option(help="30d (the documents'), average, or a month such as 2026-11.")] = "30d",
    compare: Annotated[bool, typer.Option("--compare", help="Compare alternatives, including no pairing.")] = False,
    prices: Annotated[
        list[Path] | None,
        typer.Option("--prices", help="Retail Prices API JSON (all pages), or our YAML.", show_default=False),
    ] = None,
    region: Annotated[str | None, typer.Option(help="Region of the prices.", show_default=False)] = None,
    currency: Annotated[str | None, typer.Option(help="Currency of the prices.", show_default=False)] = None,
    egress_per_gb: Annotated[
        str | None, typer.Option(help="Price of a GB between the regions.", show_default=False)
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option("--from", help="Tiers and entities of a snapshot (audit --save).", show_default=False),
    ] = None,
    usage: Annotated[
        list[Path] | None,
        typer.Option(
            "--usage", help="Azure Monitor metrics (JSON) or usage details (CSV); repeatable.", show_default=False
        ),
    ] = None,
    explain_prices: Annotated[
        bool, typer.Option("--explain-prices", help="Show the price table and the query that fetches today's.")
    ] = False,
) -> CommandResult:
    """Estimate what a pair costs a month, line by line, each with its rule: polls, diverted messages, pings, base.

    Contacts nobody. The built-in prices are a dated copy; give today's with --prices.

    \b
    Examples:
      sbpair cost orders --messages-per-day 500000 --size-kb 8 --outage 4h --hosts 3
      sbpair cost --messages-per-day 1000000 --queues 5,10,20 --syphon documented,sdk --compare
      sbpair cost --usage usage-details.csv --month 2026-02
      sbpair cost --explain-prices --region eastus
    """
    table = price_table(prices or (), region=region, currency=currency, egress_per_gigabyte=egress_per_gb)
    if explain_prices:
        return shown.price_rows(table)
    chosen, snapshot = _pair_and_snapshot(options, pair, from_file)
    scenario = Scenario(
        messages_per_day=messages_per_day,
        size_bytes=size_bytes_of(size_kb),
        copies=copies,
        outage_seconds=round(duration_option(outage) or 0),
        diverted_share=parse_share(diverted, "--diverted"),
        redelivered_share=parse_share(redelivered, "--redelivered") or Fraction(0),
        queues=parse_counts(queues, "--queues", 1),
        hosts=parse_counts(hosts, "--hosts", 0),
        syphons=parse_syphons(syphon),
        tiers=parse_tiers(tier),
        processes=processes,
        messaging_units=messaging_units,
        two_subscriptions=two_subscriptions,
        month=parse_month(month),
        audits_per_day=audits_per_day,
    )
    workload = workload_of(scenario, chosen, snapshot)
    used = read_usage(usage, scenario.month) if usage else Usage()
    if used.traffic is not None:
        workload = with_traffic(workload, used.traffic, scenario.size_bytes)
    elif used.billed:
        return billed_result(used.billed, table)
    if replicated:
        workload = active_active(workload)
    lists: Sequence[Sequence[object]] = (scenario.queues, scenario.hosts, scenario.syphons, scenario.tiers)
    if compare or any(len(values) > 1 for values in lists):
        return shown.comparison(workload, table, scenario)
    result = shown.one_estimate(workload, table, chosen.name if chosen else None, snapshot)
    return with_billed(result, used, table)


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
