"""What an action is about to use, said before it starts: operations, throttling credits, time and money.

The money is the upper bound for a Standard namespace beyond its included operations: every operation at the price of
the most expensive band. Facts: a management call is one operation and 10 credits; a message operation is one credit.
"""

from dataclasses import dataclass
from decimal import Decimal

from sbpair.core.prices import UNITS, Meter, PriceTable, at_most_cents, built_in, steps
from sbpair.core.serialization import Money, published
from sbpair.core.words import counted
from sbpair.service import CREDITS_PER_MANAGEMENT_CALL


@dataclass(frozen=True, slots=True)
class Forecast:
    """Operations of one action. `message_operations` are billed ones, in billing units of 64 KB."""

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
