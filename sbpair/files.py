"""Records that must survive: appended whole or not at all, on disk before the call returns, one writer at a time."""

import contextlib
import errno
import os
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Literal


class AppendedFile:
    """A file of records that only grows.

    Args:
        mode: `ab` continues a file, `xb` makes a new one.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, mode: Literal["ab", "xb"] = "ab") -> None:
        # Unbuffered: what a full disk refused must not come up again when the file is closed.
        self._file: FileIO = path.open(mode, buffering=0)

    def append(self, data: bytes) -> None:
        """Returns when the data is on disk.

        Raises:
            OSError: it is not; what was written of it has been cut off again, if the file let us.
        """
        before = os.fstat(self._file.fileno()).st_size
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError:
            with contextlib.suppress(OSError):  # a device, or a disk that refuses everything: the first error says so
                self._file.truncate(before)
            raise

    def claim(self) -> bool:
        """Keep other writers out for as long as the file is open; False if another one has it."""
        return claim(self._file)

    def close(self) -> None:
        self._file.close()


def claim(file: FileIO | BinaryIO) -> bool:
    """Lock an open file for this process until it is closed; False if another one has it.

    Where files cannot be locked (Windows without third parties, some network file systems) nobody is kept out.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def is_claimed(path: Path) -> bool:
    """Whether somebody has it open and claimed. A file that is gone is nobody's."""
    try:
        with path.open("rb") as file:
            return not claim(file)
    except FileNotFoundError:
        return False
