"""The durable store: entities, messages, session states and keys of one namespace in one SQLite file.

Survives kill -9 and loss of power: write-ahead log with `synchronous=FULL`, and nothing is confirmed to a client before
the commit that holds it. Commits are grouped: all changes of one turn of the event loop go to disk together, then the
callbacks run. Locks are not stored: after a restart every message is free again, with the delivery count it had.
"""

import asyncio
import json
import sqlite3
from collections import deque
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.amqp.codec import encode
from sbpair.emulator.broker.duplicates import Identity
from sbpair.emulator.broker.entity import Entity, MessageEntity
from sbpair.emulator.broker.messages import Message
from sbpair.emulator.broker.sessions import Session
from sbpair.emulator.broker.topics import Subscription, Topic
from sbpair.emulator.store_values import description_to_json, filter_rule_to_json, rule_to_json

if TYPE_CHECKING:
    from sbpair.emulator.namespace import Namespace

FILE_NAME = "namespace.sqlite3"
_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS entities (
    path TEXT PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL, numbers TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL, place TEXT NOT NULL, number INTEGER NOT NULL, payload BLOB NOT NULL,
    enqueued_at REAL NOT NULL, expires_at REAL, delivery_count INTEGER NOT NULL, state INTEGER NOT NULL,
    enqueued_number INTEGER, dead_letter_source TEXT, hops INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS messages_by_path ON messages (path);
CREATE TABLE IF NOT EXISTS sessions (path TEXT, id TEXT, state BLOB NOT NULL, changed_at REAL NOT NULL,
    PRIMARY KEY (path, id));
CREATE TABLE IF NOT EXISTS duplicates (path TEXT, identity BLOB, until REAL NOT NULL, PRIMARY KEY (path, identity));
"""
_PUT_MESSAGE = "INSERT OR REPLACE INTO messages VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"
_DROP_MESSAGE = "DELETE FROM messages WHERE id = ?"
_TABLES = ("entities", "messages", "sessions", "duplicates")


class StoreError(Exception):
    """The file cannot be used: not ours, from a newer version, or in use by another process."""


def open_store(directory: Path) -> "Store":
    """The store of one namespace in a directory, which is made if need be. Raises StoreError."""
    directory.mkdir(parents=True, exist_ok=True)
    return Store(directory / FILE_NAME)


class Store:
    """A journal (see `broker.journal.Journal`) on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._prepare()
        except sqlite3.Error as error:
            raise StoreError(f"cannot use the store '{path}': {error}") from error
        self._pending: list[tuple[str, tuple[Any, ...]]] = []
        self._callbacks: deque[Callable[[], None]] = deque()
        self._numbered: dict[str, Entity] = {}
        self._namespace: Namespace | None = None
        self._settings = ""
        self._flushing = False
        self._closed = False
        self._last_row = int(self._database.execute("SELECT coalesce(max(id), 0) FROM messages").fetchone()[0])

    # -- as a journal

    def put_entity(self, entity: Entity) -> None:
        body = json.dumps(_body(entity))
        sql = "INSERT OR REPLACE INTO entities VALUES (?,?,?,?)"
        self._write(sql, _key(entity), type(entity).__name__, body, json.dumps(_numbers(entity)))

    def drop_entity(self, entity: Entity) -> None:
        # A topic takes its subscriptions along: all keys that begin with its path and "/subscriptions/".
        key = _key(entity)
        self._numbered.pop(key, None)
        for table in _TABLES:
            self._write(
                f"DELETE FROM {table} WHERE path = ? OR (path >= ? AND path < ?)",
                key,
                f"{key}/subscriptions/",
                f"{key}/subscriptions0",
            )

    def put_message(self, entity: Entity, place: str, message: Message) -> None:
        if not message.row:
            self._last_row += 1
            message.row = self._last_row
        self._numbered[_key(entity)] = entity
        self._write(
            _PUT_MESSAGE,
            message.row,
            _key(entity),
            place,
            message.sequence_number,
            message.payload,
            message.enqueued_at,
            message.expires_at,
            message.delivery_count,
            int(message.state),
            message.enqueued_sequence_number,
            message.dead_letter_source,
            message.hops,
        )

    def drop_message(self, message: Message) -> None:
        if message.row:
            self._write(_DROP_MESSAGE, message.row)
            message.row = 0

    def put_session(self, entity: Entity, session: Session) -> None:
        if session.state is None:
            self._write("DELETE FROM sessions WHERE path = ? AND id = ?", _key(entity), session.id)
        else:
            sql = "INSERT OR REPLACE INTO sessions VALUES (?,?,?,?)"
            self._write(sql, _key(entity), session.id, session.state, session.changed_at)

    def put_duplicate(self, entity: Entity, identity: Identity, until: float) -> None:
        sql = "INSERT OR REPLACE INTO duplicates VALUES (?,?,?)"
        self._write(sql, _key(entity), encode(list(identity)), until)

    def after_commit(self, action: Callable[[], None]) -> None:
        if self._pending or self._callbacks:
            self._callbacks.append(action)
        elif not self._closed:
            action()

    def restore(self, namespace: "Namespace") -> None:
        from sbpair.emulator.store_restore import restore

        self._namespace = namespace
        restore(self._database, namespace)
        self._database.execute("DELETE FROM duplicates WHERE until <= ?", (namespace.clock.now(),))
        self.flush()

    def close(self) -> None:
        """Commit what is left and close the file. Nothing is noted, and nothing confirmed, afterwards."""
        if not self._closed:
            self.flush()
            self._closed = True
            self._database.close()

    # -- inside

    def flush(self) -> None:
        """Commit all that is pending, then call back.

        When the disk fails (sqlite3.Error) nothing is confirmed; what is pending is tried again with the next change.
        """
        self._flushing = False
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            for sql, rows in groupby(self._pending, key=lambda one: one[0]):
                self._database.executemany(sql, [row for _, row in rows])
            self._write_numbers()
            settings = self._write_settings()
        self._settings = settings
        self._pending.clear()
        self._numbered.clear()
        waiting, self._callbacks = self._callbacks, deque()
        for action in waiting:
            action()

    def _write(self, sql: str, *values: Any) -> None:
        if self._closed:
            return
        self._pending.append((sql, values))
        if self._flushing:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            # Outside any loop (setting up before the start) there is no turn to wait for.
            self.flush()
            return
        self._flushing = True
        loop.call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        if self._flushing:
            self.flush()

    def _write_numbers(self) -> None:
        rows = [(json.dumps(_numbers(entity)), key) for key, entity in self._numbered.items()]
        self._database.executemany("UPDATE entities SET numbers = ? WHERE path = ?", rows)

    def _write_settings(self) -> str:
        """Keep keys and aliases if they have changed; what is kept now."""
        namespace = self._namespace
        if namespace is None:
            return self._settings
        facts = {
            "auth_rules": [rule_to_json(rule) for rule in namespace.auth_rules.values()],
            "created_at": namespace.created_at,
            "disaster_recovery_configs": namespace.disaster_recovery_configs,
        }
        text = json.dumps(facts, default=str)
        if text != self._settings:
            self._database.execute("INSERT OR REPLACE INTO settings VALUES ('namespace', ?)", (text,))
        return text

    def _prepare(self) -> None:
        database = self._database
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version > _VERSION:
            raise StoreError(f"the store '{self.path}' was written by a newer version ({version})")
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        # Two emulators on one file would hand out the same messages.
        database.execute("PRAGMA locking_mode=EXCLUSIVE")
        database.executescript(_SCHEMA)
        database.execute(f"PRAGMA user_version={_VERSION}")


def _key(entity: Entity) -> str:
    return entity.path.lower()


def _body(entity: Entity) -> dict[str, Any]:
    body: dict[str, Any] = {
        "path": entity.path,
        "description": description_to_json(entity.description),
        "created_at": entity.created_at,
        "updated_at": entity.updated_at,
        "accessed_at": entity.accessed_at,
    }
    if isinstance(entity, Subscription):
        body["rules"] = [
            {"name": rule.name, "created_at": rule.created_at, **filter_rule_to_json(rule.description)}
            for rule in entity.rules.values()
        ]
    return body


def _numbers(entity: Entity) -> list[int]:
    return entity.numbering.last if isinstance(entity, MessageEntity | Topic) else []
