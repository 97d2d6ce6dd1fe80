"""Checks of the configured entities on the primary: will what was diverted be taken back?"""

from collections.abc import Iterator

from sbpair.core.durations import format_duration
from sbpair.core.entities import TopicFacts, capacity_bytes, used_share
from sbpair.core.inspection.audit.findings import CannotRun, Check, Found, Severity, Thresholds, View
from sbpair.core.inspection.snapshot import QueueSeen
from sbpair.core.words import counted
from sbpair.service import EntityStatus, Tier

BACKLOG_MESSAGE_KILOBYTES = 256
"""The largest message a backlog queue of tier Basic or Standard takes, and so the largest that can come back."""
_SENDABLE = (EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED)


def _entity(view: View, path: str) -> QueueSeen | TopicFacts | None:
    return view.primary.queue(path) or view.primary.topic(path)


def _missing(view: View) -> Iterator[Found]:
    for path in view.pair.entities:
        if _entity(view, path) is None:
            yield Found(path, f"No queue or topic {path!r} on {view.primary.name}.")


def _too_small(view: View) -> Iterator[Found]:
    for path in view.pair.entities:
        entity = _entity(view, path)
        if entity is None:
            continue
        limit = _message_limit(entity)
        if limit is not None and limit < BACKLOG_MESSAGE_KILOBYTES:
            yield Found(
                path, f"Its message limit is {limit} KB; a backlog queue may hold {BACKLOG_MESSAGE_KILOBYTES} KB."
            )
        sized, used = (
            (entity, entity.size_in_bytes)
            if isinstance(entity, TopicFacts)
            else (entity.facts.settings, entity.facts.size_in_bytes)
        )
        if capacity_bytes(sized) - used < BACKLOG_MESSAGE_KILOBYTES * 1024:
            yield Found(path, f"It has no room left for a message of {BACKLOG_MESSAGE_KILOBYTES} KB.")
        yield from _larger_than_backlog(view, path, limit)


def _larger_than_backlog(view: View, path: str, limit: int | None) -> Iterator[Found]:
    """A Premium entity may take messages that the secondary's backlog queues do not."""
    if limit is not None and limit > BACKLOG_MESSAGE_KILOBYTES and view.secondary.tier() is not Tier.PREMIUM:
        yield Found(
            path,
            f"Its message limit is {limit} KB, that of the backlog queues {BACKLOG_MESSAGE_KILOBYTES} KB: larger "
            "messages cannot be diverted.",
            Severity.WARNING,
        )


def _message_limit(entity: QueueSeen | TopicFacts) -> int | None:
    if isinstance(entity, TopicFacts):
        return entity.max_message_size_in_kilobytes
    return entity.facts.settings.max_message_size_in_kilobytes


def _disabled(view: View) -> Iterator[Found]:
    for path in view.pair.entities:
        entity = _entity(view, path)
        if entity is None:
            continue
        status = entity.status if isinstance(entity, TopicFacts) else entity.facts.settings.status
        if status not in _SENDABLE:
            yield Found(path, f"Its status is {status}: it refuses messages, also those coming back from the backlog.")


CHECKS = (
    Check(
        "SBP018",
        "Configured entity missing on the primary",
        Severity.ERROR,
        "An entity of the configuration does not exist on the primary. Messages diverted for it would be "
        "dead-lettered on the way back to the primary.",
        "sbpair config check\nCorrect `entities`, or create {subject} on the primary.",
        _missing,
    ),
    Check(
        "SBP019",
        "Entity cannot accept a backlog message",
        Severity.ERROR,
        "A message may have been diverted at up to 256 KB. An entity with a smaller limit or without room refuses it "
        "on the way back; one with a larger limit accepts messages that are too large for a secondary of a lower tier.",
        "az servicebus queue show --name {subject} --namespace-name ... --resource-group ...\n"
        "Raise the entity's limit, make room, or give the secondary the primary's tier.",
        _too_small,
    ),
    Check(
        "SBP020",
        "Entity on the primary not active",
        Severity.ERROR,
        "An entity that is disabled for sending refuses new messages and those coming back from the backlog.",
        "az servicebus queue update --name {subject} --status Active --namespace-name ... --resource-group ...",
        _disabled,
    ),
)


# Checks of what is in the backlog: stranded messages, dead letters, queues that are nearly full.


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
        return counted(waiting, "message")
    return "messages that the counts do not show" if queue.peeked and queue.peeked.active else None


def _age(queue: QueueSeen, view: View) -> tuple[Severity, str]:
    """How long they wait: from the oldest message if browsed, else from when anybody last touched the queue."""
    limits, now = view.thresholds, view.snapshot.taken_at
    oldest = queue.peeked.oldest_enqueued_at if queue.peeked else None
    since = oldest if oldest is not None else queue.facts.accessed_at
    if since is None:
        return Severity.WARNING, "for how long is not known"
    seconds = max(0.0, now - since)
    what = "the oldest has waited" if oldest is not None else "the queue has been untouched for"
    text = f"{what} {format_duration(seconds)}"
    if seconds >= limits.stranded_error_seconds:
        return Severity.ERROR, f"{text}: no syphon is running"
    if seconds >= limits.stranded_warning_seconds:
        return Severity.WARNING, f"{text}: perhaps no syphon is running"
    return Severity.INFO, text


def _say_if_incomplete(view: View) -> None:
    """A queue whose browse failed leaves a check incomplete: say so rather than pass."""
    prefix = "messages of "
    failed = [entry for entry in view.secondary.seen.unread if entry.subject.startswith(prefix)]
    if failed:
        first = failed[0]
        path = first.subject.removeprefix(prefix)
        raise CannotRun(f"{counted(len(failed), 'queue')} could not be browsed, first {path}: {first.reason}")


def _dead_letters(view: View) -> Iterator[Found]:
    for _, queue in view.own_backlog():
        dead = queue.facts.counts.dead_letter + queue.facts.counts.transfer_dead_letter
        if dead:
            yield Found(queue.path, f"{counted(dead, 'dead letter')}: they stay until somebody moves them.")
        elif queue.peeked is not None and queue.peeked.dead_letter:
            yield Found(queue.path, "Dead letters that the counts do not show: they stay until somebody moves them.")
    _say_if_incomplete(view)


def _near_full(view: View) -> Iterator[Found]:
    for queue in view.expected():
        share = used_share(queue.facts)
        if share >= view.thresholds.near_full_share:
            full = share >= view.thresholds.full_share
            yield Found(
                queue.path,
                f"{share:.0%} of its size is used; a full backlog queue refuses diverted messages.",
                Severity.CRITICAL if full else None,
            )


_LIMITS = Thresholds()
CONTENT_CHECKS = (
    Check(
        "SBP008",
        "Messages stranded in the backlog",
        Severity.WARNING,
        "Diverted messages wait for a syphon to move them back. With none running they wait for ever: the retired "
        "library's default was not to run one. The age is that of the oldest message where a browse was possible, "
        "otherwise the time since anybody touched the queue. A queue is noted at first, is a warning once "
        f"its oldest message has waited {format_duration(_LIMITS.stranded_warning_seconds)}, and an error after "
        f"{format_duration(_LIMITS.stranded_error_seconds)}.",
        "sbpair drain {pair}\nor run sbpair syphon {pair} as a service",
        _stranded,
    ),
    Check(
        "SBP009",
        "Dead letters in the backlog",
        Severity.WARNING,
        "The syphon dead-letters what it cannot return: no destination, an entity that is gone, a message too large. "
        "They stay on the secondary until somebody acts.",
        "sbpair peek {pair} --dlq --group-by reason\nthen sbpair drain {pair} --dlq",
        _dead_letters,
    ),
    Check(
        "SBP010",
        "Backlog queue nearly full",
        Severity.WARNING,
        "A backlog queue at its maximum size refuses diverted messages; when all are full, sends fail as if there were "
        "no pairing.",
        "sbpair drain {pair} --queue {subject}",
        _near_full,
    ),
)
