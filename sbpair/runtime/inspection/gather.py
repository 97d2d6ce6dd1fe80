"""Reads both namespaces of a pair into one snapshot, with as few management calls as can be trusted.

One paged listing of queues and one of topics per namespace; then a get for everything that would become a finding,
because a listed absence is not an absence and a listed presence may be old. Zero counts are confirmed by a browse where
a `Peek` is given. What cannot be read is recorded with the reason, never taken for "not there".
"""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from sbpair.concurrency import retried, side_by_side
from sbpair.core.access import AuthMethod, NamespaceAccess, parse_connection_string
from sbpair.core.entities import EntityKind, NamespaceFacts, QueueFacts, TopicFacts
from sbpair.core.errors import (
    AuthenticationFailedError,
    ConflictError,
    CredentialError,
    ServerBusyError,
    ServiceError,
    ServiceInternalError,
)
from sbpair.core.events import GatherProgress
from sbpair.core.inspection.plan import differences
from sbpair.core.inspection.snapshot import (
    FORMAT_VERSION,
    NOT_ASKED,
    Calls,
    EntitySeen,
    How,
    NamespaceSnapshot,
    PairFields,
    Peeked,
    QueueSeen,
    Snapshot,
    Unread,
)
from sbpair.core.names import ByName, Names, by_path, parse_backlog_queue_path, same_name
from sbpair.core.pairing import Pair
from sbpair.core.retry import TokenBucket
from sbpair.ports import NamespaceAdmin, Observer, RuntimeClock, Topology
from sbpair.runtime.browse import PEEKS_PER_QUEUE, Peek
from sbpair.service import CREDITS_PER_MANAGEMENT_CALL, PAGE_ENTITIES, EntityStatus, Tier

# Keeps management calls within a share of a namespace's throttling credits.
#
# A management call costs 10 credits, a namespace of tier Basic or Standard has 1,000 a second for everything, so an
# unpaced audit slows the application down (Service Bus throttling).

T = TypeVar("T")

DEFAULT_CREDITS_PER_SECOND = 200.0
"""A fifth of a namespace: 20 management calls a second."""
BUSY_PAUSE_SECONDS = 10.0
"""What the documents ask for after ServerBusy ("Asynchronous Messaging Patterns and High Availability")."""
_OTHER_PAUSE_SECONDS = 1.0
_TRIES = 3
_WORTH_ANOTHER_TRY = (ServerBusyError, ConflictError, ServiceInternalError)


class CreditPacer:
    """Hands out throttling credits at a steady rate, in the order they are asked for. No rate: no limit."""

    def __init__(self, clock: RuntimeClock, credits_per_second: float | None = DEFAULT_CREDITS_PER_SECOND) -> None:
        self._clock = clock
        self._bucket = None if credits_per_second is None else TokenBucket(credits_per_second, most=0.0)

    async def spend(self, credits: int = CREDITS_PER_MANAGEMENT_CALL) -> None:
        """Wait until `credits` may be used."""
        if self._bucket is None:
            return
        wait = self._bucket.seconds_until(0, self._clock.monotonic())
        self._bucket.take(credits)
        if wait:
            await self._clock.sleep(wait)


async def patiently(clock: RuntimeClock, call: Callable[[], Awaitable[T]]) -> T:
    """Run `call`, up to three times while the namespace says it is busy or stumbles; 10 s pause after "busy".

    Time-outs and lost connections are not tried again here: the adapter below already did, and an unreachable namespace
    should be reported soon.
    """

    def pause(error: ServiceError, failures: int) -> float | None:
        return pause_after(error) if isinstance(error, _WORTH_ANOTHER_TRY) and failures < _TRIES else None

    return await retried(call, pause, sleep=clock.sleep)


def pause_after(error: ServiceError) -> float:
    """Seconds to wait before the same call is tried again."""
    return BUSY_PAUSE_SECONDS if isinstance(error, ServerBusyError) else _OTHER_PAUSE_SECONDS


DEFAULT_CONCURRENCY = 8
_UNREACHABLE = "unreachable"
_NOT_KNOWN = frozenset({AuthenticationFailedError.code, CredentialError.code})


class GatherScope(StrEnum):
    """How much is read."""

    FULL = "full"
    """Everything the audit looks at, on both sides."""
    BACKLOG = "backlog"
    """Only the secondary and its queues: enough for provisioning and cleanup."""


@dataclass(slots=True)
class _Side:
    """One namespace being read: collects what was found, what was not readable and how many calls it took."""

    access: NamespaceAccess
    admin: NamespaceAdmin
    clock: RuntimeClock
    observer: Observer | None
    pacer: CreditPacer
    concurrency: int
    tolerant: bool
    calls: Calls = field(default_factory=Calls)
    unread: list[Unread] = field(default_factory=list)
    facts: NamespaceFacts | None = None
    observed_at: float | None = None
    queues: ByName[QueueSeen] | None = None
    """By lower-case path; a listing that repeats a queue counts it once."""
    topics: ByName[TopicFacts] | None = None
    absent: list[str] = field(default_factory=list)

    @property
    def tier(self) -> Tier | None:
        return self.facts.tier if self.facts else None

    async def attempt(self, subject: str, call: Callable[[], Awaitable[T]]) -> T | None:
        """The call's result; a refusal is recorded under `subject` and gives None (or is raised, if not tolerant)."""
        try:
            return await patiently(self.clock, call)
        except ServiceError as error:
            if not self.tolerant:
                raise
            self.unread.append(Unread(subject, error.code, error.message, error.exit_name, error.hint))
            return None

    def progress(self, stage: str, done: int, total: int | None = None) -> None:
        if self.observer is not None:
            now = self.clock.now().timestamp()
            self.observer.notify(GatherProgress(now, self.access.host, stage, done, total))

    async def _spend(self, calls: Calls) -> None:
        self.calls += calls
        await self.pacer.spend(calls.throttling_credits)

    async def read_namespace(self) -> None:
        async def read() -> NamespaceFacts:
            await self._spend(Calls(namespace_reads=1))
            before = self.clock.now().timestamp()
            facts = await self.admin.namespace()
            self.observed_at = (before + self.clock.now().timestamp()) / 2
            return facts

        self.facts = await self.attempt("namespace", read)

    async def list_queues(self) -> None:
        async def read() -> list[QueueFacts]:
            return await self._listing("listing queues", self.admin.list_queues())

        if self._skip("queues"):
            return
        found = await self.attempt("queues", read)
        if found is not None:
            self.queues = ByName((facts.path, QueueSeen(facts)) for facts in found)

    async def list_topics(self) -> None:
        async def read() -> list[TopicFacts]:
            return await self._listing("listing topics", self.admin.list_topics())

        if self.tier is Tier.BASIC:
            self.topics = ByName()
            return
        if self._skip("topics"):
            return
        found = await self.attempt("topics", read)
        if found is not None:
            self.topics = by_path(found)

    def _skip(self, subject: str) -> bool:
        """A namespace that cannot be reached, or does not know the credential, is not asked again and again: every
        question would wait for its time-out, or get the same answer."""
        hopeless = [entry for entry in self.unread if entry.exit_name == _UNREACHABLE or entry.error_code in _NOT_KNOWN]
        if hopeless:
            self.unread.append(replace(hopeless[0], subject=subject))
        return bool(hopeless)

    async def _listing(self, stage: str, items: AsyncIterator[T]) -> list[T]:
        found: list[T] = []
        await self._next_page(stage, found)
        async for item in items:
            found.append(item)
            if len(found) % PAGE_ENTITIES == 0:
                await self._next_page(stage, found)
        self.progress(stage, len(found), len(found))
        return found

    async def _next_page(self, stage: str, found: Sequence[object]) -> None:
        self.progress(stage, len(found))
        await self._spend(Calls(list_pages=1))

    async def confirm_queues(self, paths: Iterable[str]) -> None:
        """Read each path again; what the namespace then says replaces what the listing said."""
        if self.queues is not None:
            await self._each("confirming", sorted(set(paths)), self._confirm_queue)

    async def _read_again(self, path: str, get: Callable[[str], Awaitable[T]]) -> tuple[T] | None:
        """What the namespace says of one entity; None if it does not say."""

        async def read() -> tuple[T]:
            await self._spend(Calls(gets=1))
            return (await get(path),)

        return await self.attempt(path, read)

    async def _confirm_queue(self, path: str) -> None:
        answer = await self._read_again(path, self.admin.get_queue)
        if answer is None or self.queues is None:
            return
        (facts,) = answer
        if facts is None:
            self.queues.pop(path, None)
            self.absent.append(path)
        else:
            self.queues[path] = QueueSeen(facts, How.CONFIRMED)

    async def confirm_topics(self, paths: Iterable[str]) -> None:
        if self.topics is not None:
            await self._each("confirming", sorted(set(paths)), self._confirm_topic)

    async def _confirm_topic(self, path: str) -> None:
        answer = await self._read_again(path, self.admin.get_topic)
        if answer is None or self.topics is None:
            return
        (facts,) = answer
        if facts is not None:
            self.topics[path] = facts
            self.absent = [gone for gone in self.absent if not same_name(gone, path)]

    async def peek(self, paths: Iterable[str], peek: Peek) -> None:
        async def one(path: str) -> None:
            async def read() -> Peeked:
                await self._spend(Calls(peeks=PEEKS_PER_QUEUE))
                return await peek(path)

            seen = await self.attempt(f"messages of {path}", read)
            if seen is not None and seen.messages > PEEKS_PER_QUEUE:
                await self._spend(Calls(peeks=seen.messages - PEEKS_PER_QUEUE))
            if seen is not None and self.queues is not None:
                self.queues[path] = replace(self.queues[path], peeked=seen)

        await self._each("peeking", sorted(paths), one)

    async def read_entities(self, topology: Topology, peek: Peek) -> tuple[EntitySeen, ...] | None:
        """Queues, topics, subscriptions with rules, and the age of the first message of each that holds some."""
        if self._skip("entities"):
            return None
        found = await self.attempt("entities", lambda: topology.entities(rules=False))
        if found is None:
            return None
        kinds = Counter(one.kind for one in found)
        topics = kinds[EntityKind.TOPIC]
        pages = (kinds[EntityKind.QUEUE] + topics + kinds[EntityKind.SUBSCRIPTION]) // PAGE_ENTITIES + 2 + topics
        await self._spend(Calls(list_pages=pages))
        by_path = {one.path: EntitySeen(one) for one in found}

        async def one(path: str) -> None:
            facts = by_path[path].facts
            if facts.kind is EntityKind.SUBSCRIPTION:
                await self._spend(Calls(gets=1))
                facts = await self.attempt(f"rules of {path}", lambda: topology.rules(facts)) or facts
            oldest = None
            if facts.kind is not EntityKind.TOPIC and facts.counts.active and facts.settings.status.may_receive:
                await self._spend(Calls(peeks=1))
                seen = await self.attempt(f"messages of {path}", lambda: peek(path))
                oldest = None if seen is None else seen.oldest_enqueued_at
            by_path[path] = EntitySeen(facts, oldest)

        await self._each("reading entities", list(by_path), one)
        return tuple(by_path.values())

    async def _each(self, stage: str, items: Sequence[str], work: Callable[[str], Awaitable[None]]) -> None:
        done = 0

        async def one(item: str) -> None:
            nonlocal done
            await work(item)
            done += 1
            self.progress(stage, done, len(items))

        await side_by_side(one, items, at_once=self.concurrency)

    def snapshot(self) -> NamespaceSnapshot:
        return NamespaceSnapshot(
            label=self.access.label,
            host=self.access.host,
            auth=self.access.auth.value,
            key_name=_key_name(self.access),
            facts=self.facts,
            observed_at=self.observed_at,
            queues=None if self.queues is None else tuple(queue for _, queue in sorted(self.queues.items())),
            topics=None if self.topics is None else tuple(topic for _, topic in sorted(self.topics.items())),
            absent=tuple(sorted(self.absent)),
            unread=tuple(self.unread),
            calls=self.calls,
        )


async def gather(
    pair: Pair,
    *,
    primary: NamespaceAdmin,
    secondary: NamespaceAdmin,
    clock: RuntimeClock,
    observer: Observer | None = None,
    peek: Peek | None = None,
    scope: GatherScope = GatherScope.FULL,
    tolerant: bool = True,
    credits_per_second: float | None = DEFAULT_CREDITS_PER_SECOND,
    concurrency: int = DEFAULT_CONCURRENCY,
) -> Snapshot:
    """Read the pair's namespaces, both at once.

    `peek` browses queues of the secondary (see `sbpair.runtime.browse.peeking`). `credits_per_second` is the share of
    each namespace's 1,000 throttling credits that may be used. `concurrency` bounds the calls per namespace.

    Raises:
        ServiceError: only if not `tolerant`; otherwise what could not be read is recorded in the snapshot.
    """
    taken_at = clock.now().timestamp()

    def side(access: NamespaceAccess, admin: NamespaceAdmin) -> _Side:
        pacer = CreditPacer(clock, credits_per_second)
        return _Side(access, admin, clock, observer, pacer, concurrency, tolerant)

    first, second = side(pair.primary, primary), side(pair.secondary, secondary)
    if scope is GatherScope.FULL:
        reads = [lambda: _read_primary(first, pair), lambda: _read_secondary(second, pair, peek, scope)]
        await side_by_side(lambda read: read(), reads, at_once=len(reads))
        await _read_destinations(first, second)
    else:
        first.unread.append(Unread("namespace", NOT_ASKED, "only the secondary's queues were requested"))
        await _read_secondary(second, pair, peek, scope)
    return Snapshot(FORMAT_VERSION, taken_at, PairFields.of(pair), first.snapshot(), second.snapshot())


async def gather_namespace(
    access: NamespaceAccess,
    *,
    admin: NamespaceAdmin,
    topology: Topology,
    peek: Peek,
    clock: RuntimeClock,
    observer: Observer | None = None,
) -> tuple[Snapshot, tuple[EntitySeen, ...] | None]:
    """Read one namespace: itself, and all its entities with their rules and the age of their first message. None for
    entities that could not be listed; what else could not be read is recorded in the snapshot."""
    taken_at = clock.now().timestamp()
    side = _Side(access, admin, clock, observer, CreditPacer(clock), DEFAULT_CONCURRENCY, tolerant=True)
    await side.read_namespace()
    found = await side.read_entities(topology, peek)
    nobody = NamespaceSnapshot(label="", host="", auth="")
    pair = PairFields(access.label, access.host, "", access.label, "", 1)
    return Snapshot(FORMAT_VERSION, taken_at, pair, side.snapshot(), nobody), found


async def _read_destinations(primary: _Side, secondary: _Side) -> None:
    """Look again for destinations of waiting messages that the primary's lists do not have."""
    if primary.queues is None or primary.topics is None:
        return
    seen = [queue.peeked for queue in (secondary.queues or {}).values() if queue.peeked is not None]
    wanted = {path for one in seen for path in one.destinations}
    known = Names((*primary.queues, *primary.topics, *primary.absent))
    unlisted = [path for path in wanted if path not in known]
    await primary.confirm_queues(unlisted)
    await primary.confirm_topics(path for path in unlisted if path not in primary.queues)


async def _read_primary(side: _Side, pair: Pair) -> None:
    await side.read_namespace()
    await side.list_queues()
    await side.list_topics()
    if side.queues is None:
        return
    own = [queue.path for queue in side.queues.values() if _named_for(queue, pair.primary.label)]
    ours = [queue.path for queue in side.queues.values() if _named_for(queue, pair.secondary.label)]
    known = Names((*side.queues, *(side.topics or ())))
    unlisted = [path for path in pair.entities if path not in known]
    unwell = [path for path in pair.entities if _not_active(side.queues.get(path))]
    await side.confirm_queues([*own, *ours, *unlisted, *unwell])
    await side.confirm_topics(path for path in unlisted if path not in side.queues)


async def _read_secondary(side: _Side, pair: Pair, peek: Peek | None, scope: GatherScope) -> None:
    await side.read_namespace()
    await side.list_queues()
    if scope is GatherScope.FULL:
        await side.list_topics()
    if side.queues is None:
        return
    await side.confirm_queues(_doubtful(side.queues, pair, side.tier))
    if peek is not None:
        await side.peek([queue.path for queue in side.queues.values() if queue.backlog_name is not None], peek)


def _doubtful(queues: ByName[QueueSeen], pair: Pair, tier: Tier | None) -> list[str]:
    """Paths that would become a finding if the listing were believed."""
    expected = pair.backlog_paths()
    missing = [path for path in expected if path not in queues]
    wanted = frozenset(expected)
    surplus = [path for path, queue in queues.items() if queue.backlog_name is not None and path not in wanted]
    odd = [
        path
        for path in expected
        if path in queues and (_not_active(queues[path]) or differences(queues[path].facts.settings, tier))
    ]
    return [*missing, *(queues[path].path for path in surplus), *odd]


def _named_for(queue: QueueSeen, label: str) -> bool:
    name = parse_backlog_queue_path(queue.path)
    return name is not None and name.primary_label == label


def _not_active(queue: QueueSeen | None) -> bool:
    return queue is not None and queue.facts.settings.status is not EntityStatus.ACTIVE


def _key_name(access: NamespaceAccess) -> str | None:
    if access.auth is not AuthMethod.CONNECTION_STRING or access.connection_string is None:
        return None
    return parse_connection_string(access.connection_string.reveal()).get("sharedaccesskeyname")
