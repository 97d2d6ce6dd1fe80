"""Texts of the command line into values, without the library that typer asks for each of them.

Importing it takes about as long as everything else that a `--help` or a completion imports. So the plain cases are done
here: nothing given, a text, a number in its range, one of a few names. Whatever is none of these, or wrong, goes to
typer's own way, whose messages stay.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Any, get_args, get_origin


def lighten(params: Iterable[Any]) -> None:
    """Let parameters coerce their values the short way."""
    for param in params:
        if getattr(param, "_runtime_param", "absent") is None:
            param._runtime_param = _Shortcut()


class _NotPlainError(Exception):
    """Not one of the plain cases."""


class _Shortcut:
    """Stands in a parameter where typer keeps what coerces its value."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        try:
            return _plain_values(value, param) if many else _plain(value, param.type_descriptor.annotation, param)
        except _NotPlainError:
            return _typers_own(param).coerce(value, param=param, ctx=ctx)


def _typers_own(param: Any) -> Any:
    from typer._coercion import build_runtime_param

    param._runtime_param = build_runtime_param(param.type_descriptor)
    return param._runtime_param


def _plain_values(values: Any, param: Any) -> list[Any]:
    annotation = param.type_descriptor.annotation
    if get_origin(annotation) is not list or not isinstance(values, (list, tuple)):
        raise _NotPlainError
    return [_plain(value, get_args(annotation)[0], param) for value in values]


def _plain(value: Any, wanted: Any, param: Any) -> Any:
    if not isinstance(wanted, type) or param.type_descriptor.parameter_info.parser is not None:
        raise _NotPlainError
    if wanted in (int, float):
        return _number(value, wanted, param.type_descriptor.parameter_info)
    if issubclass(wanted, Enum):
        return _named(value, wanted)
    if wanted in (str, bool) and isinstance(value, wanted):
        return value
    raise _NotPlainError


def _number(value: Any, wanted: type[int] | type[float], info: Any) -> int | float:
    try:
        number = wanted(value)
    except (TypeError, ValueError):
        raise _NotPlainError from None
    if not (info.min is None or info.min <= number) or not (info.max is None or number <= info.max) or info.clamp:
        raise _NotPlainError
    return number


def _named(value: Any, wanted: type[Enum]) -> Enum:
    try:
        return wanted(value)
    except ValueError:
        raise _NotPlainError from None
