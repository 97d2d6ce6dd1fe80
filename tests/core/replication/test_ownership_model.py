"""The machine of active/active, checked: all interleavings of a small world, long random histories of a larger one.

The world: one session, a journal entry with a version and records of finished messages, two regions whose clocks differ
by up to the margin, in each a queue with copies that appear at any time (or only there, or only here) and a consumer
that may die at any step. Messages have stamps of our sender or none, and may be sent twice with the same id. Every swap
can lose to another one, and handlers can fail. What must hold in every state that can be reached:

* never two consumers running the session at once,
* no message begins before those it follows are finished: those its stamp names, or all before it in the same queue,
* no MessageId is completed twice, unless its consumer died, or outlived its lease, between the effect and the swap,
* and from every state without further trouble all copies get settled and every message gets its effect.
"""

import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from sbpair.core.replication import ownership
from sbpair.core.replication.ordering import Chain, Frontier, Place, Stamp
from sbpair.core.replication.ownership import (
    Claim,
    Copy,
    DeadLetter,
    Done,
    Finished,
    GiveUp,
    Granularity,
    NotYet,
    SessionEntry,
    SessionState,
    Skip,
    Start,
    Terms,
    decide,
)

LEASE, MARGIN = 1.0, 1.0
STREAM = "s"


@dataclass(frozen=True)
class Message:
    id: str
    stamp: Stamp | None


@dataclass(frozen=True)
class Consumer:
    """What one consumer knows and does. `phase`: idle, (reading,) swapping, running, effected, settling, recording."""

    region: int
    life: int = 0
    phase: str = "idle"
    message: int = 0
    decision: object = None
    version: int = 0
    claim: Claim | None = None
    lease_until: float = 0.0
    read: frozenset[Finished] = frozenset()
    """Records that it read before the entry, where the rules are wrong."""

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
    records: frozenset[Finished] = frozenset()
    effects: tuple[int, ...] = ()
    excused: frozenset[str] = frozenset()
    """Ids of messages whose consumer died, or lost its lease, between effect and swap."""
    dead_lettered: frozenset[int] = frozenset()
    deaths: int = 1
    failures: int = 1


@dataclass(frozen=True)
class Rules:
    messages: tuple[Message, ...]
    terms: Terms
    skews: tuple[float, float]
    last_tick: int
    placed: frozenset[tuple[int, int]] = frozenset()
    """(region, message) of all copies, for messages without stamps."""
    queues: tuple[tuple[int, ...], tuple[int, ...]] = ()  # type: ignore[assignment]
    """The order of the messages in each region's queue, where it is not that of their numbers."""
    records_first: bool = False
    """Wrong on purpose: the records are read before the entry."""
    heedless: bool = False
    """Wrong on purpose: the queue's order does not count."""

    @property
    def in_order(self) -> bool:
        """Copies appear in the order of the queue: that is what messages without stamps go by."""
        return any(message.stamp is None for message in self.messages)

    def sequence(self, region: int, number: int) -> int:
        return self.queues[region].index(number) if self.queues else number


Known = TypeVar("Known", World, Consumer, Rules, Message)


def replace(one: Known, **changes: Any) -> Known:
    """`dataclasses.replace` at a quarter of its cost, which is half of the search: no field is computed or checked."""
    other = object.__new__(type(one))
    vars(other).update(vars(one), **changes)
    return other


def clock(world: World, rules: Rules, region: int) -> float:
    return 100.0 + world.tick + rules.skews[region]


def steps(world: World, rules: Rules) -> Iterator[World]:
    """Every state that can come next."""
    for index, consumer in enumerate(world.consumers):
        for after in _consumer_steps(world, rules, consumer):
            changed, new = after
            yield replace(new, consumers=(*world.consumers[:index], changed, *world.consumers[index + 1 :]))
    for copy in world.coming:
        region, number = copy
        before = (rules.sequence(*one) < rules.sequence(region, number) for one in world.coming if one[0] == region)
        if rules.in_order and any(before):
            continue
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
            later = replace(later, excused=later.excused | {rules.messages[consumer.message].id})
        consumers.append(consumer)
    return replace(later, consumers=tuple(consumers))


def _consumer_steps(world: World, rules: Rules, consumer: Consumer) -> Iterator[tuple[Consumer, World]]:
    now = clock(world, rules, consumer.region)
    if world.deaths and consumer.phase != "idle":
        message_id = rules.messages[consumer.message].id
        excused = world.excused | {message_id} if consumer.phase == "effected" else world.excused
        yield (Consumer(consumer.region, consumer.life + 1), replace(world, deaths=world.deaths - 1, excused=excused))
    if consumer.phase == "idle":
        if rules.records_first:
            yield replace(consumer, phase="reading", read=world.records), world
        else:
            yield from _look(world, rules, consumer, world.records, now)
    elif consumer.phase == "reading":
        yield from _look(world, rules, replace(consumer, phase="idle", read=frozenset()), consumer.read, now)
    elif consumer.phase == "swapping":
        started = consumer.decision
        left = () if not isinstance(started, Start) else (*started.entry.recent,)
        written = {one.message_id for one in world.records}
        unwritten = [one for one in left if one.message_id not in written]
        if unwritten:
            yield consumer, replace(world, records=world.records | {unwritten[0]})
        else:
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
        after = replace(consumer, phase="recording")
        if not rules.in_order:  # here what has a number is finished by it, so the record comes at once
            after, world = _recorded(world, rules, after)
        yield after, replace(world, waiting=world.waiting - {copy})
    elif consumer.phase == "recording":
        yield _recorded(world, rules, consumer)


def _recorded(world: World, rules: Rules, consumer: Consumer) -> tuple[Consumer, World]:
    finished = Finished(rules.messages[consumer.message].id, SessionState.COMPLETED, 0.0)
    return replace(consumer, phase="idle", claim=None), replace(world, records=world.records | {finished})


def _look(
    world: World, rules: Rules, consumer: Consumer, records: frozenset[Finished], now: float
) -> Iterator[tuple[Consumer, World]]:
    """What can follow from reading the entry, for everything the consumer may hold at that moment: what came first in
    its queue, or, where order is in the stamps alone, any one copy."""
    waiting = (number for region, number in world.waiting if region == consumer.region)
    here = sorted(waiting, key=_position(rules, consumer.region))
    held = [here[: last + 1] for last in range(len(here))] if rules.in_order else [[number] for number in here]
    outcomes: dict[str, Finished | None] = {message.id: None for message in rules.messages}
    outcomes |= {finished.message_id: finished for finished in records}
    for numbers in held:
        copies = {
            Copy(rules.messages[n].id, rules.sequence(consumer.region, n), rules.messages[n].stamp): n for n in numbers
        }
        if rules.heedless:
            copies = dict(list(copies.items())[-1:])
        decided = decide(world.entry, list(copies), outcomes, owner=consumer.owner, now=now, terms=rules.terms)
        if isinstance(decided, list):
            noted = [wait for wait in decided if wait.note is not None]
            if noted:
                yield replace(consumer, phase="swapping", decision=noted[0], version=world.version), world
            continue
        copy, decision = decided
        number = copies[copy]
        if isinstance(decision, (Start, GiveUp, Skip)):
            yield (replace(consumer, phase="swapping", message=number, decision=decision, version=world.version), world)
        elif isinstance(decision, (Done, DeadLetter)):
            dead_lettered = world.dead_lettered | {number} if isinstance(decision, DeadLetter) else world.dead_lettered
            gone = replace(world, waiting=world.waiting - {(consumer.region, number)}, dead_lettered=dead_lettered)
            yield consumer, gone


def _position(rules: Rules, region: int) -> Callable[[int], int]:
    return lambda number: rules.sequence(region, number)


def _swap(world: World, rules: Rules, consumer: Consumer) -> tuple[Consumer, World]:
    decision = consumer.decision
    forgetful = replace(consumer, phase="idle", decision=None, claim=None)
    if world.version != consumer.version:
        return forgetful, world
    if isinstance(decision, NotYet):
        assert decision.note is not None
        return forgetful, replace(world, entry=decision.note, version=world.version + 1)
    assert isinstance(decision, (Start, GiveUp, Skip))
    entry = decision.entry
    if isinstance(decision, Start):
        entry = ownership.recorded(entry, {finished.message_id for finished in world.records})
    swapped = replace(world, entry=entry, version=world.version + 1)
    copy = (consumer.region, consumer.message)
    if isinstance(decision, Skip):
        return forgetful, replace(swapped, waiting=world.waiting - {copy})
    if isinstance(decision, GiveUp):
        dead_lettered = world.dead_lettered | {consumer.message}
        return forgetful, replace(swapped, waiting=world.waiting - {copy}, dead_lettered=dead_lettered)
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
    done = {rules.messages[number].id for number in world.effects}
    done |= {one.message_id for one in (*world.records, *world.entry.recent) if one.state is SessionState.FAILED}
    message = rules.messages[consumer.message]
    if message.stamp is None:
        mine = rules.sequence(consumer.region, consumer.message)
        queue = [n for region, n in rules.placed if region == consumer.region]
        before = [{rules.messages[n].id} for n in queue if rules.sequence(consumer.region, n) < mine]
    else:
        # A number that was refused for certain is free again, so several messages may have had it.
        places = [(one.stamp.place, one.id) for one in rules.messages if one.stamp is not None]
        before = [{name for place, name in places if place == after} for after in message.stamp.after]
    begun = world.entry.current is not None and world.entry.current.message_id == message.id
    assert begun or all(names & done for names in before), f"{message.id} began before one of {before}"


def check(world: World, rules: Rules) -> None:
    ids = Counter(rules.messages[number].id for number in world.effects)
    for message_id, count in ids.items():
        assert count == 1 or message_id in world.excused, f"message {message_id} was completed {count} times"


def explore(first: World, rules: Rules) -> int:
    """Visit every reachable state; returns how many there are. In those where nothing is left to come, finish."""
    seen = {essence(first)}
    border = [first]
    while border:
        world = border.pop()
        check(world, rules)
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
    current = entry.current and (entry.current.message_id, entry.current.attempts, entry.current.not_before)
    return (
        (entry.state, entry.owner, entry.lease_until if entry.owner else 0, current, entry.gap is None),
        tuple(sorted((head.stream, head.number) for head in entry.heads)),
        (tuple((one.first, one.last) for one in entry.passed), _names(entry.recent), _names(world.records)),
        world.tick,
        tuple(_essence_of(consumer, world) for consumer in world.consumers),
        (world.waiting, world.coming, world.effects, world.excused, world.dead_lettered, world.deaths, world.failures),
    )


def _names(finished: Iterable[Finished]) -> frozenset[tuple[str, str]]:
    return frozenset((one.message_id, one.state.value) for one in finished)


def _essence_of(consumer: Consumer, world: World) -> tuple[object, ...]:
    if consumer.phase == "idle":
        return (consumer.life,)
    if consumer.phase == "reading":
        return (consumer.life, _names(consumer.read))
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
                check(world, rules)
        if quiet and not world.waiting:
            break
        if quiet:
            world = _tick(world, endless)
    assert not world.waiting, f"never settled: {world.waiting} under {world.entry}"
    had = {rules.messages[number].id for number in (*world.effects, *world.dead_lettered)}
    for number in {number for _, number in rules.placed} or range(len(rules.messages)):
        assert rules.messages[number].id in had, f"{rules.messages[number].id} was lost"
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
        entry=SessionEntry("orders", "session"),
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
    states = 0
    for first, second in itertools.product(WHERE, WHERE):
        # A third tick, with which a lease that was renewed can end too, where there is most to go wrong.
        last_tick = 3 if (first, second, granularity) == ((0, 1), (0, 1), Granularity.SESSION) else 2
        rules = Rules(chain_of(2), terms(granularity), skews, last_tick)
        world = world_of((first, second))
        states += explore(replace(world, failures=0), rules)
        if skews[0] == 0.0:
            states += explore(replace(world, deaths=0), rules)
    assert states > 4_000


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
    blind = tuple(
        Message(one.id, dataclasses.replace(one.stamp, after=())) for one in chain_of(2) if one.stamp is not None
    )
    world = world_of(((0,), (1,)))
    rules = Rules(blind, terms(Granularity.SESSION), (0.0, 0.0), last_tick=1)
    ends = [finish(following, rules) for following in steps(world, rules)]
    assert any(end.effects == (1,) and 0 in end.dead_lettered for end in ends), "nothing went ahead of its predecessor"


# Any producer's messages, and messages sent twice


def unstamped(count: int) -> tuple[Message, ...]:
    return tuple(Message(f"m{number}", None) for number in range(count))


def rules_of(
    messages: tuple[Message, ...],
    placed: tuple[tuple[int, ...], ...],
    *,
    granularity: Granularity = Granularity.SESSION,
    skews: tuple[float, float] = (0.0, MARGIN),
    last_tick: int = 3,
) -> Rules:
    copies = frozenset((region, number) for number, regions in enumerate(placed) for region in regions)
    return Rules(messages, terms(granularity), skews, last_tick, placed=copies)


@pytest.mark.parametrize("granularity", Granularity)
def test_every_interleaving_of_two_messages_without_stamps_wherever_they_were_accepted(
    granularity: Granularity,
) -> None:
    """In every state each begins only when all before it in the same queue is finished, and each runs once."""
    states = 0
    for placed in itertools.product(WHERE, WHERE):
        rules = rules_of(unstamped(2), placed, granularity=granularity, last_tick=2)
        states += explore(replace(world_of(placed), failures=0), rules)
    assert states > 2_000


def test_every_interleaving_of_messages_without_stamps_that_appear_and_fail_at_any_time() -> None:
    both = ((0, 1), (0, 1))
    rules = rules_of(unstamped(2), both, skews=(0.0, 1.0), last_tick=2)
    assert explore(replace(world_of(both, coming=True), deaths=0), rules) > 5_000


def test_with_all_messages_on_both_sides_their_order_is_that_of_sending() -> None:
    """Also if one side appears late as a whole: copies are scheduled, or the side was dark and was given them later."""
    both = ((0, 1), (0, 1), (0, 1))
    rules = rules_of(unstamped(3), both, skews=(0.0, 0.0), last_tick=1)
    for late in (0, 1):
        world = world_of(both)
        copies = frozenset(copy for copy in world.waiting if copy[0] == late)
        world = replace(world, waiting=world.waiting - copies, coming=copies, failures=0)
        seen = {essence(world)}
        border = [world]
        while border:
            world = border.pop()
            firsts = tuple(dict.fromkeys(world.effects))
            assert firsts == tuple(range(len(firsts))), f"ran in the order {firsts}"
            for following in steps(world, rules):
                if (key := essence(following)) not in seen:
                    seen.add(key)
                    border.append(following)
        assert len(seen) > 1_000


def test_what_only_the_other_side_was_given_can_be_overtaken_without_stamps() -> None:
    """The limit that `core.replication.ordering` tells of, and that stamps remove."""
    placed = ((0,), (1,))
    rules = rules_of(unstamped(2), placed)
    ends = [finish(following, rules) for following in steps(world_of(placed), rules)]
    assert {end.effects for end in ends} >= {(0, 1), (1, 0)}
    stamps = replace(rules, messages=chain_of(2))
    ends = [finish(following, stamps) for following in steps(world_of(placed), stamps)]
    assert {end.effects for end in ends} == {(0, 1)}


def test_queues_that_disagree_about_the_order_come_to_an_end() -> None:
    both = ((0, 1), (0, 1))
    rules = replace(rules_of(unstamped(2), both, last_tick=2), queues=((0, 1), (1, 0)))
    explore(replace(world_of(both), failures=0), rules)
    explore(replace(world_of(both), deaths=0), rules)


def test_the_check_would_see_a_consumer_that_ignores_the_order_of_its_queue() -> None:
    both = ((0, 1), (0, 1))
    rules = replace(rules_of(unstamped(2), both), heedless=True)
    with pytest.raises(AssertionError, match="m1 began before"):
        explore(world_of(both), rules)


def test_the_check_would_see_records_that_are_read_before_the_entry() -> None:
    """Finished, recorded and gone from the entry between the two reads: it would look as if it had never been."""
    both = ((0, 1), (0, 1))
    rules = replace(rules_of(unstamped(2), both, granularity=Granularity.MESSAGE), records_first=True)
    with pytest.raises(AssertionError, match="was completed 2 times"):
        explore(replace(world_of(both), deaths=0, failures=0), rules)


def sent_again(first: int, again: tuple[int, ...]) -> tuple[Message, ...]:
    """`first` messages of one sender, then a sender that starts again sends some of them, and a new one."""
    messages = list(chain_of(first))
    frontier = Frontier((Place(STREAM, first, f"m{first - 1}"),))
    chain = Chain.begin("rerun", frontier)
    for name in (*(f"m{number}" for number in again), "new"):
        stamp = chain.stamp(name)
        chain.accepted(stamp)
        messages.append(Message(name, stamp))
    return tuple(messages)


@pytest.mark.parametrize("stamps", [True, False], ids=["stamps", "no-stamps"])
def test_every_interleaving_of_a_message_that_is_sent_twice(stamps: bool) -> None:
    messages = sent_again(1, (0,))
    if not stamps:
        messages = tuple(replace(message, stamp=None) for message in messages)
    for placed in (((0, 1), (0, 1), (0, 1)), ((0,), (1,), (0, 1)), ((1,), (0, 1), (0,))):
        rules = rules_of(messages, placed, last_tick=1)
        if not stamps or placed[0] == (0, 1):
            explore(replace(world_of(placed), failures=0, deaths=0), rules)


def test_every_interleaving_when_the_brokers_dropped_what_was_sent_twice() -> None:
    """The second m0 and m1 are on no side; what was sent after them waits for them by their ids."""
    messages = sent_again(2, (0, 1))
    placed = ((0, 1), (0, 1), (), (), (0, 1))
    rules = rules_of(messages, placed, skews=(0.0, 0.0), last_tick=1)
    explore(replace(world_of(placed), failures=0, deaths=0), rules)
    end = finish(replace(world_of(placed), failures=0, deaths=0), rules)
    assert [messages[number].id for number in end.effects] == ["m0", "m1", "new"]


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
        dataclasses.replace(terms(draw.choice(list(Granularity))), max_attempts=6),
        (0.0, skew),
        last_tick=10_000,
    )
    world = World(
        SessionEntry("orders", "session"),
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
        check(world, rules)
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
                check(world, rules)
        if not moved:
            world = _tick(world, rules)
    assert not world.waiting, f"never settled: {sorted(world.waiting)} under {world.entry}"
    assert all(number in world.effects or number in world.dead_lettered for number in stored)
    return world


def _check_order(session: Session, world: World) -> None:
    """Every accepted message had its effect, or failed as often as allowed, and their first effects are in order."""
    outcomes = (*world.records, *world.entry.recent)
    failed_for_good = {one.message_id for one in outcomes if one.state is SessionState.FAILED}
    firsts = {number: world.effects.index(number) for number in set(world.effects)}
    done = [number for number in session.accepted if number in firsts]
    for number in session.accepted:
        assert number in firsts or session.sent[number].id in failed_for_good, f"m{number} was lost"
    assert [firsts[number] for number in done] == sorted(firsts[number] for number in done), "out of order"


@pytest.mark.parametrize("block", range(4))
def test_long_histories(block: int) -> None:
    ends = [simulate(seed) for seed in range(block * 25, block * 25 + 25)]
    assert any(len(world.effects) != len(set(world.effects)) for world in ends) or block, "no death after an effect?"
    assert any(world.dead_lettered for world in ends)
