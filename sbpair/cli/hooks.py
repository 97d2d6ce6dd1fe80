"""A command as click's documented hooks let us have it: parsed the short way, explained by a page of our own, and
imported when it is called, not before.

Typer asks a library for each value, and importing it takes about as long as everything else that a `--help` or a
completion imports. So the plain cases are done here, in click's hook `Parameter.process_value`: nothing given, a text,
a number in its range, one of a few names. Whatever is none of these, or wrong, goes to typer's own way, whose messages
stay. Its help names Python types (`<list[str]>`) and lists the common options again for each command. And importing
every command costs over a second on a small machine; the root's help, suggestions and completion need names and one
line each only.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import cache, partial
from importlib import import_module
from itertools import zip_longest
from types import NoneType, UnionType
from typing import Any, ClassVar, Union, cast, get_args, get_origin

import typer
from typer.core import TyperGroup
from typer.main import get_command

from sbpair.cli.typer_private import CompletionItem
from sbpair.core.redact import quoted


class CommandContext(typer.Context):
    """Context of every command of sbpair, in which options are parsed the short way."""

    def __init__(self, command: Any, *arguments: Any, **settings: Any) -> None:
        super().__init__(command, *arguments, **settings)
        annotations = getattr(command.callback, "__annotations__", {})
        for param in command.get_params(self):
            if "process_value" not in vars(param):
                kind, info = _declared(annotations.get(param.name, bool))  # --help has no annotation
                param.process_value = partial(_process_value, param, kind, info)


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
        limits = f"from {least} to {most}" if most else f"{least} or more"
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


# The help page of every command, by the hooks `collect_usage_pieces` and `format_options`.

COMMON_OPTIONS = "Common options"
"""The panel of the options that every command takes."""
_PLAIN_TYPE = re.compile(r" ?<(?:list\[)?([^\]>]*)\]?>$")
_RANGE = re.compile(r"([\d.]+)<=x<=([\d.]+)")
_AT_LEAST = re.compile(r"x>=([\d.]+)")
_DEFAULT_IN_WORDS = re.compile(r"default: \(([^)]*)\)")


def _usage_pieces(command: Any, ctx: Any) -> list[str]:
    pieces = ["[OPTIONS]"] if any(param.param_type_name == "option" for param in command.get_params(ctx)) else []
    for param in command.get_params(ctx):
        if param.param_type_name != "argument" or param.hidden:
            continue
        name = param.metavar or param.name.upper()
        bare = name if "[" in name or param.required else f"[{name}]"
        pieces.append(bare + ("..." if param.nargs == -1 and "..." not in bare else ""))
    return [*pieces, "COMMAND [ARGS]..."] if hasattr(command, "commands") else pieces


def _format_options(command: Any, ctx: Any, formatter: Any) -> None:
    """Commands, arguments, options, and where the common options are listed: in the root's help, once."""
    records = [(param, param.get_help_record(ctx)) for param in command.get_params(ctx)]
    shown = [(param, record) for param, record in records if record is not None]
    if hasattr(command, "commands"):
        command.format_commands(ctx, formatter)
    own = [one for one in shown if getattr(one[0], "rich_help_panel", None) != COMMON_OPTIONS]
    common = [one for one in shown if one not in own]
    for title, kind in (("Arguments", "argument"), ("Options", "option")):
        rows = [_record(param, *record) for param, record in own if param.param_type_name == kind]
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)
    if common and ctx.parent is None:
        with formatter.section(f"{COMMON_OPTIONS}, before or after the command's name"):
            formatter.write_dl([_record(param, *record) for param, record in common])
    elif common:
        names = ", ".join(param.opts[0] for param, _ in common)
        formatter.write_paragraph()
        formatter.write_text(f"{COMMON_OPTIONS} ({names}): see {ctx.find_root().command_path} --help")


def _record(param: Any, names: str, text: str) -> tuple[str, str]:
    """A line of the help without types and mathematical signs."""
    if param.param_type_name == "argument":
        names = (param.metavar or param.name.upper()).replace("[PAIR]", "PAIR").removesuffix("...")
        names = names[1:-1] if names.startswith("[") and names.endswith("]") and names.count("[") == 1 else names
    else:
        names = _PLAIN_TYPE.sub(lambda match: f" {_value_name(param, match[1])}", names)
    head, bracket, extra = text.rpartition("  [")
    if bracket:
        extra = _RANGE.sub(r"\1 to \2", extra)
        extra = _AT_LEAST.sub(r"at least \1", extra)
        text = head + bracket + _DEFAULT_IN_WORDS.sub(r"default: \1", extra)
    return names, text


def _value_name(param: Any, kind: str) -> str:
    if "|" in kind:
        return kind
    if kind.lower() == "path":
        return "FILE" if not param.name.endswith("dir") else "DIR"
    if kind.startswith(("int", "float")):
        return "N"
    return str(param.opts[-1].rpartition("-")[2].upper())


def make_ours(command: Any) -> None:
    """Let a command and those below it be parsed our way, without options that are given twice, and explained by our
    help page; not yet loaded ones are when they are."""
    command.context_class = CommandContext
    command.make_parser = partial(_make_parser, command)
    command.collect_usage_pieces = partial(_usage_pieces, command)
    command.format_options = partial(_format_options, command)
    known = getattr(command, "commands", None)
    for below in known.values() if isinstance(known, dict) else ():
        make_ours(below)


# The group whose commands live in files that are imported when their command is called.


@dataclass(frozen=True, slots=True)
class Lazy:
    """Where a command is: `module` in this package, the name of the function or typer app in it, and its one line."""

    module: str
    target: str
    summary: str


class LazyGroup(TyperGroup):
    """A group made of entries; `GROUPS`, heading -> name -> entry, comes from a subclass."""

    GROUPS: ClassVar[Mapping[str, Mapping[str, Lazy]]] = {}
    context_class = CommandContext

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._entries = {name: entry for entries in self.GROUPS.values() for name, entry in entries.items()}
        self.commands = cast(Any, _Loaded(self._entries))
        make_ours(self)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self._entries)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, self._entries))  # one column for all groups
        for title, entries in self.GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), entry.summary) for name, entry in entries.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Names of commands without loading them, and the options of the group itself."""
        names = [
            CompletionItem(name, help=entry.summary)
            for name, entry in self._entries.items()
            if name.startswith(incomplete)
        ]
        return [*names, *super(TyperGroup, self).shell_complete(ctx, incomplete)]


class _Loaded(Mapping[str, Any]):
    """Name -> command, imported at its first use."""

    def __init__(self, entries: Mapping[str, Lazy]) -> None:
        self._entries = entries
        self._load = cache(lambda name: _load(name, entries[name]))

    def __getitem__(self, name: str) -> Any:
        return self._load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _load(name: str, entry: Lazy) -> Any:
    """The command of an entry, made by typer as a child of a group with our settings."""
    target = getattr(import_module(f"sbpair.cli.{entry.module}"), entry.target)
    parent = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    parent.callback()(_nothing)
    if isinstance(target, typer.Typer):
        parent.add_typer(target, name=name)
    else:
        parent.command(name)(target)
    command = cast(TyperGroup, get_command(parent)).commands[name]
    make_ours(command)
    return command


def _nothing() -> None:
    """A Typer with a callback is a group even when it has one command."""
