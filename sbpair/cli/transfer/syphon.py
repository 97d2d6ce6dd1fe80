"""`sbpair syphon`: the drain that never ends, as a service with metrics, health and a graceful stop."""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.asking import go_ahead, pair_to_write
from sbpair.cli.context import EventLog, load_settings, open_sides, run_and_show, stoppable, system_clock
from sbpair.cli.options import Options, PairArgument, command, duration_option
from sbpair.cli.transfer.options import MoveOptions
from sbpair.cli.transfer.report import doing, make_request, report_result
from sbpair.core.durations import format_duration
from sbpair.core.errors import InterruptedWorkError, OperationTimeoutError, UsageError
from sbpair.core.pairing import Pair
from sbpair.core.words import counted
from sbpair.render.console import check_writable
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from sbpair.cli.transfer.telemetry import Spans
    from sbpair.core.backlog import Backlog
    from sbpair.core.events import Event, Forwarded
    from sbpair.core.transfer.conclusion import DrainResult
    from sbpair.core.transfer.state import Key
    from sbpair.operations.backlog import BacklogRequest
    from sbpair.render.service import ServiceMetrics
    from sbpair.runtime.clock import SystemClock
    from sbpair.runtime.inspection.usage import CountedAdmin, CountedMessaging
    from sbpair.runtime.transfer.drain import TransferRequest
    from sbpair.runtime.transfer.syphon import SyphonRun

SAY_EVERY_SECONDS = 10.0
_log = logging.getLogger("sbpair")


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """What the service is given besides the request."""

    poll_seconds: float
    host: str
    port: int | None
    file: Path | None


@command(output="core.transfer.conclusion:DrainResult", checks=True)
def syphon(
    options: Options,
    pair: PairArgument = None,
    *,
    moves: MoveOptions,
    poll: Annotated[str, typer.Option("--poll", help="How long one receive waits for a message.")] = "15m",
    metrics_on: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            min=0,
            max=65535,
            help="Serve /metrics and /healthz on this port; 0 for any free one.",
            show_default=False,
        ),
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address that --metrics-port listens on.")] = "127.0.0.1",
    metrics_to: Annotated[
        Path | None,
        typer.Option("--metrics-file", help="Write the metrics to this file every 15 seconds.", show_default=False),
    ] = None,
) -> CommandResult:
    """Run as a service: forward backlog messages to the primary as they arrive.

    Serves every backlog queue that exists, not only the configured ones, and finds one that is made later within a
    --poll. Messages are forwarded at once; an empty queue costs one receive per --poll, and a list of the queues is
    made as often. Several syphons may share the work of one pair. SIGTERM, Ctrl-C and the end of --for or --until-idle
    settle or release what is in flight, then report.

    \b
    Examples:
      sbpair syphon orders
      sbpair syphon orders --ledger /var/lib/sbpair/orders.jsonl --metrics-port 9464 --log-format json
    """
    from sbpair.operations.backlog import BacklogRequest

    chosen = pair_to_write(options, load_settings(options), pair, "Drain continuously")
    poll_seconds = duration_option(poll) or 0.0
    if poll_seconds < 1:
        raise UsageError(f"--poll is one second or more, not {poll}.")
    request = make_request(BacklogRequest, chosen, moves)
    request = replace(request, later_queues=not request.queues)
    if moves.ledger is not None:
        check_writable(moves.ledger)
    service = ServiceOptions(poll_seconds, metrics_host, metrics_on, metrics_to)
    go_ahead(options, f"{doing('drain', chosen, moves)} continuously", yes=moves.yes, state="Nothing was moved.")

    async def work(stop: "asyncio.Event") -> "DrainResult":
        result = await run_service(chosen, request, service, stop)
        return replace(result, asked=replace(result.asked, go_on=moves.go_on("drain", chosen)))

    def shown(drained: "DrainResult") -> CommandResult:
        return report_result("syphon", chosen, drained, verbose=options.verbose)

    return run_and_show(options, work, shown, nothing="Nothing was moved.")


async def run_service(
    pair: Pair, request: "BacklogRequest", service: ServiceOptions, stop: "asyncio.Event"
) -> "DrainResult":
    """Syphon with the pair's real sides until `stop`; each new start after an error has fresh connections."""
    from sbpair.cli.transfer.metrics_endpoint import metrics_file, metrics_port
    from sbpair.cli.transfer.telemetry import Spans, telemetry
    from sbpair.core.transfer.conclusion import DrainResult
    from sbpair.operations.backlog import asked_of, chosen_paths, way_of
    from sbpair.operations.ledgers import open_ledger
    from sbpair.render.service import ServiceMetrics
    from sbpair.runtime.inspection.backlog import find_queues
    from sbpair.runtime.inspection.usage import CountedAdmin, CountedMessaging, Usage
    from sbpair.runtime.transfer.drain import DrainJob
    from sbpair.runtime.transfer.syphon import serve, syphon_until

    metrics = ServiceMetrics(pair.name, poll_seconds=service.poll_seconds)
    clock, usage = system_clock(), Usage()
    new_ledger, only = request.new_ledger, request.queues
    backlog: Backlog | None = None

    async with AsyncExitStack() as stack:
        observer = await stack.enter_async_context(_saying(metrics, Spans(pair.name)))
        await stack.enter_async_context(telemetry(metrics))
        if service.port is not None:
            await stack.enter_async_context(metrics_port(metrics, service.host, service.port))
        if service.file is not None:
            await stack.enter_async_context(metrics_file(metrics, service.file))

        async def run(uncompleted: "frozenset[Key]") -> "SyphonRun":
            nonlocal new_ledger, backlog
            ledger = open_ledger(request.ledger, way_of(pair, request), new=new_ledger)
            new_ledger = False
            async with ledger as opened_ledger, open_sides(pair) as sides:
                secondary = CountedMessaging(sides.secondary, usage)
                admin = CountedAdmin(sides.secondary_admin, usage)
                searching = find_queues(pair, messaging=secondary, admin=admin)
                try:
                    found = await stoppable(end, searching)
                except InterruptedWorkError as ended:
                    if stop.is_set():
                        raise
                    where = f"{pair.secondary.label} had not answered when the time was up"
                    raise OperationTimeoutError(f"{where}. Nothing was moved.") from ended
                paths = chosen_paths(pair, found, only)
                _say_what_begins(pair, paths, request.ledger, service)
                done = await syphon_until(
                    DrainJob(
                        replace(request, queues=paths),
                        secondary=secondary,
                        primary=sides.primary,
                        admin=admin,
                        clock=clock,
                        observer=observer,
                        ledger=opened_ledger,
                        facts=found.facts,
                        stop=end,
                    ),
                    poll_seconds=service.poll_seconds,
                    uncompleted=uncompleted,
                    totals=metrics.totals,
                )
                if done.broken is None:
                    backlog = await _what_is_left(pair, secondary, admin, clock, only)
                return done

        async with _ending(request, stop, observer) as ending:
            end = ending.end
            report = await serve(run, stop=end, clock=clock, observer=observer)
    if not stop.is_set() and report.broken_off is None:
        report = replace(report, ended_by=ending.why)
    return DrainResult.of(asked_of(pair, request), report, backlog, usage.forecast())


class _Ending:
    """When a service ends: `end` is set by a signal, when its time is up, or when nothing has come for long enough."""

    def __init__(self) -> None:
        import asyncio

        self.end = asyncio.Event()
        self.why = "stop"

    def because(self, why: str) -> None:
        if not self.end.is_set():
            self.why = why
            self.end.set()


@asynccontextmanager
async def _ending(request: "TransferRequest", stop: "asyncio.Event", saying: "_Saying") -> AsyncIterator[_Ending]:
    import asyncio

    from sbpair.concurrency import end

    ending = _Ending()

    async def stopped() -> None:
        await stop.wait()
        ending.because("stop")

    async def over() -> None:
        if request.for_seconds is not None:
            await asyncio.sleep(request.for_seconds)
            ending.because("time")

    async def idle() -> None:
        if not request.idle_seconds:
            return
        left = request.idle_seconds
        while left > 0:
            await asyncio.sleep(left)
            left = request.idle_seconds - saying.quiet_seconds
        ending.because("idle")

    tasks = [asyncio.create_task(one()) for one in (stopped, over, idle)]
    try:
        yield ending
    finally:
        await end(*tasks)


LEFT_SECONDS = 3.0
"""A service that was told to stop counts what is left only if that is answered at once."""


async def _what_is_left(
    pair: Pair, secondary: "CountedMessaging", admin: "CountedAdmin", clock: "SystemClock", only: tuple[str, ...]
) -> "Backlog":
    from sbpair.runtime.inspection.backlog import find_queues, read_backlog

    found = await find_queues(pair, messaging=secondary, admin=admin, timeout_seconds=LEFT_SECONDS)
    return await read_backlog(
        pair,
        found,
        messaging=secondary,
        admin=admin,
        clock=clock,
        timeout_seconds=LEFT_SECONDS,
        only=only or None,
        recount=False,
    )


def _say_what_begins(pair: Pair, paths: "Sequence[str]", to: Path | None, service: ServiceOptions) -> None:
    from sbpair.core.cost.model import of_syphon_hour, polling_syphon
    from sbpair.core.forecast import in_words

    ledger = f", ledger {to}" if to is not None else ""
    _log.info(
        f"Syphon of {pair.name}: {pair.secondary.label} -> {pair.primary.label}, {counted(len(paths), 'queue')}, polls "
        f"of {format_duration(service.poll_seconds)}{ledger}. Ctrl-C ends it."
    )
    idle_hour = of_syphon_hour(len(paths), 1, polling_syphon(round(service.poll_seconds)))
    _log.debug(f"Idle cost per hour: {in_words(idle_hour)}.")


class _Saying:
    """Passes events on to metrics, spans and log; what was forwarded is said in sums, not batch by batch."""

    def __init__(self, metrics: "ServiceMetrics", spans: "Spans") -> None:
        self._metrics, self._spans = metrics, spans
        self._log = EventLog()
        self._forwarded: dict[tuple[str, str], Forwarded] = {}
        self._came_at = time.monotonic()

    @property
    def quiet_seconds(self) -> float:
        """Since when no message has come."""
        return time.monotonic() - self._came_at

    def notify(self, event: "Event") -> None:
        from sbpair.core.events import Forwarded, Polled

        if isinstance(event, Forwarded) or (isinstance(event, Polled) and event.messages):
            self._came_at = time.monotonic()
        self._metrics.notify(event)
        self._spans.notify(event)
        self._log.notify(event)
        if isinstance(event, Forwarded):
            key = event.queue, event.entity
            known = self._forwarded.get(key)
            if known is not None:
                messages, size = known.messages + event.messages, known.size_bytes + event.size_bytes
                event = replace(event, messages=messages, size_bytes=size)
            self._forwarded[key] = event

    def say(self) -> None:
        for event in self._forwarded.values():
            text = f"{counted(event.messages, 'message')} forwarded from {event.queue} to {event.entity}."
            _log.info(text, extra={"event": event})
        self._forwarded.clear()


@asynccontextmanager
async def _saying(metrics: "ServiceMetrics", spans: "Spans") -> AsyncIterator[_Saying]:
    import asyncio

    saying = _Saying(metrics, spans)

    async def now_and_then() -> None:
        while True:
            await asyncio.sleep(SAY_EVERY_SECONDS)
            saying.say()

    task = asyncio.create_task(now_and_then())
    try:
        yield saying
    finally:
        task.cancel()
        saying.say()
