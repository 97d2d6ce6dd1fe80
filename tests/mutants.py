"""Plants defects in a copy of the tree and says which of them no test of their room finds.

    python -m tests.mutants failover --count 30 --seed 1

A room is a folder below `sbpair` (`core/failover`, `emulator/broker`) or a word whose folders are on several floors
(`failover`). Each defect is one edit of the kind that this field knows: a settlement that is not made, two steps in the
other order, a bound that is off by one, names compared with their case, an outcome taken for another, a doubt that is
forgotten. The seed decides which.

Once for each test file it is recorded which lines the room's tests and the quick part (`tests.quick`) run
(`tests.reached`; the records stay in the user's cache, and hold until the file or what is planted in changes). A defect
is then shown to the tests that run its line (or its file, where none does), first the files that take least, until one
fails; what none notices to histories of the simulation, where they load the file; then to the room's tests that start
processes, and with `--commands` to those below `tests/cli`. What survives is listed with the edit, and the command ends
with 1.

The tree itself is never changed. A test that fails without the defect as well counts for nothing; a defect that makes
the tests take several times as long as without it is found.
"""

import argparse
import ast
import contextlib
import difflib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.quick import PATHS, part
from tests.reached import FOLDER, SELECTED, Record, digest, reached_by
from tests.survivors import guard_run

ROOT = Path(__file__).parent.parent
IGNORED = (".git", ".venv", "__pycache__", ".*_cache", "dist", "build")
CACHE = Path.home() / ".cache" / "sbpair-tests" / "reached" / ROOT.as_posix().strip("/").replace("/", ".")
DECIDING = ("core", "runtime")
"""The floors on which a word has the folders that a defect is planted in; others show, or are rooms of their own."""
SLOWER = 3.0
"""A defect that makes the tests take so many times as long is found,"""
START_SECONDS = 30.0
"""and so much more: a busy machine is slower for a while."""
SLOWEST_TEST_SECONDS = 300
CLEAN_SECONDS = 3600.0
HISTORY_HOURS = 0.1
WAITING = 4
"""Tests of clients, links and locks wait more than they compute: so many of them run on one processor."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One defect: other text between two offsets of a file, in bytes."""

    path: Path
    kind: str
    start: int
    end: int
    text: str

    def planted(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


class Text:
    """A file of the product with the offsets of what is in it."""

    def __init__(self, path: Path, source: bytes) -> None:
        self.path = path
        self.source = source
        self.tree = ast.parse(source)
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def span(self, node: ast.AST) -> tuple[int, int]:
        start = self._lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return start, self._lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def of(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def edit(self, kind: str, node: ast.AST, text: str) -> Edit:
        return Edit(self.path, kind, *self.span(node), text)


Operator = Callable[[Text, ast.AST], Iterator[Edit]]
_STEPS = (ast.Expr, ast.Assign, ast.AugAssign)
_TURNED: dict[type[ast.cmpop], tuple[str, str, str]] = {
    ast.Lt: ("<", "<=", "bound off by one"),
    ast.LtE: ("<=", "<", "bound off by one"),
    ast.Gt: (">", ">=", "bound off by one"),
    ast.GtE: (">=", ">", "bound off by one"),
    ast.Eq: ("==", "!=", "opposite"),
    ast.NotEq: ("!=", "==", "opposite"),
    ast.In: ("in", "not in", "opposite"),
    ast.NotIn: ("not in", "in", "opposite"),
    ast.Is: ("is", "is not", "opposite"),
    ast.IsNot: ("is not", "is", "opposite"),
}
"""The sign of a comparison, what it is turned into, and what kind of defect that is."""
_FOLDS = {"lower", "casefold", "strip", "removesuffix", "removeprefix"}
_OF_ALL = {"max": "min", "min": "max", "any": "all", "all": "any"}
_SAME_EITHER_WAY = {"max", "min", "same_name"}
"""The order of their arguments does not matter."""
_LATER = "add_done_callback"
"""Calls nothing before the code that follows it has run to its next wait."""


def _call_of(node: ast.AST) -> ast.Call | None:
    value = node.value if isinstance(node, ast.Expr) else None
    value = value.value if isinstance(value, ast.Await) else value
    return value if isinstance(value, ast.Call) else None


def _left_out(text: Text, node: ast.AST) -> Iterator[Edit]:
    """What is done for its effect alone: a settlement, a renewal, a line, a release."""
    if (call := _call_of(node)) is not None and isinstance(call.func, ast.Attribute):
        yield text.edit(f"{call.func.attr} left out", node, "pass")
    if isinstance(node, ast.AugAssign) or (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)):
        yield text.edit("change left out", node, "pass")
    if isinstance(node, ast.Raise | ast.Continue | ast.Break):
        yield text.edit("left out", node, "pass")


def _other_order(text: Text, node: ast.AST) -> Iterator[Edit]:
    """What must be on disk, or known, before something else is not."""
    for body in (getattr(node, "body", None), getattr(node, "orelse", None), getattr(node, "finalbody", None)):
        for first, second in itertools.pairwise(body) if isinstance(body, list) else ():
            call = _call_of(second) if isinstance(second, _STEPS) else None
            later = call is not None and isinstance(call.func, ast.Attribute) and call.func.attr == _LATER
            if isinstance(first, _STEPS) and call and not later and not _is_text(first):
                (start, middle), (begin, end) = text.span(first), text.span(second)
                between = text.source[middle:begin].decode()
                yield Edit(text.path, "other order", start, end, text.of(second) + between + text.of(first))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _bound(text: Text, node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Compare):
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            sign, turned, kind = _TURNED[type(operator)]
            start, end = text.span(left)[1], text.span(right)[0]
            if text.source[start:end].decode().strip() == sign:
                yield Edit(text.path, kind, start, end, f" {turned} ")
            left = right
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and _is_constant(node.right, int):
        yield text.edit("bound off by one", node, f"({text.of(node.left)})")


def _is_constant(node: ast.AST | None, kind: type) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, kind)


def _spelling(text: Text, node: ast.AST) -> Iterator[Edit]:
    """Names and sessions that are the same to the service are not any more."""
    if not isinstance(node, ast.Call):
        return
    if isinstance(node.func, ast.Attribute) and node.func.attr in _FOLDS:
        yield text.edit("with its case", node, text.of(node.func.value))
    if isinstance(node.func, ast.Name) and node.func.id == "session_key" and len(node.args) == 1:
        yield text.edit("with its case", node, text.of(node.args[0]))


def _condition(text: Text, node: ast.AST) -> Iterator[Edit]:
    """Half of what is asked: the namespace beside the name, the generation beside the sender."""
    if isinstance(node, ast.BoolOp):
        for left_out in node.values:
            rest = [text.of(one) for one in node.values if one is not left_out]
            word = " and " if isinstance(node.op, ast.And) else " or "
            yield text.edit("condition left out", node, f"({word.join(rest)})")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield text.edit("opposite", node, text.of(node.operand))
    if isinstance(node, ast.IfExp):
        yield text.edit("always", node, f"({text.of(node.body)})")
        yield text.edit("never", node, f"({text.of(node.orelse)})")
    if isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Constant) and not _names(node.test):
        yield text.edit("never", node.test, "False")


def _names(node: ast.AST) -> bool:
    """Whether what comes later needs a name of it."""
    return any(isinstance(one, ast.NamedExpr) for one in ast.walk(node))


def _doubt(text: Text, node: ast.AST) -> Iterator[Edit]:
    """A certainty that nobody has, or a yes for a no."""
    strict = isinstance(node, ast.keyword) and node.arg == "strict"  # `zip` asserts by it what is so
    if isinstance(node, ast.keyword | ast.Assign | ast.Return) and _is_constant(node.value, bool) and not strict:
        yield text.edit("yes for no", node.value, "False" if text.of(node.value) == "True" else "True")  # type: ignore[arg-type]
    if isinstance(node, ast.keyword) and node.arg == "uncertain" and not isinstance(node.value, ast.Constant):
        yield text.edit("doubt forgotten", node.value, "False")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _OF_ALL:
        yield text.edit("of all for of any", node.func, _OF_ALL[node.func.id])


def _one_for_another(text: Text, node: ast.AST) -> Iterator[Edit]:
    """An outcome, state or error for another of those that the file knows."""
    if not isinstance(node, ast.Module):
        return
    members: dict[str, dict[str, None]] = defaultdict(dict)
    found = [
        one
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute)
        and isinstance(one.value, ast.Name)
        and one.attr.isupper()
        and one.value.id[:1].isupper()
        and isinstance(one.ctx, ast.Load)
    ]
    for one in found:
        members[one.value.id][one.attr] = None  # type: ignore[attr-defined]
    for one in found:
        others = [other for other in members[one.value.id] if other != one.attr]  # type: ignore[attr-defined]
        if others:
            yield text.edit("one for another", one, f"{text.of(one.value)}.{others[one.lineno % len(others)]}")


def _of_another(text: Text, node: ast.AST) -> Iterator[Edit]:
    """The answer, lock or name of another: two arguments of one call change places; a key loses its first part."""
    name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    if isinstance(node, ast.Call) and len(node.args) >= 2 and name not in _SAME_EITHER_WAY:
        first, second = node.args[:2]
        if isinstance(first, ast.Name | ast.Attribute) and isinstance(second, ast.Name | ast.Attribute):
            start, end = text.span(first)[0], text.span(second)[1]
            yield Edit(text.path, "of another", start, end, f"{text.of(second)}, {text.of(first)}")
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.UnaryOp | ast.Constant):
        place = text.of(node.slice)
        if place in ("0", "-1") and isinstance(node.ctx, ast.Load):
            yield text.edit("of another", node.slice, "-1" if place == "0" else "0")


OPERATORS: tuple[Operator, ...] = (
    _left_out,
    _other_order,
    _bound,
    _spelling,
    _condition,
    _doubt,
    _one_for_another,
    _of_another,
)


def edits(path: Path, source: bytes) -> Iterator[tuple[Operator, Edit]]:
    """Every defect that can be planted in a file, with what makes it. Some may not be Python."""
    text = Text(path, source)
    for node in _acting(text.tree):
        for operator in OPERATORS:
            for edit in operator(text, node):
                yield operator, edit


def is_defect(edit: Edit, source: bytes) -> bool:
    """It is Python, and other Python than before."""
    try:
        planted = ast.parse(edit.planted(source))
    except SyntaxError:
        return False
    return ast.dump(planted) != ast.dump(ast.parse(source))


def _acting(node: ast.AST) -> Iterator[ast.AST]:
    """What runs: not annotations, decorators, texts, nor what only type checkers read."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr | ast.AnnAssign):
                yield from _acting(child)


def sources(room: str, root: Path = ROOT, without: Sequence[str] = ()) -> list[Path]:
    """The files of a room, relative to the tree; not those of other rooms within it."""
    product = root / "sbpair"
    floors = [product / floor for floor in DECIDING]
    folders = [product / room, *(floor / room for floor in floors)]
    found = {one.relative_to(root) for folder in folders for one in folder.rglob("*.py")}
    return sorted(found - {path for other in without for path in sources(other, root)})


def room_tests(room: str) -> list[str]:
    """Folders and files of the room's tests, with those of the contracts that it keeps with others.

    The verbs do nothing but run the runtime: their tests are its tests.
    """
    word, folder = room.rpartition("/")[2], ROOT / "tests" / "contract"
    kept = f"from sbpair.{room.replace('/', '.')}." in (folder / "conftest.py").read_text("utf-8")
    contracts = folder.glob("test_*.py" if kept else f"test_{word}*.py")
    verbs = part("operations") if any(path.is_relative_to("sbpair/runtime") for path in sources(room)) else []
    return sorted({*part(word), *verbs, *(one.relative_to(ROOT).as_posix() for one in contracts)})


def files_of(paths: Iterable[str], root: Path = ROOT) -> list[str]:
    """The test files that these folders and files name."""
    found = {one for path in paths for one in (root / path).rglob("test_*.py")}
    found |= {root / path for path in paths if path.endswith(".py")}
    return sorted(one.relative_to(root).as_posix() for one in found)


def chosen(room: str, count: int, seed: int, root: Path = ROOT, without: Sequence[str] = ()) -> list[Edit]:
    """So many defects of a room, each kind as likely as any other; the seed decides which."""
    kinds: dict[int, list[Edit]] = defaultdict(list)
    for path in sources(room, root, without):
        for operator, edit in edits(path, (root / path).read_bytes()):
            kinds[OPERATORS.index(operator)].append(edit)
    dice = random.Random(f"{seed} {room}")
    found: list[Edit] = []
    left = [kinds[place] for place in sorted(kinds)]
    while left and len(found) < count:
        kind = dice.choice(left)
        edit = kind.pop(dice.randrange(len(kind)))
        if is_defect(edit, (root / edit.path).read_bytes()):
            found.append(edit)
        left = [one for one in left if one]
    return found


class Copy:
    """A copy of the tree, in which one defect at a time is planted and the tests run."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder / "tree"
        shutil.copytree(root, self.folder, ignore=shutil.ignore_patterns(*IGNORED))
        self._written = 0
        (CACHE / "cosmos").mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, source: bytes) -> None:
        """With a time of its own, so that no compiled file of another version passes for this one's."""
        self._written += 1
        (self.folder / path).write_bytes(source)
        os.utime(self.folder / path, (self._written, self._written))

    def run(self, command: Sequence[str], seconds: float, **variables: str) -> tuple[int | None, str]:
        """Its exit code, None if it took longer; and what it printed."""
        environment = os.environ | {"PYTHONPATH": str(self.folder), "PYTHONHASHSEED": "0"} | variables
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment.setdefault("SBPAIR_TEST_COSMOS_SERVER", str(CACHE / "cosmos"))  # installed once
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                # What the tests have started themselves is ended by the guard of `tests.survivors`.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            said.seek(0)
            return code, said.read()

    def tests(self, paths: Sequence[str], seconds: float, *more: str, **variables: str) -> tuple[int | None, str]:
        options = ("-m", "not spark", "-p", "no:cacheprovider", "-p", "tests.reached", *more)
        return self.run(["-m", "pytest", "-q", "--tb=no", *options, *paths], seconds, **variables)

    def record(self, files: Sequence[str], sources: Sequence[str], cache: Path) -> dict[str, Record]:
        """What each test of these files reaches: as it was recorded, or recorded now."""

        now = {source: digest(self.folder / source) for source in sources}

        def known() -> dict[str, Record]:
            read = {file: Record.read(cache, file) for file in files}
            return {file: one for file, one in read.items() if one and one.holds(self.folder, file, now)}

        cache.mkdir(parents=True, exist_ok=True)
        if left := [file for file in files if file not in known()]:
            workers = ("-n", str(WAITING * (os.cpu_count() or 1))) if len(left) > 1 else ()
            options = (f"--timeout={SLOWEST_TEST_SECONDS}", "--dist", "loadfile", *workers)
            self.tests(left, CLEAN_SECONDS, *options, **{FOLDER: str(cache)})
        return known()

    def select(self, names: Sequence[str], seconds: float, *, each: float) -> tuple[int | None, str]:
        """Run these tests alone, until one fails, or takes longer than `each` seconds."""
        wanted = self.folder.parent / "selected"
        wanted.write_text("\n".join(names), "utf-8")
        files = dict.fromkeys(name.partition("::")[0] for name in names)
        return self.tests([*files], seconds, "-x", f"--timeout={each:.0f}", **{SELECTED: str(wanted)})

    def histories(self, seed: int, count: int, seconds: float) -> tuple[int | None, str]:
        return self.run(["-c", _HISTORIES.format(first=seed, last=seed + count, hours=HISTORY_HOURS)], seconds)


_HISTORIES = """
from tests.simulation.__main__ import live
for seed in range({first}, {last}):
    told = live(seed, {hours})
    if told.failure:
        raise SystemExit(f"FAILED seed {{seed}}: {{told.failure}}")
"""


_LOADED = """
import sys
import tests.simulation.__main__
print("\\n".join(str(getattr(one, "__file__", "")) for one in [*sys.modules.values()]))
"""


def _reason(said: str) -> str:
    failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (failed or said.strip().splitlines() or [""])[-1][:160]


def shown(edit: Edit, source: bytes) -> str:
    """The edit as a patch, without context."""
    before, after = source.decode().splitlines(), edit.planted(source).decode().splitlines()
    lines = difflib.unified_diff(before, after, str(edit.path), edit.kind, lineterm="", n=0)
    return "\n".join(f"    {line}" for line in lines)


SURVIVED, TOO_SLOW = "survived", "too slow"
Outcome = tuple[str, str]
"""What became of a defect, and what told."""


@dataclass
class Judge:
    """Shows defects to what may notice them.

    Args:
        tests: folders and files, whose tests are chosen by what they reach.
        last: of them, those whose tests that start processes are asked as well.
        histories: how many of the simulation.
        seconds: how long the tests that are chosen for one defect may take, by the records.
    """

    copy: Copy
    tests: Sequence[str]
    last: Sequence[str] = ()
    histories: int = 0
    seconds: float = 60.0
    cache: Path = CACHE
    records: Mapping[str, Record] = field(default_factory=dict)
    simulated: frozenset[str] = frozenset()
    honest: dict[str, bool] = field(default_factory=dict)
    """Whether a test passes without a defect, as far as it was asked."""

    def prepare(self, sources: Sequence[Path]) -> str:
        """Record what the tests reach, if that is not known; a sentence about it.

        Raises:
            SystemExit: there is no test.
        """
        names = [path.as_posix() for path in sources]
        self.records = self.copy.record(files_of(self.tests, self.copy.folder), names, self.cache)
        tests = [one for record in self.records.values() for one in record.tests.values()]
        if not any(test.passed for test in tests):
            raise SystemExit("Without a defect, no test passes.")
        if self.histories:
            _, said = self.copy.run(["-c", _LOADED], START_SECONDS)
            self.simulated = frozenset(said.splitlines())
        failed = [name for one in self.records.values() for name, test in one.tests.items() if not test.passed]
        skipped = f"; without those that fail or are skipped without a defect: {len(failed)}" if failed else ""
        return f"{len(tests)} tests of {len(self.records)} files are known{skipped}."

    def reaching(self, edit: Edit, source: bytes) -> list[str]:
        """The tests that run its line, or else its file: file by file, first what takes least, as there is time for."""
        for lines in (statement_lines(edit, source), range(0)):  # what no test reaches may run with the import
            found = {file: [*reached_by(one, edit.path.as_posix(), lines)] for file, one in self.records.items()}
            if any(found.values()):
                break
        return self._within_time(found)

    def starting(self) -> list[str]:
        """The tests of files in which some start processes: what they reach there is not known."""
        files = set(files_of(self.last, self.copy.folder))
        found = {
            file: [name for name, test in one.tests.items() if test.passed]
            for file, one in self.records.items()
            if file in files and one.processes
        }
        return self._within_time(found)

    def _within_time(self, found: Mapping[str, Sequence[str]]) -> list[str]:
        """As many of the cheapest as there is time for, file by file."""
        costs = {name: self._cost(file, [name]) for file, names in found.items() for name in names}
        left, chosen = self.seconds, defaultdict[str, list[str]](list)
        for name in sorted(costs, key=costs.__getitem__):
            left -= costs[name]
            if left > 0 and self.honest.get(name, True):
                chosen[name.partition("::")[0]].append(name)
        files = sorted(chosen, key=lambda file: sum(costs[name] for name in chosen[file]))
        return [name for file in files for name in chosen[file]]

    def _cost(self, file: str, names: Iterable[str]) -> float:
        return sum(self.records[file].tests[name].seconds for name in names)

    def outcome(self, edit: Edit) -> Outcome:
        """Plant it, and ask one after another."""
        source = (self.copy.folder / edit.path).read_bytes()
        reaching = self.reaching(edit, source)
        others = [name for name in self.starting() if name not in reaching]
        try:
            self.copy.write(edit.path, edit.planted(source))
            found = self._by_tests("tests", reaching, edit, source)
            if found is None and self.histories and str(self.copy.folder / edit.path) in self.simulated:
                found = self._by_histories()
            return found or self._by_tests("processes", others, edit, source) or (SURVIVED, f"{len(reaching)} asked")
        finally:
            self.copy.write(edit.path, source)

    def _by_tests(self, what: str, names: Sequence[str], edit: Edit, source: bytes) -> Outcome | None:
        names = [name for name in names if self.honest.get(name, True)]
        if not names:
            return None
        costs = [self._cost(name.partition("::")[0], [name]) for name in names]
        code, said = self.copy.select(
            names, SLOWER * sum(costs) + START_SECONDS, each=SLOWER * max(costs) + START_SECONDS
        )
        if code is None:
            return TOO_SLOW, what
        if code == 0:
            return None
        failed = _failed(said, names)
        if failed and not self._passes_without(failed, edit, source):
            return self._by_tests(what, names, edit, source)
        return f"found by {what}", _reason(said)

    def _passes_without(self, name: str, edit: Edit, source: bytes) -> bool:
        if name not in self.honest:
            planted = (self.copy.folder / edit.path).read_bytes()
            self.copy.write(edit.path, source)
            self.honest[name] = self.copy.select([name], CLEAN_SECONDS, each=SLOWEST_TEST_SECONDS)[0] == 0
            self.copy.write(edit.path, planted)
        return self.honest[name]

    def _by_histories(self) -> Outcome | None:
        code, said = self.copy.histories(1, self.histories, START_SECONDS + 20 * self.histories)
        if code is None:
            return TOO_SLOW, "histories"
        return ("found by histories", _reason(said)) if code else None


def _failed(said: str, names: Sequence[str]) -> str:
    """The test that failed, as pytest names it; "" where a file could not even be read."""
    lines = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
    found = [name for line in lines for name in names if line.split(" ", 1)[1].startswith(name)]
    return max(found, key=len, default="")


def statement_lines(edit: Edit, source: bytes) -> range:
    """The lines of the statement that is edited; none outside functions, where an import runs them.

    Of a statement with a body, those of its head.
    """
    first, last = (source[:offset].count(b"\n") + 1 for offset in (edit.start, edit.end))
    found, within = range(0), False
    for node in ast.walk(ast.parse(source)):  # what is inside comes later
        if isinstance(node, ast.stmt) and node.lineno <= first and last <= (node.end_lineno or last):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                within = node.body[0].lineno <= first
            body = getattr(node, "body", None)
            end = body[0].lineno if body and body[0].lineno > node.lineno else (node.end_lineno or last) + 1
            found = range(node.lineno, end)
            if body and last >= end:  # several statements in it
                found = range(first, last + 1)
    return found if within else range(0)


def judge(planted: Sequence[Edit], judge: Judge, *, minutes: float, say: Callable[[str], None]) -> list[Edit]:
    """Plant one after another in the copy; those that nothing found. Stops after so many minutes."""
    began, survivors, counts = time.monotonic(), [], Counter[str]()
    for number, edit in enumerate(planted, 1):
        if time.monotonic() - began > 60 * minutes:
            break
        source, started = (judge.copy.folder / edit.path).read_bytes(), time.monotonic()
        outcome, why = judge.outcome(edit)
        counts[outcome] += 1
        line = source[: edit.start].count(b"\n") + 1
        seconds = time.monotonic() - started
        say(f"{number}. {outcome}: {edit.path}:{line}, {edit.kind}, {seconds:.0f} s. {why}".rstrip())
        if outcome == SURVIVED:
            survivors.append(edit)
            say(shown(edit, source))
    total = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    say(f"{sum(counts.values())} of {len(planted)} planted: {total}. {time.monotonic() - began:.0f} s.")
    return survivors


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n\n")[0])
    parser.add_argument("room", help="a folder below sbpair, or a word with folders on several floors")
    parser.add_argument("--count", type=int, default=30, help="how many defects")
    parser.add_argument("--seed", type=int, default=0, help="decides which")
    parser.add_argument("--without", nargs="*", default=(), help="rooms within it whose files are left alone")
    parser.add_argument("--histories", type=int, default=40, help="of the simulation, for what the tests do not find")
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests for each defect, by their records")
    parser.add_argument("--minutes", type=float, default=60.0, help="plant no more after so long")
    parser.add_argument(
        "--commands", action="store_true", help="ask the room's tests of commands as well: minutes each"
    )
    parser.add_argument("--tests", nargs="*", help="files and folders of tests instead of the room's")
    parser.add_argument("--only", type=int, nargs="*", help="only these of them, by their numbers from 1 on")
    parser.add_argument("--list", action="store_true", help="show the defects, and plant none")
    options = parser.parse_args(None if arguments is None else list(arguments))
    if not sources(options.room) or not room_tests(options.room):
        print(f"No folder below sbpair, or no tests, are named {options.room}.", file=sys.stderr)
        return 2
    planted = chosen(options.room, options.count, options.seed, without=options.without)
    if options.only:
        planted = [edit for number, edit in enumerate(planted, 1) if number in options.only]
    if options.list:
        for edit in planted:
            print(shown(edit, (ROOT / edit.path).read_bytes()))
        return 0

    def say(line: str) -> None:
        print(line, flush=True)

    guard_run()  # also of an interrupted campaign nothing goes on
    own = options.tests or [
        path for path in room_tests(options.room) if options.commands or not path.startswith("tests/cli/")
    ]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(ROOT, Path(folder))
        shown_to = Judge(copy, [*PATHS, *own], own, options.histories, options.seconds)
        say(shown_to.prepare(sorted({edit.path for edit in planted})))
        return 1 if judge(planted, shown_to, minutes=options.minutes, say=say) else 0


if __name__ == "__main__":
    sys.exit(main())
