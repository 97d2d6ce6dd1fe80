"""A pair's status on the command line: its screen, and what monitoring formats check."""

from dataclasses import replace

from sbpair.core.backlog import QueueState, Verdict, verdict
from sbpair.core.durations import format_duration
from sbpair.core.forecast import in_words as forecast_in_words
from sbpair.core.inspection.status import (
    PairStatus,
    StatusReport,
    StatusRow,
    figures,
    in_words,
    outlook,
    queue_rows,
    side_rows,
)
from sbpair.core.outcome import Severity as Grade
from sbpair.render.result import Check, CommandResult, Severity, Table, metrics_of, table_of

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


def result(found: StatusReport, fail_on: Grade = Grade.ERROR, *, leave: str = "") -> CommandResult:
    """What is shown of a status. `leave` says on the screen how to end a watch."""
    status = found.status
    return CommandResult(
        "status",
        found,
        (table_of(StatusRow, [*side_rows(status), *queue_rows(status)]),),
        notes=tuple(found.notes()),
        details=(f"A drain of that takes {forecast_in_words(found.drain)}.",) if found.backlog.active else (),
        summary=found.summary(),
        exit=found.exit(fail_on),
        checks=tuple(_checks(status)),
        closing=True,
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


def _checks(status: PairStatus) -> list[Check]:
    checks = [
        Check(
            "namespace",
            f"{side.side} {side.name}",
            Severity.OK if side.answers else Severity.CRITICAL,
            side.detail or side.state,
        )
        for side in status.sides
    ]
    severity = _SEVERITIES[verdict(status.backlog)]
    return [*checks, Check("backlog", status.pair, severity, outlook(status, None))]


_SEVERITIES = {
    Verdict.EMPTY: Severity.OK,
    Verdict.WAITING: Severity.WARNING,
    Verdict.SET_ASIDE: Severity.WARNING,
    Verdict.NO_QUEUES: Severity.ERROR,
    Verdict.UNKNOWN: Severity.UNKNOWN,
}
