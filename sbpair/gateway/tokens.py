"""Tokens: the gateway's own for the primary, and those of clients that are passed on (`--pass-tokens`).

A client's token is judged for its audience here and for its rights by the primary, which gets it as it is; no link of
the client is attached by the gateway's own right. While the primary is away nobody can judge a new token: only what the
primary has taken before may send.
"""

import hashlib
import time
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from sbpair.azure.credentials import NamedCredential, token_credential
from sbpair.core.access import NamespaceAccess, check_credential, parse_connection_string, without_port
from sbpair.core.errors import Category, ServiceError
from sbpair.engine.auth import (
    LISTEN,
    SEND,
    AuthError,
    Claims,
    make_sas_token,
    read_token,
    resource_path,
    service_bus_audiences,
)
from sbpair.engine.replies import CbsNode, NodeRequest

if TYPE_CHECKING:
    from sbpair.gateway.door import DoorConnection

SAS_SECONDS: Final = 3600.0
SAS: Final = "servicebus.windows.net:sastoken"
JWT: Final = "jwt"
MOST_PROOFS: Final = 10_000
_ENTRA_SCOPE: Final = "https://servicebus.azure.net/.default"


@dataclass(slots=True, eq=False)
class CbsToken:
    """What is put to `$cbs`: the address it is for as it was given, its type, and until when it is good (UTC epoch
    seconds). `owner` is the key or identity that a client's token is of, `put_on` the connection that has it."""

    name: str
    text: str = field(repr=False)
    kind: str
    until: float
    owner: str | None = None
    put_on: object = None

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode("utf-8", "replace")).hexdigest()


class Tokens:
    """The gateway's own tokens for one namespace: signed with its key, or of its Entra ID credential."""

    def __init__(self, access: NamespaceAccess) -> None:
        self.access = access
        check_credential(access)
        self._credential: NamedCredential | None = None

    async def token(self, resource: str) -> "CbsToken":
        """A token for an address of the namespace.

        Raises:
            CredentialError: Entra ID gives none.
        """
        if self.access.connection_string is None:
            if self._credential is None:
                self._credential = token_credential(self.access)
            given = await self._credential.get_token(_ENTRA_SCOPE)
            return CbsToken(resource, given.token, JWT, float(given.expires_on))
        parts = parse_connection_string(self.access.connection_string.reveal())
        if ready := parts.get("sharedaccesssignature"):
            return CbsToken(resource, ready, SAS, time.time() + SAS_SECONDS)
        until = time.time() + SAS_SECONDS
        signed = make_sas_token(resource, parts["sharedaccesskeyname"], parts["sharedaccesskey"], until)
        return CbsToken(resource, signed, SAS, until)

    async def close(self) -> None:
        if self._credential is not None:
            await self._credential.close()


class Proofs:
    """For which addresses the primary has taken a sending link with which token, of the tokens seen last."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, set[str]] = OrderedDict()

    def add(self, token: CbsToken, address: str) -> None:
        self._of(token).add(address.lower())

    def has(self, token: CbsToken, address: str) -> bool:
        return address.lower() in self._known.get(token.digest, ())

    def knows(self, token: CbsToken, before: CbsToken | None) -> bool:
        """Whether the primary has taken this token, or the one that it is to replace, of the same owner."""
        same_owner = before is not None and before.owner is not None and before.owner == token.owner
        return token.digest in self._known or (same_owner and before is not None and before.digest in self._known)

    def renew(self, before: CbsToken, token: CbsToken) -> None:
        """What one token was taken for, its successor of the same owner is."""
        if before.owner is not None and before.owner == token.owner:
            self._of(token).update(self._known.get(before.digest, ()))

    def _of(self, token: CbsToken) -> set[str]:
        found = self._known.setdefault(token.digest, set())
        self._known.move_to_end(token.digest)
        while len(self._known) > MOST_PROOFS:
            self._known.popitem(last=False)
        return found


class PassingCbs(CbsNode):
    """`$cbs` of a gateway: its own keys are judged here; other tokens go to the primary where that is wanted."""

    def __init__(self, connection: "DoorConnection") -> None:
        super().__init__(connection)
        self._client = connection

    def judge(self, asked: NodeRequest) -> None:
        status, text = self.put_token(asked)
        if status == AuthError.status and self._client.house.passes_tokens:
            self._client.house.spawn(self._pass(asked))
        else:
            self.answer(asked, status, text)

    async def _pass(self, asked: NodeRequest) -> None:
        house, name = self._client.house, asked.application["name"]
        try:
            claims = self._read(asked)
            bearer = not str(asked.body).lower().startswith("sharedaccesssignature")
            token = CbsToken(name, str(asked.body), JWT if bearer else SAS, claims.expires_at, claims.key_name)
            await self._client.pass_token(token, claims)
        except AuthError as failure:
            self.answer(asked, failure.status, str(failure))
        except ServiceError as error:
            refused = error.category in (Category.UNAUTHORIZED, Category.ARGUMENT)
            status = AuthError.status if refused else 404 if error.category is Category.NOT_FOUND else 503
            self.answer(asked, status, error.message if status != 503 else f"{house.name} is away: {error.message}")
        else:
            self.answer(asked, 202, "Accepted")

    def _read(self, asked: NodeRequest) -> Claims:
        """What the token is for. The primary decides what it allows on a link, so it is good for any here."""
        house, name = self._client.house, asked.application["name"]
        access = house.tokens.access
        claims = read_token(
            str(asked.body),
            name,
            house.clock.client_now(),
            host=without_port(access.host),
            audiences=service_bus_audiences(access.label),
        )
        return replace(claims, path=resource_path(name).lower(), rights=frozenset({SEND, LISTEN}))
