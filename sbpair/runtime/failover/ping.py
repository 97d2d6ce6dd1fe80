"""Pings: the pairing's own, which find out when an entity is back, and measurements for the command line.

The message is the documented one ("Paired Namespaces: Implementation Details and Cost"): empty body, content type
`application/vnd.ms-servicebus-ping`, a time to live of one second; an entity that requires sessions gets it with a
session id. A ping ends after two minutes whatever happens below, a silent TLS handshake included.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sbpair.concurrency import abandon_after
from sbpair.core.errors import (
    ArgumentRefusedError,
    ConnectionLostError,
    EntityNotFoundError,
    OperationTimeoutError,
    ServiceError,
)
from sbpair.core.failover.measured import Milliseconds
from sbpair.core.pairing import Side
from sbpair.core.retry import UNREACHED_SECONDS, ends_in_time
from sbpair.core.rewrite import ping_message
from sbpair.ports import MessageSender, Messaging, NamespaceAdmin, RuntimeClock
from sbpair.runtime.links import close_quietly, closing

PING_TIMEOUT_SECONDS = 120.0
PING_ID_PREFIX = "sbpair-ping-"


class Pinger:
    """Pings one entity over a link of its own: the link of the sends may be what hangs.

    `messaging` says at each ping which connection to use.
    """

    def __init__(
        self, messaging: Callable[[], Messaging], entity: str, *, timeout_seconds: float = PING_TIMEOUT_SECONDS
    ) -> None:
        self._messaging = messaging
        self._used: Messaging | None = None
        self._entity = entity
        self._timeout = timeout_seconds
        self._link: MessageSender | None = None
        self.with_session = False
        """Send pings with a session id; found out by itself when the entity refuses one without."""

    async def ping(self) -> None:
        """Send one ping.

        Raises:
            ServiceError: what the entity answered; OperationTimeoutError when it did not. The next ping then uses a new
                link.
        """
        try:
            await abandon_after(self._timeout, self._attempt(), what=f"Ping of {self._entity}", entity=self._entity)
        except ServiceError:
            await self.close()
            raise

    async def _attempt(self) -> None:
        if (messaging := self._messaging()) is not self._used:
            await self.close()
            self._used = messaging
        try:
            await self._send()
        except ArgumentRefusedError:
            if self.with_session:
                raise
            self.with_session = True
            await self._send()

    async def _send(self) -> None:
        if self._link is None:
            self._link = (self._used or self._messaging()).sender(self._entity)
        message_id = PING_ID_PREFIX + str(uuid.uuid4())
        payload = ping_message(session_id=message_id if self.with_session else None, message_id=message_id)
        await self._link.send([payload], timeout_seconds=self._timeout)

    async def close(self) -> None:
        """Close the link, within a bound."""
        link, self._link = self._link, None
        if link is not None:
            await close_quietly(link)


@dataclass(frozen=True, slots=True)
class PingTarget:
    """One thing to measure: `probe` is awaited once per ping, `close` when the measurement is over."""

    side: Side
    entity: str
    probe: Callable[[], Awaitable[None]]
    close: Callable[[], Awaitable[None]] | None = None


def message_target(
    side: Side, messaging: Messaging, entity: str, *, timeout_seconds: float = PING_TIMEOUT_SECONDS
) -> PingTarget:
    """Measure by sending ping messages to a queue or topic: needs the Send right and leaves a one-second message."""
    pinger = Pinger(lambda: messaging, entity, timeout_seconds=timeout_seconds)
    return PingTarget(side, entity, pinger.ping, pinger.close)


def link_target(
    side: Side, messaging: Messaging, entity: str, *, timeout_seconds: float = PING_TIMEOUT_SECONDS
) -> PingTarget:
    """Measure by opening a link to send on, and sending nothing: needs the Send right."""

    async def probe() -> None:
        async with closing(messaging.sender(entity)) as link:
            await abandon_after(timeout_seconds, link.max_message_bytes(), what=f"Link to {entity}", entity=entity)

    return PingTarget(side, entity, probe)


def control_plane_target(
    side: Side, admin: NamespaceAdmin, entity: str, *, timeout_seconds: float = PING_TIMEOUT_SECONDS
) -> PingTarget:
    """Measure by asking for a queue or topic: needs the Manage right, no message is sent."""

    async def look_up() -> None:
        if await admin.get_queue(entity) is None and await admin.get_topic(entity) is None:
            raise EntityNotFoundError(f"There is no queue or topic {entity!r}.", entity=entity)

    async def probe() -> None:
        await abandon_after(timeout_seconds, look_up(), what=f"Look-up of {entity}", entity=entity)

    return PingTarget(side, entity, probe)


@dataclass(frozen=True, slots=True)
class PingResult:
    """One ping. `at` is UTC epoch seconds; `error` is None when it was accepted."""

    side: Side
    entity: str
    at: float
    seconds: float
    error: ServiceError | None = None


@dataclass(frozen=True, slots=True)
class PingRow:
    """All pings of one entity on one side."""

    side: Side
    entity: str
    sent: int
    accepted: int
    connecting_seconds: float | None
    """The first accepted ping, which had the connection to open."""
    latency: Milliseconds
    """Of accepted pings on a connection that was there; of the connecting one if no other was accepted."""
    last_error: ServiceError | None
    """Error of the last ping; None if that was accepted."""

    @property
    def ok(self) -> bool:
        """The last ping was accepted."""
        return self.accepted > 0 and self.last_error is None


@dataclass
class _Series:
    target: PingTarget
    sent: int = 0
    reached: bool = False
    """Somebody has answered, if only to refuse."""
    connecting_seconds: list[float] = field(default_factory=list)
    """Accepted ones that came first, or after a failure that may have cost the connection."""
    connected_seconds: list[float] = field(default_factory=list)
    last_error: ServiceError | None = None

    def add(self, result: PingResult) -> None:
        connected = self.sent > 0 and self.last_error is None
        self.sent += 1
        self.last_error = result.error
        self.reached = self.reached or not isinstance(result.error, ConnectionLostError | OperationTimeoutError)
        if result.error is None:
            (self.connected_seconds if connected else self.connecting_seconds).append(result.seconds)

    def row(self) -> PingRow:
        return PingRow(
            self.target.side,
            self.target.entity,
            self.sent,
            accepted=len(self.connecting_seconds) + len(self.connected_seconds),
            connecting_seconds=next(iter(self.connecting_seconds), None),
            latency=Milliseconds.of(self.connected_seconds or self.connecting_seconds),
            last_error=self.last_error,
        )


async def measure(
    targets: Sequence[PingTarget],
    *,
    clock: RuntimeClock,
    count: int | None = 1,
    interval_seconds: float = 1.0,
    until_ok: bool = False,
    total_seconds: float | None = None,
    on_result: Callable[[PingResult], None] | None = None,
) -> tuple[PingRow, ...]:
    """Ping every target `count` times (None: without end), all targets side by side.

    A target that nobody has answered for by `UNREACHED_SECONDS` is not asked again.

    Args:
        until_ok: end a target's series with its first accepted ping, and do not end it by `count`.
        total_seconds: end all series after this time; a ping under way is given up.
        on_result: told about each ping as it ends.
    """
    series = [_Series(target) for target in targets]

    async def run(one: _Series) -> None:
        began = clock.monotonic()
        while True:
            result = await _ping_once(one.target, clock)
            one.add(result)
            if on_result is not None:
                on_result(result)
            if _is_over(one, count, until_ok):
                return
            elapsed = clock.monotonic() - began
            if not (until_ok or one.reached or ends_in_time(elapsed, result.seconds, UNREACHED_SECONDS)):
                return
            await clock.sleep(max(0.0, interval_seconds - result.seconds))

    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(total_seconds):
                await asyncio.gather(*map(run, series))
    finally:
        await asyncio.gather(*(target.close() for target in targets if target.close is not None))
    return tuple(one.row() for one in series)


def _is_over(series: _Series, count: int | None, until_ok: bool) -> bool:
    if until_ok:
        return series.last_error is None
    return count is not None and series.sent >= count


async def _ping_once(target: PingTarget, clock: RuntimeClock) -> PingResult:
    at, started = clock.now().timestamp(), clock.monotonic()
    error: ServiceError | None = None
    try:
        await target.probe()
    except ServiceError as caught:
        error = caught
    return PingResult(target.side, target.entity, at, clock.monotonic() - started, error)
