"""The proof at the end of the demo: everything that was sent arrived, once, byte for byte, sessions in order."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbpair.cli.demo_messages import (
    QUEUE,
    SESSION_QUEUE,
    SUBSCRIPTIONS,
    TOPIC,
    DemoMessage,
    fingerprint,
    goes_to_audit,
    message_id_of,
)
from sbpair.core.message import Disposition, Received

if TYPE_CHECKING:
    from sbpair.ports import MessageReceiver, Messaging

BATCH = 200
LAST_LOOK_SECONDS = 1.0


def subscription_path(name: str) -> str:
    """Path of one of the demo topic's subscriptions."""
    return f"{TOPIC}/Subscriptions/{name}"


@dataclass(frozen=True, slots=True)
class Proof:
    """What arrived at one place, held against what was sent there."""

    place: str
    expected: int
    arrived: int
    missing: tuple[str, ...]
    doubled: tuple[str, ...]
    altered: tuple[str, ...]
    out_of_order: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not (self.missing or self.doubled or self.altered or self.out_of_order) and self.expected == self.arrived


def expected_places(messages: Iterable[DemoMessage]) -> dict[str, dict[str, str]]:
    """Place -> message id -> fingerprint, for queues and for the copies subscriptions get."""
    places: dict[str, dict[str, str]] = defaultdict(dict)
    for message in messages:
        mark = fingerprint(message.payload)
        if message.entity == TOPIC:
            for name in SUBSCRIPTIONS:
                if name != "audit" or goes_to_audit(message.message_id):
                    places[subscription_path(name)][message.message_id] = mark
        else:
            places[message.entity][message.message_id] = mark
    return dict(places)


async def prove(primary: "Messaging", messages: list[DemoMessage], *, patience_seconds: float) -> list[Proof]:
    """Receive everything at every place and compare. An empty place is believed after `patience_seconds`, which has
    to cover the time until the last scheduled message is due."""
    expected = expected_places(messages)
    sessions = Counter(message.session_id for message in messages if message.session_id is not None)
    plain = [QUEUE, *(subscription_path(name) for name in SUBSCRIPTIONS)]
    receiving = [
        *(_receive_all(primary.receiver(place), len(expected.get(place, ())), patience_seconds) for place in plain),
        _receive_sessions(primary, sessions, patience_seconds),
    ]
    arrived = await asyncio.gather(*receiving)
    places = [*plain, SESSION_QUEUE]
    return [compare(place, expected.get(place, {}), found) for place, found in zip(places, arrived, strict=True)]


async def _receive_sessions(primary: "Messaging", expected: Counter[str], patience_seconds: float) -> list[Received]:
    receiving = [
        _receive_all(primary.receiver(SESSION_QUEUE, session_id=session), count, patience_seconds)
        for session, count in expected.items()
    ]
    return [one for found in await asyncio.gather(*receiving) for one in found]


async def _receive_all(receiver: "MessageReceiver", expected: int, patience_seconds: float) -> list[Received]:
    """Everything there is. One more look follows the expected number, so that a surplus message is not missed."""
    found: list[Received] = []
    try:
        while True:
            wait_seconds = LAST_LOOK_SECONDS if len(found) >= expected else patience_seconds
            batch = await receiver.receive(BATCH, wait_seconds=wait_seconds)
            if not batch:
                return found
            await asyncio.gather(*(receiver.settle(one, Disposition.COMPLETE) for one in batch))
            found += batch
    finally:
        await receiver.close()


def compare(place: str, expected: dict[str, str], arrived: list[Received]) -> Proof:
    ids = [message_id_of(one.payload) for one in arrived]
    counted = Counter(ids)
    altered = {name for name, one in zip(ids, arrived, strict=True) if expected.get(name) != fingerprint(one.payload)}
    return Proof(
        place=place,
        expected=len(expected),
        arrived=len(arrived),
        missing=tuple(sorted(set(expected) - set(ids))),
        doubled=tuple(sorted(name for name, count in counted.items() if count > 1)),
        altered=tuple(sorted(altered)),
        out_of_order=tuple(_out_of_order(zip(ids, arrived, strict=True))),
    )


def _out_of_order(arrived: Iterable[tuple[str, Received]]) -> Iterable[str]:
    """Messages of a session that came after a later one; ids grow in the order of sending."""
    last: dict[str, str] = {}
    for name, one in arrived:
        if one.session_id is None:
            continue
        if name < last.get(one.session_id, ""):
            yield name
        last[one.session_id] = max(name, last.get(one.session_id, ""))
