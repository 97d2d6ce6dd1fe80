"""Two embedded namespaces over real sockets, for verbs that are called: a pair with three backlog queues."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from sbpair.connect import open_sides
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.pairing import Pair, SendAvailabilityOptions
from sbpair.core.rewrite import compose, for_backlog
from sbpair.emulator import EmulatorThread
from sbpair.ports import Sides

QUEUES = 3


@dataclass(frozen=True)
class World:
    emulator: EmulatorThread
    pair: Pair

    def waiting(self, path: str, name: str = "contoso", *, dead_letter: bool = False) -> int:
        """Messages that lie in a queue, as its namespace counts them."""
        found = self.emulator.namespace(name).get_queue(path)
        assert found is not None, f"{name} has no queue {path}"
        counts = found.counts()
        return int(counts.dead_letter if dead_letter else counts.active)

    async def strand(self, sides: Sides, entity: str, count: int, *, queue: int = 0) -> None:
        """Put messages for an entity into a backlog queue, as an outage would have."""
        payloads = [for_backlog(compose(body=f"{n}", message_id=f"m{n}"), entity) for n in range(count)]
        sender = sides.secondary.sender(backlog_queue(queue))
        await sender.send(payloads, timeout_seconds=30)
        await sender.close()

    def strand_now(self, entity: str, count: int, *, queue: int = 0) -> None:
        """The same from code that is not asynchronous."""

        async def connected() -> None:
            async with open_sides(self.pair) as sides:
                await self.strand(sides, entity, count, queue=queue)

        asyncio.run(connected())


def backlog_queue(index: int) -> str:
    return f"contoso/x-servicebus-transfer/{index}"


@pytest.fixture
def world() -> Iterator[World]:
    with EmulatorThread(["contoso", "fabrikam"]) as emulator:
        for entity in ("orders", "invoices"):
            emulator.namespace("contoso").create_queue(entity)
        for index in range(QUEUES):
            emulator.namespace("fabrikam").create_queue(backlog_queue(index))
        sides = [_access(emulator, name) for name in ("contoso", "fabrikam")]
        yield World(emulator, Pair("embedded", *sides, SendAvailabilityOptions(QUEUES)))


@pytest.fixture
async def sides(world: World) -> AsyncIterator[Sides]:
    async with open_sides(world.pair) as opened:
        yield opened


def _access(emulator: EmulatorThread, name: str) -> NamespaceAccess:
    text = Secret(emulator.connection_string(name))
    authority = emulator.call(lambda emulator: str(emulator.ca_path))
    host = host_of(text.reveal())
    return NamespaceAccess(name, host, AuthMethod.CONNECTION_STRING, text, ca_file=authority, embedded=True)
