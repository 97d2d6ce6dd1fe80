"""Canaries: keys and signatures planted in environment, files and configuration never come out anywhere."""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.process import Ran, Sbpair

CANARY = "Y2FuYXJ5LWtleS1ub2JvZHktbWF5LXNlZQ=="
CANARY_SIGNATURE = "canary%2fsignature%2fnobody%2fmay%2fsee%3d"
CANARIES = (CANARY, CANARY_SIGNATURE, CANARY.rstrip("="))
DEAD = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=Root;SharedAccessKey={};UseDevelopmentEmulator=true"
SIGNED = (
    "Endpoint=sb://127.0.0.1:1;SharedAccessSignature=SharedAccessSignature sr=sb%3a%2f%2f127.0.0.1&sig={}"
    "&se=9999999999&skn=Root;UseDevelopmentEmulator=true"
)
FORMATS = ("table", "json", "jsonl", "yaml", "tsv", "markdown", "prometheus", "nagios", "github", "junit", "html")


@pytest.fixture(scope="module")
def planted(local: Sbpair) -> Iterator[Sbpair]:
    """The running pair `local` (whose own keys are canaries too) beside pairs with wrong keys, dead hosts and ruins."""
    home, state = local.home, local.home / "state" / "sbpair"
    (home / "signature").write_text(SIGNED.format(CANARY_SIGNATURE), encoding="utf-8")
    (home / "line").write_text("hello", encoding="utf-8")
    (home / "ruined").write_text(f"Endpoint=http://x;SharedAccessKey={CANARY}", encoding="utf-8")
    ca = next(re.finditer(r'"ca_file": "(.*?)"', (state / "emulator.json").read_text(encoding="utf-8")))[1]
    primary = (
        f"{{namespace: local-primary, ca_file: {ca}, "
        f"connection_string: {{file: {state / 'emulator-local-primary.connection'}}}}}"
    )
    ends = {
        "wrong": f"{{namespace: local-secondary, ca_file: {ca}, connection_string: {{env: WRONG}}}}",
        "dead": "{namespace: local-secondary, connection_string: {env: DEAD}}",
        "signed": "{namespace: local-secondary, connection_string: {file: signature}}",
        "ruined": "{namespace: local-secondary, connection_string: {file: ruined}}",
        "halved": "{namespace: local-secondary, connection_string: {env: HALVED}}",
    }
    pairs = "".join(f"  {name}: {{primary: {primary}, secondary: {end}}}\n" for name, end in ends.items())
    (home / "sbpair.yaml").write_text(f"version: 1\npairs:\n{pairs}", encoding="utf-8")
    text = (state / "emulator-local-secondary.connection").read_text(encoding="utf-8").strip()
    secrets = {
        "WRONG": re.sub("SharedAccessKey=[^;]*", f"SharedAccessKey={CANARY}", text),
        "DEAD": DEAD.format(CANARY),
        "HALVED": f"{CANARY};Endpoint=sb://x",
    }
    yield replace(local, environ=secrets)


def keys_of(runner: Sbpair) -> tuple[str, ...]:
    files = (runner.home / "state" / "sbpair").glob("*.connection")
    return tuple(re.findall("SharedAccessKey=([^;]*)", "".join(file.read_text(encoding="utf-8") for file in files)))


def assert_silent(runner: Sbpair, *runs: Ran) -> None:
    """No canary in what the runs wrote to their pipes, nor in any file of the home but those that were given."""
    canaries = (*CANARIES, *keys_of(runner))
    assert len(canaries) >= 5
    for ran in runs:
        for canary in canaries:
            assert canary not in ran.stdout, ran.stdout
            assert canary not in ran.stderr, ran.stderr
    for path in runner.home.rglob("*"):
        if path.is_file() and path.suffix != ".connection" and path.name not in ("signature", "ruined"):
            text = path.read_bytes().decode("utf-8", "replace")
            assert not [canary for canary in canaries if canary in text], path


COMMANDS = (
    "config show",
    "config check",
    "peek {pair} --body --timeout 2s",
    "audit {pair} --save {pair}.snapshot --history history",
    "provision {pair} --out {pair}.plan",
    "provision {pair}",
    "cleanup {pair}",
    "drain {pair} --ledger {pair}.ledger --timeout 2s",
    "ping {pair} --count 1 --timeout 2s",
    "send {pair} orders --file line --timeout 2s",
    "status {pair} --timeout 2s",
    "cost {pair}",
)


@pytest.mark.parametrize("pair", ["local", "wrong", "signed"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_lets_a_key_out(planted: Sbpair, pair: str, command: str) -> None:
    runs = [planted(*command.format(pair=pair).split(), "--verbose")]
    assert_silent(planted, *runs)
    assert not [ran for ran in runs if "Traceback" in ran.stderr]


@pytest.mark.parametrize("pair", ["ruined", "halved", "dead"])
def test_a_ruined_connection_string_is_not_repeated(planted: Sbpair, pair: str) -> None:
    runs = [planted("peek", pair, "-v", "--timeout", "2s"), planted("config", "check", "-v", "-o", "json")]
    assert_silent(planted, *runs)
    assert not [ran for ran in runs if "Traceback" in ran.stderr]


def test_no_output_format_lets_a_key_out(planted: Sbpair) -> None:
    runs = [planted("audit", "wrong", "-v", "-o", name, "--log-format", "json") for name in FORMATS]
    assert_silent(planted, *runs)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_no_key_is_in_the_list_of_processes(planted: Sbpair) -> None:
    process = planted.start("syphon", "dead")
    try:
        for _ in range(20):
            seen = b"".join(
                path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)
            )
            assert CANARY.encode() not in seen
            assert not [key for key in keys_of(planted) if key.encode() in seen]
    finally:
        process.kill()
        process.communicate(timeout=30)


def test_a_traceback_for_those_who_ask_has_no_values(planted: Sbpair) -> None:
    code = (
        "import sys; from sbpair.cli import running as e\n"
        "from sbpair.core.access import Secret\n"
        f"secret = Secret({CANARY!r})\n"
        "def broken(*_, **__): raise RuntimeError(f'with {secret}')\n"
        "import sbpair.cli.config as c; c.load_settings = broken\n"
        "sys.exit(e.run(['config', 'show', '--verbose']))\n"
    )
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=planted.variables(), cwd=planted.home
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert CANARY not in done.stderr.replace(code, "")
    assert "Secret(***)" in done.stderr
