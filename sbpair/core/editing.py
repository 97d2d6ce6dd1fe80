"""A message as a JSON document that a person edits, and the message that comes of it: what was not edited keeps its
bytes.

The document has what a sender sets: ids, times, application properties, the body. What has no JSON form that says all
of it (a time span, a binary id, a body of AMQP values) is shown or left out, and cannot be changed.
"""

import base64
import binascii
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches, unified_diff
from typing import Any

from sbpair.amqp import sections
from sbpair.amqp.encoding import encode
from sbpair.amqp.sections import TEXT_FIELDS, HeaderField, PropertyField, Section
from sbpair.amqp.types import AmqpError, Int, Long, Symbol, Timestamp, Uint
from sbpair.core.durations import format_duration, parse_duration
from sbpair.core.encoded import EncodedMessage
from sbpair.core.errors import UsageError
from sbpair.core.message import Received
from sbpair.core.names import MAX_ID_CHARACTERS, is_dead_letter_path
from sbpair.core.redact import json_text, printable
from sbpair.core.rewrite import LAST_MS, PARTITION_KEY, SCHEDULED, as_sent, compose, typed
from sbpair.core.summary import plain
from sbpair.core.system_properties import MAX_HEADER_TTL_MS
from sbpair.core.transfer.filters import SYSTEM_PROPERTIES

_SYMBOLS = frozenset({"content_type"})
_IDS = frozenset({"message_id", "session_id", "reply_to_session_id"})
_TTL, _SCHEDULED, _PROPERTIES, _BODY, _BODY_BASE64 = (
    "time_to_live_ms",
    "scheduled_at",
    "application_properties",
    "body",
    "body_base64",
)
_LAYOUT = "\t\n\r"
_INTEGERS = (Int, Long)


def as_document(payload: bytes) -> dict[str, Any]:
    """What may be edited of a message in the form in which it was sent.

    Raises:
        MalformedMessageError: not an AMQP message.
    """
    message = EncodedMessage(payload)
    document: dict[str, Any] = {}
    for name, index in TEXT_FIELDS.items():
        value = message.field(Section.PROPERTIES, index)
        if value is None or isinstance(value, str):
            document[name] = None if value is None else str(value)
    ttl = message.field(Section.HEADER, HeaderField.TTL)
    document[_TTL] = int(ttl) if isinstance(ttl, int) else None
    scheduled = message.entry(Section.MESSAGE_ANNOTATIONS, SCHEDULED)
    document[_SCHEDULED] = _time_text(int(scheduled)) if isinstance(scheduled, Timestamp) else None
    document[_PROPERTIES] = {str(name): plain(value) for name, value in message.entries(Section.APPLICATION_PROPERTIES)}
    document |= _body_of(message)
    return document


def document_text(document: Mapping[str, Any]) -> str:
    """The document as it is edited."""
    return json_text(document, indent=2) + "\n"


def read_document(text: str) -> dict[str, Any]:
    """A document that somebody edited.

    Raises:
        UsageError: it is no JSON object; the place is named.
    """
    document = _read_json(text)
    if not isinstance(document, dict):
        raise UsageError("The edited message is no JSON object.")
    return document


def _read_json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_each_once)
    except RecursionError as error:
        raise UsageError("The edited message is nested too deeply to be read.") from error
    except ValueError as error:
        raise UsageError(f"The edited message is no JSON: {error}.") from error


def edited(payload: bytes, after: Mapping[str, Any]) -> bytes:
    """The message as the document says; the same bytes where the document says nothing new.

    Raises:
        UsageError: a field that is not known or is missing, a value that it cannot have, or one that cannot be edited.
        MalformedMessageError: not an AMQP message.
    """
    before = as_document(payload)
    if unknown := sorted(after.keys() - before.keys()):
        raise UsageError(f"The edited message has fields that cannot be edited: {', '.join(unknown)}.")
    if missing := sorted(before.keys() - after.keys()):
        raise UsageError(
            f"The edited message lacks fields: {', '.join(missing)}.", hint="Write null for what it is not to have."
        )
    message = EncodedMessage(payload)
    changed = {name for name in before if not _same(before[name], after[name])}
    message.edit_fields(
        Section.PROPERTIES, {TEXT_FIELDS[name]: _text(name, after[name]) for name in changed & TEXT_FIELDS.keys()}
    )
    if "session_id" in changed and message.entry(Section.MESSAGE_ANNOTATIONS, PARTITION_KEY) == before["session_id"]:
        _set_annotation(message, PARTITION_KEY, after["session_id"])  # the two are tied on a partitioned entity
    if _TTL in changed:
        _set_time_to_live(message, after[_TTL])
    if _SCHEDULED in changed:
        at = after[_SCHEDULED]
        _set_annotation(message, SCHEDULED, None if at is None else Timestamp(_time_ms(at)))
    if _PROPERTIES in changed:
        _set_properties(message, before[_PROPERTIES], after[_PROPERTIES])
    for name in changed & {_BODY, _BODY_BASE64}:
        message.edit_body(_body_bytes(name, after[name]))
    try:
        return message.result()
    except AmqpError as error:
        raise UsageError(f"The edited message has a value that a message cannot have: {error}.") from error


@dataclass(frozen=True, slots=True)
class Editable:
    """A message in its queue, and the form in which its application sent it."""

    received: Received
    payload: bytes
    text: str
    """The document to be edited."""

    @classmethod
    def of(cls, received: Received) -> "Editable":
        """Raises MalformedMessageError: not an AMQP message."""
        payload = as_sent(received.payload, from_dead_letter=is_dead_letter_path(received.source)).payload
        return cls(received, payload, document_text(as_document(payload)))

    def changed(self, text: str) -> "Edit | None":
        """The message as the edited document says; None if that is what it is.

        Raises:
            UsageError: the document is no JSON object, or one of its fields cannot be edited so.
            MalformedMessageError: not an AMQP message.
        """
        return self.with_document(read_document(text))

    def with_document(self, document: Mapping[str, Any]) -> "Edit | None":
        """As `changed`, for a document that was read already."""
        payload = edited(self.payload, document)
        if payload == self.payload:
            return None
        before, after = self.text.splitlines(), document_text(document).splitlines()
        lines = unified_diff(before, after, "before", "after", lineterm="", n=1)
        return Edit(payload, tuple(printable(line) for line in lines))


@dataclass(frozen=True, slots=True)
class Edit:
    """A message that was changed. `diff`: how its documents differ, as lines of a unified diff."""

    payload: bytes
    diff: tuple[str, ...]


_NUMBER = "sequence_number"


@dataclass(frozen=True, slots=True)
class Editables:
    """One message that is edited, or a few in one document: a JSON array, in which each object begins with its
    sequence number."""

    messages: tuple[Editable, ...]
    several: bool = False

    @property
    def text(self) -> str:
        """What is edited."""
        if not self.several:
            return self.messages[0].text
        objects = [{_NUMBER: one.received.sequence_number, **as_document(one.payload)} for one in self.messages]
        return json_text(objects, indent=2) + "\n"

    def changed(self, text: str) -> "tuple[tuple[Editable, Edit], ...]":
        """Those that the edited text says something new of, and what. An object that was taken out leaves its message
        as it is.

        Raises:
            UsageError: as `Editable.changed`, or an object with a number that none of them has.
            MalformedMessageError: not an AMQP message.
        """
        if not self.several:
            edit = self.messages[0].changed(text)
            return () if edit is None else ((self.messages[0], edit),)
        objects = _read_json(text)
        if not isinstance(objects, list) or not all(isinstance(one, dict) for one in objects):
            raise UsageError("The edited messages are no JSON array of objects.")
        there = {one.received.sequence_number: one for one in self.messages}
        numbers = [one.pop(_NUMBER, None) for one in objects]
        if len(set(map(str, numbers))) < len(numbers) or not there.keys() >= set(numbers):
            raise UsageError(f"Each of the edited messages has the {_NUMBER} of one of them, once.")
        found = []
        for number, document in zip(numbers, objects, strict=True):
            try:
                edit = there[number].with_document(document)
            except UsageError as error:
                raise UsageError(f"Message {number}: {error.message}", hint=error.hint) from error
            if edit is not None:
                found.append((there[number], edit))
        return tuple(found)


_SETTABLE = {
    **{name.replace("_", ""): name for name in TEXT_FIELDS},
    "label": "subject",
    "timetolive": _TTL,
    "scheduledenqueuetimeutc": _SCHEDULED,
}
"""What may follow `sys.` in a repair, in lower case, and its field of the document."""
_CHANGED = tuple(name for name in (*SYSTEM_PROPERTIES, "ReplyToSessionId") if name.lower() in _SETTABLE)
"""The same as actions of Service Bus SQL spell it."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One change of many messages, in the names that `--where` has: `sys.` for a property of the message, `user.` or no
    prefix for an application property.

    Args:
        put: the new values as text. An application property that is a number, true or false stays one; a new one is a
            text. `sys.TimeToLive` is a duration.
        without: application properties that are removed, and properties of the message that are cleared.
    """

    put: Mapping[str, str]
    without: Collection[str] = ()

    def __post_init__(self) -> None:
        """Raises UsageError: a property that cannot be changed or stands there twice, or an impossible value."""
        blank = compose(body=b"", message_id="")
        try:
            edited(blank, self._applied(as_document(blank)))
        except UsageError as error:
            said = error.message
            for name in _CHANGED:
                said = said.replace(f"The edited {_SETTABLE[name.lower()]} ", f"sys.{name} ")
            raise UsageError(said, hint=error.hint) from error

    def form_of(self, received: Received) -> "Edit | None":
        """The message as its application sent it, repaired; None if nothing changes.

        Raises:
            UsageError: its property has a type that the value does not fit.
            MalformedMessageError: not an AMQP message.
        """
        found = Editable.of(received)
        try:
            return found.with_document(self._applied(as_document(found.payload)))
        except UsageError as error:
            raise UsageError(f"Message {received.sequence_number}: {error.message}", hint=error.hint) from error

    def _applied(self, document: dict[str, Any]) -> dict[str, Any]:
        properties, seen = dict(document[_PROPERTIES]), set[tuple[bool, str]]()
        for name, text in (*self.put.items(), *((name, None) for name in self.without)):
            scope, dot, rest = name.partition(".")
            of_message = bool(dot) and scope.lower() == "sys"
            key = _field_of(rest) if of_message else rest if rest and scope.lower() == "user" else name
            if (of_message, key) in seen:
                raise UsageError(f"{name} is given twice.")
            seen.add((of_message, key))
            if of_message:
                document[key] = text if text is None or key != _TTL else _milliseconds(name, text)
            elif text is None:
                properties.pop(key, None)
            else:
                properties[key] = _of_its_kind(key, properties.get(key), text)
        return {**document, _PROPERTIES: properties}


def _milliseconds(name: str, text: str) -> int:
    try:
        milliseconds = round(parse_duration(text) * 1000)
    except UsageError as error:
        raise UsageError(f"{name}: {error.message}") from error
    if milliseconds > MAX_HEADER_TTL_MS:
        raise UsageError(f"{name} is {format_duration(MAX_HEADER_TTL_MS / 1000)} at most, not {text}.")
    return milliseconds


def _field_of(name: str) -> str:
    """The field of the document that `sys.NAME` is.

    Raises:
        UsageError: there is none that can be changed.
    """
    if (field := _SETTABLE.get(name.lower())) is not None:
        return field
    hint = f"sys. may be followed by {', '.join(_CHANGED)}."
    if read_only := [one for one in SYSTEM_PROPERTIES if one.lower() == name.lower()]:
        raise UsageError(f"sys.{read_only[0]} cannot be changed: it is read-only.", hint=hint)
    alike = get_close_matches(name.lower(), [one.lower() for one in _CHANGED], n=1)
    meant = "".join(f" Did you mean sys.{one}?" for one in _CHANGED if one.lower() in alike)
    raise UsageError(f"A message has no property sys.{name}.{meant}", hint=hint)


def _of_its_kind(name: str, before: Any, text: str) -> Any:
    if not isinstance(before, bool | int | float):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if isinstance(value, bool) is not isinstance(before, bool) or not isinstance(value, bool | int | float):
        kind = "true or false" if isinstance(before, bool) else "a number"
        raise UsageError(f"{name} is {kind}, which {text!r} is not.")
    return float(value) if isinstance(before, float) else value


def _body_of(message: EncodedMessage) -> dict[str, Any]:
    """The body where it is one run of bytes: as text where it is some."""
    spans = sections.body_sections(message.payload, message.spans)
    if [span.section for span in spans] != [Section.DATA]:
        return {}
    data = sections.read_span(message.payload, spans[0])
    try:
        text = bytes(data).decode()
    except UnicodeDecodeError:
        text = "\x00"
    if all(char.isprintable() or char in _LAYOUT for char in text):
        return {_BODY: text}
    return {_BODY_BASE64: base64.b64encode(data).decode()}


def _body_bytes(name: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise UsageError(f"The edited {name} is no text.")
    if name == _BODY:
        return _utf8(name, value)
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise UsageError(f"The edited {name} is no base64: {error}.") from error


def _utf8(name: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"The edited {name} has half of a character: {error.reason}.") from error


def _same(one: Any, other: Any) -> bool:
    """Equal, and of one kind: 1, 1.0 and true are three values."""
    return json.dumps(one) == json.dumps(other)


def _text(name: str, value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, str):
        raise UsageError(f"The edited {name} is neither a text nor null.")
    if name in _IDS and len(value) > MAX_ID_CHARACTERS:
        raise UsageError(f"The edited {name} has {len(value)} characters; up to {MAX_ID_CHARACTERS} are possible.")
    _utf8(name, value)
    if name in _SYMBOLS and not value.isascii():
        raise UsageError(f"The edited {name} has characters that are not ASCII.")
    return Symbol(value) if name in _SYMBOLS else value


def _set_annotation(message: EncodedMessage, name: str, value: Any) -> None:
    if value is None:
        message.edit_map(Section.MESSAGE_ANNOTATIONS, (name,), {})
    else:
        message.edit_map(Section.MESSAGE_ANNOTATIONS, (), {Symbol(name): value})


def _set_time_to_live(message: EncodedMessage, value: Any) -> None:
    if value is not None and (type(value) is not int or not 0 <= value <= MAX_HEADER_TTL_MS):
        raise UsageError(f"The edited {_TTL} is neither null nor a number from 0 to {MAX_HEADER_TTL_MS}.")
    message.edit_fields(
        Section.HEADER, {HeaderField.TTL: None if value is None else Uint(value)}, drop_empty=value is None
    )
    created = message.field(Section.PROPERTIES, PropertyField.CREATION_TIME)
    if message.field(Section.PROPERTIES, PropertyField.ABSOLUTE_EXPIRY_TIME) is None:
        return
    ends = None  # it says the same thing a second time
    if value is not None and isinstance(created, Timestamp):
        ends = Timestamp(min(int(created) + value, LAST_MS))
    message.edit_fields(Section.PROPERTIES, {PropertyField.ABSOLUTE_EXPIRY_TIME: ends}, drop_empty=True)


def _time_text(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, OSError, ValueError):
        return str(milliseconds)


def _time_ms(value: Any) -> int:
    try:
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"The edited {_SCHEDULED} is no time such as 2026-11-22T08:00:00Z.") from error
    if at.tzinfo is None:
        raise UsageError(f"The edited {_SCHEDULED} has no time zone: add Z for UTC.")
    return round(at.timestamp() * 1000)


def _set_properties(message: EncodedMessage, before: Mapping[str, Any], after: Any) -> None:
    if not isinstance(after, dict):
        raise UsageError(f"The edited {_PROPERTIES} are no JSON object; write {{}} for none.")
    there = {str(name): value for name, value in message.entries(Section.APPLICATION_PROPERTIES)}
    put = {
        name: _property(name, there.get(name), value, known=name in before)
        for name, value in after.items()
        if name not in before or not _same(before[name], value)
    }
    message.edit_map(Section.APPLICATION_PROPERTIES, frozenset(before.keys() - after.keys()), put)


def _property(name: str, before: Any, value: Any, *, known: bool) -> Any:
    """The new value, of the old one's type where it is of that kind."""
    what = f"The edited application property {name!r}"
    if known and not (before is None or isinstance(before, str | bool | float) or _is_number(before)):
        raise UsageError(f"{what} has a type that JSON cannot say ({type(before).__name__}). It can only be removed.")
    if not (value is None or isinstance(value, str | bool | int | float)):
        raise UsageError(f"{what} is a list or an object; a property is a text, a number, true, false or null.")
    if isinstance(value, str):
        _utf8(name, value)
        return type(before)(value) if isinstance(before, Symbol) else value
    try:
        if type(value) is int and _is_number(before) and type(before) not in _INTEGERS:
            made = type(before)(value)
        elif type(value) is int and isinstance(before, Long):
            made = Long(value)
        elif isinstance(value, float) and isinstance(before, float):
            made = type(before)(value)
        else:
            made = typed(value)
        encode(made)
    except AmqpError as error:
        raise UsageError(f"{what} does not fit its type: {error}.") from error
    return made


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool | Timestamp)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object contains a name twice")
    return found
