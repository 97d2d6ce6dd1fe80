"""`sbpair dlq resubmit`: dead letters, sent again as their application sent them."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sbpair import operations
from sbpair.cli.options import Options, OptionSet, command, duration_option
from sbpair.cli.transfer.entity_ref import EntityOptions
from sbpair.cli.transfer.options import RESEND_DRY_RUN, AgainToOption, ReasonOption, ResendOptions
from sbpair.cli.transfer.planned import PlanFiles, carry_out
from sbpair.core.errors import UsageError
from sbpair.render.result import CommandResult


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

    def doing(messages: str) -> str:
        return f"Send {messages} of {source} to {target}"

    between, state = (source, target), "Nothing was sent."
    return carry_out(options, operations.resubmit, request, between, doing, state=state, files=files)
