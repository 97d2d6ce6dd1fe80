"""`sbpair peek`: look at the messages of the backlog, or of any queue, without touching them."""

from collections.abc import Callable
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair.cli import candidates
from sbpair.cli.context import load_settings, open_sides, run_async, stoppable
from sbpair.cli.options import Options, PairArgument, command
from sbpair.cli.queues import backlog_path
from sbpair.core.durations import parse_duration
from sbpair.core.errors import UsageError
from sbpair.core.names import check_entity_path
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair
from sbpair.render.result import CommandResult, Table

if TYPE_CHECKING:
    import asyncio

    from sbpair.cli.peek_rows import GroupKey
    from sbpair.runtime.browsing import Browsed, BrowseReport

DEFAULT_MAX = 50
DEFAULT_MAX_GROUPED = 10_000
GROUP_KEYS = "path, reason, description, session, queue, subject, content-type, state, day, hour, minute"


def _complete_group_keys(incomplete: str) -> list[str]:
    return candidates.parts_of_list(GROUP_KEYS.split(", "), incomplete)


@command
def peek(
    options: Options,
    pair: PairArgument = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            help="Index or path of a backlog queue; repeatable. Default: all.",
            show_default=False,
            autocompletion=candidates.backlog_indexes,
        ),
    ] = None,
    dlq: Annotated[bool, typer.Option("--dlq", help="The dead-letter queues instead.")] = False,
    entity: Annotated[
        str | None,
        typer.Option(
            help="Any queue of the secondary, or TOPIC/Subscriptions/NAME, instead of the backlog.",
            show_default=False,
            autocompletion=candidates.entities,
        ),
    ] = None,
    primary: Annotated[bool, typer.Option("--primary", help="With --entity: on the primary.")] = False,
    most: Annotated[
        int | None,
        typer.Option(
            "-n", "--max", min=1, help="At most this many messages in all.", show_default="50; grouped: 10000"
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
    path: Annotated[
        str | None, typer.Option(help="Only messages for this destination; * and ? are wildcards.", show_default=False)
    ] = None,
    session: Annotated[str | None, typer.Option(help="Only messages of this session.", show_default=False)] = None,
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
      sbpair peek orders --dlq --group-by reason,path
      sbpair peek orders --queue 3 --since 2h --path 'invoices/*' --body
      sbpair peek orders -n 100000 -o jsonl > backlog.jsonl
    """
    chosen = load_settings(options).pair(pair)
    paths = _paths(chosen, queue, entity, primary)
    now = datetime.now(UTC).timestamp()
    wanted = _filter(_moment(since, "--since", now), _moment(until, "--until", now), path, session)
    keys = _group_keys(group_by)
    limit = most or (DEFAULT_MAX_GROUPED if keys else DEFAULT_MAX)

    async def work(stop: "asyncio.Event") -> "BrowseReport":
        from sbpair.runtime.browsing import DEFAULT_TIMEOUT_SECONDS, browse

        async with open_sides(chosen) as sides:
            found = browse(
                sides.primary if primary else sides.secondary,
                paths,
                dead_letter=dlq,
                max_messages=limit,
                from_sequence_number=from_sequence,
                wanted=wanted,
                timeout_seconds=options.timeout_seconds(DEFAULT_TIMEOUT_SECONDS),
            )
            return await stoppable(stop, found)

    report = run_async(options, work)
    if len(report.failed) == len(paths) and not report.messages:
        raise report.failed[0].error
    return _result(chosen, report, keys, with_body=body)


def _paths(pair: Pair, queues: list[str] | None, entity: str | None, primary: bool) -> list[str]:
    if entity is not None:
        if queues:
            raise UsageError("--entity names one queue; --queue means backlog queues. Give one of them.")
        return [check_entity_path(entity)]
    if primary:
        raise UsageError("--primary needs --entity: the backlog queues are on the secondary.")
    if queues:
        return list(dict.fromkeys(backlog_path(pair, queue) for queue in queues))
    return list(pair.backlog_paths())


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
    since: float | None, until: float | None, path: str | None, session: str | None
) -> "Callable[[Browsed], bool]":
    def wanted(message: "Browsed") -> bool:
        at = message.received.enqueued_at
        if (since is not None and (at is None or at < since)) or (until is not None and (at is None or at > until)):
            return False
        if path is not None and not fnmatchcase((message.summary.destination or "").lower(), path.lower()):
            return False
        return session is None or message.summary.session_id == session

    return wanted


def _group_keys(text: str | None) -> "tuple[GroupKey, ...]":
    from sbpair.cli.peek_rows import GroupKey

    if text is None:
        return ()
    try:
        return tuple(dict.fromkeys(GroupKey(part.strip()) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"--group-by {text!r}: known keys are {GROUP_KEYS}.") from None


def _result(pair: Pair, report: "BrowseReport", keys: "tuple[GroupKey, ...]", *, with_body: bool) -> CommandResult:
    from sbpair.cli.peek_rows import BODY_COLUMN, MESSAGE_COLUMNS, group_columns, grouped, message_row

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
    more = "; there may be more, see --max" if report.left_off else ""
    return CommandResult(
        "peek",
        data,
        (table,),
        notes=tuple(f"Not read: {one['queue']}: {one['message']}" for one in unread),
        summary=f"{len(rows)} message(s), {report.looked_at} looked at{more}.",
        exit=Exit.PARTIAL if unread else Exit.OK,
    )
