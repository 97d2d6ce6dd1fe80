"""What the journal of active/active says of its sessions."""

import time
from collections import Counter

from sbpair.core.replication.ownership import SessionState, is_stuck
from sbpair.core.replication.status import JournalStatus, JournalStatusRequest, SessionShown
from sbpair.ports import Journal
from sbpair.runtime.replication.store import entries_in

__all__ = ["JournalStatus", "JournalStatusRequest", "journal_status"]


async def journal_status(journal: Journal, request: JournalStatusRequest) -> JournalStatus:
    """Say in which state the sessions of a journal are, who has them, and which are stuck. The journal stays open.

    Returns:
        The stuck sessions first, then those that changed last.

    Raises:
        JournalError: it cannot be read.
    """
    about, entries, now = await journal.check(), await entries_in(journal, request.destination), time.time()
    by_state = Counter(one.state for one in entries)
    seen = [(one, is_stuck(one, now=now, terms=request.terms)) for one in entries]
    stuck = tuple((one.session_id, why) for one, why in seen if why is not None)
    wanted = [
        SessionShown.of(one, why, now)
        for one, why in sorted(seen, key=lambda known: (known[1] is None, -known[0].updated_at))
        if request.state in (None, one.state) and (why is not None or not request.only_stuck)
    ]
    return JournalStatus(
        journal.name,
        {one: by_state[one] for one in SessionState},
        sum(one.completed_count for one in entries),
        sum(one.failed_count for one in entries),
        len(stuck),
        tuple(wanted[: request.limit]),
        about,
        max(0, len(wanted) - request.limit),
        stuck,
    )
