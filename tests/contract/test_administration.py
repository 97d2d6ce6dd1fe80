"""What every NamespaceAdmin does: the fake, the data plane and the resource manager."""

from dataclasses import replace

import pytest

from sbpair.azure.management import list_namespaces
from sbpair.core.entities import Counts, QueueSettings, Tier
from sbpair.core.errors import EntityExistsError, EntityNotFoundError
from sbpair.core.inspection.plan import Expected
from sbpair.emulator.server import Emulator
from sbpair.ports import NamespaceAdmin
from tests.azure.support import FixedCredential
from tests.contract.conftest import arm_access_to

BACKLOG = QueueSettings(
    lock_duration_seconds=60,
    max_size_in_megabytes=5120,
    max_delivery_count=2147483647,
    dead_lettering_on_message_expiration=True,
)
PATH = "contoso/x-servicebus-transfer/0"


def comparable(settings: QueueSettings) -> QueueSettings:
    """Without the one property whose default each tier has for itself."""
    return replace(settings, max_message_size_in_kilobytes=None)


async def test_the_namespace_says_who_it_is(admin: NamespaceAdmin) -> None:
    facts = await admin.namespace()
    assert facts.name == "primary"
    assert facts.tier is Tier.STANDARD
    assert facts.service_time is not None
    assert facts.control_plane == admin.control_plane


async def test_a_backlog_queue_reads_back_as_it_was_asked_for(admin: NamespaceAdmin) -> None:
    made = await admin.create_queue(PATH, BACKLOG)
    found = await admin.get_queue(PATH)
    assert found is not None
    assert made.path == found.path == PATH
    assert comparable(made.settings) == comparable(found.settings) == BACKLOG
    assert found.counts == Counts()
    assert found.created_at is not None
    assert found.created_at > 1_700_000_000


async def test_every_setting_survives(admin: NamespaceAdmin) -> None:
    await admin.create_queue("target", QueueSettings())
    settings = QueueSettings(
        lock_duration_seconds=45.0,
        max_size_in_megabytes=2048,
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window_seconds=90.0,
        requires_session=True,
        default_message_time_to_live_seconds=86400.5,
        auto_delete_on_idle_seconds=3600.0,
        dead_lettering_on_message_expiration=True,
        max_delivery_count=7,
        enable_batched_operations=False,
        forward_dead_lettered_messages_to="target",
        user_metadata="mine & <yours>",
    )
    await admin.create_queue("all", settings)
    found = await admin.get_queue("ALL")
    assert found is not None
    assert comparable(found.settings) == settings


async def test_a_partitioned_queue_has_the_size_it_was_given(admin: NamespaceAdmin) -> None:
    await admin.create_queue("parts", replace(BACKLOG, enable_partitioning=True))
    found = await admin.get_queue("parts")
    assert found is not None
    assert found.settings.max_size_in_megabytes == 5120
    assert found.settings.enable_partitioning


async def test_never_can_be_changed_and_changed_back(admin: NamespaceAdmin) -> None:
    await admin.create_queue(PATH, BACKLOG)
    finite = replace(BACKLOG, default_message_time_to_live_seconds=60.0, auto_delete_on_idle_seconds=600.0)
    assert comparable((await admin.update_queue(PATH, finite)).settings) == finite
    assert comparable((await admin.update_queue(PATH, BACKLOG)).settings) == BACKLOG


async def test_lists_are_complete_and_filtered_without_regard_to_case(admin: NamespaceAdmin) -> None:
    for index in range(130):
        await admin.create_queue(f"contoso/x-servicebus-transfer/{index}", QueueSettings())
    await admin.create_queue("orders", QueueSettings())
    listed = [queue.path async for queue in admin.list_queues("CONTOSO/")]
    assert sorted(listed) == sorted(f"contoso/x-servicebus-transfer/{index}" for index in range(130))
    assert len([queue async for queue in admin.list_queues()]) == 131


async def test_absence_and_presence_have_their_errors(admin: NamespaceAdmin) -> None:
    assert await admin.get_queue(PATH) is None
    assert await admin.get_topic(PATH) is None
    assert [topic async for topic in admin.list_topics()] == []
    with pytest.raises(EntityNotFoundError):
        await admin.delete_queue(PATH)
    with pytest.raises(EntityNotFoundError):
        await admin.update_queue(PATH, BACKLOG)
    await admin.create_queue(PATH, BACKLOG)
    with pytest.raises(EntityExistsError):
        await admin.create_queue(PATH, BACKLOG)
    await admin.delete_queue(PATH)
    assert await admin.get_queue(PATH) is None


async def test_a_change_is_told_from_no_change_however_fast_it_is_taken_back(admin: NamespaceAdmin) -> None:
    await admin.create_queue(PATH, BACKLOG)
    before = await admin.get_queue(PATH)
    assert before is not None
    expected = Expected.of(before)
    again = await admin.get_queue(PATH)
    assert again is not None
    assert expected.matches(again)
    changed = await admin.update_queue(PATH, replace(before.settings, max_delivery_count=7))
    assert not expected.matches(changed)
    restored = await admin.update_queue(PATH, before.settings)
    assert restored.settings == before.settings
    assert not expected.matches(restored)
    (listed,) = [queue async for queue in admin.list_queues()]
    assert Expected.of(listed) == Expected.of(restored)


async def test_the_resource_manager_lists_the_namespaces_of_a_subscription() -> None:
    """The host in its answer was written by the server, which is noted: it is no choice of the user's."""
    async with Emulator(["contoso-weu", "contoso-neu"], seed=1) as emulator:
        access = arm_access_to(emulator, "contoso-weu")
        manager = replace(access, label="", host="", resource_group=None)
        found = await list_namespaces(manager, credential=FixedCredential())
        assert {one.label for one in found} == {"contoso-weu", "contoso-neu"}
        assert {one.host for one in found} == {emulator.endpoint(name) for name in ("contoso-weu", "contoso-neu")}
        assert [(one.host_from_list, bool(one.resource_group)) for one in found] == [(True, True)] * 2
        narrowed = replace(manager, resource_group="rg-weu")
        of_group = await list_namespaces(narrowed, credential=FixedCredential())
        assert {one.resource_group for one in of_group} == {"rg-weu"}
