"""`sbpair drill`: an outage rehearsed beside the live entities of a pair, or on embedded namespaces by many faults."""

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair import operations
from sbpair.cli import suggestions
from sbpair.cli.asking import go_ahead, pair_to_write, side_named, will_ask
from sbpair.cli.context import Stop, call, event_log, load_settings, open_sides, run_and_show, work_of
from sbpair.cli.failover.send import FailoverIntervalOption, PingIntervalOption, with_options
from sbpair.cli.inspection.plans import operations_log
from sbpair.cli.options import Options, PairArgument, command
from sbpair.core.errors import UsageError
from sbpair.core.inspection.drilled import DEFAULT_MESSAGES, Drilled, DrilledEntity, DrillLine, Reaction, Shadow
from sbpair.core.names import check_entity_path
from sbpair.core.pairing import Pair, Side
from sbpair.core.words import counted
from sbpair.render.console import check_writable
from sbpair.render.result import CommandResult, Grade, MonitoredCheck, concluded, metrics_of, table_of
from sbpair.settings import state_directory

if TYPE_CHECKING:
    from sbpair.engine.faults import Faults

# What the embedded namespaces do to the shadows, and what a sender is to experience ("Asynchronous Messaging Patterns
# and High Availability": a server that is busy is waited for, a right that is missing is the application's business).
FAULTS: Mapping[str, tuple[str, Reaction]] = {
    "send-disabled": ("", Reaction.DIVERTED),
    "disabled": ("disabled", Reaction.DIVERTED),
    "dark": ("dark", Reaction.DIVERTED),
    "detach": ("detach:operation=send", Reaction.DIVERTED),
    "fail": ("fail:operation=send", Reaction.DIVERTED),
    "quota": ("quota", Reaction.DIVERTED),
    "throttle": ("throttle:operation=send", Reaction.WAITED),
    "delay": ("delay:rtt=100ms", Reaction.WAITED),
    "unauthorized": ("unauthorized", Reaction.REFUSED),
}


@command(
    output="core.inspection.drilled:Drilled",
    checks=True,
    asks=True,
    dry_run="Only show what would be created and sent; exit 5.",
)
def drill(
    options: Options,
    pair: PairArgument = None,
    entity: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ENTITY]...",
            help="Queues or topics to rehearse for. Default: the configured ones.",
            autocompletion=suggestions.entities,
        ),
    ] = None,
    messages: Annotated[int, typer.Option(min=8, max=10_000, help="Messages to each shadow.")] = DEFAULT_MESSAGES,
    failover_interval: FailoverIntervalOption = None,
    ping_interval: PingIntervalOption = None,
    history: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Append the times to a file in this folder, and show the trend.")
    ] = None,
    embedded: Annotated[
        bool, typer.Option(help="Rehearse on two embedded namespaces instead, by one fault after another.")
    ] = False,
    fault: Annotated[
        list[str] | None,
        typer.Option(metavar="FAULT", help=f"With --embedded only this fault; repeatable: {', '.join(FAULTS)}."),
    ] = None,
) -> CommandResult:
    """Rehearse an outage on the pair's own namespaces, without touching a live entity, and prove that nothing is lost.

    Beside each entity a shadow is created, with its settings, and backlog queues of the drill's own, which no other
    drain or syphon reads. The failover sender sends; the shadow is set to SendDisabled; messages are diverted; it is
    enabled; the sender fails back; a drain returns the backlog; every message is received and compared. All of it is
    removed in the end, and after a kill by the next drill. Findings of doctor and audit are listed: they would matter
    in a real outage. Intervals are those of the pair, so with the defaults a drill takes about three minutes. Needs
    Manage on both namespaces. Exit code: 1 not proved, 3 something could not be removed, 5 proved with findings.

    \b
    Examples:
      sbpair drill orders --dry-run
      sbpair drill orders --yes --history drills
      sbpair drill orders --failover-interval 5s --ping-interval 5s --yes
      sbpair drill orders invoices/incoming --messages 500 -o nagios --yes
      sbpair drill --embedded --fault dark --fault throttle
    """
    if embedded:
        if any((pair, history, options.dry_run, failover_interval, ping_interval)):
            raise UsageError("--embedded has a pair of its own, and leaves nothing: only --messages and --fault apply.")
        return _embedded(options, messages, _chosen(fault))
    if fault:
        raise UsageError("--fault is for --embedded: the outage of a real pair is SendDisabled.")
    chosen = pair_to_write(options, load_settings(options), pair, "Rehearse an outage of")
    chosen = with_options(chosen, failover_interval, ping_interval)
    if history is not None:
        check_writable(history / "a pair.drills.jsonl")
    hosts = f"{chosen.primary.host} {chosen.secondary.host}".lower()
    digest = hashlib.sha256(hosts.encode()).hexdigest()[:16]
    request = operations.DrillRequest(
        tuple(check_entity_path(path) for path in entity or ()),
        messages,
        history=history,
        state=state_directory(os.environ) / "drills" / digest,
        log=operations_log(),
        dry_run=options.dry_run,
    )
    if will_ask(options) and not options.dry_run:
        planned = call(options, chosen, operations.drill, replace(request, dry_run=True))
        go_ahead(options, _question(chosen, planned), state="Nothing was created.")
        assert planned.plan is not None  # noqa: S101 - a dry run has one
        request = replace(request, run=planned.plan.run)
    work = work_of(chosen, operations.drill, request, observer=event_log(options))
    return run_and_show(options, work, _shown, nothing="Nothing was created.")


def _question(pair: Pair, planned: Drilled) -> str:
    number = Counter(one.side for one in planned.created)
    created = " and ".join(
        f"{counted(number[side], 'entity', 'entities')} on {side_named(pair, side)}" for side in Side
    )
    return f"Create {created} for a drill, send to them, and remove them again; no live entity is changed"


def _shown(done: Drilled) -> CommandResult:
    first = table_of(Shadow, done.created) if done.dry_run else table_of(DrilledEntity, done.entities)
    earlier = table_of(DrillLine, done.earlier, "Earlier drills")
    severities = {"proved": Grade.OK, "failed": Grade.CRITICAL}
    return concluded(
        done,
        first,
        *([earlier] if done.earlier else []),
        checks=(
            *(MonitoredCheck(one.outage, one.entity, severities[one.verdict], one.sentence) for one in done.entities),
            *(MonitoredCheck(row.check, row.subject, Grade(row.result.value), row.detail) for row in done.findings),
        ),
        metrics=tuple(
            sample
            for one in done.entities
            for sample in metrics_of(one, ("pair", done.pair), ("entity", one.entity), ("outage", one.outage))
        ),
    )


# On embedded namespaces.


def _chosen(names: Sequence[str] | None) -> Sequence[str]:
    if unknown := [name for name in names or () if name not in FAULTS]:
        raise UsageError(f"There is no fault {unknown[0]!r} to rehearse. There are {', '.join(FAULTS)}.")
    return names or tuple(FAULTS)


def _embedded(options: Options, messages: int, faults: Sequence[str]) -> CommandResult:
    from sbpair.cli.demo import PRIMARY, SECONDARY, embedded_pair
    from sbpair.cli.demo_story import QUEUE, SEED, SESSION_QUEUE
    from sbpair.emulator import EmulatorThread
    from sbpair.emulator.seed import plant
    from sbpair.operations.provision import ProvisionRequest, provision

    entities = (QUEUE, SESSION_QUEUE)

    async def work(stop: Stop) -> Drilled:
        done: list[Drilled] = []
        async with open_sides(pair) as sides:
            await provision(sides, ProvisionRequest())
            for name in faults:
                spec, expects = FAULTS[name]
                outage = _Fault(emulator.faults(PRIMARY), name, spec) if spec else None
                request = operations.DrillRequest(entities, messages, outage=outage, expects=expects, examine=False)
                done.append(await operations.drill(sides, request, observer=event_log(options), stop=stop))
                if done[-1].stopped:
                    break
        rows = tuple(row for one in done for row in one.entities)
        return replace(done[-1], entities=rows, findings=tuple(row for one in done for row in one.findings))

    with EmulatorThread([PRIMARY, SECONDARY]) as emulator:
        emulator.call(lambda inner: plant(inner.namespace(PRIMARY), SEED))
        pair = embedded_pair(emulator)
        pair = replace(pair, options=replace(pair.options, hold_sessions=True))
        return run_and_show(options, work, _shown, nothing="Nothing is left behind.")


@dataclass(frozen=True, slots=True)
class _Fault:
    """An outage that the emulator makes."""

    faults: "Faults"
    name: str
    spec: str

    async def begin(self, paths: Sequence[str]) -> None:
        self.faults.add(self.spec)

    async def end(self, paths: Sequence[str]) -> None:
        self.faults.clear()
