"""Overlapped work: bounded, in lanes, with every result taken."""

import asyncio
import gc
import warnings

import pytest

from sbpair.concurrency import READ_AHEAD, map_concurrently
from sbpair.core.errors import UsageError
from tests.fakes import virtual_time


def no_lane(item: int) -> None:
    return None


@virtual_time
async def test_results_come_in_the_order_of_the_items() -> None:
    async def work(position: int, item: int) -> tuple[int, int]:
        await asyncio.sleep(item)
        return position, item

    results = [one async for one in map_concurrently([3, 1, 2], work, overlap=3, lane=no_lane)]
    assert results == [(0, 3), (1, 1), (2, 2)]
    assert asyncio.get_running_loop().time() == 3


@virtual_time
async def test_a_lane_is_worked_on_one_item_after_another() -> None:
    busy: set[str] = set()

    async def work(position: int, item: str) -> None:
        assert item not in busy
        busy.add(item)
        await asyncio.sleep(1)
        busy.discard(item)

    async for _ in map_concurrently(["a", "b"] * 5, work, overlap=10, lane=str):
        pass
    assert asyncio.get_running_loop().time() == 5


@virtual_time
async def test_what_work_raises_ends_it_all() -> None:
    ended = []

    async def work(position: int, item: int) -> None:
        if item == 1:
            raise ValueError("no")
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(item)

    with pytest.raises(ValueError, match="no"):
        async for _ in map_concurrently([1, 2, 3], work, overlap=3, lane=no_lane):
            pass
    assert asyncio.get_running_loop().time() == 0
    assert set(ended) <= {2, 3}


@virtual_time
async def test_closing_early_cancels_what_is_under_way() -> None:
    started, ended = 0, 0

    async def work(position: int, item: int) -> int:
        nonlocal started, ended
        started += 1
        try:
            await asyncio.sleep(0 if item == 0 else 50)
        finally:
            ended += 1
        return item

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        results = map_concurrently(range(1000), work, overlap=3, lane=lambda item: str(item % 2))
        assert await anext(results) == 0
        await results.aclose()
        gc.collect()
    assert started == ended <= READ_AHEAD * 3 + 1
    assert asyncio.get_running_loop().time() < 50


@virtual_time
async def test_at_least_one_is_under_way() -> None:
    async def work(position: int, item: int) -> None: ...

    with pytest.raises(UsageError):
        await anext(map_concurrently([1], work, overlap=0, lane=no_lane))
