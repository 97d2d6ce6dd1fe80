"""A gateway before the two embedded namespaces of the drop-in clients' tests, on a thread of its own."""

import asyncio
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from sbpair.core.pairing import Pair
from sbpair.engine.tls import TlsFiles
from sbpair.gateway.keys import GatewayKey
from sbpair.gateway.server import Gateway, GatewaySettings, open_gateway
from tests.clients.conftest import World, world

__all__ = ["world"]

T = TypeVar("T")
SEND_SECONDS = 8.0
QUICK = GatewaySettings(send_seconds=SEND_SECONDS, retries=0)
"""The retries take 5 seconds of these; tests that are not about them do without."""
KEYS = (
    GatewayKey("app", "a-key-that-only-the-gateway-knows", frozenset({"Send", "Listen"})),
    GatewayKey("sender", "a-key-that-sends-and-nothing-else", frozenset({"Send"}), ("orders",)),
    GatewayKey("listener", "a-key-that-listens-and-nothing-else", frozenset({"Listen"})),
    GatewayKey("admin", "a-key-that-may-change-everything!", frozenset({"Send", "Listen", "Manage"})),
)


class Running:
    """A gateway on its own event loop."""

    def __init__(
        self, pairs: Sequence[Pair], tls: TlsFiles, keys: Sequence[GatewayKey], host: str, settings: GatewaySettings
    ) -> None:
        self.tls = tls
        self.gateway: Gateway
        self.loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._pairs, self._keys, self._host, self._settings = pairs, keys, host, settings
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._failure = error
            self._ready.set()
            raise

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        async with open_gateway(self._pairs, self._keys, self.tls, self._settings, host=self._host) as self.gateway:
            self._ready.set()
            await self._stop.wait()

    def text(self, key: str = "app", *, plain: bool = True) -> str:
        """A connection string."""
        return self.gateway.connection_string(key, plain=plain)

    def call(self, function: Callable[[], T]) -> T:
        """What the function gives on the gateway's loop."""

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result()

    def warm(self) -> None:
        """Have it answer over HTTP once: a WebSocket of the SDK's gives up after a second."""
        with urllib.request.urlopen(f"http://{self.gateway.endpoint()}/health") as answer:
            assert answer.status == 200

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


@contextmanager
def gateway_of(
    *pairs: Pair,
    folder: Path,
    keys: Sequence[GatewayKey] = KEYS,
    host: str = "127.0.0.1",
    settings: GatewaySettings = QUICK,
) -> Iterator[Running]:
    running = Running(pairs, TlsFiles(folder / "tls"), keys, host, settings)
    running.start()
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def gateway(world: World, tmp_path: Path) -> Iterator[Running]:
    """With no failover interval: the first failure diverts."""
    with gateway_of(world.pair(), folder=tmp_path) as running:
        yield running
