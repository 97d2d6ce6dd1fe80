"""What a series of measured times says: nearest-rank percentiles, which are always a time that was really measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds. Percentiles by nearest rank."""

    count: int
    minimum_seconds: float
    mean_seconds: float
    p50_seconds: float
    p90_seconds: float
    p99_seconds: float
    maximum_seconds: float


def summarise(seconds: Sequence[float]) -> Latency | None:
    """Summary of the times; None when there are none."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    return Latency(
        count=len(ordered),
        minimum_seconds=ordered[0],
        mean_seconds=math.fsum(ordered) / len(ordered),
        p50_seconds=percentile(ordered, 50),
        p90_seconds=percentile(ordered, 90),
        p99_seconds=percentile(ordered, 99),
        maximum_seconds=ordered[-1],
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile of times in ascending order; at least one."""
    rank = max(1, math.ceil(percent / 100 * len(ordered)))
    return ordered[rank - 1]
