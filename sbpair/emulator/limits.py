"""What each tier allows: sizes, durations, refused features and numbers of entities, as the service documents them."""

from dataclasses import dataclass

from sbpair.service import ENTITY_SIZES_MEGABYTES, MAX_MESSAGE_KILOBYTES, Tier

PREMIUM_PARTITIONS = (1, 2, 4)
"""What a Premium namespace may be made with; 1: not partitioned."""
MAX_PARTITIONED_ENTITIES = 100
MAX_SUBSCRIPTION_NAME_CHARACTERS = 50
MAX_ID_CHARACTERS = 128
"""Message id, session id and partition key."""
MAX_USER_METADATA_CHARACTERS = 1024
MAX_SQL_CHARACTERS = 1024
MAX_FILTER_STEPS_PER_MESSAGE = 5_000_000
"""Our own bound on what the rules of all subscriptions may look at of one message: some 20 ms."""
MAX_FILTER_STEPS_PER_RULE = 1_250_000
"""The same for a single rule, which is gone through at a stretch: some 5 ms."""
MAX_RULES_PER_SUBSCRIPTION = 2000
MAX_SUBSCRIPTIONS_PER_TOPIC = 2000
MAX_AUTHORIZATION_RULES = 12
MAX_HEADER_BYTES = 64 * 1024
MAX_PEEK_MESSAGES = 250
MAX_BATCH_DELETE_MESSAGES = 4000
MAX_FORWARDING_HOPS = 4
MAX_DELIVERY_COUNT = 2**31 - 1
MAX_TIME_SPAN_SECONDS = 2**63 / 10_000_000
"""`TimeSpan.MaxValue`; whatever is longer is no time."""
MIN_LOCK_SECONDS, MAX_LOCK_SECONDS = 5.0, 300.0
MIN_TTL_SECONDS = 1.0
MIN_AUTO_DELETE_SECONDS = 300.0
MIN_DUPLICATE_WINDOW_SECONDS, MAX_DUPLICATE_WINDOW_SECONDS = 20.0, 7 * 86400.0
NEXT_SESSION_TIMEOUT_SECONDS = 60.0
MAX_REQUEST_ITEMS = 65_536
"""Items in a management request: some thousand messages to schedule, or as many lock tokens."""
MAX_BODY_ITEMS = 2000
"""Tags, attributes and lines, or entries, in the body of an administration request: some 5 ms to read or to write."""
MAX_REQUEST_NUMBERS = 2000
"""Messages that a management request cancels or receives by their numbers, all or none: our own bound."""
TRANSACTION_SECONDS = 120.0
MAX_MESSAGES_PER_TRANSACTION = 100
MAX_PARTS_PER_TRANSACTION = 2000
"""Messages, settlements and cancellations, which a commit does all at once: our own bound."""


@dataclass(frozen=True, slots=True)
class TierLimits:
    """Numbers of one tier.

    `max_message_bytes` is what an entity starts with; `max_message_kilobytes` is how far it may be raised, or None
    where the property cannot be set at all. Sizes of entities are in megabytes as the request gives them, before the
    factor 16 of partitioned entities.
    """

    max_message_bytes: int
    max_batch_bytes: int
    max_message_kilobytes: int | None
    max_entities: int
    entity_sizes_megabytes: frozenset[int]
    default_ttl_seconds: float | None
    refused_features: frozenset[str]
    topics: bool
    transactions: bool


_BASIC_REFUSES = frozenset(
    {
        "requires_duplicate_detection",
        "duplicate_detection_history_time_window_seconds",
        "auto_delete_on_idle_seconds",
        "requires_session",
        "default_message_time_to_live_seconds",
        "enable_express",
        "forward_to",
        "forward_dead_lettered_messages_to",
    }
)

LIMITS = {
    Tier.BASIC: TierLimits(
        max_message_bytes=MAX_MESSAGE_KILOBYTES[Tier.BASIC] * 1024,
        max_batch_bytes=MAX_MESSAGE_KILOBYTES[Tier.BASIC] * 1024,
        max_message_kilobytes=None,
        max_entities=10_000,
        entity_sizes_megabytes=frozenset(ENTITY_SIZES_MEGABYTES[Tier.BASIC]),
        default_ttl_seconds=14 * 86400.0,
        refused_features=_BASIC_REFUSES,
        topics=False,
        transactions=False,
    ),
    Tier.STANDARD: TierLimits(
        max_message_bytes=MAX_MESSAGE_KILOBYTES[Tier.STANDARD] * 1024,
        max_batch_bytes=MAX_MESSAGE_KILOBYTES[Tier.STANDARD] * 1024,
        max_message_kilobytes=None,
        max_entities=10_000,
        entity_sizes_megabytes=frozenset(ENTITY_SIZES_MEGABYTES[Tier.STANDARD]),
        default_ttl_seconds=None,
        refused_features=frozenset(),
        topics=True,
        transactions=True,
    ),
    Tier.PREMIUM: TierLimits(
        max_message_bytes=1024 * 1024,
        max_batch_bytes=1024 * 1024,
        max_message_kilobytes=MAX_MESSAGE_KILOBYTES[Tier.PREMIUM],
        max_entities=1_000,
        entity_sizes_megabytes=frozenset(ENTITY_SIZES_MEGABYTES[Tier.PREMIUM]),
        default_ttl_seconds=None,
        refused_features=frozenset({"enable_express", "enable_partitioning"}),
        topics=True,
        transactions=True,
    ),
}
