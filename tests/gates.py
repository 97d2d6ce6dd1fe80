"""Where a package touches the terminal, the network or files: found in its syntax, whatever name it goes by.

`references` resolves imports and their aliases, so that `from os import open as o`, `w = sys.stderr.write` and
`getattr(sys, "stderr")` are found like the plain call.
"""

import ast
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path


def references(source: str) -> Iterator[str]:
    """Dotted names that the source refers to, as they are called where they come from: `os.open`, `print`,
    `pathlib.Path.write_text`; `.name` for an attribute of something that is no import."""
    tree = ast.parse(source)
    known = dict(_imported(tree))
    yield from set(known.values())
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield f".{node.attr}"
        is_read = isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Load)
        if is_read and (name := _dotted(node, known)):
            yield name
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            yield from _by_text(node, known)


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Local name and full name of everything imported, in functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                yield (one.asname, one.name) if one.asname else (one.name.partition(".")[0],) * 2
                yield one.name, one.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for one in node.names:
                yield one.asname or one.name, f"{node.module}.{one.name}"


def _dotted(node: ast.expr, known: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value, known)):
        return f"{before}.{node.attr}"
    return ""


def _by_text(call: ast.Call, known: dict[str, str]) -> Iterator[str]:
    if len(call.args) > 1 and isinstance(call.args[1], ast.Constant) and isinstance(call.args[1].value, str):
        name = call.args[1].value
        yield f".{name}"
        if before := _dotted(call.args[0], known):
            yield f"{before}.{name}"


def openings(source: str) -> Iterator[str]:
    """Calls of a method `open` that may write: any mode but one of reading, and what cannot be told."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "open"):
            continue
        given = [*node.args, *(one.value for one in node.keywords if one.arg in ("mode", None))]
        modes = [one.value if isinstance(one, ast.Constant) else None for one in given]
        if not all(isinstance(mode, str) and set(mode) <= set("rbt") for mode in modes):
            yield ".open(...)"


def doors(package: Path, names: Collection[str], prefixes: tuple[str, ...] = ()) -> dict[str, set[str]]:
    """File below the package -> which of the names, or of what begins with a prefix, it refers to."""
    found = {
        path.relative_to(package).as_posix(): matching(path.read_text(encoding="utf-8"), names, prefixes)
        for path in sorted(package.rglob("*.py"))
    }
    return {file: met for file, met in found.items() if met}


def matching(source: str, names: Collection[str], prefixes: tuple[str, ...] = ()) -> set[str]:
    return {
        one
        for one in _names_in(source)
        if one in names or any(one == prefix or one.startswith(f"{prefix}.") for prefix in prefixes)
    }


@cache
def _names_in(source: str) -> frozenset[str]:
    """Kept, because every gate looks through every module."""
    return frozenset(one.removeprefix("builtins.") for one in (*references(source), *openings(source)))
