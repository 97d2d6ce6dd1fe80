"""`sbpair emulator` as a real process: seeds, faults, durability through kill -9, clear refusals."""

import json
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from sbpair.cli.emulator_start import Doors, configs, http_port, microsoft_config
from sbpair.core.errors import ConfigurationError
from sbpair.emulator.laws import BOOK
from sbpair.emulator.throttling import limits_of
from sbpair.engine.faults import _KEYS, FaultKind
from sbpair.service import Tier
from tests.cli.inside import run_inside
from tests.cli.process import Sbpair
from tests.emulator.addresses import own_address
from tests.readme import PATIENT
from tests.waiting import LIMIT_SECONDS, until

SEED = """\
contoso-weu:
  queues: {orders: {max_delivery_count: 3}}
  topics: {events: {subscriptions: {large: {rules: {amount: {sql: "amount > 10"}}}}}}
  keys: {sender: [Send]}
"""
NAMESPACES = ("--namespace", "contoso-weu", "--namespace", "contoso-neu")


def start(sbpair: Sbpair, *more: str) -> "subprocess.Popen[str]":
    process = sbpair.start("emulator", "--port", "0", *more)
    state = sbpair.home / "state" / "sbpair" / "emulator.json"
    until(lambda: state.exists() and json.loads(state.read_text() or "{}").get("pid") == process.pid, process)
    return process


def stop(process: "subprocess.Popen[str]", number: int = signal.SIGTERM) -> None:
    process.send_signal(number)
    process.communicate(timeout=LIMIT_SECONDS)


def test_seeded_messages_survive_kill_9(sbpair: Sbpair) -> None:
    (sbpair.home / "seed.yaml").write_text(SEED)
    arguments = (*NAMESPACES, "--data-dir", "data", "--seed", "seed.yaml")
    process = start(sbpair, *arguments)
    assert sbpair("send", "local", "orders", stdin="kept\n").code == 0
    stop(process, signal.SIGKILL)
    process = start(sbpair, *arguments)
    try:
        browsed = sbpair("peek", "local", "--side", "primary", "--entity", "orders", "--body", "-o", "jsonl")
        assert [json.loads(line)["body"] for line in browsed.stdout.splitlines()] == ["kept"]
    finally:
        stop(process)


def test_it_leaves_no_state_behind(sbpair: Sbpair) -> None:
    process = start(sbpair, *NAMESPACES)
    assert (sbpair.home / "state" / "sbpair" / "emulator.json").stat().st_mode & 0o777 == 0o600
    stop(process, signal.SIGINT)
    assert process.returncode == 130
    assert not list((sbpair.home / "state" / "sbpair").glob("emulator*"))
    assert "Traceback" not in (process.stderr.read() if process.stderr and not process.stderr.closed else "")


def test_the_sample_comes_back_by_doing_what_is_advised(sbpair: Sbpair) -> None:
    """From the first look to the proof that nothing is left, reading nothing but what the tool says."""
    sides = (
        "primary: {host: localhost, connection_string: {env: CONTOSO_WEU}",
        "secondary: {host: localhost, connection_string: {env: CONTOSO_NEU}",
    )
    named = ", ".join(f"{side}, namespace: {name}}}" for side, name in zip(sides, NAMESPACES[1::2], strict=True))
    (sbpair.home / "sbpair.yaml").write_text(f"version: 1\npairs: {{orders: {{{named}}}}}\n")
    process = start(sbpair, "--sample", *NAMESPACES)
    try:
        variables = json.loads(sbpair("emulator", "env", "-o", "json").stdout)["data"]
        night = replace(sbpair, environ=PATIENT | {one["name"]: one["value"] for one in variables})
        heard = night("status", "orders").stderr
        assert "497 messages are waiting" in heard
        done = []
        while "The backlog is empty" not in heard:
            assert len(done) < 6, (done, heard)
            advised = re.findall(r"(?:Run|then): sbpair ([^;\n]+)", heard)
            command = next(one for one in reversed(advised) if one not in done)
            done.append(command)
            heard = night(*shlex.split(command)).stderr
        assert done == ["drain orders", "drain orders --dlq"]
        assert night("status", "orders", "--fail-on", "warning").code == 0
        listed = night("dlq", "list", "orders", "-o", "json")
        assert '"MaxDeliveryCountExceeded"' in listed.stdout
    finally:
        stop(process)


def test_over_tls_the_same_commands_work(sbpair: Sbpair) -> None:
    process = start(sbpair, *NAMESPACES, "--tls")
    try:
        sbpair.make_queue("orders")
        assert sbpair("send", "local", "orders", stdin="encrypted\n").code == 0
    finally:
        stop(process)


def test_the_configuration_of_microsofts_emulator_is_a_seed(sbpair: Sbpair) -> None:
    queue = {"Name": "orders", "Properties": {"LockDuration": "PT20S", "ForwardTo": ""}}
    namespaces = [{"Name": "sbemulatorns", "Queues": [queue]}, {"Name": "sbother"}]
    (sbpair.home / "Config.json").write_text(json.dumps({"UserConfig": {"Namespaces": namespaces}}))
    process = start(sbpair, "--seed", "Config.json")
    try:
        assert "SBEMULATORNS=" in sbpair("emulator", "env", "sbemulatorns").stdout
        assert sbpair("send", "local", "orders", stdin="hello\n").code == 0
    finally:
        stop(process)
    (sbpair.home / "Config.json").write_text(json.dumps({"UserConfig": {"Namespaces": [{"Queues": []}]}}))
    ran = sbpair("emulator", "--seed", "Config.json")
    assert ran.code == 2
    assert "UserConfig.Namespaces[0]: `Name` is missing" in ran.stderr


def test_an_application_is_told_how_to_reach_it(sbpair: Sbpair) -> None:
    process = start(sbpair, *NAMESPACES)
    try:
        shell = subprocess.run(
            ["sh", "-c", f'{sbpair("emulator", "env").stdout}\nprintf \'%s %s\' "$CONTOSO_WEU" "$SERVICEBUS_CA_FILE"'],
            capture_output=True,
            text=True,
        )
        text, _, authority = shell.stdout.rpartition(" ")
        assert text == (sbpair.home / "state" / "sbpair" / "emulator-contoso-weu.connection").read_text().strip()
        assert Path(authority).read_text().startswith("-----BEGIN CERTIFICATE")
        assert sbpair("emulator", "env", "contoso-neu", "--format", "dotenv").stdout.startswith(
            'CONTOSO_NEU="Endpoint='
        )
        assert "$env:CONTOSO_WEU = 'Endpoint=" in sbpair("emulator", "env", "--format", "powershell").stdout
        settings = json.loads(sbpair("emulator", "env", "--format", "appsettings").stdout)
        assert settings["ConnectionStrings"]["CONTOSO_WEU"] == text
        ran = sbpair("emulator", "env", "contoso-xyz")
        assert (ran.code, ran.stdout) == (2, "")
        assert "running: contoso-weu, contoso-neu" in ran.stderr
        assert sbpair("emulator", "fault", "add", "contoso-neu", "dark:for=1ms").code == 0
        assert sbpair("emulator", "fault", "list").code == 0
    finally:
        stop(process)


def test_a_connection_string_outlives_its_emulator(sbpair: Sbpair) -> None:
    """It can stand in a settings file; whoever wants it gone asks for new keys."""
    keys, authorities = [], []
    for more in ((), (), ("--new-keys",)):
        process = start(sbpair, *NAMESPACES, *more)
        try:
            told = {one["name"]: one["value"] for one in sbpair("emulator", "env", "-o", "json").data}
            keys.append(told["CONTOSO_WEU"].split("SharedAccessKey=")[1])
            authorities.append(Path(told["SERVICEBUS_CA_FILE"]).read_bytes())
        finally:
            stop(process)
    assert keys[0] == keys[1] != keys[2]
    assert authorities[0] == authorities[1] != authorities[2]


def test_other_machines_need_a_key_of_the_users_own(sbpair: Sbpair) -> None:
    key = "a-key-of-the-users-own"
    process = sbpair.start(
        "emulator", "--port", "0", "--host", "0.0.0.0", env=sbpair.variables({"SBPAIR_EMULATOR_KEY": key})
    )
    try:
        assert process.stdout is not None
        assert f"SharedAccessKey={key};" in process.stdout.readline()
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert "Other machines can reach these namespaces at 0.0.0.0." in errors
    for unfit in ("a;b", "k" * 257):
        refused = sbpair("emulator", "--port", "0", env={"SBPAIR_EMULATOR_KEY": unfit})
        assert (refused.code, unfit in refused.stderr) == (2, False), refused
        assert "SBPAIR_EMULATOR_KEY: a text of 1 to 256 printable characters without ; is expected." in refused.stderr
        assert "export SBPAIR_EMULATOR_KEY=" in refused.stderr


def test_the_page_for_a_browser_is_named_and_serves(sbpair: Sbpair) -> None:
    process = sbpair.start("emulator", "--port", "0", "--ui")
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        url = next(line for line in lines if line.startswith("Open in a browser")).split(": ")[1].strip()
        with urllib.request.urlopen(url, timeout=60) as page:
            assert "<title>sbpair emulator</title>" in page.read().decode()
    finally:
        stop(process)
    assert process.returncode == 143


def test_faults_come_and_go_while_it_runs(sbpair: Sbpair) -> None:
    process = start(sbpair, *NAMESPACES, "--fault", "contoso-neu/throttle:entity=orders,for=30s")
    try:
        listed = sbpair("emulator", "fault", "list", "contoso-neu", "-o", "json")
        assert [fault["rule"]["kind"] for fault in listed.data] == ["throttle"]
        assert sbpair("emulator", "fault", "add", "contoso-weu", "dark").code == 0
        assert sbpair("ping", "local", "--side", "primary", "--control-plane", "orders", "--count", "1").code == 6
        assert sbpair("emulator", "fault", "clear", "contoso-weu").code == 0
        assert sbpair("emulator", "fault", "list", "contoso-weu", "-o", "json").data == []
    finally:
        stop(process)


def test_a_single_namespace_is_known_to_the_other_commands_and_gives_way_to_a_pair(sbpair: Sbpair) -> None:
    single = start(sbpair, "--namespace", "contoso-neu", "--fault", "throttle:entity=orders")
    try:
        assert [one["namespace"] for one in sbpair("emulator", "fault", "list", "-o", "json").data] == ["contoso-neu"]
        assert "CONTOSO_NEU=" in sbpair("emulator", "env").stdout
        missing = sbpair("status", "local")
        assert (missing.code, "no two are running" in missing.stderr) == (2, True), missing
        for line in ("entity list --namespace local-primary", "dlq list LOCAL-secondary:x", "status local-primary:x"):
            missing = sbpair(*line.split())
            assert (missing.code, "terminal: sbpair emulator" in missing.stderr) == (2, True), missing
            assert "means an embedded namespace, and none of that name is running" in missing.stderr
        pair = start(sbpair, *NAMESPACES)
        try:
            stop(single)
            assert sbpair("emulator", "fault", "list", "-o", "json").data == []
            assert "No backlog queue exists" in sbpair("status", "local").stderr
            assert sbpair("emulator", "fault", "add", "contoso-neu", "dark:for=1ms").code == 0
        finally:
            stop(pair)
    finally:
        stop(single)
    assert not list((sbpair.home / "state" / "sbpair").glob("emulator*"))


def test_it_takes_the_place_of_microsofts_container(sbpair: Sbpair) -> None:
    """The entry point of the exported image, started as the container modules start Microsoft's image: their variables,
    their file, and what each waits for (Java, Python: a line in the log; .NET, Go and Node: /health)."""
    assert sbpair("export", "emulator", "--dir", "image").code == 0
    containerfile = (sbpair.home / "image" / "Containerfile").read_text()
    _, *arguments = json.loads(re.findall(r"^ENTRYPOINT (.*)$", containerfile, re.MULTILINE)[0])
    host = own_address(5672, 5301)
    replaced = {"0.0.0.0": host, "/var/lib/sbpair/namespaces": "namespaces"}
    arguments = [replaced.get(one, one) for one in arguments]
    names = ["ACCEPT_EULA", "SQL_SERVER", "MSSQL_SA_PASSWORD", "SQL_WAIT_INTERVAL", "EMULATOR_HTTP_PORT"]
    variables = dict(zip(names, ("Y", "database-container", "yourStrong(!)Password", "0", "5301"), strict=True))
    namespaces = [{"Name": "sbemulatorns", "Queues": [{"Name": "queue.1"}]}]
    (sbpair.home / "Config.json").write_text(json.dumps({"UserConfig": {"Namespaces": namespaces}}))
    process = sbpair.start(*arguments, "--seed", "Config.json", env=sbpair.variables(variables))
    try:
        assert process.stdout is not None and process.stderr is not None
        assert "SharedAccessKey=SAS_KEY_VALUE;" in process.stdout.readline()
        assert any("Emulator Service is Successfully Up!" in line for line in iter(process.stderr.readline, ""))
        with urllib.request.urlopen(f"http://{host}:5301/health", timeout=LIMIT_SECONDS) as answer:
            assert json.load(answer)["status"] == "healthy"
        # The health check of the image itself finds the port as well.
        [check] = re.findall(r"^ CMD (\[.*\])$", containerfile, re.MULTILINE)
        _, *python = json.loads(check.replace("127.0.0.1", host))
        for port, healthy in (("5301", True), ("1", False)):
            ran = subprocess.run([sys.executable, *python], env=sbpair.variables({"EMULATOR_HTTP_PORT": port}))
            assert (ran.returncode == 0) == healthy, ran
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_SECONDS)


def test_microsofts_file_is_taken_where_their_image_has_it(tmp_path: Path) -> None:
    here, missing = tmp_path / "Config.json", tmp_path / "nothing"
    here.write_text("{}")
    microsoft, ours = Doors("127.0.0.1", 0, True, False), Doors("127.0.0.1", 0, False, False)
    assert microsoft_config(microsoft, here) == here
    assert microsoft_config(microsoft, missing) is None
    assert microsoft_config(ours, here) is None


@pytest.mark.parametrize("text", ["no", "0", "65536", "٣٠٠"])
def test_a_port_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="EMULATOR_HTTP_PORT is a port"):
        http_port({"EMULATOR_HTTP_PORT": text})


def test_only_who_starts_microsofts_image_opens_to_the_key_that_everybody_knows() -> None:
    open_doors = Doors("0.0.0.0", 0, True, False)
    with pytest.raises(ConfigurationError, match="known to everybody"):
        configs(["sbemulatorns"], open_doors, {}, {"ACCEPT_EULA": "N"})
    [accepted] = configs(["sbemulatorns"], open_doors, {}, {"ACCEPT_EULA": "Y"})
    assert accepted.keys == {"RootManageSharedAccessKey": "SAS_KEY_VALUE"}
    short = {"sbemulatorns": {"keys": {"RootManageSharedAccessKey": {"key": "short"}}}}
    with pytest.raises(ConfigurationError, match="shorter than 16"):
        configs(["sbemulatorns"], open_doors, short, {"ACCEPT_EULA": "Y"})


def test_paired_namespaces_are_premium_and_throttle_as_such_unless_the_seed_says_otherwise() -> None:
    doors, seed = Doors("127.0.0.1", 0, False, False), {"contoso-neu": {"tier": "Standard"}}
    names = ("contoso-weu", "contoso-neu", "contoso-seu")
    made = configs(names, doors, seed, {}, throttled=True, paired=names[:2])
    assert [one.tier for one in made] == [Tier.PREMIUM, Tier.STANDARD, Tier.STANDARD]
    assert [one.throttling for one in made] == [limits_of(one.tier) for one in made]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--namespace", "x"), "not a namespace name"),
        (("--namespace", "contoso", "--namespace", "contoso"), "must differ"),
        (("--fault", "nonsense"), "nonsense"),
        (("--seed", "missing.yaml"), "Cannot read the seed"),
        (("--port", "-1"), "port"),
        (("--host", "0.0.0.0", "--microsoft-ports"), "known to everybody"),
        (("--host", "192.0.2.1", "--standard-ports"), "cannot share the ports 5671, 443"),
        (("fault", "list", "local-primary"), "No embedded namespaces are running"),
    ],
)
def test_refusals(sbpair: Sbpair, arguments: tuple[str, ...], message: str) -> None:
    refused = sbpair("emulator", *arguments)
    assert refused.code == 2, refused
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        ("other-ns: {}", "unknown namespaces: other-ns"),
        ("local-primary: {queus: {}}", "did you mean 'queues'"),
        ("local-primary: {queues: {orders: {max_size: 1}}}", "unknown key 'max_size'"),
        ("local-primary: {tier: Gold}", "Basic, Standard or Premium"),
        ("local-primary: {tier: Premium, partitions: 3}", "1, 2 or 4 partitions"),
        ("local-primary: {tier: Premium, partitions: many}", "has 1, 2 or 4 partitions"),
        ("local-primary: {partitions: 2}", "only a Premium namespace"),
        ("local-primary: {queues: {'bad name': {}}}", "local-primary"),
        ("[]", "maps namespace names"),
    ],
)
def test_a_bad_seed_is_refused(sbpair: Sbpair, seed: str, message: str) -> None:
    (sbpair.home / "seed.yaml").write_text(seed)
    refused = sbpair("emulator", "--port", "0", "--seed", str(Path("seed.yaml")))
    assert refused.code == 2, refused
    assert message in refused.stderr
    assert "Correct the seed, and start again." in refused.stderr, "no word of sbpair.yaml, which is not read"


def test_what_is_not_emulated_is_written_down(sbpair: Sbpair) -> None:
    rows = sbpair("emulator", "--not-emulated", "-o", "json").data
    assert {row["law"]: row["instead"] for row in rows} == {law.name: law.differs for law in BOOK if law.differs}
    assert len(rows) > 10


def test_the_laws_are_listed(sbpair: Sbpair) -> None:
    assert [row["law"] for row in sbpair("emulator", "--laws", "-o", "json").data] == [law.name for law in BOOK]
    (law,) = sbpair("emulator", "--law", "max-batch-delete-messages", "-o", "json").data
    assert law["forms"] == {"strict": "500 (Basic), 500 (Standard), 4000 (Premium)", "lax": "2147483647"}
    assert law["asked_in"] == "requests/operations.py delete_messages"
    assert "docs pull request 127665" in sbpair("emulator", "--law", "max-batch-delete-messages").stdout
    unknown = sbpair("emulator", "--law", "no-such-law")
    assert unknown.code == 2
    assert "no law 'no-such-law'" in unknown.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lax", "no-such-law"), "no law 'no-such-law'"),
        (("--lax", "partitioned-batch-key=other"), "has no form 'other'"),
        (("--lax", "partitioned-batch-key", "--strict"), "--strict keeps every law"),
    ],
)
def test_what_cannot_be_bent_is_refused(sbpair: Sbpair, arguments: tuple[str, ...], message: str) -> None:
    refused = sbpair("emulator", "--port", "0", *arguments)
    assert refused.code == 2
    assert message in refused.stderr


def test_a_lax_law_is_not_kept(sbpair: Sbpair) -> None:
    (sbpair.home / "seed.yaml").write_text(f"contoso-weu: {{queues: {{{'x' * 300}: {{}}}}}}\n")
    arguments = ("--namespace", "contoso-weu", "--seed", "seed.yaml")
    assert "300 characters exceeds" in sbpair("emulator", "--port", "0", *arguments, "--strict").stderr
    process = start(sbpair, *arguments, "--lax", "max-entity-path-characters")
    stop(process)
    assert process.returncode == 143


def test_the_clients_that_were_tried_are_written_down(sbpair: Sbpair) -> None:
    rows = sbpair("emulator", "--compatibility", "-o", "json").data
    assert {row["language"] for row in rows} >= {"Python", "Java"}
    # A suite of others names its failures in groups.
    assert all(0 < row["passed"] <= row["scenarios"] - len(row["failed"]) for row in rows)


def test_the_help_of_faults_names_every_kind_and_key(tmp_path: Path) -> None:
    words = set(re.findall(r"[a-z-]+", run_inside(tmp_path, "emulator", "fault", "add", "--help").stdout))
    assert {*FaultKind, *_KEYS, "p"} <= words
