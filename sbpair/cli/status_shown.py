"""What `sbpair status` has seen, as tables, lines, records, checks and metrics."""

from typing import Any

from sbpair.cli.forecasts import as_data, in_words
from sbpair.cli.snapshots import gravest, with_hint
from sbpair.core.durations import format_duration
from sbpair.core.outcome import Exit
from sbpair.core.status import REACHABLE, Look, SideLook, outlook, rate_per_second, to_dict
from sbpair.render.formats import dump_json, iso_time
from sbpair.render.result import Check, Column, CommandResult, Metric, Severity, Table

__all__ = ["exit_of", "line", "record", "result", "to_dict"]

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


def result(before: Look | None, after: Look) -> CommandResult:
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
        exit=exit_of(after),
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


def line(before: Look | None, after: Look) -> str:
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


def record(before: Look | None, after: Look) -> str:
    return dump_json(to_dict(after, rate_per_second(before, after)))


def exit_of(look: Look) -> Exit:
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
