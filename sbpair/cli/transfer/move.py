"""`sbpair move`: the messages of any entity, sent to another one of the same or of another namespace."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli import suggestions
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
)
from sbpair.cli.transfer.place import NamespaceOptions, find_place, refuse_unnamed
from sbpair.cli.transfer.recovering import Recovery, command_line, filter_words, perform
from sbpair.cli.transfer.report import check_new_ledger
from sbpair.cli.transfer.resubmit import check_destination, sent_there_before
from sbpair.core.errors import UsageError
from sbpair.core.transfer.recovered import Doing
from sbpair.render.result import CommandResult

if TYPE_CHECKING:
    from sbpair.core.transfer.destinations import DestinationSeen
    from sbpair.core.transfer.verdict import Judge


@command(output="core.transfer.recovered:Recovered")
def move(
    options: Options,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FROM",
            help="A queue, or TOPIC/Subscriptions/NAME; NAMESPACE:ENTITY for one of another namespace.",
            autocompletion=suggestions.entities,
        ),
    ],
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO",
            help="A queue or topic of the same namespace; NAMESPACE:ENTITY for one of another.",
            autocompletion=suggestions.entities,
        ),
    ],
    *,
    on: NamespaceOptions,
    with_dlq: Annotated[bool, typer.Option("--with-dlq", help="Move the dead letters as well.")] = False,
    filters: Filters,
    limit: LimitOption = None,
    rate: RateOption = None,
    concurrency: ConcurrencyOption = 8,
    ledger: LedgerOption = None,
    new_ledger: NewLedgerOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Browse, ask the destination, and say what would be moved.")
    ] = False,
    yes: YesOption = False,
) -> CommandResult:
    """Send the messages of a queue or subscription to another entity, each as its application sent it.

    Moves what is there when it begins, deferred messages last, those of one session id in their order. What the
    destination would refuse or drop stays, with the reason. Scheduled messages stay until their time has come, and
    queues that hand out messages by session are refused. A message is completed after the destination has it: at least
    once; after a crash it may be there twice, with the same MessageId. Needs Listen on FROM and Send on TO.

    \b
    Examples:
      sbpair move orders orders-parked --where "country = 'DE'" --dry-run
      sbpair move contoso-weu:orders contoso-neu:orders --with-dlq --ledger moved.jsonl
    """
    from sbpair.core.transfer.recovery import Resender, wishes
    from sbpair.runtime.transfer.drain import DrainRequest, ToQueue

    check_new_ledger(ledger, new=new_ledger)
    settings = load_settings(options)
    start = find_place(settings, on, source)
    if not dry_run:
        refuse_unnamed(options, start, yes=yes)
    target = find_place(settings, on, to, start)
    check_destination(target)
    if target.same_as(start):
        raise UsageError(
            f"FROM and TO are both {target}. Nothing was moved.", hint="For dead letters: sbpair dlq resubmit"
        )
    wanted, before = wishes(filters.wanted(), ()), sent_there_before(start, target)

    def make_judge(seen: "DestinationSeen", recent: frozenset[str]) -> "Judge":
        return Resender(seen, wanted, same_entity=before, now=lambda: datetime.now(UTC).timestamp(), recent=recent)

    request = DrainRequest(
        queues=(start.path,),
        with_dead_letter=with_dlq,
        deferred=True,
        to=ToQueue(target.path),
        max_messages=limit,
        rate_per_second=rate,
        concurrency=concurrency,
        leave_missing=True,
        patience_seconds=options.timeout_seconds(120.0),
    )
    given = [*on.words(), *(["--with-dlq"] if with_dlq else []), *filter_words(filters)]
    given += ["--ledger", str(ledger)] if ledger else []
    doing = Doing("moved", "message", command_line(["sbpair", "move", source, to, *given]))
    recovery = Recovery(options, start, target, request, make_judge)

    def ask(messages: str) -> None:
        go_ahead(options, f"Move {messages} of {start} to {target}", yes=yes, state="Nothing was moved.")

    return perform(
        "move",
        recovery,
        doing,
        options=options,
        ask=ask,
        dry_run=dry_run,
        yes=yes,
        ledger=ledger,
        new_ledger=new_ledger,
    )
