"""`sbpair dlq list`, `dlq peek` and `entity peek`: what lies in an entity, and why in its dead-letter queue."""

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair import operations
from sbpair.cli import suggestions
from sbpair.cli.context import load_settings
from sbpair.cli.options import Options, command
from sbpair.cli.transfer.entity_ref import (
    EntityArgument,
    EntityRef,
    NamespaceOptions,
    call_at,
    find_entity_ref,
    find_namespace,
)
from sbpair.cli.transfer.options import Filters, ReasonOption
from sbpair.cli.transfer.peek import DEFAULT_LIMIT
from sbpair.core.errors import UsageError
from sbpair.core.words import counted
from sbpair.render.result import CommandResult, table_of

if TYPE_CHECKING:
    from sbpair.settings import Settings

DEFAULT_TIMEOUT_SECONDS = 30.0
MOST_COMMANDS = 10
"""Of the most frequent causes; every cause has its own in JSON and on the page."""


@command(output="core.transfer.triage:DeadLetterList", checks=True, page=True)
def list_reasons(
    options: Options,
    entity: Annotated[
        str | None,
        typer.Argument(
            metavar="ENTITY",
            help="A queue, or TOPIC/Subscriptions/NAME; NAMESPACE:ENTITY for one of another namespace. Without one: "
            "every queue and subscription of the namespace.",
            show_default=False,
            autocompletion=suggestions.entities,
        ),
    ] = None,
    *,
    on: NamespaceOptions,
    reasons: ReasonOption = None,
    filters: Filters,
    since_last: Annotated[
        bool,
        typer.Option(
            help="Of the whole namespace: only causes that are new or grow since the last run with this option."
        ),
    ] = False,
    body: Annotated[
        bool, typer.Option(help="Of the whole namespace: show the body of one letter of each cause.")
    ] = False,
) -> CommandResult:
    """Count the dead letters of an entity by reason, or those of the whole namespace by cause, each with its command.

    Browses whole dead-letter queues; locks and changes nothing. A cause is the entity, the reason, the exception and
    where it was raised, the words of the description, and the names of the body's fields; numbers, ids and quoted
    values do not count. Exit code 5: there are some. Needs Listen, for the whole namespace also Manage.

    \b
    Examples:
      sbpair dlq list orders
      sbpair dlq list --namespace contoso-weu
      sbpair dlq list --namespace contoso-weu --since-last -o nagios
    """
    settings = load_settings(options)
    if entity is None:
        return _triage(options, settings, on, _request(options, "", filters, reasons), since_last=since_last, body=body)
    if since_last or body:
        raise UsageError("--since-last and --body of `dlq list` are about a whole namespace: name no entity.")
    place = find_entity_ref(settings, on, entity)
    request = _request(options, place.path, filters, reasons)
    found = call_at(options, place, operations.list_dead_letters, request)
    matching = " that match" if request.selection.is_set else ""
    why = f", for {counted(len(found.reasons), 'reason')}" if found.reasons else ""
    return CommandResult(
        "dlq list",
        found,
        (table_of(operations.DeadLetterReason, found.reasons),),
        notes=() if found.messages else request.selection.advice,
        closing=not found.messages,
        summary=f"{place} has {counted(found.messages, 'dead letter')}{matching}{why}.",
    )


def _triage(
    options: Options,
    settings: "Settings",
    on: NamespaceOptions,
    asked: "operations.BrowseRequest",
    *,
    since_last: bool,
    body: bool,
) -> CommandResult:
    from sbpair.settings import remember_causes, remembered_causes

    access, named = find_namespace(settings, on)
    before = remembered_causes(access.host, settings.environ)
    request = operations.TriageRequest(
        asked.selection,
        before if before or since_last else None,
        since_last,
        body,
        options.timeout_seconds(DEFAULT_TIMEOUT_SECONDS),
    )
    place = EntityRef(access, "", settings.environment_of(access), named)
    found = call_at(options, place, operations.list_causes, request)
    notes = [f"Not read: {one.queue}: {one.error.message}" for one in found.not_read]
    if since_last and not asked.selection.is_set and not found.not_read:
        try:
            remember_causes(
                access.host,
                {part: number for one in found.causes for part, number in one.parts.items()},
                settings.environ,
            )
        except OSError as error:
            notes.append(f"This look cannot be remembered: {error}")
    return _shown(found, tuple(notes))


def _shown(found: "operations.Triage", notes: tuple[str, ...]) -> CommandResult:
    from sbpair.render.page import Bar, Bars, Card, Cards, Page, Tone
    from sbpair.render.result import Check, Metric, Severity

    columns = {"entity": "", "reason": "", "messages": "", "trend": "", "text": "", "newest": ""}
    table = table_of(operations.Cause, found.shown, "Causes")
    commands = tuple(
        f"{one.messages:,} of {one.entity} ({one.reason}): {one.command}" for one in found.shown[:MOST_COMMANDS]
    )
    bodies = tuple(f"{one.entity} {one.numbers[0]}: {one.body}" for one in found.shown if one.body is not None)
    checks = tuple(
        Check("dead-letters", one.entity, Severity.WARNING, f"{one.messages:,} {one.reason}: {one.text}")
        for one in found.shown
    )
    by_entity = Counter[str]()
    for one in found.causes:
        by_entity[one.entity] += one.messages
    bars = Bars("By entity", [Bar(name, number, f"{number:,}") for name, number in by_entity.most_common(30)])
    fresh = sum(one.trend in ("new", "growing") for one in found.causes)
    figures = (("Dead letters", found.messages), ("Causes", len(found.causes)), ("New or growing", fresh))
    cards = Cards([Card(name, f"{number:,}") for name, number in figures])
    tone = Tone.WARN if found.causes or found.not_read else Tone.GOOD
    return CommandResult(
        "dlq list",
        found,
        (table,),
        summary=found.closing,
        notes=(*notes, *bodies, *commands),
        exit=found.exit,
        checks=checks or (Check("dead-letters", found.namespace, Severity.OK, found.closing),),
        metrics=tuple(
            Metric("sbpair_listed_dead_letter_messages", number, (("namespace", found.namespace), ("entity", name)))
            for name, number in by_entity.items()
        ),
        screen=(table_of(operations.Cause, found.shown, show=columns),),
        page=Page(f"Dead letters of {found.namespace}", [cards, bars, table], lead=found.closing, tone=tone),
        closing=True,
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
    body: Annotated[bool, typer.Option(help="Show bodies, as text, or as hex if not text.")] = False,
) -> CommandResult:
    """Browse the dead letters of a queue or subscription, oldest first. Locks nothing and changes nothing.

    Needs Listen. `sbpair send` reads the lines that `-o jsonl` writes.

    \b
    Examples:
      sbpair dlq peek orders --reason MaxDeliveryCountExceeded --body
      sbpair dlq peek contoso-weu:orders -n 1000 -o jsonl > dead.jsonl
    """
    place = find_entity_ref(load_settings(options), on, entity)
    request = _request(options, place.path, filters, reasons)
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
    body: Annotated[bool, typer.Option(help="Show bodies, as text, or as hex if not text.")] = False,
) -> CommandResult:
    """Browse the active, deferred and scheduled messages of a queue or subscription. Locks nothing, changes nothing.

    Needs Listen. Dead letters: `sbpair dlq peek`. `sbpair edit` takes the sequence numbers that this shows.

    \b
    Examples:
      sbpair entity peek orders --where "country = 'DE'" --body
      sbpair entity peek contoso-weu:orders -n 1000 -o jsonl > orders.jsonl
    """
    place = find_entity_ref(load_settings(options), on, entity)
    request = _request(options, place.path, filters, None)
    request = replace(request, max_messages=limit, from_sequence_number=from_sequence, with_body=body)
    return _peeked(options, "entity peek", place, request)


def _peeked(options: Options, name: str, place: EntityRef, request: "operations.BrowseRequest") -> CommandResult:
    from sbpair.core.transfer.peeked import PeekedMessage, columns_without_body

    found = call_at(options, place, operations.browse_messages, request)
    shown = counted(len(found.messages), "dead letter" if request.dead_letter else "message")
    more = "; there may be more, see --limit" if found.left_off else ""
    columns = () if request.with_body else columns_without_body()
    return CommandResult(
        name,
        found,
        (table_of(PeekedMessage, found.messages, show=columns),),
        notes=() if found.messages else request.selection.advice,
        closing=not found.messages,
        summary=f"{shown} shown of {found.looked_at:,} browsed{more}.",
    )


def _request(options: Options, path: str, filters: Filters, reasons: list[str] | None) -> "operations.BrowseRequest":
    selection = operations.Selection(filters.wanted(), reasons or ())
    return operations.BrowseRequest(
        path, selection=selection, timeout_seconds=options.timeout_seconds(DEFAULT_TIMEOUT_SECONDS)
    )
