"""Drawn drains, syphons, moves and restores: what `tests.runtime.lives` lives through."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sbpair.core.access import NamespaceAccess
from sbpair.core.entities import QueueFacts, QueueSettings
from sbpair.core.message import Disposition, MessageState, Origin, Received
from sbpair.core.rewrite import TtlMode, compose, for_backlog, ping_message
from sbpair.core.transfer.custody import PURGED
from sbpair.core.transfer.filters import MessageFilter, Where
from sbpair.core.transfer.report import FILTERED_OUT
from sbpair.core.transfer.restored import Restorable
from sbpair.core.transfer.state import Finish, Forward, Leave, Limits
from sbpair.core.transfer.verdict import DestinationSeen
from sbpair.ports import Ends
from sbpair.runtime.transfer.drain import DrainJob, ToArchive, ToQueue, TransferRequest, drain
from sbpair.runtime.transfer.ledger import Ledger
from sbpair.runtime.transfer.move import move
from sbpair.runtime.transfer.move_sessions import SessionMove
from sbpair.runtime.transfer.moving import MoveJob
from sbpair.runtime.transfer.restore import restore
from sbpair.runtime.transfer.syphon import serve, syphon_until
from sbpair.service import session_key
from tests.fakes import EPOCH, Stored
from tests.runtime.lives import Life, Namespace, Session

OPERATIONS = ("send", "send", "receive", "receive", "peek", "settle", "renew", "limit", "admin", "receive_deferred")
DESTINATIONS = ("orders", "orders", "Orders", "billing", "Billing", "events", "gone")


def a_message(life: Life, number: int, **more: Any) -> bytes:
    dice = life.dice
    return compose(
        body=bytes(dice.choice((1, 30, 900, 4000))),
        message_id=dice.choice((f"m{number}", f"m{number}", "same", None)) or "",
        session_id=dice.choice((None, None, "a", "A", "b")),
        application_properties={"n": number} if life.chance(0.7) else None,
        ttl_seconds=dice.choice((None, None, None, 5.0, 600.0)),
        **more,
    )


class Pair:
    """A primary, a secondary, and what lies in the backlog queues of one on the other."""

    def __init__(self, life: Life, queues: int) -> None:
        dice = life.dice
        self.life = life
        self.primary, self.secondary = life.namespace("primary"), life.namespace("secondary")
        for path in ("orders", "Billing"):
            self.primary.add_queue(path, QueueSettings(requires_duplicate_detection=life.chance(0.2)))
        self.primary.add_queue("Events", topic=True)
        self.primary.max_message_bytes = dice.choice((2_000, 10_000, 256 * 1024))
        self.paths = []
        for index in range(queues):
            path = f"Primary/x-servicebus-transfer/{index}"
            lock = QueueSettings(lock_duration_seconds=dice.choice((10.0, 30.0, 60.0)))
            self.secondary.add_queue(path if life.chance(0.7) else path.lower(), lock)
            self.paths.append(path.lower() if life.chance(0.7) else path)
        self.numbers = iter(range(10_000))

    def put(self, path: str, most: int) -> None:
        """Messages of all kinds."""
        life, namespace = self.life, self.secondary
        for number in [next(self.numbers) for _ in range(life.dice.randrange(most + 1))]:
            payload = for_backlog(a_message(life, number), life.dice.choice(DESTINATIONS))
            if life.chance(0.06):
                payload = life.dice.choice((a_message(life, number), ping_message(message_id=f"p{number}")))
            if life.chance(0.15):
                namespace.put_dead_letter(path, payload, life.dice.choice(("EntityNotFound", "Else")))
                continue
            namespace.put(path, payload)
            if namespace.queue(path).messages:
                self.marked([*namespace.queue(path).messages.values()][-1])

    def marked(self, stored: Stored) -> None:
        """Locked by another, deferred or scheduled, now and then."""
        kind = self.life.dice.randrange(24)
        if kind == 0:
            stored.state = MessageState.DEFERRED
        elif kind == 1:
            stored.state, stored.scheduled_at = MessageState.SCHEDULED, self.secondary.epoch() + 45.0
        elif kind == 2:
            stored.lock, stored.locked_until = -1, self.secondary.epoch() + self.life.dice.choice((8.0, 55.0))

    def fill(self, most: int) -> None:
        for path in self.paths:
            self.put(path, most)
            if self.life.chance(0.25):
                self.life.later(self.life.dice.choice((2.0, 30.0, 130.0)), partial(self.put, path, 6))


def asked(life: Life, paths: tuple[str, ...], folder: Path) -> TransferRequest:
    dice = life.dice
    some = dice.sample(
        (
            {"dead_letter": True},
            {"with_dead_letter": True},
            {"with_dead_letter": True},
            {"to": ToArchive(folder, dice.choice((None, "elsewhere")))},
            {"to": ToQueue("Billing")},
            {"wanted": MessageFilter(destination=dice.choice(("orders", "ORDERS", "gone")))},
            {"wanted": MessageFilter(where=Where(dice.choice(("n > 5", "sys.SessionId = 'a'", "n / 0 > 1"))))},
            {"only": ("Orders",)},
            {"max_messages": dice.choice((1, 7, 20))},
            {"for_seconds": dice.choice((0.5, 5.0, 40.0))},
            {"idle_seconds": dice.choice((2.0, 60.0))},
            {"rate_per_second": dice.choice((2.0, 30.0))},
            {"budget_per_second": 20.0},
            {"concurrency": 1},
            {"ttl": dice.choice([*TtlMode])},
            {"deferred": True},
            {"deferred": True},
            {"leave_missing": True},
            {"leave_refused": True},
            {"patience_seconds": dice.choice((0.0, 3.0, 300.0))},
            {"unreached_seconds": dice.choice((0.0, 2.0))},
            {"lock_wait_seconds": dice.choice((0.0, 5.0, 20.0))},
            {"in_flight_messages": dice.choice((1, 8))},
            {"in_flight_bytes": 3_000},
        ),
        dice.randrange(5),
    )
    options = {name: value for one in some for name, value in one.items()}
    if options.get("with_dead_letter"):
        options.pop("dead_letter", None)
    return TransferRequest(paths, **options)


async def a_drain(life: Life, folder: Path) -> None:
    dice = life.dice
    pair = Pair(life, dice.choice((1, 1, 2, 3)))
    pair.fill(dice.choice((0, 4, 12, 40)))
    life.trouble(pair.primary, pair.secondary, operations=OPERATIONS)
    request = asked(life, tuple(pair.paths), folder)
    path = folder / "ledger.jsonl"
    recorded = life.chance(0.6)
    if life.chance(0.2):
        request = replace(request, dry_run=True)
    if life.chance(0.2):
        life.later(dice.choice((0.0, 1.0, 12.0)), life.stop.set)
    for run in range(2):
        if run:
            life.stop.clear()
        ledger = Ledger(path, resume=True) if recorded else None
        job = DrainJob(
            request if run == 0 else replace(request, dry_run=False),
            secondary=pair.secondary.messaging(),
            primary=pair.primary.messaging(),
            admin=dice.choice((None, pair.secondary.admin())),
            primary_admin=dice.choice((None, pair.primary.admin())),
            clock=life.clock,
            observer=life.observer,
            ledger=ledger,
            stop=life.stop,
            part=life.chance(0.1),
        )
        await life.result(drain(job))
        if ledger is not None:
            await ledger.close()
        if run == 0:
            pair.fill(3)
    life.left_in(pair.primary, pair.secondary)
    life.file(path)
    for file in sorted(folder.glob("*.jsonl*")):
        life.lines.append(file.name)
        life.file(file)


async def a_syphon(life: Life, folder: Path) -> None:
    dice = life.dice
    pair = Pair(life, dice.choice((1, 2)))
    pair.fill(dice.choice((0, 5, 15)))
    life.trouble(pair.primary, pair.secondary, operations=OPERATIONS)
    for seconds in (70.0, 500.0, 1000.0):
        if life.chance(0.5):
            life.later(seconds, partial(pair.put, pair.paths[0], 5))
    if life.chance(0.5):
        new = f"PRIMARY/x-servicebus-transfer/{len(pair.paths) + dice.choice((0, 1))}"

        def appears() -> None:
            pair.secondary.add_queue(new)
            pair.put(new, 4)

        life.later(dice.choice((10.0, 800.0)), appears)
    life.later(dice.choice((20.0, 700.0, 2500.0)), life.stop.set)
    request = asked(life, tuple(pair.paths), folder)
    request = replace(request, max_messages=None, for_seconds=None, deferred=False, later_queues=life.chance(0.6))
    path = folder / "ledger.jsonl"
    ledger = Ledger(path) if life.chance(0.6) else None
    job = DrainJob(
        request,
        secondary=pair.secondary.messaging(),
        primary=pair.primary.messaging(),
        admin=dice.choice((None, pair.secondary.admin(), pair.secondary.admin())),
        clock=life.clock,
        observer=life.observer,
        ledger=ledger,
        stop=life.stop,
    )
    poll_seconds = dice.choice((5.0, 60.0, 900.0))

    def run(uncompleted: Any) -> Any:
        life.say(f"run {sorted(map(str, uncompleted))}")
        return syphon_until(job, poll_seconds=poll_seconds, uncompleted=uncompleted)

    await life.result(serve(run, stop=life.stop, clock=life.clock, observer=life.observer))
    if ledger is not None:
        await ledger.close()
    life.left_in(pair.primary, pair.secondary)
    life.file(path)


def _judged(life: Life) -> Any:
    kinds = life.dice.choice(((0,), (0, 0, 1), (0, 2), (0, 1, 2, 3)))

    def judge(received: Received) -> Any:
        kind = kinds[received.sequence_number % len(kinds)]
        if kind == 1:
            return Leave(life_reasons[received.sequence_number % 2])
        if kind == 2:
            return Forward(received.payload, "Other", received.session_id)
        if kind == 3:
            return Finish(Disposition.COMPLETE, outcome=PURGED)
        return Forward(received.payload, "to", received.session_id)

    life_reasons = ("because", FILTERED_OUT)
    return judge


async def a_move(life: Life, folder: Path) -> None:
    dice = life.dice
    source = life.namespace("source")
    within = life.chance(0.35)
    target = source if within else life.namespace("target")
    by_session = life.chance(0.5)
    lock_seconds = dice.choice((10.0, 30.0))
    queue = source.add_queue(
        life.spelled("q"), QueueSettings(lock_duration_seconds=lock_seconds, requires_session=by_session)
    )
    target.add_queue("To", QueueSettings(requires_session=by_session))
    target.add_queue("other")
    for number in range(dice.choice((0, 3, 12, 40))):
        later = EPOCH + 1e5 if life.chance(0.2) else None
        source.put("q", a_message(life, number, scheduled_at=later))
        if life.chance(0.15):
            source.put_dead_letter("q", a_message(life, number), "Why")
        stored = [*queue.messages.values()]
        if stored and life.chance(0.1):
            stored[-1].state = MessageState.DEFERRED
    for session in ("a", "B", "only") if by_session else ():
        if life.chance(0.4):
            source.sessions["q", session_key(session)] = Session(state=b"state")
        if life.chance(0.15):
            target.sessions["to", session_key(session)] = Session(state=dice.choice((b"state", b"other")))
        if life.chance(0.1):
            source.sessions["q", session_key(session)] = Session("another", source.epoch() + 40.0)
    both = dict.fromkeys((source, target))
    life.trouble(*both, operations=(*OPERATIONS, "cancel", "session", "state", *["move"] * 5 * within), most=2)
    if life.chance(0.3):
        life.later(dice.choice((1.0, 20.0)), partial(source.put, "q", *(a_message(life, 900 + one) for one in (1, 2))))
    if life.chance(0.2):
        life.later(dice.choice((0.0, 1.0, 12.0)), life.stop.set)
    some = {
        "scheduled": life.chance(0.5),
        "deferred": life.chance(0.3),
        "with_dead_letter": life.chance(0.3),
        "max_messages": dice.choice((None, None, 4, 15)),
        "for_seconds": dice.choice((None, None, 6.0)),
        "idle_seconds": dice.choice((0.0, 0.0, 25.0)),
        "dry_run": life.chance(0.1),
        "to": dice.choice((None, None, None, ToArchive(folder))),
        "active": True,
        "rate_per_second": dice.choice((None, None, None, 3.0)),
        "patience_seconds": dice.choice((2.0, 120.0)),
    }
    if life.chance(0.1):
        some |= {"active": False, "idle_seconds": 0.0}
    request = TransferRequest((life.spelled("q"),), **{name: one for name, one in some.items() if one is not None})
    path = folder / "ledger.jsonl"
    ledger = Ledger(path) if life.chance(0.5) else None
    facts = QueueFacts("q", queue.settings)
    job = MoveJob(
        request,
        Ends(
            source.messaging(),
            target.messaging(),
            admin=dice.choice((None, source.admin())),
            transactions=source.messaging() if within else None,
            source_access=NamespaceAccess("source", source.host),
            target_access=NamespaceAccess("target", target.host),
        ),
        _judged(life),
        seen=DestinationSeen("to", queue=dice.choice((None, QueueFacts("to", target.queue("to").settings)))),
        session_states=life.chance(0.9),
        facts=dice.choice(({}, {request.queues[0]: facts})),
        clock=life.clock,
        observer=life.observer,
        ledger=ledger,
        stop=life.stop,
        copy=life.chance(0.2),
        topic=life.chance(0.05),
        undeliverable=None,
    )
    await life.result(move(job))
    if ledger is not None:
        await ledger.close()
    life.left_in(*both)
    for file in sorted(folder.glob("*.jsonl*")):
        life.lines.append(file.name)
        life.file(file)


async def a_follow(life: Life, folder: Path) -> None:
    """Twice with one ledger: what the first one could not complete is not sent again by the second."""
    dice = life.dice
    source, target = life.namespace("source"), life.namespace("target")
    by_session = life.chance(0.6)
    settings = QueueSettings(lock_duration_seconds=dice.choice((10.0, 30.0)), requires_session=by_session)
    queue = source.add_queue(life.spelled("q"), settings)
    target.add_queue("To", QueueSettings(requires_session=by_session))
    target.add_queue("other")
    numbers = iter(range(1_000))

    def put(most: int) -> None:
        for number in [next(numbers) for _ in range(dice.randrange(most + 1))]:
            later = source.epoch() + 15.0 if life.chance(0.1) else None
            source.put("q", a_message(life, number, scheduled_at=later))

    for session in ("a", "B", "only") if by_session else ():
        if life.chance(0.4):
            source.sessions["q", session_key(session)] = Session(state=b"state")
        if life.chance(0.2):
            target.sessions["to", session_key(session)] = Session(state=dice.choice((b"state", b"other")))
        if life.chance(0.2):
            source.sessions["q", session_key(session)] = Session("another", source.epoch() + 20.0)
    path = folder / "ledger.jsonl"
    recorded = life.chance(0.8)
    for run in range(2):
        put(12)
        for seconds in (3.0, 25.0, 70.0):
            if life.chance(0.5):
                life.later(seconds, partial(put, 5))
        life.trouble(source, target, operations=(*OPERATIONS, "settle", "session", "state"), most=2)
        life.later(dice.choice((4.0, 30.0, 90.0)), life.stop.set)
        ledger = Ledger(path, resume=run > 0) if recorded else None
        job = MoveJob(
            TransferRequest((life.spelled("q"),), leave_missing=True, leave_refused=True, in_flight_messages=20),
            Ends(
                source.messaging(),
                target.messaging(),
                source_access=NamespaceAccess("source", source.host),
                target_access=NamespaceAccess("target", target.host),
            ),
            _judged(life),
            seen=DestinationSeen("to"),
            facts=dice.choice(({}, {path: QueueFacts("q", queue.settings) for path in ("q", "Q")})),
            clock=life.clock,
            observer=life.observer,
            ledger=ledger,
            stop=life.stop,
        )
        await life.result(SessionMove(job).followed() if by_session else job.followed(job.recorded, stop=life.stop))
        if ledger is not None:
            life.say(f"forwarded {sorted(map(str, ledger.forwarded))}")
            await ledger.close()
        life.stop.clear()
        source.heal()
    life.left_in(source, target)
    life.file(path)


async def a_restore(life: Life, folder: Path) -> None:
    dice = life.dice
    primary: Namespace = life.namespace("primary")
    for path in ("orders", "Billing"):
        primary.add_queue(path)
    primary.max_message_bytes = dice.choice((3_000, 256 * 1024))
    messages = []
    for number in range(1, dice.choice((2, 10, 60))):
        payload = a_message(life, number)
        session, queue = dice.choice((None, None, "a", "A", "b")), dice.choice(("q", "Q", "r"))
        received = Received(payload, number, queue, origin=Origin(queue, number, f"m{number}", number))
        messages.append(Restorable(received, Forward(payload, dice.choice(DESTINATIONS), session, session)))
    life.trouble(primary, operations=("send", "send", "limit"))
    path = folder / "ledger.jsonl"
    if life.chance(0.3):
        life.later(dice.choice((0.0, 2.0, 30.0)), life.stop.set)
    for _ in range(2):
        ledger = Ledger(path, resume=True) if life.chance(0.7) else None
        limits = Limits(
            patience_seconds=dice.choice((1.0, 60.0)),
            unreached_seconds=dice.choice((0.0, 20.0)),
            rate_per_second=dice.choice((None, None, 4.0)),
            sends=dice.choice((1, 8)),
        )
        work = restore(
            messages,
            primary=primary.messaging(),
            ledger=ledger,
            clock=life.clock,
            observer=life.observer,
            stop=life.stop,
            limits=limits,
        )
        await life.result(work)
        if ledger is not None:
            await ledger.close()
        life.stop.clear()
        primary.heal()
    life.left_in(primary)
    life.file(path)


STORIES = {
    "drain": (a_drain, 64),
    "syphon": (a_syphon, 32),
    "move": (a_move, 96),
    "follow": (a_follow, 32),
    "restore": (a_restore, 24),
}
