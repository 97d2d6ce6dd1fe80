"""`sbpair ping`: does each side answer, how fast, and with which credential and right."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli import suggestions
from sbpair.cli.asking import YesOption, go_ahead, pair_to_write, side_named
from sbpair.cli.context import load_settings, open_sides, run_async, stoppable, system_clock
from sbpair.cli.options import Options, PairArgument, command, duration_option
from sbpair.core.access import credential_name, spoken_name
from sbpair.core.durations import format_duration
from sbpair.core.errors import ConfigurationError, UsageError, for_pair
from sbpair.core.names import check_entity_path, parse_backlog_queue_path
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair, Side
from sbpair.core.serialization import INLINED, to_plain
from sbpair.core.words import counted
from sbpair.render.result import Check, Column, CommandResult, Metric, Severity, Table

if TYPE_CHECKING:
    import asyncio

    from sbpair.operations.ends import Sides
    from sbpair.runtime.failover.ping import Latency, PingReport, PingResult, PingRow, PingTarget

DEFAULT_COUNT = 4
DEFAULT_TIMEOUT_SECONDS = 30.0

COLUMNS = (
    Column("side", "Side"),
    Column("entity", "Entity"),
    Column("by", "By", spare=True),
    Column("result", "Result"),
    Column("accepted", "Ok", right=True),
    Column("sent", "Tried", right=True),
    Column("connect_ms", "connect ms", right=True),
    Column("p50_ms", "p50 ms", right=True),
    Column("p90_ms", "p90 ms", right=True, spare=True),
    Column("p99_ms", "p99 ms", right=True, spare=True),
    Column("max_ms", "max ms", right=True),
    Column("right", "Right"),
    Column("credential", "Credential", spare=True),
    Column("detail", "Detail"),
)


class SideChoice(StrEnum):
    PRIMARY = "primary"
    SECONDARY = "secondary"
    BOTH = "both"

    def includes(self, side: Side) -> bool:
        return self in (SideChoice.BOTH, SideChoice(side.value))


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


# What `sbpair ping -o json` prints.


@dataclass(frozen=True, slots=True)
class Milliseconds:
    """Times to acceptance on a connection that was there; percentiles by nearest rank; None if nothing was accepted.
    Where only the connecting ping was accepted, its time."""

    min_ms: float | None = None
    mean_ms: float | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None

    @classmethod
    def of(cls, latency: "Latency") -> "Milliseconds":
        seconds = (
            latency.minimum_seconds,
            latency.mean_seconds,
            latency.p50_seconds,
            latency.p90_seconds,
            latency.p99_seconds,
            latency.maximum_seconds,
        )
        return cls(*map(_milliseconds, seconds))


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PingedEntity:
    """All pings of one entity. `result`: ok, or the exit code table's name of what came instead."""

    side: Side
    namespace: str
    entity: str
    by: By
    result: str
    sent: int
    accepted: int
    connect_ms: float | None
    """The first accepted ping, which had the connection to open."""
    latency: Milliseconds = field(metadata=INLINED)
    right: str | None
    """The right that an accepted ping proves."""
    credential: str
    error_code: str | None
    detail: str


@dataclass(frozen=True, slots=True)
class Pinged:
    pair: str
    pinged_at: datetime
    entities: tuple[PingedEntity, ...]


@command(output="cli.failover.ping:Pinged", checks=True)
def ping(
    options: Options,
    pair: PairArgument = None,
    entity: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ENTITY]...",
            help="Queues or topics. Default: the configured ones, and the backlog queues.",
            show_default=False,
            autocompletion=suggestions.entities,
        ),
    ] = None,
    side: Annotated[SideChoice, typer.Option("--side", help="Which namespaces to ping.")] = SideChoice.BOTH,
    count: Annotated[
        int, typer.Option("-c", "--count", min=1, help="Pings per entity, if it answers.")
    ] = DEFAULT_COUNT,
    interval: Annotated[
        str, typer.Option("--interval", metavar="DURATION", help="Pause between pings of one entity.")
    ] = "1s",
    until_ok: Annotated[
        bool,
        typer.Option("--until-ok", help="Ping until every entity has answered once, for --timeout in all."),
    ] = False,
    control_plane: Annotated[
        bool, typer.Option("--control-plane", help="Look the entities up instead: needs Manage.")
    ] = False,
    message: Annotated[
        bool,
        typer.Option("--message", help="Send queues and topics the documented ping message, which lives one second."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --message: open the links only, and name what would be sent.")
    ] = False,
    yes: YesOption = False,
) -> CommandResult:
    """Measure whether and how fast each namespace of a pair answers, and with which credential and right.

    Opens a link to send to a queue or topic, and browses backlog queues: stores nothing. --message sends queues and
    topics the documented ping message, which a consumer may see, and asks on a terminal before that; backlog queues
    dead-letter what expires and are only browsed. The first ping also connects: its time stands
    apart. --timeout (30s) is for one ping, with --until-ok for all of them. Exit code: 6 no answer, 4 access denied.

    \b
    Examples:
      sbpair ping orders
      sbpair ping orders invoices/incoming --side primary --count 20 --interval 250ms -o json
      sbpair ping orders invoices/incoming --message --dry-run
      sbpair ping orders invoices/incoming --message --yes
      sbpair ping orders --until-ok --timeout 5m && deploy
    """
    if message and control_plane:
        raise UsageError("--control-plane sends no message; give it or --message.")
    if dry_run and not message:
        raise UsageError("Without --message nothing is sent, so there is no --dry-run.")
    settings = load_settings(options)
    writes = message and not dry_run
    chosen = pair_to_write(options, settings, pair, "Send ping messages to") if writes else settings.pair(pair)
    kinds = dict(_wanted(chosen, [check_entity_path(path) for path in entity or ()], side, control_plane, message))
    if not kinds:
        raise ConfigurationError(
            f"Pair {chosen.name!r} names no entities on its primary.",
            hint="Name them on the command line, or under `entities:` in the configuration.",
        )
    would_send = [(side, path) for (side, path), by in kinds.items() if by is By.MESSAGE] if dry_run else []
    kinds |= dict.fromkeys(would_send, By.LINK)
    if writes:
        go_ahead(options, _doing(chosen, kinds), yes=yes, state="Nothing was sent.")
    pause = duration_option(interval) or 0.0
    total = options.timeout_seconds(0.0) if until_ok and options.timeout else None
    each = DEFAULT_TIMEOUT_SECONDS if until_ok else options.timeout_seconds(DEFAULT_TIMEOUT_SECONDS)

    async def work(stop: "asyncio.Event") -> "PingReport":
        from sbpair.runtime.failover.ping import measure

        async with open_sides(chosen) as sides:
            targets = [_target(sides, one, path, by, each) for (one, path), by in kinds.items()]
            return await stoppable(
                stop,
                measure(
                    targets,
                    clock=system_clock(),
                    count=count,
                    interval_seconds=pause,
                    until_ok=until_ok,
                    total_seconds=total,
                    on_result=_Teller().tell,
                ),
            )

    result = _result(chosen, run_async(options, work), kinds)
    return _as_dry_run(chosen, result, would_send, count) if dry_run else result


def _as_dry_run(pair: Pair, result: CommandResult, would_send: list[tuple[Side, str]], count: int) -> CommandResult:
    """With what the real run would send, which is what there is to find."""
    places = ", ".join(f"{path} on {side_named(pair, side)}" for side, path in would_send)
    summary = f"{result.summary} {counted(count, 'ping message')} would be sent to each of {places}. Nothing was sent."
    if not would_send:
        summary = f"{result.summary} No ping message would be sent."
    found = would_send and result.exit is Exit.OK
    return replace(result, summary=summary, exit=Exit.FINDINGS if found else result.exit, closing=True)


def _doing(pair: Pair, kinds: Mapping[tuple[Side, str], By]) -> str:
    entities = [f"{path} on {side_named(pair, side)}" for (side, path), by in kinds.items() if by is By.MESSAGE]
    return f"Send ping messages to {', '.join(entities)}"


def _wanted(
    pair: Pair, named: list[str], side: SideChoice, control_plane: bool, message: bool
) -> Iterator[tuple[tuple[Side, str], By]]:
    """What is measured on which side. Backlog queues belong to the secondary, everything else to the primary, unless
    one side was asked for."""
    paths = named or [*pair.entities, *pair.backlog_paths()]
    for path in paths:
        backlog = parse_backlog_queue_path(path) is not None
        own = Side.SECONDARY if backlog else Side.PRIMARY
        if named and side is not SideChoice.BOTH:
            own = Side(side.value)
        if side.includes(own):
            by = By.LOOK_UP if control_plane else By.BROWSE if backlog else By.MESSAGE if message else By.LINK
            yield (own, path), by


def _target(sides: "Sides", side: Side, path: str, by: By, timeout_seconds: float) -> "PingTarget":
    from sbpair.runtime.browse import browse_target
    from sbpair.runtime.failover.ping import control_plane_target, link_target, message_target

    messaging = sides.primary if side is Side.PRIMARY else sides.secondary
    admin = sides.primary_admin if side is Side.PRIMARY else sides.secondary_admin
    if by is By.LOOK_UP:
        return control_plane_target(side, admin, path, timeout_seconds=timeout_seconds)
    make = {By.BROWSE: browse_target, By.LINK: link_target, By.MESSAGE: message_target}[by]
    return make(side, messaging, path, timeout_seconds=timeout_seconds)


class _Teller:
    """Says a trouble once for each side, not for each of its queues and tries: the table has every one in the end."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()
        self._log = logging.getLogger("sbpair")

    def tell(self, result: "PingResult") -> None:
        if result.error is None:
            self._log.debug(f"{result.side} {result.entity}: {format_duration(result.seconds)}")
            self._said = {said for said in self._said if said[0] != result.side.value}
            return
        cause = (result.side.value, result.error.code)
        level = logging.DEBUG if cause in self._said else logging.INFO
        self._said.add(cause)
        self._log.log(level, f"{result.side} {result.entity}: {result.error.message}")


def _result(pair: Pair, report: "PingReport", kinds: dict[tuple[Side, str], By]) -> CommandResult:
    entities = tuple(_pinged(pair, row, kinds[row.side, row.entity]) for row in report.rows)
    good = sum(one.result == "ok" for one in entities)
    checks = tuple(
        Check("ping", f"{one.side} {one.entity}", _SEVERITIES.get(one.result, Severity.ERROR), _said(one))
        for one in entities
    )
    hints = dict.fromkeys(
        for_pair(row.last_error.hint.replace(_OR_PING, "."), pair.name)
        for row in report.rows
        if row.last_error and row.last_error.hint
    )
    return CommandResult(
        "ping",
        Pinged(pair.name, datetime.now(UTC), entities),
        (Table("", COLUMNS, to_plain(entities), style_key="result"),),
        screen=tuple(_by_side(pair, entities)),
        notes=tuple(hints),
        summary=f"{good} of {len(entities)} answer.",
        exit=_exit([one.result for one in entities]),
        checks=checks,
        metrics=tuple(_metrics(pair, report)),
    )


_OR_PING = ", or see which side answers with: sbpair ping"
"""What hints advise to all other commands."""


def _by_side(pair: Pair, entities: tuple[PingedEntity, ...]) -> Iterator[Table]:
    """A table for each side: what its rows have in common is said once."""
    columns = tuple(column for column in COLUMNS if column.key != "side")
    for side in Side:
        rows = tuple(one for one in entities if one.side is side)
        if rows:
            yield Table(f"{side}: {side_named(pair, side)}", columns, to_plain(rows), style_key="result")


_SEVERITIES = {"ok": Severity.OK, "unreachable": Severity.CRITICAL, "denied": Severity.CRITICAL}


def _pinged(pair: Pair, row: "PingRow", by: By) -> PingedEntity:
    access = pair.primary if row.side is Side.PRIMARY else pair.secondary
    error = row.last_error
    answered = error is None and row.accepted > 0
    return PingedEntity(
        side=row.side,
        namespace=spoken_name(access.label, access.host),
        entity=row.entity,
        by=by,
        result="ok" if answered else error.exit_name if error else "unreachable",
        sent=row.sent,
        accepted=row.accepted,
        connect_ms=None if row.connecting_seconds is None else _milliseconds(row.connecting_seconds),
        latency=Milliseconds() if row.latency is None else Milliseconds.of(row.latency),
        right=by.right if row.accepted else None,
        credential=credential_name(access),
        error_code=error.code if error else None,
        detail=error.message if error else "" if answered else "no answer in time",
    )


def _said(one: PingedEntity) -> str:
    if one.result != "ok":
        return one.detail
    return f"p50 {one.latency.p50_ms} ms, {one.accepted} of {one.sent}"


def _exit(names: list[str]) -> Exit:
    """The gravest answer: unreachable, then denied; otherwise failed, or partial if something answered."""
    for code in (Exit.UNREACHABLE, Exit.DENIED):
        if code.label in names:
            return code
    if all(name == "ok" for name in names):
        return Exit.OK
    return Exit.PARTIAL if "ok" in names else Exit.FAILED


def _metrics(pair: Pair, report: "PingReport") -> Iterator[Metric]:
    for row in report.rows:
        labels = (("pair", pair.name), ("side", row.side.value), ("entity", row.entity))
        up = float(row.accepted > 0 and row.last_error is None)
        yield Metric("sbpair_ping_up", "1 if the last ping was accepted.", up, labels)
        yield Metric("sbpair_ping_tries", "Pings of the last run.", float(row.sent), labels)
        yield Metric("sbpair_ping_accepted", "Accepted pings of the last run.", float(row.accepted), labels)
        if row.connecting_seconds is not None:
            connecting = row.connecting_seconds
            yield Metric("sbpair_ping_connect_seconds", "The first accepted ping, which connects.", connecting, labels)
        if row.latency is not None:
            quantiles = {
                "0.5": row.latency.p50_seconds,
                "0.9": row.latency.p90_seconds,
                "0.99": row.latency.p99_seconds,
            }
            for quantile, seconds in quantiles.items():
                yield Metric(
                    "sbpair_ping_latency_seconds",
                    "Time to acceptance on an open connection, by nearest rank.",
                    seconds,
                    (*labels, ("quantile", quantile)),
                )
