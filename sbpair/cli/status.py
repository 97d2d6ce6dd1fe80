"""`sbpair status`: one screen about a pair, once or again and again."""

import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.context import Interrupted, load_settings, open_sides, run_async, stoppable, system_clock
from sbpair.cli.options import Options, PairArgument, command, duration_option
from sbpair.core.errors import UsageError
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair
from sbpair.render.console import can_redraw, choose_format
from sbpair.render.result import CommandResult, Format

if TYPE_CHECKING:
    import asyncio

    from sbpair.core.status import Look

    OnLook = Callable[[Look | None, Look], None]

_WATCHABLE = (Format.TABLE, Format.TSV, Format.JSONL)


@command
def status(
    options: Options,
    pair: PairArgument = None,
    watch: Annotated[bool, typer.Option("-w", "--watch", help="Look again and again until stopped.")] = False,
    interval: Annotated[str, typer.Option(help="Time between two looks; the rate comes from two.")] = "2s",
    count: Annotated[
        int | None, typer.Option(min=1, help="With --watch: end after so many looks.", show_default=False)
    ] = None,
) -> CommandResult:
    """Show a pair on one screen: both sides, the backlog by queue with its oldest message, rate, when it is home.

    Reads only: two looks, --interval apart (0: one look and no rate). --watch shows each look in place on a terminal,
    as a line elsewhere (-o jsonl: as a record). Exit code 6 when a side cannot be reached, 4 when access is denied.
    Needs Manage (for counts) and Listen on the secondary.

    \b
    Examples:
      sbpair status orders
      sbpair status orders --watch --interval 5s
    """
    from sbpair.cli import status_shown as shown

    chosen = load_settings(options).pair(pair)
    seconds = duration_option(interval) or 0.0
    if count is not None and not watch:
        raise UsageError("--count ends a --watch; without --watch there is one answer.")
    if not watch:
        looks = _looks(options, chosen, seconds, 2 if seconds else 1, lambda before, after: None)
        return shown.result(looks[-2] if len(looks) > 1 else None, looks[-1])
    return _watch(options, chosen, max(seconds, 0.1), count)


def _watch(options: Options, pair: Pair, seconds: float, count: int | None) -> CommandResult:
    from sbpair.cli import status_shown as shown

    if options.outfile is not None or (options.output is not None and options.output not in _WATCHABLE):
        raise UsageError("--watch writes to a terminal, or lines: -o tsv or -o jsonl, without --outfile.")
    chosen = choose_format(options.output, to_file=False)
    seen: list[Look] = []

    def done(code: Exit) -> CommandResult:
        data = shown.to_dict(seen[-1], None) if seen else {"pair": pair.name}
        return CommandResult("status", data, text="", streamed=True, exit=code)

    with ExitStack() as stack:
        show = _shower(chosen, stack, color=not options.no_color)

        def on_look(before: "Look | None", after: "Look") -> None:
            seen.append(after)
            show(before, after)

        try:
            looks = _looks(options, pair, seconds, count, on_look)
        except Interrupted as interrupted:
            return done(Exit.from_label(interrupted.exit_name))
    return done(shown.exit_of(looks[-1]))


def _shower(chosen: Format, stack: ExitStack, *, color: bool) -> "OnLook":
    """How each look is shown: in place on a terminal, as a record or a plain line elsewhere."""
    from sbpair.cli import status_shown as shown

    if chosen is Format.TABLE and can_redraw(sys.stdout):
        from sbpair.render.live import LiveView

        view = stack.enter_context(LiveView(color=color))
        return lambda before, after: view.show(shown.result(before, after))
    line = shown.record if chosen is Format.JSONL else shown.line

    def write(before: "Look | None", after: "Look") -> None:
        sys.stdout.write(line(before, after) + "\n")
        sys.stdout.flush()

    return write


def _looks(options: Options, pair: Pair, seconds: float, count: int | None, on_look: "OnLook") -> "list[Look]":
    """The last two of `count` looks (None: until a signal), `seconds` apart."""

    async def work(stop: "asyncio.Event") -> "list[Look]":
        import asyncio

        from sbpair.runtime.peeking import peeking
        from sbpair.runtime.status import DEFAULT_TIMEOUT_SECONDS, look

        looks: list[Look] = []
        taken = 0
        async with open_sides(pair) as sides:
            while True:
                after = await stoppable(
                    stop,
                    look(
                        pair,
                        primary=sides.primary_admin,
                        secondary=sides.secondary_admin,
                        peek=peeking(sides.secondary),
                        clock=system_clock(),
                        timeout_seconds=options.timeout_seconds(DEFAULT_TIMEOUT_SECONDS),
                    ),
                )
                on_look(looks[-1] if looks else None, after)
                looks = [*looks[-1:], after]
                taken += 1
                if taken == count:
                    return looks
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), seconds)
                if stop.is_set():
                    return looks

    return run_async(options, work)
