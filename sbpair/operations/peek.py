"""What only browses: messages of a pair's backlog or of any entity, dead letters by reason, those of a namespace by
cause. Nothing is touched. And sessions, whose states may be set.
"""

import asyncio
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial

from sbpair.concurrency import run_until, side_by_side
from sbpair.core.access import NamespaceAccess, shown_name
from sbpair.core.entities import EntityKind
from sbpair.core.errors import ArgumentRefusedError, ServiceError, SessionUnavailableError, UsageError
from sbpair.core.message import Received
from sbpair.core.names import subscription_of
from sbpair.core.pairing import Side
from sbpair.core.summary import MessageSummary, describe
from sbpair.core.transfer.filters import EVERYTHING, MessageFilter
from sbpair.core.transfer.peeked import (
    DeadLetters,
    GroupKey,
    Groups,
    Messages,
    NotBrowsed,
    PeekedMessage,
    PeekResult,
    SessionFacts,
    SessionList,
    ShownSession,
    explain_reasons,
    grouped,
    of_a_topic,
    peeked,
    sessions_of,
)
from sbpair.core.transfer.resend import ALL_MESSAGES, Selection
from sbpair.core.transfer.triage import Cause, CauseCounter, DeadLetterReason, DeadLetterReasons, ReasonCounter, Triage
from sbpair.operations.drain import no_queue
from sbpair.ports import Ends, NamespaceAdmin, Observer, Sides
from sbpair.runtime import browse
from sbpair.runtime.browse import DEFAULT_TIMEOUT_SECONDS, pages_once
from sbpair.runtime.inspection import backlog
from sbpair.runtime.links import closing
from sbpair.service import session_key

__all__ = [
    "BrowseRequest",
    "Cause",
    "DeadLetterReason",
    "DeadLetterReasons",
    "ListSessionsRequest",
    "PeekRequest",
    "SessionRequest",
    "Triage",
    "TriageRequest",
    "browse_messages",
    "list_causes",
    "list_dead_letters",
    "list_sessions",
    "peek",
    "set_session_state",
    "show_session",
]


MOST_MESSAGES = 50
MOST_MESSAGES_GROUPED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """How many messages are browsed, and how they are shown."""

    max_messages: int | None = None
    """The oldest first; None: 50, or 10,000 where they are grouped. `list_dead_letters` counts all."""
    from_sequence_number: int = 0
    group_by: tuple[GroupKey, ...] = ()
    """Count the messages by these instead."""
    with_body: bool = False

    @property
    def most(self) -> int:
        """How many messages are browsed at most."""
        return self.max_messages or (MOST_MESSAGES_GROUPED if self.group_by else MOST_MESSAGES)

    def shown(self, found: browse.BrowseReport) -> tuple[PeekedMessage, ...]:
        """What was browsed as it is shown."""
        body = self.with_body
        return tuple(peeked(one.queue, one.received, one.summary, with_body=body) for one in found.messages)


@dataclass(frozen=True, slots=True)
class PeekRequest(_Page):
    """Which messages are browsed, and how they are shown."""

    queues: tuple[str, ...] = ()
    """Paths of queues or `TOPIC/Subscriptions/NAME` on `side`; none: every backlog queue that exists."""
    side: Side = Side.SECONDARY
    dead_letter: bool = False
    """Browse their dead-letter queues instead."""
    with_dead_letter: bool = False
    """Browse their dead-letter queues as well."""
    wanted: MessageFilter = EVERYTHING
    timeout_seconds: float | None = None
    """Longest wait for one answer; None: 30 seconds for a page of messages, 10 for the list of queues."""

    @property
    def kinds(self) -> tuple[bool, ...]:
        """What is browsed of each queue: False for itself, True for its dead-letter queue."""
        return (False, True) if self.with_dead_letter else (self.dead_letter,)


async def peek(
    sides: Sides, request: PeekRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> PeekResult:
    """Browse messages, the oldest first. Locks nothing and changes nothing. Needs Listen on the side of the request.

    Returns:
        The messages, or with `group_by` how many there are of each kind. A queue that could not be browsed is named in
        `not_read`.

    Raises:
        SbpairError: no backlog queue exists.
        ServiceError: no queue could be browsed; the first one's error.
        FilterError: the filter cannot be evaluated for a message.
    """
    paths, found = await run_until(stop or asyncio.Event(), _browse(sides, request))
    if len(found.failed) == len(paths) and not found.messages:
        raise found.failed[0].error
    messages = request.shown(found)
    explained = explain_reasons(messages, sides.pair.name) if True in request.kinds else ()
    if request.queues and not found.looked_at:
        at_primary = request.side is Side.PRIMARY
        admin = sides.primary_admin if at_primary else sides.secondary_admin
        access = sides.pair.primary if at_primary else sides.pair.secondary
        explained = await _of_topics(admin, access, request.queues)
    common = sides.pair.name, found.looked_at, found.left_off, found.failed, explained
    return Groups(*common, grouped(messages, request.group_by)) if request.group_by else Messages(*common, messages)


async def _browse(sides: Sides, request: PeekRequest) -> tuple[tuple[str, ...], browse.BrowseReport]:
    paths = request.queues or await _every_queue(sides, request)
    return paths, await browse.browse(
        sides.primary if request.side is Side.PRIMARY else sides.secondary,
        paths,
        kinds=request.kinds,
        max_messages=request.most,
        from_sequence_number=request.from_sequence_number,
        wanted=lambda message: request.wanted.wants(message.received, message.summary),
        timeout_seconds=request.timeout_seconds or browse.DEFAULT_TIMEOUT_SECONDS,
    )


async def _every_queue(sides: Sides, request: PeekRequest) -> tuple[str, ...]:
    pair = sides.pair
    found = await backlog.find_queues(
        pair,
        messaging=sides.secondary,
        admin=sides.secondary_admin,
        timeout_seconds=request.timeout_seconds or backlog.DEFAULT_TIMEOUT_SECONDS,
    )
    if not found.existing:
        raise no_queue(pair)
    return found.existing


@dataclass(frozen=True, slots=True)
class BrowseRequest(_Page):
    """Which messages of an entity are browsed."""

    source: str
    """Path of a queue or subscription."""
    _: KW_ONLY
    selection: Selection = ALL_MESSAGES
    dead_letter: bool = False
    """Browse the dead letters instead; `list_dead_letters` does that always."""
    timeout_seconds: float = browse.DEFAULT_TIMEOUT_SECONDS
    """Longest wait for a page of messages."""


async def list_dead_letters(
    ends: Ends, request: BrowseRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> DeadLetterReasons:
    """Count all dead letters of a queue or subscription by reason, with their ages. Needs Listen.

    Returns:
        The reasons, the most frequent one first.

    Raises:
        ServiceError: the dead-letter queue cannot be browsed.
        FilterError: the filter cannot be evaluated for a message.
    """
    counter = ReasonCounter()
    await run_until(stop or asyncio.Event(), _count(ends, request.source, request, counter.add))
    reasons = counter.reasons()
    total = sum(reason.messages for reason in reasons)
    return DeadLetterReasons(shown_name(ends.source_access), request.source, total, reasons)


async def _count(
    ends: Ends, path: str, request: "BrowseRequest | TriageRequest", add: Callable[[Received, MessageSummary], None]
) -> None:
    """Browse all dead letters of an entity, and give those that are selected to `add`."""
    async with closing(ends.source.receiver(path, dead_letter=True)) as receiver:
        async for page in browse.pages_once(receiver, page_seconds=request.timeout_seconds):
            for received in page:
                summary = describe(received.payload)
                if request.selection.selects(received, summary):
                    add(received, summary)


async def browse_messages(
    ends: Ends, request: BrowseRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> DeadLetters:
    """Browse the messages of a queue or subscription, or its dead letters, the oldest first. Needs Listen.

    Returns:
        The messages, how many were browsed for them, and whether there may be more.

    Raises:
        ServiceError: the entity cannot be browsed.
        FilterError: the filter cannot be evaluated for a message.
    """
    browsing = browse.browse(
        ends.source,
        [request.source],
        kinds=(request.dead_letter,),
        max_messages=request.most,
        from_sequence_number=request.from_sequence_number,
        wanted=lambda message: request.selection.selects(message.received, message.summary),
        timeout_seconds=request.timeout_seconds,
    )
    report = await run_until(stop or asyncio.Event(), browsing)
    if report.failed:
        raise report.failed[0].error
    messages, noun = request.shown(report), "dead letter" if request.dead_letter else "message"
    notes = () if report.looked_at else await _of_topics(ends.admin, ends.source_access, [request.source])
    if not messages:
        notes += request.selection.advice
    groups = grouped(messages, request.group_by) if request.group_by else None
    place = shown_name(ends.source_access), request.source, report.looked_at, report.left_off
    return DeadLetters(*place, () if request.group_by else messages, groups, noun, notes)


async def _of_topics(admin: NamespaceAdmin | None, access: NamespaceAccess, paths: Sequence[str]) -> tuple[str, ...]:
    """Of which of the paths nothing can be seen because they are topics; as far as that may be known."""
    try:
        asked = [path for path in paths if subscription_of(path) is None]
        topics = [path for path in asked if admin is not None and await admin.get_topic(path) is not None]
    except ServiceError:
        return ()
    return tuple(of_a_topic(path, access.label) for path in topics)


# The dead letters of a whole namespace by cause.

ENTITIES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class TriageRequest:
    """Which dead letters of a namespace are grouped."""

    selection: Selection = ALL_MESSAGES
    before: Mapping[str, int] | None = None
    """The `Cause.parts` of the last look together; None: nobody has looked."""
    since_last: bool = False
    """Only causes that are new or grow count as findings."""
    with_body: bool = False
    """The body of one letter of each cause."""
    timeout_seconds: float = browse.DEFAULT_TIMEOUT_SECONDS
    """Longest wait for a page of messages."""


async def list_causes(
    ends: Ends, request: TriageRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> Triage:
    """Browse the dead letters of every queue and subscription that counts some, and group them by cause.

    Needs Listen on them, and Manage to know which they are.

    Returns:
        The causes, the most frequent one first. An entity that could not be browsed is named in `not_read`.

    Raises:
        UsageError: the entities of the namespace cannot be listed.
        ServiceError: as that.
        FilterError: the filter cannot be evaluated for a message.
    """
    return await run_until(stop or asyncio.Event(), _grouped(ends, request))


async def _grouped(ends: Ends, request: TriageRequest) -> Triage:
    if ends.topology is None:
        raise UsageError("The entities of this namespace cannot be listed: name one.")
    known = await ends.topology.entities(rules=False)
    paths = [one.path for one in known if one.kind is not EntityKind.TOPIC and one.counts.dead_letter]
    counter = CauseCounter()
    failed: list[NotBrowsed] = []

    async def read(path: str) -> None:
        try:
            await _count(ends, path, request, partial(counter.add, path))
        except ServiceError as error:
            failed.append(NotBrowsed(path, error))

    await side_by_side(read, paths, at_once=ENTITIES_AT_ONCE)
    label = ends.source_access.label
    causes = counter.causes(label, request.before, with_body=request.with_body)
    return Triage(
        shown_name(ends.source_access),
        counter.messages,
        len(paths),
        causes,
        tuple(failed),
        counter.left_off,
        request.since_last,
    )


# The sessions of an entity: listed, shown, and their states set or cleared.

LOCKED_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class ListSessionsRequest:
    """Whose sessions are listed."""

    source: str
    """Path of a queue or subscription that requires sessions."""
    _: KW_ONLY
    lock: bool = False
    """Lock each for a moment, to see which are locked by others, and their states."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Longest wait for a page of messages."""


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """Which session is shown, or gets another state."""

    source: str
    """Path of a queue or subscription that requires sessions."""
    session_id: str
    state: bytes | None = None
    """Of `set_session_state`: the new state; None clears it."""
    _: KW_ONLY
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Longest wait for a page of messages."""
    dry_run: bool = False


async def list_sessions(
    ends: Ends, request: ListSessionsRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> SessionList:
    """Browse the sessions of an entity that hold messages or a state. Needs Listen.

    Returns:
        The sessions by id.

    Raises:
        UsageError: the entity has no sessions.
        ServiceError: it cannot be browsed.
    """
    return await run_until(stop or asyncio.Event(), _listed(ends, request))


async def _listed(ends: Ends, request: ListSessionsRequest) -> SessionList:
    received: list[Received] = []
    async with closing(ends.source.receiver(request.source)) as receiver:
        try:
            with_state = await receiver.session_ids()
        except ArgumentRefusedError as error:
            place = f"{ends.source_access.label}:{request.source}"
            raise UsageError(
                f"{request.source} on {shown_name(ends.source_access)} has no sessions: it was created without.",
                hint=f"See its messages: sbpair entity peek {shlex.quote(place)}",
            ) from error
        async for page in pages_once(receiver, page_seconds=request.timeout_seconds):
            received += page
    found = list(sessions_of(received, with_state).values())
    if request.lock:
        tried = await side_by_side(lambda one: _locked(ends, request.source, one), found, at_once=LOCKED_AT_ONCE)
        found = [session for session, _ in tried]
    name = shown_name(ends.source_access)
    return SessionList(name, request.source, tuple(sorted(found, key=lambda one: one.session_id)))


async def _locked(ends: Ends, source: str, session: SessionFacts) -> tuple[SessionFacts, bytes | None]:
    """Lock it for a moment: what that tells of it, and its state."""
    try:
        async with closing(ends.source.receiver(source, session_id=session.session_id)) as receiver:
            state = await receiver.session_state()
    except SessionUnavailableError:
        return replace(session, locked=True), None
    return replace(session, locked=False, state_bytes=len(state or b"")), state


async def show_session(
    ends: Ends, request: SessionRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> ShownSession:
    """One session with its state. It is locked for a moment. Needs Listen.

    Errors are those of `list_sessions`; where another receiver holds the session the result says so, without its state.
    """
    return await run_until(stop or asyncio.Event(), _session_shown(ends, request))


async def _session_shown(ends: Ends, request: SessionRequest) -> ShownSession:
    name, counted = await _counted(ends, request)
    session, state = await _locked(ends, request.source, counted)
    return ShownSession(name, request.source, session, *_readable(state))


async def _counted(ends: Ends, request: SessionRequest) -> tuple[str, SessionFacts]:
    """The name of the namespace, and what the session holds."""
    listed = await _listed(ends, ListSessionsRequest(request.source, timeout_seconds=request.timeout_seconds))
    named = {session_key(one.session_id): one for one in listed.sessions}
    session = named.get(session_key(request.session_id)) or SessionFacts(request.session_id, 0, 0, 0, None)
    return listed.namespace, session


def _readable(state: bytes | None) -> tuple[str | None, str | None]:
    if state is None:
        return None, None
    try:
        return state.decode(), None
    except UnicodeDecodeError:
        return None, state.hex()


async def set_session_state(
    ends: Ends, request: SessionRequest, *, observer: Observer | None = None, stop: asyncio.Event | None = None
) -> ShownSession:
    """Set the state of a session, or clear it. It is locked meanwhile. Needs Listen.

    Args:
        request: which session, and its new state. With `dry_run` nothing is changed.
        stop: ends the work before the state is set.

    Returns:
        The session with its new state, and what it was before.

    Raises:
        UsageError: the entity has no sessions, or another receiver holds this one, so that it cannot be changed.
        ServiceError: the entity cannot be reached.
    """
    return await run_until(stop or asyncio.Event(), _changed(ends, request))


async def _changed(ends: Ends, request: SessionRequest) -> ShownSession:
    name, session = await _counted(ends, request)
    try:
        async with closing(ends.source.receiver(request.source, session_id=request.session_id)) as receiver:
            before = await receiver.session_state()
            changes = before != request.state
            if changes and not request.dry_run:
                await receiver.set_session_state(request.state)
    except SessionUnavailableError as error:
        raise UsageError(
            f"The session {request.session_id!r} of {request.source} is locked by another receiver. Its state is as it "
            "was.",
            hint="Stop that receiver, or wait until its lock ends.",
        ) from error
    session = replace(session, locked=False, state_bytes=len(request.state or b""))
    previous = None if before is None else before.hex()
    return ShownSession(name, request.source, session, *_readable(request.state), changes, previous)
