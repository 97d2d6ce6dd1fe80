"""What belongs to an archive: a row of commits, each a small JSON document that is written whole or not at all.

    archive/
      _commits/00000001.json      what was covered and which files were added (or replaced by a compaction)
      data/pair=.../queue=.../date=.../*.parquet

Readers list commits, never folders: a file that no commit names does not exist for them. Commit n can be written once
only; who comes second reads what the first one wrote and decides again. So two archivers cannot add the same numbers.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.core.errors import UsageError
from sbpair.core.pairing import Side
from sbpair.core.redact import json_text, quoted
from sbpair.core.serialization import from_plain
from sbpair.files import make_private_folder, open_private
from sbpair.pipeline.errors import RUN_AGAIN, ArchiveError
from sbpair.pipeline.rows import SCHEMA_VERSION
from sbpair.pipeline.spans import NumberRange, Sharing, merged, uncovered

if TYPE_CHECKING:
    from pyspark import SparkContext


FORMAT_VERSION = 1
COMMITS = "_commits"


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """One Parquet file of an archive. `path` is relative to the archive; numbers and times are those of its rows."""

    path: str
    pair: str
    queue: str
    dead_letter: bool
    date: str
    rows: int
    bytes: int
    first: int
    last: int
    first_enqueued_ms: int | None = None
    last_enqueued_ms: int | None = None

    @property
    def span(self) -> NumberRange:
        return NumberRange(self.queue, self.dead_letter, self.first, self.last)


@dataclass(frozen=True, slots=True)
class Covered:
    """Numbers that were looked at. `newest_ms`: when the newest message among them had been put there."""

    pair: str
    queue: str
    dead_letter: bool
    first: int
    last: int
    newest_ms: int | None = None

    @property
    def span(self) -> NumberRange:
        return NumberRange(self.queue, self.dead_letter, self.first, self.last)


@dataclass(frozen=True, slots=True)
class Commit:
    """One step of an archive's history. `at`: UTC epoch seconds."""

    at: float
    run: str
    added: tuple[ArchiveFile, ...] = ()
    removed: tuple[str, ...] = ()
    covered: tuple[Covered, ...] = ()
    taken: tuple[Covered, ...] = ()
    """Numbers whose archived messages were removed from their queues: only the archive has them."""
    taking: tuple[Covered, ...] = ()
    """Numbers whose removal was begun: of those that are gone this archive knows why."""
    only: str = ""
    """What was archived of the covered numbers, if not all: the filter (`MessageFilter.text`)."""
    side: str = Side.SECONDARY
    """The namespace of the pair on which the covered numbers are."""
    number: int = 0
    versions: dict[str, int] = field(default_factory=lambda: {"format": FORMAT_VERSION, "schema": SCHEMA_VERSION})

    def to_json(self) -> str:
        document = asdict(self)
        del document["number"]
        return json_text(document, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, number: int, where: str) -> "Commit":
        """Raises ArchiveError: not a commit, or one of a newer version."""
        try:
            read: dict[str, Any] = json.loads(text)
            versions = {str(name): int(version) for name, version in dict(read["versions"]).items()}
            if versions["format"] > FORMAT_VERSION or versions["schema"] > SCHEMA_VERSION:
                raise ArchiveError(
                    f"{where} was written by a newer sbpair (versions {quoted(versions)}).", hint="Upgrade sbpair."
                )
            kept = [one.name for one in fields(cls) if one.name not in ("number", "versions")]
            said = {name: read[name] for name in kept if name in read}
            commit = from_plain(cls, said, "commit")
            for path in (*commit.removed, *(one.path for one in commit.added)):
                # An archive may come from anybody, and what is replaced is deleted one day.
                if not path.startswith("data/") or ".." in path.split("/") or not path.isprintable():
                    raise UsageError(f"{quoted(path)} is not the path of a data file.")
            return replace(commit, number=number, versions=versions)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, UsageError) as error:
            raise ArchiveError(f"{where} is not a commit of an archive: {quoted(error)}.") from error


@dataclass(frozen=True, slots=True)
class Manifest:
    """An archive as its commits describe it."""

    commits: tuple[Commit, ...]

    @property
    def next_number(self) -> int:
        return self.commits[-1].number + 1 if self.commits else 1

    @property
    def files(self) -> tuple[ArchiveFile, ...]:
        """Files that belong to the archive now."""
        removed = {path for commit in self.commits for path in commit.removed}
        return tuple(one for commit in self.commits for one in commit.added if one.path not in removed)

    @property
    def covered(self) -> tuple[Covered, ...]:
        return tuple(one for commit in self.commits for one in commit.covered)

    def files_of(self, pair: str) -> Sharing[ArchiveFile]:
        return Sharing((one for one in self.files if one.pair == pair), lambda one: one.span)

    def covered_of(self, pair: str) -> Sharing[Covered]:
        return Sharing((one for one in self.covered if one.pair == pair), lambda one: one.span)

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.files)

    def perhaps_queued(self, pair: str) -> list[NumberRange]:
        """The stretches of a pair's files that are not known to have been taken out of their queues."""
        return self._without(pair, lambda commit: commit.taken)

    def left_in_queues(self, pair: str) -> list[NumberRange]:
        """The stretches of a pair's files that nobody has begun to take out of their queues for the archive."""
        return self._without(pair, lambda commit: (*commit.taken, *commit.taking))

    def _without(self, pair: str, removed: Callable[[Commit], Sequence[Covered]]) -> list[NumberRange]:
        by_time = ((commit.at * 1000, one) for commit in self.commits for one in removed(commit) if one.pair == pair)
        gone = Sharing(by_time, lambda known: known[1].span)

        def left(file: ArchiveFile) -> list[NumberRange]:
            """A taking says nothing of messages that came later: a queue that is made again counts from 1 again."""
            newest = file.last_enqueued_ms
            known = (one.span for at_ms, one in gone(file.span) if newest is not None and newest <= at_ms)
            return uncovered(file.span, known)

        return merged(part for file in self.files if file.pair == pair for part in left(file))


def together(manifests: Iterable[Manifest]) -> Manifest:
    """Several archives as one: what one of them has taken is taken."""
    return Manifest(tuple(commit for manifest in manifests for commit in manifest.commits))


def check_archive(store: "Store") -> Manifest:
    """The manifest of an archive; raises UsageError where there is none."""
    manifest = store.manifest()
    if not manifest.commits:
        raise UsageError(
            f"{store.uri} is not an archive: it has no commits.", hint="sbpair pipeline archive makes one."
        )
    return manifest


def refuse_other_sides(manifest: Manifest, uri: str) -> None:
    """Raises UsageError: the archive holds messages of the primary itself, which no backlog has held."""
    if any(commit.side != Side.SECONDARY for commit in manifest.commits):
        raise UsageError(
            f"{uri} holds messages of the primary's own queues, not of the backlog. Nothing was changed.",
            hint="sbpair pipeline replication-audit reads such an archive (--primary-archive).",
        )


class LocalStore:
    """An archive in a folder of this machine, or of a share that every executor sees at the same path. Tasks write
    their files there by themselves; in any other store Spark does."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        self.uri = str(self.root)

    def manifest(self) -> Manifest:
        folder, data = self.root / COMMITS, self.root / "data"
        if data.is_symlink():  # links below it are not followed, and what is deleted of a linked file is the link
            raise ArchiveError(
                f"{data} is a link; what nobody needs in that folder would be deleted. Nothing was changed.",
                hint="Move an archive with its whole folder, and name the place where that is.",
            )
        try:
            numbers = sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal())
            commits = [_commit_at(folder / _name(number), number) for number in numbers]
        except OSError as error:
            raise ArchiveError(f"Cannot read the archive {self.root}: {error}.") from error
        return Manifest(tuple(commits))

    def commit(self, commit: Commit) -> bool:
        """Write the commit under its number; False if that number is taken."""
        folder = self.root / COMMITS
        temporary = folder / f".{_name(commit.number)}.{os.getpid()}-{os.urandom(4).hex()}"
        try:
            make_private_folder(folder)
            try:
                with open_private(temporary, "xb") as file:
                    file.write(commit.to_json().encode())
                    file.flush()
                    os.fsync(file.fileno())
                os.link(temporary, folder / _name(commit.number))
            except FileExistsError:
                return False
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise ArchiveError(f"Cannot write into the archive {self.root}: {error}.", hint=RUN_AGAIN) from error
        return True

    def location(self, relative: str) -> str:
        """Path of a file for Spark's reader."""
        return spark_path(self.root / relative)

    def list_data(self) -> list[tuple[str, int, float]]:
        """All data files, committed or not: relative path, bytes, time of last change (UTC epoch seconds)."""
        files = (path for path in (self.root / "data").rglob("*") if path.is_file())
        return [
            (path.relative_to(self.root).as_posix(), facts.st_size, facts.st_mtime)
            for path in files
            for facts in (path.stat(),)
        ]

    def delete(self, relative: str) -> None:
        (self.root / relative).unlink(missing_ok=True)


def _commit_at(path: Path, number: int) -> Commit:
    """A commit that was read before is not read again: a run that follows a backlog asks for all of them many times."""
    facts = path.stat()
    return _read_commit(path, number, facts.st_ino, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=20_000)
def _read_commit(path: Path, number: int, *_is_the_same_file: int) -> Commit:
    return Commit.from_json(path.read_bytes(), number, str(path))


def _name(number: int) -> str:
    return f"{number:08d}.json"


def append(store: "Store", commit: Commit, *, still_valid: Callable[[Manifest], None] = lambda _: None) -> Commit:
    """Write the commit under the next free number.

    `still_valid(manifest)` is asked whenever others have committed meanwhile; it raises when that takes the ground from
    under this commit.
    """
    while True:
        manifest = store.manifest()
        still_valid(manifest)
        numbered = replace(commit, number=manifest.next_number)
        if store.commit(numbered):
            return numbered


def refuse_overlap(covered: Sequence[Covered], known: int, manifest: Manifest) -> None:
    """Raises ArchiveError: somebody else has covered some of these numbers since commit `known`."""
    since = Manifest(tuple(commit for commit in manifest.commits if commit.number > known))
    for piece in covered:
        for other in since.covered_of(piece.pair)(piece.span):
            raise ArchiveError(
                f"Another archiver has added messages {other.first} to {other.last} of {other.queue}.",
                hint="Nothing was added twice; run the command again for what is still missing.",
            )


class HadoopStore:
    """An archive on a file system that Spark reaches through the user's Hadoop configuration: abfss, hdfs, s3a, ...

    The driver's few files (commits) go through Hadoop's FileSystem in the JVM; rows are written by Spark. `file:` URIs
    work too. A commit is renamed into place; a file system whose rename replaces an existing file (plain object stores)
    does not protect two archivers from each other, so there is to be one at a time.
    """

    def __init__(self, context: "SparkContext", uri: str) -> None:
        self._jvm: Any = context._jvm
        self.uri = uri.rstrip("/")
        with _translated(self.uri):
            root = self._path("")
            self._fs = root.getFileSystem(context._jsc.hadoopConfiguration())
            self._root = self._fs.makeQualified(root).toString().rstrip("/")

    def _path(self, relative: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{relative}" if relative else self.uri)

    def manifest(self) -> Manifest:
        folder = self._path(COMMITS)
        with _translated(self.uri):
            if not self._fs.exists(folder):
                return Manifest(())
            names = [status.getPath().getName() for status in self._fs.listStatus(folder)]
            numbers = sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdecimal())
            return Manifest(tuple(map(self._read, numbers)))

    def _read(self, number: int) -> Commit:
        stream = self._fs.open(self._path(f"{COMMITS}/{_name(number)}"))
        try:
            text = bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()
        return Commit.from_json(text, number, f"{self.uri}, commit {number}")

    def commit(self, commit: Commit) -> bool:
        final = self._path(f"{COMMITS}/{_name(commit.number)}")
        temporary = self._path(f"{COMMITS}/.{commit.number:08d}.{os.getpid()}-{os.urandom(4).hex()}")
        with _translated(self.uri):
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
        with _translated(self.uri):
            if not self._fs.exists(data):
                return []
            files = self._fs.listFiles(data, True)
            while files.hasNext():
                status = files.next()
                relative = status.getPath().toString().removeprefix(self._root + "/")
                found.append((relative, int(status.getLen()), status.getModificationTime() / 1000))
        return found

    def delete(self, relative: str) -> None:
        with _translated(self.uri):
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


Store = LocalStore | HadoopStore
"""The file system of an archive, as the driver uses it."""

# Paths as Spark takes them, and files that are there whole or not at all.


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


def rows_in(archives: Sequence[str], *, of_backlog: bool = False) -> int | None:
    """How many rows archives hold, where their manifests can be read without Spark.

    Raises:
        UsageError: one of them is no archive, or with `of_backlog` none of the backlog.
    """
    if not all(map(is_folder, archives)):
        return None
    manifests = [check_archive(LocalStore(Path(one))) for one in archives]
    if of_backlog:
        for one, manifest in zip(archives, manifests, strict=True):
            refuse_other_sides(manifest, one)
    return sum(one.rows for one in manifests)
