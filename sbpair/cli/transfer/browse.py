"""What lies somewhere, browsed: `sbpair peek`, `entity peek`, `dlq peek`, `dlq list`, which says why, and `session`."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair import operations
from sbpair.cli import suggestions
from sbpair.cli.asking import go_ahead
from sbpair.cli.context import call, load_settings
from sbpair.cli.options import Options, OptionSet, PairArgument, command
from sbpair.cli.transfer.entity_ref import (
    EntityOptions,
    EntityRef,
    NamespaceOptions,
    call_at,
    find_entity_ref,
    find_namespace,
)
from sbpair.cli.transfer.options import BacklogOptions, Filters, ReasonOption, backlog_path
from sbpair.core.errors import UsageError, unchanged
from sbpair.core.names import check_entity_path
from sbpair.core.outcome import Exit
from sbpair.core.pairing import Pair, Side
from sbpair.core.words import counted
from sbpair.render.result import Column, CommandResult, Grade, Metric, MonitoredCheck, Table, table_of

if TYPE_CHECKING:
    from sbpair.core.transfer.peeked import DeadLetters, PeekResult, ShownSession
    from sbpair.settings import Settings


DEFAULT_TIMEOUT_SECONDS = 30.0
FromOption = Annotated[int, typer.Option(min=0, help="Start at this sequence number.", show_default=False)]
BodyOption = Annotated[bool, typer.Option(help="Show bodies, as text, or as hex if not text.")]
GROUP_KEYS = (
    "destination, reason, description, session, queue, subject, content-type, state, scheduled, day, hour, minute"
)


def _complete_group_keys(incomplete: str) -> list[str]:
    return suggestions.parts_of_list(GROUP_KEYS.split(", "), incomplete)


LimitOption = Annotated[
    int | None,
    typer.Option("-n", "--limit", min=1, help="At most this many messages.", show_default="50, grouped 10,000"),
]
GroupByOption = Annotated[
    str | None,
    typer.Option(
        metavar="KEY,...",
        help=f"Count the messages by these instead: {GROUP_KEYS}.",
        autocompletion=_complete_group_keys,
    ),
]
MOST_COMMANDS = 10
"""Of the most frequent causes; every cause has its own in JSON and on the page."""


@dataclass(frozen=True, slots=True)
class PageOptions(OptionSet):
    """Which of the messages are shown, and whether with their bodies."""

    limit: LimitOption = None
    from_sequence: FromOption = 0
    group_by: GroupByOption = None
    body: BodyOption = False

    def request(self) -> dict[str, Any]:
        """The fields of a request that these options are. Raises UsageError: --group-by has an unknown key."""
        from sbpair.core.transfer.peeked import GroupKey

        named = [] if self.group_by is None else self.group_by.split(",")
        try:
            keys = tuple(dict.fromkeys(GroupKey(name.strip()) for name in named))
        except ValueError:
            raise UsageError(f"--group-by {self.group_by!r}: known keys are {GROUP_KEYS}.") from None
        return {
            "max_messages": self.limit,
            "from_sequence_number": self.from_sequence,
            "group_by": keys,
            "with_body": self.body,
        }


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

    columns = {"entity": "", "reason": "", "messages": "", "trend": "", "text": "", "newest": ""}
    table = table_of(operations.Cause, found.shown, "Causes")
    commands = tuple(
        f"{one.messages:,} of {one.entity} ({one.reason}): {one.command}" for one in found.shown[:MOST_COMMANDS]
    )
    bodies = tuple(f"{one.entity} {one.numbers[0]}: {one.body}" for one in found.shown if one.body is not None)
    checks = tuple(
        MonitoredCheck("dead-letters", one.entity, Grade.WARNING, f"{one.messages:,} {one.reason}: {one.text}")
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
        found,
        (table,),
        summary=found.closing,
        notes=(*notes, *bodies, *commands),
        exit=found.exit,
        checks=checks or (MonitoredCheck("dead-letters", found.namespace, Grade.OK, found.closing),),
        metrics=tuple(
            Metric("sbpair_listed_dead_letter_messages", number, (("namespace", found.namespace), ("entity", name)))
            for name, number in by_entity.items()
        ),
        screen=(table_of(operations.Cause, found.shown, show=columns),),
        page=Page(f"Dead letters of {found.namespace}", [cards, bars, table], lead=found.closing, tone=tone),
        closing=True,
    )


@command(output="core.transfer.peeked:DeadLetters")
def peek_dead_letters(
    options: Options, on: EntityOptions, *, reasons: ReasonOption = None, filters: Filters, page: PageOptions
) -> CommandResult:
    """Browse the dead letters of a queue or subscription, oldest first. Locks nothing and changes nothing.

    Needs Listen. `sbpair send` reads the lines that `-o jsonl` writes.

    \b
    Examples:
      sbpair dlq peek orders --group-by reason,subject
      sbpair dlq peek orders --reason MaxDeliveryCountExceeded --body
      sbpair dlq peek contoso-weu:orders -n 1000 -o jsonl > dead.jsonl
    """
    place = on.find(options)
    request = _request(options, place.path, filters, reasons, page)
    request = replace(request, dead_letter=True)
    return _browsed(call_at(options, place, operations.browse_messages, request), request)


@command(output="core.transfer.peeked:DeadLetters")
def peek_messages(options: Options, on: EntityOptions, *, filters: Filters, page: PageOptions) -> CommandResult:
    """Browse the active, deferred and scheduled messages of a queue or subscription. Locks nothing, changes nothing.

    Needs Listen. Dead letters: `sbpair dlq peek`. `sbpair edit` takes the sequence numbers that this shows.

    \b
    Examples:
      sbpair entity peek orders --where "country = 'DE'" --body
      sbpair entity peek contoso-weu:orders -n 1000 -o jsonl > orders.jsonl
    """
    place = on.find(options)
    request = _request(options, place.path, filters, None, page)
    return _browsed(call_at(options, place, operations.browse_messages, request), request)


def _request(
    options: Options, path: str, filters: Filters, reasons: list[str] | None, page: PageOptions = PageOptions()
) -> "operations.BrowseRequest":
    return operations.BrowseRequest(
        path,
        selection=operations.Selection(filters.wanted(), reasons or ()),
        timeout_seconds=options.timeout_seconds(DEFAULT_TIMEOUT_SECONDS),
        **page.request(),
    )


# The backlog of a pair.


@command(output="core.transfer.peeked:PeekResult")
def peek(
    options: Options,
    pair: PairArgument = None,
    *,
    backlog: BacklogOptions,
    entity: Annotated[
        str | None,
        typer.Option(
            help="Browse this queue or TOPIC/Subscriptions/NAME instead of the backlog.",
            autocompletion=suggestions.entities,
        ),
    ] = None,
    side: Annotated[Side, typer.Option(help="With --entity: the namespace it is on.")] = Side.SECONDARY,
    filters: Filters,
    page: PageOptions,
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
    request = operations.PeekRequest(
        queues=_named(chosen, backlog.queue, entity, side is Side.PRIMARY),
        side=side,
        dead_letter=backlog.dlq,
        with_dead_letter=backlog.with_dlq,
        wanted=filters.wanted(),
        timeout_seconds=options.given_timeout_seconds,
        **page.request(),
    )
    return _browsed(call(options, chosen, operations.peek, request), request)


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


def _browsed(
    found: "PeekResult | DeadLetters", request: "operations.BrowseRequest | operations.PeekRequest"
) -> CommandResult:
    """The messages, or their groups where there are any, which a screen shows with short times."""
    from sbpair.core.transfer.peeked import Group, PeekedMessage, columns_without_body

    screen: tuple[Table, ...] = ()
    if (groups := getattr(found, "groups", None)) is None:
        show = () if request.with_body else columns_without_body()
        table = table_of(PeekedMessage, getattr(found, "messages", ()), show=show)
    else:
        table = table_of(Group, groups)
        keys = (Column(key.value, key.value.capitalize()) for key in request.group_by)
        table = replace(table, columns=(*keys, *table.columns))
        screen = (replace(table, rows=[_with_short_times(row) for row in table.rows]),)
    return CommandResult(
        found,
        (table,),
        screen=screen,
        notes=found.notes,
        closing=not found.shown or bool(found.notes) or found.left_off,
        summary=found.closing,
        exit=found.exit,
    )


# `sbpair session`: the sessions of any queue or subscription, and their states.

SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="Id of the session.")]
_DRY_RUN = "Say what would change."
_STATE = "The session is as it was."


@command(output="core.transfer.peeked:SessionList")
def list_all(
    options: Options,
    on: EntityOptions,
    *,
    lock: Annotated[
        bool, typer.Option(help="Lock each for a moment, to see which receivers hold, and their states.")
    ] = False,
) -> CommandResult:
    """List the sessions of a queue or subscription that hold messages or a state, with their counts and ages.

    Browses; whether a session is locked can only be known by locking it, which --lock does. Needs Listen.

    \b
    Examples:
      sbpair session list orders
      sbpair session list contoso-weu:orders --lock -o json
    """
    from sbpair.core.transfer.peeked import SessionFacts

    place = on.find(options)
    request = operations.ListSessionsRequest(place.path, lock=lock, timeout_seconds=options.timeout_seconds(30.0))
    found = call_at(options, place, operations.list_sessions, request)
    columns = () if lock else ("session_id", "active", "deferred", "scheduled", "oldest")
    return CommandResult(found, (table_of(SessionFacts, found.sessions, show=columns),), summary=found.closing)


@command(output="core.transfer.peeked:ShownSession")
def show(options: Options, on: EntityOptions, session: SessionArgument) -> CommandResult:
    """Show one session of a queue or subscription with its state, as text, or as hex if it is not text.

    Locks it for a moment. Exit code 3: a receiver holds it, and its state cannot be read. Needs Listen.

    \b
    Examples:
      sbpair session show orders customer-7
      sbpair session show contoso-weu:orders customer-7 -o json
    """
    place = on.find(options)
    request = operations.SessionRequest(place.path, session, timeout_seconds=options.timeout_seconds(30.0))
    found = call_at(options, place, operations.show_session, request)
    locked = found.session.locked is True
    state = found.state_hex if found.state_text is None else found.state_text
    said = "has no state" if state is None else f"has the state {state}"
    said = "is locked by a receiver: its state cannot be read" if locked else said
    return _result(found, f"Session {session} of {place} {said}.", Exit.PARTIAL if locked else Exit.OK)


@command(output="core.transfer.peeked:ShownSession", asks=True, dry_run=_DRY_RUN)
def set_state(
    options: Options,
    on: EntityOptions,
    session: SessionArgument,
    state: Annotated[str | None, typer.Argument(metavar="STATE", help="The new state, a text.")] = None,
    *,
    from_file: Annotated[Path | None, typer.Option(help="Take the state from here, byte by byte; - for stdin.")] = None,
) -> CommandResult:
    """Set the state of a session; its messages stay. The session is locked meanwhile. Needs Listen.

    \b
    Examples:
      sbpair session set-state orders customer-7 '{"step": 3}'
      sbpair session set-state orders customer-7 --from-file state.bin --yes
    """
    if (state is None) is (from_file is None):
        raise UsageError(f"Give the STATE, or --from-file. {_STATE}")
    if state is not None:
        return _change(options, on, session, state.encode())
    from sbpair.cli.failover.send import open_input

    with unchanged(_STATE), open_input(None if str(from_file) == "-" else from_file) as opened:
        wanted = opened.read()
    return _change(options, on, session, wanted)


@command(output="core.transfer.peeked:ShownSession", asks=True, dry_run=_DRY_RUN)
def clear(options: Options, on: EntityOptions, session: SessionArgument) -> CommandResult:
    """Clear the state of a session; its messages stay. The session is locked meanwhile. Needs Listen.

    \b
    Examples:
      sbpair session clear orders customer-7
      sbpair session clear orders customer-7 --dry-run
    """
    return _change(options, on, session, None)


def _change(options: Options, on: EntityOptions, session: str, state: bytes | None) -> CommandResult:
    place = on.to_write(options)
    request = operations.SessionRequest(place.path, session, state, dry_run=True)
    with unchanged("Its state is as it was."):
        found = call_at(options, place, operations.set_session_state, request)
    doing = f"{'Clear' if state is None else 'Set'} the state of session {session} of {place}"
    if found.changed and not options.dry_run:
        go_ahead(options, doing, state=_STATE)
        found = call_at(options, place, operations.set_session_state, replace(request, dry_run=False))
    what = "would be" if options.dry_run else "was"
    so_already = "is empty already" if state is None else "is that already"
    said = f"{what} {'cleared' if state is None else 'set'}" if found.changed else so_already
    code = Exit.FINDINGS if options.dry_run and found.changed else Exit.OK
    return _result(found, f"The state of session {session} of {place} {said}.", code)


def _result(found: "ShownSession", summary: str, code: Exit) -> CommandResult:
    from sbpair.core.transfer.peeked import SessionFacts

    table = table_of(SessionFacts, (found.session,))
    return CommandResult(found, (table,), summary=summary, exit=code, closing=True)
