"""Completes archived messages in their queues: the second half of `pipeline archive --take`.

A task gets the rows of a queue from the committed archive and runs the pump of a drain over it, which sends nothing. A
message is completed only if its number and the digest of its content are among the rows; what was not asked for is held
and given back at the end. Rows that do not come are looked for by a browse: those that are gone were completed by an
earlier attempt (or by somebody else); those that are there and do not come are locked or deferred, and are reported
when a lock's time has passed.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sbpair.core.errors import EntityNotFoundError
from sbpair.core.message import Disposition, MessageState, Received
from sbpair.core.retry import PATIENCE_SECONDS
from sbpair.core.transfer.custody import TAKEN
from sbpair.core.transfer.machine import Settlement
from sbpair.core.transfer.pace import Pace
from sbpair.core.transfer.state import Finish, Leave, Limits, Verdict
from sbpair.pipeline.errors import marking_errors
from sbpair.pipeline.executors import CLOCK, PairByName, TaskConnection
from sbpair.pipeline.rows import content_digest
from sbpair.pipeline.runs import ledger_of
from sbpair.pipeline.tasks import logged_task
from sbpair.ports import MessageReceiver
from sbpair.runtime.browse import pages
from sbpair.runtime.clock import Quiet
from sbpair.runtime.transfer.ledger import Ledger
from sbpair.runtime.transfer.pump import Pump
from sbpair.runtime.transfer.reading import Source
from sbpair.runtime.transfer.sinks import NamespaceSink, Sink

RECEIVE_MESSAGES = 250
RECEIVE_WAIT_SECONDS = 1.0
LOCK_PATIENCE_SECONDS = 75.0
"""Longer than the documented lock of a minute: a message locked by a task that was killed comes back."""
MOST_HELD = 2_000
NOT_ARCHIVED_AHEAD = "too many messages in front that are not in the archive"
LOCKED = "locked elsewhere"
CHANGED = "not the message that was archived"


@dataclass(slots=True)
class SettledRows:
    """What became of the rows of a task."""

    completed: int = 0
    gone: int = 0
    left: Counter[str] = field(default_factory=Counter)
    waited_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Completing:
    """What every task of a taking knows."""

    pair: PairByName
    patience_seconds: float = LOCK_PATIENCE_SECONDS
    ledger: Path | None = None
    """Folder in which every task writes a ledger of its own."""
    run: str = ""
    budget_per_second: float | None = None
    """What one task may take in a second; None: as much as the namespace gives."""

    def of(self, rows: Iterable[tuple[str, bool, int, bytes | None]]) -> Iterator[SettledRows]:
        """Complete what the archive has of one place (queue, dead letter, number, digest), in a task of Spark; raises
        our errors as TaskError."""
        found = list(rows)
        if not found:
            return
        queue, dead_letter, *_ = found[0]
        archived = {(number, None if digest is None else bytes(digest)) for _, _, number, digest in found}
        with (
            marking_errors(),
            TaskConnection.to(self.pair, "secondary") as connection,
            ledger_of(connection, self.ledger, self.pair.way(to_archive=True), self.run, "taken") as ledger,
        ):
            pace, facts = Pace(self.budget_per_second), {"queue": queue, "dead_letter": str(dead_letter).lower()}
            with logged_task("complete", connection.namespace, pace, run=self.run, **facts) as done:
                receiver = connection.receiver(queue, dead_letter=dead_letter)
                settling = QueueSettling(self, receiver, NamespaceSink(connection.messaging), archived, ledger)
                settled = connection.run(settling.carry_out(pace))
                done.messages = settled.completed
                done.facts = {"gone": settled.gone, "left": sum(settled.left.values())}
        settled.waited_seconds = done.waited_seconds
        yield settled


class QueueSettling:
    """One queue."""

    def __init__(
        self,
        work: Completing,
        receiver: MessageReceiver,
        sink: Sink,
        archived: set[tuple[int, bytes | None]],
        ledger: Ledger | None,
    ) -> None:
        self._work, self._receiver, self._sink, self._ledger = work, receiver, sink, ledger
        self._archived, self._wanted = archived, {number for number, _ in archived}
        self._changed: set[int] = set()

    async def carry_out(self, pace: Pace) -> SettledRows:
        """Raises ServiceError when the queue cannot be read, OSError when the ledger cannot be written."""
        limits = Limits(
            total_messages=len(self._wanted), left_messages=MOST_HELD, budget_per_second=self._work.budget_per_second
        )
        source = Source(self._receiver.source, self._receiver, receive_messages=RECEIVE_MESSAGES)
        pump = Pump(
            [source],
            Settlement(limits, pace=pace),
            self._verdict,
            self._sink,
            clock=CLOCK,
            observer=Quiet(),
            ledger=self._ledger,
            endless=False,
            patience_seconds=PATIENCE_SECONDS,
        )
        pump.start()
        try:
            settled = await self._until_done(pump, source)
        finally:
            await pump.finish()
        if pump.fatal is not None:
            raise pump.fatal
        settled.completed = pump.machine.custody.taken
        return settled

    def _verdict(self, received: Received) -> Verdict:
        number = received.sequence_number
        if number not in self._wanted:
            return Leave(NOT_ARCHIVED_AHEAD)
        if (number, content_digest(received.payload)) not in self._archived:
            self._changed.add(number)
            return Leave(CHANGED)
        return Finish(Disposition.COMPLETE, TAKEN)

    async def _until_done(self, pump: Pump, source: Source) -> SettledRows:
        """Until all that is wanted is completed, gone, or has a reason to be left."""
        moved_at, taken, never = CLOCK.monotonic(), 0, asyncio.Event()
        while await pump.settle_down(never):
            if source.failed is not None and not isinstance(source.failed, EntityNotFoundError):
                raise source.failed
            machine = pump.machine
            present = await self._still_there()
            locked = [number for number, state in present.items() if state is MessageState.ACTIVE]
            if machine.custody.taken > taken:
                moved_at, taken = CLOCK.monotonic(), machine.custody.taken
            waited = CLOCK.monotonic() - moved_at
            if not present or machine.left_full or not locked or waited > self._work.patience_seconds:
                unmoved = NOT_ARCHIVED_AHEAD if machine.left_full else LOCKED
                left = Counter(unmoved if state is MessageState.ACTIVE else state.value for state in present.values())
                left += Counter({CHANGED: len(self._changed)})
                return SettledRows(gone=max(0, len(self._wanted) - taken - left.total()), left=left)
            pump.poll_again([source], wait_seconds=RECEIVE_WAIT_SECONDS)
        return SettledRows()

    async def _still_there(self) -> dict[int, MessageState]:
        """Wanted messages that still lie in the queue, without those that are known not to be the archived ones."""
        present: dict[int, MessageState] = {}
        try:
            async for page in pages(self._receiver, min(self._wanted), max(self._wanted), clock=CLOCK):
                present |= {one.sequence_number: one.state for one in page if one.sequence_number in self._wanted}
        except EntityNotFoundError:
            return {}
        return {number: state for number, state in present.items() if number not in self._changed}
