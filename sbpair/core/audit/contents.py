"""Checks of what is in the backlog: stranded messages, dead letters, queues that are nearly full."""

from collections.abc import Iterator

from sbpair.core.audit.findings import CannotRun, Check, Found, Severity, View
from sbpair.core.drift import PARTITIONS
from sbpair.core.durations import format_duration
from sbpair.core.snapshot import QueueSeen

_MEGABYTE = 1024 * 1024


def _stranded(view: View) -> Iterator[Found]:
    for queue in view.expected():
        waiting = _waiting(queue)
        if waiting:
            severity, age = _age(queue, view)
            yield Found(queue.path, f"It holds {waiting}; {age}.", severity)
    _say_if_incomplete(view)


def _waiting(queue: QueueSeen) -> str | None:
    """Messages the syphon should fetch, as text; dead letters have a check of their own."""
    counts = queue.facts.counts
    waiting = counts.active + counts.scheduled + counts.transfer
    if waiting:
        return f"{waiting:,} message(s)"
    return "messages that the counts do not show" if queue.peeked and queue.peeked.active else None


def _age(queue: QueueSeen, view: View) -> tuple[Severity, str]:
    """How long they wait: from the oldest message if browsed, else from when anybody last touched the queue."""
    limits, now = view.thresholds, view.snapshot.taken_at
    oldest = queue.peeked.oldest_enqueued_at if queue.peeked else None
    since = oldest if oldest is not None else queue.facts.accessed_at
    if since is None:
        return Severity.WARNING, "for how long is not known"
    seconds = max(0.0, now - since)
    what = "the oldest has waited" if oldest is not None else "nobody has touched the queue for"
    text = f"{what} {format_duration(seconds)}"
    if seconds >= limits.stranded_error_seconds:
        return Severity.ERROR, f"{text}: nobody syphons"
    if seconds >= limits.stranded_warning_seconds:
        return Severity.WARNING, f"{text}: perhaps nobody runs a syphon"
    return Severity.INFO, text


def _say_if_incomplete(view: View) -> None:
    """A queue whose browse failed leaves a check incomplete: say so rather than pass."""
    prefix = "messages of "
    failed = [entry for entry in view.secondary.seen.unread if entry.subject.startswith(prefix)]
    if failed:
        first = failed[0]
        path = first.subject.removeprefix(prefix)
        raise CannotRun(f"{len(failed)} queue(s) could not be browsed, first {path}: {first.reason}")


def _dead_letters(view: View) -> Iterator[Found]:
    for _, queue in view.own_backlog():
        dead = queue.facts.counts.dead_letter + queue.facts.counts.transfer_dead_letter
        if dead:
            yield Found(queue.path, f"{dead:,} dead letter(s): nothing moves them on by itself.")
        elif queue.peeked is not None and queue.peeked.dead_letter:
            yield Found(queue.path, "Dead letters that the counts do not show: nothing moves them on by itself.")
    _say_if_incomplete(view)


def _near_full(view: View) -> Iterator[Found]:
    for queue in view.expected():
        share = used_share(queue)
        if share >= view.thresholds.near_full_share:
            full = share >= view.thresholds.full_share
            yield Found(
                queue.path,
                f"{share:.0%} of its size is used; a full backlog queue refuses diverted messages.",
                Severity.CRITICAL if full else None,
            )


def used_share(queue: QueueSeen) -> float:
    """Used share of a queue's size; a partitioned queue has its size once per partition."""
    settings = queue.facts.settings
    if settings.max_size_in_megabytes <= 0:  # no service says so, a file may
        return 0.0
    factor = PARTITIONS if settings.enable_partitioning else 1
    return queue.facts.size_in_bytes / (settings.max_size_in_megabytes * factor * _MEGABYTE)


CHECKS = (
    Check(
        "SBP008",
        "Messages stranded in the backlog",
        Severity.WARNING,
        "Diverted messages wait for a syphon to take them home. With none running they wait for ever: the retired "
        "library's default was not to run one. The age is that of the oldest message where a browse was possible, "
        "otherwise the time since anybody touched the queue.",
        "sbpair drain {pair}\nor run sbpair syphon {pair} as a service",
        _stranded,
    ),
    Check(
        "SBP009",
        "Dead letters in the backlog",
        Severity.WARNING,
        "The syphon dead-letters what it cannot return: no destination, an entity that is gone, a message too large. "
        "They "
        "stay on the secondary until somebody acts.",
        "sbpair peek {pair} --dlq --group-by reason\nthen sbpair drain {pair} --dlq",
        _dead_letters,
    ),
    Check(
        "SBP010",
        "Backlog queue nearly full",
        Severity.WARNING,
        "A backlog queue at its maximum size refuses diverted messages; when all are full, sends fail as if there "
        "were no "
        "pairing.",
        "sbpair drain {pair} --queue {subject}",
        _near_full,
    ),
)
