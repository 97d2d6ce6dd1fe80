"""Where the pump's messages go: entities of a namespace, or a file."""

import asyncio
import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from sbpair.core.errors import ArgumentRefusedError, SbpairError
from sbpair.core.message import Received
from sbpair.core.redact import json_text
from sbpair.core.transfer.state import Item, Key
from sbpair.files import AppendedFile, make_private_folder
from sbpair.ports import MessageReceiver, MessageSender, Messaging, Moves
from sbpair.runtime.links import Links

SEND_SECONDS = 30.0
_NO_LIMIT_BYTES = 2**31


class Sink(Protocol):
    """Takes batches for destinations. Raises ServiceError as `MessageSender` does."""

    def in_doubt(self, destination: str, items: Sequence[Item]) -> bool:
        """Whether these may arrive, should the answer be lost, while they are still in their queue."""

    async def limit_bytes(self, destination: str) -> int: ...

    async def send(self, destination: str, items: Sequence[Item]) -> None: ...

    async def close(self) -> None: ...


class NamespaceSink:
    """Sends to the entities of a namespace, one link each."""

    def __init__(self, messaging: Messaging) -> None:
        self._links = Links(messaging)

    def in_doubt(self, destination: str, items: Sequence[Item]) -> bool:
        return True

    def _sender(self, destination: str) -> MessageSender:
        return self._links.to(destination)

    async def limit_bytes(self, destination: str) -> int:
        return await self._sender(destination).max_message_bytes()

    async def send(self, destination: str, items: Sequence[Item]) -> None:
        await self._sender(destination).send([item.payload for item in items], timeout_seconds=SEND_SECONDS)

    async def close(self) -> None:
        await self._links.close()


class TransactionSink:
    """Moves messages of one entity to others of its namespace: sent and completed, or cancelled, in one transaction.

    A partitioned entity takes messages into a transaction only with one session or partition key, so a message without
    is sent as to another namespace, and completed afterwards.
    """

    def __init__(self, mover: Moves, messaging: Messaging) -> None:
        self._mover = mover
        self._plain = NamespaceSink(messaging)
        self._without_key: set[str] = set()
        """Destinations that take messages without a key outside transactions only."""
        self._taken: set[tuple[str, bool]] = set()
        """Destinations that have taken a message into a transaction, and whether it had a key."""

    def in_doubt(self, destination: str, items: Sequence[Item]) -> bool:
        """Where they go, or may have to go, as to another namespace."""
        keyless = items[0].group is None
        if keyless and destination in self._without_key:
            return True
        return len(items) == 1 and (destination, not keyless) not in self._taken

    async def limit_bytes(self, destination: str) -> int:
        return await self._mover.max_message_bytes(destination)

    async def send(self, destination: str, items: Sequence[Item]) -> None:
        keyless = items[0].group is None
        if keyless and destination in self._without_key:
            await self._plain.send(destination, items)
            return
        received, payloads = [one.received for one in items], [one.payload for one in items]
        try:
            await self._mover.move(received, payloads, destination, timeout_seconds=SEND_SECONDS)
        except ArgumentRefusedError:
            if len(items) > 1:
                raise
            await self._plain.send(destination, items)  # and if it is the message that is refused, that says so
            if keyless:
                self._without_key.add(destination)
        else:
            self._taken.add((destination, not keyless))
            for one in items:
                one.completed = True

    async def close(self) -> None:
        await self._plain.close()


class ArchiveSink:
    """Writes messages to a JSON Lines file in a directory, fsynced: the exact bytes in base64 and where they lay, as
    `sbpair send` reads them.

    Raises:
        SbpairError: no file can be made there.
    """

    def __init__(self, directory: Path, stamp: str) -> None:
        try:
            make_private_folder(directory)
            self.path, self._file = _new_file(directory, stamp)
        except OSError as error:
            said = f"Cannot write an archive in {directory}: {error.strerror or error}. Nothing was moved."
            raise SbpairError(said, hint="Name another folder with --archive.") from error
        self._writing = asyncio.Lock()
        self._failed = False

    def in_doubt(self, destination: str, items: Sequence[Item]) -> bool:
        return True

    async def limit_bytes(self, destination: str) -> int:
        return _NO_LIMIT_BYTES

    async def send(self, destination: str, items: Sequence[Item]) -> None:
        lines = b"".join(archive_line(item.key, item.received, item.destination, item.payload) for item in items)
        async with self._writing:
            try:
                await asyncio.to_thread(self._file.append, lines)
            except OSError as error:
                self._failed = True
                raise SbpairError(
                    f"Cannot write the archive {self.path}: {error.strerror or error}. Messages that it does not have "
                    "are still in their queue.",
                    hint="Make room, or name another folder with --archive, and run it again.",
                ) from error

    async def close(self) -> None:
        self._file.close()
        if self._failed and not self.path.stat().st_size:
            self.path.unlink()  # not one more for each start on a full disk


def _new_file(directory: Path, stamp: str) -> tuple[Path, AppendedFile]:
    """A file that was not there before: `backlog-STAMP.jsonl`, or with a number behind it."""
    number = 0
    while True:
        path = directory / (f"backlog-{stamp}.jsonl" if number == 0 else f"backlog-{stamp}-{number}.jsonl")
        try:
            return path, AppendedFile(path, "xb")
        except FileExistsError:
            number += 1


def archive_line(key: Key, received: Received, destination: str, payload: bytes, **beside: str) -> bytes:
    """A message as files keep it that `restore` sends. `beside`: more that is said of it there."""
    line = {
        "queue": key[0],
        "sequence_number": key[1],
        "message_id": received.message_id,
        "enqueued_at": received.enqueued_at,
        "destination": destination or None,
        "payload_base64": base64.b64encode(payload).decode(),
    }
    return json_text(line | beside).encode() + b"\n"


class LeftOpen:
    """A receiver, with the lock of its session, or a sink that outlives the pump it is lent to."""

    def __init__(self, lent: MessageReceiver | Sink) -> None:
        self._lent = lent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lent, name)

    async def close(self) -> None:
        """Its owner closes it."""
