"""Made-up archives of any size: the same rows for the same numbers, in the columns and file layout of real ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sbpair.pipeline.rows import MESSAGE_COLUMNS, arrow_schema

QUEUES = 10
DESTINATIONS = 40
FILE_ROWS = 250_000
ROW_GROUP_ROWS = 50_000
START_MICROS = 1_793_491_200_000_000
"""2026-11-01T00:00:00Z: when the made-up outage begins."""
OUTAGE_SECONDS = 8 * 3600
_SIZES = (400, 2_000, 9_000, 70_000, 240_000)
_SIZE_SHARES = (0.45, 0.35, 0.15, 0.04, 0.01)


def make_archive(folder: Path, rows: int) -> list[str]:
    """Write an archive of `rows` messages over ten queues; files that are there already are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    per_queue = rows // QUEUES
    files = []
    for queue in range(QUEUES):
        for first in range(0, per_queue, FILE_ROWS):
            count = min(FILE_ROWS, per_queue - first)
            path = folder / f"{queue}-{first:012}-{count}.parquet"
            if not path.exists():
                _write(path, _table(queue, first, count, per_queue))
            files.append(str(path))
    return files


def _write(path: Path, table: pa.Table) -> None:
    unfinished = path.with_suffix(".tmp")
    pq.write_table(table, unfinished, compression="zstd", row_group_size=ROW_GROUP_ROWS)
    unfinished.rename(path)


def _table(queue: int, first: int, count: int, per_queue: int) -> pa.Table:
    """Sessions stay in one queue but for one in a hundred; one message in a hundred is the one before it again."""
    random = np.random.default_rng((queue, first))
    numbers = np.arange(first, first + count, dtype=np.int64)
    at = START_MICROS + (numbers + random.random(count)) * (OUTAGE_SECONDS * 1_000_000 / per_queue)
    late = random.random(count) < 0.001
    at = np.where(late, at - 5_000_000, at).astype(np.int64)
    home = np.where(random.random(count) < 0.01, 0, queue)
    session = random.integers(0, max(per_queue // 20, 1), count) * QUEUES + home
    again = random.random(count) < 0.01
    again[0] = False
    session[again] = session[np.flatnonzero(again) - 1]
    destination = np.abs(session * 7919 % 1009 - session % 900) % DESTINATIONS
    ids = numbers - again
    sizes = random.choice(_SIZES, count, p=_SIZE_SHARES) + random.integers(0, 300, count)
    lives = random.choice(np.array([-1, 3_600_000, 86_400_000]), count, p=(0.5, 0.3, 0.2))
    columns: dict[str, Any] = {
        "pair": _constant("shop", count),
        "queue": _constant(f"shop-weu/x-servicebus-transfer/{queue}", count),
        "dead_letter": pa.array(np.zeros(count, dtype=bool)),
        "sequence_number": pa.array(numbers + 1),
        "enqueued_at": pa.array(at).cast(pa.timestamp("us", "UTC")),
        "state": _constant("active", count),
        "delivery_count": pa.array(np.zeros(count, dtype=np.int32)),
        "destination": _chosen([f"orders/{place:02}" for place in range(DESTINATIONS)], destination),
        "message_id": _ids(ids, queue),
        "session_id": pa.array(session, mask=random.random(count) < 0.3).cast(pa.string()),
        "ttl_ms": pa.array(lives, mask=lives < 0),
        "is_ping": pa.array(np.zeros(count, dtype=bool)),
        "body_kind": _constant("data", count),
        "body_bytes": pa.array(sizes - 200),
        "size_bytes": pa.array(sizes),
    }
    schema = arrow_schema()
    arrays = [
        columns[name].cast(schema.field(name).type) if name in columns else pa.nulls(count, schema.field(name).type)
        for name, *_ in MESSAGE_COLUMNS
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _constant(text: str, count: int) -> pa.Array:
    return pa.array([text]).take(pa.array(np.zeros(count, dtype=np.int64)))


def _chosen(names: list[str], codes: Any) -> pa.Array:
    return pa.array(names).take(pa.array(codes))


def _ids(numbers: Any, queue: int) -> pa.Array:
    """Texts of 36 characters in the manner of a GUID, different for every (queue, number)."""
    mixed = (numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(queue << 60)
    low = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xD6E8FEB86659FD93)
    digits = np.empty((len(numbers), 36), dtype=np.uint8)
    alphabet = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    places = [place for place in range(36) if place not in (8, 13, 18, 23)]
    for index, place in enumerate(places):
        source = mixed if index < 16 else low
        digits[:, place] = alphabet[((source >> np.uint64(4 * (index % 16))) & np.uint64(15)).astype(np.int64)]
    digits[:, (8, 13, 18, 23)] = ord("-")
    offsets = np.arange(0, 36 * (len(numbers) + 1), 36, dtype=np.int32)
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(digits))
