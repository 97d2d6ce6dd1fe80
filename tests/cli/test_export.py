"""`sbpair export`: the files name metrics, options and variables that exist, and their own tools take them."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from sbpair.core import events
from sbpair.core.events import Event
from sbpair.core.metrics import series
from sbpair.render.export import PANELS, ExportKind, dashboard, dns_name, in_action, in_bicep, in_hcl, in_shell, in_yaml
from sbpair.render.service import ServiceMetrics
from sbpair.settings import load
from tests.cli.inspection.test_exporter import exporting
from tests.cli.process import Sbpair
from tests.cli.test_contents import parse
from tests.emulator.addresses import own_address
from tests.waiting import LIMIT_SECONDS

CONFIGURATION = """\
version: 1
pairs:
  orders_EU:
    primary: {namespace: contoso-weu, connection_string: {env: NOT_SET}}
    secondary: {namespace: contoso-neu, resource_group: 'rg-(neu)', subscription: 00000000-0000-0000-0000-000000000001}
    backlog_queues: 12
    failover_interval: 15m5s
    hold_sessions: true
    entities: [orders, invoices/incoming]
    environment: "prod \\"EU\\" 'x' #1: \U0001f680 $HOME `id` ${{ x }} \\\\ end"
"""
PAIR = "orders_EU"
AWKWARD = "prod \"EU\" 'x' #1: \U0001f680 \u8ba2\u5355 \x7f\x85\u2028\ufeff $HOME `id` ${{ x }} {{ y }} %h \\ \n end"
DIVERT = """
import asyncio
from sbpair import compose, for_backlog, open_sides
from sbpair.settings import load
async def main():
    pair = load().pair("local")
    async with open_sides(pair) as sides:
        payload = for_backlog(compose(body="x", message_id="1"), "orders")
        await sides.secondary.sender(pair.backlog_paths()[0]).send([payload], timeout_seconds=30)
asyncio.run(main())
"""


@pytest.fixture
def files(sbpair: Sbpair) -> "Files":
    (sbpair.home / "sbpair.yaml").write_text(CONFIGURATION, encoding="utf-8")
    return Files(sbpair)


class Files:
    """What an export has written."""

    def __init__(self, sbpair: Sbpair) -> None:
        self.sbpair = sbpair
        self.folder = sbpair.home / "out"

    def __call__(self, kind: ExportKind) -> dict[str, str]:
        pair = (PAIR,) if kind.of_a_pair else ()
        ran = self.sbpair("export", kind.value, *pair, "--dir", str(self.folder / kind.value), "-o", "json")
        assert ran.code == 0, ran.stderr
        return {one["path"]: Path(one["path"]).read_text(encoding="utf-8") for one in ran.data["files"]}

    def one(self, kind: ExportKind, ending: str = "") -> str:
        (text,) = (text for path, text in self(kind).items() if path.endswith(ending))
        return text


# What the command does.


def test_a_second_export_changes_nothing_and_replaces_an_edited_file_only_when_told(files: Files) -> None:
    sbpair, folder = files.sbpair, str(files.folder)
    export = ("export", "systemd", "--dir", folder, "-o", "json")  # the only pair needs no name
    assert {one["result"] for one in sbpair(*export).data["files"]} == {"written"}
    assert {one["result"] for one in sbpair(*export).data["files"]} == {"unchanged"}
    edited = files.folder / f"sbpair-syphon-{PAIR}.service"
    edited.write_text("mine", encoding="utf-8")
    (files.folder / "sbpair.conf").unlink()
    refused = sbpair(*export)
    assert refused.code == 2
    assert str(edited) in refused.error["message"]
    assert "Nothing was written" in refused.error["message"]
    assert not (files.folder / "sbpair.conf").exists()
    assert edited.read_text(encoding="utf-8") == "mine"
    assert sbpair(*export, "--overwrite").code == 0
    assert "ExecStart" in edited.read_text(encoding="utf-8")


def test_a_dry_run_says_what_would_be_written_and_writes_nothing(files: Files) -> None:
    sbpair, folder = files.sbpair, str(files.folder)
    export = ("export", "systemd", "--dir", folder, "-o", "json")
    shown = sbpair(*export, "--dry-run")
    assert (shown.code, {one["result"] for one in shown.data["files"]}) == (5, {"to write"})
    assert not files.folder.exists()
    written = sbpair(*export).data["files"]
    assert [one["path"] for one in written] == [one["path"] for one in shown.data["files"]]
    again = sbpair(*export, "--dry-run")
    assert (again.code, {one["result"] for one in again.data["files"]}) == (0, {"unchanged"})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("alerts orders_EU", "serves every pair"),
        ("systemd", "No pair is configured"),
        ("systemd local", "no two are running"),
        ("kubernetes --image 'a b'", "--image"),
    ],
)
def test_what_it_cannot_write_for(sbpair: Sbpair, line: str, said: str) -> None:
    ran = sbpair("export", *shlex.split(line))
    assert (ran.code, ran.stdout) == (2, "")
    assert said in ran.stderr
    assert [path for path in sbpair.home.iterdir() if path.is_file()] == []


@pytest.mark.parametrize(
    "kind", [kind for kind in ExportKind if kind not in (ExportKind.CONFIG_JSON, ExportKind.SNAPSHOT)]
)
def test_no_file_has_a_gap_or_a_key(files: Files, kind: ExportKind) -> None:
    for name, text in files(kind).items():
        assert not re.search(r"<<|>>|<%|%>|None|SharedAccessKey=(?!THE_KEY|\$[({])", text), name
        assert text.endswith("\n")
        assert "\n\n\n" not in text


def test_names_and_texts_in_other_languages() -> None:
    assert dns_name("sbpair-orders-eu", 16) == "sbpair-orders-eu"
    alike = ("sbpair-Orders_EU", "sbpair-orders_eu", "sbpair-orders-eu-2", "sbpair-orders-eu-3", "sbpair-orders-e-")
    made = {dns_name(name, 16) for name in alike}
    assert len(made) == len(alike), "of two pairs neither replaces the other"
    assert all(re.fullmatch(r"sbpair-[a-z0-9-]{0,8}[a-z0-9]", name) for name in made), made
    assert len(dns_name("sbpair-" + "x" * 90, 32)) == 32
    assert in_hcl('a"${b}%{c}') == '"a\\"$${b}%%{c}"'
    assert yaml.safe_load(in_yaml(AWKWARD)) == AWKWARD
    assert yaml.safe_load(in_action("a ${{ b")) == "a ${{ '${{' }} b"
    assert in_bicep("a\n\tb") == "'a\\n\\tb'"
    assert shlex.split(in_shell("rg (north) 'x' $y")) == ["rg (north) 'x' $y"]
    assert in_bicep("it's ${b}\\") == "'it\\'s \\${b}\\\\'"
    assert (in_bicep(True), in_bicep(5120), in_hcl(False)) == ("true", "5120", "false")


# Alerts and dashboard ask for samples that there are.


def one_of_each() -> Sequence[Event]:
    queue = "p/x-servicebus-transfer/0"
    return (
        events.Polled(1.0, queue, 1),
        events.ReceiveFailed(1.0, queue, "timeout", 1.0),
        events.BacklogCounted(1.0, queue, 3),
        events.Forwarded(1.0, queue, "orders", 1, 10),
        events.DeadLettered(1.0, queue, 7, "TooLarge", ""),
        events.Paused(1.0, "orders", "timeout", 5.0),
        events.Restarting(1.0, "error", "text", 1.0),
    )


@pytest.fixture(scope="module")
def samples(local: Sbpair) -> Mapping[str, set[str]]:
    """Name of each sample that the program writes -> its labels."""
    assert local("provision", "local", "--queues", "2").code == 0
    local.python(DIVERT)
    on = ("--namespace", "local-secondary")
    assert local("entity", "create", "refused", *on, "--yes").code == 0
    assert local("send", "refused", *on, stdin="x\n").code == 0
    assert local("message", "dead-letter", "refused", "1", "--reason", "mine", *on, "--yes").code == 0
    metrics = ServiceMetrics("local", poll_seconds=900)
    for event in one_of_each():
        metrics.notify(event)
    texts = [metrics.text()]
    for line in ("status local --interval 10ms -o prometheus", "audit local --exit-zero -o prometheus"):
        texts.append(local(*line.split()).stdout)
    with exporting(local, "--pair", "local", "local-secondary") as scrape:
        texts.append(scrape())
    found: dict[str, set[str]] = {}
    for text in texts:
        for name, labels in re.findall(r"^(sbpair_\w+)(?:\{(.*)\})? ", text, re.MULTILINE):
            found.setdefault(name, {"instance", "job"}).update(re.findall(r'(\w+)="', labels))
    return found


def test_a_quiet_year_of_a_pair_read_without_arm_has_no_skipped_check(
    samples: Mapping[str, set[str]], local: Sbpair
) -> None:
    """What the data-plane API never tells is no reason to alarm for ever."""
    text = local("audit", "local", "--exit-zero", "-o", "prometheus").stdout
    assert re.search(r"^sbpair_audit_skipped_checks\{.*\} 0$", text, re.MULTILINE), text


def test_every_sample_is_in_the_table_with_its_labels(samples: Mapping[str, set[str]]) -> None:
    for name, labels in samples.items():
        assert labels - {"instance", "job"} <= set(series()[name].labels), name


def alerts(files: Files) -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(files.one(ExportKind.ALERTS))["groups"]:
        yield from group["rules"]


def check_query(expression: str, samples: Mapping[str, set[str]]) -> None:
    """It asks for what a program writes, and for nothing that is not in the table."""
    named = re.findall(r"sbpair_\w+", expression)
    assert named, expression
    assert set(named) <= set(series())
    common = set.intersection(*(samples[name] for name in named))  # a KeyError names what no program writes
    asked = {label for group in re.findall(r"by \((.*?)\)", expression) for label in group.split(", ")}
    asked |= {label for group in re.findall(r"\{(.*?)\}", expression) for label in re.findall(r"(\w+)=~?\"", group)}
    assert asked <= common, (expression, asked - common)


def test_every_alert_asks_for_samples_and_labels_that_there_are(files: Files, samples: Mapping[str, set[str]]) -> None:
    rules = list(alerts(files))
    assert len(rules) > 10
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        check_query(rule["expr"], samples)
        found = re.search(r"by \((.*?)\)", rule["expr"])
        assert found or rule["expr"].startswith("absent("), rule["alert"]
        grouped = set(found[1].split(", ")) if found else set()
        used = {name for text in rule["annotations"].values() for name in re.findall(r"\$labels\.(\w+)", text)}
        assert used <= grouped, rule["alert"]


def test_the_commands_that_alerts_advise_can_be_typed(files: Files) -> None:
    texts = [text for rule in alerts(files) for text in rule["annotations"].values()]
    plain = [re.sub(r"\{\{ \$labels.(pair|entity|namespace) \}\}", "orders", text) for text in texts]
    advised = [line for text in plain for line in re.findall(r"(?<!/)\bsbpair ([a-z][^.:`]*)", text)]
    assert len(advised) > 8
    for line in advised:
        parse(shlex.split(line))


def test_every_panel_asks_for_samples_and_labels_that_there_are(samples: Mapping[str, set[str]]) -> None:
    for panel in PANELS:
        for query in panel.queries:
            check_query(query.expression, samples)
            grouped = set(re.search(r"by \((.*?)\)", query.expression)[1].split(", "))  # type: ignore[index]
            assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= grouped


def test_the_dashboard_is_whole(files: Files) -> None:
    made = json.loads(files.one(ExportKind.DASHBOARD))
    assert made == dashboard()
    places = [tuple(panel["gridPos"][key] for key in "xywh") for panel in made["panels"]]
    taken = [(x + i, y + j) for x, y, w, h in places for i in range(w) for j in range(h)]
    assert len(taken) == len(set(taken)), "two panels in one place"
    assert all(x + w <= 24 for x, _, w, _ in places)
    variables = {one["name"] for one in made["templating"]["list"]}
    asked = re.findall(r"\$\{?(\w+)", json.dumps(made["panels"]))
    assert set(asked) - {"__rate_interval"} <= variables
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])


needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")


@needs_promtool
def test_promtool_takes_the_rules_and_the_queries_of_the_dashboard(files: Files) -> None:
    (alerts_file,) = files(ExportKind.ALERTS)
    expressions = [query.expression for panel in PANELS for query in panel.queries]
    plain = [one.replace("$__rate_interval", "5m").replace("$pair", ".*") for one in expressions]
    rules = [{"record": f"panel:{at}", "expr": one} for at, one in enumerate(plain)]
    panels = files.folder / "panels.yml"
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    done = subprocess.run(["promtool", "check", "rules", alerts_file, str(panels)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_alerts_come_when_they_should(files: Files) -> None:
    """Series of a bad hour, and what an operator is told of them."""
    (alerts_file,) = files(ExportKind.ALERTS)
    pair, host = 'pair="orders"', 'instance="a"'
    series = {
        f'sbpair_namespace_up{{{pair},{host},side="primary"}}': "1 1 0x60",
        f'sbpair_namespace_up{{{pair},{host},side="secondary"}}': "1x60",
        f"sbpair_backlog_oldest_age_seconds{{{pair},{host}}}": "3500+60x60",
        f"sbpair_syphon_healthy_ratio{{{pair},{host}}}": "1x60",
        f'sbpair_last_success_timestamp_seconds{{{host},command="audit"}}': "0x300",
        'sbpair_entity_dead_letter_messages{namespace="n",entity="orders"}': "5x60 9x200",
        'sbpair_entities_up{namespace="n"}': "1x10 0x60",
        f"sbpair_audit_skipped_checks{{{pair},{host}}}": "0x600",
    }
    expected = {  # alert, minute -> labels
        ("SbpairNamespaceDown", 3): [],
        ("SbpairNamespaceDown", 10): [{"side": "primary", "severity": "critical", "pair": "orders"}],
        ("SbpairMessagesStranded", 20): [{"severity": "warning", "pair": "orders"}],
        ("SbpairMessagesStrandedLong", 20): [],
        ("SbpairSyphonUnhealthy", 20): [],
        ("SbpairNoFigures", 60): [],
        ("SbpairNoFigures", 100): [{"severity": "critical"}],
        ("SbpairNoAudit", 100): [],
        ("SbpairNoAudit", 200): [{"severity": "warning"}],
        ("SbpairDeadLettersGrow", 50): [],
        ("SbpairDeadLettersGrow", 90): [{"severity": "warning", "namespace": "n", "entity": "orders"}],
        ("SbpairEntitiesUnread", 12): [],
        ("SbpairEntitiesUnread", 40): [{"severity": "warning", "namespace": "n"}],
        ("SbpairAuditChecksSkipped", 500): [],
        ("SbpairCheckOverdue", 100): [],
        ("SbpairCheckOverdue", 200): [{"severity": "warning", "instance": "a", "command": "audit"}],
    }
    cases = [
        {"alertname": name, "eval_time": f"{minute}m", "exp_alerts": [{"exp_labels": one} for one in labels]}
        for (name, minute), labels in expected.items()
    ]
    # Which alerts come, not their words.
    bare = yaml.safe_load(Path(alerts_file).read_text(encoding="utf-8"))
    for group in bare["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]
    rules = files.folder / "bare.yml"
    rules.write_text(yaml.safe_dump(bare), encoding="utf-8")
    test = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "alert_rule_test": cases,
            }
        ],
    }
    file = files.folder / "test.yml"
    file.write_text(yaml.safe_dump(test), encoding="utf-8")
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# Units, manifests, jobs start commands that there are.


def command_lines(files: Files) -> Iterator[list[str]]:
    for text in files(ExportKind.SYSTEMD).values():
        for line in re.findall(r"^ExecStart=/usr/local/bin/sbpair (.*)$", text, re.MULTILINE):
            yield shlex.split(line)
    for document in manifests(files):
        for container in containers(document):
            yield container["args"]
    for step in yaml.safe_load(files.one(ExportKind.GITHUB_ACTION))["runs"]["steps"][1:]:
        yield shlex.split(step["run"].replace("$FAIL_ON", "error"))[1:]
    for step in yaml.safe_load(files.one(ExportKind.DRILL_GITHUB))["jobs"]["drill"]["steps"]:
        if step.get("run", "").startswith("sbpair"):
            yield shlex.split(step["run"])[1:]
    (container,) = containers(yaml.safe_load(files.one(ExportKind.DRILL_KUBERNETES)))
    yield container["args"]
    for kind in (ExportKind.CONTAINER_APPS, ExportKind.GATEWAY_CONTAINER_APPS):
        args = re.search(r"args: \[\n(.*?)\]", files.one(kind), re.DOTALL)
        yield [word.strip().strip("'") for word in args[1].split()]  # type: ignore[index]
    (line,) = re.findall(r"^ExecStart=\S+ (.*)$", files.one(ExportKind.GATEWAY_SYSTEMD), re.MULTILINE)
    yield shlex.split(line)
    (sidecar,) = yaml.safe_load(files.one(ExportKind.GATEWAY_KUBERNETES))["spec"]["template"]["spec"]["initContainers"]
    yield sidecar["args"]
    yield yaml.safe_load(files.one(ExportKind.GATEWAY_COMPOSE))["services"]["gateway"]["command"]


def test_a_sidecar_says_when_it_is_ready(files: Files) -> None:
    """By the port that probes reach, which is that of its metrics; the application stands behind the same key."""
    (sidecar,) = yaml.safe_load(files.one(ExportKind.GATEWAY_KUBERNETES))["spec"]["template"]["spec"]["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    (port,) = sidecar["ports"]
    assert str(port["containerPort"]) == sidecar["args"][sidecar["args"].index("--metrics-port") + 1]
    assert sidecar["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": port["name"]}
    assert sidecar["livenessProbe"]["tcpSocket"] == {"port": port["name"]}, "a restart brings no namespace back"
    assert sidecar["resources"]["limits"]["memory"]
    services = yaml.safe_load(files.one(ExportKind.GATEWAY_COMPOSE))["services"]
    assert services["gateway"]["healthcheck"]["test"][1:4] == ["sbpair", "gateway", "status"]
    key = services["gateway"]["environment"]["SBPAIR_GATEWAY_KEY_APP"]
    assert key.startswith("${GATEWAY_KEY:?")
    assert "SharedAccessKey=${GATEWAY_KEY:?}" in services["application"]["environment"]["SERVICEBUS_CONNECTION_STRING"]
    assert services["application"]["network_mode"] == "service:gateway"
    assert "Restart=on-failure" in files.one(ExportKind.GATEWAY_SYSTEMD)
    assert "ExecReload=/bin/kill -USR1" in files.one(ExportKind.GATEWAY_SYSTEMD)


def test_the_action_runs_what_its_inputs_say(files: Files) -> None:
    action = yaml.safe_load(files.one(ExportKind.GITHUB_ACTION))
    assert action["runs"]["using"] == "composite"
    asked = set(re.findall(r"inputs\.([a-z-]+)", files.one(ExportKind.GITHUB_ACTION)))
    assert asked == set(action["inputs"]) == {"provision", "fail-on", "primary-connection-string"}
    install, provision, audit = action["runs"]["steps"]
    assert install["run"].startswith("python3 -m pip install")
    assert provision["if"] == "inputs.provision == 'true'", "an audit changes nothing unless told to"
    for step in (provision, audit):
        assert step["shell"] == "bash"
        assert step["env"]["SBPAIR_PAIR"] == PAIR
        assert step["env"]["SBPAIR_AUTH"] == "azure-cli"
        assert step["env"]["SBPAIR_PRIMARY_CONNECTION_STRING"] == "${{ inputs.primary-connection-string }}"


def test_every_command_line_can_be_typed_and_names_the_pair(files: Files) -> None:
    lines = list(command_lines(files))
    assert sorted(line[0] for line in lines) == [
        "audit", "audit", "audit", "drain", "drill", "drill", "drill",
        "exporter", "gateway", "gateway", "gateway", "gateway", "provision",
        "status", "syphon", "syphon",
    ]  # fmt: skip
    for line in lines:
        if "--embedded" not in line:
            assert parse(line).params.get("pair") == PAIR or PAIR in parse(line).params["pairs"]


def manifests(files: Files) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(files.one(ExportKind.KUBERNETES)))


def pod(document: dict[str, Any]) -> dict[str, Any]:
    spec = document.get("spec", {})
    template: dict[str, Any] = spec.get("jobTemplate", {}).get("spec", spec).get("template", {}).get("spec", {})
    return template


def containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pod(document).get("containers", [])
    return found


def test_a_drill_runs_alone_with_the_account_of_the_other_manifests(files: Files) -> None:
    job, (account, config, *_) = yaml.safe_load(files.one(ExportKind.DRILL_KUBERNETES)), manifests(files)
    name = account["metadata"]["name"]
    assert pod(job)["serviceAccountName"] == name == config["metadata"]["name"]
    (container,) = containers(job)
    assert container["envFrom"] == [{"configMapRef": {"name": name}}, {"secretRef": {"name": name}}]
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    workflow = yaml.safe_load(files.one(ExportKind.DRILL_GITHUB))
    assert workflow["concurrency"]
    assert set(workflow[True]) == {"schedule", "workflow_dispatch"}, "YAML 1.1 takes `on` for a truth value"
    environment = workflow["jobs"]["drill"]["env"]
    assert environment["SBPAIR_PAIR"] == PAIR
    assert environment["SBPAIR_PRIMARY_CONNECTION_STRING"] == "${{ secrets.PRIMARY_CONNECTION_STRING }}"


def test_the_manifests_hang_together(files: Files) -> None:
    account, config, deployment, exporter, job = manifests(files)
    name = account["metadata"]["name"]
    assert [one["kind"] for one in (account, config, deployment, exporter, job)] == [
        "ServiceAccount", "ConfigMap", "Deployment", "Deployment", "CronJob",
    ]  # fmt: skip
    assert config["metadata"]["name"] == name == dns_name(f"sbpair-{PAIR}", 40)
    assert all(isinstance(value, str) for value in config["data"].values())
    for served in (deployment, exporter):
        labels = served["spec"]["template"]["metadata"]["labels"]
        assert served["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert deployment["spec"]["selector"] != exporter["spec"]["selector"]
    for document in (deployment, exporter, job):
        assert pod(document)["serviceAccountName"] == name
        (container,) = containers(document)
        volumes = {one["name"] for one in pod(document)["volumes"]}
        assert {one["name"] for one in container["volumeMounts"]} <= volumes
        assert container["envFrom"] == [{"configMapRef": {"name": name}}, {"secretRef": {"name": name}}]
    (syphon,) = containers(deployment)
    ports = {port["name"]: str(port["containerPort"]) for port in syphon["ports"]}
    assert syphon["args"][syphon["args"].index("--metrics-port") + 1] == ports["metrics"]
    assert {syphon[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} == {"metrics"}


def test_the_variables_of_a_container_say_what_the_configuration_says(files: Files, tmp_path: Path) -> None:
    secret = "Endpoint=sb://contoso-weu.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=k"
    here = {"HOME": str(tmp_path), "NOT_SET": secret}
    configured = load(config=files.sbpair.home / "sbpair.yaml", environ=here).pair(PAIR)
    data = manifests(files)[1]["data"]
    bicep = files.one(ExportKind.CONTAINER_APPS)
    written = re.findall(r"name: '(\w+)'\n +value: '(.*)'\n", bicep)
    of_bicep = {name: re.sub(r"\\(.)", r"\1", value) for name, value in written}
    assert of_bicep | {"SBPAIR_AUTH": "workload-identity", "XDG_STATE_HOME": "/tmp"} == data
    assert "secretRef: 'primary'" in bicep
    empty = tmp_path / "empty"
    empty.mkdir()
    there = {"HOME": str(empty), "SBPAIR_PRIMARY_CONNECTION_STRING": secret} | data
    taken = load(environ=there, directory=empty).pair()
    assert taken.secondary.auth == "workload-identity"
    assert taken.options == configured.options
    assert (taken.name, taken.entities, taken.primary) == (configured.name, configured.entities, configured.primary)
    assert taken.secondary.resource_group == configured.secondary.resource_group == "rg-(neu)"


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
@pytest.mark.parametrize("kind", ["Deployment", "CronJob"])
def test_kubectl_knows_every_field(files: Files, kind: str) -> None:
    """kubectl reads the object into its own types and writes it again, without what it does not know."""
    document, *_ = (one for one in manifests(files) if one["kind"] == kind)
    file = files.folder / f"{kind}.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    command = ["kubectl", "set", "image", "--local", "-f", str(file), "*=another", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    known = json.loads(done.stdout)
    for container in containers(document):
        container["image"] = "another"
    assert lacking(document, known) == []


def lacking(wanted: Any, found: Any, where: str = "") -> list[str]:
    if isinstance(wanted, dict):
        return [
            gap
            for key, value in wanted.items()
            for gap in ([f"{where}.{key}"] if key not in found else lacking(value, found[key], f"{where}.{key}"))
        ]
    if isinstance(wanted, list) and len(wanted) == len(found):
        return [gap for at, one in enumerate(wanted) for gap in lacking(one, found[at], f"{where}[{at}]")]
    return [] if wanted == found else [where]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_takes_the_units(files: Files) -> None:
    paths = [Path(path) for path in files(ExportKind.SYSTEMD) if not path.endswith(".conf")]
    assert len(paths) == 3
    for path in paths:  # the program has another place here
        text = path.read_text(encoding="utf-8").replace("/usr/local/bin/sbpair", "/bin/true")
        path.write_text(text, encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *paths], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# Templates of the queues; that they are the documented ones: tests/emulator/admin/test_exported_templates.py


@pytest.mark.skipif(not shutil.which("terraform"), reason="terraform is not installed")
def test_terraform_reads_its_files_and_would_write_them_so(files: Files) -> None:
    files(ExportKind.TERRAFORM)
    command = ["terraform", "fmt", "-check", "-diff", "-no-color", str(files.folder / "terraform")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_terraform_speaks_of_the_resources_that_it_declares(files: Files) -> None:
    texts = files(ExportKind.TERRAFORM)
    queues, imports = (files.one(ExportKind.TERRAFORM, f"sbpair-{what}-{PAIR}.tf") for what in ("queues", "imports"))
    assert len(texts) == 2
    declared = set(re.findall(r'^resource "(\w+)" "(\w+)"', queues, re.MULTILINE))
    assert {tuple(one.split(".")) for one in re.findall(r"to += (\w+\.\w+)\[", imports)} == declared
    assert set(re.findall(r"local\.(\w+)", queues + imports)) == {"sbpair_orders_EU_queues"}
    assert "sbpair_orders_EU_queues = toset([for index in range(12) :" in queues
    assert '"rg-(neu)"' in queues


# The image of the embedded namespace.


def test_the_image_of_the_embedded_namespace_serves_and_its_health_check_sees_it(files: Files) -> None:
    """Its entry point and its health check, run as they stand there; only address and folder are of this machine."""
    text = files.one(ExportKind.EMULATOR, "Containerfile")
    entry = json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[0])
    check = json.loads(re.findall(r"^ CMD (.*)$", text, re.MULTILINE)[0])
    host = own_address(5672, 5300)
    local = {"0.0.0.0": host, "/var/lib/sbpair/namespaces": "namespaces"}
    arguments = [local.get(word, word) for word in entry[1:]]
    sbpair = files.sbpair
    refused = sbpair(*entry[1:])
    assert (refused.code, "SBPAIR_EMULATOR_KEY" in refused.stderr) == (2, True), refused
    process = sbpair.start(*arguments, env=sbpair.variables({"SBPAIR_EMULATOR_KEY": "a-key-of-this-test"}))
    try:
        assert process.stdout is not None
        assert "SharedAccessKey=a-key-of-this-test;" in process.stdout.readline()
        looked = [sys.executable, *check[1:2], check[2].replace("127.0.0.1", host)]
        assert subprocess.run(looked, capture_output=True).returncode == 0
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 143
    assert subprocess.run(looked, capture_output=True).returncode != 0
    assert re.search(r"^USER [1-9]", text, re.MULTILINE)


def test_compose_and_workflow_use_the_same_image_and_ports(files: Files) -> None:
    found = {
        Path(path).name: text for path, text in files(ExportKind.EMULATOR).items() if path.endswith((".yaml", ".yml"))
    }
    compose = yaml.safe_load(found["compose.yaml"])["services"]["servicebus"]
    job = yaml.safe_load(found["servicebus-tests.yml"])["jobs"]["tests"]
    service = job["services"]["servicebus"]
    assert compose["image"] == service["image"]
    assert [port.removeprefix("127.0.0.1:") for port in compose["ports"]] == service["ports"]
    parts = dict(part.split("=", 1) for part in job["env"]["SERVICEBUS"].split(";"))
    assert parts["SharedAccessKey"] == service["env"]["SBPAIR_EMULATOR_KEY"]
    assert set(compose["environment"]) == set(service["env"])
