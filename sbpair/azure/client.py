"""What both management clients stand on: an SDK client made at its first use, with its transport and credential."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from sbpair.azure.calls import bounded, every_item
from sbpair.azure.credentials import NamedCredential, token_credential
from sbpair.azure.errors import translating
from sbpair.azure.messaging import quiet_sdk
from sbpair.core.access import NamespaceAccess

if TYPE_CHECKING:
    from sbpair.azure.http import ClockTransport

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
        """The answer of one call within `access.call_seconds`."""
        return await bounded(call, self.access.call_seconds)

    async def items(self, pages: Any) -> list[Any]:
        """Every item of a paged list, each page within `access.call_seconds`."""
        return await every_item(pages, self.access.call_seconds)

    async def close(self) -> None:
        """Close what was opened; twice is fine."""
        sdk, self._sdk = self._sdk, None
        if sdk is not None:
            await sdk.close()
        if self._credential is not None:
            await self._credential.close()
