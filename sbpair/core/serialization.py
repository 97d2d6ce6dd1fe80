"""Frozen dataclasses to and from plain dicts, strictly: the file format of snapshots, plans and reports, and what
commands print with `-o json`.

Reading refuses unknown keys, missing keys and wrong types and says where (`secondary.queues[3].facts.path`), because a
file that is only half understood would lead to a wrong deletion. The JSON Schemas come from the same annotations: a
field added to a dataclass is in its files, its JSON and its schema, and nowhere else to be written.

A field says with its metadata where its JSON differs from the attribute:

    forecast: Forecast | None = field(default=None, metadata=OMITTED_IF_NONE)
    report: AuditReport = field(metadata=INLINED)      # its fields (or a mapping's entries) stand in this object
    left: tuple[Left, ...] = field(metadata=AS_OBJECT)  # pairs of a name and a value, as one object
    look: Callable[[View], Found] = field(metadata=HIDDEN)
    seconds: float = field(metadata=rounded(3))
    taken_at: float = field(metadata=AS_TIME)           # epoch seconds, written as ISO 8601
    from_: Decimal = field(metadata=named("from"))
    reason: str = field(metadata=column("Why"))         # a table of these objects has it as a column
    skipped: int = field(metadata=metric("sbpair_audit_skipped_checks"))

an annotation what its schema should add: `at: Annotated[str, says(format="date-time")]`, or `Time` for short; and
`@published` what is written beside the fields because it follows from them. An error is written as its code, message
and hint.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar, Union, overload

from sbpair.core.errors import SbpairError, UsageError
from sbpair.core.redact import quoted

T = TypeVar("T")

OMITTED_IF_NONE: Mapping[str, Any] = {"omitted_if_none": True}
"""Metadata of a field that is left out of the plain form instead of being null."""
INLINED: Mapping[str, Any] = {"inlined": True}
"""Metadata of a field, a dataclass, an error or a mapping, whose own entries stand in the object itself; a later field
of the same name counts. Not for reading back."""
HIDDEN: Mapping[str, Any] = {"hidden": True}
"""Metadata of a field that is not written. Not for reading back."""
AS_OBJECT: Mapping[str, Any] = {"as_object": True}
"""Metadata of a tuple of pairs, each a name and a value: they are written as one object. A pair is a tuple or a
dataclass of two fields. Not for reading back."""


def named(name: str) -> Mapping[str, Any]:
    """Metadata of a field whose key in the plain form is no Python name, e.g. `from`. Not for reading back."""
    return {"named": name}


AS_TIME: Mapping[str, Any] = {"as_time": True}
"""Metadata of UTC epoch seconds that are written as ISO 8601 text. Not for reading back."""


def rounded(digits: int) -> Mapping[str, Any]:
    """Metadata of a number that is written with that many digits after the point."""
    return {"rounded": digits}


def column(title: str, *, colours: bool = False, **more: bool) -> dict[str, Any]:
    """Metadata of a field that is a column in a table of such objects; `more` as for `sbpair.render.result.Column`,
    with numbers on the right where they are `counts`. `colours`: its value colours the row. A field without it is in
    the plain form only."""
    return {"column": {"title": title, "right": more.get("counts", False), **more}, "colours": colours}


def metric(name: str, *, label: str = "") -> dict[str, Any]:
    """Metadata of a number that monitoring formats show as a metric of `sbpair.core.metrics`; None is not shown. Of a
    mapping each entry is a sample, with its key as the value of `label`."""
    return {"metric": name, "label": label}


class published(Generic[T]):
    """A property that is written beside the fields. Not for reading back."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> "published[T]": ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> "published[T] | T":
        return self if instance is None else self.function(instance)


@dataclasses.dataclass(frozen=True)
class _Says:
    schema: tuple[tuple[str, Any], ...]


def says(**schema: Any) -> _Says:
    """Metadata of `Annotated`: what its JSON Schema says besides the type."""
    return _Says(tuple(schema.items()))


Time = Annotated[str, says(format="date-time")]
"""A moment as ISO 8601 text."""
Money = Annotated[Decimal, says(pattern=r"^-?\d+(\.\d+)?(E-?\d+)?$", description="A decimal number as text.")]


@overload
def iso_time(epoch_seconds: float) -> str: ...


@overload
def iso_time(epoch_seconds: None) -> None: ...


@overload
def iso_time(epoch_seconds: float | None) -> str | None: ...


def iso_time(epoch_seconds: float | None) -> str | None:
    """UTC time as ISO 8601 with milliseconds; None stays None."""
    if epoch_seconds is None:
        return None
    return utc_time(epoch_seconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def spoken_time(epoch_seconds: float) -> str:
    """For a page that people read: `2026-11-21 08:00:00 UTC`."""
    return utc_time(epoch_seconds).strftime("%Y-%m-%d %H:%M:%S UTC")


def spoken_clock(epoch_seconds: float) -> str:
    """For who looks at it now: `08:00:00 UTC`."""
    return utc_time(epoch_seconds).strftime("%H:%M:%S UTC")


def utc_time(epoch_seconds: float) -> datetime:
    """The moment; the first or last one of the calendar (years 1 to 9999) for a time beyond it, which a message or a
    file may hold."""
    try:
        return datetime.fromtimestamp(epoch_seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return (datetime.max if epoch_seconds > 0 else datetime.min).replace(tzinfo=UTC)


def to_plain(value: Any) -> Any:
    """`value` as dicts, lists, strings, numbers, booleans and None. Times become ISO 8601, decimals
    and fractions text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain_fields(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (Decimal, Fraction, Path)):
        return str(value)
    if isinstance(value, datetime):
        return iso_time(value.timestamp())
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list, frozenset)):
        return [to_plain(item) for item in value]
    if isinstance(value, SbpairError):
        return {name: getattr(value, name) for name in _ERROR}
    return value


def _plain_fields(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        how = field.metadata
        item = getattr(value, field.name)
        if how.get("hidden") or (item is None and how.get("omitted_if_none")):
            continue
        if how.get("inlined"):
            plain |= to_plain(item)
        elif how.get("as_object"):
            plain[_key(field)] = {str(name): to_plain(content) for name, content in map(_pair, item)}
        elif how.get("as_time"):
            plain[_key(field)] = iso_time(item)
        elif "rounded" in how and item is not None:
            plain[_key(field)] = round(item, how["rounded"])
        else:
            plain[_key(field)] = to_plain(item)
    kind: type = type(value)
    return plain | {name: to_plain(getattr(value, name)) for name, _ in _published(kind)}


def _pair(item: Any) -> Any:
    return item if isinstance(item, tuple) else [getattr(item, field.name) for field in dataclasses.fields(item)]


@cache
def _published(kind: type) -> tuple[tuple[str, Any], ...]:
    """Names and types of what is published, in the order of the class."""
    found = {name: member for each in reversed(kind.__mro__) for name, member in vars(each).items()}
    return tuple(
        (name, typing.get_type_hints(member.function, include_extras=True)["return"])
        for name, member in found.items()
        if isinstance(member, published)
    )


def _key(field: "dataclasses.Field[Any]") -> str:
    return str(field.metadata.get("named", field.name))


def from_plain(kind: type[T], data: Any, where: str) -> T:
    """The value of type `kind` that `data` describes; `where` names the place in error messages.

    Raises:
        UsageError: an unknown or missing key, or a value of the wrong type; the message says where.
    """
    return typing.cast(T, _read(kind, data, where))


class Document:
    """Base of the frozen dataclasses that are kept as JSON objects, in files and journals."""

    __slots__ = ()
    file: ClassVar[tuple[str, int] | None] = None
    """Of what stands in a file of its own: what people call it, and the `format_version` that this release reads."""

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Read what `to_dict` wrote.

        Raises:
            UsageError: another format version, an unknown or missing key, or a value of the wrong type.
        """
        if cls.file is None:
            return from_plain(cls, data, _WORD_BEGINS.sub(" ", cls.__name__).lower())
        what, supported = cls.file
        if not isinstance(data, Mapping):
            raise UsageError(f"This is not a {what}: a JSON object is expected.")
        version = data.get("format_version")
        if version != supported or isinstance(version, bool):
            raise UsageError(
                f"This {what} has format version {quoted(version)}; this release reads version {supported}.",
                hint=f"Write a new {what} with this release.",
            )
        return from_plain(cls, data, what)


_WORD_BEGINS = re.compile(r"(?<=[a-z])(?=[A-Z])")


def json_schema(kind: Any) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of what `from_plain` takes for `kind`, a dataclass or an annotation.

    Objects are closed, and fields with a default may be missing.
    """
    return _Describer(closed=True).describe(kind)


def output_schema(kind: Any) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of what `to_plain` makes of `kind`, a dataclass or an annotation.

    Objects are open, because fields are added over time; every field is there unless it is `OMITTED_IF_NONE`.
    """
    return _Describer(closed=False).describe(kind)


@dataclasses.dataclass(frozen=True)
class _Describer:
    closed: bool
    """For what is read; otherwise for what is written."""

    def describe(self, kind: Any) -> dict[str, Any]:
        kind = getattr(kind, "__value__", kind)  # of a `type` statement
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is Annotated:
            return self.describe(arguments[0]) | dict(arguments[1].schema)
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            return self._object(kind)
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.describe(option) for option in arguments]}
        if origin is tuple and arguments[-1] is not Ellipsis:
            return {"type": "array", "prefixItems": [self.describe(item) for item in arguments], "items": False}
        if isinstance(origin, type) and issubclass(origin, (Sequence, frozenset)):
            return {"type": "array", "items": self.describe(arguments[0])}
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.describe(arguments[1])}
        if origin is Literal:
            return {"enum": list(arguments)}
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"enum": [member.value for member in kind]}
        if isinstance(kind, type) and issubclass(kind, SbpairError):
            return {
                "type": "object",
                "properties": {name: {"type": "string"} for name in _ERROR},
                "required": [*_ERROR],
            }
        return dict(_SCHEMAS[kind])

    def _object(self, kind: type) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        required: list[str] = []
        rest: Any = False if self.closed else None
        for field in self._fields(kind):
            hint, how = _hints(kind)[field.name], field.metadata
            if how.get("inlined"):
                inner = self.describe(hint)
                properties |= inner.get("properties", {})
                required += inner.get("required", [])
                rest = inner.get("additionalProperties", rest)
                continue
            omitted = how.get("omitted_if_none", False)
            if how.get("as_object"):
                described = {"type": "object", "additionalProperties": self.describe(_second_of_pairs(hint))}
            elif how.get("as_time"):
                described = self.describe(Time if hint is float else Time | None)
            else:
                described = self.describe(_without_none(hint) if omitted else hint)
            properties[_key(field)] = described | ({"description": how["what"]} if "what" in how else {})
            if _required(field) if self.closed else not omitted:
                required.append(_key(field))
        if not self.closed:
            properties |= {name: self.describe(hint) for name, hint in _published(kind)}
            required += [name for name, _ in _published(kind)]
        schema = {"type": "object", "properties": properties, "required": list(dict.fromkeys(required))}
        return schema if rest is None else schema | {"additionalProperties": rest}

    def _fields(self, kind: type) -> Iterator["dataclasses.Field[Any]"]:
        return (field for field in dataclasses.fields(kind) if self.closed or not field.metadata.get("hidden"))


def _second_of_pairs(hint: Any) -> Any:
    """The type of the values of `tuple[PAIR, ...]`."""
    pair = typing.get_args(hint)[0]
    return typing.get_args(pair)[1] if typing.get_origin(pair) is tuple else [*_hints(pair).values()][1]


def _without_none(kind: Any) -> Any:
    options = tuple(option for option in typing.get_args(kind) if option is not types.NoneType)
    return Union[options] if options else kind  # noqa: UP007


_ERROR = ("code", "message", "hint")
"""What is written of an error."""
_SCHEMAS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    types.NoneType: {"type": "null"},
    Decimal: {"type": "string"},
    Fraction: {"type": "string"},
    Path: {"type": "string"},
    datetime: {"type": "string", "format": "date-time"},
    Any: {},
}


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _read(kind: Any, data: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin is Annotated:
        return _read(typing.get_args(kind)[0], data, where)
    if origin in (Union, types.UnionType):
        return _read_union(typing.get_args(kind), data, where)
    if origin is tuple:
        return _read_tuple(typing.get_args(kind), data, where)
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(typing.cast(type, kind), data, where)
    if issubclass(kind, Enum):
        return _read_enum(kind, data, where)
    return _read_scalar(kind, data, where)


def _read_union(options: tuple[Any, ...], data: Any, where: str) -> Any:
    """Only `X | None` occurs in our types."""
    if data is None and types.NoneType in options:
        return None
    return _read(next(option for option in options if option is not types.NoneType), data, where)


def _read_tuple(items: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, (list, tuple)):
        raise _wrong(where, "a list", data)
    if items[-1] is Ellipsis:
        return tuple(_read(items[0], item, f"{where}[{index}]") for index, item in enumerate(data))
    if len(items) != len(data):
        raise _wrong(where, f"a list of {len(items)}", data)
    return tuple(_read(kind, data[index], f"{where}[{index}]") for index, kind in enumerate(items))


def _read_dataclass(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise _wrong(where, "an object", data)
    hints = _hints(kind)
    unknown = sorted(str(key) for key in data if key not in hints)
    if unknown:
        raise UsageError(f"{where}: unknown key {quoted(unknown[0])}.")
    missing = [field.name for field in dataclasses.fields(kind) if _required(field) and field.name not in data]
    if missing:
        raise UsageError(f"{where}: {missing[0]!r} is missing.")
    return kind(**{name: _read(hints[name], value, f"{where}.{name}") for name, value in data.items()})


def _read_enum(kind: type[Enum], data: Any, where: str) -> Enum:
    try:
        return kind(data)
    except ValueError:
        raise _wrong(where, "one of " + ", ".join(str(member.value) for member in kind), data) from None


def _read_scalar(kind: type, data: Any, where: str) -> Any:
    if kind in (float, int) and _is_out_of_range(data):
        raise _wrong(where, "a number of at most 64 bits", data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if kind in (Decimal, Fraction):
        if not isinstance(data, str):
            raise _wrong(where, "a number written as text", data)
        try:
            return kind(data)
        except (ValueError, ArithmeticError):
            raise _wrong(where, "a number written as text", data) from None
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise _wrong(where, f"of type {_SCHEMAS[kind]['type']}", data)
    return data


def _is_out_of_range(data: Any) -> bool:
    """Whether nothing that counts or measures here can be so large."""
    if isinstance(data, int):
        return not -(2**63) <= data < 2**63
    return isinstance(data, float) and not math.isfinite(data)


def _wrong(where: str, wanted: str, data: Any) -> UsageError:
    return UsageError(f"{where}: {quoted(data if isinstance(data, str) else quoted(data))} is not {wanted}.")
