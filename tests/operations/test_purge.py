"""A purge that keeps nothing: the service deletes what is active, and the rest goes one after another as before."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sbpair.connect import open_ends
from sbpair.core.message import Disposition
from sbpair.core.rewrite import compose
from sbpair.core.transfer.filters import MessageFilter
from sbpair.core.transfer.resend import Selection
from sbpair.operations.in_place import PurgeRequest, purge
from sbpair.ports import Ends
from tests.operations.conftest import World

SECONDS = 30.0


@pytest.fixture
async def ends(world: World) -> AsyncIterator[Ends]:
    async with open_ends(world.pair.primary) as opened:
        yield opened


async def fill(ends: Ends, entity: str, count: int) -> None:
    sender = ends.source.sender(entity)
    for first in range(0, count, 500):
        some = range(first, min(first + 500, count))
        await sender.send([compose(body="x", message_id=f"m{n}") for n in some], timeout_seconds=SECONDS)
    await sender.close()


async def test_what_is_active_is_deleted_in_batches(world: World, ends: Ends) -> None:
    await fill(ends, "orders", 1_200)
    planned = await purge(ends, PurgeRequest("orders", None, dry_run=True))
    await fill(ends, "orders", 3)
    done = await purge(ends, PurgeRequest("orders", None, plan=planned.plan))
    assert (planned.report.purged, done.report.purged) == (1_200, 1_200)
    assert world.waiting("orders") == 3, "what came after the dry run stays"
    assert int(done.exit) == 0


async def test_what_is_gone_and_no_answer_has_counted_is_named(world: World, ends: Ends) -> None:
    await fill(ends, "orders", 10)
    planned = await purge(ends, PurgeRequest("orders", None, dry_run=True))
    receiver = ends.source.receiver("orders")
    for one in await receiver.receive(3, wait_seconds=5):
        await receiver.settle(one, Disposition.COMPLETE)
    await receiver.close()
    done = await purge(ends, PurgeRequest("orders", None, plan=planned.plan))
    (said,) = done.remarks
    assert (done.report.purged, world.waiting("orders"), said.partition(":")[0]) == (7, 0, "3 more messages are gone")


async def test_deferred_and_scheduled_ones_go_as_before(world: World, ends: Ends) -> None:
    await fill(ends, "orders", 10)
    receiver = ends.source.receiver("orders")
    for one in await receiver.receive(2, wait_seconds=5):
        await receiver.settle(one, Disposition.DEFER)
    await receiver.close()
    sender = ends.source.sender("orders")
    at = datetime.now(UTC) + timedelta(hours=1)
    later = compose(body="later", message_id="later", scheduled_at=at.timestamp())
    await sender.schedule([later], timeout_seconds=SECONDS)
    await sender.close()
    done = await purge(ends, PurgeRequest("orders", None))
    assert done.report.purged == 11
    again = await purge(ends, PurgeRequest("orders", None, dry_run=True))
    assert again.report.purged == 0


async def test_a_filter_an_archive_or_a_limit_keeps_what_they_keep(world: World, ends: Ends, tmp_path: Path) -> None:
    await fill(ends, "orders", 6)
    limited = await purge(ends, PurgeRequest("orders", None, max_messages=2))
    assert (limited.report.purged, world.waiting("orders")) == (2, 4)
    nobody = Selection(MessageFilter(session_id="nobody"))
    assert (await purge(ends, PurgeRequest("orders", None, selection=nobody))).report.purged == 0
    archived = await purge(ends, PurgeRequest("orders", tmp_path))
    assert archived.report.forwarded == 4
    assert archived.report.archive is not None
    assert len(archived.report.archive.read_text().splitlines()) == 4
