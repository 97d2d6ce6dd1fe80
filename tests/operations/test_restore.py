"""A restore as a call: a dry run and exactly its plan, what the ledger has, what is refused, and the synchronous
door."""

import asyncio
import base64
import json
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sbpair
from sbpair.amqp import sections
from sbpair.amqp.types import AmqpError, Symbol
from sbpair.connect import open_ends
from sbpair.core.errors import InterruptedWorkError, SbpairError, UsageError
from sbpair.core.events import Event, Forwarded
from sbpair.core.outcome import Exit
from sbpair.core.redact import json_text
from sbpair.core.rewrite import compose, for_backlog
from sbpair.core.serialization import to_plain
from sbpair.core.transfer.filters import EVERYTHING
from sbpair.core.transfer.ledger import RUN_BEGAN, SENDING
from sbpair.core.transfer.peeked import Messages
from sbpair.core.transfer.restored import UNSENDABLE
from sbpair.operations import DrainRequest, PeekRequest, PurgeRequest, RestoreRequest, Sides, peek, purge, restore
from sbpair.operations import drain as drain_all
from sbpair.runtime.clock import LoopClock, Quiet
from sbpair.runtime.transfer.drain import DrainJob, ToArchive, TransferRequest, drain
from tests.operations.conftest import World, backlog_queue
from tests.shorter_way import Dice, message


async def archived(world: World, sides: Sides, folder: Path, entity: str, count: int) -> None:
    """Write messages of the backlog into a file, as a drain does with an archive."""
    await world.strand(sides, entity, count)
    request = TransferRequest((backlog_queue(0),), to=ToArchive(folder))
    job = DrainJob(
        request,
        secondary=sides.secondary,
        primary=sides.primary,
        clock=LoopClock(),
        observer=Quiet(),
        stop=asyncio.Event(),
    )
    assert (await drain(job)).forwarded == count


async def test_a_dry_run_says_what_would_be_sent_and_its_plan_sends_exactly_that(
    world: World, sides: Sides, tmp_path: Path
) -> None:
    await archived(world, sides, tmp_path, "orders", 3)
    request = RestoreRequest((tmp_path,), only=("orders",))
    planned = await restore(sides, replace(request, dry_run=True))
    assert (planned.restored.sent, planned.exit, world.waiting("orders")) == ({"orders": 3}, Exit.FINDINGS, 0)
    assert planned.closing == "3 of 3 messages would be sent to the primary."
    await archived(world, sides, tmp_path, "orders", 2)  # came after the plan
    done = await restore(sides, replace(request, plan=planned.plan))
    assert (done.restored.sent, done.exit, world.waiting("orders")) == ({"orders": 3}, Exit.OK, 3)
    assert [(row.what, row.where, row.messages) for row in done.rows] == [("sent", "orders", 3)]


async def test_what_the_ledger_has_is_not_sent_again(world: World, sides: Sides, tmp_path: Path) -> None:
    await archived(world, sides, tmp_path / "files", "orders", 5)
    request = RestoreRequest((tmp_path / "files",), ledger=tmp_path / "restored.jsonl")
    some = await restore(sides, replace(request, max_messages=2))
    assert (some.messages, some.restored.sent) == (2, {"orders": 2})
    rest = await restore(sides, request)
    assert (rest.restored.sent, rest.restored.already_sent) == ({"orders": 3}, 2)
    assert rest.closing == "3 of 5 messages sent to the primary; 2 left out, because a ledger has them."


async def test_after_a_kill_what_lies_at_its_destination_is_recorded_and_not_sent_again(
    world: World, sides: Sides, tmp_path: Path
) -> None:
    await archived(world, sides, tmp_path / "files", "orders", 5)
    request = RestoreRequest((tmp_path / "files",), ledger=tmp_path / "restored.jsonl")
    assert request.ledger is not None
    await restore(sides, request)
    lines = request.ledger.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["outcome"] in (RUN_BEGAN, SENDING)]  # killed before the rest
    request.ledger.write_bytes(b"".join(kept))
    done = await restore(sides, request)
    assert (done.restored.sent, done.restored.already_sent, world.waiting("orders")) == ({}, 5, 5)


async def test_messages_for_other_entities_than_those_allowed_are_left(
    world: World, sides: Sides, tmp_path: Path
) -> None:
    await archived(world, sides, tmp_path, "orders", 2)
    await archived(world, sides, tmp_path, "invoices", 1)
    done = await restore(sides, RestoreRequest((tmp_path,), only=("ORDERS",)))
    assert (done.restored.sent, done.exit) == ({"orders": 2}, Exit.PARTIAL)
    assert done.restored.left == {"not among the pair's entities: invoices": 1}
    assert world.waiting("invoices") == 0


async def test_it_sends_to_a_namespace_that_belongs_to_no_pair(world: World, sides: Sides, tmp_path: Path) -> None:
    await archived(world, sides, tmp_path, "orders", 2)
    world.emulator.namespace("fabrikam").create_queue("orders")
    async with open_ends(world.pair.secondary) as ends:
        done = await restore(ends, RestoreRequest((tmp_path,)))
    assert (done.pair, done.namespace, done.restored.sent) == (None, "fabrikam", {"orders": 2})
    assert (world.waiting("orders", "fabrikam"), world.waiting("orders")) == (2, 0)
    assert done.closing == "2 of 2 messages sent to fabrikam."


async def test_a_file_that_is_missing_or_holds_something_else_is_refused(sides: Sides, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no"):
        await restore(sides, RestoreRequest((tmp_path / "absent",)))
    (tmp_path / "other.jsonl").write_text('{"queue": 1}\n')
    with pytest.raises(UsageError, match=r"other\.jsonl is no archive .* Nothing was sent"):
        await restore(sides, RestoreRequest((tmp_path,), wanted=EVERYTHING))


ODD_ALIASES: dict[str, dict[str, Any]] = {
    "no queue": {"x-ms-path": "orders/$management"},
    "a number": {"x-ms-path": 7},
    "empty": {"x-ms-path": ""},
    "too long": {"x-ms-path": "o" * 261},
    "no time to live": {"x-ms-path": "orders", "x-ms-timetolive": "soon"},
    "not diverted": {"country": "DE"},
}


async def strand_as_they_are(sides: Sides, payloads: list[bytes]) -> int:
    """Put messages into the backlog queue one by one; how many the namespace accepted."""
    sender, accepted = sides.secondary.sender(backlog_queue(0)), 0
    for payload in payloads:
        with suppress(SbpairError):
            await sender.send([payload], timeout_seconds=30)
            accepted += 1
    await sender.close()
    return accepted


async def archive_all(sides: Sides, folder: Path) -> None:
    request = DrainRequest(queues=(backlog_queue(0),), to=ToArchive(folder))
    assert (await drain_all(sides, request)).report.left == ()


async def test_a_message_that_cannot_be_sent_holds_up_no_other_and_is_kept(
    world: World, sides: Sides, tmp_path: Path
) -> None:
    await world.strand(sides, "orders", 5)
    odd = [compose(body=name, message_id=name, application_properties=more) for name, more in ODD_ALIASES.items()]
    assert await strand_as_they_are(sides, odd) == len(odd)
    await world.strand(sides, "orders", 5)
    await archive_all(sides, tmp_path)
    would = await restore(sides, RestoreRequest((tmp_path,), dry_run=True))
    assert (would.restored.sent, would.kept_in, (tmp_path / "unsent").exists()) == ({"orders": 10}, (), False)
    done = await restore(sides, RestoreRequest((tmp_path,), ledger=tmp_path / "restored.ledger"))
    assert (done.restored.sent, done.exit, done.messages) == ({"orders": 10}, Exit.PARTIAL, 16)
    assert sum(done.restored.left.values()) == 6
    assert done.restored.left == would.restored.left
    (kept,) = done.kept_in
    archive = next(tmp_path.glob("*.jsonl")).read_bytes().splitlines()
    assert kept.read_bytes().splitlines() == [line for line in archive if line in kept.read_bytes().splitlines()]
    assert len(kept.read_bytes().splitlines()) == 6
    assert any(f"sbpair restore {kept} --to QUEUE" in note for note in done.notes), done.notes
    again = await restore(sides, RestoreRequest((kept,)))
    assert (again.restored.sent, again.kept_in) == ({}, (kept,)), "their destinations are no better now"
    first = kept.read_bytes()
    kept.write_bytes(first.replace(b"payload", b"payLoad"))  # as somebody who corrects a line would leave it
    beside = await restore(sides, RestoreRequest((tmp_path,), ledger=tmp_path / "restored.ledger"))
    assert beside.kept_in[0] != kept
    assert (beside.kept_in[0].read_bytes(), b"payLoad" in kept.read_bytes()) == (first, True)
    kept.write_bytes(first)
    world.emulator.namespace("contoso").create_queue("odd")
    last = await restore(sides, RestoreRequest((kept,), to="odd"))
    assert (last.restored.sent, last.exit, world.waiting("odd")) == ({"odd": 6}, Exit.OK, 6)


@pytest.mark.parametrize("order", ["pfb", "bpf", "fbp"])
async def test_sections_in_any_order_are_peeked_archived_restored_and_drained(
    world: World, sides: Sides, tmp_path: Path, order: str
) -> None:
    """rhea writes the footer before the body; the service gives what it was sent."""
    application = for_backlog(sections.build(), "orders")
    parts = {
        "p": sections.build(properties={0: "m-1"}) + application,
        "f": sections.build(footer={Symbol("crc"): "a"}),
        "b": sections.build(data=[b"one", b"two"]),
    }
    payload = b"".join(parts[name] for name in order)
    assert await strand_as_they_are(sides, [payload]) == 1
    seen = await peek(sides, PeekRequest(with_body=True))
    assert isinstance(seen, Messages)
    assert [(one.message_id, one.destination, one.body) for one in seen.messages] == [("m-1", "orders", "onetwo")]
    await archive_all(sides, tmp_path)
    assert (await restore(sides, RestoreRequest((tmp_path,)))).restored.sent == {"orders": 1}
    assert await strand_as_they_are(sides, [payload]) == 1
    assert (await drain_all(sides, DrainRequest())).report.forwarded == 1
    receiver = sides.primary.receiver("orders")
    for received in await receiver.peek(10):
        expected = payload.replace(application, b"")
        assert received.message_id == "m-1"
        assert received.payload.endswith(expected)
    assert world.waiting("orders") == 2
    assert world.waiting(backlog_queue(0), "fabrikam", dead_letter=True) == 0
    await receiver.close()


async def test_a_line_that_is_no_message_holds_up_no_other(world: World, sides: Sides, tmp_path: Path) -> None:
    await archived(world, sides, tmp_path, "orders", 3)
    (file,) = tmp_path.glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"rubbish\n" + lines[0] + b'{"queue": 1}\n' + lines[1] + b"\0" * 20 + b"\n" + lines[2] + b'{"cut')
    done = await restore(sides, RestoreRequest((tmp_path,)))
    assert (done.restored.sent, done.exit) == ({"orders": 3}, Exit.PARTIAL)
    assert done.restored.left == {"cannot be sent to its destination: NoMessage": 3}
    assert done.kept_in[0].read_bytes() == b"rubbish\n" + b'{"queue": 1}\n' + b"\0" * 20 + b"\n"
    assert "Line 1 of" in done.notes[0]


async def test_where_lines_cannot_be_kept_nothing_is_sent(world: World, sides: Sides, tmp_path: Path) -> None:
    await archived(world, sides, tmp_path, "orders", 2)
    (file,) = tmp_path.glob("*.jsonl")
    file.write_bytes(file.read_bytes() + b"rubbish\n")
    (tmp_path / "unsent").write_text("a file where a folder is needed")
    with pytest.raises(SbpairError, match=r"Cannot write .*unsent.*Nothing was sent"):
        await restore(sides, RestoreRequest((tmp_path,)))
    assert world.waiting("orders") == 0


def body_of(payload: bytes) -> bytes:
    """All that no broker changes: what follows the annotations."""
    try:
        spans = sections.scan(payload)
    except AmqpError:
        return payload
    return b"".join(payload[one.start : one.end] for one in spans if one.section >= sections.Section.PROPERTIES)


async def write_all(world: World, sides: Sides, folder: Path, by: str) -> None:
    """The backlog into files: as a drain or a cleanup with an archive writes it, a purge, or a peek."""
    if by == "drain":
        await archive_all(sides, folder)
    elif by == "purge":
        async with open_ends(world.pair.secondary) as ends:
            await purge(ends, PurgeRequest(backlog_queue(0), folder))
    else:
        seen = await peek(sides, PeekRequest(with_body=True, max_messages=1000))
        assert isinstance(seen, Messages)
        lines = "".join(f"{json_text(to_plain(one))}\n" for one in seen.messages)
        (folder / "peeked.jsonl").write_text(lines, encoding="utf-8")


@pytest.mark.parametrize(("by", "seed"), [("drain", 0), ("drain", 1), ("purge", 2), ("peek", 3)])
async def test_what_was_written_is_read_back_whatever_a_stranger_sent(
    world: World, sides: Sides, tmp_path: Path, by: str, seed: int
) -> None:
    """Every message that is in the archive goes to its destination, or lies byte by byte in the file of those that
    cannot; nothing is lost, and no line blocks another."""
    dice = Dice(seed)
    dice.odd = 2.0
    await strand_as_they_are(sides, [message(dice) for _ in range(300)])
    queue = world.emulator.namespace("fabrikam").get_queue(backlog_queue(0))
    assert queue is not None
    bodies = Counter(body_of(one.payload) for one in queue.main.log)
    await write_all(world, sides, tmp_path, by)
    lines = [line for file in tmp_path.glob("*.jsonl") for line in file.read_bytes().splitlines()]
    accepted = len(lines)  # some of those that were sent have expired, or are scheduled for later
    assert accepted > 50
    written = Counter(body_of(base64.b64decode(json.loads(line)["payload_base64"])) for line in lines)
    assert written <= bodies, "what was written is what the namespace held"
    request = RestoreRequest(
        (tmp_path,), ledger=tmp_path / "restored.ledger", although_in_the_queues=True, although_gone=True
    )
    done = await restore(sides, request)
    kept = [line for file in done.kept_in for line in file.read_bytes().splitlines()]
    missing = sum(number for why, number in done.restored.left.items() if not why.startswith(UNSENDABLE))
    assert sum(done.restored.sent.values()) + len(kept) + missing == accepted == done.messages
    assert set(kept) <= set(lines)
    world.emulator.namespace("contoso").create_queue("rest")
    rest = await restore(sides, replace(request, to="rest"))
    refused = sum(rest.restored.left.values())
    assert rest.restored.sent.get("rest", 0) + rest.restored.already_sent + refused == accepted
    refusals = {f"{UNSENDABLE}MalformedMessage", "undeliverable: ArgumentRefused"}  # ours, and the namespace's
    assert set(rest.restored.left) <= refusals, rest.restored.left


async def test_a_restore_that_is_stopped_returns_what_was_sent_until_then(
    world: World, sides: Sides, tmp_path: Path
) -> None:
    await archived(world, sides, tmp_path, "orders", 40)
    stop = asyncio.Event()

    class StopsAfterTheFirst:
        def notify(self, event: Event) -> None:
            if isinstance(event, Forwarded):
                stop.set()

    request = RestoreRequest((tmp_path,), rate_per_second=5.0, concurrency=1)
    done = await restore(sides, request, observer=StopsAfterTheFirst(), stop=stop)
    sent = sum(done.restored.sent.values())
    assert 0 < sent == world.waiting("orders") < 40
    assert done.restored.left == {"interrupted": 40 - sent}
    with pytest.raises(InterruptedWorkError):
        await restore(sides, request, stop=stop)
    assert world.waiting("orders") == sent


def test_code_that_is_not_asynchronous_restores_by_the_same_call(world: World, tmp_path: Path) -> None:
    async def write() -> None:
        async with sbpair.open_sides(world.pair) as sides:
            await archived(world, sides, tmp_path, "orders", 2)

    asyncio.run(write())
    assert sbpair.run(restore, world.pair, RestoreRequest((tmp_path,))).restored.sent == {"orders": 2}
