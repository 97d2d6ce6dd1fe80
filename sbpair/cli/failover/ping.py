"""`sbpair ping`: does each side answer, how fast, and with which credential and right."""

import logging
import shlex
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from sbpair import operations
from sbpair.cli import suggestions
from sbpair.cli.asking import go_ahead, pair_to_write, side_named
from sbpair.cli.context import call, load_settings
from sbpair.cli.options import Options, PairArgument, command, duration_option
from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.core.events import Event, PingMeasured
from sbpair.core.failover.measured import ENTITY_COLUMNS, By, Pinged, PingedEntity
from sbpair.core.names import check_entity_path
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair, Side
from sbpair.core.words import counted
from sbpair.render.result import CommandResult, Grade, MonitoredCheck, Table, concluded, metrics_of, table_of

DEFAULT_COUNT = 4


class SideChoice(StrEnum):
    PRIMARY = "primary"
    SECONDARY = "secondary"
    BOTH = "both"


@command(
    output="core.failover.measured:Pinged",
    checks=True,
    asks=True,
    dry_run="With --message: open the links only, and name what would be sent.",
)
def ping(
    options: Options,
    pair: PairArgument = None,
    entity: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ENTITY]...",
            help="Queues or topics. Default: the configured ones, and the backlog queues.",
            autocompletion=suggestions.entities,
        ),
    ] = None,
    side: Annotated[SideChoice, typer.Option(help="Which namespaces to ping.")] = SideChoice.BOTH,
    count: Annotated[
        int, typer.Option("-c", "--count", min=1, help="Pings per entity, if it answers.")
    ] = DEFAULT_COUNT,
    interval: Annotated[str, typer.Option(metavar="DURATION", help="Pause between pings of one entity.")] = "1s",
    until_ok: Annotated[
        bool, typer.Option(help="Ping until every entity has answered once, for --timeout in all.")
    ] = False,
    control_plane: Annotated[bool, typer.Option(help="Look the entities up instead: needs Manage.")] = False,
    message: Annotated[
        bool, typer.Option(help="Send queues and topics the documented ping message, which lives one second.")
    ] = False,
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
    if options.dry_run and not message:
        raise UsageError("Without --message nothing is sent, so there is no --dry-run.")
    from sbpair.operations.ping import DEFAULT_TIMEOUT_SECONDS, targets

    settings = load_settings(options)
    chosen = pair_to_write(options, settings, pair, "Send ping messages to") if message else settings.pair(pair)
    timeout_seconds = options.timeout_seconds(DEFAULT_TIMEOUT_SECONDS)
    request = operations.PingRequest(
        tuple(check_entity_path(path) for path in entity or ()),
        None if side is SideChoice.BOTH else Side(side.value),
        by_message=message,
        by_look_up=control_plane,
        count=count,
        interval_seconds=duration_option(interval) or 0.0,
        until_ok=until_ok,
        timeout_seconds=DEFAULT_TIMEOUT_SECONDS if until_ok else timeout_seconds,
        total_seconds=timeout_seconds if until_ok and options.timeout else None,
        dry_run=options.dry_run,
    )
    asked = targets(chosen, request)
    sends_to = [place for place, by in asked.items() if by is By.MESSAGE]
    places = ", ".join(f"{path} on {side_named(chosen, side)}" for side, path in sends_to)
    if message and not options.dry_run:
        go_ahead(options, f"Send ping messages to {places}", state="Nothing was sent.")

    result = _result(chosen, call(options, chosen, operations.ping, request, observer=_Teller()))
    if side is not SideChoice.SECONDARY and not entity and all(place[0] is Side.SECONDARY for place in asked):
        missing = f"{side_named(chosen, Side.PRIMARY)} was not asked, as the pair names no entity of it."
        note = f"{missing} Whether it answers: sbpair doctor {shlex.quote(chosen.name)}"
        result = replace(result, notes=(*result.notes, note), closing=True)
    return _as_dry_run(result, places, count) if options.dry_run else result


def _as_dry_run(result: CommandResult, places: str, count: int) -> CommandResult:
    """With what the real run would send, which is what there is to find."""
    summary = f"{result.summary} {counted(count, 'ping message')} would be sent to each of {places}. Nothing was sent."
    if not places:
        summary = f"{result.summary} No ping message would be sent."
    found = places and result.exit is Exit.OK
    return replace(result, summary=summary, exit=Exit.FINDINGS if found else result.exit, closing=True)


class _Teller:
    """Says a trouble once for each side, not for each of its queues and tries: the table has every one in the end."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()
        self._log = logging.getLogger("sbpair")

    def notify(self, event: Event) -> None:
        if not isinstance(event, PingMeasured):
            return
        if event.error_code is None:
            self._log.debug(f"{event.side} {event.entity}: {format_duration(event.seconds)}")
            self._said = {said for said in self._said if said[0] != event.side}
            return
        cause = (event.side, event.error_code)
        level = logging.DEBUG if cause in self._said else logging.INFO
        self._said.add(cause)
        self._log.log(level, f"{event.side} {event.entity}: {event.detail}")


def _result(pair: Pair, pinged: Pinged) -> CommandResult:
    return concluded(
        pinged,
        table_of(PingedEntity, pinged.entities, show=ENTITY_COLUMNS),
        screen=tuple(_by_side(pair, pinged.entities)),
        checks=tuple(_check(entity) for entity in pinged.entities),
        metrics=tuple(
            sample
            for entity in pinged.entities
            for sample in metrics_of(
                entity.figures, ("pair", pair.name), ("side", entity.side.value), ("entity", entity.entity)
            )
        ),
    )


def _by_side(pair: Pair, entities: tuple[PingedEntity, ...]) -> Iterator[Table]:
    """A table for each side: what its rows have in common is said once."""
    for side in Side:
        if rows := [entity for entity in entities if entity.side is side]:
            yield table_of(PingedEntity, rows, f"{side}: {side_named(pair, side)}", show=ENTITY_COLUMNS[1:])


_SEVERITIES = {"ok": Grade.OK, "unreachable": Grade.CRITICAL, "denied": Grade.CRITICAL}


def _check(entity: PingedEntity) -> MonitoredCheck:
    severity = _SEVERITIES.get(entity.result, Grade.ERROR)
    return MonitoredCheck("ping", f"{entity.side} {entity.entity}", severity, entity.sentence)
