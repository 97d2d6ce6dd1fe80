"""The judges: how each is installed and run, and what it found."""

import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sbpair.emulator import Emulator, EmulatorThread, NamespaceConfig
from sbpair.emulator.entities import QueueDescription
from sbpair.emulator.server import AMQPS_PORT, HTTPS_PORT

HERE = Path(__file__).parent
NAMESPACE = "judge"
INSTALL_SECONDS = 600
FETCH_SECONDS = 300
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
    client itself falls short. `ports` are what it must find: 0 is any port, which its connection string then names; the
    service's own ports are for clients that know no other, and use TLS whatever the connection string says.
    """

    client: str
    version: str
    language: str
    tools: tuple[str, ...]
    prepare: Callable[["Judge", Path], Programs]
    speaks_for_its_language: bool = True
    remarks: tuple[str, ...] = ()
    ports: tuple[int, ...] = (0,)

    @property
    def name(self) -> str:
        return f"{self.client} {self.version}"

    @property
    def missing(self) -> str | None:
        """Why it cannot be asked here; None if it can."""
        lacking = [tool for tool in self.tools if shutil.which(tool) is None]
        if lacking:
            return f"{' and '.join(lacking)} not installed"
        return closed(self.ports)


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


def _own_address() -> str:
    """An address of this machine's that is most likely nobody else's: the service's ports are the same for all."""
    return f"127.{random.randint(1, 254)}.{random.randint(1, 254)}.{random.randint(1, 254)}"


def closed(ports: Sequence[int]) -> str | None:
    """Why one of these ports cannot be opened here; None if all can."""
    for port in filter(None, ports):
        try:
            with socket.socket() as tried:
                tried.bind((_own_address(), port))
        except OSError as error:
            return f"port {port} cannot be opened on an address of its own: {error.strerror}"
    return None


class NotFetchedError(Exception):
    """A client's packages could not be had."""


def fetch(command: list[str], folder: Path) -> None:
    """Have a package manager fetch what a client consists of. Raises NotFetchedError."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise NotFetchedError(f"{' '.join(command[:3])} fetched nothing in {FETCH_SECONDS} s") from error
    if done.returncode:
        raise NotFetchedError(f"{' '.join(command[:3])} could not fetch it: {(done.stdout + done.stderr)[-300:]}")


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
    fetch(["go", "get", f"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus@v{judge.version}"], folder)
    fetch(["go", "mod", "tidy"], folder)
    install(["go", "build", "-o", "judge", "."], folder)
    return Programs([str(folder / "judge")], [str(folder / "judge")])


def go_amqp_release(judge: Judge, folder: Path) -> Programs:
    shutil.copytree(HERE / "goamqp", folder, dirs_exist_ok=True)
    fetch(["go", "get", f"github.com/Azure/go-amqp@v{judge.version}"], folder)
    install(["go", "build", "-o", "judge", "."], folder)
    return Programs([str(folder / "judge")], [])


def jms_release(judge: Judge, folder: Path) -> Programs:
    return _jms(judge, folder, "org.apache.qpid", "org.apache.qpid.jms.JmsConnectionFactory")


def azure_jms_release(judge: Judge, folder: Path) -> Programs:
    return _jms(judge, folder, "com.azure", "com.azure.servicebus.jms.ServiceBusJmsConnectionFactory")


def older_azure_jms_release(judge: Judge, folder: Path) -> Programs:
    """JMS had another package's name then."""
    factory = "com.microsoft.azure.servicebus.jms.ServiceBusJmsConnectionFactory"
    return _jms(judge, folder, "com.microsoft.azure", factory, jms_package="javax.jms")


def _jms(judge: Judge, folder: Path, group: str, factory: str, jms_package: str = "jakarta.jms") -> Programs:
    which = (f"-Dclient.group={group}", f"-Dclient.name={judge.client}", f"-Dclient.version={judge.version}")
    java = _compiled("jms", folder, *which, rename=("jakarta.jms", jms_package))
    return Programs([*java, "JmsJudge", factory], [])


def old_java_release(judge: Judge, folder: Path) -> Programs:
    return Programs([*_compiled("javaold", folder, f"-Dclient.version={judge.version}"), "OldJudge"], [])


def spring_release(judge: Judge, folder: Path) -> Programs:
    return Programs([*_compiled("spring", folder, f"-Dclient.version={judge.version}"), "SpringJudge"], [])


def java_release(judge: Judge, folder: Path) -> Programs:
    java = _compiled("java", folder, f"-Dservicebus.version={judge.version}")
    return Programs([*java, "Judge"], [*java, "Corpus"])


def _compiled(sources: str, folder: Path, *which: str, rename: tuple[str, str] = ("", "")) -> list[str]:
    """Compile a copy of our sources, in which a package may have another name; the command that runs a class."""
    shutil.copytree(HERE / sources, folder, dirs_exist_ok=True)
    for source in folder.glob("src/main/java/*.java") if rename[0] else ():
        source.write_text(source.read_text().replace(*rename))
    classpath, classes = folder / "classpath.txt", folder / "classes"
    fetch(["mvn", "-q", "-B", *which, "dependency:build-classpath", f"-Dmdep.outputFile={classpath}"], folder)
    found = os.pathsep.join((str(classes), classpath.read_text().strip()))
    sources_found = [str(source) for source in folder.glob("src/main/java/*.java")]
    install(
        ["javac", "--release", "17", "-encoding", "UTF-8", "-d", str(classes), "-cp", found, *sources_found], folder
    )
    return ["java", "-cp", found]


STANDARD = (AMQPS_PORT, HTTPS_PORT)
JAVA = ("java", "javac", "keytool", "mvn")
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
    Judge("azure-messaging-servicebus", "7.17.10", "Java", JAVA, java_release, ports=(0, HTTPS_PORT)),
    Judge("spring-cloud-azure-stream-binder-servicebus", "5.23.0", "Java", JAVA, spring_release, False),
    Judge("azure-servicebus", "3.6.7", "Java", JAVA, old_java_release, False, ports=STANDARD),
    Judge("qpid-jms-client", "2.10.0", "Java", JAVA, jms_release, False),
    Judge("azure-servicebus-jms", "2.1.0", "Java", JAVA, azure_jms_release, False, ports=STANDARD),
    Judge("azure-servicebus-jms", "1.0.2", "Java", JAVA, older_azure_jms_release, False, ports=STANDARD),
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
        "JDK_JAVA_OPTIONS": _java_trusts(running.ca_path, folder) if Path(command[0]).name == "java" else "",
        "CONNECTION": running.connection_string(NAMESPACE),
        "ENDPOINT": f"sb://{running.endpoint(NAMESPACE)}",
        "CA_FILE": str(running.ca_path),
        "NODE_EXTRA_CA_CERTS": str(running.ca_path),
    }
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} ended with {done.returncode}: {done.stderr[-800:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _java_trusts(authority: Path, folder: Path) -> str:
    """The options that have Java trust an authority (PEM) and no other: Java reads its own kind of file only."""
    store = folder / "authority.p12"
    store.unlink(missing_ok=True)
    password = "changeit"
    given = ["-file", str(authority), "-keystore", str(store), "-storetype", "PKCS12", "-storepass", password]
    install(["keytool", "-importcert", "-noprompt", "-alias", "authority", *given], folder)
    trusted = {"trustStore": store, "trustStoreType": "PKCS12", "trustStorePassword": password}
    return " ".join(f"-Djavax.net.ssl.{name}={value}" for name, value in trusted.items())


def _config(judge: Judge) -> NamespaceConfig:
    host = _own_address() if any(judge.ports) else None
    return NamespaceConfig(NAMESPACE, port=judge.ports[0], further_ports=judge.ports[1:], host=host)


def ask(judge: Judge, cache: Path) -> Verdict:
    """Install a client if need be and run its scenarios against a fresh namespace."""
    if judge.missing is not None:
        return Verdict(judge, {}, not_asked=judge.missing)
    folder = folder_of(judge, cache)
    command = judge.prepare(judge, folder).scenarios
    with EmulatorThread([_config(judge)]) as running:
        running.call(make_entities)
        found = run(command, folder, running)
    if not found:
        raise RuntimeError(f"{judge.name} said nothing")
    return Verdict(judge, {one["scenario"]: one["error"] for one in found}, judge.remarks)
