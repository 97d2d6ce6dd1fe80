"""Who may do what: shared access signatures, bearer tokens, and the rights they carry.

A shared access signature is `SharedAccessSignature sr=<resource>&sig=<signature>&se=<expiry>&skn=<key name>` where the
signature is base64(HMAC-SHA256(key, url-encoded sr + newline + se)). It is good for its resource and all below it, as
far as the rule whose key signed it reaches: a rule of one entity never opens another.
A bearer token must be a JSON web token for this service that is valid now. Its signature cannot be checked (there is
no tenant here), so everyone who can reach the port can write one: `allow_entra` says whether any is taken.
Whatever begins like a signature is judged as one: a client's mistake in signing must fail here as it does on Azure.
"""

import base64
import binascii
import hashlib
import hmac
import ipaddress
import json
import re
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote, quote_plus, unquote, unquote_plus

if TYPE_CHECKING:
    from sbpair.engine.link import NamespaceView


Rights = frozenset[str]
"""A set of "Manage", "Send", "Listen"."""

MANAGE: Final = "Manage"
SEND: Final = "Send"
LISTEN: Final = "Listen"
ALL_RIGHTS: Final[Rights] = frozenset({MANAGE, SEND, LISTEN})
NO_RIGHTS: Final[Rights] = frozenset()
ROOT_KEY_NAME: Final = "RootManageSharedAccessKey"

SERVICE_BUS_AUDIENCE: Final = "https://servicebus.azure.net"
RESOURCE_MANAGER_AUDIENCES: Final = frozenset(
    {
        "https://management.azure.com",
        "https://management.core.windows.net",
        "https://management.chinacloudapi.cn",
        "https://management.core.chinacloudapi.cn",
        "https://management.usgovcloudapi.net",
        "https://management.core.usgovcloudapi.net",
    }
)
CLOCK_SKEW_SECONDS: Final = 300.0
"""How far ahead of this clock the issuer's may be, as the service allows for."""

_SECONDS = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")
_SAS_WORD = "SharedAccessSignature"
_SAS_FIELDS = ("sr", "sig", "se", "skn")


class NamedKeys(Protocol):
    """A named pair of keys and what they allow (`entities.AuthorizationRule` is one)."""

    @property
    def name(self) -> str: ...
    @property
    def rights(self) -> Any: ...
    @property
    def primary_key(self) -> str: ...
    @property
    def secondary_key(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Signer:
    """A rule, and whose it is: the lower-case path of a queue or topic, "" for the whole namespace."""

    rule: NamedKeys
    entity: str = ""

    @property
    def rights(self) -> Rights:
        rights = frozenset(str(right) for right in self.rule.rights)
        return ALL_RIGHTS if MANAGE in rights else rights

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for key in (self.rule.primary_key, self.rule.secondary_key) if key)


class KeysOff(tuple[Signer, ...]):
    """No signer, because keys are switched off (`disableLocalAuth`), which is told to clients that sign with one."""


class AuthError(Exception):
    """A token that is refused. `status` is what `$cbs` and HTTP answer: 401."""

    status = 401


@dataclass(frozen=True, slots=True)
class Claims:
    """What one token allows. `path` is the lower-case entity path it is good for ("" = the namespace).

    `entity` and `key` say which rule's key vouches for it, so that it ends with the rule or the key; without a key (a
    bearer token) it ends at its expiry only.
    """

    path: str
    rights: Rights
    expires_at: float
    key_name: str | None = None
    entity: str = ""
    key: str | None = field(default=None, repr=False)

    def covers(self, path: str) -> bool:
        return not self.path or path == self.path or path.startswith(self.path + "/")


class ClaimsHolder(Protocol):
    """Anything that has collected tokens: a connection."""

    claims: dict[str, Claims]

    @property
    def namespace(self) -> "NamespaceView": ...


def resource_path(uri: str) -> str:
    """The entity path of a resource URI or a bare address: no scheme, host, query or outer slashes; case kept."""
    rest = uri
    if "://" in uri:
        _, _, rest = uri.partition("://")
        _, _, rest = rest.partition("/")
    return unquote(rest.partition("?")[0]).strip("/")


def make_sas_token(resource: str, key_name: str, key: str, expires_at: float) -> str:
    """A signature for `resource` (a URI), valid until `expires_at` (epoch seconds)."""
    encoded, expiry = quote_plus(resource), str(int(expires_at))
    signature = quote(_sign(key, encoded, expiry), safe="")
    return f"{_SAS_WORD} sr={encoded}&sig={signature}&se={expiry}&skn={quote_plus(key_name)}"


def service_bus_audiences(namespace: str) -> frozenset[str]:
    """What the audience of a bearer token for a namespace may be: the service's, or the namespace's own address."""
    return frozenset({SERVICE_BUS_AUDIENCE, f"https://{namespace.lower()}.servicebus.windows.net"})


def make_bearer_token(expires_at: float, *, audience: str = SERVICE_BUS_AUDIENCE, **claims: object) -> str:
    """A JSON web token as tests need one: for `audience`, valid until `expires_at` (epoch seconds), signed by nobody.

    `claims` go into it as they are, e.g. `oid` for a principal that `Namespace.entra_rights` knows.
    """
    parts = {"alg": "RS256", "typ": "JWT"}, {"aud": audience, "exp": expires_at} | claims
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, "bm9ib2R5"])


def authenticate(
    signers: Iterable[Signer],
    token: str,
    resource: str,
    now: float,
    *,
    allow_entra: bool = True,
    entra_rights: Mapping[str, Rights] | None = None,
    audiences: Collection[str] = (SERVICE_BUS_AUDIENCE,),
) -> Claims:
    """What `token` allows on `resource` (URI or path), or AuthError with the reason."""
    path = resource_path(resource).lower()
    bare = token.strip()
    if bare.lower().startswith(_SAS_WORD.lower()):
        return _check_signature(signers, bare, path, now)
    if not bare:
        raise AuthError("MissingToken: The token is empty.")
    if not allow_entra:
        raise AuthError("InvalidToken: bearer tokens are not accepted by this namespace.")
    return _check_bearer(bare.removeprefix("Bearer ").strip(), path, now, entra_rights or {}, audiences)


def read_token(token: str, resource: str, now: float, *, host: str, audiences: Collection[str]) -> Claims:
    """What a token says of itself, its signature unchecked, for somebody who passes it on to `host`: the path, the
    expiry, and as `key_name` the key or identity that it is of. It gives no rights.

    Raises:
        AuthError: it is for another host or audience, does not cover `resource` (URI or path), or has expired.
    """
    path, bare = resource_path(resource).lower(), token.strip()
    if not bare.lower().startswith(_SAS_WORD.lower()):
        found = _check_bearer(bare.removeprefix("Bearer ").strip(), path, now, {}, audiences)
        return replace(found, rights=NO_RIGHTS)
    raw = _signature_fields(bare)
    named = unquote_plus(raw["sr"])
    if _host_in(named) != host.lower():
        raise AuthError(f"InvalidAudience: The token is for '{_host_in(named)}', not for '{host}'.")
    if not _SECONDS.fullmatch(raw["se"]) or float(raw["se"]) <= now:
        raise AuthError(f"ExpiredToken: The token is expired. Expiration time: '{raw['se'][:20]}'.")
    claims = Claims(_audience(named), NO_RIGHTS, float(raw["se"]), unquote_plus(raw["skn"]))
    if not claims.covers(path):
        raise AuthError(f"InvalidAudience: The token is for '{claims.path}', not for '{path}'.")
    return replace(claims, path=path)


def _host_in(resource: str) -> str:
    """The host that a resource is on, without its port."""
    authority = resource.partition("://")[2] or resource
    authority = authority.partition("/")[0].lower()
    return authority[1:].partition("]")[0] if authority.startswith("[") else authority.partition(":")[0]


def rights_for(holder: ClaimsHolder, path: str, now: float | None = None) -> Rights:
    """What the tokens of a connection allow on an entity path: the longest path that covers it decides."""
    claims = claims_for(holder, path)
    if claims is None or (now is not None and claims.expires_at <= now):
        return NO_RIGHTS
    return claims.rights


def claims_for(holder: ClaimsHolder, path: str) -> Claims | None:
    """The claims that decide about `path`: those with the longest covering path whose key still vouches for them.

    The rules are asked each time: those of `orders` say nothing about `orders/eu`, which is another entity, and
    a deleted rule says nothing about anything.
    """
    lowered = path.lower().strip("/")
    signers: Sequence[Signer] | None = None
    while True:
        found = holder.claims.get(lowered)
        if found is not None:
            if signers is None:
                signers = holder.namespace.signers(path)
            vouched = _vouched(found, signers)
            if vouched is not None:
                return vouched
        if not lowered:
            return None
        lowered = lowered.rpartition("/")[0]


def _vouched(claims: Claims, signers: Iterable[Signer]) -> Claims | None:
    """The claims with the rights their rule has now; None when rule or key are gone."""
    if claims.key is None:
        return claims
    for signer in signers:
        if (signer.entity, signer.rule.name) == (claims.entity, claims.key_name) and claims.key in signer.keys:
            return replace(claims, rights=signer.rights)
    return None


def _check_signature(signers: Iterable[Signer], token: str, path: str, now: float) -> Claims:
    if isinstance(signers, KeysOff):
        raise AuthError(
            "LocalAuthDisabled: Authorization failed because SAS authentication has been disabled for the namespace."
        )
    raw = _signature_fields(token)
    named = [signer for signer in signers if signer.rule.name == unquote_plus(raw["skn"])]
    found = _signed_by(named, raw["sr"], raw["se"], unquote(raw["sig"]))
    if found is None:
        raise AuthError("InvalidSignature: The token has an invalid signature.")
    signer, key = found
    if not _SECONDS.fullmatch(raw["se"]):
        raise AuthError("MalformedToken: The token's expiry is not a number of seconds.")
    expires_at = float(raw["se"])
    if expires_at <= now:
        raise AuthError(f"ExpiredToken: The token is expired. Expiration time: '{raw['se']}'.")
    claims = Claims(_audience(unquote_plus(raw["sr"])), signer.rights, expires_at, signer.rule.name, signer.entity, key)
    if not claims.covers(path):
        raise AuthError(f"InvalidAudience: The token is for '{claims.path}', not for '{path}'.")
    return replace(claims, path=path)


def _signature_fields(token: str) -> dict[str, str]:
    """The fields of a signature as they were signed, still encoded. Read once, and each at most once: a second reading
    that decodes names would find an `%73r` that the signature does not cover."""
    word, _, text = token.partition(" ")
    if word != _SAS_WORD:
        raise AuthError(f"MalformedToken: A shared access signature begins with '{_SAS_WORD} '.")
    raw: dict[str, str] = {}
    for part in text.strip().split("&"):
        name, _, value = part.partition("=")
        if name in raw:
            raise AuthError(f"MalformedToken: The token has more than one '{name[:20]}'.")
        raw[name] = value
    missing = [name for name in _SAS_FIELDS if not raw.get(name)]
    if missing:
        raise AuthError(f"MalformedToken: The token is missing {', '.join(missing)}.")
    if len(raw) > len(_SAS_FIELDS):
        raise AuthError("MalformedToken: The token has fields that a shared access signature does not have.")
    return raw


def _audience(resource: str) -> str:
    """What a token is for. Addresses of the namespace's own (`$namespaceinfo`, `$Resources/queues`) mean all of it."""
    # The JavaScript client signs its tokens for forwarding targets with the bare host and port.
    path = resource_path(f"sb://{resource}" if _HOST_AND_PORT.match(resource) else resource).lower()
    return "" if path.startswith("$") else path


_HOST_AND_PORT = re.compile(
    r"(?:[A-Za-z0-9.-]+:[0-9]{1,5}|\[[0-9A-Fa-f:.]+\](?::[0-9]{1,5})?"
    r"|[A-Za-z0-9-]+\.servicebus\.windows\.net|(?:[0-9]{1,3}\.){3}[0-9]{1,3}|localhost)(?:/|$)"
)
"""No entity path has a colon; a host without a port is known by the service's domain, or as an address."""


def _signed_by(
    signers: Iterable[Signer], encoded_resource: str, expiry: str, signature: str
) -> tuple[Signer, str] | None:
    """The rule and the key that signed. An entity may have a rule of the same name as its namespace: both are tried."""
    given = signature.encode("utf-8", "replace")
    # Every comparison is always made, so the answer's time says nothing about the keys.
    matches = [
        (signer, key)
        for signer in signers
        for key in signer.keys
        if hmac.compare_digest(_sign(key, encoded_resource, expiry).encode(), given)
    ]
    return matches[0] if matches else None


def _sign(key: str, encoded_resource: str, expiry: str) -> str:
    signed = f"{encoded_resource}\n{expiry}".encode("utf-8", "replace")
    digest = hmac.new(key.encode(), signed, hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def _check_bearer(
    token: str, path: str, now: float, entra_rights: Mapping[str, Rights], audiences: Collection[str]
) -> Claims:
    body = _bearer_body(token)
    audience = body.get("aud")
    if not isinstance(audience, str) or audience.rstrip("/").lower() not in audiences:
        raise AuthError(f"InvalidAudience: The token is not for {' or '.join(sorted(audiences))}.")
    expires_at = _time_of(body.get("exp"))
    if expires_at is None:
        raise AuthError("MalformedToken: The token's expiry is not a number of seconds.")
    if expires_at <= now:
        raise AuthError("ExpiredToken: The token is expired.")
    if "nbf" in body and ((begins_at := _time_of(body["nbf"])) is None or begins_at > now + CLOCK_SKEW_SECONDS):
        raise AuthError("InvalidToken: The token is not valid yet.")
    principals = [str(body[name]) for name in ("oid", "appid", "azp", "sub") if name in body]
    rights = next((entra_rights[principal] for principal in principals if principal in entra_rights), None)
    if rights is None:
        rights = NO_RIGHTS if entra_rights else ALL_RIGHTS
    return Claims(path, rights, expires_at, principals[0] if principals else None)


def _time_of(value: object) -> float | None:
    """Epoch seconds of a token's `exp` or `nbf`; None for what is no time."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -_LAST_EPOCH_SECONDS < value < _LAST_EPOCH_SECONDS else None


_LAST_EPOCH_SECONDS = 2**53
_MOST_TOKEN_CHARACTERS = 64 * 1024


def _bearer_body(token: str) -> dict[str, Any]:
    """The claims inside a JSON web token, or AuthError for anything that is none."""
    parts = token.split(".", 3) if len(token) <= _MOST_TOKEN_CHARACTERS else ()
    if len(parts) == 3 and all(parts):
        header, body = _json_part(parts[0]), _json_part(parts[1])
        if header is not None and body is not None and str(header.get("alg", "none")).lower() != "none":
            return body
    raise AuthError("MalformedToken: The token is neither a shared access signature nor a signed JSON web token.")


def _json_part(part: str) -> dict[str, Any] | None:
    try:
        value = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return None
    return value if isinstance(value, dict) else None


# Who may speak HTTP to a port: clients that mean it, and no web page on whose behalf a browser came by.
#
# A browser lets any page open a WebSocket to any address, and a page that owns a name can have it resolve to this
# machine (DNS rebinding); both come with the operator's own network access. What tells them apart is what a page
# cannot choose: the `Host` it was loaded from and the `Origin` the browser adds.

MISDIRECTED: Final = 421
FORBIDDEN: Final = 403


class OwnNames:
    """The names a port goes by: localhost, this machine's name, those it was given (`*.example.com` for all below).

    An address is always one of them: rebinding needs a name.
    """

    def __init__(self, given: Iterable[str] = ()) -> None:
        names = {name.lower().rstrip(".") for name in (*given, "localhost", "*.localhost", socket.gethostname())}
        self._exact = {name for name in names if not name.startswith("*.")}
        self._below = tuple(name[1:] for name in names if name.startswith("*."))

    def refusal(self, hosts: Sequence[str], origins: Sequence[str]) -> tuple[int, str] | None:
        """HTTP status and reason for a request with these `Host` and `Origin` headers; None if it may go on."""
        if len(hosts) != 1 or not self._is_own(hosts[0]):
            return MISDIRECTED, (
                "The Host of the request is not a name of this namespace. Reach it by its address or as localhost, or "
                "make the name known to it (--tls-name)."
            )
        if any(origin.partition("://")[2].lower() != hosts[0].lower() for origin in origins):
            return FORBIDDEN, "A web page of another origin may not access this namespace."
        return None

    def _is_own(self, host: str) -> bool:
        name = _without_port(host).lower().rstrip(".")
        return name in self._exact or name.endswith(self._below) or _is_address(name)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on `host`."""
    return host.lower() == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
