"""The emulator on a thread of its own, for synchronous clients and for pytest."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from sbpair.emulator.namespace import Namespace
from sbpair.emulator.server import DEFAULT_HOST, Emulator, NamespaceConfig
from sbpair.engine.clock import Clock
from sbpair.engine.faults import Faults
from sbpair.engine.wire import Trace

if TYPE_CHECKING:
    from sbpair.emulator.geo import AliasConfig

T = TypeVar("T")


class EmulatorThread:
    """An `Emulator` with its own thread and loop; the same arguments, and methods that any thread may call.

    `namespace` and `faults` give stand-ins whose methods and properties run on the emulator's loop.
    """

    def __init__(
        self,
        namespaces: Sequence[str | NamespaceConfig] = ("primary", "secondary"),
        *,
        host: str = DEFAULT_HOST,
        data_dir: str | Path | None = None,
        identity: str | Path | None = None,
        seed: int | str | None = None,
        clock: Clock | None = None,
        tls_names: Sequence[str] = (),
        control_port: int | None = None,
        allow_entra: bool | None = None,
        aliases: "Sequence[AliasConfig]" = (),
    ) -> None:
        self._emulator = Emulator(
            namespaces,
            host=host,
            data_dir=data_dir,
            identity=identity,
            seed=seed,
            clock=clock,
            tls_names=tls_names,
            control_port=control_port,
            allow_entra=allow_entra,
            aliases=aliases,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Start the thread and all namespaces."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(loop,), name="sbpair-emulator", daemon=True)
        thread.start()
        self._loop, self._thread = loop, thread
        try:
            self._await(self._emulator.start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop everything and end the thread."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        try:
            self._await(self._emulator.close())
        finally:
            self._loop = self._thread = None
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def call(self, function: Callable[[Emulator], T]) -> T:
        """Run a function on the emulator's loop and give its result."""

        async def run() -> T:
            return function(self._emulator)

        return self._await(run())

    def start(self, name: str | None = None) -> None:
        self._await(self._emulator.start(name))

    def stop(self, name: str | None = None) -> None:
        self._await(self._emulator.stop(name))

    def add(
        self,
        config: NamespaceConfig,
        *,
        clock: Clock | None = None,
        trace: Trace | None = None,
        seed: int | str | None = None,
    ) -> Namespace:
        """See `Emulator.add`; a stand-in for the namespace, as `namespace` gives it."""
        added = self._await(self._emulator.add(config, clock=clock, trace=trace, seed=seed))
        return cast(Namespace, _StandIn(self, added))

    def remove(self, name: str) -> None:
        self._await(self._emulator.remove(name))

    @property
    def names(self) -> list[str]:
        return self._emulator.names

    @property
    def control_endpoint(self) -> str | None:
        return self._emulator.control_endpoint

    @property
    def ca_path(self) -> Path:
        return self._emulator.ca_path

    def endpoint(self, name: str) -> str:
        return self.call(lambda emulator: emulator.endpoint(name))

    def connection_string(self, name: str, key_name: str | None = None, entity: str | None = None) -> str:
        return self.call(lambda emulator: emulator.connection_string(name, key_name, entity))

    def fail_over(self, alias: str) -> None:
        self.call(lambda emulator: emulator.fail_over(alias))

    def alias_connection_string(self, alias: str) -> str:
        return self.call(lambda emulator: emulator.alias_connection_string(alias))

    def namespace(self, name: str) -> Namespace:
        """A stand-in for the namespace: each of its methods runs on the emulator's loop. What they return is bare."""
        return cast(Namespace, _StandIn(self, self.call(lambda emulator: emulator.namespace(name))))

    def faults(self, name: str) -> Faults:
        return cast(Faults, _StandIn(self, self.call(lambda emulator: emulator.faults(name))))

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise RuntimeError("the emulator's thread is not running")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _StandIn:
    """Reads attributes and calls methods of an object on the emulator's loop."""

    def __init__(self, owner: EmulatorThread, target: object) -> None:
        self._owner = owner
        self._target = target

    def __getattr__(self, name: str) -> Any:
        owner, target = self._owner, self._target
        value = owner.call(lambda _: getattr(target, name))
        if not callable(value):
            return value

        def marshalled(*args: Any, **kwargs: Any) -> Any:
            return owner.call(lambda _: value(*args, **kwargs))

        return marshalled


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
