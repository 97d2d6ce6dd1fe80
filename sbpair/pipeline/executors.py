"""How a task in an executor gets at a namespace: by the pair's configuration, in which every secret is a name.

What travels in a plan is `PairByName`: hosts, and for a key the environment variable or file that holds it. The
executor looks the secret up where it runs. This is the pipeline's own small composition: a task has no command line
above it, so this file alone takes the settings and the Azure adapter by name.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sbpair.core.access import namespace_name
from sbpair.core.errors import ConfigurationError
from sbpair.core.message import Received
from sbpair.core.transfer.ledger import Way
from sbpair.core.transfer.pace import Pace
from sbpair.pipeline.spans import NumberRange
from sbpair.runtime.browse import page_from, pages
from sbpair.runtime.clock import LoopClock
from sbpair.runtime.inspection.backlog import FoundQueues, find_queues
from sbpair.runtime.links import close_quietly, closing

if TYPE_CHECKING:
    from sbpair.core.access import NamespaceAccess
    from sbpair.core.pairing import Pair, Side
    from sbpair.ports import MessageReceiver, Messaging

T = TypeVar("T")

CLOCK = LoopClock()


@dataclass(frozen=True, slots=True)
class PairByName:
    """A pair as it may be sent around: its flat settings, secrets as references."""

    name: str
    values: Mapping[str, Any]
    config: Path | None = None
    """The file it was read from, if one was named."""

    @classmethod
    def load(cls, name: str | None, config: Path | None) -> Self:
        """The pair as configured here, paths made absolute: an executor runs in another folder. Raises
        ConfigurationError: as `sbpair.settings.load`."""
        from sbpair.settings import BETWEEN, load_noticed

        settings = load_noticed(config)
        pair = settings.pair(name)
        if BETWEEN in pair.name:
            raise ConfigurationError(
                f"{pair.name} is no configured pair, and the workers of a pipeline know pairs by their configuration.",
                hint="Configure it: sbpair help config",
            )
        prefix = f"pairs.{pair.name}."
        kept = {key: found.value for key, found in settings.values.items() if key.startswith(prefix) or key == "auth"}
        return cls(pair.name, {key: _absolute(key, value) for key, value in kept.items()}, config)

    @property
    def options(self) -> dict[str, str]:
        """The pair as our data sources are told it."""
        return {"pair": self.name} | ({} if self.config is None else {"config": str(self.config)})

    def resolve(self) -> "Pair":
        """The pair with its secrets, which are looked up in this process."""
        from sbpair.settings import Settings, Sourced

        values = {key: Sourced(value, "the pair as the driver knows it") for key, value in self.values.items()}
        return Settings(values, environ=os.environ).pair(self.name)

    def way(self, *, to_archive: bool = False) -> Way:
        """Between which namespaces messages of the pair move; what a ledger's lines say."""
        pair = self.resolve()
        return Way(namespace_name(pair.secondary), None if to_archive else namespace_name(pair.primary))


@dataclass(frozen=True, slots=True)
class NamespaceByName:
    """One namespace as it may be sent around: the settings that reach it, its secret as a reference."""

    values: Mapping[str, Any]
    """By the keys of a namespace in the configuration: `namespace`, `connection_string`, `auth`, ..."""

    def resolve(self) -> "NamespaceAccess":
        """The namespace with its secret, which is looked up in this process. Raises ConfigurationError: nothing names
        the namespace, or its credential is not there."""
        from sbpair.settings import Settings, Sourced

        values = {key: Sourced(_absolute(f".{key}", value), "an option") for key, value in self.values.items()}
        settings = Settings({f"pairs.source.primary.{key}": one for key, one in values.items()}, environ=os.environ)
        try:
            access = settings.side("source", "primary")
        except ConfigurationError as error:
            said = error.message.replace("pairs.source.primary.", "").replace("pairs.source.primary", "namespace")
            beside = "Give the options `namespace` and `host` where the host does not follow from the name."
            hint = beside if "host" in (error.hint or "") or "its name" in (error.hint or "") else error.hint
            raise ConfigurationError(f"The options of the source: {said}", hint=hint) from error
        if access is None:
            raise ConfigurationError(
                "Nothing says which namespace is meant.",
                hint="Give the option `namespace`, `connectionStringEnv` or `connectionStringFile`.",
            )
        return access


def _absolute(key: str, value: Any) -> Any:
    if key.endswith(".ca_file"):
        return str(Path(value).expanduser().absolute())
    if isinstance(value, Mapping) and "file" in value:
        return {"file": str(Path(value["file"]).expanduser().absolute())}
    return value


class TaskConnection:
    """One namespace of a pair for synchronous code: a task reads and writes rows one after another.

    What is asynchronous runs on a thread beside it, so that the next page comes while this one is looked at.
    """

    def __init__(self, access: "NamespaceAccess") -> None:
        from sbpair.azure import make_messaging

        self.messaging: Messaging = make_messaging(access)
        self.namespace = namespace_name(access)
        """What a ledger calls it."""
        self._pace = Pace()
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name=f"connection to {self.messaging.host}", daemon=True)
        self._thread.start()

    @classmethod
    def to(cls, pair: PairByName, side: "Side | str") -> Self:
        """`side`: primary or secondary."""
        resolved = pair.resolve()
        return cls(resolved.primary if side == "primary" else resolved.secondary)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._over.wait())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        try:
            self.run(close_quietly(self.messaging))
        finally:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()

    def start(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Begin something; its result is asked for later."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. A Ctrl-C meanwhile cancels it."""
        return _result(self.start(work))

    def call(self, function: Callable[[], object]) -> None:
        """Have something called beside what runs."""
        self._loop.call_soon_threadsafe(function)

    def backlog_queues(self, pair: "Pair") -> tuple[str, ...]:
        """The backlog queues that exist for the pair's primary, configured or not, as a drain finds them: by listing
        with Manage, else by opening one after another."""
        from sbpair.azure import make_admin

        async def found() -> FoundQueues:
            async with closing(make_admin(pair.secondary)) as admin:
                return await find_queues(pair, messaging=self.messaging, admin=admin)

        return self.run(found()).existing

    def receiver(self, queue: str, *, dead_letter: bool) -> "MessageReceiver":
        return self.messaging.receiver(queue, dead_letter=dead_letter)

    def browse(self, span: NumberRange, pace: Pace | None = None) -> Iterator[list[Received]]:
        """The messages of a span in pages, in the order of their numbers; one page ahead. Takes no locks. `pace`: one
        that has learnt something already, or has a bound; else the connection's own."""
        receiver = self.receiver(span.queue, dead_letter=span.dead_letter)
        coming = pages(receiver, span.first, span.last, clock=CLOCK, pace=pace or self._pace)

        async def following() -> list[Received] | None:
            return await anext(coming, None)

        ahead = self.start(following())
        try:
            while (page := _result(ahead)) is not None:
                ahead = self.start(following())
                yield page
        finally:
            ahead.cancel()


def _result(future: "Future[T]") -> T:
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def first_from(receiver: "MessageReceiver", number: int) -> Received | None:
    """The message with the lowest number from `number` on."""
    page = await page_from(receiver, number, clock=CLOCK, most=1)
    return page[0] if page else None
