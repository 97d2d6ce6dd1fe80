"""A credential of the application, lent to the loop that diverts."""

import asyncio
import inspect
import time
from typing import Any

REFRESH_BEFORE_EXPIRY_SECONDS = 300.0
TOKEN_SECONDS = 60.0


class BorrowedCredential:
    """Asks the application's own credential for tokens, wherever that lives.

    An asynchronous credential is bound to the application's event loop, and is asked there; a synchronous one in a
    thread. Tokens are kept until five minutes before they expire, so that a ping between two event loops has one.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._tokens: dict[tuple[str, ...], Any] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        """The application's event loop, as it was last seen."""
        if (token_type := getattr(inner, "token_type", None)) is not None:
            self.token_type = token_type

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        """A token, as `azure.core.credentials_async.AsyncTokenCredential` gives it."""
        if hasattr(self, "token_type"):  # signatures, computed here and now
            found = self._inner.get_token(*scopes, **options)
            return await found if inspect.isawaitable(found) else found
        known = self._tokens.get(scopes)
        if known is None or known.expires_on - REFRESH_BEFORE_EXPIRY_SECONDS <= time.time():
            known = self._tokens[scopes] = await self._ask(scopes, options)
        return known

    async def _ask(self, scopes: tuple[str, ...], options: dict[str, Any]) -> Any:
        async with asyncio.timeout(TOKEN_SECONDS):
            if not inspect.iscoroutinefunction(self._inner.get_token):
                return await asyncio.to_thread(self._inner.get_token, *scopes, **options)
            loop = self.loop
            if loop is None or loop.is_closed():
                raise RuntimeError("the event loop of the credential has ended, and no new one was seen yet")
            asked = asyncio.run_coroutine_threadsafe(self._inner.get_token(*scopes, **options), loop)
            return await asyncio.wrap_future(asked)

    async def close(self) -> None:
        """The credential is the application's to close."""


def borrowed(credential: Any) -> Any:
    """The credential as the other loop may use it; keys and signatures as they are."""
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

    if isinstance(credential, AzureNamedKeyCredential | AzureSasCredential):
        return credential
    return BorrowedCredential(credential)
