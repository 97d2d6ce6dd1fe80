"""A syphon for the tests that send into the backlog: what they receive has been there."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sbpair.azure.messaging import AzureMessaging
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.pairing import expected_backlog_paths
from sbpair.emulator import EmulatorThread
from sbpair.runtime.clock import LoopClock, Quiet
from sbpair.runtime.transfer.drain import DrainJob, TransferRequest
from sbpair.runtime.transfer.syphon import syphon

from .running import DATA_NAMESPACE, MANAGEMENT_NAMESPACE, SECONDARY_NAMESPACE

QUEUES = 2
LABELS = ("127", DATA_NAMESPACE, MANAGEMENT_NAMESPACE)
"""The first part of each name that the tests have for their primary: some have its address."""


@contextmanager
def backlog_returned(emulator: EmulatorThread, client: str, primary: str) -> Iterator[None]:
    """Backlog queues for the tests' primary, and for `diverting` clients what brings them back."""
    secondary = emulator.namespace(SECONDARY_NAMESPACE)
    for label in LABELS:
        for path in expected_backlog_paths(label, QUEUES):
            if secondary.get_queue(path) is None:
                secondary.create_queue(path)
    if client != "diverting":
        yield
        return
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    ready = threading.Event()

    async def bring_back() -> None:
        stop = asyncio.Event()
        running.append((asyncio.get_running_loop(), stop))
        ready.set()
        await asyncio.gather(*(_syphon(emulator, label, primary, stop) for label in LABELS))

    thread = threading.Thread(target=lambda: asyncio.run(bring_back()), name="syphon")
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        loop, stop = running[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join()


async def _syphon(emulator: EmulatorThread, label: str, primary: str, stop: asyncio.Event) -> None:
    secondary, home = (AzureMessaging(_access(emulator, name)) for name in (SECONDARY_NAMESPACE, primary))
    await syphon(
        DrainJob(
            TransferRequest(queues=expected_backlog_paths(label, QUEUES)),
            secondary=secondary,
            primary=home,
            clock=LoopClock(),
            observer=Quiet(),
            stop=stop,
        )
    )
    await secondary.close()
    await home.close()


def _access(emulator: EmulatorThread, name: str) -> NamespaceAccess:
    text = emulator.connection_string(name)
    return NamespaceAccess(
        name, host_of(text), AuthMethod.CONNECTION_STRING, Secret(text), ca_file=str(emulator.ca_path)
    )
