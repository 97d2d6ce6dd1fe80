"""`sbpair discover`: find backlog queues of any pair, and write the configuration for them."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair import operations
from sbpair.cli import suggestions
from sbpair.cli.asking import LOCAL_PAIR
from sbpair.cli.context import load_settings, run_async, run_until
from sbpair.cli.inspection.saved import configured_pairs
from sbpair.cli.options import Options, command
from sbpair.cli.transfer.entity_ref import NamespaceAuthOption
from sbpair.core.access import Cloud
from sbpair.core.errors import UsageError
from sbpair.core.redact import quoted
from sbpair.render.console import write_file
from sbpair.render.result import CommandResult, concluded, table_of

if TYPE_CHECKING:
    from sbpair.core.inspection.discovery import Discovery

SUBSCRIPTION_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


@command(output="core.inspection.discovery:Discovery")
def discover(
    options: Options,
    namespaces: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAMESPACE",
            help="Names or hosts of namespaces. Without one: those of the configuration.",
            autocompletion=suggestions.configured_namespaces,
        ),
    ] = None,
    subscription: Annotated[
        str | None, typer.Option(help="Look through every namespace of this Azure subscription.")
    ] = None,
    resource_group: Annotated[
        str | None, typer.Option(help="With --subscription: of this resource group alone.")
    ] = None,
    cloud: Annotated[
        Cloud | None,
        typer.Option(
            help="With --subscription: the Azure cloud it is in.", show_default="of AZURE_AUTHORITY_HOST, else public"
        ),
    ] = None,
    management_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="With --subscription: another resource manager, such as an embedded namespace's."
        ),
    ] = None,
    primary: Annotated[
        list[str] | None,
        typer.Option(help="A primary to look for where a namespace does not list its queues.", metavar="NAME"),
    ] = None,
    auth: NamespaceAuthOption = None,
    pairs_out: Annotated[
        Path | None, typer.Option(help="Write a configuration with the pairs found to this new file.")
    ] = None,
) -> CommandResult:
    """Find out whether namespaces hold backlog queues, of which primaries, and with how many messages.

    Reads only. The last lines are the `pairs:` block for every backlog that no configured pair covers, and the commands
    that go on. Needs Manage, which lists the queues. Without it the queues of the configured primaries, and of those
    named with --primary, are looked for by opening them (Listen). Exit code 6 or 4 when a namespace could not be read.

    \b
    Examples:
      sbpair discover
      sbpair discover contoso-neu --auth azure-cli
      sbpair discover --subscription 00000000-0000-0000-0000-000000000001 --pairs-out sbpair.yaml
      sbpair discover --subscription 00000000-0000-0000-0000-000000000001 --cloud china
    """
    if subscription is None:
        for name, value in (
            ("--resource-group", resource_group),
            ("--cloud", cloud),
            ("--management-url", management_url),
        ):
            if value is not None:
                raise UsageError(f"{name} says where --subscription is; give both.")
    elif not SUBSCRIPTION_ID.fullmatch(subscription):
        raise UsageError(
            f"--subscription: {quoted(subscription)} is not the id of a subscription.",
            hint="An id is written like 00000000-0000-0000-0000-000000000001; `az account list` shows yours.",
        )
    if pairs_out is not None and pairs_out.exists():
        raise UsageError(f"{pairs_out} exists already, and is not overwritten.", hint="Name another file.")
    settings = load_settings(options)
    chosen = [settings.named_namespace(name, auth) for name in namespaces or []]
    if subscription is not None:
        from sbpair.azure.management import list_namespaces
        from sbpair.settings.resolve import resource_manager

        manager = resource_manager(settings, subscription, resource_group, auth=auth, cloud=cloud, url=management_url)
        chosen += run_async(options, lambda stop: run_until(stop, list_namespaces(manager)))
    elif not chosen:
        chosen = list(settings.namespaces())
    if not chosen and subscription is None:
        raise UsageError(
            "No namespace was named, and none is configured.",
            hint="Name one: sbpair discover contoso-neu --auth azure-cli",
        )
    chosen = list({access.host: access for access in reversed(chosen)}.values())[::-1]
    # A search is where one starts, so half a pair must not end it. Those that a file names come first: they may be the
    # embedded namespaces, too.
    pairs = tuple(sorted(configured_pairs(settings)[0], key=lambda pair: pair.name == LOCAL_PAIR))
    # One of the pairs' namespaces may be the primary of a backlog that is found.
    of_pairs = (access for pair in pairs for access in (pair.primary, pair.secondary))
    known = {access.host: settings.keys_of(access) for access in (*of_pairs, *chosen)}
    from sbpair.connect import open_namespace
    from sbpair.runtime.inspection.backlog import DEFAULT_TIMEOUT_SECONDS

    seconds, names = options.timeout_seconds(DEFAULT_TIMEOUT_SECONDS), tuple(settings.pair_names())
    request = operations.DiscoverRequest(tuple(chosen), pairs, tuple(primary or ()), known, names, seconds)
    discovery = run_async(options, lambda stop: operations.discover(open_namespace, request, stop=stop))
    if pairs_out is not None and discovery.pairs:
        write_file(pairs_out, _block({"version": 1, "pairs": discovery.pairs}))
    return _result(discovery, pairs_out)


def _block(document: Any) -> str:
    import yaml

    # What two pairs have in common is written twice: an anchor is no help to who edits the file.
    return str(yaml.safe_dump(json.loads(json.dumps(document)), sort_keys=False, allow_unicode=True))


def _result(discovery: "Discovery", pairs_out: Path | None) -> CommandResult:
    from sbpair.core.backlog import Advice
    from sbpair.core.inspection.discovery import DiscoveryRow, rows, sentences

    notes = list(sentences(discovery))
    if discovery.pairs:
        first = next(iter(discovery.pairs))
        if pairs_out is None:
            notes += ["For sbpair.yaml:", *_block({"pairs": discovery.pairs}).rstrip().splitlines()]
            advice = Advice("Add it, and check the primary's host.", (f"sbpair status {first}",))
        else:
            advice = Advice(f"Written to {pairs_out}; check it.", (f"sbpair --config {pairs_out} status {first}",))
        notes.append(str(advice))
    elif pairs_out is not None:
        notes.append(f"No pair was found that is not configured; {pairs_out} was not written.")
    for one in discovery.transfer:
        if one.pair and one.holds_messages:
            notes.append(str(Advice(f"The backlog of {one.pair} holds messages.", (f"sbpair status {one.pair}",))))
    table = table_of(DiscoveryRow, rows(discovery, datetime.now(UTC).timestamp()))
    return concluded(discovery, table, notes=tuple(notes))
