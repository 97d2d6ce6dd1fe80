"""`sbpair dlq resubmit`: dead letters, sent again as their application sent them."""

from sbpair.cli.asking import go_ahead
from sbpair.cli.context import load_settings
from sbpair.cli.options import Options, command
from sbpair.cli.transfer.entity_ref import (
    EntityArgument,
    NamespaceOptions,
    find_entity_ref,
    refuse_unnamed,
    target_of,
)
from sbpair.cli.transfer.options import AgainToOption, ReasonOption, ResendOptions
from sbpair.cli.transfer.planned import carry_out
from sbpair.cli.transfer.report import check_new_ledger
from sbpair.render.result import CommandResult


@command(output="core.transfer.summary:MoveResult")
def resubmit(
    options: Options,
    entity: EntityArgument,
    *,
    on: NamespaceOptions,
    to: AgainToOption = None,
    reasons: ReasonOption = None,
    chosen: ResendOptions,
) -> CommandResult:
    """Send dead letters again, each exactly as its application sent it, and complete them.

    What the destination would refuse or drop stays where it is, with the reason: too large, no session, no time to
    live, or a MessageId that its duplicate detection is known to remember. Which ids consumers have taken already is
    not to be seen, so a destination that detects duplicates is refused unless --despite-duplicate-detection says that
    such an id may be dropped. What is dead-lettered again meanwhile is left. Within a namespace a message is sent and
    completed in one transaction, so exactly once; into another namespace, or where there are no transactions (Basic
    tier), it is completed after the destination has it, and after a crash may be sent twice, with the same MessageId.
    The dry run says which. Needs Listen and Send.

    \b
    Examples:
      sbpair dlq resubmit orders --dry-run
      sbpair dlq resubmit orders --reason MaxDeliveryCountExceeded --ledger again.jsonl --rate 50
      sbpair dlq resubmit news/Subscriptions/audit --to audit-repair
    """
    from sbpair.operations.resubmit import ResubmitRequest
    from sbpair.operations.resubmit import resubmit as send_again

    settings = load_settings(options)
    source = find_entity_ref(settings, on, entity)
    if not chosen.dry_run:
        refuse_unnamed(options, source, yes=chosen.yes)
    target = target_of(settings, on, source, to)
    check_new_ledger(chosen.ledger, new=chosen.new_ledger)
    one_namespace = source.on_same_namespace(target)
    asked = chosen.request(options, reasons=reasons or (), one_namespace=one_namespace)
    request = ResubmitRequest(source.path, target.path, **asked)

    def ask(messages: str) -> None:
        go_ahead(options, f"Send {messages} of {source} to {target}", yes=chosen.yes, state="Nothing was sent.")

    return carry_out("dlq resubmit", options, send_again, request, (source, target), ask, yes=chosen.yes)
