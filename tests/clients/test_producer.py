"""The producer of active/active as an application uses it, on real sockets."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from sbpair.aio import Consumer, NeitherSideError, Producer
from sbpair.amqp.sections import Section
from sbpair.core.encoded import EncodedMessage
from sbpair.core.errors import InterruptedWorkError, JournalError, UsageError
from sbpair.core.pairing import Pair, Side
from sbpair.core.replication.ordering import AFTER, AFTER_IDS
from tests.runtime.replication.stage import BRISK, QUEUE, Stage, access_to, stage


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Stage]:
    async with stage(tmp_path) as ready:
        yield ready


def pair(both: Stage) -> Pair:
    return Pair("boxes", access_to(both.emulator, "primary"), access_to(both.emulator, "secondary"))


def producer(both: Stage, **options: Any) -> Producer:
    return Producer(QUEUE, **{"pair": pair(both), "journal": both.journal, "delay_seconds": 0.0} | options)


def message(session: str, number: int) -> ServiceBusMessage:
    return ServiceBusMessage(f"body {number}", session_id=session, message_id=f"{session}-{number}")


async def consumed(both: Stage) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    async with Consumer(QUEUE, pair=pair(both), journal=both.journal, until_idle_seconds=3.0, terms=BRISK) as consumer:
        async for work in consumer:
            async with work as received:
                found.setdefault(str(received.session_id), []).append(str(received))
    return found


async def test_a_message_goes_to_both_namespaces_and_is_processed_once(both: Stage) -> None:
    async with producer(both) as sending:
        first = await sending.send(message("a", 0))
        assert (first.message_id, first.session_id, first.accepted, first.recorded) == (
            "a-0",
            "a",
            (Side.PRIMARY, Side.SECONDARY),
            True,
        )
    assert both.left(Side.PRIMARY) == both.left(Side.SECONDARY) == (1, 0)
    async with producer(both, prefer=Side.SECONDARY) as sending:
        second = await sending.send(message("a", 1))
        assert second.accepted == (Side.SECONDARY, Side.PRIMARY)
        many = [one async for one in sending.send_all([message("b", number) for number in range(4)], overlap=2)]
    assert [(one.position, one.result is not None and one.result.message_id) for one in many] == [
        (number, f"b-{number}") for number in range(4)
    ]
    assert await consumed(both) == {"a": ["body 0", "body 1"], "b": [f"body {number}" for number in range(4)]}


async def test_one_namespace_is_enough_and_none_is_an_error(both: Stage) -> None:
    async with producer(both) as sending:
        both.dark(Side.PRIMARY)
        sent = await sending.send(message("a", 0), timeout_seconds=2.0)
        assert sent.accepted == (Side.SECONDARY,)
        assert list(sent.errors) == [Side.PRIMARY]
        both.dark(Side.SECONDARY)
        with pytest.raises(NeitherSideError):
            await sending.send(message("a", 1), timeout_seconds=1.0)
        both.light(Side.SECONDARY)
        again = await sending.send(message("a", 1), timeout_seconds=10.0)
        assert again.accepted == (Side.SECONDARY,)
        both.light(Side.PRIMARY)
    assert await consumed(both) == {"a": ["body 0", "body 1"]}


async def test_what_cannot_be_sent_is_refused_and_what_follows_it_is_sent(both: Stage) -> None:
    with pytest.raises(RuntimeError, match="Enter the producer first"):
        await producer(both).send(message("a", 0))
    async with producer(both, journal=None) as sending:
        with pytest.raises(UsageError, match="one message at a time, not 2"):
            await sending.send([message("a", 0), message("a", 1)])  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="session id"):
            await sending.send(ServiceBusMessage("lost", message_id="m"))

        async def given() -> AsyncIterator[ServiceBusMessage]:
            yield ServiceBusMessage("no session")
            yield message("a", 2)

        sent = [one async for one in sending.send_all(given())]
        assert isinstance(sent[0].error, UsageError)
        assert sent[1].result is not None
        assert sent[1].result.recorded is False, "there is no journal"
    with pytest.raises(InterruptedWorkError):
        await sending.send(message("a", 3))
    assert both.left(Side.PRIMARY) == both.left(Side.SECONDARY) == (1, 0)


async def test_a_journal_that_cannot_be_used_is_an_error_before_anything_is_sent(both: Stage, tmp_path: Path) -> None:
    (tmp_path / "journal.db").write_bytes(b"no database, and long enough to be seen as none " * 100)
    with pytest.raises(JournalError):
        async with producer(both, journal=f"sqlite:{tmp_path / 'journal.db'}"):
            pytest.fail("entered")
    named = f"sqlite:{tmp_path / 'other.db'}"
    for number in range(2):
        async with producer(both, journal=named) as sending:
            sent = await sending.send(message("a", number))
            assert sent.recorded
    receiver = both.messaging[Side.PRIMARY].receiver(QUEUE)
    first, second = [EncodedMessage(one.payload) for one in await receiver.peek(2)]
    await receiver.close()
    assert first.entry(Section.APPLICATION_PROPERTIES, AFTER) == ""
    assert json.loads(second.entry(Section.APPLICATION_PROPERTIES, AFTER_IDS)) == ["a-0"], "it begins the session again"
