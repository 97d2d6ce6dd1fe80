"""Operations tool and library for paired Azure Service Bus namespaces.

For an application that sends, with failover to the secondary: azure-servicebus' clients under another import, in
`sbpair.aio` the asynchronous one.

    from sbpair import ServiceBusClient

    client = ServiceBusClient.from_connection_string(primary, secondary=secondary)

The rooms, and which way they may import (upper from lower, siblings in braces never from each other). Inside a room,
folders carry the same words on every floor: transfer (drain, syphon), failover (clients, backlog, ping), replication
(active/active), inspection (snapshot, audit, plan, status, doctor) and cost.

    cli                 commands of one kind in a file; context.py puts the parts together
    aio.py              the asynchronous drop-in client, and
    events.py           what the drop-in clients announce: public names, nothing else
    clients             drop-in azure-servicebus clients, synchronous and asynchronous
    connect.py          Azure adapters under a pair, for the command line and for `open_pairing`
    { render            tables, JSON, monitoring formats, HTML, progress
      settings }        sbpair.yaml, environment, what wins and where a value came from
    { pipeline          the Spark jobs; the only room with PySpark
      gateway }         a door for clients of any language: sends through runtime.failover, all else to the primary
    operations          the verbs of the command line as calls: open ends and a request in, a result out
    runtime             asyncio: carries out what the machines of core decide
    { azure             the only room that knows the SDKs; wire.py alone touches their private parts
      journal }         where active/active consumers agree: SQLite, Cosmos DB
    ports.py            what the runtime needs from the outside, as Protocols
    concurrency.py      bounded concurrency, time limits, ending tasks for certain
    { core              decisions and values: pure, no clock, no I/O
      emulator }        a Service Bus namespace in a process, for the command line and tests; knows only what is below
    engine              the server's side of AMQP: ports, connections, sessions, links, tokens, budgets
    amqp                AMQP 1.0 bytes <-> typed values: pure
    sqlfilter           Service Bus SQL: subscription rules and every `--where`: pure
    service.py          nouns and rules of the service that core and emulator share
    files.py            records that must survive: appended whole or not at all, one writer; lines of what is read
    version.py          the version

The words, one for each act and thing; a name or a sentence takes these:

    pair              a primary and a secondary namespace
    backlog queue     a queue of the secondary that holds what the primary did not take
    divert            send to a backlog queue instead of the primary
    fail over, back   begin, and end, to divert
    drain             return what backlog queues hold to the primary, once
    syphon            drain continuously
    move, copy        from an entity to another, with or without taking it away
    resend, resubmit  to its destination again; dead letters
    restore           send what files hold
    report            tell an incident from its ledgers
    purge, edit       delete messages; change them where they lie
    undefer           make deferred messages active again
    drill             rehearse an outage with entities of its own
    evacuate          move everything that a namespace holds
    peek, browse      look at messages without taking them, one page or all pages
    send, ping        a message of an application; the documented probe of an entity
    provision         create what a pair lacks
    cleanup           delete what no pair needs
    discover          find backlog queues, and the pairs that they belong to
    audit, finding    check a pair; what a check says
    doctor            examine what a command would need
    status            what a backlog holds now
    snapshot, plan    all that was read of a pair at a time; steps that are shown, then applied
    dry run           everything but the act
    ends, sides       open namespaces: source and target; primary and secondary of a pair
    request, result   what a verb is to do; what it has done until it ended
    observer, event   what is notified on the way; what it gets
    ledger            the file that records each message that was sent or settled
    archive           files that keep whole messages
    journal           where consumers of active/active agree
    lock, settle      a receiver's right to a message; complete, release, abandon, defer or dead-letter it
    release           give a message back without raising its delivery count
    lane              a session of a destination: what has an order
    gap               a message that comes first and is not in our hands
    hold, park        wait with a message in hand; with its lock alone
    abandon           give up a destination for this run
    fate              what becomes of a message
    pace, rate        how fast it goes; how fast it may go
    patience          how long failures are tried again
    fault             a failure that an embedded namespace is asked to make
    law               a rule of the service, with its source

The public names below are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sbpair.version import __version__

if TYPE_CHECKING:
    from sbpair.clients.sync import ServiceBusClient, ServiceBusSender
    from sbpair.connect import open_ends, open_pairing, open_sides, run
    from sbpair.core.access import AuthMethod, NamespaceAccess, Secret
    from sbpair.core.errors import SbpairError, ServiceError
    from sbpair.core.failover.machine import DOCUMENTED, SDK, Policy, State
    from sbpair.core.pairing import Condition, Pair, SendAvailabilityOptions, Side, Verify, pair_options
    from sbpair.core.rewrite import compose, for_backlog, for_primary
    from sbpair.ports import Observer
    from sbpair.runtime.failover.pairing import EntityState, PairedNamespaces, PairingState
    from sbpair.runtime.failover.sender import FailoverSender, SendResult, Sent, SentTo, Where

__all__ = [
    "DOCUMENTED",
    "SDK",
    "AuthMethod",
    "Condition",
    "EntityState",
    "FailoverSender",
    "NamespaceAccess",
    "Observer",
    "Pair",
    "PairedNamespaces",
    "PairingState",
    "Policy",
    "SbpairError",
    "Secret",
    "SendAvailabilityOptions",
    "SendResult",
    "Sent",
    "SentTo",
    "ServiceBusClient",
    "ServiceBusSender",
    "ServiceError",
    "Side",
    "State",
    "Verify",
    "Where",
    "__version__",
    "compose",
    "for_backlog",
    "for_primary",
    "open_ends",
    "open_pairing",
    "open_sides",
    "pair_options",
    "run",
]

_MODULES = {
    "clients.sync": ("ServiceBusClient", "ServiceBusSender"),
    "connect": ("open_ends", "open_pairing", "open_sides", "run"),
    "core.access": ("AuthMethod", "NamespaceAccess", "Secret"),
    "core.errors": ("SbpairError", "ServiceError"),
    "core.failover.machine": ("DOCUMENTED", "SDK", "Policy", "State"),
    "core.pairing": ("Condition", "Pair", "SendAvailabilityOptions", "Side", "Verify", "pair_options"),
    "core.rewrite": ("compose", "for_backlog", "for_primary"),
    "ports": ("Observer",),
    "runtime.failover.pairing": ("EntityState", "PairedNamespaces", "PairingState"),
    "runtime.failover.sender": ("FailoverSender", "SendResult", "Sent", "SentTo", "Where"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
