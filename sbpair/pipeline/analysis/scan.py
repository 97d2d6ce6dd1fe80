"""The roll-up of `partials`, made inside the executors over the files of an archive, whole columns at a time.

    partials = scan(spark, files, question, cores=2)      # None: use SQL

The driver reads the footers of the files only. It cuts them into *units* of neighbouring row groups. Row groups whose
numbers overlap (an archive run that was broken off and repeated leaves the same messages twice) stand in one unit,
which drops the repetitions. Each Spark task reads neighbouring units with PyArrow, one after the other, and gives back
far fewer rows, which Spark adds up: a row costs the JVM thirty times what a message costs the task.

Each kind of rows is a read of its own with tasks of its own, so that the JVM is given no column that a kind lacks.
Equal message ids may lie in any two units; each task that searches for them reads the ids of all units but keeps the
hashes of its share only, sorts them, and comes back for the rows whose hash occurred twice.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from sbpair.pipeline.analysis.partials import KINDS, Partials, columns_of
from sbpair.pipeline.analysis.question import Question
from sbpair.pipeline.schemas import struct

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT = "sbpair-analysis"
LEAST_UNIT_ROWS, MOST_UNIT_ROWS = 250_000, 2_000_000
"""Larger units give fewer rows to add up; a unit of 2 million takes about 300 MB."""
TASKS_PER_CORE = 2
ROWS_PER_SHARE = 25_000_000
"""Most hashes one task holds (with their places and while they are sorted 20 bytes each)."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring row groups of one file, all of one queue, with their range of numbers."""

    path: str
    groups: tuple[int, ...]
    place: tuple[str, str, bool]
    """Pair, queue, dead letter."""
    first: int
    last: int
    rows: int


@dataclass(frozen=True, slots=True)
class Unit:
    """What is read at once: (path, row groups), by queue and number."""

    parts: tuple[tuple[str, tuple[int, ...]], ...]
    rows: int
    overlapping: bool
    """The same message may be in it more than once; then all of it is of one queue."""


def scan(spark: "SparkSession", files: Sequence[str], question: Question, *, cores: int) -> Partials | None:
    """The roll-up of an archive's files; None if they cannot be cut by queue (a row group with several queues)."""
    pieces = _pieces(files)
    if pieces is None:
        return None
    rows = sum(piece.rows for piece in pieces)
    each = max(rows // (cores * TASKS_PER_CORE), LEAST_UNIT_ROWS)
    tasks = tasks_of(units_of(pieces, min(each, MOST_UNIT_ROWS)), each)
    plan = json.dumps(
        {
            "tasks": [[asdict(unit) for unit in task] for task in tasks],
            "question": asdict(question),
            "shares": shares_for(rows, cores),
        }
    )
    spark.dataSource.register(AnalysisSource)
    return Partials(**{kind: spark.read.format(FORMAT).options(plan=plan, kind=kind).load() for kind in KINDS})


def shares_for(rows: int, cores: int) -> int:
    """Tasks that look for equal ids: every core one, and more where their hashes would not fit."""
    return max(1, cores, -(-rows // ROWS_PER_SHARE))


def _pieces(files: Sequence[str]) -> list[Piece] | None:
    import pyarrow.parquet as pq

    found = []
    for path in files:
        metadata = pq.read_metadata(path)
        columns = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
        for group in (index for index in range(metadata.num_row_groups) if metadata.row_group(index).num_rows):
            piece = _piece(path, group, metadata.row_group(group), columns)
            if piece is None:
                return None
            found.append(piece)
    return found


def _piece(path: str, group: int, described: Any, columns: dict[str, int]) -> Piece | None:
    ends = {}
    for name in ("pair", "queue", "dead_letter", "sequence_number"):
        statistics = described.column(columns[name]).statistics if name in columns else None
        if statistics is None or not statistics.has_min_max:
            return None
        ends[name] = (statistics.min, statistics.max)
    if any(low != high for name, (low, high) in ends.items() if name != "sequence_number"):
        return None
    place = (str(ends["pair"][0]), str(ends["queue"][0]), bool(ends["dead_letter"][0]))
    return Piece(path, (group,), place, *ends["sequence_number"], described.num_rows)


def units_of(pieces: Sequence[Piece], most_rows: int) -> list[Unit]:
    """Pieces in units of about `most_rows`; pieces that overlap are never parted, and stand alone. A queue begins a new
    unit where the one before is half full: a session that is cut in two costs twice."""
    units: list[Unit] = []
    waiting: list[Piece] = []
    for cluster in _clusters(pieces):
        alone = len(cluster) > 1
        rows = sum(piece.rows for piece in waiting)
        other_queue = bool(waiting) and waiting[-1].place != cluster[0].place
        full = rows + sum(piece.rows for piece in cluster) > most_rows or (other_queue and 2 * rows >= most_rows)
        if waiting and (alone or full):
            units.append(_unit(waiting))
            waiting = []
        if alone:
            units.append(_unit(cluster, overlapping=True))
        else:
            waiting += cluster
    return [*units, _unit(waiting)] if waiting else units


def tasks_of(units: Sequence[Unit], most_rows: int) -> list[list[Unit]]:
    """Neighbouring units in tasks of about `most_rows`, one at least."""
    tasks: list[list[Unit]] = []
    for unit in units:
        if tasks and sum(one.rows for one in tasks[-1]) + unit.rows <= most_rows:
            tasks[-1].append(unit)
        else:
            tasks.append([unit])
    return tasks


def _clusters(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Pieces of one queue whose ranges of numbers overlap, together."""
    cluster: list[Piece] = []
    highest = 0
    for piece in sorted(pieces, key=lambda one: (one.place, one.first, one.last)):
        if cluster and (piece.place != cluster[0].place or piece.first > highest):
            yield cluster
            cluster = []
        highest = max(highest, piece.last) if cluster else piece.last
        cluster.append(piece)
    if cluster:
        yield cluster


def _unit(pieces: Sequence[Piece], *, overlapping: bool = False) -> Unit:
    groups: dict[str, list[int]] = {}
    for piece in pieces:
        groups.setdefault(piece.path, []).extend(piece.groups)
    parts = tuple((path, tuple(chosen)) for path, chosen in groups.items())
    return Unit(parts, sum(piece.rows for piece in pieces), overlapping)


@dataclass
class _Work(InputPartition):
    """One task: units to roll up, or a share of the message ids."""

    units: tuple[Unit, ...]
    share: int | None = None
    shares: int = 1

    def __init__(self, units: tuple[Unit, ...], share: int | None = None, shares: int = 1) -> None:
        super().__init__(None)
        self.units, self.share, self.shares = units, share, shares


class AnalysisSource(DataSource):
    """Spark's name for the scan."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> "StructType":
        return struct(columns_of(self.options["kind"]))

    def reader(self, schema: "StructType") -> DataSourceReader:
        return _Reader(self.options["kind"], json.loads(self.options["plan"]))


class _Reader(DataSourceReader):
    def __init__(self, kind: str, plan: dict[str, Any]) -> None:
        self._kind = kind
        self._question = Question(**plan["question"])
        self._shares = int(plan["shares"])
        self._tasks = [tuple(_unit_again(unit) for unit in task) for task in plan["tasks"]]

    def partitions(self) -> list[InputPartition]:
        if self._kind != "duplicate":
            return [_Work(task) for task in self._tasks] or [_Work(())]
        units = tuple(unit for task in self._tasks for unit in task)
        return [_Work(units, share, self._shares) for share in range(self._shares if units else 1)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        from sbpair.pipeline.analysis.rolling import equal_ids, roll_up

        work = partition
        if not isinstance(work, _Work):
            raise TypeError(f"{type(work).__name__} is not a part of this plan")
        if work.share is None:
            yield from roll_up(self._kind, work.units, self._question)
        else:
            yield from equal_ids(work.units, work.share, work.shares, self._question)


def _unit_again(described: dict[str, Any]) -> Unit:
    """A unit that went through JSON."""
    parts = tuple((path, tuple(groups)) for path, groups in described["parts"])
    return Unit(parts, described["rows"], described["overlapping"])
