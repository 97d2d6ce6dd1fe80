"""The contents page: every command can be loaded from its entry, help and start-up load none of them."""

import subprocess
import sys

import pytest
from typer.main import get_command

from sbpair.cli.app import COMMANDS, app
from tests.cli.process import Sbpair

STARTED = """\
import sys
from sbpair.cli.running import run
run(sys.argv[1:])
print(sorted(sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_entry_leads_to_a_command_with_examples_after_what_it_is_for(name: str) -> None:
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    assert command.name == name
    leaves = getattr(command, "commands", {}).values() or [command]
    for leaf in leaves:
        if not getattr(leaf, "commands", None):
            purpose, _, examples = (leaf.help or "").partition("Examples:")
            assert len(purpose.strip()) > 20, leaf.name
            assert examples.count("sbpair ") >= 2, leaf.name


def test_the_root_help_lists_every_command_and_imports_none(sbpair: Sbpair) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTED, "--help"], capture_output=True, text=True, env=sbpair.variables(), timeout=60
    )
    listed = {line.split()[0] for line in done.stdout.split("Commands:")[1].splitlines() if line.startswith("  ")}
    assert set(COMMANDS) <= listed
    loaded = done.stderr
    for entry in COMMANDS.values():
        assert f"'sbpair.cli.{entry.module}'" not in loaded


def test_one_command_imports_no_other(sbpair: Sbpair) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTED, "completion", "bash"],
        capture_output=True,
        text=True,
        env=sbpair.variables(),
        timeout=60,
    )
    assert "'sbpair.cli.completion'" in done.stderr
    assert "'sbpair.cli.drain'" not in done.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("adit", "audit"), ("provison", "provision"), ("config chekc", "check"), ("emulator fault lst", "list")],
)
def test_a_mistyped_command_is_answered_with_the_nearest(sbpair: Sbpair, typed: str, meant: str) -> None:
    ran = sbpair(*typed.split())
    assert (ran.code, ran.stdout) == (2, "")
    assert f"Did you mean {meant!r}?" in ran.stderr
    assert "--help" in ran.stderr


@pytest.mark.parametrize("command", ["audit", "drain", "config show", "emulator fault add"])
def test_a_mistyped_option_is_answered_with_the_nearest(sbpair: Sbpair, command: str) -> None:
    ran = sbpair(*command.split(), "--outputt", "json")
    assert (ran.code, ran.stdout) == (2, "")
    assert "--output" in ran.stderr.replace("--outputt", "")
