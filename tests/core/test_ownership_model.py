"""The machine of active/active, checked: all interleavings of a small world, long random histories of a larger one.

The world: one session, a journal entry with a version, two regions whose clocks differ by up to the margin, in each a
queue with copies that appear at any time (or only there, or only here) and a consumer that may die at any step. Every
swap can lose to another one, and handlers can fail. What must hold in every state that can be reached:

* never two consumers running the session at once,
* no message begins before those it follows are finished,
* no message is completed twice, unless its consumer died, or outlived its lease, between the effect and the swap,
* and from every state without further trouble all copies get settled and every message gets its effect.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from sbpair.core import ownership
from sbpair.core.ordering import Chain, Frontier, Place, Stamp
from sbpair.core.ownership import (
    Bury,
    Claim,
    Done,
    GiveUp,
    Granularity,
    SessionEntry,
    Start,
    Terms,
    Wait,
    judge,
)

LEASE, MARGIN = 1.0, 1.0
STREAM = "s"


@dataclass(frozen=True)
class Message:
    id: str
    stamp: Stamp


@dataclass(frozen=True)
class Consumer:
    """What one consumer knows and does. `phase`: idle, swapping, running, effected, settling."""

    region: int
    life: int = 0
    phase: str = "idle"
    message: int = 0
    decision: object = None
    version: int = 0
    claim: Claim | None = None
    lease_until: float = 0.0

    @property
    def owner(self) -> str:
        return f"{self.region}.{self.life}"


@dataclass(frozen=True)
class World:
    entry: SessionEntry
    version: int
    tick: int
    consumers: tuple[Consumer, ...]
    waiting: frozenset[tuple[int, int]]
    """(region, message) of copies that can be received."""
    coming: frozenset[tuple[int, int]]
    """Copies that have not appeared yet."""
    effects: tuple[int, ...] = ()
    excused: frozenset[int] = frozenset()
    """Messages whose consumer died, or lost its lease, between effect and swap."""
    buried: frozenset[int] = frozenset()
    deaths: int = 1
    failures: int = 1


@dataclass(frozen=True)
class Rules:
    messages: tuple[Message, ...]
    terms: Terms
    skews: tuple[float, float]
    last_tick: int


def clock(world: World, rules: Rules, region: int) -> float:
    return 100.0 + world.tick + rules.skews[region]


def steps(world: World, rules: Rules) -> Iterator[World]:
    """Every state that can come next."""
    for index, consumer in enumerate(world.consumers):
        for after in _consumer_steps(world, rules, consumer):
            changed, new = after
            yield replace(new, consumers=(*world.consumers[:index], changed, *world.consumers[index + 1 :]))
    for copy in world.coming:
        yield replace(world, coming=world.coming - {copy}, waiting=world.waiting | {copy})
    if world.tick < rules.last_tick:
        yield _tick(world, rules)


def _tick(world: World, rules: Rules) -> World:
    """Time passes. A running handler is stopped when its lease is over on its own clock."""
    later = replace(world, tick=world.tick + 1)
    consumers = []
    for consumer in world.consumers:
        over = clock(later, rules, consumer.region) >= consumer.lease_until
        if consumer.phase == "running" and over:
            consumer = replace(consumer, phase="idle", claim=None)
        if consumer.phase == "effected" and over:
            later = replace(later, excused=later.excused | {consumer.message})
        consumers.append(consumer)
    return replace(later, consumers=tuple(consumers))


def _consumer_steps(world: World, rules: Rules, consumer: Consumer) -> Iterator[tuple[Consumer, World]]:
    now = clock(world, rules, consumer.region)
    if world.deaths and consumer.phase != "idle":
        excused = world.excused | {consumer.message} if consumer.phase == "effected" else world.excused
        yield (
            Consumer(consumer.region, consumer.life + 1),
            replace(world, deaths=world.deaths - 1, excused=excused),
        )
    if consumer.phase == "idle":
        for region, number in world.waiting:
            if region == consumer.region:
                yield from _look_at(world, rules, consumer, number, now)
    elif consumer.phase == "swapping":
        yield _swap(world, rules, consumer)
    elif consumer.phase == "running":
        assert consumer.claim is not None
        yield replace(consumer, phase="effected"), replace(world, effects=(*world.effects, consumer.message))
        if world.failures:
            failed = ownership.fail(world.entry, consumer.claim, "no", now=now, pause_seconds=0, terms=rules.terms)
            fewer = replace(world, failures=world.failures - 1)
            idle = replace(consumer, phase="idle", claim=None)
            yield idle, fewer if failed is None else replace(fewer, entry=failed, version=world.version + 1)
        renewed = ownership.renew(world.entry, consumer.claim, now=now, terms=rules.terms)
        if renewed is not None and renewed.lease_until > consumer.lease_until:
            longer = replace(consumer, lease_until=renewed.lease_until)
            yield longer, replace(world, entry=renewed, version=world.version + 1)
    elif consumer.phase == "effected":
        assert consumer.claim is not None
        done = ownership.complete(world.entry, consumer.claim, now=now, terms=rules.terms)
        if done is None:
            yield replace(consumer, phase="idle", claim=None), world
        else:
            yield replace(consumer, phase="settling"), replace(world, entry=done, version=world.version + 1)
    elif consumer.phase == "settling":
        copy = (consumer.region, consumer.message)
        yield replace(consumer, phase="idle", claim=None), replace(world, waiting=world.waiting - {copy})


def _look_at(
    world: World, rules: Rules, consumer: Consumer, number: int, now: float
) -> Iterator[tuple[Consumer, World]]:
    message = rules.messages[number]
    decision = judge(world.entry, message.stamp, message.id, owner=consumer.owner, now=now, terms=rules.terms)
    if isinstance(decision, (Start, GiveUp)) or (isinstance(decision, Wait) and decision.note is not None):
        yield (
            replace(consumer, phase="swapping", message=number, decision=decision, version=world.version),
            world,
        )
    elif isinstance(decision, (Done, Bury)):
        buried = world.buried | {number} if isinstance(decision, Bury) else world.buried
        yield consumer, replace(world, waiting=world.waiting - {(consumer.region, number)}, buried=buried)


def _swap(world: World, rules: Rules, consumer: Consumer) -> tuple[Consumer, World]:
    decision = consumer.decision
    forgetful = replace(consumer, phase="idle", decision=None, claim=None)
    if world.version != consumer.version:
        return forgetful, world
    if isinstance(decision, Wait):
        assert decision.note is not None
        return forgetful, replace(world, entry=decision.note, version=world.version + 1)
    assert isinstance(decision, (Start, GiveUp))
    swapped = replace(world, entry=decision.entry, version=world.version + 1)
    if isinstance(decision, GiveUp):
        copy = (consumer.region, consumer.message)
        buried = world.buried | {consumer.message}
        return forgetful, replace(swapped, waiting=world.waiting - {copy}, buried=buried)
    if clock(world, rules, consumer.region) >= decision.entry.lease_until:
        return forgetful, swapped  # the swap took longer than the lease: it is not begun
    running = replace(
        consumer, phase="running", decision=None, claim=decision.claim, lease_until=decision.entry.lease_until
    )
    _check_begin(world, rules, consumer)
    return running, swapped


def _check_begin(world: World, rules: Rules, consumer: Consumer) -> None:
    others = [one for one in world.consumers if one.region != consumer.region]
    assert all(one.phase != "running" for one in others), "two consumers run one session at once"
    for place in rules.messages[consumer.message].stamp.after:
        before = {index for index, one in enumerate(rules.messages) if one.stamp.place == place}
        failed = any(failure.place == place for failure in world.entry.failures)
        assert failed or before & {*world.effects}, f"{consumer.message} began before {before}"


def check(world: World) -> None:
    for number, count in Counter(world.effects).items():
        assert count == 1 or number in world.excused, f"message {number} was completed {count} times"


def explore(first: World, rules: Rules) -> int:
    """Visit every reachable state; returns how many there are. In those where nothing is left to come, finish."""
    seen = {essence(first)}
    border = [first]
    while border:
        world = border.pop()
        check(world)
        if len(border) % 101 == 0:
            finish(world, rules)
        for following in steps(world, rules):
            if (key := essence(following)) not in seen:
                seen.add(key)
                border.append(following)
    return len(seen)


def essence(world: World) -> tuple[object, ...]:
    """What of a world decides what can happen next: no counters, no times of the past."""
    entry = world.entry
    current = entry.current and (entry.current.place, entry.current.attempts, entry.current.not_before)
    return (
        (entry.state, entry.owner, entry.lease_until if entry.owner else 0, current, entry.gap is None),
        tuple(sorted((head.stream, head.number) for head in entry.heads)),
        (len(entry.failures), tuple((one.first, one.last) for one in entry.passed)),
        world.tick,
        tuple(_essence_of(consumer, world) for consumer in world.consumers),
        (world.waiting, world.coming, world.effects, world.excused, world.buried, world.deaths, world.failures),
    )


def _essence_of(consumer: Consumer, world: World) -> tuple[object, ...]:
    if consumer.phase == "idle":
        return (consumer.life,)
    fresh = consumer.version == world.version
    swap = type(consumer.decision).__name__ if consumer.phase == "swapping" and fresh else fresh
    if isinstance(consumer.decision, Start) and fresh:
        swap = f"{swap} {consumer.decision.entry.lease_until}"
    holds = consumer.claim is not None and ownership.holds(world.entry, consumer.claim)
    return (consumer.life, consumer.phase, consumer.message, swap, holds, consumer.lease_until)


def finish(world: World, rules: Rules) -> World:
    """Let it run without further trouble: everything has to come to its end."""
    world = replace(world, deaths=0, failures=0)
    endless = replace(rules, last_tick=world.tick + 1000)
    for _ in range(200):
        quiet = True
        for copy in sorted(world.coming):
            world = replace(world, coming=world.coming - {copy}, waiting=world.waiting | {copy})
        for index in range(len(world.consumers)):
            options = list(_consumer_steps(world, endless, world.consumers[index]))
            if options:
                changed, new = options[0]
                quiet = False
                world = replace(new, consumers=(*world.consumers[:index], changed, *world.consumers[index + 1 :]))
                check(world)
        if quiet and not world.waiting:
            break
        if quiet:
            world = _tick(world, endless)
    assert not world.waiting, f"never settled: {world.waiting} under {world.entry}"
    for number, message in enumerate(rules.messages):
        assert number in world.effects or number in world.buried, f"{message.id} was lost"
    return world


def chain_of(count: int, *, doubtful: int | None = None) -> tuple[Message, ...]:
    chain = Chain.begin(STREAM, Frontier())
    messages = []
    for number in range(count):
        stamp = chain.stamp(f"m{number}")
        messages.append(Message(f"m{number}", stamp))
        if number == doubtful:
            chain.failed(stamp, f"m{number}", in_doubt=True)
        else:
            chain.accepted(stamp)
    return tuple(messages)


def world_of(placed: tuple[tuple[int, ...], ...], *, coming: bool = False) -> World:
    copies = frozenset((region, number) for number, regions in enumerate(placed) for region in regions)
    none: frozenset[tuple[int, int]] = frozenset()
    return World(
        entry=SessionEntry("session"),
        version=0,
        tick=0,
        consumers=(Consumer(0), Consumer(1)),
        waiting=none if coming else copies,
        coming=copies if coming else none,
    )


def terms(granularity: Granularity) -> Terms:
    return Terms(LEASE, MARGIN, max_attempts=3, granularity=granularity)


WHERE = ((0,), (1,), (0, 1))


@pytest.mark.parametrize("granularity", Granularity)
@pytest.mark.parametrize("skews", [(0.0, MARGIN), (MARGIN, 0.0)], ids=["second-ahead", "first-ahead"])
def test_every_interleaving_of_two_messages_wherever_they_were_accepted(
    granularity: Granularity, skews: tuple[float, float]
) -> None:
    rules = Rules(chain_of(2), terms(granularity), skews, last_tick=3)
    states = 0
    for first, second in itertools.product(WHERE, WHERE):
        world = world_of((first, second))
        states += explore(replace(world, failures=0), rules)
        if skews[0] == 0.0:
            states += explore(replace(world, deaths=0), rules)
    assert states > 5_000


def test_every_interleaving_when_copies_appear_at_any_time() -> None:
    rules = Rules(chain_of(2), terms(Granularity.SESSION), (0.0, 1.0), last_tick=3)
    assert explore(replace(world_of(((0, 1), (0, 1)), coming=True), failures=0), rules) > 5_000


def test_every_interleaving_of_three_messages_of_which_the_second_is_in_doubt() -> None:
    rules = Rules(chain_of(3, doubtful=1), terms(Granularity.MESSAGE), (0.0, 0.0), last_tick=2)
    assert rules.messages[2].stamp.after == (Place(STREAM, 1),), "nobody waits for what the sender was told had failed"
    explore(replace(world_of(((0, 1), (1,), (0,))), failures=0), rules)


def test_the_check_would_see_clocks_further_apart_than_the_margin() -> None:
    rules = Rules(chain_of(1), terms(Granularity.SESSION), (0.0, 3 * MARGIN), last_tick=4)
    with pytest.raises(AssertionError, match="two consumers run"):
        explore(world_of(((0, 1),)), rules)


def test_the_check_would_see_a_consumer_that_ignores_predecessors() -> None:
    blind = tuple(replace(one, stamp=replace(one.stamp, after=())) for one in chain_of(2))
    world = world_of(((0,), (1,)))
    rules = Rules(blind, terms(Granularity.SESSION), (0.0, 0.0), last_tick=1)
    ends = [finish(following, rules) for following in steps(world, rules)]
    assert any(end.effects == (1,) and 0 in end.buried for end in ends), "nothing went ahead of its predecessor"


# Long histories


@dataclass
class Session:
    """One session of the simulation, with its sender."""

    chain: Chain
    sent: list[Message] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)


def simulate(seed: int, *, messages: int = 14) -> World:
    """Two regions, a sender that is refused or left in doubt, deaths, failures, skewed clocks: one session's life."""
    draw = random.Random(seed)
    session = Session(Chain.begin(STREAM, Frontier()))
    copies: set[tuple[int, int]] = set()
    for _ in range(messages):
        _send_one(session, copies, draw)
    skew = draw.uniform(-MARGIN, MARGIN)
    rules = Rules(
        tuple(session.sent),
        replace(terms(draw.choice(list(Granularity))), max_attempts=6),
        (0.0, skew),
        last_tick=10_000,
    )
    world = World(
        SessionEntry("session"),
        0,
        0,
        (Consumer(0), Consumer(1)),
        frozenset(),
        frozenset(copies),
        deaths=draw.randrange(6),
        failures=draw.randrange(6),
    )
    for _ in range(draw.randrange(50, 400)):
        options = list(steps(world, rules))
        if not options:
            break
        world = draw.choice(options)
        check(world)
    stored = {number for _, number in copies}
    ended = _end(world, rules, stored)
    _check_order(session, ended)
    return ended


def _send_one(session: Session, copies: set[tuple[int, int]], draw: random.Random) -> None:
    """Each side stores it or not, and its answer arrives or not. What failed is told, and not sent again."""
    number = len(session.sent)
    stamp = session.chain.stamp(f"m{number}")
    stored = [draw.random() < 0.8 for _ in range(2)]
    answered = [draw.random() < 0.85 for _ in range(2)]
    session.sent.append(Message(f"m{number}", stamp))
    copies.update((region, number) for region in range(2) if stored[region])
    if any(there and heard for there, heard in zip(stored, answered, strict=True)):
        session.chain.accepted(stamp)
        session.accepted.append(number)
    else:
        session.chain.failed(stamp, f"m{number}", in_doubt=not all(answered))
        session.failed.add(number)


def _end(world: World, rules: Rules, stored: set[int]) -> World:
    """Finish, but ask only for what was stored at all."""
    world = replace(world, deaths=0, failures=0)
    for _ in range(2_000):
        if not world.waiting and not world.coming:
            break
        world = replace(world, waiting=world.waiting | world.coming, coming=frozenset())
        moved = False
        for index in range(2):
            options = list(_consumer_steps(world, rules, world.consumers[index]))
            if options:
                changed, new = options[0]
                moved = True
                world = replace(new, consumers=(*world.consumers[:index], changed, *world.consumers[index + 1 :]))
                check(world)
        if not moved:
            world = _tick(world, rules)
    assert not world.waiting, f"never settled: {sorted(world.waiting)} under {world.entry}"
    assert all(number in world.effects or number in world.buried for number in stored)
    return world


def _check_order(session: Session, world: World) -> None:
    """Every accepted message had its effect, or failed as often as allowed, and their first effects are in order."""
    failed_for_good = {failure.place for failure in world.entry.failures}
    firsts = {number: world.effects.index(number) for number in set(world.effects)}
    done = [number for number in session.accepted if number in firsts]
    for number in session.accepted:
        assert number in firsts or session.sent[number].stamp.place in failed_for_good, f"m{number} was lost"
    assert [firsts[number] for number in done] == sorted(firsts[number] for number in done), "out of order"


@pytest.mark.parametrize("block", range(4))
def test_long_histories(block: int) -> None:
    ends = [simulate(seed) for seed in range(block * 60, block * 60 + 60)]
    assert any(len(world.effects) != len(set(world.effects)) for world in ends) or block, "no death after an effect?"
    assert any(world.buried for world in ends)
