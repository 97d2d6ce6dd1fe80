"""A namespace as code: what each format says makes the same namespace again, over random ones with hostile names."""

import asyncio
import json
import random
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from azure.mgmt.servicebus import ServiceBusManagementClient

from sbpair.cli.demo import embedded_access
from sbpair.connect import open_ends, open_topology
from sbpair.core.access import AuthMethod, NamespaceAccess, Secret, host_of
from sbpair.core.entities import EntityFacts, EntityKind, EntitySettings, RuleFacts
from sbpair.core.inspection.contents import Contents, FoundNamespace, compare
from sbpair.emulator import EmulatorThread
from sbpair.emulator.seed import plant, seed_of
from sbpair.operations import ListEntitiesRequest, read_namespace
from sbpair.render.export import TERRAFORM_NAMES, ExportKind, in_hcl
from sbpair.render.namespace_code import written_of
from sbpair.service import EntityStatus, Tier

from .conftest import GROUP, AdminServer

HOSTILE = ("${x}", "%{if y}", "$${z}", "it''s \"q\"", "a\\b\n\tc", "ü\u2028\x85", "{{ }} << >> #{ // '' $", "\\f \\\\b")
SEEDS = range(6)
ARGUMENTS: Mapping[str, Mapping[str, type]] = {
    "queue": {
        "name": str,
        "namespace_id": str,
        "lock_duration": str,
        "max_message_size_in_kilobytes": int,
        "max_size_in_megabytes": int,
        "requires_duplicate_detection": bool,
        "requires_session": bool,
        "default_message_ttl": str,
        "dead_lettering_on_message_expiration": bool,
        "duplicate_detection_history_time_window": str,
        "max_delivery_count": int,
        "status": str,
        "batched_operations_enabled": bool,
        "auto_delete_on_idle": str,
        "partitioning_enabled": bool,
        "express_enabled": bool,
        "forward_to": str,
        "forward_dead_lettered_messages_to": str,
    },
    "topic": {
        "name": str,
        "namespace_id": str,
        "status": str,
        "auto_delete_on_idle": str,
        "default_message_ttl": str,
        "duplicate_detection_history_time_window": str,
        "batched_operations_enabled": bool,
        "express_enabled": bool,
        "partitioning_enabled": bool,
        "max_message_size_in_kilobytes": int,
        "max_size_in_megabytes": int,
        "requires_duplicate_detection": bool,
        "support_ordering": bool,
    },
    "subscription": {
        "name": str,
        "topic_id": str,
        "max_delivery_count": int,
        "auto_delete_on_idle": str,
        "default_message_ttl": str,
        "lock_duration": str,
        "dead_lettering_on_message_expiration": bool,
        "dead_lettering_on_filter_evaluation_error": bool,
        "batched_operations_enabled": bool,
        "requires_session": bool,
        "forward_to": str,
        "forward_dead_lettered_messages_to": str,
        "status": str,
    },
    "subscription_rule": {
        "name": str,
        "subscription_id": str,
        "filter_type": str,
        "sql_filter": str,
        "action": str,
        "correlation_filter": dict,
    },
}
"""The documented arguments of `azurerm_servicebus_...`, provider release 4, which the tests of the files
stand on: the provider itself cannot be had on every machine."""


def random_seed(chance: random.Random) -> dict[str, Any]:
    """A namespace of tier Standard: forwarding in any order and in circles, every setting, rules of every form."""
    names = [
        f"{chance.choice(('Orders', 'in/voices', 'a.b_c', 'x-y'))}{number}" for number in range(chance.randint(2, 7))
    ]

    def receiving() -> dict[str, Any]:
        return {
            "lock_duration_seconds": chance.choice((60, 5, 299.5)),
            "requires_session": chance.random() < 0.3,
            "dead_lettering_on_message_expiration": chance.random() < 0.5,
            "max_delivery_count": chance.choice((1, 10, 2000)),
            "forward_dead_lettered_messages_to": chance.choice((None, *names)),
        } | common()

    def common() -> dict[str, Any]:
        return {
            "default_message_time_to_live_seconds": chance.choice((None, 90.5, 86_400)),
            "auto_delete_on_idle_seconds": chance.choice((None, 300, 600)),
            "enable_batched_operations": chance.random() < 0.5,
            "user_metadata": chance.choice((None, *HOSTILE)),
        }

    def sending() -> dict[str, Any]:
        detects = chance.random() < 0.4
        return {
            "max_size_in_megabytes": chance.choice((1024, 5120)),
            "requires_duplicate_detection": detects,
            "enable_partitioning": chance.random() < 0.3,
        } | ({"duplicate_detection_history_time_window_seconds": 20} if detects else {})

    def rule() -> dict[str, Any]:
        hostile = chance.choice(HOSTILE)
        quoted = hostile.replace("'", "''")
        action = {"action": f"SET x = '{quoted}'"} if chance.random() < 0.5 else {}
        if chance.random() < 0.5:
            return {"sql": f"n = '{quoted}'"} | action
        values = {"label": hostile, "to": "x", "properties": {f"k {hostile[:2]}": hostile}}
        return {"correlation": dict(chance.sample(sorted(values.items()), chance.randint(1, 3)))} | action

    def subscription() -> dict[str, Any]:
        rules = {name: rule() for name in chance.sample(("one", "Two", "$Default", "a.b", "x_y"), chance.randint(0, 3))}
        closed = {"status": chance.choice(("Active", "Disabled", "ReceiveDisabled"))}
        forward = {"forward_to": chance.choice((None, *names))}
        return receiving() | forward | closed | ({"rules": rules} if rules else {})

    queues = {
        name: receiving() | sending() | {"status": chance.choice(("Active", "SendDisabled", "Disabled"))}
        for name in names
    }
    topics = {
        f"news{number}": common()
        | sending()
        | {"subscriptions": {f"s{index}": subscription() for index in range(chance.randint(0, 3))}}
        for number in range(2)
    }
    return {"queues": queues, "topics": topics}


async def _read(emulator: EmulatorThread, name: str) -> FoundNamespace:
    async with open_ends(embedded_access(emulator, name)) as ends:
        return await read_namespace(ends, ListEntitiesRequest())


def read(emulator: EmulatorThread, name: str) -> FoundNamespace:
    return asyncio.run(_read(emulator, name))


@pytest.fixture(scope="module")
def found() -> list[FoundNamespace]:
    """Random namespaces, as they are read over the wire."""
    names = [f"random{seed}" for seed in SEEDS]
    with EmulatorThread(names) as emulator:
        for seed, name in zip(SEEDS, names, strict=True):
            contents = random_seed(random.Random(seed))
            emulator.call(lambda running, name=name, contents=contents: plant(running.namespace(name), contents))
        return [read(emulator, name) for name in names]


def differences(a: FoundNamespace, b: FoundNamespace) -> list[tuple[str, str, str | None, str | None]]:
    return [(one.entity, one.what, one.a, one.b) for one in compare(Contents.of(a), Contents.of(b)).differences]


def test_the_random_namespaces_have_some_of_everything(found: list[FoundNamespace]) -> None:
    entities = [one for namespace in found for one in namespace.entities]
    assert {one.kind.value for one in entities} == {"queue", "topic", "subscription"}
    assert any(one.settings.forward_dead_lettered_messages_to for one in entities)
    texts = [str(rule) for one in entities for rule in one.rules]
    assert any("sql=None" in text for text in texts)
    assert any("${x}" in text for text in texts)


@pytest.mark.parametrize("index", SEEDS)
def test_config_json_seeds_the_same_namespace(found: list[FoundNamespace], index: int) -> None:
    texts, left_out = written_of(ExportKind.CONFIG_JSON, found[index])
    assert len(left_out) == 1, "all of it can be held"
    ((name, contents),) = seed_of(json.loads(texts["Config.json"])).items()
    assert name == found[index].namespace
    with EmulatorThread([name]) as emulator:
        emulator.call(lambda running: plant(running.namespace(name), contents))
        again = read(emulator, name)
    assert differences(found[index], again) == []


def test_a_snapshot_reads_back_and_differs_by_what_was_changed(found: list[FoundNamespace]) -> None:
    one = found[0]
    ((_, text),) = written_of(ExportKind.SNAPSHOT, one)[0].items()
    kept = Contents.from_dict(json.loads(text))
    assert compare(kept, Contents.of(one)).same
    assert kept.taken_at == one.taken_at
    entity = one.entities[0]
    other = replace(
        one, entities=(replace(entity, settings=replace(entity.settings, user_metadata="x")), *one.entities[1:])
    )
    (difference,) = compare(kept, Contents.of(other)).differences
    assert (difference.entity, difference.what, difference.b) == (entity.path, "user metadata", "x")


# Terraform.


def hcl_value(text: str) -> Any:
    """A literal of Terraform's language; of a reference the text."""
    if not re.match(r'["0-9tf-]', text) or text.startswith("data."):
        return text
    plain = re.sub(r"\$\$(?=\{)", "$", re.sub(r"%%(?=\{)", "%", text))
    return json.loads(plain)


def hcl_blocks(text: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Type, name and arguments of each `resource`; a value or a brace is alone on its line, as this file writes it."""
    for kind, name, body in re.findall(r'^resource "azurerm_servicebus_(\w+)" "(\w+)" \{\n(.*?)^\}', text, re.M | re.S):
        stack: list[dict[str, Any]] = [{}]
        for line in filter(None, map(str.strip, body.split("\n"))):
            if line == "}":
                stack.pop()
            elif opened := re.fullmatch(r"(\w+)(?: =)? \{", line):
                stack[-1][opened[1]] = inner = dict[str, Any]()
                stack.append(inner)
            elif not line.startswith("#"):
                key, value = re.fullmatch(r'(\w+|"(?:[^"\\]|\\.)*") += (.*)', line).groups()  # type: ignore[union-attr]
                stack[-1][hcl_value(key) if key[0] == '"' else key] = hcl_value(value)
        assert len(stack) == 1, body
        yield kind, name, stack[0]


Made = list[tuple[tuple[str, ...], dict[str, Any]]]
"""Names of an entity or rule for the resource manager, and its properties, in the order of the file."""


def of_terraform(text: str) -> Made:
    made: Made = []
    places: dict[str, tuple[str, ...]] = {"data.azurerm_servicebus_namespace.this": ()}
    arm_names = {theirs: name for name, theirs in TERRAFORM_NAMES.items()}
    for kind, name, given in hcl_blocks(text):
        assert given.pop("lifecycle", None) == ({"prevent_destroy": True} if kind != "subscription_rule" else None)
        for other in re.findall(r"[\w.]+", given.pop("depends_on", "")):
            assert other in places, "what it depends on comes first"
        for argument, value in given.items():
            assert type(value) is ARGUMENTS[kind][argument], (kind, argument, value)
        parent = next(given.pop(key) for key in ("namespace_id", "topic_id", "subscription_id") if key in given)
        place = (*places[parent.removesuffix(".id")], given.pop("name"))
        assert f"azurerm_servicebus_{kind}.{name}" not in places
        places[f"azurerm_servicebus_{kind}.{name}"] = place
        if kind != "subscription_rule":
            made.append(
                (
                    ("queues" if kind == "queue" else "topics", *place),
                    {arm_names[key]: value for key, value in given.items()},
                )
            )
            continue
        properties: dict[str, Any] = {"filterType": given["filter_type"]}
        if "sql_filter" in given:
            properties["sqlFilter"] = {"sqlExpression": given["sql_filter"]}
        else:
            words = {key: re.sub("_(.)", lambda found: found[1].upper(), key) for key in given["correlation_filter"]}
            properties["correlationFilter"] = {words[key]: value for key, value in given["correlation_filter"].items()}
        if "action" in given:
            properties["action"] = {"sqlExpression": given["action"]}
        made.append((("topics", *place), properties))
    return made


# Bicep.


def bicep_value(lines: list[str], text: str) -> Any:
    if text == "{":
        body: dict[str, Any] = {}
        while (line := lines.pop(0).strip()) != "}":
            key, value = re.fullmatch(r"(\w+|'(?:[^'\\]|\\.)*'): (.*)", line).groups()  # type: ignore[union-attr]
            body[bicep_value([], key) if key[0] == "'" else key] = bicep_value(lines, value)
        return body
    if text == "[":
        items = []
        while (line := lines.pop(0).strip()) != "]":
            items.append(line)
        return items
    if text[0] != "'":
        return json.loads(text) if re.fullmatch(r"true|false|\d+", text) else text
    assert re.fullmatch(r"'(?:[^'\\$]|\$(?!\{)|\\(?:[\\'nrt$]|u\{[0-9a-f]+\}))*'", text), text
    signs = {"n": "\n", "r": "\r", "t": "\t"}
    return re.sub(
        r"\\(?:u\{([0-9a-f]+)\}|(.))",
        lambda sign: chr(int(sign[1], 16)) if sign[1] else signs.get(sign[2], sign[2]),
        text[1:-1],
    )


def of_bicep(text: str) -> Made:
    made: Made = []
    places: dict[str, tuple[str, ...]] = {"serviceBus": ()}
    lines = text.split("\n")
    while lines:
        opened = re.fullmatch(
            r"resource (\w+) 'Microsoft\.ServiceBus/([\w/]+)@[\d-]+' (?:existing )?= \{", lines.pop(0)
        )
        if opened is None:
            continue
        body = bicep_value(lines, "{")
        if opened[1] == "serviceBus":
            continue
        assert opened[1] not in places
        assert all(other in places for other in body.get("dependsOn", ()))
        places[opened[1]] = place = (*places[body["parent"]], body["name"])
        made.append(((opened[2].split("/")[1], *place), body["properties"]))
    return made


def make(arm: ServiceBusManagementClient, made: Made) -> None:
    """What the resource manager would be asked for; twice, since in a circle of forwarding nothing can be first."""
    calls = {2: arm.topics, 3: arm.subscriptions, 4: arm.rules}
    for last in (False, True):
        for (kind, *names), properties in made:
            operations: Any = arm.queues if kind == "queues" else calls[len(names) + 1]
            forwards = {name: value for name, value in properties.items() if last or not name.startswith("forward")}
            operations.create_or_update(GROUP, "primary", *names, {"properties": forwards})


async def made_of(server: AdminServer) -> FoundNamespace:
    text = server.connection_string()
    secret = Secret(text)
    method = AuthMethod.CONNECTION_STRING
    access = NamespaceAccess("primary", host_of(text), auth=method, connection_string=secret, ca_file=server.ca_file)
    async with open_topology(access) as topology:
        return FoundNamespace.of("primary", Tier.STANDARD, None, await topology.entities(rules=True))


@pytest.mark.parametrize("kind", [ExportKind.TERRAFORM, ExportKind.BICEP])
@pytest.mark.parametrize("index", SEEDS)
def test_templates_make_the_same_namespace(
    found: list[FoundNamespace], index: int, kind: ExportKind, server: AdminServer
) -> None:
    texts, left_out = written_of(kind, found[index])
    (text,) = (text for name, text in texts.items() if "imports" not in name)
    make(server.arm(), of_terraform(text) if kind is ExportKind.TERRAFORM else of_bicep(text))
    for entity, what, there, here in differences(found[index], asyncio.run(made_of(server))):
        if (what, there) == ("rule $Default", None):
            continue  # a subscription is born with it, as the file says
        assert (kind, what, here) == (ExportKind.TERRAFORM, "user metadata", "none"), (entity, what, there, here)
        assert f"{entity}: user metadata {there} is left out." in left_out


@pytest.mark.skipif(not shutil.which("terraform"), reason="terraform is not installed")
def test_terraform_reads_what_it_would_write_so(found: list[FoundNamespace], tmp_path: Path) -> None:
    for one in found:
        for name, text in written_of(ExportKind.TERRAFORM, one)[0].items():
            (tmp_path / name).write_text(text, encoding="utf-8")
    command = ["terraform", "fmt", "-check", "-diff", "-no-color", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout) == (0, "")


@pytest.mark.skipif(not shutil.which("terraform"), reason="terraform is not installed")
def test_terraform_takes_nothing_in_a_text_for_a_template(tmp_path: Path) -> None:
    texts = [*HOSTILE, "\x08\x0c", "\\b", "\\\b", "$$$${a}", "%%%{if a}", "\x7f\x9f\ufeff", "$" * 3, "{", "\\${"]
    lines = "".join(f"    {in_hcl(text)},\n" for text in texts)
    (tmp_path / "main.tf").write_text(f'output "texts" {{\n  value = [\n{lines}  ]\n}}\n', encoding="utf-8")

    def run(*words: str) -> str:
        command = ["terraform", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True).stdout

    run("apply", "-auto-approve", "-input=false", "-no-color")
    assert json.loads(run("output", "-json"))["texts"]["value"] == texts


# What cannot be held is told.


def test_what_a_format_cannot_hold_is_left_out_and_told() -> None:
    rules = (
        RuleFacts("typed", None, correlation=(("label", "x"),), properties=(("n", 5),)),
        RuleFacts("moment", None, properties=(("at", datetime(2026, 1, 1, tzinfo=UTC)),)),
        RuleFacts("parameters", "n = @n", parameters=(("n", 1),)),
        RuleFacts("empty", None, correlation=(("label", ""),)),
    )
    large = EntitySettings(max_size_in_megabytes=81_920, max_message_size_in_kilobytes=102_400)
    closed = EntitySettings(status=EntityStatus.SEND_DISABLED, user_metadata="mine")
    circle = EntitySettings(forward_dead_lettered_messages_to="large")
    entities = (
        EntityFacts(EntityKind.QUEUE, "large", large),
        EntityFacts(EntityKind.QUEUE, "circle", circle),
        EntityFacts(EntityKind.TOPIC, "news", closed),
        EntityFacts(EntityKind.SUBSCRIPTION, "news/Subscriptions/a", EntitySettings(), rules=rules),
        EntityFacts(
            EntityKind.SUBSCRIPTION, "news/Subscriptions/b", EntitySettings(forward_to="gone"), rules=rules[2:]
        ),
    )
    found = FoundNamespace.of("contoso-weu", Tier.PREMIUM, 0.0, entities)
    value = "it compares with a value of a type that the file cannot hold"
    none_left = "there is no rule left; a subscription made from the file gets every message."
    a, b = "news/Subscriptions/a: ", "news/Subscriptions/b: "
    both = {
        f"{a}rule moment is left out: {value}.",
        f"{a}rule parameters is left out: its SQL has parameters.",
        f"{a}rule empty is left out: it compares with an empty text.",
        f"{b}rule parameters is left out: its SQL has parameters.",
        f"{b}rule empty is left out: it compares with an empty text.",
        f"{b}{none_left}",
    }
    templates = both | {
        f"{a}rule typed is left out: {value}.",
        f"{a}{none_left}",
        f"{b}it forwards to gone, made later: apply the file twice.",
    }
    expected = {
        ExportKind.BICEP: templates,
        ExportKind.TERRAFORM: templates
        | {"news: status SendDisabled is left out.", "news: user metadata mine is left out."},
        ExportKind.CONFIG_JSON: both
        | {
            "large: max size in megabytes 81920 is left out.",
            "large: max message size in kilobytes 102400 is left out.",
        },
    }
    for kind, lines in expected.items():
        texts, (general, *left_out) = written_of(kind, found)
        assert set(left_out) == lines, kind
        assert "keys" in general
        for mark, text in ((mark, text) for mark in ("#", "//") for text in texts.values() if text.startswith(mark)):
            assert all(f"{mark} {line}\n" in text for line in lines)
