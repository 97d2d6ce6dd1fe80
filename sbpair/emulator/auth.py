"""Who may do what: shared access signatures, bearer tokens, and the rights they carry.

A shared access signature is `SharedAccessSignature sr=<resource>&sig=<signature>&se=<expiry>&skn=<key name>` where the
signature is base64(HMAC-SHA256(key, url-encoded sr + newline + se)). It is good for its resource and all below it.
A bearer token cannot be checked here (there is no tenant); it is believed unless it says itself that it has expired.
"""

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, quote, quote_plus, unquote

Rights = frozenset[str]
"""A set of "Manage", "Send", "Listen"."""

MANAGE: Final = "Manage"
SEND: Final = "Send"
LISTEN: Final = "Listen"
ALL_RIGHTS: Final[Rights] = frozenset({MANAGE, SEND, LISTEN})
NO_RIGHTS: Final[Rights] = frozenset()
ROOT_KEY_NAME: Final = "RootManageSharedAccessKey"

_SECONDS = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")
_SAS_PREFIX = "SharedAccessSignature "


class AccessRule(Protocol):
    """A named pair of keys and what they allow (`entities.AuthorizationRule` is one)."""

    @property
    def rights(self) -> Any: ...
    @property
    def primary_key(self) -> str: ...
    @property
    def secondary_key(self) -> str: ...


class AuthError(Exception):
    """A token that is refused. `status` is what `$cbs` and HTTP answer: 401."""

    status = 401


@dataclass(frozen=True, slots=True)
class Claims:
    """What one token allows. `path` is the lower-case entity path it is good for ("" = the namespace)."""

    path: str
    rights: Rights
    expires_at: float
    key_name: str | None = None

    def covers(self, path: str) -> bool:
        return not self.path or path == self.path or path.startswith(self.path + "/")


class ClaimsHolder(Protocol):
    """Anything that has collected tokens: a connection."""

    claims: dict[str, Claims]


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
    return f"{_SAS_PREFIX}sr={encoded}&sig={signature}&se={expiry}&skn={quote_plus(key_name)}"


def authenticate(
    rules: Mapping[str, AccessRule],
    token: str,
    resource: str,
    now: float,
    *,
    allow_entra: bool = True,
    entra_rights: Mapping[str, Rights] | None = None,
) -> Claims:
    """What `token` allows on `resource` (URI or path), or AuthError with the reason."""
    path = resource_path(resource).lower()
    bare = token.strip()
    if bare.startswith(_SAS_PREFIX):
        return _check_signature(rules, bare[len(_SAS_PREFIX) :], path, now)
    if not allow_entra:
        raise AuthError("InvalidToken: bearer tokens are not accepted by this namespace.")
    return _check_bearer(bare.removeprefix("Bearer ").strip(), path, now, entra_rights or {})


def check_token(rules: Mapping[str, AccessRule], token: str, resource: str, now: float) -> Rights:
    """The rights of `token` on `resource`, or AuthError."""
    return authenticate(rules, token, resource, now).rights


def rights_for(holder: ClaimsHolder, path: str, now: float | None = None) -> Rights:
    """What the tokens of a connection allow on an entity path: the longest path that covers it decides."""
    claims = claims_for(holder, path)
    if claims is None or (now is not None and claims.expires_at <= now):
        return NO_RIGHTS
    return claims.rights


def claims_for(holder: ClaimsHolder, path: str) -> Claims | None:
    """The claims that decide about `path`: those with the longest covering path, or None."""
    lowered = path.lower().strip("/")
    while True:
        found = holder.claims.get(lowered)
        if found is not None or not lowered:
            return found
        lowered = lowered.rpartition("/")[0]


def _check_signature(rules: Mapping[str, AccessRule], fields_text: str, path: str, now: float) -> Claims:
    raw = dict(part.partition("=")[::2] for part in fields_text.split("&"))
    missing = [name for name in ("sr", "sig", "se", "skn") if not raw.get(name)]
    if missing:
        raise AuthError(f"MalformedToken: The token is missing {', '.join(missing)}.")
    fields = dict(parse_qsl(fields_text, keep_blank_values=True))
    rule = rules.get(fields["skn"])
    if rule is None or not _signed_by(rule, raw["sr"], raw["se"], unquote(raw["sig"])):
        raise AuthError("InvalidSignature: The token has an invalid signature.")
    if not _SECONDS.fullmatch(raw["se"]):
        raise AuthError("MalformedToken: The token's expiry is not a number of seconds.")
    expires_at = float(raw["se"])
    if expires_at <= now:
        raise AuthError(f"ExpiredToken: The token is expired. Expiration time: '{raw['se']}'.")
    claims = Claims(_audience(fields["sr"]), _rights_of(rule), expires_at, fields["skn"])
    if not claims.covers(path):
        raise AuthError(f"InvalidAudience: The token is for '{claims.path}', not for '{path}'.")
    return Claims(path, claims.rights, expires_at, claims.key_name)


def _audience(resource: str) -> str:
    """What a token is for. Addresses of the namespace's own (`$namespaceinfo`, `$Resources/queues`) mean all of it."""
    path = resource_path(resource).lower()
    return "" if path.startswith("$") else path


def _signed_by(rule: AccessRule, encoded_resource: str, expiry: str, signature: str) -> bool:
    given = signature.encode("utf-8", "replace")
    # Both comparisons are always made, so the answer's time says nothing about the key.
    matches = [
        hmac.compare_digest(_sign(key, encoded_resource, expiry).encode(), given)
        for key in (rule.primary_key, rule.secondary_key)
        if key
    ]
    return any(matches)


def _sign(key: str, encoded_resource: str, expiry: str) -> str:
    signed = f"{encoded_resource}\n{expiry}".encode("utf-8", "replace")
    digest = hmac.new(key.encode(), signed, hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def _rights_of(rule: AccessRule) -> Rights:
    rights = frozenset(str(right) for right in rule.rights)
    return ALL_RIGHTS if MANAGE in rights else rights


def _check_bearer(token: str, path: str, now: float, entra_rights: Mapping[str, Rights]) -> Claims:
    if not token:
        raise AuthError("MissingToken: The token is empty.")
    body = _bearer_body(token)
    expires_at = _expiry_of(body.get("exp"))
    if expires_at <= now:
        raise AuthError("ExpiredToken: The token is expired.")
    principals = [str(body[name]) for name in ("oid", "appid", "azp", "sub") if name in body]
    rights = next((entra_rights[principal] for principal in principals if principal in entra_rights), None)
    if rights is None:
        rights = NO_RIGHTS if entra_rights else ALL_RIGHTS
    return Claims(path, rights, expires_at, principals[0] if principals else None)


def _expiry_of(value: object) -> float:
    """Epoch seconds of a token's `exp`; never for one that has none, or none that is a time."""
    if isinstance(value, int | float) and -_LAST_EPOCH_SECONDS < value < _LAST_EPOCH_SECONDS:
        return float(value)
    return float("inf")


_LAST_EPOCH_SECONDS = 2**53


def _bearer_body(token: str) -> dict[str, Any]:
    """The claims inside a JSON web token; empty for a token that is none (made-up credentials of tests)."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        body = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}
