"""Which states an entity can have."""

import pytest

from sbpair.core.entities import EntityKind, EntityStatus
from sbpair.core.inspection.entity import has_status


@pytest.mark.parametrize(
    ("kind", "cannot"),
    [
        (EntityKind.QUEUE, set()),
        (EntityKind.TOPIC, {EntityStatus.RECEIVE_DISABLED}),
        (EntityKind.SUBSCRIPTION, {EntityStatus.SEND_DISABLED}),
    ],
)
def test_a_topic_takes_messages_and_a_subscription_hands_them_out(kind: EntityKind, cannot: set[EntityStatus]) -> None:
    """As in "Suspend and reactivate messaging entities"."""
    assert {status for status in EntityStatus if not has_status(kind, status)} == cannot
