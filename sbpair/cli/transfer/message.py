"""`sbpair message`, `explain` and `undefer`: single messages, and deferred ones, dealt with where they lie."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair import operations
from sbpair.cli.options import Options, command
from sbpair.cli.transfer.entity_ref import EntityOptions, EntityRef, call_at
from sbpair.cli.transfer.options import RESEND_DRY_RUN, AgainToOption, ResendOptions
from sbpair.cli.transfer.planned import carry_out
from sbpair.cli.transfer.purge import ArchiveOption, NoArchiveOption, check_archive
from sbpair.core.retry import PATIENCE_SECONDS
from sbpair.render.result import CommandResult, Table, columns, table_of

if TYPE_CHECKING:
    from sbpair.core.transfer.peeked import PeekedMessage

NumberArgument = Annotated[
    int, typer.Argument(metavar="NUMBER", min=1, help="Sequence number, as `dlq peek` or `entity peek` shows it.")
]
DlqOption = Annotated[bool, typer.Option(help="A dead letter.")]
_DRY_RUN = "Find the message, and say what would be done."
_STATE = "The message is as it was."


@command(output="core.transfer.peeked:PeekedMessage")
def show(options: Options, on: EntityOptions, number: NumberArgument, *, dlq: DlqOption = False) -> CommandResult:
    """Show one message completely: body, properties, state. Changes nothing. Needs Listen.

    Why it is there: `sbpair explain`.

    \b
    Examples:
      sbpair message show orders 4711
      sbpair message show contoso-weu:orders 12 --dlq -o json
    """
    place = on.find(options)
    found = browse_number(options, place, number, dlq=dlq)
    rows = [{"field": name, "value": value} for name, value in _shown(found)]
    table = Table("message", columns("field", "value"), rows)
    return CommandResult(found, (table,))


def _shown(message: "PeekedMessage") -> "list[tuple[str, Any]]":
    """What a person reads of it, one value a row."""
    from dataclasses import fields

    facts = [(one.name, getattr(message, one.name)) for one in fields(message) if one.name != "payload_base64"]
    properties = [(f"property {name}", value) for name, value in message.application_properties.items()]
    return [
        (name, str(value))
        for name, value in (*(fact for fact in facts if fact[0] != "application_properties"), *properties)
        if value is not None
    ]


def browse_number(options: Options, place: EntityRef, number: int, *, dlq: bool) -> "PeekedMessage":
    """The message with this number.

    Raises:
        UsageError: there is none.
    """
    from sbpair.core.summary import describe
    from sbpair.core.transfer.peeked import peeked
    from sbpair.operations.in_place import find_received

    patience_seconds = options.timeout_seconds(PATIENCE_SECONDS)
    request = operations.EditRequest(place.path, number, dead_letter=dlq, patience_seconds=patience_seconds)

    async def found(ends: Any, request: operations.EditRequest, *, stop: Any) -> "PeekedMessage":
        (received,) = await find_received(ends, request, stop=stop)
        return peeked(received.source, received, describe(received.payload), with_body=True)

    return call_at(options, place, found, request)


@command(output="core.transfer.explained:ExplainedMessage")
def explain(
    options: Options,
    on: EntityOptions,
    number: NumberArgument,
    *,
    dlq: DlqOption = False,
) -> CommandResult:
    """Explain one message: where it came from, why it is there, which messages precede it, and what to do next.

    Also which rule matched it, when it expires, whether it is locked, who can receive it, and others with its
    MessageId. Unknown facts are marked as unknown. Changes nothing. Needs Listen; Manage shows more.

    \b
    Examples:
      sbpair explain orders 4711 --dlq
      sbpair explain contoso-weu:news/Subscriptions/audit 12 -o json
    """
    from sbpair.core.transfer.explained import MessageFact

    place = on.find(options)
    request = operations.ExplainRequest(place.path, number, dlq, options.timeout_seconds(30.0))
    found = call_at(options, place, operations.explain_message, request)
    shown = [one if one.known else replace(one, text=f"not known: {one.text}") for one in found.statements]
    return CommandResult(
        found,
        (table_of(MessageFact, shown),),
        notes=(f"Message {number} of {place}: {found.because}.",),
        summary=f"Next: {found.command}",
        closing=True,
    )


@command(output="core.transfer.summary:MoveResult", asks=True, dry_run=_DRY_RUN)
def dead_letter(
    options: Options,
    on: EntityOptions,
    number: NumberArgument,
    *,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Dead-letter reason.")] = "Operator",
    description: Annotated[str, typer.Option(metavar="TEXT", help="Dead-letter description.", show_default=False)] = "",
) -> CommandResult:
    """Move one active or deferred message to the dead letters of its queue or subscription.

    For a message that keeps its consumers, or its session, from going on. To reach an active message, the ones before
    it are locked for a moment and released. Needs Listen. Back again: `sbpair dlq resubmit`.

    \b
    Examples:
      sbpair message dead-letter orders 4711 --reason Poison
      sbpair message dead-letter contoso-weu:orders 4711 --dry-run
    """
    source = on.to_write(options)
    request = operations.DeadLetterRequest(
        source.path,
        number,
        reason=reason,
        description=description,
        patience_seconds=options.timeout_seconds(PATIENCE_SECONDS),
    )

    doing = f"Dead-letter message {number} of {source}"
    return carry_out(options, operations.dead_letter_message, request, (source, None), lambda _: doing, state=_STATE)


@command(output="core.transfer.summary:MoveResult", asks=True, dry_run=_DRY_RUN)
def complete(
    options: Options,
    on: EntityOptions,
    number: NumberArgument,
    *,
    dlq: DlqOption = False,
    archive: ArchiveOption = None,
    no_archive: NoArchiveOption = False,
) -> CommandResult:
    """Delete one message, archived first: active, deferred, scheduled (it is cancelled) or dead letter.

    Asks for the entity's name. --archive DIR or --no-archive has to be given; `sbpair restore` sends archived messages.
    To reach an active message, the ones before it are locked for a moment and released. Needs Listen, and Send for a
    scheduled one.

    \b
    Examples:
      sbpair message complete orders 4711 --archive purged/
      sbpair message complete orders 12 --dlq --no-archive --yes
    """
    check_archive(archive, no_archive, _STATE)
    source = on.to_write(options)
    browse_number(options, source, number, dlq=dlq)
    request = operations.PurgeRequest(
        source.path,
        archive,
        dead_letter=dlq,
        number=number,
        patience_seconds=options.timeout_seconds(PATIENCE_SECONDS),
    )

    kept = "permanently" if archive is None else f"after writing it to {archive}"
    doing, between = f"Delete message {number} of {source} {kept}", (source, None)
    return carry_out(options, operations.purge, request, between, lambda _: doing, state=_STATE, deletes=True)


@command(output="core.transfer.summary:EditResult", asks=True, dry_run=_DRY_RUN)
def reschedule(
    options: Options,
    on: EntityOptions,
    number: NumberArgument,
    at: Annotated[
        str, typer.Argument(metavar="TIME", help="When it becomes active: 2026-11-22T08:00Z, or 2h for in two hours.")
    ],
) -> CommandResult:
    """Schedule a scheduled message of a queue or topic for another time.

    A new message is scheduled and the old one cancelled, in one transaction; it gets another sequence number. Needs
    Listen and Send.

    \b
    Examples:
      sbpair message reschedule orders 4711 2026-11-22T08:00Z
      sbpair message reschedule orders 4711 15m --yes
    """
    source = on.to_write(options)
    when = _future(at)
    request = operations.RescheduleRequest(
        source.path, number, when, patience_seconds=options.timeout_seconds(PATIENCE_SECONDS)
    )

    doing = f"Schedule message {number} of {source} for {datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M:%S} UTC"
    between = (source, source)
    return carry_out(options, operations.reschedule_message, request, between, lambda _: doing, state=_STATE)


def _future(text: str) -> float:
    from sbpair.core.durations import parse_moment

    now = datetime.now(UTC).timestamp()
    moment = parse_moment(text, now)
    return moment if text[:1].isdigit() and "-" in text else 2 * now - moment  # a duration is that long from now


@command(output="core.transfer.summary:MoveResult", asks=True, dry_run=RESEND_DRY_RUN)
def undefer(options: Options, on: EntityOptions, *, to: AgainToOption = None, chosen: ResendOptions) -> CommandResult:
    """Make deferred messages active again: each is sent to its own queue and completed, in one transaction.

    For messages whose sequence numbers are lost. They go to the end of the queue, in a session behind its other
    messages; nothing else is touched. Needs Listen and Send.

    \b
    Examples:
      sbpair undefer orders --dry-run
      sbpair undefer orders --where "country = 'DE'" --yes
      sbpair undefer news/Subscriptions/audit --to audit-repair
    """
    source, target = on.and_target(options, to)
    asked = chosen.request(options, one_namespace=source.on_same_namespace(target))
    request = operations.UndeferRequest(source.path, target.path, **asked)

    def doing(messages: str) -> str:
        return f"Send {messages} of {source} to {target}"

    return carry_out(options, operations.undefer, request, (source, target), doing, state="Nothing was sent.")
