"""What an option set says of itself: the words of the command to continue with are what the command line would have."""

import inspect
import typing
from dataclasses import fields
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from sbpair.cli.options import ONCE, Options, OptionSet, command
from sbpair.cli.replication import replicate as of_replication
from sbpair.cli.transfer import entity_ref
from sbpair.cli.transfer import evacuate as of_evacuation
from sbpair.cli.transfer import options as of_transfer
from sbpair.render.result import CommandResult

SETS = [
    kind
    for module in (of_transfer, of_evacuation, entity_ref, of_replication)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, OptionSet) and kind is not OptionSet
]


def other_than(default: Any, kind: Any) -> Any:
    """A value that somebody could give instead of the default."""
    if typing.get_origin(kind) in (UnionType, typing.Union):
        kind = next(option for option in typing.get_args(kind) if option is not NoneType)
    if typing.get_origin(kind) is list:
        return ["1", "-x y"]
    if kind is bool:
        return not default
    if issubclass(kind, Enum):
        return next(member for member in kind if member is not default)
    return {str: "it's -1", Path: Path("a folder/file"), int: 7, float: 1234567.25}[kind]


def every_option(kind: type[OptionSet]) -> list[tuple[str, Any, Any]]:
    """Name, annotation and default of each option of a set, those of the sets in it included."""
    return [(one.name, one.annotation, one.default) for one in kind.parameters()]


def parsed(kind: type[OptionSet], words: list[str]) -> OptionSet:
    """The set that a command line with these words gives."""
    app, got = typer.Typer(), []

    def take(**values: Any) -> None:
        got.append(kind.taken_from(values))

    take.__signature__ = inspect.Signature(list(kind.parameters()))  # type: ignore[attr-defined]
    take.__annotations__ = {one.name: one.annotation for one in kind.parameters()}
    app.command()(take)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return got[0]  # type: ignore[no-any-return]


def values_of(options: OptionSet) -> dict[str, Any]:
    """The values that were given, also those of sets in it."""
    found: dict[str, Any] = {}
    for one in fields(options):  # type: ignore[arg-type]
        value = getattr(options, one.name)
        found |= values_of(value) if isinstance(value, OptionSet) else {one.name: value or None}
    return found


@pytest.mark.parametrize("kind", SETS)
def test_nothing_given_is_no_word_but_what_has_to_be_given(kind: type[OptionSet]) -> None:
    needed = ["orders" for one in kind.parameters() if one.default is one.empty]
    assert parsed(kind, needed).words() == needed


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in SETS for name, _, _ in every_option(kind)], ids=str
)
def test_each_option_comes_back_as_it_was_given_unless_it_was_for_once(kind: type[OptionSet], name: str) -> None:
    values = {
        other: "orders" if default is inspect.Parameter.empty else default for other, _, default in every_option(kind)
    }
    ((annotation, default),) = [(kind_of, default) for other, kind_of, default in every_option(kind) if other == name]
    meant, *said = typing.get_args(annotation)
    values[name] = other_than(default, meant)
    given = kind.taken_from(values)
    if ONCE in said:
        assert given.words() == []
    else:
        assert given.words(), "it would be lost"
        assert values_of(parsed(kind, given.words())) == values_of(given)


def test_what_limits_a_run_is_not_repeated() -> None:
    moves = of_transfer.DrainOptions(
        limit=5, rate=2.0, for_="15m", until_idle="1m", new_ledger=True, report=Path("r.md"), ledger=Path("l.jsonl")
    )
    assert moves.words() == ["--ledger", "l.jsonl"]


def test_sets_in_a_set_are_repeated_too() -> None:
    moves = of_transfer.MoveOptions(
        backlog=of_transfer.BacklogOptions(queue=["3"]), filters=of_transfer.Filters(destination="a*"), reserve=40
    )
    assert moves.words() == ["--queue", "3", "--destination", "a*", "--reserve", "40"]


def test_a_command_goes_on_with_all_that_it_was_given_but_what_was_for_once() -> None:
    app, lines = typer.Typer(), []

    @app.command()
    @command(output="cli.help:Script", asks=True, dry_run="Only look.")
    def probe(
        options: Options,
        entity: Annotated[str, typer.Argument()],
        *,
        dlq: Annotated[bool, typer.Option("--dlq")] = False,
        compact: Annotated[bool, typer.Option("--compact/--no-compact")] = True,
        chosen: of_transfer.ResendOptions,
    ) -> CommandResult:
        lines.append(options.go_on)
        return CommandResult(None, command="probe")

    @app.command()
    def other() -> None: ...

    given = [
        "probe",
        "--dlq",
        "--no-compact",
        "a queue",
        "-n",
        "5",
        "--rate",
        "2.5",
        "--ledger",
        "l.jsonl",
        "--dry-run",
    ]
    assert CliRunner().invoke(app, [*given, "-o", "json"]).exit_code == 0
    assert CliRunner().invoke(app, ["probe", "orders"]).exit_code == 0
    assert lines == ["sbpair probe 'a queue' --dlq --no-compact --rate 2.5 --ledger l.jsonl", "sbpair probe orders"]


def test_other_words_take_the_place_of_a_set_in_the_command_to_continue_with() -> None:
    line = ("evacuate", "a", "b", "--except", "x", "--follow", "--when-lag", "2s", "--reason", "move it")
    options = Options(line=line)
    following = of_evacuation.FollowOptions(follow=True, when_lag="2s")
    assert options.go_on_with(following, "--cut-over") == (
        "sbpair evacuate a b --except x --reason 'move it' --cut-over"
    )
    assert options.go_on_with(of_evacuation.FollowOptions(), "--x") == f"{options.go_on} --x"
