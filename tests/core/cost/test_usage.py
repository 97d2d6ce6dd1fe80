"""Usage details of every agreement type and metrics give the numbers that stand in them."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from sbpair.core.cost.usage import MeterUsage, add_up, billed_row, column_key, is_header, map_columns, read_metrics
from sbpair.core.errors import UsageError


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


ENTERPRISE = names(
    """InvoiceSectionName, AccountName, SubscriptionId, ResourceLocation, Date, MeterCategory, MeterSubCategory,
    MeterName, Quantity, EffectivePrice, CostInBillingCurrency, UnitOfMeasure, ResourceId, BillingCurrencyCode,
    ChargeType"""
)
CUSTOMER = names(
    """invoiceId, subscriptionId, date, meterCategory, meterName, quantity, unitOfMeasure, costInBillingCurrency,
    billingCurrency, instanceName, chargeType"""
)
PAY_AS_YOU_GO = names(
    """SubscriptionGuid, ResourceGroup, UsageDateTime, MeterCategory, MeterName, UsageQuantity, PreTaxCost, InstanceId,
    UnitOfMeasure, Currency"""
)
OLD_ENTERPRISE = names(
    """Subscription Guid, Date, Month, Meter Category, Meter Name, Consumed Quantity, ResourceRate, ExtendedCost,
    Unit Of Measure, Instance ID"""
)
FOCUS = names(
    """BilledCost, BillingCurrency, ChargeCategory, ChargePeriodStart, ConsumedQuantity, ConsumedUnit, ResourceId,
    ServiceName, SubAccountId, x_SkuMeterName"""
)

RESOURCE = "/subscriptions/S/resourceGroups/rg/providers/Microsoft.ServiceBus/namespaces/Contoso"
ROWS = [
    (
        ENTERPRISE,
        ["it", "a", "S", "EU West", "02/03/2026", "Service Bus", "", "Standard Messaging Operations", "0.25", "0.8",
         "0.20", "1M", RESOURCE, "USD", "Usage"],
    ),
    (
        CUSTOMER,
        ["i", "S", "02/28/2026", "Service Bus", "Standard Messaging Operations", "250000", "1", "0.20", "USD", RESOURCE,
         "Usage"],
    ),
    (
        PAY_AS_YOU_GO,
        ["S", "rg", "2026-02-03T00:00:00Z", "Service Bus", "Standard Messaging Operations", "25", "0.20", RESOURCE,
         "10K", "USD"],
    ),
    (
        OLD_ENTERPRISE,
        ["S", "2/3/2026", "2", "Service Bus", "Standard Messaging Operations", "25", "0.008", "0.20", "10,000s",
         RESOURCE],
    ),
    (
        FOCUS,
        ["0.20", "USD", "Usage", "2026-02-03T00:00:00Z", "2.5E-1", "1M", RESOURCE, "Service Bus", "/subscriptions/S",
         "Standard Messaging Operations"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("header", "cells"), ROWS)
def test_every_agreement_type_says_the_same(header: list[str], cells: list[str]) -> None:
    row = billed_row(map_columns(header), cells, "row 2")
    assert row is not None
    assert (row.month, row.meter, row.quantity, row.cost) == (
        "2026-02",
        "standard-operations",
        Decimal(250_000),
        Decimal("0.20"),
    )
    assert (row.subscription, row.resource) == ("s", "contoso")


@pytest.mark.parametrize("spelling", [str.upper, str.lower, lambda name: f" {name} ".replace("e", "e ")])
def test_case_and_spaces_of_the_header_do_not_matter(spelling: Any) -> None:
    assert map_columns([spelling(name) for name in ENTERPRISE]) == map_columns(ENTERPRISE)


def test_a_header_without_a_quantity_is_refused() -> None:
    with pytest.raises(UsageError, match="quantity"):
        map_columns(["Date", "MeterName"])
    assert not is_header(["Usage Data Extract", ""])
    assert is_header(OLD_ENTERPRISE)
    assert column_key("Meter-Category ") == "metercategory"


def row(**changed: str) -> list[str]:
    values = dict(zip(ENTERPRISE, ROWS[0][1], strict=True)) | changed
    return [values[name] for name in ENTERPRISE]


@pytest.mark.parametrize(
    "changed",
    [{"MeterCategory": "Storage"}, {"ChargeType": "Purchase"}, {"ChargeType": "Refund"}, {"ChargeType": "Tax"}],
)
def test_other_services_and_other_charges_are_left_out(changed: dict[str, str]) -> None:
    assert billed_row(map_columns(ENTERPRISE), row(**changed), "row 2") is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"Quantity": "many"}, "row 7: the quantity 'many'"),
        ({"Quantity": "NaN"}, "row 7: the quantity"),
        ({"CostInBillingCurrency": "-"}, "row 7: the cost"),
        ({"Date": "yesterday"}, "row 7: 'yesterday'"),
        ({"Date": "2026-13-01"}, "row 7: '2026-13-01'"),
        ({"UnitOfMeasure": "1M!"}, "row 7: the unit '1M!'"),
    ],
)
def test_a_wrong_value_is_refused_with_its_row(changed: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        billed_row(map_columns(ENTERPRISE), row(**changed), "row 7")


@pytest.mark.parametrize(
    ("unit", "meter", "counted"),
    [
        ("1M", "Standard Messaging Operations", 2_000_000),
        ("", "Standard Messaging Operations", 2_000_000),
        ("10K", "Basic Messaging Operations", 20_000),
        ("1 Hour", "Standard Base Unit", 2),
        ("1/Hour", "Premium Messaging Unit", 2),
        ("100 Hours", "Premium Messaging Unit", 200),
        ("1/Month", "Standard Base Unit", 2 * 28 * 24),
        ("1", "Standard Brokered Connections", 2),
        ("1", "Hybrid Connections Listener Unit", 2),
    ],
)
def test_units_are_counted_singly(unit: str, meter: str, counted: int) -> None:
    found = billed_row(map_columns(ENTERPRISE), row(Quantity="2", UnitOfMeasure=unit, MeterName=meter), "row")
    assert found is not None
    assert found.quantity == counted


def test_rows_add_up_exactly_whatever_their_order() -> None:
    columns = map_columns(ENTERPRISE)
    cells = [row(Quantity="0.1", CostInBillingCurrency="0.1"), row(Date="2026-03-01"), row(Quantity="0.2")]
    rows = [found for one in cells if (found := billed_row(columns, one, "row")) is not None]
    first = MeterUsage("2026-02", "s", "standard-operations", Decimal(300_000), Decimal("0.30"), "USD")
    assert add_up(rows) == add_up(reversed(rows))
    assert add_up(rows)[0] == first
    assert [one.month for one in add_up(rows)] == ["2026-02", "2026-03"]


def metric(name: str, entities: dict[str, list[float]]) -> dict[str, Any]:
    return {
        "id": f"{RESOURCE}/providers/Microsoft.Insights/metrics/{name}",
        "name": {"value": name, "localizedValue": name},
        "timeseries": [
            {
                "metadatavalues": [{"name": {"value": "entityname"}, "value": entity}],
                "data": [{"timeStamp": "2026-02-01T00:00:00Z", "total": total} for total in totals],
            }
            for entity, totals in entities.items()
        ],
    }


def answer(*metrics: dict[str, Any], span: str = "2026-02-01T00:00:00Z/2026-02-02T00:00:00Z") -> dict[str, Any]:
    return {"cost": 0, "interval": "PT1H", "timespan": span, "value": list(metrics)}


def test_a_day_of_metrics_becomes_a_month_of_flows() -> None:
    document = answer(
        metric("IncomingMessages", {"orders": [100, 50], "contoso/x-servicebus-transfer/3": [50]}),
        metric("OutgoingMessages", {"orders": [300, 150]}),
        metric("ServerErrors", {"orders": [7]}),
    )
    traffic = read_metrics([("metrics.json", document)])
    assert traffic.seconds == 86_400
    assert traffic.diverted_share == Fraction(50, 200)
    (flow,) = traffic.flows(720, 1000)
    assert (flow.entity, flow.messages, flow.size_bytes, flow.copies) == ("orders", 200 * 30, 1000, 3)


def test_keys_are_read_whatever_their_case() -> None:
    def upper(value: Any) -> Any:
        if isinstance(value, dict):
            return {key.upper(): upper(item) for key, item in value.items()}
        return [upper(item) for item in value] if isinstance(value, list) else value

    document = answer(metric("IncomingMessages", {"orders": [1]}))
    assert read_metrics([("a", upper(document))]) == read_metrics([("a", document)])


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([{}], "no list `value`"),
        ([answer(metric("IncomingMessages", {"orders": [1]}), span="always")], "`timespan` is 'always'"),
        ([answer({"name": "x"})], "metric 1 has no"),
        ([answer(metric("OutgoingMessages", {"orders": [1]}))], "no incoming messages"),
        ([answer({"name": {"value": "IncomingMessages"}, "timeseries": [{"data": [{"average": 1}]}]})], "no totals"),
        (
            [
                answer(metric("IncomingMessages", {"orders": [1]})),
                answer(metric("IncomingMessages", {"orders": [1]}), span="2026-02-01T00:00:00Z/2026-02-03T00:00:00Z"),
            ],
            "different lengths",
        ),
    ],
)
def test_wrong_metrics_are_refused(documents: list[Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_metrics([(f"{number}.json", document) for number, document in enumerate(documents)])
