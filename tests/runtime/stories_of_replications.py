"""Drawn senders and consumers of active/active: what `tests.runtime.lives` lives through."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sbpair.core.entities import QueueSettings
from sbpair.core.errors import JournalConflictError, JournalError, JournalUnavailableError
from sbpair.core.names import subscription_of
from sbpair.core.pairing import Side
from sbpair.core.replication.ordering import NUMBER, STREAM
from sbpair.core.replication.ownership import Granularity, SessionEntry, Terms
from sbpair.core.retry import Backoff
from sbpair.core.rewrite import compose
from sbpair.ports import Entry
from sbpair.runtime.replication.consumer import ConsumeRequest, consume
from sbpair.runtime.replication.handlers import Delivery, HandlerFailed, RetryLater
from sbpair.runtime.replication.sender import DualSender
from sbpair.runtime.replication.store import DESTINATION, FIRST_EDITION, SENDER, SESSION, entries_in, key_of
from tests.fakes import EPOCH
from tests.runtime.lives import Life, Namespace, Told

OPERATIONS = ("send", "send", "receive", "receive", "session", "settle", "renew", "peek")
SESSIONS = ("a", "a", "b", "Case", "CASE", "c/d%")


class Journal:
    """A journal in memory that may be away: before it does something, or once it has."""

    name = "memory"

    def __init__(self, life: Life) -> None:
        self._life = life
        self.entries: dict[tuple[str, str], tuple[Entry, float]] = {}
        self.share_away = 0.0
        self.away_until = 0.0
        self.seconds = 0.0
        self._versions = 0

    def _now(self) -> float:
        return self._life.clock.monotonic()

    async def _asked(self) -> None:
        await asyncio.sleep(self.seconds)
        self._answered()

    def _answered(self) -> None:
        if self._now() < self.away_until or self._life.chance(self.share_away):
            raise JournalUnavailableError("The journal does not answer.")

    def _known(self, kind: str, key: str) -> Entry | None:
        entry, until = self.entries.get((kind, key), (None, 0.0))
        return entry if until > self._now() else None

    def keep(self, kind: str, key: str, document: Mapping[str, Any], *, ttl_seconds: float = 1e9) -> Entry:
        self._versions += 1
        copied = json.loads(json.dumps(document))
        entry = Entry(kind, key, copied, str(self._versions))
        self.entries[kind, key] = entry, self._now() + ttl_seconds
        return entry

    async def read(self, kind: str, key: str) -> Entry | None:
        await self._asked()
        return self._known(kind, key)

    async def create(self, kind: str, key: str, document: Mapping[str, Any], *, ttl_seconds: float) -> Entry:
        await self._asked()
        if self._known(kind, key) is not None:
            raise JournalConflictError(f"{kind} {key!r} exists.")
        made = self.keep(kind, key, document, ttl_seconds=ttl_seconds)
        self._answered()
        return made

    async def replace(self, entry: Entry, document: Mapping[str, Any], *, ttl_seconds: float) -> Entry:
        await self._asked()
        known = self._known(entry.kind, entry.key)
        if known is None or known.version != entry.version:
            raise JournalConflictError(f"{entry.kind} {entry.key!r} was changed.")
        made = self.keep(entry.kind, entry.key, document, ttl_seconds=ttl_seconds)
        self._answered()
        return made

    async def scan(self, kind: str) -> AsyncIterator[Entry]:
        await self._asked()
        for known_kind, key in sorted(self.entries):
            if known_kind == kind and (entry := self._known(kind, key)) is not None:
                yield entry

    async def check(self) -> str:
        return "It is in memory."

    async def close(self) -> None:
        return


class Region(Namespace):
    """A namespace whose topic hands on to its subscription what has come there, once its time is up."""

    subscription = ""

    def accept(self, entity: str, payloads: Sequence[bytes]) -> None:
        super().accept(entity, payloads)
        self.hand_on()

    def hand_on(self) -> None:
        if subscription_of(self.subscription) is None:
            return
        topic = self.queue(self.subscription.partition("/")[0])
        for stored in self.available(topic, None, 1_000):
            del topic.messages[stored.sequence_number]
            self._store(self.queue(self.subscription), stored.payload)
        if times := [one.scheduled_at for one in topic.messages.values() if one.scheduled_at is not None]:
            self.life.later(max(0.001, min(times) - self.epoch()), self.hand_on)
        self.queue(self.subscription).wake()


class Stage:
    """Both namespaces, a journal, and what is sent and processed there."""

    def __init__(self, life: Life) -> None:
        dice = life.dice
        self.life = life
        self.entity = dice.choice(("orders", "Orders", "events"))
        self.source = "Events/Subscriptions/all" if self.entity == "events" else life.spelled("orders")
        self.regions = {side: Region(name, life) for side, name in zip(Side, ("west", "east"), strict=True)}
        settings = QueueSettings(requires_session=True, lock_duration_seconds=dice.choice((5.0, 30.0, 60.0)))
        for region in self.regions.values():
            region.subscription = self.source
            region.add_queue(self.source, settings)
            if self.entity == "events":
                region.add_queue(self.entity, topic=True)
        self.memory = Journal(life)
        self.journal: Any = Told(self.memory, "journal", life.say)
        self.terms = Terms(
            granularity=dice.choice((Granularity.SESSION, Granularity.MESSAGE)),
            lease_seconds=dice.choice((3.0, 12.0)),
            margin_seconds=0.5,
            max_attempts=dice.choice((1, 2, 4)),
            gap_seconds=dice.choice((None, 20.0)),
            retention_seconds=dice.choice((150.0, 86_400.0)),
            remember_seconds=50.0,
        )
        self.attempts: Counter[str] = Counter()
        self.kinds = dice.choice(((0,), (0, 0, 1), (0, 2), (0, 0, 0, 1, 2, 3, 4, 5)))

    @property
    def messaging(self) -> dict[str, Any]:
        return {side.value: region.messaging() for side, region in self.regions.items()}

    async def work(self, delivery: Delivery) -> None:
        """What becomes of an attempt hangs on the message, and on how often it was tried."""
        life = self.life
        self.attempts[delivery.message_id] += 1
        number = sum(delivery.message_id.encode()) + self.attempts[delivery.message_id]
        kind = self.kinds[number % len(self.kinds)]
        told = replace(delivery, payload=delivery.body)
        life.say(f"handler {told} {kind}")
        try:
            await asyncio.sleep((0.0, 0.3, 2.0)[number % 3])
            if kind == 1:
                raise HandlerFailed("" if number % 2 else "no")
            if kind == 2:
                raise RetryLater("not now", seconds=(None, 0.5)[number % 2])
            if kind == 3:
                await asyncio.sleep(8.0)
            if kind == 4:
                await asyncio.sleep(1e6 if self.attempts[delivery.message_id] < 3 else 0.0)
            if kind == 5 and (task := asyncio.current_task()) is not None:
                task.cancel()
                await asyncio.sleep(0)
        finally:
            life.say(f"handler of {delivery.message_id} ends")

    def strange(self) -> None:
        """What none of our senders has sent, put to one side or to both."""
        dice = self.life.dice
        for number in range(dice.choice((0, 2, 5))):
            payload = compose(
                body=b"strange",
                message_id=dice.choice(("", f"s{number}", f"s{number}", "0-1")),
                session_id=dice.choice(SESSIONS),
                application_properties=dice.choice((None, None, {STREAM: 1}, {STREAM: "s", NUMBER: 0})),
            )
            for region in self.regions.values():
                if self.life.chance(0.7):
                    region.put(self.source, payload)

    def of_earlier_builds(self) -> None:
        dice = self.life.dice
        destination = self.source.lower()
        if self.life.chance(0.08):
            self.memory.keep(FIRST_EDITION, "a", {})
        if self.life.chance(0.3):
            hosts = dice.choice((["west", "east"], ["east", "west"], ["east", "west"], ["north", "south"]))
            hosts = [f"{one}.servicebus.windows.net" for one in hosts]
            self.memory.keep(DESTINATION, destination, {"destination": destination, "namespaces": hosts})
        if self.life.chance(0.2):
            entry = SessionEntry(destination, "CASE", fence=7)
            self.memory.keep(SESSION, key_of(destination, "CASE"), entry.to_dict())
            self.memory.keep(SESSION, key_of("another", "case"), SessionEntry("another", "case").to_dict())
        if self.life.chance(0.05):
            self.memory.keep(SESSION, key_of(destination, "a"), {"no": "entry"})
        if self.life.chance(0.1):
            self.memory.keep(SENDER, key_of(destination, "CASE"), {"ends": []})

    def troubles(self) -> None:
        life = self.life
        life.trouble(*self.regions.values(), operations=OPERATIONS)
        if life.chance(0.3):
            region = life.dice.choice([*self.regions.values()])
            life.later(life.dice.choice((0.0, 8.0)), lambda: life.later(45.0, partial(region.heal, region.go_dark())))
        self.memory.seconds = life.dice.choice((0.0, 0.0, 0.02, 0.5))
        if life.chance(0.4):
            self.memory.share_away = life.dice.choice((0.02, 0.2))
            life.later(100.0, partial(setattr, self.memory, "share_away", 0.0))
        if life.chance(0.3):
            seconds = life.dice.choice((2.0, 15.0, 50.0))

            def goes() -> None:
                self.memory.away_until = life.clock.monotonic() + seconds

            life.later(life.dice.choice((0.0, 3.0, 12.0)), goes)


async def one_sender(stage: Stage, number: int) -> None:
    life, dice = stage.life, stage.life.dice
    sender = DualSender(
        stage.entity,
        **stage.messaging,
        clock=life.clock,
        journal=dice.choice((None, stage.journal, stage.journal)),
        preferred=dice.choice([*Side]),
        delay_seconds=dice.choice((0.0, 3.0, 15.0)),
        terms=stage.terms,
    )
    numbers = iter(range(1_000))

    def message() -> bytes:
        turn = next(numbers)
        return compose(
            body=bytes(dice.choice((1, 90))),
            message_id=dice.choice((f"{number}-{turn}", f"{number}-{turn}", f"{number}-{turn}", "0-1")),
            session_id=dice.choice(SESSIONS),
            scheduled_at=EPOCH + life.clock.monotonic() + dice.choice((5.0, 70.0)) if life.chance(0.1) else None,
        )

    for _ in range(dice.choice((3, 6, 12))):
        await asyncio.sleep(dice.choice((0.0, 0.0, 0.0, 1.0, 4.0, 4.0, 20.0)))
        timeout = dice.choice((0.5, 10.0))
        payload = message() if life.chance(0.95) else dice.choice((b"?", compose(body=b"", message_id="x")))
        try:
            if life.chance(0.3):
                many = [payload, *(message() for _ in range(dice.choice((1, 6))))]
                async for sent in sender.send_all(many, overlap=dice.choice((1, 3)), timeout_seconds=timeout):
                    life.say(f"sender {number} sent {sent}")
            elif life.chance(0.05):
                async with asyncio.timeout(0.03):
                    await sender.send(payload)
            else:
                life.say(f"sender {number} sent {await sender.send(payload, timeout_seconds=timeout)}")
        except Exception as error:  # noqa: BLE001 - it is what became of it
            life.say(f"sender {number} raised {error!r} {getattr(error, 'uncertain', None)}")
    await sender.close()
    if life.chance(0.1):
        life.say(f"closed: {await asyncio.gather(sender.send(message()), return_exceptions=True)}")


async def one_consumer(stage: Stage, number: int) -> None:
    life, dice = stage.life, stage.life.dice
    stop = asyncio.Event()
    ends = dice.choice(
        (
            {"until_idle_seconds": dice.choice((1.0, 6.0))},
            {"until_idle_seconds": dice.choice((1.0, 6.0)), "second_copies_seconds": 4.0, "scheduled_seconds": 40.0},
            {"for_seconds": dice.choice((4.0, 60.0))},
            {"max_messages": dice.choice((1, 5))},
            {},
        )
    )
    life.later(dice.choice((9.0, 90.0)) if not ends else dice.choice((9.0, 150.0, 150.0)), stop.set)
    request = ConsumeRequest(
        stage.source,
        terms=stage.terms,
        sides=dice.choice((tuple(Side), tuple(Side), tuple(Side), (Side.SECONDARY,))),
        sessions=dice.choice((1, 3, 64)),
        concurrency=dice.choice((1, 16)),
        acceptors=dice.choice((1, 4)),
        name=f"c{number}",
        idle_seconds=dice.choice((0.2, 1.0)),
        hold_seconds=dice.choice((1.0, 5.0)),
        retry=Backoff(first_seconds=dice.choice((0.1, 1.0)), most_seconds=4.0),
        later_seconds=dice.choice((0.1, 3.0)),
        grace_seconds=dice.choice((0.5, 10.0)),
        **ends,
    )
    await asyncio.sleep(dice.choice((0.0, 2.0, 40.0)))
    work = asyncio.create_task(
        consume(
            request,
            **stage.messaging,
            journal=stage.journal,
            handler=stage.work,
            clock=life.clock,
            observer=life.observer,
            stop=stop,
        )
    )
    if life.chance(0.15):
        life.later(dice.choice((1.0, 5.0)), work.cancel)
    (done,) = await asyncio.gather(work, return_exceptions=True)
    if isinstance(done, BaseException) and not isinstance(done, JournalError | asyncio.CancelledError):
        raise done
    life.say(f"consumer {number} = {done!r}")


async def a_replication(life: Life, folder: Path) -> None:
    stage = Stage(life)
    stage.of_earlier_builds()
    stage.troubles()
    if life.chance(0.3):
        stage.strange()
    acts: Sequence[Callable[[Stage, int], Any]] = (one_sender, one_consumer)
    works = [act(stage, number) for act in acts for number in range(life.dice.choice((1, 1, 2, 3)))]

    async def live() -> None:
        await asyncio.gather(*works)
        stage.memory.share_away = 0.0
        life.say(f"entries {await entries_in(stage.journal, life.dice.choice((None, stage.source)))}")

    await life.result(live())
    life.left_in(*stage.regions.values())
    for (kind, key), (entry, until) in sorted(stage.memory.entries.items()):
        life.say(f"journal {kind} {key} {entry.document} {until:.3f}")


STORIES = {"replication": (a_replication, 96)}
