"""What is imported before a command does anything: an answer at a prompt must not wait for what it does not need."""

import subprocess
import sys
from collections.abc import Mapping

import pytest

from sbpair.cli.app import COMMANDS
from tests.cli.process import Sbpair
from tests.waiting import LIMIT_SECONDS

LISTED = """\
import sys
from sbpair.cli.running import run
try:
    run(sys.argv[1:])
finally:
    print("MODULES", *sys.modules, file=sys.stderr)
"""
NEVER = {"azure", "aiohttp", "cryptography", "msal", "pyspark", "py4j", "pyarrow", "sqlite3", "rich", "pydantic"}
"""SDKs, Spark, what draws tables, and what typer asks to coerce values."""
ONLY_WHEN_RUNNING = {
    "asyncio",
    "yaml",
    "sbpair.runtime",
    "sbpair.connect",
    "sbpair.settings",
    "sbpair.core.inspection.audit",
}
QUICK = (
    "audit",
    "completion",
    "discover",
    "doctor",
    "drain",
    "peek",
    "ping",
    "pipeline",
    "replicate",
    "schema",
    "send",
    "status",
    "syphon",
)
"""Commands whose `--help` loads what it takes to read their options, and nothing of what they do."""


def modules(sbpair: Sbpair, arguments: list[str], env: Mapping[str, str] | None = None) -> set[str]:
    """Every module that the process has loaded at its end, and the packages they are in."""
    done = subprocess.run(
        [sys.executable, "-c", LISTED, *arguments],
        capture_output=True,
        encoding="utf-8",
        env=sbpair.variables(env),
        cwd=sbpair.home,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    names = done.stderr.rpartition("MODULES")[2].split()
    assert "sbpair.cli.app" in names, done.stderr
    return {".".join(name.split(".")[:depth]) for name in names for depth in range(1, 5)}


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_imports_no_sdk(sbpair: Sbpair, command: str) -> None:
    loaded = modules(sbpair, [*command.split(), "--help"])
    assert not loaded & NEVER
    if command in ("", *QUICK):
        assert not loaded & ONLY_WHEN_RUNNING


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["config", "show"],
        ["config", "check"],
        ["completion", "bash"],
        ["schema", "audit"],
        ["peek", "--nope"],
        ["cost", "--explain-prices", "-o", "json"],
    ],
)
def test_what_contacts_nobody_imports_no_sdk_and_no_network(sbpair: Sbpair, arguments: list[str]) -> None:
    loaded = modules(sbpair, arguments)
    assert not loaded & (NEVER | {"asyncio", "ssl", "urllib.request"})


def test_the_log_that_every_command_has_loads_no_events_before_there_are_any() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, sbpair.cli.log; print(*sys.modules)"],
        capture_output=True,
        encoding="utf-8",
        timeout=LIMIT_SECONDS,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert "sbpair.cli.log" in loaded
    assert not loaded & {"sbpair.core.events", "sbpair.core.transfer.report", "sbpair.render.service"}


def test_the_list_of_schemas_imports_every_command_and_no_sdk(sbpair: Sbpair) -> None:
    assert not modules(sbpair, ["schema"]) & NEVER


@pytest.mark.parametrize(
    "line", ["sbpair au", "sbpair audit ", "sbpair drain orders --queue ", "sbpair audit --check ", "sbpair send "]
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_imports_no_sdk(sbpair: Sbpair, line: str, shell: str) -> None:
    (sbpair.home / "sbpair.yaml").write_text(
        "version: 1\npairs:\n  orders: {primary: {namespace: contoso-weu}, secondary: {namespace: contoso-neu}}\n",
        encoding="utf-8",
    )
    words = line.split(" ")
    asked = {
        "_SBPAIR_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    assert not modules(sbpair, [], asked) & (NEVER | {"asyncio"})


def test_a_value_on_the_line_is_no_reason_for_what_typer_would_ask_for_it(sbpair: Sbpair) -> None:
    given = ["-o", "json", "peek", "--limit", "3", "--queue", "1", "--queue", "2", "--timeout", "3s", "--dlq"]
    assert "pydantic" not in modules(sbpair, given)
