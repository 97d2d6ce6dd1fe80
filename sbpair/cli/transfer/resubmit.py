"""`sbpair dlq resubmit`: dead letters, sent again as their application sent them."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.asking import YesOption, go_ahead
from sbpair.cli.context import load_settings
from sbpair.cli.options import Options, command
from sbpair.cli.transfer.options import (
    ConcurrencyOption,
    Filters,
    LedgerOption,
    LimitOption,
    NewLedgerOption,
    RateOption,
    ReasonOption,
)
from sbpair.cli.transfer.place import EntityArgument, NamespaceOptions, find_place, refuse_unnamed
from sbpair.cli.transfer.recovering import Recovery, command_line, filter_words, perform
from sbpair.cli.transfer.report import check_new_ledger
from sbpair.core.errors import UsageError
from sbpair.core.names import check_entity_path, is_destination, subscription_of
from sbpair.core.transfer.recovered import Doing
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    from sbpair.cli.transfer.place import Place
    from sbpair.core.transfer.destinations import DestinationSeen
    from sbpair.core.transfer.verdict import Judge


@command(output="core.transfer.recovered:Recovered")
def resubmit(
    options: Options,
    entity: EntityArgument,
    *,
    on: NamespaceOptions,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="ENTITY",
            help="Queue or topic to send to, of this namespace or NAMESPACE:ENTITY. Default: the queue itself.",
            show_default=False,
        ),
    ] = None,
    reasons: ReasonOption = None,
    filters: Filters,
    limit: LimitOption = None,
    rate: RateOption = None,
    concurrency: ConcurrencyOption = 8,
    ledger: LedgerOption = None,
    new_ledger: NewLedgerOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Browse, ask the destination, and say what would be sent.")
    ] = False,
    yes: YesOption = False,
) -> CommandResult:
    """Send dead letters again, each exactly as its application sent it, and complete them.

    What the destination would refuse or drop stays where it is, with the reason: too large, no session, no time to
    live, or a MessageId that its duplicate detection still knows. What is dead-lettered again meanwhile is left. A
    message is completed after the destination has it; after a crash it may be sent twice, with the same MessageId.
    Needs Listen and Send.

    \b
    Examples:
      sbpair dlq resubmit orders --dry-run
      sbpair dlq resubmit orders --reason MaxDeliveryCountExceeded --ledger again.jsonl --rate 50
      sbpair dlq resubmit news/Subscriptions/audit --to audit-repair
    """
    from sbpair.core.transfer.recovery import Resender, wishes
    from sbpair.runtime.transfer.drain import DrainRequest, ToQueue

    check_new_ledger(ledger, new=new_ledger)
    settings = load_settings(options)
    source = find_place(settings, on, entity)
    if not dry_run:
        refuse_unnamed(options, source, yes=yes)
    if to is None and source.is_subscription:
        topic, _ = subscription_of(source.path) or ("", "")
        raise UsageError(
            f"{source.path} is a subscription: nothing can be sent to it alone. Nothing was moved.",
            hint=f"Name a queue with --to, or --to {topic} if every subscription of it may get a copy.",
        )
    target = source if to is None else find_place(settings, on, to, source)
    check_destination(target)
    wanted = wishes(filters.wanted(), reasons or ())
    same = sent_there_before(source, target)

    def make_judge(seen: "DestinationSeen", recent: frozenset[str]) -> "Judge":
        return Resender(seen, wanted, same_entity=same, now=lambda: datetime.now(UTC).timestamp(), recent=recent)

    request = DrainRequest(
        queues=(source.path,),
        dead_letter=True,
        to=ToQueue(target.path),
        max_messages=limit,
        rate_per_second=rate,
        concurrency=concurrency,
        leave_missing=True,
        patience_seconds=options.timeout_seconds(120.0),
    )
    given = [*(["--to", to] if to else []), *on.words(), *filter_words(filters, reasons or ())]
    given += ["--ledger", str(ledger)] if ledger else []
    doing = Doing("sent", "dead letter", command_line(["sbpair", "dlq", "resubmit", entity, *given]))
    recovery = Recovery(options, source, target, request, make_judge)

    def ask(messages: str) -> None:
        go_ahead(options, f"Send {messages} of {source} to {target}", yes=yes, state="Nothing was sent.")

    return perform(
        "dlq resubmit",
        recovery,
        doing,
        options=options,
        ask=ask,
        dry_run=dry_run,
        yes=yes,
        ledger=ledger,
        new_ledger=new_ledger,
    )


def check_destination(target: "Place") -> None:
    """A queue or a topic is the only thing that can be sent to.

    Raises:
        UsageError: it is something else.
    """
    if not is_destination(check_entity_path(target.path)):
        raise UsageError(f"{target.path!r} is no queue or topic: nothing can be sent to it. Nothing was moved.")


def sent_there_before(source: "Place", target: "Place") -> bool:
    """Whether the messages of an entity were sent to the target once: to the queue itself, or the subscription's topic.
    Duplicate detection may know their ids."""
    found = subscription_of(source.path)
    return target.same_as(source if found is None else replace(source, path=found[0]))
