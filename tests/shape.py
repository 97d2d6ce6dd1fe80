"""The shape of the code, measured and bounded: `python -m tests.shape` prints a table and ends with 1 where a bound is
broken.

A bound holds for all, or names what is over it: an exception is the figure of today, and may only shrink. What has
shrunk is refused until its exception is lowered, so that it cannot grow again. A capability that needs more lines
raises the bound of its room in the same commit, which thereby says what it costs.
"""

import ast
import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "sbpair"

LINES = 104_450
ROOMS = {
    "": 1_700,
    "amqp": 2_220,
    "azure": 5_200,
    "cli": 12_730,
    "clients": 2_310,
    "core": 23_100,
    "emulator": 13_780,
    "engine": 4_560,
    "gateway": 3_350,
    "journal": 610,
    "operations": 7_990,
    "pipeline": 9_230,
    "render": 5_030,
    "runtime": 10_370,
    "settings": 1_750,
    "sqlfilter": 1_170,
}
"""Lines of each room, a hundredth more than they had when this was set; "" are the modules that stand in none."""
CAPABILITIES = ("transfer", "failover", "replication", "inspection", "cost")
"""Folders of these names on every floor are one capability; every other file belongs to that of its room."""

CLASS_LINES = 350
CLASSES: dict[str, int] = {}
FUNCTION_LINES = 60
FUNCTIONS: dict[str, int] = {}
PARAMETERS = 10
PARAMETER_LISTS = {
    # A declaration: what an application may say of a consumer.
    "clients/consumer.py:__init__": 11
}
MESSAGE_FILES = 13
MIRRORED_PERCENT = 60


@dataclass
class Measured:
    """Figures by the name of what they are of: a room, or `file:name`."""

    rooms: Counter[str] = field(default_factory=Counter)
    capabilities: Counter[str] = field(default_factory=Counter)
    classes: dict[str, int] = field(default_factory=dict)
    functions: dict[str, int] = field(default_factory=dict)
    parameters: dict[str, int] = field(default_factory=dict)


def measure(package: Path) -> Measured:
    """Count every file below a package.

    A function is as long as what it does, without its docstring. Declarations of commands are no functions here: their
    lines are options.
    """
    found = Measured()
    for file in sorted(package.rglob("*.py")):
        path = file.relative_to(package)
        source = file.read_text("utf-8")
        room = path.parts[0] if len(path.parts) > 1 else ""
        lines = len(source.splitlines())
        found.rooms[room] += lines
        found.capabilities[next((part for part in path.parts if part in CAPABILITIES), room)] += lines
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                _count(found, f"{path.as_posix()}:{node.name}", node)
    return found


def _count(found: Measured, name: str, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    lines = _length(node)
    if isinstance(node, ast.ClassDef):
        found.classes[name] = max(found.classes.get(name, 0), lines)
    elif not any(_declares(decorator) for decorator in node.decorator_list):
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            lines -= _length(first)
        found.functions[name] = max(found.functions.get(name, 0), lines)
        given = node.args
        names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        count = len({*names} - {"self", "cls"}) + bool(given.vararg) + bool(given.kwarg)
        found.parameters[name] = max(found.parameters.get(name, 0), count)


def _length(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _declares(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called) in {"command", "app.callback"}


def broken(what: str, figures: Mapping[str, int], bound: int, exceptions: Mapping[str, int]) -> Iterator[str]:
    """What is over its bound, and exceptions that have outlived what they allowed."""
    for name, figure in figures.items():
        if figure > exceptions.get(name, bound):
            yield f"{what} of {name}: {figure}, at most {exceptions.get(name, bound)}"
    for name, allowed in exceptions.items():
        figure = figures.get(name, 0)
        if figure <= bound:
            yield f"{what} of {name}: {figure}, so that it needs no exception any more"
        elif figure < allowed:
            yield f"{what} of {name}: {figure}, so that its exception of {allowed} is to be lowered"


def over_budget(rooms: Mapping[str, int], budgets: Mapping[str, int], total: int) -> Iterator[str]:
    """Rooms with more lines than they may have, or with no bound, and the sum of all."""
    for room, lines in rooms.items():
        if room not in budgets:
            yield f"The room {room} has {lines} lines and no bound"
        elif lines > budgets[room]:
            yield f"Lines of {room or 'the package itself'}: {lines}, at most {budgets[room]}"
    if sum(rooms.values()) > total:
        yield f"Lines in all: {sum(rooms.values())}, at most {total}"


def modules(package: Path) -> dict[str, Path]:
    """Modules of a package by their full names; what only marks a folder has no tests of its own."""
    files = (file for file in package.rglob("*.py") if not file.stem.startswith("__"))
    return {".".join(file.relative_to(package.parent).with_suffix("").parts): file for file in files}


def mirrored(package: Path, tests: Path) -> set[str]:
    """Modules that tests at the mirrored place are about: in the folder of the same path one is named after the module,
    or imports it, by itself or by what its package passes on."""
    found = set()
    about: dict[Path, str] = {}
    imported: dict[Path, set[str]] = {}
    for name, file in modules(package).items():
        folder = tests / file.relative_to(package).parent
        if folder not in about:
            files = list(folder.glob("*.py"))
            about[folder] = "".join(f"_{test.stem.removeprefix('test_')}_ " for test in files)
            imported[folder] = set().union(*(_imported(test, package) for test in files))
        if f"_{file.stem}_" in about[folder] or name in imported[folder]:
            found.add(name)
    return found


def _imported(file: Path, package: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {alias.name for alias in node.names}
            found.update((node.module, *(f"{node.module}.{name}" for name in names)))
            found.update(_passed_on(package.parent / Path(*node.module.split("."), "__init__.py"), names))
    return found


def _passed_on(package: Path, names: set[str]) -> Iterator[str]:
    if package.is_file():
        for node in ast.walk(ast.parse(package.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and names & {alias.name for alias in node.names}:
                yield node.module


MESSAGES = 200


def files_of_a_message(messages: int = MESSAGES) -> set[str]:
    """Drain so many messages between two embedded namespaces, and name the files whose functions run for each."""
    from sbpair.connect import open_sides
    from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
    from sbpair.core.pairing import Pair, SendAvailabilityOptions
    from sbpair.core.rewrite import compose, for_backlog
    from sbpair.emulator import EmulatorThread
    from sbpair.operations import DrainRequest, drain

    calls: Counter[CodeType] = Counter()

    def entered(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            calls[frame.f_code] += 1

    async def drained(emulator: EmulatorThread) -> None:
        def access(name: str) -> NamespaceAccess:
            text = Secret(emulator.connection_string(name))
            authority = emulator.call(lambda emulator: str(emulator.ca_path))
            host = host_of(text.reveal())
            return NamespaceAccess(name, host, AuthMethod.CONNECTION_STRING, text, ca_file=authority, embedded=True)

        pair = Pair("embedded", access("contoso"), access("fabrikam"), SendAvailabilityOptions(1))
        async with open_sides(pair) as sides:
            sender = sides.secondary.sender(backlog)
            payloads = [for_backlog(compose(body=f"{n}", message_id=f"m{n}"), "orders") for n in range(messages)]
            await sender.send(payloads, timeout_seconds=30)
            await sender.close()
            sys.setprofile(entered)
            try:
                result = await drain(sides, DrainRequest(ledger=Path(folder, "drain.jsonl")))
            finally:
                sys.setprofile(None)
        assert result.report.forwarded == messages, result.closing

    backlog = "contoso/x-servicebus-transfer/0"
    with EmulatorThread(["contoso", "fabrikam"]) as emulator, tempfile.TemporaryDirectory() as folder:
        emulator.namespace("contoso").create_queue("orders")
        emulator.namespace("fabrikam").create_queue(backlog)
        assert threading.current_thread() is threading.main_thread(), "the profile is of this thread alone"
        asyncio.run(drained(emulator))
    files = (Path(code.co_filename) for code, count in calls.items() if count >= messages)
    return {file.relative_to(PACKAGE).as_posix() for file in files if file.is_relative_to(PACKAGE)}


def table(rows: Iterable[tuple[str, object, object]]) -> Iterator[str]:
    """Rows of a figure and its bound."""
    for what, figure, bound in rows:
        yield f"{what:<72}{figure:>8}{bound if bound is not None else '':>8}"


def main() -> int:
    """Measure, print, judge: 1 where a bound is broken."""
    found = measure(PACKAGE)
    touched = files_of_a_message()
    every = modules(PACKAGE)
    percent = 100 * len(mirrored(PACKAGE, HERE)) // len(every)
    rows: list[tuple[str, object, object]] = [("", "is", "at most")]
    rows += [(f"lines: {room or 'the package itself'}", lines, ROOMS.get(room)) for room, lines in found.rooms.items()]
    rows.append(("lines in all", found.rooms.total(), LINES))
    rows += [(f"lines of the capability {name}", found.capabilities[name], None) for name in CAPABILITIES]
    for what, figures, bound in (
        ("largest class", found.classes, CLASS_LINES),
        ("longest function", found.functions, FUNCTION_LINES),
        ("longest parameter list", found.parameters, PARAMETERS),
    ):
        name = max(figures, key=lambda name: figures[name])
        rows.append((f"{what}: {name}", figures[name], bound))
    rows.append(("files that every drained message touches", len(touched), MESSAGE_FILES))
    rows.append((f"modules with tests at the mirrored place, % (at least {MIRRORED_PERCENT})", percent, None))
    print(*table(rows), sep="\n")
    print("Touched by every drained message:", *sorted(touched))
    wrong = [
        *over_budget(found.rooms, ROOMS, LINES),
        *broken("Lines of the class", found.classes, CLASS_LINES, CLASSES),
        *broken("Lines of the function", found.functions, FUNCTION_LINES, FUNCTIONS),
        *broken("Parameters", found.parameters, PARAMETERS, PARAMETER_LISTS),
    ]
    if len(touched) > MESSAGE_FILES:
        wrong.append(f"Files that every drained message touches: {len(touched)}, at most {MESSAGE_FILES}")
    if percent < MIRRORED_PERCENT:
        wrong.append(f"Modules with tests at the mirrored place: {percent} %, at least {MIRRORED_PERCENT} %")
    print(*(f"OVER: {line}" for line in wrong), sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
