"""`sbpair status`: one screen about a pair, once or again and again."""

import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.context import Interrupted, load_settings, open_sides, run_async, stoppable, system_clock
from sbpair.cli.options import Options, PairArgument, command, duration_option
from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.core.outcome import Exit, Severity
from sbpair.core.pairing import Pair
from sbpair.core.serialization import spoken_clock
from sbpair.render.console import can_redraw, choose_format, put
from sbpair.render.output import Format
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    import asyncio

    from sbpair.core.inspection.status import PairStatus

    OnSample = Callable[[PairStatus | None, PairStatus], None]

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
    count: Annotated[
        int | None, typer.Option(min=1, help="With --watch: stop after this many refreshes.", show_default=False)
    ] = None,
    fail_on: Annotated[
        Severity,
        typer.Option(
            "--fail-on", help="warning: anything in the backlog makes the exit code 5; error: no queue at all."
        ),
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
    from sbpair.cli.inspection import status_shown as shown

    chosen = load_settings(options).pair(pair)
    seconds = duration_option(interval) or 0.0
    if count is not None and not watch:
        raise UsageError("--count ends a --watch; without --watch there is one answer.")
    if not watch:
        samples = _samples(options, chosen, seconds, 2 if seconds else 1, lambda before, after: None, watch=False)
        return shown.result(samples[-2] if len(samples) > 1 else None, samples[-1], fail_on)
    return _watch(options, chosen, max(seconds, 0.1), count, fail_on)


def _watch(options: Options, pair: Pair, seconds: float, count: int | None, fail_on: Severity) -> CommandResult:
    from sbpair.cli.inspection import status_shown as shown

    if options.outfile is not None or (options.output is not None and options.output not in _WATCHABLE):
        raise UsageError("--watch writes to a terminal, or lines: -o tsv or -o jsonl, without --outfile.")
    chosen = choose_format(options.output, to_file=False)

    def done(code: Exit) -> CommandResult:
        return CommandResult("status", None, text="", streamed=True, exit=code)

    with ExitStack() as stack:
        show = _shower(chosen, stack, seconds, color=not options.no_color)
        try:
            samples = _samples(options, pair, seconds, count, show, watch=True)
        except Interrupted as interrupted:
            return done(Exit.from_label(interrupted.exit_name))
    return done(shown.exit_of(samples[-1], fail_on))


def _shower(chosen: Format, stack: ExitStack, seconds: float, *, color: bool) -> "OnSample":
    """How each sample is shown: in place on a terminal, as a record or a plain line elsewhere."""
    from sbpair.cli.inspection import status_shown as shown

    if chosen is Format.TABLE and can_redraw(sys.stdout):
        from sbpair.render.progress import LiveView

        view = stack.enter_context(LiveView(color=color))
        leave = f"every {format_duration(seconds)}; Ctrl-C leaves"
        return lambda before, after: view.show(
            shown.result(before, after, leave=f"{spoken_clock(after.taken_at)}, {leave}")
        )
    line = shown.record if chosen is Format.JSONL else shown.line

    def write(before: "PairStatus | None", after: "PairStatus") -> None:
        put(line(before, after) + "\n")
        sys.stdout.flush()

    return write


def _samples(
    options: Options,
    pair: Pair,
    seconds: float,
    count: int | None,
    on_sample: "OnSample",
    *,
    watch: bool,
) -> "list[PairStatus]":
    """The last two of `count` samples (None: until a signal), `seconds` apart."""

    async def work(stop: "asyncio.Event") -> "list[PairStatus]":
        import asyncio

        from sbpair.runtime.inspection.status import DEFAULT_TIMEOUT_SECONDS, StatusReader

        samples: list[PairStatus] = []
        taken = 0
        async with open_sides(pair) as sides:
            reader = StatusReader(
                pair,
                primary=sides.primary_admin,
                secondary=sides.secondary_admin,
                messaging=sides.secondary,
                clock=system_clock(),
                timeout_seconds=options.timeout_seconds(DEFAULT_TIMEOUT_SECONDS),
            )
            while True:
                after = await stoppable(stop, reader.read(samples[-1] if samples and not watch else None))
                on_sample(samples[-1] if samples else None, after)
                samples = [*samples[-1:], after]
                taken += 1
                if taken == count:
                    return samples
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), seconds)
                if stop.is_set():
                    return samples

    return run_async(options, work)
