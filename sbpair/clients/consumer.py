"""Active/active for applications: each message of a replicated queue or subscription once, in order within its session.

As a callback, or as a loop in which leaving a message's block says what became of it:

    async with Consumer("orders", pair="orders-pair", journal="sqlite:journal.db") as consumer:
        async for work in consumer:
            async with work as message:
                book(message)

The loop stands on the callback: the runtime calls a handler for each message it has claimed, and that handler waits
until the application has left the block.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

from azure.servicebus import ServiceBusReceivedMessage

from sbpair.clients.failover import EventCallback, OnEvent
from sbpair.connect import open_sides
from sbpair.core.arguments import check_types
from sbpair.core.errors import LockLostError
from sbpair.core.names import check_source_path
from sbpair.core.pairing import Pair, Side
from sbpair.core.replication.ownership import Terms
from sbpair.core.replication.status import ConsumeReport
from sbpair.journal import check_journal, open_with_key
from sbpair.ports import Journal, Sides
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.replication.consumer import ConsumeRequest
from sbpair.runtime.replication.consumer import consume as run_consumer
from sbpair.runtime.replication.handlers import Delivery, RetryLater

LOGGER = logging.getLogger("sbpair")

Process = Callable[["ReplicatedMessage"], Awaitable[None] | None]
"""What an application does with a message: a coroutine function, or a plain one, which runs in a thread."""


class ReplicatedMessage:
    """One message to process. As a context manager it says what became of it.

    Leaving the block normally: done. An exception: a failed attempt; it is logged and goes no further, and after
    `terms.max_attempts` of them the message is dead-lettered. `RetryLater`: not now, and no attempt is counted. When
    another consumer takes the session over the block is cancelled, and the loop goes on with the next message.
    """

    def __init__(self, delivery: Delivery) -> None:
        self.message = ServiceBusReceivedMessage.from_bytes(delivery.payload)
        """The message as azure-servicebus shows it. It is settled by the consumer, not by a receiver."""
        self.session_id = delivery.session_id
        self.message_id = delivery.message_id
        self.side = Side(delivery.region)
        """The namespace it was received from."""
        self.attempt = delivery.attempt
        self.fence = delivery.fence
        """Grows with every start in the session: a store that refuses smaller ones is safe from owners left behind."""
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[Any] | None = None
        self._taken_over = False

    @property
    def waits(self) -> bool:
        """Whether nobody has begun with it, and it may still be begun."""
        return self._task is None and not self._outcome.done()

    async def __aenter__(self) -> ServiceBusReceivedMessage:
        if not self.waits:
            raise LockLostError(f"Message {self.message_id} is another consumer's by now, or was processed already.")
        self._task = asyncio.current_task()
        return self.message

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        # A takeover's cancellation is ours, whatever the block made of it; if the application's own came it goes on.
        ours = self._taken_over and self._task is not None and self._task.uncancel() == 0
        if error is None:
            self._conclude(None)
            return False
        if self._taken_over and isinstance(error, asyncio.CancelledError):
            self._conclude(error)
            return ours
        if not isinstance(error, Exception):
            self._conclude(RetryLater("the consumer ended"))
            return False
        if not isinstance(error, RetryLater):
            LOGGER.warning("Message %s failed in attempt %d.", self.message_id, self.attempt, exc_info=error)
        self._conclude(error)
        return True

    async def _concluded(self) -> None:
        """What the runtime waits for. Cancelled when the session is lost: then the block must have ended as well."""
        try:
            await asyncio.shield(self._outcome)
        except asyncio.CancelledError:
            if self._outcome.done() and not self._outcome.cancelled():
                return self._outcome.result()  # it ended in this very moment, and is not to be done again
            if self._task is not None:
                self._taken_over = True
                self._task.cancel()
                await asyncio.wait([self._outcome])
            self._conclude(RetryLater("taken over"))
            raise

    def _conclude(self, error: BaseException | None) -> None:
        if self._outcome.done():
            return
        if error is None:
            self._outcome.set_result(None)
        elif isinstance(error, asyncio.CancelledError):
            self._outcome.cancel()
        else:
            self._outcome.set_exception(error)
            self._outcome.exception()  # asked for: the runtime may have gone already


class Consumer:
    """Messages of a replicated queue or subscription, one after another, for `async for`.

    Any number of consumers may run, in any region, with the same pair, journal and terms. `concurrency` messages, of
    different sessions, are handed out at once: more than one is for loops that give each to a task of its own.

    Args:
        source: queue, or `topic/Subscriptions/name`, the same on both namespaces; both require sessions.
        pair: name of a configured pair, or a `Pair`.
        journal: `sqlite:FILE`, `cosmos:ACCOUNT_URL/DATABASE/CONTAINER` (key in SBPAIR_COSMOS_KEY, else Entra ID), or a
            `Journal`, which stays open.
        until_idle_seconds: end when nothing has come for so long and what is scheduled within 5 minutes has come; where
            that cannot be seen, after up to 30 s for second copies. `report` counts what is still to come.
        max_messages: end after that many. By default it goes on until the block is left.

    Raises, when its block is entered or its loop goes on:
        SbpairError: the pair or the journal is configured wrongly, or refuses permanently. Nothing is lost.
    """

    def __init__(
        self,
        source: str,
        *,
        pair: str | Pair,
        journal: str | Journal,
        terms: Terms | None = None,
        sides: tuple[Side, ...] = tuple(Side),
        sessions: int = 64,
        concurrency: int = 1,
        until_idle_seconds: float | None = None,
        max_messages: int | None = None,
        on_event: OnEvent | None = None,
        name: str = "",
    ) -> None:
        check_types(source=source, pair=pair, terms=terms, sessions=sessions, concurrency=concurrency)
        check_types(until_idle_seconds=until_idle_seconds, max_messages=max_messages, on_event=on_event)
        check_journal(journal)
        self._request = ConsumeRequest(
            check_source_path(source),
            terms=terms or Terms(),
            sides=sides,
            sessions=sessions,
            concurrency=concurrency,
            until_idle_seconds=until_idle_seconds,
            max_messages=max_messages,
            name=name,
        )
        self._pair = pair
        self._journal = journal
        self._on_event = on_event
        self._stop = asyncio.Event()
        self._queue: asyncio.Queue[ReplicatedMessage | None] = asyncio.Queue()
        self._given: set[ReplicatedMessage] = set()
        self._running: asyncio.Task[ConsumeReport] | None = None
        self._stack = AsyncExitStack()
        self.report: ConsumeReport | None = None
        """What became of all messages, once the consumer has ended."""

    async def __aenter__(self) -> Self:
        await self._start(self._offer)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReplicatedMessage:
        running = self._running
        if running is None:
            raise RuntimeError("Enter the consumer first: async with Consumer(...) as consumer.")
        while (work := await self._queue.get()) is not None:
            if work.waits:  # it may have been taken over while it was in the queue
                return work
        self._queue.put_nowait(None)  # for others that wait
        self.report = running.result()
        raise StopAsyncIteration

    async def run(self, process: Process) -> ConsumeReport:
        """Call `process` for each message until the request's end, or until `stop`; the callback form."""

        async def handle(delivery: Delivery) -> None:
            work = ReplicatedMessage(delivery)
            if inspect.iscoroutinefunction(process):
                await process(work)
                return
            outcome = await asyncio.to_thread(process, work)
            if inspect.isawaitable(outcome):
                await outcome

        running = await self._start(handle)
        try:
            # Shielded, so that a cancellation ends it in good order: what is being processed is settled first.
            self.report = await asyncio.shield(running)
            return self.report
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Take no further message, release what nobody has begun with, and wait for what is being processed."""
        self._stop.set()
        for work in list(self._given):
            if work.waits:
                work._conclude(RetryLater("the consumer ended"))
        try:
            if (running := self._running) is not None and not running.done():
                try:
                    self.report = await asyncio.shield(running)
                except asyncio.CancelledError:
                    running.cancel()
                    raise
        finally:
            await self._stack.aclose()

    async def _offer(self, delivery: Delivery) -> None:
        """The handler behind the loop."""
        if self._stop.is_set():
            raise RetryLater("the consumer ended")
        work = ReplicatedMessage(delivery)
        self._given.add(work)
        self._queue.put_nowait(work)
        try:
            await work._concluded()
        finally:
            self._given.discard(work)

    async def _start(self, handler: Callable[[Delivery], Awaitable[None]]) -> "asyncio.Task[ConsumeReport]":
        sides, journal = await opened(self._stack, self._pair, self._journal)
        self._running = asyncio.create_task(
            run_consumer(
                self._request,
                primary=sides.primary,
                secondary=sides.secondary,
                journal=journal,
                handler=handler,
                clock=LoopClock(),
                observer=EventCallback(self._on_event),
                stop=self._stop,
            )
        )
        self._running.add_done_callback(lambda _: self._queue.put_nowait(None))  # ends the loop
        return self._running


J = TypeVar("J", bound=Journal | None)


async def opened(stack: AsyncExitStack, pair: str | Pair, journal: str | J) -> tuple[Sides, Journal | J]:
    """Both namespaces and the journal, until the stack is closed; a journal that was given open stays open.

    Raises:
        SbpairError: see `Consumer`.
    """
    if isinstance(pair, str):
        from sbpair.settings import load_noticed

        pair = load_noticed().pair(pair)
    named: Journal | J
    if isinstance(journal, str):
        named = open_with_key(journal)
        stack.push_async_callback(named.close)
    else:
        named = journal
    try:
        sides = await stack.enter_async_context(open_sides(pair))
        if named is not None:
            await named.check()
    except BaseException:
        await stack.aclose()
        raise
    return sides, named


async def consume(source: str, process: Process, **options: Any) -> ConsumeReport:
    """Call `process` for each message of a replicated queue or subscription; options and errors of `Consumer`.

    A plain function runs in a thread, which cannot be stopped when the session is taken over: compare `fence` where it
    writes. 16 run at once unless `concurrency` says otherwise. Cancelling it stops it like `Consumer.stop`.
    """
    return await Consumer(source, **{"concurrency": 16} | options).run(process)
