"""`sbpair help TOPIC|COMMAND`, `cheat`, `schema`, `completion`: what scripts and readers at 3 a.m. want to look up."""

import json
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from sbpair.cli.options import COMPLETION_VARIABLE, Options, Output, command
from sbpair.core.errors import UsageError
from sbpair.core.outcome import Exit
from sbpair.core.redact import quoted
from sbpair.core.serialization import output_schema, says
from sbpair.core.words import counted, did_you_mean
from sbpair.render.formats import Envelope
from sbpair.render.result import CommandResult, Table, columns, table_of


class HelpTopic(StrEnum):
    """What can be explained; most are pages beside this file, those without a page are explained here."""

    RECOVERY = "recovery"
    DEAD_LETTERS = "dead-letters"
    ENTITIES = "entities"
    EVACUATION = "evacuation"
    AUTOMATION = "automation"
    DRILLS = "drills"
    APPLICATIONS = "applications"
    GATEWAY = "gateway"
    REPLICATION = "replication"
    LIBRARY = "library"
    SPARK = "spark"
    TESTING = "testing"
    TERMS = "terms"
    CONFIG = "config"
    FILTERS = "filters"
    EXIT_CODES = "exit-codes"
    PERMISSIONS = "permissions"
    ENVIRONMENT = "environment"
    PAIRING = "pairing"
    METRICS = "metrics"
    MEASUREMENTS = "measurements"
    FAILOVER = "failover"
    SECURITY = "security"
    CONTRIBUTING = "contributing"


def _topics(first: HelpTopic, last: HelpTopic) -> tuple[HelpTopic, ...]:
    every = tuple(HelpTopic)
    return every[every.index(first) : every.index(last) + 1]


KINDS = {
    "How to": _topics(HelpTopic.RECOVERY, HelpTopic.TESTING),
    "Reference": _topics(HelpTopic.TERMS, HelpTopic.MEASUREMENTS),
    "Explanation": _topics(HelpTopic.FAILOVER, HelpTopic.CONTRIBUTING),
}
_PAGES = Path(__file__).parent / "pages"


@dataclass(frozen=True, slots=True)
class ExitCode:
    code: int
    name: str
    when: str


@dataclass(frozen=True, slots=True)
class Right:
    command: str
    side: str
    sas_right: str
    entra_role: str


@dataclass(frozen=True, slots=True)
class HelpText:
    text: str


_NOTE = re.compile(r"^<!-- .*? -->\n", re.MULTILINE)
"""Above a block of a page: how its test runs it."""

ByName = Mapping[str, str]
"""Terms, or environment variables, with their meaning."""
Explained = tuple[ExitCode, ...] | tuple[Right, ...] | ByName | HelpText


def _complete(ctx: typer.Context, incomplete: str) -> list[str]:
    from sbpair.cli.app import COMMANDS

    if ctx.params.get("words"):
        return []
    return [name for name in (*HelpTopic, *COMMANDS) if name.startswith(incomplete)]


@command(output="cli.help:Explained")
def help_on(
    options: Options,
    ctx: typer.Context,
    html: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write all pages and the help of all commands as a site with a search."),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC|COMMAND]", help=f"{', '.join(HelpTopic)}, or a command.", autocompletion=_complete
        ),
    ] = None,
) -> CommandResult:
    """Explain a topic or a command.

    Without one, list them. The pages are a site, too: --html.

    \b
    Examples:
      sbpair help terms
      sbpair help drain
      sbpair help exit-codes
      sbpair help --html site
    """
    if html is not None:
        return _site(ctx, html)
    match list(words or ()):
        case []:
            text = _contents()
            return CommandResult(HelpText(text), text=text)
        case [(HelpTopic.TERMS | HelpTopic.ENVIRONMENT | HelpTopic.METRICS) as name]:
            return CommandResult(dict(_meanings(HelpTopic(name))), text=_explained(HelpTopic(name)), prose=True)
        case [HelpTopic.EXIT_CODES]:
            codes = tuple(ExitCode(code, code.label, when) for code, when in _exit_codes())
            return CommandResult(codes, (table_of(ExitCode, codes),), text=_explained(HelpTopic.EXIT_CODES), prose=True)
        case [HelpTopic.PERMISSIONS]:
            rights = tuple(Right(*row) for row in _rows(HelpTopic.PERMISSIONS))
            return CommandResult(rights, (table_of(Right, rights),), text=_explained(HelpTopic.PERMISSIONS), prose=True)
        case [topic] if topic in list(map(str, HelpTopic)):
            page = _NOTE.sub("", _page(topic))
            return CommandResult(HelpText(page), text=page, prose=True, paged=True)
    text = _help_of(ctx, words or ())
    return CommandResult(HelpText(text), text=text, paged=True)


def _page(topic: str) -> str:
    return (_PAGES / f"{topic}.md").read_text(encoding="utf-8")


def _rows(topic: HelpTopic) -> Iterator[list[str]]:
    """Of a page that is a table, with tabs between its cells."""
    for line in (_PAGES / f"{topic}.tsv").read_text(encoding="utf-8").splitlines():
        yield line.split("\t")


def _exit_codes() -> Iterator[tuple[Exit, str]]:
    return ((Exit(int(code)), when) for code, when in _rows(HelpTopic.EXIT_CODES))


def _explained(topic: HelpTopic) -> str:
    """The text of a topic without a page."""
    match topic:
        case HelpTopic.EXIT_CODES:
            return "".join(f"{code:>4d}  {code.label:<12} {when}\n" for code, when in _exit_codes())
        case HelpTopic.PERMISSIONS:
            return "".join(
                f"{command}\n    {side}: {right}{f' ({role})' if role else ''}\n"
                for command, side, right, role in _rows(HelpTopic.PERMISSIONS)
            )
        case _:
            return "".join(f"{name}\n    {meaning}\n" for name, meaning in _meanings(topic).items())


def _meanings(topic: HelpTopic) -> Mapping[str, str]:
    """What the names of a topic mean."""
    if topic is HelpTopic.METRICS:
        from sbpair.core.metrics import series

        return {f"{one.name}{{{', '.join(one.labels)}}}": one.help for one in series().values()}
    if topic is HelpTopic.TERMS:
        return dict(_rows(HelpTopic.TERMS))
    from sbpair.settings import environment_names

    return environment_names()


def _contents() -> str:
    """All commands and pages on one screen."""
    from sbpair.cli.app import GROUPS

    columns = min(79, shutil.get_terminal_size().columns)
    rows = [*((title, tuple(commands)) for title, commands in GROUPS.items()), *KINDS.items()]
    lines = [
        line
        for title, names in rows
        for line in textwrap.wrap(
            " ".join(names), columns, initial_indent=f"{title:<18}", subsequent_indent=" " * 18, break_on_hyphens=False
        )
    ]
    head = "sbpair COMMAND --help explains a command, sbpair help PAGE a page; sbpair cheat has tasks."
    return "\n".join([*textwrap.wrap(head, columns), "", *lines, ""])


def _site(ctx: typer.Context, folder: Path) -> CommandResult:
    """Raises UsageError where the folder cannot be written."""
    from sbpair.cli.app import GROUPS
    from sbpair.render.html import SitePage, write_site

    listed = "".join(
        f"\n## {kind}\n\n" + "".join(f"- `sbpair help {topic}`: {_titled(topic)[0]}\n" for topic in topics)
        for kind, topics in KINDS.items()
    )
    commands = "".join(
        f"\n**{title}:** " + ", ".join(f"`sbpair help {name}`" for name in names) + "\n"
        for title, names in GROUPS.items()
    )
    start = f"# sbpair\n\n**{_WHAT}**\n{listed}\n## Commands\n{commands}"
    pages = [SitePage("sbpair", "Start", start, "sbpair help", "index")]
    for kind, of_kind in KINDS.items():
        pages += [
            SitePage(topic, kind, _NOTE.sub("", _titled(topic)[1]), f"sbpair help {topic}", topic) for topic in of_kind
        ]
    for words in [*_commands()][1:]:
        name, stem = " ".join(words), "-".join(words)
        text = f"# sbpair {name}\n\n```text\n{_help_of(ctx, words)}```\n"
        if name in set(map(str, HelpTopic)):  # `sbpair help` shows the topic of this name
            pages.append(SitePage(name, "Commands", text, f"sbpair {name} --help", f"{stem}-command"))
        else:
            pages.append(SitePage(name, "Commands", text, f"sbpair help {name}", stem))
    try:
        written = write_site(folder, pages)
    except OSError as error:
        raise UsageError(f"The site cannot be written to {quoted(str(folder))}: {error.strerror}.") from error
    text = f"{counted(len(written), 'file')} written. Open {folder / 'index.html'}\n"
    return CommandResult(HelpText(text), text=text)


_WHAT = (
    "Finds messages that Service Bus failover left on a second namespace, returns each to its destination byte for "
    "byte, and keeps pairs of namespaces healthy."
)


def _titled(topic: HelpTopic) -> tuple[str, str]:
    """Title and Markdown of a topic."""
    if (_PAGES / f"{topic}.md").is_file():
        page = _page(topic)
        return page.partition("\n")[0].removeprefix("# "), page
    title = topic.replace("-", " ").capitalize()
    return title, f"# {title}\n\n```text\n{_explained(topic)}```\n"


def _tasks() -> dict[str, str]:
    """Tasks and the commands for them, by subject."""
    text = (_PAGES / "cheat.txt").read_text(encoding="utf-8")
    return {name: body.strip() for name, _, body in (part.partition("\n") for part in text.split("# ")[1:])}


def _complete_subject(incomplete: str) -> list[str]:
    return [name for name in _tasks() if name.startswith(incomplete)]


@command(output="cli.help:HelpText")
def cheat(
    options: Options,
    subject: Annotated[
        str | None,
        typer.Argument(
            help="find, look, drain, dead-letters, move, set-up or failover; all of them by default.",
            autocompletion=_complete_subject,
        ),
    ] = None,
) -> CommandResult:
    """Show the commands for common tasks.

    \b
    Examples:
      sbpair cheat
      sbpair cheat dead-letters
    """
    tasks = _tasks()
    if subject is not None and subject not in tasks:
        hint = did_you_mean(subject, tasks, f"There is: {', '.join(tasks)}.")
        raise UsageError(f"There are no tasks for {quoted(subject)}.", hint=hint)
    shown = {subject: tasks[subject]} if subject is not None else tasks
    text = "\n".join(f"## {name}\n\n{body}\n" for name, body in shown.items())
    return CommandResult(HelpText(text), text=text, prose=True)


def _help_of(ctx: typer.Context, words: Sequence[str]) -> str:
    """What `sbpair WORDS --help` prints."""
    context = ctx.find_root()
    for depth, word in enumerate(words):
        known = getattr(context.command, "commands", {})
        if word not in known:
            raise _unknown(words[: depth + 1], [*([] if depth else HelpTopic), *known])
        context = known[word].make_context(word, [], parent=context, resilient_parsing=True)
    return f"{context.get_help()}\n"


def _unknown(words: Sequence[str], known: Sequence[str]) -> UsageError:
    hint = did_you_mean(words[-1], known, f"There is: {', '.join(known) or 'nothing below that command'}.")
    return UsageError(f"{quoted(' '.join(words))} is neither a topic nor a command.", hint=hint)


# `sbpair schema COMMAND`: what scripts may rely on, as JSON Schema.


def outputs() -> Mapping[str, Output]:
    """What each command declares of its output, in the order of the help. Imports every command."""
    declared = {" ".join(words): _declared(found) for words, found in _commands().items()}
    return {name: output for name, output in declared.items() if output is not None}


def output_of(words: Sequence[str]) -> Output | None:
    """What one command declares, without importing the others; None for a group, and where there is no such command."""
    found = _root()
    for word in words:
        known = getattr(found, "commands", {})
        if word not in known:
            return None
        found = known[word]
    return _declared(found)


def _root() -> Any:
    from sbpair.cli.app import app

    return typer.main.get_command(app)


def _declared(found: Any) -> Output | None:
    output: Output | None = getattr(found.callback, "output", None)
    return output


def _commands(found: Any = None, words: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Each command by its words, and before those of a group the group: first of all `sbpair` itself."""
    found = found or _root()
    below = (_commands(found.commands[name], (*words, name)) for name in getattr(found, "commands", ()))
    return {words: found} | {path: one for commands in below for path, one in commands.items()}


def envelope_schema(name: str, output: Output) -> dict[str, Any]:
    """The schema of all that the command prints with `-o json`, also when it fails."""
    schema = output_schema(Envelope)
    schema["properties"]["command"]["enum"] = [name, ""]
    schema["properties"]["data"] = output_schema(output.load())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"sbpair {name} -o json",
        **({"description": output.besides} if output.besides else {}),
        **schema,
        "oneOf": [{"required": ["data"]}, {"required": ["error"]}],
    }


def _complete_command(ctx: typer.Context, incomplete: str) -> list[str]:
    """The next word of a command's name."""
    given = list(ctx.params.get("command_name") or ())
    known = (name.split() for name in outputs())
    following = {words[len(given)] for words in known if words[: len(given)] == given and len(words) > len(given)}
    return sorted(word for word in following if word.startswith(incomplete))


@dataclass(frozen=True, slots=True)
class Known:
    commands: tuple[str, ...]
    without_json: Mapping[str, str]
    """Command -> what of its output is no JSON."""


Document = Annotated[Mapping[str, Any], says(description="A JSON Schema.")]
Listed = Known | Document


@command(output="cli.help:Listed")
def schema(
    options: Options,
    command_name: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND]", help="A command, e.g. audit or config show.", autocompletion=_complete_command
        ),
    ] = None,
) -> CommandResult:
    """Print the JSON Schema of what a command writes with -o json; without a command, list those that have one.

    The schemas leave objects open: fields are added over time, never taken away.

    \b
    Examples:
      sbpair schema audit > audit.schema.json
      sbpair schema pipeline archive
    """
    words = tuple(" ".join(command_name or ()).split())
    if not words:
        known = outputs()
        besides = {each: output.besides for each, output in known.items() if output.besides}
        rows = [{"command": each, "note": besides.get(each, "")} for each in known]
        return CommandResult(Known(tuple(known), besides), (Table("", columns("command", "note: Without JSON"), rows),))
    output, name = output_of(words), " ".join(words)
    if output is None:
        raise _unknown_command(name, outputs())
    document = envelope_schema(name, output)
    return CommandResult(document, text=json.dumps(document, indent=2) + "\n")


def _unknown_command(name: str, known: Iterable[str]) -> UsageError:
    """A group has commands instead of an output; anything else is a slip of the finger."""
    members = [one for one in known if one.startswith(f"{name} ")]
    if members:
        hint = f"Its commands have: {', '.join(members)}."
        return UsageError(f"{name!r} is a group and prints no JSON of its own.", hint=hint)
    hint = did_you_mean(name, known, "List them with: sbpair schema")
    return UsageError(f"There is no schema for {name!r}.", hint=hint)


# `sbpair completion SHELL`: print the completion script; nobody's start-up file is edited.


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


@dataclass(frozen=True, slots=True)
class Script:
    shell: Shell
    script: str


@command(output="cli.help:Script")
def completion(options: Options, shell: Annotated[Shell, typer.Argument(help="Your shell.")]) -> CommandResult:
    """Print the completion script of a shell.

    \b
    Examples:
      sbpair completion bash > ~/.local/share/bash-completion/completions/sbpair
      sbpair completion zsh > ~/.zfunc/_sbpair
    """
    script = get_completion_script(prog_name="sbpair", complete_var=COMPLETION_VARIABLE, shell=shell.value)
    return CommandResult(Script(shell, script), text=script + "\n")
