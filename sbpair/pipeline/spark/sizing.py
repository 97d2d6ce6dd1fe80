"""Heap, shuffle partitions and compiler, from the rows that are expected. Measured on two cores; see the constants."""

import math
import os
from dataclasses import dataclass

GIB = 1024**3
SMALL_ROWS = 1_000_000
"""Below this the quick compiler alone is faster; above it doubles the time of heavy jobs."""
ROWS_PER_SHUFFLE_PARTITION = 600_000
MOST_SHUFFLE_PARTITIONS = 64
_UNKNOWN_MEMORY_BYTES = 4 * GIB


@dataclass(frozen=True, slots=True)
class Sizing:
    """How a JVM and its jobs are set up."""

    heap_bytes: int
    shuffle_partitions: int
    quick_compiler: bool

    @property
    def heap(self) -> str:
        """In the form of -Xmx and spark.driver.memory."""
        return f"{self.heap_bytes // 1024**2}m"


def sizing_for(rows: int | None, *, memory_bytes: int | None = None) -> Sizing:
    """The set-up for that many rows (None: unknown, taken for a few million)."""
    memory = memory_bytes if memory_bytes is not None else physical_memory_bytes()
    expected = 5 * SMALL_ROWS if rows is None else rows
    # A small job is over before the second compiler has paid for itself, and two partitions keep both cores busy.
    if expected < SMALL_ROWS:
        return Sizing(_bounded(GIB, memory, 0.25), 2, True)
    # The rest of the memory is for the Python workers, one a core, which hold a batch of messages each, and for the
    # page cache under the shuffle files.
    wanted = (2 if expected < 5 * SMALL_ROWS else 4 if expected <= 20 * SMALL_ROWS else 8) * GIB
    partitions = min(max(2, math.ceil(expected / ROWS_PER_SHUFFLE_PARTITION)), MOST_SHUFFLE_PARTITIONS)
    return Sizing(_bounded(wanted, memory, 0.4), partitions, False)


def _bounded(wanted: int, memory: int, share: float) -> int:
    # Spark's driver does not start with less than about 450 MB, whatever share of a small machine that is.
    return max(min(wanted, int(memory * share)), GIB // 2)


def physical_memory_bytes() -> int:
    """Memory of this machine; an assumption where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return _UNKNOWN_MEMORY_BYTES
