"""`sbpair promotion report`: what is lost, there twice or opened again after a promotion."""

from pathlib import Path
from typing import Annotated

import typer

from sbpair import operations
from sbpair.cli.context import call, load_settings, system_clock
from sbpair.cli.inspection.diff import read_snapshot
from sbpair.cli.options import Options, command, moment_option
from sbpair.cli.transfer.entity_ref import NamespaceOptions, find_namespace
from sbpair.core.errors import UsageError
from sbpair.core.inspection.promotion import Claimed
from sbpair.render.result import CommandResult, table_of


@command(output="core.inspection.promotion:PromotionReport")
def report(
    options: Options,
    *,
    on: NamespaceOptions,
    snapshot: Annotated[Path | None, typer.Option(help="The last snapshot (`sbpair export snapshot`).")] = None,
    ledger: Annotated[
        list[Path] | None, typer.Option(help="A ledger of messages from or to the namespace; repeatable.")
    ] = None,
    archive: Annotated[
        list[Path] | None, typer.Option(help="An archive, or what `peek -o jsonl` wrote before; repeatable.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Miss only what came since then, e.g. 2h for two hours ago.")
    ] = None,
    consumers_stopped: Annotated[
        bool, typer.Option(help="No consumer has received since: missing messages are lost, unless they have expired.")
    ] = False,
) -> CommandResult:
    """Compare what a namespace has after a promotion with its last snapshot, with ledgers and archives.

    Forced promotion of Geo-Replication loses what was not replicated, and brings back what was settled in that time; a
    Geo-DR failover does not move messages. Each claim has its evidence. `lost` is said only where nobody can have
    received the message and it has not expired; otherwise it is `unaccounted`. What was there before --since (the time
    of the promotion, less the replication lag) is not missed. Reads only, and browses every entity. Needs Manage and
    Listen. Exit code: 0 nothing found, 5 claims, 3 not everything could be browsed.

    \b
    Examples:
      sbpair promotion report --namespace contoso-weu --snapshot last.json --ledger moved.jsonl
      sbpair promotion report --namespace contoso-weu --archive peeked.jsonl --since 2h --consumers-stopped
    """
    if not (snapshot or ledger or archive):
        raise UsageError("Without a file there is nothing to compare: name a --snapshot, --ledger or --archive.")
    before = None if snapshot is None else read_snapshot(snapshot)
    if snapshot is not None and before is None:
        raise UsageError(f"{snapshot} is no snapshot.", hint="`sbpair export snapshot --namespace NAME` writes one.")
    access, _ = find_namespace(load_settings(options), on)
    begins = None if since is None else moment_option(since, "--since", system_clock().now().timestamp())
    request = operations.PromotionRequest(before, tuple(ledger or ()), tuple(archive or ()), consumers_stopped, begins)
    found = call(options, access, operations.report_promotion, request)
    return CommandResult(
        found,
        (table_of(Claimed, found.claims),),
        notes=found.notes,
        summary=found.summary,
        closing=True,
        exit=found.exit,
    )
