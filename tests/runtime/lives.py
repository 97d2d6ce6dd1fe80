"""Drawn lives of the runtime: namespaces in memory with messages, troubles and times of their own, and everything that
is asked of them, told and left behind, as lines.

Digests of the lines are approved in tests/approved/lives.txt. `python -m tests.runtime.lives` approves them; with names
as they are there it prints the lives, here and in another checkout to compare with.
"""

import asyncio
import contextlib
import hashlib
import inspect
import itertools
import os
import random
import sys
import tempfile
import zlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sbpair.concurrency import waits
from sbpair.core import errors
from sbpair.core.errors import ServiceError
from sbpair.core.message import NEXT_AVAILABLE_SESSION, MessageState, Received
from sbpair.core.names import ByName, dead_letter_path
from sbpair.service import session_key
from tests.fakes import (
    FakeClock,
    FakeMessaging,
    FakeNamespace,
    FakeReceiver,
    FakeSender,
    RecordingObserver,
    Stored,
    run_virtual,
)

APPROVED = Path(__file__).parent.parent / "approved" / "lives.txt"
TOGETHER = 8
"""Lives of one digest."""
LONGEST_SECONDS = 4000.0
ERRORS: tuple[Callable[[], ServiceError], ...] = (
    lambda: errors.ConnectionLostError("silence"),
    lambda: errors.OperationTimeoutError("late"),
    lambda: errors.ServerBusyError("busy"),
    lambda: errors.ServerBusyError("busy"),
    lambda: errors.EntityDisabledError("disabled"),
    lambda: errors.QuotaExceededError("full"),
    lambda: errors.UnauthorizedError("no right"),
    lambda: errors.EntityNotFoundError("not there"),
    lambda: errors.ArgumentRefusedError("refused"),
    lambda: errors.LockLostError("lost"),
)


class Life:
    """One life: its dice, its clock, and what was seen of it."""

    def __init__(self, name: str, number: int) -> None:
        self.dice = random.Random(f"{name} {number}")
        self.lines: list[str] = []
        self.clock = FakeClock()
        self.observer = Told(RecordingObserver(), "observer", self.say)
        self.stop = asyncio.Event()

    def say(self, text: str) -> None:
        self.lines.append(f"{self.clock.monotonic():.3f} {text}")

    def chance(self, share: float) -> bool:
        return self.dice.random() < share

    def namespace(self, name: str) -> "Namespace":
        return Namespace(name, self)

    def spelled(self, text: str) -> str:
        """The same name to the service, as people type it."""
        return self.dice.choice((text, text, text.upper(), text.capitalize()))

    def trouble(self, *namespaces: FakeNamespace, operations: Sequence[str], most: int = 3) -> None:
        """Faults for some time or some calls, and answers that take their time."""
        for _ in range(self.dice.randrange(most + 1)):
            namespace = self.dice.choice(namespaces)
            fault = namespace.fail(
                self.dice.choice(operations),
                self.dice.choice(ERRORS)(),
                entity=self.dice.choice(("*", "*", *(path for path in namespace.entities))),
                times=self.dice.choice((1, 1, 2, 4, 30, None)),
                after=self.chance(0.2),
                skip=self.dice.choice((0, 0, 1, 3, 8)),
            )
            if self.chance(0.5):
                self.later(self.dice.choice((3.0, 20.0, 90.0, 400.0)), partial(namespace.heal, fault))
        for namespace in namespaces:
            if self.chance(0.4):
                namespace.delays[self.dice.choice(operations)] = self.dice.choice((0.05, 0.7, 3.0, 11.0))

    def later(self, seconds: float, act: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(seconds, act)

    async def watch(self) -> None:
        """What is said of what is waited for."""
        told = ""
        while True:
            await asyncio.sleep(0.7)
            now = ascii([one.detail() if one.detail is not None else None for one in waits()])
            if now != told:
                told = now
                self.say(f"waits {now}")

    async def result(self, work: Coroutine[Any, Any, Any]) -> None:
        """Its result or error as a line."""
        watching = asyncio.create_task(self.watch())
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                self.say(f"result {short(await work)}")
        except Exception as error:  # noqa: BLE001 - it is what became of it
            self.say(f"raised {short(error)} {getattr(error, 'hint', None)}")
        finally:
            watching.cancel()
        left = [task for task in asyncio.all_tasks() if task not in (asyncio.current_task(), watching)]
        self.say(f"left running {len(left)}")

    def left_in(self, *namespaces: FakeNamespace) -> None:
        for namespace in namespaces:
            self.say(f"{namespace.name} sent {namespace.sent_batches} closed {sorted(namespace.closed_receivers)}")
            for key, session in sorted(getattr(namespace, "sessions", {}).items()):
                self.say(f"{namespace.name} session {key} {session.holder is not None} {session.state!r}")
            for path, queue in sorted(namespace.entities.items()):
                for part in (queue, queue.dead_letters):
                    if part is not None and part.messages:
                        lying = [
                            f"{one.sequence_number}:{zlib.crc32(one.payload)}:{one.state.value}:{one.delivery_count}"
                            f":{one.lock is not None and one.locked_until > namespace.epoch()}"
                            for one in part.messages.values()
                        ]
                        self.say(f"{namespace.name} {path} {part.path} {' '.join(lying)}")

    def file(self, path: Path) -> None:
        if path.is_file():
            self.lines += [f"file {line.decode(errors='replace')}" for line in path.read_bytes().splitlines()]


class Told:
    """Says what is called, with what, and what comes of it."""

    def __init__(self, told: Any, name: str, say: Callable[[str], None]) -> None:
        self._told, self._name, self._say = told, name, say

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._told, name)
        if not callable(value):
            return value
        if inspect.iscoroutinefunction(value):
            return partial(self._awaited, name, value)

        def called(*args: Any, **more: Any) -> Any:
            what = f"{self._name}.{name}({short(args)} {short(more)})"
            self._say(what)
            found = value(*args, **more)
            if inspect.isasyncgen(found):
                return self._given(what, found)
            opened = isinstance(found, FakeSender | FakeReceiver | ScheduledMover)
            return Told(found, f"{self._name}.{name}", self._say) if opened else found

        return called

    async def _given(self, what: str, found: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        async for one in found:
            self._say(f"{what} gave {short(one)}")
            yield one

    async def _awaited(self, name: str, value: Any, *args: Any, **more: Any) -> Any:
        what = f"{self._name}.{name}({short(args)} {short(more)})"
        try:
            found = await value(*args, **more)
        except Exception as error:
            self._say(f"{what} raised {type(error).__name__}")
            raise
        self._say(f"{what} = {short(found)}")
        return found


def short(value: Any) -> str:
    """It, without what is long or another each time."""
    match value:
        case Received():
            return f"#{value.sequence_number}"
        case bytes():
            return f"{len(value)}b{zlib.crc32(value)}"
        case Told():
            return "told"
        case Path():
            return "folder" if value.name.startswith("life-") else value.name
        case BaseException():
            return f"{type(value).__name__}: {value}"
        case float():
            return f"{value:.4f}"
        case Mapping() | ByName():
            return "{" + ", ".join(f"{short(key)}: {short(one)}" for key, one in value.items()) + "}"
        case set() | frozenset():
            return "{" + ", ".join(sorted(map(short, value))) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(short, value)) + "]"
        case _ if is_dataclass(value) and not isinstance(value, type):
            shown = ", ".join(f"{one.name}={short(getattr(value, one.name))}" for one in fields(value) if one.repr)
            return f"{type(value).__name__}({shown})"
        case str() | int() | None:
            return repr(value)
        case _:
            return type(value).__name__ if " at 0x" in repr(value) else repr(value)


class Namespace(FakeNamespace):
    """A namespace that says what is asked of it."""

    def __init__(self, name: str, life: Life) -> None:
        super().__init__(name, life.clock)
        self.life = life
        self.sessions: dict[tuple[str, str], Session] = {}

    def messaging(self) -> Any:
        return Told(Messaging(self), self.name, self.life.say)

    def admin(self) -> Any:
        return Told(super().admin(), f"{self.name}.admin", self.life.say)


class Messaging(FakeMessaging):
    """Hands out messages by session where a session is named, or the next one is asked for."""

    namespace: Namespace

    def receiver(self, path: str, *, dead_letter: bool = False, session_id: str | None = None) -> FakeReceiver:
        if session_id is not None:
            return SessionReceiver(self, path, session_id)
        return PlainReceiver(self, dead_letter_path(path) if dead_letter else path, None)

    def mover(self, path: str, *, dead_letter: bool = False, session_id: str | None = None) -> FakeReceiver:
        if session_id is not None:
            return SessionMover(self, path, session_id)
        return PlainMover(self, dead_letter_path(path) if dead_letter else path, None)

    def scheduled_mover(self, entity: str) -> "ScheduledMover":
        return ScheduledMover(self, entity)


class PlainReceiver(FakeReceiver):
    async def session_ids(self) -> list[str]:
        found = await super().session_ids()
        if not self._namespace.queue(self._path).settings.requires_session:
            raise errors.ArgumentRefusedError("It hands out messages without sessions.")
        return list({session_key(one): one for one in found}.values())


@dataclass
class Session:
    """One session of an entity: who has it, for how long, and what is kept with it."""

    holder: object = None
    until: float = 0.0
    state: bytes | None = None


class SessionReceiver(FakeReceiver):
    """A receiver of one session, which it locks on its first use."""

    _namespace: "Namespace"

    def _session(self) -> Session:
        assert self._session_id is not None
        key = self._path.lower(), session_key(self._session_id)
        return self._namespace.sessions.setdefault(key, Session())

    def _here(self, session_id: str | None) -> list[Stored]:
        stored = self._namespace.available(self._namespace.queue(self._path), None, 10_000)
        return [one for one in stored if session_id is None or session_key(one.session_id or "") == session_id]

    async def _lock(self, wait_seconds: float = 0.0) -> Session:
        await self._messaging.begin("session", self._path)
        until = self._namespace.clock.monotonic() + wait_seconds
        while self._session_id == NEXT_AVAILABLE_SESSION:
            now = self._namespace.epoch()
            for one in self._here(None):
                held = self._namespace.sessions.get((self._path.lower(), session_key(one.session_id or "")))
                if held is None or held.until <= now:
                    self._session_id = one.session_id or ""
                    break
            else:
                if self._namespace.clock.monotonic() >= until:
                    raise errors.SessionUnavailableError("No session waits.")
                await asyncio.sleep(min(1.0, wait_seconds))
        session, now = self._session(), self._namespace.epoch()
        if session.holder is not self and session.until > now:
            raise errors.SessionUnavailableError("Another receiver has the session.")
        if session.holder is self and session.until <= now:
            raise errors.LockLostError("The lock of the session is lost.")
        if session.holder is not self:
            self._keep(session)
        return session

    def _keep(self, session: Session) -> float:
        seconds = self._namespace.queue(self._path).settings.lock_duration_seconds
        session.holder, session.until = self, self._namespace.epoch() + seconds
        return session.until

    async def receive(self, max_messages: int, *, wait_seconds: float) -> list[Received]:
        await self._messaging.begin("receive", self._path)
        until = self._namespace.clock.monotonic() + wait_seconds
        while True:
            session = await self._lock(wait_seconds)
            queue, key = self._namespace.queue(self._path), session_key(self._session_id or "")
            if found := [self._namespace.lock(queue, one) for one in self._here(key)[:max_messages]]:
                for one in found:
                    queue.messages[one.sequence_number].locked_until = session.until
                return found
            if (left := until - self._namespace.clock.monotonic()) <= 0:
                return []
            await asyncio.sleep(min(left, 0.5))

    async def renew_lock(self, received: Received) -> float:
        return await self.renew_session()

    async def renew_session(self) -> float:
        await self._messaging.begin("renew", self._path)
        until = self._keep(await self._lock())
        for one in self._namespace.queue(self._path).messages.values():
            if one.lock is not None and session_key(one.session_id or "") == session_key(self._session_id or ""):
                one.locked_until = until
        return until

    async def session_state(self) -> bytes | None:
        await self._messaging.begin("state", self._path)
        return (await self._lock()).state

    async def set_session_state(self, state: bytes | None) -> None:
        await self._messaging.begin("state", self._path)
        (await self._lock()).state = state

    async def close(self) -> None:
        await super().close()
        for session in self._namespace.sessions.values():
            if session.holder is self:
                session.holder, session.until = None, 0.0
                for one in self._namespace.queue(self._path).messages.values():
                    if session_key(one.session_id or "") == session_key(self._session_id or ""):
                        one.lock = None


class Moving:
    """Takes messages to other entities of its namespace: all of them, or none."""

    _messaging: Messaging
    _namespace: Namespace

    async def why_not(self) -> ServiceError | None:
        return None

    async def max_message_bytes(self, entity: str) -> int:
        return await self._messaging.sender(entity).max_message_bytes()

    def _taken(self, received: Received) -> Stored:
        return self._namespace.locked(received)[1]

    async def move(
        self, received: Sequence[Received], payloads: Sequence[bytes], entity: str, *, timeout_seconds: float
    ) -> None:
        everything = tuple(range(len(received)))
        try:
            await self._messaging.begin("move", entity)
        except errors.LockLostError:
            raise errors.LocksLostError("They are lost.", lost=everything[:1]) from None
        lost = []
        for place, one in enumerate(received):
            try:
                self._taken(one)
            except errors.LockLostError:
                lost.append(place)
        if lost:
            raise errors.LocksLostError("Some are lost.", lost=tuple(lost))
        self._namespace.accept(entity, payloads)
        for one in received:
            del self._namespace.queue(one.source).messages[one.sequence_number]
        try:
            self._namespace.end("move", entity)
        except ServiceError:
            unknown = errors.LocksLostError("Nobody knows.", lost=everything)
            unknown.uncertain = True
            raise unknown from None


class PlainMover(Moving, PlainReceiver):
    _namespace: "Namespace"


class SessionMover(Moving, SessionReceiver):
    pass


class ScheduledMover(Moving):
    """Takes what is scheduled, by its numbers."""

    def __init__(self, messaging: Messaging, entity: str) -> None:
        self._messaging, self._namespace, self._entity = messaging, messaging.namespace, entity

    def _taken(self, received: Received) -> Stored:
        found = self._namespace.queue(self._entity).messages.get(received.sequence_number)
        if found is None or found.state is not MessageState.SCHEDULED:
            raise errors.LockLostError("It is scheduled no more.")
        return found

    async def close(self) -> None:
        self._namespace.closed_receivers.append(f"scheduled {self._entity}")


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="life-") as name:
        yield Path(name)


@contextlib.contextmanager
def drawn_ids(dice: random.Random) -> Iterator[None]:
    """What is made unique by random numbers is the same each time."""
    urandom, os.urandom = os.urandom, dice.randbytes
    try:
        yield
    finally:
        os.urandom = urandom


class Numbered(asyncio.Task[Any]):
    """A task whose place in a set is the same each time."""

    def __init__(self, work: Any, loop: asyncio.AbstractEventLoop, number: int) -> None:
        self._number = number
        super().__init__(work, loop=loop)

    def __hash__(self) -> int:
        return self._number


Story = Callable[[Life, Path], Coroutine[Any, Any, None]]


def lived(name: str, story: Story, number: int) -> list[str]:
    """The lines of one life."""
    with folder() as path, drawn_ids(random.Random(f"ids {name} {number}")):

        async def live() -> list[str]:
            numbers = itertools.count()
            asyncio.get_running_loop().set_task_factory(lambda loop, work: Numbered(work, loop, next(numbers)))
            life = Life(name, number)
            try:
                await story(life, path)
            finally:
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()  # type: ignore[union-attr]
            return life.lines

        return [line.replace(str(path), "") for line in run_virtual(live())]


def digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def stories() -> dict[str, tuple[Story, int]]:
    """By name, with how many lives."""
    from tests.runtime import stories_of_pairings, stories_of_replications, stories_of_transfers

    return stories_of_transfers.STORIES | stories_of_pairings.STORIES | stories_of_replications.STORIES


def subjects() -> dict[str, Callable[[], list[str]]]:
    """What is approved, by its name."""

    def some(name: str, story: Story, first: int) -> list[str]:
        return [f"{number}: {line}" for number in range(first, first + TOGETHER) for line in lived(name, story, number)]

    return {
        f"{name} {first}": partial(some, name, story, first)
        for name, (story, count) in stories().items()
        for first in range(0, count, TOGETHER)
    }


def approved() -> dict[str, str]:
    return dict(line.rsplit(" ", 1) for line in APPROVED.read_text("utf-8").splitlines())  # type: ignore[misc]


def main(names: Sequence[str]) -> None:
    for name in names:
        print("\n".join(subjects()[name]()))
    if not names:
        APPROVED.write_text("".join(f"{name} {digest(make())}\n" for name, make in subjects().items()), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
