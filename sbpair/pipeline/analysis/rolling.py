"""What a task of the scan does with units: read the columns, group, add up; or search for equal message ids."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sbpair.core.billing import STEP_BYTES
from sbpair.pipeline.analysis.buckets import bucket_of
from sbpair.pipeline.analysis.columns_at_once import Coded, Groups, coded_names, coded_numbers
from sbpair.pipeline.analysis.fingerprints import hashes_of, mixed, repeated, share_of
from sbpair.pipeline.analysis.partials import columns_of
from sbpair.pipeline.analysis.question import MICROS_PER_MINUTE, Question
from sbpair.pipeline.schemas import arrow_schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sbpair.pipeline.analysis.scan import Unit

    Numbers = NDArray[np.int64]

_NAMES = ("pair", "queue", "dead_letter_reason", "destination", "session_id")
_BATCH_ROWS = 50_000


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of rows: what it is made of, what it is grouped by, how its numbers are added up. `messages` is always
    a sum."""

    read: tuple[str, ...]
    """Columns of the messages."""
    texts: tuple[str, ...]
    numbers: tuple[str, ...]
    """Keys that are whole numbers or null."""
    sums: tuple[str, ...]
    highest: tuple[str, ...] = ("last_at",)

    @property
    def keys(self) -> tuple[str, ...]:
        return self.texts + self.numbers


_SIZE = _Kind(
    ("pair", "queue", "dead_letter", "dead_letter_reason", "destination", "size_bytes", "is_ping", "enqueued_at"),
    ("pair", "queue", "dead_letter", "reason", "destination"),
    ("bucket",),
    ("bytes", "units", "near_limit", "pings"),
    ("last_at", "largest"),
)
_TIME = _Kind(
    ("pair", "destination", "dead_letter", "enqueued_at", "ttl_ms", "size_bytes"),
    ("pair", "destination", "dead_letter"),
    ("minute", "bucket"),
    ("bytes", "units", "expired"),
)
_SESSION = _Kind(
    ("pair", "queue", "dead_letter", "destination", "session_id", "sequence_number", "enqueued_at", "size_bytes"),
    ("pair", "queue", "dead_letter", "destination", "session_id"),
    (),
    ("bytes",),
)
_KINDS: Final = {"size": _SIZE, "time": _TIME, "session": _SESSION}


def roll_up(kind: str, units: Iterable["Unit"], question: Question) -> Iterator[pa.RecordBatch]:
    """The rows of one kind (size, time or session) of neighbouring units, each key once."""
    tables = (read_unit(unit, _KINDS[kind].read) for unit in units)
    parts = [part for table in tables if table.num_rows and (part := _ROLLS[kind](table, question)).num_rows]
    if parts:
        yield from _batches(kind, _joined(_KINDS[kind], parts))


def _joined(kind: _Kind, parts: Sequence[pa.Table]) -> pa.Table:
    """Rows of several units, added up."""
    if len(parts) == 1:
        return parts[0]
    table = pa.concat_tables(parts)
    keys = [coded_names(table.column(name)) for name in kind.texts]
    for name in kind.numbers:
        column = table.column(name)
        keys.append(coded_numbers(column.fill_null(0).to_numpy(), column.is_valid().to_numpy()))
    values = {name: table.column(name).to_numpy() for name in table.column_names if name not in kind.keys}
    return _in_sequence(keys, values) if kind is _SESSION else _added_up(kind, Groups(keys), values)


def _added_up(kind: _Kind, groups: Groups, values: Mapping[str, "NDArray[Any]"]) -> pa.Table:
    """One row a group. Without `messages` among the values every row counts as one message."""
    return pa.table(
        {
            **dict(zip(kind.keys, groups.keys(), strict=True)),
            "messages": groups.sums(values["messages"]) if "messages" in values else groups.rows(),
            **{name: groups.sums(values[name]) for name in kind.sums},
            "first_at": groups.lowest(values["first_at"]),
            **{name: groups.highest(values[name]) for name in kind.highest},
        }
    )


def _in_sequence(keys: Sequence[Coded], values: Mapping[str, "Numbers"]) -> pa.Table:
    """The same for sessions, with their inversions: rows are taken in the order of their numbers, and where one was
    entered before the one ahead of it was left, there is one more. What lies in other tasks is joined by Spark."""
    numbers = values["first_number"]
    order = slice(None) if (np.diff(numbers) >= 0).all() else np.argsort(numbers, kind="stable")
    sorted_values = {name: column[order] for name, column in values.items()}
    groups = Groups([key.picked(order) for key in keys])
    if not groups.count:
        return pa.table({})
    rows, starts = groups.together()
    ends = np.append(starts[1:], len(rows)) - 1
    entered, left = sorted_values["entered_at"][rows], sorted_values["left_at"][rows]
    back = np.concatenate(([False], entered[1:] < left[:-1]))
    back[starts] = False
    between = np.add.reduceat(back.astype(np.int64), starts)
    within = groups.sums(sorted_values["inversions"]) if "inversions" in values else 0
    table = _added_up(_SESSION, groups, sorted_values)
    of_sequence = {
        "inversions": between + within,
        "entered_at": entered[starts],
        "left_at": left[ends],
        "first_number": sorted_values["first_number"][rows][starts],
    }
    for name, column in of_sequence.items():
        table = table.append_column(name, pa.array(column))
    return table


def read_unit(unit: "Unit", columns: Iterable[str]) -> pa.Table:
    """The unit's messages in the order of their numbers, each once."""
    wanted = list(columns)
    needed = list(dict.fromkeys((*wanted, "sequence_number", "enqueued_at"))) if unit.overlapping else wanted
    names = [name for name in _NAMES if name in wanted]
    tables = []
    for path, groups in unit.parts:
        with pq.ParquetFile(path, read_dictionary=names, pre_buffer=False) as file:
            tables.append(file.read_row_groups(list(groups), columns=needed, use_threads=False))
    table = pa.concat_tables(tables)
    return _each_once(table) if unit.overlapping else table


def _each_once(table: pa.Table) -> pa.Table:
    """Sorted by number and arrival, repetitions dropped: within a queue these two tell messages apart."""
    numbers, at = _numbers(table, "sequence_number"), _numbers(table, "enqueued_at")
    order = np.lexsort((at, numbers))
    again = (np.diff(numbers[order]) == 0) & (np.diff(at[order]) == 0)
    return table.take(pa.array(order[np.concatenate(([True], ~again))]))


def _numbers(table: pa.Table, name: str, null: int = 0) -> "Numbers":
    column = table.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz))
    numbers: Numbers = column.cast(pa.int64()).fill_null(null).to_numpy()
    return numbers


def _sizes(table: pa.Table, question: Question) -> pa.Table:
    size, at = _numbers(table, "size_bytes"), _numbers(table, "enqueued_at", question.as_of_micros)
    names = ("pair", "queue", "dead_letter", "dead_letter_reason", "destination")
    return _added_up(
        _SIZE,
        Groups([*(coded_names(table.column(name)) for name in names), coded_numbers(bucket_of(size))]),
        {
            "bytes": size,
            "units": _steps(size),
            "near_limit": size >= question.near_bytes,
            "pings": table.column("is_ping").fill_null(False).to_numpy(),
            "largest": size,
            "first_at": at,
            "last_at": at,
        },
    )


def _times(table: pa.Table, question: Question) -> pa.Table:
    size, at = _numbers(table, "size_bytes"), _numbers(table, "enqueued_at", question.as_of_micros)
    ttl_ms = _numbers(table, "ttl_ms", -1)
    mortal = ttl_ms >= 0
    minute, lived = coded_numbers(at // MICROS_PER_MINUTE), coded_numbers(bucket_of(np.maximum(ttl_ms, 0)), mortal)
    return _added_up(
        _TIME,
        Groups([*(coded_names(table.column(name)) for name in _TIME.texts), minute, lived]),
        {
            "bytes": size,
            "units": _steps(size),
            "expired": mortal & (at + ttl_ms * 1000 <= question.as_of_micros),
            "first_at": at,
            "last_at": at,
        },
    )


def _steps(size_bytes: "Numbers") -> "Numbers":
    return np.maximum(1, -(-size_bytes // STEP_BYTES))


def _sessions(table: pa.Table, question: Question) -> pa.Table:
    table = table.filter(pc.is_valid(table.column("session_id")))
    at = _numbers(table, "enqueued_at", question.as_of_micros)
    return _in_sequence(
        [coded_names(table.column(name)) for name in _SESSION.texts],
        {
            "bytes": _numbers(table, "size_bytes"),
            "first_number": _numbers(table, "sequence_number"),
            **dict.fromkeys(("first_at", "last_at", "entered_at", "left_at"), at),
        },
    )


_ROLLS: Final = {"size": _sizes, "time": _times, "session": _sessions}


def _batches(kind: str, table: pa.Table) -> Iterator[pa.RecordBatch]:
    """The columns as Spark wants them."""
    schema = arrow_schema(columns_of(kind))
    yield from table.select(schema.names).cast(schema).to_batches(max_chunksize=_BATCH_ROWS)


def equal_ids(units: Sequence["Unit"], share: int, shares: int, question: Question) -> Iterator[pa.RecordBatch]:
    """The messages of one share of the hashes whose hash occurs more than once, over all units."""
    found: list[tuple[NDArray[np.uint64], NDArray[np.uint32]]] = []
    for unit in units:
        hashes, rows = _hashed(unit)
        mine = share_of(hashes, shares) == share if shares > 1 else slice(None)
        found.append((hashes[mine], rows[mine]))
    several = repeated(np.concatenate([np.empty(0, np.uint64), *(hashes for hashes, _ in found)]))
    if not len(several):
        return
    for unit, (hashes, rows) in zip(units, found, strict=True):
        places = np.minimum(np.searchsorted(several, hashes), len(several) - 1)
        chosen = rows[several[places] == hashes]
        if len(chosen):
            yield from _batches("duplicate", _duplicates(unit, chosen, question))


def _hashed(unit: "Unit") -> tuple["NDArray[np.uint64]", "NDArray[np.uint32]"]:
    """Hashes of the destination and id of every message that has one, and its row."""
    table = read_unit(unit, ("destination", "message_id", "pair"))
    ids = table.column("message_id").combine_chunks()
    known = np.flatnonzero(pc.is_valid(ids).to_numpy(zero_copy_only=False))
    hashes = hashes_of(ids if len(known) == len(ids) else ids.drop_null())
    for name in ("destination", "pair"):
        coded = coded_names(table.column(name))
        names = coded.decoded(np.arange(coded.size)).fill_null("")
        hashes = mixed(hashes + hashes_of(names)[coded.codes[known]])
    return hashes, known.astype(np.uint32)


def _duplicates(unit: "Unit", rows: "NDArray[np.uint32]", question: Question) -> pa.Table:
    columns = ("pair", "destination", "message_id", "queue", "dead_letter", "enqueued_at")
    table = read_unit(unit, columns).take(pa.array(rows))
    at = _numbers(table, "enqueued_at", question.as_of_micros)
    return pa.table({**{name: table.column(name) for name in columns[:5]}, "first_at": at})
