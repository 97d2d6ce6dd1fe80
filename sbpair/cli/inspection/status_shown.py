"""A pair's status, as tables, lines, records, checks and metrics."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sbpair.core.access import spoken_name
from sbpair.core.backlog import QueueContents, QueueState, Verdict, grade_of, verdict
from sbpair.core.durations import format_duration
from sbpair.core.errors import for_pair
from sbpair.core.forecast import in_words
from sbpair.core.inspection.status import (
    LIMITED,
    REACHABLE,
    PairStatus,
    SideStatus,
    further,
    outlook,
    rate_per_second,
    report,
)
from sbpair.core.outcome import Exit, gravest
from sbpair.core.outcome import Severity as Grade
from sbpair.core.serialization import iso_time, to_plain
from sbpair.core.words import with_hint
from sbpair.render.formats import dump_json
from sbpair.render.result import Check, Column, CommandResult, Metric, Severity, Table

COLUMNS = (
    Column("what", "What"),
    Column("name", "Name"),
    Column("state", "State"),
    Column("tier", "Tier"),
    Column("active", "Messages", right=True, counts=True),
    Column("active", "", drawn=True),
    Column("dead_letter", "Dead letters", right=True, counts=True),
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
    Column("active", "Messages", right=True, counts=True),
    Column("drawn", "", drawn=True),
    Column("dead_letter", "Dead", right=True, counts=True),
    Column("oldest", "Oldest", right=True),
    Column("detail", "Detail"),
)


def result(
    before: PairStatus | None, after: PairStatus, fail_on: Grade = Grade.ERROR, *, leave: str = ""
) -> CommandResult:
    """What is shown of the later one of two samples. `leave` says on the screen how to end a watch."""
    rate = rate_per_second(before, after)
    troubled = [side for side in _sides(after) if side.detail]
    last_with = {side.hint: side.side for side in troubled}
    notes = [
        f"{side.side.capitalize()} {_name(side)}: "
        + with_hint(side.detail, for_pair(side.hint, after.pair) if last_with[side.hint] == side.side else "")
        for side in troubled
    ]
    told = {f": {side.detail.rstrip('.')}" for side in _sides(after) if side.detail}
    notes += [_without(str(one), told) for one in further(after)]
    return CommandResult(
        "status",
        report(before, after),
        (Table("", COLUMNS, [*_side_rows(after), *_queue_rows(after)], style_key="state"),),
        notes=tuple(notes),
        details=(f"A drain of that takes {in_words(after.drain)}.",) if after.backlog.active else (),
        summary=_without(outlook(after, rate), told),
        exit=exit_of(after, fail_on),
        checks=tuple(_checks(after)),
        closing=True,
        metrics=tuple(_metrics(after, rate)),
        screen=_screen(after, leave),
    )


def _without(sentence: str, told: Iterable[str]) -> str:
    """The sentence without the reason that a side was told with."""
    for reason in told:
        sentence = sentence.replace(reason, "")
    return sentence


MOST_ROWS = 10
"""So many queues fit on a screen of 24 lines; of more, those that are empty are only counted."""


def _screen(status: PairStatus, leave: str) -> tuple[Table, ...]:
    """Both namespaces and the queues with their total, for 80 columns and 24 lines."""
    environment = f" [{status.environment}]" if status.environment else ""
    heading = f"{status.pair}{environment}{', ' if leave else ''}{leave}"
    labels = [side.label or side.host for side in _sides(status)]
    sides = [row | {"name": label} for row, label in zip(_side_rows(status), labels, strict=True)]
    tables = [
        Table(heading, _SIDE_COLUMNS, sides, style_key="state", compact=True, title_style=status.environment),
    ]
    rows = [_in_words(row) for row in _queue_rows(status)]
    if not rows:
        return tuple(map(_filled, tables))
    title = f"Backlog queues {rows[0]['name'].rpartition('/')[0]}/..."
    total = _total(status)
    if len(rows) > MOST_ROWS:
        filled = [row for row in rows if row["state"] != QueueState.EMPTY]
        title += f" ({len(rows) - len(filled):,} of {len(rows):,} are empty)"
        rows = filled
    rows = [row | {"name": row["name"].rpartition("/")[2]} | _told_below(row) for row in rows]
    tables.append(Table(title, _QUEUE_COLUMNS, [*rows, total], style_key="state", compact=True))
    return tuple(map(_filled, tables))


def _told_below(row: dict[str, Any]) -> dict[str, str]:
    """Why a queue could not be read is the same for most of them: a sentence below says it once."""
    return {"detail": ""} if row["state"] == QueueState.UNKNOWN else {}


def _filled(table: Table) -> Table:
    """Without the columns that nobody needs to see, since nothing is in them."""
    kept = tuple(one for one in table.columns if one.key != "detail" or any(row.get("detail") for row in table.rows))
    return replace(table, columns=kept)


def _total(status: PairStatus) -> dict[str, Any]:
    age = status.backlog.oldest_age_seconds
    return {
        "name": "total",
        "state": "",
        "active": _known(status.backlog.active),
        "dead_letter": _known(status.backlog.dead_letter),
        "oldest": None if age is None else format_duration(age),
    }


def _sides(status: PairStatus) -> tuple[SideStatus, SideStatus]:
    return status.primary, status.secondary


def _name(side: SideStatus) -> str:
    return spoken_name(side.label or side.host, side.host)


def _side_rows(status: PairStatus) -> list[dict[str, Any]]:
    return [
        {
            "what": side.side,
            "name": _name(side),
            "state": side.state,
            "tier": side.tier,
            "answered_in_ms": None if side.answered_in_ms is None else round(side.answered_in_ms),
            "detail": side.error_code,
        }
        for side in _sides(status)
    ]


def _queue_rows(status: PairStatus) -> list[dict[str, Any]]:
    rows = []
    for queue in status.backlog.queues:
        at = queue.oldest_enqueued_at
        rows.append(
            {
                "what": "backlog queue",
                "name": queue.queue,
                "state": queue.state.value,
                "active": queue.active,
                "dead_letter": queue.dead_letter,
                "oldest": None if at is None else format_duration(max(0.0, status.taken_at - at)),
                "detail": _detail(queue),
            }
        )
    return rows


def _in_words(row: dict[str, Any]) -> dict[str, Any]:
    """A row for a person: a number that is not known says so."""
    if row["state"] == QueueState.MISSING:
        return row
    return row | {"drawn": row["active"]} | {key: _known(row[key]) for key in ("active", "dead_letter")}


def _detail(queue: QueueContents) -> str:
    told = [
        "not configured" if not queue.configured else "",
        _deferred(queue),
        f"{queue.scheduled:,} scheduled" if queue.scheduled else "",
        "or more; browsed, not counted" if queue.at_least else "",
        queue.error_code or queue.detail,
    ]
    return "; ".join(part for part in told if part)


def _deferred(queue: QueueContents) -> str:
    """Said too where the service counts deferred messages among the others."""
    if queue.deferred is None:
        return "" if queue.missing or not queue.active else "deferred: unknown"
    return f"{queue.deferred:,} deferred" if queue.deferred else ""


def line(before: PairStatus | None, after: PairStatus) -> str:
    """`2026-11-21T08:30:00.000Z orders primary=reachable secondary=denied messages=12 dead=0 oldest=4m rate=-3.1/s`"""
    rate = rate_per_second(before, after)
    age = after.backlog.oldest_age_seconds
    parts = [
        iso_time(after.taken_at),
        after.pair,
        *(f"{side.side}={side.state}" for side in _sides(after)),
        f"messages={_known(after.backlog.active)}",
        f"dead={_known(after.backlog.dead_letter)}",
        f"oldest={'none' if age is None else format_duration(age)}",
        f"rate={'unknown' if rate is None else f'{rate:+.1f}/s'}",
    ]
    return " ".join(str(part) for part in parts)


def _known(number: int | None) -> int | str:
    return "unknown" if number is None else number


def record(before: PairStatus | None, after: PairStatus) -> str:
    return dump_json(to_plain(report(before, after)))


def _answers(side: SideStatus) -> bool:
    return side.state in (REACHABLE, LIMITED)


def exit_of(status: PairStatus, fail_on: Grade = Grade.ERROR) -> Exit:
    """Unreachable, then denied; other troubles of a side or queue make it partial; what the backlog holds is a finding
    if it is graded `fail_on` or worse."""
    troubles = [side.state for side in _sides(status) if not _answers(side)]
    troubles += [queue.exit_name for queue in status.backlog.unread if queue.exit_name]
    if troubles:
        return gravest(troubles)
    grade = grade_of(status.backlog)
    return Exit.FINDINGS if grade is not None and grade.at_least(fail_on) else Exit.OK


def _checks(status: PairStatus) -> list[Check]:
    checks = [
        Check(
            "namespace",
            f"{side.side} {_name(side)}",
            Severity.OK if _answers(side) else Severity.CRITICAL,
            side.detail or side.state,
        )
        for side in _sides(status)
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


def _metrics(status: PairStatus, rate: float | None) -> list[Metric]:
    pair = ("pair", status.pair)
    metrics = [
        Metric(
            "sbpair_namespace_up",
            "1 if it answered.",
            float(side.state in (REACHABLE, LIMITED)),
            (pair, ("side", side.side)),
        )
        for side in _sides(status)
    ]
    numbers = {
        "sbpair_backlog_active_messages": ("Messages that a drain would move to the primary.", status.backlog.active),
        "sbpair_backlog_dead_letter_messages": ("Dead letters of the backlog queues.", status.backlog.dead_letter),
        "sbpair_backlog_deferred_messages": ("Deferred messages, where they are known.", status.backlog.deferred),
        "sbpair_backlog_scheduled_messages": ("Scheduled messages.", status.backlog.scheduled),
        "sbpair_backlog_queues": ("Backlog queues that exist.", len(status.backlog.existing)),
        "sbpair_backlog_oldest_age_seconds": ("Age of the oldest message.", status.backlog.oldest_age_seconds),
        "sbpair_backlog_growth_messages_per_second": ("Change of the backlog.", rate),
    }
    metrics += [Metric(name, text, value, (pair,)) for name, (text, value) in numbers.items() if value is not None]
    return metrics
