"""The help page of every command, by click's hooks `collect_usage_pieces` and `format_options`.

Typer's own names Python types (`<list[str]>`) and lists the common options again for each command.
"""

import re
from functools import partial
from typing import Any

from sbpair.cli.parsing import parse_our_way

COMMON_OPTIONS = "Common options"
"""The panel of the options that every command takes."""
_PLAIN_TYPE = re.compile(r" ?<(?:list\[)?([^\]>]*)\]?>$")
_RANGE = re.compile(r"([\d.]+)<=x<=([\d.]+)")
_AT_LEAST = re.compile(r"x>=([\d.]+)")
_AT_MOST = re.compile(r"x<=([\d.]+)")
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
    return str(param.opts[-1].rpartition("-")[2].upper())


def make_ours(command: Any) -> None:
    """Let a command and those below it be parsed our way and explained by our help page; not yet loaded ones are when
    they are."""
    parse_our_way(command)
    command.collect_usage_pieces = partial(_usage_pieces, command)
    command.format_options = partial(_format_options, command)
    known = getattr(command, "commands", None)
    for below in known.values() if isinstance(known, dict) else ():
        make_ours(below)
