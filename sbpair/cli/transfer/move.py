"""`sbpair move` and `sbpair copy`: the messages of any entity, sent to another one, here or on another namespace. And
what sends messages again: `sbpair dlq resubmit` and `sbpair restore`.
"""

import logging
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sbpair import operations
from sbpair.cli import suggestions
from sbpair.cli.asking import go_ahead, named_in, pair_to_write, side_named
from sbpair.cli.context import load_settings
from sbpair.cli.inspection.plans import operations_log
from sbpair.cli.options import Options, OptionSet, command, duration_option
from sbpair.cli.transfer.entity_ref import (
    EntityOptions,
    EntityRef,
    NamespaceAuthOption,
    NamespaceOptions,
    entity_to_write,
    find_entity_ref,
    namespace_option,
)
from sbpair.cli.transfer.options import (
    RESEND_DRY_RUN,
    AgainToOption,
    AlthoughInTheQueuesOption,
    Filters,
    OnlyEntitiesOption,
    ReasonOption,
    ResendOptions,
    SendingOptions,
    StatedReasonOption,
    UntilIdleOption,
    only_entities_of,
)
from sbpair.cli.transfer.planned import PlanFiles, PlannedRun, carry_out
from sbpair.core.access import AuthMethod, NamespaceAccess
from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.core.names import check_entity_path
from sbpair.core.pairing import Pair, Side
from sbpair.core.transfer.report import OutcomeRow
from sbpair.core.words import counted
from sbpair.render.result import CommandResult, concluded, table_of
from sbpair.settings import Settings

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
    start, target = _between(options, source, to, on)
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
    question = f"of {start} to {target}"
    if delete_empty:
        question += ", and delete that once it is empty"
    if idle_seconds:
        question += f", and what comes until nothing has come for {format_duration(idle_seconds)}"
    return carry_out(options, operations.move, request, start, target, ("Move", question), files=files)


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
    start, target = _between(options, source, to, on)
    request = operations.CopyRequest(
        start.path,
        target.path,
        **chosen.request(options, one_namespace=start.on_same_namespace(target)),
        dead_letter=dlq,
        with_dead_letter=with_dlq,
    )
    return carry_out(options, operations.copy, request, start, target, ("Copy", f"of {start} to {target}"))


def _between(options: Options, source: str, to: str, on: NamespaceOptions) -> tuple[EntityRef, EntityRef]:
    """Where messages come from and where they go. Raises UsageError: nobody named the namespace."""
    settings = load_settings(options)
    start = entity_to_write(options, settings, on, source)
    return start, find_entity_ref(settings, on, to, start)


# `sbpair dlq resubmit`: dead letters, sent again as their application sent them.


@dataclass(frozen=True, slots=True)
class RepairOptions(OptionSet):
    """What is changed in every message that is sent."""

    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Set this application property, or with sys. (sys.SessionId, sys.Label, sys.TimeToLive) a property of "
            "the message, in each of them; repeatable.",
        ),
    ] = None
    unset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Remove this property from each of them; repeatable.")
    ] = None
    archive: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --set or --unset: write the originals to a file in this folder first."),
    ] = None
    no_archive: Annotated[bool, typer.Option(help="Keep no originals.")] = False

    def repair(self, *, dry_run: bool) -> "operations.Repair | None":
        """What the options say; None if nothing is changed.

        Raises:
            UsageError: no NAME=VALUE, a property that cannot be changed, or nobody said whether to keep the originals.
        """
        if not (self.set_ or self.unset):
            if self.archive is not None or self.no_archive:
                raise UsageError("--archive and --no-archive are about the originals of --set or --unset. Give these.")
            return None
        if not dry_run and (self.archive is None) != self.no_archive:
            ways = "--archive DIR, which keeps the originals in a file, or --no-archive"
            raise UsageError(f"Give {ways}{'; not both' if self.no_archive else ''}. Nothing was sent.")
        pairs = [text.partition("=") for text in self.set_ or ()]
        if wrong := next((name for name, equals, _ in pairs if not (name and equals)), None):
            raise UsageError(f"--set is NAME=VALUE, not {wrong!r}.")
        if twice := next((name for name, count in Counter(name for name, _, _ in pairs).items() if count > 1), None):
            raise UsageError(f"{twice} is given twice.")
        return operations.Repair({name: value for name, _, value in pairs}, tuple(self.unset or ()))


GrowOption = Annotated[
    str | None,
    typer.Option(
        metavar="N,...",
        help="Send in steps of these sizes, the last one again and again (or `all`); stop where a message comes back "
        "to the dead letters or nothing is taken from the queue.",
    ),
]
WatchOption = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION", help="With --grow: how long consumers may do nothing before it stops.", show_default="30s"
    ),
]


@command(output="core.transfer.summary:MoveResult", asks=True, dry_run=RESEND_DRY_RUN)
def resubmit(
    options: Options,
    on: EntityOptions,
    *,
    to: AgainToOption = None,
    reasons: ReasonOption = None,
    repairs: RepairOptions,
    grow: GrowOption = None,
    watch: WatchOption = None,
    files: PlanFiles,
    chosen: ResendOptions,
) -> CommandResult:
    """Send dead letters again, each exactly as its application sent it, and complete them.

    What the destination would refuse or drop stays where it is, with the reason: too large, no session, no time to
    live, or a MessageId that its duplicate detection is known to remember. Ids that consumers have already received are
    not visible, so a destination that detects duplicates is refused unless you add --despite-duplicate-detection.
    Messages that are dead-lettered again meanwhile are left. Within a namespace a message is sent and completed in one
    transaction, so exactly once; into another namespace, or where there are no transactions (Basic tier), it is
    completed after the destination has it, and after a crash may be sent twice, with the same MessageId. The dry run
    says which. Needs Listen and Send.

    --set and --unset change all of them; their dry run shows the first differences, and what is not changed keeps its
    bytes. --grow sends a few, waits until consumers have taken them, and then sends more; the same command goes on
    after a stop.

    \b
    Examples:
      sbpair dlq resubmit orders --dry-run
      sbpair dlq resubmit orders --reason MaxDeliveryCountExceeded --ledger again.jsonl --rate 50
      sbpair dlq resubmit news/Subscriptions/audit --to audit-repair
      sbpair dlq resubmit orders --set country=DE --unset test --archive originals/
      sbpair dlq resubmit orders --grow 1,2,5,20,100 --watch 1m
    """
    from sbpair.core.transfer.summary import DEFAULT_WATCH_SECONDS

    source, target = on.and_target(options, to)
    one_namespace = source.on_same_namespace(target)
    asked = chosen.request(options, reasons=reasons or (), one_namespace=one_namespace)
    if watch is not None and grow is None:
        raise UsageError("--watch is the time of a step: it needs --grow.")
    request = operations.ResubmitRequest(
        source.path,
        target.path,
        **asked,
        repair=repairs.repair(dry_run=options.dry_run and files.plan_out is None),
        archive=repairs.archive,
        grow=None if grow is None else operations.Steps.parse(grow),
        watch_seconds=duration_option(watch) or DEFAULT_WATCH_SECONDS,
    )
    doing = "Send", f"of {source} to {target}"
    return carry_out(options, operations.resubmit, request, source, target, doing, files=files)


# `sbpair restore`: messages out of files, back to where they were to go.


@command(
    output="core.transfer.restored:RestoreResult",
    asks=True,
    dry_run="Only show what would be sent where; exit 5 if anything would.",
)
def restore(
    options: Options,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE|DIR...", help="Files that drain, cleanup or `peek -o jsonl` wrote, or folders of them."
        ),
    ],
    pair: Annotated[
        str | None, typer.Option(help="Pair whose primary they go to.", show_default="the only pair")
    ] = None,
    namespace: Annotated[
        str | None, namespace_option("Send to this namespace, by name or host, instead of a pair's primary.")
    ] = None,
    auth: NamespaceAuthOption = None,
    *,
    filters: Filters,
    to: Annotated[
        str | None, typer.Option(help="Send all of them to this queue or topic. Default: where each was to go.")
    ] = None,
    only_entities: OnlyEntitiesOption = False,
    sending: SendingOptions,
    stated_reason: StatedReasonOption = None,
    although_in_the_queues: AlthoughInTheQueuesOption = False,
    although_gone: Annotated[
        bool, typer.Option(help="Also send messages that were only browsed and have left their queues.")
    ] = False,
) -> CommandResult:
    """Send archived messages to their destinations on the primary, each session in order.

    Reads what `drain`, `cleanup`, `purge` and `dlq purge` write with --archive, and `peek -o jsonl`. With --ledger the
    same command continues after an interruption. A line whose message cannot be sent where it was to go holds up no
    other: it is named, and kept in a file in the folder `unsent` beside its archive, for --to QUEUE. Messages that were
    only browsed are refused: a drain would send those still in their queues again, and may already have sent those that
    left them. Needs Send on the primary, and Listen on the secondary for what was only
    browsed; with --namespace both on that.

    \b
    Examples:
      sbpair restore archive/ --pair orders --dry-run
      sbpair restore archive/ --pair orders --ledger restored.jsonl --rate 200
      sbpair restore purged/ --namespace contoso-weu
    """
    asked = sending.request(options)
    place, named = _target(options, load_settings(options), pair, namespace, auth)
    if only_entities and to is not None:
        raise UsageError(
            "--to names the only destination; --only-entities limits each message's own. Give one of them."
        )
    if only_entities and not isinstance(place, Pair):
        raise UsageError("--only-entities are those that a pair has configured: it goes with --pair. Nothing was sent.")
    request = operations.RestoreRequest(
        tuple(files),
        wanted=filters.wanted(),
        to=None if to is None else check_entity_path(to),
        only=only_entities_of(place) if only_entities and isinstance(place, Pair) else None,
        although_in_the_queues=although_in_the_queues,
        although_gone=although_gone,
        dry_run=options.dry_run,
        **asked,
    )

    def agree(planned: "operations.RestoreResult") -> None:
        doing = f"Restore {counted(planned.messages, 'message')} to {named}"
        if sending.ledger is None:
            doing += "; without --ledger the same command would send them again"
        if not go_ahead(options, doing, state="Nothing was sent."):
            logging.getLogger("sbpair").info(f"{doing}.")

    def shown(done: "operations.RestoreResult") -> CommandResult:
        return concluded(done, table_of(OutcomeRow, done.rows))

    run = PlannedRun(options, operations.restore, place, request, agree, shown, "restore", "Nothing was sent.")
    return run.carry_out()


def _target(
    options: Options, settings: Settings, pair: str | None, namespace: str | None, auth: AuthMethod | None
) -> tuple[Pair | NamespaceAccess, str]:
    """The pair or namespace that the messages go to, and its name for a question."""
    if namespace is None:
        if auth is not None:
            raise UsageError("--auth is for --namespace; a pair says itself how it is reached. Nothing was sent.")
        chosen = pair_to_write(options, settings, pair, "Restore to the primary of", named_by="--pair")
        return chosen, side_named(chosen, Side.PRIMARY)
    if pair is not None:
        raise UsageError("--pair and --namespace name two places. Give one of them. Nothing was sent.")
    access = settings.named_namespace(namespace, auth)
    return access, named_in(settings, access)
