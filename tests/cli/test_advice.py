"""Every command that sbpair advises, in hints, remedies and notes, is one that its own parser takes."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from sbpair.cli.app import app

SOURCES = Path(__file__).parents[2] / "sbpair"
VALUES = {"pair": "orders", "subject": "contoso/x-servicebus-transfer/3", "number": "7"}
"""What stands for the placeholders of a remedy."""
_ADVICE = re.compile(r"(?:^|`|then |with: |: )sbpair ((?!x\b|error \\?\()[a-z][^`\n]*)", re.MULTILINE)


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """Every text of the sources: where it is, and what it says; the parts of an f-string that are values are `x`."""
    return tuple(found for file in sorted(SOURCES.rglob("*.py")) for found in _texts_of(file))


def _texts_of(file: Path) -> Iterator[tuple[str, str]]:
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    documentation = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    joined = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in joined for part in node.values}
    left_out = documentation | parts
    name = file.relative_to(SOURCES)
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            said = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
            yield f"{name}:{node.lineno}", said
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield f"{name}:{node.lineno}", node.value


def test_the_parser_takes_all_that_is_advised() -> None:
    advice = [(where, command) for where, text in texts() for command in _ADVICE.findall(text)]
    assert len(advice) > 60
    program = get_command(app)
    wrong = [f"{where}: sbpair {advised}: {why}" for where, advised in advice if (why := _refusal(program, advised))]
    assert not wrong, "\n".join(wrong)


def _refusal(program: Any, advised: str) -> str:
    """Why the parser does not take it; nothing if it does."""
    for key, value in VALUES.items():
        advised = advised.replace(f"{{{key}}}", value)
    words = shlex.split(re.sub(r"(?<![.])[.;,)]$", "", advised), comments=True)
    command, path = program, ["sbpair"]
    while getattr(command, "commands", None) and words and words[0] in command.commands:
        path.append(words.pop(0))
        command = command.commands[path[-1]]
    if len(path) == 1:
        return "there is no such command"
    if getattr(command, "commands", None):
        return ""
    try:
        command.make_context(path[-1], words)
    except typer.TyperException as error:
        return "" if type(error).__name__ == "MissingParameter" else str(error)  # named, not written out
    return ""


def _options(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            yield from parameter.opts
            yield from parameter.secondary_opts
    for below in getattr(command, "commands", {}).values():
        yield from _options(below)


def test_an_option_that_the_hint_of_an_error_names_is_one_of_today() -> None:
    known = set(_options(get_command(app)))
    hints = [text for where, text in texts() if where.startswith("core/errors.py:")]
    named = {option for text in hints for option in re.findall(r"(?<!\S)--[a-z][a-z-]+", text)}
    assert {"--rate", "--concurrency", "--plan-out"} <= named <= known
