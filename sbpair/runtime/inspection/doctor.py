"""Tries what the commands need of one namespace, harmlessly: name, port, TLS, both planes, rights. Nothing is sent.

A right is tried by what it is for: Manage by reading the namespace or a queue, Listen by browsing, Send by attaching a
link to send on. An answer of "not there" proves the right as well as any.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from sbpair.concurrency import abandon_after
from sbpair.core.access import AuthMethod, NamespaceAccess, Transport
from sbpair.core.entities import NamespaceFacts
from sbpair.core.errors import AccessDeniedError, ConnectionLostError, EntityNotFoundError, ServiceError
from sbpair.ports import Clock, Messaging, NamespaceAdmin
from sbpair.runtime.links import closing

AMQP_PORT = 5671
HTTPS_PORT = 443
Call = Callable[[], Coroutine[Any, Any, object]]
SERVICE_BUS_SCOPE = "https://servicebus.azure.net/.default"


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one trial. `seconds`: how long it took; `error`: why it failed."""

    seconds: float
    error: ServiceError | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def denied(self) -> bool:
        return isinstance(self.error, AccessDeniedError)


def address(access: NamespaceAccess) -> tuple[str, int]:
    """Host and port that AMQP uses; a port in the host's name wins (the embedded namespaces)."""
    host, _, port = access.host.partition(":")
    usual = HTTPS_PORT if access.transport is Transport.WEBSOCKET else AMQP_PORT
    return host, int(port) if port else usual


async def try_port(access: NamespaceAccess, clock: Clock, timeout_seconds: float) -> Tried:
    """Name, route, port and TLS of the AMQP side."""
    host, port = address(access)

    async def connect() -> None:
        from sbpair.azure.client import authorities

        context = ssl.create_default_context(cafile=authorities(access.ca_file))
        try:
            _, writer = await asyncio.open_connection(host, port, ssl=context)
        except socket.gaierror as error:
            raise ConnectionLostError(f"The name {host} is not known: {error.strerror}.", hint=_NAME) from error
        except ssl.SSLCertVerificationError as error:
            raise ConnectionLostError(f"TLS of {host}:{port}: {error.verify_message}.", hint=_TLS) from error
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise ConnectionLostError(f"No connection to {host}:{port}: {reason}.", hint=_PORT) from error
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    return await _tried(connect, clock, timeout_seconds, f"Connection to {host}:{port}")


_NAME = "Check the namespace's name and DNS: nslookup it, and look whether it has a private endpoint."
_TLS = "Name the authority of your proxy with `ca_file:`, or take the proxy out of the way."
_PORT = "Open port 5671 to the namespace, or use port 443: `transport: websocket` in the configuration."


async def fetch_token(access: NamespaceAccess) -> None:
    """Get one token for Service Bus with the credential that `access` names, and throw it away.

    Raises:
        CredentialError: it gave none; the message names it.
    """
    from sbpair.azure.credentials import token_credential

    credential = token_credential(access)
    try:
        await credential.get_token(SERVICE_BUS_SCOPE)
    finally:
        await credential.close()


async def try_credential(access: NamespaceAccess, clock: Clock, timeout_seconds: float) -> Tried:
    """Whether an Entra ID credential gives a token; a connection string is at hand, so there is nothing to get."""
    if access.auth is AuthMethod.CONNECTION_STRING:
        return Tried(0.0)
    return await _tried(partial(fetch_token, access), clock, timeout_seconds, f"Token of {access.auth}")


async def try_management(
    admin: NamespaceAdmin, clock: Clock, timeout_seconds: float
) -> tuple[Tried, NamespaceFacts | None, float | None]:
    """The control plane's answer about the namespace, and our clock in the middle of it (UTC epoch seconds)."""
    found: list[NamespaceFacts] = []
    before = clock.now().timestamp()

    async def read() -> None:
        found.append(await admin.namespace())

    tried = await _tried(read, clock, timeout_seconds, "Properties of the namespace")
    middle = (before + clock.now().timestamp()) / 2
    return tried, (found[0] if found else None), (middle if found else None)


async def try_listen(messaging: Messaging, path: str, clock: Clock, timeout_seconds: float) -> Tried:
    """Browse the head of a queue."""
    async with closing(messaging.receiver(path)) as receiver:
        return await _tried(lambda: receiver.peek(1), clock, timeout_seconds, f"Browse of {path}")


async def try_send(messaging: Messaging, path: str, clock: Clock, timeout_seconds: float) -> Tried:
    """Attach a link to send on, and send nothing."""
    async with closing(messaging.sender(path)) as sender:
        return await _tried(sender.max_message_bytes, clock, timeout_seconds, f"Link to {path}")


def missing(tried: Tried) -> bool:
    """The entity is not there, which also says that the credential may ask."""
    return isinstance(tried.error, EntityNotFoundError)


async def _tried(call: Call, clock: Clock, timeout_seconds: float, what: str) -> Tried:
    began = clock.monotonic()
    try:
        await abandon_after(timeout_seconds, call(), what=what)
    except ServiceError as error:
        return Tried(clock.monotonic() - began, error)
    return Tried(clock.monotonic() - began)
