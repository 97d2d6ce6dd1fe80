"""Finds every backlog queue of a pair and reads what each holds: the one source of what is said about a backlog.

With Manage the queues are found by listing and their messages are counted by the service; a count of 0 is confirmed by
a browse, because counts may read 0 while a namespace throttles. Without Manage queues are opened one after another,
upwards, until two in a row do not exist, and their messages are counted by browsing. A listed absence is not an
absence: a configured queue that was not listed is asked for by itself.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from sbpair.concurrency import abandon_after, side_by_side
from sbpair.core import words
from sbpair.core.backlog import MISSES, Backlog, FoundBy, QueueContents
from sbpair.core.entities import QueueFacts
from sbpair.core.errors import AccessDeniedError, Category, ConnectionLostError, OperationTimeoutError, ServiceError
from sbpair.core.message import MessageState
from sbpair.core.names import BACKLOG_INFIX, ByName, Names, backlog_queue_path, by_path, parse_backlog_queue_path
from sbpair.core.pairing import Pair
from sbpair.ports import MessageReceiver, Messaging, NamespaceAdmin, RuntimeClock
from sbpair.runtime.browse import NOT_VISIBLE, PAGE_MESSAGES, head_of, pages_once
from sbpair.runtime.links import closing

CONCURRENCY = 8
DEFAULT_TIMEOUT_SECONDS = 10.0
MOST_BROWSED_MESSAGES = 1000
"""Where nobody counts, that many messages of a queue are browsed; beyond that the number is a lower bound."""


@dataclass(frozen=True, slots=True)
class FoundQueues:
    """The backlog queues of a pair: what exists, what is missing, and what could not be found out."""

    existing: tuple[str, ...]
    """Paths in the order of their indexes; with CONFIGURED also those about which nothing is known."""
    missing: tuple[str, ...] = ()
    """Configured queues that do not exist."""
    found_by: FoundBy = FoundBy.LISTED
    facts: ByName[QueueFacts] = field(default_factory=ByName)
    """What the listing said, by path."""
    listing_error: ServiceError | None = None
    """Why the namespace did not list its queues."""


async def find_queues(
    pair: Pair, *, messaging: Messaging, admin: NamespaceAdmin | None, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
) -> FoundQueues:
    """Every backlog queue of the pair's primary on its secondary, configured or not.

    Never raises a ServiceError: where neither listing nor probing is possible the configured queues are returned with
    `found_by` CONFIGURED. `timeout_seconds` bounds the listing and each probe; half of it
    a probe after a listing without an answer.
    """
    error: ServiceError | None = None
    if admin is not None:
        try:
            return await _listed(pair, admin, timeout_seconds)
        except ServiceError as refused:
            error = refused
    # Where the listing was not answered a queue hardly will be: the caller has waited for that long already.
    silent = isinstance(error, ConnectionLostError | OperationTimeoutError)
    found = await _probed(pair, messaging, timeout_seconds / 2 if silent else timeout_seconds)
    return replace(found, listing_error=error)


async def _listed(pair: Pair, admin: NamespaceAdmin, timeout_seconds: float) -> FoundQueues:
    prefix = f"{pair.primary.label}/{BACKLOG_INFIX}/"

    async def read() -> list[QueueFacts]:
        return [facts async for facts in admin.list_queues(prefix)]

    what = f"List of the queues of {pair.secondary.label}"
    listed = await abandon_after(timeout_seconds, read(), what=what)
    named = by_path(facts for facts in listed if is_own(facts.path, pair))
    unlisted = [path for path in pair.backlog_paths() if path not in named]

    async def ask(path: str) -> QueueFacts | None:
        return await abandon_after(timeout_seconds, admin.get_queue(path), what=f"Counts of {path}", entity=path)

    missing = []
    for path, facts in zip(unlisted, await side_by_side(ask, unlisted, at_once=CONCURRENCY), strict=True):
        if facts is None:
            missing.append(path)
        else:
            named[path] = facts
    return FoundQueues(tuple(sorted(named, key=index_of)), tuple(missing), FoundBy.LISTED, named)


def is_own(path: str, pair: Pair) -> bool:
    """Whether the queue lies under the transfer prefix of this pair's primary."""
    name = parse_backlog_queue_path(path)
    return name is not None and name.primary_label == pair.primary.label


def index_of(path: str) -> int:
    """The index of a backlog queue."""
    return int(path.rpartition("/")[2])


async def _probed(pair: Pair, messaging: Messaging, timeout_seconds: float) -> FoundQueues:
    """Open the configured queues, then the next indexes upwards until two in a row are not there."""
    own = pair.backlog_paths()
    first = await _exists(messaging, own[0], timeout_seconds) if own else False
    if first is None:
        return FoundQueues(own, (), FoundBy.CONFIGURED)

    async def exists(path: str) -> bool | None:
        return await _exists(messaging, path, timeout_seconds)

    answers = [first, *await side_by_side(exists, own[1:], at_once=CONCURRENCY)]
    existing = [path for path, answer in zip(own, answers, strict=True) if answer is not False]
    missing = [path for path, answer in zip(own, answers, strict=True) if answer is False]
    asked = range(len(own))
    more, whole = await probe_others(pair.primary.label, asked, messaging, timeout_seconds=timeout_seconds)
    return FoundQueues((*existing, *more), tuple(missing), FoundBy.PROBED if whole else FoundBy.CONFIGURED)


async def probe_others(
    primary: str, known: Collection[int], messaging: Messaging, *, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
) -> tuple[tuple[str, ...], bool]:
    """Backlog queues of that primary besides those with the known indexes, opened one after another until two above
    the highest are not there; and whether that is all: False where there was no answer. What is not there costs
    nothing."""
    existing: list[str] = []
    last = max(known, default=-1)
    index, misses = 0, 0
    while misses < MISSES or index <= last:
        if index in known:
            index, misses = index + 1, 0
            continue
        path = backlog_queue_path(primary, index)
        answer = await _exists(messaging, path, timeout_seconds)
        if answer is None:
            return tuple(existing), False
        misses = 0 if answer else misses + 1
        if answer:
            existing.append(path)
        index += 1
    return tuple(existing), True


async def _exists(messaging: Messaging, path: str, timeout_seconds: float) -> bool | None:
    """Whether a queue can be opened for reading; None where that was not answered."""
    try:
        async with closing(messaging.receiver(path)) as receiver:
            await abandon_after(timeout_seconds, receiver.peek(1), what=f"Browse of {path}", entity=path)
    except ServiceError as error:
        if error.category is Category.NOT_FOUND:
            return False
        return True if error.category is Category.DISABLED else None
    return True


async def read_backlog(
    pair: Pair,
    found: FoundQueues,
    *,
    messaging: Messaging,
    admin: NamespaceAdmin | None,
    clock: RuntimeClock,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    only: Sequence[str] | None = None,
    recount: bool = True,
) -> Backlog:
    """What every queue found holds now. Raises nothing for what cannot be read: it is said in the value.

    `only`: read these paths; the others that exist are named in `not_asked`. `recount`: ask the service again for the
    counts that came with a listing; not needed right after it. `timeout_seconds` bounds each call.
    """
    configured = frozenset(pair.backlog_paths())
    wanted = None if only is None else Names(only)
    asked = [path for path in found.existing if wanted is None or path in wanted]
    denied = isinstance(found.listing_error, AccessDeniedError)
    reader = _Reader(messaging, None if denied else admin, timeout_seconds, ByName() if recount else found.facts)
    taken_at = clock.now().timestamp()
    queues = await side_by_side(reader.contents, asked, at_once=CONCURRENCY)
    absent = [QueueContents(path, missing=True) for path in found.missing if wanted is None or path in wanted]
    placed = [replace(queue, configured=queue.queue in configured) for queue in (*queues, *absent)]
    return Backlog(
        pair.name,
        taken_at,
        tuple(sorted(placed, key=lambda queue: index_of(queue.queue))),
        found.found_by,
        whole=len(asked) == len(found.existing),
        not_asked=tuple(path for path in found.existing if path not in asked),
    )


@dataclass(slots=True)
class _Reader:
    messaging: Messaging
    admin: NamespaceAdmin | None
    timeout_seconds: float
    facts: ByName[QueueFacts]
    """What is known already, by path."""

    async def contents(self, path: str) -> QueueContents:
        facts, refused = await self._facts(path)
        if facts is None and refused is None and self.admin is not None:
            return QueueContents(path, missing=True)
        counts = facts.counts if facts is not None else None
        try:
            waiting, dead = await asyncio.gather(
                self._browse(path, False, None if counts is None else counts.active + counts.scheduled),
                self._browse(path, True, None if counts is None else counts.dead_letter),
            )
        except ServiceError as error:
            if error.category is Category.NOT_FOUND:
                return QueueContents(path, missing=True)
            return self._unbrowsed(path, facts, error)
        told = QueueContents(path) if facts is None else self._counted(facts)
        oldest = min((at for at in (waiting.oldest, dead.oldest) if at is not None), default=None)
        told = replace(told, oldest_enqueued_at=oldest)
        if waiting.complete or facts is None:
            told = replace(told, active=waiting.active, deferred=waiting.deferred, scheduled=waiting.scheduled)
        if dead.complete or facts is None:
            told = replace(told, dead_letter=dead.number)
        if facts is None:
            return replace(told, at_least=not (waiting.complete and dead.complete))
        return await self._with_unseen(told, facts, waiting, dead)

    async def _with_unseen(
        self, told: QueueContents, facts: QueueFacts, waiting: "_Seen", dead: "_Seen"
    ) -> QueueContents:
        """Add what was counted before and after a whole browse and is not in it: a partition that is away, for one.

        A single count proves nothing, since messages come and go.
        """
        before = facts.counts
        if not (_unseen(waiting, before.active + before.scheduled) or _unseen(dead, before.dead_letter)):
            return told
        again, refused = await self._asked(facts.path)
        if again is None:
            return told if refused is None else self._unbrowsed(facts.path, facts, refused)
        after = again.counts
        hidden = _unseen(waiting, min(before.active + before.scheduled, after.active + after.scheduled))
        hidden_dead = _unseen(dead, min(before.dead_letter, after.dead_letter))
        if not (number := hidden + hidden_dead):
            return told
        return replace(
            told,
            active=waiting.active + hidden if hidden else told.active,
            dead_letter=dead.number + hidden_dead if hidden_dead else told.dead_letter,
            error_code="not-visible",
            exit_name="partial",
            detail=f"{words.counted(number, 'message')} {words.are(number)} {NOT_VISIBLE}.",
        )

    async def _facts(self, path: str) -> tuple[QueueFacts | None, ServiceError | None]:
        if (known := self.facts.get(path)) is not None:
            return known, None
        return await self._asked(path)

    async def _asked(self, path: str) -> tuple[QueueFacts | None, ServiceError | None]:
        if self.admin is None:
            return None, None
        try:
            asked = self.admin.get_queue(path)
            return await abandon_after(self.timeout_seconds, asked, what=f"Counts of {path}", entity=path), None
        except ServiceError as error:
            return None, error

    def _counted(self, facts: QueueFacts) -> QueueContents:
        counts = facts.counts
        told = QueueContents(
            facts.path.lower(),
            active=counts.active,
            scheduled=counts.scheduled,
            dead_letter=counts.dead_letter,
            size_in_bytes=facts.size_in_bytes,
        )
        if not counts.transfer and not counts.transfer_dead_letter:
            return told
        on_their_way = counts.transfer + counts.transfer_dead_letter
        return replace(
            told,
            error_code="forwarding",
            exit_name="partial",
            detail=f"{on_their_way:,} of its messages are held by a forwarding rule, where no browse shows them.",
        )

    def _unbrowsed(self, path: str, facts: QueueFacts | None, error: ServiceError) -> QueueContents:
        told = QueueContents(path) if facts is None else self._counted(facts)
        return replace(told, error_code=error.code, exit_name=error.exit_name, detail=error.message)

    async def _browse(self, path: str, dead_letter: bool, counted: int | None) -> "_Seen":
        """Browse the queue or its dead letters: all of it if it is small or nobody counted it, else its head."""
        async with closing(self.messaging.receiver(path, dead_letter=dead_letter)) as receiver:
            if counted is not None and (counted == 0 or counted > PAGE_MESSAGES):
                head = await head_of(receiver, page_seconds=self.timeout_seconds)
                if head or counted:
                    first = head[0].enqueued_at if head else None
                    return _Seen(oldest=first, complete=False) if counted else await self._all(receiver)
                return _Seen()
            return await self._all(receiver)

    async def _all(self, receiver: MessageReceiver) -> "_Seen":
        seen = _Seen()
        async for page in pages_once(receiver, page_seconds=self.timeout_seconds):
            if seen.number >= MOST_BROWSED_MESSAGES:
                seen.complete = False
                break
            for message in page:
                seen.number += 1
                seen.deferred += message.state is MessageState.DEFERRED
                seen.scheduled += message.state is MessageState.SCHEDULED
                if message.enqueued_at is not None:
                    seen.oldest = message.enqueued_at if seen.oldest is None else min(seen.oldest, message.enqueued_at)
        return seen


def _unseen(seen: "_Seen", number: int) -> int:
    """How many of that many counted messages a browse has not shown; 0 when it did not come to the end."""
    return max(0, number - seen.number) if seen.complete else 0


@dataclass(slots=True)
class _Seen:
    """What a browse of one queue showed; `complete`: it came to the end."""

    number: int = 0
    deferred: int = 0
    scheduled: int = 0
    oldest: float | None = None
    complete: bool = True

    @property
    def active(self) -> int:
        return self.number - self.deferred - self.scheduled
