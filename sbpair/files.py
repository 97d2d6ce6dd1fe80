"""The gate for files that hold messages or keys, and records that must survive.

What holds messages or keys is for its owner alone: files 0600 in folders 0700, whatever the umask. It never follows a
link at its own name, and never takes over what another user has put there or may write to. Records are appended whole
or not at all, on disk before the call returns, one writer at a time. What is read knows the lines it stands in.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
_MAY_BE_OTHERS = (0, -1)
"""Root, who may do as they like; and the number where there are no owners."""


def open_private(path: Path, mode: str) -> BinaryIO:
    """Open a binary file: a new one is its owner's alone, and an old one must not be open to everybody.

    Raises:
        OSError: it cannot be opened, its name is a link, it is another user's, or everybody may write to it.
    """
    return cast(BinaryIO, open(path, mode, opener=_opener))


def _opener(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0), PRIVATE_FILE)
    try:
        _check_ours(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def make_private_folder(path: Path) -> None:
    """Make a folder for its owner alone, and the missing ones above it; one that exists is left as it is.

    Raises:
        OSError: it cannot be made.
    """
    for folder in reversed([one for one in path.parents if not one.exists()]):
        folder.mkdir(exist_ok=True, mode=PRIVATE_FOLDER)
    path.mkdir(exist_ok=True, mode=PRIVATE_FOLDER)


def make_private_file(path: Path) -> None:
    """Have the file, empty if it is new, before a library opens it by its name.

    Raises:
        OSError: see `open_private`.
    """
    os.close(_opener(str(path), os.O_RDWR | os.O_CREAT))


def write_private(path: Path, data: bytes) -> None:
    """Write a file of its owner's alone.

    Raises:
        OSError: see `open_private`.
    """
    with open_private(path, "wb") as file:
        file.write(data)


def write_private_temporary(prefix: str, suffix: str, data: bytes) -> Path:
    """Write a new file of its owner's alone among the temporary ones.

    Raises:
        OSError: it cannot be made or written.
    """
    import tempfile  # with what it imports a twentieth of the time that `--help` takes

    descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=suffix)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    return Path(name)


def try_folder(path: Path) -> None:
    """Raises OSError where no file can be made in a folder. A folder of our own is made there and taken away again:
    permissions alone do not tell of a read-only file system, nor of /proc."""
    import tempfile

    Path(tempfile.mkdtemp(prefix=".sbpair-", dir=path)).rmdir()


def _check_ours(path: str, found: os.stat_result) -> None:
    """Somebody else's lines in a ledger would settle messages that were never sent."""
    if not stat.S_ISREG(found.st_mode) or os.name != "posix":
        return
    if found.st_uid not in (os.geteuid(), *_MAY_BE_OTHERS):
        raise PermissionError(errno.EPERM, "It belongs to another user", path)
    if found.st_mode & stat.S_IWOTH:
        raise PermissionError(errno.EPERM, "Every user of this machine may write to it", path)


class AppendedFile:
    """A file of records that only grows.

    Args:
        mode: `ab` continues a file, `xb` makes a new one.

    Raises:
        OSError: it cannot be opened, is a link, or is not ours alone to write.
    """

    def __init__(self, path: Path, mode: Literal["ab", "xb"] = "ab") -> None:
        # Unbuffered: what a full disk refused must not come up again when the file is closed.
        self._file = FileIO(path, mode, opener=_opener)
        self._allocated_bytes = 0
        """Up to this size the file has its space on the disk."""

    def append(self, data: bytes) -> None:
        """Returns when the data is on disk.

        Raises:
            OSError: it is not; what was written of it has been cut off again, if the file let us.
        """
        before = self._size()
        try:
            self.write(data)
            self.sync()
        except OSError:
            self._cut(before)
            raise

    def reserve(self, size_bytes: int) -> None:
        """Have space on the disk for this many more bytes: writing them cannot fail for want of it.

        Raises:
            OSError: there is no space for them.
        """
        needed = self._size() + size_bytes
        if needed <= self._allocated_bytes:
            return
        try:
            self._allocate(needed + RESERVED_AHEAD_BYTES)
        except OSError:
            self._allocate(needed)

    def _allocate(self, end_bytes: int) -> None:
        allocate(self._file.fileno(), max(self._size(), self._allocated_bytes), end_bytes)
        self._allocated_bytes = end_bytes

    def write(self, data: bytes) -> None:
        """Write the data, which outlives this process from now on, and a power cut after `sync`.

        Raises:
            OSError: it cannot be written; what was written of it has been cut off again, if the file let us.
        """
        before = self._size()
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._cut(before)
            raise

    def sync(self) -> None:
        """Returns when all that was written is on disk.

        Raises:
            OSError: it may not be.
        """
        os.fsync(self._file.fileno())

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _cut(self, size_bytes: int) -> None:
        with contextlib.suppress(OSError):  # a device, or a disk that refuses everything: the first error says so
            if self._size() > size_bytes:
                self._file.truncate(size_bytes)
                self._allocated_bytes = size_bytes  # the space behind it went with it

    def claim(self) -> bool:
        """Keep other writers out for as long as the file is open; False if another one has it."""
        return claim(self._file)

    def close(self) -> None:
        if self._allocated_bytes and not self._file.closed:
            with contextlib.suppress(OSError):  # the space stays with the file: nothing is wrong with its records
                self._file.truncate(self._size())
        self._file.close()


RESERVED_AHEAD_BYTES = 1024 * 1024
_KEEP_SIZE = 1
"""`FALLOC_FL_KEEP_SIZE` of fallocate(2): the space lies behind the end of the file, which readers do not see."""
_NOT_SUPPORTED = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL})


def allocate(descriptor: int, begin_bytes: int, end_bytes: int) -> None:
    """Have a file's bytes from `begin_bytes` to `end_bytes` allocated on its disk, without making it longer. Where the
    system cannot, there is only a look whether so much is free, and on Windows not even that.

    Raises:
        OSError: there is no space for them, or a file of this process may not become so long.
    """
    try:
        import resource
    except ImportError:  # Windows, where nobody limits a file's size
        return
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most != resource.RLIM_INFINITY and end_bytes > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    import ctypes  # for the one who writes records, not for every command

    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    number = errno.ENOSYS
    if fallocate is not None and ctypes.sizeof(ctypes.c_long) == ctypes.sizeof(ctypes.c_int64):
        offset, length = ctypes.c_int64(begin_bytes), ctypes.c_int64(end_bytes - begin_bytes)
        number = errno.EINTR
        while number == errno.EINTR:
            number = 0 if fallocate(descriptor, _KEEP_SIZE, offset, length) == 0 else ctypes.get_errno()
    if number in _NOT_SUPPORTED:
        free = os.fstatvfs(descriptor)
        number = 0 if free.f_bavail * free.f_frsize >= end_bytes - begin_bytes else errno.ENOSPC
    if number:
        raise OSError(number, os.strerror(number))


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


# Values of a file that know the lines they stand in, so that what is wrong can be told by its line.


class LinedMapping(dict[Any, Any]):
    """A mapping; `lines` has the line (from 1) of each of its keys."""

    lines: Mapping[Any, int] = {}


class LinedList(list[Any]):
    """A list; `lines` has the line (from 1) of each of its entries."""

    lines: Sequence[int] = ()


def line_of(container: object, key: object) -> int | None:
    """The line of a key or entry; None where nothing is known of a file."""
    if isinstance(container, LinedMapping):
        return container.lines.get(key)
    if isinstance(container, LinedList) and isinstance(key, int) and key < len(container.lines):
        return container.lines[key]
    return None


def like(original: object, values: Mapping[str, Any], names: Mapping[str, str] | None = None) -> LinedMapping:
    """`values` with the lines of the mapping they were made from; `names` are the original's keys where they differ."""
    made = LinedMapping(values)
    found = {name: line_of(original, (names or {}).get(name, name)) for name in values}
    made.lines = {name: line for name, line in found.items() if line is not None}
    return made
