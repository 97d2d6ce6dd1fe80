"""Archive, take, drain, replay and reconcile in whatever order somebody at 3 a.m. gives them: nothing arrives twice
unless that was told before, and in the end everything has arrived once.

`STORY_ORDERS=200 python -m pytest tests/pipeline/test_every_order.py` plays so many more, drawn at random.
"""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from sbpair.connect import open_sides
from sbpair.core.errors import UsageError
from sbpair.core.rewrite import describe
from sbpair.core.transfer.filters import EVERYTHING, MessageFilter, Where
from sbpair.pipeline.spark.session import StartedSpark
from sbpair.runtime.clock import LoopClock, Quiet
from sbpair.runtime.transfer.drain import DrainJob, TransferRequest, drain
from sbpair.runtime.transfer.ledger import Ledger
from tests.pipeline.stage import Stage, backlog, messages

pytestmark = pytest.mark.spark

MESSAGES = 12
STEPS = ("archive", "take", "half", "drain", "replay", "reconcile")
REFUSED = {
    ("archive", "replay", "half", "take", "replay", "reconcile"): [True, True],
    ("half", "take", "replay", "drain", "replay"): [False, False],
}
"""Orders that differ, with which of their replays are refused."""


def drawn(number: int) -> list[tuple[str, ...]]:
    chance = random.Random(14)
    return [tuple(chance.choices(STEPS, k=6)) for _ in range(number)]


class Night:
    """One operator, one ledger for the drains, one archive, one ledger of replays."""

    def __init__(self, session: StartedSpark, stage: Stage) -> None:
        self._session, self._stage = session, stage
        self.ledger = stage.folder / "drain.jsonl"

    @property
    def has_archive(self) -> bool:
        return (Path(self._stage.archive_path) / "_commits").is_dir()

    def drain(self, most: int | None = None, wanted: MessageFilter = EVERYTHING) -> None:
        async def work() -> None:
            book = Ledger(self.ledger, resume=True)
            async with open_sides(self._stage.pair.resolve()) as sides:
                await drain(
                    DrainJob(
                        TransferRequest((backlog(0),), max_messages=most, wanted=wanted),
                        secondary=sides.secondary,
                        primary=sides.primary,
                        admin=None,
                        clock=LoopClock(),
                        observer=Quiet(),
                        ledger=book,
                        stop=asyncio.Event(),
                    )
                )
            await book.close()

        asyncio.run(work())

    def replay(self, *, with_ledger: bool) -> bool:
        """Whether it was refused, before anything was sent."""
        if not self.has_archive:
            return True
        before = len(self._stage.at_home())
        drained = (self.ledger,) if with_ledger and self.ledger.exists() else ()
        try:
            self._stage.replay(self._session, although_in_queues=False, drained=drained)
        except UsageError:
            assert len(self._stage.at_home()) == before
            return True
        return False

    def reconcile(self) -> dict[str, int]:
        """Messages by verdict, with all ledgers that there are."""
        ledgers = [str(one) for one in (self.ledger, self._stage.ledger) if one.exists()]
        if not self.has_archive:
            return {}
        found = self._stage.reconcile(
            self._session, [self._stage.archive_path], ledgers, searched_pair=self._stage.pair
        )
        return dict(found.verdicts)

    def step(self, name: str) -> None:
        if name in ("archive", "take"):
            self._stage.archive(self._session, take=name == "take")
        elif name == "reconcile":
            assert not self.reconcile().keys() & {"doubled", "altered"}
        else:
            self.drain(MESSAGES // 2 if name == "half" else None)


@pytest.mark.parametrize("order", [*REFUSED, *drawn(int(os.environ.get("STORY_ORDERS", "0")))], ids="-".join)
def test_nothing_arrives_twice_unless_told_before(session: StartedSpark, stage: Stage, order: tuple[str, ...]) -> None:
    stage.divert(messages(MESSAGES, sessions=2))
    night = Night(session, stage)
    refused = []
    for name in order:
        if name == "replay":
            refused.append(night.replay(with_ledger=False))
        else:
            night.step(name)
        assert set(Counter(one.message_id for one in stage.at_home()).values()) <= {1}
    assert refused == REFUSED.get(order, refused)
    night.drain()
    assert not (night.has_archive and night.replay(with_ledger=True))
    arrived = [(describe(one.payload).session_id, one.message_id or "") for one in stage.at_home()]
    assert sorted(name for _, name in arrived) == sorted(f"m-{number}" for number in range(MESSAGES))
    assert night.reconcile().keys() <= {"ok"}


def test_what_a_drain_sent_out_of_the_middle_is_not_what_the_archive_took(session: StartedSpark, stage: Stage) -> None:
    stage.divert(messages(MESSAGES))
    night = Night(session, stage)
    night.step("archive")
    night.drain(wanted=MessageFilter(where=Where("sys.MessageId IN ('m-4', 'm-5', 'm-9')")))
    night.step("take")
    assert night.replay(with_ledger=False), "whether the three have arrived is not known"
    seen = stage.reconcile(session, [stage.archive_path], [], searched_pair=stage.pair)
    assert seen.verdicts == {"arrived": 3, "taken": MESSAGES - 3}
    assert not night.replay(with_ledger=True)
    assert Counter(one.message_id for one in stage.at_home()) == {f"m-{number}": 1 for number in range(MESSAGES)}
    assert night.reconcile() == {"ok": MESSAGES}
