"""What a story finds when it begins: queues, messages, outages. Made through the same doors as in life: the
administration of the namespaces and senders; the commands under test are then real processes."""

import asyncio
import json
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from sbpair.connect import open_sides
from sbpair.core.entities import EntityStatus, QueueSettings
from sbpair.core.message import Disposition
from sbpair.core.names import backlog_queue_path
from sbpair.core.rewrite import compose, describe, for_backlog
from sbpair.ports import Sides
from sbpair.settings import load
from tests.cli.process import Ran, Sbpair

T = TypeVar("T")
PRIMARY = "local-primary"
SECONDARY = "local-secondary"
_COMMAND = re.compile(r"(?:Run|then): (sbpair [^;\n]+?)(?=$|;|\.(?:\s|$))", re.MULTILINE)


class World:
    """One home with two embedded namespaces."""

    def __init__(self, runner: Sbpair, environ: dict[str, str], said: Path) -> None:
        self.runner = runner
        self._environ = environ
        self._said = said
        self._numbers = iter(range(1_000_000))

    def __call__(self, line: str, *, timeout: float = 120) -> Ran:
        """Run a command line as it would be typed: `sbpair drain local`."""
        program, *arguments = shlex.split(line)
        assert program == "sbpair", line
        return self.runner(*arguments, timeout=timeout)

    def do(self, work: Callable[[Sides], Awaitable[T]]) -> T:
        async def connected() -> T:
            settings = load(environ=self.runner.variables(), directory=self.runner.home)
            async with open_sides(settings.pair("local")) as sides:
                return await work(sides)

        return asyncio.run(connected())

    def restrict(self) -> None:
        """Configure a pair `restricted` over the same namespaces: Send on the primary, Listen on the secondary."""
        self.configure({"restricted": 10}, primary=f"{PRIMARY}/send", secondary=f"{SECONDARY}/listen")

    def configure(self, counts: Mapping[str, int], *, primary: str = PRIMARY, secondary: str = SECONDARY) -> None:
        """Configure pairs over both namespaces, each with its number of backlog queues, and the keys of these names."""
        strings = dict(line.split("\t") for line in self._said.read_text(encoding="utf-8").splitlines() if "\t" in line)
        self._environ |= {"CS_PRIMARY": strings[primary], "CS_SECONDARY": strings[secondary]}
        state = json.loads((self.home / "state" / "sbpair" / "emulator.json").read_text(encoding="utf-8"))
        sides = {
            side: {
                "namespace": label,
                "host": "localhost",
                "connection_string": {"env": f"CS_{side.upper()}"},
                "ca_file": state["ca_file"],
            }
            for side, label in (("primary", PRIMARY), ("secondary", SECONDARY))
        }
        pairs = {name: sides | {"backlog_queues": count} for name, count in counts.items()}
        document = json.dumps({"version": 1, "pairs": pairs})
        (self.home / "sbpair.yaml").write_text(document, encoding="utf-8")

    def backlog_queues(self, indexes: Sequence[int], *, lock_seconds: float = 60.0) -> None:
        """As an application that provisioned its own queues once left them."""
        settings = replace(_BACKLOG, lock_duration_seconds=lock_seconds)

        async def work(sides: Sides) -> None:
            for index in indexes:
                await sides.secondary_admin.create_queue(backlog_queue_path(PRIMARY, index), settings)

        self.do(work)

    def destination(self, path: str, **settings: object) -> None:
        async def work(sides: Sides) -> None:
            await sides.primary_admin.create_queue(path, QueueSettings(**settings))  # type: ignore[arg-type]

        self.do(work)

    def disable(self, path: str) -> None:
        async def work(sides: Sides) -> None:
            facts = await sides.primary_admin.get_queue(path)
            assert facts is not None
            closed = QueueSettings(status=EntityStatus.SEND_DISABLED)
            await sides.primary_admin.update_queue(path, closed)

        self.do(work)

    def delete(self, path: str) -> None:
        self.do(lambda sides: sides.primary_admin.delete_queue(path))

    def strand(
        self, destination: str, number: int, *, queues: Sequence[int] = (0,), sessions: int = 0, size_bytes: int = 1
    ) -> list[str]:
        """Divert messages as the applications do; their ids. A session stays in one queue."""
        ids = [f"{destination}-{next(self._numbers)}" for _ in range(number)]

        async def work(sides: Sides) -> None:
            batches: dict[int, list[bytes]] = {}
            for place, name in enumerate(ids):
                session = f"s{place % sessions}" if sessions else None
                queue = queues[(place % sessions if sessions else place) % len(queues)]
                message = compose(body=b"x" * size_bytes, message_id=name, session_id=session)
                batches.setdefault(queue, []).append(for_backlog(message, destination))
            for queue, payloads in batches.items():
                sender = sides.secondary.sender(backlog_queue_path(PRIMARY, queue))
                step = max(1, min(100, 200_000 // size_bytes))
                for start in range(0, len(payloads), step):
                    await sender.send(payloads[start : start + step], timeout_seconds=30)
                await sender.close()

        self.do(work)
        return ids

    def fill(self, path: str, number: int, size_bytes: int) -> None:
        """Put messages straight into a queue of the primary."""

        async def work(sides: Sides) -> None:
            sender = sides.primary.sender(path)
            for _ in range(number):
                await sender.send([compose(body=b"x" * size_bytes)], timeout_seconds=30)
            await sender.close()

        self.do(work)

    def dead_letter(self, queue: int, number: int, *, reason: str, description: str = "") -> None:
        """What some receiver or the retired syphon did with messages of a backlog queue."""
        self._settle(queue, number, Disposition.DEAD_LETTER, reason, description)

    def defer(self, queue: int, number: int) -> None:
        self._settle(queue, number, Disposition.DEFER, "", "")

    def _settle(self, queue: int, number: int, how: Disposition, reason: str, description: str) -> None:
        async def work(sides: Sides) -> None:
            receiver = sides.secondary.receiver(backlog_queue_path(PRIMARY, queue))
            done = 0
            while done < number:
                for one in await receiver.receive(number - done, wait_seconds=5):
                    await receiver.settle(one, how, reason=reason, description=description)
                    done += 1
            await receiver.close()

        self.do(work)

    def arrived(self, path: str) -> list[tuple[str | None, str | None]]:
        """(session, message id) of everything in a queue of the primary, in its order."""

        async def work(sides: Sides) -> list[tuple[str | None, str | None]]:
            receiver = sides.primary.receiver(path)
            found: list[tuple[str | None, str | None]] = []
            number = 1
            while page := await receiver.peek(250, from_sequence_number=number):
                for one in page:
                    summary = describe(one.payload)
                    found.append((summary.session_id, summary.message_id))
                number = page[-1].sequence_number + 1
            await receiver.close()
            return found

        return self.do(work)

    def ids(self, path: str) -> list[str]:
        return sorted(str(name) for _, name in self.arrived(path))

    @property
    def home(self) -> Path:
        return self.runner.home


_BACKLOG = QueueSettings(
    max_size_in_megabytes=5120, max_delivery_count=2**31 - 1, dead_lettering_on_message_expiration=True
)


def advised(ran: Ran) -> list[str]:
    """The commands that the tool says to run, in its order."""
    return [found.strip() for found in _COMMAND.findall(ran.stderr)]
