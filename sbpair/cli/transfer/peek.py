"""`sbpair peek`: look at the messages of the backlog, or of any queue, without touching them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair.cli import suggestions
from sbpair.cli.context import load_settings, open_sides, run_async, stoppable
from sbpair.cli.options import Options, PairArgument, command
from sbpair.cli.transfer.options import Filters, QueuesOption
from sbpair.cli.transfer.report import backlog_path
from sbpair.core.errors import SbpairError, UsageError
from sbpair.core.names import check_entity_path
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair, Side
from sbpair.core.serialization import to_plain
from sbpair.core.words import counted
from sbpair.render.result import CommandResult, Table

if TYPE_CHECKING:
    import asyncio

    from sbpair.cli.transfer.peek_shown import GroupKey
    from sbpair.operations.ends import Sides
    from sbpair.runtime.browse import BrowseReport

DEFAULT_LIMIT = 50
DEFAULT_LIMIT_GROUPED = 10_000
GROUP_KEYS = (
    "destination, reason, description, session, queue, subject, content-type, state, scheduled, day, hour, minute"
)


def _complete_group_keys(incomplete: str) -> list[str]:
    return suggestions.parts_of_list(GROUP_KEYS.split(", "), incomplete)


@command(output="cli.transfer.peek_shown:Printed")
def peek(
    options: Options,
    pair: PairArgument = None,
    queue: QueuesOption = None,
    dlq: Annotated[bool, typer.Option("--dlq", help="Browse the dead-letter queues instead.")] = False,
    with_dlq: Annotated[bool, typer.Option("--with-dlq", help="Browse the dead-letter queues as well.")] = False,
    entity: Annotated[
        str | None,
        typer.Option(
            help="Browse this queue or TOPIC/Subscriptions/NAME instead of the backlog.",
            show_default=False,
            autocompletion=suggestions.entities,
        ),
    ] = None,
    side: Annotated[Side, typer.Option(help="With --entity: the namespace it is on.")] = Side.SECONDARY,
    limit: Annotated[
        int | None,
        typer.Option("-n", "--limit", min=1, help="At most this many messages.", show_default="50, grouped 10,000"),
    ] = None,
    from_sequence: Annotated[int, typer.Option(min=0, help="Start at this sequence number.", show_default=False)] = 0,
    *,
    filters: Filters,
    body: Annotated[bool, typer.Option("--body", help="Show bodies, as text, or as hex if not text.")] = False,
    group_by: Annotated[
        str | None,
        typer.Option(
            metavar="KEY,...",
            help=f"Count the messages by these instead: {GROUP_KEYS}.",
            show_default=False,
            autocompletion=_complete_group_keys,
        ),
    ] = None,
) -> CommandResult:
    """Browse the messages in a pair's backlog queues, oldest first. Locks nothing and changes nothing.

    Needs Listen on the secondary. `sbpair restore` and `sbpair send` read the lines that `-o jsonl` writes.

    \b
    Examples:
      sbpair peek orders --dlq --group-by reason,destination
      sbpair peek orders --queue 3 --since 2h --destination 'invoices/*' --body
      sbpair peek orders -n 100000 -o jsonl > backlog.jsonl
    """
    chosen = load_settings(options).pair(pair)
    primary = side is Side.PRIMARY
    if dlq and with_dlq:
        raise UsageError("--dlq means the dead-letter queues only, --with-dlq as well. Give one of them.")
    kinds = (True,) if dlq else (False, True) if with_dlq else (False,)
    named = _named(chosen, queue, entity, primary)
    wanted = filters.wanted()
    keys = _group_keys(group_by)
    most = limit or (DEFAULT_LIMIT_GROUPED if keys else DEFAULT_LIMIT)

    async def work(stop: "asyncio.Event") -> "tuple[list[str], BrowseReport]":
        from sbpair.runtime.browse import DEFAULT_TIMEOUT_SECONDS, browse

        seconds = options.timeout_seconds(DEFAULT_TIMEOUT_SECONDS)
        async with open_sides(chosen) as sides:
            paths = named or await stoppable(stop, _every_queue(chosen, sides, options))
            found = browse(
                sides.primary if primary else sides.secondary,
                paths,
                kinds=kinds,
                max_messages=most,
                from_sequence_number=from_sequence,
                wanted=lambda message: wanted.wants(message.received, message.summary),
                timeout_seconds=seconds,
            )
            return paths, await stoppable(stop, found)

    paths, report = run_async(options, work)
    if len(report.failed) == len(paths) and not report.messages:
        raise report.failed[0].error
    return _result(chosen, report, keys, with_body=body, dead_letter=True in kinds)


async def _every_queue(pair: Pair, sides: "Sides", options: Options) -> list[str]:
    """The backlog queues that exist, configured or not.

    Raises:
        SbpairError: there is none.
    """
    from sbpair.runtime.inspection.backlog import DEFAULT_TIMEOUT_SECONDS, find_queues

    seconds = options.timeout_seconds(DEFAULT_TIMEOUT_SECONDS)
    found = await find_queues(pair, messaging=sides.secondary, admin=sides.secondary_admin, timeout_seconds=seconds)
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


def _with_short_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """`11-22 02:54:09` for a time: a screen is read within days."""
    short = {key: str(row[key])[5:19].replace("T", " ") for key in ("oldest", "newest") if row.get(key)}
    return {**row, **short}


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
        Groups,
        Messages,
        explain_reasons,
        group_columns,
        grouped,
        peeked,
    )

    messages = tuple(peeked(message, with_body=with_body) for message in report.messages)
    common = pair.name, report.looked_at, report.left_off, report.failed
    data: Messages | Groups
    screen: tuple[Table, ...] = ()
    if keys:
        data = Groups(*common, grouped(messages, keys))
        table = Table("", group_columns(keys), to_plain(data.groups))
        screen = (replace(table, rows=[_with_short_times(row) for row in table.rows]),)
    else:
        data = Messages(*common, messages)
        table = Table("", (*MESSAGE_COLUMNS, BODY_COLUMN) if with_body else MESSAGE_COLUMNS, to_plain(messages))
    more = "; there may be more, see --limit" if report.left_off else ""
    explained = explain_reasons(messages, pair.name) if dead_letter else ()
    return CommandResult(
        "peek",
        data,
        (table,),
        screen=screen,
        notes=(*explained, *(f"Not read: {one.queue}: {one.error.message}" for one in report.failed)),
        summary=f"{counted(len(messages), 'message')} shown of {report.looked_at:,} browsed{more}.",
        exit=Exit.PARTIAL if report.failed else Exit.OK,
        closing=bool(explained),
    )
