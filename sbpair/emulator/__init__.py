"""A Service Bus namespace in a box: AMQP, administration, faults; one process, one port per namespace.

    async with Emulator(["primary", "secondary"]) as emulator: ...      on a loop
    with EmulatorThread(["primary", "secondary"]) as emulator: ...      from synchronous code
    with EmbeddedNamespace() as servicebus: ...                         in an application's tests

A message comes in from the top and goes out the same way:

    sbpair.engine   the server's side of AMQP: ports, connections, sessions, links, tokens, faults, budgets, clocks
    endpoints       which node a link is attached to
    senders, receivers   a client's link onto an entity: what comes in, what is handed out
    requests        what is asked over a management link: messages, sessions, rules
    broker          intake, addresses, queues, topics and subscriptions; mailbox: what waits, is locked, scheduled
    filters         rules of subscriptions, by `sbpair.sqlfilter`
    laws            the book of the service's rules: sentence, source, evidence, and how each is kept
    validation, limits, throttling   what the administration refuses; what a tier takes
    admin           administration over HTTP: Atom of the data plane, Azure Resource Manager
    namespace       one namespace: its entities, keys, faults; store: on disk
    geo             aliases of two namespaces (geo-disaster recovery); replicas of one (Geo-Replication)
    server, thread  all namespaces of a process, on a loop or beside synchronous code
    testing, pytest_plugin   for the tests of applications
    seed            entities and messages from a file
    control, window   how a running emulator is asked from a shell and a browser

The public names are imported when they are first used: the command line asks for this package long before it needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sbpair.emulator.namespace import Namespace
    from sbpair.emulator.server import Emulator, NamespaceConfig
    from sbpair.emulator.testing import EmbeddedNamespace
    from sbpair.emulator.thread import EmulatorThread
    from sbpair.engine.clock import Clock, ManualClock, SystemClock
    from sbpair.engine.errors import EmulatorError
    from sbpair.engine.faults import FaultError, FaultKind, FaultRule, Faults, Operation
    from sbpair.service import Tier

__all__ = [
    "AliasConfig",
    "Clock",
    "EmbeddedNamespace",
    "Emulator",
    "EmulatorError",
    "EmulatorThread",
    "FaultError",
    "FaultKind",
    "FaultRule",
    "Faults",
    "ManualClock",
    "Namespace",
    "NamespaceConfig",
    "Operation",
    "SystemClock",
    "Tier",
]

_MODULES = {
    "sbpair.engine.clock": ("Clock", "ManualClock", "SystemClock"),
    "sbpair.engine.errors": ("EmulatorError",),
    "sbpair.engine.faults": ("FaultError", "FaultKind", "FaultRule", "Faults", "Operation"),
    "sbpair.emulator.geo": ("AliasConfig",),
    "sbpair.emulator.namespace": ("Namespace",),
    "sbpair.emulator.server": ("Emulator", "NamespaceConfig"),
    "sbpair.emulator.testing": ("EmbeddedNamespace",),
    "sbpair.emulator.thread": ("EmulatorThread",),
    "sbpair.service": ("Tier",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
