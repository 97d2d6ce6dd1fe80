"""An event loop in a thread of its own, started when something is first asked of it."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

T = TypeVar("T")

JOIN_SECONDS = 5.0


class Background:
    """Runs coroutines for callers in other threads, until nobody needs it. A daemon: it never keeps a process from
    ending.

    `idle`: nothing that was begun there goes on. Asked on the loop and from other threads.
    """

    def __init__(self, name: str, idle: Callable[[], bool]) -> None:
        self._name = name
        self._idle = idle
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ending: threading.Thread | None = None
        self._asked = 0

    @property
    def is_here(self) -> bool:
        """This is the loop's own thread."""
        return threading.current_thread() is self._thread

    def submit(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Start the coroutine there, from any thread but its own.

        Raises:
            RuntimeError: called from the loop's own thread, which would then wait for itself.
        """
        if self.is_here:
            work.close()
            raise RuntimeError("A callback of the client (on_event) must not send: it would wait for itself.")
        return self.begin(work)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result, as of `submit`. A signal that interrupts the caller ends the work, at whatever moment
        it comes: also before there is a future to cancel."""
        tasks: list[asyncio.Task[Any]] = []
        interrupted = False

        async def unless_interrupted() -> T:
            tasks.append(cast("asyncio.Task[Any]", asyncio.current_task()))
            if interrupted:
                raise asyncio.CancelledError
            return await work

        try:
            return self.submit(unless_interrupted()).result()
        except BaseException:
            interrupted = True
            if not tasks:
                work.close()
            elif not tasks[0].done():
                tasks[0].get_loop().call_soon_threadsafe(tasks[0].cancel)
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Start the coroutine there, from any thread; nobody of the loop's own may wait for it."""
        with self._lock:
            begun = asyncio.run_coroutine_threadsafe(work, self._started())
            self._asked += 1
        begun.add_done_callback(self._answered)
        return begun

    def _answered(self, _: object) -> None:
        with self._lock:
            self._asked -= 1
        self.rest()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(loop,), name=self._name, daemon=True)
            self._thread.start()
            self._loop = loop
        return self._loop

    def rest(self) -> None:
        """End the loop and its thread if nothing goes on there. What is asked afterwards starts new ones."""
        with self._lock:
            if self._loop is None or self._asked or not self._idle():
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._ending = self._thread
            self._loop = self._thread = None

    def join(self) -> None:
        """Wait for a thread that is ending, within a bound."""
        ending = self._ending
        if ending is not None and ending is not threading.current_thread():
            ending.join(JOIN_SECONDS)

    def after_fork(self) -> None:
        """In a child process: the thread is the parent's, and so is the loop, which must not even be closed here."""
        self._lock = threading.RLock()
        if self._loop is not None:
            _LOOPS_OF_PARENTS.append(self._loop)
        self._loop = self._thread = self._ending = None
        self._asked = 0


_LOOPS_OF_PARENTS: list[asyncio.AbstractEventLoop] = []
"""Kept so that they are never collected, which would close what they share with the parent."""


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
