"""What an estimate is asked, and the month's workload that follows from it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from sbpair.core.cost.model import DOCUMENTED_MONTH, Billed, Flow, Month, SyphonModel, Workload, polling_syphon
from sbpair.core.inspection.snapshot import NamespaceSnapshot, Snapshot
from sbpair.core.pairing import Pair
from sbpair.service import Tier

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


def workload_of(request: CostRequest, pair: Pair | None, snapshot: Snapshot | None) -> Workload:
    """The month's workload: the request first, then what the snapshot or the pair says, then the model's defaults."""
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
    return replace(
        base,
        primary=_billed(request, snapshot.primary if snapshot else None, "subscription"),
        secondary=_billed(
            request,
            snapshot.secondary if snapshot else None,
            "second subscription" if request.two_subscriptions else "subscription",
        ),
    )


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
