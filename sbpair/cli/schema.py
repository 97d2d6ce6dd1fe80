"""`sbpair schema COMMAND`: what scripts may rely on, as JSON Schema."""

import difflib
import json
from collections.abc import Iterable
from typing import Annotated

import typer

from sbpair.cli.options import Options, command
from sbpair.core.errors import UsageError
from sbpair.render.result import Column, CommandResult, Table


def _complete(ctx: typer.Context, incomplete: str) -> list[str]:
    """The next word of a command's name."""
    from sbpair.cli.schemas import COMMANDS

    given = list(ctx.params.get("command_name") or ())
    known = (name.split() for name in COMMANDS)
    following = {words[len(given)] for words in known if words[: len(given)] == given and len(words) > len(given)}
    return sorted(word for word in following if word.startswith(incomplete))


@command
def schema(
    options: Options,
    command_name: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND]", help="A command, e.g. audit or config show.", autocompletion=_complete),
    ] = None,
) -> CommandResult:
    """Print the JSON Schema of what a command writes with -o json; without a command, list those that have one.

    The schemas leave objects open: fields are added over time, never taken away.

    \b
    Examples:
      sbpair schema audit > audit.schema.json
      sbpair schema pipeline archive
    """
    from sbpair.cli.schemas import COMMANDS, WITHOUT_JSON, envelope_schema

    name = " ".join(command_name or ())
    if not name:
        rows = [{"command": known, "note": WITHOUT_JSON.get(known, "")} for known in COMMANDS]
        columns = (Column("command", "Command"), Column("note", "Without JSON"))
        return CommandResult(
            "schema", {"commands": list(COMMANDS), "without_json": dict(WITHOUT_JSON)}, (Table("", columns, rows),)
        )
    if name not in COMMANDS:
        raise _unknown(name, COMMANDS)
    document = envelope_schema(name)
    return CommandResult("schema", document, text=json.dumps(document, indent=2) + "\n")


def _unknown(name: str, known: Iterable[str]) -> UsageError:
    """A group has commands instead of an output; anything else is a slip of the finger."""
    members = [one for one in known if one.startswith(f"{name} ")]
    if members:
        hint = f"Its commands have: {', '.join(members)}."
        return UsageError(f"{name!r} is a group and prints no JSON of its own.", hint=hint)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else "List them with: sbpair schema"
    return UsageError(f"There is no schema for {name!r}.", hint=hint)
