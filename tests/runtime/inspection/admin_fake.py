"""An administration that lies the way the service does: lists with gaps and ghosts, counts of 0, late answers."""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

from sbpair.core.entities import Counts, QueueFacts, QueueSettings, TopicFacts
from tests.fakes import FakeAdmin, FakeNamespace


@dataclass
class Lies:
    """What the namespace tells wrongly. Paths in lower case."""

    unlisted: set[str] = field(default_factory=set)
    ghosts: list[QueueFacts] = field(default_factory=list)
    """Listed although they are gone."""
    twice: bool = False
    counted_empty: set[str] = field(default_factory=set)
    """Counts read as 0, as under throttling."""
    updated_at: dict[str, float] = field(default_factory=dict)
    counted_more: dict[str, list[int]] = field(default_factory=dict)
    """So many more are counted than there are, by one answer after the other; then none."""
    counted_dead: dict[str, list[int]] = field(default_factory=dict)
    """The same of dead letters."""


class LyingAdmin(FakeAdmin):
    """`FakeAdmin` with lies, and the most calls it ever had to answer at once."""

    def __init__(self, namespace: FakeNamespace, lies: Lies | None = None) -> None:
        super().__init__(namespace)
        self.lies = lies or Lies()
        self.calls: Counter[str] = Counter()
        self.running = 0
        self.most_at_once = 0

    def _told(self, facts: QueueFacts) -> QueueFacts:
        key = facts.path.lower()
        if key in self.lies.counted_empty:
            facts = replace(facts, counts=Counts())
        if self.lies.counted_more.get(key):
            more = self.lies.counted_more[key].pop(0)
            facts = replace(facts, counts=replace(facts.counts, active=facts.counts.active + more))
        if self.lies.counted_dead.get(key):
            more = self.lies.counted_dead[key].pop(0)
            facts = replace(facts, counts=replace(facts.counts, dead_letter=facts.counts.dead_letter + more))
        return replace(facts, updated_at=self.lies.updated_at.get(key, facts.updated_at))

    async def list_queues(self, prefix: str = "") -> AsyncIterator[QueueFacts]:
        self.calls["list"] += 1
        for _ in range(2 if self.lies.twice else 1):
            async for facts in super().list_queues(prefix):
                if facts.path.lower() not in self.lies.unlisted:
                    yield self._told(facts)
        for ghost in self.lies.ghosts:
            yield ghost

    async def list_topics(self) -> AsyncIterator[TopicFacts]:
        async for facts in super().list_topics():
            if facts.path.lower() not in self.lies.unlisted:
                yield facts

    async def get_queue(self, path: str) -> QueueFacts | None:
        self.calls["get"] += 1
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            facts = await super().get_queue(path)
        finally:
            self.running -= 1
        return None if facts is None else self._told(facts)

    async def create_queue(self, path: str, settings: QueueSettings) -> QueueFacts:
        self.calls["create"] += 1
        return await super().create_queue(path, settings)

    async def update_queue(self, path: str, settings: QueueSettings) -> QueueFacts:
        self.calls["update"] += 1
        return await super().update_queue(path, settings)

    async def delete_queue(self, path: str) -> None:
        self.calls["delete"] += 1
        await super().delete_queue(path)
