"""How a task in an executor gets at a namespace: by the pair's configuration, in which every secret is a name.

What travels in a plan is `PairByName`: hosts, and for a key the environment variable or file that holds it. The
executor looks the secret up where it runs. This is the pipeline's own small composition: a task has no command line
above it, so this file alone takes the settings and the Azure adapter by name.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sbpair.core.errors import Category, ConnectionLostError, SendIncompleteError, ServiceError
from sbpair.core.message import Received
from sbpair.core.retry import SERVER_BUSY_SECONDS, SYPHON
from sbpair.pipeline.spans import Span

if TYPE_CHECKING:
    from sbpair.core.pairing import Pair
    from sbpair.ports import MessageReceiver, Messaging

T = TypeVar("T")

PATIENCE_SECONDS = 120.0
"""How long a namespace may fail within one task before the task does."""
PAGE_MESSAGES = 250
CLOSE_SECONDS = 10.0
NO_USE_WAITING = frozenset(
    {Category.UNAUTHORIZED, Category.NOT_FOUND, Category.ARGUMENT, Category.DISABLED, Category.TOO_LARGE}
)


@dataclass(frozen=True, slots=True)
class PairByName:
    """A pair as it may be sent around: its flat settings, secrets as references."""

    name: str
    values: Mapping[str, Any]

    @classmethod
    def load(cls, name: str | None, config: Path | None) -> Self:
        """The pair as configured here, paths made absolute: an executor runs in another folder.

        Raises:
            ConfigurationError: as `sbpair.settings.load`.
        """
        from sbpair.settings import load

        settings = load(config=config)
        pair = settings.pair(name)
        prefix = f"pairs.{pair.name}."
        kept = {key: found.value for key, found in settings.values.items() if key.startswith(prefix) or key == "auth"}
        return cls(pair.name, {key: _absolute(key, value) for key, value in kept.items()})

    def resolve(self) -> "Pair":
        """The pair with its secrets, which are looked up in this process."""
        import os

        from sbpair.settings import Settings, Sourced

        values = {key: Sourced(value, "the pair as the driver knows it") for key, value in self.values.items()}
        return Settings(values, environ=dict(os.environ)).pair(self.name)


def _absolute(key: str, value: Any) -> Any:
    if key.endswith(".ca_file"):
        return str(Path(value).expanduser().absolute())
    if isinstance(value, Mapping) and "file" in value:
        return {"file": str(Path(value["file"]).expanduser().absolute())}
    return value


class Connection:
    """One namespace of a pair for synchronous code: a task reads and writes rows one after another."""

    def __init__(self, messaging: "Messaging") -> None:
        self.messaging = messaging
        self._runner = asyncio.Runner()

    @classmethod
    def to(cls, pair: PairByName, side: str) -> Self:
        """`side`: primary or secondary."""
        from sbpair.azure.connect import make_messaging

        resolved = pair.resolve()
        return cls(make_messaging(resolved.primary if side == "primary" else resolved.secondary))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.run(self._close())
        finally:
            self._runner.close()

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.messaging.close()
        except (TimeoutError, ServiceError):
            pass  # the other side is gone: nothing of it is left to be closed

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def receiver(self, queue: str, *, dead_letter: bool) -> "MessageReceiver":
        return self.messaging.receiver(queue, dead_letter=dead_letter)

    def first_from(self, receiver: "MessageReceiver", number: int) -> Received | None:
        """The message with the lowest number from `number` on."""
        page = self.run(_peek(receiver, number, 1))
        return page[0] if page else None

    def browse(self, span: Span) -> Iterator[list[Received]]:
        """The messages of a span in pages, in the order of their numbers. Takes no locks."""
        receiver = self.receiver(span.queue, dead_letter=span.dead_letter)
        number = span.first
        while number <= span.last:
            page = self.run(_peek(receiver, number, min(PAGE_MESSAGES, span.last - number + 1)))
            wanted = [one for one in page if one.sequence_number <= span.last]
            if wanted:
                yield wanted
            if len(wanted) < len(page) or not page:
                return
            number = page[-1].sequence_number + 1


async def _peek(receiver: "MessageReceiver", number: int, count: int) -> list[Received]:
    return await patiently(lambda: receiver.peek(count, from_sequence_number=number))


async def patiently(call: Callable[[], Awaitable[T]], *, patience_seconds: float = PATIENCE_SECONDS) -> T:
    """The result of `call()`, tried again while it fails in a way that may pass.

    Raises:
        ServiceError: waiting does not help, or did not for `patience_seconds`.
    """
    deadline, failures = time.monotonic() + patience_seconds, 0
    while True:
        try:
            return await call()
        except SendIncompleteError:
            raise  # part of it went through: to do the whole again would double that part
        except ServiceError as error:
            failures += 1
            seconds = SERVER_BUSY_SECONDS if error.category is Category.BUSY else SYPHON.seconds(failures)
            if error.category in NO_USE_WAITING or time.monotonic() + seconds > deadline:
                raise
            if isinstance(error, ConnectionLostError) and failures == 1:
                seconds = 0.0  # a link that was idle between two batches is simply opened again
            await asyncio.sleep(seconds)
