"""Paths as Spark takes them."""

from pathlib import Path


def spark_path(path: Path) -> str:
    """An absolute local path for Spark's readers and writers. Hadoop does not decode escapes, so nothing is escaped:
    `Path.as_uri` would turn the `%` of a partition folder's name into another one."""
    return f"file://{path.absolute().as_posix()}" if path.drive == "" else f"file:///{path.absolute().as_posix()}"
