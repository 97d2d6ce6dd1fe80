"""Checks of the configured entities on the primary: will what was diverted be taken back?"""

from collections.abc import Iterator

from sbpair.core.audit.findings import Check, Found, Severity, View
from sbpair.core.drift import PARTITIONS
from sbpair.core.entities import EntityStatus, Tier, TopicFacts
from sbpair.core.snapshot import QueueSeen

BACKLOG_MESSAGE_KILOBYTES = 256
"""The largest message a backlog queue of tier Basic or Standard takes, and so the largest that comes home."""
_SENDABLE = (EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED)


def _entity(view: View, path: str) -> QueueSeen | TopicFacts | None:
    return view.primary.queue(path) or view.primary.topic(path)


def _missing(view: View) -> Iterator[Found]:
    for path in view.pair.entities:
        if _entity(view, path) is None:
            yield Found(path, f"No queue or topic {path!r} on {view.primary.host}.")


def _too_small(view: View) -> Iterator[Found]:
    for path in view.pair.entities:
        entity = _entity(view, path)
        if entity is None:
            continue
        limit = _message_limit(entity)
        if limit is not None and limit < BACKLOG_MESSAGE_KILOBYTES:
            yield Found(
                path, f"It takes messages up to {limit} KB; a backlog queue may hold {BACKLOG_MESSAGE_KILOBYTES} KB."
            )
        if _free_bytes(entity) < BACKLOG_MESSAGE_KILOBYTES * 1024:
            yield Found(path, f"It has no room left for a message of {BACKLOG_MESSAGE_KILOBYTES} KB.")
        yield from _larger_than_backlog(view, path, limit)


def _larger_than_backlog(view: View, path: str, limit: int | None) -> Iterator[Found]:
    """A Premium entity may take messages that the secondary's backlog queues do not."""
    if limit is not None and limit > BACKLOG_MESSAGE_KILOBYTES and view.secondary.tier() is not Tier.PREMIUM:
        yield Found(
            path,
            f"It takes messages up to {limit} KB, the backlog queues only {BACKLOG_MESSAGE_KILOBYTES} KB: larger ones "
            "cannot be diverted.",
            Severity.WARNING,
        )


def _message_limit(entity: QueueSeen | TopicFacts) -> int | None:
    if isinstance(entity, TopicFacts):
        return entity.max_message_size_in_kilobytes
    return entity.facts.settings.max_message_size_in_kilobytes


def _free_bytes(entity: QueueSeen | TopicFacts) -> int:
    if isinstance(entity, TopicFacts):
        megabytes, partitioned, used = entity.max_size_in_megabytes, entity.enable_partitioning, entity.size_in_bytes
    else:
        settings = entity.facts.settings
        megabytes, partitioned, used = (
            settings.max_size_in_megabytes, settings.enable_partitioning, entity.facts.size_in_bytes
        )  # fmt: skip
    return megabytes * (PARTITIONS if partitioned else 1) * 1024 * 1024 - used


def _disabled(view: View) -> Iterator[Found]:
    for path in view.pair.entities:
        entity = _entity(view, path)
        if entity is None:
            continue
        status = entity.status if isinstance(entity, TopicFacts) else entity.facts.settings.status
        if status not in _SENDABLE:
            yield Found(path, f"Its status is {status}: it refuses messages, also those coming home.")


CHECKS = (
    Check(
        "SBP018",
        "Configured entity missing on the primary",
        Severity.ERROR,
        "An entity of the configuration does not exist on the primary. Messages diverted for it would be "
        "dead-lettered on "
        "their way home.",
        "sbpair config check\nCorrect `entities`, or create {subject} on the primary.",
        _missing,
    ),
    Check(
        "SBP019",
        "Entity cannot take a backlog message back",
        Severity.ERROR,
        "A message may have been diverted at up to 256 KB. An entity with a smaller limit or without room refuses it "
        "on "
        "its way home; one with a larger limit takes messages that cannot be diverted to a secondary of a lower tier.",
        "az servicebus queue show --name {subject} --namespace-name ... --resource-group ...\n"
        "Raise the entity's limit, make room, or give the secondary the primary's tier.",
        _too_small,
    ),
    Check(
        "SBP020",
        "Entity on the primary not active",
        Severity.ERROR,
        "An entity that is disabled for sending refuses new messages and those coming home.",
        "az servicebus queue update --name {subject} --status Active --namespace-name ... --resource-group ...",
        _disabled,
    ),
)
