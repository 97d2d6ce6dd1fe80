"""From the words of a command line to values: the short way for plain values, and no option that is given twice.

Typer asks a library for each value, and importing it takes about as long as everything else that a `--help` or a
completion imports. So the plain cases are done here, in click's hook `Parameter.process_value`: nothing given, a text,
a number in its range, one of a few names. Whatever is none of these, or wrong, goes to typer's own way, whose messages
stay.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import partial
from itertools import zip_longest
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import typer

from sbpair.core.redact import quoted


class CommandContext(typer.Context):
    """Context of every command of sbpair, in which options are parsed the short way."""

    def __init__(self, command: Any, *arguments: Any, **settings: Any) -> None:
        super().__init__(command, *arguments, **settings)
        annotations = getattr(command.callback, "__annotations__", {})
        for param in command.get_params(self):
            if "process_value" not in vars(param):
                kind, info = _declared(annotations.get(param.name, bool))  # --help has no annotation
                if getattr(info, "parser", None) is None:
                    param.process_value = partial(_process_value, param, kind, info)


def parse_our_way(command: Any) -> None:
    """Let a command be parsed in a `CommandContext`, and refuse options that are given twice."""
    command.context_class = CommandContext
    command.make_parser = partial(_make_parser, command)


@dataclass(frozen=True, slots=True)
class Alone:
    """In the annotation of an option: the value that it has where none follows. Typer has no such options."""

    value: str


class _NotPlainError(Exception):
    """Not one of the plain cases."""


def _declared(annotation: Any) -> tuple[Any, Any]:
    """Of `Annotated[X, info]` and `Annotated[X | None, info]`: X and the info."""
    kind, *said = get_args(annotation) or (annotation,)
    if get_origin(kind) in (UnionType, Union):
        kinds = [one for one in get_args(kind) if one is not NoneType]
        kind = kinds[0] if len(kinds) == 1 else kind
    return kind, next((one for one in said if hasattr(one, "param_decls")), None)


def _process_value(param: Any, kind: Any, info: Any, ctx: Any, value: Any) -> Any:
    """click's `Parameter.process_value`: the value, then what the parameter's callback makes of it."""
    try:
        found = _value(param, kind, info, value)
    except _NotPlainError:
        return type(param).process_value(param, ctx, value)
    except typer.BadParameter as error:
        error.param, error.ctx = param, ctx
        raise
    if param.required and param.value_is_missing(found) and not ctx.resilient_parsing:
        return type(param).process_value(param, ctx, value)
    return found if param.callback is None else param.callback(ctx, param, found)


def _value(param: Any, kind: Any, info: Any, value: Any) -> Any:
    many = param.multiple or param.nargs == -1
    if value is None:
        return () if many else None
    if not many:
        return _plain(value, kind, info)
    if get_origin(kind) is not list or not isinstance(value, (list, tuple)):
        raise _NotPlainError
    return [_plain(each, get_args(kind)[0], info) for each in value]


def _plain(value: Any, wanted: Any, info: Any) -> Any:
    if wanted in (int, float):
        return _number(value, wanted, info)
    if wanted in (str, bool) and isinstance(value, wanted):
        return value
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        try:
            return wanted(value)
        except ValueError:
            pass
    raise _NotPlainError


def _number(value: Any, wanted: type[int] | type[float], info: Any) -> int | float:
    number = _as_number(str(value), wanted)
    if number is None:
        kind, examples = ("a whole number", "100, 100k or 1M") if wanted is int else ("a number", "100, 0.5 or 10k")
        raise typer.BadParameter(f"{quoted(str(value))} is not {kind}. Write {examples}.")
    if (info.min is not None and number < info.min) or (info.max is not None and number > info.max):
        least, most = (None if one is None else f"{one:,}" for one in (info.min, info.max))
        limits = f"from {least} to {most}" if least and most else f"{least} or more" if least else f"{most} at most"
        raise typer.BadParameter(f"{quoted(str(value))} is out of range: {limits}.")
    return number


def _as_number(text: str, wanted: type[int] | type[float]) -> int | float | None:
    """`100k` is 100,000 and `1M` a million; None where it is no such number, or no whole one where one is wanted."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        return None
    number = Decimal(found[1]) * {"": 1, "k": 1_000, "m": 1_000_000}[found[2].lower()]
    if wanted is float:
        return float(number)
    return int(number) if number == number.to_integral_value() else None


_NUMBER = re.compile(r"([+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][+-]?\d{1,2})?)([kKmM]?)")


# An option that takes one value and is given twice. Typer takes the last one, so that a second --report or --archive
# in a long line does away with the first without a word.


def _make_parser(command: Any, ctx: Any) -> Any:
    parser = type(command).make_parser(command, ctx)
    parse = parser.parse_args
    annotations = getattr(command.callback, "__annotations__", {})
    said = ((param, each) for param in command.params for each in get_args(annotations.get(param.name))[1:])
    alone = {name: each.value for param, each in said if isinstance(each, Alone) for name in param.opts}

    def parse_once(args: list[str]) -> Any:
        values, rest, order = parse(list(_with_values(args, alone)))
        if not ctx.resilient_parsing:
            _refuse_repeated(ctx, order)
        return values, rest, order

    parser.parse_args = parse_once
    return parser


def _with_values(args: Sequence[str], alone: Mapping[str, str]) -> Iterator[str]:
    for argument, following in zip_longest(args, args[1:], fillvalue="-"):
        yield argument
        if argument in alone and following.startswith("-"):
            yield alone[argument]


def _refuse_repeated(ctx: Any, given: Iterable[Any]) -> None:
    """`given`: parameters in the order in which they stand on the command line, each time that they do."""
    seen = []
    for param in given:
        if param.param_type_name != "option" or param.multiple or param.count:
            continue
        if param.is_flag and not param.secondary_opts:
            continue  # said twice, it means the same
        if param in seen:
            names = "/".join((param.opts[-1], *param.secondary_opts[-1:]))
            ctx.fail(f"{names} is given more than once, and can have one value only.")
        seen.append(param)
