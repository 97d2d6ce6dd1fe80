"""The messages of any entity, sent to another one as their application sent them: moved or copied."""

import asyncio
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sbpair.concurrency import run_until
from sbpair.core.access import shown_name
from sbpair.core.errors import EntityNotFoundError, UsageError, unchanged
from sbpair.core.inspection.contents import HOLDING_PREFIX
from sbpair.core.names import by_path, check_entity_path, is_destination, same_name, subscription_of
from sbpair.core.outcome import Exit
from sbpair.core.retry import UNREACHED_SECONDS
from sbpair.core.transfer.resend import ALL_MESSAGES, COPY, OnlyFor, Resender, Selection, rules_of
from sbpair.core.transfer.summary import Act, MovePlan, MoveResult
from sbpair.core.transfer.verdict import DestinationSeen, Judge
from sbpair.core.words import counted
from sbpair.operations.entity import DeleteEntityRequest, delete_entity
from sbpair.operations.entity_run import EntityRun, RecordedRequest, run_entity
from sbpair.ports import Ends, Observer
from sbpair.runtime.transfer.drain import ToQueue

__all__ = ["CopyRequest", "MovePlan", "MoveRequest", "MoveResult", "Selection", "copy", "move"]


@dataclass(frozen=True, slots=True)
class ResendRequest(RecordedRequest):
    """Which messages of an entity are sent where, and how. Durations in seconds."""

    to: str
    """Path of a queue or topic of the target namespace."""
    _: KW_ONLY
    selection: Selection = ALL_MESSAGES
    max_messages: int | None = None
    for_seconds: float | None = None
    """End after this time."""
    rate_per_second: float | None = None
    budget_per_second: float | None = None
    """Messages a second that leave enough of the namespace's throttling credits to others."""
    concurrency: int = 8
    """Batches that are sent at a time."""
    unreached_seconds: float = UNREACHED_SECONDS
    """The same for one that has not worked yet."""
    verify_doubtful: bool = True
    """Look at the destination first for what a killed run may have sent; what is there is not sent again. Needs Listen
    there; without it such messages are sent again."""

    @property
    def some_only(self) -> bool:
        """Whether only some of the entity's messages are to go; session states stay then."""
        return self.selection.is_set or self.max_messages is not None


@dataclass(frozen=True, slots=True)
class MoveRequest(ResendRequest):
    """Which messages of an entity are moved where, and how. Durations in seconds."""

    _: KW_ONLY
    with_dead_letter: bool = False
    """Move the dead letters as well."""
    delete_empty: bool = False
    """Delete the source afterwards, if it is a queue where an evacuation holds messages, and was proven empty."""
    log: Path | None = None
    """The operations log for that. None: nothing is recorded."""
    idle_seconds: float = 0.0
    """Go on with messages that come, until none has come for this long. 0: only what is there at the beginning."""


@dataclass(frozen=True, slots=True)
class CopyRequest(ResendRequest):
    """Which messages of an entity are copied where, and how. Durations in seconds."""

    _: KW_ONLY
    dead_letter: bool = False
    """Copy the dead letters instead."""
    with_dead_letter: bool = False
    """Copy the dead letters as well."""


async def move(
    ends: Ends, request: MoveRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> MoveResult:
    """Send the messages of an entity to another one and complete them: active, deferred and scheduled ones.

    Messages of one session go in their order. An entity that requires sessions is emptied session by session, their
    states included. What the destination would refuse or drop stays. Within a namespace that has transactions each
    message is sent and completed in one; elsewhere a crash may leave a message in both places, with the same MessageId.
    Needs Listen on the source and Send on the destination; Send on the source for scheduled messages, Listen on the
    destination for session states.

    A subscription as destination gets what its topic's rules give to it alone, without a change; what another one would
    get as well stays. The rules are read (Manage) before and after, and compared.

    Args:
        request: what to do. With `dry_run` the source is browsed and the destination asked; the result says what would
            be done, and its `plan` makes a second call do exactly that.

    Returns:
        What became of the messages, and how often a crash can have left one at the destination.

    Raises:
        UsageError: source and destination are one entity, or nothing can be sent to the destination; it may drop
            messages as duplicates; the ledger is that of other namespaces. Nothing was moved.
        SbpairError: the destination takes nothing, or the ledger cannot be written.
        ServiceError: the source cannot be read. Nothing was moved.
        InterruptedWorkError: `stop` was set before the first message was moved.
    """
    if is_same_entity(ends, request.source, request.to):
        raise same_entity(ends, request.to, "moved")
    if request.delete_empty and not request.source.lower().startswith(HOLDING_PREFIX):
        raise UsageError(
            f"{request.source} is no queue where an evacuation holds messages ({HOLDING_PREFIX}...), so it would not "
            "be deleted. Nothing was moved."
        )
    below = subscription_of(request.to)
    run = resending(Act("moved"), ends, request if below is None else replace(request, to=below[0]))
    if below is None:
        result = await run_entity(run, ends, observer, stop)
    else:
        result = await _to_subscription(ends, request, run, observer, stop)
    if not request.delete_empty or request.dry_run or result.exit is not Exit.OK:
        return result
    deleting = DeleteEntityRequest(path=request.source, log=request.log)
    done = await delete_entity(ends, deleting, observer=observer, stop=stop)
    return replace(result, remarks=(*result.remarks, done.sentence))


async def _to_subscription(
    ends: Ends, request: MoveRequest, run: EntityRun, observer: Observer | None, stop: asyncio.Event | None
) -> MoveResult:
    """`run` sends to the topic what its rules give to the subscription alone.

    Raises:
        EntityNotFoundError: there is no such subscription.
        UsageError: the rules have changed since the plan was made. Nothing was moved.
        ServiceError: they cannot be read.
    """
    topology, place = ends.target_topology, f"{request.to} on {shown_name(ends.target_access)}"
    topic = run.target or ""
    if topology is None:
        raise UsageError(f"{place} is a subscription: its topic's rules have to be read. Nothing was moved.")
    with unchanged(run.transfer.undone):
        found = await run_until(stop or asyncio.Event(), topology.subscriptions(topic, rules=True))
    if request.to not in by_path(found):
        raise EntityNotFoundError(f"There is no subscription {place}. Nothing was moved.", entity=request.to)
    planned = request.plan.judge.only_for if request.plan is not None else None
    if planned is not None and planned.rules != rules_of(found):
        raise UsageError(f"The rules of {topic} have changed since this was planned. Nothing was moved.")

    def only_for(seen: DestinationSeen, recent: frozenset[str]) -> Judge:
        return OnlyFor(run.make_judge(seen, recent), request.to, found)

    result = await run_entity(replace(run, make_judge=only_for, states_to=request.to), ends, observer, stop)
    others = counted(len(found) - 1, "other subscription")
    proof = f"By the rules of {topic} what is moved goes to {request.to} alone, not to its {others}."
    if not result.report.dry_run:
        same = rules_of(await topology.subscriptions(topic, rules=True)) == rules_of(found)
        proof += (
            " They were the same afterwards." if same else " They have changed meanwhile: look whether copies came."
        )
    if any(COPY in left.reason for left in result.report.left):
        proof += (
            f" What stays can be received from {request.source} by the consumers of the subscription: no topic lies "
            "between. Or narrow the rules that are named, and run this again."
        )
    return replace(result, to=request.to, remarks=(*result.remarks, proof))


async def copy(
    ends: Ends, request: CopyRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> MoveResult:
    """Send copies of the messages of an entity to another one. The source is browsed and keeps all of them.

    A copy has the MessageId of its message. Scheduled messages keep their time, deferred ones become active, and the
    states of sessions are not copied. Needs Listen on the source and Send on the destination.

    Args:
        request: what to do, as for `move`.

    Returns:
        How many messages were copied, and why others were not.

    Raises:
        UsageError: as `move`; dead letters may be copied to their own queue.
        SbpairError: the destination takes nothing, or the ledger cannot be written.
        ServiceError: the source cannot be read. Nothing was copied.
        InterruptedWorkError: `stop` was set before the first message was copied.
    """
    if request.dead_letter and request.with_dead_letter:
        raise UsageError("Dead letters instead of the messages, or as well: not both. Nothing was copied.")
    if is_same_entity(ends, request.source, request.to) and not request.dead_letter:
        raise same_entity(ends, request.to, "copied")
    noun = "dead letter" if request.dead_letter else "message"
    run = resending(Act("copied", noun, keep=True, command="copy"), ends, request)
    return await run_entity(run, ends, observer, stop)


def resending(act: Act, ends: Ends, request: ResendRequest, **more: Any) -> EntityRun:
    """The run that sends messages of one entity as their application sent them; `more` as `TransferRequest` takes it.

    Raises:
        UsageError: nothing can be sent to the destination.
    """
    check_destination(request.to)
    transfer = request.transfer(to=ToQueue(request.to), leave_missing=True, **more)
    letters = transfer.dead_letter
    return EntityRun(
        act,
        replace(transfer, deferred=not letters, scheduled=not letters),
        resender(ends, request.source, request.to, request.selection, keep=act.keep),
        request.to,
        session_states=not request.some_only,
        **request.recorded(),
    )


def resender(
    ends: Ends, source: str, to: str, selection: Selection, *, keep: bool = False
) -> Callable[[DestinationSeen, frozenset[str]], Resender]:
    """Makes the judge of messages that are sent again, at the time of this machine, once the destination is known."""
    sent_from = subscription_of(source)
    # The messages of a subscription were sent to its topic: duplicate detection there knows their ids.
    same = is_same_entity(ends, source if sent_from is None else sent_from[0], to)

    def now() -> float:
        return datetime.now(UTC).timestamp()

    def made(seen: DestinationSeen, recent: frozenset[str]) -> Resender:
        return Resender(seen, selection, same_entity=same, now=now, recent=recent, keep=keep)

    return made


def is_same_entity(ends: Ends, source: str, to: str) -> bool:
    """Whether both paths, one of each end, are one entity."""
    one_namespace = ends.source_access.host == ends.target_access.host
    return one_namespace and same_name(source, to)


def same_entity(ends: Ends, path: str, verb: str) -> UsageError:
    """The error of a run whose source is its destination."""
    return UsageError(
        f"FROM and TO are both {path} on {shown_name(ends.target_access)}. Nothing was {verb}.",
        hint="For dead letters: sbpair dlq resubmit",
    )


def check_destination(path: str) -> None:
    """A queue or a topic is the only thing that can be sent to.

    Raises:
        UsageError: it is something else.
    """
    if not is_destination(check_entity_path(path)):
        raise UsageError(f"{path!r} is no queue or topic: nothing can be sent to it. Nothing was sent.")
