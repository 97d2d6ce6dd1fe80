"""`sbpair dlq list`, `dlq peek` and `entity peek`: what lies in an entity, and why in its dead-letter queue."""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sbpair.cli.context import load_settings, run_async
from sbpair.cli.options import Options, command
from sbpair.cli.transfer.entity_ref import EntityArgument, EntityRef, NamespaceOptions, find_entity_ref
from sbpair.cli.transfer.options import Filters, ReasonOption
from sbpair.cli.transfer.peek import DEFAULT_LIMIT
from sbpair.core.words import counted
from sbpair.render.result import CommandResult, table_of

if TYPE_CHECKING:
    import asyncio

    from sbpair.operations.dead_letters import BrowseRequest

T = TypeVar("T")


@command(output="core.transfer.dead_letters:DeadLetterReasons")
def list_reasons(
    options: Options,
    entity: EntityArgument,
    *,
    on: NamespaceOptions,
    reasons: ReasonOption = None,
    filters: Filters,
) -> CommandResult:
    """Count the dead letters of a queue or subscription by reason, with their ages.

    Browses the whole dead-letter queue; locks and changes nothing. Needs Listen.

    \b
    Examples:
      sbpair dlq list orders
      sbpair dlq list news/Subscriptions/audit --namespace contoso-weu --since 24h
    """
    from sbpair.core.transfer.dead_letters import DeadLetterReason
    from sbpair.operations.dead_letters import list_dead_letters

    place = find_entity_ref(load_settings(options), on, entity)
    request = _request(options, place, filters, reasons)
    found = call_verb(options, place, list_dead_letters, request)
    matching = " that match" if request.selection.is_set else ""
    why = f", for {counted(len(found.reasons), 'reason')}" if found.reasons else ""
    return CommandResult(
        "dlq list",
        found,
        (table_of(DeadLetterReason, found.reasons),),
        summary=f"{place} has {counted(found.messages, 'dead letter')}{matching}{why}.",
    )


@command(output="core.transfer.peeked:DeadLetters")
def peek(
    options: Options,
    entity: EntityArgument,
    *,
    on: NamespaceOptions,
    reasons: ReasonOption = None,
    filters: Filters,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="At most this many messages.")] = DEFAULT_LIMIT,
    from_sequence: Annotated[int, typer.Option(min=0, help="Start at this sequence number.", show_default=False)] = 0,
    body: Annotated[bool, typer.Option("--body", help="Show bodies, as text, or as hex if not text.")] = False,
) -> CommandResult:
    """Browse the dead letters of a queue or subscription, oldest first. Locks nothing and changes nothing.

    Needs Listen. `sbpair send` reads the lines that `-o jsonl` writes.

    \b
    Examples:
      sbpair dlq peek orders --reason MaxDeliveryCountExceeded --body
      sbpair dlq peek contoso-weu:orders -n 1000 -o jsonl > dead.jsonl
    """
    place = find_entity_ref(load_settings(options), on, entity)
    request = _request(options, place, filters, reasons)
    request = replace(request, dead_letter=True, max_messages=limit, from_sequence_number=from_sequence, with_body=body)
    return _peeked(options, "dlq peek", place, request)


@command(output="core.transfer.peeked:DeadLetters")
def peek_messages(
    options: Options,
    entity: EntityArgument,
    *,
    on: NamespaceOptions,
    filters: Filters,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="At most this many messages.")] = DEFAULT_LIMIT,
    from_sequence: Annotated[int, typer.Option(min=0, help="Start at this sequence number.", show_default=False)] = 0,
    body: Annotated[bool, typer.Option("--body", help="Show bodies, as text, or as hex if not text.")] = False,
) -> CommandResult:
    """Browse the active, deferred and scheduled messages of a queue or subscription. Locks nothing, changes nothing.

    Needs Listen. Dead letters: `sbpair dlq peek`. `sbpair edit` takes the sequence numbers that this shows.

    \b
    Examples:
      sbpair entity peek orders --where "country = 'DE'" --body
      sbpair entity peek contoso-weu:orders -n 1000 -o jsonl > orders.jsonl
    """
    place = find_entity_ref(load_settings(options), on, entity)
    request = _request(options, place, filters, None)
    request = replace(request, max_messages=limit, from_sequence_number=from_sequence, with_body=body)
    return _peeked(options, "entity peek", place, request)


def _peeked(options: Options, name: str, place: EntityRef, request: "BrowseRequest") -> CommandResult:
    from sbpair.core.transfer.peeked import PeekedMessage, columns_without_body
    from sbpair.operations.dead_letters import browse_messages

    found = call_verb(options, place, browse_messages, request)
    shown = counted(len(found.messages), "dead letter" if request.dead_letter else "message")
    more = "; there may be more, see --limit" if found.left_off else ""
    columns = () if request.with_body else columns_without_body()
    return CommandResult(
        name,
        found,
        (table_of(PeekedMessage, found.messages, show=columns),),
        summary=f"{shown} shown of {found.looked_at:,} browsed{more}.",
    )


def _request(options: Options, place: EntityRef, filters: Filters, reasons: list[str] | None) -> "BrowseRequest":
    from sbpair.core.transfer.resend import Selection
    from sbpair.operations.dead_letters import BrowseRequest
    from sbpair.runtime.browse import DEFAULT_TIMEOUT_SECONDS

    selection = Selection(filters.wanted(), reasons or ())
    return BrowseRequest(
        place.path, selection=selection, timeout_seconds=options.timeout_seconds(DEFAULT_TIMEOUT_SECONDS)
    )


def call_verb(options: Options, place: EntityRef, verb: Callable[..., Coroutine[Any, Any, T]], request: Any) -> T:
    """The result of a verb that works on one open namespace."""

    async def work(stop: "asyncio.Event") -> T:
        from sbpair.connect import open_ends

        async with open_ends(place.access) as ends:
            return await verb(ends, request, stop=stop)

    return run_async(options, work)
