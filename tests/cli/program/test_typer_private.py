"""What is used of typer's private parts is there, and the self-test notices when it is not."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from packaging.requirements import Requirement
from typer.main import get_command

from sbpair.cli.app import app
from sbpair.cli.typer_private import self_test


def test_this_typer_has_what_is_used() -> None:
    assert self_test() == []


def test_the_self_test_notices_what_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(typer.core.TyperOption, "get_help_record")
    assert self_test()


def test_the_pin_ends_with_the_installed_series() -> None:
    declared = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["dependencies"]
    pin = next(Requirement(one) for one in declared if one.startswith("typer"))
    major, minor = map(int, typer.__version__.split(".")[:2])
    assert pin.specifier.contains(typer.__version__)
    assert not pin.specifier.contains(f"{major}.{minor + 1}.0")


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


def test_no_command_takes_a_second_value_of_an_option_for_the_first() -> None:
    tried = 0
    for path, command in commands(get_command(app)):
        for param in command.params:
            if param.param_type_name != "option" or param.multiple or (param.is_flag and not param.secondary_opts):
                continue
            given = [*param.opts[-1:], *param.secondary_opts[-1:]] if param.is_flag else [param.opts[-1], "1"] * 2
            with pytest.raises(typer.TyperException) as refused:
                command.make_context(" ".join(path) or "sbpair", given)
            assert refused.value.format_message().endswith("given more than once, and can have one value only."), path
            tried += 1
    assert tried > 300


def test_an_option_for_several_values_and_a_repeated_flag_are_taken() -> None:
    command = get_command(app).commands["peek"]
    context = command.make_context("peek", ["orders", "--queue", "1", "--queue", "2", "-v", "-v"])
    assert context.params["queue"] == ["1", "2"]
