"""Keys of a gateway, as a command line or a file writes them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from sbpair.cli.failover.gateway import Snippet
from sbpair.core.errors import ConfigurationError
from sbpair.gateway.keys import SNIPPETS, VARIABLE, GatewayKey, KeyRing, parse_key, read_keys


@pytest.mark.parametrize("text", ["checkout", "checkout=fly", "=send"])
def test_a_key_that_is_none_says_where_keys_are_explained_and_not_how_to_check_another_file(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_key(text, {})
    assert refused.value.hint == "How keys are written: sbpair help gateway"


def test_a_key_is_for_its_entities_and_what_is_below_them_in_whatever_case() -> None:
    key = GatewayKey("app", "k" * 40, frozenset({"Send"}), ("Orders*", "bills"), pairs=("Embedded",))
    assert key.is_for("orders-1/$management")
    assert key.is_for("/ORDERS/Subscriptions/a")
    assert key.is_for("Bills")
    assert not key.is_for("invoices")
    assert not key.is_for("")
    assert KeyRing((key,)).signers("orders", "EMBEDDED")
    assert not KeyRing((key,)).signers("orders", "other")


def test_so_does_a_file_of_none(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("keys: []\n")
    with pytest.raises(ConfigurationError, match="has no key") as refused:
        read_keys(tmp_path / "keys.yaml", {})
    assert "sbpair help gateway" in refused.value.hint


# Each snippet is read by what it is for, and gives back the connection string.

TEXT = "Endpoint=sb://127.0.0.1:5671;SharedAccessKeyName=app;SharedAccessKey=a+b/c==;UseDevelopmentEmulator=true"


def test_every_choice_but_none_has_one() -> None:
    assert {*SNIPPETS, "none"} == {one.value for one in Snippet}


def test_shells_take_the_variable() -> None:
    said = subprocess.run(["sh", "-c", f'{SNIPPETS["env"](TEXT)}; printf %s "${VARIABLE}"'], capture_output=True)
    assert said.stdout.decode() == TEXT


def test_documents_hold_it() -> None:
    assert json.loads(SNIPPETS["json"](TEXT))["ConnectionStrings"]["ServiceBus"] == TEXT
    secret = yaml.safe_load(SNIPPETS["k8s"](TEXT))
    assert (secret["kind"], secret["stringData"]) == ("Secret", {VARIABLE: TEXT})
    spring = yaml.safe_load(SNIPPETS["spring"](TEXT))
    assert spring["spring"]["cloud"]["azure"]["servicebus"]["connection-string"] == TEXT


@pytest.mark.parametrize("language", ["dotnet", "java", "go", "javascript"])
def test_programs_have_it_as_one_literal(language: str) -> None:
    code = re.sub(r"^//.*$", "", SNIPPETS[language](TEXT), flags=re.MULTILINE)
    assert f'"{TEXT}"' in code
    assert code.count("(") == code.count(")")
    assert code.endswith(";") or language == "go"


@pytest.mark.parametrize(
    ("language", "program", "before", "after"),
    [
        ("javascript", ["node", "--check"], 'const { ServiceBusClient } = require("@azure/service-bus");\n', "\n"),
        ("go", ["gofmt", "-e"], "package main\n\nfunc main() {\n", "\n_, _ = client, err\n}\n"),
        ("java", ["javac", "-proc:none", "-Xdiags:compact", "-d"], "", ""),
    ],
)
def test_compilers_take_the_programs(
    tmp_path: Path, language: str, program: list[str], before: str, after: str
) -> None:
    if shutil.which(program[0]) is None:
        pytest.skip(f"{program[0]} is not installed")
    file = tmp_path / {"javascript": "a.js", "go": "a.go", "java": "A.java"}[language]
    body = SNIPPETS[language](TEXT)
    if language == "java":
        # The builder's methods, by their names in azure-messaging-servicebus.
        body = (
            f"class A {{ void a() {{ {body} }} }} class ServiceBusSenderClient {{}}\n"
            "class ServiceBusClientBuilder { ServiceBusClientBuilder connectionString(String text) { return this; }\n"
            "Sender sender() { return new Sender(); }\nclass Sender { Sender queueName(String name) { return this; }\n"
            "ServiceBusSenderClient buildClient() { return null; } } }\n"
        )
        program = [*program, str(tmp_path)]
    file.write_text(f"{before}{body}{after}", encoding="utf-8")
    ran = subprocess.run([*program, str(file)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
