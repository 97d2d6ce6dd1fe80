"""Queues of the embedded namespaces as an incident leaves them, for the commands that work on any entity."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from sbpair.connect import open_sides
from sbpair.core.entities import QueueSettings
from sbpair.core.message import Disposition, Received
from sbpair.core.pairing import Side
from sbpair.ports import Sides
from sbpair.settings import load
from tests.cli.process import Sbpair

T = TypeVar("T")


class Entities:
    """The entities of the pair `local` that one runner knows."""

    def __init__(self, runner: Sbpair) -> None:
        self.runner = runner

    def do(self, work: Callable[[Sides], Awaitable[T]]) -> T:
        async def connected() -> T:
            settings = load(environ=self.runner.variables(), directory=self.runner.home)
            async with open_sides(settings.pair("local")) as sides:
                return await work(sides)

        return asyncio.run(connected())

    def queue(self, path: str, side: Side = Side.PRIMARY, **settings: object) -> str:
        async def work(sides: Sides) -> None:
            admin = sides.primary_admin if side is Side.PRIMARY else sides.secondary_admin
            await admin.create_queue(path, QueueSettings(**settings))  # type: ignore[arg-type]

        self.do(work)
        return path

    def subscription(self, topic: str, name: str) -> str:
        async def work(sides: Sides) -> None:
            await sides.primary_admin.create_topic(topic)
            await sides.primary_admin.create_subscription(topic, name, QueueSettings())

        self.do(work)
        return f"{topic}/Subscriptions/{name}"

    def send(self, path: str, *payloads: bytes) -> None:
        async def work(sides: Sides) -> None:
            sender = sides.primary.sender(path)
            for payload in payloads:
                await sender.send([payload], timeout_seconds=30)
            await sender.close()

        self.do(work)

    def send_together(self, path: str, payloads: Sequence[bytes]) -> None:
        async def work(sides: Sides) -> None:
            sender = sides.primary.sender(path)
            await sender.send(payloads, timeout_seconds=30)
            await sender.close()

        self.do(work)

    def settle(
        self, path: str, reasons: Sequence[str], how: Disposition = Disposition.DEAD_LETTER, session: str | None = None
    ) -> None:
        """What some consumer did with the first messages: one for each reason."""

        async def work(sides: Sides) -> None:
            receiver = sides.primary.receiver(path, session_id=session)
            wanted = list(reasons)
            while wanted:
                for one in await receiver.receive(len(wanted), wait_seconds=5):
                    await receiver.settle(one, how, reason=wanted.pop(0), description="told by a test")
            await receiver.close()

        self.do(work)

    def state(self, path: str, session: str, state: bytes | None = None, side: Side = Side.PRIMARY) -> bytes | None:
        """The state of a session, as it is then; one that is given is set before."""

        async def work(sides: Sides) -> bytes | None:
            messaging = sides.primary if side is Side.PRIMARY else sides.secondary
            receiver = messaging.receiver(path, session_id=session)
            if state is not None:
                await receiver.set_session_state(state)
            found = await receiver.session_state()
            await receiver.close()
            return found

        return self.do(work)

    def dead(self, path: str, payloads: Sequence[bytes], reason: str = "Broken") -> None:
        """Send messages, then have a consumer dead-letter them."""
        self.send(path if "/Subscriptions/" not in path else path.partition("/")[0], *payloads)
        self.settle(path, [reason] * len(payloads))

    def lying(self, path: str, side: Side = Side.PRIMARY, *, dead_letter: bool = False) -> list[Received]:
        """All that lies in a queue, in its order."""

        async def work(sides: Sides) -> list[Received]:
            receiver = (sides.primary if side is Side.PRIMARY else sides.secondary).receiver(
                path, dead_letter=dead_letter
            )
            found: list[Received] = []
            while page := await receiver.peek(250, from_sequence_number=found[-1].sequence_number + 1 if found else 1):
                found += page
            await receiver.close()
            return found

        return self.do(work)

    def ids(self, path: str, side: Side = Side.PRIMARY, *, dead_letter: bool = False) -> list[str | None]:
        return [one.message_id for one in self.lying(path, side, dead_letter=dead_letter)]
