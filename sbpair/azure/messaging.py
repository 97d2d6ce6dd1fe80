"""Messaging over azure-servicebus (asynchronous, AMQP): makes senders and receivers of one namespace."""

import asyncio
import ssl
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sbpair.azure.client import authorities, check_scope, connection_string_of, quiet_sdk
from sbpair.azure.credentials import NamedCredential, token_credential
from sbpair.azure.errors import translating
from sbpair.azure.links import OPEN_SECONDS
from sbpair.azure.mover import AzureMover, AzureScheduledMover
from sbpair.azure.receiver import AzureReceiver
from sbpair.azure.sender import AzureSender
from sbpair.azure.wire import make_sdk_receiver, make_sdk_sender
from sbpair.core.access import NamespaceAccess, Transport, check_credential, is_plaintext
from sbpair.core.errors import ArgumentRefusedError
from sbpair.core.message import NEXT_AVAILABLE_SESSION
from sbpair.core.names import dead_letter_path, is_destination
from sbpair.core.redact import quoted
from sbpair.core.replication.settings import IDLE_SESSION_REQUEST_SECONDS

# What a connection over TLS trusts: one context for all connections of the process.


@lru_cache(maxsize=16)
def tls_context(ca_file: str) -> ssl.SSLContext:
    """Trusts the authorities in `ca_file` (PEM).

    Kept, because to read the authorities takes longer than to connect, and the SDK reads them for every connection.

    Raises:
        OSError: the file cannot be read, or holds no certificate (ssl.SSLError).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca_file)
    return context


@lru_cache(maxsize=1)
def no_tls_context() -> ssl.SSLContext:
    """For the SDK, which wants a context also where it does not encrypt (the emulator's plain AMQP); trusts nobody."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class AzureMessaging:
    """`sbpair.ports.Messaging` for one namespace.

    Nothing is connected before the first use. The SDK retries nothing: every call here is one try within its time.
    """

    def __init__(
        self,
        access: NamespaceAccess,
        *,
        credential: NamedCredential | None = None,
        next_session_seconds: float = IDLE_SESSION_REQUEST_SECONDS,
        client_options: Mapping[str, Any] | None = None,
        client_class: Any = None,
    ) -> None:
        """`credential`: instead of the one that `access` names (tests, a credential shared with ARM).
        `client_options`: arguments for the SDK's client beside ours, which they replace. `client_class`: the SDK's
        asynchronous client, where its name may mean something else by now.
        `next_session_seconds`: how long a receiver of the next available session lets the service look for one."""
        quiet_sdk()
        self._access = access
        self._credential = credential
        self._next_session_seconds = next_session_seconds
        self._client_class = client_class
        self._client_options = dict(client_options or {})
        self._client: Any = None
        self._open: dict[Any, None] = {}
        """Senders and receivers in the order in which they were made."""

    @property
    def host(self) -> str:
        return self._access.host

    def sender(self, entity: str) -> AzureSender:
        sender = AzureSender(self._access.label, entity, lambda: self._make_sender(entity), self._forget)
        self._open[sender] = None
        return sender

    def receiver(self, path: str, *, dead_letter: bool = False, session_id: str | None = None) -> AzureReceiver:
        next_session = session_id == NEXT_AVAILABLE_SESSION
        open_seconds = min(OPEN_SECONDS, self._access.call_seconds)
        wanted = None if next_session else session_id

        next_session_seconds = self._next_session_seconds if next_session else None
        receiver = AzureReceiver(
            self._access.label,
            dead_letter_path(path) if dead_letter else path,
            lambda: self._make_receiver(path, dead_letter, wanted, next_session_seconds),
            self._forget,
            session_id=wanted,
            next_session=next_session,
            open_seconds=open_seconds + self._next_session_seconds if next_session else open_seconds,
        )
        self._open[receiver] = None
        return receiver

    def mover(self, path: str, *, dead_letter: bool = False, session_id: str | None = None) -> AzureMover:
        """A `sbpair.ports.MessageMover` on a queue, subscription or sub-queue. Opened on first use."""
        mover = AzureMover(
            self._access.label,
            dead_letter_path(path) if dead_letter else path,
            lambda: self._make_receiver(path, dead_letter, session_id),
            self._forget,
            session_id=session_id,
            open_seconds=min(OPEN_SECONDS, self._access.call_seconds),
            make_sender=self._make_sender,
        )
        self._open[mover] = None
        return mover

    def scheduled_mover(self, entity: str) -> AzureScheduledMover:
        """A `sbpair.ports.ScheduledMover` on a queue or topic. Opened on first use."""
        mover = AzureScheduledMover(
            self._access.label, entity, lambda: self._make_sender(entity), self._forget, make_sender=self._make_sender
        )
        self._open[mover] = None
        return mover

    def _make_receiver(
        self, path: str, dead_letter: bool, session_id: str | None, next_session_seconds: float | None = None
    ) -> Any:
        check_scope(self._access, path, f"receive from {path} on {self._access.label}")
        return make_sdk_receiver(
            self._sdk_client(),
            path,
            dead_letter=dead_letter,
            session_id=session_id,
            next_session_seconds=next_session_seconds,
        )

    def _make_sender(self, entity: str) -> Any:
        if not is_destination(entity):
            raise ArgumentRefusedError(
                f"Could not send to {quoted(entity)} on {self._access.label}: that is not the path of a queue or "
                "topic. Nothing was sent."
            )
        check_scope(self._access, entity, f"send to {entity} on {self._access.label}")
        return make_sdk_sender(self._sdk_client(), entity)

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in list(self._open)))
        # A key or a signature of azure-core's holds nothing that could be closed.
        if (close := getattr(self._credential, "close", None)) is not None:
            await close()
        self._client = None

    def _forget(self, link: object) -> None:
        self._open.pop(link, None)

    def _sdk_client(self) -> Any:
        if self._client is None:
            with translating(f"prepare the connection to {self._access.label}", waited_for=False):
                self._client = self._make_client()
        return self._client

    def _make_client(self) -> Any:
        from azure.servicebus import TransportType
        from azure.servicebus.aio import ServiceBusClient

        client_class = self._client_class or ServiceBusClient
        access = self._access
        check_credential(access)
        plain = is_plaintext(access) or self._client_options.get("use_tls") is False
        context = no_tls_context() if plain else tls_context(authorities(access.ca_file))
        options: dict[str, Any] = {"retry_total": 0, "ssl_context": context}
        if access.transport is Transport.WEBSOCKET:
            options["transport_type"] = TransportType.AmqpOverWebsocket
        if ":" in access.host and not (plain and access.transport is Transport.AMQP):
            # The SDK drops a port from the host name; only a custom endpoint keeps it.
            options["custom_endpoint_address"] = f"sb://{access.host}"
            options.setdefault("transport_type", TransportType.Amqp)
        options |= self._client_options
        if access.connection_string is not None:
            return client_class.from_connection_string(connection_string_of(access), **options)
        if self._credential is None:
            self._credential = token_credential(access)
        return client_class(access.host, self._credential, **options)
