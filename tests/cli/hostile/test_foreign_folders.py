"""A folder of somebody else's, and commands that work on what strangers sent: what is said, and what is handed on."""

import json
from pathlib import Path

import pytest

from sbpair.runtime.replication.handlers import INHERITED
from tests.cli.process import Sbpair

FOREIGN = """\
version: 1
pairs:
  orders:
    primary: {namespace: contoso-weu, host: localhost, connection_string: {env: NOBODY}}
    secondary: {namespace: contoso-neu, host: localhost, connection_string: {env: NOBODY_ELSE}}
"""
NOBODY = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=Root;SharedAccessKey=eA==;UseDevelopmentEmulator=true"
KNOWN = {"NOBODY": NOBODY, "NOBODY_ELSE": NOBODY.replace(":1;", ":2;")}
COST = ("cost", "orders", "--messages-per-day", "1000", "--size-kb", "1")
"""A command that works with the configuration, and asks no namespace."""


@pytest.fixture
def folder(sbpair: Sbpair) -> Path:
    (sbpair.home / "sbpair.yaml").write_text(FOREIGN, encoding="utf-8")
    return sbpair.home


def first_uses(text: str) -> int:
    return text.count("First use of")


def test_the_first_use_of_a_folders_file_is_said_once_and_again_when_it_has_changed(
    sbpair: Sbpair, folder: Path
) -> None:
    first, second = sbpair(*COST, env=KNOWN), sbpair(*COST, env=KNOWN)
    assert (first.code, second.code) == (0, 0), first
    assert f"First use of {folder / 'sbpair.yaml'}" in first.stderr
    assert "orders (contoso-weu at 127.0.0.1:1 with contoso-neu at 127.0.0.1:2)" in first.stderr
    assert first_uses(second.stderr) == 0
    (folder / "sbpair.yaml").write_text(FOREIGN.replace("contoso-neu", "evil-neu"), encoding="utf-8")
    assert "contoso-weu at 127.0.0.1:1 with evil-neu at 127.0.0.1:2" in sbpair(*COST, env=KNOWN).stderr
    assert first_uses(sbpair(*COST, "--quiet", env=KNOWN).stderr) == 0
    assert first_uses(sbpair("config", "show", env=KNOWN).stderr) == 0, "which shows nothing but the file"


def test_a_file_that_was_named_is_ones_own_choice(sbpair: Sbpair, folder: Path) -> None:
    assert first_uses(sbpair(*COST, "--config", "sbpair.yaml", env=KNOWN).stderr) == 0
    assert first_uses(sbpair(*COST, env=KNOWN | {"SBPAIR_CONFIG": "sbpair.yaml"}).stderr) == 0


def test_a_log_in_json_stays_json(sbpair: Sbpair, folder: Path) -> None:
    ran = sbpair(*COST, "--log-format", "json", env=KNOWN)
    assert sum(first_uses(json.loads(line)["message"]) for line in ran.stderr.splitlines()) == 1


def test_where_nothing_can_be_written_down_it_is_said_every_time(sbpair: Sbpair, folder: Path) -> None:
    (folder / "state").write_text("no folder", encoding="utf-8")
    for _ in range(2):
        ran = sbpair(*COST, env=KNOWN)
        assert (ran.code, first_uses(ran.stderr)) == (0, 1), ran


@pytest.mark.parametrize("variable", ["SBPAIR_AUTH", "SBPAIR_PRIMARY_AUTH", "SBPAIR_SECONDARY_TRANSPORT"])
def test_a_bare_key_where_the_name_of_a_credential_belongs_is_not_repeated(
    sbpair: Sbpair, folder: Path, variable: str
) -> None:
    ran = sbpair("config", "show", env={variable: "c2VjcmV0LWtleS1vZi10aGUtdGVzdHM="})
    assert (ran.code, "c2Vjcm" in ran.stdout + ran.stderr) == (2, False)
    assert f"{variable} is none of" in ran.stderr


def test_a_command_gets_the_message_and_what_was_named_of_the_environment(local: Sbpair, tmp_path: Path) -> None:
    """Also one whose subject has a null character, which no environment can hold."""
    journal = ("--journal", f"sqlite:{tmp_path / 'j.db'}")
    assert local("replicate", "provision", "local", "parcels", *journal).code == 0
    record = {"session_id": "s", "message_id": "m", "subject": "a\0b", "body": "x", "application_properties": {"n": 1}}
    sent = local("replicate", "send", "local", "parcels", *journal, "--delay", "0", stdin=json.dumps(record) + "\n")
    assert sent.code == 0, sent
    secrets = {
        "CONTOSO_WEU": "Endpoint=sb://x",
        "AZURE_CLIENT_SECRET": "s",
        "SBPAIR_COSMOS_KEY": "k",
        "https_proxy": "p",
    }
    consume = ("replicate", "consume", "local", "parcels", *journal, "--exec", f"sh -c 'env > {tmp_path / 'env'}'")
    refused = local(*consume, "--exec-env", "NO_SUCH_VARIABLE", "--until-idle", "8s")
    assert (refused.code, "NO_SUCH_VARIABLE" in refused.stderr) == (2, True)
    done = local(
        *consume, "--exec-env", "DATABASE", "--until-idle", "8s", "-o", "json", env=secrets | {"DATABASE": "here"}
    )
    assert (done.code, done.data["completed"], done.data["failed"]) == (0, 1, 0), done
    got = dict(line.partition("=")[::2] for line in (tmp_path / "env").read_text(encoding="utf-8").splitlines())
    assert (got["SBPAIR_SUBJECT"], got["SBPAIR_PROPERTY_N"], got["DATABASE"]) == ("ab", "1", "here")
    assert not set(secrets) & set(got)
    of_the_shell = {"PWD", "OLDPWD", "SHLVL", "_"}
    assert {name for name in got if not name.startswith(("SBPAIR_", "LC_"))} <= {*INHERITED, *of_the_shell, "DATABASE"}


def test_only_entities_on_the_command_line(fresh: Sbpair) -> None:
    """The configuration's entities are those that get messages; others stay, are named, and the exit code says so."""
    state = fresh.home / "state" / "sbpair"
    known = json.loads((state / "emulator.json").read_text(encoding="utf-8"))
    sides = ", ".join(
        f"{side}: {{namespace: {one['name']}, host: localhost, ca_file: {known['ca_file']}, "
        f"connection_string: {{file: {one['connection_string_file']}}}}}"
        for side, one in zip(("primary", "secondary"), known["namespaces"], strict=False)
    )
    text = f"version: 1\npairs: {{mine: {{{sides}, backlog_queues: 1"
    (fresh.home / "sbpair.yaml").write_text(f"{text}, entities: [orders]}}}}\n", encoding="utf-8")
    (fresh.home / "none.yaml").write_text(f"{text}}}}}\n", encoding="utf-8")
    assert fresh("provision", "mine", "--yes").code == 0
    for queue in ("orders", "payroll"):
        fresh.make_queue(queue)
    lines = "".join(json.dumps(one) + "\n" for one in archived(fresh))
    (fresh.home / "backlog.jsonl").write_text(lines, encoding="utf-8")
    restore = ("restore", "backlog.jsonl", "--pair", "mine", "--only-entities", "--ledger", "restored.jsonl")
    restored = fresh(*restore, "-o", "json")
    assert (restored.code, restored.data["sent"]) == (3, {"orders": 2}), restored
    assert restored.data["left"] == {"not among the pair's entities: payroll": 1}
    again = fresh(*restore, "-o", "markdown")
    assert "0 of 3 messages sent to the primary; 2 left out, because a ledger has them." in again.stdout
    for command in (("drain", "mine"), ("restore", "backlog.jsonl", "--pair", "mine")):
        refused = fresh(*command, "--only-entities", "--config", "none.yaml")
        assert (refused.code, "has none" in refused.stderr) == (2, True), refused
    refused = fresh("drain", "mine", "--only-entities", "--archive", "there")
    assert (refused.code, "--only-entities limits" in refused.stderr) == (2, True), refused


def archived(runner: Sbpair) -> list[dict[str, object]]:
    """Three messages as `drain --archive` writes them, one of them for a queue that is not configured."""
    import base64

    from sbpair.core.rewrite import compose, for_backlog

    def line(number: int, destination: str) -> dict[str, object]:
        payload = for_backlog(compose(body=b"x", message_id=f"m{number}"), destination)
        return {
            "queue": "local-primary/x-servicebus-transfer/0",
            "sequence_number": number,
            "message_id": f"m{number}",
            "enqueued_at": 1_790_000_000.0 + number,
            "destination": destination,
            "payload_base64": base64.b64encode(payload).decode(),
        }

    return [line(1, "orders"), line(2, "payroll"), line(3, "ORDERS")]
