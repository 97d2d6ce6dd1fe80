"""Drains under random faults, kills and restarts, in virtual time: nothing lost, order kept, doubles accounted for.

Every seed is one story. Each drain of it meets faults on both sides and is killed at a random moment (its client is
dead from then on, nothing is cleaned up); the last one is left alive and has to finish.
"""

import asyncio
import random

import pytest

from sbpair.core.entities import QueueSettings
from sbpair.core.errors import (
    ConnectionLostError,
    LinkDetachedError,
    LockLostError,
    OperationTimeoutError,
    ServerBusyError,
    ServiceInternalError,
)
from sbpair.core.rewrite import compose, describe, for_backlog
from sbpair.runtime.transfer.drain import DrainJob, TransferRequest, drain
from sbpair.runtime.transfer.ledger import Ledger
from tests.fakes import FakeClock, FakeNamespace, RecordingObserver, run_virtual

MESSAGES = 400
PATHS = tuple(f"primary/x-servicebus-transfer/{index}" for index in range(3))
DESTINATIONS = ("orders", "invoices", "events")
KINDS = (ConnectionLostError, OperationTimeoutError, ServiceInternalError, ServerBusyError)


class Story:
    def __init__(self, seed, tmp_path, *, duplicate_detection):
        self.chance = random.Random(seed)
        self.clock = FakeClock()
        self.secondary = FakeNamespace("secondary", self.clock)
        self.primary = FakeNamespace("primary", self.clock)
        self.ledger_path = tmp_path / "ledger.jsonl"
        for path in PATHS:
            lock_seconds = self.chance.choice([5.0, 20.0, 60.0])
            self.secondary.add_queue(path, QueueSettings(lock_duration_seconds=lock_seconds))
        for destination in DESTINATIONS:
            self.primary.add_queue(destination, QueueSettings(requires_duplicate_detection=duplicate_detection))
        self.sent = {}
        self.uncertain = set()

    def fill(self):
        for number in range(MESSAGES):
            session = f"s{self.chance.randrange(12)}" if self.chance.random() < 0.6 else None
            key = hash_of(session) if session else self.chance.randrange(1000)
            destination = DESTINATIONS[key % 3] if session else self.chance.choice(DESTINATIONS)
            payload = compose(body=b"x", message_id=f"{number:05}", session_id=session)
            self.sent[f"{number:05}"] = (destination, session)
            self.secondary.put(PATHS[key % 3], for_backlog(payload, destination))

    def add_faults(self):
        chance = self.chance
        for namespace in (self.secondary, self.primary):
            namespace.delays = {"send": chance.random(), "settle": chance.random() / 4, "receive": chance.random() / 4}
            for _ in range(chance.randrange(6)):
                kind = chance.choice(KINDS)
                operations = ["send", "limit"] if namespace is self.primary else ["receive", "settle", "renew", "peek"]
                operation = chance.choice(operations)
                after = kind in (ConnectionLostError, OperationTimeoutError) and operation in ("send", "settle")
                namespace.fail(
                    operation,
                    kind("chance"),
                    entity=chance.choice(["*", *(DESTINATIONS if namespace is self.primary else PATHS)]),
                    times=chance.randrange(1, 20),
                    skip=chance.randrange(10),
                    after=after and chance.random() < 0.5,
                )
        if chance.random() < 0.5:
            self.secondary.fail("settle", LockLostError("chance"), times=5, skip=chance.randrange(50))
        if chance.random() < 0.3:
            self.secondary.fail("receive", LinkDetachedError("chance"), times=3)

    async def one_drain(self, *, resume, kill_after=None):
        secondary, primary = self.secondary.messaging(), self.primary.messaging()
        ledger = Ledger(self.ledger_path, resume=resume)
        work = asyncio.create_task(
            drain(
                DrainJob(
                    TransferRequest(PATHS, concurrency=3, patience_seconds=100_000, unreached_seconds=100_000),
                    secondary=secondary,
                    primary=primary,
                    clock=self.clock,
                    observer=RecordingObserver(),
                    ledger=ledger,
                    stop=asyncio.Event(),
                )
            )
        )
        try:
            if kill_after is None:
                return await work
            await asyncio.sleep(kill_after)
            secondary.kill()
            primary.kill()
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            return None
        finally:
            await ledger.close()

    async def play(self):
        self.fill()
        for chapter in range(3):
            self.add_faults()
            await self.one_drain(resume=chapter > 0, kill_after=self.chance.random() * 40)
            self.secondary.heal()
            self.primary.heal()
        self.add_faults()
        return await self.one_drain(resume=True)

    def arrived(self):
        found = {}
        for destination in DESTINATIONS:
            for payload in self.primary.queue(destination).payloads:
                summary = describe(payload)
                found.setdefault(destination, []).append((summary.message_id, summary.session_id))
        return found


def hash_of(session):
    return int(session[1:])


@pytest.mark.parametrize("duplicate_detection", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_a_story_ends_well(seed, duplicate_detection, tmp_path):
    story = Story(seed, tmp_path, duplicate_detection=duplicate_detection)
    report = run_virtual(story.play())
    arrived = story.arrived()
    everything = [(message_id, destination) for destination, found in arrived.items() for message_id, _ in found]
    assert {(message_id, destination) for message_id, destination in everything} == {
        (message_id, destination) for message_id, (destination, _) in story.sent.items()
    }, "lost, or sent somewhere else"
    assert report.confirmed_empty
    assert not any(story.secondary.queue(f"{path}/$deadletterqueue").messages for path in PATHS)
    if duplicate_detection:
        assert len(everything) == MESSAGES
    for found in arrived.values():
        first_seen = dict.fromkeys(found)
        by_session = {}
        for message_id, session in first_seen:
            by_session.setdefault(session, []).append(message_id)
        by_session.pop(None, None)
        for numbers in by_session.values():
            assert numbers == sorted(numbers), "a session lost its order"
