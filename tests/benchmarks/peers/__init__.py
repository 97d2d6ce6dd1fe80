"""What a drained message costs movers that others would write with other AMQP clients: qpid-proton and rhea.

    python -m tests.benchmarks --only peers [--quick]

Each way is a fresh process beside embedded namespaces that are a process too. A way takes every message of ten backlog
queues, puts it into the form that its application sent, sends it to the primary, and completes it when the primary has
it; messages are in flight side by side. The peers keep no ledger, no order of sessions, and no bytes as they were.

CPU of a message is what so many more messages cost: the start of a process is taken off. Runs alternate, medians count.
A client that is not there is left out, with the reason: qpid-proton is taken from whichever of this Python and
/usr/bin/python3 can import `proton` (Debian: python3-qpid-proton), rhea is installed by npm into a folder of its own.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from sbpair.core.access import NamespaceAccess, parse_connection_string
from sbpair.engine.auth import make_sas_token
from tests.benchmarks.embedded import BACKLOG, DESTINATION, Embedded, embedded
from tests.benchmarks.movers import measure
from tests.benchmarks.table import Row

HERE = Path(__file__).parent
RHEA = "rhea@3.0.5"
WINDOW = 200
"""Messages of one queue in flight."""
_INSTALL_SECONDS = 300
_TOKEN_SECONDS = 3600


@dataclass(frozen=True)
class Side:
    """One namespace, as a client of any language needs it. `tokens`: by path, for $cbs."""

    host: str
    port: int
    tokens: dict[str, str]


Way = Callable[[Embedded, int], float]
"""CPU seconds of moving so many messages of those that wait."""


def run(quick: bool) -> list[dict[str, Any]]:
    """All figures, in a minute or, not `quick`, five."""
    messages, rounds = (5_000, 1) if quick else (20_000, 5)
    rows: list[Row] = []
    with embedded() as on, tempfile.TemporaryDirectory() as folder:
        ways: dict[str, Way] = {"drain": lambda on, count: measure(on, "ours", count).cpu_seconds}
        for name, found in (("qpid-proton", _proton()), ("rhea", _rhea(Path(folder)))):
            if isinstance(found, str):
                print(f"{name} is left out: {found}", file=sys.stderr, flush=True)
            else:
                ways[name] = found
        rows += _rows(on, ways, messages, rounds)
    return [row.as_dict() for row in rows]


def _rows(on: Embedded, ways: dict[str, Way], messages: int, rounds: int) -> Iterator[Row]:
    few, spent = messages // 10, {name: [] for name in ways}  # type: tuple[int, dict[str, list[float]]]
    for _ in range(rounds):
        for name, way in ways.items():
            more = _cost(on, name, way, messages) - _cost(on, name, way, few)
            spent[name].append(more * 1e6 / (messages - few))
    case = f"{messages:,} x 1 KB, 0 ms, {rounds} rounds"
    for name, costs in spent.items():
        yield Row("peers", case, f"CPU of a message: {name}", round(median(costs)), "us")
    for name in ways:
        if name != "drain":
            ratios = [ours / theirs for ours, theirs in zip(spent["drain"], spent[name], strict=True)]
            yield Row("peers", case, f"CPU of a message: drain / {name}", round(median(ratios), 2), "x")


def _cost(on: Embedded, name: str, way: Way, messages: int) -> float:
    on.fill(messages, 1000)
    spent = way(on, messages)
    counts = on.counts()
    assert counts == {"home": messages, "backlog": 0}, (name, counts)
    return spent


def _proton() -> Way | str:
    python = next((one for one in (sys.executable, "/usr/bin/python3") if _imports_proton(one)), None)
    if python is None:
        return "no Python here has the module proton (Debian: python3-qpid-proton; the package index has no wheel)"
    return _peer([python, str(HERE / "proton_mover.py")], Path.cwd())


def _imports_proton(python: str) -> bool:
    if shutil.which(python) is None:
        return False
    return subprocess.run([python, "-c", "import proton"], capture_output=True, check=False).returncode == 0


def _rhea(folder: Path) -> Way | str:
    npm = shutil.which("npm")
    if npm is None:
        return "Node.js with npm is not installed"
    (folder / "package.json").write_text('{"private": true, "type": "module"}', encoding="utf-8")
    command = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", RHEA]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, encoding="utf-8", timeout=_INSTALL_SECONDS, check=False
    )
    if done.returncode:
        return f"npm cannot install {RHEA}: {done.stderr.strip().splitlines()[-1:]}"
    mover = folder / "rhea_mover.mjs"
    shutil.copy(HERE / mover.name, mover)
    return _peer(["node", str(mover)], folder)


def _peer(command: list[str], folder: Path) -> Way:
    """A mover that takes its order as JSON on stdin, and answers with its CPU seconds."""

    def move(on: Embedded, messages: int) -> float:
        order = {
            "primary": asdict(_side(on.primary, [DESTINATION])),
            "secondary": asdict(_side(on.secondary, BACKLOG)),
            "ca_file": on.primary.ca_file,
            "queues": BACKLOG,
            "destination": DESTINATION,
            "messages": messages,
            "window": WINDOW,
        }
        done = subprocess.run(
            command, cwd=folder, input=json.dumps(order), capture_output=True, encoding="utf-8", check=False
        )
        assert done.returncode == 0, done.stderr
        return float(json.loads(done.stdout)["cpu_seconds"])

    return move


def _side(access: NamespaceAccess, paths: list[str] | tuple[str, ...]) -> Side:
    assert access.connection_string is not None
    parts = parse_connection_string(access.connection_string.reveal())
    host, _, port = access.host.partition(":")
    expires_at = time.time() + _TOKEN_SECONDS
    tokens = {
        path: make_sas_token(
            f"amqps://{host}/{path}", parts["sharedaccesskeyname"], parts["sharedaccesskey"], expires_at
        )
        for path in paths
    }
    return Side(host, int(port), tokens)
