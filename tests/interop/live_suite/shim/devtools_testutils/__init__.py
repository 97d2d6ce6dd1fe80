"""What azure-servicebus's tests need of the SDK repository's own test helpers, for live runs only.

Written for this suite after what the tests ask for: preparers make resources before a test and remove them after it,
credentials are made up (the emulator has no tenant to ask), and everything about recordings does nothing.
"""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from azure.core.credentials import AccessToken

from sbpair.engine.auth import SERVICE_BUS_AUDIENCE, make_bearer_token

from .preparers import AzureMgmtPreparer, FakeResource, PowerShellPreparer
from .sanitizers import add_general_regex_sanitizer

__all__ = [
    "AzureMgmtPreparer",
    "AzureMgmtRecordedTestCase",
    "AzureRecordedTestCase",
    "AzureTestError",
    "CachedResourceGroupPreparer",
    "FakeResource",
    "PowerShellPreparer",
    "RandomNameResourceGroupPreparer",
    "ReservedResourceNameError",
    "add_general_regex_sanitizer",
    "get_credential",
    "get_region_override",
    "recorded_by_proxy",
    "set_custom_default_matcher",
]

FAR_FUTURE = 4102444800


class AzureTestError(Exception):
    """A preparer could not do its work."""


class ReservedResourceNameError(AzureTestError):
    """A name the service does not allow."""


class AzureRecordedTestCase:
    """The base of tests without resources of their own."""

    @staticmethod
    def await_prepared_test(test: Callable[..., Any]) -> Callable[..., Any]:
        """Run an asynchronous test to its end on a loop of its own."""

        @functools.wraps(test)
        def run(self: object, **kwargs: Any) -> Any:
            return asyncio.run(test(self, **kwargs))

        return run


class AzureMgmtRecordedTestCase(AzureRecordedTestCase):
    """The base of tests with preparers."""


class _ResourceGroupPreparer(AzureMgmtPreparer):
    """A resource group is a name; nothing has to be made for it."""

    def create_resource(self, name: str, **kwargs: Any) -> dict[str, Any]:
        return {"resource_group": FakeResource(name=name, id=name), "location": "westus"}


class CachedResourceGroupPreparer(_ResourceGroupPreparer):
    """One group for all tests of a process."""


class RandomNameResourceGroupPreparer(_ResourceGroupPreparer):
    """A group for one test."""


def _token_for(scopes: tuple[str, ...]) -> str:
    """A token the emulator believes, as it cannot check who signed it."""
    audience = SERVICE_BUS_AUDIENCE if "servicebus" in scopes[0] else "https://management.azure.com"
    return make_bearer_token(FAR_FUTURE, audience=audience)


class _Credential:
    """For the synchronous clients."""

    def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        return AccessToken(_token_for(scopes), FAR_FUTURE)

    def close(self) -> None:
        """Nothing is open."""


class _AsyncCredential:
    async def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken:
        return AccessToken(_token_for(scopes), FAR_FUTURE)

    async def close(self) -> None:
        """Nothing is open."""

    async def __aenter__(self) -> "_AsyncCredential":
        return self

    async def __aexit__(self, *details: object) -> None:
        """Nothing is open."""


def get_credential(*, is_async: bool = False, **kwargs: Any) -> _Credential | _AsyncCredential:
    """A credential for either kind of client."""
    return _AsyncCredential() if is_async else _Credential()


def get_region_override(default: str) -> str:
    """The region to use."""
    return default


def recorded_by_proxy(test: Callable[..., Any]) -> Callable[..., Any]:
    """Nothing is recorded."""
    return test


def set_custom_default_matcher(**kwargs: Any) -> None:
    """Nothing is compared with a recording."""
