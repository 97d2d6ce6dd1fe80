"""What an action is going to use, and what it used: operations, throttling credits, money, in words and as data."""

from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sbpair.core.forecast import Forecast
    from sbpair.core.prices import PriceTable

NAMESPACE_CREDITS_PER_SECOND = 1000
"""Throttling credits of a namespace of tier Basic or Standard (Service Bus throttling)."""


def in_words(forecast: "Forecast", prices: "PriceTable | None" = None) -> str:
    """`30 management calls and 20 message operations: 320 throttling credits, less than 0.01 USD`."""
    table = prices or _built_in()
    parts = []
    if forecast.management_calls:
        parts.append(_counted(forecast.management_calls, "management call"))
    if forecast.message_operations or not parts:
        parts.append(_counted(forecast.message_operations, "message operation"))
    credits = _counted(forecast.throttling_credits, "throttling credit")
    return f"{' and '.join(parts)}: {credits}, {_money(forecast.money(table), table.currency)}"


def as_data(forecast: "Forecast", prices: "PriceTable | None" = None) -> dict[str, Any]:
    """The same for JSON. The money is an upper bound: every operation at the dearest band."""
    table = prices or _built_in()
    return {
        "management_calls": forecast.management_calls,
        "message_operations": forecast.message_operations,
        "operations": forecast.operations,
        "throttling_credits": forecast.throttling_credits,
        "money_at_most": str(forecast.money(table)),
        "currency": table.currency,
    }


def _built_in() -> "PriceTable":
    from sbpair.core.prices import built_in

    return built_in()


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _money(amount: Decimal, currency: str) -> str:
    from sbpair.core.billing import to_cents

    cents = to_cents(amount)
    if amount and cents < Decimal("0.01"):
        return f"less than 0.01 {currency}"
    return f"at most {cents:,.2f} {currency}"
