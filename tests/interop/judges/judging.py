"""The judges: how each is installed and run, and what it found."""

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sbpair.emulator import Emulator, EmulatorThread, NamespaceConfig
from sbpair.emulator.entities import QueueDescription
from sbpair.emulator.server import AMQPS_PORT, HTTPS_PORT
from sbpair.service import Tier
from tests.interop.through import Gateways, Namespaces, gateway_before, pair_of

HERE = Path(__file__).parent
NAMESPACE = "judges"
SECONDARY = "judges-backlog"
INSTALL_SECONDS = 600
FETCH_SECONDS = 300
RUN_SECONDS = 240
GO_RESULT = re.compile(r"^\s*--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Programs:
    """The commands of an installed client: its scenarios, and `corpus`, which takes `send` or `read` and more.

    `stream` takes a number, and sends so many messages to each of four sessions.
    """

    scenarios: Sequence[str]
    corpus: Sequence[str]
    stream: Sequence[str] = ()


@dataclass(frozen=True)
class Judge:
    """One release of a client. `prepare` installs it into a folder.

    `speaks_for_its_language`: the typed corpus passes between these, one of each language. `remarks` say where the
    client itself falls short. `ports` are what it must find: 0 is any port, which its connection string then names; the
    service's own ports are for clients that know no other, and use TLS whatever the connection string says. `package`
    is what its registry has it under, `newest` whether it is the newest release that was judged. A judge of the
    resource manager has nothing to say about a gateway (`speaks_amqp`). One that `streams` sends during an outage.
    """

    client: str
    version: str
    language: str
    tools: tuple[str, ...]
    prepare: Callable[["Judge", Path], Programs]
    speaks_for_its_language: bool = True
    remarks: tuple[str, ...] = ()
    ports: tuple[int, ...] = (0,)
    package: "Package | None" = None
    speaks_amqp: bool = True
    streams: bool = False
    tier: Tier = Tier.STANDARD

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
class Package:
    """What the newest release of a client is asked for: its registry and its name there."""

    registry: Callable[[str], str]
    name: str

    def newest(self) -> str:
        """The newest release that is no preview. Raises NotFetchedError."""
        return self.registry(self.name)


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
            self, scenarios={**self.scenarios, **scenarios}, not_applicable=self.not_applicable + not_applicable
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


def fetch(command: list[str], folder: Path) -> str:
    """Have a package manager fetch what a client consists of; what it says. Raises NotFetchedError."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise NotFetchedError(f"{' '.join(command[:3])} fetched nothing in {FETCH_SECONDS} s") from error
    if done.returncode:
        raise NotFetchedError(f"{' '.join(command[:3])} could not fetch it: {(done.stdout + done.stderr)[-300:]}")
    return done.stdout


def newest_of_pip(name: str) -> str:
    said = fetch([sys.executable, "-m", "pip", "index", "versions", name], HERE)
    return _found(r"\(([^)]+)\)", said)


def newest_of_npm(name: str) -> str:
    return fetch(["npm", "view", name, "version"], HERE).strip()


def newest_of_go(module: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return fetch(["go", "list", "-m", "-f", "{{.Version}}", f"{module}@latest"], Path(folder)).strip().lstrip("v")


def newest_of_maven(name: str) -> str:
    """By a project whose one dependency is too old."""
    group, _, artifact = name.partition(":")
    words = {"groupId": group, "artifactId": artifact, "version": "0.0.1"}
    dependency = "".join(f"<{key}>{value}</{key}>" for key, value in words.items())
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pom.xml").write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>asks</groupId><artifactId>asks</artifactId>"
            "<version>1</version><packaging>pom</packaging>"
            f"<dependencies><dependency>{dependency}</dependency></dependencies></project>"
        )
        plugin = "org.codehaus.mojo:versions-maven-plugin:display-dependency-updates"
        no_previews = "-Dmaven.version.ignore=(?i).*(beta|alpha|-m[0-9]|rc|preview).*"
        return _found(r"-> (\S+)", fetch(["mvn", "-B", plugin, no_previews], Path(folder)))


def _found(pattern: str, said: str) -> str:
    found = re.search(pattern, said)
    if found is None:
        raise NotFetchedError(f"the registry named no release: {said[-300:]}")
    return found[1]


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


def _own_python(judge: Judge, folder: Path, *further: str) -> str:
    """A Python that has the client."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        install([sys.executable, "-m", "venv", str(folder)], folder)
        wanted = [f"{judge.client}=={judge.version}", *further]
        install([str(python), "-m", "pip", "install", "-q", *wanted], folder)
    return str(python)


def python_release(judge: Judge, folder: Path) -> Programs:
    return python_programs(_own_python(judge, folder, _WEBSOCKET))


def proton_release(judge: Judge, folder: Path) -> Programs:
    python, here = _own_python(judge, folder), HERE / "proton"
    return Programs([python, str(here / "judge.py")], [python, str(here / "corpus.py")])


def az_release(judge: Judge, folder: Path) -> Programs:
    return Programs([_own_python(judge, folder), str(HERE / "az" / "judge.py"), NAMESPACE], [])


def javascript_release(judge: Judge, folder: Path) -> Programs:
    shutil.copytree(HERE / "javascript", folder, dirs_exist_ok=True)
    if not (folder / "node_modules").exists():
        flags = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
        install(["npm", "install", *flags, f"{judge.client}@{judge.version}"], folder)
    return Programs(["node", "judge.mjs"], ["node", "corpus.mjs"], ["node", "judge.mjs", "stream"])


def go_release(judge: Judge, folder: Path) -> Programs:
    shutil.copytree(HERE / "go", folder, dirs_exist_ok=True)
    fetch(["go", "get", f"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus@v{judge.version}"], folder)
    fetch(["go", "mod", "tidy"], folder)
    install(["go", "build", "-o", "judge", "."], folder)
    return Programs(program := [str(folder / "judge")], program, [*program, "stream"])


def go_amqp_release(judge: Judge, folder: Path) -> Programs:
    shutil.copytree(HERE / "goamqp", folder, dirs_exist_ok=True)
    fetch(["go", "get", f"github.com/Azure/go-amqp@v{judge.version}"], folder)
    install(["go", "build", "-o", "judge", "."], folder)
    return Programs([str(folder / "judge")], [])


def dapr_release(judge: Judge, folder: Path) -> Programs:
    """Its conformance suites are packages of its module; the components that are not of Service Bus are not built."""
    shutil.copytree(HERE / "dapr", folder, dirs_exist_ok=True)
    fetch(["go", "get", f"github.com/dapr/components-contrib@v{judge.version}"], folder)
    fetch(["go", "mod", "tidy"], folder)
    install(["go", "test", "-c", "-o", "judge", "."], folder)
    return Programs([str(folder / "judge"), "-test.v"], [])


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


def camel_release(judge: Judge, folder: Path) -> Programs:
    return Programs([*_compiled("camel", folder, f"-Dclient.version={judge.version}"), "CamelJudge"], [])


def starter_release(judge: Judge, folder: Path) -> Programs:
    return Programs([*_compiled("starter", folder, f"-Dclient.version={judge.version}"), "StarterJudge"], [])


def java_release(judge: Judge, folder: Path) -> Programs:
    java = _compiled("java", folder, f"-Dservicebus.version={judge.version}")
    return Programs([*java, "Judge"], [*java, "Corpus"], [*java, "Judge", "stream"])


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
_PYTHON = Package(newest_of_pip, "azure-servicebus")
_JAVASCRIPT = Package(newest_of_npm, "@azure/service-bus")
_GO = Package(newest_of_go, "github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus")
_GO_AMQP = Package(newest_of_go, "github.com/Azure/go-amqp")
_JAVA = Package(newest_of_maven, "com.azure:azure-messaging-servicebus")
_BINDER = Package(newest_of_maven, "com.azure.spring:spring-cloud-azure-stream-binder-servicebus")
_STARTER = Package(newest_of_maven, "com.azure.spring:spring-cloud-azure-starter-servicebus-jms")
_JMS = Package(newest_of_maven, "org.apache.qpid:qpid-jms-client")
_CAMEL = Package(newest_of_maven, "org.apache.camel:camel-azure-servicebus")
_RHEA = ("it reads booleans in their long form as 0 and 1",)
# dapr names its newest release by no list of the module proxy, so that it cannot be asked for.
JUDGES: tuple[Judge, ...] = (
    *(Judge("azure-servicebus", version, "Python", (), python_release, False) for version in OLD_PYTHON_RELEASES),
    Judge("azure-servicebus", "7.15.0", "Python", (), python_release, package=_PYTHON),
    Judge("@azure/service-bus", "7.8.1", "JavaScript", ("node", "npm"), javascript_release, False, ports=STANDARD),
    Judge("@azure/service-bus", "7.9.5", "JavaScript", ("node", "npm"), javascript_release, True, _RHEA,
          package=_JAVASCRIPT, streams=True),
    Judge("python-qpid-proton", "0.40.0", "C", ("cc", "cmake"), proton_release,
          package=Package(newest_of_pip, "python-qpid-proton")),
    Judge("azservicebus", "1.10.0", "Go", ("go",), go_release, False),
    Judge("azservicebus", "1.11.0", "Go", ("go",), go_release, package=_GO, streams=True),
    Judge("go-amqp", "1.4.0", "Go", ("go",), go_amqp_release, False),
    Judge("go-amqp", "1.7.0", "Go", ("go",), go_amqp_release, False, package=_GO_AMQP),
    Judge("components-contrib", "1.18.4", "Go", ("go",), dapr_release, False, ports=STANDARD),
    Judge("azure-messaging-servicebus", "7.17.10", "Java", JAVA, java_release, False, ports=(0, HTTPS_PORT)),
    Judge("azure-messaging-servicebus", "7.17.20", "Java", JAVA, java_release, ports=(0, HTTPS_PORT), package=_JAVA,
          streams=True),
    Judge("spring-cloud-azure-stream-binder-servicebus", "5.23.0", "Java", JAVA, spring_release, False),
    Judge("spring-cloud-azure-stream-binder-servicebus", "6.1.0", "Java", JAVA, spring_release, False, package=_BINDER),
    Judge("spring-cloud-azure-starter-servicebus-jms", "5.23.0", "Java", JAVA, starter_release, False, ports=STANDARD,
          tier=Tier.PREMIUM),
    Judge("spring-cloud-azure-starter-servicebus-jms", "6.1.0", "Java", JAVA, starter_release, False, ports=STANDARD,
          package=_STARTER, tier=Tier.PREMIUM),
    Judge("camel-azure-servicebus", "4.14.0", "Java", JAVA, camel_release, False),
    Judge("camel-azure-servicebus", "4.17.0", "Java", JAVA, camel_release, False, package=_CAMEL),
    Judge("azure-servicebus", "3.6.7", "Java", JAVA, old_java_release, False, ports=STANDARD),
    Judge("qpid-jms-client", "2.10.0", "Java", JAVA, jms_release, False, package=_JMS),
    Judge("azure-servicebus-jms", "2.1.0", "Java", JAVA, azure_jms_release, False, ports=STANDARD),
    Judge("azure-servicebus-jms", "1.0.2", "Java", JAVA, older_azure_jms_release, False, ports=STANDARD),
    Judge("azure-cli", "2.91.0", "Python", (), az_release, False, ports=STANDARD, speaks_amqp=False,
          package=Package(newest_of_pip, "azure-cli")),
)  # fmt: skip


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


def run(command: Sequence[str], folder: Path, running: Namespaces) -> list[dict[str, Any]]:
    """The JSON lines that a client's program prints. RuntimeError when it fails."""
    environ = environment(command, folder, running)
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=RUN_SECONDS)
    if done.returncode and GO_RESULT.search(done.stdout) is None:
        raise RuntimeError(f"{Path(command[0]).name} ended with {done.returncode}: {done.stderr[-800:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")] or [
        {"scenario": name, "error": None if outcome == "PASS" else f"go test says {outcome}"}
        for name, outcome in leaves(done.stdout.splitlines()).items()
    ]


def environment(command: Sequence[str], folder: Path, running: Namespaces) -> dict[str, str]:
    """What a client's program finds its namespace by, and trusts it for."""
    return os.environ | {
        "JDK_JAVA_OPTIONS": _java_trusts(running.ca_path, folder) if Path(command[0]).name == "java" else "",
        "CONNECTION": running.connection_string(NAMESPACE),
        "ENDPOINT": f"sb://{running.endpoint(NAMESPACE)}",
        "CA_FILE": str(running.ca_path),
        "NODE_EXTRA_CA_CERTS": str(running.ca_path),
        "SSL_CERT_FILE": str(running.ca_path),
        "SSL_CERT_DIR": os.devnull,
    }


def leaves(output: Iterable[str]) -> dict[str, str]:
    """PASS, FAIL or SKIP by test, from what a program of Go's tests prints; of a test with tests inside, by those."""
    outcomes = {found[2]: found[1] for line in output if (found := GO_RESULT.match(line))}
    parents = {name.rpartition("/")[0] for name in outcomes}
    return {name: outcome for name, outcome in outcomes.items() if name not in parents}


def _java_trusts(authority: Path, folder: Path) -> str:
    """The options that have Java trust an authority (PEM) and no other: Java reads its own kind of file only."""
    store = folder / "authority.p12"
    store.unlink(missing_ok=True)
    password = "changeit"
    given = ["-file", str(authority), "-keystore", str(store), "-storetype", "PKCS12", "-storepass", password]
    install(["keytool", "-importcert", "-noprompt", "-alias", "authority", *given], folder)
    trusted = {"trustStore": store, "trustStoreType": "PKCS12", "trustStorePassword": password}
    return " ".join(f"-Djavax.net.ssl.{name}={value}" for name, value in trusted.items())


@contextmanager
def namespaces(judge: Judge, gateway: bool) -> Iterator[Namespaces]:
    """A fresh namespace with the scenarios' entities where the judge looks for it, or a gateway before one."""
    host = _own_address() if any(judge.ports) else None
    config = NamespaceConfig(NAMESPACE, judge.tier)
    if not gateway:
        config = replace(config, port=judge.ports[0], further_ports=judge.ports[1:], host=host)
    with EmulatorThread([config, SECONDARY], tls_names=(host,) if host else ()) as running:
        running.call(make_entities)
        if not gateway:
            yield running
            return
        gateways = Gateways(running.ca_path)
        pair = pair_of(running, NAMESPACE, SECONDARY)
        with gateway_before(running, pair, gateways, host=host or "127.0.0.1", ports=judge.ports):
            yield gateways


def ask(judge: Judge, cache: Path, *, gateway: bool = False) -> Verdict:
    """Install a client if need be and run its scenarios against a fresh namespace, or a gateway before it."""
    missing = judge.missing or (None if judge.speaks_amqp or not gateway else "it asks the resource manager alone")
    if missing is not None:
        return Verdict(judge, {}, not_asked=missing)
    folder = folder_of(judge, cache)
    command = judge.prepare(judge, folder).scenarios
    with namespaces(judge, gateway) as running:
        found = run(command, folder, running)
    if not found:
        raise RuntimeError(f"{judge.name} said nothing")
    return Verdict(judge, {one["scenario"]: one["error"] for one in found}, judge.remarks)
