"""Sessions: who holds them, what their ids are, what becomes of them."""

from collections.abc import Callable

from sbpair.emulator.laws.law import Law, documented, fixed, rule, tested, unknown
from sbpair.engine import errors
from sbpair.service import ascii_session_key, session_key

_SESSIONS = documented("Message sessions")


class SessionLaws:
    session_key = Law[Callable[[str], str]](
        "Session ids that differ in case alone name one session.",
        tested(
            "azure-sdk-for-net, CancelingDoesNotLoseSessionMessages; Azure/azure-sdk-for-java pull request 48759, "
            "Azure/durabletask pull request 1334"
        ),
        "broker/mailbox.py Mailbox.__init__",
        strict=session_key,
        lax=str,
        other=ascii_session_key,
        differs="letters beyond ASCII as well, of which nothing is known",
    )
    session_id_needed = rule(
        "An entity with sessions refuses a message without a session id.", _SESSIONS, "broker/intake.py Intake._check"
    )
    session_receivers_match = fixed(
        "An entity with sessions has receivers of sessions alone, any other has none.",
        _SESSIONS,
        "endpoints.py _attach_receiver",
    )
    session_is_exclusive = fixed(
        "A session that is held cannot be accepted by another receiver.", _SESSIONS, "broker/sessions.py Sessions.hold"
    )
    settled_after_session_lost = Law[str](
        "Once the lock of a session has run out, a settlement over its link is refused as message-lock-lost.",
        unknown("none for the moment before the link is detached; afterwards the clients say session-lock-lost"),
        "receivers.py Receiver._settle",
        strict=errors.MESSAGE_LOCK_LOST,
        other=errors.SESSION_LOCK_LOST,
        differs="so for 2 seconds, after which the link is detached with session-lock-lost",
    )
    next_session_timeout_seconds = Law[float](
        "A receiver of the next available session waits 60 seconds unless it says how long.",
        tested("azure-sdk-for-python, test_session_by_conn_str_receive_handler_with_no_session"),
        "receivers.py waiting_seconds",
        strict=60.0,
        other=30.0,
    )
    lost_session_counts = rule(
        "The messages of a session whose lock ran out count as deliveries that failed.",
        _SESSIONS,
        "broker/mailbox.py Mailbox._session_lost",
    )
    left_session_counts = Law[bool](
        "The messages of a session that its receiver left are not counted.",
        _SESSIONS,
        "broker/mailbox.py Mailbox.leave",
        strict=False,
        other=True,
    )
    session_detach_seconds = Law[float](
        "A receiver whose session's lock has ended is detached some time later.",
        unknown("none"),
        "broker/mailbox.py Mailbox._session_lost",
        strict=2.0,
        other=0.0,
        differs="after 2 seconds; until then what it settles is answered with message-lock-lost",
    )
    listed_sessions = fixed(
        "Sessions with messages or a state are listed; with a time those whose state was set after it.",
        tested("azure-sdk-for-net pull request 58761"),
        "broker/sessions.py Sessions.listed",
    )
    session_state_needs_lock = fixed(
        "The state of a session is read and set by its holder alone.",
        _SESSIONS,
        "broker/sessions.py Sessions.require_held",
    )
