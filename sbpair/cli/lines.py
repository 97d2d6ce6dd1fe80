"""Input lines for a command that must keep answering to signals while it waits for them."""

import os
import threading
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import asyncio

CHUNK_BYTES = 65_536
LINES_AHEAD = 100
"""Lines read before somebody wanted them: the bound of memory, and what keeps a fast writer waiting."""


async def read_lines(file: BinaryIO, stop: "asyncio.Event") -> AsyncIterator[tuple[int, bytes]]:
    """Lines of `file` with their numbers (from 1), without line ends and empty ones, until its end or `stop`.

    A thread does the reading, because a terminal or pipe that says nothing would block the loop; it is a daemon and
    reads the bare descriptor, so that neither the thread nor a lock it holds can keep the process from ending.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[int, bytes] | BaseException | None] = asyncio.Queue()
    room = threading.Semaphore(LINES_AHEAD)

    def read() -> None:
        try:
            for number, line in enumerate(_split(file.fileno()), 1):
                room.acquire()
                loop.call_soon_threadsafe(queue.put_nowait, (number, line.rstrip(b"\r\n")))
            loop.call_soon_threadsafe(queue.put_nowait, None)
        except (OSError, ValueError) as error:
            loop.call_soon_threadsafe(queue.put_nowait, error)
        except RuntimeError:
            return  # the loop is closed: nobody wants more lines

    threading.Thread(target=read, name="sbpair-lines", daemon=True).start()
    stopped = asyncio.create_task(stop.wait())
    try:
        while True:
            upcoming = asyncio.create_task(queue.get())
            await asyncio.wait({upcoming, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not upcoming.done():
                upcoming.cancel()
                return
            item = upcoming.result()
            room.release()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            if item[1].strip():
                yield item
    finally:
        stopped.cancel()


def _split(descriptor: int) -> Iterator[bytes]:
    """Lines of a file descriptor, the last one also without a line end."""
    rest = b""
    while chunk := os.read(descriptor, CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    if rest:
        yield rest
