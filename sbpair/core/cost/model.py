"""What a pair costs a month: from a workload to operations, from operations to money, every line with its rule.

Rules ("Paired Namespaces: Implementation Details and Cost", its part on cost; Service Bus pricing):
* A send, receive or delete is one operation per started 64 KB; each completion, empty receive, ping and management call
  is one operation.
* A diverted message is charged four times: sent to the backlog, received from it, sent to the primary, received from
  the primary. Under peek-lock each receive is completed, which comes on top on today's bill.
* The syphon polls every backlog queue; the documented one holds each receive for 15 minutes: 10 queues are 40 receives
  an hour, 960 a day, 28,800 in 30 days.
* While an entity is unavailable each client process pings it once per ping interval.
* Tier Standard has one base charge and one set of operation bands per Azure subscription, however many namespaces.

An estimate is a list-price upper bound: it is no bill, and metrics are not the meter.
"""

import calendar
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction

from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.core.pairing import Side
from sbpair.core.prices import Charge, Forecast, Meter, PriceTable, charge, steps
from sbpair.core.replication.settings import IDLE_SESSION_REQUEST_SECONDS
from sbpair.core.serialization import Money, published
from sbpair.core.words import counted
from sbpair.service import Tier

HOUR_SECONDS = 3600
GIGABYTE = 1_000_000_000
"""Bandwidth is billed in GB; taken as 10^9 bytes, the more expensive reading."""
_DOCUMENTED = "paired namespaces, cost implications"
_PRICING = "Service Bus pricing"


@dataclass(frozen=True, slots=True)
class Month:
    """The time an estimate is for."""

    label: str
    hours: int


DOCUMENTED_MONTH = Month("30 days", 720)
AVERAGE_MONTH = Month("average month", 730)


def calendar_month(year: int, month: int) -> Month:
    """A real month."""
    return Month(f"{year}-{month:02}", calendar.monthrange(year, month)[1] * 24)


@dataclass(frozen=True, slots=True)
class SyphonModel:
    """How often an idle syphon receives from one backlog queue."""

    name: str
    receives_per_hour: Fraction
    rule: str
    lists_per_hour: Fraction = Fraction(0)
    """How often each process lists the queues, for their counts and for those that are made later."""


DOCUMENTED_SYPHON = SyphonModel("documented", Fraction(4), "one receive is held for 15 minutes")
SDK_SYPHON = SyphonModel(
    "sdk", Fraction(297, 10), "2-minute polls inside 15-minute runs: about 297 an hour for 10 queues"
)
SYPHON_MODELS = (DOCUMENTED_SYPHON, SDK_SYPHON)


def polling_syphon(seconds: int) -> SyphonModel:
    """`sbpair syphon` with polls of that length: its receives wait `seconds` each, and it lists the queues as often.

    Raises:
        UsageError: not a positive time.
    """
    if seconds <= 0:
        raise UsageError(f"A poll interval is more than 0 seconds, not {seconds}.")
    rate = Fraction(HOUR_SECONDS, seconds)
    return SyphonModel(f"poll {format_duration(seconds)}", rate, f"one receive every {seconds} s", rate)


FOLLOW_LIST_SECONDS = 300
"""Once in this time `pipeline follow` lists the queues and browses them from the start, or at each look if these are
rarer."""
_FOLLOW_BROWSES, _FOLLOW_WHOLE_BROWSES = 2, 14
"""What a look into a queue that has messages takes, and a look from the start (with a thousand messages)."""


@dataclass(frozen=True, slots=True)
class Billed:
    """How one namespace is billed. `account`: the Azure subscription, any name."""

    tier: Tier = Tier.STANDARD
    messaging_units: int = 1
    """Premium only."""
    account: str = "subscription"
    regions: int = 1
    """Of Geo-Replication, each with the same messaging units; Premium only."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Messages of one size to one queue or topic in the month. `copies`: 1 for a queue, subscriptions of a topic."""

    entity: str
    messages: int
    size_bytes: int
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Workload:
    """What a pair does in a month. Counts are whole numbers of the month; durations in seconds.

    Raises:
        UsageError: a negative number, or a share outside 0 to 1.
    """

    flows: tuple[Flow, ...] = ()
    primary: Billed = Billed()
    secondary: Billed | None = Billed()
    """None: no pairing."""
    month: Month = DOCUMENTED_MONTH
    queues: int = 10
    hosts: int = 1
    """Processes that run the syphon."""
    syphon: SyphonModel | None = DOCUMENTED_SYPHON
    outage_seconds: int = 0
    diverted_share: Fraction | None = None
    """Share of messages diverted; by default the outage's share of the month."""
    processes: int = 1
    """Client processes that send."""
    ping_interval_seconds: int = 60
    redelivered_share: Fraction = field(default=Fraction(0))
    """Deliveries on the primary that are abandoned and come again."""
    peek_lock: bool = True
    audits: int = 0
    calls_per_audit: int = 0
    follow_every_seconds: int = 0
    """Pause between two looks of `sbpair pipeline follow` into the backlog queues. 0: nobody follows."""
    crossings: int = 2
    """Times a diverted message leaves a region: to the backlog, and back."""
    connections_per_process: int = 1
    """Senders of each entity in a sending process; each has a connection of its own."""
    consumers: int = 1
    """Active/active: processes that run `sbpair replicate consume`."""
    replicated: bool = False
    """Active/active ("Azure Service Bus active/active with guaranteed order"): every message goes to both
    namespaces, and no backlog is needed."""

    def __post_init__(self) -> None:
        numbers = ("queues", "hosts", "consumers", "outage_seconds", "processes", "audits", "calls_per_audit")
        for name in (*numbers, "crossings", "connections_per_process"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} is 0 or more, not {getattr(self, name)}.")
        if self.follow_every_seconds < 0:
            raise UsageError("The pause between two looks is a second or more.")
        if self.ping_interval_seconds < 1:
            raise UsageError("The ping interval is at least 1 second.")
        if any(flow.messages < 0 or flow.size_bytes < 0 or flow.copies < 0 for flow in self.flows):
            raise UsageError("Messages, sizes and copies are 0 or more.")
        for share in (self.diverted_share, self.redelivered_share):
            if share is not None and not 0 <= share <= 1:
                raise UsageError(f"A share is between 0 and 1, not {share}.")

    @property
    def share_diverted(self) -> Fraction:
        if self.secondary is None or self.replicated:
            return Fraction(0)
        if self.diverted_share is not None:
            return self.diverted_share
        return min(Fraction(1), Fraction(self.outage_seconds, self.month.hours * HOUR_SECONDS))

    def diverted(self, flow: Flow) -> int:
        """Messages of the flow that are diverted, rounded up."""
        return math.ceil(flow.messages * self.share_diverted)


class Kind(StrEnum):
    SEND = "send"
    RECEIVE = "receive"
    COMPLETE = "complete"
    DIVERT_SEND = "send to backlog"
    DIVERT_RECEIVE = "receive from backlog"
    DIVERT_COMPLETE = "complete on backlog"
    RETURN_SEND = "send back"
    RETURN_RECEIVE = "receive on the primary"
    RETURN_COMPLETE = "complete on the primary"
    REDELIVERY = "redelivery"
    SYPHON_POLL = "syphon poll"
    PING = "ping"
    SESSION_REQUEST = "session request"
    BROWSE = "browse"
    MANAGEMENT = "management"


@dataclass(frozen=True, slots=True)
class Operations:
    """Billed operations of one kind on one side, with the arithmetic that gave the number."""

    side: Side
    kind: Kind
    label: str
    formula: str
    count: int
    source: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """The month's operations and money, line by line. `total` is exact; round with `billing.to_cents`."""

    month: Month
    currency: str
    prices_dated: str
    prices_source: str
    operations: tuple[Operations, ...]
    charges: tuple[Charge, ...]
    assumptions: tuple[str, ...]

    @published
    def total(self) -> Money:
        """Exact, where the lines are shown in cents."""
        return sum((line.amount for line in self.charges), Decimal(0))

    @published
    def operation_count(self) -> int:
        return sum(line.count for line in self.operations)


def estimate(workload: Workload, prices: PriceTable) -> Estimate:
    """The month's estimate.

    Raises:
        UsageError: the price table lacks a meter that is needed.
    """
    lines = tuple(operations(workload))
    return Estimate(
        month=workload.month,
        currency=prices.currency,
        prices_dated=prices.dated,
        prices_source=prices.source,
        operations=lines,
        charges=tuple(_charges(workload, lines, prices)),
        assumptions=tuple(_assumptions(workload, prices)),
    )


def operations(workload: Workload) -> Iterator[Operations]:
    """All billed operations of the month; lines that count nothing are left out."""
    for line in _all_operations(workload):
        if line.count:
            yield line


def _all_operations(workload: Workload) -> Iterator[Operations]:
    for flow in workload.flows:
        yield from _ordinary(workload, flow)
        if workload.secondary is not None and workload.replicated:
            yield from _ordinary(workload, flow, Side.SECONDARY)
        elif workload.secondary is not None:
            yield from _diverted(workload, flow)
        yield from _redelivered(workload, flow)
    if workload.secondary is not None and not workload.replicated:
        yield from _polls(workload)
        yield from _follow(workload)
        yield from _pings(workload)
    if workload.secondary is not None and workload.replicated:
        yield from _session_requests(workload)
    if workload.secondary is not None:
        yield from _management(workload)


def _size(flow: Flow) -> str:
    return f"{counted(steps(flow.size_bytes), 'billing unit')} of 64 KB ({flow.size_bytes:,} bytes)"


def _ordinary(workload: Workload, flow: Flow, at: Side = Side.PRIMARY) -> Iterator[Operations]:
    messages, k = flow.messages - workload.diverted(flow), steps(flow.size_bytes)
    what = f"{messages:,} {'messages on each side' if workload.replicated else 'undiverted messages'}"
    copies = f" x {flow.copies} copies" if flow.copies != 1 else ""
    to = flow.entity
    yield Operations(at, Kind.SEND, f"send to {to}", f"{what} x {_size(flow)}", messages * k, _PRICING)
    received = messages * flow.copies
    yield Operations(at, Kind.RECEIVE, f"receive from {to}", f"{what}{copies} x {_size(flow)}", received * k, _PRICING)
    if workload.peek_lock:
        yield Operations(at, Kind.COMPLETE, f"complete on {to}", f"{what}{copies} x 1", received, _PRICING)


def _diverted(workload: Workload, flow: Flow) -> Iterator[Operations]:
    """The four charges of "Paired Namespaces: Implementation Details and Cost", and the completions of peek-lock."""
    messages, k = workload.diverted(flow), steps(flow.size_bytes)
    what, size = f"{messages:,} diverted messages", _size(flow)
    copies = f" x {flow.copies} copies" if flow.copies != 1 else ""
    received, secondary, primary = messages * flow.copies, Side.SECONDARY, Side.PRIMARY
    entity = flow.entity
    yield Operations(
        secondary, Kind.DIVERT_SEND, f"send to the backlog for {entity}", f"{what} x {size}", messages * k, _DOCUMENTED
    )
    yield Operations(
        secondary,
        Kind.DIVERT_RECEIVE,
        f"receive from the backlog for {entity}",
        f"{what} x {size}",
        messages * k,
        _DOCUMENTED,
    )
    yield Operations(primary, Kind.RETURN_SEND, f"send back to {entity}", f"{what} x {size}", messages * k, _DOCUMENTED)
    yield Operations(
        primary, Kind.RETURN_RECEIVE, f"receive from {entity}", f"{what}{copies} x {size}", received * k, _DOCUMENTED
    )
    if workload.peek_lock:
        yield Operations(
            secondary, Kind.DIVERT_COMPLETE, f"complete on the backlog for {entity}", f"{what} x 1", messages, _PRICING
        )
        yield Operations(
            primary, Kind.RETURN_COMPLETE, f"complete on {entity}", f"{what}{copies} x 1", received, _PRICING
        )


def _redelivered(workload: Workload, flow: Flow) -> Iterator[Operations]:
    again = math.ceil(flow.messages * flow.copies * workload.redelivered_share)
    count = again * (steps(flow.size_bytes) + 1)
    formula = f"{again:,} redeliveries x ({_size(flow)} + 1 abandon)"
    yield Operations(Side.PRIMARY, Kind.REDELIVERY, f"redeliveries of {flow.entity}", formula, count, _PRICING)


def _polls(workload: Workload) -> Iterator[Operations]:
    model = workload.syphon
    if model is None:
        return
    rate, hours = model.receives_per_hour, workload.month.hours
    count = math.ceil(workload.queues * workload.hosts * rate * hours)
    queues, hosts = counted(workload.queues, "queue"), counted(workload.hosts, "host")
    formula = f"{queues} x {hosts} x {_number(rate)} an hour x {hours} hours"
    label = f"idle receives of the {model.name} syphon ({model.rule})"
    yield Operations(Side.SECONDARY, Kind.SYPHON_POLL, label, formula, count, _DOCUMENTED)
    lists = math.ceil(workload.hosts * model.lists_per_hour * hours)
    formula = f"{hosts} x {_number(model.lists_per_hour)} an hour x {hours} hours"
    label = "the syphon's lists of its queues, one a poll (none without Manage)"
    yield Operations(Side.SECONDARY, Kind.MANAGEMENT, label, formula, lists, _PRICING)


def _follow(workload: Workload) -> Iterator[Operations]:
    every, hours = workload.follow_every_seconds, workload.month.hours
    if not every:
        return
    side, queues = Side.SECONDARY, counted(workload.queues, "queue")
    whole = max(every, FOLLOW_LIST_SECONDS)
    for seconds, browses, what in (
        (every, _FOLLOW_BROWSES, "looks of `pipeline follow` for what is new"),
        (whole, _FOLLOW_WHOLE_BROWSES, "looks of `pipeline follow` from the start of the queues"),
    ):
        rate = Fraction(HOUR_SECONDS, seconds)
        formula = f"{queues} x {browses} browses x {_number(rate)} an hour x {hours} hours"
        count = math.ceil(workload.queues * browses * rate * hours)
        yield Operations(side, Kind.BROWSE, what, formula, count, _PRICING)
    rate = Fraction(HOUR_SECONDS, whole)
    formula = f"{_number(rate)} an hour x {hours} hours"
    label = "lists of the queues by `pipeline follow` (none without Manage)"
    yield Operations(side, Kind.MANAGEMENT, label, formula, math.ceil(rate * hours), _PRICING)


def _pings(workload: Workload) -> Iterator[Operations]:
    each = -(-workload.outage_seconds // workload.ping_interval_seconds)
    entities = len({flow.entity for flow in workload.flows})
    count = each * entities * workload.processes
    formula = (
        f"{workload.outage_seconds} s of outage / {workload.ping_interval_seconds} s = {each:,} "
        f"x {counted(entities, 'entity', 'entities')} "
        f"x {counted(workload.processes, 'process', 'processes')}"
    )
    yield Operations(Side.PRIMARY, Kind.PING, "pings of unavailable entities", formula, count, _DOCUMENTED)


def _session_requests(workload: Workload) -> Iterator[Operations]:
    """An idle consumer asks each side for a session that waits, again and again."""
    rate, hours = Fraction(HOUR_SECONDS, round(IDLE_SESSION_REQUEST_SECONDS)), workload.month.hours
    count = math.ceil(workload.consumers * rate * hours)
    consumers = counted(workload.consumers, "consumer")
    formula = f"{consumers} x {_number(rate)} an hour x {hours} hours"
    for side in Side:
        label = "idle consumers' requests for the next session"
        yield Operations(side, Kind.SESSION_REQUEST, label, formula, count, _PRICING)


def _management(workload: Workload) -> Iterator[Operations]:
    runs, calls = workload.audits, workload.calls_per_audit
    formula = f"{runs:,} audits x {calls:,} management calls"
    yield Operations(Side.SECONDARY, Kind.MANAGEMENT, "audits", formula, runs * calls, _PRICING)


def _number(value: Fraction) -> str:
    return f"{Decimal(value.numerator) / value.denominator:.4f}".rstrip("0").rstrip(".")


def _charges(workload: Workload, lines: tuple[Operations, ...], prices: PriceTable) -> Iterator[Charge]:
    sides = {Side.PRIMARY: workload.primary}
    if workload.secondary is not None:
        sides[Side.SECONDARY] = workload.secondary
    for account in dict.fromkeys(billed.account for billed in sides.values()):
        yield from _standard(workload, account, sides, lines, prices)
        yield from _basic(account, sides, lines, prices)
    yield from _premium(workload, sides, prices)
    yield from _egress(workload, prices)


def _count(lines: tuple[Operations, ...], chosen: set[Side]) -> int:
    return sum(line.count for line in lines if line.side in chosen)


def _standard(
    workload: Workload, account: str, sides: dict[Side, Billed], lines: tuple[Operations, ...], prices: PriceTable
) -> Iterator[Charge]:
    chosen = {side for side, one in sides.items() if one.tier is Tier.STANDARD and one.account == account}
    if not chosen:
        return
    yield from charge(
        Meter.STANDARD_BASE,
        workload.month.hours,
        prices,
        account=account,
        label="Standard base charge, once per subscription",
        source="Service Bus pricing FAQ",
    )
    yield from charge(
        Meter.STANDARD_OPERATIONS,
        _count(lines, chosen),
        prices,
        account=account,
        label="Standard operations, pooled per subscription",
        source=_PRICING,
    )
    yield from charge(
        Meter.STANDARD_CONNECTIONS,
        _connections(workload, chosen),
        prices,
        account=account,
        label="brokered connections at the month's peak",
        source=_PRICING,
    )


BROWSING_CONNECTIONS = 6
"""What a syphon of 10 queues held besides one connection for each queue while it looked through them: 16 at its peak,
as counted by an embedded namespace."""


def _connections(workload: Workload, chosen: set[Side]) -> int:
    """Connections to the chosen sides at the peak. Every link has one of its own: a sender one to its entity and, while
    the primary is away, one to its backlog queue; a syphon one to each queue and to each destination."""
    entities = len({flow.entity.lower() for flow in workload.flows}) or 1
    senders = workload.processes * workload.connections_per_process
    hosts = workload.hosts if workload.syphon else 0
    connections = 0
    if Side.PRIMARY in chosen:
        connections += (senders + hosts) * entities
    if Side.SECONDARY in chosen and workload.replicated:
        connections += senders * entities
    elif Side.SECONDARY in chosen:
        connections += senders * min(entities, workload.queues) + hosts * (workload.queues + BROWSING_CONNECTIONS)
    return connections


def _basic(
    account: str, sides: dict[Side, Billed], lines: tuple[Operations, ...], prices: PriceTable
) -> Iterator[Charge]:
    chosen = {side for side, one in sides.items() if one.tier is Tier.BASIC and one.account == account}
    counted = _count(lines, chosen)
    yield from charge(
        Meter.BASIC_OPERATIONS, counted, prices, account=account, label="Basic operations", source=_PRICING
    )


def _premium(workload: Workload, sides: dict[Side, Billed], prices: PriceTable) -> Iterator[Charge]:
    for side, facts in sides.items():
        if facts.tier is not Tier.PREMIUM:
            continue
        where = f", in each of {facts.regions} regions" if facts.regions > 1 else ""
        yield from charge(
            Meter.PREMIUM_UNIT,
            facts.messaging_units * facts.regions * workload.month.hours,
            prices,
            account=facts.account,
            label=f"{counted(facts.messaging_units, 'messaging unit')} of the {side}{where}; operations included",
            source=_PRICING,
        )
        if facts.regions > 1:
            all_of_it = side is Side.PRIMARY or workload.replicated
            published = sum(
                (flow.messages if all_of_it else workload.diverted(flow)) * flow.size_bytes for flow in workload.flows
            )
            yield from charge(
                Meter.GEO_REPLICATION,
                Decimal(published) * (facts.regions - 1) / GIGABYTE,
                prices,
                account=facts.account,
                label=f"messages of the {side}, replicated to other regions",
                source="Azure Service Bus Geo-Replication: Pricing",
            )


def _egress(workload: Workload, prices: PriceTable) -> Iterator[Charge]:
    if workload.secondary is None:
        return
    if workload.replicated:
        crossing = sum(flow.messages * flow.size_bytes for flow in workload.flows)
        label = "traffic between regions: the second copy of every message"
    else:
        crossing = sum(workload.diverted(flow) * flow.size_bytes for flow in workload.flows) * workload.crossings
        label = f"traffic between regions, {counted(workload.crossings, 'crossing')} of each diverted message"
    yield from charge(
        Meter.EGRESS,
        Decimal(crossing) / GIGABYTE,
        prices,
        account=workload.secondary.account,
        label=label,
        source="bandwidth pricing",
    )


def _assumptions(workload: Workload, prices: PriceTable) -> Iterator[str]:
    table = "the built-in list prices" if prices.built_in else prices.source
    yield f"Prices: {table} of {prices.region} in {prices.currency}, dated {prices.dated}; today's may differ."
    yield "Two Standard namespaces of one subscription share the base charge and the operation bands."
    if workload.outage_seconds and workload.secondary is not None:
        yield "Every ping is counted, also those that an unavailable namespace never saw."
    if workload.syphon is not None and workload.secondary is not None:
        yield "An idle receive is counted as one operation, on top of those that bring messages."
    if any(side is not None and side.regions > 1 for side in (workload.primary, workload.secondary)):
        yield "Built-in, a replicated GB costs what it does in North America and Europe; other zones cost more."
    if workload.replicated:
        yield "The journal's store is not in it: two writes a message, and a read for each second copy's session."
    yield "An estimate at list prices; metrics are not the meter."


def active_active(workload: Workload) -> Workload:
    """The same messages sent to both namespaces and received from both: everything twice, no backlog ("Azure Service
    Bus active/active with guaranteed order")."""
    return replace(
        workload, replicated=True, syphon=None, follow_every_seconds=0, outage_seconds=0, diverted_share=None
    )


def without_pairing(workload: Workload) -> Workload:
    """The same messages with no secondary."""
    return replace(workload, secondary=None, syphon=None, follow_every_seconds=0, outage_seconds=0, diverted_share=None)


def of_syphon_hour(queues: int, hosts: int, model: SyphonModel) -> Forecast:
    """An hour of an idle syphon."""
    receives = queues * hosts * model.receives_per_hour
    return Forecast(message_operations=-(-receives.numerator // receives.denominator))
