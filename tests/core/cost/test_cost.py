"""The cost model: the documents' own figures, three systems calculated by hand, and properties that always hold."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.core.cost.model import (
    AVERAGE_MONTH,
    DOCUMENTED_SYPHON,
    SDK_SYPHON,
    Billed,
    Flow,
    Kind,
    Month,
    Workload,
    active_active,
    calendar_month,
    estimate,
    operations,
    polling_syphon,
    without_pairing,
)
from sbpair.core.entities import Tier
from sbpair.core.errors import UsageError
from sbpair.core.prices import Meter, PriceTable, built_in, steps, to_cents, total
from sbpair.core.serialization import to_plain
from tests.core.cost.sums import by_kind, by_meter

PRICES = built_in()
KILOBYTE = 1024


def kinds(workload: Workload) -> dict[Kind, int]:
    return by_kind(estimate(workload, PRICES))


class TestSeedFigures:
    """As documented: 10 queues are 40 receives an hour, 960 a day, 28,800 in 30 days; four charges per message."""

    @pytest.mark.parametrize(("hours", "receives"), [(1, 40), (24, 960), (720, 28_800)])
    def test_idle_receives(self, hours: int, receives: int) -> None:
        assert kinds(Workload(month=Month("some", hours))) == {Kind.SYPHON_POLL: receives}

    def test_the_retired_library_polled_more_often(self) -> None:
        workload = Workload(month=Month("an hour", 1), syphon=SDK_SYPHON)
        assert kinds(workload) == {Kind.SYPHON_POLL: 297}

    def test_our_own_syphon_lists_its_queues_once_a_poll(self) -> None:
        workload = Workload(month=Month("some", 24), hosts=2, syphon=polling_syphon(900))
        assert kinds(workload) == {Kind.SYPHON_POLL: 2 * 960, Kind.MANAGEMENT: 2 * 96}

    def test_following_looks_cheaply_and_now_and_then_from_the_start(self) -> None:
        workload = Workload(month=Month("some", 24), syphon=None, queues=10, follow_every_seconds=30)
        browses = 10 * 2 * 2880 + 10 * 14 * 288
        assert kinds(workload) == {Kind.BROWSE: browses, Kind.MANAGEMENT: 288}
        rare = Workload(month=Month("some", 24), syphon=None, queues=10, follow_every_seconds=3600)
        assert kinds(rare) == {Kind.BROWSE: 10 * 16 * 24, Kind.MANAGEMENT: 24}

    def test_idle_consumers_ask_each_side_once_a_minute(self) -> None:
        workload = active_active(Workload(month=Month("some", 24), consumers=3))
        assert kinds(workload) == {Kind.SESSION_REQUEST: 2 * 3 * 1440}

    def test_a_diverted_message_is_charged_four_times(self) -> None:
        workload = Workload((Flow("orders", 1, 100),), syphon=None, diverted_share=Fraction(1), peek_lock=False)
        assert kinds(workload) == {
            Kind.DIVERT_SEND: 1,
            Kind.DIVERT_RECEIVE: 1,
            Kind.RETURN_SEND: 1,
            Kind.RETURN_RECEIVE: 1,
        }

    def test_two_more_than_an_undiverted_one(self) -> None:
        workload = Workload((Flow("orders", 1, 100),), syphon=None, peek_lock=False)
        diverted = replace(workload, diverted_share=Fraction(1))
        assert estimate(diverted, PRICES).operation_count - estimate(workload, PRICES).operation_count == 2

    def test_completions_come_on_top(self) -> None:
        workload = Workload((Flow("orders", 1, 100),), syphon=None, diverted_share=Fraction(1))
        assert estimate(workload, PRICES).operation_count == 6

    @pytest.mark.parametrize(
        ("size", "count"),
        [(0, 1), (1, 1), (65_536, 1), (65_537, 2), (96 * KILOBYTE, 2), (200 * KILOBYTE, 4), (256 * KILOBYTE, 4)],
    )
    def test_steps_of_64_kilobytes(self, size: int, count: int) -> None:
        assert steps(size) == count

    def test_one_ping_per_minute_per_entity_per_process(self) -> None:
        flows = (Flow("a", 0, 1), Flow("b", 0, 1))
        workload = Workload(flows, syphon=None, outage_seconds=3600, processes=3)
        assert kinds(workload) == {Kind.PING: 60 * 2 * 3}


class TestByHand:
    """Three systems, calculated on paper with the list prices of November 2026."""

    def test_a_small_shop(self) -> None:
        """1 M messages of 10 KB, no outage: 3 M + 28,800 operations are within 13 M; 720 h x 0.013441 = 9.67752."""
        workload = Workload((Flow("orders", 1_000_000, 10 * KILOBYTE),), processes=2)
        result = estimate(workload, PRICES)
        assert result.operation_count == 3_028_800
        assert result.total == Decimal("9.67752")
        assert to_cents(result.total) == Decimal("9.68")

    def test_a_busy_system_with_four_hours_of_outage(self) -> None:
        """20 M messages of 100 KB (2 steps), 4 h of 720 h away: ceil(20 M / 180) = 111,112 diverted.

        19,888,888 x 5 = 99,444,440; 111,112 x 10 = 1,111,120; 20 queues x 3 hosts x 4 x 720 = 172,800 receives;
        240 pings x 5 processes = 1,200: 100,729,560 operations = 87 M x 0.80 + 0.72956 M x 0.50 = 69.96478.
        Base 9.67752. Traffic 111,112 x 102,400 B x 2 = 22.7557376 GB x 0.02 = 0.455114752. Together 80.097414752.
        """
        workload = Workload(
            (Flow("orders", 20_000_000, 100 * KILOBYTE),), queues=20, hosts=3, processes=5, outage_seconds=4 * 3600
        )
        result = estimate(workload, PRICES)
        assert result.operation_count == 100_729_560
        assert result.total == Decimal("80.097414752")
        assert to_cents(result.total) == Decimal("80.10")

    def test_a_premium_primary_with_a_standard_secondary_elsewhere(self) -> None:
        """50 M messages of 1 KB to 3 subscriptions, 1 % diverted, December (744 h), two Azure subscriptions.

        Premium: 2 units x 744 h x 0.9275 = 1,380.12, operations included. Secondary: 500,000 x 3 + 10 x 2 x 29.7 x 744
        = 441,936 receives + 744 x 60 audit calls: within 13 M; base 744 x 0.013441 = 10.000104. Connections: 600 x 2
        senders and 2 syphons of 10 + 6 = 1,232: 232 x 0.03 = 6.96. Traffic 500,000 x 1,024 B x 2 = 1.024 GB x 0.02 =
        0.02048. Together 1,397.100584.
        """
        workload = Workload(
            (Flow("events", 50_000_000, KILOBYTE, copies=3),),
            primary=Billed(Tier.PREMIUM, 2, "production"),
            secondary=Billed(account="standby"),
            month=calendar_month(2026, 12),
            hosts=2,
            processes=600,
            connections_per_process=2,
            syphon=SDK_SYPHON,
            diverted_share=Fraction(1, 100),
            audits=744,
            calls_per_audit=60,
        )
        result = estimate(workload, PRICES)
        assert result.total == Decimal("1397.100584")
        assert to_cents(result.total) == Decimal("1397.10")
        assert by_kind(result)[Kind.SYPHON_POLL] == 441_936


class TestBaseCharge:
    @pytest.mark.parametrize(("month", "cents"), [(AVERAGE_MONTH, "9.81"), (calendar_month(2026, 10), "10.00")])
    def test_of_an_average_and_a_long_month(self, month: Month, cents: str) -> None:
        assert to_cents(estimate(Workload(queues=0, month=month), PRICES).total) == Decimal(cents)

    def test_once_per_subscription(self) -> None:
        apart = Workload(queues=0, secondary=Billed(account="other"))
        assert estimate(apart, PRICES).total == 2 * estimate(Workload(queues=0), PRICES).total

    def test_two_subscriptions_have_two_allowances(self) -> None:
        flow = (Flow("orders", 10_000_000, 1),)
        together = Workload(flow, diverted_share=Fraction(1), crossings=0)
        apart = replace(together, secondary=Billed(account="other"))

        def paid(workload: Workload) -> Decimal:
            return by_meter(estimate(workload, PRICES))[Meter.STANDARD_OPERATIONS]

        assert paid(together) - paid(apart) == 13 * Decimal("0.80")

    def test_basic_has_none(self) -> None:
        basic = Workload(
            (Flow("orders", 1_000_000, 1),), primary=Billed(Tier.BASIC), secondary=Billed(Tier.BASIC), syphon=None
        )
        assert estimate(basic, PRICES).total == Decimal("0.15")

    def test_premium_includes_operations_and_connections(self) -> None:
        premium = Billed(Tier.PREMIUM)
        workload = Workload(
            (Flow("orders", 10**9, 1),), primary=premium, secondary=premium, month=AVERAGE_MONTH, processes=10**6
        )
        assert estimate(workload, PRICES).total == 2 * 730 * Decimal("0.9275")

    def test_a_second_region_has_the_same_units_and_what_is_published_is_replicated(self) -> None:
        """The document's own example: 2 units in 2 regions, and 10 GB (here of 10^7 messages of 1,000 bytes)."""
        workload = Workload(
            (Flow("orders", 10_000_000, 1000),),
            primary=Billed(Tier.PREMIUM, 2, regions=2),
            secondary=None,
            month=AVERAGE_MONTH,
            syphon=None,
        )
        found = estimate(workload, PRICES)
        assert found.total == 2 * 2 * 730 * Decimal("0.9275") + 10 * Decimal("0.09")
        assert any("in each of 2 regions" in line.label for line in found.charges)
        assert any("replicated GB" in line for line in found.assumptions)
        without = estimate(replace(workload, primary=Billed(Tier.PREMIUM, 2)), PRICES)
        assert without.total == 2 * 730 * Decimal("0.9275")
        assert not any("replicated GB" in line for line in without.assumptions)


class TestLines:
    def test_every_line_shows_its_arithmetic_and_source(self) -> None:
        flow = Flow("orders", 20_000_000, 100_000)
        result = estimate(Workload((flow,), outage_seconds=3600, redelivered_share=Fraction(1, 50)), PRICES)
        assert all(line.formula and line.label and line.source for line in result.operations)
        assert all(line.formula and line.label and line.source for line in result.charges)
        for line in result.charges:
            assert line.amount == line.quantity * line.unit_price
        polls = next(line for line in result.operations if line.kind is Kind.SYPHON_POLL)
        assert polls.formula == "10 queues x 1 host x 4 an hour x 720 hours"
        paid = next(line for line in result.charges if line.meter is Meter.STANDARD_OPERATIONS and line.amount)
        assert paid.formula == "87 million operations (from 13 on) x 0.80 USD"

    def test_redeliveries_count_again(self) -> None:
        workload = Workload((Flow("orders", 100, 70_000, copies=2),), redelivered_share=Fraction(1, 50), syphon=None)
        assert kinds(workload)[Kind.REDELIVERY] == 4 * (2 + 1)

    def test_subscriptions_receive_a_copy_each(self) -> None:
        workload = Workload((Flow("news", 1, 1, copies=3),), syphon=None, peek_lock=False)
        assert estimate(workload, PRICES).operation_count == 4

    def test_assumptions_name_region_and_date(self) -> None:
        result = estimate(Workload(), PRICES)
        assert "built-in list prices of eastus in USD, dated 2026-11-01" in result.assumptions[0]

    def test_an_estimate_is_plain_data(self) -> None:
        data = to_plain(estimate(Workload(queues=0), PRICES))
        assert (data["total"], data["operation_count"], data["charges"][0]["unit_price"]) == ("9.677520", 0, "0.013441")

    def test_a_price_that_is_missing_is_said(self) -> None:
        egress = ((Meter.EGRESS, PRICES.bands(Meter.EGRESS)),)
        table = PriceTable("r", "USD", "2026-01-01", "my file", egress)
        with pytest.raises(UsageError, match=r"my file\) have none for standard-base-hour"):
            estimate(Workload(), table)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"queues": -1},
            {"ping_interval_seconds": 0},
            {"diverted_share": Fraction(3, 2)},
            {"flows": (Flow("a", -1, 1),)},
        ],
    )
    def test_nonsense_is_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(UsageError):
            Workload(**wrong)

    def test_polls_of_any_length(self) -> None:
        assert polling_syphon(900).receives_per_hour == DOCUMENTED_SYPHON.receives_per_hour
        with pytest.raises(UsageError):
            polling_syphon(0)


counts = st.integers(0, 10**9)
flows = st.builds(Flow, st.sampled_from("abcd"), counts, st.integers(0, 10**6), st.integers(0, 5))
billed = st.builds(Billed, st.sampled_from(Tier), st.integers(1, 16), st.sampled_from(["one", "two"]))
workloads = st.builds(
    Workload,
    flows=st.lists(flows, max_size=4).map(tuple),
    primary=billed,
    secondary=st.none() | billed,
    queues=st.integers(0, 100),
    hosts=st.integers(0, 10),
    processes=st.integers(0, 2000),
    syphon=st.sampled_from([None, DOCUMENTED_SYPHON, SDK_SYPHON]),
    outage_seconds=st.integers(0, 10**6),
    diverted_share=st.none() | st.fractions(0, 1),
    redelivered_share=st.fractions(0, 1),
    peek_lock=st.booleans(),
    audits=st.integers(0, 1000),
    calls_per_audit=st.integers(0, 1000),
)


class TestProperties:
    @given(workloads, st.sampled_from(["messages", "size_bytes", "copies"]), st.integers(1, 10**6))
    def test_more_or_larger_messages_never_cost_less(self, workload: Workload, what: str, more: int) -> None:
        grown = tuple(replace(flow, **{what: getattr(flow, what) + more}) for flow in workload.flows)
        before, after = estimate(workload, PRICES), estimate(replace(workload, flows=grown), PRICES)
        assert after.operation_count >= before.operation_count
        assert after.total >= before.total

    @given(
        workloads, st.sampled_from(["queues", "hosts", "processes", "outage_seconds", "audits"]), st.integers(1, 1000)
    )
    def test_more_of_anything_never_costs_less(self, workload: Workload, what: str, more: int) -> None:
        grown = replace(workload, **{what: getattr(workload, what) + more})
        assert estimate(grown, PRICES).total >= estimate(workload, PRICES).total

    @given(workloads)
    def test_operations_add_up_over_entities(self, workload: Workload) -> None:
        named = tuple(replace(flow, entity=str(index)) for index, flow in enumerate(workload.flows))
        empty = sum(line.count for line in operations(replace(workload, flows=())))
        alone = [sum(line.count for line in operations(replace(workload, flows=(flow,)))) - empty for flow in named]
        together = sum(line.count for line in operations(replace(workload, flows=named)))
        assert together == empty + sum(alone)

    @given(st.sampled_from(Meter), st.decimals(0, 10**6, places=6))
    def test_bands_are_continuous(self, meter: Meter, beyond: Decimal) -> None:
        bands = PRICES.bands(meter)
        tiny = Decimal("0.000001")
        for band in bands[1:]:
            step = total(band.start + tiny, bands) - total(band.start - tiny, bands)
            assert 0 <= step <= 2 * tiny * max(one.unit_price for one in bands)
        assert total(beyond + tiny, bands) >= total(beyond, bands)

    @given(billed, billed)
    def test_nothing_in_base_charge_out(self, primary: Billed, secondary: Billed) -> None:
        result = estimate(Workload(queues=0, processes=0, hosts=0, primary=primary, secondary=secondary), PRICES)
        accounts = {one.account for one in (primary, secondary) if one.tier is Tier.STANDARD}
        units = sum(one.messaging_units for one in (primary, secondary) if one.tier is Tier.PREMIUM)
        expected = len(accounts) * 720 * Decimal("0.013441") + units * 720 * Decimal("0.9275")
        assert (result.operation_count, result.total) == (0, expected)

    @given(workloads)
    def test_the_total_is_the_sum_of_the_lines(self, workload: Workload) -> None:
        result = estimate(workload, PRICES)
        assert sum(by_meter(result).values()) == result.total
        assert sum(by_kind(result).values()) == result.operation_count

    @given(workloads)
    def test_no_pairing_is_never_dearer(self, workload: Workload) -> None:
        assert estimate(without_pairing(workload), PRICES).total <= estimate(workload, PRICES).total


def test_a_syphon_counts_a_connection_for_each_queue_and_a_sender_one_for_each_entity() -> None:
    flows = (Flow("orders", 1, KILOBYTE), Flow("invoices", 1, KILOBYTE))
    (line,) = (
        line for line in estimate(Workload(flows, processes=3, hosts=1), PRICES).charges if "connections" in line.label
    )
    assert line.quantity == 3 * 2 + 1 * 2 + 3 * 2 + 10 + 6
