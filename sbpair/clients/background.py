"""An event loop in a thread of its own, started when something is first asked of it."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

JOIN_SECONDS = 5.0


class Background:
    """Runs coroutines for callers in other threads. A daemon: it never keeps a process from ending."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        return self._loop is not None

    def submit(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Start the coroutine there, from any thread but its own.

        Raises:
            RuntimeError: called from the loop's own thread, which would then wait for itself.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("A callback of the client (on_event) must not send: it would wait for itself.")
        return asyncio.run_coroutine_threadsafe(work, self._started())

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Run the callback there soon; nothing if the loop does not run."""
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(callback)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(loop,), name=self._name, daemon=True)
                self._thread.start()
                self._loop = loop
            return self._loop

    def stop(self) -> None:
        """End the loop and its thread. What is asked afterwards starts new ones."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(JOIN_SECONDS)

    def after_fork(self) -> None:
        """In a child process: the thread is the parent's, and so is the loop, which must not even be closed here."""
        self._lock = threading.Lock()
        if self._loop is not None:
            _LOOPS_OF_PARENTS.append(self._loop)
        self._loop = self._thread = None


_LOOPS_OF_PARENTS: list[asyncio.AbstractEventLoop] = []
"""Kept so that they are never collected, which would close what they share with the parent."""


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
