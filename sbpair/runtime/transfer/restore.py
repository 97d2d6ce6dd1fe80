"""Sends messages out of files to where they were to go: sessions in order, each message once by a ledger.

Messages of one session are one lane: a batch of it goes out when the one before was accepted. A lane whose message
is refused, or not confirmed in time, ends there: what comes later may not overtake. Messages without a session have no
order; those of one destination share batches.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import TypeVar

from sbpair.core.errors import Category, SendIncompleteError, ServiceError
from sbpair.core.retry import SERVER_BUSY_SECONDS, SYPHON
from sbpair.core.transfer.state import Key
from sbpair.ports import Clock, MessageReceiver, MessageSender, Messaging
from sbpair.runtime.links import Links, close_quietly
from sbpair.runtime.transfer.ledger import Entry, Ledger

T = TypeVar("T")

BATCH_MESSAGES = 100
SEND_SECONDS = 30.0
PAGE_MESSAGES = 250
_ENVELOPE_BYTES = 1024
_PER_MESSAGE_BYTES = 8
_HOPELESS = frozenset(
    {Category.UNAUTHORIZED, Category.NOT_FOUND, Category.ARGUMENT, Category.DISABLED, Category.TOO_LARGE}
)


@dataclass(frozen=True, slots=True)
class Restorable:
    """A message out of a file, in the form in which its application sent it."""

    key: Key
    """Queue (dead-letter sub-queues with `/$deadletterqueue`), number, id and enqueued time where it lay."""
    destination: str
    session_id: str | None
    payload: bytes
    browsed: bool = False
    """It was only looked at: perhaps it lies in its queue still."""


@dataclass(slots=True)
class Restored:
    """What became of the messages."""

    sent: dict[str, int] = field(default_factory=dict)
    """By destination; in a dry run: what would be sent."""
    left: dict[str, int] = field(default_factory=dict)
    """Not sent, by reason."""
    already_sent: int = 0
    """The ledger has them from earlier runs."""
    sent_again: int = 0
    """Sent once more after an unclear answer, with the same MessageId."""
    first_error: ServiceError | None = None
    """Why messages were left, if a namespace refused or did not answer."""


async def still_queued(secondary: Messaging, messages: Sequence[Restorable]) -> int:
    """How many of the messages that were only browsed lie in their queues now.

    Raises:
        ServiceError: a queue cannot be browsed; one that does not exist holds nothing.
    """
    by_queue: dict[str, set[tuple[int, int]]] = {}
    for one in messages:
        if one.browsed:
            queue, number, _, enqueued_ms = one.key
            by_queue.setdefault(queue, set()).add((number, enqueued_ms))
    found = 0
    for queue, wanted in by_queue.items():
        path, slash, last = queue.rpartition("/")
        dead = bool(slash) and last.lower() == "$deadletterqueue"
        receiver = secondary.receiver(path if dead else queue, dead_letter=dead)
        try:
            found += await _count(receiver, wanted)
        except ServiceError as error:
            if error.category is not Category.NOT_FOUND:
                raise
        finally:
            await close_quietly(receiver)
    return found


async def _count(receiver: MessageReceiver, wanted: set[tuple[int, int]]) -> int:
    number, last, found = min(wanted)[0], max(wanted)[0], 0
    while number <= last and (page := await receiver.peek(PAGE_MESSAGES, from_sequence_number=number)):
        at = ((one.sequence_number, round((one.enqueued_at or 0.0) * 1000)) for one in page)
        found += sum(place in wanted for place in at)
        number = page[-1].sequence_number + 1
    return found


async def restore(
    messages: Sequence[Restorable],
    *,
    primary: Messaging,
    ledger: Ledger | None,
    clock: Clock,
    stop: asyncio.Event,
    rate_per_second: float | None = None,
    concurrency: int = 8,
    patience_seconds: float = 120.0,
    moved: Callable[[int], None] = lambda count: None,
) -> Restored:
    """Send the messages, given in the order in which they were put into the backlog. `stop` ends it after the batches
    under way; what the ledger has is not sent again.

    Raises:
        OSError: the ledger cannot be written; what was sent and not recorded will be sent again.
    """
    work = _Restoring(Links(primary), ledger, clock, stop, rate_per_second, patience_seconds, moved)
    done = ledger.forwarded if ledger is not None else frozenset()
    todo = [one for one in messages if one.key not in done]
    work.report.already_sent = len(messages) - len(todo)
    room = asyncio.Semaphore(concurrency)

    async def lane(of_lane: Sequence[Restorable]) -> None:
        async with room:
            await work.carry_out(of_lane)

    try:
        async with asyncio.TaskGroup() as tasks:
            for one in lanes(todo).values():
                tasks.create_task(lane(one))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from errors
    finally:
        await work.links.close()
    return work.report


def lanes(messages: Sequence[Restorable]) -> Mapping[tuple[str, str | None], list[Restorable]]:
    """Messages that go one after another: those of a session, and the others of a destination."""
    found: dict[tuple[str, str | None], list[Restorable]] = {}
    for one in messages:
        found.setdefault((one.destination.lower(), one.session_id), []).append(one)
    return found


class _Restoring:
    def __init__(
        self,
        links: Links,
        ledger: Ledger | None,
        clock: Clock,
        stop: asyncio.Event,
        rate: float | None,
        patience_seconds: float,
        moved: Callable[[int], None],
    ) -> None:
        self.links, self._ledger, self._clock, self._stop = links, ledger, clock, stop
        self._rate, self._patience_seconds, self._moved = rate, patience_seconds, moved
        self._free_at = 0.0
        self.report = Restored()

    async def carry_out(self, lane: Sequence[Restorable]) -> None:
        sender = self.links.to(lane[0].destination)
        place = 0
        while place < len(lane):
            if self._stop.is_set():
                self._leave("interrupted", len(lane) - place)
                return
            try:
                limit = await self._patiently(sender.max_message_bytes)
                batch = next(_batches(lane[place:], limit, self._most()))
                await self._pace(len(batch))
                await self._send(sender, batch)
            except ServiceError as error:
                self.report.first_error = self.report.first_error or error
                self._leave(f"{lane[0].destination}: {error.message}", len(lane) - place)
                return
            place += len(batch)

    def _most(self) -> int:
        """A batch is no more than a second of the rate."""
        return BATCH_MESSAGES if self._rate is None else max(1, min(BATCH_MESSAGES, int(self._rate)))

    async def _pace(self, count: int) -> None:
        if self._rate is None:
            return
        now = self._clock.monotonic()
        begins = max(now, self._free_at)
        self._free_at = begins + count / self._rate
        if begins > now:
            await self._clock.sleep(begins - now)

    async def _send(self, sender: MessageSender, batch: Sequence[Restorable]) -> None:
        """All of the batch, or an error; what was accepted before it is recorded."""
        attempts = 0

        async def attempt() -> None:
            nonlocal attempts
            attempts += 1
            await sender.send([one.payload for one in batch], timeout_seconds=SEND_SECONDS)

        try:
            await self._patiently(attempt)
        except SendIncompleteError as error:
            await self._record([batch[place] for place in error.accepted], attempts)
            raise
        except ServiceError as error:
            if error.category is not Category.ARGUMENT or len(batch) == 1:
                raise
            for one in batch:  # a partitioned entity wants one key in a batch; or one message spoils it for the others
                await self._send(sender, [one])
        else:
            await self._record(batch, attempts)

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        failures, waited = 0, 0.0
        while True:
            try:
                return await call()
            except SendIncompleteError:
                raise
            except ServiceError as error:
                failures += 1
                seconds = SERVER_BUSY_SECONDS if error.category is Category.BUSY else SYPHON.seconds(failures)
                if error.category in _HOPELESS or waited + seconds > self._patience_seconds or self._stop.is_set():
                    raise
                waited += seconds
                await self._clock.sleep(seconds)

    async def _record(self, batch: Sequence[Restorable], attempts: int) -> None:
        if self._ledger is not None:
            time = self._clock.now().astimezone(UTC).isoformat(timespec="milliseconds")
            await self._ledger.record([_entry(one, time, attempts) for one in batch])
        counted = Counter(one.destination for one in batch)
        self.report.sent = dict(Counter(self.report.sent) + counted)
        self.report.sent_again += len(batch) if attempts > 1 else 0
        self._moved(len(batch))

    def _leave(self, reason: str, count: int) -> None:
        self.report.left[reason] = self.report.left.get(reason, 0) + count


def _batches(messages: Sequence[Restorable], limit_bytes: int, most: int) -> Iterator[list[Restorable]]:
    batch: list[Restorable] = []
    size = _ENVELOPE_BYTES
    for one in messages:
        needs = len(one.payload) + _PER_MESSAGE_BYTES
        if batch and (len(batch) >= most or size + needs > limit_bytes):
            yield batch
            batch, size = [], _ENVELOPE_BYTES
        batch.append(one)
        size += needs
    if batch:
        yield batch


def _entry(one: Restorable, time: str, attempts: int) -> Entry:
    queue, number, message_id, enqueued_ms = one.key
    return Entry(queue, number, message_id, enqueued_ms, one.destination, one.session_id, "forwarded", time, attempts)
