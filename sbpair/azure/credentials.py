"""Credentials by name: one azure-identity credential, tried alone, and an error that says which one it was."""

import asyncio
import os
import re
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sbpair.core.access import AuthMethod, Cloud, NamespaceAccess, cloud_of
from sbpair.core.errors import ConfigurationError, CredentialError
from sbpair.core.redact import scrub

if TYPE_CHECKING:
    from azure.core.credentials import AccessToken

_REFRESH_BEFORE_EXPIRY_SECONDS = 300.0
_TOKEN_TIMEOUT_SECONDS = 60.0
_NEEDS = {
    AuthMethod.AZURE_CLI: "Sign in with `az login`, or choose another credential.",
    AuthMethod.MANAGED_IDENTITY: "It works on Azure hosts with an identity assigned only.",
    AuthMethod.WORKLOAD_IDENTITY: "It needs AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_FEDERATED_TOKEN_FILE.",
    AuthMethod.ENVIRONMENT: "It needs AZURE_TENANT_ID, AZURE_CLIENT_ID and a secret or certificate variable.",
    AuthMethod.BROWSER: "It needs a browser on this machine.",
    AuthMethod.DEFAULT: "Retry with one credential, for example --auth azure-cli (after az login).",
}


_TRIED = re.compile(r"^\s*(\w+Credential): (?:\1 authentication unavailable\. )?(.*)$", re.MULTILINE)
_MOST_CHARACTERS = 400
_MOST_OF_EACH = 110


def _said(text: str) -> str:
    """An error of azure-identity, short. Of one that tried several credentials the first words about each, the Azure
    CLI's first: it is what most people can do something about."""
    tried: list[tuple[str, str]] = _TRIED.findall(text)
    if len(tried) < 2:
        return " ".join(text.split())[:_MOST_CHARACTERS]
    tried.sort(key=lambda one: one[0] != "AzureCliCredential")
    return "; ".join(f"{name}: {why.split('. ')[0].rstrip('.')[:_MOST_OF_EACH]}" for name, why in tried)


class NamedCredential:
    """An azure-identity credential under the name the user gave it; satisfies azure-core's AsyncTokenCredential.

    Tokens are kept until five minutes before they expire, so that many links of one namespace cost one request
    (the Azure CLI credential starts a process each time).
    """

    def __init__(self, method: AuthMethod, inner: Any) -> None:
        self.method = method
        self._inner = inner
        self._lock = asyncio.Lock()
        self._tokens: dict[tuple[str, ...], AccessToken] = {}

    async def get_token(
        self, *scopes: str, claims: str | None = None, tenant_id: str | None = None, enable_cae: bool = False, **_: Any
    ) -> "AccessToken":
        """A token for the scopes.

        Raises:
            CredentialError: the credential could not give one; the message names it.
        """
        options = {"claims": claims, "tenant_id": tenant_id, "enable_cae": enable_cae}
        async with self._lock:
            known = self._tokens.get(scopes)
            fresh_until = known.expires_on - _REFRESH_BEFORE_EXPIRY_SECONDS if known is not None else 0.0
            if known is not None and time.time() < fresh_until and not claims:
                return known
            fresh = await self._ask(scopes, {name: value for name, value in options.items() if value})
            self._tokens[scopes] = fresh
            return fresh

    async def _ask(self, scopes: tuple[str, ...], options: dict[str, Any]) -> "AccessToken":
        try:
            async with asyncio.timeout(_TOKEN_TIMEOUT_SECONDS):
                token: AccessToken = await self._inner.get_token(*scopes, **options)
                return token
        except Exception as error:
            text = _said(scrub(str(error))) or type(error).__name__
            raise CredentialError(
                f"The credential `{self.method}` could not obtain a token for {', '.join(scopes)}: {text}",
                hint=_NEEDS.get(self.method),
            ) from error

    async def close(self) -> None:
        await self._inner.close()

    async def __aenter__(self) -> "NamedCredential":
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.close()


class _BrowserCredential:
    """azure-identity has no asynchronous browser credential; its synchronous one runs in a thread."""

    def __init__(self, **options: Any) -> None:
        from azure.identity import InteractiveBrowserCredential

        self._inner = InteractiveBrowserCredential(**options)

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        return await asyncio.to_thread(self._inner.get_token, *scopes, **options)

    async def close(self) -> None:
        self._inner.close()


def token_credential(access: NamespaceAccess) -> NamedCredential:
    """The Entra ID credential the access names.

    Raises:
        ConfigurationError: the access is a connection string, which has no token.
        CredentialError: the credential cannot even be made (a variable is missing).
    """
    if access.auth is AuthMethod.CONNECTION_STRING:
        raise ConfigurationError(
            f"{access.label} is reached by a connection string, which Azure Resource Manager does not take.",
            hint="Choose an Entra ID credential with `auth:` in the configuration, or `management: data-plane`.",
        )
    try:
        return NamedCredential(access.auth, _make(access.auth, login_host(access)))
    except Exception as error:
        raise CredentialError(
            f"The credential `{access.auth}` cannot be used: {error}", hint=_NEEDS.get(access.auth)
        ) from error


def login_host(access: NamespaceAccess) -> str | None:
    """Where to sign in for a namespace of another cloud than the public one; None leaves it to azure-identity.

    What AZURE_AUTHORITY_HOST says comes first, as for other programs.
    """
    cloud = cloud_of(access)
    if "AZURE_AUTHORITY_HOST" in os.environ or cloud in (None, Cloud.PUBLIC):
        return None
    return cloud.authority


def _make(method: AuthMethod, authority: str | None) -> Any:
    from azure.identity import aio

    options = {} if authority is None else {"authority": authority}
    if method is AuthMethod.BROWSER:
        return _BrowserCredential(**options)
    if method in (AuthMethod.AZURE_CLI, AuthMethod.MANAGED_IDENTITY):
        options = {}  # `az` signs in to the cloud that `az cloud set` names; a host's identity is of the host's cloud
    factories: dict[AuthMethod, Any] = {
        AuthMethod.AZURE_CLI: aio.AzureCliCredential,
        AuthMethod.MANAGED_IDENTITY: aio.ManagedIdentityCredential,
        AuthMethod.WORKLOAD_IDENTITY: aio.WorkloadIdentityCredential,
        AuthMethod.ENVIRONMENT: aio.EnvironmentCredential,
        AuthMethod.DEFAULT: aio.DefaultAzureCredential,
    }
    return factories[method](**options)
