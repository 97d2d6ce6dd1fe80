"""Putting back what the durable store holds, before the namespace serves anybody."""

import json
import sqlite3
from typing import TYPE_CHECKING, Any

from sbpair.amqp.codec import decode_all
from sbpair.emulator.broker.entity import MessageEntity
from sbpair.emulator.broker.forwarding import PLACE as TRANSFER
from sbpair.emulator.broker.messages import Message, State, revive
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Subscription, Topic
from sbpair.emulator.entities import QueueDescription, SubscriptionDescription, TopicDescription
from sbpair.emulator.filters import Rule
from sbpair.emulator.store_values import description_from_json, filter_rule_from_json, rule_from_json

if TYPE_CHECKING:
    from sbpair.emulator.namespace import Namespace

Places = dict[str, Queue | Topic | Subscription]


def restore(database: sqlite3.Connection, namespace: "Namespace") -> None:
    """Entities first (topics before their subscriptions), then messages in their order, states, duplicates."""
    _restore_settings(database, namespace)
    places = _restore_entities(database, namespace)
    for row in database.execute("SELECT * FROM messages ORDER BY number"):
        _restore_message(places[row[1]], row)
    for path, session_id, state, changed_at in database.execute("SELECT * FROM sessions"):
        _restore_session(places[path], session_id, state, changed_at)
    for path, identity, until in database.execute("SELECT * FROM duplicates"):
        entity = places[path]
        if isinstance(entity, Queue | Topic) and entity.intake.history is not None:
            message_id, partition_key = decode_all(identity)
            entity.intake.history.restore((message_id, partition_key), until)
    for entity in places.values():
        if isinstance(entity, MessageEntity) and entity.main.sessions is not None:
            entity.main.sessions.notice_all()


def _restore_settings(database: sqlite3.Connection, namespace: "Namespace") -> None:
    row = database.execute("SELECT value FROM settings WHERE name = 'namespace'").fetchone()
    if row is None:
        return
    facts = json.loads(row[0])
    namespace.auth_rules = {rule["name"]: rule_from_json(rule) for rule in facts["auth_rules"]}
    namespace.created_at = facts["created_at"]
    namespace.disaster_recovery_configs.update(facts["disaster_recovery_configs"])


def _restore_entities(database: sqlite3.Connection, namespace: "Namespace") -> Places:
    places: Places = {}
    rows = database.execute("SELECT path, kind, body, numbers FROM entities").fetchall()
    for key, kind, body, numbers in sorted(rows, key=lambda row: row[1] == "Subscription"):
        entity = _entity(namespace, kind, json.loads(body))
        for number in json.loads(numbers):
            entity.numbering.seen(number)
        places[key] = entity
    return places


def _entity(namespace: "Namespace", kind: str, body: dict[str, Any]) -> Queue | Topic | Subscription:
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
    entity.accessed_at = body["accessed_at"]
    entity.watch_idle()
    return entity


def _subscription(
    namespace: "Namespace", path: str, stored: dict[str, Any], rules: list[dict[str, Any]]
) -> Subscription:
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
    message.state = State(row[8])
    message.enqueued_sequence_number, message.dead_letter_source, message.hops = row[9], row[10], row[11]
    return message


def _restore_session(entity: Queue | Topic | Subscription, session_id: str, state: bytes, changed_at: float) -> None:
    if isinstance(entity, MessageEntity) and entity.main.sessions is not None:
        session = entity.main.sessions.ensure(session_id)
        session.state, session.changed_at = state, changed_at
