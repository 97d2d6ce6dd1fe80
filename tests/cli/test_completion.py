"""Completion: generated scripts, real shells, and candidates out of the configuration and the code."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import typer

from sbpair.cli.app import COMMANDS
from sbpair.cli.suggestions import misspelt_namespace
from sbpair.settings import load
from tests.cli.process import Sbpair
from tests.waiting import LIMIT_SECONDS

COMPLETIONS = Path(__file__).parents[2] / "completions"
CONFIGURATION = """\
version: 1
pairs:
  orders:
    primary: {namespace: contoso-weu}
    secondary: {namespace: contoso-neu, connection_string: {env: NOT_SET}}
    entities: [orders, invoices/incoming]
    backlog_queues: 4
  spare: {primary: {namespace: contoso-a}, secondary: {namespace: contoso-b}}
"""


@pytest.fixture
def configured(sbpair: Sbpair) -> Sbpair:
    """A home with two pairs, one of whose secrets is not there: completion does not ask for it."""
    (sbpair.home / "sbpair.yaml").write_text(CONFIGURATION, encoding="utf-8")
    return sbpair


@pytest.mark.parametrize(
    ("shell", "ending"), [("bash", "bash"), ("zsh", "zsh"), ("fish", "fish"), ("powershell", "ps1")]
)
def test_the_shipped_scripts_are_what_the_command_prints(sbpair: Sbpair, shell: str, ending: str) -> None:
    assert (COMPLETIONS / f"sbpair.{ending}").read_text(encoding="utf-8") == sbpair("completion", shell).stdout


def complete(runner: Sbpair, *words: str) -> list[str]:
    """Candidates for the last word, asked for as bash asks."""
    asked = {"_SBPAIR_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    ran = runner(env=asked)
    assert (ran.code, ran.stderr) == (0, "")
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("line", "candidates"),
    [
        ("sbpair au", ["audit"]),
        ("sbpair audit o", ["orders"]),
        ("sbpair audit orders ", ["spare"]),
        ("sbpair config use s", ["spare"]),
        ("sbpair drain orders --queue ", ["0", "1", "2", "3"]),
        ("sbpair syphon spare --dlq --queue 1", ["1"]),
        ("sbpair peek orders --queue 2", ["2"]),
        ("sbpair drain --queue ", []),
        ("sbpair audit --check SBP00", [f"SBP00{number}" for number in range(1, 10)]),
        ("sbpair audit --ignore SBP001", ["SBP001"]),
        ("sbpair audit --explain SBP001", ["SBP001"]),
        ("sbpair send or", ["orders"]),
        ("sbpair send orders i", ["invoices/incoming"]),
        ("sbpair replicate send orders i", ["invoices/incoming"]),
        ("sbpair ping orders orders ", ["invoices/incoming"]),
        ("sbpair peek orders --entity o", ["orders"]),
        ("sbpair peek orders --session-id ", []),
        ("sbpair drain orders --destination i", ["invoices/incoming"]),
        ("sbpair peek --group-by destination,re", ["destination,reason"]),
        ("sbpair -o j", ["json", "jsonl", "junit"]),
        ("sbpair audit --output = pro", ["prometheus"]),
        ("sbpair audit --fail-on c", ["critical"]),
        ("sbpair help exi", ["exit-codes"]),
        ("sbpair completion z", ["zsh"]),
        ("sbpair schema config", ["config"]),
        ("sbpair schema config s", ["schema", "show"]),
        ("sbpair emulator fault l", ["list"]),
    ],
)
def test_candidates(configured: Sbpair, line: str, candidates: list[str]) -> None:
    assert sorted(set(complete(configured, *line.split(" ")))) == sorted(candidates)


def test_options_of_a_command_are_candidates(configured: Sbpair) -> None:
    found = complete(configured, "sbpair", "drain", "--")
    assert {"--queue", "--dry-run", "--ledger", "--output", "--timeout"} <= set(found)


def test_a_configuration_named_on_the_line_is_the_one_that_counts(configured: Sbpair, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(CONFIGURATION.replace("orders:", "elsewhere:"), encoding="utf-8")
    assert complete(configured, "sbpair", "--config", str(other), "audit", "e") == ["elsewhere"]
    assert complete(configured, "sbpair", "audit", "--config", str(other), "e") == ["elsewhere"]


def test_the_default_pair_is_meant_where_none_is_named(configured: Sbpair) -> None:
    chosen = Sbpair(configured.home, {"SBPAIR_PAIR": "orders"})
    assert complete(chosen, "sbpair", "drain", "--queue", "") == ["0", "1", "2", "3"]
    assert complete(chosen, "sbpair", "send", "inv") == ["invoices/incoming"]


def test_running_namespaces_are_candidates(local: Sbpair) -> None:
    assert complete(local, "sbpair", "emulator", "fault", "add", "local-s") == ["local-secondary"]
    assert complete(local, "sbpair", "drain", "local", "--queue", "9") == ["9"]


@pytest.mark.parametrize("text", ["version: [", "\x00", "version: 1\npairs: {orders: 3}\n", ""])
def test_a_broken_configuration_completes_nothing_quietly(sbpair: Sbpair, text: str) -> None:
    (sbpair.home / "sbpair.yaml").write_text(text, encoding="utf-8")
    (sbpair.home / "state" / "sbpair").mkdir(parents=True)
    (sbpair.home / "state" / "sbpair" / "emulator.json").write_text(json.dumps({"namespaces": 3}), encoding="utf-8")
    assert complete(sbpair, "sbpair", "audit", "o") == []
    assert complete(sbpair, "sbpair", "drain", "--queue", "") == []
    assert complete(sbpair, "sbpair", "emulator", "fault", "list", "l") == []


def path_with_sbpair(runner: Sbpair) -> str:
    """A PATH on which `sbpair` is this very source."""
    binaries = runner.home / "bin"
    binaries.mkdir()
    (binaries / "sbpair").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sbpair "$@"\n', encoding="utf-8")
    (binaries / "sbpair").chmod(0o755)
    return f"{binaries}{os.pathsep}{os.environ['PATH']}"


def shell_says(runner: Sbpair, command: Sequence[str]) -> list[str]:
    variables = runner.variables({"PATH": path_with_sbpair(runner), "TERM": "xterm"})
    done = subprocess.run(
        command,
        capture_output=True,
        encoding="utf-8",
        env=variables,
        cwd=runner.home,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash(configured: Sbpair) -> None:
    def asked(*words: str) -> str:
        typed = " ".join(f"'{word}'" for word in words)
        return (
            f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _sbpair_completion sbpair; "
            'printf "%s " "${COMPREPLY[@]}"; echo'
        )

    lines = [
        f"source {COMPLETIONS / 'sbpair.bash'}",
        asked("sbpair", "au"),
        asked("sbpair", "drain", "orders", "--queue", ""),
        asked("sbpair", "audit", "--fail-on", "=", "c"),
        asked("sbpair", "send", "orders", "inv"),
        "complete -p sbpair",
    ]
    assert shell_says(configured, ["bash", "--norc", "-c", "\n".join(lines)]) == [
        "audit ",
        "0 1 2 3 ",
        "critical ",
        "invoices/incoming ",
        "complete -o default -F _sbpair_completion sbpair",
    ]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish(configured: Sbpair) -> None:
    asked = [
        f"source {COMPLETIONS / 'sbpair.fish'}",
        "complete -C 'sbpair aud'",
        "complete -C 'sbpair drain orders --queue '",
        "complete -C 'sbpair audit --check SBP001'",
    ]
    first, *indexes, check = shell_says(configured, ["fish", "--no-config", "-c", "; ".join(asked)])
    assert first == f"audit\t{COMMANDS['audit'].summary}"
    assert indexes == ["0", "1", "2", "3"]
    assert check == "SBP001\tBacklog queue missing"


ZSH = """\
zmodload zsh/zpty
zpty shell 'zsh -f -i'
zpty -w shell 'PS1=; unsetopt zle_bracketed_paste; autoload -Uz compinit; compinit -u -D; source {script}; echo rea""dy'
zpty -r shell seen '*ready*'
zpty -w -n shell $'sbpair {typed}\t'
zpty -r shell seen '*{whole}*' && print -r -- found
zpty -d shell
"""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize(("typed", "whole"), [("audit --expl", "--explain"), ("config use sp", "spare")])
def test_zsh(configured: Sbpair, typed: str, whole: str) -> None:
    """The line editor of an interactive zsh ends the word by itself."""
    script = ZSH.format(script=COMPLETIONS / "sbpair.zsh", typed=typed, whole=whole)
    assert shell_says(configured, ["zsh", "-f", "-c", script])[-1] == "found"


ZSH_TELLS = """\
_arguments() {{ local action=${{1#*: :}}; eval "told=( ${{action[3,-3]}} )"; print -rl -- $told }}
compdef() {{ }}
source {script}
words=(sbpair drain --des) CURRENT=3
_sbpair_completion
"""
"""What zsh makes of an answer before it draws it."""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_keeps_the_apostrophes_of_a_help(configured: Sbpair) -> None:
    said = shell_says(configured, ["zsh", "-f", "-c", ZSH_TELLS.format(script=COMPLETIONS / "sbpair.zsh")])
    assert said == ["--destination:Only messages whose destination matches, e.g. 'invoices/*'."]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion_prints_a_script_and_edits_nothing(sbpair: Sbpair, shell: str) -> None:
    ran = sbpair("completion", shell)
    assert ran.code == 0
    assert "_SBPAIR_COMPLETE" in ran.stdout
    assert sorted(path.name for path in sbpair.home.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ({"namespace": "contoso-we", "entity": "orders"}, "contoso-weu"),
        ({"entity": "contoso-ne:orders", "dlq": False}, "contoso-neu"),
        ({"namespace": "contoso-weu"}, None),
        ({"namespace": "fabrikam"}, None),
    ],
)
def test_a_misspelt_namespace_is_known_by_the_configured_one_it_looks_like(
    configured: Sbpair, given: dict[str, object], near: str | None
) -> None:
    settings = load(environ=configured.variables(), directory=configured.home)
    context = SimpleNamespace(params=given, meta={"settings": settings})
    assert misspelt_namespace(cast(typer.Context, context)) == near
