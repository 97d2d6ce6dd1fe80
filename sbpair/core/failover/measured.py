"""The results of a ping (which entities answer, how fast, with which credential and right) and of a send, and what a
running gateway knows of its pairs."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from sbpair.core.errors import for_pair
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Side
from sbpair.core.serialization import HIDDEN, INLINED, column, metric, rounded
from sbpair.core.words import counted, listed


class By(StrEnum):
    """How one entity is measured."""

    LINK = "link"
    MESSAGE = "message"
    BROWSE = "browse"
    LOOK_UP = "look-up"

    @property
    def right(self) -> str:
        """The right that an accepted ping of this kind proves."""
        return {By.LINK: "Send", By.MESSAGE: "Send", By.BROWSE: "Listen", By.LOOK_UP: "Manage"}[self]


@dataclass(frozen=True, slots=True)
class PingFigures:
    """What monitoring shows of the pings of one entity, in seconds."""

    up: float = field(metadata=metric("sbpair_ping_up"))
    tries: float = field(metadata=metric("sbpair_ping_tries"))
    accepted: float = field(metadata=metric("sbpair_ping_accepted"))
    connect: float | None = field(metadata=metric("sbpair_ping_connect_seconds"))
    latency: Mapping[str, float] = field(metadata=metric("sbpair_ping_latency_seconds", label="quantile"))


_TENTHS = rounded(1)


@dataclass(frozen=True, slots=True)
class Milliseconds:
    """Times to acceptance on a connection that was there; None if nothing was accepted. Where only the connecting ping
    was accepted, its time. Percentiles are by nearest rank: always a time that was really measured."""

    min_ms: float | None = field(default=None, metadata=_TENTHS)
    mean_ms: float | None = field(default=None, metadata=_TENTHS)
    p50_ms: float | None = field(default=None, metadata={**column("p50 ms", right=True), **_TENTHS})
    p90_ms: float | None = field(default=None, metadata={**column("p90 ms", right=True, spare=True), **_TENTHS})
    p99_ms: float | None = field(default=None, metadata={**column("p99 ms", right=True, spare=True), **_TENTHS})
    max_ms: float | None = field(default=None, metadata={**column("max ms", right=True), **_TENTHS})

    @classmethod
    def of(cls, seconds: Iterable[float]) -> "Milliseconds":
        """What these times say."""
        ordered = sorted(1000 * one for one in seconds)
        if not ordered:
            return cls()
        p50, p90, p99 = (percentile(ordered, one) for one in (50, 90, 99))
        return cls(ordered[0], math.fsum(ordered) / len(ordered), p50, p90, p99, ordered[-1])

    @property
    def quantiles(self) -> dict[str, float]:
        """Percentiles in seconds, as metrics name them."""
        named = {"0.5": self.p50_ms, "0.9": self.p90_ms, "0.99": self.p99_ms}
        return {name: value / 1000 for name, value in named.items() if value is not None}


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile of times in ascending order; at least one."""
    rank = max(1, math.ceil(percent / 100 * len(ordered)))
    return ordered[rank - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class PingedEntity:
    """All pings of one entity. `result`: ok, or the exit code table's name of what came instead."""

    side: Side = field(metadata=column("Side"))
    namespace: str
    entity: str = field(metadata=column("Entity"))
    by: By = field(metadata=column("By", spare=True))
    result: str = field(metadata=column("Result", colours=True))
    sent: int = field(metadata=column("Tried", right=True))
    accepted: int = field(metadata=column("Ok", right=True))
    connect_ms: float | None = field(metadata={**column("connect ms", right=True), **_TENTHS})
    """The first accepted ping, which had the connection to open."""
    latency: Milliseconds = field(metadata=INLINED)
    right: str | None = field(metadata=column("Right"))
    """The right that an accepted ping proves."""
    credential: str = field(metadata=column("Credential", spare=True))
    error_code: str | None
    detail: str = field(metadata=column("Detail"))
    hint: str = field(default="", metadata=HIDDEN)
    """The next step after the error."""
    figures: PingFigures = field(metadata=HIDDEN)

    @property
    def sentence(self) -> str:
        """`p50 12.3 ms, 4 of 4`, or why it does not answer."""
        if self.result != "ok":
            return self.detail
        return f"p50 {self.latency.p50_ms or 0.0:.1f} ms, {self.accepted} of {self.sent}"


ENTITY_COLUMNS = (
    *("side", "entity", "by", "result", "accepted", "sent", "connect_ms"),
    *("p50_ms", "p90_ms", "p99_ms", "max_ms", "right", "credential", "detail"),
)
_OR_PING = ", or see which side answers with: sbpair ping"
"""What hints advise to all other commands."""


@dataclass(frozen=True, slots=True)
class Pinged:
    """The pings of a pair, as `ping -o json` prints them."""

    pair: str
    pinged_at: datetime
    entities: tuple[PingedEntity, ...]

    @property
    def exit(self) -> Exit:
        """The gravest answer: unreachable, then denied; otherwise failed, or partial if something answered."""
        names = [entity.result for entity in self.entities]
        for code in (Exit.UNREACHABLE, Exit.DENIED):
            if code.label in names:
                return code
        if all(name == "ok" for name in names):
            return Exit.OK
        return Exit.PARTIAL if "ok" in names else Exit.FAILED

    def summary(self) -> str:
        return f"{sum(entity.result == 'ok' for entity in self.entities)} of {len(self.entities)} answer."

    def notes(self) -> tuple[str, ...]:
        """What to do about those that do not answer, each advice once."""
        hints = (for_pair(entity.hint.replace(_OR_PING, "."), self.pair) for entity in self.entities if entity.hint)
        return tuple(dict.fromkeys(hints))


@dataclass(frozen=True, slots=True)
class SentPlace:
    """Messages that went to one place. `where`: primary, backlog, namespace or failed."""

    where: str = field(metadata=column("Where", colours=True))
    queue: str = field(metadata=column("Backlog queue"))
    messages: int = field(metadata=column("Messages", counts=True))


@dataclass(frozen=True, slots=True)
class SentMessages:
    """What became of the messages that were sent."""

    entity: str
    accepted: int
    diverted: int
    """Of the accepted ones, those in a backlog queue."""
    uncertain: int
    """Of the accepted ones, those that may be stored twice."""
    failed: int
    places: tuple[SentPlace, ...] = field(default=(), metadata=HIDDEN)

    def summary(self, namespace: str = "") -> str:
        """`497 accepted (10 diverted), 0 failed.` `namespace`: the only one that was sent to."""
        if namespace:
            return f"{self.accepted:,} accepted by {self.entity} on {namespace}, {self.failed:,} failed."
        return f"{self.accepted:,} accepted ({self.diverted:,} diverted), {self.failed:,} failed."

    def notes(self) -> list[str]:
        if not self.uncertain:
            return []
        return [f"{self.uncertain} may be stored twice, with the same MessageId: an answer was lost."]


@dataclass(frozen=True, slots=True)
class MeasuredDestination:
    """One destination: messages that it would take, those it would not by the reason, and whether its properties could
    be asked for, which tell whether it is full or takes messages with a session only. `side`: of a pair."""

    side: Side | None
    namespace: str
    entity: str
    would_take: int
    would_refuse: Mapping[str, int]
    asked: bool


@dataclass(frozen=True, slots=True)
class SendDryRunRow:
    """What would become of messages at one destination."""

    what: str = field(metadata=column("What"))
    where: str = field(metadata=column("Where"))
    messages: int = field(metadata=column("Messages", counts=True))


@dataclass(frozen=True, slots=True)
class SendDryRun:
    """What a dry run found. `stopped_at`: a line that is no message; the real run sends nothing after it."""

    entity: str
    dry_run: bool
    messages: int
    size_bytes: int
    places: tuple[MeasuredDestination, ...]
    stopped_at: str | None = None

    @property
    def rows(self) -> Iterator[SendDryRunRow]:
        """What would become of how many messages, for a table."""
        for place in self.places:
            where = f"{place.entity} on {place.namespace}"
            yield SendDryRunRow("would be sent", where, place.would_take)
            for reason, number in place.would_refuse.items():
                yield SendDryRunRow("would not be taken", f"{where}: {reason}", number)

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be checked, and where the run would stop."""
        blind = [
            f"Not checked without Manage on {place.namespace}: whether {self.entity} is full or requires a session id."
            for place in self.places
            if not place.asked
        ]
        stop = "" if self.stopped_at is None else f"It would stop at {self.stopped_at}; nothing after it would be sent."
        return (*blind, *filter(None, [stop]))

    @property
    def summary(self) -> str:
        """The last sentence."""
        places = " and ".join(place.namespace for place in self.places)
        return f"{counted(self.messages, 'message')} would be sent to {self.entity} on {places}. Nothing was sent."

    @property
    def exit(self) -> Exit:
        if self.stopped_at is not None:
            return Exit.USAGE
        return Exit.FINDINGS if self.messages else Exit.OK


@dataclass(frozen=True, slots=True)
class GatewayEntity:
    """One queue or topic that a gateway knows of, and what became of its messages since the gateway began."""

    pair: str = field(metadata=column("Pair"))
    entity: str = field(metadata=column("Entity"))
    state: str = field(metadata=column("State"))
    cause: str | None = field(metadata=column("Cause"))
    """Code of the error behind the state."""
    accepted: int = field(metadata=column("Accepted"))
    diverted: int = field(metadata=column("Diverted"))
    refused: int = field(metadata=column("Refused"))
    mean_milliseconds: float | None = field(metadata=column("Mean ms"))
    """Of a send that was accepted; None: there was none."""


@dataclass(frozen=True, slots=True)
class GatewayPair:
    """A pair as a running gateway sees it. `troubles` keep it from taking messages; none: it is ready."""

    pair: str
    primary: str
    connections: int
    troubles: tuple[str, ...]
    entities: tuple[GatewayEntity, ...]


@dataclass(frozen=True, slots=True)
class GatewayRun:
    """Messages of all clients. `accepted`: the primary or the backlog has them; `diverted`: the backlog."""

    pairs: tuple[str, ...]
    endpoint: str
    accepted: int
    diverted: int
    refused: int
    unsettled_connections: int
    """Connections that were closed before all of their messages were settled; their clients send those again."""

    def summary(self) -> str:
        told = f"The gateway for {listed(self.pairs)} has ended: {counted(self.accepted, 'message')} accepted"
        told += f", {self.diverted:,} of them diverted to the backlog" if self.diverted else ""
        return f"{told}, {self.refused:,} refused." if self.refused else f"{told}."


GatewayOutput = GatewayRun | tuple[GatewayPair, ...]
"""What `sbpair gateway` tells at its end, and `sbpair gateway status` of a running one."""
