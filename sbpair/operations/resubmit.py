"""Dead letters, sent again as their application sent them."""

import asyncio
from dataclasses import dataclass, replace

from sbpair.core.errors import UsageError
from sbpair.core.names import subscription_of
from sbpair.core.transfer.summary import Act, MoveResult
from sbpair.operations.entity_run import run_entity
from sbpair.operations.move import ResendRequest, resending
from sbpair.ports import Ends, Observer

__all__ = ["ResubmitRequest", "resubmit"]


@dataclass(frozen=True, slots=True)
class ResubmitRequest(ResendRequest):
    """Which dead letters of an entity are sent again, where to, and how. Durations in seconds."""

    to: str = ""
    """Path of a queue or topic of the target namespace; empty: the queue whose dead letters they are."""


async def resubmit(
    ends: Ends, request: ResubmitRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> MoveResult:
    """Send dead letters again, each exactly as its application sent it, and complete them.

    What the destination would refuse or drop stays in the dead-letter queue, and so does what is dead-lettered again
    meanwhile. Needs Listen on the source and Send on the destination.

    Args:
        ends: the open namespaces, or one twice.
        request: what to do, as for `move`.
        observer: gets the events on the way.
        stop: ends the run once it is set: messages in flight are settled or released, and the result says what was done
            until then.

    Returns:
        What became of the dead letters, and how often a crash can have left one at the destination.

    Raises:
        UsageError: they are those of a subscription, and no destination is named; otherwise as `move`.
        SbpairError: the destination takes nothing, or the ledger cannot be written.
        ServiceError: the dead-letter queue cannot be read. Nothing was moved.
        InterruptedWorkError: `stop` was set before the first message was moved.
    """
    request = replace(request, to=request.to or own_destination(request.source))
    run = resending(Act("sent", "dead letter"), ends, request, dead_letter=True)
    return await run_entity(run, ends, observer, stop)


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
