"""Canaries: keys and signatures planted in environment, files and configuration never come out anywhere."""

import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.process import Ran, Sbpair, listens_to_sigterm
from tests.pipeline.processes import descendants
from tests.waiting import LIMIT_SECONDS

CANARY = "Y2FuYXJ5LWtleS1ub2JvZHktbWF5LXNlZQ=="
CANARY_SIGNATURE = "canary%2fsignature%2fnobody%2fmay%2fsee%3d"
CANARIES = (CANARY, CANARY_SIGNATURE, CANARY.rstrip("="))
DEAD = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=Root;SharedAccessKey={};UseDevelopmentEmulator=true"
SIGNED = (
    "Endpoint=sb://127.0.0.1:1;SharedAccessSignature=SharedAccessSignature sr=sb%3a%2f%2f127.0.0.1&sig={}"
    "&se=9999999999&skn=Root;UseDevelopmentEmulator=true"
)
PASTED = DEAD.replace("127.0.0.1:1", "contoso.servicebus.invalid").format(CANARY)
ACCOUNT = f"AccountEndpoint=https://127.0.0.1:1/;AccountKey={CANARY};"
CANARY_KEY = "Y2FuYXJ5LWtleS1vZi10aGlydHktdHdvLWJ5dGVzLi4="
"""As long as the keys of the service: 32 bytes."""
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
        f"{{namespace: local-primary, host: localhost, ca_file: {ca}, "
        f"connection_string: {{file: {state / 'emulator-local-primary.connection'}}}}}"
    )
    ends = {
        "wrong": f"{{namespace: local-secondary, host: localhost, ca_file: {ca}, connection_string: {{env: WRONG}}}}",
        "dead": "{namespace: local-secondary, host: localhost, connection_string: {env: DEAD}}",
        "signed": "{namespace: local-secondary, host: localhost, connection_string: {file: signature}}",
        "ruined": "{namespace: local-secondary, host: localhost, connection_string: {file: ruined}}",
        "halved": "{namespace: local-secondary, host: localhost, connection_string: {env: HALVED}}",
    }
    pairs = "".join(f"  {name}: {{primary: {primary}, secondary: {end}}}\n" for name, end in ends.items())
    (home / "sbpair.yaml").write_text(f"version: 1\npairs:\n{pairs}", encoding="utf-8")
    text = (state / "emulator-local-secondary.connection").read_text(encoding="utf-8").strip()
    secrets = {
        "WRONG": re.sub("SharedAccessKey=[^;]*", f"SharedAccessKey={CANARY}", text),
        "DEAD": DEAD.format(CANARY),
        "HALVED": f"{CANARY};Endpoint=sb://x",
        "SBPAIR_COSMOS_KEY": CANARY,
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
    "audit {pair} --snapshot-out {pair}.snapshot --history history",
    "provision {pair} --plan-out {pair}.plan",
    "provision {pair}",
    "cleanup {pair}",
    "drain {pair} --ledger {pair}.ledger --timeout 2s",
    "ping {pair} --count 1 --timeout 2s",
    "send {pair} orders --file line --timeout 2s",
    "status {pair} --timeout 2s",
    "cost {pair}",
    "doctor {pair} --timeout 2s",
    "replicate provision {pair} parcels --journal sqlite:journal.db",
    "replicate send {pair} parcels --file line --session-id s --journal sqlite:journal.db --timeout 2s",
    "replicate consume {pair} parcels --journal sqlite:journal.db --exec true --until-idle 1s",
)
HOW = {
    "local": ("--verbose",),
    "wrong": ("--verbose", "--log-format", "json"),
    "signed": ("--verbose", "-o", "json"),
    "dead": ("--verbose", "--log-format", "json", "-o", "json"),
}
"""Pairs, and how much their commands are asked to say."""


SLOW = {("send", "signed"), ("send", "dead")}
"""A message is tried again for minutes."""


@pytest.mark.parametrize(
    ("command", "pair"),
    [(command, pair) for command in COMMANDS for pair in HOW if (command.split()[0], pair) not in SLOW],
)
def test_no_command_lets_a_key_out(planted: Sbpair, command: str, pair: str) -> None:
    ran = planted(*command.format(pair=pair).split(), *HOW[pair])
    assert_silent(planted, ran)
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    "line",
    [
        "replicate status --journal sqlite:journal.db",
        "replicate status --journal cosmos:https://127.0.0.1:1/db/container",
        "replicate send local parcels --file line --session-id s --journal cosmos:http://127.0.0.1:1/db/container",
        "replicate consume local parcels --exec true --until-idle 1s --journal cosmos:https://127.0.0.1:1/db/c",
    ],
)
@pytest.mark.parametrize("how", [("-v",), ("-v", "--log-format", "json", "-o", "json")])
def test_no_journal_lets_its_key_out(planted: Sbpair, line: str, how: tuple[str, ...]) -> None:
    ran = planted(*line.split(), "--timeout", "2s", *how)
    assert ran.code in (0, 1, 3, 5, 6), ran
    assert_silent(planted, ran)
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("option", ["--namespace", "--destination"])
def test_a_connection_string_is_refused_as_any_option(planted: Sbpair, option: str) -> None:
    ran = planted("dlq", "list", "orders", option, PASTED)
    assert "A connection string was given as an argument" in ran.stderr
    assert_silent(planted, ran)


@pytest.mark.parametrize(
    "arguments",
    [
        ("audit", PASTED),
        ("--config", PASTED, "audit"),
        ("peek", "local", "--queue", PASTED),
        ("audit", "--check", PASTED),
        ("ping", "local", PASTED),
        ("send", "local", PASTED),
        ("drain", "local", "--to", PASTED),
        ("emulator", "--namespace", PASTED),
        ("config", "use", PASTED),
        ("replicate", "status", "--journal", ACCOUNT),
        ("replicate", "status", "--journal", f"cosmos:{ACCOUNT}"),
        (PASTED,),
    ],
)
def test_a_connection_string_in_the_wrong_place_is_not_repeated(planted: Sbpair, arguments: tuple[str, ...]) -> None:
    ran = planted(*arguments, stdin="")
    assert ran.code == 2
    assert_silent(planted, ran, planted(*arguments, "-v", "--log-format", "json", stdin=""))


@pytest.mark.parametrize("name", ["NAMESPACE", "CA_FILE", "AUTH", "MANAGEMENT_URL", "TRANSPORT"])
def test_a_connection_string_in_the_wrong_variable_is_not_repeated(planted: Sbpair, name: str) -> None:
    alone = replace(planted, environ={f"SBPAIR_PRIMARY_{name}": PASTED, "SBPAIR_PAIR": "local"})
    assert_silent(planted, *(alone(*line.split(), "-v") for line in ("config show", "config show -o json", "audit")))


def test_the_emulator_logs_neither_its_keys_nor_those_it_refuses(planted: Sbpair) -> None:
    """It prints its connection strings on stdout because it is asked to; nothing else has them."""
    # With keys of its own: a store holds its namespace's keys, and these would be the canaries of the other one.
    more = ("--data-dir", "kept", "--new-keys")
    process = planted.start("emulator", "--port", "0", "-v", "--log-format", "json", *more)
    assert process.stdout is not None
    strings = dict(process.stdout.readline().rstrip("\n").split("\t") for _ in range(2))
    keys = {name: text.partition("SharedAccessKey=")[2].partition(";")[0] for name, text in strings.items()}
    endpoint = strings["local-secondary"].partition(";")[0]
    refused = f"{endpoint};SharedAccessKeyName=Root;SharedAccessKey={CANARY};UseDevelopmentEmulator=true"
    alone = replace(planted, environ=dict.fromkeys(("SBPAIR_PRIMARY_CONNECTION_STRING", "WRONG"), refused))
    try:
        for line in ("peek wrong --timeout 2s", "provision wrong", "ping wrong -c 1 --timeout 2s"):
            ran = alone(*line.split(), "-v")
            assert keys["local-secondary"] not in ran.stdout + ran.stderr
    finally:
        process.terminate()
        _, log = process.communicate(timeout=LIMIT_SECONDS)
    assert log
    for text in (*keys.values(), *CANARIES):
        assert text not in log


@pytest.mark.parametrize("pair", ["ruined", "halved", "dead"])
def test_a_ruined_connection_string_is_not_repeated(planted: Sbpair, pair: str) -> None:
    runs = [planted("peek", pair, "-v", "--timeout", "2s"), planted("config", "check", "-v", "-o", "json")]
    assert_silent(planted, *runs)
    assert not [ran for ran in runs if "Traceback" in ran.stderr]


def test_no_output_format_lets_a_key_out(planted: Sbpair) -> None:
    runs = [planted("audit", "wrong", "-v", "-o", name, "--log-format", "json") for name in FORMATS]
    assert_silent(planted, *runs)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    "line",
    [
        "syphon dead",
        "send wrong orders",
        "replicate consume local parcels --journal sqlite:journal.db --exec true",
        "emulator --port 0",
    ],
)
def test_no_key_is_in_the_list_of_processes(planted: Sbpair, line: str) -> None:
    """From its first moment until it is under way, and a while longer; with those that it starts itself."""
    process = planted.start(*line.split(), stdin=subprocess.PIPE)
    try:
        looks_after = 0
        while looks_after < 20 and process.poll() is None:
            looks_after += listens_to_sigterm(process.pid)
            own = Path(f"/proc/{process.pid}/cmdline").read_text()
            for text in (own, *descendants(process.pid).values()):
                assert not [key for key in (*CANARIES, *keys_of(planted)) if key in text]
        assert looks_after or process.returncode is not None
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_SECONDS)


def test_a_traceback_for_those_who_ask_has_no_values(planted: Sbpair) -> None:
    code = (
        "import sys; from sbpair.cli import running as e\n"
        "from sbpair.core.access import Secret\n"
        f"secret = Secret({CANARY!r})\n"
        "def broken(*_, **__): raise RuntimeError(f'with {secret}')\n"
        "import sbpair.cli.config as c; c.load_settings = broken\n"
        "sys.exit(e.run(['config', 'show', '--verbose']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=planted.variables(), cwd=planted.home
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert CANARY not in done.stderr.replace(code, "")
    assert "Secret(***)" in done.stderr


def test_what_travels_to_executors_names_secrets_and_holds_none(planted: Sbpair) -> None:
    code = (
        "import pickle, sys; from pathlib import Path\n"
        "from sbpair.pipeline.executors import PairByName\n"
        "Path(sys.argv[1]).write_bytes(b''.join(pickle.dumps(PairByName.load(name, None)) for name in sys.argv[2:]))\n"
    )
    planted.python(code, "travelling", "local", "wrong", "signed", "dead")
    assert_silent(planted)
    travelling = (planted.home / "travelling").read_bytes()
    assert b"WRONG" in travelling
    assert pickle.loads(travelling).name == "local"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc of Linux")
def test_a_command_behind_exec_cannot_read_the_environment_of_its_parent() -> None:
    """Run as a user who is not root, who may read everything."""
    code = """
import ctypes, os, subprocess
from sbpair.runtime.replication.handlers import hide_environment
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as the process of a user is who has not changed
read = ["cat", f"/proc/{os.getpid()}/environ"]
open_before = subprocess.run(read, capture_output=True, env={"PATH": os.environ["PATH"]})
hide_environment()
after = subprocess.run(read, capture_output=True, env={"PATH": os.environ["PATH"]})
print(b"PLANTED" in open_before.stdout, b"PLANTED" in after.stdout, after.returncode != 0)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "PLANTED": CANARY}
    )
    assert ran.stdout.split() == ["True", "False", "True"], ran


@pytest.mark.parametrize(
    "arguments",
    [
        ("drain", CANARY_KEY, "--dry-run"),
        (CANARY_KEY,),
        ("help", CANARY_KEY),
        ("emulator", "--lax", CANARY_KEY),
        ("pipeline", "archive", "local", "--archive", "there", "--engine", "spark", "--conf", CANARY_KEY),
        ("entity", "create", "local-primary:t/Subscriptions/s/Rules/r", "--correlation", CANARY_KEY, "--yes"),
    ],
)
def test_a_bare_key_in_the_place_of_a_name_is_not_repeated(planted: Sbpair, arguments: tuple[str, ...]) -> None:
    ran = planted(*arguments)
    assert ran.code == 2, ran
    assert CANARY_KEY.removesuffix("=") not in ran.stdout + ran.stderr, "nor without the sign that separates a value"


def test_a_dry_run_without_a_name_writes_nothing_and_does_not_say_so(local: Sbpair) -> None:
    pairs = "".join(
        f"  {name}: {{primary: {{namespace: {name}-weu}}, secondary: {{namespace: {name}-neu}}}}\n"
        for name in ("a1234", "b1234")
    )
    (local.home / "two.yaml").write_text(f"version: 1\npairs:\n{pairs}", encoding="utf-8")
    ran = local("drain", "--dry-run", "--config", "two.yaml")
    assert (ran.code, "this command writes" in ran.stderr) == (2, False), ran
