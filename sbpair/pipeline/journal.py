"""A replay's ledger while it is written: JSON Lines, on disk before the next batch goes out.

One file per task attempt in the ledger's folder. When the job is over the driver turns the lines into a Parquet file
(`ledgers.fold`); what a crash left is read as it is. A line cut off by the crash is no line: its message may be sent
again, which the message id lets the destination notice.
"""

import base64
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from sbpair.pipeline.errors import ReplayError

Key = tuple[str, bool, int, int]
"""Queue, dead letter, sequence number, enqueued time in milliseconds (-1: none)."""
FORWARDED = "forwarded"


@dataclass(frozen=True, slots=True)
class Sent:
    """One line. `digest`: of the archived message, in base64; `time`: ISO 8601, UTC."""

    queue: str
    dead_letter: bool
    sequence_number: int
    enqueued_at_ms: int
    message_id: str | None
    session_id: str | None
    destination: str | None
    digest: str | None
    outcome: str
    time: str
    attempts: int = 1
    reason: str = ""

    @property
    def key(self) -> Key:
        return self.queue, self.dead_letter, self.sequence_number, self.enqueued_at_ms


class Journal:
    """Appends what one task attempt has done."""

    def __init__(self, folder: Path, run: str, partition: int, attempt: int) -> None:
        self.path = folder / f"{run}-{partition:05d}-{attempt}-{os.urandom(3).hex()}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("xb")
        except OSError as error:
            raise ReplayError(f"Cannot write the ledger {self.path}: {error}.") from error

    def record(self, lines: Iterable[Sent]) -> None:
        """Returns when the lines are on disk."""
        data = b"".join(json.dumps(asdict(one), ensure_ascii=False).encode() + b"\n" for one in lines)
        try:
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ReplayError(f"Cannot write the ledger {self.path}: {error}.") from error

    def close(self) -> None:
        self._file.close()


def done_by(folder: Path, run: str, partition: int) -> set[Key]:
    """What earlier attempts of a task have sent, or found to need no sending."""
    found: set[Key] = set()
    for path in folder.glob(f"{run}-{partition:05d}-*.jsonl"):
        found |= {one.key for one in read_lines(path) if one.outcome != "refused"}
    return found


def read_lines(path: Path) -> Iterator[Sent]:
    """The whole lines of a journal."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield Sent(**json.loads(line))


def digest_text(digest: bytes | None) -> str | None:
    return None if digest is None else base64.b64encode(digest).decode()
