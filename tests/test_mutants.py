"""`python -m tests.mutants`: what it plants, where, and that it tells what is found from what is not."""

import ast
from pathlib import Path

import pytest

from tests.mutants import (
    OPERATORS,
    ROOT,
    SURVIVED,
    Copy,
    Edit,
    Judge,
    chosen,
    edits,
    files_of,
    is_defect,
    judge,
    main,
    room_tests,
    sources,
    statement_lines,
)
from tests.reached import Record
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


def test_what_comes_to_the_same_is_not_planted() -> None:
    """Arguments of `max` in the other order, what `zip` asserts, and a task that is told later in the other order."""
    source = """
def f(a, b, task):
    self.tasks.add(task)
    task.add_done_callback(self.tasks.discard)
    return g(max(a, b), zip(a, b, strict=True))
"""
    kinds = {edit.kind for _, edit in edits(Path("a"), source.encode())}
    assert kinds == {"add left out", "add_done_callback left out", "of all for of any", "of another"}, "zip(b, a)"


@pytest.mark.parametrize("room", ["failover", "replication", "transfer", "clients", "azure", "emulator/broker"])
def test_a_room_has_files_tests_and_defects_of_each_kind(room: str) -> None:
    files = sources(room)
    assert files
    assert all((ROOT / path).exists() for path in room_tests(room))
    kinds = {operator for path in files for operator, _ in edits(path, (ROOT / path).read_bytes())}
    assert kinds == set(OPERATORS)


def test_the_tests_of_a_contract_belong_to_the_rooms_that_keep_it() -> None:
    assert {"tests/journal", "tests/contract/test_journals.py"} <= {*room_tests("journal")}
    assert "tests/operations" in room_tests("runtime"), "verbs run what is there"
    assert "tests/operations" not in room_tests("journal")
    assert "tests/contract/test_messaging.py" in room_tests("azure")


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


def test_rooms_within_a_room_can_be_left_out() -> None:
    rest = sources("core", without=["failover", "core/transfer"])
    assert Path("sbpair/core/rewrite.py") in rest
    assert not [path for path in rest if path.parts[2] in ("failover", "transfer")]
    assert not {edit.path for edit in chosen("core", 20, 1, without=["failover", "core/transfer"])} - {*rest}


@pytest.mark.parametrize(
    ("edited", "lines"), [("1 +", [2, 3]), ("while a", [4]), ("b < 2", [5]), ("third", []), ("limit = 2", [])]
)
def test_the_lines_whose_tests_are_asked(edited: str, lines: list[int]) -> None:
    source = """def f(a, b):
    first = (1 +
        2)
    while a:
        if b < 2: return first
limit = 2
class C:
    third = 3
"""
    start = source.index(edited)
    assert [*statement_lines(Edit(Path("a"), "", start, start + len(edited), ""), source.encode())] == lines


TESTS = """
import subprocess, sys, threading
sys.path.insert(0, "sbpair/core/small")
from bounds import checked, unchecked, in_thread, in_process, unreached

def test_bounds():
    assert not checked(3)
    assert unchecked(3)

def test_threads():
    found = []
    thread = threading.Thread(target=lambda: found.append(in_thread(3)))
    thread.start()
    thread.join()
    assert found == [False]

def test_that_fails_without_a_defect():
    assert checked(3)
"""
IN_PROCESS = """
import subprocess, sys
def test_a_process():
    script = "import bounds; raise SystemExit(bounds.in_process(3))"
    assert subprocess.run([sys.executable, "-c", script], cwd="sbpair/core/small").returncode == 0
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with bounds that are tested, in this process, another thread or process, and some that are not."""
    product, tests = tmp_path / "tree" / "sbpair" / "core" / "small", tmp_path / "tree" / "tests"
    product.mkdir(parents=True)
    tests.mkdir()
    names = ("checked", "unchecked", "in_thread", "in_process", "unreached")
    texts = [f"def {name}(n):\n    return n < {4 if name == 'unchecked' else 3}\n" for name in names]
    (product / "bounds.py").write_text("\n".join(texts))
    (tests / "test_bounds.py").write_text(TESTS)
    (tests / "test_process.py").write_text(IN_PROCESS)
    for name in ("reached.py",):
        (tests / name).write_bytes((ROOT / "tests" / name).read_bytes())
    (tmp_path / "tree" / "pytest.ini").write_text("[pytest]\nmarkers =\n  spark: .\n  node: .\n")
    return tmp_path / "tree"


def test_it_tells_what_is_found_by_what_from_what_survives_and_leaves_the_tree_alone(tree: Path) -> None:
    path = Path("sbpair/core/small/bounds.py")
    before = (tree / path).read_bytes()
    planted = chosen("core/small", 10, 1, tree)
    assert len(planted) == 5
    said: list[str] = []
    copy = Copy(tree, tree.parent / "copy")
    tests = ["tests/test_bounds.py", "tests/test_process.py"]
    judged = Judge(copy, tests, tests, cache=tree.parent / "cache")
    assert (
        judged.prepare([path])
        == "4 tests of 2 files are known; without those that fail or are skipped without a defect: 1."
    )
    survivors = judge(planted, judged, minutes=10, say=said.append)
    names = ["checked", "unchecked", "in_thread", "in_process", "unreached"]
    of = {edit: names[before[: edit.start].count(b"def ") - 1] for edit in planted}
    assert {of[edit] for edit in survivors} == {"unchecked", "unreached"}
    outcome = {of[edit]: next(one for one in said if one.startswith(f"{n}. ")) for n, edit in enumerate(planted, 1)}
    assert all("found by tests" in outcome[name] for name in ("checked", "in_thread"))
    assert "test_bounds.py::test_threads" in outcome["in_thread"]
    assert "found by processes" in outcome["in_process"]
    assert SURVIVED in outcome["unchecked"] and "1 asked" in outcome["unchecked"]
    assert SURVIVED in outcome["unreached"] and "2 asked" in outcome["unreached"]
    assert any("+    return n <= 4" in line for line in said)
    assert (tree / path).read_bytes() == (copy.folder / path).read_bytes() == before


def test_what_a_test_reaches_is_recorded_once_and_again_when_it_or_the_file_has_changed(tree: Path) -> None:
    path, cache = "sbpair/core/small/bounds.py", tree.parent / "cache"
    copy = Copy(tree, tree.parent / "copy")
    files = files_of(["tests"], copy.folder)
    assert files == ["tests/test_bounds.py", "tests/test_process.py"]
    first = copy.record(files, [path], cache)
    assert first["tests/test_process.py"].processes and not first["tests/test_bounds.py"].processes
    assert first["tests/test_bounds.py"].tests["tests/test_bounds.py::test_bounds"].lines == {path: [2, 5]}
    written = {file: Record.read(cache, file) for file in files}
    assert copy.record(files, [path], cache) == first == written
    (copy.folder / "tests" / "test_bounds.py").write_text(TESTS.replace("assert unchecked(3)", "pass"))
    again = copy.record(files, [path], cache)
    assert again["tests/test_process.py"] == first["tests/test_process.py"]
    assert again["tests/test_bounds.py"].tests["tests/test_bounds.py::test_bounds"].lines == {path: [2]}
    (copy.folder / path).write_text("\n" + (copy.folder / path).read_text())
    moved = copy.record(files, [path], cache)
    assert moved["tests/test_bounds.py"].tests["tests/test_bounds.py::test_bounds"].lines == {path: [3]}


def test_a_tree_in_which_no_test_passes_is_refused(tree: Path) -> None:
    (tree / "tests" / "test_bounds.py").write_text("def test_bounds():\n    assert False\n")
    judged = Judge(Copy(tree, tree.parent / "copy"), ["tests/test_bounds.py"], cache=tree.parent / "cache")
    with pytest.raises(SystemExit, match="no test passes"):
        judged.prepare([Path("sbpair/core/small/bounds.py")])


def test_a_test_that_fails_without_the_defect_as_well_counts_for_nothing(tree: Path) -> None:
    flag = tree.parent / "asked once"
    (tree / "tests" / "test_bounds.py").write_text(
        "import sys\nfrom pathlib import Path\nsys.path.insert(0, 'sbpair/core/small')\nimport bounds\n"
        f"def test_once():\n    bounds.unchecked(3)\n    flag = Path({str(flag)!r})\n"
        "    assert not flag.exists()\n    flag.touch()\n"
    )
    path = Path("sbpair/core/small/bounds.py")
    judged = Judge(Copy(tree, tree.parent / "copy"), ["tests/test_bounds.py"], cache=tree.parent / "cache")
    judged.prepare([path])
    assert {judged.outcome(edit)[0] for edit in chosen("core/small", 10, 1, tree)} == {SURVIVED}
    assert judged.honest == {"tests/test_bounds.py::test_once": False}
