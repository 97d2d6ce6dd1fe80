"""`sbpair status`: one screen about a pair, once or again and again."""

import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair.cli.context import Interrupted, load_settings, open_sides, run_async, stoppable, system_clock
from sbpair.cli.forecasts import as_data, in_words
from sbpair.cli.options import Options, PairArgument, command, duration_option
from sbpair.cli.snapshots import gravest, with_hint
from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair
from sbpair.core.status import REACHABLE, Look, SideLook, outlook, rate_per_second, to_dict
from sbpair.render.console import can_redraw, choose_format
from sbpair.render.formats import dump_json, iso_time
from sbpair.render.result import Check, Column, CommandResult, Format, Metric, Severity, Table

if TYPE_CHECKING:
    import asyncio

COLUMNS = (
    Column("what", "What"),
    Column("name", "Name"),
    Column("state", "State"),
    Column("tier", "Tier"),
    Column("active", "Messages", right=True),
    Column("active", "", drawn=True),
    Column("dead_letter", "Dead letters", right=True),
    Column("oldest", "Oldest", right=True),
    Column("answered_in_ms", "ms", right=True),
    Column("detail", "Detail"),
)
_SIDE_COLUMNS = (
    Column("what", "Side"),
    Column("name", "Namespace"),
    Column("state", "State"),
    Column("tier", "Tier"),
    Column("answered_in_ms", "ms", right=True),
    Column("detail", "Detail"),
)
_QUEUE_COLUMNS = (
    Column("name", "Queue"),
    Column("state", "State"),
    Column("active", "Messages", right=True),
    Column("active", "", drawn=True),
    Column("dead_letter", "Dead", right=True),
    Column("oldest", "Oldest", right=True),
    Column("detail", "Detail"),
)
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
    chosen = load_settings(options).pair(pair)
    seconds = duration_option(interval) or 0.0
    if count is not None and not watch:
        raise UsageError("--count ends a --watch; without --watch there is one answer.")
    if not watch:
        looks = _looks(options, chosen, seconds, 2 if seconds else 1, lambda before, after: None)
        return _result(looks[-2] if len(looks) > 1 else None, looks[-1])
    return _watch(options, chosen, max(seconds, 0.1), count)


def _watch(options: Options, pair: Pair, seconds: float, count: int | None) -> CommandResult:
    if options.outfile is not None or (options.output is not None and options.output not in _WATCHABLE):
        raise UsageError("--watch writes to a terminal, or lines: -o tsv or -o jsonl, without --outfile.")
    chosen = choose_format(options.output, to_file=False)
    shown: list[Look] = []

    def done(code: Exit) -> CommandResult:
        data = to_dict(shown[-1], None) if shown else {"pair": pair.name}
        return CommandResult("status", data, text="", streamed=True, exit=code)

    with ExitStack() as stack:
        show = _shower(chosen, stack, color=not options.no_color)

        def on_look(before: Look | None, after: Look) -> None:
            shown.append(after)
            show(before, after)

        try:
            looks = _looks(options, pair, seconds, count, on_look)
        except Interrupted as interrupted:
            return done(Exit.from_label(interrupted.exit_name))
    return done(_exit(looks[-1]))


def _shower(chosen: Format, stack: ExitStack, *, color: bool) -> Callable[[Look | None, Look], None]:
    """How each look is shown: in place on a terminal, as a record or a plain line elsewhere."""
    if chosen is Format.TABLE and can_redraw(sys.stdout):
        from sbpair.render.live import LiveView

        view = stack.enter_context(LiveView(color=color))
        return lambda before, after: view.show(_result(before, after))
    line = _record if chosen is Format.JSONL else _line

    def write(before: Look | None, after: Look) -> None:
        sys.stdout.write(line(before, after) + "\n")
        sys.stdout.flush()

    return write


def _looks(
    options: Options, pair: Pair, seconds: float, count: int | None, on_look: Callable[[Look | None, Look], None]
) -> list[Look]:
    """The last two of `count` looks (None: until a signal), `seconds` apart."""

    async def work(stop: "asyncio.Event") -> list[Look]:
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


def _result(before: Look | None, after: Look) -> CommandResult:
    rate = rate_per_second(before, after)
    data = to_dict(after, rate) | {"drain": as_data(after.drain)}
    notes = [
        f"{side.side.capitalize()} {side.host}: {with_hint(side.detail, side.hint)}"
        for side in _sides(after)
        if side.detail
    ]
    if after.active:
        notes.append(f"A drain of that takes {in_words(after.drain)}.")
    return CommandResult(
        "status",
        data,
        (Table("", COLUMNS, [*_side_rows(after), *_queue_rows(after)], style_key="state"),),
        notes=tuple(notes),
        summary=outlook(after, rate),
        exit=_exit(after),
        checks=tuple(_checks(after)),
        metrics=tuple(_metrics(after, rate)),
        screen=(
            Table("", _SIDE_COLUMNS, _side_rows(after), style_key="state"),
            Table("", _QUEUE_COLUMNS, _queue_rows(after), style_key="state"),
        ),
    )


def _sides(look: Look) -> tuple[SideLook, SideLook]:
    return look.primary, look.secondary


def _side_rows(look: Look) -> list[dict[str, Any]]:
    return [
        {
            "what": side.side,
            "name": side.host,
            "state": side.state,
            "tier": side.tier,
            "answered_in_ms": None if side.answered_in_seconds is None else round(side.answered_in_seconds * 1000),
            "detail": side.error_code,
        }
        for side in _sides(look)
    ]


def _queue_rows(look: Look) -> list[dict[str, Any]]:
    rows = []
    for queue in look.queues:
        at = queue.oldest_enqueued_at
        rows.append(
            {
                "what": "backlog queue",
                "name": queue.queue,
                "state": queue.state,
                "active": queue.active,
                "dead_letter": queue.dead_letter,
                "oldest": None if at is None else format_duration(max(0.0, look.taken_at - at)),
                "detail": queue.detail,
            }
        )
    return rows


def _line(before: Look | None, after: Look) -> str:
    """`2026-11-21T08:30:00.000Z orders primary=reachable secondary=denied messages=12 dead=0 oldest=4m rate=-3.1/s`"""
    rate = rate_per_second(before, after)
    age = after.oldest_age_seconds
    parts = [
        iso_time(after.taken_at),
        after.pair,
        *(f"{side.side}={side.state}" for side in _sides(after)),
        f"messages={'unknown' if after.active is None else after.active}",
        f"dead={after.dead_letter}",
        f"oldest={'none' if age is None else format_duration(age)}",
        f"rate={'unknown' if rate is None else f'{rate:+.1f}/s'}",
    ]
    return " ".join(str(part) for part in parts)


def _record(before: Look | None, after: Look) -> str:
    return dump_json(to_dict(after, rate_per_second(before, after)))


def _exit(look: Look) -> Exit:
    """Unreachable, then denied; other troubles of a side make it partial."""
    return gravest(side.state for side in _sides(look) if side.state != REACHABLE)


def _checks(look: Look) -> list[Check]:
    checks = [
        Check(
            "namespace",
            f"{side.side} {side.host}",
            Severity.OK if side.state == REACHABLE else Severity.CRITICAL,
            side.detail or side.state,
        )
        for side in _sides(look)
    ]
    waiting = look.active is None or look.active > 0
    severity = Severity.WARNING if waiting else Severity.OK
    return [*checks, Check("backlog", look.pair, severity, outlook(look, None))]


def _metrics(look: Look, rate: float | None) -> list[Metric]:
    pair = ("pair", look.pair)
    metrics = [
        Metric("sbpair_namespace_up", "1 if it answered.", float(side.state == REACHABLE), (pair, ("side", side.side)))
        for side in _sides(look)
    ]
    numbers = {
        "sbpair_backlog_active_messages": ("Messages waiting to go home.", look.active),
        "sbpair_backlog_dead_letter_messages": ("Dead letters of the backlog queues.", look.dead_letter),
        "sbpair_backlog_oldest_age_seconds": ("Age of the oldest message.", look.oldest_age_seconds),
        "sbpair_backlog_growth_messages_per_second": ("Change of the backlog.", rate),
    }
    metrics += [Metric(name, text, value, (pair,)) for name, (text, value) in numbers.items() if value is not None]
    return metrics
