"""`ping`: does each namespace of a pair answer, how fast, and with which credential and right."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from sbpair.concurrency import run_until
from sbpair.core.access import credential_name, host_name
from sbpair.core.errors import ConfigurationError
from sbpair.core.events import PingMeasured
from sbpair.core.failover.measured import By, Pinged, PingedEntity, PingFigures
from sbpair.core.names import parse_backlog_queue_path
from sbpair.core.pairing import Pair, Side
from sbpair.ports import Observer, Sides
from sbpair.runtime.browse import browse_target
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.failover.ping import (
    PingResult,
    PingRow,
    PingTarget,
    control_plane_target,
    link_target,
    measure,
    message_target,
)

__all__ = ["PingRequest", "Pinged", "ping"]

DEFAULT_COUNT = 4
DEFAULT_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class PingRequest:
    """What is measured, and how often."""

    entities: tuple[str, ...] = ()
    """Queues or topics; none: the configured ones, and the backlog queues."""
    side: Side | None = None
    """The only namespace to ping; None: both."""
    by_message: bool = False
    """Send queues and topics the documented ping message, which lives one second, instead of opening a link. Backlog
    queues dead-letter what expires and are only browsed."""
    by_look_up: bool = False
    """Ask the control plane for the entity instead; needs Manage."""
    count: int = DEFAULT_COUNT
    """Pings of each entity, if it answers."""
    interval_seconds: float = 1.0
    """Between two pings of one entity."""
    until_ok: bool = False
    """Ping until every entity has answered once."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Of one ping."""
    total_seconds: float | None = None
    """Of all pings together; None: no limit."""
    dry_run: bool = False
    """Where a message would be sent, only open the link."""


def targets(pair: Pair, request: PingRequest) -> dict[tuple[Side, str], By]:
    """What such a ping measures, on which side, and how. Backlog queues belong to the secondary, everything else to the
    primary, unless one side was asked for.

    Raises:
        ConfigurationError: nothing.
    """
    found = dict(_targets(pair, request))
    if not found:
        raise ConfigurationError(
            f"Pair {pair.name!r} names no entities on its primary.",
            hint="Name them on the command line, or under `entities:` in the configuration.",
        )
    return found


def _targets(pair: Pair, request: PingRequest) -> Iterator[tuple[tuple[Side, str], By]]:
    for path in request.entities or (*pair.entities, *pair.backlog_paths()):
        backlog = parse_backlog_queue_path(path) is not None
        own = Side.SECONDARY if backlog else Side.PRIMARY
        if request.entities and request.side is not None:
            own = request.side
        if request.side in (None, own):
            yield (own, path), _way(request, backlog=backlog)


def _way(request: PingRequest, *, backlog: bool) -> By:
    if request.by_look_up:
        return By.LOOK_UP
    if backlog:
        return By.BROWSE
    return By.MESSAGE if request.by_message else By.LINK


async def ping(
    sides: Sides, request: PingRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> Pinged:
    """Measure whether and how fast each entity answers. Stores nothing unless `request.by_message`.

    The first ping of an entity also connects: its time stands apart.

    Args:
        observer: gets a `PingMeasured` event for each ping.

    Raises:
        ConfigurationError: there is nothing to ping.
        InterruptedWorkError: `stop` was set before the end.
    """
    ways = targets(sides.pair, request)
    if request.dry_run:
        ways = {target: By.LINK if way is By.MESSAGE else way for target, way in ways.items()}
    measuring = measure(
        [_target(sides, side, path, way, request.timeout_seconds) for (side, path), way in ways.items()],
        clock=LoopClock(),
        count=request.count,
        interval_seconds=request.interval_seconds,
        until_ok=request.until_ok,
        total_seconds=request.total_seconds,
        on_result=None if observer is None else lambda result: observer.notify(_event(result)),
    )
    rows = await run_until(stop or asyncio.Event(), measuring)
    pinged = tuple(_pinged(sides.pair, row, ways[row.side, row.entity]) for row in rows)
    return Pinged(sides.pair.name, datetime.now(UTC), pinged)


def _event(result: PingResult) -> PingMeasured:
    code, detail = (None, "") if result.error is None else (result.error.code, result.error.message)
    return PingMeasured(result.at, result.side.value, result.entity, result.seconds, code, detail)


def _target(sides: Sides, side: Side, path: str, by: By, timeout_seconds: float) -> PingTarget:
    messaging = sides.primary if side is Side.PRIMARY else sides.secondary
    admin = sides.primary_admin if side is Side.PRIMARY else sides.secondary_admin
    if by is By.LOOK_UP:
        return control_plane_target(side, admin, path, timeout_seconds=timeout_seconds)
    make = {By.BROWSE: browse_target, By.LINK: link_target, By.MESSAGE: message_target}[by]
    return make(side, messaging, path, timeout_seconds=timeout_seconds)


def _pinged(pair: Pair, row: PingRow, by: By) -> PingedEntity:
    access = pair.primary if row.side is Side.PRIMARY else pair.secondary
    error = row.last_error
    return PingedEntity(
        side=row.side,
        namespace=host_name(access),
        entity=row.entity,
        by=by,
        result="ok" if row.ok else error.exit_name if error else "unreachable",
        sent=row.sent,
        accepted=row.accepted,
        connect_ms=None if row.connecting_seconds is None else 1000 * row.connecting_seconds,
        latency=row.latency,
        right=by.right if row.accepted else None,
        credential=credential_name(access),
        error_code=error.code if error else None,
        detail=error.message if error else "" if row.ok else "no answer in time",
        hint=error.hint if error else "",
        figures=PingFigures(
            float(row.ok), float(row.sent), float(row.accepted), row.connecting_seconds, row.latency.quantiles
        ),
    )
