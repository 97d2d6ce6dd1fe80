"""Alternatives to a workload, side by side: what is cheapest and still does what is wished, and what moves the bill."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from sbpair.core.billing import STEP_BYTES, quantity_costing, steps, total
from sbpair.core.cost import Billed, Estimate, Flow, SyphonModel, Workload, estimate, without_pairing
from sbpair.core.entities import Tier
from sbpair.core.pairing import DOCUMENTED_SETTINGS
from sbpair.core.prices import MILLION, Meter, PriceTable

_MEGABYTE = 1024 * 1024
_MAX_MESSAGE_BYTES = {
    Tier.BASIC: 256 * 1024,
    Tier.STANDARD: 256 * 1024,
    Tier.PREMIUM: 100 * _MEGABYTE,
}


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
    """Why this set-up could not carry the workload: nobody to take messages home, no room, messages too large."""
    if workload.secondary is None:
        return ()
    found = []
    diverted = [(workload.diverted(flow), flow) for flow in workload.flows]
    if any(count for count, _ in diverted) and (workload.syphon is None or workload.hosts < 1):
        found.append("nobody runs the syphon: diverted messages stay where they are")
    limit = _MAX_MESSAGE_BYTES[workload.secondary.tier]
    too_large = [flow for flow in workload.flows if flow.size_bytes > limit]
    if too_large:
        found.append(f"messages of {too_large[0].size_bytes:,} bytes do not fit tier {workload.secondary.tier}")
    room = workload.queues * DOCUMENTED_SETTINGS.max_size_in_megabytes * _MEGABYTE
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
    return f"{tier}, {workload.queues} queues, {workload.hosts} host(s), {syphon}"


@dataclass(frozen=True, slots=True)
class Swing:
    """What halving and doubling one input does to the total."""

    name: str
    half: Decimal
    double: Decimal

    @property
    def width(self) -> Decimal:
        return abs(self.double - self.half)


def tornado(workload: Workload, prices: PriceTable) -> tuple[Swing, ...]:
    """What moves the bill most: each input halved and doubled by itself, widest swing first."""
    swings = [
        Swing(name, estimate(half, prices).total, estimate(double, prices).total)
        for name, half, double in _variations(workload)
    ]
    return tuple(sorted(swings, key=lambda swing: -swing.width))


def _variations(workload: Workload) -> Iterable[tuple[str, Workload, Workload]]:
    def scaled(name: str) -> tuple[Workload, Workload]:
        value = getattr(workload, name)
        return replace(workload, **{name: max(value // 2, 1)}), replace(workload, **{name: value * 2})

    def flows(factor: Fraction, what: str) -> Workload:
        changed = (replace(flow, **{what: math.ceil(getattr(flow, what) * factor)}) for flow in workload.flows)
        return replace(workload, flows=tuple(changed))

    half, double = Fraction(1, 2), Fraction(2)
    yield "messages", flows(half, "messages"), flows(double, "messages")
    yield "message size", flows(half, "size_bytes"), flows(double, "size_bytes")
    for name, label in (
        ("queues", "backlog queues"),
        ("hosts", "syphon hosts"),
        ("processes", "client processes"),
        ("outage_seconds", "outage"),
        ("ping_interval_seconds", "ping interval"),
    ):
        if getattr(workload, name):
            yield label, *scaled(name)


@dataclass(frozen=True, slots=True)
class SizePoint:
    """The total if every message had this size."""

    size_bytes: int
    steps: int
    total: Decimal


def by_size(workload: Workload, prices: PriceTable, *, up_to_bytes: int = 256 * 1024) -> tuple[SizePoint, ...]:
    """The total at both ends of every 64 KB step: where a few bytes more cost a whole operation each."""
    tops = range(STEP_BYTES, up_to_bytes + 1, STEP_BYTES)
    bottoms = range(STEP_BYTES + 1, up_to_bytes, STEP_BYTES)
    points = []
    for size in sorted({1, *tops, *bottoms}):
        flows: tuple[Flow, ...] = tuple(replace(flow, size_bytes=size) for flow in workload.flows)
        points.append(SizePoint(size, steps(size), estimate(replace(workload, flows=flows), prices).total))
    return tuple(points)


def break_even_operations(prices: PriceTable, *, hours: int, messaging_units: int = 1) -> int | None:
    """Operations a month up to which one Standard subscription costs no more than Premium messaging units.

    None if Standard never gets dearer; 0 if its base charge alone is.
    """
    premium = total(Decimal(messaging_units * hours), prices.bands(Meter.PREMIUM_UNIT))
    base = total(Decimal(hours), prices.bands(Meter.STANDARD_BASE))
    if premium < base:
        return 0
    millions = quantity_costing(premium - base, prices.bands(Meter.STANDARD_OPERATIONS))
    return None if millions is None else int(millions * MILLION)


def pairing_costs(workload: Workload, prices: PriceTable) -> Decimal:
    """What the pairing adds to the month's total."""
    return estimate(workload, prices).total - estimate(without_pairing(workload), prices).total
