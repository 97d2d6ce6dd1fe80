"""The demo's story: the primary goes dark while messages are sent, comes back, and the backlog is drained.

Everything happens over real sockets, through the official SDKs, between embedded namespaces.
"""

import asyncio
import logging
import os
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from sbpair.cli.context import EventLog, open_sides, system_clock
from sbpair.concurrency import map_concurrently, run_until, side_by_side
from sbpair.connect import open_pairing
from sbpair.core.cost.model import Flow, Workload, estimate
from sbpair.core.errors import UnknownServiceError
from sbpair.core.failover.machine import State
from sbpair.core.failover.sending import DEFAULT_SEND_SECONDS
from sbpair.core.inspection.audit import Severity
from sbpair.core.inspection.drilled import Proof, compare, fingerprint, sample
from sbpair.core.names import subscription_path
from sbpair.core.outcome import exit_for
from sbpair.core.pairing import Pair, Verify
from sbpair.core.prices import built_in, to_cents
from sbpair.core.serialization import HIDDEN, Money, column, published
from sbpair.core.words import counted
from sbpair.operations import DrainRequest, drain
from sbpair.operations.audit import AuditRequest, audit
from sbpair.operations.drill import receive_all
from sbpair.ports import Messaging, Sides
from sbpair.runtime.browse import browse
from sbpair.runtime.failover.pairing import PairedNamespaces
from sbpair.runtime.failover.sender import session_of

if TYPE_CHECKING:
    from sbpair.emulator import EmulatorThread


ENTITIES = QUEUE, SESSION_QUEUE, TOPIC = "orders", "invoices/incoming", "events"
SUBSCRIPTIONS = ("all", "audit")
SESSIONS = 12


@dataclass(frozen=True, slots=True)
class DemoMessage:
    """One message of the demo and where it is sent."""

    entity: str
    message_id: str
    session_id: str | None
    payload: bytes


def demo_messages(count: int, *, now: float, schedule_seconds: float) -> Iterator[DemoMessage]:
    """`count` messages to two queues and a topic; every 25th is scheduled `schedule_seconds` after `now`.

    `now` is UTC epoch seconds. Messages to one session are numbered in the order they are made.
    """
    for number in range(count):
        entity = ENTITIES[number % 3]
        session = f"customer-{number // 3 % SESSIONS}" if entity == SESSION_QUEUE else None
        scheduled_at = now + schedule_seconds if number % 25 == 7 and session is None else None
        message_id = f"demo-{number:05d}"
        payload = sample(number, message_id, session, scheduled_at)
        yield DemoMessage(entity, message_id, session, payload)


# The proof at the end of the demo: everything that was sent arrived, once, byte for byte, sessions in order.


def expected_places(messages: Iterable[DemoMessage]) -> dict[str, dict[str, str]]:
    """Place -> message id -> fingerprint, for queues and for the copies subscriptions get."""
    places: dict[str, dict[str, str]] = defaultdict(dict)
    for message in messages:
        arrives_at = [message.entity]
        if message.entity == TOPIC:
            flagged = int(message.message_id.rpartition("-")[2]) % 2 == 0  # what the rule of `audit` wants
            arrives_at = [subscription_path(TOPIC, name) for name in SUBSCRIPTIONS if name != "audit" or flagged]
        for place in arrives_at:
            places[place][message.message_id] = fingerprint(message.payload)
    return dict(places)


async def prove(primary: Messaging, messages: list[DemoMessage], *, patience_seconds: float) -> list[Proof]:
    """Receive everything at every place and compare. An empty place is believed after `patience_seconds`, which has
    to cover the time until the last scheduled message is due."""
    expected = expected_places(messages)

    async def proved(place: str) -> Proof:
        numbers: Mapping[str | None, int] = Counter(one.session_id for one in messages if one.entity == place)
        numbers = numbers or {None: len(expected[place])}  # to a subscription nothing is sent
        return compare(place, expected[place], await receive_all(primary, place, numbers, patience_seconds))

    return await asyncio.gather(*map(proved, expected))


SCHEDULE_SECONDS = 10.0
DARK_AFTER, BACK_AFTER = 0.35, 0.75
"""Shares of the messages accepted when the primary goes dark, and when it comes back."""
MOST_BEFORE = 0.55
"""Share of an entity's messages that is sent before the primary is dark, however fast they go."""
OVERLAP = 16
RETRY_SECONDS = 20.0
RETURN_SECONDS = 15.0
SEND_TIMEOUT_SECONDS = 10.0

SEED = {
    "queues": {
        QUEUE: {"requires_duplicate_detection": True},
        SESSION_QUEUE: {"requires_session": True, "requires_duplicate_detection": True},
    },
    "topics": {
        TOPIC: {
            "requires_duplicate_detection": True,
            "subscriptions": {"all": {}, "audit": {"rules": {"flagged": {"sql": "flag = TRUE"}}}},
        }
    },
}
"""The application's own entities on the primary. Duplicate detection makes "exactly once" hold where an answer was lost
with its connection: the second copy has the same MessageId."""


@dataclass(frozen=True, slots=True)
class DemoPlace:
    """What was expected in a queue or subscription, and what arrived."""

    place: str = field(metadata=column("Place"))
    expected: int = field(metadata=column("Expected", right=True))
    arrived: int = field(metadata=column("Arrived", right=True))
    missing: int = field(metadata=column("Missing", right=True))
    doubled: int = field(metadata=column("Doubled", right=True))
    altered: int = field(metadata=column("Altered", right=True))
    out_of_order: int = field(metadata=column("Out of order", right=True))
    verdict: str = field(metadata=column("Verdict", colours=True))

    @classmethod
    def of(cls, proof: Proof) -> Self:
        """The figures of a proof, which names each message that is wrong."""
        found: dict[str, Any] = asdict(proof)
        found |= {name: len(value) for name, value in found.items() if isinstance(value, tuple)}
        return cls(**found, verdict="ok" if proof.holds else "failed")


@dataclass(frozen=True, slots=True)
class Bill:
    """A month with the demo's messages and outage, at list prices."""

    operations: int
    total: Money
    currency: str
    prices_dated: str


@dataclass(slots=True)
class Proved:
    """What the demo saw, chapter by chapter."""

    sent: list[DemoMessage] = field(default_factory=list, metadata=HIDDEN)
    accepted_by: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Messages by where they were accepted: primary, backlog."""
    backlog: dict[str, int] = field(default_factory=dict)
    forwarded: int = 0
    findings: tuple[str, ...] = ()
    """Of the audit at the end, at warning or above."""
    places: tuple[DemoPlace, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each act took."""

    @published
    def proved(self) -> bool:
        return bool(self.places) and all(place.verdict == "ok" for place in self.places)

    @published
    def messages(self) -> int:
        return len(self.sent)

    @published
    def bill(self) -> Bill:
        """The month's bill of a pair that sends what the demo sent, with the demo's share diverted."""
        sizes: dict[str, list[int]] = defaultdict(list)
        for message in self.sent:
            sizes[message.entity].append(len(message.payload))
        flows = tuple(Flow(entity, len(found), max(found)) for entity, found in sizes.items())
        share = Fraction(self.accepted_by["backlog"], max(1, sum(self.accepted_by.values())))
        month = estimate(Workload(flows=flows, diverted_share=share, outage_seconds=60), built_in())
        return Bill(month.operation_count, to_cents(month.total), month.currency, month.prices_dated)


class Narrator:
    """Says on stderr what happens, with the seconds since the beginning."""

    def __init__(self) -> None:
        self._log = logging.getLogger("sbpair")
        self._start = time.monotonic()

    def __call__(self, text: str) -> None:
        self._log.info(f"[{self.seconds():5.1f}s] {text}")

    def seconds(self) -> float:
        return time.monotonic() - self._start


@dataclass(frozen=True, slots=True)
class DemoStage:
    """Where the story plays: the pair, and the emulator behind it."""

    pair: Pair
    emulator: "EmulatorThread"
    count: int
    by_gateway: bool = False
    """Plain clients send to a gateway, and know nothing of the pair."""
    say: Narrator = field(default_factory=Narrator)


async def play(stage: DemoStage, stop: asyncio.Event) -> Proved:
    """Play the whole story.

    Raises:
        InterruptedWorkError: `stop` was set. SbpairError: a chapter failed, with what happened.
    """
    story = Proved()
    chapters: dict[str, Callable[[Proved, DemoStage, Sides], Coroutine[Any, Any, None]]] = {
        "provision": _provision,
        "send": _send_through_an_outage,
        "backlog": _look_at_the_backlog,
        "drain": _bring_home,
        "proof": _prove,
        "audit": _audit,
    }
    for name, chapter in chapters.items():
        began = stage.say.seconds()
        stopped = f"The demo was stopped in its chapter {name!r}; nothing is left behind."
        async with open_sides(stage.pair) as sides:
            await run_until(stop, chapter(story, stage, sides), stopped=stopped)
        story.seconds[name] = round(stage.say.seconds() - began, 2)
    return story


async def _provision(story: Proved, stage: DemoStage, sides: Sides) -> None:
    from sbpair.operations.provision import ProvisionRequest, provision

    applied = await provision(sides, ProvisionRequest())
    if exit_for(applied.outcomes):
        failed = next(outcome for outcome in applied.outcomes if outcome.error_code is not None)
        raise UnknownServiceError(f"Provisioning failed at {failed.item}: {failed.detail}")
    stage.say(
        f"Provisioned {len(applied.plan.steps)} backlog queues on {stage.pair.secondary.label}, documented settings."
    )


async def _send_through_an_outage(story: Proved, stage: DemoStage, _: Sides) -> None:
    clock = system_clock()
    story.sent = list(demo_messages(stage.count, now=clock.now().timestamp(), schedule_seconds=SCHEDULE_SECONDS))
    what = f"Sending {stage.count:,} messages to a queue, a queue with sessions and a topic."
    if stage.by_gateway:
        await _send_by_gateway(story, stage, what)
    else:
        async with open_pairing(stage.pair, observer=EventLog(), hold_sessions=True, verify=Verify.OFF) as pairing:
            stage.say(f"Paired. {what}")
            await _send_everything(story, stage, pairing, partial(_send, pairing))
    by = story.accepted_by
    stage.say(f"All accepted: {by['primary']:,} by the primary, {by['backlog']:,} by the backlog.")
    stage.say("A session that was diverted stays diverted until the drain, so that its order holds.")


_Sending = Callable[[str, Proved, "_Outage"], Coroutine[Any, Any, None]]


async def _send_by_gateway(story: Proved, stage: DemoStage, what: str) -> None:
    """A gateway of the pair, and clients of one namespace each, which is the gateway."""
    from sbpair.azure import make_messaging
    from sbpair.core.access import AuthMethod, NamespaceAccess, Secret
    from sbpair.engine.tls import TlsFiles
    from sbpair.gateway.keys import parse_key
    from sbpair.gateway.server import GatewaySettings, open_gateway
    from sbpair.settings.state import state_directory

    pair = replace(stage.pair, options=replace(stage.pair.options, hold_sessions=True))
    tls = TlsFiles(state_directory(os.environ) / "gateway-tls")  # made for clients that use TLS: none here
    settings = GatewaySettings(observer=EventLog())
    async with open_gateway([pair], [parse_key("app=send")], tls, settings) as gateway:
        text = gateway.connection_string("app", plain=True)
        access = NamespaceAccess("gateway", gateway.endpoint(), AuthMethod.CONNECTION_STRING, Secret(text))
        clients = make_messaging(access)
        senders = {entity: clients.sender(entity) for entity in ENTITIES}
        for sender in senders.values():
            await sender.max_message_bytes()  # connected before the outage, as applications are
        house = gateway.house
        stage.say(f"A gateway listens on {gateway.endpoint()}; plain clients have its connection string. {what}")

        async def send(entity: str, story: Proved, outage: _Outage) -> None:
            sender = senders[entity]

            async def deliver(_: int, payload: bytes) -> None:
                await sender.send([payload], timeout_seconds=DEFAULT_SEND_SECONDS)
                total = house.total
                story.accepted_by["primary"], story.accepted_by["backlog"] = (
                    total.accepted - total.diverted,
                    total.diverted,
                )

            async for _ in map_concurrently(_feed(entity, story, outage), deliver, overlap=OVERLAP, lane=session_of):
                pass
            await sender.close()

        await _send_everything(story, stage, house.pairing, send)
        await clients.close()


async def _send_everything(story: Proved, stage: DemoStage, pairing: PairedNamespaces, send: _Sending) -> None:
    outage = _Outage(stage, pairing, story.accepted_by)
    going = (outage.happen(), *(send(entity, story, outage) for entity in ENTITIES))
    await side_by_side(lambda each: each, going)


class _Outage:
    """Makes the primary go dark mid-way and come back; messages are held for both, so that each has its share."""

    def __init__(self, stage: DemoStage, pairing: PairedNamespaces, accepted_by: Mapping[str, int]) -> None:
        self._stage, self._pairing, self._accepted_by = stage, pairing, accepted_by
        self.dark, self.back = asyncio.Event(), asyncio.Event()

    def _accepted(self) -> int:
        return sum(self._accepted_by.values())

    async def happen(self) -> None:
        stage, label = self._stage, self._stage.pair.primary.label
        await self._until(lambda: self._accepted() >= DARK_AFTER * stage.count)
        await asyncio.to_thread(stage.emulator.stop, label)
        self.dark.set()
        stage.say(f"The primary goes dark: {self._accepted():,} messages were accepted until now.")
        await self._until(lambda: self._accepted() >= int(BACK_AFTER * stage.count))
        stage.say(f"The primary comes back; {self._accepted_by['backlog']:,} messages wait in the backlog.")
        await asyncio.to_thread(stage.emulator.start, label)
        await self._until(
            lambda: all(one.state is State.HEALTHY for one in self._pairing.state().entities), RETURN_SECONDS
        )
        self.back.set()

    async def _until(self, condition: Callable[[], bool], within_seconds: float = 60.0) -> None:
        try:
            async with asyncio.timeout(within_seconds):
                while not condition():  # noqa: ASYNC110 - the conditions are counters of others, which tell nobody
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise UnknownServiceError("The demo's outage did not run its course in time.") from None


async def _feed(entity: str, story: Proved, outage: _Outage) -> AsyncIterator[bytes]:
    """The messages of an entity, the later half once the primary is dark, and the last of them once it is back."""
    mine = [message.payload for message in story.sent if message.entity == entity]
    held = {int(MOST_BEFORE * len(mine)): outage.dark, int(BACK_AFTER * len(mine)) + 1: outage.back}
    for index, payload in enumerate(mine):
        if index in held:
            await held[index].wait()
        yield payload


async def _send(pairing: PairedNamespaces, entity: str, story: Proved, outage: _Outage) -> None:
    results = pairing.sender(entity).send_all(
        _feed(entity, story, outage), overlap=OVERLAP, timeout_seconds=SEND_TIMEOUT_SECONDS, retry_seconds=RETRY_SECONDS
    )
    async for sent in results:
        if sent.result is None:
            raise sent.error or UnknownServiceError(f"A message to {entity} has no outcome.")
        story.accepted_by[sent.result.where.value] += 1


async def _look_at_the_backlog(story: Proved, stage: DemoStage, sides: Sides) -> None:
    report = await browse(sides.secondary, stage.pair.backlog_paths(), max_messages=stage.count)
    for queue in report.failed:
        raise queue.error
    story.backlog = dict(Counter(one.summary.destination or "?" for one in report.messages))
    parts = ", ".join(f"{count:,} for {entity}" for entity, count in sorted(story.backlog.items()))
    stage.say(f"The backlog holds {sum(story.backlog.values()):,} messages: {parts}.")


async def _bring_home(story: Proved, stage: DemoStage, sides: Sides) -> None:
    began = stage.say.seconds()
    story.forwarded = (await drain(sides, DrainRequest(), observer=EventLog())).report.forwarded
    seconds = stage.say.seconds() - began
    sent = counted(story.forwarded, "message")
    stage.say(f"Sent {sent} back to the primary in {seconds:.1f} s; the backlog is confirmed empty.")


async def _prove(story: Proved, stage: DemoStage, sides: Sides) -> None:
    proofs = await prove(sides.primary, story.sent, patience_seconds=SCHEDULE_SECONDS)
    story.places = tuple(map(DemoPlace.of, proofs))
    for proof in proofs:
        verdict = "each once, byte for byte" if proof.holds else f"NOT AS SENT: {proof}"
        stage.say(f"{proof.place}: {proof.arrived:,} of {proof.expected:,} arrived, {verdict}.")


async def _audit(story: Proved, stage: DemoStage, sides: Sides) -> None:
    audited = await audit(sides, AuditRequest())
    findings = audited.report.at_least(Severity.WARNING)
    story.findings = tuple(f"{one.code} {one.subject}: {one.message}" for one in findings)
    found = counted(len(story.findings), "finding") if story.findings else "no findings"
    stage.say(f"Audit: {found} in {len(audited.snapshot.secondary.queues or ())} backlog queues.")
