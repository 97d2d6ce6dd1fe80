"""Operations tool and library for paired Azure Service Bus namespaces.

For an application that sends, with failover to the secondary:

    from sbpair import Pair, NamespaceAccess, Secret, open_pairing, compose

    async with open_pairing(pair) as pairing:
        result = await pairing.sender("orders").send(compose(body="hello", message_id="1"))

The rooms, and which way they may import (upper from lower, siblings in braces never from each other):

    cli                 one file per command; context.py puts the parts together
    connect.py          Azure adapters under a pair, for the command line and for `open_pairing`
    { render            tables, JSON, monitoring formats, HTML, progress
      settings          sbpair.yaml, environment, what wins and where a value came from
      runtime           asyncio: does what the machines of core say
      azure             the only room that knows the SDKs; wire.py alone touches their private parts
      journal           where active/active consumers agree: SQLite, Cosmos DB
      emulator }        a Service Bus namespace in a box; shares only amqp with the rest
    pipeline            the Spark jobs; the only room with PySpark
    version.py          the version, for whoever shows it
    ports.py            what the runtime needs from the outside, as Protocols
    tasks.py            ending asyncio tasks for certain
    files.py            records that must survive: appended whole or not at all, one writer
    core                decisions and values: pure, no clock, no I/O
    amqp                AMQP 1.0 bytes <-> typed values: pure

The public names below are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sbpair.version import __version__

if TYPE_CHECKING:
    from sbpair.connect import open_pairing, open_sides
    from sbpair.core.access import AuthMethod, NamespaceAccess, Secret
    from sbpair.core.compose import compose
    from sbpair.core.errors import SbpairError, ServiceError
    from sbpair.core.failover import DOCUMENTED, SDK, Policy, State
    from sbpair.core.pairing import Pair, SendAvailabilityOptions
    from sbpair.core.rewrite import for_backlog, for_primary
    from sbpair.runtime.pairing import PairedNamespaces
    from sbpair.runtime.sender import FailoverSender, SendResult, Sent, Where

__all__ = [
    "DOCUMENTED",
    "SDK",
    "AuthMethod",
    "FailoverSender",
    "NamespaceAccess",
    "Pair",
    "PairedNamespaces",
    "Policy",
    "SbpairError",
    "Secret",
    "SendAvailabilityOptions",
    "SendResult",
    "Sent",
    "ServiceError",
    "State",
    "Where",
    "__version__",
    "compose",
    "for_backlog",
    "for_primary",
    "open_pairing",
    "open_sides",
]

_HOMES = {
    "connect": ("open_pairing", "open_sides"),
    "core.access": ("AuthMethod", "NamespaceAccess", "Secret"),
    "core.compose": ("compose",),
    "core.errors": ("SbpairError", "ServiceError"),
    "core.failover": ("DOCUMENTED", "SDK", "Policy", "State"),
    "core.pairing": ("Pair", "SendAvailabilityOptions"),
    "core.rewrite": ("for_backlog", "for_primary"),
    "runtime.pairing": ("PairedNamespaces",),
    "runtime.sender": ("FailoverSender", "SendResult", "Sent", "Where"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
