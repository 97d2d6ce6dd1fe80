"""Frozen dataclasses to and from plain dicts, strictly: the file format of snapshots, plans and reports, and what
commands print with `-o json`.

Reading refuses unknown keys, missing keys and wrong types and says where (`secondary.queues[3].facts.path`), because a
file that is only half understood would lead to a wrong deletion. The JSON Schemas come from the same annotations: a
field added to a dataclass is in its files, its JSON and its schema, and nowhere else to be written.

A field says with its metadata where its JSON differs from the attribute:

    forecast: Forecast | None = field(default=None, metadata=OMITTED_IF_NONE)
    report: AuditReport = field(metadata=INLINED)      # its fields (or a mapping's entries) stand in this object
    from_: Decimal = field(metadata=named("from"))

and an annotation what its schema should add: `at: Annotated[str, says(format="date-time")]`, or `Time` for short.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union

from sbpair.core.errors import UsageError
from sbpair.core.redact import quoted

T = TypeVar("T")

OMITTED_IF_NONE: Mapping[str, Any] = {"omitted_if_none": True}
"""Metadata of a field that is left out of the plain form instead of being null."""
INLINED: Mapping[str, Any] = {"inlined": True}
"""Metadata of a field, a dataclass or a mapping, whose own entries stand in the object itself. Not for reading back."""


def named(name: str) -> Mapping[str, Any]:
    """Metadata of a field whose key in the plain form is no Python name, e.g. `from`. Not for reading back."""
    return {"named": name}


@dataclasses.dataclass(frozen=True)
class _Says:
    schema: tuple[tuple[str, Any], ...]


def says(**schema: Any) -> _Says:
    """Metadata of `Annotated`: what its JSON Schema says besides the type."""
    return _Says(tuple(schema.items()))


Time = Annotated[str, says(format="date-time")]
"""A moment as ISO 8601 text."""
Money = Annotated[Decimal, says(pattern=r"^-?\d+(\.\d+)?(E-?\d+)?$", description="A decimal number as text.")]


def to_plain(value: Any) -> Any:
    """`value` as dicts, lists, strings, numbers, booleans and None. Decimals and fractions become text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain_fields(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (Decimal, Fraction, Path)):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list, frozenset)):
        return [to_plain(item) for item in value]
    return value


def _plain_fields(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if item is None and field.metadata.get("omitted_if_none"):
            continue
        if field.metadata.get("inlined"):
            plain |= to_plain(item)
        else:
            plain[_key(field)] = to_plain(item)
    return plain


def _key(field: "dataclasses.Field[Any]") -> str:
    return str(field.metadata.get("named", field.name))


def from_plain(kind: type[T], data: Any, where: str) -> T:
    """The value of type `kind` that `data` describes; `where` names the place in error messages.

    Raises:
        UsageError: an unknown or missing key, or a value of the wrong type; the message says where.
    """
    return typing.cast(T, _read(kind, data, where))


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
        return dict(_SCHEMAS[kind])

    def _object(self, kind: type) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object", "properties": {}, "required": []}
        rest: Any = False if self.closed else None
        for field in dataclasses.fields(kind):
            hint = _hints(kind)[field.name]
            if field.metadata.get("inlined"):
                inner = self.describe(hint)
                schema["properties"] |= inner.get("properties", {})
                schema["required"] += inner.get("required", [])
                rest = inner.get("additionalProperties", rest)
                continue
            omitted = field.metadata.get("omitted_if_none", False)
            schema["properties"][_key(field)] = self.describe(_without_none(hint) if omitted else hint)
            if _required(field) if self.closed else not omitted:
                schema["required"].append(_key(field))
        return schema if rest is None else schema | {"additionalProperties": rest}


def _without_none(kind: Any) -> Any:
    return Union[tuple(option for option in typing.get_args(kind) if option is not types.NoneType)]  # noqa: UP007


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
