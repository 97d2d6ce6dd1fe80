"""What both management clients stand on: an SDK client made at its first use, with its transport and credential; its
calls within a bound, and whole lists."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import certifi

from sbpair.azure.credentials import NamedCredential, token_credential
from sbpair.azure.errors import translating
from sbpair.core.access import NamespaceAccess, check_credential, entity_path_of, parse_connection_string
from sbpair.core.errors import ConfigurationError, ConflictError, EntityExistsError, UnauthorizedError
from sbpair.core.redact import quoted

# What the calls of both management clients share: retries, and the meaning of 409.

READ: Final = {"retry_total": 2}
"""Options of a read: it may be tried again within the call's bound."""

WRITE: Final = {"retry_total": 0}
"""Options of a create or delete: sent twice it can report its own success as a conflict."""


@contextmanager
def changing(tried: str, entity: str) -> Iterator[None]:
    """Translate errors of an update or delete, where 409 means that another operation is in progress."""
    try:
        with translating(tried, entity):
            yield
    except EntityExistsError as error:
        raise ConflictError(error.message, entity=entity) from error


# Connection strings of one entity (`EntityPath=...`): good for that entity, as with the SDKs, and for nothing else.


def check_scope(access: NamespaceAccess, entity: str | None, tried: str) -> None:
    """Refuse what the connection string is not for, before the service refuses it in words that do not tell why.

    `entity`: the path that is worked on; sub-queues and subscriptions belong to theirs. None: the whole namespace.

    Raises:
        UnauthorizedError: the connection string is for another entity.
    """
    bound = entity_path_of(access)
    if bound is None or (entity is not None and f"{entity}/".lower().startswith(f"{bound}/".lower())):
        return
    raise UnauthorizedError(
        f"Could not {tried}: the connection string is for {bound} alone (EntityPath={bound}).",
        hint="Give a connection string of the namespace; if its key is the namespace's, take `;EntityPath=...` out.",
        entity=entity,
    )


_SPELLING = {
    "endpoint": "Endpoint",
    "sharedaccesskeyname": "SharedAccessKeyName",
    "sharedaccesskey": "SharedAccessKey",
    "sharedaccesssignature": "SharedAccessSignature",
    "usedevelopmentemulator": "UseDevelopmentEmulator",
}


def connection_string_of(access: NamespaceAccess) -> str:
    """The connection string for the SDK: the parts that were judged, and no others. `EntityPath` is not among them:
    `check_scope` keeps to it, and the SDK knows no sub-queues of it."""
    if access.connection_string is None:
        raise ConfigurationError(f"{access.label} has no connection string.")
    parts = parse_connection_string(access.connection_string.reveal())
    return ";".join(f"{_SPELLING[key]}={value}" for key, value in parts.items() if key in _SPELLING)


# What management APIs answer, taken at its word only where it is of the right type.
#
# An answer comes from anything at the other end: a proxy's error page, an emulator of somebody else's, a new API
# version. Whatever does not fit raises ValueError with a sentence, which `translating` makes an error of ours.

Json = Mapping[str, Any]
_MAX_COUNT = 2**63 - 1


def an_object(value: Any, what: str) -> Json:
    """A JSON object; empty for null."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong(value, what, "an object")
    return value


def a_list(value: Any, what: str) -> list[Any]:
    """A JSON list; empty for null."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong(value, what, "a list")
    return value


def a_text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(value, what, "a text")
    return value


def a_text_or_none(value: Any, what: str) -> str | None:
    return a_text(value, what) if value else None


def a_count(value: Any, what: str) -> int:
    """A whole number from 0; 0 for null."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_COUNT:
        raise _wrong(value, what, "a whole number")
    return value


def a_count_or_none(value: Any, what: str) -> int | None:
    return None if value is None else a_count(value, what)


def a_flag(value: Any, what: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise _wrong(value, what, "true or false")
    return value


def _wrong(value: Any, what: str, wanted: str) -> ValueError:
    return ValueError(f"the answer has {quoted(value)} for `{what}`, which is not {wanted}")


LIST_SECONDS: Final = 600.0
MOST_PAGES: Final = 300
"""Bounds of a whole list: a namespace has up to 10,000 entities, which is 100 pages."""

T = TypeVar("T")


def authorities(ca_file: str | None) -> str:
    """PEM file of the certificate authorities that a namespace's connections trust, AMQP and HTTP alike: the configured
    one, else what SSL_CERT_FILE names as for other programs on OpenSSL, else those that the SDKs trust, certifi's."""
    return ca_file or os.environ.get("SSL_CERT_FILE") or certifi.where()


class LazyClient:
    """One SDK client of a namespace, closed together with the credential it uses."""

    def __init__(
        self,
        access: NamespaceAccess,
        credential: NamedCredential | None,
        make: "Callable[[LazyClient, Any], Any]",
        purpose: str,
        *,
        resource_manager: bool = False,
    ) -> None:
        """`credential`: instead of the one that `access` names. `purpose` is what an error says was prepared."""
        quiet_sdk()
        self.access = access
        self._credential = credential
        self._make = make
        self._purpose = purpose
        self._resource_manager = resource_manager
        self._sdk: Any = None
        self._transport: Any = None

    @property
    def sdk(self) -> Any:
        """The SDK's client, made now if this is its first use."""
        if self._sdk is None:
            with translating(f"prepare {self._purpose}", waited_for=False):
                from sbpair.azure.http import make_transport

                origin = check_credential(self.access, resource_manager=self._resource_manager)
                self._transport = make_transport(authorities(self.access.ca_file), origin)
                self._sdk = self._make(self, self._transport)
        return self._sdk

    @property
    def service_time(self) -> float | None:
        """The service's clock at its last answer, UTC epoch seconds."""
        return None if self._transport is None else self._transport.service_time

    def credential(self) -> NamedCredential:
        """The Entra ID credential, made at its first use."""
        if self._credential is None:
            self._credential = token_credential(self.access)
        return self._credential

    async def answer(self, call: Awaitable[T]) -> T:
        """The answer of one call; TimeoutError when it takes longer than `access.call_seconds`."""
        async with asyncio.timeout(self.access.call_seconds):
            return await call

    async def items(self, pages: Any) -> list[Any]:
        """Every item of a paged list, each page within the same bound.

        Raises:
            ValueError: the list leads back to a page that was read already, or has no end.
        """
        found: list[Any] = []
        iterator = pages.by_page()
        links: set[Any] = set()
        async with asyncio.timeout(LIST_SECONDS):
            while (page := await self.answer(anext(iterator, None))) is not None:
                found += [item async for item in page]
                link = iterator.continuation_token
                if link in links:
                    raise ValueError(f"the list does not end: page {len(links) + 1} leads back to an earlier one")
                if len(links) >= MOST_PAGES:
                    raise ValueError(f"the list does not end: it has more than {MOST_PAGES:,} pages")
                links.add(link)
        return found

    async def close(self) -> None:
        """Close what was opened; twice is fine."""
        sdk, self._sdk = self._sdk, None
        if sdk is not None:
            await sdk.close()
        if self._credential is not None:
            await self._credential.close()


def quiet_sdk() -> None:
    """Keep the SDK's log records off stderr, where Python puts what nobody handles; the program's handlers get them."""
    logger = logging.getLogger("azure")
    if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        logger.addHandler(logging.NullHandler())
