"""`sbpair drain`: one pass over the backlog, back to the primary, until it is confirmed empty. `sbpair syphon`: the
drain that never ends, as a service with metrics, health and a graceful stop.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair import operations
from sbpair.cli.asking import go_ahead, pair_to_write, will_ask
from sbpair.cli.context import (
    EventLog,
    Interrupted,
    Stop,
    configure_logging,
    load_settings,
    move_progress,
    open_sides,
    run_and_show,
    run_async,
    system_clock,
)
from sbpair.cli.options import Options, PairArgument, command, pause_option
from sbpair.cli.transfer.options import (
    DrainOptions,
    MetricsOptions,
    MoveOptions,
    Undelivered,
    doing,
    make_request,
    patience,
)
from sbpair.cli.transfer.planned import PlanFiles
from sbpair.core.access import AuthMethod
from sbpair.core.errors import SbpairError, UsageError
from sbpair.core.pairing import Pair
from sbpair.core.prices import in_words
from sbpair.core.transfer.conclusion import operations_of
from sbpair.render.console import check_writable, say, write_file
from sbpair.render.output import Format
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from sbpair.render.page import Page


_log = logging.getLogger("sbpair")


@command(
    output="core.transfer.conclusion:DrainResult",
    checks=True,
    page=True,
    asks=True,
    dry_run="Browse, ask the destinations, and say what a drain would do.",
)
def drain(options: Options, pair: PairArgument = None, *, moves: DrainOptions, files: PlanFiles) -> CommandResult:
    """Return the messages in a pair's backlog queues to the primary, exactly as they were sent.

    Drains every backlog queue that exists, not only the configured ones. Stops when they are empty, verified by count
    and by browse (with --until-idle: and nothing has come for that long). Otherwise says what is left, why, and which
    command continues (exit code 3). Asks on a terminal before it begins. Safe to stop at any time: Ctrl-C settles or
    releases what is in flight. Needs Listen on the secondary and Send on the primary.

    \b
    Examples:
      sbpair drain orders --dry-run
      sbpair drain orders --ledger drain.jsonl --for 15m --rate 500
      sbpair drain orders --ledger drain.jsonl --report incident.md
    """
    if moves.report is not None:
        check_report(moves.report)
    settings = load_settings(options)
    chosen = pair_to_write(options, settings, pair, "Drain")
    check_processes(chosen, moves)
    file = files.opened(options, chosen.secondary, chosen.primary)
    request = _request(options, chosen, moves)
    if file is not None and moves.processes > 1:
        raise UsageError("A plan is carried out by one process; --processes starts several. Nothing was moved.")
    if will_ask(options) and not options.dry_run:
        say(_foreseen(options, chosen, request))
    asked_first = options.dry_run or go_ahead(options, doing(chosen, moves), state="Nothing was moved.")

    async def work(stop: Stop) -> "operations.DrainResult":
        if not asked_first:
            _log.info(f"{doing(chosen, moves)}.")
        reopen, asked = Reopening(options, chosen.name, hosts_of(chosen)), request
        if file is not None and file.written is not None:
            found = await drain_showing(options, chosen, replace(request, dry_run=True), stop)
            asked = request if found.plan is None else replace(request, plan=file.held(found.plan))
        result = await drain_showing(options, chosen, asked, stop, reopen=reopen)
        return replace(result, asked=replace(result.asked, go_on=moves.go_on(chosen)))

    began_at = system_clock().now().timestamp()

    def shown(drained: "operations.DrainResult") -> CommandResult:
        from sbpair.render.drained import drain_result, page_of

        result = drain_result(chosen, drained, verbose=options.verbose)
        if file is not None and file.written is None and drained.plan is not None:
            back = in_words(operations_of(drained.report))
            undo = f"What is back is its consumers' at once: to take it away again takes {back}."
            result = file.write(drained.plan.keys[: moves.limit], drained.report, undo, result)
        if options.output is not Format.HTML and moves.report is None:
            return result
        incident = None
        if moves.ledger is not None and moves.ledger.exists():
            ledgers = operations.ReportRequest((moves.ledger,))
            incident = run_async(options, lambda stop: operations.report(ledgers, stop=stop))
        page = page_of(chosen, drained, result, began_at, incident)
        if moves.report is not None:
            try:
                write_report(moves.report, page)
            except SbpairError as error:
                raise error.with_state(f"Apart from the report it is done. {result.summary}") from error
        return replace(result, page=page)

    return run_and_show(options, work, shown, nothing="Nothing was moved.")


def _request(options: Options, pair: Pair, moves: DrainOptions) -> "operations.DrainRequest":
    return replace(
        make_request(operations.DrainRequest, pair, moves),
        max_messages=moves.limit,
        deferred=moves.deferred,
        dry_run=options.dry_run,
        leave_missing=moves.on_missing is Undelivered.LEAVE,
        leave_refused=moves.on_refused is Undelivered.LEAVE,
        processes=moves.processes,
        **patience(options, moves.give_up_after),
    )


FORESEEN_SECONDS = 10.0
"""How long messages are browsed before the question; of a larger backlog it says what was seen until then."""


def _foreseen(options: Options, pair: Pair, request: "operations.DrainRequest") -> str:
    """What a dry run says, for the question: how many messages go back, and what becomes of the others."""

    async def browse(stop: Stop) -> "operations.DrainResult":
        import asyncio

        from sbpair.concurrency import end
        from sbpair.runtime.transfer.drain import halt_in_time

        enough = asyncio.Event()
        halting = asyncio.create_task(halt_in_time(enough, stop, FORESEEN_SECONDS))
        try:
            return await drain_showing(options, pair, replace(request, dry_run=True), enough)
        finally:
            await end(halting)

    try:
        planned = run_async(options, browse)
    except Interrupted:
        raise
    except SbpairError as error:
        return f"What waits is not known: {error.message}"
    if planned.report.ended_by == "stop":
        planned = replace(planned, report=replace(planned.report, ended_by="cut"))
    return planned.closing.removesuffix(" Nothing was changed.")


async def drain_showing(
    options: Options, pair: Pair, request: "operations.DrainRequest", stop: Stop, *, reopen: "Reopening | None" = None
) -> "operations.DrainResult":
    """`sbpair.operations.drain` with progress and log on stderr."""
    with move_progress(options, "drain", max_messages=request.max_messages) as progress:
        async with open_sides(pair, reopen=reopen) as sides:
            return await operations.drain(sides, request, observer=progress, stop=stop)


def check_processes(pair: Pair, moves: DrainOptions) -> None:
    """Refuse what several processes cannot keep to together.

    Raises:
        UsageError: a bound or a file that is for one process, or a credential that asks in a browser.
    """
    if moves.processes == 1:
        return
    for option in ("limit", "rate", "reserve", "archive", "until_idle"):
        if getattr(moves, option) is not None:
            name = option.replace("_", "-")
            raise UsageError(f"--{name} is kept by one process; --processes starts several. Nothing was moved.")
    if any(side.auth is AuthMethod.BROWSER for side in (pair.primary, pair.secondary)):
        raise UsageError("With --processes each process would ask in a browser. Use another credential.")


def check_report(path: Path) -> None:
    """Refuse a report that cannot be written before anything moves.

    Raises:
        UsageError: its name ends neither as HTML nor as Markdown.
        SbpairError: it cannot be written there.
    """
    if path.suffix.lower() not in _REPORTS:
        raise UsageError(f"--report {path} ends in none of {', '.join(sorted(_REPORTS))}. Nothing was moved.")
    check_writable(path)


def write_report(path: Path, page: "Page") -> None:
    """A page in the form that the file's name asks for. Raises SbpairError: it cannot be written."""
    from sbpair.render.formats import page_to_markdown
    from sbpair.render.html import to_html

    write_file(path, page_to_markdown(page) if path.suffix.lower() in _MARKDOWN else to_html(page))
    _log.info(f"Report written to {path}.")


_MARKDOWN = frozenset({".md", ".markdown"})
_REPORTS = _MARKDOWN | {".html", ".htm"}


@dataclass(frozen=True, slots=True)
class Reopening:
    """Opens the pair in another process, from the same configuration and environment."""

    options: Options
    pair: str
    hosts: tuple[str, str]

    def __call__(self) -> "AbstractAsyncContextManager[operations.Sides]":
        configure_logging(self.options)
        pair = load_settings(self.options, to_act=False).pair(self.pair)
        if hosts_of(pair) != self.hosts:
            raise UsageError(
                f"The configuration of {self.pair} was changed during the drain. What was moved until then has left "
                "the backlog.",
                hint=f"See what is left: sbpair status {self.pair}",
            )
        return open_sides(pair)


def hosts_of(pair: Pair) -> tuple[str, str]:
    return pair.primary.host, pair.secondary.host


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
    poll_seconds = pause_option(poll, "--poll")
    request = replace(make_request(operations.SyphonRequest, chosen, moves), poll_seconds=poll_seconds)
    if moves.ledger is not None:
        check_writable(moves.ledger)
    go_ahead(options, f"{doing(chosen, moves)} continuously", state="Nothing was moved.")

    async def work(stop: Stop) -> "operations.DrainResult":
        from sbpair.render.monitored import ServiceObserver

        service = ServiceObserver(chosen, poll_seconds=poll_seconds, ledger=moves.ledger, log=EventLog())
        async with service.served(monitored.address, metrics_to) as observer, open_sides(chosen) as sides:
            totals = observer.metrics.totals
            result = await operations.syphon(sides, request, observer=observer, stop=stop, totals=totals)
        return replace(result, asked=replace(result.asked, go_on=moves.go_on(chosen)))

    def shown(drained: "operations.DrainResult") -> CommandResult:
        from sbpair.render.drained import drain_result

        return drain_result(chosen, drained, verbose=options.verbose)

    return run_and_show(options, work, shown, nothing="Nothing was moved.")
