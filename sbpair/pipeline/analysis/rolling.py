"""What a task of the scan does with a unit: read the columns, group, add up; or search for equal message ids."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sbpair.core.billing import STEP_BYTES
from sbpair.pipeline.analysis.buckets import bucket_of
from sbpair.pipeline.analysis.columns_at_once import Coded, Groups, coded_names, coded_numbers
from sbpair.pipeline.analysis.fingerprints import hashes_of, mixed, repeated, share_of
from sbpair.pipeline.analysis.partials import PARTIAL_COLUMNS, SCANNED
from sbpair.pipeline.analysis.question import MICROS_PER_MINUTE, Question
from sbpair.pipeline.schemas import arrow_schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sbpair.pipeline.analysis.scan import Unit

    Numbers = NDArray[np.int64]

_NAMES = ("pair", "queue", "dead_letter_reason", "destination", "session_id")
_BATCH_ROWS = 50_000


def roll_up(unit: "Unit", question: Question) -> Iterator[pa.RecordBatch]:
    """The rows of kinds size, time and session of one unit."""
    table = read_unit(unit, [name for name in SCANNED if name != "message_id"])
    if not table.num_rows:
        return
    messages = _Messages(table, question)
    yield from _batches("size", _sizes(messages))
    yield from _batches("time", _times(messages))
    yield from _batches("session", _sessions(messages))


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


class _Messages:
    """The columns of a unit as numbers and codes, with what follows from them."""

    def __init__(self, table: pa.Table, question: Question) -> None:
        self.pair, self.queue, self.reason, self.destination, self.session = (
            coded_names(table.column(name)) for name in _NAMES
        )
        self.dead_letter = coded_names(table.column("dead_letter"))
        self.number = _numbers(table, "sequence_number")
        self.at = _numbers(table, "enqueued_at", question.as_of_micros)
        self.size = _numbers(table, "size_bytes")
        self.steps = np.maximum(1, -(-self.size // STEP_BYTES))
        self.near = self.size >= question.near_bytes
        self.ping = table.column("is_ping").fill_null(False).to_numpy()
        self.ttl = _numbers(table, "ttl_ms", -1)
        self.over = (self.ttl >= 0) & (self.at + self.ttl * 1000 <= question.as_of_micros)

    def in_order(self) -> bool:
        """Whether the numbers of each queue rise from row to row, as archives are written."""
        same_queue = np.diff(self.queue.codes * self.dead_letter.size + self.dead_letter.codes) == 0
        return bool((np.diff(self.number)[same_queue] >= 0).all())


def _sizes(messages: _Messages) -> dict[str, Any]:
    bucket = coded_numbers(bucket_of(messages.size))
    keys = (messages.pair, messages.queue, messages.dead_letter, messages.reason, messages.destination, bucket)
    groups = Groups(keys)
    return {
        **_named(groups, ("pair", "queue", "dead_letter", "reason", "destination", "bucket")),
        "messages": groups.rows(),
        "bytes": groups.sums(messages.size),
        "units": groups.sums(messages.steps),
        "near_limit": groups.sums(messages.near),
        "pings": groups.sums(messages.ping),
        "largest": groups.highest(messages.size),
        "first_at": groups.lowest(messages.at),
        "last_at": groups.highest(messages.at),
    }


def _times(messages: _Messages) -> dict[str, Any]:
    minute = coded_numbers(messages.at // MICROS_PER_MINUTE)
    lived = coded_numbers(bucket_of(np.maximum(messages.ttl, 0)), messages.ttl >= 0)
    groups = Groups((messages.pair, messages.destination, messages.dead_letter, minute, lived))
    return {
        **_named(groups, ("pair", "destination", "dead_letter", "minute", "bucket")),
        "messages": groups.rows(),
        "bytes": groups.sums(messages.size),
        "units": groups.sums(messages.steps),
        "expired": groups.sums(messages.over),
        "first_at": groups.lowest(messages.at),
        "last_at": groups.highest(messages.at),
    }


def _sessions(messages: _Messages) -> dict[str, Any]:
    """Each session's messages in the order of their numbers; a unit's ends are joined to its neighbours' by Spark."""
    rows = np.flatnonzero(messages.session.codes != messages.session.size - 1)
    if not messages.in_order():
        rows = rows[np.argsort(messages.number[rows], kind="stable")]
    keys: list[Coded] = [
        key.picked(rows)
        for key in (messages.pair, messages.queue, messages.dead_letter, messages.destination, messages.session)
    ]
    groups = Groups(keys)
    if not groups.count:
        return {}
    places, starts = groups.together()
    ends = np.append(starts[1:], len(places)) - 1
    at, number = messages.at[rows][places], messages.number[rows][places]
    back = np.concatenate(([False], at[1:] < at[:-1]))
    back[starts] = False
    return {
        **_named(groups, ("pair", "queue", "dead_letter", "destination", "session_id")),
        "messages": groups.rows(),
        "bytes": groups.sums(messages.size[rows]),
        "inversions": np.add.reduceat(back.astype(np.int64), starts),
        "first_at": np.minimum.reduceat(at, starts),
        "last_at": np.maximum.reduceat(at, starts),
        "entered_at": at[starts],
        "left_at": at[ends],
        "first_number": number[starts],
        "last_number": number[ends],
    }


def _named(groups: Groups, names: Sequence[str]) -> dict[str, pa.Array]:
    return dict(zip(names, groups.keys(), strict=True))


def _batches(kind: str, columns: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """The columns as Spark wants them, the missing ones null."""
    if not columns:
        return
    rows = len(next(iter(columns.values())))
    schema = arrow_schema(PARTIAL_COLUMNS)
    arrays = [
        pa.array([kind]).take(pa.nulls(rows, pa.int64()).fill_null(0))
        if field.name == "kind"
        else _as_arrow(columns[field.name], field.type)
        if field.name in columns
        else pa.nulls(rows, field.type)
        for field in schema
    ]
    yield from pa.Table.from_arrays(arrays, schema=schema).to_batches(max_chunksize=_BATCH_ROWS)


def _as_arrow(column: Any, kind: pa.DataType) -> pa.Array:
    array = column if isinstance(column, (pa.Array, pa.ChunkedArray)) else pa.array(column)
    return array.cast(kind)


def equal_ids(units: Sequence["Unit"], share: int, shares: int, question: Question) -> Iterator[pa.RecordBatch]:
    """The messages of one share of the hashes whose hash occurs more than once, over all units."""
    found: list[tuple[NDArray[np.uint64], NDArray[np.uint32]]] = []
    for unit in units:
        hashes, rows = _hashed(unit)
        mine = share_of(hashes, shares) == share if shares > 1 else slice(None)
        found.append((hashes[mine], rows[mine]))
    several = repeated(np.concatenate([hashes for hashes, _ in found]))
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


def _duplicates(unit: "Unit", rows: "NDArray[np.uint32]", question: Question) -> dict[str, Any]:
    columns = ("pair", "destination", "message_id", "queue", "dead_letter", "sequence_number", "enqueued_at")
    table = read_unit(unit, columns).take(pa.array(rows))
    return {
        **{name: table.column(name) for name in columns[:5]},
        "first_number": _numbers(table, "sequence_number"),
        "first_at": _numbers(table, "enqueued_at", question.as_of_micros),
    }
