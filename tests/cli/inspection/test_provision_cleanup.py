"""Provision and cleanup on two embedded namespaces: plan, apply, stale plans, confirmation by name, the log."""

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.plans import rewritten
from tests.cli.process import Sbpair
from tests.cli.screens import answer

pytestmark = pytest.mark.usefixtures("provisioned")
QUEUE = "local-primary/x-servicebus-transfer/{}"


@pytest.fixture
def put(local: Sbpair) -> Callable[[int, int], None]:
    """Puts messages into a backlog queue, in the form a failover sender leaves them."""

    def into(index: int, count: int) -> None:
        code = (
            "import asyncio, sys\n"
            "from sbpair.connect import open_sides\n"
            "from sbpair.core.rewrite import compose, for_backlog\n"
            "from sbpair.settings import load\n"
            "async def main(queue, count):\n"
            "    async with open_sides(load().pair('local')) as sides:\n"
            "        sender = sides.secondary.sender(queue)\n"
            "        for number in range(count):\n"
            "            payload = for_backlog(compose(body='x', message_id=str(number)), 'orders')\n"
            "            await sender.send([payload], timeout_seconds=30)\n"
            "asyncio.run(main(sys.argv[1], int(sys.argv[2])))\n"
        )
        local.python(code, QUEUE.format(index), str(count))

    return into


_LEAVE = """\
import asyncio, sys
from sbpair.connect import open_sides
from sbpair.core.pairing import DOCUMENTED_SETTINGS
from sbpair.core.rewrite import compose, for_backlog
from sbpair.settings import load

async def main(path, count):
    async with open_sides(load().pair("local")) as sides:
        await sides.secondary_admin.create_queue(path, DOCUMENTED_SETTINGS)
        sender = sides.secondary.sender(path)
        for number in range(count):
            payload = for_backlog(compose(body="x", message_id=f"old-{number}"), "orders")
            await sender.send([payload], timeout_seconds=30)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""
OLD = "contoso-old/x-servicebus-transfer/{}"
LEFT_OVERS = ("--left-overs-of", "contoso-old")


@pytest.fixture
def leave(local: Sbpair) -> Callable[[int, int], None]:
    """Leaves a backlog queue of a former primary, with so many messages."""

    def queue(index: int, count: int) -> None:
        local.python(_LEAVE, OLD.format(index), str(count))

    return queue


def results(ran: Any) -> dict[str, str]:
    return {row["queue"].rpartition("/")[2]: row["result"] for row in ran.records}


def test_provision_plans_applies_and_then_has_nothing_to_do(fresh: Sbpair) -> None:
    dry = fresh("provision", "local", "--dry-run")
    assert dry.code == 5
    assert [row["step"] for row in dry.records] == ["create"] * 10
    assert "Nothing was changed" in dry.stderr
    done = fresh("provision", "local")
    assert done.code == 0
    assert set(results(done).values()) == {"done"}
    again = fresh("provision", "local", "-o", "json")
    assert again.code == 0
    assert {one["result"] for one in again.data["outcomes"]} == {"unchanged"}
    assert fresh("provision", "local", "--dry-run").code == 0
    assert fresh("provision", "local", "--dry-run", "--exit-zero").code == 0


def test_every_step_is_in_the_operations_log(local: Sbpair) -> None:
    before = len(local.operations)
    assert local("provision", "local", "--queues", "11").code == 0
    (line,) = [one for one in local.operations[before:] if one["result"] == "done"]
    assert line["action"] == "create"
    assert line["queue"] == QUEUE.format(10)
    assert (line["command"], line["pair"]) == ("provision", "local")
    assert line["credential"] == "connection-string (RootManageSharedAccessKey)"
    assert "@" in line["who"]
    assert line["at"].startswith("20")
    if os.name != "nt":
        mode = (local.home / "state" / "sbpair" / "operations.jsonl").stat().st_mode
        assert mode & 0o077 == 0
    assert local("cleanup", "local", "--yes").code == 0


def test_a_plan_file_is_applied_as_written_and_refused_when_the_world_changed(local: Sbpair) -> None:
    local("provision", "local", "--queues", "13", "--plan-out", "plan.json")
    plan = json.loads((local.home / "plan.json").read_text(encoding="utf-8"))
    assert [step["kind"] for step in plan["plans"][0]["steps"]] == ["create"] * 3
    assert local("provision", "local", "--plan", "plan.json").code == 0
    assert local("cleanup", "local", "--plan-out", "cleanup.json").code == 0
    wrong = local("provision", "local", "--plan", "cleanup.json")
    assert wrong.code == 2
    assert "sbpair cleanup" in wrong.stderr
    assert local("cleanup", "local", "--plan", "cleanup.json", "--yes").code == 0
    update = local("provision", "local", "--plan", "plan.json", "--queues", "3")
    assert update.code == 2


def test_a_broken_plan_file_is_a_usage_error(local: Sbpair) -> None:
    broken = local.home / "broken.json"
    broken.write_text('{"plans": [{"format_version": 99}], "sha256": ""}', encoding="utf-8")
    for code, said in (("stale-plan", "broken.json is not as it was written"), ("usage", "format version 99")):
        ran = local("provision", "local", "--plan", "broken.json", "-o", "json")
        assert (ran.code, ran.error["code"], said in ran.stderr) == (2, code, True), ran
        rewritten(broken, lambda document: document)


def test_a_clean_up_is_planned_by_one_and_applied_by_another(local: Sbpair, put: Callable[[int, int], None]) -> None:
    """The file says what is deleted, who made it and until when it holds; the queues have to be as they were."""
    assert local("provision", "local", "--queues", "12").code == 0
    planned = local("cleanup", "local", "--plan-out", "plan.json")
    assert planned.code == 0, planned
    assert "Plan with 2 to delete written to plan.json, valid until " in planned.stderr
    apply = re.search(r"Apply it: sbpair (.*)", planned.stderr)
    assert apply is not None and apply[1] == "cleanup local --plan plan.json"
    file = local.home / "plan.json"
    document = json.loads(file.read_text())
    assert document["expires_at"] - document["made_at"] == 24 * 3600
    edited = file.read_text().replace("/11", "/12")
    (local.home / "edited.json").write_text(edited)
    ran = local("cleanup", "local", "--plan", "edited.json", "--yes")
    assert (ran.code, "edited.json is not as it was written" in ran.stderr) == (2, True), ran
    shutil.copy(file, local.home / "old.json")
    rewritten(local.home / "old.json", lambda document: document.update(expires_at=document["made_at"]))
    ran = local("cleanup", "local", "--plan", "old.json", "--yes")
    assert (ran.code, "old.json has expired at " in ran.stderr) == (2, True), ran
    put(11, 2)
    ran = local(*shlex.split(apply[1]), "--yes", "-o", "json")
    assert (ran.code, ran.error["code"]) == (2, "stale-plan"), ran
    assert "x-servicebus-transfer/11 holds 2 messages now, not 0" in ran.stderr
    assert local("cleanup", "local", "--yes", "--confirm", QUEUE.format(11)).code == 0
    assert local(*shlex.split(apply[1]), "--yes").code == 0, "what is gone was to be deleted"


def test_cleanup_shows_then_deletes_only_what_is_empty(local: Sbpair, put: Callable[[int, int], None]) -> None:
    assert local("provision", "local", "--queues", "12").code == 0
    put(11, 3)
    shown = local("cleanup", "local")
    assert shown.code == 5
    assert {row["queue"].rpartition("/")[2]: row["step"] for row in shown.records} == {"10": "delete", "11": "skip"}
    done = local("cleanup", "local", "--yes", "--no-input")
    assert done.code == 3
    assert results(done) == {"10": "done", "11": "skipped"}
    assert "it holds 3 active" in done.stdout
    slip = local("cleanup", "local", "--yes", "--confirm", QUEUE.format(110))
    assert slip.code == 2
    assert results(local("cleanup", "local", "--yes", "--confirm", QUEUE.format(11))) == {"11": "done"}
    assert local("cleanup", "local").code == 0


def test_a_terminal_is_asked_for_the_name(local: Sbpair, put: Callable[[int, int], None]) -> None:
    assert local("provision", "local", "--queues", "11").code == 0
    put(10, 1)
    assert type_into(local, "yes") == 3
    assert type_into(local, QUEUE.format(10)) == 0
    assert local("cleanup", "local").code == 0


def test_messages_are_archived_before_their_queue_goes(local: Sbpair, put: Callable[[int, int], None]) -> None:
    assert local("provision", "local", "--queues", "12").code == 0
    put(10, 4)
    before = len(local.operations)
    ran = local("cleanup", "local", "--yes", "--archive", "archive", "-o", "json")
    assert ran.code == 0, ran
    assert {one["queue"]: one["result"] for one in ran.data["outcomes"]} == {
        QUEUE.format(10): "done",
        QUEUE.format(11): "done",
    }
    lines = [line for file in (local.home / "archive").iterdir() for line in file.read_text("utf-8").splitlines()]
    assert sorted(json.loads(line)["message_id"] for line in lines) == ["0", "1", "2", "3"]
    actions = [(line["action"], line["result"]) for line in local.operations[before:]]
    assert actions[:2] == [("archive", "done"), ("archive", "done")]
    assert {action for action, _ in actions[2:]} == {"delete"}


def test_messages_go_home_before_their_queue_goes(local: Sbpair, put: Callable[[int, int], None]) -> None:
    local.make_queue("orders")
    assert local("provision", "local", "--queues", "11").code == 0
    put(10, 3)
    ran = local("cleanup", "local", "--yes", "--drain", "-o", "markdown")
    assert ran.code == 0, ran
    assert "local: 3 messages back on local-primary." in ran.stdout
    assert len(local("peek", "local", "--entity", "orders", "--side", "primary").records) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("--drain",),
        ("--archive", "x"),
        ("--yes", "--drain", "--archive", "x"),
        ("--yes", "--drain", "--plan", "x.json"),
        ("--yes", "--plan-out", "x.json"),
        ("--plan", "x.json", "--plan-out", "y.json"),
        ("--plan", "x.json", *LEFT_OVERS),
        ("--yes", "--drain", *LEFT_OVERS),
        ("--left-overs-of", ""),
    ],
)
def test_options_of_cleanup_that_contradict_each_other(local: Sbpair, arguments: tuple[str, ...]) -> None:
    ran = local("cleanup", "local", *arguments)
    assert (ran.code, ran.stdout) == (2, "")


def type_into(local: Sbpair, typed: str, *more: str, ahead: str = "") -> int:
    """Exit code of `cleanup --yes` on a terminal where somebody types `typed`, and `ahead` before the question."""
    words = ("cleanup", "local", "--yes", *more)
    return answer(local, *words, question="Type its name", typed=typed, ahead=ahead).code


def test_protected_patterns_win_over_a_confirmation(local: Sbpair) -> None:
    assert local("provision", "local", "--queues", "11").code == 0
    config = local.home / "protected.json"
    pair = {side: embedded(local, side) for side in ("primary", "secondary")} | {"protected": ["*/10"]}
    config.write_text(json.dumps({"version": 1, "pairs": {"mine": pair}}), encoding="utf-8")
    ran = local("--config", str(config), "cleanup", "mine", "--yes", "--confirm", QUEUE.format(10))
    assert ran.code == 3
    assert results(ran) == {"10": "skipped"}
    assert "protected by the pattern '*/10'" in ran.stdout
    assert results(local("cleanup", "local", "--yes")) == {"10": "done"}


def test_left_overs_of_a_former_primary_go_only_when_asked_for_and_only_empty(
    local: Sbpair, leave: Callable[[int, int], None]
) -> None:
    assert local("provision", "local").code == 0
    leave(0, 2)
    leave(1, 0)
    assert local("cleanup", "local").code == 0
    advised = [
        row["remedy"] for row in local("audit", "local", "-o", "json", "--check", "SBP006").data["pairs"][0]["findings"]
    ]
    assert "sbpair cleanup local --left-overs-of contoso-old/x-servicebus-transfer" in advised[0]

    shown = local("cleanup", "local", *LEFT_OVERS)
    assert shown.code == 5
    assert {row["queue"]: row["step"] for row in shown.records} == {OLD.format(0): "skip", OLD.format(1): "delete"}
    assert "left over from primary contoso-old; it is empty" in shown.stdout
    assert "it holds 2 active" in shown.stdout

    before = len(local.operations)
    applied = local("cleanup", "local", "--yes", "--no-input", *LEFT_OVERS)
    assert (applied.code, results(applied)) == (3, {"0": "skipped", "1": "done"})
    logged = {line["queue"]: (line["action"], line["result"]) for line in local.operations[before:]}
    assert logged == {OLD.format(0): ("skip", "skipped"), OLD.format(1): ("delete", "done")}

    assert type_into(local, "yes", *LEFT_OVERS) == 3
    assert type_into(local, "", *LEFT_OVERS, ahead=f"{OLD.format(0)}\n") == 3
    assert type_into(local, OLD.format(0), *LEFT_OVERS) == 0


def test_left_overs_are_archived_before_they_go(local: Sbpair, leave: Callable[[int, int], None]) -> None:
    leave(3, 2)
    ran = local("cleanup", "local", "--yes", "--archive", "left", *LEFT_OVERS, "-o", "markdown")
    assert ran.code == 0, ran
    assert "2 messages archived" in ran.stdout
    lines = [line for file in (local.home / "left").iterdir() for line in file.read_text("utf-8").splitlines()]
    assert sorted(json.loads(line)["message_id"] for line in lines) == ["old-0", "old-1"]
    gone = local("cleanup", "local", *LEFT_OVERS)
    assert (gone.code, gone.records) == (0, [])
    assert "There is no backlog queue of contoso-old on local-secondary." in gone.stderr


def test_backlog_queues_that_a_configured_pair_uses_are_no_left_overs(
    local: Sbpair, leave: Callable[[int, int], None]
) -> None:
    own = local("cleanup", "local", "--left-overs-of", "local-primary")
    assert own.code == 2
    assert "they are those of pair 'local'" in own.stderr
    leave(4, 0)
    assert local("cleanup", "local", *LEFT_OVERS, "--plan-out", "left.json").code == 0

    primary, secondary = (embedded(local, side) for side in ("primary", "secondary"))
    config = local.home / "revived.json"
    revived = {"primary": primary | {"namespace": "contoso-old"}, "secondary": secondary}
    config.write_text(json.dumps({"version": 1, "pairs": {"revived": revived}}), encoding="utf-8")
    asked = local("--config", str(config), "cleanup", "local", "--yes", *LEFT_OVERS)
    assert asked.code == 2
    assert "they are those of pair 'revived'" in asked.stderr
    planned = local("--config", str(config), "cleanup", "local", "--yes", "--plan", "left.json")
    assert planned.code == 2
    assert "they are those of pair 'revived'" in planned.stderr

    keep = local.home / "keep.json"
    mine = {"primary": primary, "secondary": secondary, "protected": ["contoso-old/*"]}
    keep.write_text(json.dumps({"version": 1, "pairs": {"mine": mine}}), encoding="utf-8")
    kept = local("--config", str(keep), "cleanup", "mine", "--yes", *LEFT_OVERS, "--confirm", OLD.format(4))
    assert (kept.code, results(kept)) == (3, {"4": "skipped"})
    assert results(local("cleanup", "local", "--yes", "--plan", "left.json")) == {"4": "done"}


def test_a_plan_that_deletes_what_the_pair_uses_by_now_is_stale(local: Sbpair) -> None:
    assert local("provision", "local", "--queues", "11").code == 0
    assert local("cleanup", "local", "--plan-out", "extra.json").code == 0
    config = local.home / "more.json"
    mine = {side: embedded(local, side) for side in ("primary", "secondary")} | {"backlog_queues": 11}
    rewritten(local.home / "extra.json", lambda document: document["plans"][0].update(pair="mine"))
    config.write_text(json.dumps({"version": 1, "pairs": {"mine": mine}}), encoding="utf-8")
    ran = local("--config", str(config), "cleanup", "mine", "--yes", "--plan", "extra.json")
    assert ran.code == 2
    assert f"The plan deletes {QUEUE.format(10)}, which pair 'mine' uses by now." in ran.stderr
    assert local("cleanup", "local", "--yes").code == 0


def test_a_queue_that_another_configured_pair_counts_on_is_never_deleted(local: Sbpair) -> None:
    assert local("provision", "local").code == 0
    sides = {side: embedded(local, side) for side in ("primary", "secondary")}
    pairs = {"five": sides | {"backlog_queues": 5}, "ten": sides | {"backlog_queues": 10}}
    config = local.home / "shared.json"
    config.write_text(json.dumps({"version": 1, "pairs": pairs}), encoding="utf-8")
    cleaned = local("--config", str(config), "cleanup", "five", "--yes", "-o", "json")
    assert cleaned.code == 0
    assert [one["queue"] for plan in cleaned.data["plans"] for one in plan["steps"]] == []
    notes = {one["queue"]: one["note"] for one in cleaned.data["plans"][0]["unchanged"]}
    # The pair `local` of the running namespaces counts on them as well; one of the pairs that do is named.
    named = ("pair 'ten' counts on it", "pair 'local' counts on it")
    assert [notes[QUEUE.format(index)] in named for index in range(5, 10)] == [True] * 5, notes
    found = local("--config", str(config), "audit", "five", "--check", "SBP002", "-o", "json")
    assert [one for pair in found.data["pairs"] for one in pair["findings"]] == []


def test_a_writing_command_needs_a_name_or_a_yes(local: Sbpair) -> None:
    sides = {side: embedded(local, side) for side in ("primary", "secondary")}
    pairs = {"mine": sides | {"environment": "production"}}
    config = local.home / "one.json"
    config.write_text(json.dumps({"version": 1, "pairs": pairs}), encoding="utf-8")
    for command in ("provision", "cleanup", "drain", "syphon"):
        ran = local("--config", str(config), command)
        assert (ran.code, "Name it: mine" in ran.stderr) == (2, True), ran
    assert local("--config", str(config), "provision", "--all-pairs", "--dry-run").code in (0, 5)
    assert local("--config", str(config), "provision", "mine", "--all-pairs").code == 2


def embedded(local: Sbpair, side: str) -> dict[str, Any]:
    """Configuration of one of the running embedded namespaces."""
    state = json.loads((local.home / "state" / "sbpair" / "emulator.json").read_text(encoding="utf-8"))
    namespace = state["namespaces"][("primary", "secondary").index(side)]
    return {
        "namespace": namespace["name"],
        "host": "localhost",
        "connection_string": {"file": namespace["connection_string_file"]},
        "ca_file": state["ca_file"],
    }


def test_a_refused_credential_is_denied(local: Sbpair, fault: Callable[[str, str], None]) -> None:
    fault("local-secondary", "unauthorized:operation=http")
    ran = local("provision", "local", "-o", "json")
    assert (ran.code, ran.error["code"]) == (4, "authentication-failed")


def test_partial_failure_names_every_queue(local: Sbpair, fault: Callable[[str, str], None]) -> None:
    fault("local-secondary", "http-status:status=403,after=1,entity=local-primary/x-servicebus-transfer/10")
    ran = local("provision", "local", "--queues", "12")
    assert ran.code == 3, ran
    assert results(ran)["10"] == "failed"
    assert results(ran)["11"] == "done"
    assert local("cleanup", "local", "--yes", "--no-input").code == 0


def test_a_plan_for_another_command_names_the_line_that_applies_it(local: Sbpair) -> None:
    assert local("cleanup", "local", "--plan-out", "to clean.json").code == 0
    refused = local("provision", "local", "--plan", "to clean.json", "--yes")
    assert (refused.code, "holds a plan for cleanup. Nothing was changed." in refused.stderr) == (2, True), refused
    assert "Apply it: sbpair cleanup local --plan 'to clean.json'" in refused.stderr
