"""What is still to come of a replicated queue or subscription: copies that lie there for later.

A browse shows what is scheduled in a queue. What is scheduled to a topic lies in the topic until its time has come: the
topic shows it to who may listen there, which a consumer of a subscription need not.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from sbpair.core.errors import ServiceError
from sbpair.core.message import State
from sbpair.core.names import subscription_of
from sbpair.core.pairing import Side
from sbpair.core.summary import describe
from sbpair.ports import Messaging
from sbpair.runtime.browse import pages_once
from sbpair.runtime.links import close_quietly
from sbpair.service import session_key

CopyKey = tuple[str, str]
"""The session's `service.session_key`, and the message id."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """What was seen to lie on the sides."""

    complete: bool
    """All of it was seen; otherwise the counts are of what was."""
    second_copies: int = 0
    """Of messages that are finished; each message counts once."""
    active_second_copies: int = 0
    """Those of them whose time has come."""
    scheduled: int | None = 0
    """Other messages that are scheduled. None: not known."""
    next_at: float | None = None
    """When the first scheduled one comes, UTC epoch seconds."""
    errors: Mapping[Side, ServiceError] = field(default_factory=dict)
    """Of sides where what is consumed could not be browsed."""

    def not_seen(self, second_copies: int) -> "Remaining":
        """The same where that many second copies were not met, wherever they are."""
        return replace(self, second_copies=second_copies, scheduled=None)


async def look(
    source: str, sides: Mapping[Side, Messaging], finished: Collection[CopyKey], *, page_seconds: float
) -> Remaining:
    """Browse the queue, or the subscription and its topic, on these sides to the end.

    Args:
        finished: messages whose second copy was not met.
        page_seconds: bounds each page.
    """
    active: set[CopyKey] = set()
    later: Counter[CopyKey] = Counter()
    times: list[float] = []

    async def browse(side: Side, path: str) -> ServiceError | None:
        receiver = sides[side].receiver(path)
        try:
            async with aclosing(pages_once(receiver, page_seconds=page_seconds)) as pages:
                async for page in pages:
                    for message in page:
                        key = (session_key(message.session_id or ""), message.message_id or "")
                        if message.state is State.SCHEDULED:
                            later[key] += 1
                            if (at := describe(message.payload).scheduled_at) is not None:
                                times.append(at)
                        elif key in finished:
                            active.add(key)
        except ServiceError as error:
            return error
        finally:
            await close_quietly(receiver)
        return None

    subscription = subscription_of(source)
    paths = (source,) if subscription is None else (source, subscription[0])
    asked = [(side, path) for side in sides for path in paths]
    answers = await asyncio.gather(*(browse(side, path) for side, path in asked))
    return Remaining(
        not any(answers),
        len(active.union(key for key in later if key in finished)),
        len(active),
        sum(count for key, count in later.items() if key not in finished),
        min(times, default=None),
        {side: error for (side, path), error in zip(asked, answers, strict=True) if path == source and error},
    )
