"""`sbpair cost`: the documents' arithmetic, scenarios, price files, no namespace contacted."""

import json
from decimal import Decimal
from pathlib import Path

import pytest

from tests.cli.process import Sbpair

YAML_PRICES = """\
version: 1
region: westeurope
currency: EUR
date: 2026-11-01
meters:
  standard-base-hour: 0.0125
  standard-operations: {0: 0, 13: 0.75}
  standard-connections: {0: 0, 1000: 0.03}
  egress-gigabyte: 0.02
"""


def retail(meter: str, unit: str, price: float, start: float = 0, **more: object) -> dict[str, object]:
    row = {
        "serviceName": "Service Bus",
        "type": "Consumption",
        "meterName": meter,
        "unitOfMeasure": unit,
        "armRegionName": "westeurope",
        "currencyCode": "USD",
        "effectiveStartDate": "2026-11-01T00:00:00Z",
        "tierMinimumUnits": start,
        "retailPrice": price,
    }
    return row | more


def test_the_documents_own_numbers_come_out(sbpair: Sbpair) -> None:
    """10 backlog queues polled for 15 minutes each: 28,800 receives in 30 days."""
    ran = sbpair("cost", "-o", "json")
    assert ran.code == 0
    polls = next(line for line in ran.data["lines"] if str(line["what"]).startswith("idle receives"))
    assert polls["operations"] == 28_800
    assert polls["arithmetic"] == "10 queues x 1 host x 4 an hour x 720 hours"


def test_each_diverted_message_is_charged_four_times_and_completed_twice(sbpair: Sbpair) -> None:
    ran = sbpair(
        "cost", "--messages-per-day", "100", "--size-kb", "64", "--diverted", "100%", "--syphon", "none", "-o", "json"
    )
    counted = {line["what"]: line["operations"] for line in ran.data["lines"] if line["operations"]}
    assert counted["send to the backlog for one entity"] == 3000
    assert counted["receive from the backlog for one entity"] == 3000
    assert counted["send back to one entity"] == 3000
    assert counted["receive from one entity"] == 3000
    assert ran.data["operation_count"] == 6 * 3000


def test_one_byte_over_64_kb_is_two_operations(sbpair: Sbpair) -> None:
    counts = []
    for size in ("64", "64.001"):
        ran = sbpair("cost", "--messages-per-day", "1000", "--size-kb", size, "--syphon", "none", "-o", "json")
        counts.append({line["what"]: line["operations"] for line in ran.data["lines"]}["send to one entity"])
    assert counts == [30_000, 60_000]


def test_the_configured_pair_gives_queues_entities_and_ping_interval(sbpair: Sbpair, tmp_path: Path) -> None:
    (tmp_path / "sbpair.yaml").write_text(
        "version: 1\npairs:\n  orders:\n    primary: {namespace: contoso-weu}\n"
        "    secondary: {namespace: contoso-neu}\n"
        "    backlog_queues: 4\n    ping_interval: 30s\n    entities: [orders, invoices]\n",
        encoding="utf-8",
    )
    ran = sbpair("cost", "orders", "--messages-per-day", "11", "--outage", "1h", "-o", "json")
    arithmetic = [str(line["arithmetic"]) for line in ran.data["lines"]]
    assert "4 queues x 1 host x 4 an hour x 720 hours" in arithmetic
    assert "3600 s of outage / 30 s = 120 x 2 entities x 1 process" in arithmetic


def test_several_values_make_a_comparison(sbpair: Sbpair) -> None:
    ran = sbpair(
        "cost", "--messages-per-day", "2000000", "--queues", "5,20", "--syphon", "documented,sdk", "-o", "json"
    )
    names = [row["alternative"] for row in ran.data["alternatives"]]
    assert len(names) == 5
    assert names[0] == "no pairing"
    best = next(row for row in ran.data["alternatives"] if row["choice"])
    assert best["alternative"] == "Standard, 5 queues, 1 host, documented"


def test_prices_of_a_yaml_file(sbpair: Sbpair, tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(YAML_PRICES, encoding="utf-8")
    ran = sbpair("cost", "--prices", "prices.yaml", "--syphon", "none", "-o", "json")
    assert (ran.data["currency"], ran.data["total"]) == ("EUR", "9.0000")


def test_prices_of_the_retail_api_in_pages(sbpair: Sbpair, tmp_path: Path) -> None:
    pages = [
        {"Items": [retail("Standard Base Unit", "1/Hour", 0.02)], "Count": 1, "NextPageLink": "https://example/2"},
        {
            "Items": [
                retail("Standard Messaging Operations", "1M", 0),
                retail("Standard Messaging Operations", "1M", 0.8, 13),
                retail("Standard Base Unit", "1/Month", 10),
            ],
            "Count": 3,
            "NextPageLink": None,
        },
    ]
    for number, page in enumerate(pages):
        (tmp_path / f"{number}.json").write_text(json.dumps(page), encoding="utf-8")
    ran = sbpair("cost", "--prices", "0.json", "--prices", "1.json", "--syphon", "none", "-o", "json")
    assert ran.data["total"] == "14.40"
    refused = sbpair("cost", "--prices", "0.json")
    assert refused.code == 2
    assert "next page" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--diverted", "2"), "more than the whole"),
        (("--queues", "5,0"), "--queues '5,0'"),
        (("--month", "2026-13"), "--month '2026-13'"),
        (("--tier", "gold"), "Basic, Standard and Premium"),
        (("--currency", "EUR"), "not in EUR"),
        (("--currency", "9" * 5000), "is no currency"),
        (("--region", "atlantis"), "atlantis"),
        (("--prices", "none.json"), "none.json"),
        (("--syphon", "sometimes"), "'sometimes'"),
    ],
)
def test_wrong_values_are_refused_by_name(sbpair: Sbpair, arguments: tuple[str, ...], message: str) -> None:
    ran = sbpair("cost", *arguments)
    assert (ran.code, ran.stdout) == (2, "")
    assert message in ran.stderr


def test_explain_prices_shows_date_and_the_query_for_todays(sbpair: Sbpair) -> None:
    ran = sbpair("cost", "--explain-prices", "-o", "markdown")
    assert ran.code == 0
    assert "not today's, dated 20" in ran.stdout
    assert "https://prices.azure.com/api/retail/prices?" in ran.stdout


def test_an_estimate_is_a_table_and_no_page(sbpair: Sbpair) -> None:
    ran = sbpair("cost", "-o", "html")
    assert (ran.code, ran.stdout) == (2, "")
    assert "html" in ran.stderr


def test_geo_replication_doubles_the_units_and_counts_what_is_replicated(sbpair: Sbpair) -> None:
    line = ("cost", "--messages-per-day", "100000", "--tier", "Premium", "-o", "json")
    found, without = sbpair(*line, "--geo-replicated"), sbpair(*line)
    assert (found.code, without.code) == (0, 0), found
    units, plain = (
        {one["label"]: one for one in ran.data["charges"] if one["meter"] == "premium-unit-hour"}
        for ran in (found, without)
    )
    assert all("in each of 2 regions" in label for label in units)
    assert [2 * Decimal(one["quantity"]) for one in plain.values()] == [
        Decimal(one["quantity"]) for one in units.values()
    ]
    replicated = [one for one in found.data["charges"] if one["meter"] == "geo-replication-gigabyte"]
    assert [Decimal(one["amount"]) > 0 for one in replicated][:1] == [True]
    assert not any(one["meter"] == "geo-replication-gigabyte" for one in without.data["charges"])
