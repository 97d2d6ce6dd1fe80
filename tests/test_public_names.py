"""The package's public names exist, come lazily, and the map in its docstring is true."""

import builtins
import importlib
import inspect
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import get_args, get_type_hints

import pytest

import sbpair
import sbpair.events
from sbpair import operations
from sbpair.core import events

ROOT = Path(sbpair.__file__).parent


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package in (sbpair, operations) for name in package.__all__]
)
def test_every_public_name_is_there(package: ModuleType, name: str) -> None:
    assert getattr(package, name) is not None
    assert name in dir(package)


def test_help_on_the_package_shows_its_map_and_the_arguments_of_the_client() -> None:
    shown = pydoc.render_doc(sbpair, renderer=pydoc.plaintext)
    assert "The rooms, and which way they may import" in shown
    assert "class ServiceBusClient" in shown
    assert "failover_interval" in shown


def _types_in(annotation: object) -> Iterator[type]:
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    for inner in get_args(annotation):
        yield from _types_in(inner)


@pytest.mark.parametrize("name", [name for name in operations.__all__ if name.endswith("Request")])
def test_what_a_request_is_made_of_is_public(name: str) -> None:
    """A caller has to name the types of its fields."""
    public = [getattr(package, one) for package in (sbpair, operations) for one in package.__all__]
    for field, annotation in get_type_hints(getattr(operations, name)).items():
        for wanted in _types_in(annotation):
            assert not wanted.__module__.startswith("sbpair.") or wanted in public, f"{name}.{field}: {wanted}"


ANNOUNCING = ("runtime/failover/*", "runtime/transfer/*", "runtime/replication/*", "clients/*")
"""What runs for an application: the pairing, its syphon, the drop-in clients, the consumers of active/active."""
OF_COMMANDS = {"ProcessLost"}
"""Of drains in several processes."""


def test_what_an_application_may_hear_is_public() -> None:
    heard: set[str] = set()
    for file in (file for pattern in ANNOUNCING for file in ROOT.glob(f"{pattern}.py")):
        names = {name for name, one in vars(events).items() if isinstance(one, type) and issubclass(one, events.Event)}
        heard |= names & set(re.findall(r"\b([A-Z]\w+)\(", file.read_text("utf-8")))
    assert "Forwarded" in heard
    assert heard - OF_COMMANDS <= set(sbpair.events.__all__)


def test_what_a_verb_raises_is_public() -> None:
    told = " ".join(inspect.getdoc(getattr(operations, name)) or "" for name in operations.__all__)
    assert set(re.findall(r"\b[A-Z]\w+Error\b", told)) <= {*operations.__all__, *dir(builtins)}


@pytest.mark.parametrize("package", [sbpair, operations])
def test_an_unknown_name_is_an_attribute_error(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = package.nonsense


def test_a_verb_is_a_function_whichever_way_its_file_was_imported_before() -> None:
    for name in operations.__all__:
        file = Path(operations.__file__ or "").with_name(f"{name}.py")
        if file.is_file():
            importlib.import_module(f"sbpair.operations.{name}")
            assert inspect.iscoroutinefunction(getattr(operations, name)), name


@pytest.mark.parametrize("package", ["sbpair", "sbpair.operations"])
def test_importing_the_package_imports_no_room(package: str) -> None:
    code = (
        f"import sys, {package}\n"
        f"own = {{'sbpair.version', {package!r}}}\n"
        "rooms = [name for name in sys.modules if name.startswith('sbpair.') and name not in own]\n"
        "sys.exit(f'imported {rooms}' if rooms else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_map_names_every_room_and_no_other() -> None:
    assert sbpair.__doc__ is not None
    drawn = sbpair.__doc__.split("siblings in braces")[1].split("The words,")[0]
    named = set(re.findall(r"^    (?:\{ |  )?([a-z]+)(?:\.py|\s|$)", drawn, re.MULTILINE))
    rooms = {path.stem for path in ROOT.iterdir() if (path / "__init__.py").is_file() or path.suffix == ".py"}
    assert named == rooms - {"__init__", "__main__"}


@pytest.mark.parametrize("room", ["emulator", "pipeline"])
def test_the_map_of_a_part_names_all_that_stands_in_it(room: str) -> None:
    described = importlib.import_module(f"sbpair.{room}").__doc__ or ""
    named = set(re.findall(r"\b[a-z_]+\b", described))
    inside = {path.stem for path in (ROOT / room).iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert inside - {"__init__"} - named - BESIDE == set(), "draw it into the map"


BESIDE = frozenset(["entities", "errors", "hadoop", "keys", "manifest", "settling", "spans"])
"""Values and helpers of a part that its map may leave out."""
