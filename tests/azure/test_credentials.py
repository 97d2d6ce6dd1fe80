"""Credentials by name."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sbpair.azure.credentials import NamedCredential, _said, token_credential
from sbpair.core.access import AuthMethod, NamespaceAccess
from sbpair.core.errors import ConfigurationError, CredentialError
from tests.azure.support import FixedTokens

SCOPE = "https://servicebus.azure.net/.default"


class NoTokens(FixedTokens):
    async def get_token(self, *scopes: str, **options: object) -> None:  # type: ignore[override]
        raise RuntimeError("Please run az login. secret=eyJhbGciOi.eyJzdWIi.c2lnbmF0dXJl")


async def test_a_token_is_asked_for_once() -> None:
    tokens = FixedTokens()
    credential = NamedCredential(AuthMethod.AZURE_CLI, tokens)
    first = await credential.get_token(SCOPE)
    assert await credential.get_token(SCOPE) == first
    await credential.get_token("another")
    assert tokens.asked == 2


async def test_a_token_about_to_expire_is_not_used() -> None:
    tokens = FixedTokens(lifetime_seconds=200)
    credential = NamedCredential(AuthMethod.AZURE_CLI, tokens)
    await credential.get_token(SCOPE)
    await credential.get_token(SCOPE)
    assert tokens.asked == 2


async def test_a_challenge_gets_a_fresh_token() -> None:
    tokens = FixedTokens()
    credential = NamedCredential(AuthMethod.AZURE_CLI, tokens)
    await credential.get_token(SCOPE)
    await credential.get_token(SCOPE, claims="more")
    assert tokens.asked == 2


async def test_the_error_names_the_credential_that_was_tried_and_no_token() -> None:
    credential = NamedCredential(AuthMethod.AZURE_CLI, NoTokens())
    with pytest.raises(CredentialError) as caught:
        await credential.get_token(SCOPE)
    assert "`azure-cli`" in caught.value.message
    assert "az login" in caught.value.hint
    assert "eyJ" not in caught.value.message


def test_a_connection_string_has_no_token() -> None:
    with pytest.raises(ConfigurationError, match="connection string"):
        token_credential(NamespaceAccess("contoso", "host", auth=AuthMethod.CONNECTION_STRING))


@pytest.mark.parametrize("method", [AuthMethod.AZURE_CLI, AuthMethod.MANAGED_IDENTITY, AuthMethod.DEFAULT])
async def test_credentials_are_made_by_name(method: AuthMethod) -> None:
    credential = token_credential(NamespaceAccess("contoso", "host", auth=method))
    assert credential.method is method
    await credential.close()


@pytest.mark.parametrize("method", [one for one in AuthMethod if one is not AuthMethod.CONNECTION_STRING])
async def test_a_namespace_of_another_cloud_is_signed_in_to_there(
    method: AuthMethod, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`az` has a cloud of its own, and a host's identity is of the host's cloud: neither takes an authority."""
    monkeypatch.delenv("AZURE_AUTHORITY_HOST", raising=False)
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "token"))
    credential = token_credential(NamespaceAccess("contoso", "contoso.servicebus.chinacloudapi.cn", auth=method))
    takes_one = method not in (AuthMethod.AZURE_CLI, AuthMethod.MANAGED_IDENTITY)
    assert ("https://login.chinacloudapi.cn" in texts_in(credential, "_authority")) == takes_one
    await credential.close()


def texts_in(part: object, name: str, depth: int = 5) -> Iterator[str]:
    """The attributes of this name of an object and of its parts."""
    for attribute, value in vars(part).items() if depth and hasattr(part, "__dict__") else ():
        if attribute == name and isinstance(value, str):
            yield value
        for one in value if isinstance(value, list | tuple) else [value]:
            yield from texts_in(one, name, depth - 1)


async def test_a_credential_that_cannot_be_made_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(CredentialError) as caught:
        token_credential(NamespaceAccess("contoso", "host", auth=AuthMethod.WORKLOAD_IDENTITY))
    assert "`workload-identity`" in caught.value.message
    assert "AZURE_FEDERATED_TOKEN_FILE" in caught.value.hint


def test_of_many_credentials_that_failed_each_is_named_and_the_cli_first() -> None:
    text = (
        "DefaultAzureCredential failed to retrieve a token from the included credentials.\nAttempted credentials:\n"
        "\tEnvironmentCredential: EnvironmentCredential authentication unavailable. Environment variables are not "
        "set.\nVisit https://aka.ms/azsdk to troubleshoot this issue.\n"
        f"\tWorkloadIdentityCredential: WorkloadIdentityCredential authentication unavailable. {'x' * 500}\n"
        "\tAzureCliCredential: Please run 'az login' to set up an account\n"
    )
    said = _said(text)
    assert said.startswith("AzureCliCredential: Please run 'az login' to set up an account; EnvironmentCredential: Env")
    assert "WorkloadIdentityCredential: xxx" in said
    assert len(said) < 400
    assert _said("  one\n error  ") == "one error"
