"""The analysis: what it says of small archives that can be counted by hand, and that both ways say the same."""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.functions import expr

from sbpair.core.entities import QueueFacts, QueueSettings, TopicFacts
from sbpair.core.prices import Meter, built_in
from sbpair.core.snapshot import NamespaceSnapshot, PairFields, QueueSeen, Snapshot
from sbpair.pipeline.analysis.analyze import RESULTS, Analysis, existing_paths, forecast
from sbpair.pipeline.analysis.partials import KINDS, columns_of, partials_by_sql
from sbpair.pipeline.analysis.question import Question
from sbpair.pipeline.analysis.rolling import roll_up
from sbpair.pipeline.analysis.scan import Piece, Unit, scan, shares_for, tasks_of, units_of
from sbpair.pipeline.schemas import arrow_schema
from tests.benchmarks.backlogs import make_archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
QUESTION = Question(as_of=NOON.timestamp(), messages_per_second=0.01)
KIB = 1024
MINUTE_MS = 60_000


def message(number: int, minutes_ago: float, **changed: Any) -> dict[str, Any]:
    """One archived message, put into queue 0 for `orders` so many minutes before noon."""
    plain: dict[str, Any] = {
        "pair": "shop",
        "queue": "shop-weu/x-servicebus-transfer/0",
        "dead_letter": False,
        "sequence_number": number,
        "enqueued_at": NOON - timedelta(minutes=minutes_ago),
        "state": "active",
        "destination": "orders",
        "message_id": f"m{number}",
        "is_ping": False,
        "size_bytes": 1000,
    }
    return plain | changed


def in_queue(index: int) -> str:
    return f"shop-weu/x-servicebus-transfer/{index}"


def write(path: Path, rows: Sequence[dict[str, Any]], **options: Any) -> str:
    schema = arrow_schema()
    filled = [{name: row.get(name) for name in schema.names} for row in rows]
    pq.write_table(pa.Table.from_pylist(filled, schema=schema), path, **options)
    return str(path)


@dataclass(frozen=True)
class Found:
    """The tables of an analysis; `of` gives the rows of one pair."""

    tables: Mapping[str, Sequence[Mapping[str, Any]]]

    def of(self, pair: str, table: str) -> list[Mapping[str, Any]]:
        return [row for row in self.tables[table] if row["pair"] == pair]


def analysed(
    spark: "SparkSession", files: Sequence[str], *, by: str, names: Sequence[str] = RESULTS, **more: Any
) -> Found:
    analysis = Analysis.of(
        spark, lambda: spark.read.parquet(*files), QUESTION, files=files if by == "scan" else (), **more
    )
    assert analysis.way == by
    try:
        return Found({name: [row.asDict() for row in analysis.frames[name].collect()] for name in names})
    finally:
        analysis.close()


def counted_rows() -> list[list[dict[str, Any]]]:
    return [
        [
            message(1, 130, size_bytes=64 * KIB),
            message(2, 70, size_bytes=64 * KIB + 1),
            message(3, 10, size_bytes=250 * KIB, destination="invoices"),
            message(4, 9, destination=None),
        ],
        [message(5, 5, dead_letter=True, dead_letter_reason="Rejected", is_ping=True)],
    ]


def session_rows() -> list[list[dict[str, Any]]]:
    """Inversions within and between what is read apart; sessions in two queues at once, and one after the other."""
    return [
        [
            message(1, 60, session_id="back"),
            message(2, 61, session_id="back"),
            message(3, 50, session_id="edge"),
            message(4, 49, session_id="fine"),
        ],
        [message(5, 55, session_id="edge"), message(6, 40, session_id="fine"), message(7, 39)],
        [
            message(1, 45, session_id="fine", queue=in_queue(1)),
            message(2, 20, session_id="back", queue=in_queue(1)),
        ],
    ]


def repeated_rows() -> list[list[dict[str, Any]]]:
    rows = [
        message(1, 30, message_id="a"),
        message(2, 20, message_id="a", queue=in_queue(1)),
        message(3, 10, message_id="a", destination="invoices"),
        message(4, 10, message_id=None),
        message(5, 10, message_id=None),
        message(6, 10, message_id=""),
        message(7, 10, message_id="", dead_letter=True),
        message(8, 10, message_id="long" * 30),
        message(9, 9, message_id="long" * 30),
        message(10, 9, message_id="long" * 30 + "!"),
    ]
    return [[row] for row in rows]


def mortal_rows() -> list[list[dict[str, Any]]]:
    """At 0.01 messages a second the four are drained 100, 200, 300 and 400 s after noon."""
    lives = (10 * MINUTE_MS, 11 * MINUTE_MS, 60 * MINUTE_MS, None)
    return [[message(number, 11 - number, ttl_ms=lived) for number, lived in enumerate(lives, 1)]]


def outage_rows() -> list[list[dict[str, Any]]]:
    return [[message(number, ago) for number, ago in enumerate((200, 199, 195, 120, 119, 3), 1)]]


SCENARIOS = {
    "counted": counted_rows,
    "sessions": session_rows,
    "repeated": repeated_rows,
    "mortal": mortal_rows,
    "outage": outage_rows,
}


@pytest.fixture(scope="module", params=["scan", "sql"])
def found(request: pytest.FixtureRequest, spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Found:
    """All scenarios in one analysis, each as a pair of its own, by either way."""
    folder = tmp_path_factory.mktemp("archive")
    files = [
        write(folder / f"{pair}-{index}.parquet", [row | {"pair": pair} for row in rows], row_group_size=2)
        for pair, scenario in SCENARIOS.items()
        for index, rows in enumerate(scenario())
    ]
    return analysed(spark, files, by=str(request.param))


def test_counts_by_destination_hour_queue_and_reason(found: Found) -> None:
    by_destination = {row["destination"]: row for row in found.of("counted", "destinations")}
    assert {name: (row["messages"], row["units"]) for name, row in by_destination.items()} == {
        "orders": (3, 1 + 2 + 1),
        "invoices": (1, 4),
        None: (1, 1),
    }
    assert (by_destination["invoices"]["near_limit"], by_destination["orders"]["near_limit"]) == (1, 0)
    assert (by_destination["orders"]["dead_letters"], by_destination["orders"]["pings"]) == (1, 1)
    assert by_destination["orders"]["size_max"] == by_destination["orders"]["size_p99"] == 64 * KIB + 1
    assert by_destination["orders"]["age_max_seconds"] == 130 * 60
    assert by_destination["orders"]["exists"] is None
    by_hour = [row for row in found.of("counted", "hours") if row["destination"] == "orders"]
    assert [(row["hour"].hour, row["messages"]) for row in by_hour] == [(9, 1), (10, 1), (11, 1)]
    assert [(row["dead_letter"], row["messages"]) for row in found.of("counted", "queues")] == [(False, 4), (True, 1)]
    dead = found.of("counted", "dead_letters")
    assert [(row["reason"], row["destination"], row["messages"]) for row in dead] == [("Rejected", "orders", 1)]
    totals = found.of("counted", "totals")
    assert [(row["messages"], row["units"], row["dead_letters"]) for row in totals] == [(5, 9, 1)]
    assert sum(row["messages"] for row in found.of("counted", "size_histogram")) == 5


def test_order_of_sessions(found: Found) -> None:
    rows = {row["session_id"]: row for row in found.of("sessions", "sessions")}
    assert {name: (row["inversions"], row["queues"], row["interleaved"]) for name, row in rows.items()} == {
        "back": (1, 2, False),
        "edge": (1, 1, False),
        "fine": (0, 2, True),
    }
    assert [row["sessions"] for row in found.of("sessions", "destinations")] == [3]


def test_duplicates_are_of_one_destination(found: Found) -> None:
    rows = found.of("repeated", "duplicates")
    assert {(row["message_id"], row["copies"], tuple(row["queues"]), row["dead_letters"]) for row in rows} == {
        ("a", 2, (in_queue(0), in_queue(1)), 0),
        ("", 2, (in_queue(0),), 1),
        ("long" * 30, 2, (in_queue(0),), 0),
    }


def test_lives_that_end_before_their_turn(found: Found) -> None:
    rows = found.of("mortal", "time_to_live")
    assert [(row["messages"], row["expired"], row["expiring"]) for row in rows] == [(1, 1, 0), (1, 0, 1), (1, 0, 0)]
    (row,) = found.of("mortal", "destinations")
    assert (row["expired"], row["expiring"]) == (1, 1)


def test_outages_have_a_beginning_and_an_end(found: Found) -> None:
    rows = found.of("outage", "outages")
    assert [(row["seconds"], row["messages"], row["going_on"]) for row in rows] == [
        (5 * 60, 3, False),
        (60, 2, False),
        (0, 1, True),
    ]
    assert rows[0]["began_at"] == (NOON - timedelta(minutes=200)).replace(tzinfo=None)


def test_destinations_that_do_not_exist(spark: "SparkSession", tmp_path: Path) -> None:
    names = ("Orders", "gone", "news", None)
    file = write(tmp_path / "a.parquet", [message(number, 5, destination=name) for number, name in enumerate(names)])
    seen = NamespaceSnapshot(
        label="shop-weu",
        host="shop-weu.servicebus.windows.net",
        auth="test",
        queues=(QueueSeen(QueueFacts("orders", QueueSettings())),),
        topics=(TopicFacts("news"),),
    )
    pair = PairFields("shop", seen.host, "shop-neu.servicebus.windows.net", "shop-weu", "shop-neu", 10)
    snapshot = Snapshot(1, NOON.timestamp(), pair, seen, replace(seen, label="shop-neu"))

    found = analysed(spark, [file], by="scan", names=["destinations"], snapshots=[snapshot])
    rows = found.of("shop", "destinations")
    existing = {row["destination"]: row["exists"] for row in rows}
    assert existing == {"Orders": True, "gone": False, "news": True, None: None}
    assert existing_paths(spark, [replace(snapshot, primary=replace(seen, topics=None))]) is None


def test_messages_archived_twice_count_once(spark: "SparkSession", tmp_path: Path) -> None:
    """A run that broke off and was repeated: the scan drops what overlaps, as the archive's reader does for SQL."""
    rows = [message(number, 60 - number, session_id="s") for number in range(1, 9)]
    files = [write(tmp_path / "a.parquet", rows[:6]), write(tmp_path / "b.parquet", rows[3:])]
    found = analysed(spark, files, by="scan", names=["totals", "duplicates", "sessions"])
    assert [row["messages"] for row in found.of("shop", "totals")] == [8]
    assert found.of("shop", "duplicates") == []
    assert [(row["messages"], row["inversions"]) for row in found.of("shop", "sessions")] == [(8, 0)]


def test_row_groups_with_several_queues_are_left_to_sql(spark: "SparkSession", tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", [message(1, 5), message(2, 5, queue=in_queue(1))])
    assert scan(spark, [file], QUESTION, cores=2) is None


def test_an_empty_archive(spark: "SparkSession", tmp_path: Path) -> None:
    found = analysed(spark, [write(tmp_path / "a.parquet", [])], by="scan")
    assert found.tables == {name: [] for name in RESULTS}


def test_both_ways_make_the_same_of_a_large_archive(spark: "SparkSession", tmp_path: Path) -> None:
    """Added up, the roll-ups are equal; so everything made of them is."""
    files = make_archive(tmp_path, 20_000)
    question = Question(as_of=1_793_491_200 + 9 * 3600)
    scanned = scan(spark, files, question, cores=2)
    assert scanned is not None
    by_sql = partials_by_sql(spark.read.parquet(*files), question)
    counts = {}
    for kind in KINDS:
        one, other = _added_up(kind, getattr(scanned, kind)), _added_up(kind, getattr(by_sql, kind))
        assert one == other
        counts[kind] = len(one)
    assert counts["size"] > 1000 and counts["time"] > 10_000 and counts["session"] > 900 and counts["duplicate"] > 200


def _added_up(kind: str, partials: "DataFrame") -> dict[tuple[Any, ...], tuple[Any, ...]]:
    columns = columns_of(kind)
    keys = [name for name, type_, _ in columns if type_ != "bigint" or name in ("bucket", "minute")]
    keys += ["first_at"] if kind == "duplicate" else []
    sums = {"messages", "bytes", "units", "expired", "near_limit", "pings", "inversions"}
    added = [f"sum({name})" for name, *_ in columns if name in sums]
    added += [f"max({name})" for name, *_ in columns if name in ("largest", "last_at")]
    rows = partials.groupBy(*keys).agg(*(expr(one) for one in (*added, "count(*)" if not added else "min(first_at)")))
    return {tuple(row)[: len(keys)]: tuple(row)[len(keys) :] for row in rows.collect()}


KINDS_ROLLED = ("size", "time", "session")


@pytest.mark.parametrize("kind", KINDS_ROLLED)
def test_units_of_one_task_are_joined_as_if_they_had_been_read_at_once(kind: str, tmp_path: Path) -> None:
    """Whatever is null, whatever queues a unit holds, and also where a session's arrivals go back between two units."""
    chance = random.Random(7)
    rows = []
    for queue in range(2):
        for number in range(1, 301):
            made = message(number, chance.uniform(0, 90), queue=in_queue(queue), size_bytes=chance.randint(0, 300_000))
            made["session_id"] = chance.choice([None, "a", "b", "c"])
            made["destination"] = chance.choice([None, "orders", "invoices"])
            made["ttl_ms"] = chance.choice([None, 1000, MINUTE_MS * 100])
            made["enqueued_at"] = chance.choice([made["enqueued_at"]] * 9 + [None])
            rows.append(made)
    file = write(tmp_path / "a.parquet", rows, row_group_size=75)
    whole = Unit(((file, tuple(range(8))),), 600, False)
    apart = [Unit(((file, (group,)),), 75, False) for group in range(8)]
    at_once, joined = (rolled(kind, units) for units in ([whole], apart))
    assert at_once == joined
    assert len(joined) == len({tuple(sorted(row.items(), key=str)) for row in joined}) > 10
    if kind == "session":
        assert sum(row["inversions"] for row in joined) > sum(
            row["inversions"] for unit in apart for row in rolled(kind, [unit])
        )


def rolled(kind: str, units: Sequence[Unit]) -> list[dict[str, Any]]:
    rows = [row for batch in roll_up(kind, units, QUESTION) for row in batch.to_pylist()]
    return sorted(rows, key=str)


def test_units_without_messages_or_sessions_give_nothing(tmp_path: Path) -> None:
    empty = Unit(((write(tmp_path / "a.parquet", []), ()),), 0, False)
    alone = Unit(((write(tmp_path / "b.parquet", [message(1, 5)]), (0,)),), 1, False)
    assert [rolled(kind, [empty, empty]) for kind in KINDS_ROLLED] == [[], [], []]
    assert rolled("session", [alone, empty, alone]) == []
    assert len(rolled("size", [empty, alone])) == 1


def test_the_forecast_is_bound_by_rate_and_credits() -> None:
    total = {"pair": "shop", "messages": 1000, "bytes": 5_000_000, "units": 1500}
    slow = forecast(total, Question(as_of=0, messages_per_second=10), built_in())
    assert (slow["operations"], slow["seconds"]) == (4000, 100.0)
    dearest = built_in().bands(Meter.STANDARD_OPERATIONS)[1].unit_price
    assert Decimal(slow["cost_at_most"]) == dearest * 4000 / 1_000_000
    fast = forecast(total, Question(as_of=0, messages_per_second=100_000), built_in())
    assert fast["seconds"] == 2.5


def test_units_follow_the_numbers() -> None:
    place = ("shop", in_queue(0), False)
    pieces = [
        Piece("b", (0,), place, 11, 20, 10),
        Piece("a", (0,), place, 1, 10, 10),
        Piece("c", (0,), place, 15, 30, 10),
    ]
    units = units_of(pieces, 100)
    assert [(unit.parts, unit.overlapping) for unit in units] == [
        ((("a", (0,)),), False),
        ((("b", (0,)), ("c", (0,))), True),
    ]


def pieces_of(queue: int, *rows: int) -> list[Piece]:
    """Neighbouring pieces of one queue with so many rows each."""
    place = ("shop", in_queue(queue), False)
    ends = list(itertools.accumulate(rows))
    return [
        Piece(f"{queue}-{end}", (0,), place, end - count + 1, end, count) for count, end in zip(rows, ends, strict=True)
    ]


def test_a_queue_begins_a_new_unit_where_the_one_before_is_half_full() -> None:
    pieces = [*pieces_of(0, 60), *pieces_of(1, 20), *pieces_of(2, 20, 30, 70)]
    assert [unit.rows for unit in units_of(pieces, 100)] == [60, 70, 70]
    assert [unit.rows for unit in units_of(pieces, 1000)] == [200]


def test_tasks_take_neighbouring_units_up_to_their_rows() -> None:
    units = units_of([*pieces_of(0, 50, 50), *pieces_of(1, 50, 50), *pieces_of(2, 90)], 50)
    assert [[unit.rows for unit in task] for task in tasks_of(units, 100)] == [[50, 50], [50, 50], [90]]
    assert [[unit.rows for unit in task] for task in tasks_of(units, 10)] == [[50], [50], [50], [50], [90]]
    assert tasks_of([], 10) == []


def test_more_tasks_search_for_duplicates_when_the_hashes_would_not_fit() -> None:
    assert shares_for(1_000, 2) == 2
    assert shares_for(250_000_000, 2) == 10
