"""All that the command line knows of typer's private parts; `pyproject.toml` pins the versions that have them.

`self_test` says what is gone when typer moves on: each part has a use here, told where it stands.
"""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, get_args, get_origin

import typer
from typer._click.formatting import HelpFormatter
from typer._click.shell_completion import CompletionItem, add_completion_class
from typer._completion_classes import BashComplete, FishComplete, PowerShellComplete, ZshComplete

from sbpair.core.redact import quoted

__all__ = [
    "COMMON_OPTIONS",
    "CommandContext",
    "CompletionItem",
    "know_the_shells",
    "lighten",
    "make_ours",
    "self_test",
]


def self_test() -> list[str]:
    """What typer no longer has of what is used here; empty with a version that fits."""
    gone = []
    app = typer.Typer(add_completion=False)

    @app.command()
    def probe(word: str = typer.Option("x", rich_help_panel=COMMON_OPTIONS)) -> None:
        """Only looked at."""

    command: Any = typer.main.get_command(app)
    with command.make_context("probe", [], resilient_parsing=True) as context:
        param = command.get_params(context)[0]
        for name in ("_runtime_param", "type_descriptor", "rich_help_panel", "param_type_name", "get_help_record"):
            if not hasattr(param, name):
                gone.append(f"{type(param).__name__}.{name}")
        for name in ("collect_usage_pieces", "format_options", "context_class", "make_parser"):
            if not hasattr(command, name):
                gone.append(f"{type(command).__name__}.{name}")
        _, _, order = command.make_parser(context).parse_args(["--word", "a", "--word", "b"])
        if [getattr(one, "name", None) for one in order] != ["word", "word"]:
            gone.append("options in the order in which they are given")
        if "<str>" not in (param.get_help_record(context) or ("",))[0]:
            gone.append("types in angle brackets in a help record")
    return gone


# Texts of the command line into values, without the library that typer asks for each of them. Importing it takes about
# as long as everything else that a `--help` or a completion imports. So the plain cases are done here: nothing given, a
# text, a number in its range, one of a few names. Whatever is none of these, or wrong, goes to typer's own way, whose
# messages stay.


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
        except typer.BadParameter as error:
            error.param, error.ctx = param, ctx
            raise


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


def _named(value: Any, wanted: type[Enum]) -> Enum:
    try:
        return wanted(value)
    except ValueError:
        raise _NotPlainError from None


class CommandContext(typer.Context):
    """Context of every command of sbpair, in which options are parsed the short way."""

    def __init__(self, command: Any, *arguments: Any, **settings: Any) -> None:
        super().__init__(command, *arguments, **settings)
        lighten(command.get_params(self))


def make_ours(command: Any) -> None:
    """Let a command and those below it be parsed in a `CommandContext` and explained by our help page; not yet loaded
    ones are when they are."""
    command.context_class = CommandContext
    command.make_parser = partial(_make_parser, command)
    command.collect_usage_pieces = partial(_usage_pieces, command)
    command.format_options = partial(_format_options, command)
    known = getattr(command, "commands", None)
    for below in known.values() if isinstance(known, dict) else ():
        make_ours(below)


# An option that takes one value and is given twice. Typer takes the last one, so that a second --report or --archive
# in a long line does away with the first without a word.


def _make_parser(command: Any, ctx: Any) -> Any:
    parser = type(command).make_parser(command, ctx)
    parse = parser.parse_args

    def parse_once(args: list[str]) -> Any:
        values, rest, order = parse(args)
        if not ctx.resilient_parsing:
            _refuse_repeated(ctx, order)
        return values, rest, order

    parser.parse_args = parse_once
    return parser


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


# The help page. Typer's own names Python types (`<list[str]>`) and lists the common options again for each command.

COMMON_OPTIONS = "Common options"
"""The panel of the options that every command takes."""
_PLAIN_TYPE = re.compile(r" ?<(?:list\[)?([^\]>]*)\]?>$")
_RANGE = re.compile(r"([\d.]+)<=x<=([\d.]+)")
_AT_LEAST = re.compile(r"x>=([\d.]+)")
_AT_MOST = re.compile(r"x<=([\d.]+)")
_DEFAULT_IN_WORDS = re.compile(r"default: \(([^)]*)\)")
_DURATIONS = ("for", "interval", "timeout", "outage", "gap", "poll", "last", "idle", "after", "wait", "delay", "lease")
"""Last words of the names of options that take a duration."""


def _usage_pieces(command: Any, ctx: Any) -> list[str]:
    pieces = ["[OPTIONS]"] if any(param.param_type_name == "option" for param in command.get_params(ctx)) else []
    for param in command.get_params(ctx):
        if param.param_type_name != "argument" or param.hidden:
            continue
        name = param.metavar or param.name.upper()
        bare = name if "[" in name or param.required else f"[{name}]"
        pieces.append(bare + ("..." if param.nargs == -1 and "..." not in bare else ""))
    return [*pieces, "COMMAND [ARGS]..."] if hasattr(command, "commands") else pieces


def _format_options(command: Any, ctx: Any, formatter: HelpFormatter) -> None:
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
        extra = _AT_MOST.sub(r"at most \1", _AT_LEAST.sub(r"at least \1", extra))
        text = head + bracket + _DEFAULT_IN_WORDS.sub(r"default: \1", extra)
    return names, text


def _value_name(param: Any, kind: str) -> str:
    if "|" in kind:
        return kind
    if kind.lower() == "path":
        return "FILE" if not param.name.endswith("dir") else "DIR"
    if kind.startswith(("int", "float")):
        return "N"
    words = param.opts[-1].strip("-").split("-")
    return "DURATION" if words[-1] in _DURATIONS else words[-1].upper()


# How completions are handed to each shell. Typer's own way asks rich to take markup out of helps that have none, which
# makes a completion wait for all of rich.


class _Bash(BashComplete):
    def get_completion_args(self) -> tuple[list[str], str]:
        """Bash hands over `--output=json` as three words."""
        arguments, incomplete = super().get_completion_args()
        return [word for word in arguments if word != "="], incomplete


class _Zsh(ZshComplete):
    def format_completion(self, item: CompletionItem) -> str:
        value = super().format_completion(_without_help(item))
        told = f"{value}:{super().format_completion(CompletionItem(item.help))}" if item.help else value
        # All of it stands between single quotes, in which typer's way to write one, twice, is none at all.
        return told.replace("''", "'\\''")


class _Fish(FishComplete):
    def format_completion(self, item: CompletionItem) -> str:
        value = super().format_completion(_without_help(item))
        return f"{value}\t{' '.join(item.help.split())}" if item.help else value


class _PowerShell(PowerShellComplete):
    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.value}:::{item.help or ' '}"


def _without_help(item: CompletionItem) -> CompletionItem:
    return CompletionItem(item.value, type=item.type)


_SHELLS: Mapping[str, Any] = {
    "bash": _Bash,
    "zsh": _Zsh,
    "fish": _Fish,
    "powershell": _PowerShell,
    "pwsh": _PowerShell,
}


def know_the_shells() -> None:
    """Register what answers each shell; typer does it by itself only for apps that install their own completion."""
    for name, shell in _SHELLS.items():
        add_completion_class(shell, name)
