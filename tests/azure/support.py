"""What the tests of the adapters share."""

import time
from typing import Any

from azure.core.credentials import AccessToken

from sbpair.amqp import sections
from sbpair.amqp.sections import PropertyField, Section
from sbpair.azure.credentials import NamedCredential
from sbpair.core.access import AuthMethod
from sbpair.engine.auth import SERVICE_BUS_AUDIENCE, make_bearer_token


class FixedTokens:
    """An identity that always gives the same token; counts how often it was asked."""

    def __init__(self, lifetime_seconds: float = 3600.0) -> None:
        self.asked = 0
        self._lifetime_seconds = lifetime_seconds

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        self.asked += 1
        expires_at = time.time() + self._lifetime_seconds
        audience = SERVICE_BUS_AUDIENCE if "servicebus" in scopes[0] else "https://management.azure.com"
        return AccessToken(make_bearer_token(expires_at, audience=audience), int(expires_at))

    async def close(self) -> None:
        pass


class FixedCredential(NamedCredential):
    """A NamedCredential over `FixedTokens`."""

    def __init__(self) -> None:
        super().__init__(AuthMethod.AZURE_CLI, FixedTokens())


def message(message_id: str, *, body: bytes = b"hello", session_id: str | None = None) -> bytes:
    """A small encoded message."""
    properties: dict[int, Any] = {PropertyField.MESSAGE_ID: message_id}
    if session_id is not None:
        properties[PropertyField.GROUP_ID] = session_id
    return sections.build(properties=properties, data=body)


def senders_part(payload: bytes) -> bytes:
    """The sections that are the sender's alone, as they are: properties, application properties, body, footer."""
    return b"".join(
        payload[span.start : span.end] for span in sections.scan(payload) if span.section >= Section.PROPERTIES
    )
