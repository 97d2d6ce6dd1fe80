"""One encoded message, looked into and edited section by section without decoding the rest."""

from collections.abc import Collection, Mapping
from typing import Any

from sbpair.amqp import sections
from sbpair.amqp.decoding import decode
from sbpair.amqp.encoding import encode
from sbpair.amqp.sections import PropertyField, Section, Span
from sbpair.amqp.types import AmqpError, MapPairs
from sbpair.core.errors import MalformedMessageError

_EMPTY_LIST = encode([])
_EMPTY_MAP = encode({})


def spans_of(payload: bytes, start: int = 0, before: int = 0) -> tuple[Span, ...]:
    """Where the sections of a message lie; the other arguments are those of `sections.scan`.

    Raises:
        MalformedMessageError: the bytes are not an AMQP message.
    """
    try:
        return sections.scan(payload, start, before)
    except AmqpError as error:
        raise MalformedMessageError(f"The bytes are not an AMQP message: {error}.") from error


class EncodedMessage:
    """The bytes of a message and the edits wanted on it; `result()` puts them together.

    Args:
        spans: where the sections lie, if somebody knows.
        values: by code, sections of these bytes that somebody has decoded before; the message keeps them.

    Raises:
        MalformedMessageError: the bytes are not an AMQP message (on creation), or a section that is read or edited
            cannot be parsed.
    """

    def __init__(
        self, payload: bytes, values: dict[int, Any] | None = None, spans: tuple[Span, ...] | None = None
    ) -> None:
        self.payload = payload
        self.spans = spans_of(payload) if spans is None else spans
        self._at = {span[0]: span for span in self.spans}
        self._values: dict[int, Any] = {} if values is None else values
        self._edited: dict[Section, bytes] = {}
        self._removed: set[Section] = set()

    def read(self, section: Section) -> Any:
        """The section's decoded value as it came, edits not included; None if there is no such section."""
        if section not in self._values:
            span = self._at.get(section)
            try:
                self._values[section] = None if span is None else sections.read_span(self.payload, span)
            except AmqpError as error:
                raise _unreadable(section, error) from error
        return self._values[section]

    def field(self, section: Section, index: int) -> Any:
        """One field of the header or the properties, None if it is not set."""
        return sections.field(self.read(section), index)

    def entry(self, section: Section, key: str) -> Any:
        """The value under a key, string or symbol, of a map section; None if it is not there."""
        value = self.read(section)
        if isinstance(value, MapPairs):
            return next((found for name, found in value if name == key), None)
        return None if value is None else value.get(key)

    def entries(self, section: Section) -> tuple[tuple[Any, Any], ...]:
        """All entries of a map section in their order."""
        value = self.read(section)
        return () if value is None else tuple(value.items())

    def edit_fields(self, section: Section, fields: Mapping[int, Any], *, drop_empty: bool = False) -> None:
        """Set fields of the header or the properties; `drop_empty` removes a section that has none left."""
        if not fields:
            return
        if drop_empty and section not in self._edited and self._leaves_nothing(section, fields):
            self._removed.add(section)
            return
        try:
            edited = sections.edit_fields(self._value(section, _EMPTY_LIST), fields)
        except AmqpError as error:
            raise _unreadable(section, error) from error
        self._keep(section, edited, drop_empty)

    def _leaves_nothing(self, section: Section, fields: Mapping[int, Any]) -> bool:
        """Whether a list as it came would be all nulls after these fields were set."""
        now = self.read(section)
        rest = [] if now is None else [value for index, value in enumerate(now) if index not in fields]
        return rest.count(None) == len(rest) and all(value is None for value in fields.values())

    def edit_map(self, section: Section, remove: Collection[str], put: Mapping[Any, Any]) -> None:
        """Remove and set entries of a map section; the section goes when its last entry was removed."""
        if not put:
            gone, there = self._count(section, remove)
            if not gone:
                return
            if gone == there and section not in self._edited:
                self._removed.add(section)
                return
        try:
            edited = sections.edit_map(self._value(section, _EMPTY_MAP), remove, put)
        except AmqpError as error:
            raise _unreadable(section, error) from error
        self._keep(section, edited, True)

    def take(self, section: Section, keys: Collection[bytes], wanted: Collection[bytes]) -> dict[bytes, Any]:
        """Remove entries of a map section, named by the UTF-8 of their keys, and give the values of those that are
        `wanted`. Nothing else of the section is decoded. The section goes when its last entry was removed."""
        if section not in self._at:
            return {}
        try:
            taken, rest = sections.take_entries(self._value(section, _EMPTY_MAP), keys)
            values = {key: decode(value)[0] for key, value in taken.items() if key in wanted}
        except AmqpError as error:
            raise _unreadable(section, error) from error
        if taken:
            self._keep(section, rest or _EMPTY_MAP, True)
        return values

    def drop_exact(self, section: Section, start: bytes, size_bytes: int) -> bool:
        """Remove a section whose value, as it came, begins with `start` and has this size; whether it was that."""
        span = self._at.get(section)
        if span is None or span.end - span.value_start != size_bytes or section in self._edited:
            return False
        if not self.payload.startswith(start, span.value_start):
            return False
        self._removed.add(section)
        return True

    def edit_body(self, data: bytes) -> None:
        """Other bytes for a body that is one data section."""
        self._keep(Section.DATA, encode(data), False)

    def drop_if_empty(self, section: Section) -> None:
        """Remove a map section without entries."""
        if section in self._at and section not in self._edited and not self.entries(section):
            self._removed.add(section)

    def _count(self, section: Section, keys: Collection[str]) -> tuple[int, int]:
        """How many entries of a map section as it came have one of these keys, and how many there are."""
        value = self.read(section)
        if value is None:
            return 0, 0
        if isinstance(value, dict):
            return len(value.keys() & keys), len(value)
        found = [isinstance(key, str) and key in keys for key, _ in value.items()]
        return sum(found), len(found)

    def result(self) -> bytes:
        """The message with its edits; every byte of the other sections is the same byte."""
        changes: dict[Section, bytes | None] = dict.fromkeys(self._removed)
        for section, value in self._edited.items():
            changes[section] = sections.section_bytes(section, value)
        return sections.replace(self.payload, changes, self.spans)

    @property
    def content_type(self) -> str | None:
        value = self.field(Section.PROPERTIES, PropertyField.CONTENT_TYPE)
        return str(value) if isinstance(value, str) else None

    def _value(self, section: Section, absent: bytes) -> bytes:
        if section in self._edited:
            return self._edited[section]
        span = None if section in self._removed else self._at.get(section)
        return absent if span is None else self.payload[span.value_start : span.end]

    def _keep(self, section: Section, value: bytes, drop_empty: bool) -> None:
        if drop_empty and _is_empty(value):
            self._edited.pop(section, None)
            self._removed.add(section)
        else:
            self._removed.discard(section)
            self._edited[section] = value


def _is_empty(value: bytes) -> bool:
    """Whether an encoded list or map has no items, in any of its forms (AMQP 1.0 §1.6.22, §1.6.23)."""
    if value[0] in (0xD0, 0xD1):
        return value[5:9] == bytes(4)
    return len(value) == 1 or value[2] == 0


def _unreadable(section: Section, error: AmqpError) -> MalformedMessageError:
    name = section.name.lower().replace("_", " ")
    return MalformedMessageError(f"The {name} of the message cannot be parsed: {error}.")
