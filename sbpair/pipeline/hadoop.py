"""An archive on a file system that Spark reaches through the user's Hadoop configuration: abfss, hdfs, s3a, ...

The driver's few files (commits) go through Hadoop's FileSystem in the JVM; rows are written by Spark. `file:` URIs work
too. A commit is renamed into place; a file system whose rename replaces an existing file (plain object stores) does not
protect two archivers from each other, so there is to be one at a time.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sbpair.pipeline.errors import ArchiveError
from sbpair.pipeline.manifest import COMMITS, Commit, Manifest

if TYPE_CHECKING:
    from pyspark import SparkContext


class HadoopStore:
    """See `sbpair.pipeline.manifest.Store`."""

    executors_write = False

    def __init__(self, context: "SparkContext", uri: str) -> None:
        self._jvm: Any = context._jvm
        self._uri = uri.rstrip("/")
        with _translated(self._uri):
            root = self._path("")
            self._fs = root.getFileSystem(context._jsc.hadoopConfiguration())
            self._root = self._fs.makeQualified(root).toString().rstrip("/")

    @property
    def uri(self) -> str:
        return self._uri

    def _path(self, relative: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._uri}/{relative}" if relative else self._uri)

    def manifest(self) -> Manifest:
        folder = self._path(COMMITS)
        with _translated(self._uri):
            if not self._fs.exists(folder):
                return Manifest(())
            names = [status.getPath().getName() for status in self._fs.listStatus(folder)]
            numbers = sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdecimal())
            commits = [
                Commit.from_json(self._read(number), number, f"{self._uri}, commit {number}") for number in numbers
            ]
        return Manifest(tuple(commits))

    def _read(self, number: int) -> str:
        stream = self._fs.open(self._path(f"{COMMITS}/{number:08d}.json"))
        try:
            data: bytes = bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()
        return data.decode()

    def commit(self, commit: Commit) -> bool:
        final = self._path(f"{COMMITS}/{commit.number:08d}.json")
        temporary = self._path(f"{COMMITS}/.{commit.number:08d}.{os.getpid()}-{os.urandom(4).hex()}")
        with _translated(self._uri):
            stream = self._fs.create(temporary, False)
            stream.write(bytearray(commit.to_json().encode()))
            stream.close()
            if self._fs.exists(final) or not self._fs.rename(temporary, final):
                self._fs.delete(temporary, False)
                return False
        return True

    def location(self, relative: str) -> str:
        return f"{self._root}/{relative}"

    def list_data(self) -> list[tuple[str, int, float]]:
        data = self._path("data")
        found = []
        with _translated(self._uri):
            if not self._fs.exists(data):
                return []
            files = self._fs.listFiles(data, True)
            while files.hasNext():
                status = files.next()
                relative = status.getPath().toString().removeprefix(self._root + "/")
                found.append((relative, int(status.getLen()), status.getModificationTime() / 1000))
        return found

    def delete(self, relative: str) -> None:
        with _translated(self._uri):
            self._fs.delete(self._path(relative), False)


@contextmanager
def _translated(uri: str) -> Iterator[None]:
    """An exception of the JVM as ours."""
    from py4j.protocol import Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        said = str(error.java_exception.toString()).splitlines()[0][:400]
        raise ArchiveError(
            f"Cannot use the archive {uri}: {said}.",
            hint="The file system comes from Spark's Hadoop configuration: --conf spark.hadoop.…, and for abfss "
            "--conf spark.jars.packages=org.apache.hadoop:hadoop-azure:3.5.0",
        ) from error
