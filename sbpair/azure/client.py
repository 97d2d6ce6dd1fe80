"""What both management clients stand on: an SDK client made at its first use, with its transport and credential; its
calls within a bound, and whole lists."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sbpair.azure.credentials import NamedCredential, token_credential
from sbpair.azure.errors import translating
from sbpair.azure.messaging import quiet_sdk
from sbpair.core.access import NamespaceAccess

if TYPE_CHECKING:
    from sbpair.azure.http import ClockTransport

LIST_SECONDS: Final = 600.0
MOST_PAGES: Final = 300
"""Bounds of a whole list: a namespace has up to 10,000 entities, which is 100 pages."""

T = TypeVar("T")


class LazyClient:
    """One SDK client of a namespace, closed together with the credential it uses."""

    def __init__(
        self,
        access: NamespaceAccess,
        credential: NamedCredential | None,
        make: "Callable[[LazyClient, ClockTransport], Any]",
        purpose: str,
    ) -> None:
        """`credential`: instead of the one that `access` names. `purpose` is what an error says was prepared."""
        quiet_sdk()
        self.access = access
        self._credential = credential
        self._make = make
        self._purpose = purpose
        self._sdk: Any = None
        self._transport: ClockTransport | None = None

    @property
    def sdk(self) -> Any:
        """The SDK's client, made now if this is its first use."""
        if self._sdk is None:
            with translating(f"prepare {self._purpose}"):
                from sbpair.azure.http import make_transport

                self._transport = make_transport(self.access.ca_file)
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
