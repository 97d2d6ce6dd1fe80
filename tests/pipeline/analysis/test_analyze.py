"""The analysis: what it says of small archives that can be counted by hand, and that all engines say the same."""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sbpair.core.entities import QueueFacts, QueueSettings, TopicFacts
from sbpair.core.errors import UsageError
from sbpair.core.inspection.snapshot import NamespaceSnapshot, PairFields, QueueSeen, Snapshot
from sbpair.core.prices import Meter, built_in, to_cents
from sbpair.pipeline.analysis.analyze import analyse, existing_paths, forecast
from sbpair.pipeline.analysis.partials import (
    Question,
    Small,
    bucket_sql,
    database,
    highest_sql,
    lowest_sql,
    merged_sessions,
    merged_small,
    parts_of,
    sessions_found,
    size_bucket_sql,
    with_sessions,
)
from sbpair.pipeline.analysis.results import RESULTS, Total
from sbpair.pipeline.analysis.units import (
    Engine,
    LocalEngine,
    Piece,
    ReadUnit,
    SparkEngine,
    pieces_in,
    read_unit,
    together,
    units_in,
    units_of,
)
from sbpair.pipeline.rows import arrow_schema
from tests.benchmarks.backlogs import make_archive

if TYPE_CHECKING:
    from sbpair.pipeline.spark.session import StartedSpark

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
    session: "StartedSpark",
    files: Sequence[str],
    *,
    by: str,
    units: int = 1,
    question: Question = QUESTION,
    **more: Any,
) -> Found:
    """In this process, by Spark's tasks over the files, or over rows that only Spark reads."""
    cut = units_cut(files, units)
    rows = sum(unit.rows for unit in cut)
    if by == "local":
        engine: Engine = LocalEngine(cut, cores=2)
    elif by == "spark":
        engine = SparkEngine.over_units(session, cut)
    else:
        engine = SparkEngine.over_rows(session, session.spark.read.parquet(*files), 500_000 * units)
    found = analyse(engine, question, rows=rows, top=1000, **more)
    return Found({name: table.to_pylist() for name, table in found.tables.items()})


def units_cut(files: Sequence[str], most: int) -> list[ReadUnit]:
    """The units of a few rows each, if there are to be several."""
    found = units_in(files)
    if most == 1:
        return [together(found)] if found else []
    pieces = [piece for file in files for piece in pieces_in([file])]
    return units_of(pieces, max(1, sum(piece.rows for piece in pieces) // most))


def counted_rows() -> list[list[dict[str, Any]]]:
    return [
        [
            message(1, 130, size_bytes=64 * KIB),
            message(2, 70, size_bytes=64 * KIB + 1),
            message(3, 9.5, size_bytes=250 * KIB, destination="invoices"),
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
        [message(1, 45, session_id="fine", queue=in_queue(1)), message(2, 20, session_id="back", queue=in_queue(1))],
        [  # of no known destination, in a queue and among its dead letters
            message(8, 30, session_id="lost", destination=None),
            message(9, 10, session_id="lost", destination=None, dead_letter=True),
            message(10, 20, session_id="lost", destination=None, queue=in_queue(1)),
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


WAYS = [("local", 1), ("local", 5), ("spark", 1), ("spark", 5), ("rows", 1), ("rows", 3)]


@pytest.fixture(scope="module", params=WAYS, ids=[f"{by}-{units}" for by, units in WAYS])
def found(request: pytest.FixtureRequest, session: "StartedSpark", tmp_path_factory: pytest.TempPathFactory) -> Found:
    """All scenarios in one analysis, each as a pair of its own, by every engine, in one unit and in several."""
    folder = tmp_path_factory.mktemp("archive")
    files = [
        write(folder / f"{pair}-{index}.parquet", [row | {"pair": pair} for row in rows], row_group_size=2)
        for pair, scenario in SCENARIOS.items()
        for index, rows in enumerate(scenario())
    ]
    by, units = request.param
    return analysed(session, files, by=by, units=units)


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
    for row in found.tables["destinations"]:
        assert row["age_p50_seconds"] <= row["age_p95_seconds"] <= row["age_max_seconds"], "counted by the minute"
    assert by_destination["invoices"]["age_p95_seconds"] == by_destination["invoices"]["age_max_seconds"] == 9.5 * 60
    assert by_destination["orders"]["exists"] is None
    by_hour = [row for row in found.of("counted", "hours") if row["destination"] == "orders"]
    assert [(row["hour"].hour, row["messages"]) for row in by_hour] == [(9, 1), (10, 1), (11, 1)]
    by_minute = [row for row in found.of("counted", "minutes") if row["destination"] == "orders"]
    assert len(by_minute) == 3, "all of it came within a day"
    assert [(row["minute"].replace(minute=0), row["messages"]) for row in by_minute] == [
        (row["hour"], row["messages"]) for row in by_hour
    ]
    assert [(row["dead_letter"], row["messages"]) for row in found.of("counted", "queues")] == [(False, 4), (True, 1)]
    dead = found.of("counted", "dead_letters")
    assert [(row["reason"], row["destination"], row["messages"]) for row in dead] == [("Rejected", "orders", 1)]
    totals = found.of("counted", "totals")
    assert [(row["messages"], row["units"], row["dead_letters"]) for row in totals] == [(5, 9, 1)]
    assert sum(row["messages"] for row in found.of("counted", "size_histogram")) == 5


def test_order_of_sessions(found: Found) -> None:
    """Those in trouble are listed; the others only count."""
    rows = {row["session_id"]: row for row in found.of("sessions", "sessions")}
    assert {name: (row["inversions"], row["queues"], row["interleaved"]) for name, row in rows.items()} == {
        "back": (1, 2, False),
        "edge": (1, 1, False),
        "fine": (0, 2, True),
        "lost": (0, 2, False),
    }
    assert {row["destination"]: row["sessions"] for row in found.of("sessions", "destinations")} == {
        "orders": 3,
        None: 1,
    }


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
    assert rows[0]["began_at"] == NOON - timedelta(minutes=200)


def test_destinations_that_do_not_exist(session: "StartedSpark", tmp_path: Path) -> None:
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

    found = analysed(session, [file], by="local", snapshots=[snapshot])
    rows = found.of("shop", "destinations")
    existing = {row["destination"]: row["exists"] for row in rows}
    assert existing == {"Orders": True, "gone": False, "news": True, None: None}
    assert existing_paths([replace(snapshot, primary=replace(seen, topics=None))]) is None


def test_a_destination_has_the_spelling_that_most_messages_have(session: "StartedSpark", tmp_path: Path) -> None:
    names = ("ORDERS", "orders", "orders")
    rows = [message(number, 5, destination=name, message_id="same") for number, name in enumerate(names)]
    files = [write(tmp_path / f"{place}.parquet", [row]) for place, row in enumerate(rows)]
    found = analysed(session, files, by="local")
    assert [(row["destination"], row["messages"]) for row in found.of("shop", "destinations")] == [("orders", 3)]
    assert [(row["destination"], row["copies"]) for row in found.of("shop", "duplicates")] == [("orders", 3)]


@pytest.mark.parametrize("by", ["local", "spark"])
def test_messages_archived_twice_count_once(session: "StartedSpark", tmp_path: Path, by: str) -> None:
    """A run that broke off and was repeated."""
    rows = [message(number, 60 - number, session_id="s") for number in range(1, 9)]
    files = [write(tmp_path / "a.parquet", rows[:6]), write(tmp_path / "b.parquet", rows[3:])]
    files.append(write(tmp_path / "c.parquet", [message(1, 50, queue=in_queue(1), session_id="s")]))
    found = analysed(session, files, by=by, units=3)
    assert [row["messages"] for row in found.of("shop", "totals")] == [9]
    assert [row["message_id"] for row in found.of("shop", "duplicates")] == ["m1"]
    assert [(row["messages"], row["inversions"]) for row in found.of("shop", "sessions")] == [(9, 0)]


def test_row_groups_with_several_queues_make_one_unit(session: "StartedSpark", tmp_path: Path) -> None:
    rows = [message(1, 5), message(2, 5, queue=in_queue(1))]
    files = [write(tmp_path / "a.parquet", rows), write(tmp_path / "b.parquet", rows)]
    (unit,) = units_in(files)
    assert unit.overlapping
    assert [row["messages"] for row in analysed(session, files, by="local").of("shop", "totals")] == [2]


@pytest.mark.parametrize("rows", [[], [message(1, 5, message_id=None)]])
def test_an_archive_without_messages_sessions_or_ids(
    session: "StartedSpark", tmp_path: Path, rows: list[dict[str, Any]]
) -> None:
    found = analysed(session, [write(tmp_path / "a.parquet", rows)], by="local")
    assert tuple(found.tables) == RESULTS
    assert (found.tables["sessions"], found.tables["duplicates"]) == ([], [])
    assert len(found.tables["destinations"]) == len(rows)


def test_all_engines_say_the_same_of_a_large_archive(session: "StartedSpark", tmp_path: Path) -> None:
    files = make_archive(tmp_path, 20_000)
    question = Question(as_of=1_793_491_200 + 9 * 3600)
    first, *others = (
        analysed(session, files, by=by, units=units, question=question).tables
        for by, units in (("local", 1), ("local", 10), ("spark", 10), ("rows", 4))
    )
    assert len(first["sessions"]) > 60 and len(first["duplicates"]) > 150 and len(first["destinations"]) == 40
    for other in others:
        for name in RESULTS:
            assert other[name] == first[name], name


def test_the_worst_and_every_row_in_files(plain: "StartedSpark", tmp_path: Path) -> None:
    files = make_archive(tmp_path / "archive", 5_000)
    for by in ("local", "spark"):
        cut = units_cut(files, 4)
        engine: Engine = LocalEngine(cut, cores=2) if by == "local" else SparkEngine.over_units(plain, cut)
        found = analyse(engine, QUESTION, rows=5_000, top=3, folder=tmp_path / by)
        assert (found.tables["duplicates"].num_rows, found.tables["sessions"].num_rows) == (3, 3)
        assert found.counts["duplicates"] > 40
        written = {name: pq.read_table(tmp_path / by / name) for name in RESULTS}
        assert written["duplicates"].num_rows == found.counts["duplicates"]
        assert sum(written["sessions"]["messages"].to_pylist()) > 3_000
        assert written["totals"].to_pylist() == found.tables["totals"].to_pylist()


def test_too_many_messages_are_left_to_spark() -> None:
    with pytest.raises(UsageError, match="--engine local takes up to 10,000,000"):
        LocalEngine([ReadUnit((), 10_000_001, False)], cores=2)


@pytest.mark.parametrize("most_numbers", [2**62, 40, 1])
def test_sessions_are_numbered_by_all_their_names(most_numbers: int) -> None:
    """However few numbers there are to be: they are then given anew on the way."""
    some = [("a", "b", None), ("q", "r"), (False, True), ("x", None), ("1", "2", "3", None)]
    names = [*itertools.product(*some)] * 2
    columns = dict(
        zip(("pair", "queue", "dead_letter", "destination", "session_id"), zip(*names, strict=True), strict=True)
    )
    numbers = with_sessions(pa.table(columns), most_numbers)["session"].to_pylist()
    assert len(set(numbers)) == len(set(names)) == len(set(zip(names, numbers, strict=True)))


def test_spellings_of_a_session_that_differ_in_case_are_one_session(tmp_path: Path) -> None:
    """Out of order, and spread over two queues, although no spelling is."""
    rows = [
        message(1, 1, queue=in_queue(0)) | {"session_id": "Order-7"},
        message(2, 5, queue=in_queue(0)) | {"session_id": "ORDER-7"},
        message(1, 3, queue=in_queue(1)) | {"session_id": "order-7"},
    ]
    _, sessions = parts(ReadUnit(((write(tmp_path / "a.parquet", rows), (0,)),), 3, False))
    (found,) = sessions_found(sessions).to_pylist()
    assert (found["session_id"], found["messages"], found["queues"], found["inversions"]) == ("ORDER-7", 3, 2, 1)


def test_parts_of_units_merge_as_if_they_had_been_read_at_once(tmp_path: Path) -> None:
    """Whatever is null, whatever queues a unit holds, and also where a session's arrivals go back between two units."""
    chance = random.Random(7)
    rows = []
    for queue in range(2):
        for number in range(1, 301):
            made = message(number, chance.uniform(0, 90), queue=in_queue(queue), size_bytes=chance.randint(0, 300_000))
            made["session_id"] = chance.choice([None, "a", "A", "b", "c"])
            made["destination"] = chance.choice([None, "orders", "invoices"])
            made["ttl_ms"] = chance.choice([None, 1000, MINUTE_MS * 100])
            made["enqueued_at"] = chance.choice([made["enqueued_at"]] * 9 + [None])
            rows.append(made)
    file = write(tmp_path / "a.parquet", rows, row_group_size=75)
    whole = parts(ReadUnit(((file, tuple(range(8))),), 600, False))
    apart = [parts(ReadUnit(((file, (group,)),), 75, False)) for group in range(8)]
    left, right = apart[:3], apart[3:]
    for merged in (apart, [merged_parts(left), merged_parts(right)], [apart[0], merged_parts(apart[1:])]):
        together_again = merged_parts(merged)
        assert rows_of(together_again[0].size) == rows_of(whole[0].size)
        assert rows_of(together_again[0].time) == rows_of(whole[0].time)
        assert rows_of(together_again[1]) == rows_of(whole[1])
        names = [(one["queue"], one["destination"], one["session_id"].lower()) for one in rows_of(together_again[1])]
        assert len(names) == len(set(names)), "spellings that differ in case are one session"
    within = sum(sum(part[1]["inversions"].to_pylist()) for part in apart)
    assert sum(whole[1]["inversions"].to_pylist()) > within


def parts(unit: ReadUnit) -> tuple[Small, pa.Table]:
    found = dict(parts_of(read_unit(unit), QUESTION, 1))
    return found["small", 0], found["session", 0]


def merged_parts(given: Sequence[tuple[Small, pa.Table]]) -> tuple[Small, pa.Table]:
    return merged_small([small for small, _ in given]), merged_sessions([sessions for _, sessions in given])


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=str)


def test_buckets_are_exact_below_sixteen_and_narrow_above() -> None:
    powers = [2**power + step for power in range(4, 52) for step in (-1, 0, 1)]
    numbers = pa.table({"number": [*range(2000), *powers]})
    with database() as base:
        base.register("numbers", numbers)
        base.execute(f"create table buckets as select number, {bucket_sql('number')} as bucket from numbers")
        ends = base.sql(f"select number, {lowest_sql('bucket')}, {highest_sql('bucket')} from buckets").fetchall()
    assert all(low <= number <= high for number, low, high in ends)
    assert all(low == high for number, low, high in ends if number < 16)
    assert all((high - low + 1) * 16 <= max(low, 16) for _, low, high in ends)


def test_the_buckets_of_sizes_are_those_of_any_number() -> None:
    powers = [2**power + step for power in range(4, 46) for step in (-2, -1, 0, 1, 2)]
    with database() as base:
        base.register("numbers", pa.table({"number": [*range(5000), *powers]}))
        other = f"{size_bucket_sql('number')} is distinct from {bucket_sql('number')}"
        assert base.sql(f"select number from numbers where {other}").fetchall() == []


def test_the_forecast_is_bound_by_rate_and_credits() -> None:
    total = Total(pair="shop", messages=1000, bytes=5_000_000, units=1500, dead_letters=0)
    slow = forecast(total, Question(as_of=0, messages_per_second=10), built_in())
    assert (slow.operations, slow.seconds) == (4000, 100.0)
    dearest = built_in().bands(Meter.STANDARD_OPERATIONS)[1].unit_price
    many = replace(total, messages=1_000_000, units=1_500_000)
    assert forecast(many, Question(as_of=0), built_in()).cost_at_most == to_cents(dearest * 4) > 1
    fast = forecast(total, Question(as_of=0, messages_per_second=100_000), built_in())
    assert fast.seconds == 2.5


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


def test_units_hold_neighbouring_pieces_up_to_their_rows() -> None:
    pieces = [*pieces_of(0, 60), *pieces_of(1, 20), *pieces_of(2, 20, 30, 70)]
    assert [unit.rows for unit in units_of(pieces, 100)] == [100, 100]
    assert [unit.rows for unit in units_of(pieces, 10)] == [60, 20, 20, 30, 70]
    assert [unit.rows for unit in units_of(pieces, 1000)] == [200]
    assert units_of([], 10) == []
