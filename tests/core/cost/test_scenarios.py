"""Alternatives, what moves the bill, break-even, and what an action will use."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import pytest

from sbpair.core.cost.model import DOCUMENTED_SYPHON, SDK_SYPHON, Billed, Flow, Workload, of_syphon_hour, polling_syphon
from sbpair.core.cost.request import Choices, cheapest, compare, pairing_costs, problems
from sbpair.core.entities import Tier
from sbpair.core.inspection.audit.result import of_audit, of_calls
from sbpair.core.inspection.plan import of_plan, plan_cleanup, plan_provision
from sbpair.core.inspection.snapshot import Calls
from sbpair.core.prices import Forecast, built_in, of_messages
from tests.core.snapshots import a_pair, a_queue, healthy, path

PRICES = built_in()
BUSY = Workload((Flow("orders", 20_000_000, 100_000),), outage_seconds=4 * 3600, processes=5)


class TestCompare:
    def test_alternatives_come_cheapest_first(self) -> None:
        found = compare(BUSY, PRICES, Choices(queues=(20, 5, 10), syphons=(DOCUMENTED_SYPHON, SDK_SYPHON)))
        assert [one.total for one in found] == sorted(one.total for one in found)
        assert len(found) == 7
        assert found[0].name == "no pairing"
        assert found[1].name == "Standard, 5 queues, 1 host, documented"

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
            (replace(BUSY, hosts=0), "no syphon is running"),
            (replace(BUSY, flows=(Flow("a", 1, 300_000),)), "do not fit tier Standard"),
        ],
    )
    def test_what_would_not_do_says_why(self, workload: Workload, said: str) -> None:
        assert said in problems(workload)[0]

    def test_what_would_do_has_no_problems(self) -> None:
        assert problems(BUSY) == ()
        assert problems(replace(BUSY, secondary=None)) == ()


class TestPairingCosts:
    def test_an_idle_pairing_in_one_subscription_is_free_within_the_allowance(self) -> None:
        assert pairing_costs(Workload((Flow("orders", 1000, 1),)), PRICES) == 0
        apart = Workload((Flow("orders", 1000, 1),), secondary=Billed(account="other"))
        assert pairing_costs(apart, PRICES) == 720 * Decimal("0.013441")


class TestForecast:
    def test_an_audit_of_three_thousand_queues(self) -> None:
        assert of_audit(3000).management_calls == 2 + 34
        assert of_audit(3000, expected=10).message_operations == 20

    def test_what_was_used(self) -> None:
        assert of_calls(Calls(1, 30, 9, 4)).throttling_credits == 404

    def test_a_plan(self) -> None:
        creating = plan_provision(healthy(without=(path(0), path(1))), a_pair())
        deleting = plan_cleanup(healthy(more=(a_queue(path(3)),)), a_pair())
        assert (of_plan(creating).management_calls, of_plan(deleting).management_calls) == (2, 3)

    def test_a_drain_is_three_operations_a_small_message(self) -> None:
        assert of_messages(1_000_000, 100).operations == 3_000_000
        assert of_messages(1_000_000, 100).money(PRICES) == Decimal("2.4")

    def test_an_hour_of_syphon(self) -> None:
        assert of_syphon_hour(10, 1, DOCUMENTED_SYPHON).operations == 40
        assert of_syphon_hour(10, 2, SDK_SYPHON).operations == 594
        assert of_syphon_hour(1, 1, polling_syphon(7000)).operations == 1

    def test_credits_become_time(self) -> None:
        assert Forecast(management_calls=3000).seconds(200) == 150
