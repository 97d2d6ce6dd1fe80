"""Kills `sbpair move` while messages of all kinds go, and proves that none is lost or altered.

    python -m tests.soak.recover --seed 7 --messages 100000 --kills 20 [--within]

Half of the messages lie in a queue with sessions, some of which have a state; the others are active, deferred,
scheduled and dead-lettered ones of a plain queue. A killed move is begun again with its ledger. Between two namespaces
what may come twice is what a killed one had sent and not recorded, with the same MessageId. Within one namespace
(`--within`) nothing may.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sbpair.amqp.types import Char, Decimal64, Long
from sbpair.azure.messaging import AzureMessaging
from sbpair.core.message import Disposition, MessageState, Received
from sbpair.core.outcome import Exit
from sbpair.core.rewrite import as_sent, compose
from sbpair.ports import MessageReceiver
from tests.cli.process import Sbpair
from tests.soak.world import UNBOUNDED, Side

PLAIN, SESSIONS = "plain", "sessions"
SESSION_IDS = 40
STATES = 10
"""Of the sessions, how many have a state."""
LOCK_SECONDS = 15
IN_FLIGHT_MESSAGES = 2000
MOST_RUNS_AFTERWARDS = 5
SLOW_MESSAGES_A_SECOND = 300
UNTIL_IT_MOVES_SECONDS = 180.0
BATCH_MESSAGES = 50
BROWSED_MESSAGES = 250


@dataclass
class Result:
    sent: int
    lost: list[str] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    """Sessions whose state is not at the destination alone."""
    within: bool = False
    doubles: int = 0
    left: int = 0
    kills: int = 0
    kills_after_moving: int = 0
    exits: tuple[int, ...] = ()
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        wrong = self.lost or self.altered or self.disordered or self.states or self.left
        few = self.doubles <= (0 if self.within else self.kills * IN_FLIGHT_MESSAGES)
        hit = 2 * self.kills_after_moving >= self.kills
        return not wrong and few and hit and set(self.exits) == {Exit.OK.value}


class Place:
    """Two namespaces in processes of their own, or one (`within`), with full queues and empty ones."""

    def __init__(self, folder: Path, chance: random.Random, *, within: bool) -> None:
        self.folder = folder
        self.chance = chance
        self.within = within
        own = {"lock_duration_seconds": LOCK_SECONDS, "max_delivery_count": UNBOUNDED}
        queues: dict[str, dict[str, Any]] = {PLAIN: own, SESSIONS: {**own, "requires_session": True}}
        if within:
            queues |= {self.there(queue): settings for queue, settings in queues.items()}
            self.source = self.target = Side("soak-from", folder, queues)
        else:
            self.source, self.target = Side("soak-from", folder, queues), Side("soak-to", folder, queues)
        self.runner = Sbpair(folder)
        self.sent: dict[str, bytes] = {}
        self.scheduled: set[str] = set()
        self.states: dict[str, bytes] = {}

    def there(self, queue: str) -> str:
        """Where the messages of a queue go."""
        return f"{queue}-moved" if self.within else queue

    def open(self) -> None:
        for side in dict.fromkeys((self.source, self.target)):
            side.start()
        sides = {
            place: {
                "namespace": side.name,
                "host": "localhost",
                "connection_string": {"file": str(side.connection_file)},
                "ca_file": str(side.ca_file),
            }
            for place, side in (("primary", self.source), ("secondary", self.target))
        }
        (self.folder / "sbpair.yaml").write_text(json.dumps({"version": 1, "pairs": {"soak": sides}}))

    def close(self) -> None:
        for side in dict.fromkeys((self.source, self.target)):
            side.kill()

    def _new(self, kind: str, number: int, session: str | None = None, at: float | None = None) -> bytes:
        body = self.chance.randbytes(self.chance.choice([10, 100, 1000, 5000]))
        properties = {"n": Long(number), "c": Char("€"), "d": Decimal64(body[:8])}
        name = f"{kind}-{number:06}"
        payload = compose(
            body=body, message_id=name, session_id=session, application_properties=properties, scheduled_at=at
        )
        self.sent[name] = payload
        if at is not None:
            self.scheduled.add(name)
        return payload

    async def fill(self, messages: int) -> None:
        messaging = self.source.messaging()
        tenth = messages // 10
        try:
            for kind, how in (("deferred", Disposition.DEFER), ("dead", Disposition.DEAD_LETTER)):
                await _send(messaging, PLAIN, [self._new(kind, number) for number in range(tenth)])
                await _settle(messaging, PLAIN, tenth, how)
            at = round(time.time()) + 86_400
            await _send(messaging, PLAIN, [self._new("scheduled", number, at=at + number) for number in range(tenth)])
            await _send(messaging, PLAIN, [self._new("active", number) for number in range(2 * tenth)])
            ids = [f"s{self.chance.randrange(SESSION_IDS)}" for _ in range(messages - 5 * tenth)]
            await _send(messaging, SESSIONS, [self._new("ordered", n, session) for n, session in enumerate(ids)])
            for number in range(STATES):
                self.states[f"s{number}"] = self.chance.randbytes(100)
                receiver = messaging.receiver(SESSIONS, session_id=f"s{number}")
                await receiver.set_session_state(self.states[f"s{number}"])
                await receiver.close()
        finally:
            await messaging.close()

    def start(self, queue: str, *more: str) -> "subprocess.Popen[str]":
        words = (
            "move",
            f"soak-from:{queue}",
            f"{self.target.name}:{self.there(queue)}",
            "--with-dlq",
            "--ledger",
            f"{queue}.jsonl",
        )
        with (self.folder / "log").open("a") as log:
            return self.runner.begin(*words, "--yes", "-o", "json", *more, stderr=log)

    def recorded_bytes(self, queue: str) -> int:
        ledger = self.folder / f"{queue}.jsonl"
        return ledger.stat().st_size if ledger.exists() else 0

    async def judge(self, result: Result) -> None:
        """What lies where, against what was sent."""
        there, here = self.target.messaging(), self.source.messaging()
        try:
            found = [one for queue in (PLAIN, SESSIONS) for one in await _lying(there, self.there(queue))]
            for queue in (PLAIN, SESSIONS):
                for dead_letter in (False, True):
                    result.left += len(await _lying(here, queue, dead_letter=dead_letter))
            for session, state in self.states.items():
                states = await _state(there, self.there(SESSIONS), session), await _state(here, SESSIONS, session)
                if states != (state, None):
                    result.states.append(session)
        finally:
            await there.close()
            await here.close()
        copies = Counter(str(one.message_id) for one in found)
        result.lost = sorted(self.sent.keys() - copies.keys())
        result.doubles = copies.total() - len(copies)
        for one in found:
            name = str(one.message_id)
            as_it_was = self.sent.get(name) == as_sent(one.payload).payload
            if not as_it_was or (one.state is MessageState.SCHEDULED) != (name in self.scheduled):
                result.altered.append(name)
        result.disordered = _disordered(found)


async def _send(messaging: AzureMessaging, queue: str, payloads: Sequence[bytes]) -> None:
    sender = messaging.sender(queue)
    for start in range(0, len(payloads), BATCH_MESSAGES):
        await sender.send(payloads[start : start + BATCH_MESSAGES], timeout_seconds=60)
    await sender.close()


async def _settle(messaging: AzureMessaging, queue: str, messages: int, how: Disposition) -> None:
    """What a consumer did with so many messages."""
    receiver = messaging.receiver(queue)
    while messages:
        received = await receiver.receive(min(messages, BROWSED_MESSAGES), wait_seconds=30)
        await asyncio.gather(*(receiver.settle(one, how, reason="Broken", description="by a test") for one in received))
        messages -= len(received)
    await receiver.close()


async def _lying(messaging: AzureMessaging, queue: str, *, dead_letter: bool = False) -> list[Received]:
    receiver: MessageReceiver = messaging.receiver(queue, dead_letter=dead_letter)
    found: list[Received] = []
    while page := await receiver.peek(
        BROWSED_MESSAGES, from_sequence_number=found[-1].sequence_number + 1 if found else 1
    ):
        found += page
    await receiver.close()
    return found


async def _state(messaging: AzureMessaging, queue: str, session: str) -> bytes | None:
    receiver = messaging.receiver(queue, session_id=session)
    try:
        return await receiver.session_state()
    finally:
        await receiver.close()


def _disordered(found: Sequence[Received]) -> list[str]:
    """Sessions in which a message first arrived after one that was sent later."""
    first: dict[str, None] = {}
    last: dict[str, str] = {}
    wrong = []
    for one in found:
        name, session = str(one.message_id), one.session_id
        if session is None or name in first:
            continue
        first[name] = None
        if name < last.get(session, ""):
            wrong.append(f"{session}: {name} after {last[session]}")
        last[session] = name
    return wrong


def campaign(seed: int, *, messages: int, kills: int, say: Callable[[str], None], within: bool = False) -> Result:
    """Play one seed's story in a folder of its own."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="sbpair-recover-") as folder:
        place = Place(Path(folder), chance, within=within)
        place.open()
        try:
            asyncio.run(place.fill(messages))
            result = Result(sent=len(place.sent), within=within)
            began = time.monotonic()
            _kill(place, result, kills, say)
            result.exits = tuple(_to_the_end(place, queue) for queue in (PLAIN, SESSIONS))
            result.seconds = time.monotonic() - began
            asyncio.run(place.judge(result))
            return result
        finally:
            place.close()


def _kill(place: Place, result: Result, kills: int, say: Callable[[str], None]) -> None:
    queues = [PLAIN, SESSIONS]
    while result.kills < kills and queues:
        queue = queues[result.kills % len(queues)]
        before = place.recorded_bytes(queue)
        slowly = ("--rate", str(SLOW_MESSAGES_A_SECOND)) if place.chance.random() < 0.5 else ()
        process = place.start(queue, *slowly)
        try:
            deadline = time.monotonic() + UNTIL_IT_MOVES_SECONDS
            while process.poll() is None and place.recorded_bytes(queue) == before and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(place.chance.random() * 0.7)
            if process.poll() is not None:
                queues.remove(queue)  # it is through
                continue
        finally:
            process.kill()
            process.communicate()
        result.kills += 1
        moved = place.recorded_bytes(queue) > before
        result.kills_after_moving += moved
        say(f"kill {result.kills}/{kills} of the move of {queue}: {'it had' if moved else 'it had not'} moved messages")


def _to_the_end(place: Place, queue: str) -> int:
    """Run it until it says that nothing is left; its last exit code."""
    code = Exit.FAILED.value
    for _ in range(MOST_RUNS_AFTERWARDS):
        process = place.start(queue)
        process.communicate(timeout=3600)
        code = process.returncode
        if code == Exit.OK:
            break
    return code


def report(seed: int, result: Result) -> str:
    """What became of the messages, in one line."""
    wrong = {name: getattr(result, name)[:5] for name in ("lost", "altered", "disordered", "states")}
    return (
        f"seed {seed}: {result.sent:,} sent, {len(result.lost)} lost, {len(result.altered)} altered, "
        f"{len(result.disordered)} out of order, {len(result.states)} states wrong, {result.doubles} doubles, "
        f"{result.left} left; {result.kills_after_moving} of {result.kills} kills hit a move that had moved something; "
        f"{result.seconds:.0f} s; {'holds' if result.holds else f'FAILED: {wrong}, exits {result.exits}'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.recover", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--within", action="store_true", help="move within one namespace")
    arguments = parser.parse_args()
    result = campaign(
        arguments.seed,
        messages=arguments.messages,
        kills=arguments.kills,
        say=lambda text: print(text, flush=True),
        within=arguments.within,
    )
    print(report(arguments.seed, result), flush=True)
    sys.exit(not result.holds)


if __name__ == "__main__":
    main()
