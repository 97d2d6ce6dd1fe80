"""`discover`: which namespaces hold backlog queues, of which primaries, and with how many messages."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sbpair.concurrency import run_until
from sbpair.core.access import NamespaceAccess
from sbpair.core.inspection.discovery import Discovery, proposed_pairs
from sbpair.core.pairing import Pair
from sbpair.ports import Observer
from sbpair.runtime.clock import SystemClock
from sbpair.runtime.inspection.backlog import DEFAULT_TIMEOUT_SECONDS
from sbpair.runtime.inspection.discover import Opener, Search
from sbpair.runtime.inspection.discover import discover as search_all

__all__ = ["DiscoverRequest", "Discovery", "discover"]


@dataclass(frozen=True, slots=True)
class DiscoverRequest:
    """What is searched, and what is known already."""

    namespaces: tuple[NamespaceAccess, ...]
    pairs: tuple[Pair, ...] = ()
    """The configured pairs: a backlog of theirs is called theirs, and their primaries are looked for."""
    primaries: tuple[str, ...] = ()
    """Names of more primaries to look for where a namespace does not list its queues."""
    known: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Host in lower case -> the keys of a configuration that say how that namespace is reached."""
    taken: tuple[str, ...] = ()
    """Names that a proposed pair must not have; those of `pairs` need not be among them."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Of one call."""


async def discover(
    open_namespace: Opener,
    request: DiscoverRequest,
    *,
    observer: Observer | None = None,
    stop: asyncio.Event | None = None,
) -> Discovery:
    """Look through namespaces for backlog queues, several at a time. Changes nothing, takes no message.

    A namespace that cannot be read is in the result with the reason.

    Args:
        open_namespace: connects one namespace, as `sbpair.connect.open_namespace` does; what is searched is found out
            only in the configuration or a subscription, so there are no ends to be given.
        request: what is searched.
        observer: gets nothing.
        stop: ends the search at once.

    Raises:
        InterruptedWorkError: `stop` was set before the end.
    """
    pairs, namespaces = request.pairs, request.namespaces
    labels = [*request.primaries, *(pair.primary.label for pair in pairs), *(access.label for access in namespaces)]
    search = Search(
        pairs,
        list(dict.fromkeys(label.lower() for label in labels)),
        clock=SystemClock(),
        timeout_seconds=request.timeout_seconds,
    )
    found = await run_until(stop or asyncio.Event(), search_all(namespaces, search, open_namespace))
    taken = (*request.taken, *(pair.name for pair in pairs))
    return Discovery(found, proposed_pairs(found, request.known, taken))
