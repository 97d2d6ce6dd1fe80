"""No module of the embedded namespace leads back to itself, imports for type checkers and inside functions included."""

import ast
from pathlib import Path

import sbpair.emulator

ROOT = Path(sbpair.emulator.__file__).parent
PACKAGE = "sbpair.emulator"


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join((PACKAGE, *(part for part in parts if part != "__init__")))


def imported_by(file: Path, known: set[str]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(full & known or {node.module})
    return (found & known) - {module_of(file)}


def test_imports_go_one_way() -> None:
    files = {module_of(file): file for file in ROOT.rglob("*.py")}
    left = {name: imported_by(file, set(files)) for name, file in files.items() if name != PACKAGE}
    assert sum(map(len, left.values())) > 100
    while free := {name for name, needed in left.items() if not needed & left.keys()}:
        for name in free:
            del left[name]
    assert left == {}, f"a circle, or modules that lead into one: {sorted(left)}"
