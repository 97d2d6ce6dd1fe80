"""Every kind of entity, made, read, changed and deleted with all its settings, over the official SDK."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sbpair.azure.administration import DataPlaneTopology
from sbpair.core.entities import EntityFacts, EntityKind, EntitySettings, EntityStatus, RuleFacts
from sbpair.core.errors import EntityExistsError, EntityNotFoundError
from sbpair.emulator.server import Emulator
from tests.contract.conftest import access_to

QUEUE = EntitySettings(
    lock_duration_seconds=90.0,
    max_size_in_megabytes=2048,
    requires_duplicate_detection=True,
    duplicate_detection_history_time_window_seconds=120.0,
    requires_session=True,
    default_message_time_to_live_seconds=3600.0,
    auto_delete_on_idle_seconds=86400.0,
    dead_lettering_on_message_expiration=True,
    max_delivery_count=7,
    enable_batched_operations=False,
    status=EntityStatus.SEND_DISABLED,
    forward_dead_lettered_messages_to="faults",
    user_metadata="of a test",
)
TOPIC = EntitySettings(
    max_size_in_megabytes=3072, enable_partitioning=True, default_message_time_to_live_seconds=60.0, user_metadata="t"
)
SUBSCRIPTION = EntitySettings(
    lock_duration_seconds=30.0,
    max_delivery_count=3,
    forward_to="faults",
    dead_lettering_on_filter_evaluation_exceptions=False,
)
RULES = (
    RuleFacts("big", "amount > @least", parameters=(("@least", 5),), action="SET seen = 1"),
    RuleFacts("exact", None, correlation=(("label", "x"),), properties=(("country", "DE"), ("n", 3))),
)


def as_created(found: EntityFacts) -> EntityFacts:
    """Without what the tier says and nobody asked for."""
    return replace(found, accessed_at=None, settings=replace(found.settings, max_message_size_in_kilobytes=None))


@pytest.fixture
async def topology(emulator: Emulator) -> AsyncIterator[DataPlaneTopology]:
    made = DataPlaneTopology(access_to(emulator))
    yield made
    await made.close()


async def test_what_was_made_is_read_back(emulator: Emulator, topology: DataPlaneTopology) -> None:
    await topology.create(EntityKind.QUEUE, "faults", EntitySettings())
    await topology.create(EntityKind.QUEUE, "a/strict", QUEUE)
    await topology.create(EntityKind.TOPIC, "news", TOPIC)
    await topology.create(EntityKind.SUBSCRIPTION, "news/Subscriptions/all", SUBSCRIPTION)
    for rule in RULES:
        await topology.create_rule("news/Subscriptions/all", rule)
    await topology.delete_rule("news/Subscriptions/all", "$Default")
    expected = {
        "a/strict": EntityFacts(EntityKind.QUEUE, "a/strict", QUEUE),
        "faults": EntityFacts(EntityKind.QUEUE, "faults", EntitySettings()),
        "news": EntityFacts(EntityKind.TOPIC, "news", TOPIC),
        "news/Subscriptions/all": EntityFacts(
            EntityKind.SUBSCRIPTION, "news/Subscriptions/all", SUBSCRIPTION, rules=RULES
        ),
    }
    found = {one.path: one for one in await topology.entities(rules=True) if one.path in expected}
    for path, one in expected.items():
        assert found[path] == await topology.entity(path)
        assert as_created(found[path]) == one
    with pytest.raises(EntityExistsError):
        await topology.create(EntityKind.TOPIC, "news", TOPIC)


@pytest.mark.parametrize(
    ("kind", "path"),
    [(EntityKind.QUEUE, "q"), (EntityKind.TOPIC, "t"), (EntityKind.SUBSCRIPTION, "of/Subscriptions/s")],
)
async def test_a_change_leaves_the_other_settings_and_what_is_deleted_is_gone(
    emulator: Emulator, topology: DataPlaneTopology, kind: EntityKind, path: str
) -> None:
    if kind is EntityKind.SUBSCRIPTION:
        await topology.create(EntityKind.TOPIC, "of", EntitySettings())
    settings = EntitySettings(default_message_time_to_live_seconds=600.0, user_metadata="kept")
    await topology.create(kind, path, settings)
    await topology.update(path, {"status": EntityStatus.DISABLED})
    changed = await topology.entity(path)
    assert changed is not None
    assert (changed.settings.status, changed.settings.default_message_time_to_live_seconds) == ("Disabled", 600.0)
    assert changed.settings.user_metadata == "kept"
    await topology.delete(path)
    assert await topology.entity(path) is None
    with pytest.raises(EntityNotFoundError):
        await topology.update(path, {"status": EntityStatus.ACTIVE})
    with pytest.raises(EntityNotFoundError):
        await topology.delete(path)
