"""Reads a price table from pages of the Retail Prices API (JSON). Refusals name the row.

The traps of the API, each handled here: the base charge comes in two rows (per hour and per month; only the hourly
one counts, both would charge it twice), tiers are rows with rising `tierMinimumUnits`, several regions, currencies or
effective dates may be in one file, and a file may be one page of several.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sbpair.core.errors import UsageError
from sbpair.core.prices import Band, Meter, PriceTable, check_bands, exact, required_text
from sbpair.core.redact import quoted, shortened

_SERVICE = "service bus"
_METERS: Mapping[tuple[str, str], Meter] = {
    ("basic messaging operations", "1m"): Meter.BASIC_OPERATIONS,
    ("standard base unit", "1/hour"): Meter.STANDARD_BASE,
    ("standard base unit", "1 hour"): Meter.STANDARD_BASE,
    ("standard messaging operations", "1m"): Meter.STANDARD_OPERATIONS,
    ("standard brokered connection", "1"): Meter.STANDARD_CONNECTIONS,
    ("premium messaging unit", "1/hour"): Meter.PREMIUM_UNIT,
    ("premium messaging unit", "1 hour"): Meter.PREMIUM_UNIT,
}
"""Meter name and unit of measure of the API, lower case."""
_DELIBERATELY_LEFT_OUT = {("standard base unit", "1/month"), ("standard base unit", "1 month")}
_KNOWN_NAMES = {name for name, _ in _METERS}


@dataclass(frozen=True, slots=True)
class _Row:
    """One price row of the API that is of use here, and where it stood."""

    where: str
    meter: Meter
    region: str
    currency: str
    effective: str
    start: Decimal
    price: Decimal


def from_retail(
    pages: Sequence[Any], *, region: str | None = None, currency: str | None = None, source: str = "Retail Prices API"
) -> PriceTable:
    """The table in the answer(s) of the Retail Prices API: all pages, in any order.

    `region` and `currency` choose where a file has several.

    Raises:
        UsageError: pages missing, a row without a field or with a wrong value, several regions or currencies and none
            chosen, tiers with a hole, or two prices for the same tier; the message names the row.
    """
    rows = [row for row in _rows(pages) if _wanted(row, region, currency)]
    if not rows:
        raise UsageError(f"{source}: no Service Bus price rows" + (f" for {shortened(region)}" if region else "") + ".")
    _check_one(rows, "region", [row.region for row in rows], "--region")
    _check_one(rows, "currency", [row.currency for row in rows], "--currency")
    meters = {row.meter for row in rows}
    return PriceTable(
        region=rows[0].region,
        currency=rows[0].currency,
        dated=max(row.effective for row in rows),
        source=source,
        meters=tuple((meter, _tiers(meter, rows)) for meter in Meter if meter in meters),
    )


def _wanted(row: _Row, region: str | None, currency: str | None) -> bool:
    if region is not None and row.region != region.lower().replace(" ", ""):
        return False
    return currency is None or row.currency == currency.upper()


def _check_one(rows: Sequence[_Row], what: str, values: Sequence[str], option: str) -> None:
    other = next((index for index, value in enumerate(values) if value != values[0]), None)
    if other is not None:
        raise UsageError(
            f"{rows[other].where}: {what} {shortened(values[other])}, but {rows[0].where} has {shortened(values[0])}.",
            hint=f"Choose one with {option}.",
        )


def _rows(pages: Sequence[Any]) -> Iterator[_Row]:
    if not pages:
        raise UsageError("No page of prices was given.")
    open_ends = 0
    for number, page in enumerate(pages, 1):
        items = page.get("Items") if isinstance(page, Mapping) else None
        if not isinstance(items, list):
            raise UsageError(f"page {number}: no 'Items' list; this is not an answer of the Retail Prices API.")
        count = page.get("Count")
        if isinstance(count, int) and count != len(items):
            raise UsageError(f"page {number}: 'Count' says {count} rows, there are {len(items)}; the file is cut.")
        open_ends += page.get("NextPageLink") is not None
        for index, item in enumerate(items, 1):
            row = _row(item, f"page {number}, row {index}")
            if row is not None:
                yield row
    if open_ends >= len(pages):
        raise UsageError(
            f"page {len(pages)}: there is a next page that was not given.",
            hint="Follow NextPageLink until it is null and give all pages.",
        )


def _row(item: Any, where: str) -> _Row | None:
    """The row, or None where it is about something else."""
    if not isinstance(item, Mapping):
        raise UsageError(f"{where}: not an object.")
    if str(item.get("serviceName", "")).lower() != _SERVICE or item.get("type", "Consumption") != "Consumption":
        return None
    name, unit = required_text(item, "meterName", where).lower(), required_text(item, "unitOfMeasure", where).lower()
    meter = _METERS.get((name, unit))
    if meter is None:
        if name in _KNOWN_NAMES and (name, unit) not in _DELIBERATELY_LEFT_OUT:
            raise UsageError(
                f"{where}: {quoted(item['meterName'])} is priced per unknown unit {quoted(item['unitOfMeasure'])}."
            )
        return None
    return _Row(
        where=where,
        meter=meter,
        region=required_text(item, "armRegionName", where).lower(),
        currency=required_text(item, "currencyCode", where).upper(),
        effective=required_text(item, "effectiveStartDate", where)[:10],
        start=_number(item, "tierMinimumUnits", where),
        price=_number(item, "retailPrice", where),
    )


def _number(item: Mapping[str, Any], key: str, where: str) -> Decimal:
    if key not in item:
        raise UsageError(f"{where}: {key!r} is missing.")
    return exact(item[key], f"{where}: {key!r}")


def _tiers(meter: Meter, rows: Sequence[_Row]) -> tuple[Band, ...]:
    """Bands of one meter; of several effective dates of a tier the latest counts."""
    chosen: dict[Decimal, _Row] = {}
    for row in rows:
        if row.meter is not meter:
            continue
        other = chosen.get(row.start)
        if other is None or row.effective > other.effective:
            chosen[row.start] = row
        elif row.effective == other.effective and row.price != other.price:
            raise UsageError(
                f"{row.where}: {meter.value} from {row.start} costs {row.price}, but {other.where} says {other.price}."
            )
    ordered = [chosen[start] for start in sorted(chosen)]
    bands = tuple(Band(row.start, row.price) for row in ordered)
    check_bands(f"{ordered[0].where} ({meter.value})", bands)
    return bands
