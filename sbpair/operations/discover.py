"""`discover`: which namespaces hold backlog queues, of which primaries, and with how many messages."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from sbpair.concurrency import abandon_after, run_until, side_by_side
from sbpair.core.access import NamespaceAccess
from sbpair.core.backlog import FoundBy
from sbpair.core.entities import NamespaceFacts, QueueFacts
from sbpair.core.errors import ServiceError
from sbpair.core.inspection.discovery import (
    Discovery,
    NamespaceSearched,
    TransferQueues,
    proposed_pairs,
    searched,
    transfer_queues,
)
from sbpair.core.names import BACKLOG_INFIX, ByName, parse_backlog_queue_path
from sbpair.core.pairing import Pair
from sbpair.ports import Messaging, NamespaceAdmin, Observer
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.inspection.backlog import DEFAULT_TIMEOUT_SECONDS, FoundQueues, find_queues, read_backlog

__all__ = ["DiscoverRequest", "Discovery", "discover"]

CONCURRENCY = 4
"""Namespaces that are looked through at once."""
Opener = Callable[[NamespaceAccess], AbstractAsyncContextManager[tuple[Messaging, NamespaceAdmin]]]
"""Connects a namespace; nothing goes over the wire before it is used."""


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

    Raises:
        InterruptedWorkError: `stop` was set before the end.
    """
    known = (*(pair.primary for pair in request.pairs), *request.namespaces)
    labels = (*request.primaries, *(access.label for access in known))
    primaries = tuple(ByName((label, None) for label in labels))

    async def one(access: NamespaceAccess) -> NamespaceSearched:
        async with open_namespace(access) as (messaging, admin):
            return await _Search(request, primaries, access, messaging, admin).searched()

    searching = side_by_side(one, request.namespaces, at_once=CONCURRENCY)
    found = tuple(await run_until(stop or asyncio.Event(), searching))
    taken = (*request.taken, *(pair.name for pair in request.pairs))
    return Discovery(found, proposed_pairs(found, request.known, taken))


@dataclass(frozen=True, slots=True)
class _Search:
    """The search of one namespace."""

    request: DiscoverRequest
    primaries: tuple[str, ...]
    """Names of primaries to look for where a namespace does not list its queues."""
    access: NamespaceAccess
    messaging: Messaging
    admin: NamespaceAdmin

    async def searched(self) -> NamespaceSearched:
        """What it holds. Nothing is raised if it cannot be read: the answer says why."""
        try:
            listed = await self._listed()
        except ServiceError as refused:
            return await self._probed(refused)
        transfer = [
            await self._read(primary, FoundQueues(tuple(paths), facts=paths), self.admin)
            for primary, paths in sorted(listed.items())
        ]
        return searched(self.access, await self._facts(), FoundBy.LISTED, transfer)

    async def _listed(self) -> dict[str, ByName[QueueFacts]]:
        """Primary -> path -> queue, in the order of the indexes."""

        async def read() -> list[tuple[str, int, QueueFacts]]:
            names = [(parse_backlog_queue_path(facts.path), facts) async for facts in self.admin.list_queues()]
            return sorted(
                ((name.primary_label, name.index, facts) for name, facts in names if name is not None),
                key=lambda one: one[:2],
            )

        found: dict[str, ByName[QueueFacts]] = {}
        seconds, what = self.request.timeout_seconds, f"Queues of {self.access.label}"
        for primary, _, facts in await abandon_after(seconds, read(), what=what):
            found.setdefault(primary, ByName())[facts.path] = facts
        return found

    async def _facts(self) -> NamespaceFacts | None:
        """Tier, region and Geo-DR alias, which a backlog is found without."""
        seconds, what = self.request.timeout_seconds, f"Properties of {self.access.label}"
        try:
            return await abandon_after(seconds, self.admin.namespace(), what=what)
        except ServiceError:
            return None

    async def _probed(self, refused: ServiceError) -> NamespaceSearched:
        """Without a list: the queues of the primaries whose names are known, opened one after another."""
        transfer: list[TransferQueues] = []
        asked = False
        for primary in self.primaries:
            found = await find_queues(
                self._owner(primary), messaging=self.messaging, admin=None, timeout_seconds=self.request.timeout_seconds
            )
            if found.found_by is FoundBy.CONFIGURED:
                break  # not even that is answered: the next name would wait for its time-out as well
            asked = True
            if found.existing:
                transfer.append(await self._read(primary, found, None))
        return NamespaceSearched(
            self.access.label,
            self.access.host,
            transfer=tuple(transfer),
            found_by=FoundBy.PROBED if asked else None,
            error_code=refused.code,
            exit_name=refused.exit_name,
            detail=refused.message,
            hint=refused.hint or None,
        )

    async def _read(self, primary: str, found: FoundQueues, admin: NamespaceAdmin | None) -> TransferQueues:
        backlog = await read_backlog(
            self._owner(primary),
            found,
            messaging=self.messaging,
            admin=admin,
            clock=LoopClock(),
            timeout_seconds=self.request.timeout_seconds,
            recount=False,
        )
        return transfer_queues(backlog, primary, self.request.pairs, self.access.host)

    def _owner(self, primary: str) -> Pair:
        """A pair for the reading of a backlog: of its primary only the name is known, and only the name is used."""
        return Pair(primary, NamespaceAccess(primary, f"{primary}/{BACKLOG_INFIX}"), self.access)
