"""`sbpair syphon`: the drain that never ends, as a service with metrics, health and a graceful stop."""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.context import Interrupted, Talk, load_settings, open_sides, run_async, system_clock
from sbpair.cli.drain import (
    ConcurrencyOption,
    LedgerOption,
    PathOption,
    QueueOption,
    RateOption,
    ResumeOption,
    SessionOption,
    ToOption,
    TtlOption,
    WhereOption,
)
from sbpair.cli.moving import MoveOptions, ledger_errors, make_request, report_result
from sbpair.cli.options import Options, PairArgument, command, duration_option
from sbpair.core.errors import UsageError
from sbpair.core.message import TtlMode
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair
from sbpair.render.console import check_writable
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    import asyncio

    from sbpair.core.events import Event, Forwarded
    from sbpair.core.lanes import Key
    from sbpair.render.service import ServiceMetrics
    from sbpair.runtime.draining import DrainReport, DrainRequest
    from sbpair.runtime.syphon import SyphonRun

SAY_EVERY_SECONDS = 10.0
_log = logging.getLogger("sbpair")


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """What the service is given besides the request."""

    poll_seconds: float
    ledger: Path | None
    resume: bool
    host: str
    port: int | None
    file: Path | None


@command
def syphon(
    options: Options,
    pair: PairArgument = None,
    poll: Annotated[str, typer.Option("--poll", help="Length of one poll of an empty queue.")] = "15m",
    queue: QueueOption = None,
    dlq: Annotated[bool, typer.Option("--dlq", help="Bring home what lies in their dead-letter queues.")] = False,
    to: ToOption = "primary",
    path: PathOption = None,
    session: SessionOption = None,
    where: WhereOption = None,
    rate: RateOption = None,
    concurrency: ConcurrencyOption = 8,
    ttl: TtlOption = TtlMode.FULL,
    ledger: LedgerOption = None,
    resume: ResumeOption = False,
    metrics_on: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            min=0,
            max=65535,
            help="Serve /metrics and /healthz here; 0: any free port.",
            show_default=False,
        ),
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address that port listens on.")] = "127.0.0.1",
    metrics_to: Annotated[
        Path | None, typer.Option("--metrics-file", help="Write metrics here every 15 seconds.", show_default=False)
    ] = None,
) -> CommandResult:
    """Bring home what comes into a pair's backlog queues, for ever: `sbpair drain` as a service. [writes]

    Polls are long: a message starts home the moment it arrives, an empty queue costs one receive a poll. Several may
    run for one pair and share the work. SIGTERM and Ctrl-C settle or give back what is in flight, then report.

    \b
    Examples:
      sbpair syphon orders
      sbpair syphon orders --ledger /var/lib/sbpair/orders.jsonl --resume --metrics-port 9464 --log-format json
    """
    chosen = load_settings(options).pair(pair)
    if resume and ledger is None:
        raise UsageError("--resume continues a ledger: name it with --ledger FILE.")
    poll_seconds = duration_option(poll) or 0.0
    if poll_seconds < 1:
        raise UsageError(f"--poll is one second or more, not {poll}.")
    request = make_request(chosen, MoveOptions(queue, dlq, to, path, session, where, rate, concurrency, ttl))
    if ledger is not None:
        check_writable(ledger)
    service = ServiceOptions(poll_seconds, ledger, resume, metrics_host, metrics_on, metrics_to)

    async def work(stop: "asyncio.Event") -> "DrainReport":
        with ledger_errors(ledger):
            return await run_service(chosen, request, service, stop)

    try:
        report = run_async(options, work)
    except Interrupted as interrupted:
        result = report_result("syphon", chosen, interrupted.partial)  # type: ignore[arg-type]
        return replace(result, exit=Exit.from_label(interrupted.exit_name))
    return report_result("syphon", chosen, report)


async def run_service(
    pair: Pair, request: "DrainRequest", service: ServiceOptions, stop: "asyncio.Event"
) -> "DrainReport":
    """Syphon with the pair's real sides until `stop`; each new start after an error has fresh connections."""
    from sbpair.cli.forecasts import in_words
    from sbpair.cli.scraping import metrics_file, metrics_port
    from sbpair.core.cost import polling_syphon
    from sbpair.core.forecast import of_syphon_hour
    from sbpair.render.service import ServiceMetrics
    from sbpair.runtime.ledger import Ledger
    from sbpair.runtime.service import serve
    from sbpair.runtime.syphon import syphon_until

    metrics = ServiceMetrics(pair.name, poll_seconds=service.poll_seconds)
    clock = system_clock()
    resume = service.resume
    idle_hour = of_syphon_hour(len(request.queues), 1, polling_syphon(round(service.poll_seconds)))
    _log.info(f"While nothing comes, an hour takes {in_words(idle_hour)}.")

    async with AsyncExitStack() as stack:
        observer = await stack.enter_async_context(_saying(metrics))
        if service.port is not None:
            await stack.enter_async_context(metrics_port(metrics, service.host, service.port))
        if service.file is not None:
            await stack.enter_async_context(metrics_file(metrics, service.file))

        async def run(uncompleted: "frozenset[Key]") -> "SyphonRun":
            nonlocal resume
            book = None if service.ledger is None else Ledger(service.ledger, resume=resume)
            resume = True
            try:
                async with open_sides(pair) as sides:
                    return await syphon_until(
                        stop,
                        request,
                        secondary=sides.secondary,
                        primary=sides.primary,
                        admin=sides.secondary_admin,
                        clock=clock,
                        observer=observer,
                        ledger=book,
                        poll_seconds=service.poll_seconds,
                        uncompleted=uncompleted,
                    )
            finally:
                if book is not None:
                    await book.close()

        return await serve(run, stop=stop, clock=clock, observer=observer)


class _Saying:
    """Passes events on to the metrics and the log; what went home is said in sums, not batch by batch."""

    def __init__(self, metrics: "ServiceMetrics") -> None:
        self._metrics = metrics
        self._talk = Talk()
        self._home: dict[tuple[str, str], Forwarded] = {}

    def notify(self, event: "Event") -> None:
        from sbpair.core.events import Forwarded

        self._metrics.notify(event)
        self._talk.notify(event)
        if isinstance(event, Forwarded):
            key = event.queue, event.entity
            known = self._home.get(key)
            if known is not None:
                messages, size = known.messages + event.messages, known.size_bytes + event.size_bytes
                event = replace(event, messages=messages, size_bytes=size)
            self._home[key] = event

    def say(self) -> None:
        for event in self._home.values():
            text = f"{event.messages:,} message(s) went home from {event.queue} to {event.entity}."
            _log.info(text, extra={"event": event})
        self._home.clear()


@asynccontextmanager
async def _saying(metrics: "ServiceMetrics") -> AsyncIterator[_Saying]:
    import asyncio

    saying = _Saying(metrics)

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
