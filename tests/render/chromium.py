"""A headless Chromium driven over its debugging protocol: opens a page as a phone or a desktop, light or dark."""

import asyncio
import base64
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.waiting import LIMIT_SECONDS

NAMES = ("chromium", "chromium-browser", "google-chrome")
_QUIET = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


def executable() -> str | None:
    """Where Chromium is, if it is installed."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@dataclass
class Visit:
    """What happened while a page was shown."""

    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    content_width: int = 0
    screenshot: bytes = b""


class Browser:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._loaded = asyncio.Event()
        self._visit = Visit()
        self._reader = asyncio.create_task(self._read())

    async def visit(self, page: Path, *, width: int, scheme: str) -> Visit:
        """Show a file at this width in the light or dark scheme and take a picture of all of it."""
        self._visit = Visit()
        self._loaded.clear()
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        await self.call("Emulation.setEmulatedMedia", features=[feature])
        await self.call("Page.navigate", url=page.as_uri())
        await asyncio.wait_for(self._loaded.wait(), LIMIT_SECONDS)
        visit = self._visit
        visit.content_width = await self.evaluate("document.documentElement.scrollWidth")
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        visit.screenshot = base64.b64decode(shot["data"])
        return visit

    @property
    def seen(self) -> Visit:
        """What has happened in the tab since the last visit."""
        return self._visit

    async def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression in the page."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    async def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        return await asyncio.wait_for(answer, LIMIT_SECONDS)

    async def _read(self) -> None:
        async for frame in self._socket:
            message = json.loads(frame.data)
            if "id" in message:
                self._answers.pop(message["id"]).set_result(message.get("result") or message.get("error"))
            else:
                self._note(message["method"], message["params"])

    def _note(self, event: str, details: Any) -> None:
        match event:
            case "Network.requestWillBeSent":
                self._visit.requests.append(details["request"]["url"])
            case "Log.entryAdded":
                self._visit.complaints.append(details["entry"]["text"])
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self._visit.complaints.append(json.dumps(details)[:500])
            case "Page.loadEventFired":
                self._loaded.set()

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


@asynccontextmanager
async def browser(chromium: str) -> AsyncIterator[Browser]:
    """Start Chromium with an empty profile and open a tab."""
    sandbox = ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        arguments = (*_QUIET, *sandbox, f"--user-data-dir={profile}", "about:blank")
        process = await asyncio.create_subprocess_exec(
            chromium, *arguments, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            address = await _tab(Path(profile))
            async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
                tab = Browser(socket)
                yield tab
                await tab.close()
        finally:
            process.terminate()
            await process.wait()


async def _tab(profile: Path) -> str:
    """Address of the first tab's debugging socket."""
    port_file = profile / "DevToolsActivePort"
    async with asyncio.timeout(LIMIT_SECONDS):
        while not port_file.exists() or not port_file.read_text(encoding="utf-8").strip():
            await asyncio.sleep(0.05)
        port = port_file.read_text(encoding="utf-8").split()[0]
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    tabs = [tab for tab in await answer.json(content_type=None) if tab["type"] == "page"]
                if tabs:
                    return str(tabs[0]["webSocketDebuggerUrl"])
                await asyncio.sleep(0.05)
