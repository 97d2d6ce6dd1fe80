"""The contents page: every command can be loaded from its entry, help and start-up load none of them."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from sbpair.cli.app import COMMANDS, app
from sbpair.cli.help import _PAGES, KINDS, HelpTopic
from sbpair.core.errors import SbpairError
from sbpair.core.transfer.filters import SYSTEM_PROPERTIES
from sbpair.settings import HOW_TO_CONFIGURE
from tests.cli.process import Sbpair
from tests.waiting import LIMIT_SECONDS

STARTED = """\
import sys
from sbpair.cli.running import run
run(sys.argv[1:])
print(sorted(sys.modules), file=sys.stderr)
"""


def explained(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below, and every group that does something by itself."""
    below = dict(getattr(command, "commands", None) or {})
    if not below or getattr(command, "invoke_without_command", False):
        yield path, command
    for name, one in below.items():
        yield from explained(one, (*path, name))


EXPLAINED = {" ".join(path): command for path, command in explained(get_command(app), ())}


def examples_of(command: Any) -> list[str]:
    return [line.strip() for line in (command.help or "").partition("Examples:")[2].splitlines() if line.strip()]


def command_lines(example: str) -> Iterator[list[str]]:
    """The arguments of each `sbpair` in a line of shell."""
    lexer = shlex.shlex(example, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("();<>|&"):
            if words and words[0] == "sbpair":
                yield words[1:]
            words = ["a redirection's file"] if set(word) <= set("<>") else []
        elif words or "=" not in word:
            words.append(word)


def parse(arguments: list[str]) -> Any:
    """The context of the command that a line ends in; its options are checked, nothing is run."""
    context: Any = get_command(app).make_context("sbpair", list(arguments))
    while rest := [*context._protected_args, *context.args]:
        if not hasattr(context.command, "resolve_command"):
            break
        name, command, rest = context.command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return context


def test_all_commands_are_looked_at() -> None:
    assert {path.split(" ")[0] for path in EXPLAINED} == set(COMMANDS)
    assert len(EXPLAINED) > 30


@pytest.mark.parametrize("path", EXPLAINED)
def test_a_help_begins_with_what_the_command_is_for_and_ends_with_examples(path: str) -> None:
    command = EXPLAINED[path]
    purpose = " ".join((command.help or "").partition("\n\n")[0].split())
    assert len(purpose) > 20
    assert purpose[0].isupper()
    assert "." in purpose
    examples = examples_of(command)
    assert len(examples) >= 2
    shown = [parse(line).command_path for example in examples for line in command_lines(example)]
    assert f"sbpair {path}" in shown


@pytest.mark.parametrize("path", ["", *EXPLAINED])
def test_the_examples_of_a_help_can_be_typed(path: str) -> None:
    examples = examples_of(EXPLAINED[path] if path else get_command(app))
    lines = [line for example in examples for line in command_lines(example)]
    assert len(lines) >= len(examples)
    for line in lines:
        context = parse(line)
        assert not hasattr(context.command, "commands") or context.command.invoke_without_command, line


def test_the_tasks_of_the_cheat_sheet_can_be_typed(sbpair: Sbpair) -> None:
    shown = sbpair("cheat").stdout
    commands = [line.strip() for line in shown.splitlines() if line.strip().startswith("sbpair ")]
    assert len(commands) >= 25
    for line in commands:
        context = parse(shlex.split(line)[1:])
        assert not hasattr(context.command, "commands") or context.command.invoke_without_command, line
    assert sbpair("cheat", "drain").stdout in shown
    slip = sbpair("cheat", "dead-leters")
    assert (slip.code, slip.stdout) == (2, "")
    assert "'dead-letters'" in slip.stderr


def test_every_page_stands_under_one_heading() -> None:
    listed = [topic for topics in KINDS.values() for topic in topics]
    assert sorted(listed) == sorted(HelpTopic)
    assert {page.stem for page in _PAGES.glob("*.md")} <= set(map(str, HelpTopic))


def test_the_page_of_filters_lists_the_properties_that_a_condition_may_ask_for() -> None:
    page = (_PAGES / "filters.md").read_text(encoding="utf-8")
    assert re.findall(r"^    sys\.(\w+)$", page, re.MULTILINE) == list(SYSTEM_PROPERTIES)


def subclasses(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


def test_what_hints_and_topics_name_can_be_typed() -> None:
    page = (_PAGES / "config.md").read_text(encoding="utf-8")
    texts = [page, HOW_TO_CONFIGURE, *(getattr(one, "hint", "") for one in subclasses(SbpairError))]
    named = [words for text in texts for words in re.findall(r"sbpair ([a-z-]+(?: [a-z-]+)?)", text)]
    assert len(named) > 10
    for words in named:
        first, _, second = words.partition(" ")
        assert first in COMMANDS, words
        below = getattr(get_command(app).commands[first], "commands", None)
        assert below is None or second in below or first == "emulator", words


def test_the_root_help_lists_every_command_and_imports_none(sbpair: Sbpair) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTED, "--help"],
        capture_output=True,
        text=True,
        env=sbpair.variables(),
        timeout=LIMIT_SECONDS,
    )
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert set(COMMANDS) <= listed
    loaded = done.stderr
    for entry in COMMANDS.values():  # groups are contents pages, too: they stand with the root's
        assert entry.module == "app" or f"'sbpair.cli.{entry.module}'" not in loaded


def test_one_command_imports_no_other(sbpair: Sbpair) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTED, "completion", "bash"],
        capture_output=True,
        text=True,
        env=sbpair.variables(),
        timeout=LIMIT_SECONDS,
    )
    assert "'sbpair.cli.help'" in done.stderr
    assert "'sbpair.cli.transfer.drain'" not in done.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("audt", "audit"), ("evacuat", "evacuate"), ("config chekc", "check"), ("emulator fault lst", "list")],
)
def test_a_mistyped_command_is_answered_with_the_nearest(sbpair: Sbpair, typed: str, meant: str) -> None:
    ran = sbpair(*typed.split())
    assert (ran.code, ran.stdout) == (2, "")
    assert f"Did you mean {meant!r}?" in ran.stderr
    assert "--help" in ran.stderr


def test_who_asks_for_the_version_is_told_how(sbpair: Sbpair) -> None:
    assert "sbpair --version" in sbpair("version").stderr


@pytest.mark.parametrize("command", ["audit", "drain", "config show", "emulator fault add"])
def test_a_mistyped_option_is_answered_with_the_nearest(sbpair: Sbpair, command: str) -> None:
    ran = sbpair(*command.split(), "--outputt", "json")
    assert (ran.code, ran.stdout) == (2, "")
    assert "--output" in ran.stderr.replace("--outputt", "")


def test_help_of_a_command_is_its_help_and_a_slip_gets_a_suggestion(sbpair: Sbpair) -> None:
    assert sbpair("help", "emulator", "fault").stdout == sbpair("emulator", "fault", "--help").stdout
    contents = sbpair("help").stdout
    assert len(contents.splitlines()) <= 24
    assert set(COMMANDS) | set(HelpTopic) <= set(contents.split())
    slip = sbpair("help", "drian")
    assert (slip.code, slip.stdout) == (2, "")
    assert "'drian' is neither a topic nor a command." in slip.stderr
    assert "'drain'" in slip.stderr


def test_help_explains_the_terms(sbpair: Sbpair) -> None:
    told = sbpair("help", "terms")
    assert told.code == 0
    for term in ("pair", "primary", "secondary", "backlog queue", "drain", "syphon"):
        assert f"\n{term}\n" in f"\n{told.stdout}"
