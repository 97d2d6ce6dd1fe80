"""Where an estimate's numbers come from: options, a pair, a snapshot, price files."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

from sbpair.core.cost import usage
from sbpair.core.cost.model import (
    AVERAGE_MONTH,
    DOCUMENTED_MONTH,
    SYPHON_MODELS,
    Month,
    SyphonModel,
    Workload,
    calendar_month,
    polling_syphon,
)
from sbpair.core.cost.retail import from_retail
from sbpair.core.durations import parse_duration
from sbpair.core.errors import UsageError
from sbpair.core.prices import DEFAULT_REGION, PriceTable, built_in, exact, from_yaml, retail_query, with_egress
from sbpair.core.redact import quoted
from sbpair.service import Tier

NO_SYPHON = "none"
_COUNT = re.compile(r"[0-9]{1,9}")
_CURRENCY = re.compile(r"[A-Z]{3}")
MOST_KILOBYTES = 100 * 1024
_CALENDAR = re.compile(r"(\d{4})-(0[1-9]|1[0-2])", re.ASCII)


def size_bytes_of(kilobytes: float) -> int:
    """Size of a message given in KB; the service takes up to 100 MB."""
    if not 0 <= kilobytes <= MOST_KILOBYTES:
        raise UsageError(f"--size-kb is 0 to {MOST_KILOBYTES:,} (100 MB), not {kilobytes}.")
    return round(kilobytes * 1024)


def parse_month(text: str) -> Month:
    """`30d` (the documents'), `average` (730 hours), or a real one such as 2026-11."""
    if text == "30d":
        return DOCUMENTED_MONTH
    if text == "average":
        return AVERAGE_MONTH
    match = _CALENDAR.fullmatch(text)
    if match is None:
        raise UsageError(f"--month {quoted(text)} is none of 30d, average and a month such as 2026-11.")
    return calendar_month(int(match[1]), int(match[2]))


def parse_counts(text: str | None, option: str, least: int) -> tuple[int, ...]:
    """`5` or `5,10,20`."""
    if text is None:
        return ()
    counts = []
    for part in text.split(","):
        if not _COUNT.fullmatch(part.strip()) or int(part) < least:
            raise UsageError(f"{option} {quoted(text)}: {quoted(part)} is not a whole number of {least} or more.")
        counts.append(int(part))
    return tuple(dict.fromkeys(counts))


def parse_syphons(text: str) -> tuple[SyphonModel | None, ...]:
    """`documented`, `sdk`, `none`, a poll length such as 15m, or several of them."""
    known = {model.name: model for model in SYPHON_MODELS}
    models: list[SyphonModel | None] = []
    for part in (piece.strip() for piece in text.split(",")):
        if part == NO_SYPHON:
            models.append(None)
        elif part in known:
            models.append(known[part])
        else:
            models.append(polling_syphon(round(parse_duration(part))))
    return tuple(dict.fromkeys(models))


def parse_tiers(text: str | None) -> tuple[Tier, ...]:
    if text is None:
        return ()
    try:
        return tuple(dict.fromkeys(Tier(part.strip().capitalize()) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"--tier {quoted(text)}: the tiers are Basic, Standard and Premium.") from None


def parse_share(text: str | None, option: str) -> Fraction | None:
    """`2.5%` or `0.025`."""
    if text is None:
        return None
    bare = text.strip()
    share = Fraction(exact(bare.removesuffix("%"), f"{option} {quoted(text)}")) / (100 if bare.endswith("%") else 1)
    if share > 1:
        raise UsageError(f"{option} {quoted(text)} is more than the whole; write a percentage as 2.5%.")
    return share


def price_table(
    files: Sequence[Path], *, region: str | None, currency: str | None, egress_per_gigabyte: str | None
) -> PriceTable:
    """The prices to use: of files, completed from the built-in ones of the same currency; or the built-in ones.

    Raises:
        UsageError: an unreadable or wrong file, or no built-in prices for the region and currency.
    """
    table = _from_files(files, region, currency) if files else _built_in(region or DEFAULT_REGION, currency)
    if egress_per_gigabyte is not None:
        table = with_egress(table, exact(egress_per_gigabyte, "--egress-per-gb"))
    return table


def _built_in(region: str, currency: str | None) -> PriceTable:
    table = built_in(region)
    if currency is not None and currency.upper() != table.currency:
        if not _CURRENCY.fullmatch(currency.upper()):
            raise UsageError(f"{quoted(currency)} is no currency, which has three letters, such as EUR.")
        raise UsageError(
            f"The built-in prices are in {table.currency}, not in {currency.upper()}.",
            hint=f"Save the answer of {retail_query(table.region, currency.upper())} and give it with --prices FILE.",
        )
    return table


def _from_files(files: Sequence[Path], region: str | None, currency: str | None) -> PriceTable:
    source = ", ".join(path.name for path in files)
    documents = [_read(path) for path in files]
    if len(documents) == 1 and isinstance(documents[0], dict) and "meters" in documents[0]:
        table = from_yaml(documents[0], source=source)
    else:
        pages = [page for document in documents for page in (document if isinstance(document, list) else [document])]
        table = from_retail(pages, region=region, currency=currency, source=source)
    return table.with_missing_from(built_in())


def _read(path: Path, noun: str = "prices") -> Any:
    """A JSON document, prices with their numbers exact, or YAML."""
    from sbpair.settings import DocumentError, parse_json, parse_yaml, read_text

    try:
        text = read_text(path)
        if path.suffix.lower() == ".json" or text.lstrip().startswith(("{", "[")):
            return parse_json(text, exact=noun == "prices")
        return parse_yaml(text)
    except DocumentError as error:
        raise UsageError(f"Cannot read the {noun} {path}: {error}") from error


# What was really used, for `cost --usage`: read row by row, so files of any size.


@dataclass(frozen=True, slots=True)
class Usage:
    """What the files say: billed quantities of usage details, traffic of metrics."""

    billed: tuple[usage.Billed, ...] = ()
    traffic: usage.Traffic | None = None


def read_usage(paths: Sequence[Path], month: Month) -> Usage:
    """Metrics (JSON) and usage details (CSV). A calendar month chosen with --month leaves other months' rows out.

    Raises:
        UsageError: an unreadable or wrong file; the message names file and row.
    """
    metrics: list[tuple[str, Any]] = []
    details: list[Iterator[usage.BilledRow]] = []
    for path in paths:
        if path.suffix.lower() == ".json":
            metrics.append((path.name, _read(path, "metrics")))
        else:
            details.append(_details(path))
    chosen = month.label if _CALENDAR.fullmatch(month.label) else None
    billed = usage.add_up(row for row in chain.from_iterable(details) if chosen is None or row.month == chosen)
    if not metrics and not billed:
        when = f" in {chosen}" if chosen else ""
        raise UsageError(f"No usage of Service Bus{when} in {', '.join(path.name for path in paths)}.")
    return Usage(billed, usage.read_metrics(metrics) if metrics else None)


def _details(path: Path) -> Iterator[usage.BilledRow]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            header = next((cells for cells in lines if usage.is_header(cells)), None)
            if header is None:
                raise UsageError(f"{path}: no header of usage details (date, meter name and quantity) found.")
            columns = usage.map_columns(header)
            for cells in lines:
                row = usage.billed_row(columns, cells, f"{path.name}, line {lines.line_num}") if any(cells) else None
                if row is not None:
                    yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"Cannot read the usage details {path}: {error}") from error


def with_traffic(workload: Workload, traffic: usage.Traffic, size_bytes: int) -> Workload:
    """The workload with the messages that the metrics counted, and the share that went to backlog queues, unless the
    options say another one."""
    share = workload.diverted_share if workload.diverted_share is not None else traffic.diverted_share
    if share is None and not workload.outage_seconds:
        share = Fraction(0)
    return replace(workload, flows=traffic.flows(workload.month.hours, size_bytes), diverted_share=share)
