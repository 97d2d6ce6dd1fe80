"""Who may speak HTTP to a port: clients that mean it, and no web page on whose behalf a browser came by.

A browser lets any page open a WebSocket to any address, and a page that owns a name can have it resolve to this machine
(DNS rebinding); both come with the operator's own network access. What tells them apart is what a page cannot choose:
the `Host` it was loaded from and the `Origin` the browser adds.
"""

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from typing import Final

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
