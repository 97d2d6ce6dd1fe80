"""Estimates through the public calls."""

from decimal import Decimal

from sbpair.core.access import NamespaceAccess
from sbpair.core.pairing import Pair
from sbpair.operations import CostRequest, compare_costs, estimate_cost
from sbpair.service import Tier

PAIR = Pair(
    "orders",
    NamespaceAccess("weu", "weu.servicebus.windows.net"),
    NamespaceAccess("neu", "neu.servicebus.windows.net"),
    entities=("a", "b"),
)


def test_a_month_line_by_line() -> None:
    found = estimate_cost(CostRequest(messages_per_day=1_000_000), pair=PAIR)
    assert (found.pair, found.estimate.currency) == ("orders", "USD")
    assert found.lines[-1].part == "total"
    assert found.lines[-1].operations == sum(line.operations or 0 for line in found.lines[:-1])
    assert "USD a month" in found.summary()
    assert found.billed is None


def test_alternatives_come_cheapest_first() -> None:
    request = CostRequest(messages_per_day=1_000_000, queues=(5, 20), tiers=(Tier.STANDARD, Tier.PREMIUM))
    found = compare_costs(request)
    totals = [alternative.total for alternative in found.alternatives]
    assert totals == sorted(totals) and len(totals) == 5
    assert [bool(alternative.choice) for alternative in found.alternatives].count(True) == 1
    assert Decimal(0) in [alternative.above_best for alternative in found.alternatives]


def test_active_active_sends_everything_to_both_sides_and_diverts_nothing() -> None:
    alone, both = (
        [line.what for line in estimate_cost(CostRequest(1_000, outage_seconds=3600, replicated=way), pair=PAIR).lines]
        for way in (False, True)
    )
    assert any("backlog" in what for what in alone) and not any("backlog" in what for what in both)
