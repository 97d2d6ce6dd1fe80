"""The table of `exit_codes.py`: each command by each exit code of the contract, on the real process."""

import ast
import json
import re
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from sbpair.cli.app import app
from sbpair.core.access import parse_connection_string
from sbpair.core.outcome import Exit
from sbpair.emulator.control import FaultControl
from tests.cli.exit_codes import TABLE, Cell, Mistake, Never, Proven, Run, Stopped
from tests.cli.process import Ran, Sbpair
from tests.cli.test_mistakes import MISTAKES
from tests.waiting import LIMIT_SECONDS

TESTS = Path(__file__).parents[1]
NOBODY = "Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=Root;SharedAccessKey=QUJD;UseDevelopmentEmulator=true"
_PREPARE = """\
import asyncio
from sbpair.connect import open_sides
from sbpair.core.entities import QueueSettings
from sbpair.core.pairing import DOCUMENTED_SETTINGS
from sbpair.core.replication.settings import replicated_settings
from sbpair.core.rewrite import compose, for_backlog
from sbpair.settings import load

async def main():
    async with open_sides(load().pair("right")) as sides:
        await sides.primary_admin.create_queue("orders", QueueSettings())
        for admin in (sides.primary_admin, sides.secondary_admin):
            await admin.create_queue("parcels", replicated_settings(None))
        backlogs = (("local", 2, ""), ("half", 1, ""), ("astray", 1, "nowhere"), ("stranded", 1, "orders"))
        for primary, indexes, destination in backlogs:
            for index in range(indexes):
                path = f"{primary}-primary/x-servicebus-transfer/{index}"
                await sides.secondary_admin.create_queue(path, DOCUMENTED_SETTINGS)
                if destination:
                    payload = for_backlog(compose(body="x", message_id=path), destination)
                    await sides.secondary.sender(path).send([payload], timeout_seconds=30)

asyncio.run(main())
"""


@dataclass
class World:
    """A pair that is well, one with a stranded message, one with a message to nowhere, one whose primary is away, and
    three of which both sides refuse, are not there, or say nothing."""

    runner: Sbpair
    faults: FaultControl
    silent: tuple[socket.socket, socket.socket]

    def run(self, cell: Run) -> Ran:
        if not cell.fault:
            return self.runner(*cell.line.split(), stdin=cell.stdin)
        self.faults.add(cell.fault)
        try:
            return self.runner(*cell.line.split(), stdin=cell.stdin)
        finally:
            self.faults.clear()

    def stop(self, cell: Stopped, code: Exit) -> Ran:
        """Send the signal once a side has been called, and is waited for."""
        process = self.runner.begin(*cell.line.split(), stdin=subprocess.PIPE)
        try:
            assert process.stdin is not None
            process.stdin.write("one\n")
            process.stdin.flush()
            called, _, _ = select.select(self.silent, [], [], 60)
            assert called, process.communicate()
            process.send_signal(signal.SIGINT if code is Exit.INTERRUPTED else signal.SIGTERM)
            out, err = process.communicate(timeout=LIMIT_SECONDS)
        finally:
            process.kill()
            _hang_up(self.silent)
        return Ran(process.returncode, out, err)


def _hang_up(silent: tuple[socket.socket, ...]) -> None:
    """Take the calls that nobody answered, so that the next one is news."""
    while waiting := select.select(silent, [], [], 0)[0]:
        for one in waiting:
            one.accept()[0].close()


@pytest.fixture(scope="module")
def world(local: Sbpair) -> Iterator[World]:
    state = json.loads((local.home / "state" / "sbpair" / "emulator.json").read_text(encoding="utf-8"))
    files = {one["name"]: Path(one["connection_string_file"]) for one in state["namespaces"]}
    silent = (_listening(), _listening())
    runner = replace(local, environ=_secrets(files, [one.getsockname()[1] for one in silent]))
    configuration = {"version": 1, "pairs": _pairs(files, state["ca_file"])}
    (runner.home / "sbpair.yaml").write_text(json.dumps(configuration), encoding="utf-8")
    (runner.home / "line").write_text("a file, not a folder", encoding="utf-8")
    try:
        runner.python(_PREPARE)
        yield World(runner, _control(state, files["local-secondary"]), silent)
    finally:
        for one in silent:
            one.close()


def _listening() -> socket.socket:
    """A port that takes connections and never says anything."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(100)
    return listener


def _secrets(files: dict[str, Path], silent: list[int]) -> dict[str, str]:
    wrong = [file.read_text(encoding="utf-8").strip().replace("Key=", "Key=AAAA") for file in files.values()]
    return {
        "REFUSED_1": wrong[0],
        "REFUSED_2": wrong[1],
        "GONE_1": NOBODY.format(port=1),
        "GONE_2": NOBODY.format(port=2),
        "MUTE_1": NOBODY.format(port=silent[0]),
        "MUTE_2": NOBODY.format(port=silent[1]),
    }


def _pairs(files: dict[str, Path], ca_file: str) -> dict[str, Any]:
    def side(label: str, secret: dict[str, str]) -> dict[str, Any]:
        return {"namespace": label, "host": "localhost", "connection_string": secret, "ca_file": ca_file}

    first, second = ({"file": str(file)} for file in files.values())

    def lost(name: str) -> dict[str, Any]:
        sides = [side(f"local-{role}", {"env": f"{name}_{n}"}) for n, role in ((1, "primary"), (2, "secondary"))]
        return {"primary": sides[0], "secondary": sides[1], "backlog_queues": 2, "entities": ["orders"]}

    here, there = side("local-primary", first), side("local-secondary", second)
    astray, stranded = side("astray-primary", first), side("stranded-primary", first)
    return {
        "right": {"primary": here, "secondary": there, "backlog_queues": 2, "entities": ["orders"]},
        "astray": {"primary": astray, "secondary": there, "backlog_queues": 1},
        "stranded": {"primary": stranded, "secondary": there, "backlog_queues": 1},
        "half": {"primary": side("half-primary", {"env": "GONE_1"}), "secondary": there, "backlog_queues": 1},
        "refused": lost("REFUSED"),
        "gone": lost("GONE"),
        "mute": lost("MUTE"),
    }


def _control(state: dict[str, Any], file: Path) -> FaultControl:
    parts = parse_connection_string(file.read_text(encoding="utf-8").strip())
    key_name, key = parts["sharedaccesskeyname"], parts["sharedaccesskey"]
    return FaultControl(state["control"], "local-secondary", ca_file=state["ca_file"], key_name=key_name, key=key)


CELLS = [(command, code, cell) for command, row in TABLE.items() for code, cell in row.items()]


def _named(kind: type[Cell]) -> list[Any]:
    """Cells of one kind as parameters."""
    found = [one for one in CELLS if isinstance(one[2], kind)]
    return [pytest.param(cell, code, id=f"{command}-{int(code)}") for command, code, cell in found]


@pytest.mark.parametrize(("cell", "code"), _named(Run))
def test_it_ends_with_the_code(world: World, cell: Run, code: Exit) -> None:
    ran = world.run(cell)
    assert ran.code == code, ran
    assert "Traceback" not in ran.stderr
    if code not in (Exit.OK, Exit.FINDINGS):
        assert ran.stderr.strip(), "what went wrong is said"


@pytest.mark.parametrize(("cell", "code"), _named(Stopped))
def test_a_signal_ends_it_with_the_code(world: World, cell: Stopped, code: Exit) -> None:
    ran = world.stop(cell, code)
    assert ran.code == code, ran
    assert "Traceback" not in ran.stderr


def test_the_table_has_every_command_and_every_code() -> None:
    assert set(TABLE) == set(_leaves(get_command(app), ()))
    assert {code for row in TABLE.values() for code in row} == set(Exit)
    assert all(len(row) == len(Exit) for row in TABLE.values())


def _leaves(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    """Every command that does something, by its words; a group that also works on its own is one."""
    below = getattr(command, "commands", None)
    if below is None or (path and command.invoke_without_command):
        yield " ".join(path)
    for name in below or ():
        yield from _leaves(below[name], (*path, name))


def test_what_is_said_to_be_proven_elsewhere_is() -> None:
    for command, code, cell in CELLS:
        if isinstance(cell, Proven):
            assert re.search(rf"\b{int(code)}\b", _source(cell.test)), (command, code, cell)
        if isinstance(cell, Mistake):
            assert (cell.line, int(code)) in [(line, expected) for line, expected, _ in MISTAKES], (command, cell)


def _source(test: str) -> str:
    """Text of a test or fixture with its decorators, and of the functions of its module that it calls."""
    file, _, name = test.partition("::")
    text = (TESTS / file).read_text(encoding="utf-8")
    functions = {one.name: one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef)}
    called = {one.id for one in ast.walk(functions[name]) if isinstance(one, ast.Name)} & set(functions)
    return "\n".join(_lines(text, functions[one]) for one in (name, *sorted(called)))


def _lines(text: str, function: ast.FunctionDef) -> str:
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    return "\n".join(text.splitlines()[first - 1 : function.end_lineno])


def test_what_cannot_happen_has_its_reason() -> None:
    assert all(len(cell.why.split()) > 2 for _, _, cell in CELLS if isinstance(cell, Never))
