"""What a seed stands for: how the world is made, what is sent when, and what goes wrong when."""

import random
from dataclasses import dataclass, field, replace
from typing import Any

HOUR = 3600.0
PRIMARIES = ("primary", "other")


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that goes wrong, at a moment (seconds), for so long."""

    at: float
    kind: str
    seconds: float = 0.0
    side: str = "secondary"
    place: int = 0
    """Which of the processes, queues or connections, of those there are then."""
    after: str = ""
    """Not at that moment, but when this happens next, or"""
    count: int = 1
    """so many times from then on."""

    def __str__(self) -> str:
        moment = f", at {self.count} x {self.after}" if self.after else ""
        return f"{self.at:.3f}s{moment}: {self.kind} {self.side}[{self.place}] for {self.seconds:.2f}s"


@dataclass(frozen=True, slots=True)
class Burst:
    """Messages that go into the backlog at one moment."""

    at: float
    count: int


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    hours: float
    queues: int
    lock_seconds: float
    drains: int
    senders: int
    failover_seconds: float
    ping_seconds: float
    hold_sessions: bool
    syphons: int
    ledgers: bool
    sessions: int
    session_share: float
    body_bytes: tuple[int, ...]
    latency_seconds: float
    slow_share: float
    slow_seconds: float
    skews: tuple[float, ...]
    receive_messages: int
    in_flight_messages: int
    bursts: tuple[Burst, ...]
    pairs: int = 1
    """Primaries that share the secondary."""
    durable: bool = False
    """The brokers keep everything in files, so that they can crash."""
    broker_skews: tuple[float, ...] = (0.0,)
    """How far their clocks are off: one of these after each start, in turns."""
    consumers: int = 0
    """Of a queue that is replicated."""
    dual_senders: int = 0
    lease_seconds: float = 10.0
    message_leases: bool = False
    """Whether a consumer claims one message at a time."""
    open_sessions: int = 8
    handler_seconds: float = 0.1
    handler_failures: float = 0.0
    """How many of the handlers fail, and how many ask for the message again."""
    copy_delay_seconds: float = 0.0
    moves: bool = False
    """Somebody moves what a queue and a subscription hold."""
    move_across: bool = False
    move_sessions: bool = False
    manage: bool = True
    partitioned: bool = False
    """Whether queues and topics are partitioned, those of the backlog too."""
    laws: tuple[tuple[str, str], ...] = ()
    """Laws of the namespaces that are bent, each with its form."""
    troubles: tuple[Trouble, ...] = field(default=())

    @property
    def retries(self) -> int:
        """How often a sender's pairing tries the primary again before the policy hears of a failure."""
        return self.seed % 2

    @property
    def answers_lost(self) -> float:
        """The share of sends to the primary of which a sender's pairing gets no answer."""
        return 0.1 if self.seed % 4 == 1 else 0.0

    @property
    def half_accepted(self) -> float:
        """The share of batches of which a destination takes the first half only."""
        return 0.2 if self.seed % 3 == 1 else 0.0

    @property
    def unstamped(self) -> bool:
        """Whether one of the producers of the replicated queue stamps nothing."""
        return self.seed % 4 == 2

    @property
    def forgets_early(self) -> bool:
        """Whether consumers remember what is finished for hardly longer than their leases: copies come later.

        Not where few sessions are open at once: one that is looked at less often than a gap is remembered notes it
        again each time, and waits for ever.
        """
        return self.seed % 5 == 3 and self.sessions <= 2 * self.consumers * self.open_sessions

    @property
    def primaries(self) -> tuple[str, ...]:
        return PRIMARIES[: self.pairs]

    @property
    def movers(self) -> int:
        return self.drains + self.syphons


KINDS: dict[str, tuple[float, float]] = {
    "crash": (0.0, 0.0),
    "power": (0.0, 0.0),
    "freeze": (0.5, 90.0),
    "cut": (0.0, 0.0),
    "half-open": (0.0, 0.0),
    "forgotten": (0.0, 0.0),
    "part": (0.1, 150.0),
    "throttle": (0.5, 30.0),
    "fail-sends": (0.5, 30.0),
    "refuse": (0.5, 30.0),
    "lose-settlement-reply": (0.5, 20.0),
    "short-locks": (1.0, 30.0),
    "detach": (0.0, 0.0),
    "disk-full": (0.2, 20.0),
    "disk-error": (0.2, 20.0),
    "foreign": (0.2, 60.0),
    "stop": (0.0, 0.0),
    "dark": (5.0, 400.0),
    "crash-sender": (0.0, 0.0),
    "clock-step": (0.0, 0.0),
}
"""What can go wrong, and how long it lasts at least and at most (seconds)."""
BROKER_KINDS: dict[str, tuple[float, float]] = {
    "crash-broker": (0.2, 90.0),
    "power-broker": (1.0, 200.0),
    "store-full": (0.5, 30.0),
}
"""And with brokers that keep what they have in files."""


SIDES_OF = {"fail-sends": ("primary", "primary", "secondary", "other")}
"""Where a kind strikes, if not mostly the secondary."""
MOMENTS = ("line", "writing", "arrived", "completed", "lock expired", "start")
"""Of what is noted: the worst moments for something to go wrong are right after these."""
WORST = {
    "crash": ("line", "writing", "arrived", "completed"),
    "power": ("line", "writing", "arrived", "completed"),
    "disk-full": ("writing",),
    "disk-error": ("writing",),
    "crash-broker": ("line", "writing", "arrived", "completed", "stored"),
    "power-broker": ("line", "writing", "arrived", "completed", "stored"),
    "crash-move": ("at", "gone", "line", "writing"),
    "power-move": ("at", "gone", "line", "writing"),
    "stop-move": ("at", "gone", "line", "writing"),
    "crash-consumer": ("handler", "worked", "writing", "copy done"),
    "freeze-consumer": ("handler", "worked", "writing", "copy"),
    "journal-down": ("handler", "worked", "writing", "replicated"),
    "journal-answers-lost": ("handler", "worked", "writing", "replicated"),
}
"""The moments of these kinds."""


JOURNAL_KINDS: dict[str, tuple[float, float]] = {
    "crash-consumer": (0.0, 0.0),
    "freeze-consumer": (1.0, 90.0),
    "stop-consumer": (0.0, 0.0),
    "journal-down": (0.5, 60.0),
    "journal-answers-lost": (1.0, 60.0),
}
"""And with consumers that have a journal."""
MOVE_KINDS: dict[str, tuple[float, float]] = {
    "crash-move": (0.0, 0.0),
    "power-move": (0.0, 0.0),
    "stop-move": (0.0, 0.0),
}
"""And with somebody who moves messages."""
_ALL_KINDS = KINDS | BROKER_KINDS | JOURNAL_KINDS | MOVE_KINDS


def draw(seed: int, hours: float) -> Plan:
    dice = random.Random(f"{seed} plan")
    durable = dice.random() < 0.4
    consumers = dice.choice([1, 2, 3]) if dice.random() < 0.35 else 0
    kinds = [kind for kind in KINDS if dice.random() < dice.choice([0.0, 0.25, 0.5])]
    kinds += [kind for kind in (*BROKER_KINDS,) * 2 if durable and dice.random() < 0.5]
    moves = dice.random() < 0.35
    kinds += [kind for kind in MOVE_KINDS if moves and dice.random() < 0.7]
    kinds += [kind for kind in (*JOURNAL_KINDS,) * 2 if consumers and dice.random() < 0.5]
    alone = dice.random() < 0.7
    drains, syphons = (dice.choice([(1, 0), (1, 0), (0, 1)])) if alone else (dice.randint(0, 2), dice.randint(1, 2))
    end = hours * HOUR
    at, bursts = dice.uniform(0.0, 5.0), []
    while at < end:
        bursts.append(Burst(at, dice.choice([1, 3, 10, 25, 60])))
        at += dice.choice([0.5, 20.0, 200.0, 900.0]) * dice.uniform(0.5, 1.5)
    plan = Plan(
        seed=seed,
        hours=hours,
        queues=dice.choice([1, 1, 2, 3]),
        lock_seconds=dice.choice([5.0, 10.0, 30.0, 60.0]),
        drains=drains,
        syphons=syphons,
        senders=dice.choice([0, 0, 1, 2]),
        failover_seconds=dice.choice([0.0, 5.0, 60.0]),
        ping_seconds=dice.choice([1.0, 20.0, 60.0]),
        hold_sessions=dice.random() < 0.5,
        ledgers=dice.random() < 0.8,
        sessions=dice.choice([1, 2, 4, 8]),
        session_share=dice.choice([0.0, 0.3, 0.7, 1.0]),
        body_bytes=tuple(dice.choice([(10,), (10, 200), (10, 5000), (10, 70_000)])),
        latency_seconds=dice.choice([0.001, 0.01, 0.05, 0.2]),
        slow_share=dice.choice([0.0, 0.0, 0.02, 0.1]),
        slow_seconds=dice.choice([0.5, 3.0]),
        skews=tuple(dice.choice([0.0, 0.0, -400.0, 45.0]) for _ in range(drains + syphons)),
        receive_messages=dice.choice([3, 3, 20, 100]),
        in_flight_messages=dice.choice([4, 20, 2000, 2000]),
        bursts=tuple(bursts),
        pairs=dice.choice([1, 1, 1, 2]),
        durable=durable,
        broker_skews=tuple(dice.choice([0.0, 0.0, 0.0, -200.0, 45.0]) for _ in range(3)),
        consumers=consumers,
        dual_senders=dice.choice([1, 2]) if consumers else 0,
        lease_seconds=dice.choice([6.0, 15.0, 30.0]),
        message_leases=dice.random() < 0.5,
        open_sessions=dice.choice([1, 8]),
        handler_seconds=dice.choice([0.01, 0.5, 6.0]),
        handler_failures=max(dice.choice([0.0, 0.0, 0.1]), 0.0 if seed % 7 else 0.3),  # of 0.3 some fail for good
        copy_delay_seconds=dice.choice([0.0, 2.0, 15.0]),
        moves=moves,
        move_across=dice.random() < 0.5,
        move_sessions=dice.random() < 0.5,
        manage=dice.random() < 0.7,
        troubles=tuple(_troubles(dice, kinds, bursts, end)),
    )
    world = dice.random()
    if world < 0.15:
        return _narrow(plan, dice, end)
    if world < 0.25:
        return _narrow_move(plan, dice, end)
    if world < 0.33:
        return _narrow_ledger(plan, dice, end)
    return _narrow_several(plan, dice, end) if world > 0.94 else plan


def _narrow(plan: Plan, dice: random.Random, end: float) -> Plan:
    """One process moves one session in small batches through a small window, and one kind of trouble meets it often:
    a batch that fails while the next is under way, or a gap that somebody else's locks make."""
    kinds = dice.choice([["fail-sends"], ["foreign"], ["foreign", "short-locks"]])
    bursts = [Burst(dice.uniform(0.0, end), dice.choice([25, 60])) for _ in range(4)]
    return replace(
        plan,
        drains=(drains := dice.choice([0, 1])),
        syphons=1 - drains,
        skews=(0.0,),
        sessions=1,
        session_share=1.0,
        receive_messages=3,
        in_flight_messages=dice.choice([4, 20]),
        bursts=tuple(sorted(bursts, key=lambda one: one.at)),
        troubles=tuple(_troubles(dice, kinds, bursts * 3, end)),
    )


def _narrow_several(plan: Plan, dice: random.Random, end: float) -> Plan:
    """Several processes move one or two sessions in small batches, and are killed or stand still in the middle of it,
    also for longer than a lock lasts: whatever one of them had on its way, no message comes before its predecessors."""
    bursts = [Burst(dice.uniform(0.0, end), dice.choice([10, 25, 60])) for _ in range(4)]
    bursts.sort(key=lambda one: one.at)
    kinds = dice.choice(
        [["crash", "power"], ["crash", "freeze"], ["crash", "part", "short-locks"], ["stop", "foreign"]]
    )
    drains, syphons = dice.choice([(2, 0), (1, 1), (0, 2), (2, 1)])
    return replace(
        narrow_several(plan, drains=drains, syphons=syphons),
        lock_seconds=dice.choice([5.0, 10.0]),
        sessions=dice.choice([1, 2]),
        receive_messages=dice.choice([3, 20]),
        in_flight_messages=dice.choice([4, 20]),
        bursts=tuple(bursts),
        troubles=tuple(_troubles(dice, kinds, bursts * 3, end)),
    )


def narrow_several(plan: Plan, *, drains: int, syphons: int) -> Plan:
    """So many processes at one backlog queue, and nobody else."""
    return replace(
        plan,
        drains=drains,
        syphons=syphons,
        skews=(0.0,) * (drains + syphons),
        pairs=1,
        queues=1,
        consumers=0,
        dual_senders=0,
        moves=False,
        session_share=1.0,
    )


def _narrow_move(plan: Plan, dice: random.Random, end: float) -> Plan:
    """A few sessions with short locks are moved to a namespace that often takes nothing, for longer than they last."""
    bursts = [Burst(dice.uniform(0.0, end), dice.choice([3, 10, 25])) for _ in range(4)]
    bursts.sort(key=lambda one: one.at)
    troubles = _troubles(dice, ["dark", "dark", "throttle", "fail-sends", "refuse"], bursts * 2, end)
    return replace(
        plan,
        pairs=1,
        senders=0,
        consumers=0,
        dual_senders=0,
        lock_seconds=dice.choice([5.0, 10.0]),
        slow_share=0.0,
        moves=True,
        move_across=True,
        move_sessions=True,
        sessions=dice.choice([1, 2, 4]),
        bursts=tuple(bursts),
        troubles=tuple(
            replace(one, side="secondary", after="gone", seconds=one.seconds + (90.0 if one.kind == "dark" else 0.0))
            for one in troubles
        ),
    )


def _narrow_ledger(plan: Plan, dice: random.Random, end: float) -> Plan:
    """One process moves small batches, each a write to its ledger, and is ended in the middle of many of them: a drain
    takes so short a time that elsewhere few crashes meet one, and fewer a write."""
    bursts = [Burst(dice.uniform(0.0, end), dice.choice([25, 60])) for _ in range(4)]
    bursts.sort(key=lambda one: one.at)
    return replace(
        plan,
        drains=(drains := dice.choice([0, 1])),
        syphons=1 - drains,
        skews=(0.0,),
        ledgers=True,
        pairs=1,
        consumers=0,
        dual_senders=0,
        moves=False,
        receive_messages=3,
        in_flight_messages=dice.choice([4, 20]),
        bursts=tuple(bursts),
        troubles=tuple(
            replace(one, after="writing", count=dice.choice([1, 2, 5]))
            for one in _troubles(dice, ["crash", "crash", "power", "disk-full"], bursts * 2, end)
        ),
    )


def _troubles(dice: random.Random, kinds: list[str], bursts: list[Burst], end: float) -> list[Trouble]:
    """Most of it while messages move."""
    found: list[Trouble] = []
    for burst in bursts if kinds else ():
        for _ in range(dice.choice([0, 1, 1, 2, 4])):
            kind = dice.choice(kinds)
            least, most = _ALL_KINDS[kind]
            at = burst.at + dice.choice([dice.expovariate(1.0), dice.expovariate(0.2), dice.uniform(0.0, 120.0)])
            seconds = least * (most / least) ** dice.random() if least else 0.0
            side = dice.choice(SIDES_OF.get(kind, ("primary", "secondary", "secondary", "other")))
            after = dice.choice(WORST.get(kind, MOMENTS)) if dice.random() < 0.7 else ""
            at = burst.at if after else min(at, end)
            count = dice.choice([1, 2, 5, 20])
            found.append(Trouble(at, kind, seconds, side, dice.randrange(8), after, count))
    return sorted(found, key=lambda one: one.at)


def told(plan: Plan) -> list[tuple[str, Any]]:
    """A plan's settings, for people."""
    left_out = ("bursts", "troubles")
    return [(name, getattr(plan, name)) for name in plan.__slots__ if name not in left_out]
