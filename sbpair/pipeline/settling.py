"""Completes archived messages in their queues: the second half of `pipeline archive --take`.

A task gets the rows of whole queues from the committed archive. It receives under lock and completes a message only if
its number and the digest of its content are among them; what it was not told about is released at the end. Rows that
do not come are looked for by a browse: those that are gone were completed by an earlier attempt (or by somebody else);
those that are there and do not come are locked or deferred, and are reported when a lock's time has passed.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sbpair.core.errors import EntityNotFoundError, LockLostError, ServiceError
from sbpair.core.message import Disposition, Received, State
from sbpair.pipeline.errors import marking_errors
from sbpair.pipeline.executors import Connection, PairByName, patiently
from sbpair.pipeline.rows import content_digest
from sbpair.pipeline.spans import Span

RECEIVE_MESSAGES = 250
RECEIVE_WAIT_SECONDS = 1.0
LOCK_PATIENCE_SECONDS = 75.0
"""Longer than the documented lock of a minute: a message locked by a task that was killed comes back."""
MOST_HELD = 2_000
NOT_ARCHIVED_AHEAD = "too many messages in front that are not in the archive"
LOCKED = "locked elsewhere"
CHANGED = "not the message that was archived"
_NOT_WANTED = b"not wanted"


@dataclass(slots=True)
class Settled:
    """What became of the rows."""

    completed: int = 0
    gone: int = 0
    left: dict[str, int] = field(default_factory=dict)

    def add(self, other: "Settled") -> None:
        self.completed += other.completed
        self.gone += other.gone
        self.left = dict(Counter(self.left) + Counter(other.left))


Place = tuple[str, bool]
"""Queue, and whether its dead-letter sub-queue is meant."""


@dataclass(frozen=True, slots=True)
class Archived:
    """What an archive has of one place: its files, and the numbers that are to be completed (first, last)."""

    place: Place
    files: tuple[str, ...]
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Completing:
    """What every task of a taking knows."""

    pair: PairByName
    patience_seconds: float = LOCK_PATIENCE_SECONDS

    def of(self, archived: Archived) -> Settled:
        """Complete in one place what the archive's files have, in a task of Spark.

        Raises:
            TaskError: with one of our errors in its text.
        """
        with marking_errors():
            return self._complete(archived.place, _digests_in(archived))

    def of_rows(self, rows: Iterable[tuple[str, bool, int, bytes | None]]) -> Iterator[Settled]:
        """The same for rows (queue, dead letter, number, digest) of whole places; as `of`."""
        wanted: dict[Place, dict[int, bytes | None]] = {}
        for queue, dead_letter, number, digest in rows:
            wanted.setdefault((queue, dead_letter), {})[number] = None if digest is None else bytes(digest)
        with marking_errors():
            for place, digests in wanted.items():
                yield self._complete(place, digests)

    def _complete(self, place: Place, digests: dict[int, bytes | None]) -> Settled:
        if not digests:
            return Settled()
        with Connection.to(self.pair, "secondary") as connection:
            return connection.run(Settling(connection, *place, digests, self.patience_seconds).carry_out())


def _digests_in(archived: Archived) -> dict[int, bytes | None]:
    import pyarrow.parquet as pq

    found: dict[int, bytes | None] = {}
    for path in archived.files:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["sequence_number", "digest"]):
                numbers, digests = (batch.column(name).to_pylist() for name in ("sequence_number", "digest"))
                for number, digest in zip(numbers, digests, strict=True):
                    if any(first <= number <= last for first, last in archived.ranges):
                        found[number] = digest
    return found


class Settling:
    """One queue."""

    def __init__(
        self,
        connection: Connection,
        queue: str,
        dead_letter: bool,
        wanted: dict[int, bytes | None],
        patience_seconds: float,
    ) -> None:
        self._receiver = connection.receiver(queue, dead_letter=dead_letter)
        self._span = Span(queue, dead_letter, min(wanted), max(wanted))
        self._wanted = wanted
        self._patience_seconds = patience_seconds
        self._held: dict[int, Received] = {}
        self._settled = Settled()

    async def carry_out(self) -> Settled:
        try:
            await self._until_done()
        except EntityNotFoundError:
            self._settled.gone += len(self._wanted)
        finally:
            await self._give_back()
        return self._settled

    async def _until_done(self) -> None:
        moved_at = time.monotonic()
        while self._wanted:
            if len(self._held) >= MOST_HELD:
                self._settled.left[NOT_ARCHIVED_AHEAD] = len(self._wanted)
                return
            received = await patiently(
                lambda: self._receiver.receive(RECEIVE_MESSAGES, wait_seconds=RECEIVE_WAIT_SECONDS)
            )
            if await self._complete(received):
                moved_at = time.monotonic()
                continue
            present = await self._browse()
            self._drop_gone(present)
            states = Counter(present.values())
            patience_over = time.monotonic() - moved_at > self._patience_seconds
            if self._wanted and (patience_over or not states[State.ACTIVE]):
                self._leave(present)
                return

    async def _complete(self, received: Sequence[Received]) -> bool:
        """Complete what is wanted and keep hold of the rest; whether that was anything new."""
        mine: list[Received] = []
        unknown = 0
        for one in received:
            number = one.sequence_number
            if number in self._wanted and content_digest(one.payload) == self._wanted[number]:
                mine.append(one)
                continue
            if self._wanted.pop(number, _NOT_WANTED) is not _NOT_WANTED:
                self._settled.left[CHANGED] = self._settled.left.get(CHANGED, 0) + 1
            unknown += number not in self._held
            self._held[number] = one
        outcomes = await asyncio.gather(*(self._complete_one(one) for one in mine))
        return any(outcomes) or unknown > 0

    async def _complete_one(self, received: Received) -> bool:
        """Not completed means that it comes again, or is found gone by the browse; neither is an error here."""
        try:
            await self._receiver.settle(received, Disposition.COMPLETE)
        except LockLostError:
            return False
        except ServiceError as error:
            if not error.retryable and not error.uncertain:
                raise
            return False
        if self._wanted.pop(received.sequence_number, _NOT_WANTED) is not _NOT_WANTED:
            self._settled.completed += 1
        return True

    async def _browse(self) -> dict[int, State]:
        """Wanted messages that still lie in the queue."""
        present: dict[int, State] = {}
        number = self._span.first
        while number <= self._span.last:
            page = await self._page_from(number)
            present |= {one.sequence_number: one.state for one in page if one.sequence_number in self._wanted}
            if not page:
                break
            number = page[-1].sequence_number + 1
        return present

    async def _page_from(self, number: int) -> list[Received]:
        return await patiently(lambda: self._receiver.peek(RECEIVE_MESSAGES, from_sequence_number=number))

    def _drop_gone(self, present: Mapping[int, State]) -> None:
        for number in [one for one in self._wanted if one not in present]:
            del self._wanted[number]
            self._settled.gone += 1

    def _leave(self, present: Mapping[int, State]) -> None:
        states = (present[number] for number in self._wanted)
        reasons = Counter(LOCKED if state is State.ACTIVE else state.value for state in states)
        self._settled.left = dict(Counter(self._settled.left) + reasons)

    async def _give_back(self) -> None:
        async def release(one: Received) -> None:
            try:
                await self._receiver.settle(one, Disposition.RELEASE)
            except ServiceError:
                return  # its lock runs out by itself

        await asyncio.gather(*(release(one) for one in self._held.values()))
        await self._receiver.close()
