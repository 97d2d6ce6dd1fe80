"""`sbpair restore`: messages out of files, back to where they were to go."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair import operations
from sbpair.cli.asking import go_ahead, named_in, pair_to_write, side_named
from sbpair.cli.context import load_settings
from sbpair.cli.options import Options, command
from sbpair.cli.transfer import options as shared
from sbpair.cli.transfer.entity_ref import NamespaceAuthOption, namespace_option
from sbpair.cli.transfer.planned import PlannedRun
from sbpair.core.access import AuthMethod, NamespaceAccess
from sbpair.core.errors import UsageError
from sbpair.core.names import check_entity_path
from sbpair.core.pairing import Pair, Side
from sbpair.core.transfer.report import OutcomeRow
from sbpair.core.words import counted
from sbpair.render.result import CommandResult, table_of

if TYPE_CHECKING:
    from sbpair.settings import Settings


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
    filters: shared.Filters,
    to: Annotated[
        str | None, typer.Option(help="Send all of them to this queue or topic. Default: where each was to go.")
    ] = None,
    only_entities: shared.OnlyEntitiesOption = False,
    sending: shared.SendingOptions,
    stated_reason: shared.StatedReasonOption = None,
    although_in_the_queues: shared.AlthoughInTheQueuesOption = False,
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
        only=shared.only_entities(place) if only_entities and isinstance(place, Pair) else None,
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

    run = PlannedRun(options, operations.restore, place, request, agree, _shown, "restore", "Nothing was sent.")
    return run.carry_out()


def _target(
    options: Options,
    settings: "Settings",
    pair: str | None,
    namespace: str | None,
    auth: AuthMethod | None,
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


def _shown(done: "operations.RestoreResult") -> CommandResult:
    return CommandResult(
        done,
        (table_of(OutcomeRow, done.rows),),
        notes=done.notes,
        summary=done.closing,
        exit=done.exit,
        closing=True,
    )
