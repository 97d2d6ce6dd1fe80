"""An event loop whose time is a number and whose processes are groups of callbacks.

Every callback belongs to a process, by the context it was made in. Within a process callbacks run in their order, as
asyncio promises; which process is next is drawn. A process can be ended without a word (nothing of it runs any more, no
`finally` either) and it can stand still while the others go on.
"""

import asyncio
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

PROCESS: ContextVar["Process | None"] = ContextVar("process", default=None)
STEP_SECONDS = 1e-5
"""What a callback costs: time never stands still while something runs."""
MOST_STEPS = 4_000_000
"""Callbacks of one history. One that needs more is going round in circles."""
_BURST = 4


class StuckError(AssertionError):
    """Nothing can run any more, or it goes round in circles."""


class Process:
    """One simulated operating system process, or a service."""

    def __init__(self, loop: "SimulatedLoop", name: str, *, skew_seconds: float = 0.0) -> None:
        self.loop = loop
        self.name = name
        self.alive = True
        self.skew_seconds = skew_seconds
        """How far its wall clock is off."""
        self.frozen_until = 0.0
        self.ready: deque[asyncio.Handle] = deque()
        self.calls: dict[Call, None] = {}
        """What its threads have been asked and have not done."""
        self.on_end: list[Callable[[bool], None]] = []
        """Called when it is ended, with whether its machine went down with it."""
        self.tasks: list[asyncio.Task[Any]] = []
        """All it ever had: a task that is collected would run its `finally`."""
        self.ended = asyncio.Future[None](loop=loop)
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)

    def start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        return self.loop.create_task(work, context=self.context)

    def end(self, *, power: bool = False) -> None:
        """Kill it. `power`: its machine goes down, so that nobody at the other end of its connections hears of it."""
        if not self.alive:
            return
        self.alive = False
        for tell in self.on_end:
            tell(power)
        self.ready.clear()
        if not self.ended.done():
            self.ended.set_result(None)


class Call:
    """Work that was given to a thread."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function, self.arguments = function, arguments


class _Task(asyncio.Task[Any]):
    """Kept in sets by its number: by its address a set would have another order in each run."""

    def __init__(self, *arguments: Any, loop: "SimulatedLoop", **options: Any) -> None:
        self._number = next(loop.numbers)
        super().__init__(*arguments, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    def __init__(self, *, loop: "SimulatedLoop") -> None:
        self._number = next(loop.numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(asyncio.BaseEventLoop):
    """`dice` decides the schedule. Connections are the network's, which sets `connect`."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.dice = dice
        self.numbers = itertools.count(1)
        self.steps = 0
        self.connect: Callable[..., Coroutine[Any, Any, Any]] | None = None
        self.on_call: Callable[[Process], None] = lambda process: None
        """Told of work that was given to a thread and has not begun."""
        self.thread_seconds = 0.002
        """Mean time that work in a thread takes."""
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._thread_due: dict[Any, float] = {}
        self._runnable: list[Process] = []
        self.world = Process(self, "world")

    # -- time and order

    def time(self) -> float:
        return self._now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self.numbers), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is dropped when its time comes."""

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def _enqueue(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(PROCESS) or self.world  # type: ignore[attr-defined]
        if process.alive:
            if not process.ready:
                self._runnable.append(process)
            process.ready.append(handle)

    def _run_once(self) -> None:
        if self._timers and self._timers[0][0] <= self._now:
            self._take_due()
        process = self._choose()
        ready = process.ready
        for _ in range(1 + int(self.dice.random() * _BURST)):
            if not ready:
                break
            handle = ready.popleft()
            self._now += STEP_SECONDS
            self.steps += 1
            if not handle._cancelled:  # type: ignore[attr-defined]
                handle._run()
            if process.frozen_until > self._now:
                break
        if not ready:
            self._runnable.remove(process)
        if self.steps > MOST_STEPS:
            raise StuckError(f"{MOST_STEPS:,} steps and no end")

    def _choose(self) -> Process:
        while True:
            if len(self._runnable) == 1 and (one := self._runnable[0]).ready and one.frozen_until <= self._now:
                return one
            able = [one for one in self._runnable if one.frozen_until <= self._now and one.ready]
            if able:
                return able[0] if len(able) == 1 else able[int(self.dice.random() * len(able))]
            self._runnable = [one for one in self._runnable if one.ready]
            wakes = [one.frozen_until for one in self._runnable]
            while self._timers and self._timers[0][2].cancelled():
                heapq.heappop(self._timers)
            if self._timers:
                wakes.append(self._timers[0][0])
            if not wakes:
                raise StuckError("everybody waits for ever")
            self._now = max(self._now, min(wakes))
            self._take_due()

    def _take_due(self) -> None:
        timers, now = self._timers, self._now
        while timers and timers[0][0] <= now:
            handle = heapq.heappop(timers)[2]
            if not handle.cancelled():
                self._enqueue(handle)

    # -- what a process is made of

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> "asyncio.Task[Any]":
        task = _Task(coro, loop=self, name=name, context=context)
        process = (context.get(PROCESS) if context is not None else PROCESS.get()) or self.world
        process.tasks.append(task)
        return task

    def create_future(self) -> "asyncio.Future[Any]":
        return _Future(loop=self)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        """The call is made on this loop, a while later; those of one executor in their order."""
        future, process, call = self.create_future(), PROCESS.get() or self.world, Call(func, args)
        process.calls[call] = None
        self.on_call(process)
        due = max(self._now + self.dice.expovariate(1 / self.thread_seconds), self._thread_due.get(executor, 0.0))
        if executor is not None:
            self._thread_due[executor] = due
        self.call_at(due, self._carry_out, process, call, future)
        return future

    def _carry_out(self, process: Process, call: Call, future: "asyncio.Future[Any]") -> None:
        del process.calls[call]
        try:
            result = call.function(*call.arguments)
        except Exception as error:  # noqa: BLE001 - the thread's caller gets it
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)

    async def create_connection(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        assert self.connect is not None, "no network"
        return await self.connect(*args, **options)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""

    def _process_events(self, event_list: Any) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody waits."""
