"""Calls that end in time, whatever the other side or the SDK does."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from sbpair.core.errors import OperationTimeoutError

T = TypeVar("T")

_strays: set[asyncio.Task[Any]] = set()
"""Cancelled calls that have not ended yet: kept so that they are not collected while they run."""


async def within(seconds: float, call: Awaitable[T], *, what: str, entity: str | None = None) -> T:
    """The call's result, cheaply; for calls that end when they are cancelled.

    Raises:
        OperationTimeoutError: no result within `seconds`.
    """
    try:
        async with asyncio.timeout(seconds):
            return await call
    except TimeoutError:
        raise OperationTimeoutError(f"{what}: no answer within {seconds:g} s.", entity=entity) from None


async def abandoning(seconds: float, call: Coroutine[Any, Any, T], *, what: str, entity: str | None = None) -> T:
    """The call's result; returns in time even if the call ignores its cancellation (a silent TLS handshake).

    Raises:
        OperationTimeoutError: no result within `seconds`.
    """
    task = asyncio.create_task(call)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            _strays.add(task)
            task.add_done_callback(_bury)
    if not done:
        raise OperationTimeoutError(f"{what}: no answer within {seconds:g} s.", entity=entity)
    return task.result()


def _bury(task: asyncio.Task[Any]) -> None:
    """Take note of how a stray ended, so that asyncio does not complain that nobody asked."""
    _strays.discard(task)
    if not task.cancelled():
        task.exception()
