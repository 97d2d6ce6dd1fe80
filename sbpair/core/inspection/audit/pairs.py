"""Checks of a pair. Its backlog queues as such: are the right ones there, in the right place, with right settings?"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from sbpair.core.durations import format_duration
from sbpair.core.entities import TopicFacts, capacity_bytes, used_share
from sbpair.core.inspection.audit.findings import CannotRun, Check, Found, Severity, Thresholds, View
from sbpair.core.inspection.drilled import Mark
from sbpair.core.inspection.plan import Difference, differences, user_of
from sbpair.core.inspection.snapshot import QueueSeen
from sbpair.core.names import BACKLOG_INFIX, Names
from sbpair.core.words import counted, listed, span
from sbpair.service import EntityStatus, Tier

_OWN_CHECKS = {"requires_session", "requires_duplicate_detection", "forward_to", "forward_dead_lettered_messages_to"}
"""Properties with a check of their own, because they are worse than a difference."""
_MOST_RANGES = 10
_LOSES_MESSAGES = {"default_message_time_to_live_seconds", "auto_delete_on_idle_seconds"}


def _missing(view: View) -> Iterator[Found]:
    confirmed = Names(view.secondary.seen.absent)
    for path in view.pair.backlog_paths():
        if view.secondary.queue(path) is not None:
            continue
        doubt = "" if path in confirmed else "; the listing did not show it and no get confirmed that"
        yield Found(path, f"Backlog queue {path} does not exist on {view.secondary.name}{doubt}.")


def _extra(view: View) -> Iterator[Found]:
    count = view.pair.options.backlog_queue_count
    for name, queue in view.own_backlog():
        if name.index < count or user_of(queue.path, view.pair.secondary.host, view.others) is not None:
            continue
        state = (
            "It is empty." if queue.empty else f"It holds {queue.contents}; sbpair drain {view.pair.name} returns them."
        )
        yield Found(
            queue.path,
            f"Index {name.index} is not below the pair's {count} backlog queues. {state}",
            None if queue.empty else Severity.ERROR,
            None if queue.empty else _EMPTY_IT,
        )


_EMPTY_IT = "sbpair drain {pair}\nThen delete the queue: sbpair cleanup {pair} --yes"


def _gaps(view: View) -> Iterator[Found]:
    present = sorted({name.index for name, _ in view.own_backlog()})
    holes = [(before + 1, after - 1) for before, after in pairwise((-1, *present)) if after > before + 1]
    if holes:
        shown = listed(map(span, holes), most=_MOST_RANGES)
        yield Found(
            f"{view.pair.primary.label}/{BACKLOG_INFIX}",
            f"The numbering has gaps: {shown} missing below index {present[-1]}. Queues were deleted, or "
            "creating them failed half-way.",
        )


def _different(view: View) -> Iterator[Found]:
    tier = view.secondary.tier_if_known()
    for queue in view.expected():
        found = [one for one in differences(queue.facts.settings, tier) if one.field not in _OWN_CHECKS]
        if found:
            yield Found(queue.path, _difference_text(found), _difference_severity(found))


def _difference_text(found: Sequence[Difference]) -> str:
    text = "; ".join(str(one) for one in found)
    return f"{text[0].upper()}{text[1:]}."


def _difference_severity(found: Sequence[Difference]) -> Severity:
    return Severity.ERROR if any(one.field in _LOSES_MESSAGES for one in found) else Severity.WARNING


def _on_primary(view: View) -> Iterator[Found]:
    for _, queue in view.primary.backlog(view.pair.primary.label):
        state = "It is empty." if queue.empty else f"It holds {queue.contents}."
        yield Found(
            queue.path,
            f"A backlog queue for this primary is on the primary itself ({view.primary.name}), where it is of no use. "
            f"{state}",
            None if queue.empty else Severity.ERROR,
        )


def _left_over(view: View) -> Iterator[Found]:
    known = {view.pair.primary.label}
    known |= {other.primary.label for other in view.others if other.secondary.host == view.pair.secondary.host}
    view.secondary.queues()
    by_label: dict[str, list[int]] = {}
    for name, queue in view.secondary.seen.backlog():
        drill = Mark.of(queue.facts)
        if drill is not None and drill.until > view.snapshot.taken_at:
            continue  # it removes them itself; if it was killed, the next one does
        if name.primary_label not in known:
            held = queue.facts.counts.total or int(not queue.empty)
            by_label.setdefault(name.primary_label, []).append(held)
    for label, messages in by_label.items():
        yield Found(
            f"{label}/{BACKLOG_INFIX}",
            f"Of primary {label!r}, which no configured pair with this secondary has: "
            f"{counted(len(messages), 'backlog queue')}"
            + (f" with {counted(sum(messages), 'message')}." if sum(messages) else ", all empty."),
            Severity.ERROR if sum(messages) else None,
        )


def _disabled(view: View) -> Iterator[Found]:
    effect = {
        EntityStatus.DISABLED: "neither failover nor the syphon can use it",
        EntityStatus.SEND_DISABLED: "failover cannot use it",
        EntityStatus.RECEIVE_DISABLED: "the syphon cannot empty it",
        EntityStatus.UNKNOWN: "it may not be usable",
    }
    for queue in view.expected():
        status = queue.facts.settings.status
        if status is not EntityStatus.ACTIVE:
            yield Found(queue.path, f"Its status is {status}: {effect[status]}.")


def _forwarding(view: View) -> Iterator[Found]:
    for _, queue in view.own_backlog():
        settings = queue.facts.settings
        if settings.forward_to:
            yield Found(
                queue.path,
                f"Messages are forwarded to {settings.forward_to!r}: they never wait here for the syphon.",
                Severity.CRITICAL,
            )
        if settings.forward_dead_lettered_messages_to:
            yield Found(
                queue.path,
                f"Dead letters are forwarded to {settings.forward_dead_lettered_messages_to!r}, where `sbpair drain "
                "--dlq` does not find them.",
            )


def _sessions(view: View) -> Iterator[Found]:
    for queue in view.expected():
        if queue.facts.settings.requires_session:
            yield Found(
                queue.path,
                "It requires sessions, but diverted messages have none (the session travels as x-ms-sessionid): every "
                "diverted send is refused.",
            )


def _duplicate_detection(view: View) -> Iterator[Found]:
    for queue in view.expected():
        if queue.facts.settings.requires_duplicate_detection:
            yield Found(
                queue.path,
                "It detects duplicates, but holds messages of many entities: two with the same message id for "
                "different entities, and one of them is silently dropped.",
            )


_RECREATE = (
    "sbpair provision {pair} --update\n"
    "This is set at creation only: the plan shows the way (drain, delete, create); it is never done automatically."
)

CHECKS = (
    Check(
        "SBP001",
        "Backlog queue missing",
        Severity.ERROR,
        "Every backlog queue with an index below the pair's count should exist on the secondary. Senders that pick a "
        "missing one lose time and move on to another; with none left they cannot fail over.",
        "sbpair provision {pair}",
        _missing,
    ),
    Check(
        "SBP002",
        "Extra backlog queue",
        Severity.WARNING,
        "A backlog queue with an index at or above the count of every configured pair: no sender picks it. It is "
        "usually left over from a larger count. A drain and a syphon read it all the same. Such queues are never "
        "removed automatically.",
        "sbpair cleanup {pair}\nthen sbpair cleanup {pair} --yes",
        _extra,
    ),
    Check(
        "SBP003",
        "Gap in the numbering",
        Severity.INFO,
        "Backlog queues are numbered from 0 without gaps. A gap shows that queues were deleted or that creating them "
        "failed half-way. Indices that should exist are reported as missing as well.",
        "sbpair provision {pair}",
        _gaps,
    ),
    Check(
        "SBP004",
        "Backlog queue differs from the documented settings",
        Severity.WARNING,
        "A backlog queue should have 5120 MB, unlimited delivery count, no time to live, no auto-delete, a lock of one "
        "minute, dead-lettering on expiration and batched operations. An existing queue is used as it is, so the "
        "difference stays until somebody changes it. A finite time to live or auto-delete is an error: diverted "
        "messages disappear. Durations, sizes of partitioned queues and what tier Basic does not let be set are "
        "normalised first.",
        "sbpair provision {pair} --update",
        _different,
    ),
    Check(
        "SBP005",
        "Backlog queue on the primary itself",
        Severity.WARNING,
        "Backlog queues of a primary belong on its secondary. On the primary they are unreachable just when they are "
        "needed; usually a provisioning run had the two namespaces mixed up.",
        "sbpair peek {pair}\nCheck that primary and secondary are not swapped, then delete {subject} on the primary.",
        _on_primary,
    ),
    Check(
        "SBP006",
        "Backlog queues of an unknown primary",
        Severity.WARNING,
        "The secondary holds backlog queues named for a namespace that no configured pair with this secondary has as "
        "its primary. They may hold messages that no program returns any more.",
        "Add a pair for {subject} to the configuration, then: sbpair drain NEW-PAIR\n"
        "or delete them: sbpair cleanup {pair} --left-overs-of {subject}",
        _left_over,
    ),
    Check(
        "SBP007",
        "Backlog queue not active",
        Severity.ERROR,
        "A disabled backlog queue refuses diverted messages (SendDisabled), the syphon (ReceiveDisabled) or both.",
        "az servicebus queue update --name {subject} --status Active --namespace-name ... --resource-group ...",
        _disabled,
    ),
    Check(
        "SBP011",
        "Forwarding on a backlog queue",
        Severity.WARNING,
        "A forwarding rule moves messages away as they arrive; the syphon never receives them. Forwarded dead letters "
        "end up where backlog messages are not expected.",
        "sbpair provision {pair} --update",
        _forwarding,
    ),
    Check(
        "SBP012",
        "Backlog queue requires sessions",
        Severity.CRITICAL,
        "Diverted messages carry their session in an application property, so a queue that requires sessions refuses "
        "every one of them.",
        _RECREATE,
        _sessions,
    ),
    Check(
        "SBP013",
        "Backlog queue detects duplicates",
        Severity.ERROR,
        "A backlog queue mixes messages of all entities; equal message ids of different entities are taken for "
        "duplicates and dropped.",
        _RECREATE,
        _duplicate_detection,
    ),
)


# Checks of the configured entities on the primary: will what was diverted be taken back?

BACKLOG_MESSAGE_KILOBYTES = 256
"""The largest message a backlog queue of tier Basic or Standard takes, and so the largest that can come back."""
_SENDABLE = (EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED)


def _entity(view: View, path: str) -> QueueSeen | TopicFacts | None:
    return view.primary.queue(path) or view.primary.topic(path)


def _missing_entity(view: View) -> Iterator[Found]:
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


def _disabled_entity(view: View) -> Iterator[Found]:
    for path in view.pair.entities:
        entity = _entity(view, path)
        if entity is None:
            continue
        status = entity.status if isinstance(entity, TopicFacts) else entity.facts.settings.status
        if status not in _SENDABLE:
            yield Found(path, f"Its status is {status}: it refuses messages, also those coming back from the backlog.")


ENTITY_CHECKS = (
    Check(
        "SBP018",
        "Configured entity missing on the primary",
        Severity.ERROR,
        "An entity of the configuration does not exist on the primary. Messages diverted for it would be "
        "dead-lettered on the way back to the primary.",
        "sbpair config check\nCorrect `entities`, or create {subject} on the primary.",
        _missing_entity,
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
        _disabled_entity,
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
