"""What is used of typer's private parts is there, and the self-test notices when it is not."""

import tomllib
from pathlib import Path

import pytest
import typer
from packaging.requirements import Requirement

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
