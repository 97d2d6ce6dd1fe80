"""What `move`, `copy` and `dlq resubmit` share: the judge of what may go, what is asked of the run, the question."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sbpair.cli.asking import go_ahead
from sbpair.cli.options import Options, duration_option
from sbpair.cli.transfer.entity_ref import EntityRef, NamespaceOptions, find_entity_ref
from sbpair.cli.transfer.options import Patience, budget_of
from sbpair.cli.transfer.recovering import Recovery, command_line, perform
from sbpair.cli.transfer.report import check_new_ledger
from sbpair.core.durations import format_duration
from sbpair.core.errors import UsageError
from sbpair.core.names import check_entity_path, is_destination, subscription_of
from sbpair.core.retry import PATIENCE_SECONDS
from sbpair.core.transfer.summary import Doing
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sbpair.cli.transfer.options import ResendOptions
    from sbpair.core.transfer.destinations import DestinationSeen
    from sbpair.core.transfer.resend import Resender, Selection
    from sbpair.runtime.transfer.drain import TransferRequest
    from sbpair.settings import Settings


@dataclass(frozen=True, slots=True)
class Sending:
    """One of the commands: what it is called, what it says, and which messages of the entity it takes."""

    command: str
    verb: str
    """`moved`, `copied` or `sent`."""
    question: str
    """`Move` or another verb, for the question."""
    again: "Sequence[str]"
    """Words of the command line that goes on, before the options of all of them."""
    dead_letter: bool = False
    with_dead_letter: bool = False
    keep: bool = False
    reasons: "Sequence[str]" = ()
    until_idle: str | None = None
    """How long nothing may have come before the run ends; None: it takes what is there, and nothing that comes."""


def resend(
    options: Options, source: EntityRef, target: EntityRef, sending: Sending, chosen: "ResendOptions"
) -> CommandResult:
    """Plan, show, ask and carry out.

    Raises:
        UsageError: the target is nothing that can be sent to, or the ledger is in the way.
    """
    from sbpair.core.transfer.resend import Selection

    check_new_ledger(chosen.ledger, new=chosen.new_ledger)
    check_destination(target)
    wanted, before = Selection(chosen.filters.wanted(), sending.reasons), sent_there_before(source, target)

    patience, idle_seconds = Patience.of(options, chosen.give_up_after), duration_option(sending.until_idle) or 0.0
    request = replace(
        sending_request(
            options,
            source.path,
            target.path,
            dead_letter=sending.dead_letter,
            deferred=not sending.dead_letter,
            scheduled=not sending.dead_letter,
        ),
        with_dead_letter=sending.with_dead_letter,
        max_messages=chosen.limit,
        for_seconds=duration_option(chosen.for_),
        idle_seconds=idle_seconds,
        patience_seconds=patience.seconds,
        unreached_seconds=patience.unreached_seconds,
        rate_per_second=chosen.rate,
        budget_per_second=budget_of(chosen.reserve, one_namespace=source.access.host == target.access.host),
        concurrency=chosen.concurrency,
    )
    recovery = Recovery(
        options,
        source,
        target,
        request,
        resender(wanted, same_entity=before, keep=sending.keep),
        keep=sending.keep,
        session_states=not chosen.some_only,
        despite_duplicate_detection=chosen.despite_duplicate_detection,
    )
    noun = "dead letter" if sending.dead_letter else "message"
    doing = Doing(sending.verb, noun, command_line([*sending.again, *chosen.words()]), keep=sending.keep)

    def ask(messages: str) -> None:
        question = f"{sending.question} {messages} of {source} to {target}"
        if idle_seconds:
            question += f", and what comes until nothing has come for {format_duration(idle_seconds)}"
        go_ahead(options, question, yes=chosen.yes, state=f"Nothing was {sending.verb}.")

    return perform(
        sending.command,
        recovery,
        doing,
        options=options,
        ask=ask,
        dry_run=chosen.dry_run,
        yes=chosen.yes,
        ledger=chosen.ledger,
        new_ledger=chosen.new_ledger,
    )


def sending_request(
    options: Options, source: str, target: str, *, dead_letter: bool, deferred: bool, scheduled: bool
) -> "TransferRequest":
    """What is asked of a run that sends messages of one queue or subscription to one queue or topic."""
    from sbpair.runtime.transfer.drain import ToQueue, TransferRequest

    return TransferRequest(
        queues=(source,),
        dead_letter=dead_letter,
        deferred=deferred,
        scheduled=scheduled,
        to=ToQueue(target),
        leave_missing=True,
        patience_seconds=options.timeout_seconds(PATIENCE_SECONDS),
    )


def resender(
    wanted: "Selection", *, same_entity: bool, keep: bool = False
) -> "Callable[[DestinationSeen, frozenset[str]], Resender]":
    """Makes the judge of such a run, at the time of this machine, once the destination is known."""
    from sbpair.core.transfer.resend import Resender

    def made(seen: "DestinationSeen", recent: frozenset[str]) -> Resender:
        def now() -> float:
            return datetime.now(UTC).timestamp()

        return Resender(seen, wanted, same_entity=same_entity, now=now, recent=recent, keep=keep)

    return made


def to_or_itself(settings: "Settings", on: NamespaceOptions, source: EntityRef, to: str | None) -> EntityRef:
    """Where messages of the entity go again: where `to` says, otherwise to itself.

    Raises:
        UsageError: a subscription, to which nothing can be sent alone.
    """
    if to is not None:
        return find_entity_ref(settings, on, to, source)
    if source.is_subscription:
        topic, _ = subscription_of(source.path) or ("", "")
        raise UsageError(
            f"{source.path} is a subscription: nothing can be sent to it alone. Nothing was moved.",
            hint=f"Name a queue with --to, or --to {topic} if every subscription of it may get a copy.",
        )
    return source


def check_destination(target: EntityRef) -> None:
    """A queue or a topic is the only thing that can be sent to.

    Raises:
        UsageError: it is something else.
    """
    if not is_destination(check_entity_path(target.path)):
        raise UsageError(f"{target.path!r} is no queue or topic: nothing can be sent to it. Nothing was moved.")


def sent_there_before(source: EntityRef, target: EntityRef) -> bool:
    """Whether the messages of an entity were sent to the target once: to the queue itself, or the subscription's topic.
    Duplicate detection may know their ids."""
    found = subscription_of(source.path)
    return target.same_as(source if found is None else replace(source, path=found[0]))
