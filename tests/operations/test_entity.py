"""Changes of single entities through the public calls, on an embedded namespace."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from sbpair.connect import open_ends
from sbpair.core.entities import EntityKind, EntitySettings, EntityStatus, RuleFacts
from sbpair.core.errors import EntityExistsError, EntityNotFoundError, InterruptedWorkError, SbpairError, UsageError
from sbpair.operations import (
    CreateEntityRequest,
    CreateRuleRequest,
    DeleteEntityRequest,
    DeleteRuleRequest,
    ListEntitiesRequest,
    SetStatusRequest,
    ShowEntityRequest,
    create_entity,
    create_rule,
    delete_entity,
    delete_rule,
    list_entities,
    set_status,
    show_entity,
)
from sbpair.ports import Ends, Topology
from tests.operations.conftest import World, backlog_queue
from tests.test_files import room_for


@pytest.fixture
async def ends(world: World) -> AsyncIterator[Ends]:
    async with open_ends(world.pair.secondary) as opened:
        yield opened


async def test_a_queue_from_its_creation_to_its_end(ends: Ends, tmp_path: Path) -> None:
    log = tmp_path / "operations.jsonl"
    wanted = CreateEntityRequest(
        path="parked", kind=EntityKind.QUEUE, settings=EntitySettings(lock_duration_seconds=30.0), dry_run=True, log=log
    )
    shown = await create_entity(ends, wanted)
    assert (shown.changed, shown.sentence.startswith("parked on fabrikam would be created")) == (True, True)
    assert not log.exists()
    done = await create_entity(ends, replace(wanted, dry_run=False))
    assert done.detail == "queue; lock duration 30s"
    with pytest.raises(EntityExistsError):
        await create_entity(ends, wanted)
    disabled = await set_status(ends, SetStatusRequest(path="parked", status=EntityStatus.DISABLED, log=log))
    assert disabled.detail == "Active -> Disabled"
    again = await set_status(ends, SetStatusRequest(path="parked", status=EntityStatus.DISABLED, log=log))
    assert not again.changed
    found = await show_entity(ends, ShowEntityRequest("parked"))
    assert (found.settings["lock_duration_seconds"], found.entity.status) == (30.0, "Disabled")
    await set_status(ends, SetStatusRequest(path="parked", status=EntityStatus.ACTIVE, log=log))
    await delete_entity(ends, DeleteEntityRequest(path="parked", log=log))
    with pytest.raises(EntityNotFoundError):
        await show_entity(ends, ShowEntityRequest("parked"))
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [line["action"] for line in lines] == ["create", "set-status", "set-status", "delete"]


async def test_a_change_whose_line_has_no_room_says_that_it_is_made(ends: Ends, tmp_path: Path) -> None:
    log = tmp_path / "operations.jsonl"
    log.write_text("{}\n")
    with room_for(log.stat().st_size), pytest.raises(SbpairError) as told:
        await create_entity(ends, CreateEntityRequest(path="news", kind=EntityKind.QUEUE, log=log))
    assert told.value.message.startswith(f"Cannot write the operations log {log}: File too large. news on ")
    assert told.value.message.endswith(" is created (queue; default settings).")
    assert log.read_text() == "{}\n"


async def test_rules_of_a_subscription(ends: Ends) -> None:
    path = "news/Subscriptions/audit"
    await create_entity(ends, CreateEntityRequest(path="news", kind=EntityKind.TOPIC))
    await create_entity(ends, CreateEntityRequest(path=path, kind=EntityKind.SUBSCRIPTION))
    made = await create_rule(ends, CreateRuleRequest(path=path, rule=RuleFacts("german", "country = 'DE'")))
    assert made.detail == "rule; country = 'DE'; in addition to $Default, which matches every message"
    await delete_rule(ends, DeleteRuleRequest(path=path, rule="$Default"))
    last = await delete_rule(ends, DeleteRuleRequest(path=path, rule="german", dry_run=True))
    assert last.detail == "rule; its last rule: it will get no messages"
    rules = (await show_entity(ends, ShowEntityRequest(path))).rules
    assert [rule.name for rule in rules] == ["german"]
    with pytest.raises(UsageError, match="cannot be SendDisabled"):
        await set_status(ends, SetStatusRequest(path=path, status=EntityStatus.SEND_DISABLED))


async def test_what_holds_messages_or_is_counted_on_is_not_deleted(world: World, ends: Ends) -> None:
    sender = ends.source.sender(backlog_queue(0))
    await sender.send([b"\x00Su\xa0\x01x"], timeout_seconds=30)
    await sender.close()
    with pytest.raises(UsageError, match="holds 1 active") as refused:
        await delete_entity(ends, DeleteEntityRequest(path=backlog_queue(0)))
    purge = f"sbpair purge fabrikam:{backlog_queue(0)} --archive DIR"
    assert refused.value.hint == f"Keep them first: {purge}; or delete them too with --with-messages."
    with pytest.raises(UsageError, match="pair 'embedded' counts on"):
        await delete_entity(ends, DeleteEntityRequest(path=backlog_queue(0), with_messages=True, pairs=(world.pair,)))
    holding = await list_entities(ends, ListEntitiesRequest(with_messages=True))
    assert [entity.path for entity in holding.entities] == [backlog_queue(0)]
    await delete_entity(ends, DeleteEntityRequest(path=backlog_queue(0), with_messages=True))
    await create_entity(ends, CreateEntityRequest(path="gone", kind=EntityKind.QUEUE))
    on_the_way = EntitySettings(forward_to="gone")
    await create_entity(ends, CreateEntityRequest(path="on-the-way", kind=EntityKind.QUEUE, settings=on_the_way))
    await set_status(ends, SetStatusRequest(path="gone", status=EntityStatus.DISABLED))
    sender = ends.source.sender("on-the-way")
    await sender.send([b"\x00Su\xa0\x01x"], timeout_seconds=30)
    await sender.close()
    with pytest.raises(UsageError, match="holds 1 transfer dead-letter") as refused:
        await delete_entity(ends, DeleteEntityRequest(path="on-the-way"))
    assert refused.value.hint == "Delete them too with --with-messages.", "no command takes them out"
    await create_entity(ends, CreateEntityRequest(path="News", kind=EntityKind.TOPIC))
    await create_entity(ends, CreateEntityRequest(path="News/Subscriptions/audit", kind=EntityKind.SUBSCRIPTION))
    sender = ends.source.sender("News")
    await sender.send([b"\x00Su\xa0\x01x"], timeout_seconds=30)
    await sender.close()
    with pytest.raises(UsageError, match="holds 1 active in News/Subscriptions/audit"):
        await delete_entity(ends, DeleteEntityRequest(path="News"))
    left = await list_entities(ends, ListEntitiesRequest("contoso/*"))
    assert [entity.path for entity in left.entities] == [backlog_queue(1), backlog_queue(2)]


class _StopsWhenDeleted:
    """A topology whose run is told to stop when the entity is gone and the answer is on its way."""

    def __init__(self, topology: object, stop: asyncio.Event) -> None:
        self._topology, self._stop = topology, stop

    def __getattr__(self, name: str) -> object:
        return getattr(self._topology, name)

    async def delete(self, path: str) -> None:
        await self._topology.delete(path)  # type: ignore[attr-defined]
        self._stop.set()
        for _ in range(10):
            await asyncio.sleep(0)


async def test_a_change_that_is_stopped_is_made_and_logged_or_not_begun(
    world: World, ends: Ends, tmp_path: Path
) -> None:
    stop, log = asyncio.Event(), tmp_path / "operations.jsonl"
    stopping = replace(ends, topology=cast(Topology, _StopsWhenDeleted(ends.topology, stop)))
    wanted = DeleteEntityRequest(path=backlog_queue(0), log=log)
    assert (await delete_entity(stopping, wanted, stop=stop)).changed
    assert json.loads(log.read_text())["result"] == "done"
    with pytest.raises(InterruptedWorkError):
        await delete_entity(ends, replace(wanted, path=backlog_queue(1)), stop=stop)
    assert world.waiting(backlog_queue(1), "fabrikam") == 0
    assert len(log.read_text().splitlines()) == 1
