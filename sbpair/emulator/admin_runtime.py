"""What an entity is like right now, gathered once for both administration APIs."""

from dataclasses import dataclass

from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Subscription, Topic
from sbpair.emulator.entities import CorrelationFilter, Counts

NO_MESSAGES = Counts(0, 0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Runtime:
    """Dates (UTC epoch seconds) and counts of a queue, topic or subscription.

    The last three describe a topic's subscriptions and their filters and are 0 elsewhere.
    """

    created_at: float
    updated_at: float
    accessed_at: float
    counts: Counts
    subscription_count: int = 0
    sql_filter_count: int = 0
    correlation_filter_count: int = 0


def queue_runtime(queue: Queue, zero_counts: bool = False) -> Runtime:
    """A queue's facts; with `zero_counts` every count is 0, as a throttled service may report it."""
    counts = NO_MESSAGES if zero_counts else queue.counts()
    return Runtime(queue.created_at, queue.updated_at, queue.accessed_at, counts)


def subscription_runtime(subscription: Subscription, zero_counts: bool = False) -> Runtime:
    """A subscription's facts."""
    counts = NO_MESSAGES if zero_counts else subscription.counts()
    return Runtime(subscription.created_at, subscription.updated_at, subscription.accessed_at, counts)


def topic_runtime(topic: Topic, zero_counts: bool = False) -> Runtime:
    """A topic's facts. Its own messages are only the scheduled ones; the size is that of all its subscriptions."""
    filters = [rule.description.filter for one in topic.subscriptions.values() for rule in one.rules.values()]
    correlation_filters = sum(isinstance(one, CorrelationFilter) for one in filters)
    return Runtime(
        topic.created_at,
        topic.updated_at,
        topic.accessed_at,
        NO_MESSAGES if zero_counts else topic.counts(),
        subscription_count=len(topic.subscriptions),
        sql_filter_count=len(filters) - correlation_filters,
        correlation_filter_count=correlation_filters,
    )
