"""The retired library's messages, brought back by us; and ours, diverted as it diverted them (see `recorded`)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from sbpair.amqp import sections
from sbpair.amqp.sections import PropertyField, Section
from sbpair.azure.administration import DataPlaneAdmin
from sbpair.azure.messaging import AzureMessaging
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.pairing import DOCUMENTED_SETTINGS, expected_backlog_paths
from sbpair.core.rewrite import for_backlog, for_primary
from sbpair.emulator import Emulator
from sbpair.emulator.entities import QueueDescription
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.transfer.drain import DrainJob, TransferRequest, drain
from sbpair.runtime.transfer.syphon import syphon
from tests.fakes import RecordingObserver
from tests.golden.recorded import (
    DIRECTLY,
    DIVERTED,
    GOLDEN,
    Golden,
    assert_as_diverted,
    assert_as_sent_directly,
    values,
)
from tests.waiting import LIMIT_SECONDS


def test_all_recorded_messages_are_here() -> None:
    assert len(GOLDEN) == 88
    assert {one.library for one in GOLDEN} == {"5.0.0", "2.7.5"}
    with_session = [one for one in GOLDEN if values(one.forms[DIRECTLY])[Section.PROPERTIES][PropertyField.GROUP_ID]]
    assert len(with_session) == 28


@pytest.mark.parametrize("golden", GOLDEN, ids=str)
def test_the_way_home_makes_what_was_sent_directly(golden: Golden) -> None:
    home = for_primary(golden.forms[DIVERTED], now=1_795_400_000.0, enqueued_at=None)
    assert home.destination == golden.destination
    assert_as_sent_directly(golden, home.payload)


@pytest.mark.parametrize("golden", GOLDEN, ids=str)
def test_the_failover_sender_makes_what_the_library_diverted(golden: Golden) -> None:
    assert_as_diverted(golden, for_backlog(golden.forms[DIRECTLY], golden.destination))


@dataclass
class World:
    """A pair of embedded namespaces with the entities the messages were sent to."""

    emulator: Emulator
    primary: AzureMessaging
    secondary: AzureMessaging
    admin: DataPlaneAdmin
    queues: tuple[str, ...]

    async def divert(self, messages: list[Golden]) -> None:
        """Put the recorded bytes where the library had put them."""
        for queue in self.queues:
            here = [one.forms[DIVERTED] for one in messages if one.backlog_queue == queue]
            sender = self.secondary.sender(queue)
            for payload in here:
                await sender.send([payload], timeout_seconds=30)
            await sender.close()

    def on_the_primary(self) -> dict[str, bytes]:
        """Everything that has come back, by message id, as a browser of the namespace sees it."""
        namespace = self.emulator.namespace("primary")
        places = [
            namespace.get_queue("orders"),
            namespace.get_queue("ses"),
            namespace.get_subscription("events", "all"),
        ]
        rendered = [message.render() for place in places for message in place.main.log]
        ids = [sections.read(one, sections.scan(one), Section.PROPERTIES)[0] for one in rendered]
        assert len(set(ids)) == len(ids)
        return dict(zip(ids, rendered, strict=True))


def access(emulator: Emulator, name: str) -> NamespaceAccess:
    text = emulator.connection_string(name)
    ca_file = str(emulator.ca_path)
    secret = Secret(text)
    return NamespaceAccess(
        label=name, host=host_of(text), auth=AuthMethod.CONNECTION_STRING, connection_string=secret, ca_file=ca_file
    )


@asynccontextmanager
async def world(backlog_time_to_live_seconds: float | None = None) -> AsyncIterator[World]:
    async with Emulator(["primary", "secondary"], seed=1) as emulator:
        namespace = emulator.namespace("primary")
        namespace.create_queue("orders")
        namespace.create_queue("ses", QueueDescription(requires_session=True))
        namespace.create_topic("events")
        namespace.create_subscription("events", "all")
        admin = DataPlaneAdmin(access(emulator, "secondary"))
        queues = expected_backlog_paths("contoso", 2)
        settings = replace(DOCUMENTED_SETTINGS, default_message_time_to_live_seconds=backlog_time_to_live_seconds)
        for path in queues:
            await admin.create_queue(path, settings)
        primary, secondary = (AzureMessaging(access(emulator, name)) for name in ("primary", "secondary"))
        try:
            yield World(emulator, primary, secondary, admin, queues)
        finally:
            for one in (primary, secondary, admin):
                await one.close()


@pytest.mark.parametrize(
    ("library", "backlog_time_to_live_seconds"),
    [("5.0.0", None), ("2.7.5", None), ("5.0.0", 86_400.0)],
    ids=["5.0.0", "2.7.5", "5.0.0 in queues that stamp times"],
)
@pytest.mark.parametrize("way", [drain, syphon], ids=["drain", "syphon"])
async def test_drain_and_syphon_bring_home_what_was_sent_directly(
    way: Any, library: str, backlog_time_to_live_seconds: float | None
) -> None:
    messages = [one for one in GOLDEN if one.library == library]
    async with world(backlog_time_to_live_seconds) as on:
        await on.divert(messages)
        stop = asyncio.Event()
        running = asyncio.create_task(
            way(
                DrainJob(
                    TransferRequest(on.queues),
                    secondary=on.secondary,
                    primary=on.primary,
                    admin=on.admin,
                    clock=LoopClock(),
                    observer=RecordingObserver(),
                    stop=stop,
                )
            )
        )
        async with asyncio.timeout(LIMIT_SECONDS):
            while len(on.on_the_primary()) < len(messages):
                assert not running.done() or running.result() is not None
                await asyncio.sleep(0.05)
        stop.set()
        report = await running
        assert report.forwarded == len(messages)
        arrived = on.on_the_primary()
        assert arrived.keys() == {one.message_id for one in messages}
        for one in messages:
            assert_as_sent_directly(one, arrived[one.message_id])
