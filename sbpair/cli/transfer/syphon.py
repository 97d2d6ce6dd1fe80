"""`sbpair syphon`: the drain that never ends, as a service with metrics, health and a graceful stop."""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair import operations
from sbpair.cli.asking import go_ahead, pair_to_write
from sbpair.cli.context import EventLog, Stop, load_settings, open_sides, run_and_show
from sbpair.cli.options import Options, PairArgument, command, duration_option
from sbpair.cli.transfer.drain import report_result
from sbpair.cli.transfer.options import MetricsOptions, MoveOptions, doing, make_request
from sbpair.core.access import shown_name
from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.core.pairing import Pair
from sbpair.core.words import counted
from sbpair.render.console import check_writable
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    from sbpair.core.events import Event, Forwarded
    from sbpair.render.service import ServiceMetrics

SAY_EVERY_SECONDS = 10.0
_log = logging.getLogger("sbpair")


@command(output="core.transfer.conclusion:DrainResult", checks=True, asks=True)
def syphon(
    options: Options,
    pair: PairArgument = None,
    *,
    moves: MoveOptions,
    poll: Annotated[str, typer.Option(metavar="DURATION", help="How long one receive waits for a message.")] = "15m",
    monitored: MetricsOptions,
    metrics_to: Annotated[
        Path | None, typer.Option("--metrics-file", help="Write the metrics to this file every 15 seconds.")
    ] = None,
) -> CommandResult:
    """Run as a service: forward backlog messages to the primary as they arrive.

    Serves every backlog queue that exists, not only the configured ones, and finds new ones within a
    --poll. Messages are forwarded at once; an empty queue costs one receive per --poll, and a list of the queues is
    made as often. Several syphons may share the work of one pair. SIGTERM, Ctrl-C and the end of --for or --until-idle
    settle or release what is in flight, then report.

    \b
    Examples:
      sbpair syphon orders
      sbpair syphon orders --ledger /var/lib/sbpair/orders.jsonl --metrics-port 9464 --log-format json
    """
    chosen = pair_to_write(options, load_settings(options), pair, "Drain continuously")
    poll_seconds = duration_option(poll) or 0.0
    if poll_seconds < 1:
        raise UsageError(f"--poll is one second or more, not {poll}.")
    request = replace(make_request(operations.SyphonRequest, chosen, moves), poll_seconds=poll_seconds)
    if moves.ledger is not None:
        check_writable(moves.ledger)
    go_ahead(options, f"{doing('drain', chosen, moves)} continuously", state="Nothing was moved.")

    async def work(stop: Stop) -> "operations.DrainResult":
        from sbpair.render.service import ServiceMetrics

        metrics = ServiceMetrics(chosen.name, poll_seconds=poll_seconds)
        async with (
            _saying(chosen, request, metrics) as observer,
            _served(metrics, monitored, metrics_to),
            open_sides(chosen) as sides,
        ):
            result = await operations.syphon(sides, request, observer=observer, stop=stop, totals=metrics.totals)
        return replace(result, asked=replace(result.asked, go_on=moves.go_on(chosen)))

    def shown(drained: "operations.DrainResult") -> CommandResult:
        return report_result(chosen, drained, verbose=options.verbose)

    return run_and_show(options, work, shown, nothing="Nothing was moved.")


@asynccontextmanager
async def _served(metrics: "ServiceMetrics", monitored: MetricsOptions, file: Path | None) -> AsyncIterator[None]:
    """The metrics where monitoring finds them."""
    from sbpair.cli.transfer.monitored import metrics_file, metrics_port, telemetry

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(telemetry(metrics))
        if monitored.metrics_port is not None:
            endpoint = metrics_port(metrics, monitored.metrics_host, monitored.metrics_port)
            await stack.enter_async_context(endpoint)
        if file is not None:
            await stack.enter_async_context(metrics_file(metrics, file))
        yield


class _Saying:
    """Passes events on to metrics, spans and log; what was forwarded is said in sums, not batch by batch."""

    def __init__(self, pair: Pair, request: "operations.SyphonRequest", metrics: "ServiceMetrics") -> None:
        from sbpair.cli.transfer.monitored import Spans

        self._pair, self._request = pair, request
        self._metrics, self._spans = metrics, Spans(pair.name)
        self._log = EventLog()
        self._forwarded: dict[tuple[str, str], Forwarded] = {}

    def notify(self, event: "Event") -> None:
        from sbpair.core.events import Forwarded, SyphonBegan

        self._metrics.notify(event)
        self._spans.notify(event)
        self._log.notify(event)
        if isinstance(event, SyphonBegan):
            self._say_what_begins(len(event.queues))
        if isinstance(event, Forwarded):
            key = event.queue, event.entity
            known = self._forwarded.get(key)
            if known is not None:
                messages, size = known.messages + event.messages, known.size_bytes + event.size_bytes
                event = replace(event, messages=messages, size_bytes=size)
            self._forwarded[key] = event

    def _say_what_begins(self, queues: int) -> None:
        from sbpair.core.cost.model import of_syphon_hour, polling_syphon
        from sbpair.core.prices import in_words

        pair, poll_seconds = self._pair, self._request.poll_seconds
        ledger = f", ledger {self._request.ledger}" if self._request.ledger is not None else ""
        _log.info(
            f"Syphon of {pair.name}: {shown_name(pair.secondary)} -> {shown_name(pair.primary)}, "
            f"{counted(queues, 'queue')}, polls "
            f"of {format_duration(poll_seconds)}{ledger}. Ctrl-C ends it."
        )
        _log.debug(f"Idle cost per hour: {in_words(of_syphon_hour(queues, 1, polling_syphon(round(poll_seconds))))}.")

    def say(self) -> None:
        for event in self._forwarded.values():
            text = f"{counted(event.messages, 'message')} forwarded from {event.queue} to {event.entity}."
            _log.info(text, extra={"event": event})
        self._forwarded.clear()


@asynccontextmanager
async def _saying(pair: Pair, request: "operations.SyphonRequest", metrics: "ServiceMetrics") -> AsyncIterator[_Saying]:
    import asyncio

    saying = _Saying(pair, request, metrics)

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
