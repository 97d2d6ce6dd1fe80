"""Files of simulated processes: real files in memory, whose writes fail, stop half-way or are lost with the machine."""

import contextlib
import errno
import os
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

from sbpair.files import AppendedFile
from tests.simulation.loop import PROCESS, Call, Process, SimulatedLoop

_DISK_FULL = OSError(errno.ENOSPC, "No space left on device")
_BROKEN = OSError(errno.EIO, "Input/output error")


class Disk:
    """The disk of all processes. `full` and `failing` last until they are taken back."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.synced: Callable[[Path], None] = lambda path: None
        """Told of every file that has changed for good."""
        self.full = False
        self.failing = False
        self.failed_syncs = 0
        """Each may leave lines in a file, true ones, of which nobody knows whether they would outlive a power cut."""
        self._files: dict[Process, list[File]] = {}
        self._sync = os.fsync
        os.fsync = self._fsync
        self._by_number: dict[int, File] = {}

    def opened(self, path: Path) -> AppendedFile:
        """For `Ledger`."""
        process = PROCESS.get() or self.loop.world
        appended = Appended(path)
        raw: FileIO = appended._file
        raw.close()
        file = File(self, path)
        appended._file = appended.file = file
        if process not in self._files:
            self._files[process] = []
            process.on_end.append(lambda power: self._ended(process, power))
        self._files[process].append(file)
        self._by_number[file.fileno()] = file
        return appended

    def _fsync(self, number: int) -> None:
        file = self._by_number.get(number)
        if file is None:
            self._sync(number)
        elif self.failing:
            self.failed_syncs += 1
            raise _BROKEN
        else:
            file.safe_bytes = os.fstat(number).st_size
            self.synced(file.path)

    def _ended(self, process: Process, power: bool) -> None:
        """What its threads were doing is done, in part or not at all. Without power what was not synced may go."""
        dice = self.loop.dice
        for call in list(process.calls):
            if dice.random() < 0.5:
                self._half_done(call, process)
        for file in self._files.get(process, []):
            if file.closed:
                continue
            if power:
                size = os.fstat(file.fileno()).st_size
                file.truncate(min(size, file.safe_bytes + int(dice.random() * (size - file.safe_bytes + 1))))
            self._by_number.pop(file.fileno(), None)
            file.close()

    def _half_done(self, call: Call, process: Process) -> None:
        for file in self._files.get(process, []):
            file.last_share = self.loop.dice.random() if self.loop.dice.random() < 0.7 else None
        with contextlib.suppress(Stopped, OSError):
            call.function(*call.arguments)
        for file in self._files.get(process, []):
            file.last_share = None


class Stopped(BaseException):
    """The process ended in the middle of a write."""


class Appended(AppendedFile):
    """Gets no more space on a full disk, and keeps what it has."""

    file: "File"

    def _allocate(self, end_bytes: int) -> None:
        if self.file.disk.full or self.file.disk.failing:
            raise _DISK_FULL
        super()._allocate(end_bytes)
        self.file.allocated_bytes = end_bytes


class File(FileIO):
    """Open for appending."""

    def __init__(self, disk: Disk, path: Path) -> None:
        super().__init__(path, "ab")
        self.disk = disk
        self.path = path
        self.safe_bytes = os.fstat(self.fileno()).st_size
        self.allocated_bytes = 0
        self.last_share: float | None = None
        """So much of the next write is still done before the process ends."""

    def write(self, data: Any) -> int:
        if self.last_share is not None:
            super().write(bytes(data)[: int(self.last_share * len(data))])
            raise Stopped
        no_space = self.disk.full and os.fstat(self.fileno()).st_size + len(data) > self.allocated_bytes
        if no_space or self.disk.failing:
            dice = self.disk.loop.dice
            if dice.random() < 0.5:
                super().write(bytes(data)[: int(dice.random() * len(data))])
            raise _DISK_FULL if no_space else _BROKEN
        return super().write(data)
