"""How qpid-proton reaches the namespace: PLAIN with the key of the connection string in CONNECTION."""

import os

from proton.utils import BlockingConnection

WAIT_SECONDS = 20


def _parts() -> dict[str, str]:
    return dict(part.split("=", 1) for part in os.environ["CONNECTION"].split(";") if "=" in part)


def address() -> str:
    return _parts()["Endpoint"].rstrip("/").replace("sb://", "amqp://")


def credentials() -> dict[str, str]:
    parts = _parts()
    return {"user": parts["SharedAccessKeyName"], "password": parts["SharedAccessKey"]}


def connected() -> BlockingConnection:
    """An open connection."""
    return BlockingConnection(address(), timeout=WAIT_SECONDS, allowed_mechs="PLAIN", **credentials())
