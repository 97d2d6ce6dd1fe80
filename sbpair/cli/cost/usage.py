"""What was really used, for `cost --usage`: read row by row, so files of any size."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

from sbpair.core.cost.model import Month, Workload
from sbpair.core.cost.usage import (
    Billed,
    BilledRow,
    Traffic,
    add_up,
    billed_row,
    is_header,
    map_columns,
    read_metrics,
)
from sbpair.core.errors import UsageError

_CALENDAR = re.compile(r"\d{4}-\d{2}")


@dataclass(frozen=True, slots=True)
class Usage:
    """What the files say: billed quantities of usage details, traffic of metrics."""

    billed: tuple[Billed, ...] = ()
    traffic: Traffic | None = None


def read_usage(paths: Sequence[Path], month: Month) -> Usage:
    """Metrics (JSON) and usage details (CSV). A calendar month chosen with --month leaves other months' rows out.

    Raises:
        UsageError: an unreadable or wrong file; the message names file and row.
    """
    metrics: list[tuple[str, Any]] = []
    details: list[Iterator[BilledRow]] = []
    for path in paths:
        if path.suffix.lower() == ".json":
            metrics.append((path.name, _json(path)))
        else:
            details.append(_details(path))
    chosen = month.label if _CALENDAR.fullmatch(month.label) else None
    billed = add_up(row for row in chain.from_iterable(details) if chosen is None or row.month == chosen)
    if not metrics and not billed:
        when = f" in {chosen}" if chosen else ""
        raise UsageError(f"No usage of Service Bus{when} in {', '.join(path.name for path in paths)}.")
    return Usage(billed, read_metrics(metrics) if metrics else None)


def _json(path: Path) -> Any:
    from sbpair.settings import DocumentError, parse_json, read_text

    try:
        return parse_json(read_text(path))
    except DocumentError as error:
        raise UsageError(f"Cannot read the metrics {path}: {error}") from error


def _details(path: Path) -> Iterator[BilledRow]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            header = next((cells for cells in lines if is_header(cells)), None)
            if header is None:
                raise UsageError(f"{path}: no header of usage details (date, meter name and quantity) found.")
            columns = map_columns(header)
            for cells in lines:
                row = billed_row(columns, cells, f"{path.name}, line {lines.line_num}") if any(cells) else None
                if row is not None:
                    yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"Cannot read the usage details {path}: {error}") from error


def with_traffic(workload: Workload, traffic: Traffic, size_bytes: int) -> Workload:
    """The workload with the messages that the metrics counted, and the share that went to backlog queues, unless the
    options say another one."""
    share = workload.diverted_share if workload.diverted_share is not None else traffic.diverted_share
    if share is None and not workload.outage_seconds:
        share = Fraction(0)
    return replace(workload, flows=traffic.flows(workload.month.hours, size_bytes), diverted_share=share)
