"""`sbpair discover` on embedded namespaces: what it finds, with which rights, and the configuration it writes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbpair.core.access import parse_connection_string
from tests.cli.process import Sbpair

MAKE = """\
import asyncio
from sbpair.connect import open_sides
from sbpair.core.entities import Tier
from sbpair.core.pairing import backlog_settings
from sbpair.core.rewrite import compose, for_backlog
from sbpair.settings import load

async def main():
    async with open_sides(load().pair("local")) as sides:
        for path in ("legacy-eu/x-servicebus-transfer/0", "Legacy-EU/x-servicebus-transfer/3", "other/queue"):
            await sides.secondary_admin.create_queue(path, backlog_settings(Tier.STANDARD))
        sender = sides.secondary.sender("legacy-eu/x-servicebus-transfer/3")
        payloads = [for_backlog(compose(message_id=str(n), body=b"x"), "orders") for n in range(7)]
        await sender.send(payloads, timeout_seconds=30)
        await sender.close()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def home(local: Sbpair) -> Iterator[Sbpair]:
    assert local("provision", "local", "--queues", "2", "--yes").code == 0
    local.python(MAKE)
    yield local


def test_every_primary_is_found_and_messages_that_no_pair_covers_are_named(home: Sbpair) -> None:
    ran = home("discover", "-o", "json")
    assert ran.code == 0, ran
    first, second = ran.data["namespaces"]
    assert (first["namespace"], first["found_by"], first["transfer"]) == ("local-primary", "listed", [])
    legacy, own = second["transfer"]
    assert (legacy["primary"], legacy["indexes"], legacy["active"], legacy["pair"]) == ("legacy-eu", "0, 3", 7, None)
    assert (own["primary"], own["indexes"], own["active"], own["pair"]) == ("local-primary", "0-1", 0, "local")
    assert "local-secondary holds messages of legacy-eu, and no configured pair covers them." in ran.stderr
    assert "2 namespaces read: 2 backlogs found, 1 with messages." in ran.stderr


def test_a_pair_of_ones_own_is_named_before_the_one_that_is_always_there(home: Sbpair, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "version: 1\npairs:\n  mine: {"
        "primary: {namespace: local-primary, host: localhost, connection_string: {env: ONE}}, "
        "secondary: {namespace: local-secondary, host: localhost, connection_string: {env: OTHER}}}\n"
    )
    state = home.home / "state" / "sbpair"
    one, other = ((state / f"emulator-local-{side}.connection").read_text() for side in ("primary", "secondary"))
    words = ("--config", str(tmp_path / "mine.yaml"), "discover", "-o", "json")
    ran = home(*words, env={"ONE": one.strip(), "OTHER": other.strip()})
    assert [one["pair"] for one in ran.data["namespaces"][1]["transfer"]] == [None, "mine"], ran


def test_the_configuration_it_writes_is_one_that_finds_the_messages(home: Sbpair, tmp_path: Path) -> None:
    written = tmp_path / "found.yaml"
    ran = home("discover", "local-secondary", "--pairs-out", str(written))
    assert ran.code == 0, ran
    advised = ran.stderr.rpartition("check it. Run: sbpair ")[2].split("\n")[0].split()
    assert advised == ["--config", str(written), "status", "legacy-eu"]
    assert "&" not in written.read_text("utf-8"), "no anchors"
    ran = home("--config", str(written), "peek", "legacy-eu", "-o", "json")
    assert (ran.code, len(ran.data["messages"])) == (0, 7)
    again = home("discover", "local-secondary", "--pairs-out", str(written))
    assert (again.code, "not overwritten" in again.stderr) == (2, True)


def test_without_manage_named_primaries_are_looked_for_and_the_rest_is_not_claimed(
    home: Sbpair, tmp_path: Path
) -> None:
    """A connection string that is for one entity alone has no right to list queues."""
    state = json.loads((home.home / "state" / "sbpair" / "emulator.json").read_text(encoding="utf-8"))
    secondary = state["namespaces"][1]
    text = Path(secondary["connection_string_file"]).read_text(encoding="utf-8").strip()
    assert "entitypath" not in parse_connection_string(text)
    narrow = tmp_path / "narrow.connection"
    narrow.write_text(f"{text};EntityPath=legacy-eu/x-servicebus-transfer", encoding="utf-8")
    side = {
        "namespace": "local-secondary",
        "host": "localhost",
        "connection_string": {"file": str(narrow)},
        "ca_file": state["ca_file"],
    }
    config = tmp_path / "sbpair.json"
    config.write_text(json.dumps({"version": 1, "pairs": {"half": {"secondary": side}}}), encoding="utf-8")
    ran = home("--config", str(config), "discover", "local-secondary", "--primary", "legacy-eu", "-o", "json")
    (namespace,) = ran.data["namespaces"]
    assert (namespace["found_by"], namespace["error_code"] is not None) == ("probed", True)
    (legacy,) = namespace["transfer"]
    assert (legacy["primary"], legacy["indexes"]) == ("legacy-eu", "0, 3")
    assert namespace["detail"] in ran.stderr


def test_a_namespace_that_does_not_answer_is_6_and_nothing_is_said_of_it(sbpair: Sbpair) -> None:
    string = "Endpoint=sb://127.0.0.1:9;SharedAccessKeyName=n;SharedAccessKey=a2V5"
    environ = {
        "SBPAIR_SECONDARY_CONNECTION_STRING": string,
        "SBPAIR_SECONDARY_NAMESPACE": "fabrikam",
        "SBPAIR_SECONDARY_HOST": "localhost",
    }
    ran = sbpair("discover", "--timeout", "2s", env=environ)
    assert ran.code == 6, ran
    assert "1 namespace could not be read, so there may be a backlog." in ran.stderr
    assert "no queue" not in ran.stdout + ran.stderr


def test_a_wrong_key_is_4_and_nothing_is_said_of_what_is_there(home: Sbpair) -> None:
    state = json.loads((home.home / "state" / "sbpair" / "emulator.json").read_text(encoding="utf-8"))
    text = Path(state["namespaces"][1]["connection_string_file"]).read_text(encoding="utf-8").strip()
    side = {
        "namespace": "local-secondary",
        "host": "localhost",
        "connection_string": {"env": "WRONG"},
        "ca_file": state["ca_file"],
    }
    config = home.home / "wrong.json"
    config.write_text(json.dumps({"version": 1, "pairs": {"half": {"secondary": side}}}), encoding="utf-8")
    wrong = {"WRONG": text.replace("SharedAccessKey=", "SharedAccessKey=AAAA")}
    ran = home("--config", str(config), "discover", "local-secondary", env=wrong)
    assert ran.code == 4, ran
    assert "1 namespace could not be read, so there may be a backlog." in ran.stderr


def test_what_is_wrong_with_another_pair_does_not_end_a_search(home: Sbpair) -> None:
    config = home.home / "broken.json"
    unset = {"namespace": "contoso-weu", "connection_string": {"env": "NOT_SET_AT_ALL"}}
    config.write_text(json.dumps({"version": 1, "pairs": {"broken": {"primary": unset}}}), encoding="utf-8")
    assert home("--config", str(config), "discover", "local-secondary").code == 0
    ran = home("--config", str(config), "discover", "contoso-weu")
    assert (ran.code, "NOT_SET_AT_ALL" in ran.stderr) == (2, True)


def test_two_namespaces_are_a_pair_without_a_file_and_advice_names_them(home: Sbpair) -> None:
    ran = home("status", "--primary", "local-primary", "--secondary", "local-secondary", "-o", "json")
    assert (ran.code, ran.data["pair"]) == (0, "local"), ran
    ran = home("--primary", "local-secondary", "peek", "--secondary", "local-primary")
    assert (ran.code, "Create them: sbpair provision local-secondary:local-primary" in ran.stderr) == (1, True), ran
    shown = home("provision", "local-secondary:local-primary", "--queues", "1", "--dry-run", "-o", "json")
    assert (shown.code, shown.data["plans"][0]["pair"]) == (5, "local-secondary:local-primary"), shown
    queue = home("peek", "local-primary:q1")
    assert (queue.code, "For a queue: sbpair entity peek NAMESPACE:QUEUE" in queue.stderr) == (2, True), queue
    half = home("peek", "--primary", "local-primary")
    assert (half.code, "Name it: --secondary" in half.stderr) == (2, True)


def test_with_nothing_to_look_through_it_says_what_to_name(sbpair: Sbpair) -> None:
    ran = sbpair("discover")
    assert (ran.code, "sbpair discover contoso-neu --auth azure-cli" in ran.stderr) == (2, True)
    ran = sbpair("discover", "x", "--auth", "azure-cli")
    assert (ran.code, "not a namespace name" in ran.stderr) == (2, True)
    ran = sbpair("discover", "--resource-group", "g")
    assert (ran.code, "--subscription" in ran.stderr) == (2, True)
