"""A pairing over two namespaces in memory, ready to be broken."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sbpair.core.access import NamespaceAccess
from sbpair.core.events import Event, PingSent
from sbpair.core.failover.machine import DOCUMENTED, Policy, State
from sbpair.core.pairing import Pair, SendAvailabilityOptions
from sbpair.core.rewrite import compose
from sbpair.runtime.failover.pairing import PairedNamespaces, PairingContext
from tests.fakes import FakeClock, FakeMessaging, FakeNamespace, FakeSender, RecordingObserver

E = TypeVar("E", bound=Event)


class CountingMessaging(FakeMessaging):
    """Counts the links it opens, by entity."""

    def __init__(self, namespace: FakeNamespace, opened: Counter[str]) -> None:
        super().__init__(namespace)
        self._opened = opened

    def sender(self, entity: str) -> FakeSender:
        self._opened[entity.lower()] += 1
        return super().sender(entity)


@dataclass
class World:
    clock: FakeClock
    primary: FakeNamespace
    secondary: FakeNamespace
    observer: RecordingObserver
    draws: list[float]
    """The next random numbers; 0.5 when it is empty."""
    links_opened: Counter[str] = field(default_factory=Counter)
    primary_messaging: FakeMessaging = field(init=False)
    secondary_messaging: FakeMessaging = field(init=False)
    pairing: PairedNamespaces = field(init=False)

    def __post_init__(self) -> None:
        self.primary_messaging = CountingMessaging(self.primary, self.links_opened)
        self.secondary_messaging = CountingMessaging(self.secondary, self.links_opened)

    def draw(self) -> float:
        return self.draws.pop(0) if self.draws else 0.5

    def events(self, kind: type[E]) -> list[E]:
        return self.observer.of(kind)

    def pings(self) -> int:
        return len(self.observer.of(PingSent))

    def state_of(self, entity: str) -> State:
        return next(one.state for one in self.pairing.state().entities if one.entity == entity)

    def diverted_payloads(self) -> list[bytes]:
        return [payload for queue in self.secondary.entities.values() for payload in queue.payloads]


def message(message_id: str, *, session: str | None = None, scheduled_at: float | None = None) -> bytes:
    return compose(body=f"body of {message_id}", message_id=message_id, session_id=session, scheduled_at=scheduled_at)


def a_pair(*, interval: float = 0.0, ping: float = 60.0, queues: int = 10, syphon: bool = False) -> Pair:
    return Pair(
        name="test",
        primary=NamespaceAccess("contoso", "contoso.servicebus.windows.net"),
        secondary=NamespaceAccess("fabrikam", "fabrikam.servicebus.windows.net"),
        options=SendAvailabilityOptions(
            backlog_queue_count=queues,
            failover_interval_seconds=interval,
            ping_interval_seconds=ping,
            enable_syphon=syphon,
        ),
    )


def a_world() -> World:
    clock = FakeClock()
    world = World(
        clock=clock,
        primary=FakeNamespace("contoso", clock),
        secondary=FakeNamespace("fabrikam", clock),
        observer=RecordingObserver(),
        draws=[],
    )
    for entity in ("orders", "invoices"):
        world.primary.add_queue(entity)
    return world


async def open_pairing(
    world: World, pair: Pair, *, policy: Policy = DOCUMENTED, create_missing: bool = True, **more: Any
) -> PairedNamespaces:
    return await PairedNamespaces.open(
        pair,
        PairingContext(
            primary=world.primary_messaging,
            secondary=world.secondary_messaging,
            clock=world.clock,
            observer=world.observer,
            policy=policy,
            draw=world.draw,
            **more,
        ),
        secondary_admin=world.secondary.admin(),
        create_missing=create_missing,
    )


@asynccontextmanager
async def opened(
    *, interval: float = 0.0, ping: float = 60.0, queues: int = 10, policy: Policy = DOCUMENTED, **more: Any
) -> AsyncIterator[World]:
    """A world with its pairing open; closed at the end."""
    world = a_world()
    world.pairing = await open_pairing(
        world, a_pair(interval=interval, ping=ping, queues=queues), policy=policy, **more
    )
    async with world.pairing:
        yield world
