"""`sbpair config show|check|schema|use`: what is in force and where each value came from."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from sbpair.cli import suggestions
from sbpair.cli.context import load_settings
from sbpair.cli.options import Options, before_the_command, command
from sbpair.core.access import host_name
from sbpair.core.errors import ConfigurationError
from sbpair.core.pairing import Pair
from sbpair.core.redact import scrub
from sbpair.core.words import counted
from sbpair.render.result import CommandResult, table_of
from sbpair.settings import HOW_TO_CONFIGURE, Settings, environment_names, json_schema, remember_default_pair, together

app = typer.Typer(help="Show and check the configuration: the values in force and their sources.", no_args_is_help=True)
app.callback()(before_the_command)


@dataclass(frozen=True, slots=True)
class Setting:
    key: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class ShownSettings:
    files: tuple[str, ...]
    settings: tuple[Setting, ...]
    environment: Mapping[str, str]


@app.command("show")
@command(output="cli.config:ShownSettings")
def show(options: Options) -> CommandResult:
    """Print every setting in force with its source (flag, environment, file and line, default).

    \b
    Examples:
      sbpair config show
      SBPAIR_AUTH=azure-cli sbpair config show -o json
    """
    settings = load_settings(options, to_act=False)
    found = tuple(Setting(key, _shown(one.value), one.source) for key, one in sorted(settings.values.items()))
    files = ", ".join(str(path) for path in settings.files) or "none"
    data = ShownSettings(tuple(map(str, settings.files)), found, environment_names())
    return CommandResult(data, (table_of(Setting, found),), summary=f"Files read: {files}")


@dataclass(frozen=True, slots=True)
class CheckedPair:
    pair: str
    primary: str
    secondary: str
    auth: str


@dataclass(frozen=True, slots=True)
class Checked:
    pairs: tuple[CheckedPair, ...]


@app.command("check")
@command(output="cli.config:Checked")
def check(options: Options) -> CommandResult:
    """Check the configuration strictly, every pair and every secret reference; nothing is contacted.

    \b
    Examples:
      sbpair config check
      sbpair --config ci/sbpair.yaml config check
    """
    try:
        pairs = list(_every_pair(load_settings(options, to_act=False)))
    except ConfigurationError as error:
        # The hint of such errors is this very command.
        again = "Correct it and check again." if error.hint == ConfigurationError.hint else error.hint
        error.hint = again
        raise
    checked = tuple(
        CheckedPair(pair.name, host_name(pair.primary), host_name(pair.secondary), pair.primary.auth.value)
        for pair in pairs
    )
    return CommandResult(
        Checked(checked),
        (table_of(CheckedPair, checked),),
        summary=f"{counted(len(checked), 'pair')}, configuration valid.",
    )


def _every_pair(settings: Settings) -> Iterator[Pair]:
    """The pairs.

    Raises:
        ConfigurationError: none is configured, or one that names every pair that is wrong.
    """
    problems = []
    for name in settings.pair_names():
        try:
            yield settings.pair(name)
        except ConfigurationError as error:
            problems.append(error)
    if problems:
        raise together(problems)
    if not settings.pair_names():
        raise ConfigurationError("No pair is configured.", hint=HOW_TO_CONFIGURE)


@app.command("schema")
@command(output="cli.help:Document")
def schema(options: Options) -> CommandResult:
    """Print the JSON Schema of sbpair.yaml, for editors.

    \b
    Examples:
      sbpair config schema > sbpair.schema.json
      sbpair config schema --outfile .vscode/sbpair.schema.json
    """
    document = json_schema()
    return CommandResult(document, text=json.dumps(document, indent=2) + "\n")


@dataclass(frozen=True, slots=True)
class Used:
    default_pair: str
    file: str


@app.command("use")
@command(output="cli.config:Used")
def use(
    options: Options,
    pair: Annotated[str, typer.Argument(help="Name of a configured pair.", autocompletion=suggestions.pairs)],
) -> CommandResult:
    """Make a pair the one that commands use when none is named.

    \b
    Examples:
      sbpair config use orders
      sbpair config use local
    """
    settings = load_settings(options, to_act=False)
    settings.pair(pair)
    path = remember_default_pair(pair, settings.environ)
    summary = f"{pair} is now the default pair ({path})."
    return CommandResult(Used(pair, str(path)), summary=summary, closing=True)


def _shown(value: Any) -> Any:
    """A value as it may be shown: a key that was put where no secret belongs stays unseen."""
    if isinstance(value, str):
        return scrub(value)
    return list(value) if isinstance(value, tuple) else value
