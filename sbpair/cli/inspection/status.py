"""`sbpair status`: one screen about a pair, once or again and again."""

import sys
from collections.abc import Callable
from contextlib import ExitStack, aclosing
from dataclasses import replace
from typing import Annotated

import typer

from sbpair import operations
from sbpair.cli.context import Interrupted, Stop, call, load_settings, open_sides, run_async
from sbpair.cli.options import Options, PairArgument, command, duration_option
from sbpair.core.backlog import BacklogVerdict, QueueState
from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.core.inspection.status import PairStatus, StatusReport, StatusRow, figures, in_words, queue_rows, side_rows
from sbpair.core.outcome import Exit, Severity
from sbpair.core.pairing import Pair
from sbpair.core.prices import in_words as forecast_in_words
from sbpair.core.serialization import spoken_clock, to_plain
from sbpair.render.console import can_redraw, choose_format, put
from sbpair.render.formats import dump_json
from sbpair.render.output import Format
from sbpair.render.result import CommandResult, Grade, MonitoredCheck, Table, concluded, metrics_of, table_of

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
    chosen = load_settings(options).pair(pair)
    seconds = duration_option(interval) or 0.0
    if count is not None and not watch:
        raise UsageError("--count ends a --watch; without --watch there is one answer.")
    timeout_seconds = options.timeout_seconds(operations.StatusRequest().timeout_seconds)
    if watch:
        request = operations.StatusRequest(max(seconds, 0.1), timeout_seconds)
        return _watch(options, chosen, request, count, fail_on)
    request = operations.StatusRequest(seconds, timeout_seconds)
    return result(call(options, chosen, operations.status, request), fail_on)


def _watch(
    options: Options, pair: Pair, request: "operations.StatusRequest", count: int | None, fail_on: Severity
) -> CommandResult:
    if options.outfile is not None or (options.output is not None and options.output not in _WATCHABLE):
        raise UsageError("--watch writes to a terminal, or lines: -o tsv or -o jsonl, without --outfile.")
    chosen = choose_format(options.output, to_file=False)

    async def work(stop: Stop) -> Exit:
        exit, samples = Exit.OK, 0
        async with open_sides(pair) as sides, aclosing(operations.watch_status(sides, request, stop=stop)) as watched:
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
    return CommandResult(None, text="", streamed=True, exit=exit)


def _shower(chosen: Format, stack: ExitStack, seconds: float, *, color: bool) -> Callable[[StatusReport], None]:
    """How each sample is shown: in place on a terminal, as a record or a plain line elsewhere."""
    if chosen is Format.TABLE and can_redraw(sys.stdout):
        from sbpair.render.progress import LiveView

        view = stack.enter_context(LiveView(color=color))
        leave = f"every {format_duration(seconds)}; Ctrl-C leaves"
        return lambda found: view.show(result(found, leave=f"{spoken_clock(found.status.taken_at)}, {leave}"))

    def write(found: StatusReport) -> None:
        put((dump_json(to_plain(found)) if chosen is Format.JSONL else found.line()) + "\n")
        sys.stdout.flush()

    return write


# What is shown: the screen, and what monitoring formats check.

_SIDE_COLUMNS = {"what": "Side", "name": "Namespace", "state": "", "tier": "", "answered_in_ms": "", "detail": ""}
_QUEUE_COLUMNS = {
    "name": "Queue",
    "state": "",
    "active": "",
    "drawn": "",
    "dead_letter": "Dead",
    "oldest": "",
    "detail": "",
}


def result(found: StatusReport, fail_on: Severity = Severity.ERROR, *, leave: str = "") -> CommandResult:
    """What is shown of a status. `leave` says on the screen how to end a watch."""
    status = found.status
    return concluded(
        found,
        table_of(StatusRow, [*side_rows(status), *queue_rows(status)]),
        details=(f"A drain of that takes {forecast_in_words(found.status.drain)}.",) if found.backlog.active else (),
        exit=found.exit(fail_on),
        checks=tuple(_checks(status)),
        metrics=tuple(metrics_of(figures(found), ("pair", status.pair))),
        screen=_screen(status, leave),
    )


MOST_ROWS = 10
"""The queues that fit on a screen of 24 lines; of more, those that are empty are only counted."""


def _screen(status: PairStatus, leave: str) -> tuple[Table, ...]:
    """Both namespaces and the queues with their total, for 80 columns and 24 lines."""
    environment = f" [{status.environment}]" if status.environment else ""
    heading = f"{status.pair}{environment}{', ' if leave else ''}{leave}"
    sides = [replace(row, name=side.short_name) for row, side in zip(side_rows(status), status.sides, strict=True)]
    first = replace(_table(sides, heading, _SIDE_COLUMNS), title_style=status.environment)
    rows = [_for_a_person(row) for row in queue_rows(status)]
    if not rows:
        return (first,)
    title = f"Backlog queues {rows[0].name.rpartition('/')[0]}/..."
    if len(rows) > MOST_ROWS:
        filled = [row for row in rows if row.state != QueueState.EMPTY]
        title += f" ({len(rows) - len(filled):,} of {len(rows):,} are empty)"
        rows = filled
    rows = [replace(row, name=row.name.rpartition("/")[2]) for row in rows]
    return first, _table([*rows, _total(status)], title, _QUEUE_COLUMNS)


def _for_a_person(row: StatusRow) -> StatusRow:
    """Numbers that are not known say so. Why a queue could not be read is the same for most: a sentence below says
    it once."""
    if row.state == QueueState.UNKNOWN:
        row = replace(row, detail="")
    if row.state == QueueState.MISSING:
        return replace(row, drawn=None)
    active, dead_letter = row.active, row.dead_letter
    return replace(
        row,
        active="unknown" if active is None else active,
        dead_letter="unknown" if dead_letter is None else dead_letter,
    )


def _table(rows: list[StatusRow], title: str, show: dict[str, str]) -> Table:
    """Without the column of details where nothing is in it."""
    if not any(row.detail for row in rows):
        show = {name: heading for name, heading in show.items() if name != "detail"}
    return replace(table_of(StatusRow, rows, title, show=show), compact=True)


def _total(status: PairStatus) -> StatusRow:
    age = status.backlog.oldest_age_seconds
    return StatusRow(
        "",
        "total",
        "",
        active=in_words(status.backlog.active),
        dead_letter=in_words(status.backlog.dead_letter),
        oldest=None if age is None else format_duration(age),
    )


def _checks(status: PairStatus) -> list[MonitoredCheck]:
    checks = [
        MonitoredCheck(
            "namespace",
            f"{side.side} {side.name}",
            Grade.OK if side.answers else Grade.CRITICAL,
            side.detail or side.state,
        )
        for side in status.sides
    ]
    severity = _SEVERITIES[status.backlog.verdict]
    return [*checks, MonitoredCheck("backlog", status.pair, severity, StatusReport(status).outlook())]


_SEVERITIES = {
    BacklogVerdict.EMPTY: Grade.OK,
    BacklogVerdict.WAITING: Grade.WARNING,
    BacklogVerdict.SET_ASIDE: Grade.WARNING,
    BacklogVerdict.NO_QUEUES: Grade.ERROR,
    BacklogVerdict.UNKNOWN: Grade.UNKNOWN,
}
