"""Looks at a pair with few calls: both namespaces, the pair's own backlog queues, the head of each."""

import asyncio

from sbpair.core.access import NamespaceAccess
from sbpair.core.errors import ServiceError
from sbpair.core.pairing import Pair
from sbpair.core.snapshot import Peeked
from sbpair.core.status import REACHABLE, Look, QueueLook, SideLook
from sbpair.ports import Clock, NamespaceAdmin
from sbpair.runtime.bounded import abandoning
from sbpair.runtime.gather import bounded
from sbpair.runtime.peeking import Peek

CONCURRENCY = 8
DEFAULT_TIMEOUT_SECONDS = 10.0


async def look(
    pair: Pair,
    *,
    primary: NamespaceAdmin,
    secondary: NamespaceAdmin,
    peek: Peek | None,
    clock: Clock,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
) -> Look:
    """Both sides at once; what cannot be read is said in the look, nothing is raised for it.

    `peek` browses the head of a queue, for the age of its oldest message. `timeout_seconds` bounds each call.
    """
    taken_at = clock.now().timestamp()
    first, second = await asyncio.gather(
        _side("primary", pair.primary, primary, clock, timeout_seconds),
        _side("secondary", pair.secondary, secondary, clock, timeout_seconds),
    )
    queues: list[QueueLook] = []
    if second.state != "unreachable":

        async def one(path: str) -> QueueLook:
            return await _queue(path, secondary, peek, timeout_seconds)

        queues = await bounded(pair.backlog_paths(), one, CONCURRENCY)
    return Look(pair.name, taken_at, first, second, tuple(queues))


async def _side(
    role: str, access: NamespaceAccess, admin: NamespaceAdmin, clock: Clock, timeout_seconds: float
) -> SideLook:
    began = clock.monotonic()
    try:
        facts = await abandoning(timeout_seconds, admin.namespace(), what=f"Properties of {access.host}")
    except ServiceError as error:
        return SideLook(
            role, access.host, error.exit_name, error_code=error.code, detail=error.message, hint=error.hint
        )
    return SideLook(role, access.host, REACHABLE, facts.tier, clock.monotonic() - began)


async def _queue(path: str, admin: NamespaceAdmin, peek: Peek | None, timeout_seconds: float) -> QueueLook:
    try:
        facts = await abandoning(timeout_seconds, admin.get_queue(path), what=f"Counts of {path}", entity=path)
    except ServiceError as error:
        oldest, _ = await _oldest(path, peek, timeout_seconds)
        return QueueLook(path, oldest_enqueued_at=oldest, detail=error.message)
    if facts is None:
        return QueueLook(path, missing=True)
    oldest, detail = await _oldest(path, peek, timeout_seconds)
    counts = facts.counts
    return QueueLook(
        path, counts.active, counts.dead_letter, counts.scheduled, facts.size_in_bytes, oldest, detail=detail
    )


async def _oldest(path: str, peek: Peek | None, timeout_seconds: float) -> tuple[float | None, str]:
    """When the oldest message was put there, and why that is not known, if so."""
    if peek is None:
        return None, ""
    try:
        return (await _within(path, peek, timeout_seconds)).oldest_enqueued_at, ""
    except ServiceError as error:
        return None, error.message


async def _within(path: str, peek: Peek, timeout_seconds: float) -> Peeked:
    async def browse() -> Peeked:
        return await peek(path)

    return await abandoning(timeout_seconds, browse(), what=f"Browse of {path}", entity=path)
