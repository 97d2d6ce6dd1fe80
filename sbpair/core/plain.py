"""Frozen dataclasses to and from plain dicts, strictly: the file format of snapshots, plans and reports.

Reading refuses unknown keys, missing keys and wrong types and says where (`secondary.queues[3].facts.path`), because a
file that is only half understood would lead to a wrong deletion. The JSON Schema comes from the same annotations.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cache
from typing import Any, TypeVar, Union

from sbpair.core.errors import UsageError
from sbpair.core.wording import quoted

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """`value` as dicts, lists, strings, numbers, booleans and None. Decimals and fractions become text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (Decimal, Fraction)):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list, frozenset)):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: type[T], data: Any, where: str) -> T:
    """The value of type `kind` that `data` describes; `where` names the place in error messages.

    Raises:
        UsageError: an unknown or missing key, or a value of the wrong type; the message says where.
    """
    return typing.cast(T, _read(kind, data, where))


def json_schema(kind: Any) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the plain form of `kind`, a dataclass or an annotation."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        return {
            "type": "object",
            "properties": {name: json_schema(hint) for name, hint in hints.items()},
            "required": [field.name for field in dataclasses.fields(kind) if _required(field)],
            "additionalProperties": False,
        }
    if origin in (Union, types.UnionType):
        return {"anyOf": [json_schema(option) for option in arguments]}
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return {"type": "array", "items": json_schema(arguments[0])}
        return {"type": "array", "prefixItems": [json_schema(item) for item in arguments], "items": False}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    return {"type": _SCHEMA_NAMES[kind]}


_SCHEMA_NAMES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    types.NoneType: "null",
    Decimal: "string",
    Fraction: "string",
}


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _read(kind: Any, data: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
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
        raise _wrong(where, f"of type {_SCHEMA_NAMES[kind]}", data)
    return data


def _is_out_of_range(data: Any) -> bool:
    """Whether nothing that counts or measures here can be so large."""
    if isinstance(data, int):
        return not -(2**63) <= data < 2**63
    return isinstance(data, float) and not math.isfinite(data)


def _wrong(where: str, wanted: str, data: Any) -> UsageError:
    return UsageError(f"{where}: {quoted(data if isinstance(data, str) else quoted(data))} is not {wanted}.")
