"""The durable store: entities, messages, session states and keys of one namespace in one SQLite file.

Survives kill -9 and loss of power: write-ahead log with `synchronous=FULL`, and nothing is confirmed to a client before
the commit that holds it. Commits are grouped: all changes of one turn of the event loop go to disk together, then the
callbacks run. Locks are not stored: after a restart every message is free again, with the delivery count it had.
"""

import asyncio
import json
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from sbpair.amqp.decoding import decode_all
from sbpair.amqp.encoding import encode
from sbpair.amqp.types import AmqpError
from sbpair.emulator.broker.entity import Entity, MessageEntity
from sbpair.emulator.broker.forwarding import PLACE as TRANSFER
from sbpair.emulator.broker.intake import Identity
from sbpair.emulator.broker.messages import Message, MessageStateCode, revive
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.sessions import MessageSession
from sbpair.emulator.broker.topics import Subscription, Topic
from sbpair.emulator.entities import (
    AuthorizationRule,
    CorrelationFilter,
    FalseFilter,
    QueueDescription,
    RuleDescription,
    RuleFilter,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from sbpair.emulator.filters import FilterSyntaxError, Rule
from sbpair.emulator.namespace import Namespace, NamespaceStore
from sbpair.engine.errors import BrokerError, StoreError
from sbpair.files import make_private_file, make_private_folder
from sbpair.service import EntityStatus

# Descriptions of entities to and from JSON, for the durable store. Lossless, AMQP types in rules included.

AnyDescription = TypeVar("AnyDescription", QueueDescription, TopicDescription, SubscriptionDescription)
Json = dict[str, Any]

_FILTERS: dict[str, type[RuleFilter]] = {
    kind.__name__: kind for kind in (SqlFilter, TrueFilter, FalseFilter, CorrelationFilter)
}
_PLAIN = (bool, int, float, str, type(None))


def _to_json(part: Any) -> Any:
    """A description, a rule, a filter or an action as a JSON object."""
    if is_dataclass(part):
        return {one.name: _to_json(getattr(part, one.name)) for one in fields(part)}
    if isinstance(part, Mapping):
        return {name: _value_to_json(value) for name, value in part.items()}
    if isinstance(part, tuple | frozenset):
        return [_to_json(one) for one in (sorted(part) if isinstance(part, frozenset) else part)]
    return part


def _values_from_json(stored: Json) -> Json:
    """The fields of a description, a filter or an action, whose objects hold values."""
    return {
        name: {key: _value_from_json(one) for key, one in value.items()} if isinstance(value, dict) else value
        for name, value in stored.items()
    }


def description_from_json(kind: type[AnyDescription], stored: Json) -> AnyDescription:
    known = {**_values_from_json(stored), "status": EntityStatus(stored["status"])}
    if "authorization_rules" in known:
        known["authorization_rules"] = tuple(rule_from_json(rule) for rule in known["authorization_rules"])
    return kind(**known)


def rule_from_json(stored: Json) -> AuthorizationRule:
    known = {name: stored[name] for name in AuthorizationRule.__dataclass_fields__ if name in stored}
    return AuthorizationRule(**{**known, "rights": frozenset(stored["rights"])})


def filter_rule_to_json(description: RuleDescription) -> Json:
    """A subscription's rule without its name."""
    return {"kind": type(description.filter).__name__, **_to_json(description)}


def filter_rule_from_json(stored: Json) -> RuleDescription:
    action = stored["action"]
    return RuleDescription(
        filter=_FILTERS[stored["kind"]](**_values_from_json(stored["filter"])),
        action=None if action is None else SqlAction(**_values_from_json(action)),
    )


def _value_to_json(value: object) -> object:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, datetime):
        return {"datetime": value.isoformat()}
    if isinstance(value, timedelta):
        return {"microseconds": value // timedelta(microseconds=1)}
    return {"amqp": encode(value).hex()}


def _value_from_json(stored: object) -> object:
    if not isinstance(stored, dict):
        return stored
    if "datetime" in stored:
        return datetime.fromisoformat(stored["datetime"])
    if "microseconds" in stored:
        return timedelta(microseconds=stored["microseconds"])
    return decode_all(bytes.fromhex(stored["amqp"]))


# Putting back what the durable store holds, before the namespace serves anybody.

Places = dict[str, Queue | Topic | Subscription]


def restore(database: sqlite3.Connection, namespace: Namespace) -> None:
    """Entities first (topics before their subscriptions), then messages in their order, states, duplicates."""
    _restore_settings(database, namespace)
    places = _restore_entities(database, namespace)
    for row in database.execute("SELECT * FROM messages ORDER BY number"):
        _restore_message(places[row[1]], row)
    states = database.execute("SELECT * FROM sessions ORDER BY changed_at").fetchall()
    for path, session_id, state, changed_at in states:
        older = _restore_session(places[path], session_id, state, changed_at)
        if older is not None:  # sessions used to be kept by spelling
            database.execute("DELETE FROM sessions WHERE path = ? AND id = ?", (path, older))
    for path, identity, until in database.execute("SELECT * FROM duplicates"):
        entity = places[path]
        if isinstance(entity, Queue | Topic) and entity.intake.history is not None:
            message_id, partition_key = decode_all(identity)
            entity.intake.history.restore((message_id, partition_key), until)
    for entity in places.values():
        if isinstance(entity, MessageEntity) and entity.main.sessions is not None:
            entity.main.sessions.notice_all()


def _restore_settings(database: sqlite3.Connection, namespace: Namespace) -> None:
    row = database.execute("SELECT value FROM settings WHERE name = 'namespace'").fetchone()
    if row is None:
        return
    facts = json.loads(row[0])
    namespace.access.rules = {rule["name"]: rule_from_json(rule) for rule in facts["auth_rules"]}
    namespace.created_at = facts["created_at"]
    namespace.disaster_recovery_configs.update(facts["disaster_recovery_configs"])


def _restore_entities(database: sqlite3.Connection, namespace: Namespace) -> Places:
    places: Places = {}
    rows = database.execute("SELECT path, kind, body, numbers FROM entities").fetchall()
    for key, kind, body, numbers in sorted(rows, key=lambda row: row[1] == "Subscription"):
        entity = _entity(namespace, kind, json.loads(body))
        for number in json.loads(numbers):
            entity.numbering.seen(number)
        places[key] = entity
    return places


def _entity(namespace: Namespace, kind: str, body: dict[str, Any]) -> Queue | Topic | Subscription:
    entity: Queue | Topic | Subscription
    path, stored = body["path"], body["description"]
    if kind == "Subscription":
        entity = _subscription(namespace, path, stored, body["rules"])
    elif kind == "Topic":
        topic_description = description_from_json(TopicDescription, stored)
        entity = Topic(namespace, path, topic_description)
        namespace.adopt(entity)
    else:
        entity = Queue(namespace, path, description_from_json(QueueDescription, stored))
        namespace.adopt(entity)
    entity.created_at, entity.updated_at = body["created_at"], body["updated_at"]
    entity.accessed_at, entity.used_at = body["accessed_at"], body.get("used_at", body["accessed_at"])
    entity.watch_idle()
    return entity


def _subscription(namespace: Namespace, path: str, stored: dict[str, Any], rules: list[dict[str, Any]]) -> Subscription:
    topic_path, _, name = path.rpartition("/Subscriptions/")
    topic = namespace.get_topic(topic_path)
    if topic is None:
        raise ValueError(f"the store holds the subscription '{path}' without its topic")
    subscription = Subscription(namespace, topic, name, description_from_json(SubscriptionDescription, stored))
    for rule in rules:
        subscription.set_rule(Rule(rule["name"], filter_rule_from_json(rule), rule["created_at"]))
    topic.subscriptions[name.lower()] = subscription
    return subscription


def _restore_message(entity: Queue | Topic | Subscription, row: tuple[Any, ...]) -> None:
    place, message = row[2], _message(row)
    entity.numbering.seen(message.sequence_number)
    if isinstance(entity, Topic):
        entity.scheduled.place_quietly(message)
    elif place.startswith(f"{TRANSFER}:"):
        entity.transfers.place_quietly(message, place.partition(":")[2])
    else:
        entity.mailbox(place).place_quietly(message)


def _message(row: tuple[Any, ...]) -> Message:
    message = revive(row[4])
    message.row, message.sequence_number = row[0], row[3]
    message.enqueued_at, message.expires_at, message.delivery_count = row[5], row[6], row[7]
    message.state = MessageStateCode(row[8])
    message.enqueued_sequence_number, message.dead_letter_source, message.hops = row[9], row[10], row[11]
    return message


def _restore_session(
    entity: Queue | Topic | Subscription, session_id: str, state: bytes, changed_at: float
) -> str | None:
    """Put a state back. Gives the spelling under which an older state of the same session is stored, if one is."""
    if not isinstance(entity, MessageEntity) or entity.main.sessions is None:
        return None
    session = entity.main.sessions.ensure(session_id)
    older = None if session.state is None else session.id
    session.id, session.state, session.changed_at = session_id, state, changed_at
    return older


_LOG = logging.getLogger(__name__)
RETRY_SECONDS = 1.0
"""Between two tries to write to a disk that has failed."""
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


_NOT_OURS = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError)
"""What reading a value raises that this program has not written."""


def open_store(directory: Path) -> "Store":
    """The store of one namespace in a directory, which is made if need be. Raises StoreError."""
    make_private_folder(directory)
    return Store(directory / FILE_NAME)


class Store(NamespaceStore):
    """A journal (see `namespace.ChangeJournal`) on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            make_private_file(path)  # it holds messages and the root key; SQLite gives its log the same permissions
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._prepare()
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"cannot use the store '{path}': {error}") from error
        self._pending: list[tuple[str, tuple[Any, ...]]] = []
        self._callbacks: deque[tuple[Callable[[], None], Callable[[], None] | None]] = deque()
        self._numbered: dict[str, Entity] = {}
        self._namespace: Namespace | None = None
        self._settings_noted = True
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

    def put_numbers(self, entity: Entity) -> None:
        self._numbered[_key(entity)] = entity  # written with the message, wherever that is kept

    def put_session(self, entity: Entity, session: MessageSession) -> None:
        if session.state is None:
            self._write("DELETE FROM sessions WHERE path = ? AND id = ?", _key(entity), session.id)
        else:
            sql = "INSERT OR REPLACE INTO sessions VALUES (?,?,?,?)"
            self._write(sql, _key(entity), session.id, session.state, session.changed_at)

    def put_duplicate(self, entity: Entity, identity: Identity, until: float) -> None:
        sql = "INSERT OR REPLACE INTO duplicates VALUES (?,?,?)"
        self._write(sql, _key(entity), encode(list(identity)), until)

    def put_settings(self) -> None:
        # The commit writes them as they are by then; this only makes sure that there is one.
        self._settings_noted = True
        self._write("DELETE FROM settings WHERE name = ?", "")

    def after_commit(self, action: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        if self.failure is not None and otherwise is not None:
            otherwise()
        elif self._pending or self._callbacks:
            self._callbacks.append((action, otherwise))
        elif not self._closed:
            action()

    def restore(self, namespace: Namespace) -> None:
        self._namespace = namespace
        try:
            restore(self._database, namespace)
        except (sqlite3.Error, AmqpError, BrokerError, FilterSyntaxError, *_NOT_OURS) as error:
            raise StoreError(f"the store '{self.path}' is damaged: {type(error).__name__}: {error}") from error
        self._database.execute("DELETE FROM duplicates WHERE until <= ?", (namespace.clock.now(),))
        self.flush()

    def close(self) -> None:
        """Commit what is left and close the file. Nothing is noted, and nothing confirmed, afterwards."""
        if self._closed:
            return
        try:
            self.flush()
        except sqlite3.Error as error:
            _LOG.error("The store %s was closed without changes that it could not write: %s", self.path, error)
        self._closed = True
        self._database.close()

    # -- inside

    def flush(self) -> None:
        """Commit all that is pending, then call back.

        When the disk fails (sqlite3.Error) nothing is confirmed, and everything stays pending.
        """
        self._flushing = False
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            for sql, rows in groupby(self._pending, key=lambda one: one[0]):
                self._database.executemany(sql, [row for _, row in rows])
            self._write_numbers()
            written = self._write_settings()
        self._settings_noted = self._settings_noted and not written
        self._pending.clear()
        self._numbered.clear()
        waiting, self._callbacks = self._callbacks, deque()
        if self.failure is not None:
            self.failure = None
            _LOG.warning("The store %s can be written again; everything is kept.", self.path)
        for action, _ in waiting:
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
        if not self._flushing or self._closed:
            return
        try:
            self.flush()
        except sqlite3.Error as error:
            self._failed(str(error))

    def _failed(self, why: str) -> None:
        """The disk is full, or worse. Who waits for an answer gets one; what is pending is tried again and again."""
        if self.failure is None:
            _LOG.error(
                "The store %s cannot be written: %s. Senders get the error that the service is busy, and nothing is "
                "confirmed; it is tried again every %.0f s.",
                self.path,
                why,
                RETRY_SECONDS,
            )
        self.failure = why
        # Deliveries have nothing else to say: they wait until what they deliver is safe.
        asked = [otherwise for _, otherwise in self._callbacks if otherwise is not None]
        self._callbacks = deque(one for one in self._callbacks if one[1] is None)
        self._flushing = True
        asyncio.get_running_loop().call_later(RETRY_SECONDS, self._flush_turn)
        for otherwise in asked:
            otherwise()

    def _write_numbers(self) -> None:
        rows = [(json.dumps(_numbers(entity)), key) for key, entity in self._numbered.items()]
        self._database.executemany("UPDATE entities SET numbers = ? WHERE path = ?", rows)

    def _write_settings(self) -> bool:
        """Keep keys and aliases if they may have changed; whether that was done."""
        namespace = self._namespace
        if namespace is None or not self._settings_noted:
            return False
        facts = {
            "auth_rules": [_to_json(rule) for rule in namespace.auth_rules.values()],
            "created_at": namespace.created_at,
            "disaster_recovery_configs": namespace.disaster_recovery_configs,
        }
        text = json.dumps(facts, default=str)
        self._database.execute("INSERT OR REPLACE INTO settings VALUES ('namespace', ?)", (text,))
        return True

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
    if not isinstance(entity, Queue | Topic | Subscription):
        raise TypeError(f"no entity to keep: {entity!r}")
    body: dict[str, Any] = {
        "path": entity.path,
        "description": _to_json(entity.description),
        "created_at": entity.created_at,
        "updated_at": entity.updated_at,
        "accessed_at": entity.accessed_at,
        "used_at": entity.used_at,
    }
    if isinstance(entity, Subscription):
        body["rules"] = [
            {"name": rule.name, "created_at": rule.created_at, **filter_rule_to_json(rule.description)}
            for rule in entity.rules.values()
        ]
    return body


def _numbers(entity: Entity) -> list[int]:
    return entity.numbering.last if isinstance(entity, MessageEntity | Topic) else []
