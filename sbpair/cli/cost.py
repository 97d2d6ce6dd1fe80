"""`sbpair cost`: what a pair costs a month, with the arithmetic."""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from sbpair.cli.context import load_settings
from sbpair.cli.inspection.saved import choose_snapshots
from sbpair.cli.options import Options, OptionSet, PairArgument, command, duration_option, pause_option
from sbpair.core.cost import result, usage
from sbpair.core.cost.model import (
    AVERAGE_MONTH,
    DOCUMENTED_MONTH,
    SYPHON_MODELS,
    Month,
    SyphonModel,
    calendar_month,
    polling_syphon,
)
from sbpair.core.cost.request import CostRequest, workload_of
from sbpair.core.durations import parse_duration
from sbpair.core.errors import UsageError
from sbpair.core.inspection.snapshot import Snapshot
from sbpair.core.pairing import Pair
from sbpair.core.prices import (
    DEFAULT_REGION,
    PriceTable,
    built_in,
    exact,
    from_retail,
    from_yaml,
    retail_query,
    to_cents,
    with_egress,
)
from sbpair.core.redact import quoted
from sbpair.operations.cost import compare_costs, estimate_cost
from sbpair.render.result import Column, CommandResult, Metric, Table, concluded, table_of
from sbpair.service import Tier

_COUNT = re.compile(r"[0-9]{1,9}")
_CURRENCY = re.compile(r"[A-Z]{3}")
_CALENDAR = re.compile(r"(\d{4})-(0[1-9]|1[0-2])", re.ASCII)


def parse_month(text: str) -> Month:
    """`30d` (the documents'), `average` (730 hours), or a real one such as 2026-11."""
    if text == "30d":
        return DOCUMENTED_MONTH
    if text == "average":
        return AVERAGE_MONTH
    match = _CALENDAR.fullmatch(text)
    if match is None:
        raise UsageError(f"--month {quoted(text)} is none of 30d, average and a month such as 2026-11.")
    return calendar_month(int(match[1]), int(match[2]))


T = TypeVar("T")


def parse_list(text: str | None, parse: Callable[[str], T]) -> tuple[T, ...]:
    """The values of `5,10,20`, each once."""
    return tuple(dict.fromkeys(parse(part.strip()) for part in text.split(","))) if text is not None else ()


def parse_counts(text: str | None, option: str, least: int) -> tuple[int, ...]:
    def count(part: str) -> int:
        if not _COUNT.fullmatch(part) or int(part) < least:
            raise UsageError(f"{option} {quoted(text)}: {quoted(part)} is not a whole number of {least} or more.")
        return int(part)

    return parse_list(text, count)


def parse_syphon(text: str) -> SyphonModel | None:
    """`documented`, `sdk`, `none`, or a poll length such as 15m."""
    if text == "none":
        return None
    known = {model.name: model for model in SYPHON_MODELS}
    return known.get(text) or polling_syphon(round(parse_duration(text)))


def parse_tier(text: str) -> Tier:
    try:
        return Tier(text.capitalize())
    except ValueError:
        raise UsageError(f"--tier {quoted(text)}: the tiers are Basic, Standard and Premium.") from None


def parse_share(text: str | None, option: str) -> Fraction | None:
    """`2.5%` or `0.025`."""
    if text is None:
        return None
    bare = text.strip()
    share = Fraction(exact(bare.removesuffix("%"), f"{option} {quoted(text)}")) / (100 if bare.endswith("%") else 1)
    if share > 1:
        raise UsageError(f"{option} {quoted(text)} is more than the whole; write a percentage as 2.5%.")
    return share


@dataclass(frozen=True, slots=True)
class PriceOptions(OptionSet):
    prices: Annotated[
        list[Path] | None, typer.Option(help="Price list: JSON of the Retail Prices API, or YAML; repeatable.")
    ] = None
    region: Annotated[str | None, typer.Option(help="Azure region of the prices.")] = None

    def table(self, currency: str | None = None) -> PriceTable:
        """The prices of the files, completed from the built-in ones of the same currency; or the built-in ones.

        Raises:
            UsageError: an unreadable or wrong file, or no built-in prices for the region and currency.
        """
        if not self.prices:
            return _built_in(self.region or DEFAULT_REGION, currency)
        source = ", ".join(path.name for path in self.prices)
        documents = [_read(path) for path in self.prices]
        if len(documents) == 1 and isinstance(documents[0], dict) and "meters" in documents[0]:
            table = from_yaml(documents[0], source=source)
        else:
            pages = [
                page for document in documents for page in (document if isinstance(document, list) else [document])
            ]
            table = from_retail(pages, region=self.region, currency=currency, source=source)
        return table.with_missing_from(built_in())


def _built_in(region: str, currency: str | None) -> PriceTable:
    table = built_in(region)
    if currency is not None and currency.upper() != table.currency:
        if not _CURRENCY.fullmatch(currency.upper()):
            raise UsageError(f"{quoted(currency)} is no currency, which has three letters, such as EUR.")
        raise UsageError(
            f"The built-in prices are in {table.currency}, not in {currency.upper()}.",
            hint=f"Save the answer of {retail_query(table.region, currency.upper())} and give it with --prices FILE.",
        )
    return table


def _read(path: Path, noun: str = "prices") -> Any:
    """A JSON document, prices with their numbers exact, or YAML."""
    from sbpair.settings import DocumentError, parse_json, parse_yaml, read_text

    try:
        text = read_text(path)
        if path.suffix.lower() == ".json" or text.lstrip().startswith(("{", "[")):
            return parse_json(text, exact=noun == "prices")
        return parse_yaml(text)
    except DocumentError as error:
        raise UsageError(f"Cannot read the {noun} {path}: {error}") from error


# What was really used, for `cost --usage`: read row by row, so files of any size.


def read_usage(paths: Sequence[Path], month: Month) -> tuple[tuple[usage.MeterUsage, ...], usage.Traffic | None]:
    """Billed quantities of usage details (CSV), and the traffic of metrics (JSON). A calendar month chosen with --month
    leaves other months' rows out.

    Raises:
        UsageError: an unreadable or wrong file; the message names file and row.
    """
    metrics: list[tuple[str, Any]] = []
    details: list[Iterator[usage.BilledRow]] = []
    for path in paths:
        if path.suffix.lower() == ".json":
            metrics.append((path.name, _read(path, "metrics")))
        else:
            details.append(_details(path))
    chosen = month.label if _CALENDAR.fullmatch(month.label) else None
    billed = usage.add_up(row for row in chain.from_iterable(details) if chosen is None or row.month == chosen)
    if not metrics and not billed:
        when = f" in {chosen}" if chosen else ""
        raise UsageError(f"No usage of Service Bus{when} in {', '.join(path.name for path in paths)}.")
    return billed, usage.read_metrics(metrics) if metrics else None


def _details(path: Path) -> Iterator[usage.BilledRow]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            header = next((cells for cells in lines if usage.is_header(cells)), None)
            if header is None:
                raise UsageError(f"{path}: no header of usage details (date, meter name and quantity) found.")
            columns = usage.map_columns(header)
            for cells in lines:
                row = usage.billed_row(columns, cells, f"{path.name}, line {lines.line_num}") if any(cells) else None
                if row is not None:
                    yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"Cannot read the usage details {path}: {error}") from error


@command(output="core.cost.result:Cost", checks=True)
def cost(
    options: Options,
    pair: PairArgument = None,
    messages_per_day: Annotated[int, typer.Option(min=0, help="Messages sent per day, to all entities together.")] = 0,
    size_kb: Annotated[
        float, typer.Option(min=0, max=100 * 1024, help="Average size of a message; billed per 64 KB.")
    ] = 1.0,
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
            metavar="DURATION", help="`pipeline follow` looks as often as this, e.g. 30s.", show_default="not followed"
        ),
    ] = None,
    replicated: Annotated[bool, typer.Option(help="Active/active: every message goes to both namespaces.")] = False,
    month: Annotated[str, typer.Option(help="30d, average, or a month such as 2026-11.")] = "30d",
    compare: Annotated[bool, typer.Option(help="Compare alternatives, including no pairing.")] = False,
    *,
    listed: PriceOptions,
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
    table = listed.table(currency)
    if egress_per_gb is not None:
        table = with_egress(table, exact(egress_per_gb, "--egress-per-gb"))
    if explain_prices:
        return price_rows(result.price_list(table), table)
    chosen, known = _pair_and_snapshot(options, pair, snapshot)
    scenario = CostRequest(
        messages_per_day=messages_per_day,
        size_bytes=round(size_kb * 1024),
        copies=copies,
        outage_seconds=round(duration_option(outage) or 0),
        diverted_share=parse_share(diverted, "--diverted"),
        redelivered_share=parse_share(redelivered, "--redelivered") or Fraction(0),
        queues=parse_counts(queues, "--queues", 1),
        hosts=parse_counts(hosts, "--hosts", 0),
        syphons=parse_list(syphon, parse_syphon),
        tiers=parse_list(tier, parse_tier),
        processes=processes,
        consumers=consumers,
        messaging_units=messaging_units,
        geo_replicated=geo_replicated,
        two_subscriptions=two_subscriptions,
        month=parse_month(month),
        audits_per_day=audits_per_day,
        follow_every_seconds=round(pause_option(follow, "--follow")) if follow else 0,
        replicated=replicated,
    )
    billed, traffic = read_usage(usage, scenario.month) if usage else ((), None)
    if billed and traffic is None:
        return billed_result(result.billed_alone(billed, table), table)
    workload = workload_of(scenario, chosen, known, traffic)
    lists: Sequence[Sequence[object]] = (scenario.queues, scenario.hosts, scenario.syphons, scenario.tiers)
    if compare or any(len(values) > 1 for values in lists):
        return comparison(compare_costs(scenario, prices=table, workload=workload))
    return estimated(
        estimate_cost(scenario, pair=chosen, snapshot=known, prices=table, workload=workload, billed=billed)
    )


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


def estimated(found: result.Estimated) -> CommandResult:
    """The estimate line by line, the total last, with what was billed."""
    labels = (("pair", found.pair or ""), ("currency", found.estimate.currency))
    metric = Metric("sbpair_cost_month_total", float(to_cents(found.estimate.total)), labels)
    billed = () if found.billed is None else (table_of(result.BilledLine, found.billed, "Billed"),)
    return concluded(found, table_of(result.BillLine, found.lines), *billed, checks=(), metrics=(metric,))


def comparison(found: result.Compared) -> CommandResult:
    """Alternatives, with a bar for what each costs above the best one."""
    table = table_of(result.Alternative, found.alternatives)
    columns = [column for column in table.columns if column.key != "total"]
    columns.insert(1, Column("total", f"{found.currency} a month", right=True))
    columns.insert(3, Column("above_best", "", drawn=True))
    return concluded(found, Table("", tuple(columns), table.rows))


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
    note = f"Prices: {prices.source} of {prices.region}, dated {prices.dated}."
    return concluded(found, table_of(result.BilledLine, found.billed, "Billed"), notes=(note,))
