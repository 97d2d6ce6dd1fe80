"""The judges: how each is installed and run, and what it found."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sbpair.emulator import Emulator, EmulatorThread
from sbpair.emulator.entities import QueueDescription

HERE = Path(__file__).parent
NAMESPACE = "judge"
INSTALL_SECONDS = 600
RUN_SECONDS = 240


@dataclass(frozen=True)
class Judge:
    """One release of a client. `prepare` installs it into a folder and gives the command that runs it."""

    client: str
    version: str
    language: str
    tools: tuple[str, ...]
    prepare: Callable[["Judge", Path], list[str]]

    @property
    def name(self) -> str:
        return f"{self.client} {self.version}"

    @property
    def missing(self) -> str | None:
        """Why it cannot be asked here; None if it can."""
        lacking = [tool for tool in self.tools if shutil.which(tool) is None]
        return f"{' and '.join(lacking)} not installed" if lacking else None


@dataclass(frozen=True)
class Verdict:
    """What one judge found: an error text or None by scenario; or why it was not asked."""

    judge: Judge
    scenarios: Mapping[str, str | None]
    not_applicable: str | None = None

    @property
    def passed(self) -> int:
        return sum(error is None for error in self.scenarios.values())


def install(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command[:3])} ended with {done.returncode}: {(done.stdout + done.stderr)[-800:]}"
        )


_WEBSOCKET = "websocket-client"


def python_release(judge: Judge, folder: Path) -> list[str]:
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        install([sys.executable, "-m", "venv", str(folder)], folder)
        install([str(python), "-m", "pip", "install", "-q", f"azure-servicebus=={judge.version}", _WEBSOCKET], folder)
    return [str(python), str(HERE / "python" / "judge.py")]


def go_release(judge: Judge, folder: Path) -> list[str]:
    shutil.copytree(HERE / "go", folder, dirs_exist_ok=True)
    if not (folder / "judge").exists():
        install(["go", "get", f"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus@v{judge.version}"], folder)
        install(["go", "mod", "tidy"], folder)
        install(["go", "build", "-o", "judge", "."], folder)
    return [str(folder / "judge")]


def java_release(judge: Judge, folder: Path) -> list[str]:
    shutil.copytree(HERE / "java", folder, dirs_exist_ok=True)
    classpath = folder / "classpath.txt"
    if not classpath.exists():
        goals = ["compile", "dependency:build-classpath", f"-Dmdep.outputFile={classpath}"]
        install(["mvn", "-q", "-B", f"-Dservicebus.version={judge.version}", *goals], folder)
    return [
        "java",
        "-cp",
        os.pathsep.join((str(folder / "target" / "classes"), classpath.read_text().strip())),
        "Judge",
    ]


PYTHON_RELEASES = ("7.10.0", "7.12.3", "7.14.3", "7.15.0")
JUDGES: tuple[Judge, ...] = (
    *(Judge("azure-servicebus", version, "Python", (), python_release) for version in PYTHON_RELEASES),
    Judge("azservicebus", "1.10.0", "Go", ("go",), go_release),
    Judge("azure-messaging-servicebus", "7.17.10", "Java", ("java", "mvn"), java_release),
)


def make_entities(emulator: Emulator) -> None:
    namespace = emulator.namespace(NAMESPACE)
    namespace.create_queue("orders")
    namespace.create_queue("sessions", QueueDescription(requires_session=True))
    namespace.create_topic("events")
    namespace.create_subscription("events", "all")


def ask(judge: Judge, cache: Path) -> Verdict:
    """Install a client if need be and run its scenarios against a fresh namespace."""
    if judge.missing is not None:
        return Verdict(judge, {}, judge.missing)
    folder = cache / f"{judge.client}-{judge.version}"
    folder.mkdir(parents=True, exist_ok=True)
    command = judge.prepare(judge, folder)
    with EmulatorThread([NAMESPACE]) as running:
        running.call(make_entities)
        environ = os.environ | {
            "CONNECTION": running.connection_string(NAMESPACE),
            "ENDPOINT": f"sb://{running.endpoint(NAMESPACE)}",
            "CA_FILE": str(running.ca_path),
        }
        done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not found:
        raise RuntimeError(f"{judge.name} said nothing and ended with {done.returncode}: {done.stderr[-800:]}")
    return Verdict(judge, {one["scenario"]: one["error"] for one in found})
