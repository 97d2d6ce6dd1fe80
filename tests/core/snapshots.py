"""Snapshots for tests: a healthy pair, and ways to spoil it."""

from dataclasses import replace
from typing import Any

from sbpair.core.access import NamespaceAccess
from sbpair.core.entities import Counts, NamespaceFacts, QueueFacts, QueueSettings, Tier, TopicFacts
from sbpair.core.inspection.snapshot import (
    FORMAT_VERSION,
    How,
    NamespaceSnapshot,
    PairFields,
    Peeked,
    QueueSeen,
    Snapshot,
)
from sbpair.core.pairing import Pair, SendAvailabilityOptions, backlog_settings

NOW = 1_790_000_000.0


def host(label: str) -> str:
    return f"{label}.servicebus.windows.net"


def a_pair(count: int = 3, *, entities: tuple[str, ...] = ("orders",), **fields: Any) -> Pair:
    return Pair(
        name="orders",
        primary=NamespaceAccess("contoso", host("contoso")),
        secondary=NamespaceAccess("fabrikam", host("fabrikam")),
        options=SendAvailabilityOptions(backlog_queue_count=count),
        entities=entities,
        **fields,
    )


def a_queue(
    path: str,
    *,
    tier: Tier = Tier.STANDARD,
    counts: Counts = Counts(),  # noqa: B008 - frozen
    peeked: Peeked | None = None,
    size_in_bytes: int = 0,
    **settings: Any,
) -> QueueSeen:
    """A documented backlog queue, with settings changed as given."""
    facts = QueueFacts(
        path,
        replace(backlog_settings(tier), **settings),
        counts=counts,
        size_in_bytes=size_in_bytes,
        updated_at=NOW - 5000,
        accessed_at=NOW - 5000,
    )
    return QueueSeen(facts, How.CONFIRMED, peeked)


def a_namespace(label: str, *queues: QueueSeen, topics: tuple[TopicFacts, ...] = (), **facts: Any) -> NamespaceSnapshot:
    told = {
        "tier": Tier.STANDARD,
        "status": "Active",
        "service_time": NOW,
        "control_plane": "arm",
        "location": f"region of {label}",
        **facts,
    }
    return NamespaceSnapshot(
        label=label,
        host=host(label),
        auth="azure-cli",
        facts=NamespaceFacts(label, host(label), **told),
        observed_at=NOW,
        queues=queues,
        topics=topics,
    )


def a_snapshot(pair: Pair, primary: NamespaceSnapshot, secondary: NamespaceSnapshot) -> Snapshot:
    return Snapshot(FORMAT_VERSION, NOW, PairFields.of(pair), primary, secondary)


def healthy(pair: Pair | None = None, *, without: tuple[str, ...] = (), more: tuple[QueueSeen, ...] = ()) -> Snapshot:
    """A freshly provisioned empty pair; `without` leaves queues of the secondary out, `more` adds or replaces some."""
    pair = pair or a_pair()
    by_path = {path: a_queue(path) for path in pair.backlog_paths() if path not in without}
    by_path |= {queue.path: queue for queue in more}
    primary = a_namespace("contoso", QueueSeen(QueueFacts("orders", QueueSettings())))
    return a_snapshot(pair, primary, a_namespace("fabrikam", *by_path.values()))


def path(index: int, label: str = "contoso") -> str:
    return f"{label}/x-servicebus-transfer/{index}"
