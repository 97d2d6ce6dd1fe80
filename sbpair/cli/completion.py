"""`sbpair completion SHELL`: print the completion script; nobody's start-up file is edited."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from sbpair.cli.options import COMPLETION_VARIABLE, Options, command
from sbpair.render.result import CommandResult


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


@dataclass(frozen=True, slots=True)
class Script:
    shell: Shell
    script: str


@command(output="cli.completion:Script")
def completion(options: Options, shell: Annotated[Shell, typer.Argument(help="Your shell.")]) -> CommandResult:
    """Print the completion script of a shell.

    \b
    Examples:
      sbpair completion bash > ~/.local/share/bash-completion/completions/sbpair
      sbpair completion zsh > ~/.zfunc/_sbpair
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(prog_name="sbpair", complete_var=COMPLETION_VARIABLE, shell=shell.value)
    return CommandResult(Script(shell, script), text=script + "\n")
