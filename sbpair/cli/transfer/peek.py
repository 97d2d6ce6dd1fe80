"""`sbpair peek`: look at the messages of the backlog, or of any queue, without touching them."""

from collections.abc import Callable
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair.cli import suggestions
from sbpair.cli.context import load_settings, open_sides, run_async, stoppable
from sbpair.cli.options import Options, PairArgument, command
from sbpair.cli.transfer.drain import DestinationOption, SessionOption, WhereOption
from sbpair.cli.transfer.report import backlog_path
from sbpair.core.durations import parse_duration
from sbpair.core.errors import SbpairError, UsageError
from sbpair.core.names import check_entity_path
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair, Side
from sbpair.core.words import counted
from sbpair.render.result import CommandResult, Table

if TYPE_CHECKING:
    import asyncio

    from sbpair.cli.transfer.peek_shown import GroupKey
    from sbpair.connect import Sides
    from sbpair.runtime.browse import Browsed, BrowseReport

DEFAULT_LIMIT = 50
DEFAULT_LIMIT_GROUPED = 10_000
GROUP_KEYS = (
    "destination, reason, description, session, queue, subject, content-type, state, scheduled, day, hour, minute"
)


def _complete_group_keys(incomplete: str) -> list[str]:
    return suggestions.parts_of_list(GROUP_KEYS.split(", "), incomplete)


@command
def peek(
    options: Options,
    pair: PairArgument = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            help="Index or path of a backlog queue; repeatable. Default: all that exist.",
            show_default=False,
            autocompletion=suggestions.backlog_indexes,
        ),
    ] = None,
    dlq: Annotated[bool, typer.Option("--dlq", help="The dead-letter queues instead.")] = False,
    entity: Annotated[
        str | None,
        typer.Option(
            help="Any queue, or TOPIC/Subscriptions/NAME, instead of the backlog.",
            show_default=False,
            autocompletion=suggestions.entities,
        ),
    ] = None,
    side: Annotated[Side, typer.Option(help="With --entity: the namespace to look on.")] = Side.SECONDARY,
    limit: Annotated[
        int | None,
        typer.Option(
            "-n", "--limit", min=1, help="At most this many messages in all.", show_default="50; grouped: 10000"
        ),
    ] = None,
    from_sequence: Annotated[int, typer.Option(min=0, help="Begin at this sequence number.", show_default=False)] = 0,
    since: Annotated[
        str | None,
        typer.Option(help="Only messages put there since: 2026-11-21T08:00Z, or 2h for ago.", show_default=False),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Only messages put there until this time.", show_default=False)
    ] = None,
    destination: DestinationOption = None,
    session_id: SessionOption = None,
    where: WhereOption = None,
    body: Annotated[bool, typer.Option("--body", help="Show bodies: text, or hex if it is none.")] = False,
    group_by: Annotated[
        str | None,
        typer.Option(
            metavar="KEY,...",
            help=f"Count instead, by: {GROUP_KEYS}.",
            show_default=False,
            autocompletion=_complete_group_keys,
        ),
    ] = None,
) -> CommandResult:
    """Browse the messages of a pair's backlog queues, oldest first. Takes no locks and changes nothing.

    Needs the Listen right on the secondary. Lines of `-o jsonl` go into `sbpair send` as they are.

    \b
    Examples:
      sbpair peek orders --dlq --group-by reason,destination
      sbpair peek orders --queue 3 --since 2h --destination 'invoices/*' --body
      sbpair peek orders -n 100000 -o jsonl > backlog.jsonl
    """
    chosen = load_settings(options).pair(pair)
    primary = side is Side.PRIMARY
    named = _named(chosen, queue, entity, primary)
    now = datetime.now(UTC).timestamp()
    wanted = _filter(_moment(since, "--since", now), _moment(until, "--until", now), destination, session_id, where)
    keys = _group_keys(group_by)
    most = limit or (DEFAULT_LIMIT_GROUPED if keys else DEFAULT_LIMIT)

    async def work(stop: "asyncio.Event") -> "tuple[list[str], BrowseReport]":
        from sbpair.runtime.browse import DEFAULT_TIMEOUT_SECONDS, browse

        seconds = options.timeout_seconds(DEFAULT_TIMEOUT_SECONDS)
        async with open_sides(chosen) as sides:
            paths = named or await stoppable(stop, _every_queue(chosen, sides, seconds))
            found = browse(
                sides.primary if primary else sides.secondary,
                paths,
                dead_letter=dlq,
                max_messages=most,
                from_sequence_number=from_sequence,
                wanted=wanted,
                timeout_seconds=seconds,
            )
            return paths, await stoppable(stop, found)

    paths, report = run_async(options, work)
    if len(report.failed) == len(paths) and not report.messages:
        raise report.failed[0].error
    return _result(chosen, report, keys, with_body=body, dead_letter=dlq)


async def _every_queue(pair: Pair, sides: "Sides", timeout_seconds: float) -> list[str]:
    """The backlog queues that exist, configured or not.

    Raises:
        SbpairError: there is none.
    """
    from sbpair.runtime.inspection.backlog import find_queues

    found = await find_queues(
        pair, messaging=sides.secondary, admin=sides.secondary_admin, timeout_seconds=timeout_seconds
    )
    if not found.existing:
        raise SbpairError(
            f"No backlog queue of {pair.primary.label} exists on {pair.secondary.label}.",
            hint=f"Create them: sbpair provision {pair.name}",
        )
    return list(found.existing)


def _named(pair: Pair, queues: list[str] | None, entity: str | None, primary: bool) -> list[str]:
    """The queues that were named; none means every backlog queue."""
    if entity is not None:
        if queues:
            raise UsageError("--entity names one queue; --queue means backlog queues. Give one of them.")
        return [check_entity_path(entity)]
    if primary:
        raise UsageError("--side primary needs --entity: the backlog queues are on the secondary.")
    return list(dict.fromkeys(backlog_path(pair, queue) for queue in queues or ()))


def _moment(text: str | None, option: str, now: float) -> float | None:
    """UTC epoch seconds of an ISO 8601 time (no offset: UTC) or of a duration, which means that long before `now`."""
    if text is None:
        return None
    try:
        return now - parse_duration(text)
    except UsageError:
        pass  # then it is a time
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option} {text!r} is neither an ISO 8601 time (2026-11-21T08:00:00Z) nor a duration (2h, meaning ago)."
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _filter(
    since: float | None, until: float | None, destination: str | None, session_id: str | None, where: str | None
) -> "Callable[[Browsed], bool]":
    from sbpair.core.where import parse_where

    condition = None if where is None else parse_where(where)

    def wanted(message: "Browsed") -> bool:
        at = message.received.enqueued_at
        if (since is not None and (at is None or at < since)) or (until is not None and (at is None or at > until)):
            return False
        going_to = (message.summary.destination or "").lower()
        if destination is not None and not fnmatchcase(going_to, destination.lower()):
            return False
        if session_id is not None and message.summary.session_id != session_id:
            return False
        return condition is None or condition.matches(message.summary, message.received)

    return wanted


def _group_keys(text: str | None) -> "tuple[GroupKey, ...]":
    from sbpair.cli.transfer.peek_shown import GroupKey

    if text is None:
        return ()
    try:
        return tuple(dict.fromkeys(GroupKey(part.strip()) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"--group-by {text!r}: known keys are {GROUP_KEYS}.") from None


def _result(
    pair: Pair, report: "BrowseReport", keys: "tuple[GroupKey, ...]", *, with_body: bool, dead_letter: bool
) -> CommandResult:
    from sbpair.cli.transfer.peek_shown import (
        BODY_COLUMN,
        MESSAGE_COLUMNS,
        explain_reasons,
        group_columns,
        grouped,
        message_row,
    )

    rows = [message_row(message, with_body=with_body) for message in report.messages]
    unread = [{"queue": one.queue, "code": one.error.code, "message": one.error.message} for one in report.failed]
    data: dict[str, Any] = {
        "pair": pair.name,
        "looked_at": report.looked_at,
        "left_off": report.left_off,
        "not_read": unread,
    }
    if keys:
        groups = grouped(rows, keys)
        data["groups"] = groups
        table = Table("", group_columns(keys), groups)
    else:
        data["messages"] = rows
        table = Table("", (*MESSAGE_COLUMNS, BODY_COLUMN) if with_body else MESSAGE_COLUMNS, rows)
    more = "; there may be more, see --limit" if report.left_off else ""
    explained = explain_reasons(rows, pair.name) if dead_letter else ()
    return CommandResult(
        "peek",
        data,
        (table,),
        notes=(*explained, *(f"Not read: {one['queue']}: {one['message']}" for one in unread)),
        summary=f"{counted(len(rows), 'message')} shown of {report.looked_at:,} browsed{more}.",
        exit=Exit.PARTIAL if unread else Exit.OK,
        closing=bool(explained),
    )
