"""The sessions of an entity: listed, shown, and their states set or cleared."""

import asyncio
import shlex
from dataclasses import KW_ONLY, dataclass, replace

from sbpair.concurrency import run_until, side_by_side
from sbpair.core.access import shown_name
from sbpair.core.errors import ArgumentRefusedError, SessionUnavailableError, UsageError
from sbpair.core.message import Received
from sbpair.core.transfer.peeked import SessionFacts, SessionList, SessionState, sessions_of
from sbpair.ports import Ends, Observer
from sbpair.runtime.browse import DEFAULT_TIMEOUT_SECONDS, pages_once
from sbpair.runtime.links import closing
from sbpair.service import session_key

__all__ = ["ListSessionsRequest", "SessionRequest", "list_sessions", "set_session_state", "show_session"]

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
) -> SessionState:
    """One session with its state. It is locked for a moment. Needs Listen.

    Errors are those of `list_sessions`; where another receiver holds the session the result says so, without its state.
    """
    return await run_until(stop or asyncio.Event(), _shown(ends, request))


async def _shown(ends: Ends, request: SessionRequest) -> SessionState:
    name, counted = await _counted(ends, request)
    session, state = await _locked(ends, request.source, counted)
    return SessionState(name, request.source, session, *_readable(state))


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
) -> SessionState:
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


async def _changed(ends: Ends, request: SessionRequest) -> SessionState:
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
    return SessionState(name, request.source, session, *_readable(request.state), changes, previous)
