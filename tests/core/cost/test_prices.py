"""Price tables: dated, complete, and refused with the row named where they are not."""

import datetime
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from sbpair.core.cost.result import price_list
from sbpair.core.errors import UsageError
from sbpair.core.prices import (
    Band,
    Meter,
    PriceTable,
    built_in,
    built_in_regions,
    from_retail,
    from_yaml,
    retail_query,
    with_egress,
)


def row(meter: str, unit: str, price: float, start: float = 0.0, **changes: Any) -> dict[str, Any]:
    return {
        "currencyCode": "EUR",
        "tierMinimumUnits": start,
        "retailPrice": price,
        "unitPrice": price,
        "armRegionName": "westeurope",
        "location": "EU West",
        "effectiveStartDate": "2026-05-01T00:00:00Z",
        "meterName": meter,
        "productName": "Service Bus",
        "skuName": meter.split()[0],
        "serviceName": "Service Bus",
        "unitOfMeasure": unit,
        "type": "Consumption",
        **changes,
    }


OPERATIONS = "Standard Messaging Operations"


def rows() -> list[dict[str, Any]]:
    return [
        row("Standard Base Unit", "1/Hour", 0.0135),
        row("Standard Base Unit", "1/Month", 10.0),
        row(OPERATIONS, "1M", 0.2, 2500),
        row(OPERATIONS, "1M", 0.0, 0),
        row(OPERATIONS, "1M", 0.8, 13.0),
        row(OPERATIONS, "1M", 0.5, 100),
        row("Premium Messaging Unit", "1/Hour", 0.9275),
        row("Hybrid Connections Data Transfer", "1 GB", 1.0),
        row("Block Blob", "1 GB", 1.0, serviceName="Storage"),
        row(OPERATIONS, "1M", 99.0, type="DevTestConsumption"),
    ]


def page(items: list[dict[str, Any]], following: str | None = None) -> dict[str, Any]:
    return {"BillingCurrency": "EUR", "Items": items, "NextPageLink": following, "Count": len(items)}


class TestRetail:
    def test_one_page(self) -> None:
        table = from_retail([page(rows())])
        assert (table.region, table.currency, table.dated, table.built_in) == ("westeurope", "EUR", "2026-05-01", False)
        assert table.bands(Meter.STANDARD_BASE) == (Band(Decimal(0), Decimal("0.0135")),)
        tiers = [(str(band.start), str(band.unit_price)) for band in table.bands(Meter.STANDARD_OPERATIONS)]
        assert tiers == [("0", "0"), ("13", "0.8"), ("100", "0.5"), ("2500", "0.2")]
        assert not table.has(Meter.BASIC_OPERATIONS)

    def test_tiers_may_be_spread_over_pages_in_any_order(self) -> None:
        all_rows = rows()
        pages = [page(all_rows[4:]), page(all_rows[:4], "https://next")]
        assert from_retail(pages).meters == from_retail([page(all_rows)]).meters

    def test_the_latest_effective_price_counts(self) -> None:
        newer = row("Premium Messaging Unit", "1/Hour", 1.1, effectiveStartDate="2026-06-01T00:00:00Z")
        table = from_retail([page([newer, *rows()])])
        assert table.bands(Meter.PREMIUM_UNIT)[0].unit_price == Decimal("1.1")
        assert table.dated == "2026-06-01"

    def test_several_regions_and_currencies_need_a_choice(self) -> None:
        other = [{**one, "armRegionName": "northeurope"} for one in rows()]
        dollars = [{**one, "currencyCode": "USD"} for one in rows()]
        with pytest.raises(UsageError, match=r"page 1, row 11: region northeurope, but page 1, row 1 has westeurope"):
            from_retail([page([*rows(), *other])])
        with pytest.raises(UsageError, match=r"row 11: currency USD"):
            from_retail([page([*rows(), *dollars])])
        assert from_retail([page([*rows(), *other])], region="North Europe").region == "northeurope"
        assert from_retail([page([*rows(), *dollars])], currency="usd").currency == "USD"

    def test_no_rows_for_that_region(self) -> None:
        with pytest.raises(UsageError, match="no Service Bus price rows for mars"):
            from_retail([page(rows())], region="mars")

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"retailPrice": "free"}, "page 1, row 7: 'retailPrice' is 'free'"),
            ({"retailPrice": -1}, "page 1, row 7: 'retailPrice' is -1"),
            ({"retailPrice": float("nan")}, "page 1, row 7: 'retailPrice' is nan"),
            ({"retailPrice": True}, "page 1, row 7: 'retailPrice' is True"),
            ({"tierMinimumUnits": None}, "page 1, row 7: 'tierMinimumUnits' is None"),
            ({"currencyCode": ""}, "page 1, row 7: 'currencyCode' is missing or empty"),
            ({"unitOfMeasure": "1 Week"}, "row 7: 'Premium Messaging Unit' is priced per unknown unit '1 Week'"),
            ({"tierMinimumUnits": 5}, "page 1, row 7 .*: the first band begins at 5, not at 0; a row is missing"),
        ],
    )
    def test_a_wrong_row_is_named(self, change: dict[str, Any], said: str) -> None:
        items = rows()
        items[6].update(change)
        with pytest.raises(UsageError, match=said):
            from_retail([page(items)])

    def test_a_missing_field_is_named(self) -> None:
        items = rows()
        del items[2]["retailPrice"]
        with pytest.raises(UsageError, match="page 1, row 3: 'retailPrice' is missing"):
            from_retail([page(items)])

    def test_two_prices_for_one_tier(self) -> None:
        items = [*rows(), row(OPERATIONS, "1M", 0.9, 13)]
        with pytest.raises(UsageError, match=r"row 11: standard-operations from 13 costs 0.9, but page 1, row 5 says"):
            from_retail([page(items)])

    def test_a_repeated_row_is_harmless(self) -> None:
        assert from_retail([page([*rows(), rows()[4]])]).meters == from_retail([page(rows())]).meters

    @pytest.mark.parametrize(
        ("pages", "said"),
        [
            ([], "No page"),
            ([page(rows(), "https://next")], "page 1: there is a next page"),
            ([page(rows(), "https://a"), page([], "https://b")], "page 2: there is a next page"),
            ([{**page(rows()), "Count": 100}], "page 1: 'Count' says 100 rows, there are 10"),
            ([{"value": []}], "page 1: no 'Items'"),
            ([page([1])], "page 1, row 1: not an object"),  # type: ignore[list-item]
            ([page([])], "no Service Bus price rows"),
        ],
    )
    def test_partial_files(self, pages: list[Any], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            from_retail(pages)


def small() -> dict[str, Any]:
    return {
        "version": 1,
        "region": "WestEurope",
        "currency": "eur",
        "date": datetime.date(2026, 11, 1),
        "meters": {"standard-base-hour": 0.0127, "standard-operations": {0: 0, 100: 0.47, 13: 0.75}},
    }


class TestYaml:
    def test_the_small_shape(self) -> None:
        table = from_yaml(small())
        assert (table.region, table.currency, table.dated) == ("westeurope", "EUR", "2026-11-01")
        assert [band.start for band in table.bands(Meter.STANDARD_OPERATIONS)] == [0, 13, 100]
        assert table.bands(Meter.STANDARD_BASE)[0].unit_price == Decimal("0.0127")

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"version": 2}, "version 2"),
            ({"colour": 1}, "unknown key 'colour'"),
            ({"date": "soon"}, "date 'soon'"),
            ({"region": None}, "'region' is missing or empty"),
            ({"region": " "}, "'region' is missing or empty"),
            ({"meters": {}}, "at least one meter"),
            ({"meters": {"standart-base": 1}}, r"meters.standart-base: no such meter; known: basic-operations"),
            ({"meters": {"premium-unit-hour": "x"}}, r"meters.premium-unit-hour\[0\] is 'x'"),
            ({"meters": {"standard-operations": {13: 0.8}}}, "begins at 13, not at 0"),
            ({"meters": {"standard-operations": {"a": 1}}}, "tier is 'a'"),
            ({"meters": {"standard-operations": {}}}, "no price at all"),
        ],
    )
    def test_what_is_wrong_is_named(self, change: dict[str, Any], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            from_yaml({**small(), **change})

    def test_a_missing_key(self) -> None:
        data = small()
        del data["date"]
        with pytest.raises(UsageError, match="'date' is missing"):
            from_yaml(data)

    def test_something_else(self) -> None:
        with pytest.raises(UsageError, match="a mapping"):
            from_yaml([1])


class TestTable:
    @pytest.mark.parametrize("region", built_in_regions())
    def test_built_in_tables_are_dated_and_have_every_meter(self, region: str) -> None:
        table = built_in(region)
        assert datetime.date.fromisoformat(table.dated).year >= 2026
        assert {meter for meter in Meter if table.has(meter)} == set(Meter)
        assert table.built_in

    @pytest.mark.parametrize("region", ["", "west/europe", "x" * 41, "9" * 5000, "\x1b[31m", "é"])
    def test_what_is_no_region_is_refused_in_one_line(self, region: str) -> None:
        with pytest.raises(UsageError, match="is no name of an Azure region") as caught:
            built_in(region)
        assert len(caught.value.message) < 250

    def test_another_region_is_refused_with_the_query(self) -> None:
        with pytest.raises(UsageError, match="No built-in prices") as caught:
            built_in("West Europe")
        assert "armRegionName%20eq%20%27westeurope%27" in caught.value.hint

    def test_a_meter_that_is_not_there(self) -> None:
        with pytest.raises(UsageError, match="none for basic-operations"):
            from_retail([page(rows())]).bands(Meter.BASIC_OPERATIONS)

    def test_completed_from_another_table_of_the_same_currency_only(self) -> None:
        dollars = from_retail([page([{**one, "currencyCode": "USD"} for one in rows()])])
        completed = dollars.with_missing_from(built_in())
        assert completed.bands(Meter.EGRESS) == built_in().bands(Meter.EGRESS)
        assert completed.bands(Meter.STANDARD_BASE) == dollars.bands(Meter.STANDARD_BASE)
        assert not from_retail([page(rows())]).with_missing_from(built_in()).has(Meter.EGRESS)

    def test_egress_can_be_set(self) -> None:
        assert with_egress(built_in(), Decimal("0.08")).bands(Meter.EGRESS)[0].unit_price == Decimal("0.08")

    @pytest.mark.parametrize(
        ("bands", "said"),
        [
            ((Band(Decimal(0), Decimal(-1)),), "is negative"),
            ((Band(Decimal(0), Decimal(1)), Band(Decimal(0), Decimal(2))), "does not lie above"),
        ],
    )
    def test_bands_are_checked(self, bands: tuple[Band, ...], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            PriceTable("r", "USD", "2026-01-01", "test", ((Meter.EGRESS, bands),))

    def test_explained_row_by_row(self) -> None:
        found = [
            (one.start, one.end, one.price)
            for one in price_list(built_in()).prices
            if one.meter == Meter.STANDARD_OPERATIONS
        ]
        wanted = [("0", "13", "0"), ("13", "100", "0.80"), ("100", "2500", "0.50"), ("2500", None, "0.20")]
        assert [tuple(None if one is None else str(one) for one in row) for row in found] == wanted

    def test_the_query_is_a_url_that_says_what_it_asks(self) -> None:
        url = urlsplit(retail_query("westeurope", "EUR"))
        assert (url.scheme, url.netloc) == ("https", "prices.azure.com")
        asked = parse_qs(url.query)
        assert asked["currencyCode"] == ["'EUR'"]
        assert asked["$filter"] == [
            "serviceName eq 'Service Bus' and armRegionName eq 'westeurope' and type eq 'Consumption'"
        ]
