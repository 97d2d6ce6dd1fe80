"""`python -m tests.mutants`: what it plants, where, and that it tells what is found from what is not."""

import ast
from pathlib import Path

import pytest

from tests.mutants import OPERATORS, ROOT, chosen, edits, is_defect, judge, main, room_tests, sources
from tests.test_quick import ROOMS

SOURCE = '''"""Text of a module."""

async def send(link, items, ledger, names):
    await ledger.record(items)
    await link.settle(items)
    if len(items) < 10 and names:
        return Result(Where.BACKLOG, uncertain=items.doubt, last=True)
    if not names:
        raise Missing(Where.PRIMARY)
    for name in names:
        self.known[name.lower()] = session_key(name), max(items[0], limit), len(names) - 1
'''


def planted(source: str) -> set[tuple[str, str]]:
    """The kind of each defect, and what it makes of its line."""
    found = set()
    for _, edit in edits(Path("a.py"), source.encode()):
        text = edit.planted(source.encode()).decode()
        lines = [line.strip() for line in text.splitlines() if line not in source.splitlines()]
        found.add((edit.kind, "; ".join(lines)))
    return found


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("record left out", "pass"),
        ("settle left out", "pass"),
        ("other order", ""),
        ("bound off by one", "if len(items) <= 10 and names:"),
        ("bound off by one", "self.known[name.lower()] = session_key(name), max(items[0], limit), (len(names))"),
        ("condition left out", "if (names):"),
        ("never", "if False:"),
        ("opposite", "if names:"),
        ("doubt forgotten", "return Result(Where.BACKLOG, uncertain=False, last=True)"),
        ("yes for no", "return Result(Where.BACKLOG, uncertain=items.doubt, last=False)"),
        ("one for another", "return Result(Where.PRIMARY, uncertain=items.doubt, last=True)"),
        ("with its case", "self.known[name] = session_key(name), max(items[0], limit), len(names) - 1"),
        ("with its case", "self.known[name.lower()] = name, max(items[0], limit), len(names) - 1"),
        ("of all for of any", "self.known[name.lower()] = session_key(name), min(items[0], limit), len(names) - 1"),
        ("of another", "self.known[name.lower()] = session_key(name), max(items[-1], limit), len(names) - 1"),
        ("left out", "pass"),
    ],
)
def test_what_is_planted(kind: str, line: str) -> None:
    assert (kind, line) in planted(SOURCE)


def test_texts_annotations_and_what_only_type_checkers_read_are_left_alone() -> None:
    source = '''"""Not a < b."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    limit = 1 < 2
@cached(True)
def f(a: int = 1 < 2, *, b: "dict[A.B, C[0]]") -> X[0]:
    """Not a < b."""
    return f"{a < b}"
'''
    assert {
        (edit.kind, source.encode()[edit.start : edit.end].strip()) for _, edit in edits(Path("a"), source.encode())
    } == {("bound off by one", b"<")}


@pytest.mark.parametrize("room", ["failover", "replication", "transfer", "clients", "azure", "emulator/broker"])
def test_a_room_has_files_tests_and_defects_of_each_kind(room: str) -> None:
    files = sources(room)
    assert files
    assert all((ROOT / path).exists() for path in room_tests(room))
    kinds = {operator for path in files for operator, _ in edits(path, (ROOT / path).read_bytes())}
    assert kinds == set(OPERATORS)


def test_every_room_with_tests_can_be_asked_for() -> None:
    assert all(sources(room) and room_tests(room) for room in ROOMS)


def test_the_seed_decides_and_each_defect_is_python() -> None:
    first, again, other = (chosen("failover", 20, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len({(edit.path, edit.start, edit.text) for edit in first}) == 20
    for edit in first:
        source = (ROOT / edit.path).read_bytes()
        assert is_defect(edit, source)
        assert ast.dump(ast.parse(edit.planted(source))) != ast.dump(ast.parse(source))


def test_an_unknown_room_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emulaotr"]) == 2
    assert "emulaotr" in capsys.readouterr().err


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with a function whose bound is tested, one whose is not, and one that would never end."""
    product, tests = tmp_path / "sbpair" / "core" / "small", tmp_path / "tests"
    product.mkdir(parents=True)
    tests.mkdir()
    (product / "bounds.py").write_text("def checked(n):\n    return n < 3\n\ndef unchecked(n):\n    return n < 4\n")
    (tests / "test_bounds.py").write_text(
        "import sys\nsys.path.insert(0, 'sbpair/core/small')\nfrom bounds import checked, unchecked\n"
        "def test_bounds():\n    assert not checked(3)\n    assert unchecked(3)\n"
    )
    return tmp_path


def test_it_tells_what_is_found_from_what_survives_and_leaves_the_tree_alone(tree: Path) -> None:
    path = Path("sbpair/core/small/bounds.py")
    before = (tree / path).read_bytes()
    planted = chosen("core/small", 10, 1, tree)
    assert len(planted) == 2
    said: list[str] = []
    (survivor,) = judge(planted, ["tests/test_bounds.py"], histories=0, minutes=10, say=said.append, root=tree)
    assert b"unchecked" in before[: survivor.start]
    assert any("found by tests" in line and "test_bounds" in line for line in said)
    assert any("+    return n <= 4" in line for line in said)
    assert (tree / path).read_bytes() == before
    (tree / "tests" / "test_bounds.py").write_text("def test_bounds():\n    assert False\n")
    with pytest.raises(SystemExit, match="Without a defect"):
        judge(planted, ["tests/test_bounds.py"], histories=0, minutes=10, say=said.append, root=tree)
