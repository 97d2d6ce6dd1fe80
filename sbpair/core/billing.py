"""Quantities to money, band by band, with the arithmetic. Exact: integers and decimals, rounded only for display."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal

from sbpair.core.prices import UNITS, Band, Meter, PriceTable

STEP_BYTES = 64 * 1024
"""A message is billed per started 64 KB (seed 000; Service Bus pricing)."""
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
        formula = f"{_plain(part)} {unit.name}{where} x {band.unit_price} {prices.currency}"
        yield Charge(account, meter, label, formula, part, unit.name, band.unit_price, amount, source)


def total(quantity: Decimal, bands: tuple[Band, ...]) -> Decimal:
    """What `quantity` units cost."""
    return sum((part * band.unit_price for band, part in _portions(quantity, bands)), Decimal(0))


def _portions(quantity: Decimal, bands: tuple[Band, ...]) -> Iterator[tuple[Band, Decimal]]:
    for band, following in zip(bands, (*bands[1:], None), strict=True):
        top = quantity if following is None else min(quantity, following.start)
        if top > band.start:
            yield band, top - band.start


def quantity_costing(money: Decimal, bands: tuple[Band, ...]) -> Decimal | None:
    """The largest quantity that costs no more than `money`; None if no quantity ever costs more."""
    left = money
    for band, following in zip(bands, (*bands[1:], None), strict=True):
        width = None if following is None else following.start - band.start
        if band.unit_price and (width is None or left < width * band.unit_price):
            return band.start + left / band.unit_price
        if width is None:
            return None
        left -= width * band.unit_price
    return None


def to_cents(amount: Decimal) -> Decimal:
    """Rounded for display, half up."""
    return amount.quantize(_CENT, ROUND_HALF_UP, _WIDE)


def _plain(number: Decimal) -> str:
    """Without exponent or trailing zeros, thousands separated."""
    text = f"{number:,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
