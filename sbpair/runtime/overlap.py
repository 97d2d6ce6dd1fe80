"""Work on many items with some of it under way at a time, and nobody's result left behind (seed 002)."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

from sbpair.core.errors import UsageError
from sbpair.tasks import end

Item = TypeVar("Item")
R = TypeVar("R")

READ_AHEAD = 2
"""Items taken at most, as a multiple of the overlap: so that one slow item does not hold up the others at once."""


async def overlapped(
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
