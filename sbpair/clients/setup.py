"""What the two clients have in common when they are made: which pair, and how its namespaces are reached."""

import asyncio
import inspect
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from azure.servicebus.aio import ServiceBusClient

from sbpair.azure.connect import make_admin
from sbpair.clients.failover import Failover, OnEvent
from sbpair.core.access import (
    AuthMethod,
    NamespaceAccess,
    Secret,
    host_of,
    is_address,
    without_port,
)
from sbpair.core.names import namespace_label
from sbpair.core.pairing import PAIR_OPTIONS, Pair, SendAvailabilityOptions, pair_options, refuse_unknown
from sbpair.ports import Messaging

REFRESH_BEFORE_EXPIRY_SECONDS = 300.0
TOKEN_SECONDS = 60.0
_SDK_CLIENT = ServiceBusClient
"""Taken hold of before an application that cannot change its imports puts ours in its place by name."""
_UNDOCUMENTED = (
    "entity_name", "use_tls", "uamqp_transport", "try_timeout", "socket_timeout", "keep_alive", "auth_timeout",
    "auto_reconnect", "encoding", "timeout", "amqp_transport",
)  # fmt: skip
"""Arguments that some release of the SDK takes without a word in its documentation."""
_KEYWORD = re.compile(r":(?:keyword|param)\s+(?:[^:\n]*\s)?(\w+):")
_CONNECTION_OPTIONS = ("transport_type", "http_proxy", "user_agent", "connection_verify", "ssl_context")
_OF_ONE_NAMESPACE = ("custom_endpoint_address", "use_tls")


def check_keywords(given: Mapping[str, Any], callee: Any, where: str, *, more: Iterable[str] = ()) -> None:
    """Refuse what the SDK would ignore.

    Args:
        callee: the SDK's class or method: what its signature or documentation names, it takes. `more`: so are these.

    Raises:
        TypeError: with a suggestion.
    """
    documented = _KEYWORD.findall(inspect.getdoc(callee) or "")
    named = [name for name in inspect.signature(callee).parameters if name not in ("self", "kwargs")]
    refuse_unknown(given, dict.fromkeys([*more, *named, *documented, *_UNDOCUMENTED]), where)


def split_keywords(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the pairing, and arguments of the SDK's client.

    Raises:
        TypeError: neither; with a suggestion.
    """
    ours = ("secondary", "secondary_credential", "pair", "options", "on_event", *PAIR_OPTIONS)
    check_keywords(keywords, _SDK_CLIENT, "ServiceBusClient", more=ours)
    options = {name: value for name, value in keywords.items() if name in PAIR_OPTIONS}
    return options, {name: value for name, value in keywords.items() if name not in options}


def make_failover(
    host: str,
    credential: Any,
    sdk_options: Mapping[str, Any],
    *,
    secondary: str | None,
    secondary_credential: Any,
    pair: str | Pair | None,
    options: SendAvailabilityOptions | None,
    changes: Mapping[str, Any],
    on_event: OnEvent | None,
) -> Failover:
    """The failover of a client for `host`, which is the primary.

    Raises:
        TypeError: not exactly one of `secondary` and `pair`.
        UsageError: an option outside its limits.
        ValueError: the pair is another namespace's, or nothing says how to sign in at the secondary.
        SbpairError: the pair, the options or the secondary's name are wrong.
    """
    if (secondary is None) is (pair is None):
        raise TypeError("Name the secondary namespace: give either secondary=... or pair=....")
    own = borrowed(credential)
    made: list[Any] = [own]
    if pair is not None:
        chosen = _configured(pair, host)
        chosen = replace(chosen, options=pair_options(options or chosen.options, **changes))

        def make_secondary() -> Messaging:
            return _messaging(chosen.secondary, None, {})
    else:
        access, theirs = _secondary(secondary or "", credential, secondary_credential)
        made.append(theirs)
        primary = NamespaceAccess(_label(_address(host, sdk_options)), host)
        chosen = Pair(primary.label, primary, access, pair_options(options, **changes))
        shared = {name: sdk_options[name] for name in _CONNECTION_OPTIONS if sdk_options.get(name) is not None}

        def make_secondary() -> Messaging:
            return _messaging(access, theirs, shared)

    names = _CONNECTION_OPTIONS + _OF_ONE_NAMESPACE
    for_primary = {name: sdk_options[name] for name in names if sdk_options.get(name) is not None}
    return Failover(
        chosen,
        primary=lambda: _messaging(NamespaceAccess(chosen.primary.label, host), own, for_primary),
        secondary=make_secondary,
        make_admin=lambda: make_admin(chosen.secondary),
        credential=credential,
        on_event=on_event,
        credentials=[one for one in made if isinstance(one, BorrowedCredential)],
    )


def _address(host: str, sdk_options: Mapping[str, Any]) -> str:
    """Where the client connects to: the SDK keeps a port beside the host only in a custom endpoint."""
    endpoint = str(sdk_options.get("custom_endpoint_address") or "")
    return endpoint.partition("://")[2].partition("/")[0] or host


def _label(address: str) -> str:
    """The namespace's name, which the paths of its backlog queues contain.

    Raises:
        ValueError: the address is not a name, and no embedded namespace of this user.
    """
    from sbpair.settings.state import name_of_embedded

    bare = without_port(address)
    if not is_address(bare):
        return namespace_label(address)
    if (name := name_of_embedded(address, os.environ)) is None:
        raise ValueError(
            f"The name of the namespace at {address} is not known, and the backlog queues are called by it: give "
            "pair= instead of secondary=, with the name as the label of its primary."
        )
    return name


def _configured(pair: str | Pair, host: str) -> Pair:
    if isinstance(pair, str):
        from sbpair.settings import load_noticed

        pair = load_noticed().pair(pair)
    if pair.primary.host.lower() != host.lower():
        raise ValueError(
            f"The primary of the pair {pair.name!r} is {pair.primary.host}, and this client is for {host}: what it "
            "cannot send would wait where no drain looks for it."
        )
    return pair


def _secondary(secondary: str, credential: Any, own: Any) -> tuple[NamespaceAccess, Any]:
    """How the secondary is reached, and the credential for it (None with a connection string)."""
    if "endpoint=" in secondary.lower():
        host = host_of(secondary)
        access = NamespaceAccess(
            _label(host),
            host,
            AuthMethod.CONNECTION_STRING,
            connection_string=Secret(secondary),
        )
        return access, None
    host = secondary.partition("://")[2] or secondary
    host = host.rstrip("/")
    if own is None and not _signs_in_anywhere(credential):
        raise ValueError(
            "The credential of the primary is a key, which the secondary does not know: give secondary= as a "
            "connection string, or secondary_credential=."
        )
    return NamespaceAccess(_label(host), host), borrowed(credential if own is None else own)


def _signs_in_anywhere(credential: Any) -> bool:
    """A credential of Entra ID, not a key or a signature."""
    return hasattr(credential, "get_token") and not hasattr(credential, "token_type")


def _messaging(access: NamespaceAccess, credential: Any, options: Mapping[str, Any]) -> Messaging:
    from sbpair.azure.messaging import AzureMessaging

    more = dict(options)
    if (authority := more.pop("connection_verify", None)) is not None:
        access = replace(access, ca_file=authority)
    return AzureMessaging(access, credential=credential, client_options=more, client_class=_SDK_CLIENT)


# A credential of the application, lent to the loop that diverts.


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
