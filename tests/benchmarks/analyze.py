"""How fast an archive is analysed, against DuckDB and Polars doing the same on the same files.

    python -m tests.benchmarks.analyze [--huge] [--rows 1000000 --rows 10000000] [--engine spark] [--folder DIR]

Each engine runs in a process of its own; memory is the highest sum of the resident sets of its processes. All get two
threads. `bare` is a Spark session as PySpark starts it with one count over the same files: what Spark costs whatever it
does. Polars and NumPy come with `pip install 'sbpair[bench]'`.
"""

import argparse
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.processes import Memory
from tests.benchmarks.table import Row, print_rows

THREADS = 2
QUICK_ROWS = (100_000,)
FULL_ROWS = (10_000, 1_000_000, 10_000_000)
HUGE_ROWS = 50_000_000
SMALL_ROWS = 10_000
ONE_TASK_ROWS = 500_000
ENGINES = ("spark", "local", "bare", "duckdb", "polars")
OURS = ("spark", "local")
AIMS = {(SMALL_ROWS, "bare"): 1.2, (10_000_000, "polars"): 1.3, (HUGE_ROWS, "duckdb"): 1.2, (HUGE_ROWS, "polars"): 1.2}
"""Spark's time as a multiple of another's, at most. Starts of the session and of libraries are part of all times."""
LINEAR = 1.3
_AS_OF = 1_793_491_200 + 9 * 3600
_TOP = 20
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Figures:
    """One engine at one size. `seconds` is everything."""

    rows: int
    seconds: float
    start_seconds: float
    cpu_seconds: float
    peak_memory_mb: int
    duplicates: int


def run(quick: bool) -> list[dict[str, Any]]:
    """All engines there are; `quick` takes half a minute, the whole some minutes."""
    with tempfile.TemporaryDirectory(prefix="sbpair-analyze-") as folder:
        return [row.as_dict() for row in measure(QUICK_ROWS if quick else FULL_ROWS, ENGINES, Path(folder))]


def measure(sizes: Sequence[int], engines: Sequence[str], folder: Path) -> list[Row]:
    """The same for chosen sizes and engines; archives are made in `folder`, or found there."""
    from tests.benchmarks.backlogs import make_archive

    there = [one for one in engines if one in (*OURS, "bare") or importlib.util.find_spec(one) is not None]
    found: dict[str, list[Figures]] = {engine: [] for engine in there}
    for size in sizes:
        files = make_archive(folder / f"rows-{size}", size)
        for engine in there:
            found[engine].append(_measured(engine, size, files))
    return [row for place, size in enumerate(sizes) for row in _compared(size, found, place)] + list(_growth(found))


def _compared(size: int, found: dict[str, list[Figures]], place: int) -> Iterator[Row]:
    case = f"{size:,} rows"
    at = {engine: figures[place] for engine, figures in found.items()}
    assert len({one.duplicates for engine, one in at.items() if engine != "bare"}) == 1, at
    for engine, one in at.items():
        yield Row("analyze", case, f"time: {engine}", round(one.seconds, 2), "s")
        yield Row("analyze", case, f"rows a second: {engine}", round(size / one.seconds))
        yield Row("analyze", case, f"CPU: {engine}", round(one.cpu_seconds, 1), "s")
        yield Row("analyze", case, f"peak memory: {engine}", one.peak_memory_mb, "MB")
    if "spark" in at:
        yield Row("analyze", case, "session start: spark", round(at["spark"].start_seconds, 1), "s")
        for other in at.keys() - {"spark"}:
            ratio = round(at["spark"].seconds / at[other].seconds, 2)
            aim = AIMS.get((size, other))
            yield Row("analyze", case, f"time: spark / {other}", ratio, "x", at_most=aim)


def _growth(found: dict[str, list[Figures]]) -> Iterator[Row]:
    """From each size to the next: 1 means in proportion to the rows."""
    for engine, figures in found.items():
        for before, after in itertools.pairwise(figures):
            case = f"{before.rows:,} to {after.rows:,} rows"
            grown = (after.seconds / after.rows) / (before.seconds / before.rows)
            aim = LINEAR if engine == "spark" else None
            yield Row("analyze", case, f"time per row grows by: {engine}", round(grown, 2), "x", at_most=aim)
            memory = after.peak_memory_mb / before.peak_memory_mb
            yield Row("analyze", case, f"peak memory grows by: {engine}", round(memory, 2), "x")


def _measured(engine: str, rows: int, files: Sequence[str]) -> Figures:
    """Run one engine in a fresh process and watch its memory."""
    command = [sys.executable, "-m", "tests.benchmarks.analyze", "--child", engine, "--rows", str(rows)]
    process = subprocess.Popen(
        command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "POLARS_MAX_THREADS": "2"}
    )
    memory = Memory(process.pid)
    memory.start()
    output, _ = process.communicate("\n".join(files).encode())
    memory.stop()
    if process.returncode:
        raise RuntimeError(f"{engine} failed at {rows:,} rows")
    told = json.loads(output.decode().splitlines()[-1])
    figures = Figures(rows, cpu_seconds=memory.cpu_seconds, peak_memory_mb=round(memory.highest / 2**20), **told)
    print(f"{figures}, {engine}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    return figures


def _spark(files: Sequence[str], rows: int) -> dict[str, Any]:
    """As `pipeline analyze` does it, the start of the session included."""
    from sbpair.pipeline.analysis.analyze import analyse
    from sbpair.pipeline.analysis.partials import Question
    from sbpair.pipeline.analysis.units import SparkEngine, together, units_in
    from sbpair.pipeline.spark.session import open_spark

    began = time.monotonic()
    units = units_in(files, at_least=THREADS)
    if rows <= ONE_TASK_ROWS:
        units = [together(units)]
    with open_spark(rows=100_000, master=f"local[{THREADS}]") as session:
        started = time.monotonic()
        found = analyse(SparkEngine.over_units(session, units), Question(_AS_OF), rows=rows, top=_TOP)
        ended = time.monotonic()
    return {"seconds": ended - began, "start_seconds": started - began, "duplicates": found.counts["duplicates"]}


def _local(files: Sequence[str], rows: int) -> dict[str, Any]:
    """`pipeline analyze --engine local`."""
    began = time.monotonic()
    from sbpair.pipeline.analysis.analyze import analyse
    from sbpair.pipeline.analysis.partials import Question
    from sbpair.pipeline.analysis.units import LocalEngine, units_in

    started = time.monotonic()
    engine = LocalEngine(units_in(files, at_least=THREADS), cores=THREADS)
    found = analyse(engine, Question(_AS_OF), rows=rows, top=_TOP)
    return {
        "seconds": time.monotonic() - began,
        "start_seconds": started - began,
        "duplicates": found.counts["duplicates"],
    }


def _bare(files: Sequence[str], rows: int) -> dict[str, Any]:
    """What Spark costs whatever it does: a session as PySpark starts it, and one count."""
    from pyspark.sql import SparkSession

    began = time.monotonic()
    session = SparkSession.builder.master(f"local[{THREADS}]").config("spark.ui.enabled", "false").getOrCreate()
    started = time.monotonic()
    assert session.read.parquet(*files).count() == rows
    ended = time.monotonic()
    session.stop()
    return {"seconds": ended - began, "start_seconds": started - began, "duplicates": 0}


_VIEW = """
create view m as select *, epoch_us(enqueued_at) as arrived, greatest(1, ceil(size_bytes / 65536.0))::bigint as units,
  epoch_us(enqueued_at) // 60000000 as minute from read_parquet($files)
"""
_DUCKDB = {
    "destinations": f"""select pair, destination, count(*), sum(size_bytes), sum(units), min(arrived), max(arrived),
        approx_quantile(size_bytes, [0.5, 0.95, 0.99]), approx_quantile({_AS_OF}000000 - arrived, [0.5, 0.95]),
        count(*) filter (size_bytes >= 235930), count(*) filter (arrived + ttl_ms * 1000 <= {_AS_OF}000000),
        approx_count_distinct(session_id) from m group by all""",
    "hours": "select pair, destination, minute // 60, count(*), sum(size_bytes), sum(units) from m group by all",
    "queues": "select pair, queue, dead_letter, dead_letter_reason, count(*), sum(size_bytes), min(arrived), "
    "max(arrived) from m group by all",
    "outages": """with a as (select pair, destination, minute, count(*) n, min(arrived) b, max(arrived) e from m
              group by all),
        g as (select *, (minute - lag(minute) over w > 10)::int as gap from a
              window w as (partition by pair, destination order by minute)),
        r as (select *, sum(gap) over (partition by pair, destination order by minute) as run from g)
        select pair, destination, run, min(b), max(e), sum(n), max(n) from r group by all""",
    "time_to_live": f"""with a as (select pair, destination, minute, ttl_ms, count(*) n, min(arrived) b from m
              group by all),
        t as (select *, sum(n) over (partition by pair order by minute) * 5000 + {_AS_OF}000000 as turn from a)
        select pair, destination, ttl_ms, sum(n), sum(n) filter (b + ttl_ms * 1000 <= turn) from t
        where ttl_ms is not null group by all""",
    "sessions": f"""with o as (select pair, queue, dead_letter, destination, session_id, arrived, sequence_number,
              arrived < lag(arrived) over (partition by pair, queue, dead_letter, destination, session_id
                                 order by sequence_number) as back from m where session_id is not null),
        p as (select pair, queue, destination, session_id, count(*) n, count(*) filter (back) inversions,
              min(arrived) b, max(arrived) e from o group by all),
        q as (select *, b < max(e) over (partition by pair, destination, session_id order by b
              rows between unbounded preceding and 1 preceding) as mixed from p)
        select pair, destination, session_id, sum(n), sum(inversions), count(distinct queue), bool_or(mixed)
        from q group by all order by 5 desc, 6 desc limit {_TOP}""",
    "size_histogram": "select pair, floor(log2(size_bytes) * 8), count(*), sum(size_bytes) from m group by all",
    "duplicates": "select pair, destination, message_id, count(*) c, list(distinct queue), min(arrived), max(arrived) "
    "from m where message_id is not null group by pair, destination, message_id having c > 1",
}


def _duckdb(files: Sequence[str], rows: int) -> dict[str, Any]:
    began = time.monotonic()
    import duckdb

    connection = duckdb.connect(config={"threads": THREADS})
    started = time.monotonic()
    names = ", ".join(f"'{file}'" for file in files)
    connection.execute(_VIEW.replace("$files", f"[{names}]"))
    duplicates = 0
    for name, query in _DUCKDB.items():
        found = connection.execute(query).fetchall()
        duplicates = len(found) if name == "duplicates" else duplicates
    return {"seconds": time.monotonic() - began, "start_seconds": started - began, "duplicates": duplicates}


def _polars(files: Sequence[str], rows: int) -> dict[str, Any]:
    began = time.monotonic()
    import polars as pl

    started = time.monotonic()
    at = pl.col("enqueued_at").dt.epoch("us")
    messages = pl.scan_parquet(list(files)).with_columns(
        at=at, minute=at // 60_000_000, units=((pl.col("size_bytes") + 65535) // 65536).clip(1)
    )
    place = ["pair", "destination"]
    size, count = pl.col("size_bytes"), pl.len()
    ages = _AS_OF * 1_000_000 - pl.col("at")
    in_queue = ["pair", "queue", "dead_letter", "destination", "session_id"]
    minutes = messages.group_by(*place, "minute").agg(count.alias("n"), b=pl.col("at").min(), e=pl.col("at").max())
    lives = messages.filter(pl.col("ttl_ms").is_not_null()).group_by(*place, "minute", "ttl_ms")
    behind = pl.col("at") < pl.col("at").shift(1).over(in_queue, order_by="sequence_number")
    sessions = (
        messages.filter(pl.col("session_id").is_not_null())
        .with_columns(back=behind)
        .group_by(in_queue)
        .agg(count.alias("n"), inversions=pl.col("back").sum(), b=pl.col("at").min(), e=pl.col("at").max())
        .group_by("pair", "destination", "session_id")
        .agg(pl.col("n").sum(), pl.col("inversions").sum(), queues=pl.col("queue").n_unique())
        .sort("inversions", "queues", descending=True)
        .limit(_TOP)
    )
    gap = (pl.col("minute") - pl.col("minute").shift(1).over(place, order_by="minute") > 10).fill_null(False)
    run_of = pl.col("gap").cum_sum().over(place, order_by="minute")
    queries = {
        "destinations": messages.group_by(place).agg(
            count,
            size.sum(),
            pl.col("units").sum(),
            pl.col("at").min().alias("first"),
            pl.col("at").max().alias("last"),
            *(size.quantile(share).alias(f"size{share}") for share in (0.5, 0.95, 0.99)),
            *(ages.quantile(share).alias(f"age{share}") for share in (0.5, 0.95)),
            (size >= 235_930).sum().alias("near"),
            (pl.col("at") + pl.col("ttl_ms") * 1000 <= _AS_OF * 1_000_000).sum().alias("over"),
            pl.col("session_id").approx_n_unique().alias("sessions"),
        ),
        "hours": messages.group_by(*place, pl.col("minute") // 60).agg(count, size.sum(), pl.col("units").sum()),
        "queues": messages.group_by("pair", "queue", "dead_letter", "dead_letter_reason").agg(count, size.sum()),
        "outages": minutes.with_columns(gap=gap)
        .with_columns(run=run_of)
        .group_by(*place, "run")
        .agg(pl.col("b").min(), pl.col("e").max(), pl.col("n").sum()),
        "time_to_live": lives.agg(count.alias("n"), b=pl.col("at").min())
        .group_by(*place, "ttl_ms")
        .agg(pl.col("n").sum()),
        "sessions": sessions,
        "size_histogram": messages.group_by("pair", (size.log(2) * 8).floor()).agg(count, size.sum().alias("bytes")),
        "duplicates": messages.filter(pl.col("message_id").is_not_null())
        .group_by(*place, "message_id")
        .agg(count.alias("c"), pl.col("queue").unique(), pl.col("at").min().alias("b"))
        .filter(pl.col("c") > 1),
    }
    duplicates = 0
    for name, query in queries.items():
        found = query.collect(engine="streaming")
        duplicates = found.height if name == "duplicates" else duplicates
    return {"seconds": time.monotonic() - began, "start_seconds": started - began, "duplicates": duplicates}


_RUNNERS: dict[str, Callable[[Sequence[str], int], dict[str, Any]]] = {
    "spark": _spark,
    "local": _local,
    "bare": _bare,
    "duckdb": _duckdb,
    "polars": _polars,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, action="append", help="repeatable; default 1 and 10 million")
    parser.add_argument("--huge", action="store_true", help="50 million besides")
    parser.add_argument("--engine", choices=ENGINES, action="append", help="repeatable; default all")
    parser.add_argument("--folder", type=Path, help="keep the archives here")
    parser.add_argument("--child", choices=ENGINES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        told = _RUNNERS[given.child](sys.stdin.read().splitlines(), given.rows[0])
        print(json.dumps(told))
        return
    sizes = [*(given.rows or FULL_ROWS), *([HUGE_ROWS] if given.huge else [])]
    with tempfile.TemporaryDirectory(prefix="sbpair-analyze-") as temporary:
        rows = measure(sizes, given.engine or ENGINES, given.folder or Path(temporary))
    print_rows([row.as_dict() for row in rows])


if __name__ == "__main__":
    main()
