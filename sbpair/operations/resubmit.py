"""Dead letters, sent again as their application sent them, or repaired; all at once, or in watched steps that grow."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

from sbpair.concurrency import cancel_on
from sbpair.core.editing import Repair
from sbpair.core.errors import UsageError
from sbpair.core.events import StepDone
from sbpair.core.message import PARTITION_SHIFT, MessageState, Received
from sbpair.core.names import subscription_of
from sbpair.core.summary import describe
from sbpair.core.transfer.report import DrainReport, parts_together, reasons
from sbpair.core.transfer.resend import Repairer
from sbpair.core.transfer.state import Item, Key, key_of
from sbpair.core.transfer.summary import (
    DEFAULT_WATCH_SECONDS,
    Act,
    Follow,
    Grown,
    Looked,
    MovePlan,
    MoveResult,
    StepResult,
    Steps,
    Watch,
)
from sbpair.core.transfer.verdict import DestinationSeen, Judge, fault_of
from sbpair.core.words import counted
from sbpair.operations.entity_run import EntityRun, run_entity
from sbpair.operations.move import ResendRequest, is_same_entity, resender, resending
from sbpair.ports import Ends, MessageReceiver, Observer, RuntimeClock
from sbpair.runtime.browse import PAGE_MESSAGES, pages
from sbpair.runtime.clock import LoopClock, Quiet
from sbpair.runtime.links import close_quietly
from sbpair.runtime.transfer.drain import ToArchive, make_archive

__all__ = ["Repair", "ResubmitRequest", "Steps", "resubmit"]

POLL_SECONDS = 1.0
"""How often a step is sampled."""


@dataclass(frozen=True, slots=True)
class ResubmitRequest(ResendRequest):
    """Which dead letters of an entity are sent again, where to, and how. Durations in seconds."""

    to: str = ""
    """Path of a queue or topic of the target namespace; empty: the queue whose dead letters they are."""
    _: KW_ONLY
    repair: Repair | None = None
    """What is changed in each of them. What it does not change keeps its bytes."""
    archive: Path | None = None
    """The folder where a file keeps the originals of those that a repair changes, written before they are sent."""
    grow: Steps | None = None
    """Send them in these steps, and stop where one comes back to the dead letters or nobody takes them."""
    watch_seconds: float = DEFAULT_WATCH_SECONDS
    """With `grow`: for so long the consumers of the queue may do nothing."""


async def resubmit(
    ends: Ends, request: ResubmitRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> MoveResult:
    """Send dead letters again, each exactly as its application sent it or repaired, and complete them.

    What the destination would refuse or drop stays in the dead-letter queue, and so does what is dead-lettered again
    meanwhile. Needs Listen on the source and Send on the destination, with `grow` Listen there as well.

    Args:
        request: what to do, as for `move`.

    Returns:
        What became of the dead letters, and how often a crash can have left one at the destination.

    Raises:
        UsageError: they are those of a subscription, and no destination is named; a property does not fit its repair;
            with `grow`, the destination is a topic that the dead letters do not come from; otherwise as `move`.
        SbpairError: the destination takes nothing, or the ledger or the archive cannot be written.
        ServiceError: the dead-letter queue cannot be read. Nothing was moved.
        InterruptedWorkError: `stop` was set before the first message was moved.
    """
    request = replace(request, to=request.to or own_destination(request.source))
    act = Act("sent", "dead letter", edited=request.repair is not None, command="dlq resubmit")
    run = resending(act, ends, request, dead_letter=True)
    if request.repair is not None:
        run = replace(run, make_judge=_repairing(ends, request, request.repair))
    if request.dry_run or (request.grow is None and request.archive is None):
        return await run_entity(run, ends, observer, stop)
    planned = await run_entity(replace(run, transfer=replace(run.transfer, dry_run=True)), ends, observer, stop)
    plan = request.plan or planned.plan
    run = replace(run, plan=plan)
    if request.archive is not None and plan.judge.repairs is not None:
        await _archive(ends, request, plan.judge.repairs.changed, request.archive)
    if request.grow is None:
        return await run_entity(run, ends, observer, stop)
    return await _grown(run, ends, request, request.grow, plan, observer or Quiet(), stop or asyncio.Event())


def _repairing(
    ends: Ends, request: ResubmitRequest, repair: Repair
) -> Callable[[DestinationSeen, frozenset[str]], Judge]:
    resend = resender(ends, request.source, request.to, request.selection)
    return lambda seen, recent: Repairer(resend(seen, recent), repair)


async def _archive(ends: Ends, request: ResubmitRequest, keys: Collection[Key], folder: Path) -> None:
    """Keep these messages in a file, as they lie in the dead-letter queue.

    Raises:
        SbpairError: the file cannot be written.
    """
    if not keys:
        return
    clock = LoopClock()
    receiver = ends.source.receiver(request.source, dead_letter=True)
    archive = make_archive(ToArchive(folder), clock)
    try:
        async for page in pages(receiver, clock=clock, patience_seconds=request.patience_seconds):
            items = [
                Item(key_of(one), one, 0.0, 0.0, payload=one.payload, destination=request.to)
                for one in page
                if key_of(one) in keys
            ]
            if items:
                await archive.send(request.to, items)
    finally:
        await archive.close()
        await close_quietly(receiver)


async def _grown(
    run: EntityRun,
    ends: Ends,
    request: ResubmitRequest,
    steps: Steps,
    plan: MovePlan,
    observer: Observer,
    stop: asyncio.Event,
) -> MoveResult:
    """The steps of a plan, each a run of its own, until one is not taken as it should be."""
    keys = plan.judge.keys[: request.max_messages]
    parts: list[DrainReport] = []
    last: list[MoveResult] = []

    async def send(first: int, size: int) -> dict[str, int]:
        some = keys[first : first + size]
        step = replace(
            run,
            transfer=replace(run.transfer, max_messages=size),
            plan=replace(plan, judge=plan.judge.some(some)),
            new_ledger=run.new_ledger and not parts,
        )
        last[:] = [await run_entity(step, ends, observer, stop)]
        parts.append(replace(last[0].report, left=(), filtered_out=0))
        return Counter(message_id for _, _, message_id, _ in some if message_id is not None)

    following = _Following(ends, _watched(ends, request), request.patience_seconds)
    try:
        await following.begin()
        grown = await grow(
            steps.of(len(keys)),
            send,
            following.sample,
            watch_seconds=request.watch_seconds,
            clock=LoopClock(),
            observer=observer,
            stop=stop,
        )
    finally:
        await following.close()
    report = parts_together(parts, seconds=sum(part.seconds for part in parts))
    left = Counter({one.reason: one.count for one in plan.report.left})
    left["the run stopped before its step"] += len(keys) - report.forwarded - report.already_forwarded
    report = replace(report, left=reasons(+left), ended_by="stop" if stop.is_set() else "empty")
    return replace(last[0], report=report, plan=plan, grown=grown)


async def grow(
    steps: Iterable[int],
    send: Callable[[int, int], Awaitable[dict[str, int]]],
    sample: Callable[[dict[str, int]], Awaitable[Looked]],
    *,
    watch_seconds: float,
    clock: RuntimeClock,
    observer: Observer,
    stop: asyncio.Event,
) -> Grown:
    """Send the steps one after another, each once the one before it was taken.

    Args:
        steps: how many messages each sends.
        send: sends that many from a place on; their MessageIds, and how often each was sent.
        sample: where the messages with these ids lie now.
    """
    results: list[StepResult] = []
    why: str | None = None
    first = 0
    for size in steps:
        if stop.is_set():
            why = "it was interrupted"
            break
        ids = await send(first, size)
        first += size
        watch = Watch(sum(ids.values()), watch_seconds, clock.monotonic())
        while not watch.observe(await sample(ids), clock.monotonic()) and not stop.is_set():
            await cancel_on(stop, clock.sleep(min(POLL_SECONDS, watch_seconds)))
        done = watch.result
        results.append(done)
        why = watch.why or ("it was interrupted" if stop.is_set() and done.waiting else None)
        detail = why or f"{done.taken:,} taken after {done.seconds:g} s"
        observer.notify(
            StepDone(
                clock.now().timestamp(), f"step of {counted(done.sent, 'message')}", "stopped" if why else "ok", detail
            )
        )
        if why is not None:
            break
    return Grown(tuple(results), why)


def _watched(ends: Ends, request: ResubmitRequest) -> tuple[str, bool]:
    """What gets the messages, and whether it is on the source's namespace: a queue, or the subscription they came from.

    Raises:
        UsageError: they go to a topic that they did not come from.
    """
    found = subscription_of(request.source)
    if found is not None and is_same_entity(ends, found[0], request.to):
        return request.source, True
    return request.to, False


class _Following:
    """Looks at an entity and its dead letters for messages that were sent to it."""

    def __init__(self, ends: Ends, watched: tuple[str, bool], patience_seconds: float) -> None:
        path, on_source = watched
        messaging = ends.source if on_source else ends.target
        self._receivers = [messaging.receiver(path, dead_letter=dead) for dead in (False, True)]
        self._clock = LoopClock()
        self._patience_seconds = patience_seconds
        self._first = [1, 1]
        self._known: list[frozenset[int]] = [frozenset(), frozenset()]

    async def begin(self) -> None:
        """See what lies there before the first step: messages that come later have higher numbers, but in a partitioned
        entity."""
        for place in (0, 1):
            numbers = [one.sequence_number for one in await self._all(place)]
            if len({number >> PARTITION_SHIFT for number in numbers}) > 1:
                self._known[place] = frozenset(numbers)
            else:
                self._first[place] = max(numbers, default=0) + 1

    async def _all(self, place: int) -> list[Received]:
        receiver: MessageReceiver = self._receivers[place]
        browsed = pages(receiver, self._first[place], clock=self._clock, patience_seconds=self._patience_seconds)
        return [one async for page in browsed for one in page]

    async def sample(self, ids: dict[str, int]) -> Looked:
        """Where the messages with these ids lie: the queue first, then its dead letters."""
        head = await self._receivers[0].peek(PAGE_MESSAGES, from_sequence_number=1)
        waiting, dead = [self._those_of(ids, place, await self._all(place)) for place in (0, 1)]
        return Looked(
            len(waiting),
            Counter(fault_of(describe(one.payload)) for one in dead),
            {one.sequence_number: one.delivery_count for one in (*head, *waiting) if one.state is MessageState.ACTIVE},
        )

    def _those_of(self, ids: dict[str, int], place: int, found: Sequence[Received]) -> list[Received]:
        follow = Follow(ids, self._known[place])
        return [found[index] for index in follow.those_of([(one.sequence_number, one.message_id) for one in found])]

    async def close(self) -> None:
        for receiver in self._receivers:
            await close_quietly(receiver)


def own_destination(source: str) -> str:
    """Where messages of an entity go again if no destination is named: to the queue itself.

    Raises:
        UsageError: it is a subscription, to which nothing can be sent alone.
    """
    found = subscription_of(source)
    if found is not None:
        raise UsageError(
            f"{source} is a subscription: nothing can be sent to it alone. Nothing was moved.",
            hint=f"Name a queue with --to, or --to {found[0]} if every subscription of it may get a copy.",
        )
    return source
