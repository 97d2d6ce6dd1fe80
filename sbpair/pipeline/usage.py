"""Usage files of any size: Spark adds up what is alike, `core.usage` reads what is left, so the numbers are the same.

Usage details come as CSV, one row a day, resource and meter, with headers that differ by agreement. Rows with equal
texts are added up before anybody looks at the texts. Metrics come as answers of `az monitor metrics list` (small, read
whole) or as the JSON lines of a diagnostic setting, which name no entity; older ones hold `{"records": [...]}` a line.
"""

import csv
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sbpair.core.errors import UsageError
from sbpair.core.usage import (
    BilledRow,
    EntityTraffic,
    Field,
    Metric,
    Traffic,
    billed_row,
    is_header,
    map_columns,
    read_metrics,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_HEADER_WITHIN = 50
"""Lines in which the header has to be."""
_POINT = "resourceId string, time string, metricName string, timeGrain string, total double"
_DIAGNOSTIC = f"{_POINT}, records array<struct<{_POINT.replace(' ', ': ').replace(',:', ',')}>>"
_SUMMED = (Field.QUANTITY, Field.COST)


@dataclass(frozen=True, slots=True)
class MonthTraffic:
    """Messages of one entity in one month (`2026-02`)."""

    month: str
    entity: EntityTraffic


@dataclass(frozen=True, slots=True)
class Used:
    """What the files say."""

    billed: tuple[BilledRow, ...] = ()
    traffic: Traffic | None = None
    months: tuple[MonthTraffic, ...] = ()


def read_usage(spark: "SparkSession", paths: Sequence[str]) -> Used:
    """Usage details (CSV), metrics (JSON documents) and diagnostic lines (JSON); files or folders of one kind each.

    Raises:
        UsageError: none of these, an unreadable row, or metrics of both kinds together.
    """
    billed: list[BilledRow] = []
    documents: list[tuple[str, Any]] = []
    lines: list[str] = []
    for path in paths:
        first = _first_lines(spark, path)
        if not any(line.strip() for line in first):
            raise UsageError(f"{path} is empty.")
        if not first[0].lstrip("\ufeff \t").startswith(("{", "[")):
            billed += details(spark, path, first)
        elif _is_diagnostic(first[0]):
            lines.append(path)
        else:
            documents += _documents(spark, path)
    if documents and lines:
        raise UsageError("Metrics and diagnostic lines count the same messages: give one kind of them.")
    if documents:
        return Used(tuple(billed), read_metrics(documents), tuple(_by_month(documents)))
    if lines:
        traffic, months = diagnostics(spark, lines)
        return Used(tuple(billed), traffic, months)
    return Used(tuple(billed))


def _first_lines(spark: "SparkSession", path: str) -> list[str]:
    try:
        return [row.value for row in spark.read.text(path).limit(_HEADER_WITHIN).collect()]
    except Exception as error:
        if "PATH_NOT_FOUND" in str(error):
            raise UsageError(f"There is no {path}.") from error
        raise


def _is_diagnostic(line: str) -> bool:
    """A whole record, or a whole list of them, on one line."""
    try:
        read = json.loads(line.lstrip("\ufeff"))
    except ValueError:
        return False
    return isinstance(read, dict) and ("metricName" in read or "records" in read)


def details(spark: "SparkSession", path: str, first: Sequence[str]) -> Iterator[BilledRow]:
    """Rows of usage details about Service Bus, those with equal texts added up."""
    header = next((cells for cells in csv.reader(first) if is_header(cells)), None)
    if header is None:
        raise UsageError(f"{path}: no header of usage details (date, meter name and quantity) found.")
    columns = map_columns(header)
    fields = list(columns)
    places = {field: place for place, field in enumerate(fields)}
    schema = ", ".join(f"c{index} string" for index in range(len(header)))
    cells = spark.read.schema(schema).csv(path, quote='"', escape='"')
    for row in _added_up(cells, columns, header).collect():
        if row["unreadable"] is not None:
            raise UsageError(f"{path}: {row['unreadable']!r} is not a number of a quantity or cost.")
        texts = [_text(row[field.name]) for field in fields]
        found = billed_row(places, texts, path)
        if found is not None:
            yield found


def _added_up(cells: "DataFrame", columns: Mapping[Field, int], header: Sequence[str]) -> "DataFrame":
    """Quantity and cost summed over rows whose other texts are equal, without the header and other services' rows."""
    from pyspark.sql import functions as F

    def cell(field: Field) -> Any:
        return F.trim(F.coalesce(F.col(f"c{columns[field]}"), F.lit("")))

    rows = cells.where(cell(Field.METER) != header[columns[Field.METER]].strip())
    if Field.CATEGORY in columns:
        key = F.regexp_replace(F.lower(cell(Field.CATEGORY)), "[^a-z0-9]", "")
        rows = rows.where(key.contains("servicebus") | (key == ""))
    texts = [cell(field).alias(field.name) for field in columns if field not in _SUMMED]
    numbers = [field for field in _SUMMED if field in columns]
    bare = {field: F.replace(cell(field), F.lit(","), F.lit("")) for field in numbers}
    exact = {field: F.expr("null").cast("decimal(38,18)") for field in numbers}
    exact |= {field: F.when(bare[field] != "", bare[field]).try_cast("decimal(38,18)") for field in numbers}
    wrong = F.coalesce(*(F.when(exact[field].isNull() & (bare[field] != ""), cell(field)) for field in numbers))
    named = rows.select(*texts, *(exact[field].alias(field.name) for field in numbers), wrong.alias("wrong"))
    keys = [field.name for field in columns if field not in _SUMMED]
    return named.groupBy(*keys).agg(
        *(F.sum(field.name).alias(field.name) for field in numbers), F.max("wrong").alias("unreadable")
    )


def _text(value: Any) -> str:
    return "" if value is None else f"{value.normalize():f}" if isinstance(value, Decimal) else str(value)


def _documents(spark: "SparkSession", path: str) -> list[tuple[str, Any]]:
    found = []
    for row in spark.read.text(path, wholetext=True).selectExpr("value", "_metadata.file_name as name").collect():
        try:
            found.append((row["name"], json.loads(row["value"].lstrip("\ufeff"))))
        except ValueError as error:
            raise UsageError(f"Cannot read the metrics {row['name']}: {error}") from error
    return found


def _by_month(documents: Sequence[tuple[str, Any]]) -> Iterator[MonthTraffic]:
    """The documents once for each month, with the points of that month only."""
    months = sorted({month for _, document in documents for month in _months_in(document)})
    for month in months:
        own = [(name, _only(month, document)) for name, document in documents]
        for entity in read_metrics(own).entities:
            if entity.incoming or entity.outgoing or entity.completed or entity.abandoned:
                yield MonthTraffic(month, entity)


def _months_in(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key.lower() == "timestamp" and isinstance(item, str):
                yield item[:7]
            else:
                yield from _months_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _months_in(item)


def _only(month: str, value: Any) -> Any:
    """A copy without the data points of other months."""
    if isinstance(value, Mapping):
        return {key: _only(month, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_only(month, item) for item in value if _in_month(month, item)]
    return value


def _in_month(month: str, item: Any) -> bool:
    times = [value for key, value in item.items() if key.lower() == "timestamp"] if isinstance(item, Mapping) else []
    return not times or str(times[0])[:7] == month


def diagnostics(spark: "SparkSession", paths: Sequence[str]) -> tuple[Traffic, tuple[MonthTraffic, ...]]:
    """Traffic of whole namespaces out of diagnostic lines of both forms."""
    from pyspark.sql import functions as F

    read = spark.read.schema(_DIAGNOSTIC).json(list(paths))
    single = read.where("metricName is not null").select("resourceId", "time", "metricName", "timeGrain", "total")
    nested = read.where("records is not null").select(F.explode("records").alias("one")).select("one.*")
    points = single.unionByName(nested).select(
        F.lower(F.regexp_extract("resourceId", r"(?i)/namespaces/([^/]+)", 1)).alias("namespace"),
        F.lower("metricName").alias("metric"),
        F.to_timestamp("time").alias("at"),
        F.coalesce("total", F.lit(0.0)).alias("total"),
    )
    counted = (
        points.where("at is not null")
        .groupBy("namespace", "metric", F.date_format("at", "yyyy-MM").alias("month"))
        .agg(F.sum("total").alias("total"), F.min(F.unix_seconds("at")), F.max(F.unix_seconds("at")))
        .collect()
    )
    known = [row for row in counted if row["metric"] in list(Metric)]
    if not any(row["total"] for row in known if row["metric"] == Metric.INCOMING):
        raise UsageError("The diagnostic lines hold no incoming messages of Service Bus.")
    seconds = max(row[5] for row in known) - min(row[4] for row in known) + _GRAIN_SECONDS
    whole: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for row in known:
        for month in ("", row["month"]):
            totals = whole[month, row["namespace"]]
            totals[row["metric"]] = totals.get(row["metric"], 0) + round(row["total"])
    found = {(month, namespace): _traffic_of(namespace, totals) for (month, namespace), totals in sorted(whole.items())}
    months = tuple(MonthTraffic(month, one) for (month, _), one in found.items() if month)
    return Traffic(tuple(one for (month, _), one in found.items() if not month), float(seconds)), months


_GRAIN_SECONDS = 60
"""Diagnostic lines have one point a minute (PT1M), named by its beginning."""


def _traffic_of(namespace: str, totals: Mapping[str, int]) -> EntityTraffic:
    incoming, outgoing, completed, abandoned = (totals.get(metric, 0) for metric in Metric)
    return EntityTraffic(namespace, "", incoming, outgoing, completed, abandoned)
