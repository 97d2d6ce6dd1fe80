"""Checks of queues that are replicated: a configured entity with sessions that exists on both sides (seed 004).

The journal is no part of a snapshot: whether it answers, and which sessions are stuck, says `sbpair replicate status`.
"""

from collections.abc import Iterator

from sbpair.core.audit.findings import Check, Found, Severity, View
from sbpair.core.replication import problems


def _replicated(view: View) -> Iterator[Found]:
    for path in view.pair.entities:
        primary = view.primary.queue(path)
        if primary is None or not primary.facts.settings.requires_session:
            continue
        secondary = view.secondary.queue(path)
        if secondary is None:
            continue
        for problem in problems(primary.facts.settings, secondary.facts.settings):
            yield Found(
                path, f"{problem.side.capitalize()}: {problem.message}", Severity.ERROR if problem.serious else None
            )


CHECKS = (
    Check(
        "SBP027",
        "Replicated queue not alike or not safe",
        Severity.WARNING,
        "A queue that exists on both sides with sessions is taken for a replicated one. Both need sessions, messages "
        "that do not expire, and a delivery count that never runs out, because copies wait for each other.",
        "sbpair replicate provision {pair} {subject} --dry-run\nBring the queue to what it says on the side named.",
        _replicated,
    ),
)
