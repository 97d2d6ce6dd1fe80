"""The gateway of a pair: its port, its pairing, and what it tells of itself.

async with open_gateway(pair, keys=[...]) as gateway:
    gateway.connection_string("checkout")
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from sbpair.azure.connect import make_messaging
from sbpair.core.failover.coupling import Condition
from sbpair.core.failover.machine import ROUTES, Route
from sbpair.core.failover.sending import DEFAULT_SEND_SECONDS, Budget
from sbpair.core.pairing import Pair
from sbpair.core.retry import SDK_RETRIES
from sbpair.engine import errors
from sbpair.engine.auth import LISTEN, SEND, Rights, Signer, rights_for
from sbpair.engine.clock import Clock
from sbpair.engine.clock import SystemClock as EngineClock
from sbpair.engine.connection import MANAGEMENT_SUFFIX
from sbpair.engine.faults import Faults
from sbpair.engine.link import Link, LinkHandler
from sbpair.engine.origins import is_loopback
from sbpair.engine.port import Port, ServerTls
from sbpair.gateway.door import DoorConnection, PassedLink
from sbpair.gateway.keys import Key, KeyRing
from sbpair.gateway.primary import Tokens
from sbpair.gateway.served import Sends, ServedSender, Transactions
from sbpair.gateway.web import Web
from sbpair.ports import Observer
from sbpair.runtime.clock import Quiet, SystemClock
from sbpair.runtime.failover.pairing import PairedNamespaces, PairingContext
from sbpair.runtime.failover.sender import FailoverSender

LOGGER = logging.getLogger("sbpair.gateway")
_DRAIN_LOOK_SECONDS: Final = 0.05
TRANSFER_PREFIX: Final = "/x-servicebus-transfer/"


@dataclass(slots=True)
class Counts:
    """What the gateway has done since it began."""

    accepted: int = 0
    diverted: int = 0
    refused: int = 0
    by_entity: dict[str, list[int]] = field(default_factory=dict)
    """Accepted, diverted and refused messages by queue or topic, in lower case."""


class House:
    """What stands behind all connections: the pair, its keys and counters. A `NamespaceView` of the engine."""

    allow_entra = False
    entra_rights: Mapping[str, Rights] = {}  # nobody changes it
    trace = None
    throttling = None
    capabilities: tuple[str, ...] = ()

    def __init__(self, pair: Pair, pairing: PairedNamespaces, ring: KeyRing, send_seconds: float) -> None:
        self.name = pair.primary.label
        self.pair = pair
        self.pairing = pairing
        self.ring = ring
        self.send_seconds = send_seconds
        self.answer_seconds = Budget(0.0, send_seconds).for_primary(0.0)
        self.tokens = Tokens(pair.primary)
        self.counts = Counts()
        self.clock: Clock = EngineClock()
        self.faults = Faults()
        self.closing = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def house(self) -> "House":
        return self

    @property
    def key_watchers(self) -> "set[Callable[[], None]]":
        return self.ring.watchers

    @property
    def holds_sessions(self) -> bool:
        return self.pairing.holds_sessions

    @property
    def sending(self) -> int:
        """Messages that are being sent by the gateway itself."""
        return len(self._tasks)

    def signers(self, path: str) -> Sequence[Signer]:
        return self.ring.signers(path)

    def entity_exists(self, path: str) -> bool:
        return True  # the primary says so at the attach

    def sender(self, entity: str) -> FailoverSender:
        return self.pairing.sender(entity)

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Do something that no connection waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOGGER.error("A link of the gateway for %s failed: %r", self.pair.name, error, exc_info=error)

    def accepted(self, entity: str, messages: int, diverted: int) -> None:
        """Messages of a client are safe, `diverted` of them in the backlog."""
        self.counts.accepted += messages
        self.counts.diverted += diverted
        figures = self.counts.by_entity.setdefault(entity.lower(), [0, 0, 0])
        figures[0] += messages
        figures[1] += diverted

    def refused(self, entity: str) -> None:
        """Neither side took a message."""
        self.counts.refused += 1
        self.counts.by_entity.setdefault(entity.lower(), [0, 0, 0])[2] += 1

    def troubles(self) -> list[str]:
        """What keeps the gateway from what it promises: neither side takes messages."""
        state = self.pairing.state()
        if self.closing:
            return ["The gateway is stopping."]
        primary_serves = state.primary in (Condition.OPEN, Condition.UNKNOWN) and not any(
            ROUTES[one.state] is not Route.PRIMARY for one in state.entities
        )
        found = self.pairing.verification
        if primary_serves or (found is not None and found.ready) or self.pairing.backlog_queue_count > 0:
            return []
        return [*(found.problems if found is not None else ()), f"{self.pair.primary.label} takes no messages."]

    async def close(self) -> None:
        self.closing = True
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.tokens.close()

    # -- `AttachService`

    def attach(self, link: Link) -> LinkHandler:
        """Take a client's link: on to the primary, or serve it here."""
        connection = link.connection
        management = link.address.lower().endswith(MANAGEMENT_SUFFIX)
        if not link.is_coordinator and not self._may(link, management):
            needed = "'Listen' or 'Send'" if management else "'Send'" if link.client_sends else "'Listen'"
            link.reject(
                errors.UNAUTHORIZED, f"Unauthorized access. {needed} claim(s) are required to perform this operation."
            )
            return LinkHandler()
        if not isinstance(connection, DoorConnection):
            raise TypeError("the gateway serves connections of its own only")
        if link.is_coordinator:
            if self._is_away:
                coordinator = Transactions(link, self)
                coordinator.open()
                return coordinator
            return self._pass(link, None)
        if not link.client_sends or management or not link.address:
            return self._pass(link, None)
        if TRANSFER_PREFIX in f"/{link.address.lower()}":
            link.reject(errors.NOT_ALLOWED, "A backlog queue takes no messages of applications.")
            return LinkHandler()
        sends = Sends(self, link.address)
        if sends.diverts:
            served = ServedSender(link, sends)
            served.open()
            return served
        return self._pass(link, sends)

    @property
    def _is_away(self) -> bool:
        """An entity's sends go to the backlog."""
        return any(ROUTES[one.state] is Route.BACKLOG for one in self.pairing.state().entities)

    def _may(self, link: Link, management: bool) -> bool:
        rights = rights_for(link.connection, link.address, self.clock.client_now())
        return bool(rights & ({SEND, LISTEN} if management else {SEND} if link.client_sends else {LISTEN}))

    def _pass(self, link: Link, sends: Sends | None) -> PassedLink:
        passed = PassedLink(link, sends)
        self.spawn(passed.attach())
        return passed


class Gateway:
    """An open gateway; made by `open_gateway`."""

    def __init__(self, house: House, port: Port, shown_host: str) -> None:
        self.house = house
        self.port = port
        self.shown_host = shown_host

    @property
    def endpoint(self) -> str:
        """Host and port for clients."""
        host = f"[{self.shown_host}]" if ":" in self.shown_host else self.shown_host
        return f"{host}:{self.port.number}"

    def connection_string(self, key: str, *, plain: bool = False) -> str:
        """What an application is given. `plain`: without TLS, as SDKs know it from Microsoft's emulator.

        Raises:
            KeyError: there is no such key.
        """
        found = next(one for one in self.house.ring.keys if one.name == key)
        text = f"Endpoint=sb://{self.endpoint};SharedAccessKeyName={found.name};SharedAccessKey={found.primary_key}"
        return f"{text};UseDevelopmentEmulator=true" if plain else text

    async def drain(self, grace_seconds: float) -> int:
        """Take no more clients, and close each connection as soon as nothing of it is unsettled, all of them after
        `grace_seconds`. How many were closed with something unsettled."""
        self.house.closing = True
        self.port.take_no_more()
        until = self.house.now() + grace_seconds
        left = self._doors()
        while left and self.house.now() < until:
            for door in left:
                if door.is_settled and not self.house.sending:
                    door.close("amqp:connection:forced", "The gateway is stopping.")
            await asyncio.sleep(_DRAIN_LOOK_SECONDS)
            left = self._doors()
        for door in left:
            door.close("amqp:connection:forced", "The gateway is stopping.")
        await asyncio.sleep(_DRAIN_LOOK_SECONDS)
        return len(left)

    def _doors(self) -> list[DoorConnection]:
        return [one for one in self.port.connections if isinstance(one, DoorConnection) and not one.is_closing]


@asynccontextmanager
async def open_gateway(
    pair: Pair,
    keys: Sequence[Key],
    tls: ServerTls,
    *,
    host: str = "127.0.0.1",
    number: int = 0,
    names: Sequence[str] = (),
    observer: Observer | None = None,
    send_seconds: float = DEFAULT_SEND_SECONDS,
) -> AsyncIterator[Gateway]:
    """Listen for clients of a pair while the context lasts.

    Args:
        keys: what clients sign in with.
        tls: the certificate. Without TLS clients are let in on a loopback `host` only.
        number: the port; 0 for any free one.
        names: host names that HTTP clients may call it by, beyond localhost and addresses.
        send_seconds: what a message has, on the primary (three quarters of it) and on the backlog together.

    Raises:
        ConfigurationError: the credential of a side may not go where it would.
        OSError: the port cannot be listened on.
    """
    primary, secondary = make_messaging(pair.primary), make_messaging(pair.secondary)
    pairing = await PairedNamespaces.open(
        pair,
        PairingContext(
            primary=primary,
            secondary=secondary,
            clock=SystemClock(),
            observer=observer or Quiet(),
            retries=SDK_RETRIES,
        ),
    )
    async with pairing:
        house = House(pair, pairing, KeyRing(keys), send_seconds)
        port = Port(
            house,
            house,
            tls,
            Web(house).runner,
            host,
            number,
            names=names,
            connection=DoorConnection,
            in_clear=is_loopback(host),
        )
        await port.start()
        try:
            yield Gateway(house, port, host)
        finally:
            await port.close()
            await house.close()
