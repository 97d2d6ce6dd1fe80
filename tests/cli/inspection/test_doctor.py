"""`sbpair doctor`: every check a row with what to do, exit codes, on embedded namespaces and without any."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.conftest import embedded_pair
from tests.cli.process import Ran, Sbpair


def verdicts(ran: Ran) -> dict[tuple[str, str], str]:
    return {(row["check"], row["subject"].split()[0]): row["result"] for row in ran.data["checks"]}


def test_without_configuration_it_says_how_to_write_one(sbpair: Sbpair) -> None:
    ran = sbpair("doctor", "-o", "json")
    assert ran.code == 2
    rows = {row["check"]: row for row in ran.data["checks"]}
    assert rows["configuration"]["result"] == "error"
    assert "sbpair.yaml" in rows["configuration"]["next_step"]
    assert rows["sdk self-test"]["result"] == "ok"
    assert {"versions", "java", "spark"} <= set(rows)


def test_everything_well_is_0_and_every_right_is_found(provisioned: Sbpair) -> None:
    ran = provisioned("doctor", "local", "-o", "json")
    assert ran.code == 0, ran
    found = verdicts(ran)
    for side in ("primary", "secondary"):
        for check in ("credential", "amqp", "https", "clock"):
            assert found[check, side] == "ok", (check, side)
    assert found["right Listen", "secondary"] == "ok"
    assert found["right Send", "secondary"] == "ok"
    commands = {row["subject"]: row["result"] for row in ran.data["checks"] if row["check"] == "command"}
    assert commands["provision, cleanup"] == commands["audit"] == commands["peek"] == "ok"
    assert commands["drain, syphon"] == "skipped"  # the pair `local` names no entities


def test_an_entity_of_the_configuration_is_tried_without_sending(provisioned: Sbpair) -> None:
    state = json.loads((provisioned.home / "state" / "sbpair" / "emulator.json").read_text(encoding="utf-8"))

    def side(index: int) -> dict[str, Any]:
        namespace = state["namespaces"][index]
        secret = {"file": namespace["connection_string_file"]}
        return {
            "namespace": namespace["name"],
            "host": "localhost",
            "connection_string": secret,
            "ca_file": state["ca_file"],
        }

    pair = {"primary": side(0), "secondary": side(1), "entities": ["no-such-queue"]}
    config = provisioned.home / "with-entity.json"
    config.write_text(json.dumps({"version": 1, "pairs": {"mine": pair}}), encoding="utf-8")
    ran = provisioned("--config", str(config), "doctor", "mine", "-o", "json")
    assert ran.code == 0, ran
    row = next(row for row in ran.data["checks"] if row["subject"] == "primary no-such-queue")
    assert (row["result"], row["detail"]) == ("skipped", "it does not exist")


def test_a_dark_side_is_6_and_says_what_to_do(provisioned: Sbpair, fault: Callable[[str, str], None]) -> None:
    fault("local-primary", "dark")
    ran = provisioned("doctor", "local", "--timeout", "3s", "-o", "json")
    assert ran.code == 6
    found = verdicts(ran)
    assert found["amqp", "primary"] == found["https", "primary"] == "error"
    assert found["amqp", "secondary"] == found["https", "secondary"] == "ok"
    row = next(row for row in ran.data["checks"] if row["check"] == "amqp" and row["result"] == "error")
    assert "port 443" in row["next_step"]
    assert " object at 0x" not in ran.stdout


def test_a_refused_credential_is_4(provisioned: Sbpair, fault: Callable[[str, str], None]) -> None:
    fault("local-secondary", "unauthorized:operation=http")
    ran = provisioned("doctor", "local", "-o", "json")
    assert ran.code == 4
    assert verdicts(ran)["https", "secondary"] == "error"


def test_a_missing_right_is_a_warning_that_names_the_commands(
    provisioned: Sbpair, fault: Callable[[str, str], None]
) -> None:
    fault("local-secondary", "unauthorized:operation=attach,entity=local-primary/*")
    ran = provisioned("doctor", "local", "-o", "json")
    assert ran.code == 0, ran
    row = next(row for row in ran.data["checks"] if row["check"] == "right Listen")
    assert row["result"] == "warning"
    assert "RootManageSharedAccessKey) lacks Listen" in row["detail"]
    assert "Data Receiver" in row["next_step"]
    commands = {row["subject"]: row["detail"] for row in ran.data["checks"] if row["check"] == "command"}
    assert commands["peek"] == "lacks Listen on the secondary"
    assert commands["audit"] == "has the rights it needs"


def test_a_credential_without_a_token_is_named(sbpair: Sbpair) -> None:
    (sbpair.home / "sbpair.yaml").write_text(
        "version: 1\nauth: environment\npairs:\n  p:\n    primary: {namespace: contoso-a.example}\n"
        "    secondary: {namespace: contoso-b.example}\n",
        encoding="utf-8",
    )
    ran = sbpair("--config", "sbpair.yaml", "doctor", "p", "--timeout", "2s", "-o", "json")
    assert ran.code == 4
    row = next(row for row in ran.data["checks"] if row["check"] == "credential")
    assert "`environment`" in row["detail"]
    assert "AZURE_TENANT_ID" in row["next_step"]


def test_monitoring_formats(provisioned: Sbpair) -> None:
    ran = provisioned("doctor", "local", "-o", "nagios")
    assert ran.code in (0, 1)
    assert ran.stdout.startswith(("SBPAIR OK - ", "SBPAIR WARNING - "))
    assert "SharedAccessKey=" not in ran.stdout


def test_a_key_that_may_only_send_is_0_and_told_what_it_can_do(tmp_path: Path) -> None:
    keys = "{keys: {app: [Send]}, queues: {orders: {}}}"
    (tmp_path / "seed.yaml").write_text(f"local-primary: {keys}\nlocal-secondary: {keys}\n", encoding="utf-8")
    said = tmp_path / "emulator.txt"
    with said.open("w") as stdout, embedded_pair(Sbpair(tmp_path), "--seed", "seed.yaml", stdout=stdout) as one:
        assert one("provision", "local").code == 0
        strings = dict(line.split("\t") for line in said.read_text(encoding="utf-8").splitlines() if "\t" in line)
        state = json.loads((tmp_path / "state" / "sbpair" / "emulator.json").read_text(encoding="utf-8"))
        sides = {
            side: {
                "namespace": f"local-{side}",
                "host": "localhost",
                "connection_string": {"env": f"CS_{side.upper()}"},
                "ca_file": state["ca_file"],
            }
            for side in ("primary", "secondary")
        }
        config = {"version": 1, "pairs": {"app": sides | {"entities": ["orders"]}}}
        (tmp_path / "sbpair.yaml").write_text(json.dumps(config), encoding="utf-8")
        keys_of = {f"CS_{side.upper()}": strings[f"local-{side}/app"] for side in ("primary", "secondary")}
        ran = one("doctor", "app", "-o", "json", env=keys_of)
        assert ran.code == 0, ran
        assert "error" not in {row["result"] for row in ran.data["checks"]}
        commands = {row["subject"]: row["result"] for row in ran.data["checks"] if row["check"] == "command"}
        assert (commands["send"], commands["peek"], commands["audit"]) == ("ok", "warning", "warning")
        assert (
            "enough for: send. Not for: provision, cleanup, audit, status, peek"
            in one("doctor", "app", env=keys_of).stderr
        )
