"""Where monitoring finds a service: a port with /metrics and /healthz, and a textfile for the node exporter."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from sbpair.concurrency import end
from sbpair.core.errors import UsageError
from sbpair.render.console import write_atomically
from sbpair.render.service import ServiceMetrics

FILE_SECONDS = 15.0
_IDLE_SECONDS = 5.0
"""How long a connection without a request is kept."""
_TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
_log = logging.getLogger("sbpair")


class Monitored(Protocol):
    """A service, as monitoring sees it."""

    def text(self) -> str: ...
    def troubles(self) -> list[str]: ...


@asynccontextmanager
async def metrics_port(metrics: Monitored, host: str, port: int) -> AsyncIterator[int]:
    """Serve the metrics while the context lasts; gives the port (0 asks for any free one).

    Raises:
        UsageError: the address cannot be used.
    """
    from aiohttp import web

    async def samples(request: web.Request) -> web.Response:
        return web.Response(text=metrics.text(), headers={"Content-Type": _TEXT_FORMAT})

    async def health(request: web.Request) -> web.Response:
        troubles = metrics.troubles()
        return web.json_response({"healthy": not troubles, "troubles": troubles}, status=503 if troubles else 200)

    app = web.Application(client_max_size=0)
    app.add_routes([web.get("/metrics", samples), web.get("/healthz", health)])
    runner = web.AppRunner(app, access_log=None, handle_signals=False, keepalive_timeout=_IDLE_SECONDS)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, reuse_address=None).start()
        except (OSError, OverflowError) as error:
            raise UsageError(f"Cannot serve metrics on {host}:{port}: {error}") from error
        chosen = int(runner.addresses[0][1])
        _log.info(f"Metrics: http://{host}:{chosen}/metrics, health: http://{host}:{chosen}/healthz")
        yield chosen
    finally:
        await runner.cleanup()


@asynccontextmanager
async def metrics_file(metrics: ServiceMetrics, path: Path) -> AsyncIterator[None]:
    """Keep a textfile up to date: at once, every 15 seconds, and at the end.

    Raises:
        UsageError: it cannot be written at the beginning. Later failures are logged and tried again.
    """
    try:
        await asyncio.to_thread(write_atomically, path, metrics.text())
    except OSError as error:
        raise UsageError(f"Cannot write the metrics file {path}: {error}") from error
    writing = asyncio.create_task(_keep_writing(metrics, path))
    try:
        yield
    finally:
        await end(writing)
        await _write(metrics, path)


async def _keep_writing(metrics: ServiceMetrics, path: Path) -> None:
    while True:
        await asyncio.sleep(FILE_SECONDS)
        await _write(metrics, path)


async def _write(metrics: ServiceMetrics, path: Path) -> None:
    try:
        await asyncio.to_thread(write_atomically, path, metrics.text())
    except OSError as error:
        _log.warning(f"Cannot write the metrics file {path}: {error}")
