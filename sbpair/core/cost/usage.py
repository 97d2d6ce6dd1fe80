"""What was really used: usage-details files of every agreement type, and Azure Monitor metrics, as numbers to compare.

Usage details are CSV files whose headers differ by agreement (Enterprise, Microsoft Customer, pay-as-you-go, partner)
and version, in spelling, case and spaces; `COLUMNS` knows them all. What reads rows (a small file here, a large one
in Spark) maps its header with `map_columns` and gives every row to `billed_row`: the numbers are the same either way.

Metrics are what `az monitor metrics list` or the REST API answers. They count messages and requests; they are not the
meter, so an estimate from them is an estimate.
"""

import calendar
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from fractions import Fraction
from typing import Any

from sbpair.core.cost.model import Flow
from sbpair.core.errors import UsageError
from sbpair.core.names import parse_backlog_queue_path
from sbpair.core.prices import MILLION, UNITS, Meter, is_countable
from sbpair.core.redact import quoted


class UsageField(StrEnum):
    """What is read of a usage-details row."""

    DATE = "date"
    CATEGORY = "category"
    METER = "meter"
    QUANTITY = "quantity"
    UNIT = "unit"
    COST = "cost"
    CURRENCY = "currency"
    RESOURCE = "resource"
    SUBSCRIPTION = "subscription"
    CHARGE_TYPE = "charge type"


COLUMNS: Mapping[UsageField, tuple[str, ...]] = {
    UsageField.DATE: ("date", "usagedate", "usagedatetime", "usagestartdate", "chargeperiodstart"),
    UsageField.CATEGORY: ("metercategory", "xskumetercategory", "servicename", "consumedservice"),
    UsageField.METER: ("metername", "xskumetername", "skumeter", "meter"),
    UsageField.QUANTITY: ("quantity", "usagequantity", "consumedquantity"),
    UsageField.UNIT: ("unitofmeasure", "unit", "consumedunit", "pricingunit"),
    UsageField.COST: ("costinbillingcurrency", "cost", "pretaxcost", "extendedcost", "billedcost"),
    UsageField.CURRENCY: ("billingcurrency", "billingcurrencycode", "currency", "currencycode"),
    UsageField.RESOURCE: ("resourceid", "instanceid", "instancename", "resourcename"),
    UsageField.SUBSCRIPTION: ("subscriptionid", "subscriptionguid", "subaccountid", "subscriptionname"),
    UsageField.CHARGE_TYPE: ("chargetype", "chargecategory"),
}
"""Names of each field's column as `column_key` writes them, the best one first."""
REQUIRED = (UsageField.DATE, UsageField.METER, UsageField.QUANTITY)
SERVICE = "servicebus"
_METERS = {
    "basicmessagingoperations": Meter.BASIC_OPERATIONS,
    "standardbaseunit": Meter.STANDARD_BASE,
    "standardmessagingoperations": Meter.STANDARD_OPERATIONS,
    "standardbrokeredconnection": Meter.STANDARD_CONNECTIONS,
    "standardbrokeredconnections": Meter.STANDARD_CONNECTIONS,
    "premiummessagingunit": Meter.PREMIUM_UNIT,
    "premiummessagingunits": Meter.PREMIUM_UNIT,
}
_NOT_USAGE = frozenset({"purchase", "refund", "tax", "credit", "adjustment"})
_UNIT = re.compile(r"(?P<number>[\d,]*(?:\.\d*)?)\s*(?P<scale>[km](?![a-z]))?s?[\s/]*(?P<name>[a-z ]*)", re.IGNORECASE)
_SCALES = {"": 1, "k": 1000, "m": MILLION}
_ISO_MONTH = re.compile(r"(\d{4})-?(\d{2})-?\d{2}(?:[T ].*)?")
_US_DATE = re.compile(r"(\d{1,2})/\d{1,2}/(\d{4})(?:\s.*)?")
_HOURS_A_DAY = 24
_MOST_MESSAGES = 10**15
"""More than this a metric does not count in a minute, a day or a month."""


def column_key(header: str) -> str:
    """A header without case, spaces and signs: `Meter Category`, `meterCategory` and `x_Meter-category` get alike."""
    return "".join(char for char in header.lower() if char.isalnum())


def map_columns(headers: Sequence[str]) -> dict[UsageField, int]:
    """Position of each field that the header has.

    Raises:
        UsageError: a required one is missing; the message names what would do.
    """
    places = {column_key(header): index for index, header in reversed(list(enumerate(headers)))}
    found = {
        field: next(places[name] for name in names if name in places)
        for field, names in COLUMNS.items()
        if any(name in places for name in names)
    }
    for field in REQUIRED:
        if field not in found:
            raise UsageError(f"No column for the {field.value}: none of {', '.join(COLUMNS[field])} is in the header.")
    return found


def is_header(cells: Sequence[str]) -> bool:
    """Whether this line is the header; some exports begin with a title and an empty line."""
    known = {column_key(cell) for cell in cells}
    return all(known.intersection(COLUMNS[field]) for field in REQUIRED)


@dataclass(frozen=True, slots=True)
class BilledRow:
    """One row about Service Bus. `quantity` counts what the meter counts: single operations, hours, connections."""

    month: str
    """`2026-02`."""
    subscription: str
    resource: str
    meter: str
    """Our name of the meter, or the file's for one that no estimate knows."""
    quantity: Decimal
    cost: Decimal
    currency: str


def billed_row(columns: Mapping[UsageField, int], cells: Sequence[str], where: str) -> BilledRow | None:
    """The row, or None where it is about another service, or no usage (a purchase, a refund, tax).

    Raises:
        UsageError: an unreadable date, quantity, unit or cost; the message begins with `where`.
    """

    def text(field: UsageField) -> str:
        index = columns.get(field)
        return cells[index].strip() if index is not None and index < len(cells) else ""

    name = text(UsageField.METER)
    known = _METERS.get(column_key(name))
    category = column_key(text(UsageField.CATEGORY))
    if (SERVICE not in category if category else known is None) or column_key(
        text(UsageField.CHARGE_TYPE)
    ) in _NOT_USAGE:
        return None
    month = _month(text(UsageField.DATE), where)
    return BilledRow(
        month=month,
        subscription=text(UsageField.SUBSCRIPTION).rpartition("/")[2].lower(),
        resource=text(UsageField.RESOURCE).rpartition("/")[2].lower(),
        meter=known.value if known is not None else name,
        quantity=_decimal(text(UsageField.QUANTITY), where, "quantity")
        * _counted_in(text(UsageField.UNIT), known, month, where),
        cost=_decimal(text(UsageField.COST) or "0", where, "cost"),
        currency=text(UsageField.CURRENCY).upper(),
    )


def _month(text: str, where: str) -> str:
    if match := _ISO_MONTH.fullmatch(text):
        year, month = match[1], match[2]
    elif match := _US_DATE.fullmatch(text):
        year, month = match[2], match[1]
    else:
        raise UsageError(f"{where}: {quoted(text)} is not a date such as 2026-02-28 or 02/28/2026.")
    if not 1 <= int(month) <= 12:
        raise UsageError(f"{where}: {quoted(text)} has no month {int(month)}.")
    return f"{year}-{int(month):02}"


def _decimal(text: str, where: str, what: str) -> Decimal:
    try:
        value = Decimal(text.replace(",", ""))
    except InvalidOperation:
        value = Decimal("NaN")
    if not is_countable(value):
        raise UsageError(f"{where}: the {what} {quoted(text)} is not a number.")
    return value


def _counted_in(unit: str, meter: Meter | None, month: str, where: str) -> Decimal:
    """How many single operations, hours or connections one of the row's units is: 1M, 10K, 1/Hour, 100 Hours."""
    if not unit:
        return Decimal(UNITS[meter].size if meter is not None else 1)
    match = _UNIT.fullmatch(" ".join(unit.split()))
    number = _decimal(match["number"] or "1", where, "unit") if match is not None else None
    if match is None or number is None:
        raise UsageError(f"{where}: the unit {quoted(unit)} is not known; units are such as 1M, 10K, 1 Hour.")
    by_the_month = meter is Meter.STANDARD_BASE and match["name"].strip().lower() in ("month", "months")
    return number * _SCALES[(match["scale"] or "").lower()] * (_hours(month) if by_the_month else 1)


def _hours(month: str) -> int:
    year, number = (int(part) for part in month.split("-"))
    return calendar.monthrange(year, number)[1] * _HOURS_A_DAY


@dataclass(frozen=True, slots=True)
class MeterUsage:
    """What one subscription used of one meter in one month."""

    month: str
    subscription: str
    meter: str
    quantity: Decimal
    cost: Decimal
    currency: str


def add_up(rows: Iterable[BilledRow]) -> tuple[MeterUsage, ...]:
    """The rows by month, subscription, meter and currency, in that order."""
    quantities: defaultdict[tuple[str, str, str, str], Decimal] = defaultdict(Decimal)
    costs: defaultdict[tuple[str, str, str, str], Decimal] = defaultdict(Decimal)
    for row in rows:
        key = (row.month, row.subscription, row.meter, row.currency)
        quantities[key] += row.quantity
        costs[key] += row.cost
    return tuple(
        MeterUsage(month, subscription, meter, quantities[key], costs[key], currency)
        for key in sorted(quantities)
        for month, subscription, meter, currency in (key,)
    )


class UsageMetric(StrEnum):
    """Service Bus metrics that an estimate can use."""

    INCOMING = "incomingmessages"
    OUTGOING = "outgoingmessages"
    COMPLETED = "completemessage"
    ABANDONED = "abandonmessage"


@dataclass(frozen=True, slots=True)
class EntityTraffic:
    """Messages of one entity in the time the metrics cover; an empty entity: of the whole namespace."""

    namespace: str
    entity: str
    incoming: int = 0
    outgoing: int = 0
    completed: int = 0
    abandoned: int = 0

    @property
    def is_backlog(self) -> bool:
        return parse_backlog_queue_path(self.entity) is not None


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the metrics say; `seconds` is the time they cover."""

    entities: tuple[EntityTraffic, ...]
    seconds: float

    @property
    def diverted_share(self) -> Fraction | None:
        """Share of the messages that went to backlog queues; None if there were no messages, or no entity is named."""
        total = sum(one.incoming for one in self.entities)
        diverted = sum(one.incoming for one in self.entities if one.is_backlog)
        if not total or not any(one.entity for one in self.entities):
            return None
        return Fraction(diverted, total)

    def flows(self, hours: int, size_bytes: int) -> tuple[Flow, ...]:
        """A month of the same traffic, rounded up. Diverted messages are counted with those sent, since that is where
        they were to go; which entity it was, metrics do not tell, so they are spread over all in proportion."""
        own = [one for one in self.entities if not one.is_backlog and one.incoming]
        direct = sum(one.incoming for one in own)
        total = sum(one.incoming for one in self.entities)
        factor = Fraction(hours * 3600) / Fraction(self.seconds)
        return tuple(
            Flow(
                one.entity or one.namespace,
                math.ceil(Fraction(one.incoming * total, direct) * factor),
                size_bytes,
                max(1, round(Fraction(one.outgoing, one.incoming))),
            )
            for one in own
        )


def read_metrics(documents: Sequence[tuple[str, Any]]) -> Traffic:
    """Metrics of one or more (name, JSON document): each the answer for one namespace.

    Raises:
        UsageError: not such an answer, a metric without totals, or answers for different lengths of time; the message
            names the document.
    """
    counted: defaultdict[tuple[str, str], dict[UsageMetric, int]] = defaultdict(dict)
    spans = set()
    for name, document in documents:
        answer = _lower(document)
        if not isinstance(answer, Mapping) or not isinstance(answer.get("value"), list):
            raise UsageError(f"{name}: no list `value`; this is no answer of `az monitor metrics list`.")
        spans.add(_seconds(answer.get("timespan"), name))
        for namespace, entity, metric, total in _totals(answer["value"], name):
            own = counted[namespace, entity]
            own[metric] = own.get(metric, 0) + total
    if len(spans) > 1:
        raise UsageError("The metrics cover different lengths of time: ask for the same --start-time and --end-time.")
    entities = tuple(
        EntityTraffic(
            namespace,
            entity,
            totals.get(UsageMetric.INCOMING, 0),
            totals.get(UsageMetric.OUTGOING, 0),
            totals.get(UsageMetric.COMPLETED, 0),
            totals.get(UsageMetric.ABANDONED, 0),
        )
        for (namespace, entity), totals in sorted(counted.items())
    )
    if not any(one.incoming for one in entities):
        raise UsageError(
            "The metrics hold no incoming messages.",
            hint="az monitor metrics list --resource ID --metrics IncomingMessages OutgoingMessages "
            "--aggregation Total --dimension EntityName --start-time ... --end-time ...",
        )
    return Traffic(entities, spans.pop())


def _lower(value: Any) -> Any:
    """The document with all keys in lower case: the CLI and the REST API spell them differently."""
    if isinstance(value, Mapping):
        return {str(key).lower(): _lower(item) for key, item in value.items()}
    return [_lower(item) for item in value] if isinstance(value, list) else value


def _seconds(timespan: Any, name: str) -> float:
    try:
        begin, end = (datetime.fromisoformat(part.replace("Z", "+00:00")) for part in str(timespan).split("/"))
        seconds = (end - begin).total_seconds()
    except (ValueError, TypeError):
        seconds = 0.0
    if seconds <= 0:
        raise UsageError(f"{name}: `timespan` is {quoted(timespan)}, not two times with a `/` between them.")
    return seconds


def _totals(metrics: Sequence[Any], where: str) -> Iterator[tuple[str, str, UsageMetric, int]]:
    for number, entry in enumerate(metrics, 1):
        try:
            name = column_key(entry["name"]["value"])
            namespace = _namespace(str(entry.get("id", "")))
            series = [_read_series(one) for one in entry["timeseries"]] if name in list(UsageMetric) else []
        except (TypeError, KeyError, AttributeError, ValueError):
            raise UsageError(
                f"{where}: metric {number} has no `name` and `timeseries`, or not as metrics do."
            ) from None
        for entity, totals in series:
            if totals and all(total is _NO_TOTAL for total in totals):
                raise UsageError(f"{where}: {name} has no totals; ask for --aggregation Total.")
            counted = sum((_count(total, f"{where}: {name}") for total in totals), Decimal(0))
            yield namespace, "" if entity == "-NamespaceOnlyMetric-" else entity, UsageMetric(name), math.ceil(counted)


_NO_TOTAL = object()


def _read_series(one: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Entity and totals of one series; what is not like that raises what Python raises."""
    values = {column_key(pair["name"]["value"]): pair["value"] for pair in one.get("metadatavalues") or ()}
    totals = [point.get("total", _NO_TOTAL) for point in one.get("data") or ()]
    return str(values.get("entityname", "")), totals


def _count(total: Any, where: str) -> Decimal:
    """One total; minutes in which nothing happened have none."""
    if total is None or total is _NO_TOTAL:
        return Decimal(0)
    counted = (
        _decimal(str(total), where, "total") if type(total) in (int, float) and abs(total) < _MOST_MESSAGES else None
    )
    if counted is None or counted < 0:
        raise UsageError(f"{where}: the total {quoted(total)} is not a number of messages.")
    return counted


def _namespace(resource: str) -> str:
    match = re.search(r"/namespaces/([^/]+)", resource, re.IGNORECASE)
    return match[1].lower() if match else ""
