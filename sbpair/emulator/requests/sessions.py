"""renew-session-lock, get-session-state, set-session-state, get-message-sessions.

renew       session-id -> 200 expiration: timestamp; 410 session-lock-lost when nobody holds the session.
get-state   session-id -> 200 session-state: binary or null.
set-state   session-id, session-state binary, or null or an empty one (clear it) -> 200; 410 when nobody holds the
            session.
list        last-updated-time timestamp, skip int, top int -> 200 sessions-ids (sic): array of string, skip: int;
204 when
            there is none. The end of time (253402300800000) asks for all sessions with messages or state, an earlier
            time for those whose state was set after it.
"""

from sbpair.amqp.types import Array, Int
from sbpair.emulator.broker.messages import milliseconds
from sbpair.emulator.broker.sessions import Sessions
from sbpair.emulator.requests.call import Answering, Call, Reply
from sbpair.engine import errors
from sbpair.engine.errors import BrokerError

_STRING = 0xB1
_END_OF_TIME_MILLISECONDS = 253_402_300_799_000


def renew_session_lock(call: Call) -> Answering:
    """Start a session lock's time again."""
    yield
    return Reply.ok(expiration=milliseconds(_sessions(call).renew(call.text("session-id"))))


def get_session_state(call: Call) -> Answering:
    """The bytes kept with a session."""
    yield
    return Reply.ok(session_state=_sessions(call).require_held(call.text("session-id")).state)


def set_session_state(call: Call) -> Answering:
    """Keep bytes with a session."""
    yield
    state = call.body.get("session-state")
    if state is not None and not isinstance(state, bytes):
        raise BrokerError(errors.ARGUMENT_ERROR, "The session state must be bytes or null.")
    if state is not None and len(state) > call.namespace.laws.max_session_state_bytes:
        raise BrokerError(errors.SIZE_EXCEEDED, f"The session state of {len(state)} bytes is too large.")
    sessions, session_id = _sessions(call), call.text("session-id")

    holder = sessions.require_held(session_id).holder

    def check() -> None:
        if sessions.require_held(session_id).holder is not holder:
            raise BrokerError(errors.SESSION_LOCK_LOST, f"The lock of the session '{session_id}' has expired.")

    def keep() -> None:
        call.namespace.journal.put_session(call.location.entity, sessions.set_state(session_id, state or None))

    if call.transaction is None:
        keep()
    else:
        call.transaction.change(check, keep)
    return Reply.ok()


def get_message_sessions(call: Call) -> Answering:
    """Ids of sessions, sorted, a page of them."""
    yield
    skip, top = max(call.number("skip", 0), 0), max(call.number("top", 100), 0)
    changed_after = call.number("last-updated-time", _END_OF_TIME_MILLISECONDS)
    every = changed_after >= _END_OF_TIME_MILLISECONDS
    listed = _sessions(call).listed(None if every else changed_after / 1000)[skip : skip + top]
    if not listed:
        return Reply.nothing("com.microsoft:session-not-found")
    return Reply(200, {"sessions-ids": Array(_STRING, tuple(listed)), "skip": Int(skip + len(listed))})


def _sessions(call: Call) -> Sessions:
    sessions = call.mailbox.sessions
    if sessions is None:
        raise BrokerError(errors.NOT_ALLOWED, f"The entity '{call.mailbox.path}' does not have sessions.")
    return sessions
