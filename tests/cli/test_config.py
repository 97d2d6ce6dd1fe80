"""`sbpair config`: what is in force, where it came from, strict checks, the default pair."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.cli.process import Sbpair

TWO_PAIRS = """\
version: 1
pairs:
  orders:
    primary: {namespace: contoso-weu}
    secondary: {namespace: contoso-neu}
    backlog_queues: 5
  billing:
    primary: {namespace: fabrikam-weu}
    secondary: {namespace: fabrikam-neu}
auth: azure-cli
"""
SECRET = "c2VjcmV0LXZhbHVl"


@pytest.fixture
def configured(sbpair: Sbpair, tmp_path: Path) -> Sbpair:
    (tmp_path / "sbpair.yaml").write_text(TWO_PAIRS, encoding="utf-8")
    return sbpair


def test_show_says_where_each_value_came_from(configured: Sbpair) -> None:
    ran = configured("config", "show", "-o", "json", env={"SBPAIR_AUTH": "managed-identity"})
    assert ran.code == 0
    shown = {row["key"]: row for row in ran.data["settings"]}
    assert shown["auth"]["value"] == "managed-identity"
    assert shown["auth"]["source"] == "env SBPAIR_AUTH"
    assert shown["pairs.orders.backlog_queues"]["value"] == 5
    assert shown["pairs.orders.backlog_queues"]["source"].endswith("sbpair.yaml:6")


def test_check_lists_every_pair(configured: Sbpair) -> None:
    ran = configured("config", "check")
    assert ran.code == 0
    assert [(row["pair"], row["primary"]) for row in ran.records] == [
        ("billing", "fabrikam-weu.servicebus.windows.net"),
        ("orders", "contoso-weu.servicebus.windows.net"),
    ]


def test_a_secret_in_the_file_is_refused_and_not_repeated(sbpair: Sbpair, tmp_path: Path) -> None:
    connection = f"Endpoint=sb://contoso/;SharedAccessKeyName=Root;SharedAccessKey={SECRET}"
    (tmp_path / "sbpair.yaml").write_text(
        f"version: 1\npairs:\n  a:\n    primary: {{connection_string: '{connection}'}}\n", encoding="utf-8"
    )
    ran = sbpair("config", "show")
    assert ran.code == 2
    assert SECRET not in ran.stdout + ran.stderr
    assert "{env: NAME}" in ran.stderr


def test_a_secret_from_the_environment_is_never_shown(sbpair: Sbpair) -> None:
    variables = {
        f"SBPAIR_{side}_CONNECTION_STRING": (
            f"Endpoint=sb://contoso-{side.lower()}.servicebus.windows.net/;SharedAccessKeyName=R;SharedAccessKey={SECRET}"
        )
        for side in ("PRIMARY", "SECONDARY")
    }
    for command in ("show", "check"):
        ran = sbpair("config", command, "-v", env=variables)
        assert ran.code == 0, ran
        assert SECRET not in ran.stdout + ran.stderr


def test_an_unknown_variable_is_an_error(sbpair: Sbpair) -> None:
    ran = sbpair("config", "show", env={"SBPAIR_AUHT": "azure-cli"})
    assert ran.code == 2
    assert "SBPAIR_AUTH" in ran.stderr


def test_several_pairs_and_none_named_is_refused_where_one_is_needed(configured: Sbpair) -> None:
    ran = configured("peek", "-o", "json")
    assert ran.code == 2
    assert "billing, orders" in ran.error["message"]
    assert "sbpair config use" in ran.error["hint"]


def test_use_is_remembered(configured: Sbpair) -> None:
    used = configured("config", "use", "orders")
    assert (used.code, used.stdout) == (0, "")
    assert "orders is now the default pair" in used.stderr
    shown = {row["key"]: row["value"] for row in configured("config", "show", "-o", "json").data["settings"]}
    assert shown["default_pair"] == "orders"


def test_an_unknown_pair_suggests_the_nearest(configured: Sbpair) -> None:
    ran = configured("config", "use", "order", "-o", "json")
    assert ran.code == 2
    assert ran.error["hint"] == "Did you mean 'orders'?"


def test_the_schema_accepts_the_file_and_refuses_a_typo(configured: Sbpair) -> None:
    schema = json.loads(configured("config", "schema").stdout)
    document = yaml.safe_load(TWO_PAIRS)
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document | {"auht": "x"}, schema)


def test_check_lists_everything_that_is_wrong_and_does_not_advise_itself(sbpair: Sbpair) -> None:
    (sbpair.home / "sbpair.yaml").write_text(
        """\
version: 1
pairs:
  orders:
    primary: {namespace: contoso-weu}
    secondary: {namspace: contoso-neu}
    backlog_queues: 0
  bills:
    primary: not a mapping
auth: telepathy
""",
        encoding="utf-8",
    )
    ran = sbpair("config", "check")
    assert (ran.code, ran.stdout) == (2, "")
    lines = ran.stderr.splitlines()
    assert lines[0] == "Error: 4 problems in the configuration:"
    assert [line.split("sbpair.yaml:")[1].split(":")[0] for line in lines[1:5]] == ["5", "6", "8", "9"]
    assert "Did you mean 'namespace'?" in lines[1]
    assert lines[5:] == ["Correct it and check again."]
    told = sbpair("config", "check", "-o", "json").error["message"]
    assert all(part in told for part in ("'namspace'", "backlog_queues", "bills", "telepathy"))


def test_check_names_every_pair_that_is_wrong(sbpair: Sbpair) -> None:
    side = "{connection_string: {env: NOT_SET_ANYWHERE}}"
    (sbpair.home / "sbpair.yaml").write_text(
        f"version: 1\npairs:\n  one: {{primary: {side}}}\n  two: {{primary: {side}}}\n", encoding="utf-8"
    )
    lines = sbpair("config", "check").stderr.splitlines()
    assert lines[0] == "Error: 2 problems in the configuration:"
    assert "pairs.one.primary" in lines[1]
    assert "pairs.two.primary" in lines[2]
