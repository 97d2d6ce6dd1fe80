"""Which namespaces hold backlog queues, and whose: the answer to "do we have any of this?".

A backlog queue says in its path whose it is: `<primary>/x-servicebus-transfer/<i>` ("Paired Namespaces: Implementation
Details and Cost"). A namespace that lists its queues (Manage) shows every primary it ever served. One that does not can
only be asked for the primaries whose names are known; what it may hold besides is said, not guessed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sbpair.core.access import SERVICE_BUS_SUFFIXES, NamespaceAccess
from sbpair.core.backlog import Backlog, BacklogVerdict, FoundBy
from sbpair.core.durations import format_duration
from sbpair.core.entities import NamespaceFacts
from sbpair.core.names import ByName, namespace_label, same_name
from sbpair.core.outcome import Exit, gravest
from sbpair.core.pairing import MAX_BACKLOG_QUEUE_COUNT, Pair
from sbpair.core.serialization import OMITTED_IF_NONE, column
from sbpair.core.words import counted, ranges


@dataclass(frozen=True, slots=True)
class TransferQueues:
    """The backlog queues that one primary has on one namespace. A number is None where it is not known."""

    primary: str
    """The primary's name, from the path of the queues."""
    queues: int
    indexes: str
    """Which of them exist: `0-9`, or `0-3, 7`."""
    backlog_queues: int
    """What `backlog_queues` has to be for a pair that counts on all of them: the highest index and one."""
    active: int | None
    dead_letter: int | None
    deferred: int | None
    scheduled: int | None
    at_least: bool
    """The numbers are lower bounds."""
    oldest_enqueued_at: float | None
    """When the oldest message was put there, UTC epoch seconds."""
    verdict: BacklogVerdict
    pair: str | None = None
    """The configured pair whose backlog this is."""
    configured_queues: int | None = None
    """The number of backlog queues that pair counts on."""

    @property
    def holds_messages(self) -> bool:
        return self.verdict in (BacklogVerdict.WAITING, BacklogVerdict.SET_ASIDE)


@dataclass(frozen=True, slots=True)
class NamespaceSearched:
    """One namespace that was looked through."""

    namespace: str
    host: str
    found_by: FoundBy | None = None
    """How its queues were found; None if it could not be read."""
    tier: str | None = None
    location: str | None = None
    alias: str | None = None
    """Name of its Geo-DR alias, where the control plane tells (ARM)."""
    geo_dr_role: str | None = None
    geo_dr_partner: str | None = None
    transfer: tuple[TransferQueues, ...] = ()
    error_code: str | None = field(default=None, metadata=OMITTED_IF_NONE)
    exit_name: str | None = field(default=None, metadata=OMITTED_IF_NONE)
    detail: str | None = field(default=None, metadata=OMITTED_IF_NONE)
    """What kept it from being read, or from being read whole."""
    hint: str | None = field(default=None, metadata=OMITTED_IF_NONE)


@dataclass(frozen=True, slots=True)
class Discovery:
    """What a search found: the namespaces, and the `pairs:` block for what no pair is configured for."""

    namespaces: tuple[NamespaceSearched, ...]
    pairs: Mapping[str, Any]
    """For `sbpair.yaml`: pair name -> its keys. Empty if every backlog belongs to a configured pair."""

    @property
    def transfer(self) -> tuple[TransferQueues, ...]:
        return tuple(one for namespace in self.namespaces for one in namespace.transfer)

    def summary(self) -> str:
        """The last line: how many were found, where."""
        read = [one for one in self.namespaces if one.found_by is not None]
        unread = len(self.namespaces) - len(read)
        if not self.namespaces:
            return "No Service Bus namespace is listed there; the list shows only what this login may read."
        if not read:
            return f"{counted(unread, 'namespace')} could not be read, so there may be a backlog."
        backlogs = self.transfer
        waiting = sum(1 for one in backlogs if one.holds_messages)
        found = (
            f"{counted(len(backlogs), 'backlog')} found, {waiting} with messages"
            if backlogs
            else "no backlog queue found"
        )
        rest = f"; {counted(unread, 'namespace')} could not be read" if unread else ""
        return f"{counted(len(read), 'namespace')} read: {found}{rest}."

    @property
    def exit(self) -> Exit:
        """Ok unless a namespace could not be read at all; then the gravest reason of all that were not read whole."""
        if all(namespace.found_by is not None for namespace in self.namespaces):
            return Exit.OK
        return gravest(namespace.exit_name for namespace in self.namespaces if namespace.exit_name is not None)


@dataclass(frozen=True, slots=True)
class DiscoveryRow:
    """The backlog queues of one primary on one namespace."""

    namespace: str = field(metadata=column("Namespace"))
    primary: str | None = field(default=None, metadata=column("Backlog of"))
    indexes: str | None = field(default=None, metadata=column("Queues"))
    active: int | None = field(default=None, metadata=column("Messages", counts=True))
    dead_letter: int | None = field(default=None, metadata=column("Dead", counts=True))
    oldest: str | None = field(default=None, metadata=column("Oldest", right=True))
    pair: str | None = field(default=None, metadata=column("Pair"))
    state: str = field(default="", metadata=column("State", colours=True))


def rows(discovery: Discovery, now: float) -> Iterator[DiscoveryRow]:
    """A row for each backlog, and for each namespace without any; `now` is UTC epoch seconds."""
    for namespace in discovery.namespaces:
        if not namespace.transfer:
            state = "no queue" if namespace.found_by is not None else "not read"
            yield DiscoveryRow(namespace.namespace, state=state)
        for found in namespace.transfer:
            at = found.oldest_enqueued_at
            yield DiscoveryRow(
                namespace.namespace,
                found.primary,
                found.indexes,
                found.active,
                found.dead_letter,
                None if at is None else format_duration(max(0.0, now - at)),
                found.pair,
                found.verdict.value,
            )


def transfer_queues(backlog: Backlog, primary: str, pairs: Iterable[Pair], host: str) -> TransferQueues:
    """One primary's share of the namespace `host`, from what its queues hold."""
    numbers = sorted(int(queue.queue.rpartition("/")[2]) for queue in backlog.existing)
    pair = next((one for one in pairs if _is_of(one, primary, host)), None)
    return TransferQueues(
        primary,
        len(numbers),
        ranges(numbers),
        min(MAX_BACKLOG_QUEUE_COUNT, numbers[-1] + 1 if numbers else 0),
        backlog.active,
        backlog.dead_letter,
        backlog.deferred,
        backlog.scheduled,
        backlog.at_least,
        min((one.oldest_enqueued_at for one in backlog.queues if one.oldest_enqueued_at is not None), default=None),
        backlog.verdict,
        pair=None if pair is None else pair.name,
        configured_queues=None if pair is None else pair.options.backlog_queue_count,
    )


def _is_of(pair: Pair, primary: str, host: str) -> bool:
    return same_name(pair.primary.label, primary) and same_name(pair.secondary.host, host)


def searched(
    access: NamespaceAccess, facts: NamespaceFacts | None, found_by: FoundBy, transfer: Sequence[TransferQueues]
) -> NamespaceSearched:
    """A namespace that answered."""
    told = NamespaceSearched(access.label, access.host, found_by, transfer=tuple(transfer))
    if facts is None:
        return told
    return replace(
        told,
        tier=None if facts.tier is None else facts.tier.value,
        location=facts.location,
        alias=facts.alias,
        geo_dr_role=facts.geo_dr_role,
        geo_dr_partner=facts.geo_dr_partner,
    )


def proposed_pairs(
    namespaces: Sequence[NamespaceSearched], known: Mapping[str, Mapping[str, Any]], taken: Iterable[str]
) -> dict[str, Any]:
    """The `pairs:` block for every backlog that no configured pair has.

    Args:
        known: host, lower case -> the keys that say how that namespace is reached.
        taken: names of the pairs that are configured.
    """
    names = set(taken)
    labels = ByName((namespace_label(host), host) for host in known)
    pairs: dict[str, Any] = {}
    for namespace in namespaces:
        for transfer in namespace.transfer:
            if transfer.pair is not None or not transfer.backlog_queues:
                continue
            name = _free_name(transfer.primary, namespace.namespace, names)
            names.add(name)
            host = labels.get(transfer.primary) or _same_cloud(transfer.primary, namespace.host)
            pairs[name] = {
                "primary": dict(known.get(host, {"namespace": host})),
                "secondary": dict(known.get(namespace.host, {"namespace": namespace.host})),
                "backlog_queues": transfer.backlog_queues,
            }
    return pairs


def _free_name(primary: str, secondary: str, taken: set[str]) -> str:
    """The primary's name; with the secondary's where one primary has backlogs on several namespaces."""
    return primary if primary not in taken else f"{primary}-on-{secondary}"


def _same_cloud(label: str, host: str) -> str:
    """The host of another namespace, which the path of a queue does not tell: in the same cloud as this one's."""
    suffix = next((suffix for suffix in SERVICE_BUS_SUFFIXES if host.endswith(suffix)), "")
    return label + suffix


def sentences(discovery: Discovery) -> Iterator[str]:
    """What an operator should know about it, the worst first."""
    for namespace in discovery.namespaces:
        for transfer in namespace.transfer:
            if transfer.pair is None and transfer.holds_messages:
                yield f"{namespace.namespace} holds messages of {transfer.primary}, and no configured pair covers them."
            elif transfer.pair is None:
                yield f"{namespace.namespace} has backlog queues of {transfer.primary}; no configured pair covers them."
    for namespace in discovery.namespaces:
        for transfer in namespace.transfer:
            if transfer.configured_queues is not None and transfer.backlog_queues > transfer.configured_queues:
                yield (
                    f"The pair {transfer.pair} counts on {counted(transfer.configured_queues, 'backlog queue')}, and "
                    f"{transfer.indexes} exist: set `backlog_queues: {transfer.backlog_queues}`."
                )
    for namespace in discovery.namespaces:
        if namespace.detail is not None:
            yield f"{namespace.namespace}: {namespace.detail}"
        if namespace.alias is not None:
            role, partner = namespace.geo_dr_role, namespace.geo_dr_partner
            known = f"the {role}" if role else "a member"
            beside = f", with {partner.rpartition('/')[2]}" if partner else ""
            yield (
                f"{namespace.namespace} is {known} of the Geo-DR alias {namespace.alias}{beside}; Geo-DR copies no "
                "messages."
            )
            if role is None:
                yield f"Only the resource manager returns its role: configure `subscription` for {namespace.namespace}."
