"""What drain and syphon share: a request for the backlog of a pair, and which queues and ledger it means."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sbpair.core.access import shown_name
from sbpair.core.backlog import Backlog, FoundBy
from sbpair.core.entities import QueueFacts
from sbpair.core.errors import SbpairError, UsageError
from sbpair.core.pairing import Pair
from sbpair.core.transfer.conclusion import Asked
from sbpair.core.words import counted
from sbpair.operations.doubtful import Verify, looking_for
from sbpair.operations.ledgers import LedgerRun
from sbpair.ports import Clock, Messaging, NamespaceAdmin, Sides
from sbpair.runtime.clock import SystemClock
from sbpair.runtime.inspection.backlog import FoundQueues, find_queues, read_backlog
from sbpair.runtime.transfer.drain import ToArchive, ToQueue, TransferRequest, make_classifier


@dataclass(frozen=True, slots=True)
class BacklogRequest(TransferRequest):
    """What to move out of a backlog, where to, and how hard. Durations in seconds."""

    queues: tuple[str, ...] = ()
    """Paths of backlog queues on the secondary; none: every one that exists, configured or not."""
    ledger: Path | None = None
    """The file that records each message. What it already has is completed without being sent again."""
    new_ledger: bool = False
    """Begin a new ledger; the old file stays beside it as FILE.N."""
    verify_doubtful: bool = True
    """Browse the destinations first for messages that an earlier run may have sent; what is there is not sent again.
    Needs Listen there; without it, and for what was consumed meanwhile, they are sent again."""


def asked_of(pair: Pair, request: BacklogRequest) -> Asked:
    """The request as the sentences at the end of a run need it."""
    return Asked(
        pair=pair.name,
        primary=shown_name(pair.primary),
        go_on=f"sbpair drain {pair.name}{' --dlq' if request.dead_letter else ''}",
        dead_letter=request.dead_letter,
        filtered=request.wanted.is_set,
        ledger=request.ledger,
        queue=request.to.queue if isinstance(request.to, ToQueue) else None,
    )


def chosen_queues(
    pair: Pair, found: FoundQueues, only: tuple[str, ...]
) -> tuple[tuple[str, ...], Mapping[str, QueueFacts]]:
    """The paths of the queues to empty, and what the listing said of them.

    Raises:
        SbpairError: there is none.
        UsageError: a queue that was named does not exist.
    """
    if not found.existing:
        raise no_queue(pair).with_state("Nothing was moved.")
    for path in only:
        if path not in found.existing and not (path in pair.backlog_paths() and path not in found.missing):
            there = ", ".join(existing.rpartition("/")[2] for existing in found.existing)
            raise UsageError(
                f"There is no {path} on {shown_name(pair.secondary)}; the backlog queues that exist are {there}."
            )
    paths = only or found.existing
    return paths, {path: facts for path, facts in found.facts.items() if path in paths}


async def refuse_reversed(sides: Sides, found: FoundQueues, timeout_seconds: float) -> None:
    """Stop where the pair is named the wrong way round, instead of advice to create queues on the primary.

    Raises:
        UsageError: the pair has no backlog queue, and the pair of its sides exchanged has some.
    """
    pair = sides.pair
    if found.existing:
        return
    reverse = replace(pair, primary=pair.secondary, secondary=pair.primary)
    there = await find_queues(
        reverse, messaging=sides.primary, admin=sides.primary_admin, timeout_seconds=timeout_seconds
    )
    if there.found_by is not FoundBy.CONFIGURED and there.existing:
        here, other, number = shown_name(pair.primary), shown_name(pair.secondary), len(there.existing)
        are = f"{counted(number, 'queue')} of {other} {'is' if number == 1 else 'are'} on {here}"
        raise UsageError(
            f"No backlog queue of {here} exists on {other}, but {are}: the pair is reversed. Nothing was moved.",
            hint=f"Run: sbpair drain {other}:{here}",
        )


async def what_is_left(
    pair: Pair, only: tuple[str, ...], *, messaging: Messaging, admin: NamespaceAdmin, timeout_seconds: float
) -> Backlog:
    """What the backlog holds once a run is over. The queues are searched for again: one that was made meanwhile belongs
    to it too. `only`: read these queues and name the others."""
    return await read_backlog(
        pair,
        await find_queues(pair, messaging=messaging, admin=admin, timeout_seconds=timeout_seconds),
        messaging=messaging,
        admin=admin,
        clock=SystemClock(),
        timeout_seconds=timeout_seconds,
        only=only or None,
        recount=False,
    )


def no_queue(pair: Pair) -> SbpairError:
    return SbpairError(
        f"No backlog queue of {shown_name(pair.primary)} exists on {shown_name(pair.secondary)}.",
        hint=f"Create them: sbpair provision {pair.name}",
    )


def doubtful_of(
    request: BacklogRequest, *, source: Messaging, target: Messaging, clock: Clock, stop: asyncio.Event
) -> Verify | None:
    """How to look for what an earlier run may have sent; None where the request does not ask for it, or the messages go
    into an archive."""
    if not request.verify_doubtful or isinstance(request.to, ToArchive):
        return None
    return looking_for(make_classifier(request, clock), source=source, target=target, clock=clock, stop=stop)


def ledger_run(command: str, pair: Pair, request: BacklogRequest) -> LedgerRun:
    """The run as its ledger has it."""
    return LedgerRun(command, pair.secondary, None if isinstance(request.to, ToArchive) else pair.primary)
