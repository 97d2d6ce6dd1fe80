"""What two consumers of a session decide and write, in any order of events: histories that a seed draws.

What is right about it the model beside (`test_ownership_model`) judges; here every entry and every claim counts.
"""

import random
from typing import Any

from sbpair.core.replication import ownership
from sbpair.core.replication.ordering import Chain, Frontier, Place
from sbpair.core.replication.ownership import (
    Claim,
    Copy,
    Decision,
    Finished,
    GiveUp,
    Granularity,
    LookUp,
    NotYet,
    SessionEntry,
    Skip,
    Start,
    Terms,
)

STEPS = 60
OWNERS = ("here.1", "here.2", "there.1")
PAUSES = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0, 11.0)


class History:
    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.terms = Terms(
            lease_seconds=dice.choice((1.0, 4.0)),
            margin_seconds=dice.choice((0.0, 1.0)),
            max_attempts=dice.choice((1, 2, 5)),
            gap_seconds=dice.choice((None, 3.0, 12.0)),
            retention_seconds=dice.choice((16.0, 600.0)),
            remember_seconds=10.0,
            granularity=dice.choice([*Granularity]),
        )
        self.entry = SessionEntry("orders", "s")
        self.records: dict[str, Finished] = {}
        self.claims: list[Claim] = []
        self.now = 100.0
        self.copies = self.sent()
        self.lines: list[str] = []

    def sent(self) -> list[Copy]:
        """Of two senders, the second one after the first, and of one that does not stamp; some twice, some not told
        whether they were stored."""
        dice, copies, chain = self.dice, list[Copy](), Chain.begin("a", Frontier())
        for number in range(1, dice.randint(4, 12)):
            message_id = f"m{dice.choice((number, number, number, max(1, number - 2)))}"
            if number == 5:
                chain = Chain.begin("b", Frontier((Place("a", 3, "m3"),)))
            stamp = chain.stamp(message_id) if dice.random() < 0.8 else None
            copies.append(Copy(message_id, number, stamp))
            if stamp is None:
                continue
            if (what := dice.random()) < 0.75:
                chain.accepted(stamp)
            else:
                chain.failed(stamp, message_id, in_doubt=what < 0.9)
        return copies

    def live(self) -> list[str]:
        for step in self.dice.choices((self.consume, self.go_on, self.record, self.give_up), (5, 5, 1, 1), k=STEPS):
            self.now += self.dice.choice(PAUSES)
            step()
            seen_at = self.now - self.dice.choice((0.0, 0.0, 0.0, 30.0))
            stuck = ownership.is_stuck(self.entry, now=seen_at, terms=self.terms)
            self.note(stuck, ownership.forget_after_seconds(self.entry, self.terms), self.entry)
        return self.lines

    def note(self, *what: Any) -> None:
        self.lines.append(f"{self.now:.1f} {'; '.join(map(str, what))}")

    def consume(self) -> None:
        """A consumer that holds some of the copies, at the clock of its region."""
        owner, held = self.dice.choice(OWNERS), [one for one in self.copies if self.dice.random() < 0.6]
        now = self.now + (0.0 if owner.startswith("here") else self.terms.margin_seconds)
        outcomes: dict[str, Finished | None] = {}
        while True:
            found = ownership.decide(self.entry, held, outcomes, owner=owner, now=now, terms=self.terms)
            self.note("decide", owner, [one.sequence_number for one in held], found)
            decision = None if isinstance(found, list) else found[1]
            if not isinstance(decision, LookUp):
                break
            outcomes |= {one: self.records.get(one) for one in decision.message_ids}
        if isinstance(found, list):
            for wait in found:
                self.wrote(wait)
        else:
            self.wrote(found[1])
            if self.dice.random() < 0.3 and not isinstance(found[1], Start):
                self.copies.remove(found[0])

    def wrote(self, decision: Decision) -> None:
        """Its swap, which is lost now and then."""
        match decision:
            case Start(entry, claim) if self.dice.random() < 0.9:
                self.entry = entry
                self.claims.append(claim)
            case GiveUp(entry) | Skip(entry) | NotYet(note=SessionEntry() as entry) if self.dice.random() < 0.9:
                self.entry = entry

    def go_on(self) -> None:
        """Who has claimed a message renews, completes, fails or puts off: most often the last one who has."""
        if not self.claims:
            return
        claim = self.dice.choice(self.claims[-2:])
        pause = self.dice.choice((0.0, 3.0))
        own = {"now": self.now, "terms": self.terms}
        what, entry = self.dice.choice(
            (
                ("renew", ownership.renew(self.entry, claim, **own)),
                ("complete", ownership.complete(self.entry, claim, **own)),
                ("complete", ownership.complete(self.entry, claim, **own)),
                ("fail", ownership.fail(self.entry, claim, "no stock " * 60, pause_seconds=pause, **own)),
                ("later", ownership.retry_later(self.entry, claim, now=self.now, pause_seconds=pause)),
            )
        )
        self.note(what, claim, ownership.holds(self.entry, claim), ownership.ended(self.entry, claim), entry is None)
        self.entry = entry or self.entry

    def record(self) -> None:
        written = [one for one in self.entry.recent if self.dice.random() < 0.7]
        self.records |= {one.message_id: one for one in written}
        self.entry = ownership.recorded(self.entry, [one.message_id for one in written])

    def give_up(self) -> None:
        owner = self.dice.choice(OWNERS)
        released = ownership.release(self.entry, owner, now=self.now)
        self.note("release", owner, released is None)
        self.entry = released or self.entry
