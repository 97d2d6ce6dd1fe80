"""Messaging over azure-servicebus (asynchronous, AMQP): makes senders and receivers of one namespace."""

import asyncio
import logging
from typing import Any

from sbpair.azure.credentials import NamedCredential, token_credential
from sbpair.azure.errors import translating
from sbpair.azure.links import OPEN_SECONDS
from sbpair.azure.receiver import AzureReceiver
from sbpair.azure.scope import check_scope
from sbpair.azure.sender import AzureSender
from sbpair.azure.trust import no_tls_context, tls_context
from sbpair.azure.wire import make_sdk_receiver, make_sdk_sender
from sbpair.core.access import NamespaceAccess, Transport, parse_connection_string
from sbpair.core.errors import ConfigurationError
from sbpair.core.message import NEXT_AVAILABLE_SESSION
from sbpair.core.names import dead_letter_path

NEXT_SESSION_SECONDS = 30.0
"""How long the service is asked to look for a session that waits, by a receiver of the next available one."""


class AzureMessaging:
    """`sbpair.ports.Messaging` for one namespace.

    Nothing is connected before the first use. The SDK retries nothing: every call here is one try within its time.
    """

    def __init__(
        self,
        access: NamespaceAccess,
        *,
        credential: NamedCredential | None = None,
        next_session_seconds: float = NEXT_SESSION_SECONDS,
    ) -> None:
        """`credential`: instead of the one that `access` names (tests, a credential shared with ARM).
        `next_session_seconds`: how long a receiver of the next available session lets the service look for one."""
        quiet_sdk()
        self._access = access
        self._credential = credential
        self._next_session_seconds = next_session_seconds
        self._client: Any = None
        self._open: set[Any] = set()

    @property
    def host(self) -> str:
        return self._access.host

    def sender(self, entity: str) -> AzureSender:
        def make_sdk() -> Any:
            check_scope(self._access, entity, f"send to {entity} on {self._access.label}")
            return make_sdk_sender(self._sdk_client(), entity)

        sender = AzureSender(self._access.label, entity, make_sdk, self._open.discard)
        self._open.add(sender)
        return sender

    def receiver(
        self, path: str, *, dead_letter: bool = False, session_id: str | None = None, prefetch: int = 0
    ) -> AzureReceiver:
        next_session = session_id == NEXT_AVAILABLE_SESSION
        open_seconds = min(OPEN_SECONDS, self._access.call_seconds)
        wanted = None if next_session else session_id

        def make_sdk() -> Any:
            check_scope(self._access, path, f"receive from {path} on {self._access.label}")
            return make_sdk_receiver(
                self._sdk_client(),
                path,
                dead_letter=dead_letter,
                session_id=wanted,
                next_session_seconds=self._next_session_seconds if next_session else None,
            )

        receiver = AzureReceiver(
            self._access.label,
            dead_letter_path(path) if dead_letter else path,
            make_sdk,
            self._open.discard,
            session_id=wanted,
            next_session=next_session,
            prefetch=prefetch,
            open_seconds=open_seconds + self._next_session_seconds if next_session else open_seconds,
        )
        self._open.add(receiver)
        return receiver

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in list(self._open)))
        if self._credential is not None:
            await self._credential.close()
        self._client = None

    def _sdk_client(self) -> Any:
        if self._client is None:
            with translating(f"prepare the connection to {self._access.label}"):
                self._client = self._make_client()
        return self._client

    def _make_client(self) -> Any:
        from azure.servicebus import TransportType
        from azure.servicebus.aio import ServiceBusClient

        access = self._access
        context = no_tls_context() if _is_emulator(access) else tls_context(access.ca_file)
        options: dict[str, Any] = {"retry_total": 0, "ssl_context": context}
        if access.transport is Transport.WEBSOCKET:
            options["transport_type"] = TransportType.AmqpOverWebsocket
        if ":" in access.host and not (_is_emulator(access) and access.transport is Transport.AMQP):
            # The SDK drops a port from the host name; only a custom endpoint keeps it.
            options["custom_endpoint_address"] = f"sb://{access.host}"
            options.setdefault("transport_type", TransportType.Amqp)
        if access.connection_string is not None:
            return ServiceBusClient.from_connection_string(_without_entity(access), **options)
        if self._credential is None:
            self._credential = token_credential(access)
        return ServiceBusClient(access.host, self._credential, **options)


def quiet_sdk() -> None:
    """Keep the SDK's log records off stderr, where Python puts what nobody handles; the program's handlers get them."""
    logger = logging.getLogger("azure")
    if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        logger.addHandler(logging.NullHandler())


def _is_emulator(access: NamespaceAccess) -> bool:
    text = access.connection_string.reveal() if access.connection_string else ""
    return bool(text) and parse_connection_string(text).get("usedevelopmentemulator", "") == "true"


_SPELLING = {
    "endpoint": "Endpoint",
    "sharedaccesskeyname": "SharedAccessKeyName",
    "sharedaccesskey": "SharedAccessKey",
    "sharedaccesssignature": "SharedAccessSignature",
    "usedevelopmentemulator": "UseDevelopmentEmulator",
}


def _without_entity(access: NamespaceAccess) -> str:
    """The connection string without `EntityPath`: `check_scope` keeps to it, and the SDK knows no sub-queues of it."""
    if access.connection_string is None:
        raise ConfigurationError(f"{access.label} has no connection string.")
    parts = parse_connection_string(access.connection_string.reveal())
    return ";".join(f"{_SPELLING[key]}={value}" for key, value in parts.items() if key in _SPELLING)
