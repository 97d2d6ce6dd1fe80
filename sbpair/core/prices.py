"""Price tables as data: per meter the bands and their unit prices, with region, currency and date.

The built-in table is a dated copy of list prices. It is shown with its date and never passed off as current; replace it
with `core.price_files` from a file of the Retail Prices API or a small YAML file.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any
from urllib.parse import quote

from sbpair.core.errors import UsageError
from sbpair.core.wording import quoted

MILLION = 1_000_000
RETAIL_PRICES_URL = "https://prices.azure.com/api/retail/prices"
DEFAULT_REGION = "eastus"
_REGION = re.compile(r"[a-z0-9]{1,40}")


class Meter(StrEnum):
    """What is billed. Band limits and prices are per the meter's unit."""

    BASIC_OPERATIONS = "basic-operations"
    STANDARD_BASE = "standard-base-hour"
    STANDARD_OPERATIONS = "standard-operations"
    STANDARD_CONNECTIONS = "standard-connections"
    PREMIUM_UNIT = "premium-unit-hour"
    EGRESS = "egress-gigabyte"


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
        return PriceTable(self.region, self.currency, self.dated, self.source, (*self.meters, *missing), self.built_in)


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


def _bands(*pairs: tuple[str, str]) -> tuple[Band, ...]:
    return tuple(Band(Decimal(start), Decimal(price)) for start, price in pairs)


_BUILT_IN = (
    PriceTable(
        region="eastus",
        currency="USD",
        dated="2026-11-01",
        source="list prices collected in November 2026",
        meters=(
            (Meter.BASIC_OPERATIONS, _bands(("0", "0.05"))),
            (Meter.STANDARD_BASE, _bands(("0", "0.013441"))),
            (Meter.STANDARD_OPERATIONS, _bands(("0", "0"), ("13", "0.80"), ("100", "0.50"), ("2500", "0.20"))),
            (
                Meter.STANDARD_CONNECTIONS,
                _bands(("0", "0"), ("1000", "0.03"), ("100000", "0.025"), ("500000", "0.015")),
            ),
            (Meter.PREMIUM_UNIT, _bands(("0", "0.9275"))),
            (Meter.EGRESS, _bands(("0", "0.02"))),
        ),
        built_in=True,
    ),
)

EGRESS_PER_GIGABYTE: Mapping[str, Decimal] = {
    "north-america": Decimal("0.02"),
    "europe": Decimal("0.02"),
    "asia": Decimal("0.08"),
    "middle-east": Decimal("0.08"),
    "africa": Decimal("0.08"),
    "south-america": Decimal("0.16"),
}
"""Bandwidth between regions by the continent it leaves (USD per GB); within a region and inbound are free."""


def built_in_regions() -> tuple[str, ...]:
    """Regions with built-in prices."""
    return tuple(table.region for table in _BUILT_IN)


def built_in(region: str = DEFAULT_REGION) -> PriceTable:
    """The built-in table of a region.

    Raises:
        UsageError: none for that region; the hint says how to fetch one.
    """
    wanted = region.lower().replace(" ", "")
    for table in _BUILT_IN:
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
    meters = (*others, (Meter.EGRESS, (Band(Decimal(0), per_gigabyte),)))
    return PriceTable(table.region, table.currency, table.dated, table.source, meters, table.built_in)


def retail_query(region: str, currency: str = "USD") -> str:
    """The exact URL of the Retail Prices API for the Service Bus prices of a region; needs no login."""
    condition = f"serviceName eq 'Service Bus' and armRegionName eq '{region}' and type eq 'Consumption'"
    return (
        f"{RETAIL_PRICES_URL}?api-version=2023-01-01-preview&currencyCode={quote(repr(currency))}"
        f"&$filter={quote(condition)}"
    )


def explain(table: PriceTable) -> list[dict[str, Any]]:
    """The table as rows: meter, unit, from, to, price."""
    rows = []
    for meter, bands in table.meters:
        for band, following in zip(bands, (*bands[1:], None), strict=True):
            rows.append(
                {
                    "meter": meter.value,
                    "unit": UNITS[meter].name,
                    "from": str(band.start),
                    "to": None if following is None else str(following.start),
                    "price": str(band.unit_price),
                    "currency": table.currency,
                }
            )
    return rows
