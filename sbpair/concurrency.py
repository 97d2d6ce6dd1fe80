"""Work on many items with some of it under way at a time, and nobody's result left behind ("Message transfers,
locks, and settlement")."""

import asyncio
import itertools
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from sbpair.core.durations import format_duration
from sbpair.core.errors import (
    Category,
    ConnectionLostError,
    InterruptedWorkError,
    OperationTimeoutError,
    SendIncompleteError,
    ServiceError,
    UsageError,
)
from sbpair.core.retry import SERVER_BUSY_SECONDS, SYPHON, ends_in_time

# Ending asyncio tasks for certain.

AGAIN_SECONDS = 3.0
"""Long enough for what a task still has to put in order, which a second cancellation would cut short."""


async def end(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel tasks and wait until all have ended, however they do.

    A cancellation can get lost: before Python 3.12 `asyncio.wait_for`, which the SDK uses, drops one that comes in the
    moment in which what it waits for is done. A task that loops would then go on for ever, so it is asked again.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN_SECONDS)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # asked for, so that asyncio does not complain that nobody did


# Calls that end in time, whatever the other side or the SDK does.

T = TypeVar("T")

_strays: set[asyncio.Task[Any]] = set()
"""Cancelled calls that have not ended yet: kept so that they are not collected while they run."""


async def with_timeout(seconds: float, call: Awaitable[T], *, what: str, entity: str | None = None) -> T:
    """The call's result, cheaply; for calls that end when they are cancelled.

    Raises:
        OperationTimeoutError: no result within `seconds`.
    """
    try:
        async with asyncio.timeout(seconds):
            return await call
    except TimeoutError:
        raise OperationTimeoutError(f"{what}: no answer within {format_duration(seconds)}.", entity=entity) from None


async def abandon_after(seconds: float, call: Coroutine[Any, Any, T], *, what: str, entity: str | None = None) -> T:
    """The call's result; returns in time even if the call ignores its cancellation (a silent TLS handshake).

    Raises:
        OperationTimeoutError: no result within `seconds`.
    """
    with waiting("", seconds):
        task = asyncio.create_task(call)
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        finally:
            if not task.done():
                task.cancel()
                _strays.add(task)
                task.add_done_callback(_retrieve_exception)
    if not done:
        raise OperationTimeoutError(f"{what}: no answer within {format_duration(seconds)}.", entity=entity)
    return task.result()


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Take note of how a stray ended, so that asyncio does not complain that nobody asked."""
    _strays.discard(task)
    if not task.cancelled():
        task.exception()


# What the process waits for, so that a person before it can be told.


@dataclass(slots=True)
class Wait:
    """Something that an answer is outstanding for, or that has to pass."""

    tried: str
    """What is tried, as a verb with its object: `browse orders on contoso`."""
    since: float
    """Monotonic seconds."""
    error: str = ""
    """Why the last try failed; none has failed if this is empty."""
    until: float | None = None
    """Monotonic seconds at which `afterwards` happens; None where that is not known here."""
    afterwards: str = "given up"
    detail: Callable[[], str] | None = None
    """What is waited for where no answer is outstanding: a sentence without its end, empty while nothing is."""

    @property
    def sentence(self) -> str:
        """What `detail` says now."""
        return "" if self.detail is None else self.detail()


_waits: dict[int, Wait] = {}
_numbers = itertools.count()
_around: ContextVar[int | None] = ContextVar("_around", default=None)
"""The number of the wait that this one is a part of."""


@contextmanager
def waiting(tried: str, within_seconds: float | None = None) -> Iterator[Wait]:
    """Let `waits` know what the block waits for, and what bounds it. A bound around it counts instead of its own: one
    try of several is not what the work ends with. What happens after the bound is as the block around says."""
    number, now = next(_numbers), time.monotonic()
    # A task that outlives the block it was made in has its number still, but no longer its bound.
    around = None if (outer := _around.get()) is None else _waits.get(outer)
    until = None if within_seconds is None else now + within_seconds
    if around is not None and around.until is not None:
        until = around.until
    wait = _waits[number] = Wait(tried, now, until=until)
    if around is not None:
        wait.afterwards = around.afterwards
    _around.set(number)
    try:
        yield wait
    finally:
        _around.set(outer)  # not by a token: a generator may be closed in another context than it was begun in
        del _waits[number]


def waits() -> list[Wait]:
    """What an answer is outstanding for at the moment, the longest wait first."""
    known = (one for one in list(_waits.values()) if one.tried or one.error or one.sentence)
    return sorted(known, key=lambda one: one.since)


# Calls that are tried again, and calls that are not waited for once somebody says stop.

NO_USE_WAITING = frozenset(
    {Category.UNAUTHORIZED, Category.NOT_FOUND, Category.ARGUMENT, Category.DISABLED, Category.TOO_LARGE}
)
"""Errors that do not pass by themselves."""


def passes(error: ServiceError) -> bool:
    """Whether a call that failed so may succeed later with nobody doing anything."""
    return error.passes or error.category not in NO_USE_WAITING


async def retried(
    call: Callable[[], Awaitable[T]],
    pause: Callable[[ServiceError, int], float | None],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """The result of `call()`, tried again as long as `pause`, given the error and the number of failures so far, says
    how many seconds to wait; None raises the error.

    Raises:
        ServiceError: what `pause` gave up on, and always a send of which a part went through: to do the whole again
            would double that part.
    """
    failures = 0
    with waiting("") as wait:
        while True:
            try:
                return await call()
            except SendIncompleteError:
                raise
            except ServiceError as error:
                failures += 1
                seconds = pause(error, failures)
                if seconds is None:
                    raise
                wait.error = error.message
            await sleep(seconds)


async def patiently(
    call: Callable[[], Awaitable[T]],
    *,
    patience_seconds: float,
    unreached_seconds: float = math.inf,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """The result of `call()`, tried again with growing pauses while it fails in a way that may pass. As long as nobody
    answers, not even to say that it is busy, `unreached_seconds` bounds it, too.

    Raises:
        ServiceError: waiting does not help, or did not for so long.
    """
    began = tried_at = now()
    first_bound = min(patience_seconds, unreached_seconds)

    # Without patience there is one try, whose own bound is the one that counts.
    with waiting("", first_bound if 0 < first_bound < math.inf else None) as wait:

        def pause(error: ServiceError, failures: int) -> float | None:
            busy = error.category is Category.BUSY
            seconds = SERVER_BUSY_SECONDS if busy else SYPHON.seconds(failures)
            bound = patience_seconds if busy else min(patience_seconds, unreached_seconds)
            left = began + bound - now()
            if not passes(error) or not ends_in_time(seconds, now() - tried_at, left):
                return None
            wait.error, wait.until = error.message, time.monotonic() + left
            # A link that was idle between two calls is simply opened again.
            return 0.0 if isinstance(error, ConnectionLostError) and failures == 1 else seconds

        async def one_try() -> T:
            nonlocal tried_at
            tried_at = now()
            return await call()

        return await retried(one_try, pause, sleep=sleep)


async def cancel_on(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None if `stop` was set before; the work is cancelled and has ended then."""
    result = await _before(stop, work)
    return None if result is None else result[0]


async def run_until(
    stop: asyncio.Event, work: Coroutine[Any, Any, T], *, stopped: str = "Stopped before the end."
) -> T:
    """The result of work that has nothing in flight worth finishing: `stop` ends it at once.

    Raises:
        InterruptedWorkError: `stop` was set before `work` ended; it says `stopped`.
    """
    result = await _before(stop, work)
    if result is None:
        raise InterruptedWorkError(stopped)
    return result[0]


async def _before(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> tuple[T] | None:
    """The result of `work` on its own, so that one that is None differs from none at all."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return (task.result(),) if task.done() else None
    finally:
        await end(task, stopped)


Item = TypeVar("Item")
R = TypeVar("R")


async def side_by_side(work: Callable[[Item], Awaitable[R]], items: Iterable[Item], *, at_once: int = 16) -> list[R]:
    """The results of `work` on all items, in order; a few at a time. The first error ends the others and is raised."""
    room = asyncio.Semaphore(at_once)

    async def one(item: Item) -> R:
        async with room:
            return await work(item)

    tasks = [asyncio.create_task(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end(*tasks)


READ_AHEAD = 2
"""Items taken at most, as a multiple of the overlap: so that one slow item does not hold up the others at once."""


async def each_answered(
    items: Iterable[T], work: Callable[[T], Coroutine[Any, Any, None]]
) -> AsyncGenerator[list[tuple[T, ServiceError | None]], None]:
    """Do `work` on each side by side, and report each as it ends: what the service refused, or None. A caller that
    stops asking ends the rest. Answers come as lists, as those of `MessageReceiver.settle_all`.

    Raises:
        what `work` raises besides.
    """

    async def one(item: T) -> tuple[T, ServiceError | None]:
        try:
            await work(item)
        except ServiceError as error:
            return item, error
        return item, None

    tasks = [asyncio.create_task(one(item)) for item in items]
    try:
        for ended in asyncio.as_completed(tasks):
            yield [await ended]
    finally:
        await end(*tasks)


async def map_concurrently(
    items: Iterable[Item] | AsyncIterable[Item],
    work: Callable[[int, Item], Coroutine[Any, Any, R]],
    *,
    overlap: int,
    lane: Callable[[Item], str | None],
) -> AsyncGenerator[R, None]:
    """Results of `work(position, item)` in the order of the items, up to `overlap` under way.

    Items of one `lane` are worked on one after another, items without a lane at will. A result is yielded as soon as
    it is its turn, whether or not there is a next item yet; items are read only as fast as results are taken. What is
    under way when the generator is closed is cancelled.

    Raises:
        UsageError: an overlap below 1. Whatever `work` raises.
    """
    if overlap < 1:
        raise UsageError(f"At least one send has to be under way, not {overlap}.")
    semaphore, lanes = asyncio.Semaphore(overlap), _Lanes()
    window: deque[asyncio.Task[Any]] = deque()
    reader = _numbered(items)
    upcoming: asyncio.Task[tuple[int, Item] | None] | None = asyncio.create_task(anext(reader, None))
    try:
        while upcoming is not None or window:
            await _first_of(upcoming if len(window) < READ_AHEAD * overlap else None, window[0] if window else None)
            if window and window[0].done():
                yield window.popleft().result()
            elif upcoming is not None and upcoming.done():
                numbered = upcoming.result()
                upcoming = None
                if numbered is not None:
                    window.append(
                        lanes.start(lane(numbered[1]), partial(_limited, semaphore, partial(work, *numbered)))
                    )
                    upcoming = asyncio.create_task(anext(reader, None))
    finally:
        await end(*(*window, *([upcoming] if upcoming is not None else [])))
        await reader.aclose()


class _Lanes:
    """Keeps what is in one lane one after another."""

    def __init__(self) -> None:
        self._last: dict[str, asyncio.Task[Any]] = {}

    def start(self, lane: str | None, work: Callable[[], Coroutine[Any, Any, R]]) -> asyncio.Task[R]:
        if lane is None:
            return asyncio.create_task(work())
        task = asyncio.create_task(_after(self._last.get(lane), work))
        self._last[lane] = task
        task.add_done_callback(partial(self._forget, lane))
        return task

    def _forget(self, lane: str, done: asyncio.Task[Any]) -> None:
        if self._last.get(lane) is done:
            del self._last[lane]


async def _after(before: asyncio.Task[Any] | None, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
    if before is not None:
        await asyncio.wait({before})
    return await work()


async def _limited(semaphore: asyncio.Semaphore, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
    async with semaphore:
        return await work()


async def _first_of(*tasks: asyncio.Task[Any] | None) -> None:
    await asyncio.wait({task for task in tasks if task is not None}, return_when=asyncio.FIRST_COMPLETED)


async def _numbered(items: Iterable[Item] | AsyncIterable[Item]) -> AsyncGenerator[tuple[int, Item], None]:
    position = 0
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield position, item
            position += 1
    else:
        for numbered in enumerate(items):
            yield numbered
