"""`sbpair status`: one screen about a pair, once or again and again."""

import sys
from collections.abc import Callable
from contextlib import ExitStack, aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.context import Interrupted, load_settings, open_sides, run_async
from sbpair.cli.inspection.status_shown import result
from sbpair.cli.options import Options, PairArgument, command, duration_option
from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.core.outcome import Exit, Severity
from sbpair.core.pairing import Pair
from sbpair.core.serialization import spoken_clock, to_plain
from sbpair.render.console import can_redraw, choose_format, put
from sbpair.render.formats import dump_json
from sbpair.render.output import Format
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    import asyncio

    from sbpair.core.inspection.status import StatusReport
    from sbpair.operations.status import StatusRequest

_WATCHABLE = (Format.TABLE, Format.TSV, Format.JSONL)


@command(
    output="core.inspection.status:StatusReport",
    besides="With --watch it prints lines, or records with -o jsonl.",
    checks=True,
)
def status(
    options: Options,
    pair: PairArgument = None,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[
        str, typer.Option(metavar="DURATION", help="Refresh interval; rates are computed from two samples.")
    ] = "2s",
    count: Annotated[int | None, typer.Option(min=1, help="With --watch: stop after this many refreshes.")] = None,
    fail_on: Annotated[
        Severity, typer.Option(help="warning: anything in the backlog makes the exit code 5; error: no queue at all.")
    ] = Severity.ERROR,
) -> CommandResult:
    """Show a pair on one screen: both namespaces, what is waiting, how fast that changes, what to do next.

    Reads only, and reads every backlog queue that exists. Takes two samples, --interval apart; --interval 0 takes one
    and shows no rate. --watch refreshes a terminal in place, and elsewhere writes one line per refresh.
    Needs Listen on the secondary; without Manage it counts by browsing. Exit code: 5 no backlog queue exists
    (--fail-on warning: or the backlog is not known to be empty), 6 a namespace cannot be reached, 4 access denied.

    \b
    Examples:
      sbpair status orders
      sbpair status orders --watch --interval 5s
      sbpair status orders --fail-on warning && deploy
    """
    from sbpair.operations.status import StatusRequest
    from sbpair.operations.status import status as read_status

    chosen = load_settings(options).pair(pair)
    seconds = duration_option(interval) or 0.0
    if count is not None and not watch:
        raise UsageError("--count ends a --watch; without --watch there is one answer.")
    timeout_seconds = options.timeout_seconds(StatusRequest().timeout_seconds)
    if watch:
        return _watch(options, chosen, StatusRequest(max(seconds, 0.1), timeout_seconds), count, fail_on)

    async def work(stop: "asyncio.Event") -> "StatusReport":
        async with open_sides(chosen) as sides:
            return await read_status(sides, StatusRequest(seconds, timeout_seconds), stop=stop)

    return result(run_async(options, work), fail_on)


def _watch(
    options: Options, pair: Pair, request: "StatusRequest", count: int | None, fail_on: Severity
) -> CommandResult:
    from sbpair.operations.status import watch_status

    if options.outfile is not None or (options.output is not None and options.output not in _WATCHABLE):
        raise UsageError("--watch writes to a terminal, or lines: -o tsv or -o jsonl, without --outfile.")
    chosen = choose_format(options.output, to_file=False)

    async def work(stop: "asyncio.Event") -> Exit:
        exit, samples = Exit.OK, 0
        async with open_sides(pair) as sides, aclosing(watch_status(sides, request, stop=stop)) as watched:
            async for found in watched:
                show(found)
                exit, samples = found.exit(fail_on), samples + 1
                if samples == count:
                    break
        return exit

    with ExitStack() as stack:
        show = _shower(chosen, stack, request.interval_seconds, color=not options.no_color)
        try:
            exit = run_async(options, work)
        except Interrupted as interrupted:
            exit = Exit.from_label(interrupted.exit_name)
    return CommandResult("status", None, text="", streamed=True, exit=exit)


def _shower(chosen: Format, stack: ExitStack, seconds: float, *, color: bool) -> "Callable[[StatusReport], None]":
    """How each sample is shown: in place on a terminal, as a record or a plain line elsewhere."""
    if chosen is Format.TABLE and can_redraw(sys.stdout):
        from sbpair.render.progress import LiveView

        view = stack.enter_context(LiveView(color=color))
        leave = f"every {format_duration(seconds)}; Ctrl-C leaves"
        return lambda found: view.show(result(found, leave=f"{spoken_clock(found.status.taken_at)}, {leave}"))

    def write(found: "StatusReport") -> None:
        put((dump_json(to_plain(found)) if chosen is Format.JSONL else found.line()) + "\n")
        sys.stdout.flush()

    return write
