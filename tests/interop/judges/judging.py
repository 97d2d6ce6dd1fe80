"""The judges: how each is installed and run, and what it found."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sbpair.emulator import Emulator, EmulatorThread
from sbpair.emulator.entities import QueueDescription

HERE = Path(__file__).parent
NAMESPACE = "judge"
INSTALL_SECONDS = 600
RUN_SECONDS = 240


@dataclass(frozen=True)
class Programs:
    """The commands of an installed client: its scenarios, and `corpus`, which takes `send` or `read` and more."""

    scenarios: Sequence[str]
    corpus: Sequence[str]


@dataclass(frozen=True)
class Judge:
    """One release of a client. `prepare` installs it into a folder.

    `speaks_for_its_language`: the typed corpus passes between these, one of each language. `remarks` say where the
    client itself falls short.
    """

    client: str
    version: str
    language: str
    tools: tuple[str, ...]
    prepare: Callable[["Judge", Path], Programs]
    speaks_for_its_language: bool = True
    remarks: tuple[str, ...] = ()

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
    """What one judge found: an error text or None by scenario.

    `not_applicable` says what its client has not got, `not_asked` why it could not be run here.
    """

    judge: Judge
    scenarios: Mapping[str, str | None]
    not_applicable: tuple[str, ...] = ()
    not_asked: str | None = None

    @property
    def passed(self) -> int:
        return sum(error is None for error in self.scenarios.values())

    def with_more(self, scenarios: Mapping[str, str | None], not_applicable: tuple[str, ...]) -> "Verdict":
        """The verdict with further findings."""
        return replace(
            self,
            scenarios={**self.scenarios, **scenarios},
            not_applicable=self.not_applicable + not_applicable,
        )


def install(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command[:3])} ended with {done.returncode}: {(done.stdout + done.stderr)[-800:]}"
        )


_WEBSOCKET = "websocket-client"


def python_programs(python: str) -> Programs:
    """With a Python that has azure-servicebus already."""
    return Programs([python, str(HERE / "python" / "judge.py")], [python, str(HERE / "python" / "corpus.py")])


def python_release(judge: Judge, folder: Path) -> Programs:
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        install([sys.executable, "-m", "venv", str(folder)], folder)
        install([str(python), "-m", "pip", "install", "-q", f"azure-servicebus=={judge.version}", _WEBSOCKET], folder)
    return python_programs(str(python))


def proton_release(judge: Judge, folder: Path) -> Programs:
    python = folder / "bin/python"
    if not python.exists():
        install([sys.executable, "-m", "venv", str(folder)], folder)
        install([str(python), "-m", "pip", "install", "-q", f"{judge.client}=={judge.version}"], folder)
    here = HERE / "proton"
    return Programs([str(python), str(here / "judge.py")], [str(python), str(here / "corpus.py")])


def javascript_release(judge: Judge, folder: Path) -> Programs:
    shutil.copytree(HERE / "javascript", folder, dirs_exist_ok=True)
    if not (folder / "node_modules").exists():
        flags = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
        install(["npm", "install", *flags, f"{judge.client}@{judge.version}"], folder)
    return Programs(["node", "judge.mjs"], ["node", "corpus.mjs"])


def go_release(judge: Judge, folder: Path) -> Programs:
    shutil.copytree(HERE / "go", folder, dirs_exist_ok=True)
    install(["go", "get", f"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus@v{judge.version}"], folder)
    install(["go", "mod", "tidy"], folder)
    install(["go", "build", "-o", "judge", "."], folder)
    return Programs([str(folder / "judge")], [str(folder / "judge")])


def go_amqp_release(judge: Judge, folder: Path) -> Programs:
    shutil.copytree(HERE / "goamqp", folder, dirs_exist_ok=True)
    install(["go", "get", f"github.com/Azure/go-amqp@v{judge.version}"], folder)
    install(["go", "build", "-o", "judge", "."], folder)
    return Programs([str(folder / "judge")], [])


def jms_release(judge: Judge, folder: Path) -> Programs:
    return Programs([*_compiled("jms", folder, f"-Dclient.version={judge.version}"), "JmsJudge"], [])


def java_release(judge: Judge, folder: Path) -> Programs:
    java = _compiled("java", folder, f"-Dservicebus.version={judge.version}")
    return Programs([*java, "Judge"], [*java, "Corpus"])


def _compiled(sources: str, folder: Path, version: str) -> list[str]:
    """Maven's work; the command that runs a class."""
    shutil.copytree(HERE / sources, folder, dirs_exist_ok=True)
    classpath = folder / "classpath.txt"
    install(
        ["mvn", "-q", "-B", version, "compile", "dependency:build-classpath", f"-Dmdep.outputFile={classpath}"], folder
    )
    return ["java", "-cp", os.pathsep.join((str(folder / "target" / "classes"), classpath.read_text().strip()))]


OLD_PYTHON_RELEASES = ("7.10.0", "7.12.3", "7.14.3")
JUDGES: tuple[Judge, ...] = (
    *(Judge("azure-servicebus", version, "Python", (), python_release, False) for version in OLD_PYTHON_RELEASES),
    Judge("azure-servicebus", "7.15.0", "Python", (), python_release),
    Judge(
        "@azure/service-bus",
        "7.9.5",
        "JavaScript",
        ("node", "npm"),
        javascript_release,
        remarks=("it reads booleans in their long form as 0 and 1",),
    ),
    Judge("python-qpid-proton", "0.40.0", "C", ("cc", "cmake"), proton_release),
    Judge("azservicebus", "1.10.0", "Go", ("go",), go_release),
    Judge("go-amqp", "1.4.0", "Go", ("go",), go_amqp_release, False),
    Judge("azure-messaging-servicebus", "7.17.10", "Java", ("java", "mvn"), java_release),
    Judge("qpid-jms-client", "2.10.0", "Java", ("java", "mvn"), jms_release, False),
)


def folder_of(judge: Judge, cache: Path) -> Path:
    """Where a client is installed."""
    folder = cache / f"{judge.client.replace('/', '-')}-{judge.version}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def make_entities(emulator: Emulator) -> None:
    namespace = emulator.namespace(NAMESPACE)
    namespace.create_queue("orders")
    namespace.create_queue("short", QueueDescription(lock_duration_seconds=5))
    namespace.create_queue("sessions", QueueDescription(requires_session=True))
    namespace.create_topic("events")
    namespace.create_subscription("events", "all")


def run(command: Sequence[str], folder: Path, running: EmulatorThread) -> list[dict[str, Any]]:
    """The JSON lines that a client's program prints. RuntimeError when it fails."""
    environ = os.environ | {
        "CONNECTION": running.connection_string(NAMESPACE),
        "ENDPOINT": f"sb://{running.endpoint(NAMESPACE)}",
        "CA_FILE": str(running.ca_path),
        "NODE_EXTRA_CA_CERTS": str(running.ca_path),
    }
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} ended with {done.returncode}: {done.stderr[-800:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def ask(judge: Judge, cache: Path) -> Verdict:
    """Install a client if need be and run its scenarios against a fresh namespace."""
    if judge.missing is not None:
        return Verdict(judge, {}, not_asked=judge.missing)
    folder = folder_of(judge, cache)
    command = judge.prepare(judge, folder).scenarios
    with EmulatorThread([NAMESPACE]) as running:
        running.call(make_entities)
        found = run(command, folder, running)
    if not found:
        raise RuntimeError(f"{judge.name} said nothing")
    return Verdict(judge, {one["scenario"]: one["error"] for one in found}, judge.remarks)
