"""Price tables: per meter the bands and their unit prices, with region, currency and date; and their arithmetic.

The built-in tables (`prices.json`) are a dated copy of list prices. They are shown with their date and never passed off
as current; a price file replaces them (`from_yaml`, or `from_retail` for an answer of the Retail Prices API).
"""

import datetime
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from enum import StrEnum
from functools import cache
from typing import Any
from urllib.parse import quote

from sbpair.core.errors import UsageError
from sbpair.core.redact import quoted, shortened
from sbpair.core.serialization import Money, published
from sbpair.core.words import counted
from sbpair.service import CREDITS_PER_MANAGEMENT_CALL

MILLION = 1_000_000
RETAIL_PRICES_URL = "https://prices.azure.com/api/retail/prices"
DEFAULT_REGION = "eastus"
BUILT_IN_SOURCE = "list prices collected in November 2026"
_REGION = re.compile(r"[a-z0-9]{1,40}")


class Meter(StrEnum):
    """What is billed. Band limits and prices are per the meter's unit."""

    BASIC_OPERATIONS = "basic-operations"
    STANDARD_BASE = "standard-base-hour"
    STANDARD_OPERATIONS = "standard-operations"
    STANDARD_CONNECTIONS = "standard-connections"
    PREMIUM_UNIT = "premium-unit-hour"
    EGRESS = "egress-gigabyte"
    GEO_REPLICATION = "geo-replication-gigabyte"


@dataclass(frozen=True, slots=True)
class MeterUnit:
    """Unit of a meter: its name and how many of what we count (operations, hours, ...) make one."""

    name: str
    size: int = 1


UNITS: Mapping[Meter, MeterUnit] = {
    Meter.BASIC_OPERATIONS: MeterUnit("million operations", MILLION),
    Meter.STANDARD_BASE: MeterUnit("hour"),
    Meter.STANDARD_OPERATIONS: MeterUnit("million operations", MILLION),
    Meter.STANDARD_CONNECTIONS: MeterUnit("connection"),
    Meter.PREMIUM_UNIT: MeterUnit("messaging unit hour"),
    Meter.EGRESS: MeterUnit("GB"),
    Meter.GEO_REPLICATION: MeterUnit("GB"),
}


_MOST_DIGITS_BEFORE_POINT = 15
_MOST_DIGITS_AFTER_POINT = 30


def is_countable(number: Decimal) -> bool:
    """Whether a bill can have such a number: finite, below 10^15, and not written with more than 30 decimals.

    `1e999999999` is a short text and a number with a billion digits.
    """
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int):
        return False
    return number.adjusted() < _MOST_DIGITS_BEFORE_POINT and exponent >= -_MOST_DIGITS_AFTER_POINT


@dataclass(frozen=True, slots=True)
class Band:
    """From `start` (in the meter's unit) on, each further unit costs `unit_price`."""

    start: Decimal
    unit_price: Decimal


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices of one region in one currency. `dated`: ISO date of the prices; `source`: where they are from.

    Raises:
        UsageError: bands of a meter that do not begin at 0 or do not rise, or a negative price.
    """

    region: str
    currency: str
    dated: str
    source: str
    meters: tuple[tuple[Meter, tuple[Band, ...]], ...]
    built_in: bool = False

    def __post_init__(self) -> None:
        for meter, bands in self.meters:
            check_bands(meter.value, bands)

    def bands(self, meter: Meter) -> tuple[Band, ...]:
        """Bands of a meter, lowest first.

        Raises:
            UsageError: the table has no price for it.
        """
        for known, bands in self.meters:
            if known is meter:
                return bands
        raise UsageError(
            f"The prices of {self.region} ({self.source}) have none for {meter.value}.",
            hint="See what a table holds with: sbpair cost --explain-prices",
        )

    def has(self, meter: Meter) -> bool:
        return any(known is meter for known, _ in self.meters)

    def with_missing_from(self, other: "PriceTable") -> "PriceTable":
        """This table, completed with the meters only `other` has (egress is not in a Service Bus price list).

        Nothing is taken over from a table in another currency.
        """
        if other.currency != self.currency:
            return self
        missing = tuple(entry for entry in other.meters if not self.has(entry[0]))
        return replace(self, meters=(*self.meters, *missing))


def check_bands(where: str, bands: Iterable[Band]) -> None:
    """Refuse bands that do not begin at 0, do not rise, or have a negative price.

    Raises:
        UsageError: naming the band.
    """
    previous: Decimal | None = None
    for band in bands:
        if band.unit_price < 0:
            raise UsageError(f"{where}: the price from {band.start} is negative ({band.unit_price}).")
        if previous is None and band.start != 0:
            raise UsageError(f"{where}: the first band begins at {band.start}, not at 0; a row is missing.")
        if previous is not None and band.start <= previous:
            raise UsageError(f"{where}: the band from {band.start} does not lie above the one from {previous}.")
        previous = band.start
    if previous is None:
        raise UsageError(f"{where}: no price at all.")


@cache
def _built_in() -> tuple[PriceTable, ...]:
    """The tables of the package's own file, a list of price files as `from_yaml` reads them."""
    from importlib import resources

    tables = json.loads((resources.files("sbpair.core") / "prices.json").read_text("utf-8"), parse_float=Decimal)
    return tuple(replace(from_yaml(table, source=BUILT_IN_SOURCE), built_in=True) for table in tables)


def built_in_regions() -> tuple[str, ...]:
    return tuple(table.region for table in _built_in())


def built_in(region: str = DEFAULT_REGION) -> PriceTable:
    """The built-in table of a region.

    Raises:
        UsageError: none for that region; the hint says how to fetch one.
    """
    wanted = region.lower().replace(" ", "")
    for table in _built_in():
        if table.region == wanted:
            return table
    there_are = f"there are for {', '.join(built_in_regions())}"
    if not _REGION.fullmatch(wanted):
        raise UsageError(f"{quoted(region)} is no name of an Azure region, such as westeurope; prices {there_are}.")
    raise UsageError(
        f"No built-in prices for region {region!r}; {there_are}.",
        hint=f"Save the answer of {retail_query(wanted)} and give it with --prices FILE.",
    )


def with_egress(table: PriceTable, per_gigabyte: Decimal) -> PriceTable:
    """The table with another price for traffic between regions."""
    others = tuple(entry for entry in table.meters if entry[0] is not Meter.EGRESS)
    return replace(table, meters=(*others, (Meter.EGRESS, (Band(Decimal(0), per_gigabyte),))))


def retail_query(region: str, currency: str = "USD") -> str:
    """The exact URL of the Retail Prices API for the Service Bus prices of a region; needs no login."""
    condition = f"serviceName eq 'Service Bus' and armRegionName eq '{region}' and type eq 'Consumption'"
    return (
        f"{RETAIL_PRICES_URL}?api-version=2023-01-01-preview&currencyCode={quote(repr(currency))}"
        f"&$filter={quote(condition)}"
    )


# Our small shape of a price list, in which the built-in prices are kept, too.

YAML_VERSION = 1


def from_yaml(data: Any, *, source: str = "price file") -> PriceTable:
    """The table of our small shape, as read from YAML:

        version: 1
        region: westeurope
        currency: EUR
        date: 2026-11-01
        meters:
          standard-base-hour: 0.0127
          standard-operations: {0: 0, 13: 0.75, 100: 0.47, 2500: 0.19}     # from this many millions on: price
          premium-unit-hour: 0.88

    Raises:
        UsageError: an unknown key or meter, a missing key, a wrong value; the message names it.
    """
    if not isinstance(data, Mapping):
        raise UsageError(f"{source}: a mapping with version, region, currency, date and meters is expected.")
    keys = ("version", "region", "currency", "date", "meters")
    for key in data:
        if key not in keys:
            raise UsageError(f"{source}: unknown key {quoted(key)}; known: {', '.join(keys)}.")
    for key in keys:
        if key not in data:
            raise UsageError(f"{source}: {key!r} is missing.")
    if data["version"] != YAML_VERSION:
        raise UsageError(f"{source}: version {quoted(data['version'])}; this release reads version {YAML_VERSION}.")
    if not isinstance(data["meters"], Mapping) or not data["meters"]:
        raise UsageError(f"{source}: 'meters' is not a mapping with at least one meter.")
    return PriceTable(
        region=required_text(data, "region", source).lower(),
        currency=required_text(data, "currency", source).upper(),
        dated=_date(data["date"], source),
        source=source,
        meters=tuple(_yaml_meter(name, value, source) for name, value in data["meters"].items()),
    )


def _date(value: Any, source: str) -> str:
    """YAML turns a bare date into a date; both are fine."""
    if isinstance(value, datetime.date):
        return value.isoformat()[:10]
    try:
        return datetime.date.fromisoformat(str(value)).isoformat()
    except ValueError:
        raise UsageError(f"{source}: date {quoted(value)} is not written like 2026-11-01.") from None


def _yaml_meter(name: Any, value: Any, source: str) -> tuple[Meter, tuple[Band, ...]]:
    try:
        meter = Meter(name)
    except ValueError:
        raise UsageError(
            f"{source}: meters.{shortened(str(name))}: no such meter; known: {', '.join(Meter)}."
        ) from None
    where = f"{source}: meters.{name}"
    tiers = value if isinstance(value, Mapping) else {0: value}
    bands = tuple(
        sorted(
            (Band(exact(start, f"{where}: tier"), exact(price, f"{where}[{start}]")) for start, price in tiers.items()),
            key=lambda band: band.start,
        )
    )
    check_bands(where, bands)
    return meter, bands


def required_text(item: Mapping[str, Any], key: str, where: str) -> str:
    """A text that has to be there.

    Raises:
        UsageError: it is missing or empty; the message says where.
    """
    value = item.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{where}: {key!r} is missing or empty.")
    return value.strip()


def exact(value: Any, where: str) -> Decimal:
    """A non-negative price or quantity as it is written: 0.8 is 0.8, not its binary neighbour.

    Raises:
        UsageError: no number, not finite, negative, or beyond what arithmetic with money is exact for.
    """
    try:
        number = None if isinstance(value, bool) or value is None else Decimal(str(value))
    except (InvalidOperation, ValueError, RecursionError):
        number = None
    if number is None or not is_countable(number) or number < 0:
        raise UsageError(f"{where} is {quoted(value)}, not a number of 0 or more.")
    whole = number.to_integral_value()
    return whole if whole == number else number


# Quantities to money, band by band, with the arithmetic. Exact: integers and decimals, rounded only for display.

STEP_BYTES = 64 * 1024
"""A message is billed per started 64 KB ("Paired Namespaces: Implementation Details and Cost"; Service Bus pricing)."""
_CENT = Decimal("0.01")
_WIDE = Context(prec=100)
"""Digits enough for any sum of money; the default of 28 is not for one of absurd but countable numbers."""


@dataclass(frozen=True, slots=True)
class Charge:
    """One line of a bill. `quantity` and `unit_price` are in the meter's `unit`; `amount` is exact."""

    account: str
    """Azure subscription that pays, as named by the caller."""
    meter: Meter
    label: str
    formula: str
    quantity: Decimal
    unit: str
    unit_price: Decimal
    amount: Decimal
    source: str


def steps(size_bytes: int) -> int:
    """Billed operations of sending or receiving one message of that size; an empty message is one."""
    return max(1, -(-size_bytes // STEP_BYTES))


def charge(
    meter: Meter, counted: int | Decimal, prices: PriceTable, *, account: str, label: str, source: str
) -> Iterator[Charge]:
    """One line per band that `counted` (operations, hours, ...) reaches; none for nothing.

    Raises:
        UsageError: the table has no price for the meter.
    """
    if counted == 0:
        return
    unit = UNITS[meter]
    quantity = Decimal(counted) / unit.size
    bands = prices.bands(meter)
    for band, part in _portions(quantity, bands):
        amount = part * band.unit_price
        where = f" (from {_plain(band.start)} on)" if len(bands) > 1 else ""
        name = unit.name if part == 1 or unit.name.endswith(("s", "GB")) else f"{unit.name}s"
        formula = f"{_plain(part)} {name}{where} x {band.unit_price} {prices.currency}"
        yield Charge(account, meter, label, formula, part, unit.name, band.unit_price, amount, source)


def total(quantity: Decimal, bands: tuple[Band, ...]) -> Decimal:
    """What `quantity` units cost."""
    return sum((part * band.unit_price for band, part in _portions(quantity, bands)), Decimal(0))


def _portions(quantity: Decimal, bands: tuple[Band, ...]) -> Iterator[tuple[Band, Decimal]]:
    for band, following in zip(bands, (*bands[1:], None), strict=True):
        top = quantity if following is None else min(quantity, following.start)
        if top > band.start:
            yield band, top - band.start


def to_cents(amount: Decimal) -> Decimal:
    """Rounded for display, half up."""
    return amount.quantize(_CENT, ROUND_HALF_UP, _WIDE)


def at_most_cents(amount: Decimal) -> Decimal:
    """An upper bound for display, rounded up: what costs less than a cent does not cost nothing."""
    return amount.quantize(_CENT, ROUND_CEILING, _WIDE)


def _plain(number: Decimal) -> str:
    """Without exponent or trailing zeros, thousands separated."""
    text = f"{number:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True, slots=True)
class Forecast:
    """What an action is about to use, said before it starts: operations, throttling credits, time and money.

    The money is the upper bound for a Standard namespace beyond its included operations: every operation at the price
    of the most expensive band. Facts: a management call is one operation and 10 credits; a message operation is one
    credit. `message_operations` are billed ones, in billing units of 64 KB.
    """

    management_calls: int = 0
    message_operations: int = 0

    @published
    def operations(self) -> int:
        return self.management_calls + self.message_operations

    @published
    def throttling_credits(self) -> int:
        return self.management_calls * CREDITS_PER_MANAGEMENT_CALL + self.message_operations

    @published
    def money_at_most(self) -> Money:
        """Upper bound at the built-in prices."""
        return self.money(built_in())

    @published
    def currency(self) -> str:
        """Of the built-in prices."""
        return built_in().currency

    def seconds(self, credits_per_second: float) -> float:
        """Least time at that share of the namespace's credits."""
        return self.throttling_credits / credits_per_second

    def money(self, prices: PriceTable) -> Decimal:
        """Upper bound: all of it at the highest operation price."""
        highest = max(band.unit_price for band in prices.bands(Meter.STANDARD_OPERATIONS))
        return Decimal(self.operations) / UNITS[Meter.STANDARD_OPERATIONS].size * highest

    def __add__(self, other: "Forecast") -> "Forecast":
        return Forecast(
            self.management_calls + other.management_calls, self.message_operations + other.message_operations
        )


def of_messages(messages: int, size_bytes: int) -> Forecast:
    """Receive, complete and send of messages of that size: 2k + 1 operations each, k billing units of 64 KB."""
    return Forecast(message_operations=messages * (2 * steps(size_bytes) + 1))


def in_words(forecast: Forecast) -> str:
    """`30 management calls and 20 message operations: 320 throttling credits, less than 0.01 USD`."""
    prices = built_in()
    parts = []
    if forecast.management_calls:
        parts.append(counted(forecast.management_calls, "management call"))
    if forecast.message_operations or not parts:
        parts.append(counted(forecast.message_operations, "message operation"))
    credits = counted(forecast.throttling_credits, "throttling credit")
    return f"{' and '.join(parts)}: {credits}, {_money(forecast.money(prices), prices.currency)}"


def _money(amount: Decimal, currency: str) -> str:
    if 0 < amount < Decimal("0.01"):
        return f"less than 0.01 {currency}"
    return f"at most {at_most_cents(amount):,.2f} {currency}"


# Reads a price table from pages of the Retail Prices API (JSON). Refusals name the row.
#
# The traps of the API, each handled here: the base charge comes in two rows (per hour and per month; only the hourly
# one counts, both would charge it twice), tiers are rows with rising `tierMinimumUnits`, several regions, currencies
# or effective dates may be in one file, and a file may be one page of several.

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
