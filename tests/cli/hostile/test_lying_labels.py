"""A namespace's name in a sentence and the host that is contacted come from one value: configurations that say one and
mean another are refused by every command before a single byte leaves."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbpair import NamespaceAccess, Secret, ServiceBusClient
from sbpair.connect import open_namespace
from sbpair.core.access import AuthMethod
from sbpair.core.errors import ConfigurationError, UsageError
from sbpair.core.transfer.ledger import Way
from sbpair.runtime.transfer.ledger import Ledger
from tests.cli.exit_codes import ASKS_NOBODY, TABLE
from tests.cli.plans import rewritten
from tests.cli.process import Sbpair

ENTITY = "contoso-weu:orders"
LINES = {
    "provision": "lie",
    "audit": "lie",
    "cleanup": "lie --yes",
    "peek": "lie",
    "drain": "lie --yes",
    "syphon": "lie",
    "gateway": "lie --listen 127.0.0.1:0",
    "dlq list": ENTITY,
    "entity peek": ENTITY,
    "dlq peek": ENTITY,
    "dlq resubmit": f"{ENTITY} --yes",
    "dlq purge": f"{ENTITY} --no-archive --yes",
    "evacuate": "contoso-weu contoso-neu --yes",
    "entity list": "--namespace contoso-weu",
    "entity show": ENTITY,
    "entity create": f"{ENTITY} --yes",
    "entity delete": f"{ENTITY} --yes",
    "entity set-status": f"{ENTITY} Active --yes",
    "rules test": "contoso-weu:news --property a=1",
    "rules unmatched": "contoso-weu:news",
    "diff": "contoso-weu contoso-neu",
    "promotion report": "--namespace contoso-weu --archive archived.jsonl",
    "export": "snapshot --namespace contoso-weu",
    "move": f"{ENTITY} parked --yes",
    "copy": f"{ENTITY} contoso-neu:orders --yes",
    "edit": f"{ENTITY} 1 --yes",
    "purge": f"{ENTITY} --no-archive --yes",
    "restore": "archived.jsonl --pair lie --yes",
    "send": "lie orders",
    "ping": "lie orders",
    "drill": "lie orders --yes",
    "discover": "contoso-neu",
    "session list": ENTITY,
    "session show": f"{ENTITY} s",
    "session set-state": f"{ENTITY} s x --yes",
    "session clear": f"{ENTITY} s --yes",
    "message show": f"{ENTITY} 1",
    "message complete": f"{ENTITY} 1 --no-archive --yes",
    "message dead-letter": f"{ENTITY} 1 --yes",
    "message reschedule": f"{ENTITY} 1 15m --yes",
    "undefer": f"{ENTITY} --yes",
    "explain": f"{ENTITY} 1",
    "incident": "lie",
    "top": "contoso-weu --pair lie",
    "exporter": "contoso-weu --pair lie --listen 127.0.0.1:0",
    "status": "lie",
    "doctor": "lie",
    "replicate send": "lie orders --session-id s",
    "replicate consume": "lie orders --exec true --journal sqlite:j.db",
    "replicate provision": "lie orders",
    "pipeline archive": "lie --archive there",
    "pipeline follow": "lie --archive there",
    "pipeline replay": "lie --archive there --ledger ledgers",
}
NO_CONFIGURED_NAMESPACE = {"demo", "replicate status"}


class Liar:
    """Counts the connections that it gets, on a port of this machine."""

    def __init__(self) -> None:
        self.connections = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            peer.close()

    def connection_string(self, host: str = "") -> str:
        place = host or f"127.0.0.1:{self.port}"
        return f"Endpoint=sb://{place};SharedAccessKeyName=Root;SharedAccessKey=eA==;UseDevelopmentEmulator=true"

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def liar() -> Iterator[Liar]:
    made = Liar()
    yield made
    made.close()


def pair_of(text: str, *, more: str = "") -> str:
    sides = ", ".join(
        f"{side}: {{namespace: {name}, connection_string: {text}{more}}}"
        for side, name in (("primary", "contoso-weu"), ("secondary", "contoso-neu"))
    )
    return f"version: 1\npairs:\n  lie: {{{sides}, environment: production}}\n"


@pytest.mark.parametrize("command", sorted(LINES))
def test_no_command_contacts_a_host_that_the_name_does_not_tell(sbpair: Sbpair, liar: Liar, command: str) -> None:
    (sbpair.home / "note.txt").write_text(liar.connection_string(), encoding="utf-8")
    (sbpair.home / "sbpair.yaml").write_text(pair_of("{file: note.txt}"), encoding="utf-8")
    (sbpair.home / "archived.jsonl").write_text("{}\n", encoding="utf-8")
    ran = sbpair(*command.split(), *LINES[command].split(), stdin="one\n")
    assert ran.code == 2, ran
    said = ran.stdout + ran.stderr
    assert f"127.0.0.1:{liar.port}" in said, ran
    assert "contoso-weu" in said or "contoso-neu" in said, ran
    assert liar.connections == 0


def test_every_command_that_contacts_a_namespace_is_tried() -> None:
    asking = {command for command, cells in TABLE.items() if ASKS_NOBODY not in cells.values()}
    assert asking - NO_CONFIGURED_NAMESPACE <= set(LINES)


@pytest.mark.parametrize("host", ["evil.attacker.test", "contoso-weu.servicebus.windows.net.attacker.test", "[::1]"])
@pytest.mark.parametrize("named", ["contoso-weu", "contoso-weu.servicebus.windows.net"])
def test_ones_own_file_may_be_mistaken_as_well(sbpair: Sbpair, liar: Liar, host: str, named: str) -> None:
    """A variable with another namespace's connection string: an accident, and the same end."""
    text = pair_of("{env: CS}").replace("contoso-weu", named)
    (sbpair.home / "own.yaml").write_text(text, encoding="utf-8")
    ran = sbpair("drain", "lie", "--yes", "--config", "own.yaml", env={"CS": liar.connection_string(host)})
    assert (ran.code, liar.connections) == (2, 0), ran
    assert "contoso-weu" in ran.stderr
    assert host in ran.stderr
    assert "host: " in ran.stderr, "it says how it is written where both are right"


def test_a_variable_that_names_another_namespace(sbpair: Sbpair, liar: Liar) -> None:
    env = {
        "SBPAIR_PRIMARY_NAMESPACE": "contoso-weu",
        "SBPAIR_PRIMARY_CONNECTION_STRING": liar.connection_string(),
        "SBPAIR_SECONDARY_NAMESPACE": "contoso-neu",
    }
    ran = sbpair("drain", "environment", "--yes", env=env)
    assert (ran.code, liar.connections) == (2, 0), ran
    stated = sbpair("config", "check", env=env | {"SBPAIR_PRIMARY_HOST": "localhost"})
    assert stated.code == 0, stated


def test_a_folders_file_does_not_say_where_a_name_belongs(sbpair: Sbpair, liar: Liar) -> None:
    text = pair_of("{env: CS}", more=", host: evil.attacker.test")
    text = text.replace("contoso-neu, connection_string: {env: CS}, host: evil.attacker.test", "contoso-neu")
    (sbpair.home / "sbpair.yaml").write_text(text, encoding="utf-8")
    env = {"CS": liar.connection_string("evil.attacker.test").partition(";UseDev")[0]}
    ran = sbpair("drain", "lie", "--yes", env=env)
    assert (ran.code, "evil.attacker.test" in ran.stderr) == (2, True), ran
    assert sbpair("config", "check", "--config", "sbpair.yaml", env=env).code == 0, "named by its user it may"


def test_a_folders_connection_string_without_a_name_stays_with_azure(sbpair: Sbpair) -> None:
    text = pair_of("{env: CS}").replace("namespace: contoso-weu, ", "")
    text = text.replace("contoso-neu, connection_string: {env: CS}", "contoso-neu")
    (sbpair.home / "sbpair.yaml").write_text(text, encoding="utf-8")

    def check(host: str, **more: str) -> int:
        env = {"CS": f"Endpoint=sb://{host}/;SharedAccessKeyName=Root;SharedAccessKey=eA=="}
        return sbpair("config", "check", env=env | more).code

    assert check("contoso-weu.attacker.test") == 2
    assert check("contoso-weu.servicebus.windows.net") == 0
    assert check("contoso-weu.servicebus.chinacloudapi.cn") == 2
    assert check("contoso-weu.servicebus.chinacloudapi.cn", AZURE_AUTHORITY_HOST="login.chinacloudapi.cn") == 0


def test_a_folders_pair_is_asked_about_and_reported_by_its_hosts(fresh: Sbpair) -> None:
    """The embedded namespaces under other names, by a folder's file: the notice, the log line that stands for the
    question, and the closing sentence name the hosts."""
    state = json.loads((fresh.home / "state" / "sbpair" / "emulator.json").read_text(encoding="utf-8"))
    sides = ", ".join(
        f"{side}: {{namespace: {name}, host: localhost, ca_file: {state['ca_file']}, "
        f"connection_string: {{file: {known['connection_string_file']}}}}}"
        for side, name, known in zip(
            ("primary", "secondary"), ("contoso-weu", "contoso-neu"), state["namespaces"], strict=False
        )
    )
    (fresh.home / "sbpair.yaml").write_text(f"version: 1\npairs:\n  mine: {{{sides}}}\n", encoding="utf-8")
    hosts = [
        line.partition("sb://")[2].partition(";")[0].rstrip("/")
        for known in state["namespaces"][:2]
        for line in [Path(known["connection_string_file"]).read_text(encoding="utf-8")]
    ]
    assert fresh("provision", "mine", "--yes").code == 0
    drained = fresh("drain", "mine", "--yes")
    assert drained.code == 0, drained
    first = fresh("status", "mine", "-o", "table")
    doctor = fresh("doctor", "mine", "-o", "json")
    for host, name in zip(hosts, ("contoso-weu", "contoso-neu"), strict=True):
        assert f"{name} at {host}" in drained.stderr, drained
        assert f"{name} at {host}" in doctor.stdout, doctor
        # A bare name means the namespace as the configuration reaches it, on this machine too: its host is said.
        listed = fresh("entity", "list", "--namespace", name, "-o", "json")
        assert f'"{name} at {host}"' in listed.stdout, listed
        whole = fresh("entity", "list", "--namespace", f"{name}.servicebus.windows.net", "--auth", "connection-string")
        assert (whole.code, "No connection string is configured" in whole.stderr) == (2, True), whole
    assert (first.code, f"contoso-weu at {hosts[0]}" in first.stdout) == (0, True), first


async def test_a_client_of_the_library_asks_the_same_gate(liar: Liar) -> None:
    lying = NamespaceAccess(
        "contoso-weu",
        "contoso-weu.servicebus.windows.net",
        AuthMethod.CONNECTION_STRING,
        connection_string=Secret(liar.connection_string()),
    )
    async with open_namespace(lying) as (messaging, admin):
        with pytest.raises(ConfigurationError, match=r"contoso-weu\.servicebus.* leads to .127\.0\.0\.1"):
            await messaging.receiver("orders").peek(1)
        with pytest.raises(ConfigurationError, match=r"leads to .127\.0\.0\.1"):
            await admin.namespace()
    assert liar.connections == 0


def test_a_drop_in_client_of_a_lying_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, liar: Liar
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "note.txt").write_text(liar.connection_string(), encoding="utf-8")
    (tmp_path / "sbpair.yaml").write_text(pair_of("{file: note.txt}"), encoding="utf-8")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with caplog.at_level("WARNING", "sbpair"), pytest.raises(ConfigurationError, match="contoso-weu"):
        ServiceBusClient.from_connection_string(liar.connection_string(), pair="lie")
    assert f"First use of {tmp_path / 'sbpair.yaml'}" in caplog.text, "the library says whose file it follows"
    assert liar.connections == 0


@pytest.mark.parametrize(
    "url",
    [
        "https://management.azure.com:443@evil.attacker.test:39443",
        "https://management.azure.com@evil.attacker.test",
        "https://management.azure.com\\@evil.attacker.test",
        "https://[::1",
        "https://",
    ],
)
def test_a_management_url_is_judged_by_the_host_that_is_contacted(sbpair: Sbpair, url: str) -> None:
    quoted = json.dumps(url)
    text = pair_of("{env: CS}").replace("connection_string: {env: CS}", f"auth: azure-cli, management_url: {quoted}")
    (sbpair.home / "sbpair.yaml").write_text(text, encoding="utf-8")
    for config in ([], ["--config", "sbpair.yaml"]):
        ran = sbpair("config", "check", *config)
        assert ran.code == 2, ran
        assert "does not name a host" in ran.stderr


@pytest.mark.parametrize("name", ["local", "environment"])
def test_a_folders_file_defines_no_pair_of_a_name_that_means_another(sbpair: Sbpair, name: str) -> None:
    """`local` are the embedded namespaces, which need not run just now; `environment` is what variables name."""
    sides = "{primary: {namespace: contoso-weu}, secondary: {namespace: contoso-neu}}"
    (sbpair.home / "sbpair.yaml").write_text(f"version: 1\npairs:\n  {name}: {sides}\n", encoding="utf-8")
    ran = sbpair("drain", name, "--yes")
    assert (ran.code, f"the pair `{name}` means" in ran.stderr) == (2, True), ran
    assert sbpair("config", "check", "--config", "sbpair.yaml").code == 0, "named by its user it may"


@pytest.mark.parametrize("key", ["subscription", "resource_group"])
@pytest.mark.parametrize("value", ["../../x", "a/b", "a?b", "..", "a#b", "a%2fb", "x" * 91])
def test_what_the_resource_manager_is_asked_for_is_one_segment_of_its_path(
    sbpair: Sbpair, key: str, value: str
) -> None:
    text = pair_of("{env: CS}").replace("connection_string: {env: CS}", f"auth: azure-cli, {key}: {json.dumps(value)}")
    (sbpair.home / "sbpair.yaml").write_text(text, encoding="utf-8")
    ran = sbpair("config", "check")
    assert (ran.code, f"{key} is neither a subscription id" in ran.stderr) == (2, True), ran


@pytest.mark.parametrize("more", ["SharedAccessKeyName=Root;SharedAccessKey=eA==", "SharedAccessKeyName=Root"])
def test_a_connection_string_has_a_key_or_a_signature(sbpair: Sbpair, liar: Liar, more: str) -> None:
    """Logs name the key; a signature beside it would be what is used."""
    text = f"Endpoint=sb://127.0.0.1:{liar.port};SharedAccessSignature=sr=x&sig=y&se=9999999999&skn=other;{more}"
    (sbpair.home / "sbpair.yaml").write_text(pair_of("{env: CS}", more=", host: localhost"), encoding="utf-8")
    ran = sbpair("peek", "lie", env={"CS": text})
    assert (ran.code, liar.connections) == (2, 0), ran
    assert "has a key and a signature" in ran.stderr


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("create", {"settings": {"forward_to": "elsewhere"}}),
        ("create", {"reason": "it does not exist; the operator agreed"}),
        ("update", {"settings": {"forward_to": "elsewhere"}}),
        ("update", {"settings": {"status": "Disabled"}}),
        ("update", {"changes": []}),
        ("update", {"reason": "lock duration is 5s, documented 1m"}),
    ],
)
def test_a_plan_file_does_what_its_reasons_say(fresh: Sbpair, kind: str, change: dict[str, object]) -> None:
    """People approve the text of a step; the settings that it makes are in another field."""
    queue = "local-primary/x-servicebus-transfer/0"
    if kind == "update":
        made = fresh("entity", "create", f"local-secondary:{queue}", "--max-deliveries", "5", "--yes")
        assert made.code == 0, made
    assert fresh("provision", "local", "--update", "--plan-out", "plan.json").code == 0

    def mislead(document: Any) -> None:
        steps = document["plans"][0]["steps"]
        (step,) = (one for one in steps if (one["kind"], one["queue"]) == (kind, queue))
        for name, value in change.items():
            step[name] = step[name] | value if isinstance(value, dict) else value

    rewritten(fresh.home / "plan.json", mislead)
    ran = fresh("provision", "local", "--plan", "plan.json", "--yes")
    assert (ran.code, "something else than its reason says" in ran.stderr) == (2, True), ran
    shown = fresh("entity", "show", f"local-secondary:{queue}", "-o", "json")
    assert '"forward_to": "elsewhere"' not in shown.stdout


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("seed.yaml", "contoso:\n  queues:\n    orders: {requires_session: true}\n    orders: {}\n"),
        ("seed.yaml", "contoso:\n  queues:\n    orders: {requires_session: true}\n    Orders: {}\n"),
        (
            "Config.json",
            '{"UserConfig": {"Namespaces": [{"Name": "contoso", "Queues": [{"Name": "orders", '
            '"Properties": {"RequiresSession": true}}, {"Name": "Orders"}]}]}}',
        ),
        (
            "Config.json",
            '{"UserConfig": {"Namespaces": [{"Name": "contoso", "Queues": [{"Name": "orders", "Name": "invoices"}]}]}}',
        ),
    ],
)
def test_a_name_stands_once_in_a_seed(sbpair: Sbpair, name: str, text: str) -> None:
    (sbpair.home / name).write_text(text, encoding="utf-8")
    ran = sbpair("emulator", "--port", "0", "--namespace", "contoso", "--seed", name)
    assert (ran.code, "two of" in ran.stderr or "twice" in ran.stderr) == (2, True), ran


def test_a_ledger_line_that_names_no_namespaces_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "drain.jsonl"
    line = {"queue": "q", "sequence_number": 1, "message_id": "m", "enqueued_at_ms": 1, "outcome": "forwarded"}
    path.write_text(json.dumps(line) + "\n", encoding="utf-8")
    with pytest.raises(UsageError, match="does not say between which namespaces"):
        Ledger(path, resume=True, way=Way("contoso-neu.servicebus.windows.net", "contoso-weu.servicebus.windows.net"))
    assert json.loads(path.read_text(encoding="utf-8")) == line, "the file was left as it was"
