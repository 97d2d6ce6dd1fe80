"""A namespace's first contents from plain data (`sbpair emulator --seed FILE`).

    contoso-weu:
      tier: Standard              # or Basic, Premium; Premium may have `partitions: 2` or 4
      queues:
        orders: {messages: [{body: hello, properties: {amount: 12}}]}
        invoices: {requires_session: true, lock_duration_seconds: 30}
      topics:
        events:
          subscriptions:
            all: {}
            big: {rules: {large: {sql: "amount > 1000"}}}
      keys:
        sender: [Send]
        reader: {rights: [Listen], key: {env: READER_KEY}}
        RootManageSharedAccessKey: {key: {env: ROOT_KEY}}

Property names are those of the descriptions in `entities.py`. What exists already is left as it is, so that a durable
namespace can be started with its seed again and again. A key that the seed gives is set each time.
Messages (`messages`) are put into entities that the seed makes.
"""

import contextlib
import difflib
import json
import math
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from types import NoneType
from typing import Any, Final, TypeVar, Unpack

from sbpair.amqp import sections
from sbpair.amqp.sections import TEXT_FIELDS, HeaderField
from sbpair.amqp.types import AmqpError, Int, Long, Uint
from sbpair.emulator.admin.fields import capitalized, parse_duration
from sbpair.emulator.broker.entity import MessageEntity
from sbpair.emulator.broker.messages import SCHEDULED_TIME, milliseconds
from sbpair.emulator.broker.queue import Queue
from sbpair.emulator.broker.topics import Subscription, Topic
from sbpair.emulator.entities import (
    DEFAULT_RULE_NAME,
    ROOT_KEY_NAME,
    CorrelationFilter,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    target_path,
)
from sbpair.emulator.namespace import Namespace, new_auth_rule
from sbpair.engine.errors import BrokerError, EntityError
from sbpair.files import LinedMapping, like, line_of
from sbpair.service import SETTABLE_STATUSES, EntityStatus

__all__ = ["SeedError", "chosen_keys", "plant"]


class SeedError(ValueError):
    """The seed names something that does not exist or has the wrong form; the text says where."""

    def __init__(self, text: str, line: int | None = None) -> None:
        super().__init__(text if line is None else f"line {line}: {text}")


def mapping_of(value: object, where: str, line: int | None = None) -> Mapping[str, Any]:
    """The value, which must be a mapping by names; nothing is an empty one.

    Raises:
        SeedError: it is none.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SeedError(f"{where}: a mapping, {{name: value}}, is expected", line)
    seen: set[str] = set()
    for name in value:
        if isinstance(name, str) and name.lower() in seen:
            raise SeedError(f"{where}: there are two of the name {name[:40]!r}", line_of(value, name))
        seen.add(str(name).lower())
        if not isinstance(name, str):
            read = " (YAML reads on, off, yes and no so)" if isinstance(name, bool) else ""
            raise SeedError(f"{where}: a name is a text; put what is read as {str(name)[:40]!r} in quotes{read}", line)
    return value


def below(fields: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    """The mapping that stands under a name, as `mapping_of`."""
    return mapping_of(fields.get(name), where, line_of(fields, name))


def wrong(fields: Mapping[str, Any], name: str, place: str, expected: str) -> SeedError:
    """What is said of a value that is not as it has to be."""
    return SeedError(f"{place}.{name}: {expected} is expected", line_of(fields, name))


def only(fields: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """Refuse names that mean nothing here.

    Raises:
        SeedError: with the nearest name that does.
    """
    for name in fields:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise SeedError(f"{where}: unknown key {name[:40]!r}{meant}", line_of(fields, name))


_Forwards = TypeVar("_Forwards", QueueDescription, SubscriptionDescription)
_Description = TypeVar("_Description", QueueDescription, TopicDescription, SubscriptionDescription, CorrelationFilter)


def plant(namespace: Namespace, seed: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> None:
    """Create what the seed of one namespace lists and the namespace does not have. `environ` is where its keys may be.

    Raises:
        SeedError: an unknown key or a wrong form. EntityError: the namespace refuses an entity.
    """
    only(mapping_of(seed, namespace.name), ("tier", "partitions", "queues", "topics", "keys"), namespace.name)
    queues, topics = below(seed, "queues", "queues"), below(seed, "topics", "topics")
    new, late = _New(), _Late()
    for path in queues:
        with _at(queues, path):
            fields, messages = _apart(below(queues, path, path), "messages")
            description = _build(QueueDescription, fields, path)
            if namespace.get_queue(path) is None:
                first = _at_first(namespace, description)
                new.append((namespace.create_queue(path, first), messages, f"{path}.messages"))
                late.append((queues, path, partial(namespace.update_queue, path, description)))
    for path in topics:
        with _at(topics, path):
            new += _plant_topic(namespace, path, below(topics, path, path), late)
    for container, name, whole in late:
        with _at(container, name):
            whole()
    chosen = chosen_keys(seed, environ or {})
    for name, body in below(seed, "keys", "keys").items():
        if name not in namespace.auth_rules:
            namespace.set_auth_rule(new_auth_rule(name, _rights(body, name), keys=namespace.key_source(name)))
    namespace.access.choose_keys(chosen)
    # Last: what is sent to an entity may be forwarded to any other.
    for entity, messages, where in new:
        put_messages(entity, messages, where)


@contextlib.contextmanager
def _at(container: Mapping[str, Any], name: str) -> Iterator[None]:
    """What the namespace refuses is told with the line it stands in."""
    try:
        yield
    except EntityError as error:
        line = line_of(container, name)
        if line is None:
            raise
        raise SeedError(f"{name}: {error}", line) from error


def _apart(fields: Mapping[str, Any], name: str, *others: str) -> tuple[Mapping[str, Any], Any]:
    """The mapping without some of its names, and what the first one has."""
    return like(fields, {key: value for key, value in fields.items() if key not in (name, *others)}), fields.get(name)


def chosen_keys(seed: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """The keys that the seed of a namespace gives, by the name of their rule.

    Raises:
        SeedError: a wrong form, or a variable that is not set.
    """
    chosen = {}
    keys = below(seed, "keys", "keys")
    for name, body in keys.items():
        where = f"keys.{name}"
        if not isinstance(body, Mapping):
            continue
        only(below(keys, name, where), ("rights", "key"), where)
        key = body.get("key")
        if isinstance(key, Mapping):
            only(below(body, "key", where), ("env",), f"{where}.key")
            variable = key.get("env")
            key = environ.get(variable, "") if isinstance(variable, str) else None
            if key == "":
                raise SeedError(f"{where}.key: the variable {str(variable)[:40]} is not set", line_of(body, "key"))
        if key is None and "key" not in body:
            continue
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise wrong(body, "key", where, "a text of 1 to 256 printable characters without ;")
        chosen[name] = key
    return chosen


_KEY = re.compile(r"[!-:<-~]{1,256}")
"""Whatever can stand in a connection string."""


_New = list[tuple[Queue | Topic | Subscription, object, str]]
"""Entities that were made, with the messages they are to have, and where these stand."""
_Late = list[tuple[Mapping[str, Any], str, Callable[[], object]]]
"""What is done once every entity is there, and the mapping and the name in it that ask for it."""


def _at_first(namespace: Namespace, description: _Forwards) -> _Forwards:
    """The description without forwarding to what is not there yet: to what stands further down, or in a circle."""
    targets = {name: getattr(description, name) for name in ("forward_to", "forward_dead_lettered_messages_to")}
    missing = [name for name, path in targets.items() if path and namespace.find(target_path(path)) is None]
    without: dict[str, Any] = dict.fromkeys(missing)
    return replace(description, **without) if missing else description


def _plant_topic(namespace: Namespace, path: str, fields: Mapping[str, Any], late: _Late) -> _New:
    subscriptions = below(fields, "subscriptions", f"{path}.subscriptions")
    fields, messages = _apart(fields, "messages", "subscriptions")
    description = _build(TopicDescription, fields, path)
    new: _New = []
    if namespace.get_topic(path) is None:
        new.append((namespace.create_topic(path, description), messages, f"{path}.messages"))
    for name in subscriptions:
        with _at(subscriptions, name):
            new += _plant_subscription(namespace, path, name, subscriptions, late)
    return new


def _plant_subscription(namespace: Namespace, topic: str, name: str, beside: Mapping[str, Any], late: _Late) -> _New:
    where = f"{topic}.subscriptions.{name}"
    fields = below(beside, name, f"{topic}.{name}")
    given = below(fields, "rules", f"{where}.rules")
    fields, messages = _apart(fields, "messages", "rules")
    rules = {rule: _rule(below(given, rule, f"{where}.{rule}"), f"{where}.{rule}") for rule in given}
    description = _build(SubscriptionDescription, fields, where)
    if namespace.get_subscription(topic, name) is not None:
        return []
    made = namespace.create_subscription(topic, name, _at_first(namespace, description))
    late.append((beside, name, partial(namespace.update_subscription, topic, name, description)))
    default = next((rule for rule in rules if rule.lower() == DEFAULT_RULE_NAME.lower()), None)
    for rule, rule_description in rules.items():
        with _at(given, rule):
            make = namespace.update_rule if rule == default else namespace.create_rule
            make(topic, name, rule, rule_description)
    if rules and default is None:
        namespace.delete_rule(topic, name, DEFAULT_RULE_NAME)
    return [(made, messages, f"{where}.messages")]


def _rule(fields: Mapping[str, Any], where: str) -> RuleDescription:
    only(fields, ("sql", "correlation", "action"), where)
    for name in ("sql", "action"):
        if not isinstance(fields.get(name, ""), str):
            raise SeedError(f"{where}: `{name}` is a SQL text", line_of(fields, name))
    action = SqlAction(expression=fields["action"]) if "action" in fields else None
    if "correlation" in fields:
        return RuleDescription(filter=_build(CorrelationFilter, fields["correlation"], where), action=action)
    if "sql" not in fields:
        raise SeedError(f"{where}: a rule has `sql` or `correlation`")
    return RuleDescription(filter=SqlFilter(expression=fields["sql"]), action=action)


def _build(kind: type[_Description], fields: object, where: str) -> _Description:
    values = mapping_of(fields, where)
    described: Any = kind
    kinds = settable(described)
    only(values, tuple(kinds), where)
    values_of: dict[str, Any] = {
        name: checked(value, kinds[name], f"{where}.{name}", line_of(values, name)) for name, value in values.items()
    }
    return kind(**values_of)


@cache
def settable(kind: Any) -> dict[str, Any]:
    """What a seed can set of a description, and of which type each is."""
    hints = typing.get_type_hints(kind)
    return {name: hint for name, hint in hints.items() if name not in ("authorization_rules", "client_affine")}


def checked(value: object, hint: Any, where: str, line: int | None) -> object:
    """The value, if it is of the annotated type of a description.

    Raises:
        SeedError: it is not.
    """
    kinds = set(typing.get_args(hint)) or {hint}
    if hint is EntityStatus and isinstance(value, str) and value in SETTABLE_STATUSES:
        return EntityStatus(value)
    if typing.get_origin(hint) is Mapping and isinstance(value, Mapping) and all(map(_is_plain, value.items())):
        return dict(value)
    if type(value) in kinds or (value is None and NoneType in kinds) or (float in kinds and type(value) is int):
        if isinstance(value, int | float) and not -_MOST <= value <= _MOST:
            raise SeedError(f"{where}: the number is out of range", line)
        return value
    expected = " or ".join(text for one, text in _TYPES.items() if one in kinds) or "an object of plain values"
    if hint is EntityStatus:
        expected = f"one of {', '.join(EntityStatus)}"
    raise SeedError(f"{where}: {expected} is expected, not {_TYPES.get(type(value), 'an object or a list')}", line)


_TYPES: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
"""As somebody who writes a seed calls them."""


_MOST = 2**53
"""As far as whole numbers and seconds go; NaN and infinity are beyond it."""


def _is_plain(entry: tuple[object, object]) -> bool:
    name, value = entry
    return isinstance(name, str) and isinstance(value, str | int | float | bool) and not _is_odd(value)


def _is_odd(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _rights(value: object, name: str) -> set[str]:
    known = {"Manage", "Send", "Listen"}
    if isinstance(value, Mapping):
        value = value.get("rights", list(known) if name == ROOT_KEY_NAME else None)
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one in known for one in value):
        raise SeedError(f"keys.{name}: rights are a list out of Manage, Send, Listen")
    return known if "Manage" in value else set(value)


_SECONDS: Final = ("time_to_live_seconds", "scheduled_in_seconds")
_KNOWN: Final = ("body", *TEXT_FIELDS, *_SECONDS, "scheduled_enqueue_time", "properties", "dead_letter", "count")
_MOST_SECONDS: Final = 2**32
MOST_MESSAGES: Final = 100_000
"""Of one entry."""


def put_messages(entity: Queue | Topic | Subscription, listed: object, where: str) -> None:
    """Have the entity take in what is listed, as if clients had sent it.

        messages:
          - {body: {number: 7}, message_id: order-7, session_id: anna, subject: new, properties: {amount: 12}}
          - {body: later, scheduled_in_seconds: 3600, time_to_live_seconds: 60}
          - {body: broken, dead_letter: {reason: NotJson, description: The body cannot be read.}}
          - {body: many of them, count: 100}

    `body` is a text, bytes (`!!binary`), or anything else, which is sent as JSON.

    Raises:
        SeedError: a wrong form, or a message that the entity refuses.
    """
    if listed is None:
        return
    if not isinstance(listed, list):
        raise SeedError(f"{where}: a list of messages is expected")
    for index, described in enumerate(listed):
        place, line = f"{where}[{index}]", line_of(listed, index)
        fields = mapping_of(described, place, line)
        only(fields, _KNOWN, place)
        count = fields.get("count", 1)
        if type(count) is not int or not 0 <= count <= MOST_MESSAGES:
            raise wrong(fields, "count", place, f"a number from 0 to {MOST_MESSAGES:,}")
        dead_letter = fields.get("dead_letter")
        only(below(fields, "dead_letter", f"{place}.dead_letter"), ("reason", "description"), f"{place}.dead_letter")
        encoded = _encoded(fields, entity.namespace.clock.now(), place, line)
        try:
            for _ in range(count):
                _put(entity, encoded, dead_letter)
        except (BrokerError, TypeError) as error:
            raise SeedError(f"{place}: {getattr(error, 'description', error)}", line) from error


def _put(entity: Queue | Topic | Subscription, encoded: bytes, dead_letter: Mapping[str, Any] | None) -> None:
    if dead_letter is None and not isinstance(entity, Subscription):
        entity.send(encoded)
        return
    if not isinstance(entity, MessageEntity):
        raise TypeError("a topic has no dead letters; put them into a subscription")
    parent = entity.topic if isinstance(entity, Subscription) else entity
    for message in parent.intake.read(encoded, 0):
        if isinstance(entity, Queue):
            entity.intake.check([message])
        if dead_letter is None:
            entity.arrive(message)
            continue
        message.sequence_number = entity.numbering.next(message)
        message.enqueued_at = entity.namespace.clock.now()
        texts = {name: None if text is None else str(text) for name, text in dead_letter.items()}
        entity.dead_letter(message, texts.get("reason"), texts.get("description"))


def _encoded(fields: Mapping[str, Any], now: float, place: str, line: int | None) -> bytes:
    for name in TEXT_FIELDS:
        if not isinstance(fields.get(name, ""), str):
            raise wrong(fields, name, place, "a text (put a number in quotes)")
    for name in _SECONDS:
        value = fields.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST_SECONDS:
            raise wrong(fields, name, place, "a number of seconds")
    properties = below(fields, "properties", f"{place}.properties")
    for name, value in properties.items():
        if not isinstance(value, str | bool | int | float | bytes | datetime):
            raise wrong(properties, name, f"{place}.properties", "a text, number, boolean, time or bytes")
    lifetime, scheduled = fields.get("time_to_live_seconds"), _scheduled(fields, now, place)
    try:
        return payload(
            fields.get("body", b""),
            **{name: fields[name] for name in TEXT_FIELDS if name in fields},
            properties={name: _aware(value) for name, value in properties.items()},
            time_to_live=None if lifetime is None else timedelta(seconds=lifetime),
            scheduled_enqueue_time=scheduled,
        )
    except (AmqpError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise SeedError(f"{place}: {error}", line) from error


def _scheduled(fields: Mapping[str, Any], now: float, place: str) -> datetime | None:
    if "scheduled_in_seconds" in fields:
        return datetime.fromtimestamp(now, UTC) + timedelta(seconds=fields["scheduled_in_seconds"])
    value = fields.get("scheduled_enqueue_time")
    if value is None:
        return None
    try:
        # A date is its first moment.
        moment = datetime.fromisoformat(value if isinstance(value, str) else value.isoformat())
    except (ValueError, AttributeError):
        raise wrong(fields, "scheduled_enqueue_time", place, "a time such as 2027-01-31T12:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _aware(value: Any) -> Any:
    """Times without a zone are in UTC."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


# The `Config.json` of Microsoft's Service Bus emulator as a seed: the same entities under the same names.
#
#     {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [...], "Topics": [...]}], "Logging": {...}}}
#
# Its properties are those of the administration API in their .NET spelling; durations are ISO 8601 texts, and an empty
# text means that a property is not set ("Configure the Azure Service Bus emulator").

_Kind = Any
"""The class of a description."""
_DURATIONS = "_seconds"
_NAMED = ("Name", "Properties")


def is_microsoft_config(document: object) -> bool:
    """Whether a document is such a file rather than a seed of ours."""
    return isinstance(document, Mapping) and "UserConfig" in document


def seed_of(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Seeds by namespace.

    Raises:
        SeedError: the file has another form; the text says where.
    """
    config = below(document, "UserConfig", "UserConfig")
    only(config, ("Namespaces", "Logging"), "UserConfig")
    return {
        name: {
            "queues": _by_name(
                (queue, _properties(body, where, QueueDescription), line)
                for queue, body, where, line in _named(one.get("Queues"), f"{name}.Queues")
            ),
            "topics": _by_name(
                (topic, _topic(body, where), line)
                for topic, body, where, line in _named(one.get("Topics"), f"{name}.Topics", (*_NAMED, "Subscriptions"))
            ),
        }
        for name, one, _, _ in _named(
            config.get("Namespaces"), "UserConfig.Namespaces", ("Name", "Type", "Queues", "Topics")
        )
    }


def _by_name(entries: Iterable[tuple[str, Any, int | None]]) -> LinedMapping:
    """Entries by their names, with the lines that the file has them in."""
    listed = list(entries)
    made = LinedMapping((name, value) for name, value, _ in listed)
    made.lines = {name: line for name, _, line in listed if line is not None}
    return made


def _topic(body: Mapping[str, Any], where: str) -> LinedMapping:
    topic = _properties(body, where, TopicDescription)
    topic["subscriptions"] = _by_name(
        (name, _subscription(one, place), line)
        for name, one, place, line in _named(body.get("Subscriptions"), f"{where}.Subscriptions", (*_NAMED, "Rules"))
    )
    return topic


def _subscription(body: Mapping[str, Any], where: str) -> LinedMapping:
    subscription = _properties(body, where, SubscriptionDescription)
    rules = [
        (rule, _microsoft_rule(one, at), line) for rule, one, at, line in _named(body.get("Rules"), f"{where}.Rules")
    ]
    if rules:
        subscription["rules"] = _by_name(rules)
    return subscription


def _microsoft_rule(body: Mapping[str, Any], where: str) -> dict[str, Any]:
    given = below(body, "Properties", f"{where}.Properties")
    kind = given.get("FilterType", "Sql")
    rule: dict[str, Any] = {}
    if kind == "Correlation":
        told = below(given, "CorrelationFilter", f"{where}.Properties.CorrelationFilter")
        spelled = {_snake(name): name for name, value in told.items() if value != ""}
        rule["correlation"] = like(told, {name: told[original] for name, original in spelled.items()}, spelled)
    elif kind == "Sql":
        rule["sql"] = below(given, "SqlFilter", f"{where}.Properties.SqlFilter").get("SqlExpression", "1=1")
    else:
        line = line_of(given, "FilterType")
        raise SeedError(f"{where}.Properties.FilterType: Correlation or Sql, not {str(kind)[:40]!r}", line)
    if action := below(given, "Action", f"{where}.Properties.Action").get("SqlExpression"):
        rule["action"] = action
    return rule


def _properties(body: Mapping[str, Any], where: str, kind: _Kind) -> LinedMapping:
    types = settable(kind)
    known = {capitalized(name.removesuffix(_DURATIONS)): name for name in types}
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    given = below(body, "Properties", f"{where}.Properties")
    only(given, tuple(known), f"{where}.Properties")
    for spelled, value in given.items():
        name, place = known[spelled], f"{where}.Properties.{spelled}"
        if value == "":
            continue
        if name.endswith(_DURATIONS):
            try:
                value = parse_duration(value)
            except (ValueError, AttributeError) as error:
                duration = "an ISO 8601 duration such as PT1M"
                raise wrong(given, spelled, f"{where}.Properties", duration) from error
        values[name] = checked(value, types[name], place, line_of(given, spelled))
        names[name] = spelled
    return like(given, values, names)


def _named(
    listed: object, where: str, known: tuple[str, ...] = _NAMED
) -> list[tuple[str, Mapping[str, Any], str, int | None]]:
    """Name, object, place and line of each entry of a list; in an entry only these are `known`."""
    if listed is None:
        return []
    if not isinstance(listed, list):
        raise SeedError(f"{where}: a list is expected")
    found: list[tuple[str, Mapping[str, Any], str, int | None]] = []
    for index, described in enumerate(listed):
        line = line_of(listed, index)
        body = mapping_of(described, f"{where}[{index}]", line)
        name = body.get("Name")
        if not isinstance(name, str) or not name:
            raise SeedError(f"{where}[{index}]: `Name` is missing", line)
        if name.lower() in {other[0].lower() for other in found}:
            raise SeedError(f"{where}.{name}: there are two of this name", line)
        only(body, known, f"{where}.{name}")
        found.append((name, body, f"{where}.{name}", line))
    return found


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


# A message as a client would send it, from plain Python values.


class MessageFields(sections.TextProperties, total=False):
    """What a message may have beside its body; `properties` are application's."""

    message_id: str | None
    session_id: str | None
    properties: Mapping[str, Any] | None
    time_to_live: timedelta | None
    scheduled_enqueue_time: datetime | None


def payload(
    body: bytes | str | Any = b"",
    *,
    message_id: str | None = None,
    session_id: str | None = None,
    properties: Mapping[str, Any] | None = None,
    time_to_live: timedelta | None = None,
    scheduled_enqueue_time: datetime | None = None,
    **texts: Unpack[sections.TextProperties],
) -> bytes:
    """The encoded message. A body that is neither bytes nor text is sent as JSON; `properties` are application's.

    Raises:
        OverflowError, TypeError, ValueError: a value that a message cannot have.
    """
    header: Mapping[int, Any] | None = None
    if time_to_live is not None:
        header = {HeaderField.TTL: Uint(min(round(time_to_live.total_seconds() * 1000), 2**32 - 1))}
    annotations = None
    if scheduled_enqueue_time is not None:
        annotations = {SCHEDULED_TIME: milliseconds(scheduled_enqueue_time.timestamp())}
    return sections.build(
        header=header,
        message_annotations=annotations,
        properties=sections.text_properties(message_id, session_id, texts),
        application_properties={name: _amqp(value) for name, value in properties.items()} if properties else None,
        data=_bytes(body),
    )


def _amqp(value: Any) -> Any:
    """A Python value as azure-servicebus would send it: an int where it fits 32 bits, else a long."""
    if isinstance(value, int) and not isinstance(value, bool):
        return Int(value) if -(2**31) <= value < 2**31 else Long(value)
    return milliseconds(value.timestamp()) if isinstance(value, datetime) else value


def _bytes(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    return (body if isinstance(body, str) else json.dumps(body)).encode()
