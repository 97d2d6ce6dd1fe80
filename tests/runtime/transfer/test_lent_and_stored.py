"""Where messages come from and go to beside namespaces: stored ones, transactions of one namespace, lent ends."""

import asyncio
import base64
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sbpair.core.errors import ArgumentRefusedError, SbpairError, ServiceError
from sbpair.core.message import Disposition, Received
from sbpair.core.rewrite import compose
from sbpair.core.transfer.state import Item, key_of
from sbpair.runtime.transfer import stored
from sbpair.runtime.transfer.sinks import ArchiveSink, LeftOpen, NamespaceSink, TransactionSink, archive_line
from sbpair.runtime.transfer.stored import AHEAD_MESSAGES, EMPTY_SECONDS, StoredMessages
from tests.fakes import FakeClock, FakeNamespace, virtual_time


def messages(*ids: str) -> list[Received]:
    return [Received(compose(body=one, message_id=one), 99, "elsewhere", message_id=one) for one in ids]


def ids(found: Sequence[Received]) -> list[str | None]:
    return [one.message_id for one in found]


@virtual_time
async def test_stored_messages_are_handed_out_in_turn_and_again_once_they_are_given_back() -> None:
    source, loop = StoredMessages(messages("a", "b", "c", "d")), asyncio.get_running_loop()
    first = await source.receive(2, wait_seconds=1.0)
    assert (ids(first), [one.sequence_number for one in first]) == (["a", "b"], [1, 2])
    assert {one.source for one in first} == {stored.SOURCE}
    await source.settle(first[1], Disposition.RELEASE)
    await source.settle(first[0], Disposition.RELEASE)
    assert ids(await source.peek(1)) == ["a"]
    assert ids(await source.peek(9, from_sequence_number=2)) == ["b"]
    assert ids(await source.receive(3, wait_seconds=1.0)) == ["a", "b", "c"], "what came back is first"
    await source.settle(first[0], Disposition.COMPLETE)
    assert ids(await source.peek(9)) == ["b", "c"]
    answers = [answer async for some in source.settle_all(first[1:], Disposition.COMPLETE) for answer in some]
    assert [error for _, error in answers] == [None]
    assert ids(await source.peek(9)) == ["c"]
    assert ids(await source.receive(9, wait_seconds=1.0)) == ["d"]
    for wait, waited in ((0.25 * EMPTY_SECONDS, 0.25 * EMPTY_SECONDS), (100 * EMPTY_SECONDS, EMPTY_SECONDS)):
        began = loop.time()
        assert await source.receive(9, wait_seconds=wait) == []
        assert loop.time() - began == pytest.approx(waited)


@virtual_time
async def test_whoever_puts_messages_in_waits_for_room_and_is_told_of_the_end() -> None:
    source = StoredMessages()
    receiving = asyncio.create_task(source.receive(1, wait_seconds=1.0))
    await asyncio.sleep(1000.0)
    assert not receiving.done(), "there will be more"
    assert await source.put(messages(*(str(n) for n in range(AHEAD_MESSAGES + 1))))
    assert ids(await receiving) == ["0"]
    putting = asyncio.create_task(source.put(messages("late")))
    await asyncio.sleep(1.0)
    assert not putting.done(), "as many as it may be ahead are there"
    assert ids(await source.receive(1, wait_seconds=1.0)) == ["1"]
    assert await putting
    ending = asyncio.create_task(source.receive(9 * AHEAD_MESSAGES, wait_seconds=1.0))
    await source.end()
    assert len(await ending) == AHEAD_MESSAGES
    assert await source.receive(1, wait_seconds=1.0) == []
    other = StoredMessages()
    waiting = asyncio.create_task(other.receive(1, wait_seconds=1.0))
    await asyncio.sleep(1.0)
    await other.close()
    assert (await waiting, await other.put(messages("x"))) == ([], False)


@pytest.mark.parametrize("what", ["given back", "put", "end", "close"])
@virtual_time
async def test_who_waits_for_messages_hears_of_what_comes_and_of_the_end(what: str) -> None:
    source = StoredMessages()
    await source.put(messages("a"))
    [held] = await source.receive(1, wait_seconds=1.0)
    waiting = asyncio.create_task(source.receive(1, wait_seconds=0.0))
    await asyncio.sleep(1.0)
    assert not waiting.done()
    match what:
        case "given back":
            await source.settle(held, Disposition.RELEASE)
        case "put":
            await source.put(messages("b"))
        case "end":
            await source.end()
        case _:
            await source.close()
    async with asyncio.timeout(1.0):
        assert ids(await waiting) == {"given back": ["a"], "put": ["b"]}.get(what, [])


@virtual_time
async def test_stored_messages_have_no_locks_sessions_or_deferred_ones() -> None:
    source = StoredMessages(messages("a"))
    [one] = await source.receive(1, wait_seconds=1.0)
    assert (await source.renew_lock(one), await source.renew_session()) == (math.inf, math.inf)
    assert (await source.receive_deferred([1]), await source.session_ids(), await source.session_state()) == (
        [],
        [],
        None,
    )
    with pytest.raises(ArgumentRefusedError):
        await source.set_session_state(b"s")


class Mover:
    """Moves what it is told to take; says what it was asked for."""

    def __init__(self) -> None:
        self.refuses: ServiceError | None = None
        self.moved: list[tuple[str, list[bytes]]] = []

    async def move(self, received: Any, payloads: list[bytes], entity: str, *, timeout_seconds: float) -> None:
        assert timeout_seconds > 0
        self.moved.append((entity, payloads))
        if self.refuses is not None:
            raise self.refuses

    async def max_message_bytes(self, entity: str) -> int:
        return 77


def item(number: int, group: str | None) -> Item:
    [received] = messages(str(number))
    return Item(key_of(received), received, 0.0, 0.0, payload=received.payload, partition_key=group)


@virtual_time
async def test_what_a_destination_takes_into_transactions_decides_how_the_next_goes() -> None:
    namespace, mover = FakeNamespace("primary", FakeClock()), Mover()
    for entity in ("to", "other"):
        namespace.add_queue(entity)
    sink = TransactionSink(mover, namespace.messaging())  # type: ignore[arg-type]
    keyed, keyless, two = [item(1, "k")], [item(2, None)], [item(3, None), item(4, None)]
    assert (sink.in_doubt("to", keyed), sink.in_doubt("to", keyless), sink.in_doubt("to", two)) == (True, True, False)
    assert await sink.limit_bytes("to") == 77
    await sink.send("to", keyed)
    assert ([one.completed for one in keyed], mover.moved) == ([True], [("to", [keyed[0].payload])])
    assert (sink.in_doubt("to", keyed), sink.in_doubt("to", keyless)) == (False, True)
    mover.refuses = ArgumentRefusedError("no key")
    with pytest.raises(ArgumentRefusedError):
        await sink.send("to", two)
    assert not any(one.completed for one in two)
    await sink.send("to", [item(5, "k")])
    assert not sink.in_doubt("to", [item(5, "k")]), "one that is refused says nothing of the others that have a key"
    await sink.send("to", keyless)
    assert not keyless[0].completed, "it was sent as to another namespace"
    assert (sink.in_doubt("to", two), sink.in_doubt("other", two)) == (True, False)
    tried = len(mover.moved)
    await sink.send("to", two)
    assert len(mover.moved) == tried, "no transaction is tried again for what has no key"
    assert namespace.sent_batches == [("to", 1), ("to", 1), ("to", 2)]
    mover.refuses = None
    await sink.send("other", [item(6, None)])
    assert not sink.in_doubt("other", [item(7, None)])
    await sink.close()


@virtual_time
async def test_a_namespace_is_sent_to_over_one_link_each_and_may_have_what_was_not_answered() -> None:
    namespace = FakeNamespace("primary", FakeClock())
    namespace.add_queue("to")
    sink = NamespaceSink(namespace.messaging())
    assert sink.in_doubt("to", [item(1, None)])
    assert await sink.limit_bytes("TO") == namespace.max_message_bytes
    await sink.send("To", [item(1, None)])
    assert sink._sender("to") is sink._sender("TO")
    assert namespace.queue("to").payloads == [item(1, None).payload]
    await sink.close()


async def test_an_archive_line_has_all_that_a_restore_needs(tmp_path: Any) -> None:
    sink = ArchiveSink(tmp_path, "stamp")
    one = item(1, None)
    one.destination = "to"
    assert sink.in_doubt("to", [one])
    assert await sink.limit_bytes("to") >= 2**31
    await sink.send("to", [one, item(2, None)])
    await sink.close()
    lines = [json.loads(line) for line in sink.path.read_bytes().splitlines()]
    assert lines[0] == {
        "queue": "elsewhere",
        "sequence_number": 99,
        "message_id": "1",
        "enqueued_at": None,
        "destination": "to",
        "payload_base64": base64.b64encode(one.payload).decode(),
    }
    assert (lines[1]["message_id"], lines[1]["destination"]) == ("2", None)
    beside = json.loads(archive_line(one.key, one.received, "", b"", reason="why"))
    assert (beside["reason"], beside["destination"], beside["payload_base64"]) == ("why", None, "")


async def test_what_is_lent_stays_open() -> None:
    class Lent:
        source, closed = "q", False

        async def close(self) -> None:
            self.closed = True

    lent = Lent()
    left = LeftOpen(lent)  # type: ignore[arg-type]
    await left.close()
    assert (left.source, lent.closed) == ("q", False)


async def test_an_archive_that_could_not_be_written_leaves_no_empty_file(tmp_path: Path) -> None:
    empty = ArchiveSink(tmp_path, "stamp")
    await empty.close()
    assert empty.path.exists(), "nothing went wrong: it says that there was nothing"
    failing, written = ArchiveSink(tmp_path, "stamp"), ArchiveSink(tmp_path, "stamp")
    await written.send("to", [item(1, None)])
    for sink, is_there in ((failing, False), (written, True)):
        sink._file.close()
        sink._file.append = _full  # type: ignore[method-assign]
        with pytest.raises(SbpairError, match="Cannot write the archive"):
            await sink.send("to", [item(2, None)])
        await sink.close()
        assert sink.path.exists() is is_there


def _full(lines: bytes) -> None:
    raise OSError(28, "No space left on device")
