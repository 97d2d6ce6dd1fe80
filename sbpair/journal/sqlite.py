"""A journal in an SQLite file: for several processes on one host, and for trying things out.

Swaps are safe because SQLite lets one writer in at a time, and every answer is on the disk before it is given
(`synchronous=FULL`), so neither kill -9 nor a power cut takes back what was promised. Not for network file systems,
whose locks cannot be relied on.
"""

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sbpair.core.errors import JournalConflictError, JournalError, JournalUnavailableError
from sbpair.files import make_private_file
from sbpair.ports import Entry, checked_entry

T = TypeVar("T")

BUSY_SECONDS = 10.0
"""How long a call waits for another process's write."""
PAGE = 500
FORGET_EVERY_WRITES = 100
FORGET_AT_ONCE = 1000
"""This many documents are forgotten in one write: ten for each that can have been made since, so the file stops
growing, and no consumer waits for a million deletions."""
_COLUMNS = {"entries": ("kind", "key", "document", "version", "forget_at"), "versions": ("last",)}
_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    document TEXT NOT NULL,
    version INTEGER NOT NULL,
    forget_at REAL NOT NULL,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entries_forget_at ON entries (forget_at);
CREATE TABLE IF NOT EXISTS versions (last INTEGER NOT NULL);
INSERT INTO versions
    SELECT coalesce((SELECT max(version) FROM entries), 0) WHERE NOT EXISTS (SELECT * FROM versions);
"""
_OF_PARENTS: list[sqlite3.Connection] = []
"""Connections that a child process has from its parent and must not close."""


class SqliteJournal:
    """`sbpair.ports.Journal` in one file, which is made when it is not there. A version is never used twice."""

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        """`now`: UTC epoch seconds, for forgetting."""
        self._path = path
        self._now = now
        self._process = 0
        self._connection: sqlite3.Connection | None = None
        self._writes = 0

    @property
    def path(self) -> Path:
        return self._path

    @property
    def name(self) -> str:
        return f"sqlite:{self._path}"

    async def read(self, kind: str, key: str) -> Entry | None:
        def select(connection: sqlite3.Connection) -> Entry | None:
            row = connection.execute(
                "SELECT kind, key, document, version FROM entries WHERE kind = ? AND key = ? AND forget_at > ?",
                (kind, key, self._now()),
            ).fetchone()
            return None if row is None else self._entry(row)

        return await self._run(select)

    async def create(self, kind: str, key: str, document: Mapping[str, Any], *, ttl_seconds: float) -> Entry:
        text = _text(document)

        def insert(connection: sqlite3.Connection) -> Entry:
            now = self._now()
            connection.execute("DELETE FROM entries WHERE kind = ? AND key = ? AND forget_at <= ?", (kind, key, now))
            version = _next_version(connection)
            connection.execute(
                "INSERT INTO entries VALUES (?, ?, ?, ?, ?)", (kind, key, text, version, now + ttl_seconds)
            )
            return Entry(kind, key, document, str(version))

        try:
            return await self._write(insert)
        except sqlite3.IntegrityError:
            raise JournalConflictError(f"{kind} {key!r} exists already in {self.name}.") from None

    async def replace(self, entry: Entry, document: Mapping[str, Any], *, ttl_seconds: float) -> Entry:
        text = _text(document)

        def update(connection: sqlite3.Connection) -> Entry:
            now, version = self._now(), _next_version(connection)
            changed = connection.execute(
                "UPDATE entries SET document = ?, version = ?, forget_at = ?"
                " WHERE kind = ? AND key = ? AND version = ? AND forget_at > ?",
                (text, version, now + ttl_seconds, entry.kind, entry.key, int(entry.version), now),
            ).rowcount
            if not changed:
                raise JournalConflictError(f"{entry.kind} {entry.key!r} was changed by somebody else.")
            return Entry(entry.kind, entry.key, document, str(version))

        return await self._write(update)

    async def scan(self, kind: str) -> AsyncIterator[Entry]:
        after = ""
        while True:
            page = await self._page(kind, after)
            for entry in page:
                yield entry
            if len(page) < PAGE:
                return
            after = page[-1].key

    async def _page(self, kind: str, after: str) -> list[Entry]:
        def select(connection: sqlite3.Connection) -> list[Entry]:
            rows = connection.execute(
                "SELECT kind, key, document, version FROM entries"
                " WHERE kind = ? AND key > ? AND forget_at > ? ORDER BY key LIMIT ?",
                (kind, after, self._now(), PAGE),
            )
            return [self._entry(row) for row in rows]

        return await self._run(select)

    async def check(self) -> str:
        def look(connection: sqlite3.Connection) -> str:
            version = connection.execute("SELECT sqlite_version()").fetchone()[0]
            return f"SQLite {version}, one writer at a time, {self._path}; for processes of this host only."

        return await self._run(look)

    def _entry(self, row: tuple[Any, Any, Any, Any]) -> Entry:
        kind, key, text, version = row
        try:
            document = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            document = None
        return checked_entry(self.name, kind, key, document, str(version) if isinstance(version, int) else None)

    async def close(self) -> None:
        thread = self._own_thread()
        connection, self._connection = self._connection, None
        if connection is not None:
            await asyncio.get_running_loop().run_in_executor(thread, connection.close)
        thread.shutdown(wait=False)

    def _own_thread(self) -> ThreadPoolExecutor:
        """The journal's one thread in this process: after a fork, the one before and its connection are the parent's.

        SQLite forbids a child to use such a connection, or even to close it.
        """
        if self._process != os.getpid():
            if self._connection is not None:
                _OF_PARENTS.append(self._connection)
            self._process, self._connection = os.getpid(), None
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="sbpair-journal")
        return self._thread

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """In a transaction of its own, begun as a writer: a reader that turns writer can be refused permanently."""

        def transaction(connection: sqlite3.Connection) -> T:
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._forget_old(connection)
                result = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # what failed has rolled back already, or the file is gone
                    connection.execute("ROLLBACK")
                raise
            return result

        return await self._run(transaction)

    def _forget_old(self, connection: sqlite3.Connection) -> None:
        if self._writes % FORGET_EVERY_WRITES == 0:
            connection.execute(
                "DELETE FROM entries WHERE (kind, key) IN"
                " (SELECT kind, key FROM entries WHERE forget_at <= ? ORDER BY forget_at LIMIT ?)",
                (self._now(), FORGET_AT_ONCE),
            )
        self._writes += 1

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """On the journal's one thread: SQLite blocks, and a connection belongs to its thread."""

        def run() -> T:
            try:
                if self._connection is None:
                    self._connection = self._open()
                return work(self._connection)
            except sqlite3.IntegrityError:
                raise
            except sqlite3.OperationalError as error:
                raise JournalUnavailableError(f"The journal {self.name} does not answer: {error}.") from error
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                raise JournalError(f"{self._path} is not a journal: {error}.") from error

        return await asyncio.get_running_loop().run_in_executor(self._own_thread(), run)

    def _open(self) -> sqlite3.Connection:
        try:
            make_private_file(self._path)
        except OSError as error:
            raise sqlite3.OperationalError(str(error)) from error
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        connection.text_factory = bytes.decode  # what is no UTF-8 is no journal, rather than one that does not answer
        try:
            _check_ours(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        except (sqlite3.Error, UnicodeDecodeError):
            connection.close()
            raise
        return connection


# Beside the port: a journal's documents in stretches that several readers take at once.


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Documents of a kind with keys after `after` (None: from the first) up to and including `last`."""

    after: str | None
    last: str
    rows: int


def key_ranges(path: Path, kind: str, most: int) -> list[KeyRange]:
    """A kind's documents in stretches of up to `most`.

    Raises:
        JournalUnavailableError: there is no such file, or it does not answer. JournalError: it is no journal.
    """
    with _reading(path) as connection:
        query = """
            SELECT max(key), count(*) FROM (
                SELECT key, (row_number() OVER (ORDER BY key) - 1) / ? AS stretch FROM entries
                WHERE kind = ? AND forget_at > ?)
            GROUP BY stretch ORDER BY stretch"""
        found = connection.execute(query, (most, kind, time.time())).fetchall()
    befores = [None, *(last for last, _ in found)]
    return [KeyRange(before, last, rows) for before, (last, rows) in zip(befores, found, strict=False)]


def documents(path: Path, kind: str, keys: KeyRange | None = None) -> Generator[str, None, None]:
    """The documents of a kind as JSON, in the order of their keys, until it is closed; raises as `key_ranges`."""
    after, last = (None, None) if keys is None else (keys.after, keys.last)
    with _reading(path) as connection:
        query = "SELECT document FROM entries WHERE kind = ? AND forget_at > ?"
        values: list[Any] = [kind, time.time()]
        if after is not None:
            query, values = f"{query} AND key > ?", [*values, after]
        if last is not None:
            query, values = f"{query} AND key <= ?", [*values, last]
        for (text,) in connection.execute(f"{query} ORDER BY key", values):
            yield str(text)


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """The file as a journal that is there, and is not written to."""
    name = f"sqlite:{path}"
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
        connection.text_factory = bytes.decode
        with closing(connection):
            _check_ours(connection)
            yield connection
    except sqlite3.OperationalError as error:
        raise JournalUnavailableError(f"The journal {name} does not answer: {error}.") from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise JournalError(f"{path} is not a journal: {error}.") from error


def _next_version(connection: sqlite3.Connection) -> int:
    """Counted for the whole file, so that an entry that was forgotten and made again has no old version."""
    row = connection.execute(
        "UPDATE versions SET last = last + 1 WHERE typeof(last) = 'integer' RETURNING last"
    ).fetchone()
    if row is None:
        raise sqlite3.DatabaseError("its count of versions is no number")
    return int(row[0])


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _check_ours(connection: sqlite3.Connection) -> None:
    """Leave a database of somebody else alone: nothing is made in it, and nobody waits for it to answer.

    Raises:
        sqlite3.DatabaseError: it has other tables, or ours with other columns.
    """
    tables = dict.fromkeys(row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'"))
    for table in tables:
        columns = tuple(row[1] for row in connection.execute(f"PRAGMA table_info({table!r})"))
        if columns != _COLUMNS.get(table):
            raise sqlite3.DatabaseError(f"it has a table {table!r} of another program")
