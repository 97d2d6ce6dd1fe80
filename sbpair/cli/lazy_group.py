"""The group whose commands live in files that are imported when their command is called, not before.

Importing every command costs over a second on a small machine; the root's help, suggestions and completion need names
and one line each only.
"""

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from sbpair.cli.help_page import make_ours
from sbpair.cli.parsing import CommandContext
from sbpair.cli.typer_private import CompletionItem


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command is: `module` in this package, the name of the function or typer app in it, and its one line."""

    module: str
    target: str
    summary: str


class LazyGroup(TyperGroup):
    """A group made of entries; `GROUPS`, heading -> name -> entry, comes from a subclass."""

    GROUPS: ClassVar[Mapping[str, Mapping[str, Entry]]] = {}
    context_class = CommandContext

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._entries = {name: entry for entries in self.GROUPS.values() for name, entry in entries.items()}
        self.commands = _Loaded(self._entries)
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


class _Loaded(MutableMapping[str, Any]):
    """Name -> command, imported at its first use."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries
        self._commands: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._commands:
            self._commands[name] = _load(name, self._entries[name])
        return self._commands[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _load(name: str, entry: Entry) -> Any:
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
