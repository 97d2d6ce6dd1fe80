"""Usage through Spark gives the numbers that the small reader of `sbpair cost` gives."""

import csv
import json
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sbpair.cli import cost_shown, cost_usage
from sbpair.cli.cost_inputs import Scenario, workload_of
from sbpair.cli.pipeline_usage import usage_result
from sbpair.core.cost import DOCUMENTED_SYPHON, SEED_MONTH, calendar_month
from sbpair.core.errors import UsageError
from sbpair.core.prices import built_in
from sbpair.core.usage import add_up
from sbpair.pipeline.usage import read_usage
from tests.cli.schema_checks import check_data
from tests.core.test_usage import ENTERPRISE, ROWS, answer, metric

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCENARIO = Scenario(
    messages_per_day=0,
    size_bytes=70_000,
    copies=1,
    outage_seconds=0,
    diverted_share=None,
    redelivered_share=Fraction(0),
    queues=(10,),
    hosts=(2,),
    syphons=(DOCUMENTED_SYPHON,),
    tiers=(),
    processes=3,
    messaging_units=1,
    two_subscriptions=False,
    month=SEED_MONTH,
    audits_per_day=0,
)


def write_csv(path: Path, lines: Sequence[Sequence[str]]) -> str:
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows(lines)
    return str(path)


def test_rows_of_different_agreement_types(spark: "SparkSession", tmp_path: Path) -> None:
    chosen = [ROWS[0], ROWS[3], ROWS[4]]
    paths = []
    for index, (header, cells) in enumerate(chosen):
        title = [["Usage Data Extract"], []] if index == 0 else []
        paths.append(write_csv(tmp_path / f"{index}.csv", [*title, header, *[cells] * 40]))
    by_spark = add_up(row for path in paths for row in read_usage(spark, [path]).billed)
    by_hand = cost_usage.read_usage([Path(path) for path in paths], SEED_MONTH).billed
    assert by_spark == by_hand
    assert sum(one.quantity for one in by_spark) == 3 * 40 * 250_000


def test_other_services_and_purchases_are_left_out(spark: "SparkSession", tmp_path: Path) -> None:
    cells = dict(zip(ENTERPRISE, ROWS[0][1], strict=True))
    changes = ({}, {"MeterCategory": "Storage"}, {"ChargeType": "Refund"}, {"MeterName": "Relay, WCF"})
    path = write_csv(tmp_path / "u.csv", [ENTERPRISE, *(list((cells | change).values()) for change in changes)])
    found = read_usage(spark, [path]).billed
    assert sorted(row.meter for row in found) == ["Relay, WCF", "standard-operations"]


def test_a_number_that_is_none_is_refused(spark: "SparkSession", tmp_path: Path) -> None:
    lines = [["Date", "MeterName", "Quantity"], ["2026-02-01", "Standard Base Unit", "many"]]
    with pytest.raises(UsageError, match=r"u\.csv: 'many' is not a number"):
        read_usage(spark, [write_csv(tmp_path / "u.csv", lines)])
    with pytest.raises(UsageError, match="no header of usage details"):
        read_usage(spark, [write_csv(tmp_path / "v.csv", [["a", "b"], ["1", "2"]])])
    with pytest.raises(UsageError, match="There is no"):
        read_usage(spark, [str(tmp_path / "absent.csv")])


def metrics_document() -> dict[str, Any]:
    document = answer(
        metric("IncomingMessages", {"orders": [90_000, 50], "shop/x-servicebus-transfer/0": [4_000]}),
        metric("OutgoingMessages", {"orders": [180_000, 100]}),
        metric("CompleteMessage", {"orders": [180_000, 100]}),
        span="2026-01-31T00:00:00Z/2026-02-02T00:00:00Z",
    )
    for entry in document["value"]:
        for series in entry["timeseries"]:
            series["data"][0]["timeStamp"] = "2026-01-31T12:00:00Z"
    return document


def test_the_estimate_is_that_of_cost(spark: "SparkSession", tmp_path: Path) -> None:
    details = write_csv(tmp_path / "u.csv", [ENTERPRISE, ROWS[0][1]])
    metrics = tmp_path / "m.json"
    metrics.write_text(json.dumps(metrics_document(), indent=1), encoding="utf-8")
    prices = built_in()
    result = usage_result(read_usage(spark, [details, str(metrics)]), SCENARIO, 4 * 3600, prices)

    used = cost_usage.read_usage([Path(details), metrics], SEED_MONTH)
    assert used.traffic is not None
    workload = cost_usage.with_traffic(workload_of(SCENARIO, None, None), used.traffic, SCENARIO.size_bytes)
    cost = cost_usage.with_billed(cost_shown.one_estimate(workload, prices, None, None), used, prices)
    check_data("pipeline usage", result.data)
    for key in ("total", "operation_count", "pairing_adds", "billed"):
        assert result.data[key] == cost.data[key]
    assert Decimal(result.data["outage_adds"]) > 0
    by_month = [(row["month"], row["entity"], row["operations"]) for row in result.data["entities"]]
    assert by_month == [
        ("2026-01", "orders", (90_000 + 180_000) * 2 + 180_000),
        ("2026-01", "shop/x-servicebus-transfer/0", 4_000 * 2),
        ("2026-02", "orders", (50 + 100) * 2 + 100),
    ]


def test_months_are_chosen(spark: "SparkSession", tmp_path: Path) -> None:
    path = write_csv(tmp_path / "u.csv", [ENTERPRISE, ROWS[0][1]])
    used = read_usage(spark, [path])
    february = Scenario(**{**_fields(SCENARIO), "month": calendar_month(2026, 2)})
    assert usage_result(used, february, 0, built_in()).data["billed"][0]["quantity"] == "250000"
    march = Scenario(**{**_fields(SCENARIO), "month": calendar_month(2026, 3)})
    with pytest.raises(UsageError, match="No usage of Service Bus in 2026-03"):
        usage_result(used, march, 0, built_in())


def _fields(scenario: Scenario) -> dict[str, Any]:
    return {name: getattr(scenario, name) for name in Scenario.__dataclass_fields__}


def record(name: str, minute: int, total: float) -> dict[str, Any]:
    resource = "/SUBSCRIPTIONS/S/RESOURCEGROUPS/R/PROVIDERS/MICROSOFT.SERVICEBUS/NAMESPACES/SHOP-WEU"
    time = f"2026-02-01T00:{minute:02}:00.0000000Z"
    return {"count": 1, "total": total, "resourceId": resource, "time": time, "metricName": name, "timeGrain": "PT1M"}


@pytest.mark.parametrize("nested", [False, True])
def test_diagnostic_lines_of_both_forms(spark: "SparkSession", tmp_path: Path, nested: bool) -> None:
    records = [record("IncomingMessages", minute, 10) for minute in range(60)]
    records += [record("OutgoingMessages", 3, 500), record("ServerErrors", 4, 1)]
    lines = [{"records": records[:30]}, {"records": records[30:]}] if nested else records
    path = tmp_path / "PT1H.json"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    used = read_usage(spark, [str(path)])
    assert used.traffic is not None
    assert used.traffic.seconds == 3600
    (month,) = used.months
    assert (month.month, month.entity) == ("2026-02", used.traffic.entities[0])
    assert (month.entity.namespace, month.entity.incoming, month.entity.outgoing) == ("shop-weu", 600, 500)
    (flow,) = used.traffic.flows(720, 1000)
    assert (flow.entity, flow.messages) == ("shop-weu", 600 * 720)


def test_both_kinds_of_metrics_would_count_twice(spark: "SparkSession", tmp_path: Path) -> None:
    lines, document = tmp_path / "l.json", tmp_path / "m.json"
    lines.write_text(json.dumps(record("IncomingMessages", 1, 1)), encoding="utf-8")
    document.write_text(json.dumps(metrics_document()), encoding="utf-8")
    with pytest.raises(UsageError, match="one kind"):
        read_usage(spark, [str(lines), str(document)])
