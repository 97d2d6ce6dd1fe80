"""`sbpair schema COMMAND`: what scripts may rely on, as JSON Schema."""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from sbpair.cli.options import Options, Output, command
from sbpair.core.errors import UsageError
from sbpair.core.serialization import output_schema, says
from sbpair.render.formats import Envelope
from sbpair.render.result import CommandResult, Table, columns


def outputs() -> Mapping[str, Output]:
    """What each command declares of its output, in the order of the help. Imports every command."""
    return dict(_below(_root(), ()))


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


def _below(found: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Output]]:
    output = _declared(found)
    if output is not None:
        yield " ".join(words), output
    for name in getattr(found, "commands", ()):
        yield from _below(found.commands[name], (*words, name))


def envelope_schema(name: str, output: Output) -> dict[str, Any]:
    """The schema of all that the command prints with `-o json`, also when it fails."""
    schema = output_schema(Envelope)
    schema["properties"]["command"]["enum"] = [name, ""]
    schema["properties"]["data"] = data_schema(output)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"sbpair {name} -o json",
        **({"description": output.besides} if output.besides else {}),
        **schema,
        "oneOf": [{"required": ["data"]}, {"required": ["error"]}],
    }


def data_schema(output: Output) -> dict[str, Any]:
    """The schema of the envelope's `data`."""
    return output_schema(output.load())


def _complete(ctx: typer.Context, incomplete: str) -> list[str]:
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


@command(output="cli.schema:Listed")
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
    words = tuple(" ".join(command_name or ()).split())
    if not words:
        known = outputs()
        besides = {each: output.besides for each, output in known.items() if output.besides}
        rows = [{"command": each, "note": besides.get(each, "")} for each in known]
        return CommandResult(Known(tuple(known), besides), (Table("", columns("command", "note: Without JSON"), rows),))
    output, name = output_of(words), " ".join(words)
    if output is None:
        raise _unknown(name, outputs())
    document = envelope_schema(name, output)
    return CommandResult(document, text=json.dumps(document, indent=2) + "\n")


def _unknown(name: str, known: Iterable[str]) -> UsageError:
    """A group has commands instead of an output; anything else is a slip of the finger."""
    members = [one for one in known if one.startswith(f"{name} ")]
    if members:
        hint = f"Its commands have: {', '.join(members)}."
        return UsageError(f"{name!r} is a group and prints no JSON of its own.", hint=hint)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else "List them with: sbpair schema"
    return UsageError(f"There is no schema for {name!r}.", hint=hint)
