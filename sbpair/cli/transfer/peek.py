"""`sbpair peek`: look at the messages of the backlog, or of any queue, without touching them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair import operations
from sbpair.cli import suggestions
from sbpair.cli.context import call, load_settings
from sbpair.cli.options import Options, PairArgument, command
from sbpair.cli.transfer.options import Filters, QueuesOption
from sbpair.cli.transfer.report import backlog_path
from sbpair.core.errors import UsageError
from sbpair.core.names import check_entity_path
from sbpair.core.pairing import Pair, Side
from sbpair.render.result import Column, CommandResult, Table, table_of

if TYPE_CHECKING:
    from sbpair.core.transfer.peeked import GroupKey, PeekResult

DEFAULT_LIMIT = 50
GROUP_KEYS = (
    "destination, reason, description, session, queue, subject, content-type, state, scheduled, day, hour, minute"
)


def _complete_group_keys(incomplete: str) -> list[str]:
    return suggestions.parts_of_list(GROUP_KEYS.split(", "), incomplete)


@command(output="core.transfer.peeked:PeekResult")
def peek(
    options: Options,
    pair: PairArgument = None,
    queue: QueuesOption = None,
    dlq: Annotated[bool, typer.Option(help="Browse the dead-letter queues instead.")] = False,
    with_dlq: Annotated[bool, typer.Option(help="Browse the dead-letter queues as well.")] = False,
    entity: Annotated[
        str | None,
        typer.Option(
            help="Browse this queue or TOPIC/Subscriptions/NAME instead of the backlog.",
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
    body: Annotated[bool, typer.Option(help="Show bodies, as text, or as hex if not text.")] = False,
    group_by: Annotated[
        str | None,
        typer.Option(
            metavar="KEY,...",
            help=f"Count the messages by these instead: {GROUP_KEYS}.",
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
    if dlq and with_dlq:
        raise UsageError("--dlq means the dead-letter queues only, --with-dlq as well. Give one of them.")
    request = operations.PeekRequest(
        queues=_named(chosen, queue, entity, side is Side.PRIMARY),
        side=side,
        dead_letter=dlq,
        with_dead_letter=with_dlq,
        wanted=filters.wanted(),
        max_messages=limit,
        from_sequence_number=from_sequence,
        group_by=_group_keys(group_by),
        with_body=body,
        timeout_seconds=options.given_timeout_seconds,
    )

    return _result(call(options, chosen, operations.peek, request), request)


def _named(pair: Pair, queues: list[str] | None, entity: str | None, primary: bool) -> tuple[str, ...]:
    """The queues that were named; none means every backlog queue."""
    if entity is not None:
        if queues:
            raise UsageError("--entity names one queue; --queue means backlog queues. Give one of them.")
        return (check_entity_path(entity),)
    if primary:
        raise UsageError("--side primary needs --entity: the backlog queues are on the secondary.")
    return tuple(dict.fromkeys(backlog_path(pair, queue) for queue in queues or ()))


def _with_short_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """`11-22 02:54:09` for a time: a screen is read within days."""
    short = {key: str(row[key])[5:19].replace("T", " ") for key in ("oldest", "newest") if row.get(key)}
    return {**row, **short}


def _group_keys(text: str | None) -> "tuple[GroupKey, ...]":
    from sbpair.core.transfer.peeked import GroupKey

    if text is None:
        return ()
    try:
        return tuple(dict.fromkeys(GroupKey(part.strip()) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"--group-by {text!r}: known keys are {GROUP_KEYS}.") from None


def _result(result: "PeekResult", request: "operations.PeekRequest") -> CommandResult:
    from sbpair.core.transfer.peeked import Group, Groups, PeekedMessage, columns_without_body

    screen: tuple[Table, ...] = ()
    if isinstance(result, Groups):
        keys = (Column(key.value, key.value.capitalize()) for key in request.group_by)
        table = table_of(Group, result.groups)
        table = replace(table, columns=(*keys, *table.columns))
        screen = (replace(table, rows=[_with_short_times(row) for row in table.rows]),)
    else:
        table = table_of(PeekedMessage, result.messages, show=() if request.with_body else columns_without_body())
    return CommandResult(
        "peek",
        result,
        (table,),
        screen=screen,
        notes=(*result.explained, *result.notes),
        summary=result.closing,
        exit=result.exit,
        closing=bool(result.explained),
    )
