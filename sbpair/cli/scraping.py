"""Where monitoring finds a service: a port with /metrics and /healthz, and a textfile for the node exporter."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sbpair.core.errors import UsageError
from sbpair.render.console import write_atomically
from sbpair.render.service import ServiceMetrics
from sbpair.tasks import end

FILE_SECONDS = 15.0
_REQUEST_SECONDS = 5.0
_TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_log = logging.getLogger("sbpair")


@asynccontextmanager
async def metrics_port(metrics: ServiceMetrics, host: str, port: int) -> AsyncIterator[int]:
    """Serve the metrics while the context lasts; gives the port (0 asks for any free one).

    Raises:
        UsageError: the address cannot be used.
    """
    answering: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_answer(metrics, reader, writer))
        answering.add(task)
        task.add_done_callback(answering.discard)

    try:
        server = await asyncio.start_server(accept, host, port)
    except (OSError, OverflowError) as error:
        raise UsageError(f"Cannot serve metrics on {host}:{port}: {error}") from error
    chosen = int(server.sockets[0].getsockname()[1])
    _log.info(f"Metrics: http://{host}:{chosen}/metrics, health: http://{host}:{chosen}/healthz")
    try:
        yield chosen
    finally:
        server.close()
        for task in answering:
            task.cancel()


async def _answer(metrics: ServiceMetrics, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request, one answer, then the connection is closed."""
    try:
        async with asyncio.timeout(_REQUEST_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
            writer.write(_response(metrics, head))
            await writer.drain()
    except (TimeoutError, OSError, EOFError, asyncio.LimitOverrunError):
        return  # whoever asked has gone, or never spoke HTTP
    finally:
        writer.close()


def _response(metrics: ServiceMetrics, head: bytes) -> bytes:
    method, _, rest = head.partition(b" ")
    target = rest.split(b" ")[0].partition(b"?")[0]
    if method not in (b"GET", b"HEAD"):
        status, kind, text = 405, "text/plain", "GET or HEAD\n"
    elif target == b"/metrics":
        status, kind, text = 200, _TEXT_FORMAT, metrics.text()
    elif target == b"/healthz":
        troubles = metrics.troubles()
        status, kind = (503 if troubles else 200), "application/json"
        text = json.dumps({"healthy": not troubles, "troubles": troubles}) + "\n"
    else:
        status, kind, text = 404, "text/plain", "/metrics or /healthz\n"
    body = text.encode()
    lines = (
        f"HTTP/1.1 {status} {_REASONS[status]}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if method == b"HEAD" else body)


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
