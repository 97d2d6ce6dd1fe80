"""The syphon: the drain that never ends. Polls the backlog queues and brings home what comes, for as long as it is let.

Documented are polls of 15 minutes per queue (seed 000: 40 receives an hour for 10 queues). Unlike the retired one it
holds still while a destination is down, keeps the order within sessions, and starts the moment the destination is back.
Several may run at once: they compete, and each message goes to one of them; only the order within a session is then no
longer certain.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass

from sbpair.core.entities import QueueFacts
from sbpair.core.events import BacklogCounted
from sbpair.core.lanes import Key
from sbpair.core.settlement import Settlement
from sbpair.ports import Clock, Messaging, NamespaceAdmin, Observer
from sbpair.runtime.drain import drain
from sbpair.runtime.draining import (
    DrainReport,
    DrainRequest,
    Left,
    QueueFailure,
    ToArchive,
    ToPrimary,
    ToQueue,
    facts_of,
    facts_unless_stopped,
    make_classifier,
    make_limits,
    make_outlet,
    make_report,
    make_sources,
)
from sbpair.runtime.ledger import Ledger
from sbpair.runtime.mover import Mover
from sbpair.tasks import end

__all__ = [
    "DrainReport",
    "DrainRequest",
    "Left",
    "QueueFailure",
    "SyphonRun",
    "ToArchive",
    "ToPrimary",
    "ToQueue",
    "drain",
    "syphon",
    "syphon_until",
]

POLL_SECONDS = 900.0
"""Seed 000."""


async def syphon(
    request: DrainRequest,
    *,
    secondary: Messaging,
    primary: Messaging,
    admin: NamespaceAdmin | None,
    clock: Clock,
    observer: Observer,
    ledger: Ledger | None,
    stop: asyncio.Event,
    poll_seconds: float = POLL_SECONDS,
) -> DrainReport:
    """Bring home what is in the backlog queues and what comes into them, until `stop` is set.

    A queue that cannot be read and a destination that cannot be reached are tried again for ever, with pauses from 1
    second to 2 minutes; the observer hears of each. After `stop` it ends within about 10 seconds: what is on its way is
    settled, what waits is given back. Of the request, `max_messages`, `for_seconds`, `patience_seconds` and `dry_run`
    do not apply.

    Raises:
        OSError: the ledger or archive cannot be written.
    """
    run = await syphon_until(
        stop,
        request,
        secondary=secondary,
        primary=primary,
        admin=admin,
        clock=clock,
        observer=observer,
        ledger=ledger,
        poll_seconds=poll_seconds,
    )
    if run.broken is not None:
        raise run.broken
    return run.report


@dataclass(frozen=True, slots=True)
class SyphonRun:
    """What one run did, also when it broke down."""

    report: DrainReport
    broken: BaseException | None
    """The error that ended it; None if it was stopped."""
    uncompleted: frozenset[Key]
    """What went home and is still in the backlog: to be completed, not sent, by the next run."""


async def syphon_until(
    stop: asyncio.Event,
    request: DrainRequest,
    *,
    secondary: Messaging,
    primary: Messaging,
    admin: NamespaceAdmin | None,
    clock: Clock,
    observer: Observer,
    ledger: Ledger | None,
    poll_seconds: float = POLL_SECONDS,
    uncompleted: frozenset[Key] = frozenset(),
) -> SyphonRun:
    """`syphon` that says what was done also when it breaks down. `uncompleted`: of the run before, in this process."""
    began = clock.monotonic()
    facts = await facts_unless_stopped(admin, request.queues, stop)
    sources = make_sources(request, secondary, facts, wait_seconds=poll_seconds)
    recorded = ledger.forwarded if ledger is not None else frozenset()
    limits = make_limits(request, patience_seconds=None)
    machine = Settlement(limits, can_dead_letter=not request.dead_letter, forwarded=recorded | uncompleted)
    classifier = make_classifier(request, clock)
    outlet = make_outlet(request, primary, clock)
    mover = Mover(
        sources,
        machine,
        classifier,
        outlet,
        clock=clock,
        observer=observer,
        ledger=ledger,
        endless=True,
        patience_seconds=0.0,
    )
    counting = asyncio.create_task(_count(request, facts, admin, clock, observer, poll_seconds))
    mover.start()
    try:
        await mover.settle_down(stop)
    finally:
        left = Counter(machine.left().values())
        await mover.finish()
        await end(counting)
        await outlet.close()
    report = make_report(
        machine,
        classifier,
        sources,
        left=left,
        sent_before=recorded - uncompleted,
        seconds=clock.monotonic() - began,
        confirmed_empty=False,
        ended_by="stop",
        outlet=outlet,
    )
    return SyphonRun(report, mover.fatal, machine.uncompleted)


async def _count(
    request: DrainRequest,
    facts: dict[str, QueueFacts | None],
    admin: NamespaceAdmin | None,
    clock: Clock,
    observer: Observer,
    poll_seconds: float,
) -> None:
    """Tell the observer once a poll how much lies in the queues: one reading of each, no receive."""
    while True:
        for path, known in facts.items():
            if known is not None:
                counts = known.counts
                waiting = counts.dead_letter if request.dead_letter else counts.active
                observer.notify(BacklogCounted(clock.now().timestamp(), path, waiting))
        await clock.sleep(poll_seconds)
        facts = await facts_of(admin, request.queues)
