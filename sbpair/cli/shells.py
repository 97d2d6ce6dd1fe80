"""How candidates are handed to each shell. Typer's own way asks rich to take markup out of helps that have none, which
makes a completion wait for all of rich."""

from collections.abc import Mapping
from typing import Any

from typer._click.shell_completion import CompletionItem, add_completion_class
from typer._completion_classes import BashComplete, FishComplete, PowerShellComplete, ZshComplete


class _Bash(BashComplete):
    def get_completion_args(self) -> tuple[list[str], str]:
        """Bash hands over `--output=json` as three words."""
        arguments, incomplete = super().get_completion_args()
        return [word for word in arguments if word != "="], incomplete


class _Zsh(ZshComplete):
    def format_completion(self, item: CompletionItem) -> str:
        value = super().format_completion(_without_help(item))
        return f"{value}:{super().format_completion(CompletionItem(item.help))}" if item.help else value


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
    classes: dict[str, Any] = {
        "bash": _Bash,
        "zsh": _Zsh,
        "fish": _Fish,
        "powershell": _PowerShell,
        "pwsh": _PowerShell,
    }
    for name, shell in classes.items():
        add_completion_class(shell, name)
