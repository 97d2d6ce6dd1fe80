"""`sbpair cost` from real data, and its charts on a terminal."""

import json
from pathlib import Path

from tests.cli.process import Sbpair
from tests.cli.screens import show
from tests.core.cost.test_usage import ENTERPRISE, ROWS, answer, metric


def details(path: Path) -> None:
    rows = [["Usage Data Extract"], [], ENTERPRISE, ROWS[0][1]]
    path.write_text("\ufeff" + "".join(",".join(row) + "\r\n" for row in rows), encoding="utf-8")


def test_usage_details_are_added_up_and_priced(sbpair: Sbpair) -> None:
    details(sbpair.home / "usage.csv")
    ran = sbpair("cost", "--usage", "usage.csv", "-o", "json")
    assert ran.code == 0
    (row,) = ran.data["billed"]
    assert (row["month"], row["quantity"], row["cost"], row["at_these_prices"]) == ("2026-02", "250000", "0.20", "0.00")
    assert sbpair("cost", "--usage", "usage.csv", "--month", "2026-02").code == 0
    other = sbpair("cost", "--usage", "usage.csv", "--month", "2026-03")
    assert other.code == 2
    assert "No usage of Service Bus in 2026-03" in other.stderr


def test_metrics_are_the_messages_of_the_estimate(sbpair: Sbpair) -> None:
    document = answer(metric("IncomingMessages", {"orders": [1000], "contoso/x-servicebus-transfer/0": [10]}))
    (sbpair.home / "metrics.json").write_text(json.dumps(document), encoding="utf-8")
    details(sbpair.home / "usage.csv")
    ran = sbpair("cost", "--usage", "metrics.json", "--usage", "usage.csv", "-o", "json")
    lines = {line["what"]: line["operations"] for line in ran.data["lines"]}
    assert lines["send to the backlog for orders"] == 300
    assert lines["send to orders"] == 30_000
    assert len(ran.data["billed"]) == 1


def test_a_wrong_file_is_refused_by_name_and_row(sbpair: Sbpair) -> None:
    (sbpair.home / "usage.csv").write_text("Date,MeterName,Quantity\n2026-02-01,Standard Base Unit,x\n", "utf-8")
    ran = sbpair("cost", "--usage", "usage.csv")
    assert (ran.code, ran.stdout) == (2, "")
    assert "usage.csv, line 2: the quantity 'x'" in ran.stderr
    (sbpair.home / "usage.csv").write_text("a,b\n1,2\n", "utf-8")
    assert "no header of usage details" in sbpair("cost", "--usage", "usage.csv").stderr


def test_prices_are_fetched_by_the_command_shown(sbpair: Sbpair) -> None:
    ran = sbpair("cost", "--explain-prices", "-o", "json")
    assert ran.data["command"] == f"curl -sSfo prices.json '{ran.data['query']}'"
    assert "'" not in ran.data["query"]


def test_a_terminal_gets_a_chart_and_a_pipe_does_not(sbpair: Sbpair) -> None:
    arguments = ("cost", "--messages-per-day", "1000000", "--queues", "5,50", "--syphon", "sdk", "--compare")
    assert "\u2588" not in sbpair(*arguments).stdout
    assert "\u2588" * 16 in show(sbpair, *arguments, columns=150).shown
