"""What was really used, for `cost --usage`: read row by row, so files of any size."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

from sbpair.cli.cost.shown import BilledAlone, BilledLine
from sbpair.core.cost.model import Month, Workload
from sbpair.core.cost.usage import (
    Billed,
    BilledRow,
    Traffic,
    add_up,
    billed_row,
    is_header,
    map_columns,
    read_metrics,
)
from sbpair.core.errors import UsageError
from sbpair.core.prices import UNITS, Meter, PriceTable, to_cents, total
from sbpair.core.serialization import to_plain
from sbpair.render.result import Column, CommandResult, Table

_CALENDAR = re.compile(r"\d{4}-\d{2}")
BILLED_COLUMNS = (
    Column("month", "Month"),
    Column("subscription", "Subscription"),
    Column("meter", "Meter"),
    Column("quantity", "Quantity", right=True),
    Column("cost", "Billed", right=True),
    Column("currency", "Currency"),
    Column("at_these_prices", "At these prices", right=True),
)


@dataclass(frozen=True, slots=True)
class Usage:
    """What the files say: billed quantities of usage details, traffic of metrics."""

    billed: tuple[Billed, ...] = ()
    traffic: Traffic | None = None


def read_usage(paths: Sequence[Path], month: Month) -> Usage:
    """Metrics (JSON) and usage details (CSV). A calendar month chosen with --month leaves other months' rows out.

    Raises:
        UsageError: an unreadable or wrong file; the message names file and row.
    """
    metrics: list[tuple[str, Any]] = []
    details: list[Iterator[BilledRow]] = []
    for path in paths:
        if path.suffix.lower() == ".json":
            metrics.append((path.name, _json(path)))
        else:
            details.append(_details(path))
    chosen = month.label if _CALENDAR.fullmatch(month.label) else None
    billed = add_up(row for row in chain.from_iterable(details) if chosen is None or row.month == chosen)
    if not metrics and not billed:
        when = f" in {chosen}" if chosen else ""
        raise UsageError(f"No usage of Service Bus{when} in {', '.join(path.name for path in paths)}.")
    return Usage(billed, read_metrics(metrics) if metrics else None)


def _json(path: Path) -> Any:
    from sbpair.settings import DocumentError, parse_json, read_text

    try:
        return parse_json(read_text(path))
    except DocumentError as error:
        raise UsageError(f"Cannot read the metrics {path}: {error}") from error


def _details(path: Path) -> Iterator[BilledRow]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            header = next((cells for cells in lines if is_header(cells)), None)
            if header is None:
                raise UsageError(f"{path}: no header of usage details (date, meter name and quantity) found.")
            columns = map_columns(header)
            for cells in lines:
                row = billed_row(columns, cells, f"{path.name}, line {lines.line_num}") if any(cells) else None
                if row is not None:
                    yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"Cannot read the usage details {path}: {error}") from error


def with_traffic(workload: Workload, traffic: Traffic, size_bytes: int) -> Workload:
    """The workload with the messages that the metrics counted, and the share that went to backlog queues, unless the
    options say another one."""
    share = workload.diverted_share if workload.diverted_share is not None else traffic.diverted_share
    if share is None and not workload.outage_seconds:
        share = Fraction(0)
    return replace(workload, flows=traffic.flows(workload.month.hours, size_bytes), diverted_share=share)


def billed_lines(billed: Sequence[Billed], prices: PriceTable) -> tuple[BilledLine, ...]:
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


def _table(lines: Sequence[BilledLine]) -> Table:
    return Table("Billed", BILLED_COLUMNS, to_plain(lines))


def _priced(one: Billed, prices: PriceTable) -> Decimal | None:
    """The same quantity at our prices; None for a meter that they do not have, or in another currency."""
    if one.meter not in list(Meter) or (one.currency and one.currency != prices.currency):
        return None
    meter = Meter(one.meter)
    if not prices.has(meter):
        return None
    return to_cents(total(one.quantity / UNITS[meter].size, prices.bands(meter)))


def billed_result(billed: Sequence[Billed], prices: PriceTable) -> CommandResult:
    """Usage details alone: nothing is estimated."""
    lines = billed_lines(billed, prices)
    sums: dict[str, Decimal] = {}
    for one in billed:
        sums[one.currency] = sums.get(one.currency, Decimal(0)) + one.cost
    money = ", ".join(f"{to_cents(amount):,} {currency}".strip() for currency, amount in sums.items())
    months = sorted({one.month for one in billed})
    return CommandResult(
        "cost",
        BilledAlone(prices.currency, lines),
        (_table(lines),),
        notes=(f"Prices: {prices.source} of {prices.region}, dated {prices.dated}.",),
        summary=f"Billed for Service Bus: {money} in {', '.join(months)}.",
    )


def with_billed(result: CommandResult, usage: Usage, prices: PriceTable) -> CommandResult:
    """An estimate with what was billed beside it."""
    if not usage.billed:
        return result
    lines = billed_lines(usage.billed, prices)
    return replace(result, data=replace(result.data, billed=lines), tables=(*result.tables, _table(lines)))
