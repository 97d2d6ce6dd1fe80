"""What an action is going to use, and what it used: operations, throttling credits, money, in words."""

from decimal import Decimal
from typing import TYPE_CHECKING

from sbpair.core.words import counted

if TYPE_CHECKING:
    from sbpair.core.cost.forecast import Forecast


def in_words(forecast: "Forecast") -> str:
    """`30 management calls and 20 message operations: 320 throttling credits, less than 0.01 USD`."""
    from sbpair.core.cost.prices import built_in

    prices = built_in()
    parts = []
    if forecast.management_calls:
        parts.append(counted(forecast.management_calls, "management call"))
    if forecast.message_operations or not parts:
        parts.append(counted(forecast.message_operations, "message operation"))
    credits = counted(forecast.throttling_credits, "throttling credit")
    return f"{' and '.join(parts)}: {credits}, {_money(forecast.money(prices), prices.currency)}"


def _money(amount: Decimal, currency: str) -> str:
    from sbpair.core.cost.prices import at_most_cents

    if 0 < amount < Decimal("0.01"):
        return f"less than 0.01 {currency}"
    return f"at most {at_most_cents(amount):,.2f} {currency}"
