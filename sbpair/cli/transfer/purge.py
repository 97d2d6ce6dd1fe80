"""`sbpair dlq purge` and `sbpair purge`: messages are deleted, archived first unless told otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sbpair import operations
from sbpair.cli.options import Options, OptionSet, command
from sbpair.cli.transfer.entity_ref import EntityOptions
from sbpair.cli.transfer.options import Filters, LimitOption, ReasonOption
from sbpair.cli.transfer.planned import PlanFiles, carry_out
from sbpair.core.errors import UsageError
from sbpair.core.retry import PATIENCE_SECONDS
from sbpair.render.result import CommandResult

ArchiveOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write the messages to a file in this folder first.")
]
NoArchiveOption = Annotated[bool, typer.Option(help="Delete permanently, without an archive.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeOptions(OptionSet):
    """Which messages are deleted, and whether they are kept in a file."""

    filters: Filters
    limit: LimitOption = None
    archive: ArchiveOption = None
    no_archive: NoArchiveOption = False
    files: PlanFiles


_DRY_RUN = "Browse, and say what would be deleted."


@command(output="core.transfer.summary:MoveResult", asks=True, dry_run=_DRY_RUN)
def purge_dead_letters(
    options: Options,
    on: EntityOptions,
    *,
    reasons: ReasonOption = None,
    chosen: PurgeOptions,
) -> CommandResult:
    """Delete the dead letters of a queue or subscription that are there now, archived first.

    Asks for the entity's name. --archive DIR or --no-archive has to be given. `sbpair restore` sends archived messages
    to the queue, or to the topic of a subscription, which gives every subscription a copy. Needs Listen.

    \b
    Examples:
      sbpair dlq purge orders --archive purged/ --reason TTLExpiredException
      sbpair dlq purge orders --no-archive --until 30d --yes
    """
    return _purge(options, on, chosen, reasons or (), dead_letter=True)


@command(output="core.transfer.summary:MoveResult", asks=True, dry_run=_DRY_RUN)
def purge(
    options: Options,
    on: EntityOptions,
    *,
    chosen: PurgeOptions,
) -> CommandResult:
    """Delete what a queue or subscription holds now, deferred and scheduled messages too, archived first.

    Asks for the entity's name. --archive DIR or --no-archive has to be given. `sbpair restore` sends archived messages
    to the queue, or to the topic of a subscription, which gives every subscription a copy. Scheduled messages are
    cancelled; a topic holds no others. An entity that requires sessions is emptied session by session; their states
    stay, and so do dead letters (`sbpair dlq purge`). Needs Listen, and Send for scheduled messages.

    \b
    Examples:
      sbpair purge orders --archive purged/
      sbpair purge contoso-weu:orders --no-archive --until 30d --dry-run
    """
    return _purge(options, on, chosen)


def check_archive(archive: Path | None, no_archive: bool, state: str) -> None:
    """Raises UsageError unless exactly one of --archive and --no-archive was given."""
    if (archive is None) != no_archive:
        ways = "--archive DIR, which keeps what is deleted in a file, or --no-archive, which deletes it permanently"
        raise UsageError(f"Give {ways}{'; not both' if no_archive else ''}. {state}")


def _purge(
    options: Options,
    on: EntityOptions,
    chosen: PurgeOptions,
    reasons: Sequence[str] = (),
    *,
    dead_letter: bool = False,
) -> CommandResult:
    check_archive(chosen.archive, chosen.no_archive, "Nothing was deleted.")
    source, archive = on.to_write(options), chosen.archive
    request = operations.PurgeRequest(
        source.path,
        archive,
        dead_letter=dead_letter,
        selection=operations.Selection(chosen.filters.wanted(), reasons),
        max_messages=chosen.limit,
        patience_seconds=options.timeout_seconds(PATIENCE_SECONDS),
    )

    def doing(messages: str) -> str:
        kept = "permanently" if archive is None else f"after writing them to {archive}"
        return f"Delete {messages} of {source} {kept}"

    between, state = (source, None), "Nothing was deleted."
    return carry_out(options, operations.purge, request, between, doing, state=state, deletes=True, files=chosen.files)
