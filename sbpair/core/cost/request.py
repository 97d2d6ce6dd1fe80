"""What an estimate is asked, the month's workload that follows from it, and alternatives to it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from sbpair.core.cost.model import (
    DOCUMENTED_MONTH,
    Billed,
    Estimate,
    Flow,
    Month,
    SyphonModel,
    Workload,
    active_active,
    estimate,
    polling_syphon,
    without_pairing,
)
from sbpair.core.cost.usage import Traffic
from sbpair.core.entities import capacity_bytes
from sbpair.core.inspection.snapshot import NamespaceSnapshot, Snapshot
from sbpair.core.pairing import DOCUMENTED_SETTINGS, Pair
from sbpair.core.prices import PriceTable
from sbpair.core.words import counted
from sbpair.service import MAX_MESSAGE_KILOBYTES, Tier

UNNAMED = "one entity"
"""What the flow is called when nobody said which entities there are."""


@dataclass(frozen=True, slots=True)
class CostRequest:
    """What is estimated. Tuples hold the values to compare; the first one is the estimate's own."""

    messages_per_day: int = 0
    """To all entities together."""
    size_bytes: int = 1024
    """Average of a message."""
    copies: int = 1
    """Subscriptions that get a copy of each message; 1 for queues."""
    outage_seconds: int = 0
    """How long the primary is down in the month."""
    diverted_share: Fraction | None = None
    """Of the messages; None: the share of the outage in the month."""
    redelivered_share: Fraction = Fraction(0)
    queues: tuple[int, ...] = ()
    """Backlog queues; none: those of the pair."""
    hosts: tuple[int, ...] = (1,)
    """Processes that run a syphon."""
    syphons: tuple[SyphonModel | None, ...] = (polling_syphon(900),)
    tiers: tuple[Tier, ...] = ()
    """Of both namespaces; none: those of the snapshot, or Standard."""
    processes: int = 1
    """Processes that send."""
    consumers: int = 1
    messaging_units: int = 1
    """Of each Premium namespace."""
    geo_replicated: bool = False
    """Premium namespaces have Geo-Replication to a second region, also if no snapshot says so."""
    two_subscriptions: bool = False
    """The namespaces are in different Azure subscriptions."""
    month: Month = DOCUMENTED_MONTH
    audits_per_day: int = 0
    follow_every_seconds: int = 0
    """How often a `pipeline follow` reads; 0: none runs."""
    replicated: bool = False
    """Active/active: every message goes to both namespaces."""


def workload_of(
    request: CostRequest, pair: Pair | None, snapshot: Snapshot | None, traffic: Traffic | None = None
) -> Workload:
    """The month's workload: the request first, then what the snapshot or the pair says, then the model's defaults.
    `traffic`: what metrics counted, instead of the request's messages, and of the share diverted if it says none."""
    days = Fraction(request.month.hours, 24)
    queues = request.queues or ((pair.options.backlog_queue_count,) if pair else ())
    base = Workload(
        flows=_flows(request, pair.entities if pair else (), days),
        month=request.month,
        hosts=request.hosts[0] if request.hosts else 1,
        syphon=request.syphons[0],
        outage_seconds=request.outage_seconds,
        diverted_share=request.diverted_share,
        redelivered_share=request.redelivered_share,
        processes=request.processes,
        consumers=request.consumers,
        audits=math.ceil(request.audits_per_day * days),
        follow_every_seconds=request.follow_every_seconds,
    )
    if queues:
        base = replace(base, queues=queues[0])
    if pair is not None:
        base = replace(base, ping_interval_seconds=max(1, round(pair.options.ping_interval_seconds)))
    if request.audits_per_day:
        base = replace(base, calls_per_audit=snapshot.calls.management if snapshot else base.queues + 6)
    if traffic is not None:
        flows, share = traffic.flows(request.month.hours, request.size_bytes), request.diverted_share
        if share is None:
            share = traffic.diverted_share
        if share is None and not request.outage_seconds:
            share = Fraction(0)
        base = replace(base, flows=flows, diverted_share=share)
    base = replace(
        base,
        primary=_billed(request, snapshot.primary if snapshot else None, "subscription"),
        secondary=_billed(
            request,
            snapshot.secondary if snapshot else None,
            "second subscription" if request.two_subscriptions else "subscription",
        ),
    )
    return active_active(base) if request.replicated else base


def _flows(request: CostRequest, entities: Sequence[str], days: Fraction) -> tuple[Flow, ...]:
    """The messages spread evenly over the entities, so that pings are counted for each."""
    names = entities or (UNNAMED,)
    month = math.ceil(request.messages_per_day * days)
    share, rest = divmod(month, len(names))
    return tuple(
        Flow(name, share + (1 if index < rest else 0), request.size_bytes, request.copies)
        for index, name in enumerate(names)
    )


def _billed(request: CostRequest, seen: NamespaceSnapshot | None, account: str) -> Billed:
    facts = seen.facts if seen else None
    tier = request.tiers[0] if request.tiers else (facts.tier if facts else None) or Tier.STANDARD
    units = (facts.messaging_units if facts else None) or request.messaging_units
    regions = max(len(facts.geo_replication_locations) if facts else 0, 2 if request.geo_replicated else 1)
    return Billed(tier, units, account, regions)


# Alternatives to a workload, side by side: what is cheapest and still does what is wished.


@dataclass(frozen=True, slots=True)
class EstimatedAlternative:
    """A workload with its estimate. `problems`: why it would not do; empty if it would."""

    name: str
    workload: Workload
    estimate: Estimate
    problems: tuple[str, ...] = ()

    @property
    def total(self) -> Decimal:
        return self.estimate.total


@dataclass(frozen=True, slots=True)
class Choices:
    """Values to try; an empty one keeps the workload's own."""

    queues: Sequence[int] = ()
    hosts: Sequence[int] = ()
    syphons: Sequence[SyphonModel | None] = ()
    tiers: Sequence[Tier] = ()
    """Of both namespaces."""


def problems(workload: Workload) -> tuple[str, ...]:
    """Why this set-up could not carry the workload: no syphon to drain the backlog, no room, messages too large."""
    if workload.secondary is None:
        return ()
    found = []
    diverted = [(workload.diverted(flow), flow) for flow in workload.flows]
    if any(count for count, _ in diverted) and (workload.syphon is None or workload.hosts < 1):
        found.append("no syphon is running: diverted messages stay in the backlog")
    limit = MAX_MESSAGE_KILOBYTES[workload.secondary.tier] * 1024
    too_large = [flow for flow in workload.flows if flow.size_bytes > limit]
    if too_large:
        found.append(f"messages of {too_large[0].size_bytes:,} bytes do not fit tier {workload.secondary.tier}")
    room = workload.queues * capacity_bytes(DOCUMENTED_SETTINGS)
    needed = sum(count * flow.size_bytes for count, flow in diverted)
    if needed > room:
        queues = counted(workload.queues, "backlog queue")
        found.append(f"the diverted {needed:,} bytes do not fit {queues} ({room:,} bytes)")
    return tuple(found)


def compare(workload: Workload, prices: PriceTable, choices: Choices) -> tuple[EstimatedAlternative, ...]:
    """Every combination of the choices and "no pairing", cheapest first; equal ones in the order of the choices."""
    found = [
        _alternative(_name(one), one, prices)
        for tier in choices.tiers or (None,)
        for syphon in choices.syphons or (workload.syphon,)
        for hosts in choices.hosts or (workload.hosts,)
        for queues in choices.queues or (workload.queues,)
        for one in (replace(_in_tier(workload, tier), syphon=syphon, hosts=hosts, queues=queues),)
    ]
    found.append(_alternative("no pairing", without_pairing(workload), prices))
    return tuple(sorted(found, key=lambda alternative: alternative.total))


def cheapest(alternatives: Iterable[EstimatedAlternative]) -> EstimatedAlternative | None:
    """The cheapest one with a pairing that would do."""
    fit = [one for one in alternatives if not one.problems and one.workload.secondary is not None]
    return min(fit, key=lambda one: one.total, default=None)


def _alternative(name: str, workload: Workload, prices: PriceTable) -> EstimatedAlternative:
    return EstimatedAlternative(name, workload, estimate(workload, prices), problems(workload))


def _in_tier(workload: Workload, tier: Tier | None) -> Workload:
    if tier is None:
        return workload
    secondary = workload.secondary
    return replace(
        workload,
        primary=replace(workload.primary, tier=tier),
        secondary=replace(secondary, tier=tier) if secondary is not None else Billed(tier),
    )


def _name(workload: Workload) -> str:
    tier = workload.secondary.tier if workload.secondary else workload.primary.tier
    syphon = workload.syphon.name if workload.syphon else "no syphon"
    return f"{tier}, {counted(workload.queues, 'queue')}, {counted(workload.hosts, 'host')}, {syphon}"


def pairing_costs(workload: Workload, prices: PriceTable) -> Decimal:
    """What the pairing adds to the month's total."""
    return estimate(workload, prices).total - estimate(without_pairing(workload), prices).total
