"""Moving, copying, resubmitting, editing and purging as calls: a dry run and exactly its plan, what is refused, what a
stop leaves, and the synchronous door."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

import sbpair
from sbpair.connect import open_ends
from sbpair.core.errors import EntityNotFoundError, InterruptedWorkError, SbpairError, UsageError
from sbpair.core.events import Event, Forwarded, Polled
from sbpair.core.message import Disposition
from sbpair.core.outcome import Exit
from sbpair.core.rewrite import compose
from sbpair.core.transfer.filters import MessageFilter, Where
from sbpair.operations import (
    BrowseRequest,
    CopyRequest,
    EditRequest,
    Ends,
    MoveRequest,
    PurgeRequest,
    ResubmitRequest,
    Selection,
    browse_messages,
    copy,
    edit,
    find_message,
    list_dead_letters,
    move,
    purge,
    resubmit,
)
from sbpair.operations.ledgers import ReportRequest, report
from tests.fakes import FakeClock, FakeNamespace, RecordingObserver
from tests.operations.conftest import World


@pytest.fixture
async def ends(world: World) -> AsyncIterator[Ends]:
    """One namespace twice."""
    async with open_ends(world.pair.primary) as opened:
        yield opened


@pytest.fixture
async def across(world: World) -> AsyncIterator[Ends]:
    async with open_ends(world.pair.primary, world.pair.secondary) as opened:
        yield opened


async def sent(ends: Ends, path: str, count: int, first: int = 0) -> None:
    sender = ends.source.sender(path)
    payloads = [compose(body=f"{n}", message_id=f"m{n}") for n in range(first, first + count)]
    await sender.send(payloads, timeout_seconds=30)
    await sender.close()


async def dead_lettered(ends: Ends, path: str, reasons: list[str]) -> None:
    await sent(ends, path, len(reasons))
    receiver = ends.source.receiver(path)
    remaining = list(reasons)
    while remaining:
        for received in await receiver.receive(len(remaining), wait_seconds=5):
            await receiver.settle(received, Disposition.DEAD_LETTER, reason=remaining.pop(0), description="by a test")
    await receiver.close()


async def test_a_plan_moves_what_it_has_seen_and_nothing_that_came_since(world: World, ends: Ends) -> None:
    await sent(ends, "orders", 3)
    request = MoveRequest("orders", "invoices")
    planned = await move(ends, replace(request, dry_run=True))
    assert (planned.report.forwarded, planned.exit, planned.guarantee) == (3, Exit.FINDINGS, "exactly-once")
    assert planned.closing() == "3 messages of orders would be moved to invoices on contoso. Nothing was changed."
    assert (world.waiting("orders"), world.waiting("invoices")) == (3, 0)
    await sent(ends, "orders", 2, first=3)
    done = await move(ends, replace(request, plan=planned.plan))
    assert (done.report.forwarded, done.report.in_transactions, done.exit) == (3, 3, Exit.OK)
    assert ("moved", "invoices on contoso", 3) in [(row.what, row.where, row.messages) for row in done.rows]
    assert (world.waiting("orders"), world.waiting("invoices")) == (2, 3)


async def test_without_a_plan_it_plans_and_moves_in_one_call(world: World, across: Ends, tmp_path: Path) -> None:
    world.emulator.namespace("fabrikam").create_queue("orders")
    await sent(across, "orders", 3)
    ledger = tmp_path / "moved.jsonl"
    done = await move(across, MoveRequest("orders", "orders", ledger=ledger))
    assert (done.report.forwarded, done.guarantee, done.to_namespace) == (3, "at-least-once", "fabrikam")
    assert done.at_least_once_because == "transactions cannot span namespaces"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [line["destination"] for line in lines if line["outcome"] == "forwarded"] == ["orders"] * 3
    assert (world.waiting("orders"), world.waiting("orders", "fabrikam")) == (0, 3)
    again = await move(across, MoveRequest("orders", "orders", ledger=ledger))
    assert (again.report.forwarded, again.report.dry_run, again.exit) == (0, False, Exit.OK)


async def test_messages_that_are_not_selected_stay(world: World, ends: Ends) -> None:
    await sent(ends, "orders", 4)
    selection = Selection(MessageFilter(where=Where("sys.MessageId IN ('m1', 'm2')")))
    done = await move(ends, MoveRequest("orders", "invoices", selection=selection))
    assert (done.report.forwarded, done.report.filtered_out, world.waiting("orders")) == (2, 2, 2)
    limited = await move(ends, MoveRequest("orders", "invoices", max_messages=1))
    assert (limited.report.forwarded, world.waiting("orders"), world.waiting("invoices")) == (1, 1, 3)


async def test_a_stopped_move_returns_what_was_moved_until_then(world: World, across: Ends) -> None:
    world.emulator.namespace("fabrikam").create_queue("orders")
    await sent(across, "orders", 40)
    stop = asyncio.Event()

    class StopsAfterTheFirst:
        def notify(self, event: Event) -> None:
            if isinstance(event, Forwarded):
                stop.set()

    request = MoveRequest("orders", "orders", rate_per_second=5.0, concurrency=1)
    done = await move(across, request, observer=StopsAfterTheFirst(), stop=stop)
    assert done.report.ended_by == "stop"
    assert 0 < done.report.forwarded < 40
    assert done.report.forwarded + world.waiting("orders") == 40
    with pytest.raises(InterruptedWorkError, match="Nothing was moved"):
        await move(across, request, stop=stop)
    assert done.report.forwarded == world.waiting("orders", "fabrikam")


async def test_what_cannot_be_sent_to_is_refused_before_anything_moves(world: World, ends: Ends) -> None:
    await sent(ends, "orders", 1)
    with pytest.raises(UsageError, match="FROM and TO are both Orders on contoso"):
        await move(ends, MoveRequest("orders", "Orders"))
    with pytest.raises(EntityNotFoundError, match="Nothing was moved"):
        await move(ends, MoveRequest("orders", "news/Subscriptions/audit"))
    with pytest.raises(UsageError, match="is no queue or topic"):
        await copy(ends, CopyRequest("orders", "news/Subscriptions/audit"))
    with pytest.raises(EntityNotFoundError, match="Nothing was moved"):
        await move(ends, MoveRequest("orders", "absent"))
    with pytest.raises(UsageError, match="not both"):
        await copy(ends, CopyRequest("orders", "invoices", dead_letter=True, with_dead_letter=True))
    assert world.waiting("orders") == 1


async def test_a_copy_leaves_everything_where_it_is(world: World, ends: Ends) -> None:
    await sent(ends, "orders", 3)
    done = await copy(ends, CopyRequest("orders", "invoices"))
    assert (done.report.forwarded, done.guarantee, done.act.verb) == (3, None, "copied")
    assert (world.waiting("orders"), world.waiting("invoices")) == (3, 3)


async def test_dead_letters_are_counted_browsed_and_sent_again(world: World, ends: Ends) -> None:
    await dead_lettered(ends, "orders", ["Broken", "TooOld", "Broken"])
    listed = await list_dead_letters(ends, BrowseRequest("orders"))
    assert [(found.reason, found.messages, found.description) for found in listed.reasons] == [
        ("Broken", 2, "by a test"),
        ("TooOld", 1, "by a test"),
    ]
    broken = Selection(reasons=("broken",))
    browsed = await browse_messages(ends, BrowseRequest("orders", dead_letter=True, selection=broken))
    assert [message.message_id for message in browsed.messages] == ["m0", "m2"]
    done = await resubmit(ends, ResubmitRequest("orders", selection=broken))
    assert (done.entity, done.to, done.report.forwarded) == ("orders/$deadletterqueue", "orders", 2)
    assert done.closing().startswith("2 dead letters of orders/$deadletterqueue were sent to orders on contoso")
    assert (world.waiting("orders"), world.waiting("orders", dead_letter=True)) == (2, 1)
    with pytest.raises(UsageError, match="nothing can be sent to it alone"):
        await resubmit(ends, ResubmitRequest("news/Subscriptions/audit"))


async def test_a_purge_archives_what_it_deletes(world: World, ends: Ends, tmp_path: Path) -> None:
    await sent(ends, "orders", 3)
    request = PurgeRequest("orders", tmp_path / "purged")
    planned = await purge(ends, replace(request, dry_run=True))
    assert (planned.report.forwarded, world.waiting("orders"), (tmp_path / "purged").exists()) == (3, 3, False)
    done = await purge(ends, replace(request, plan=planned.plan, max_messages=None))
    assert done.report.archive is not None
    assert len(done.report.archive.read_text().splitlines()) == 3
    assert (world.waiting("orders"), done.to, done.exit) == (0, None, Exit.OK)
    await sent(ends, "orders", 2)
    deleted = await purge(ends, PurgeRequest("orders", None))
    assert (deleted.report.purged, world.waiting("orders")) == (2, 0)
    assert deleted.closing() == "2 messages of orders were deleted."


@pytest.mark.parametrize(
    "wanted", [Selection(), Selection(MessageFilter(where=Where("sys.MessageId = 'm150'")))], ids=["all", "few"]
)
async def test_what_is_deleted_or_left_is_received_many_at_a_time(world: World, ends: Ends, wanted: Selection) -> None:
    await sent(ends, "orders", 300)
    observer = RecordingObserver()
    done = await purge(ends, PurgeRequest("orders", None, selection=wanted), observer=observer)
    assert done.report.purged == (1 if wanted.is_set else 300)
    receives = [event.messages for event in observer.of(Polled) if event.messages]
    assert len(receives) < 30, "a receive takes a round trip"


async def test_an_archive_that_cannot_be_made_keeps_the_messages(world: World, ends: Ends, tmp_path: Path) -> None:
    await sent(ends, "orders", 1)
    (tmp_path / "file").write_text("")
    with pytest.raises(SbpairError, match=r"Cannot write .*file/purged.* Nothing was moved"):
        await purge(ends, PurgeRequest("orders", tmp_path / "file" / "purged"))
    assert world.waiting("orders") == 1


async def test_an_edited_message_takes_the_place_of_the_original(world: World, ends: Ends) -> None:
    await dead_lettered(ends, "orders", ["Broken"])
    (letter,) = (await browse_messages(ends, BrowseRequest("orders", dead_letter=True))).messages
    request = EditRequest("orders", letter.sequence_number, dead_letter=True)
    found = await find_message(ends, request)
    assert json.loads(found.text)["body"] == "0"
    text = found.text.replace('"body": "0"', '"body": "mended"')
    planned = await edit(ends, replace(request, text=text, dry_run=True))
    assert [line for line in planned.diff if line.startswith("+ ")] == ['+  "body": "mended"']
    assert (planned.moved.report.forwarded, world.waiting("orders")) == (1, 0)
    done = await edit(ends, replace(request, text=text, plan=planned.plan))
    assert (done.moved.report.forwarded, world.waiting("orders", dead_letter=True)) == (1, 0)
    (mended,) = (await browse_messages(ends, BrowseRequest("orders", with_body=True))).messages
    assert (mended.message_id, mended.body) == ("m0", "mended")


async def test_an_edit_that_changes_nothing_or_finds_nothing_is_refused(world: World, ends: Ends) -> None:
    await sent(ends, "orders", 1)
    (message,) = (await browse_messages(ends, BrowseRequest("orders"))).messages
    request = EditRequest("orders", message.sequence_number)
    found = await find_message(ends, request)
    with pytest.raises(UsageError, match="Nothing was changed in message"):
        await edit(ends, replace(request, text=found.text, found=found))
    with pytest.raises(UsageError, match="No message with the number 999 lies in orders on contoso"):
        await find_message(ends, replace(request, number=999))
    assert world.waiting("orders") == 1


async def test_what_cannot_be_read_cannot_be_edited(ends: Ends) -> None:
    namespace = FakeNamespace("contoso", FakeClock())
    namespace.add_queue("orders")
    namespace.put("orders", compose(body="x", message_id="m0"))
    ((number, stored),) = namespace.queue("orders").messages.items()
    stored.payload = b"\x00Ss\xc0\x03\x01\xff\xff\x00Su\xa0\x01x"  # properties that nobody can read
    with pytest.raises(SbpairError, match=r"cannot be parsed.* Nothing was sent or changed") as refused:
        await find_message(replace(ends, source=namespace.messaging()), EditRequest("orders", number))
    assert (type(refused.value), refused.value.hint) == (SbpairError, "`sbpair move` sends it as it is.")


def test_code_that_is_not_asynchronous_moves_by_the_same_call(world: World) -> None:
    async def fill() -> None:
        async with open_ends(world.pair.primary) as ends:
            await sent(ends, "orders", 2)

    asyncio.run(fill())
    done = sbpair.run(move, world.pair.primary, MoveRequest("orders", "invoices"))
    assert (done.report.forwarded, world.waiting("invoices")) == (2, 2)


async def test_what_a_folder_of_ledgers_has_as_sent_is_not_sent_again_by_any_verb(
    world: World, across: Ends, tmp_path: Path
) -> None:
    world.emulator.namespace("fabrikam").create_queue("orders")
    await sent(across, "orders", 3)
    copied = tmp_path / "copied.jsonl"
    done = await copy(across, CopyRequest("orders", "orders", ledger=copied, max_messages=2))
    assert done.report.forwarded == 2
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "orders.csv").touch()
    for dry_run in (True, False):
        with pytest.raises(UsageError, match=r"job is a folder of other files, without a ledger\. Nothing") as refused:
            await move(across, MoveRequest("orders", "orders", ledger=folder, dry_run=dry_run))
        assert refused.value.hint == f"Name a file: --ledger {folder}/commands.jsonl"
        assert refused.value.message.count("Nothing was") == 1, "what became of the work is said once"
        with pytest.raises(SbpairError, match=r"^Cannot write .*: File name too long\. Nothing was sent\.$"):
            await move(across, MoveRequest("orders", "orders", ledger=tmp_path / ("x" * 300), dry_run=dry_run))
    copied.rename(folder / "r-00000-abcdef.jsonl")  # as a task of a Spark job names it
    moved = await move(across, MoveRequest("orders", "orders", ledger=folder))
    assert (moved.report.forwarded, moved.report.already_forwarded) == (1, 2)
    assert (world.waiting("orders"), world.waiting("orders", "fabrikam")) == (0, 3)
    assert sorted(path.name for path in folder.glob("*.jsonl")) == ["commands.jsonl", "r-00000-abcdef.jsonl"]
    again = await report(ReportRequest((folder,), verify=True))
    assert (again.messages, again.sent, again.possible_doubles, again.exit) == (3, 3, (), Exit.OK)
    assert [run.command for run in again.runs] == ["copy", "move"]
