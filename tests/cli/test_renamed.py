"""What had another name is refused, and the new name that is told is one that the command takes."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from sbpair.cli.app import app
from sbpair.cli.renamed import COMMANDS, OPTIONS
from tests.cli.inside import run_inside


def options_of(command: str) -> set[str]:
    found: Any = get_command(app)
    for word in command.split():
        found = found.commands[word]
    return {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("command", OPTIONS)
def test_an_old_option_is_refused_with_the_new_one(command: str, tmp_path: Path) -> None:
    known = options_of(command)
    for old, instead in OPTIONS[command].items():
        assert old not in known
        ran = run_inside(tmp_path, *command.split(), f"{old}=x")
        assert ran.code == 2, ran
        assert f"{old} of {command} {instead}." in ran.stderr
        # A command in backticks is another one, with options of its own.
        named = set(re.findall(r"(?<!\S)\(?(--[a-z-]+|-[a-z]\b)", re.sub(r"`[^`]*`", "", instead)))
        assert named <= known, (old, instead)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_old_command_is_refused_with_what_to_do_instead(command: str, tmp_path: Path) -> None:
    ran = run_inside(tmp_path, *command.split())
    assert ran.code == 2, ran
    assert f"`{command}` {COMMANDS[command]}." in ran.stderr
