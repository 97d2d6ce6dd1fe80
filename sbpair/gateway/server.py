"""A gateway: its port, a pairing for each of its pairs, and what it tells of itself.

async with open_gateway([pair], keys=[...]) as gateway:
    gateway.connection_string("checkout")
"""

import asyncio
import logging
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sbpair.azure import make_messaging
from sbpair.concurrency import cancel_on
from sbpair.core.errors import SbpairError
from sbpair.core.failover.machine import ROUTES, Route
from sbpair.core.failover.measured import GatewayEntity, GatewayPair
from sbpair.core.failover.sending import DEFAULT_SEND_SECONDS, Budget
from sbpair.core.pairing import Condition, Pair
from sbpair.core.retry import SDK_RETRIES
from sbpair.engine import errors
from sbpair.engine.auth import LISTEN, SEND, Rights, Signer, is_loopback, rights_for
from sbpair.engine.clock import Clock, SystemClock
from sbpair.engine.connection import MANAGEMENT_SUFFIX
from sbpair.engine.faults import Faults
from sbpair.engine.link import Link, LinkHandler
from sbpair.engine.port import Port, ServerTls
from sbpair.gateway.door import DoorConnection
from sbpair.gateway.keys import GatewayKey, KeyRing, with_file
from sbpair.gateway.passed import PassedLink, serve_requests
from sbpair.gateway.served import HeldTransactions, Sends, SendSpans, ServedSender
from sbpair.gateway.tokens import Proofs, Tokens
from sbpair.gateway.web import Web
from sbpair.ports import Observer
from sbpair.runtime.clock import LoopClock, Quiet
from sbpair.runtime.failover.pairing import PairedNamespaces, PairingContext
from sbpair.runtime.failover.sender import FailoverSender

LOGGER = logging.getLogger("sbpair.gateway")
_DRAIN_LOOK_SECONDS: Final = 0.05
RELOAD_SECONDS: Final = 2.0
TRANSFER_PREFIX: Final = "/x-servicebus-transfer/"
LATENCIES: Final = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
"""Upper bounds (seconds) by which sends are counted."""


@dataclass(slots=True)
class SendCounts:
    """What became of an entity's messages, and how long its sends took."""

    accepted: int = 0
    diverted: int = 0
    refused: int = 0
    sends: int = 0
    seconds: float = 0.0
    within: Counter[float] = field(default_factory=Counter)
    """Sends by the bound of `LATENCIES` that they took less than."""


def sum_of(counts: Iterable[SendCounts]) -> SendCounts:
    """The messages of several entities or pairs."""
    every = list(counts)
    return SendCounts(
        sum(one.accepted for one in every), sum(one.diverted for one in every), sum(one.refused for one in every)
    )


class GatewayView:
    """What the engine asks of a namespace, as a gateway answers it."""

    allow_entra = False
    entra_rights: Mapping[str, Rights] = {}  # nobody changes it
    trace = None
    throttling = None
    capabilities: tuple[str, ...] = ()

    def __init__(self, name: str, ring: KeyRing) -> None:
        self.name = name
        self.ring = ring
        self.clock: Clock = SystemClock()
        self.faults = Faults()
        self.closing = False

    @property
    def key_watchers(self) -> "set[Callable[[], None]]":
        return self.ring.watchers

    def signers(self, path: str) -> Sequence[Signer]:
        return self.ring.signers(path)

    def entity_exists(self, path: str) -> bool:
        return True  # the primary says so at the attach


class House(GatewayView):
    """What stands behind the connections for one pair: its pairing and counters."""

    def __init__(self, pair: Pair, pairing: PairedNamespaces, ring: KeyRing, send_seconds: float, passes: bool) -> None:
        super().__init__(pair.primary.label, ring)
        self.pair = pair
        self.pairing = pairing
        self.send_seconds = send_seconds
        """What a message has, on the primary and on the backlog together."""
        self.answer_seconds = Budget(0.0, send_seconds).for_primary(0.0)
        """For so long the primary may take for the answer to a message."""
        self.tokens = Tokens(pair.primary)
        self.passes_tokens = passes
        self.proofs = Proofs()
        self.spans = SendSpans(pair.name)
        self.counts: dict[str, SendCounts] = {}
        """By queue or topic, in lower case."""
        self.retired = False
        """Another one has taken its place; it is there for the connections that it has."""
        self._connections: set[DoorConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def joined(self, connection: DoorConnection) -> None:
        self._connections.add(connection)

    def left(self, connection: DoorConnection) -> None:
        self._connections.discard(connection)
        self.close_if_retired()

    def close_if_retired(self) -> None:
        if self.retired and not self._connections and not self.closing:
            self.closing = True
            asyncio.get_running_loop().create_task(self.close())

    @property
    def holds_sessions(self) -> bool:
        return self.pairing.holds_sessions

    @property
    def sending(self) -> int:
        """Messages that are being sent by the gateway itself."""
        return len(self._tasks)

    def signers(self, path: str) -> Sequence[Signer]:
        return self.ring.signers(path, self.pair.name)

    def sender(self, entity: str) -> FailoverSender:
        return self.pairing.sender(entity)

    def now(self) -> float:
        return self._loop.time()

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

    def count(self, entity: str, messages: int, diverted: int, seconds: float, refused: bool) -> None:
        """What became of messages that were sent together: `diverted` of them are in the backlog."""
        counts = self.counts.setdefault(entity.lower(), SendCounts())
        if refused:
            counts.refused += messages
            return
        counts.accepted += messages
        counts.diverted += diverted
        counts.sends += 1
        counts.seconds += seconds
        for bound in LATENCIES:
            if seconds <= bound:
                counts.within[bound] += 1
                break

    @property
    def total(self) -> SendCounts:
        """Of all entities."""
        return sum_of(self.counts.values())

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
        return [*(found.problems if found is not None else ()), f"{self.pair.primary.label} accepts no messages."]

    def status(self) -> GatewayPair:
        """As `sbpair gateway status` shows it."""
        states = {one.entity.lower(): one for one in self.pairing.state().entities}
        entities = []
        for name in sorted({*states, *self.counts}):
            state, counts = states.get(name), self.counts.get(name, SendCounts())
            mean = round(1000 * counts.seconds / counts.sends, 3) if counts.sends else None
            route = "healthy" if state is None else state.state.value
            cause = None if state is None else state.cause
            figures = counts.accepted, counts.diverted, counts.refused
            entities.append(GatewayEntity(self.pair.name, name, route, cause, *figures, mean))
        connections = len(self._connections)
        return GatewayPair(self.pair.name, self.name, connections, tuple(self.troubles()), tuple(entities))

    async def close(self) -> None:
        self.closing = True
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.tokens.close()
        await self.pairing.close()

    # -- `AttachService`, for the connections of this pair

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
                coordinator = HeldTransactions(link, self)
                coordinator.open()
                return coordinator
            return self._pass(link, None)
        entity = link.address[: -len(MANAGEMENT_SUFFIX)] if management else link.address
        to_send = management and SEND in rights_for(connection, link.address) and _is_sent_to(entity)
        if not to_send and (management or not link.client_sends or not link.address):
            return self._pass(link, None)
        if TRANSFER_PREFIX in f"/{link.address.lower()}":
            link.reject(errors.NOT_ALLOWED, "Applications cannot send to a backlog queue.")
            return LinkHandler()
        sends = Sends(self, entity)
        if not sends.diverts or (management and ROUTES[sends.sender.state] is not Route.BACKLOG):
            return self._pass(link, sends)
        if not connection.may_divert(link.address):
            link.reject(errors.TIMEOUT, f"{self.name} is away, and has not judged this token for {entity} before.")
            return LinkHandler()
        if management:
            return serve_requests(link, sends)
        served = ServedSender(link, sends)
        served.open()
        return served

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


def _is_sent_to(path: str) -> bool:
    """Whether it is a queue or topic, and no subscription or dead-letter queue."""
    return "/$" not in path and "/subscriptions/" not in path.lower()


class GatewayFront(GatewayView):
    """All pairs of a gateway, by their names: what clients meet before they have said which host they want."""

    def __init__(self, ring: KeyRing) -> None:
        super().__init__("gateway", ring)
        self.houses: dict[str, House] = {}
        """By the pair's name."""

    def house_of(self, host: str) -> House | None:
        """The pair that a host name means: the only one, or that whose name, or primary's name, is its first label."""
        houses = self.houses.values()
        if len(houses) == 1:
            return next(iter(houses))
        label = host.lower().partition(".")[0]
        return next((one for one in houses if label in (one.pair.name.lower(), one.name.lower())), None)

    def attach(self, link: Link) -> LinkHandler:
        house: House = link.connection.house  # type: ignore[attr-defined]
        return house.attach(link)

    def troubles(self) -> list[str]:
        """What keeps any of the pairs from what the gateway promises."""
        return [text for house in self.houses.values() for text in house.troubles()]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """How a gateway serves, whatever its pairs are.

    Args:
        names: host names that HTTP clients may call it by, beyond localhost and addresses.
        domain: several pairs go by `PAIR.domain`.
        send_seconds: what a message has, on the primary (three quarters of it) and on the backlog together.
        retries: how often the primary is tried again before a send has failed there; azure-servicebus's default.
        pass_tokens: tokens that no key of the gateway has signed go to the primary, which judges them.
    """

    names: Sequence[str] = ()
    domain: str = "localhost"
    observer: Observer | None = None
    send_seconds: float = DEFAULT_SEND_SECONDS
    retries: int = SDK_RETRIES
    pass_tokens: bool = False


class Gateway:
    """An open gateway; made by `open_gateway`."""

    def __init__(self, front: GatewayFront, settings: GatewaySettings) -> None:
        self.front = front
        self.port: Port
        self._settings = settings
        self._retired: list[House] = []
        self._verifies = False

    @property
    def house(self) -> House:
        """The first pair's."""
        return next(iter(self.front.houses.values()))

    def endpoint(self, pair: str | None = None) -> str:
        """Host and port for clients of a pair; by default of the only one."""
        several = pair is not None and len(self.front.houses) > 1
        host = f"{pair}.{self._settings.domain}" if several else self.port.host
        return f"[{host}]:{self.port.number}" if ":" in host else f"{host}:{self.port.number}"

    def connection_string(self, key: str, *, pair: str | None = None, plain: bool = False) -> str:
        """What an application is given. `plain`: without TLS, as SDKs know it from Microsoft's emulator.

        Raises:
            StopIteration: there is no such key.
        """
        found = next(one for one in self.front.ring.keys if one.name == key)
        endpoint = self.endpoint(pair)
        text = f"Endpoint=sb://{endpoint};SharedAccessKeyName={found.name};SharedAccessKey={found.primary_key}"
        return f"{text};UseDevelopmentEmulator=true" if plain else text

    def keep_verifying(self) -> None:
        """Try beforehand, and again and again, what an outage of each primary will need."""
        self._verifies = True
        for house in self.front.houses.values():
            house.pairing.keep_verifying()

    async def replace_pairs(self, pairs: Sequence[Pair]) -> list[str]:
        """Serve these pairs from now on; those that are as they were stay as they are. Connections of the others go on
        with what they have until they end. The names of the pairs that are new, changed or gone.

        Raises:
            SbpairError: a pair cannot be opened; then nothing is changed.
        """
        before, opened = self.front.houses, dict[str, House]()
        try:
            for pair in pairs:
                known = before.get(pair.name)
                same = known is not None and known.pair == pair
                opened[pair.name] = known if same and known is not None else await self._open(pair)
        except BaseException:
            await asyncio.gather(*(house.close() for house in opened.values() if house not in before.values()))
            raise
        self.front.houses = opened
        gone = [house for house in before.values() if house not in opened.values()]
        self._retired = [house for house in (*self._retired, *gone) if not house.closing]
        for house in gone:
            house.retired = True
            house.close_if_retired()
        return sorted(name for name in {**before, **opened} if before.get(name) is not opened.get(name))

    async def _open(self, pair: Pair) -> House:
        context = PairingContext(
            primary=make_messaging(pair.primary),
            secondary=make_messaging(pair.secondary),
            clock=LoopClock(),
            observer=self._settings.observer or Quiet(),
            retries=self._settings.retries,
        )
        pairing = await PairedNamespaces.open(pair, context)
        if self._verifies:
            pairing.keep_verifying()
        return House(pair, pairing, self.front.ring, self._settings.send_seconds, self._settings.pass_tokens)

    async def drain(self, grace_seconds: float) -> int:
        """Take no more clients, and close each connection as soon as nothing of it is unsettled, all of them after
        `grace_seconds`. How many were closed with something unsettled."""
        houses = self._all()
        for house in houses:
            house.closing = True
        self.port.take_no_more()
        until = self.house.now() + grace_seconds
        left = self._doors()
        while left and self.house.now() < until:
            for door in left:
                if door.is_settled and not any(house.sending for house in houses):
                    door.close("amqp:connection:forced", "The gateway is stopping.")
            await asyncio.sleep(_DRAIN_LOOK_SECONDS)
            left = self._doors()
        for door in left:
            door.close("amqp:connection:forced", "The gateway is stopping.")
        await asyncio.sleep(_DRAIN_LOOK_SECONDS)
        return len(left)

    async def close(self) -> None:
        """Close every pair."""
        await asyncio.gather(*(house.close() for house in self._all()))

    def _all(self) -> list[House]:
        return [*self.front.houses.values(), *self._retired]

    def _doors(self) -> list[DoorConnection]:
        return [one for one in self.port.connections if isinstance(one, DoorConnection) and not one.is_closing]


class Reloading:
    """Takes over keys and pairs that have changed: on SIGUSR1, or when a file has.

    Args:
        own: keys that are not in a file.
        keys: the file of the others.
        pairs: reads the pairs again.
        files: those that keys and pairs are read from.
    """

    def __init__(
        self,
        running: Gateway,
        own: tuple[GatewayKey, ...],
        keys: Path | None,
        pairs: Callable[[], list[Pair]],
        files: Callable[[], Iterable[Path]],
    ) -> None:
        self._running = running
        self._own, self._keys, self._pairs, self._files = own, keys, pairs, files
        self._changed = self._times()

    async def until(self, stop: asyncio.Event) -> None:
        """Look again and again until the end."""
        asked = asyncio.Event()
        number = getattr(signal, "SIGUSR1", None)
        if number is not None:
            asyncio.get_running_loop().add_signal_handler(number, asked.set)
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(RELOAD_SECONDS):
                    await cancel_on(stop, asked.wait())
            times = self._times()
            if asked.is_set() or times != self._changed:
                asked.clear()
                self._changed = times
                await self._reload()

    async def _reload(self) -> None:
        try:
            keys, pairs = with_file(self._own, self._keys), self._pairs()
            changed = await self._running.replace_pairs(pairs)
        except (OSError, SbpairError) as error:
            LOGGER.warning(f"{error} The keys and pairs that were in force stay.")
            return
        if self._running.front.ring.replace(keys):
            LOGGER.info("Other keys are in force.")
        for name in changed:
            LOGGER.info(f"{name}: new connections get it as it is configured now; open ones stay as they are.")

    def _times(self) -> list[int]:
        """When the files were changed; 0 for one that is missing just now."""
        return [file.stat().st_mtime_ns if file.exists() else 0 for file in self._files()]


@asynccontextmanager
async def open_gateway(
    pairs: Sequence[Pair],
    keys: Sequence[GatewayKey],
    tls: ServerTls,
    settings: GatewaySettings | None = None,
    *,
    host: str = "127.0.0.1",
    number: int = 0,
) -> AsyncIterator[Gateway]:
    """Listen for clients of pairs while the context lasts.

    Args:
        keys: what clients sign in with.
        tls: the certificate. Without TLS clients are let in on a loopback `host` only.
        number: the port; 0 for any free one.

    Raises:
        ConfigurationError: the credential of a side may not go where it would.
        OSError: the port cannot be listened on.
    """
    chosen = settings or GatewaySettings()
    front = GatewayFront(KeyRing(keys))
    gateway = Gateway(front, chosen)
    try:
        await gateway.replace_pairs(pairs)
        names = [*chosen.names, f"*.{chosen.domain}"]
        gateway.port = Port(
            front,
            front,
            tls,
            Web(front).runner,
            (host, number),
            names=names,
            connection=DoorConnection,
            in_clear=is_loopback(host),
        )
        await gateway.port.start()
        try:
            yield gateway
        finally:
            await gateway.port.close()
    finally:
        await gateway.close()
