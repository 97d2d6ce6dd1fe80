"""Tasks that do not take the first cancellation for an answer."""

import asyncio

import pytest

from sbpair.concurrency import AGAIN_SECONDS, end


async def test_a_task_that_lost_its_cancellation_is_asked_again() -> None:
    heard = 0

    async def deaf() -> None:
        nonlocal heard
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                heard += 1
                if heard == 2:
                    raise

    task = asyncio.create_task(deaf())
    await asyncio.sleep(0)
    await end(task)
    assert task.cancelled()
    assert heard == 2


async def test_a_task_may_put_things_in_order_before_it_ends() -> None:
    tidied = asyncio.Event()

    async def tidy() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(AGAIN_SECONDS / 10)
            tidied.set()

    task = asyncio.create_task(tidy())
    await asyncio.sleep(0)
    await end(task)
    assert tidied.is_set()


async def test_how_a_task_ended_does_not_matter(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("on its own account")

    task = asyncio.create_task(fail())
    await asyncio.wait({task})
    await end(task)
    del task
    assert caplog.records == []
