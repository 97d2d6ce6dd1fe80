"""`sbpair move` and `sbpair copy`: the messages of any entity, sent to another one, here or on another namespace."""

from typing import Annotated

import typer

from sbpair import operations
from sbpair.cli import suggestions
from sbpair.cli.context import load_settings
from sbpair.cli.inspection.plans import operations_log
from sbpair.cli.options import Options, command, duration_option
from sbpair.cli.transfer.entity_ref import EntityRef, NamespaceOptions, entity_to_write, find_entity_ref
from sbpair.cli.transfer.options import RESEND_DRY_RUN, ResendOptions, StatedReasonOption, UntilIdleOption
from sbpair.cli.transfer.planned import PlanFiles, carry_out
from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.render.result import CommandResult

FromArgument = Annotated[
    str,
    typer.Argument(
        metavar="FROM",
        help="A queue, TOPIC/Subscriptions/NAME, or a topic, for what is scheduled in it; NAMESPACE:ENTITY for one of "
        "another namespace.",
        autocompletion=suggestions.entities,
    ),
]
ToArgument = Annotated[
    str,
    typer.Argument(
        metavar="TO",
        help="A queue or topic of the same namespace, or of move a subscription; NAMESPACE:ENTITY for one of another.",
        autocompletion=suggestions.entities,
    ),
]


@command(output="core.transfer.summary:MoveResult", asks=True, dry_run=RESEND_DRY_RUN)
def move(
    options: Options,
    source: FromArgument,
    to: ToArgument,
    *,
    on: NamespaceOptions,
    with_dlq: Annotated[bool, typer.Option(help="Move the dead letters as well.")] = False,
    delete_empty: Annotated[
        bool, typer.Option(help="Delete FROM once it is proven empty: a queue in which evacuate holds messages.")
    ] = False,
    until_idle: UntilIdleOption = None,
    stated_reason: StatedReasonOption = None,
    files: PlanFiles,
    chosen: ResendOptions,
) -> CommandResult:
    """Send the messages of a queue or subscription to another entity, each as its application sent it.

    Moves what is there when it begins; with --until-idle also messages that arrive, until none has arrived for this
    time. Messages of one session go in their order, and an entity that requires sessions is emptied session by session,
    states included (with a filter or --limit they stay). Scheduled messages keep their time; those due within a minute
    are left. A topic holds nothing but scheduled messages. Deferred messages go last and are active then. What the
    destination would refuse or drop stays, with the reason.

    Within a namespace a message is sent and completed, or cancelled, in one transaction: exactly once. Into another
    namespace, and where there is no transaction (Basic tier; a partitioned TO, for messages without session id and
    partition key), that follows once the destination has it: at least once; after a crash it may be there twice, with
    the same MessageId, and --ledger remembers what was sent. Dry run and result say which it is. Needs Listen on FROM
    and Send on TO; Send on FROM for scheduled messages, Listen on TO for session states.

    To TOPIC/Subscriptions/NAME goes what the rules of the topic give to that subscription alone, unchanged: messages
    that evacuate holds for it. What another subscription would get as well stays, with its name and rule; its consumers
    can receive such messages from FROM itself. The rules are read before and after (Manage) and compared. Sessions keep
    their order and state. Number and time of arrival are new, and the time to live starts again.

    \b
    Examples:
      sbpair move orders orders-parked --where "country = 'DE'" --dry-run
      sbpair move contoso-weu:orders contoso-neu:orders --with-dlq --ledger moved.jsonl
      sbpair move orders orders-parked --until-idle 1m --for 1h
    """
    start, target = _between(options, source, to, on, "moved")
    idle_seconds = duration_option(until_idle) or 0.0
    if idle_seconds and (files.plan or files.plan_out):
        raise UsageError("A plan is for messages that are there; --until-idle waits for others.")
    request = operations.MoveRequest(
        start.path,
        target.path,
        **chosen.request(options, one_namespace=start.on_same_namespace(target)),
        with_dead_letter=with_dlq,
        delete_empty=delete_empty,
        log=operations_log(),
        idle_seconds=idle_seconds,
    )

    def doing(messages: str) -> str:
        question = f"Move {messages} of {start} to {target}"
        if delete_empty:
            question += ", and delete that once it is empty"
        if idle_seconds:
            question += f", and what comes until nothing has come for {format_duration(idle_seconds)}"
        return question

    between, state = (start, target), "Nothing was moved."
    return carry_out(options, operations.move, request, between, doing, state=state, files=files)


@command(output="core.transfer.summary:MoveResult", asks=True, dry_run=RESEND_DRY_RUN)
def copy(
    options: Options,
    source: FromArgument,
    to: ToArgument,
    *,
    on: NamespaceOptions,
    dlq: Annotated[bool, typer.Option(help="Copy the dead letters instead.")] = False,
    with_dlq: Annotated[bool, typer.Option(help="Copy the dead letters as well.")] = False,
    stated_reason: StatedReasonOption = None,
    chosen: ResendOptions,
) -> CommandResult:
    """Send copies of the messages of a queue or subscription to another entity; FROM is browsed and keeps all of them.

    Copies active, deferred and scheduled messages, those of one session in their order, locked ones too.
    Scheduled ones keep their time, deferred ones become active, and the states of sessions are not copied. A copy has
    the MessageId of its message. Without --ledger a second run copies everything again. Needs Listen on FROM and Send
    on TO.

    \b
    Examples:
      sbpair copy orders orders-test --limit 100 --dry-run
      sbpair copy contoso-weu:orders contoso-test:orders --dlq --ledger copied.jsonl
    """
    if dlq and with_dlq:
        raise UsageError("Give --dlq or --with-dlq, not both. Nothing was copied.")
    start, target = _between(options, source, to, on, "copied", to_itself=dlq)
    request = operations.CopyRequest(
        start.path,
        target.path,
        **chosen.request(options, one_namespace=start.on_same_namespace(target)),
        dead_letter=dlq,
        with_dead_letter=with_dlq,
    )

    def doing(messages: str) -> str:
        return f"Copy {messages} of {start} to {target}"

    return carry_out(options, operations.copy, request, (start, target), doing, state="Nothing was copied.")


def _between(
    options: Options,
    source: str,
    to: str,
    on: NamespaceOptions,
    verb: str,
    *,
    to_itself: bool = False,
) -> tuple[EntityRef, EntityRef]:
    """Where messages come from and where they go.

    Raises:
        UsageError: both are one entity, and that is not allowed; or nobody named the namespace.
    """
    settings = load_settings(options)
    start = entity_to_write(options, settings, on, source)
    target = find_entity_ref(settings, on, to, start)
    if target.same_as(start) and not to_itself:
        raise UsageError(
            f"FROM and TO are both {target}. Nothing was {verb}.", hint="For dead letters: sbpair dlq resubmit"
        )
    return start, target
