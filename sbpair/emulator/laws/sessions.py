"""Sessions: who holds them, what their ids are, what becomes of them."""

from collections.abc import Callable

from sbpair.emulator.laws.law import Law, tested, unknown
from sbpair.engine import errors
from sbpair.service import ascii_session_key, session_key


class Sessions:
    session_key = Law[Callable[[str], str]](
        "Session ids that differ in case alone name one session.",
        tested(
            "azure-sdk-for-net, CancelingDoesNotLoseSessionMessages; Azure/azure-sdk-for-java pull request 48759, "
            "Azure/durabletask pull request 1334"
        ),
        "broker/mailbox.py Mailbox._make_sessions",
        strict=session_key,
        lax=str,
        other=ascii_session_key,
        differs="letters beyond ASCII as well, of which nothing is known (`other`: letters of ASCII alone)",
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
