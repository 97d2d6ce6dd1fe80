"""The options that every command takes, before or after its name, and the decorator that gives them to a command.

    @command(output="core.inspection.audit.result:Printed")
    def audit(options: Options, pair: PairArgument = None, ...) -> CommandResult: ...

The decorator adds the common options to the signature typer sees, folds those given before the command's name under
those given after it, and hands the command one `Options` value. A parameter whose type is an `OptionSet` stands for
all options that the set declares: what several commands share is declared once.
"""

import inspect
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, fields, replace
from enum import StrEnum
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeGuard, get_args

import typer
from typer.models import ArgumentInfo, OptionInfo

from sbpair.cli import suggestions
from sbpair.cli.hooks import COMMON_OPTIONS
from sbpair.core.durations import parse_duration, parse_moment
from sbpair.core.errors import (
    EntityNotFoundError,
    HostNotFoundError,
    SbpairError,
    ServerBusyError,
    UsageError,
    for_pair,
)
from sbpair.render.console import check_format, check_writable, colors_wanted
from sbpair.render.output import Format

if TYPE_CHECKING:
    from sbpair.render.result import CommandResult

TIMEOUT_VARIABLE = "SBPAIR_TIMEOUT"
"""A time-out of one request for all commands: on a slow network, or a busy machine."""
COMPLETION_VARIABLE = "_SBPAIR_COMPLETE"
"""Set by the completion scripts when they ask for completions."""


PAIR: ContextVar[str | None] = ContextVar("pair", default=None)
"""The pair that a writing command works on, a field of every line of a log as JSON."""


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class _BadText(typer.BadParameter):
    """What is wrong with the text of an option."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text

    def of_option(self, context: typer.Context) -> str:
        """The message with the option that has the text."""
        has_it = (param for param in context.command.params if context.params.get(param.name or "") == self.text)
        return "".join(f"{param.opts[-1]}: " for param in list(has_it)[:1]) + self.message


def duration_option(text: str | None) -> float | None:
    """Seconds of a duration option; typer shows what is wrong with a bad one."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except UsageError as error:
        raise _BadText(error.message, text) from error


def pause_option(text: str, option: str) -> float:
    """Seconds of an option that says how often something is done.

    Raises:
        UsageError: less than a second; the option is named.
    """
    seconds = duration_option(text) or 0.0
    if seconds < 1:
        raise UsageError(f"{option} is one second or more, not {text}.")
    return seconds


def moment_option(text: str, option: str, now: float) -> float:
    """UTC epoch seconds of an option that takes a time, or how long ago.

    Raises:
        UsageError: it is neither; the option is named.
    """
    try:
        return parse_moment(text, now)
    except UsageError as error:
        raise UsageError(f"{option}: {error.message}") from None


def address_option(listen: str, usual: str) -> tuple[str, int]:
    """Host and port of --listen; without a host every address of this machine.

    Raises:
        UsageError: it is none; `usual` is named.
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise UsageError(f"--listen is HOST:PORT, such as {usual}, not {listen}.")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104  (what `:9464` asks for)


def _common(*names: str, **said: Any) -> Any:
    return typer.Option(*names, rich_help_panel=COMMON_OPTIONS, **said)


@dataclass(frozen=True, slots=True)
class Options:
    """The common options: declarations and values. None or False: not given."""

    config: Annotated[Path | None, _common(help="Configuration file.")] = None
    output: Annotated[
        Format | None,
        _common(
            "-o",
            "--output",
            metavar="FORMAT",
            help="table, json, jsonl, yaml, tsv or markdown; for some also prometheus, nagios, github, junit or html.",
            show_default="table or tsv",
        ),
    ] = None
    outfile: Annotated[Path | None, _common(help="Write the output to this file; it is replaced in one step.")] = None
    no_color: Annotated[bool, _common(help="No colors.")] = False
    quiet: Annotated[bool, _common("-q", "--quiet", help="Only errors on stderr.")] = False
    verbose: Annotated[bool, _common("-v", "--verbose", help="More detail, also on stderr.")] = False
    log_format: Annotated[LogFormat | None, _common(help="Format of the log on stderr.", show_default="text")] = None
    no_input: Annotated[bool, _common(help="Never prompt.")] = False
    timeout: Annotated[
        str | None,
        _common(
            metavar="DURATION",
            help="Time-out of one request.",
            show_default="30s; discover, doctor, status, replicate send 10s",
        ),
    ] = None
    exit_zero: Annotated[bool, _common(help="Exit 0 instead of 5 when there are findings.")] = False
    primary: Annotated[
        str | None, _common(metavar="NAME", help="Primary namespace of a pair that no file names, by name or host.")
    ] = None
    secondary: Annotated[str | None, _common(metavar="NAME", help="Its secondary namespace.")] = None
    connection_string_file: Annotated[
        Path | None,
        _common(metavar="FILE", help="Connection strings of namespaces, one a line; - reads them from stdin."),
    ] = None
    line: tuple[str, ...] = ()
    """The command with its arguments and its options that are not `ONCE`."""
    yes: bool = False
    """--yes was given: nothing is asked, except by cleanup for each queue with messages."""
    dry_run: bool = False
    """--dry-run or --plan-out was given: nothing is changed."""

    @property
    def go_on(self) -> str:
        """The command line that goes on with what is left."""
        return shlex.join(["sbpair", *self.line])

    def go_on_with(self, other: "OptionSet", *words: str) -> str:
        """The same, with these words instead of the options of a set."""
        given = "".join(f" {shlex.quote(word)}" for word in other.words())
        return f"{self.go_on.replace(given, '', 1)} {shlex.join(words)}"

    def over(self, outer: "Options | None") -> "Options":
        """These options, completed by the ones given before the command's name."""
        if outer is None:
            return self
        missing = {f.name: getattr(outer, f.name) for f in fields(self) if not getattr(self, f.name)}
        return replace(self, **missing)

    def timeout_seconds(self, default: float) -> float:
        seconds = self.given_timeout_seconds
        return default if seconds is None else seconds

    @property
    def given_timeout_seconds(self) -> float | None:
        """What --timeout says, or without it the variable; None without either."""
        name, text = "--timeout", self.timeout
        if text is None:
            name, text = TIMEOUT_VARIABLE, os.environ.get(TIMEOUT_VARIABLE) or None
        try:
            return duration_option(text)
        except typer.BadParameter as error:
            raise UsageError(f"{name}: {error.message}") from error


class Once:
    """In the annotation of an option: the command to continue with leaves it out. It has reached a limit, or said
    something of one run alone."""


ONCE = Once()


class OptionSet:
    """Base of a frozen dataclass whose fields are options, arguments or sets of them that several commands take.

    A field's annotation is what a command's parameter would have, and its default the option's. That is the only place
    where an option is described: its help, its values, its completion, and whether the command to continue with
    repeats it.
    """

    def words(self) -> list[str]:
        """What was given, as the command to continue with repeats it: all but the options that are `ONCE`."""
        return _given(list(self.parameters()), self._values())

    def _values(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for declared in fields(self):  # type: ignore[arg-type]
            value = getattr(self, declared.name)
            found |= value._values() if isinstance(value, OptionSet) else {declared.name: value}
        return found

    @classmethod
    def parameters(cls) -> Iterator[inspect.Parameter]:
        """The options, as parameters of a command."""
        for declared in fields(cls):  # type: ignore[arg-type]
            if _is_set(declared.type):
                yield from declared.type.parameters()
            else:
                default = inspect.Parameter.empty if declared.default is MISSING else declared.default
                keyword = inspect.Parameter.KEYWORD_ONLY
                yield inspect.Parameter(declared.name, keyword, annotation=declared.type, default=default)

    @classmethod
    def taken_from(cls, values: dict[str, Any]) -> Self:
        """The set with the values that typer has parsed, which are taken out of `values`."""
        return cls(
            **{
                one.name: one.type.taken_from(values) if _is_set(one.type) else values.pop(one.name)
                for one in fields(cls)  # type: ignore[arg-type]
            }
        )


def _as_words(name: str, metadata: Sequence[Any], value: Any) -> list[str]:
    if ONCE in metadata:
        return []
    # In an annotation typer takes an option's first name for its default, which the field has.
    declared = next((said.default, *(said.param_decls or ())) for said in metadata if hasattr(said, "param_decls"))
    names = [text for text in declared if isinstance(text, str) and text.startswith("--")]
    option = names[0] if names else f"--{name.strip('_').replace('_', '-')}"
    if isinstance(value, bool):
        return [option.partition("/")[0 if value else 2]]
    values = value if isinstance(value, list | tuple) else (value,)
    written = (format(each, ".15g") if isinstance(each, float) else str(each) for each in values)
    return [word for each in written for word in (option, each)]


def _given(parameters: Sequence[inspect.Parameter], values: Mapping[str, Any]) -> list[str]:
    """Arguments and options of a command as its line goes on with them."""
    arguments: list[str] = []
    options: list[str] = []
    for parameter in parameters:
        value, metadata = values[parameter.name], get_args(parameter.annotation)[1:]
        if value in (parameter.default, None, (), []):
            continue
        if any(isinstance(said, ArgumentInfo) for said in metadata):
            arguments += map(str, value) if isinstance(value, list | tuple) else [str(value)]
        else:
            options += _as_words(parameter.name, metadata, value)
    return [*arguments, *options]


def _is_set(kind: Any) -> TypeGuard[type[OptionSet]]:
    return isinstance(kind, type) and issubclass(kind, OptionSet)


_COMMON = {each.name: each.type for each in fields(Options) if each.name not in ("line", "yes", "dry_run")}


@dataclass(frozen=True, slots=True)
class FinishedCommand:
    """What became of one command: its result or the error that ended it, with the options that say how to show it."""

    command: str
    options: Options
    result: "CommandResult | None" = None
    error: SbpairError | None = None


Command = Callable[..., "CommandResult"]


def command(
    *, output: str, besides: str = "", checks: bool = False, page: bool = False, asks: bool = False, dry_run: str = ""
) -> Callable[[Command], Callable[..., FinishedCommand]]:
    """Give a command the common options as its first argument, `options`; its errors are part of what it returns.

    A command that has a parameter `ctx` gets typer's context.

    `output` names the dataclass (or union of some) that the command prints with -o json, `module:Name` below `sbpair`:
    `sbpair schema` derives the JSON Schema from it. It is a text because few who call a command want its schema.
    `besides` tells what the command prints that is no JSON. `checks`, `page`: whether it has the formats of monitoring,
    and HTML; any other one is refused before the work begins. `asks`: it has --yes, and with the text `dry_run` as its
    help --dry-run; both are given to it in its `options`.
    """
    writing = [_flag("dry_run", Annotated[bool, typer.Option("--dry-run", help=dry_run), ONCE])] if dry_run else []
    writing += [_flag("yes", Annotated[bool, typer.Option("-y", "--yes", help="Do not ask."), ONCE])] if asks else []
    return lambda function: _wrapped(function, Output(output, besides, checks, page), writing)


def _flag(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=False)


def _wrapped(
    function: Command, output: "Output", writing: Sequence[inspect.Parameter]
) -> Callable[..., FinishedCommand]:
    parameters = inspect.signature(function).parameters
    sets = {name: p.annotation for name, p in parameters.items() if _is_set(p.annotation)}
    own = [
        one
        for name, p in parameters.items()
        if name not in ("options", "ctx")
        for one in (sets[name].parameters() if name in sets else (p,))
    ]
    own += writing
    own_names = {one.name for one in own}

    @wraps(function)
    def run(ctx: typer.Context, **values: Any) -> FinishedCommand:
        given = Options(**{name: values.pop(name) for name in _COMMON if name not in own_names})
        options = given.over(ctx.obj if isinstance(ctx.obj, Options) else None)
        ctx.obj = options
        PAIR.set(None)
        ctx.color = None if colors_wanted(options.no_color) else False
        called = ctx.command_path.partition(" ")[2]
        options = replace(
            options,
            line=(*called.split(), *_given(own, values)),
            yes=values.pop("yes", False),
            dry_run=values.pop("dry_run", False) or values.get("plan_out") is not None,
        )
        if "ctx" in parameters:
            values["ctx"] = ctx
        try:
            _refuse_secrets(values, called)
            values |= {name: kind.taken_from(values) for name, kind in sets.items()}
            check_format(called, options.output, checks=output.checks, page=output.page)
            if options.outfile is not None:
                check_writable(options.outfile)
            return FinishedCommand(called, options, result=replace(function(options, **values), command=called))
        except SbpairError as error:
            if isinstance(error, EntityNotFoundError):
                error.looking_like(suggestions.known_entities(ctx))
            if isinstance(error, HostNotFoundError) and (near := suggestions.misspelt_namespace(ctx)):
                error.hint = f"Did you mean {near!r}?"
            if isinstance(error, ServerBusyError):
                error.hint = error.hint_for(own_names)
            error.hint = for_pair(error.hint, _pair_in(values))
            return FinishedCommand(called, options, error=error)
        except typer.BadParameter as error:
            hint = f"See: {ctx.command_path} --help"
            message = error.of_option(ctx) if isinstance(error, _BadText) else error.format_message()
            return FinishedCommand(called, options, error=UsageError(message, hint=hint))

    _present_as(run, own)
    setattr(run, "output", output)  # noqa: B010
    return run


_PASTED = re.compile(r"Endpoint=sb://.*SharedAccess", re.IGNORECASE | re.DOTALL)


def _refuse_secrets(values: Mapping[str, Any], called: str) -> None:
    """A key on a command line stands in the shell's history, and in the list of processes for everybody."""
    texts = (text for value in values.values() for text in (value if isinstance(value, list | tuple) else (value,)))
    if any(isinstance(text, str) and _PASTED.search(text) for text in texts):
        raise UsageError(
            "A connection string was given as an argument, where the shell's history and other users of this machine "
            "can read its key. Nothing was done; renew the key if they may have.",
            hint=f"Paste it into: sbpair {called} --connection-string-file -, or set SBPAIR_CONNECTION_STRING",
        )


def _pair_in(values: dict[str, Any]) -> str | None:
    """The one pair that a command line names, or that its command works on."""
    pair = values.get("pair") or PAIR.get()
    several: list[str] = values.get("pairs") or []
    return pair if isinstance(pair, str) else several[0] if len(several) == 1 else None


@dataclass(frozen=True, slots=True)
class Output:
    """What a command says of its output: see `command`."""

    kind: str
    besides: str
    checks: bool
    page: bool

    def load(self) -> Any:
        """The dataclass, or the union of some."""
        module, _, name = self.kind.partition(":")
        return getattr(import_module(f"sbpair.{module}"), name)


def before_the_command(ctx: typer.Context, **values: Any) -> None:
    """Callback of the app and its groups: remember the common options given before the command's name."""
    given = Options(**{name: values[name] for name in _COMMON})
    ctx.obj = given.over(ctx.obj if isinstance(ctx.obj, Options) else None)


def _present_as(function: Callable[..., Any], own: list[inspect.Parameter]) -> None:
    """Make typer see: the context, the command's own parameters, the common options."""
    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=getattr(Options(), name))
        for name, annotation in _COMMON.items()
        if name not in {one.name for one in own}
    ]
    parameters = [context, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *common]
    for parameter in parameters:
        kind, *said = get_args(parameter.annotation) or (parameter.annotation,)
        for info in said:
            # Without a name of its own typer would give a flag a --no-flag, too.
            if kind is bool and isinstance(info, OptionInfo) and info.default is ... and not info.param_decls:
                info.param_decls = (f"--{parameter.name.replace('_', '-')}",)
    setattr(function, "__signature__", inspect.Signature(parameters))  # noqa: B010
    function.__annotations__ = {p.name: p.annotation for p in parameters}


def with_common_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make typer offer the common options too on a callback that takes them as `**values`."""
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    own = [p for name, p in inspect.signature(function).parameters.items() if name != "ctx" and p.kind not in kinds]
    _present_as(function, own)
    return function


with_common_options(before_the_command)


PairArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="PAIR", help="Name of a configured pair, or PRIMARY:SECONDARY.", autocompletion=suggestions.pairs
    ),
]


def _pairs(**more: Any) -> Any:
    said = "Names of configured pairs, or PRIMARY:SECONDARY."
    return typer.Argument(metavar="PAIR", help=said, autocompletion=suggestions.pairs, **more)


PairsArgument = Annotated[list[str] | None, _pairs()]
AllPairsArgument = Annotated[list[str] | None, _pairs(show_default="all but `local`, which counts alone")]
"""Of a command that takes every configured pair where none is named."""
