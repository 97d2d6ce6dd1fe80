"""Paths as Spark takes them, and files that are there whole or not at all."""

import os
from pathlib import Path


def spark_path(path: Path) -> str:
    """An absolute local path for Spark's readers and writers. Hadoop does not decode escapes, so nothing is escaped:
    `Path.as_uri` would turn the `%` of a partition folder's name into another one."""
    return f"file://{path.absolute().as_posix()}" if path.drive == "" else f"file:///{path.absolute().as_posix()}"


def is_folder(uri: str) -> bool:
    """A path, not a URI of a file system that only Spark reaches."""
    return "://" not in uri and not uri.startswith("file:")


def put_in_place(temporary: Path, final: Path) -> None:
    """Rename a file that is safely on disk, folder entry included."""
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.replace(final)
    if os.name != "nt":
        folder = os.open(final.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
