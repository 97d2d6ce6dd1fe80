"""No option without a test: its name stands in some file of tests, as it is typed."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import typer.main

from sbpair.cli.app import app

TESTS = Path(__file__).parent.parent
UNTESTED = frozenset(
    [
        "--assume-rate",
        "--at",
        "--bearer-tokens",
        "--cert-key",
        "--consumers",
        "--dead-letters",
        "--dedupe",
        "--drop-filter-errors",
        "--explain-plan",
        "--express",
        "--for-application",
        "--forward-dead-letters-to",
        "--grace",
        "--granularity",
        "--handler-timeout",
        "--hold-sessions",
        "--journal-key",
        "--kind",
        "--last",
        "--max-message-size",
        "--max-size-kb",
        "--messaging-units",
        "--metrics-host",
        "--no-bearer-tokens",
        "--parquet",
        "--prefer",
        "--quiet-gap",
        "--replicated",
        "--scheduled",
        "--send-timeout",
        "--snippet",
        "--throttling",
        "--tls-name",
        "--to-sequence",
        "--two-subscriptions",
    ]
)
"""Options from before this was asked; it may only shrink."""


def options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter, click.Option) or parameter.param_type_name == "option":
            yield from (name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("--"))
    if isinstance(command, click.Group) or hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from options(found, click.Context(found, info_name=name, parent=context))


def typed(names: set[str], folder: Path) -> set[str]:
    """Names that stand in a file of this folder, this one aside."""
    left = set(names)
    for file in folder.rglob("*.py"):
        if file != Path(__file__):
            left -= set(re.findall(r"--[a-z][a-z0-9-]*", file.read_text("utf-8")))
    return names - left


def test_every_option_is_typed_in_a_test() -> None:
    command = typer.main.get_command(app)
    every = set(options(command, click.Context(command)))
    assert len(every) > 150, "options are no longer found"
    untested = every - typed(every, TESTS)
    assert untested - UNTESTED == set(), "type these in a test"
    assert UNTESTED - untested == set(), "these are tested now, or are gone: take them out of UNTESTED"


def test_only_whole_names_count(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text('run("drain", "--dry-running", "--yes", "--limit=3")')
    assert typed({"--dry-run", "--yes", "--limit"}, tmp_path) == {"--yes", "--limit"}
