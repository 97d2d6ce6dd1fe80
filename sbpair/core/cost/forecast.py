"""What an action is about to use, said before it starts: operations, throttling credits, time and money.

The money is the upper bound for a Standard namespace beyond its included operations: every operation at the price of
the most expensive band. Facts: a management call is one operation and 10 credits; a message operation is one credit.
"""

from dataclasses import dataclass
from decimal import Decimal

from sbpair.core.cost.model import SyphonModel
from sbpair.core.cost.prices import UNITS, Meter, PriceTable, built_in, steps
from sbpair.core.inspection.plan import Plan, StepKind
from sbpair.core.inspection.snapshot import CREDITS_PER_MANAGEMENT_CALL, Calls
from sbpair.core.serialization import Money, published

PAGE_SIZE = 100
_STEPS = {
    StepKind.CREATE: 1,
    StepKind.UPDATE: 4,
    StepKind.DELETE: 3,
    StepKind.SKIP: 0,
    StepKind.RECREATE: 0,
}
"""Calls of a step: an update reads to compare, to change what is there, and afterwards; a deletion confirms twice."""


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


def of_audit(queues: int, *, expected: int = 0) -> Forecast:
    """An audit of a pair with `queues` queues on both sides together, by the data plane.

    Counted are two namespaces, the pages of their queues (the last one of each is never full) and one page of topics
    each, and a look at `expected` backlog queues and their dead letters.
    """
    pages = queues // PAGE_SIZE + 2 + 2
    return Forecast(2 + pages, 2 * expected)


def of_calls(calls: Calls) -> Forecast:
    """What a snapshot did use."""
    return Forecast(calls.management, calls.peeks)


def of_plan(plan: Plan) -> Forecast:
    """Management calls of applying a plan by the data plane, if every step succeeds at once."""
    return Forecast(sum(_STEPS[step.kind] for step in plan.steps))


def of_messages(messages: int, size_bytes: int) -> Forecast:
    """Receive, complete and send of messages of that size: 2k + 1 operations each, k billing units of 64 KB."""
    return Forecast(message_operations=messages * (2 * steps(size_bytes) + 1))


def of_syphon_hour(queues: int, hosts: int, model: SyphonModel) -> Forecast:
    """An hour of an idle syphon."""
    receives = queues * hosts * model.receives_per_hour
    return Forecast(message_operations=-(-receives.numerator // receives.denominator))
