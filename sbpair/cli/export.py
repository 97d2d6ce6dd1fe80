"""`sbpair export`: files for what an operator installs, filled in for a pair."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair import operations
from sbpair.cli import suggestions
from sbpair.cli.context import call, load_settings
from sbpair.cli.options import Options, command
from sbpair.cli.transfer.entity_ref import NamespaceAuthOption, namespace_option
from sbpair.core.access import AuthMethod
from sbpair.core.errors import UsageError, unwritable
from sbpair.core.names import check_namespace_label, namespace_label
from sbpair.core.outcome import Exit
from sbpair.core.pairing import DEFAULT_BACKLOG_QUEUE_COUNT
from sbpair.core.serialization import column
from sbpair.core.words import counted
from sbpair.render.console import check_writable, write_file
from sbpair.render.export import ExportedPair, ExportKind, written
from sbpair.render.result import CommandResult, table_of
from sbpair.version import __version__

if TYPE_CHECKING:
    from sbpair.settings import Settings

UNCHANGED = "unchanged"
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}")


@dataclass(frozen=True, slots=True)
class ExportedFile:
    path: str = field(metadata=column("File"))
    result: str = field(metadata=column("Result"))
    """`written`, or `to write` in a dry run; `unchanged` where it holds the same text already."""


@dataclass(frozen=True, slots=True)
class ExportedFiles:
    kind: str
    pair: str | None
    """None for kinds that serve every pair, and for a namespace."""
    files: tuple[ExportedFile, ...]


@command(output="cli.export:ExportedFiles", dry_run="Only say which files would be written; exit 5 if any would.")
def export(
    options: Options,
    kind: Annotated[ExportKind, typer.Argument(help="What to write files for.")],
    pair: Annotated[
        str | None,
        typer.Argument(
            metavar="[PAIR]",
            help="Name of a configured pair; alerts, dashboard, dockerfile and emulator take none.",
            autocompletion=suggestions.pairs,
        ),
    ] = None,
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Folder to write to.", show_default="the current one")
    ] = Path(),
    namespace: Annotated[
        str | None,
        namespace_option("Write all entities and rules of this namespace: terraform, bicep, config-json, snapshot."),
    ] = None,
    auth: NamespaceAuthOption = None,
    image: Annotated[
        str, typer.Option(metavar="IMAGE", help="Container image with sbpair as its entry point.")
    ] = f"sbpair:{__version__}",
    overwrite: Annotated[bool, typer.Option(help="Replace files that have another content.")] = False,
) -> CommandResult:
    """Write files for what you install: alert rules, a dashboard, services, jobs, and templates of the backlog queues.

    \b
    alerts          rules for Prometheus
    dashboard       dashboard for Grafana
    systemd         syphon; status and audit by a timer
    kubernetes      Deployment (syphon), CronJob (audit)
    container-apps  Azure job that drains every 15 minutes
    dockerfile      image with sbpair as its entry point
    emulator        image of the embedded namespace, and jobs
    bicep           a pair's backlog queues, or all of a --namespace
    terraform       the same, with import blocks
    config-json     all of a --namespace for emulators
    snapshot        all of a --namespace for `sbpair diff`
    github-action   audit as a step of a workflow
    drill-...       a monthly rehearsal: workflow or CronJob
    gateway-...     the gateway beside an application

    The templates make the queues that `sbpair provision` makes, for tiers Standard and Premium. The output says how
    each file is checked by its own tool. Bicep, `terraform plan` and Grafana's import were not tried.
    Contacts nothing but the --namespace, which it reads (Manage). The files hold names and no secrets; connection
    strings come from the places that each file names.
    A file with different content is not replaced without --overwrite.

    \b
    Examples:
      sbpair export alerts --dir /etc/prometheus/rules
      sbpair export systemd orders --dir units --dry-run
      sbpair export kubernetes orders --image registry.example.com/sbpair:1.0
      sbpair export terraform orders --dir infrastructure
      sbpair export github-action orders --dir .github/actions/sbpair
      sbpair export drill-github-action orders --dir .github/workflows
      sbpair export config-json --namespace contoso-weu
    """
    if not _IMAGE.fullmatch(image):
        raise UsageError("--image is no name of a container image, such as registry.example.com/sbpair:1.0.")
    chosen, left_out = None, tuple[str, ...]()
    if namespace is not None or kind in (ExportKind.CONFIG_JSON, ExportKind.SNAPSHOT):
        made, left_out = _of_namespace(options, kind, pair, namespace, auth)
    else:
        chosen = _by_names(load_settings(options, to_act=False), pair) if kind.of_a_pair else None
        if chosen is None and pair is not None:
            raise UsageError(f"{kind} serves every pair; leave {pair!r} out.")
        made = written(kind, chosen, image=image)
    texts = {folder / name: text for name, text in made.items()}
    changed = [path for path, text in texts.items() if _content(path) != text.encode()]
    if not overwrite and (there := [str(path) for path in changed if path.exists()]):
        names = ", ".join(there)
        raise UsageError(
            f"{names} would be replaced: the content differs. Nothing was written.",
            hint="Name another folder with --dir, or replace with --overwrite.",
        )
    for path in texts:
        if not options.dry_run or path.parent.exists():  # the check makes the folder
            check_writable(path)
    for path in () if options.dry_run else changed:
        write_file(path, texts[path])
    result, would_be = ("to write", "would be ") if options.dry_run else ("written", "")
    done = tuple(ExportedFile(str(path), result if path in changed else UNCHANGED) for path in texts)
    return CommandResult(
        ExportedFiles(kind.value, chosen.name if chosen else None, done),
        (table_of(ExportedFile, done),),
        notes=left_out if options.dry_run else (*left_out, f"Check before you use it: {kind.check}"),
        summary=f"{counted(len(changed), 'file')} {would_be}written.",
        closing=True,
        exit=Exit.FINDINGS if options.dry_run and changed else Exit.OK,
    )


def _of_namespace(
    options: Options, kind: ExportKind, pair: str | None, namespace: str | None, auth: AuthMethod | None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The files of a namespace, and what they do not have."""
    from sbpair.render.namespace_code import FORMATS, written_of

    if kind not in FORMATS:
        raise UsageError(f"{kind} is not of a namespace; --namespace goes with {', '.join(FORMATS)}.")
    if namespace is None or pair is not None:
        raise UsageError(f"{kind} is of one namespace here: name it with --namespace, and no pair.")
    access = load_settings(options).named_namespace(namespace, auth)
    found = call(options, access, operations.read_namespace, operations.ListEntitiesRequest())
    return written_of(kind, found)


def _content(path: Path) -> bytes | None:
    """What the file holds; None where there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unwritable(path, error).with_state("Nothing was written.") from error


def _by_names(settings: "Settings", name: str | None) -> ExportedPair:
    """The pair by its names. A connection string is asked for only where nothing else names a namespace.

    Raises:
        UsageError: it is the pair of the embedded namespaces.
        ConfigurationError: there is no such pair, or nothing names one of its namespaces.
    """
    from sbpair.settings import BETWEEN, LOCAL_PAIR, to_environment

    chosen = settings.choose(name)
    if chosen == LOCAL_PAIR:
        raise UsageError("The pair `local` is the embedded namespaces, for which there is nothing to install.")
    if BETWEEN in chosen:
        raise UsageError(
            f"{chosen} has no name and no settings to write down.", hint="Configure the pair: sbpair help config"
        )

    def label(side: str) -> str:
        named = settings.get(f"pairs.{chosen}.{side}.namespace")
        if named is None:
            access = settings.side(chosen, side)
            named = settings.pair(chosen).primary.label if access is None else access.label  # the former says why not
        return check_namespace_label(namespace_label(named))

    keys = tuple(side for side in ("primary", "secondary") if settings.get(f"pairs.{chosen}.{side}.connection_string"))
    return ExportedPair(
        chosen,
        label("primary"),
        label("secondary"),
        queues=settings.get(f"pairs.{chosen}.backlog_queues") or DEFAULT_BACKLOG_QUEUE_COUNT,
        keys=keys,
        environment=to_environment(settings.values, chosen),
        resource_group=settings.get(f"pairs.{chosen}.secondary.resource_group"),
    )
