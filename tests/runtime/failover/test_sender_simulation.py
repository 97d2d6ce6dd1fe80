"""Weeks of trouble in a second: many senders, random faults on both sides, virtual time, one seed per history.

Checked at the end of each history:
* a message reported accepted and certain has exactly one home; an uncertain one at least one;
* a message whose error is certain has none;
* nothing is pinged while healthy, and at most once per interval;
* an entity fails over exactly when the timer it announced is over;
* after the close nothing is sent.
"""

import asyncio
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import pytest

from sbpair.core.errors import (
    ConnectionLostError,
    EntityDisabledError,
    EntityNotFoundError,
    InterruptedWorkError,
    OperationTimeoutError,
    QuotaExceededError,
    SendIncompleteError,
    ServerBusyError,
    ServiceError,
    ServiceInternalError,
)
from sbpair.core.events import EntityInvalid, FailedBack, FailedOver, PingSent, SendFailed
from sbpair.core.failover.machine import CALM_SECONDS
from sbpair.core.rewrite import for_primary
from sbpair.runtime.failover.sender import SendResult
from tests.fakes import EPOCH, virtual_time
from tests.runtime.failover.pairs import World, message, opened

ENTITIES = ("orders", "invoices")
ERRORS = (
    ConnectionLostError,
    EntityDisabledError,
    EntityNotFoundError,
    OperationTimeoutError,
    QuotaExceededError,
    ServerBusyError,
    ServiceInternalError,
)
LOST_ANSWERS = (ConnectionLostError, OperationTimeoutError)
"""The errors after which the effect may have happened; all others are reported before it."""
SENDERS, SENDS_EACH, PING_SECONDS = 12, 25, 20.0


@dataclass
class Outcomes:
    """What the senders were told, by message id."""

    results: dict[str, SendResult] = field(default_factory=dict)
    errors: dict[str, ServiceError] = field(default_factory=dict)
    interrupted: set[str] = field(default_factory=set)

    async def send(self, world: World, entity: str, batch: list[str], session: str | None, timeout: float) -> None:
        payloads = [message(one, session=session) for one in batch]
        try:
            result = await world.pairing.sender(entity).send(payloads, timeout_seconds=timeout)
        except SendIncompleteError as error:
            for position, one in enumerate(batch):
                if position not in error.accepted:
                    self.errors[one] = error
        except ServiceError as error:
            self.errors.update(dict.fromkeys(batch, error))
        except InterruptedWorkError:
            self.interrupted.update(batch)
        else:
            self.results.update(dict.fromkeys(batch, result))


async def trouble(world: World, dice: random.Random) -> None:
    """Break and heal either side until cancelled."""
    while True:
        await asyncio.sleep(dice.uniform(0, 30))
        side = dice.choice([world.primary, world.primary, world.secondary])
        entity = dice.choice(["*", *ENTITIES] if side is world.primary else ["*", *world.pairing.backlog_queues])
        kind = dice.choice(ERRORS)
        fault = side.fail("send", kind("trouble"), entity=entity, after=kind in LOST_ANSWERS and dice.random() < 0.5)
        side.delays["send"] = dice.choice([0.0, 0.1, 3.0, 25.0])
        await asyncio.sleep(dice.uniform(0, 60))
        side.heal(fault)
        side.delays["send"] = 0.0


async def one_sender(world: World, number: int, dice: random.Random, outcomes: Outcomes) -> None:
    for turn in range(SENDS_EACH):
        await asyncio.sleep(dice.uniform(0, 20))
        batch = [f"{number}-{turn}-{part}" for part in range(dice.choice([1, 1, 1, 4]))]
        session = dice.choice([None, None, "a", "b"])
        await outcomes.send(world, dice.choice(ENTITIES), batch, session, dice.choice([5.0, 20.0, 60.0]))


def homes(world: World) -> Counter[str]:
    """How many copies of each message are stored, wherever."""
    counted = Counter(
        str(one.message_id) for entity in ENTITIES for one in world.primary.queue(entity).messages.values()
    )
    for payload in world.diverted_payloads():
        counted[str(for_primary(payload, now=EPOCH, enqueued_at=None).message_id)] += 1
    return counted


def check_homes(world: World, outcomes: Outcomes) -> None:
    counted = homes(world)
    for one, result in outcomes.results.items():
        assert counted[one] >= 1, f"{one} was reported accepted and is nowhere"
        assert counted[one] == 1 or result.uncertain, f"{one} has {counted[one]} homes and is not marked uncertain"
    for one, error in outcomes.errors.items():
        assert counted[one] == 0 or error.uncertain, f"{one} was reported failed for certain ({error!r}) and is stored"


def check_signals(world: World, interval: float) -> None:
    """Replay the events of each entity."""
    away: dict[str, bool] = defaultdict(bool)
    last_ping: dict[str, float] = defaultdict(lambda: float("-inf"))
    suspect_since: dict[str, float | None] = defaultdict(lambda: None)
    back_at: dict[str, float] = defaultdict(lambda: float("-inf"))
    for event in world.observer.events:
        if isinstance(event, SendFailed) and event.timer_seconds_left is not None:
            due = event.at + event.timer_seconds_left
            known = suspect_since[event.entity]
            assert known is None or due >= known - 1e-4, "a due time never moves back"
            suspect_since[event.entity] = due
        elif isinstance(event, FailedOver):
            due = suspect_since.pop(event.entity, None)
            if interval and due is None:
                assert event.at - back_at[event.entity] < CALM_SECONDS, "only a primary that has just returned"
            elif interval:
                assert event.at == pytest.approx(due, abs=0.01), "the timer that was started is the one that fired"
            away[event.entity] = True
        elif isinstance(event, FailedBack):
            away[event.entity] = False
            back_at[event.entity] = event.at
        elif isinstance(event, PingSent):
            started = event.at - event.seconds
            assert started - last_ping[event.entity] >= PING_SECONDS - 0.01
            last_ping[event.entity] = started
            assert away[event.entity] or (event.succeeded and event.at == _last_failback(world, event))
        else:
            assert not isinstance(event, EntityInvalid) or away[event.entity]


def _last_failback(world: World, ping: PingSent) -> float:
    return max(event.at for event in world.events(FailedBack) if event.entity == ping.entity and event.at <= ping.at)


@pytest.mark.parametrize("interval", [0.0, 15.0])
@pytest.mark.parametrize("seed", range(12))
def test_every_accepted_message_has_exactly_one_home(seed: int, interval: float) -> None:
    @virtual_time
    async def history() -> None:
        dice = random.Random(f"{seed} {interval}")
        outcomes = Outcomes()
        async with opened(interval=interval, ping=PING_SECONDS, queues=4, hold_sessions=seed % 3 == 0) as world:
            breaking = [asyncio.create_task(trouble(world, random.Random(dice.random()))) for _ in range(2)]
            sending = [
                asyncio.create_task(one_sender(world, number, random.Random(dice.random()), outcomes))
                for number in range(SENDERS)
            ]
            if seed % 2:
                await asyncio.sleep(dice.uniform(50, 300))
                await world.pairing.close(wait_seconds=dice.uniform(0, 20))
                calls = world.primary.calls.total() + world.secondary.calls.total()
            await asyncio.gather(*sending)
            if seed % 2:
                assert world.primary.calls.total() + world.secondary.calls.total() == calls, "sent after the close"
            for task in breaking:
                task.cancel()
        assert len(outcomes.results) > 20
        assert outcomes.errors
        check_homes(world, outcomes)
        check_signals(world, interval)

    history()
