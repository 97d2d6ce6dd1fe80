"""`sbpair dlq list`, `dlq peek` and `entity peek`: what lies in an entity, and why in its dead-letter queue."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from sbpair.cli.context import load_settings, run_async, stoppable
from sbpair.cli.options import Options, command
from sbpair.cli.transfer.entity_ref import EntityArgument, EntityRef, NamespaceOptions, find_entity_ref
from sbpair.cli.transfer.options import Filters, ReasonOption
from sbpair.cli.transfer.peek import DEFAULT_LIMIT
from sbpair.core.serialization import Time, column, iso_time
from sbpair.core.words import counted
from sbpair.render.result import CommandResult, table_of

if TYPE_CHECKING:
    import asyncio

    from sbpair.core.transfer.resend import Selection
    from sbpair.ports import Messaging
    from sbpair.runtime.browse import BrowseReport

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reason:
    """Dead letters with one reason."""

    reason: str = field(metadata=column("Reason"))
    messages: int = field(metadata=column("Messages", counts=True))
    oldest: Time | None = field(metadata=column("Oldest"))
    newest: Time | None = field(metadata=column("Newest"))
    description: str | None = field(metadata=column("Description"))
    """Of the oldest one."""


@dataclass(frozen=True, slots=True)
class Reasons:
    """What `dlq list -o json` prints: all dead letters that match, the most frequent reason first."""

    namespace: str
    entity: str
    messages: int
    reasons: tuple[Reason, ...]


@command(output="cli.transfer.dead_letters:Reasons")
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
    place = find_entity_ref(load_settings(options), on, entity)
    wanted = _selection(filters, reasons)

    async def work(messaging: "Messaging") -> "list[Reason]":
        return await _count(messaging, place, wanted, options)

    found = _with_messaging(options, place, work)
    total = sum(one.messages for one in found)
    return CommandResult(
        "dlq list",
        Reasons(place.access.label, place.path, total, tuple(found)),
        (table_of(Reason, found),),
        summary=f"{place} has {counted(total, 'dead letter')}{' that match' if wanted.is_set else ''}"
        + (f", for {counted(len(found), 'reason')}." if found else "."),
    )


async def _count(messaging: "Messaging", place: EntityRef, wanted: "Selection", options: Options) -> list[Reason]:
    from sbpair.core.summary import describe
    from sbpair.core.transfer.verdict import MOST_NAMES, OTHERS, fault_of
    from sbpair.runtime.browse import DEFAULT_TIMEOUT_SECONDS, pages_once
    from sbpair.runtime.links import close_quietly

    number: dict[str, int] = {}
    times: dict[str, list[float]] = {}
    descriptions: dict[str, str | None] = {}
    receiver = messaging.receiver(place.path, dead_letter=True)
    try:
        async for page in pages_once(receiver, page_seconds=options.timeout_seconds(DEFAULT_TIMEOUT_SECONDS)):
            for received in page:
                summary = describe(received.payload)
                if not wanted.selects(received, summary):
                    continue
                reason = fault_of(summary)
                if reason not in number and len(number) >= MOST_NAMES:
                    reason = OTHERS
                number[reason] = number.get(reason, 0) + 1
                descriptions.setdefault(reason, summary.dead_letter_description)
                if received.enqueued_at is not None:
                    first, last = times.get(reason, [received.enqueued_at] * 2)
                    times[reason] = [min(first, received.enqueued_at), max(last, received.enqueued_at)]
    finally:
        await close_quietly(receiver)
    ordered = sorted(number, key=lambda reason: (-number[reason], reason))
    return [
        Reason(
            reason,
            number[reason],
            iso_time(min(times[reason])) if reason in times else None,
            iso_time(max(times[reason])) if reason in times else None,
            descriptions[reason],
        )
        for reason in ordered
    ]


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
    return _peeked(
        options,
        "dlq peek",
        find_entity_ref(load_settings(options), on, entity),
        _selection(filters, reasons),
        limit,
        from_sequence,
        body=body,
        dead_letter=True,
    )


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
    return _peeked(
        options, "entity peek", place, _selection(filters, None), limit, from_sequence, body=body, dead_letter=False
    )


def _peeked(
    options: Options,
    name: str,
    place: EntityRef,
    wanted: "Selection",
    limit: int,
    from_sequence: int,
    *,
    body: bool,
    dead_letter: bool,
) -> CommandResult:
    from sbpair.core.transfer.peeked import DeadLetters, PeekedMessage, columns_without_body, peeked

    async def work(messaging: "Messaging") -> "BrowseReport":
        from sbpair.runtime.browse import DEFAULT_TIMEOUT_SECONDS, browse

        return await browse(
            messaging,
            [place.path],
            kinds=(dead_letter,),
            max_messages=limit,
            from_sequence_number=from_sequence,
            wanted=lambda message: wanted.selects(message.received, message.summary),
            timeout_seconds=options.timeout_seconds(DEFAULT_TIMEOUT_SECONDS),
        )

    report = _with_messaging(options, place, work)
    if report.failed:
        raise report.failed[0].error
    messages = tuple(peeked(one.queue, one.received, one.summary, with_body=body) for one in report.messages)
    shown = counted(len(messages), "dead letter" if dead_letter else "message")
    more = "; there may be more, see --limit" if report.left_off else ""
    return CommandResult(
        name,
        DeadLetters(place.access.label, place.path, report.looked_at, report.left_off, messages),
        (table_of(PeekedMessage, messages, show=() if body else columns_without_body()),),
        summary=f"{shown} shown of {report.looked_at:,} browsed{more}.",
    )


def _selection(filters: Filters, reasons: list[str] | None) -> "Selection":
    from sbpair.core.transfer.resend import Selection

    return Selection(filters.wanted(), reasons or ())


def _with_messaging(options: Options, place: EntityRef, work: "Callable[[Messaging], Awaitable[T]]") -> T:
    async def connected(stop: "asyncio.Event") -> T:
        from sbpair.connect import open_namespace

        async with open_namespace(place.access) as (messaging, _):
            return await stoppable(stop, _awaited(work(messaging)))

    return run_async(options, connected)


async def _awaited(work: Awaitable[T]) -> T:
    return await work
