"""`sbpair config show|check|schema|use`: what is in force and where each value came from."""

import json
from typing import Annotated, Any

import typer

from sbpair.cli import candidates
from sbpair.cli.context import load_settings
from sbpair.cli.options import Options, before_the_command, command
from sbpair.core.errors import ConfigurationError
from sbpair.core.outcome import Exit
from sbpair.core.wording import scrub
from sbpair.render.console import write_atomically
from sbpair.render.result import Column, CommandResult, Table
from sbpair.settings import HOW_TO_CONFIGURE, environment_names, json_schema, remember_default_pair

app = typer.Typer(
    help="Show and check the configuration: what is in force, and where each value came from.", no_args_is_help=True
)
app.callback()(before_the_command)


@app.command("show")
@command
def show(options: Options) -> CommandResult:
    """Print every setting in force with its source (flag, environment, file and line, default).

    \b
    Examples:
      sbpair config show
      SBPAIR_AUTH=azure-cli sbpair config show -o json
    """
    settings = load_settings(options)
    rows = [
        {"key": key, "value": _shown(found.value), "source": found.source}
        for key, found in sorted(settings.values.items())
    ]
    columns = (Column("key", "Key"), Column("value", "Value"), Column("source", "Source"))
    files = ", ".join(str(path) for path in settings.files) or "none"
    data = {"files": [str(path) for path in settings.files], "settings": rows, "environment": environment_names()}
    return CommandResult("config show", data, (Table("", columns, rows),), summary=f"Files read: {files}")


@app.command("check")
@command
def check(options: Options) -> CommandResult:
    """Check the configuration strictly, every pair and every secret reference; nothing is contacted.

    \b
    Examples:
      sbpair config check
      sbpair --config ci/sbpair.yaml config check
    """
    settings = load_settings(options)
    names = settings.pair_names()
    if not names:
        raise ConfigurationError("No pair is configured.", hint=HOW_TO_CONFIGURE)
    rows = []
    for name in names:
        pair = settings.pair(name)
        hosts = {"primary": pair.primary.host, "secondary": pair.secondary.host}
        rows.append({"pair": name, **hosts, "auth": pair.primary.auth.value})
    columns = tuple(Column(key, key.capitalize()) for key in ("pair", "primary", "secondary", "auth"))
    return CommandResult(
        "config check", {"pairs": rows}, (Table("", columns, rows),), summary=f"{len(rows)} pair(s), no complaint."
    )


@app.command("schema")
@command
def schema(options: Options) -> CommandResult:
    """Print the JSON Schema of sbpair.yaml, for editors.

    \b
    Examples:
      sbpair config schema > sbpair.schema.json
      sbpair config schema --outfile .vscode/sbpair.schema.json
    """
    document = json_schema()
    return CommandResult("config schema", document, text=json.dumps(document, indent=2) + "\n")


@app.command("use")
@command
def use(
    options: Options,
    pair: Annotated[str, typer.Argument(help="Name of a configured pair.", autocompletion=candidates.pairs)],
) -> CommandResult:
    """Make a pair the one that commands use when none is named.

    \b
    Examples:
      sbpair config use orders
      sbpair config use local
    """
    settings = load_settings(options)
    settings.pair(pair)
    path = remember_default_pair(pair, settings.environ, write_atomically)
    return CommandResult(
        "config use", {"default_pair": pair, "file": str(path)}, summary=f"{pair} is now the default pair ({path}).",
        exit=Exit.OK,
    )  # fmt: skip


def _shown(value: Any) -> Any:
    """A value as it may be shown: a key that was put where no secret belongs stays unseen."""
    if isinstance(value, str):
        return scrub(value)
    return list(value) if isinstance(value, tuple) else value
