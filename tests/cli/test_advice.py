"""Every command that sbpair advises, in hints, remedies and notes, is one that its own parser takes."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from sbpair.cli.app import app

SOURCES = Path(__file__).parents[2] / "sbpair"
VALUES = {"pair": "orders", "subject": "contoso/x-servicebus-transfer/3"}
"""What stands for the placeholders of a remedy."""
_ADVICE = re.compile(r"(?:^|`|then |with: |: )sbpair ((?!x\b)[a-z][^`\n]*)", re.MULTILINE)


def _texts() -> Iterator[tuple[str, str]]:
    """Every text of the sources: where it is, and what it says; the parts of an f-string that are values are `x`."""
    for file in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        documentation = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            where = f"{file.relative_to(SOURCES)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                yield where, "".join(str(getattr(part, "value", "")) if _plain(part) else "x" for part in node.values)
            elif isinstance(getattr(node, "value", None), str) and id(node) not in documentation | parts:
                yield where, node.value  # type: ignore[attr-defined]


def _plain(part: ast.expr) -> bool:
    return isinstance(part, ast.Constant)


ADVICE = [(where, command) for where, text in _texts() for command in _ADVICE.findall(text)]


def test_there_is_advice_to_look_at() -> None:
    assert len(ADVICE) > 60


@pytest.mark.parametrize(("where", "advised"), ADVICE, ids=[f"{where} {advised[:40]}" for where, advised in ADVICE])
def test_the_parser_takes_it(where: str, advised: str) -> None:
    for key, value in VALUES.items():
        advised = advised.replace(f"{{{key}}}", value)
    words = shlex.split(re.sub(r"(?<![.])[.;,)]$", "", advised), comments=True)
    command: Any = get_command(app)
    path = ["sbpair"]
    while getattr(command, "commands", None) and words and words[0] in command.commands:
        path.append(words.pop(0))
        command = command.commands[path[-1]]
    assert len(path) > 1, f"{where}: no command sbpair {advised}"
    if not getattr(command, "commands", None):
        try:
            command.make_context(path[-1], words)
        except typer.TyperException as error:
            assert type(error).__name__ == "MissingParameter", f"{where}: {error}"  # named, not written out


def _options(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            yield from parameter.opts
            yield from parameter.secondary_opts
    for below in getattr(command, "commands", {}).values():
        yield from _options(below)


def test_an_option_that_the_hint_of_an_error_names_is_one_of_today() -> None:
    known = set(_options(get_command(app)))
    hints = [text for where, text in _texts() if where.startswith("core/errors.py:")]
    named = {option for text in hints for option in re.findall(r"(?<!\S)--[a-z][a-z-]+", text)}
    assert {"--rate", "--concurrency", "--plan-out"} <= named <= known
