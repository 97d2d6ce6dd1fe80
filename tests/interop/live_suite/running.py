"""Runs one group of the suite in its own pytest, against namespaces of this process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sbpair.emulator import EmulatorThread
from tests.interop.through import Gateways, Namespaces, gateway_before, pair_of

from .groups import Group
from .sources import module_path

DATA_NAMESPACE = "livesuitedata"
MANAGEMENT_NAMESPACE = "livesuitemanagement"
SECONDARY_NAMESPACE = "livesuitesecondary"
CLIENTS = ("sdk", "gateway", "drop-in", "diverting")
TLS_NAMES = ("*.servicebus.windows.net",)
SUFFIX = ".servicebus.windows.net"


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a group to run."""

    expression: str | None
    workers: int
    client: str = "sdk"


def new_emulator() -> EmulatorThread:
    """The namespaces the suite runs against; a namespace of its own for the tests that empty theirs."""
    return EmulatorThread([DATA_NAMESPACE, MANAGEMENT_NAMESPACE, SECONDARY_NAMESPACE], tls_names=TLS_NAMES)


def namespace_of(group: Group) -> str:
    """The primary of the group's tests."""
    return DATA_NAMESPACE if group.parallel else MANAGEMENT_NAMESPACE


@contextmanager
def reached(client: str, emulator: EmulatorThread, namespace: str) -> Iterator[Namespaces]:
    """What leads the tests' clients: the emulator, or a gateway in front of their primary."""
    if client != "gateway":
        yield emulator
        return
    gateways = Gateways(emulator.ca_path)
    pair = pair_of(emulator, namespace, SECONDARY_NAMESPACE)
    with gateway_before(emulator, pair, gateways, names=TLS_NAMES):
        yield gateways


def run(group: Group, choice: Choice, emulator: EmulatorThread, folder: Path) -> Path:
    """Run the group's tests; gives the JUnit report. What pytest prints goes to our own output."""
    report = folder / f"{group.name}.xml"
    namespace = namespace_of(group)
    with reached(choice.client, emulator, namespace) as there:
        subprocess.run(
            _command(group, choice, report),
            cwd=folder / "tests",
            env=os.environ
            | environment(emulator, there, namespace, folder)
            | {
                "LIVE_SUITE_CLIENT": choice.client,
                "LIVE_SUITE_SECONDARY": public_connection_string(emulator, SECONDARY_NAMESPACE),
            },
            check=False,
        )
    return report


def _command(group: Group, choice: Choice, report: Path) -> list[str]:
    command = [sys.executable, "-m", "pytest", *group.selection, "-q", "-p", "live_suite_plugin"]
    command += ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", "-o", "asyncio_mode=auto"]
    command += ["-o", "junit_family=xunit1", f"--junitxml={report}", f"--timeout={group.timeout_seconds}"]
    command += ["-W", "ignore", "--tb=short", "--show-capture=no", "-r", "N"]
    if group.parallel and choice.workers > 1:
        command += ["-n", str(choice.workers), "--dist", "worksteal"]
    return command + (["-k", choice.expression] if choice.expression else [])


def public_connection_string(emulator: EmulatorThread, namespace: str) -> str:
    """As the service would give it, under the public name that the tests' resolver leads to the emulator."""
    fields = _fields(emulator, namespace)
    return (
        f"Endpoint=sb://{namespace}{SUFFIX}/;"
        f"SharedAccessKeyName={fields['SharedAccessKeyName']};SharedAccessKey={fields['SharedAccessKey']}"
    )


def _fields(emulator: EmulatorThread, namespace: str) -> dict[str, str]:
    text = emulator.connection_string(namespace)
    return dict(part.partition("=")[::2] for part in text.split(";"))


def environment(emulator: EmulatorThread, there: Namespaces, namespace: str, folder: Path) -> Mapping[str, str]:
    """What the tests and our stand-ins read from the environment. The resource manager is the emulator's."""
    ports = {name: int(emulator.endpoint(name).rpartition(":")[2]) for name in emulator.names}
    ports[namespace] = int(there.endpoint(namespace).rpartition(":")[2])
    fields = _fields(emulator, namespace)
    values = {
        "servicebus_connection_str": public_connection_string(emulator, namespace),
        "servicebus_fully_qualified_namespace": f"{namespace}{SUFFIX}",
        "servicebus_sas_policy": fields["SharedAccessKeyName"],
        "servicebus_sas_key": fields["SharedAccessKey"],
    }
    authority = str(emulator.ca_path)
    return {
        "PYTHONPATH": os.pathsep.join(module_path(folder)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SSL_CERT_FILE": authority,
        "REQUESTS_CA_BUNDLE": authority,
        "SERVICEBUS_RESOURCE_MANAGER_URL": f"https://{emulator.endpoint(namespace)}/",
        "SERVICEBUS_RESOURCE_GROUP": "live-suite",
        "LIVE_SUITE_NAMESPACE": namespace,
        "LIVE_SUITE_PORTS": json.dumps(ports),
        "LIVE_SUITE_VALUES": json.dumps(values),
    }
