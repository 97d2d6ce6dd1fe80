"""All that the command line knows of typer's private parts: how completions are handed to each shell.

`pyproject.toml` pins the versions that have them, and `self_test` names what is gone when typer moves on. Everything
else goes through hooks that click documents: `sbpair.cli.hooks`.
"""

from collections.abc import Mapping
from typing import Any

import typer
from typer._click.shell_completion import CompletionItem, add_completion_class
from typer._completion_classes import BashComplete, FishComplete, PowerShellComplete, ZshComplete

__all__ = ["CompletionItem", "know_the_shells", "self_test"]


def self_test() -> list[str]:
    """What typer no longer has of what is used here and of click's documented hooks; empty with a version that fits."""
    gone = []
    app = typer.Typer(add_completion=False)

    @app.command()
    def probe(word: str = typer.Option("x", rich_help_panel="panel")) -> None:
        """Only looked at."""

    command: Any = typer.main.get_command(app)
    with command.make_context("probe", [], resilient_parsing=True) as context:
        param = command.get_params(context)[0]
        for name in ("process_value", "value_is_missing", "rich_help_panel", "param_type_name", "get_help_record"):
            if not hasattr(param, name):
                gone.append(f"{type(param).__name__}.{name}")
        for name in ("collect_usage_pieces", "format_options", "context_class", "make_parser", "callback"):
            if not hasattr(command, name):
                gone.append(f"{type(command).__name__}.{name}")
        if "word" not in getattr(command.callback, "__annotations__", {}):
            gone.append("annotations of a command's callback")
        _, _, order = command.make_parser(context).parse_args(["--word", "a", "--word", "b"])
        if [getattr(one, "name", None) for one in order] != ["word", "word"]:
            gone.append("options in the order in which they are given")
        if "<str>" not in (param.get_help_record(context) or ("",))[0]:
            gone.append("types in angle brackets in a help record")
    return gone


# Typer's own way asks rich to take markup out of helps that have none, which makes a completion wait for all of rich.


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


_SHELLS: Mapping[str, Any] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish, "powershell": _PowerShell, "pwsh": _PowerShell}


def know_the_shells() -> None:
    """Register what answers each shell; typer does it by itself only for apps that install their own completion."""
    for name, shell in _SHELLS.items():
        add_completion_class(shell, name)
