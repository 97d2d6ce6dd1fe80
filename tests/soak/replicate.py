"""A soak of active/active: two regions that go dark and slow, consumers killed with -9, and the proof from a log.

    python -m tests.soak.replicate --messages 10000 --sessions 500 --seed 1

Embedded namespaces run in this process; consumers are real `sbpair replicate consume` processes of a queue and of a
topic's subscription that have the same sessions and message ids. All share one SQLite journal and run a shell script
per message. In every session two producers send: ours, and one as anybody writes it, without a journal or stamps, which
gives each side all messages in order, sends again what it got no answer for, and schedules the second copy. The script
appends a line to one log when it begins and one when it ends, so the log is the order in which things really happened:

* every message has an end,
* between a begin and its end nothing of the same session begins, unless the handler was killed,
* the first ends of a session's messages are, for each producer, in the order of sending,
* a message that ended twice was the last that a killed consumer ran in its session.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sbpair.azure.messaging import AzureMessaging
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.errors import ServiceError
from sbpair.core.pairing import Side
from sbpair.core.replication.ownership import SessionState
from sbpair.core.rewrite import compose
from sbpair.emulator import Emulator
from sbpair.emulator.entities import QueueDescription, SubscriptionDescription
from sbpair.journal.sqlite import SqliteJournal
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.links import close_quietly
from sbpair.runtime.replication.sender import DualSender
from sbpair.runtime.replication.store import MESSAGE, SESSION, destination_of

ROOT = Path(__file__).parents[2]
QUEUE, TOPIC, SUBSCRIPTION = "parcels", "events", "billing"
SOURCES = {QUEUE: QUEUE, TOPIC: f"{TOPIC}/Subscriptions/{SUBSCRIPTION}"}
"""What is sent to, and where it is consumed."""
PAIR = "soak"
HANDLER = """\
echo "B $SOAK_ENTITY/$SBPAIR_SESSION_ID $SOAK_ENTITY/$SBPAIR_MESSAGE_ID $PPID $SBPAIR_FENCE" >> "$SOAK_LOG"
cat > /dev/null
echo "E $SOAK_ENTITY/$SBPAIR_SESSION_ID $SOAK_ENTITY/$SBPAIR_MESSAGE_ID $PPID $SBPAIR_FENCE" >> "$SOAK_LOG"
"""
LEASE, MARGIN = "4s", "500ms"
LOCK_SECONDS = 10.0
DELAY_SECONDS = 2.0
SEND_SECONDS = 3.0
SENDERS = 16
EMPTY_SECONDS = 240.0
MOST_SHOWN = 20


@dataclass(frozen=True)
class Plan:
    """What the soak does. Durations in seconds."""

    messages: int
    """Of both entities together."""
    sessions: int
    """Of each entity."""
    seed: int
    consumers: int = 3
    trouble_every: float = 5.0
    troubles: int | None = None
    """Afterwards it is calm; None: never before the last message has ended."""
    kills: int = 0
    """At least so many before the calm."""
    dark_seconds: float = 0.0
    """For so long the primary is dark at once, after half of the messages were sent."""
    limit: float = 1_800.0
    concurrency: int = 8
    rate: float = 40.0
    """Messages sent a second at most, so that sending lasts as long as the trouble does."""

    @property
    def messages_before_kill(self) -> int:
        """A consumer has processed so many before it is killed. On a busy machine a start takes longer than the time
        between two troubles: consumers that were killed as soon as they worked would never come to an end."""
        return max(1, self.messages // (4 * max(self.kills, 10)))


@dataclass
class Outcome:
    """What the log and the queues show in the end; `wrong` is empty if all is well."""

    messages: int = 0
    sessions: int = 0
    seed: int = 0
    seconds: float = 0.0
    seconds_to_empty: float = 0.0
    """From the last message's end, and the end of all trouble, until no copy was left."""
    sent_to_both: int = 0
    sent_to_one: int = 0
    sent_by_anybody: int = 0
    sent_again_by_anybody: int = 0
    sends_tried_again: int = 0
    kills: int = 0
    kills_inside_handlers: int = 0
    dark: int = 0
    slow: int = 0
    processed: int = 0
    processed_twice_after_kill: int = 0
    journal_entries: dict[str, int] = field(default_factory=dict)
    unrecorded: int = 0
    """Messages whose record is not written yet: what became of them stands in their session's entry."""
    left: dict[str, int] = field(default_factory=dict)
    dead_lettered: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Line:
    """One line of the handlers' log."""

    begins: bool
    session: str
    message: str
    consumer: int
    fence: int


class Soak:
    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.draw = random.Random(plan.seed)
        self.log = folder / "handled.log"
        self.log.touch()
        self.outcome = Outcome(messages=plan.messages, sessions=plan.sessions, seed=plan.seed)
        self.processes: dict[subprocess.Popen[bytes], str] = {}
        self.killed: set[int] = set()
        self.sent: dict[tuple[str, str], list[str]] = defaultdict(list)
        """By entity/session and producer."""
        self.begun = 0

    async def run(self) -> Outcome:
        began = time.monotonic()
        async with Emulator([side.value for side in Side], seed=self.plan.seed) as self.emulator:
            self._set_up()
            try:
                await self._play()
            finally:
                for process in self.processes:
                    process.terminate()
                for process in self.processes:
                    await asyncio.to_thread(process.wait)
            self._count_all()
        self._prove()
        self.outcome.seconds = round(time.monotonic() - began, 1)
        return self.outcome

    def _set_up(self) -> None:
        for side in Side:
            settings = QueueDescription(
                requires_session=True, lock_duration_seconds=LOCK_SECONDS, max_delivery_count=2_000_000_000
            )
            namespace = self.emulator.namespace(side.value)
            namespace.create_queue(QUEUE, settings)
            namespace.create_topic(TOPIC)
            of_topic = SubscriptionDescription(
                requires_session=True, lock_duration_seconds=LOCK_SECONDS, max_delivery_count=2_000_000_000
            )
            namespace.create_subscription(TOPIC, SUBSCRIPTION, of_topic)
        (self.folder / "handler.sh").write_text(HANDLER)
        sides = "\n".join(
            f"    {side}: {{namespace: {side}, host: localhost, connection_string: {{env: SOAK_{side.name}}}}}"
            for side in Side
        )
        (self.folder / "sbpair.yaml").write_text(f"version: 1\npairs:\n  {PAIR}:\n{sides}\n")

    async def _play(self) -> None:
        for number in range(self.plan.consumers):
            self._start(list(SOURCES)[number % len(SOURCES)])
        troubles = [asyncio.create_task(self._trouble()), asyncio.create_task(self._long_dark())]
        try:
            await self._send()
            await self._await_all()
        finally:
            for trouble in troubles:
                trouble.cancel()
            await asyncio.gather(*troubles, return_exceptions=True)
            for side in Side:
                self.emulator.faults(side.value).clear()
        await self._await_empty()

    # Consumers

    def _start(self, entity: str) -> None:
        command = [
            sys.executable, "-m", "sbpair", "replicate", "consume", PAIR, SOURCES[entity], "--quiet",
            "--journal", f"sqlite:{self.folder / 'journal.db'}", "--exec", f"sh {self.folder / 'handler.sh'}",
            "--exec-env", "SOAK_LOG", "--exec-env", "SOAK_ENTITY",
            "--lease", LEASE, "--margin", MARGIN, "--attempts", "50",
            "--concurrency", str(self.plan.concurrency), "--sessions", "64",
        ]  # fmt: skip
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SBPAIR_")} | {
            "SOAK_LOG": str(self.log),
            "SOAK_ENTITY": entity,
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.folder),
            **{f"SOAK_{one.name}": self.emulator.connection_string(one.value) for one in Side},
        }
        with (self.folder / "consumers.log").open("ab") as talk:
            process = subprocess.Popen(
                command, env=environ, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=talk, stderr=talk
            )
        self.processes[process] = entity

    async def _kill_one(self) -> None:
        done = Counter(line.consumer for line in self._lines() if not line.begins)
        at_work = [process for process in self.processes if done[process.pid] >= self.plan.messages_before_kill]
        if not at_work:
            return  # all of them are new: who is killed before it has done anything proves nothing
        process = self.draw.choice(at_work)
        entity = self.processes.pop(process)
        process.kill()
        await asyncio.to_thread(process.wait)
        self.killed.add(process.pid)
        self.outcome.kills += 1
        await asyncio.sleep(self.draw.uniform(0.0, 1.0))
        self._start(entity)

    async def _long_dark(self) -> None:
        """One region is gone for long, while messages are sent and processed."""
        while self.plan.dark_seconds and self.begun < self.plan.messages / 2:
            await asyncio.sleep(0.2)
        if self.plan.dark_seconds:
            self.outcome.dark += 1
            self.emulator.faults(Side.PRIMARY.value).add(f"dark:for={self.plan.dark_seconds:g}s")

    async def _trouble(self) -> None:
        """One thing after another goes wrong: a kill, a region in the dark, a slow one."""
        numbers = itertools.count() if self.plan.troubles is None else range(self.plan.troubles)
        for _ in numbers:
            await asyncio.sleep(self.draw.uniform(0.3, 1.7) * self.plan.trouble_every)
            which = self.draw.random()
            if which < 0.5 or self.outcome.kills < self.plan.kills:
                await self._kill_one()
                continue
            side = self.draw.choice(list(Side))
            faults = self.emulator.faults(side.value)
            seconds = self.draw.uniform(0.2, 1.2) * self.plan.trouble_every
            if which < 0.8:
                self.outcome.dark += 1
                faults.add(f"dark:for={seconds:.2f}s")
            else:
                self.outcome.slow += 1
                faults.add(f"delay:rtt={self.draw.randrange(50, 400)}ms,for={seconds:.2f}s")
            await asyncio.sleep(seconds)

    # Messages

    async def _send(self) -> None:
        """All messages, those of a session in order; what neither side took is sent again until one does."""
        messaging = [AzureMessaging(self._access(side)) for side in Side]
        journal = SqliteJournal(self.folder / "journal.db")
        senders = {
            entity: DualSender(
                entity,
                primary=messaging[0],
                secondary=messaging[1],
                clock=LoopClock(),
                journal=journal,
                delay_seconds=DELAY_SECONDS,
            )
            for entity in SOURCES
        }
        self._messaging = dict(zip(Side, messaging, strict=True))
        # So many at once of anybody's: hundreds that open links together would all run out of their time for ever.
        self._slots = {side: asyncio.Semaphore(SENDERS) for side in Side}
        try:
            free = asyncio.Semaphore(SENDERS)
            lanes = [(entity, session, ids) for entity in SOURCES for session, ids in self._lanes().items()]
            await asyncio.gather(*(self._send_session(senders[one[0]], *one, free) for one in lanes))
        finally:
            await asyncio.gather(*(sender.close() for sender in senders.values()))
            await asyncio.gather(*(one.close() for one in messaging), journal.close())

    def _lanes(self) -> dict[str, list[str]]:
        """Ids of each session's messages; `a` for those of anybody, `o` for our own."""
        lanes: dict[str, list[str]] = {f"s{number:04}": [] for number in range(self.plan.sessions)}
        names = list(lanes)
        for number in range(self.plan.messages // len(SOURCES)):
            session = names[number] if number < len(names) else self.draw.choice(names)
            lanes[session].append(f"{session}-{len(lanes[session]):05}-{self.draw.choice('ao')}")
        return lanes

    async def _send_session(
        self, sender: DualSender, entity: str, session: str, ids: list[str], free: asyncio.Semaphore
    ) -> None:
        key = f"{entity}/{session}"
        theirs: dict[Side, asyncio.Task[None] | None] = dict.fromkeys(Side)
        for message in ids:
            async with free:
                self.begun += 1
                if message.endswith("o"):
                    await self._send_one(sender, session, message)
                else:
                    for side, before in theirs.items():
                        theirs[side] = asyncio.create_task(
                            self._send_as_anybody(entity, side, session, message, before)
                        )
                    self.outcome.sent_by_anybody += 1
                self.sent[key, message[-1]].append(f"{entity}/{message}")
                await asyncio.sleep(SENDERS / self.plan.rate)
        await asyncio.gather(*(one for one in theirs.values() if one is not None))

    async def _send_as_anybody(
        self, entity: str, side: Side, session: str, message: str, before: "asyncio.Task[None] | None"
    ) -> None:
        """One copy, after the one before it on that side, until the side takes it."""
        if before is not None:
            await before
        while True:
            sender = self._messaging[side].sender(entity)
            later = time.time() + DELAY_SECONDS if side is Side.SECONDARY else None
            payload = compose(
                body=f"{message} is on its way", message_id=message, session_id=session, scheduled_at=later
            )
            async with self._slots[side]:
                try:
                    await sender.send([payload], timeout_seconds=SEND_SECONDS)
                    return
                except ServiceError:
                    self.outcome.sent_again_by_anybody += 1
                finally:
                    await close_quietly(sender)
            await asyncio.sleep(0.5)

    async def _send_one(self, sender: DualSender, session: str, message: str) -> None:
        payload = compose(body=f"{message} is on its way", message_id=message, session_id=session)
        while True:
            try:
                result = await sender.send(payload, timeout_seconds=SEND_SECONDS)
            except ServiceError:
                self.outcome.sends_tried_again += 1
                await asyncio.sleep(0.2)
                continue
            if len(result.accepted) == len(Side):
                self.outcome.sent_to_both += 1
            else:
                self.outcome.sent_to_one += 1
            return

    def _access(self, side: Side) -> NamespaceAccess:
        text = self.emulator.connection_string(side.value)
        return NamespaceAccess(
            label=side.value, host=host_of(text), auth=AuthMethod.CONNECTION_STRING, connection_string=Secret(text)
        )

    # The end

    async def _await_all(self) -> None:
        """Trouble goes on until the last message has ended."""
        deadline = time.monotonic() + self.plan.limit
        while time.monotonic() < deadline:
            if len({line.message for line in self._lines() if not line.begins}) >= self.plan.messages:
                return
            if any(process.poll() is not None for process in self.processes):
                self.outcome.wrong.append("a consumer ended by itself")
                return
            await asyncio.sleep(0.5)
        self.outcome.wrong.append(f"not all messages were processed within {self.plan.limit:g} s")

    async def _await_empty(self) -> None:
        deadline = time.monotonic() + (5 if self.outcome.wrong else EMPTY_SECONDS)
        began = time.monotonic()
        while time.monotonic() < deadline and any(self._count(side)[0] for side in Side):
            await asyncio.sleep(0.2)
        self.outcome.seconds_to_empty = round(time.monotonic() - began, 1)

    def _count(self, side: Side) -> tuple[int, int]:
        namespace = self.emulator.namespace(side.value)
        found = [namespace.get_queue(QUEUE), namespace.get_subscription(TOPIC, SUBSCRIPTION)]
        counts = [one.counts() for one in found if one is not None]
        if len(counts) != len(SOURCES):
            raise RuntimeError(f"a queue of {side} is gone")
        waiting = sum(one.active + one.scheduled for one in counts)
        return waiting + self._scheduled(side), sum(one.dead_letter for one in counts)

    def _scheduled(self, side: Side) -> int:
        """Scheduled messages of a topic are in no subscription yet."""
        topic = self.emulator.namespace(side.value).get_topic(TOPIC)
        return 0 if topic is None else topic.counts().scheduled

    def _count_all(self) -> None:
        for side in Side:
            self.outcome.left[side], self.outcome.dead_lettered[side] = self._count(side)

    def _lines(self) -> Iterator[Line]:
        with self.log.open() as log:
            for text in log:
                kind, session, message, consumer, fence = text.split()
                yield Line(kind == "B", session, message, int(consumer), int(fence))

    def _prove(self) -> None:
        outcome, wrong = self.outcome, self.outcome.wrong
        by_session: dict[str, list[Line]] = defaultdict(list)
        for line in self._lines():
            by_session[line.session].append(line)
        for (session, producer), sent in self.sent.items():
            self._prove_order(sent, [line for line in by_session[session] if line.message.endswith(producer)])
        for lines in by_session.values():
            self._prove_session(lines)
        if set(by_session) - {session for session, _ in self.sent}:
            wrong.append("sessions were processed that nobody sent")
        for what, counted in (("left", outcome.left), ("dead-lettered", outcome.dead_lettered)):
            wrong += [f"{count} {what} on the {side}" for side, count in counted.items() if count]
        self._prove_journal()

    def _prove_journal(self) -> None:
        """It knows every message to be completed: by a record, or, until that is written, by its session's entry."""
        with contextlib.closing(sqlite3.connect(self.folder / "journal.db")) as file:
            self.outcome.journal_entries = dict(file.execute("SELECT kind, count(*) FROM entries GROUP BY kind"))
            known, entries = (
                [json.loads(text) for (text,) in file.execute("SELECT document FROM entries WHERE kind = ?", (kind,))]
                for kind in (MESSAGE, SESSION)
            )
        recorded = {(one["destination"], one["finished"]["message_id"]): one["finished"]["state"] for one in known}
        recent = {
            (entry["destination"], one["message_id"]): one["state"] for entry in entries for one in entry["recent"]
        }
        self.outcome.unrecorded = len(recent.keys() - recorded.keys())
        sent = {
            (destination_of(SOURCES[entity]), message.removeprefix(f"{entity}/"))
            for (session, _), messages in self.sent.items()
            for entity in [session.partition("/")[0]]
            for message in messages
        }
        completed = {name for name, state in (recent | recorded).items() if state == SessionState.COMPLETED}
        if completed != sent:
            self.outcome.wrong.append(
                f"the journal does not know {sorted(sent - completed)[:5]}, knows {sorted(completed - sent)[:5]}"
            )

    def _prove_order(self, sent: list[str], lines: list[Line]) -> None:
        firsts = list(dict.fromkeys(line.message for line in lines if not line.begins))
        self.outcome.processed += len(firsts)
        if firsts != sent:
            self.outcome.wrong.append(f"sent {sent[:5]}..., first processed in the order {firsts[:5]}...")

    def _prove_session(self, lines: list[Line]) -> None:
        wrong = self.outcome.wrong
        ends = Counter(line.message for line in lines if not line.begins)
        for message in (one for one, count in ends.items() if count > 1):
            self._excuse(message, [line for line in lines if not line.begins])
        running: Line | None = None
        for line in lines:
            if line.begins:
                if running is not None and running.consumer not in self.killed:
                    wrong.append(f"{line.message} began while {running.message} was running")
                elif running is not None:
                    self.outcome.kills_inside_handlers += 1
                running = line
            elif running is not None and (line.message, line.fence) == (running.message, running.fence):
                running = None
            else:
                wrong.append(f"{line.message} ended although it was not running")

    def _excuse(self, message: str, ends: list[Line]) -> None:
        """All but the last of its ends have to be the last thing that a killed consumer did in the session."""
        of_message = [line for line in ends if line.message == message]
        for line in of_message[:-1]:
            last = [one for one in ends if one.consumer == line.consumer][-1]
            if line.consumer in self.killed and last is line:
                self.outcome.processed_twice_after_kill += 1
            else:
                self.outcome.wrong.append(f"{message} was processed twice by consumers that were not killed")


def soak(plan: Plan, folder: Path) -> Outcome:
    """Play the plan in a folder that is empty."""
    return asyncio.run(Soak(plan, folder).run())


def main() -> int:
    parser = argparse.ArgumentParser(description="Soak of active/active; prints the outcome as JSON, exit 1 if wrong.")
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trouble-every", type=float, default=5.0, help="seconds between troubles, on average")
    parser.add_argument("--kills", type=int, default=30, help="at least so many")
    parser.add_argument("--dark", type=float, default=60.0, help="seconds of the primary's long outage")
    parser.add_argument("--rate", type=float, default=40.0, help="messages sent a second at most")
    parser.add_argument("--limit", type=float, default=1_800.0, help="seconds")
    given = parser.parse_args()
    plan = Plan(
        given.messages,
        given.sessions,
        given.seed,
        trouble_every=given.trouble_every,
        kills=given.kills,
        dark_seconds=given.dark,
        limit=given.limit,
        rate=given.rate,
    )
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sbpair-soak-")))
        outcome = soak(plan, folder)
        del outcome.wrong[MOST_SHOWN:]
        talk = (folder / "consumers.log").read_text(errors="replace")
    print(json.dumps(asdict(outcome), indent=2))
    if outcome.wrong:
        print(talk[-4_000:], file=sys.stderr)
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
