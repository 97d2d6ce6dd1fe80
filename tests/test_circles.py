"""No module leads back to itself by what it imports, inside functions included. What is imported for type checkers
alone is left out: a queue names the namespace it stands in, and an interface of the same says it twice.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import sbpair

ROOT = Path(sbpair.__file__).parent


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def imports_in(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        yield from imports_in(child)


def imported_by(file: Path, known: set[str]) -> set[str]:
    found: set[str] = set()
    for node in imports_in(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif node.module:
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(full & known or {node.module})
    return (found & known) - {module_of(file)}


def test_imports_go_one_way() -> None:
    files = {module_of(file): file for file in ROOT.rglob("*.py")}
    left = {name: imported_by(file, set(files)) for name, file in files.items() if name != "sbpair"}
    assert sum(map(len, left.values())) > 1_500, "imports are no longer found"
    while free := {name for name, needed in left.items() if not needed & left.keys()}:
        for name in free:
            del left[name]
    assert left == {}, f"a circle, or modules that lead into one: {sorted(left)}"
