"""Alternatives to a workload, side by side: what is cheapest and still does what is wished."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from sbpair.core.cost.model import Billed, Estimate, SyphonModel, Workload, estimate, without_pairing
from sbpair.core.entities import capacity_bytes
from sbpair.core.pairing import DOCUMENTED_SETTINGS
from sbpair.core.prices import PriceTable
from sbpair.core.words import counted
from sbpair.service import MAX_MESSAGE_KILOBYTES, Tier


@dataclass(frozen=True, slots=True)
class Alternative:
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
        found.append(f"the diverted {needed:,} bytes do not fit {workload.queues} backlog queues ({room:,} bytes)")
    return tuple(found)


def compare(workload: Workload, prices: PriceTable, choices: Choices) -> tuple[Alternative, ...]:
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


def cheapest(alternatives: Iterable[Alternative]) -> Alternative | None:
    """The cheapest one with a pairing that would do."""
    fit = [one for one in alternatives if not one.problems and one.workload.secondary is not None]
    return min(fit, key=lambda one: one.total, default=None)


def _alternative(name: str, workload: Workload, prices: PriceTable) -> Alternative:
    return Alternative(name, workload, estimate(workload, prices), problems(workload))


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
