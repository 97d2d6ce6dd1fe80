"""`sbpair diff` and `sbpair promotion report`: a namespace compared with another one, or with what it had."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair import operations
from sbpair.cli import suggestions
from sbpair.cli.context import call, load_settings, system_clock
from sbpair.cli.options import Options, command, moment_option
from sbpair.cli.transfer.entity_ref import NamespaceAuthOption, NamespaceOptions, find_namespace
from sbpair.core.access import NamespaceAccess
from sbpair.core.errors import UsageError
from sbpair.core.inspection.contents import Contents, EntityDifference, compare
from sbpair.core.inspection.promotion import Claimed
from sbpair.core.words import counted
from sbpair.render.result import CommandResult, concluded, table_of

if TYPE_CHECKING:
    from sbpair.settings import Settings


@command(output="core.inspection.contents:NamespaceDiff")
def diff(
    options: Options,
    a: Annotated[
        str,
        typer.Argument(metavar="A", help="A namespace, or a file.", autocompletion=suggestions.configured_namespaces),
    ],
    b: Annotated[
        str,
        typer.Argument(metavar="B", help="What it is compared with.", autocompletion=suggestions.configured_namespaces),
    ],
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ENTITY[:WHAT]", help="Ignore what differs in these, or only the setting or rule; repeatable."
        ),
    ] = None,
    auth: NamespaceAuthOption = None,
) -> CommandResult:
    """Compare entities, settings, rules and rights of access rules; messages are not compared.

    A file is a snapshot (`sbpair export snapshot`), or a seed of `sbpair emulator --seed` with one
    namespace. Reads only; needs Manage on a namespace. Exit code: 0 the same, 5 different.

    \b
    Examples:
      sbpair diff contoso-weu contoso-neu
      sbpair diff Config.json contoso-weu --ignore 'temp-*' --ignore '*:max size in megabytes'
      sbpair diff monday.json sbpair-contoso-weu.json -o markdown
    """
    settings = load_settings(options)
    first, second = (_contents(options, settings, one, auth) for one in (a, b))
    found = compare(first, second, ignore or ())
    return concluded(found, table_of(EntityDifference, found.differences))


def _contents(options: Options, settings: "Settings", name: str, auth: NamespaceAuthOption) -> Contents:
    path = Path(name)
    if path.is_file():
        return replace(_of_file(options, path), namespace=str(path))
    if path.suffix in (".json", ".yaml", ".yml"):
        raise UsageError(f"There is no file {name}.")
    return _read(options, settings.named_namespace(name, auth))


def _read(options: Options, access: NamespaceAccess) -> Contents:
    return Contents.of(call(options, access, operations.read_namespace, operations.ListEntitiesRequest()))


def _of_file(options: Options, path: Path) -> Contents:
    """The namespace of a snapshot; or of a seed, as an embedded namespace that starts with it tells."""
    from sbpair.cli.demo import embedded_access
    from sbpair.cli.emulator import plant_all, read_seed
    from sbpair.cli.emulator_start import Doors, configs
    from sbpair.emulator import EmulatorThread

    if (snapshot := read_snapshot(path)) is not None:
        return snapshot
    seed, _ = read_seed(path, ())
    if len(seed) != 1:
        raise UsageError(f"{path} has {counted(len(seed), 'namespace')}; only files with one are compared.")
    # Keys are not compared, and what they come from may not be set here.
    contents = {name: {key: value for key, value in body.items() if key != "keys"} for name, body in seed.items()}
    (name,) = contents
    with EmulatorThread(
        configs([name], Doors("127.0.0.1", 0, microsoft=False, standard=False), contents, {})
    ) as emulator:
        emulator.call(lambda running: plant_all(running, contents))
        found = _read(options, embedded_access(emulator, name))
    return replace(found, taken_at=None)


def read_snapshot(path: Path) -> Contents | None:
    """What `export snapshot` wrote; None: another file."""
    from sbpair.settings import DocumentError, parse_json, read_text

    try:
        text = read_text(path)
        document = parse_json(text) if '"format_version"' in text else None
    except DocumentError as error:
        raise UsageError(f"Cannot read {path}: {error}") from error
    return Contents.from_dict(document) if isinstance(document, dict) and "format_version" in document else None


# A namespace after a promotion.


@command(output="core.inspection.promotion:PromotionReport")
def promotion_report(
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
    return concluded(found, table_of(Claimed, found.claims))
