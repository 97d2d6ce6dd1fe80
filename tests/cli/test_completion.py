"""Completion scripts are generated, and what they ask for is answered quickly and without an SDK."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPLETIONS = Path(__file__).parents[2] / "completions"
SBPAIR = [sys.executable, "-m", "sbpair"]


@pytest.mark.parametrize(
    ("shell", "ending"), [("bash", "bash"), ("zsh", "zsh"), ("fish", "fish"), ("powershell", "ps1")]
)
def test_the_shipped_scripts_are_what_the_command_prints(shell: str, ending: str) -> None:
    done = subprocess.run([*SBPAIR, "completion", shell], capture_output=True, text=True, check=True, timeout=30)
    assert (COMPLETIONS / f"sbpair.{ending}").read_text(encoding="utf-8") == done.stdout


def complete(words: str, index: int, folder: Path) -> list[str]:
    asked = {"_SBPAIR_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(index)}
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SBPAIR_", "XDG_"))}
    done = subprocess.run(
        SBPAIR, env=environ | asked | {"HOME": str(folder)}, cwd=folder, capture_output=True, text=True, timeout=30
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_commands_options_and_live_pair_names(tmp_path: Path) -> None:
    (tmp_path / "sbpair.yaml").write_text(
        "version: 1\npairs:\n  orders: {primary: {namespace: contoso-weu}, secondary: {namespace: contoso-neu}}\n"
    )
    assert complete("sbpair au", 1, tmp_path) == ["audit"]
    assert complete("sbpair audit o", 2, tmp_path) == ["orders"]
    assert "--output" in complete("sbpair audit --o", 2, tmp_path)


def test_a_broken_configuration_completes_nothing_quietly(tmp_path: Path) -> None:
    (tmp_path / "sbpair.yaml").write_text("version: [")
    assert complete("sbpair audit o", 2, tmp_path) == []


@pytest.mark.parametrize("arguments", ["'--help'", "'config', 'show'", "'completion', 'bash'"])
def test_help_configuration_and_completion_import_no_sdk(arguments: str, tmp_path: Path) -> None:
    code = (
        "import sys, sbpair.cli.running as e\n"
        f"e.run([{arguments}])\n"
        "heavy = {'azure', 'aiohttp', 'cryptography', 'pyspark', 'rich.table'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SBPAIR_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environ | {"HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
