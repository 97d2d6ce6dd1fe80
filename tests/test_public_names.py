"""The package's public names exist, come lazily, and the map in its docstring is true."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import sbpair

ROOT = Path(sbpair.__file__).parent


@pytest.mark.parametrize("name", sbpair.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(sbpair, name) is not None
    assert name in dir(sbpair)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = sbpair.nonsense  # type: ignore[attr-defined]


def test_importing_the_package_imports_no_room() -> None:
    code = (
        "import sys, sbpair\n"
        "rooms = [name for name in sys.modules if name.startswith('sbpair.') and name != 'sbpair.version']\n"
        "sys.exit(f'imported {rooms}' if rooms else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_map_names_every_room_and_no_other() -> None:
    assert sbpair.__doc__ is not None
    drawn = sbpair.__doc__.split("siblings in braces")[1]
    named = set(re.findall(r"^    (?:\{ |  )?([a-z]+)(?:\.py|\s|$)", drawn, re.MULTILINE))
    rooms = {path.stem for path in ROOT.iterdir() if (path / "__init__.py").is_file() or path.suffix == ".py"}
    assert named == rooms - {"__init__", "__main__"}
