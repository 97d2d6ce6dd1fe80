"""No module leads back to itself by what it imports, inside functions included; in the embedded namespace, whose parts
know each other best, not even by what it imports for type checkers."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sbpair

ROOT = Path(sbpair.__file__).parent


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports_in(node: ast.AST, *, typing: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING" and not typing:
            continue
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        yield from imports_in(child, typing=typing)


def imported_by(file: Path, known: set[str], *, typing: bool) -> set[str]:
    found: set[str] = set()
    for node in imports_in(ast.parse(file.read_text("utf-8")), typing=typing):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif node.module:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(full & known or {node.module})
    return (found & known) - {module_of(file)}


@pytest.mark.parametrize(
    ("room", "typing", "arrows"), [("", False, 1_500), ("emulator", True, 100)], ids=["all", "emulator"]
)
def test_imports_go_one_way(room: str, typing: bool, arrows: int) -> None:
    package = module_of(ROOT / room / "__init__.py")
    files = {module_of(file): file for file in (ROOT / room).rglob("*.py")}
    left = {name: imported_by(file, set(files), typing=typing) for name, file in files.items() if name != package}
    assert sum(map(len, left.values())) > arrows, "imports are no longer found"
    while free := {name for name, needed in left.items() if not needed & left.keys()}:
        for name in free:
            del left[name]
    assert left == {}, f"a circle, or modules that lead into one: {sorted(left)}"
