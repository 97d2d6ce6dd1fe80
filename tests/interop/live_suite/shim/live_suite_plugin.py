"""The pytest plugin of the suite's processes: leads the service's names to the emulator.

Only the resolver of names is replaced. `<namespace>.servicebus.windows.net` on any port, and 127.0.0.1 on a standard
port, mean the port the emulator listens on; every other name does not exist, so the tests never leave the machine.
"""

import json
import os
import socket
from typing import Any

import pytest

SUFFIX = ".servicebus.windows.net"
LOCAL = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "", None)
STANDARD_PORTS = (443, 5671, 5672)

_resolve = socket.getaddrinfo
_ports: dict[str, int] = json.loads(os.environ["LIVE_SUITE_PORTS"])


def route(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
    """`socket.getaddrinfo` for the suite."""
    name = host.decode() if isinstance(host, bytes) else host
    if name not in LOCAL:
        number = _ports.get(name.lower().removesuffix(SUFFIX)) if name.lower().endswith(SUFFIX) else None
        if number is None:
            raise socket.gaierror(socket.EAI_NONAME, f"the live suite knows no {name}")
        return _resolve("127.0.0.1", number, *args, **kwargs)
    if port is not None and str(port).isdigit() and int(port) in STANDARD_PORTS:
        port = _ports[os.environ["LIVE_SUITE_NAMESPACE"]]
    return _resolve(host, port, *args, **kwargs)


def pytest_configure() -> None:
    """In every process, also xdist's workers."""
    socket.getaddrinfo = route
    if os.environ.get("LIVE_SUITE_CLIENT", "sdk") in ("drop-in", "diverting"):
        import drop_in

        drop_in.install()


@pytest.fixture(scope="session")
def test_proxy() -> None:
    """Nothing is recorded."""
