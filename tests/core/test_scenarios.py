"""Alternatives, what moves the bill, break-even, and what an action will use."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest

from sbpair.core.cost import DOCUMENTED_SYPHON, SDK_SYPHON, Billed, Flow, Workload, estimate, polling_syphon
from sbpair.core.entities import Counts, Tier
from sbpair.core.forecast import Forecast, of_audit, of_calls, of_drain, of_messages, of_plan, of_syphon_hour
from sbpair.core.plan import plan_cleanup, plan_provision
from sbpair.core.prices import Meter, PriceTable, built_in
from sbpair.core.scenarios import (
    Choices,
    break_even_operations,
    by_size,
    cheapest,
    compare,
    pairing_costs,
    problems,
    tornado,
)
from sbpair.core.snapshot import Calls
from tests.core.snapshots import a_pair, a_queue, healthy, path

PRICES = built_in()
BUSY = Workload((Flow("orders", 20_000_000, 100_000),), outage_seconds=4 * 3600, processes=5)


class TestCompare:
    def test_alternatives_come_cheapest_first(self) -> None:
        found = compare(BUSY, PRICES, Choices(queues=(20, 5, 10), syphons=(DOCUMENTED_SYPHON, SDK_SYPHON)))
        assert [one.total for one in found] == sorted(one.total for one in found)
        assert len(found) == 7
        assert found[0].name == "no pairing"
        assert found[1].name == "Standard, 5 queues, 1 host(s), documented"

    def test_tiers_and_hosts(self) -> None:
        found = compare(BUSY, PRICES, Choices(hosts=(1, 2), tiers=(Tier.STANDARD, Tier.PREMIUM)))
        assert {one.name.split(",")[0] for one in found} == {"no pairing", "Standard", "Premium"}
        assert found[-1].total > 1300

    def test_the_cheapest_is_one_that_would_do(self) -> None:
        too_much = replace(BUSY, diverted_share=Fraction(1, 10))
        found = compare(too_much, PRICES, Choices(queues=(5, 10, 40, 50)))
        best = cheapest(found)
        assert best is not None and best.workload.queues == 40
        assert "do not fit 5 backlog queues" in next(one for one in found if one.workload.queues == 5).problems[0]

    def test_none_would_do(self) -> None:
        assert cheapest(compare(replace(BUSY, syphon=None), PRICES, Choices())) is None

    @pytest.mark.parametrize(
        ("workload", "said"),
        [
            (replace(BUSY, hosts=0), "nobody runs the syphon"),
            (replace(BUSY, flows=(Flow("a", 1, 300_000),)), "do not fit tier Standard"),
        ],
    )
    def test_what_would_not_do_says_why(self, workload: Workload, said: str) -> None:
        assert said in problems(workload)[0]

    def test_what_would_do_has_no_problems(self) -> None:
        assert problems(BUSY) == ()
        assert problems(replace(BUSY, secondary=None)) == ()


class TestSensitivity:
    def test_the_widest_swing_comes_first(self) -> None:
        swings = tornado(BUSY, PRICES)
        assert [one.width for one in swings] == sorted((one.width for one in swings), reverse=True)
        assert swings[0].name == "messages"
        assert {one.name for one in swings} >= {"message size", "backlog queues", "outage", "ping interval"}

    def test_halving_messages_is_what_it_says(self) -> None:
        half = replace(BUSY, flows=(Flow("orders", 10_000_000, 100_000),))
        swing = next(one for one in tornado(BUSY, PRICES) if one.name == "messages")
        assert swing.half == estimate(half, PRICES).total

    def test_size_matters_at_the_steps(self) -> None:
        points = {point.size_bytes: point for point in by_size(replace(BUSY, crossings=0), PRICES)}
        assert sorted(points) == [1, 65536, 65537, 131072, 131073, 196608, 196609, 262144]
        assert points[1].total == points[65536].total < points[65537].total == points[131072].total
        assert [points[size].steps for size in (65536, 65537, 262144)] == [1, 2, 4]


class TestBreakEven:
    def test_against_one_premium_unit(self) -> None:
        """677.075 - 9.81193 = 667.26307; 87 M cost 69.60, the rest 597.66307 / 0.50 = 1,195.32614 M above 100 M."""
        assert break_even_operations(PRICES, hours=730) == 1_295_326_140

    def test_it_is_where_the_two_meet(self) -> None:
        count = break_even_operations(PRICES, hours=720)
        assert count is not None
        alone = Workload(secondary=None, queues=0, syphon=None, peek_lock=False)
        premium = estimate(replace(alone, primary=Billed(Tier.PREMIUM)), PRICES).total
        half = replace(alone, flows=(Flow("a", count // 2, 1),))
        assert estimate(half, PRICES).total <= premium
        more = replace(alone, flows=(Flow("a", count // 2 + 1, 1),))
        assert estimate(more, PRICES).total > premium

    def test_a_premium_unit_cheaper_than_the_base_charge(self) -> None:
        meters = tuple(one for one in PRICES.meters if one[0] is not Meter.PREMIUM_UNIT)
        bands = tuple(replace(band, unit_price=Decimal("0.001")) for band in PRICES.bands(Meter.PREMIUM_UNIT))
        table = PriceTable("r", "USD", "2026-01-01", "t", (*meters, (Meter.PREMIUM_UNIT, bands)))
        assert break_even_operations(table, hours=720) == 0

    def test_operations_that_cost_nothing_are_never_dearer(self) -> None:
        meters = tuple(one for one in PRICES.meters if one[0] is not Meter.STANDARD_OPERATIONS)
        free = (replace(PRICES.bands(Meter.STANDARD_OPERATIONS)[0], unit_price=Decimal(0)),)
        table = PriceTable("r", "USD", "2026-01-01", "t", (*meters, (Meter.STANDARD_OPERATIONS, free)))
        assert break_even_operations(table, hours=720) is None

    def test_an_idle_pairing_in_one_subscription_is_free_within_the_allowance(self) -> None:
        assert pairing_costs(Workload((Flow("orders", 1000, 1),)), PRICES) == 0
        apart = Workload((Flow("orders", 1000, 1),), secondary=Billed(account="other"))
        assert pairing_costs(apart, PRICES) == 720 * Decimal("0.013441")


class TestForecast:
    def test_an_audit_of_three_thousand_queues(self) -> None:
        assert of_audit(3000).management_calls == 2 + 2 * 34
        assert of_audit(3000, doubtful=10, control_plane="arm").management_calls == 2 + 34 + 10
        assert of_audit(3000, expected=10, browse=True).message_operations == 20

    def test_what_was_used(self) -> None:
        assert of_calls(Calls(1, 30, 9, 4)).throttling_credits == 404

    def test_a_plan(self) -> None:
        creating = plan_provision(healthy(without=(path(0), path(1))), a_pair())
        deleting = plan_cleanup(healthy(more=(a_queue(path(3)),)), a_pair())
        assert (of_plan(creating).management_calls, of_plan(deleting).management_calls) == (2, 5)
        assert of_plan(deleting, control_plane="arm").management_calls == 3

    def test_a_drain_is_three_operations_a_small_message(self) -> None:
        assert of_messages(1_000_000, 100).operations == 3_000_000
        assert of_messages(1_000_000, 100).money(PRICES) == Decimal("2.4")
        queue = a_queue(path(0), counts=Counts(active=10, dead_letter=10), size_in_bytes=20 * 70_000)
        assert of_drain([queue, queue]).message_operations == 2 * 10 * 5
        assert of_drain([queue], dead_letter=True).message_operations == 50
        assert of_drain([a_queue(path(0))]) == Forecast()

    def test_an_hour_of_syphon(self) -> None:
        assert of_syphon_hour(10, 1, DOCUMENTED_SYPHON).operations == 40
        assert of_syphon_hour(10, 2, SDK_SYPHON).operations == 594
        assert of_syphon_hour(1, 1, polling_syphon(7000)).operations == 1

    def test_credits_become_time(self) -> None:
        assert Forecast(management_calls=3000).seconds(200) == 150
