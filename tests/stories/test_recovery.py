"""An operator at 3 a.m.: what the commands say must be enough, and true, in worlds that nobody prepared for them."""

import json
import os
import re
import shlex
import signal
import time
from pathlib import Path

import pytest

from tests.stories.world import PRIMARY, World, advised
from tests.waiting import LIMIT_SECONDS, until

CONFIGURED = 10
"""The default number of backlog queues."""


def test_the_old_application_had_20_queues_and_the_file_says_the_default(world: World) -> None:
    world.backlog_queues(range(20))
    world.destination("orders")
    ids = world.strand("orders", 60, queues=range(20))
    status = world("sbpair status local -o json --interval 0")
    assert (status.data["active"], status.data["verdict"]) == (60, "waiting")
    assert sum(queue["active"] for queue in status.data["queues"] if not queue["configured"]) == 30
    assert "10, 11, 12, 13, 14, 15, 16, 17, 18, 19 not configured" in status.stderr
    peeked = world("sbpair peek local --limit 100 -o json")
    assert len(peeked.data["messages"]) == 60
    drained = world("sbpair drain local -o json")
    assert (drained.code, drained.data["forwarded"], drained.data["confirmed_empty"]) == (0, 60, True)
    assert "60 messages are back on local-primary. The backlog is empty: 20 queues read" in drained.stderr
    assert world.ids("orders") == sorted(ids)


def test_two_pairs_share_both_namespaces_with_different_counts(world: World) -> None:
    world.configure({"five": 5, "ten": 10})
    world.backlog_queues(range(12))
    world.destination("orders")
    ids = world.strand("orders", 12, queues=range(12))
    cleaned = world("sbpair cleanup five --yes -o json")
    assert cleaned.code == 3  # 10 and 11 hold messages, so nobody deletes them
    assert [step["kind"] for step in cleaned.data["plans"][0]["steps"]] == ["skip", "skip"]
    drained = world("sbpair drain five -o json")
    assert (drained.code, drained.data["forwarded"], drained.data["confirmed_empty"]) == (0, 12, True)
    assert world.ids("orders") == sorted(ids)
    assert world("sbpair cleanup five --yes").code == 0
    status = world("sbpair status ten --interval 0 -o json")
    assert (status.data["verdict"], len(status.data["queues"])) == ("empty", 10)


def test_a_queue_above_the_configured_number_can_be_named(world: World) -> None:
    world.backlog_queues([*range(CONFIGURED), 12])
    world.destination("orders")
    world.strand("orders", 3, queues=[0, 12])
    drained = world("sbpair drain local --queue 12 -o json")
    assert (drained.code, drained.data["forwarded"], drained.data["confirmed_empty"]) == (0, 1, False)
    assert "10 other queues of the backlog were not read. Run: sbpair status local\n" in drained.stderr
    refused = world("sbpair drain local --queue 13")
    assert refused.code == 2
    assert "the backlog queues that exist are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12" in refused.stderr


def test_dead_letters_and_missing_queues_are_never_called_empty(world: World) -> None:
    for command in ("drain", "peek"):
        ran = world(f"sbpair {command} local")
        assert ran.code == 1
        assert "No backlog queue of local-primary exists on local-secondary" in ran.stderr
        assert "sbpair provision local" in ran.stderr
    world.backlog_queues(range(CONFIGURED))
    world.strand("orders", 4, queues=[2])
    world.dead_letter(
        2,
        4,
        reason="The message cannot be delivered to the destination.",
        description="An exception was received when sending the message to queue 'orders'. Exception: "
        "MessagingEntityNotFoundException: ...",
    )
    drained = world("sbpair drain local -o json")
    assert (drained.code, drained.data["confirmed_empty"], drained.data["backlog"]["verdict"]) == (
        3,
        False,
        "set-aside",
    )
    assert "No active message is left. 4 dead letters remain in 1 queue." in drained.stderr
    assert advised(drained)[-1] == "sbpair drain local --dlq"
    assert "4 dead letters remain in 1 queue" in world("sbpair status local --interval 0").stderr
    explained = world("sbpair peek local --dlq --group-by reason -o markdown").stdout
    assert "4 of them: The retired library's syphon put it there: its destination did not exist." in explained
    world.destination("orders", requires_session=True)
    refused = world("sbpair drain local --dlq")
    assert refused.code == 3
    assert "4 dead letters cannot be sent to a destination as they are." in refused.stderr
    kept = world(advised(refused)[-1])
    assert kept.code == 0, "the advice is never the command that has just failed"
    assert "4 dead letters archived" in kept.stderr and "The backlog is empty" in kept.stderr


def test_ending_early_says_how_many_are_left_and_how_to_go_on(world: World, tmp_path: Path) -> None:
    world.backlog_queues(range(CONFIGURED))
    world.destination("orders")
    ids = world.strand("orders", 50, queues=range(CONFIGURED))
    ledger = tmp_path / "drain.jsonl"
    first = world(f"sbpair drain local --limit 20 --ledger {ledger}")
    assert first.code == 3
    assert "the limit was reached. 30 messages are waiting in" in first.stderr
    assert advised(first) == [f"sbpair drain local --ledger {ledger}"]
    second = world(f"sbpair drain local --for 1s --rate 5 --reserve 400 --ledger {ledger}")
    assert advised(second) == [f"sbpair drain local --reserve 400 --ledger {ledger}"], "others still need theirs"
    assert second.code == 3
    assert "the time was up" in second.stderr
    last = world(advised(second)[0])
    assert last.code == 0
    assert "The backlog is empty" in last.stderr
    assert world.ids("orders") == sorted(ids)


def test_a_filter_is_no_remainder_and_nothing_is_counted_twice(world: World) -> None:
    world.backlog_queues(range(CONFIGURED))
    for path in ("orders", "invoices"):
        world.destination(path)
    world.strand("orders", 5, queues=[0, 1])
    world.strand("invoices", 7, queues=[0, 1])
    drained = world("sbpair drain local --destination orders -o json")
    assert (drained.code, drained.data["forwarded"], drained.data["original_faults"]) == (0, 5, {})
    assert "Nothing that matches the filter is left." in drained.stderr
    assert "7 messages are waiting in 2 queues" in drained.stderr


def test_what_went_elsewhere_is_not_called_back_on_the_primary(world: World) -> None:
    world.backlog_queues(range(CONFIGURED))
    world.destination("kept")
    world.strand("orders", 3)
    shown = world("sbpair drain local --archive saved --dry-run --report shown.md")
    assert "3 messages would be archived in saved. Nothing was changed." in shown.stderr
    assert shown.records[0]["what"] == "archived"
    assert "| Would be archived | 3 |" in (world.home / "shown.md").read_text(encoding="utf-8")
    archived = world("sbpair drain local --archive saved")
    assert archived.code == 0
    [file] = (world.home / "saved").iterdir()
    assert f"3 messages archived in saved/{file.name}. The backlog is empty" in archived.stderr
    assert archived.records[0]["what"] == "archived"
    world.strand("orders", 2)
    moved = world("sbpair drain local --to queue:kept")
    assert "2 messages moved to kept on local-primary." in moved.stderr
    assert "archive:DIRECTORY is --archive" in world("sbpair drain local --to archive:x").stderr


def test_two_operators_drain_at_once_and_one_is_killed(world: World) -> None:
    world.backlog_queues(range(CONFIGURED), lock_seconds=20)  # what the killed one holds is waited for
    world.destination("orders")
    ids = world.strand("orders", 2000, queues=range(CONFIGURED))
    one = world.runner.begin("drain", "local", "--rate", "300")
    other = world.runner.begin("drain", "local", "--rate", "300", "-o", "json")
    until(lambda: len(world.arrived("orders")) >= 300)
    one.send_signal(signal.SIGKILL)
    one.communicate(timeout=LIMIT_SECONDS)
    other.communicate(timeout=LIMIT_SECONDS)
    last = world("sbpair drain local", timeout=200)
    assert "The backlog is empty" in last.stderr, last
    found = world.ids("orders")
    assert set(found) == set(ids)
    assert len(found) - len(ids) <= 100 * CONFIGURED  # only what was in flight, unconfirmed, may come twice


@pytest.mark.parametrize("verify", ["--verify-doubtful", "--no-verify-doubtful"])
def test_what_a_killed_drain_may_have_sent_is_looked_for_and_not_sent_twice(world: World, verify: str) -> None:
    world.backlog_queues(range(CONFIGURED), lock_seconds=10)
    world.destination("orders")
    ids = world.strand("orders", 600, queues=range(CONFIGURED))
    drain = world.runner.begin("drain", "local", "--rate", "150", "--ledger", "killed.jsonl")
    until(lambda: len(world.arrived("orders")) >= 150)
    drain.send_signal(signal.SIGKILL)
    drain.communicate(timeout=LIMIT_SECONDS)
    again = world(f"sbpair drain local --ledger killed.jsonl {verify}", timeout=200)
    assert "The backlog is empty" in again.stderr, again
    named = world.home / "killed.jsonl.doubtful"
    if verify == "--no-verify-doubtful":
        assert set(world.ids("orders")) == set(ids)
        in_doubt = len(named.read_text().splitlines()) if named.exists() else 0
        assert len(world.ids("orders")) - len(ids) <= in_doubt
    else:
        assert world.ids("orders") == sorted(ids), "each of them once"


@pytest.mark.parametrize("verb", ["copy", "restore"])
def test_neither_is_what_another_command_may_have_sent(world: World, verb: str) -> None:
    world.backlog_queues([0], lock_seconds=10)
    world.destination("orders")
    ids = world.strand("orders", 600, queues=[0])
    words = ["copy", f"local-secondary:{PRIMARY}/x-servicebus-transfer/0", "local-primary:orders"]
    if verb == "restore":
        words = ["restore", "kept", "--pair", "local"]
        assert world("sbpair drain local --archive kept").code == 0
    words += ["--ledger", "killed.jsonl", "--yes"]
    killed = world.runner.begin(*words, "--rate", "150")
    until(lambda: len(world.arrived("orders")) >= 150)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=LIMIT_SECONDS)
    cut = _without_answers(world.home / "killed.jsonl")
    again = world(shlex.join(["sbpair", *words]), timeout=200)
    assert again.code == 0, again
    found = re.search(r"Already at the destination, so not sent again: (\d+) message", again.stderr)
    assert found is not None and int(found[1]) >= cut, again
    assert world.ids("orders") == sorted(ids), "each of them once"


def _without_answers(ledger: Path) -> int:
    """Take away the answers of the last batch that was answered, as if the kill had come before them; how many messages
    it had. What was being sent behind it stays in doubt, too."""
    lines = ledger.read_bytes().splitlines(keepends=True)
    began = max(n for n, line in enumerate(lines[:-1]) if b'"sending"' in line and b'"forwarded"' in lines[n + 1])
    ledger.write_bytes(b"".join([*lines[: began + 1], *(line for line in lines[began + 1 :] if b'"sending"' in line)]))
    return len(json.loads(lines[began])["messages"])


def test_a_running_syphon_finds_the_queues_that_another_application_makes(world: World) -> None:
    world.backlog_queues(range(CONFIGURED))
    world.destination("orders")
    syphon = world.runner.begin("syphon", "local", "--poll", "2s", "-o", "json")
    try:
        ids = world.strand("orders", 2, queues=[0])
        await_arrival(world, ids)
        world.backlog_queues([CONFIGURED, 17])
        ids += world.strand("orders", 6, queues=[0, CONFIGURED, 17])
        await_arrival(world, ids)
    finally:
        syphon.send_signal(signal.SIGTERM)
        out, err = syphon.communicate(timeout=LIMIT_SECONDS)
    assert f"{PRIMARY}/x-servicebus-transfer/17 exists now: it is drained, too." in err
    assert json.loads(out)["data"]["confirmed_empty"] is True


def await_arrival(world: World, ids: list[str]) -> None:
    until(lambda: world.ids("orders") == sorted(ids))


def test_a_drain_goes_on_until_nothing_comes_and_takes_the_dead_letters_along(world: World) -> None:
    world.backlog_queues(range(CONFIGURED))
    world.destination("orders")
    ids = world.strand("orders", 4, queues=[2])
    world.dead_letter(2, 4, reason="The message cannot be delivered to the destination.")
    began = time.monotonic()
    ids += world.strand("orders", 3, queues=[1])
    await_arrival(world, [])
    # Time enough to see that all has come and to strand more, however fast this machine is.
    idle = max(4, round(10 * (time.monotonic() - began)))
    drain = world.runner.begin("drain", "local", "--with-dlq", "--until-idle", f"{idle}s", "-o", "json")
    await_arrival(world, ids)
    late = world.strand("orders", 5, queues=[3])
    out, err = drain.communicate(timeout=LIMIT_SECONDS)
    assert drain.returncode == 0, err
    assert json.loads(out)["data"]["forwarded"] == 12
    assert "12 messages are back on local-primary. The backlog is empty" in err
    assert world.ids("orders") == sorted(ids + late)
    syphon = world("sbpair syphon local --with-dlq --until-idle 1s -o json")
    assert (syphon.code, syphon.data["ended_by"], syphon.data["confirmed_empty"]) == (0, "idle", True)
    assert "no message arrived for the requested time" in syphon.stderr


def test_no_manage_right_anywhere(world: World) -> None:
    world.backlog_queues([*range(CONFIGURED), 10, 11])
    world.destination("orders")
    ids = world.strand("orders", 24, queues=range(12))
    world.restrict()
    status = world("sbpair status restricted --interval 0 -o json")
    assert (status.code, status.data["active"], status.data["queues_found_by"]) == (0, 24, "probed")
    dry = world("sbpair drain restricted --dry-run -o json")
    assert dry.data["per_destination"] == {"orders": 24}
    assert "Not checked without Manage on the primary: whether orders is full" in dry.stderr
    drained = world("sbpair drain restricted -o json")
    assert (drained.code, drained.data["confirmed_empty"]) == (0, True), drained
    assert world.ids("orders") == sorted(ids)


def test_a_dry_run_meets_what_the_real_run_will_meet(world: World) -> None:
    world.backlog_queues(range(CONFIGURED))
    for path in ("orders", "off", "gone"):
        world.destination(path)
    world.destination("sessions", requires_session=True)
    world.strand("orders", 6)
    world.strand("off", 5)
    world.strand("gone", 4)
    world.strand("sessions", 3)
    world.disable("off")
    world.delete("gone")
    dry = world("sbpair drain local --dry-run -o json")
    left = {
        "destination unavailable: gone (entity-not-found)": 4,
        "destination unavailable: off (entity-disabled)": 5,
        "refused by sessions (argument-refused)": 3,
    }
    assert dry.code == 5
    assert (dry.data["per_destination"], dry.data["left"]) == ({"orders": 6}, left)
    assert "Enable it and drain again" in dry.stderr
    dead = world("sbpair drain local --dry-run --on-refused dead-letter -o json")
    assert dead.data["dead_letter_reasons"] == {"ArgumentRefused": 3}


def follow(world: World, status: str, *, most: int = 20) -> list[str]:
    """Ask for the status, run what it and the commands it names say, and ask again, until the backlog is empty."""
    done: list[str] = []
    todo: list[str] = []
    while len(done) < most:
        command = todo.pop(0) if todo else status
        ran = world(command, timeout=300 + NIGHT_MESSAGES / 20)
        done.append(command)
        if "The backlog is empty" in ran.stderr:
            return done
        todo = [*todo, *(one for one in advised(ran) if one not in todo)] if command != status else advised(ran)
        assert todo or command != status, (command, ran)
    raise AssertionError(f"still not empty after {done}")


NIGHT_MESSAGES = int(os.environ.get("SBPAIR_STORY_MESSAGES", "2000"))
"""Of sessions, besides half as many without; 50,000 are a long night."""


@pytest.mark.timeout(1800 + NIGHT_MESSAGES // 10)
def test_three_in_the_morning(world: World) -> None:
    """The primary is back after an outage; nobody knows how many queues there were, what lies there and who drains."""
    world.backlog_queues(range(12))
    for path in ("orders", "invoices/incoming"):
        world.destination(path)
    ids = world.strand("orders", 60, queues=[3])
    world.dead_letter(3, 40, reason="The message cannot be delivered to the destination.")
    world.defer(3, 20)
    ids += world.strand("orders", NIGHT_MESSAGES, queues=range(12), sessions=24)
    invoices = world.strand("invoices/incoming", NIGHT_MESSAGES // 2, queues=range(12))
    syphon = world.runner.begin("syphon", "local", "--rate", "100")
    time.sleep(1)
    try:
        done = follow(world, "sbpair status local")
    finally:
        syphon.send_signal(signal.SIGTERM)
        syphon.communicate(timeout=LIMIT_SECONDS)
    assert done[0] == "sbpair status local"
    assert all(shlex.split(one)[0] == "sbpair" for one in done)
    last = world("sbpair status local --interval 0 -o json")
    assert (last.data["verdict"], last.data["confirmed_empty"]) == ("empty", True)
    assert set(world.ids("orders")) == set(ids)
    assert len(world.ids("orders")) == len(ids)
    assert world.ids("invoices/incoming") == sorted(invoices)
    by_session: dict[str, list[int]] = {}
    for session, name in world.arrived("orders"):
        if session is not None:
            by_session.setdefault(session, []).append(int(str(name).rpartition("-")[2]))
    assert len(by_session) == 24
    assert all(numbers == sorted(numbers) for numbers in by_session.values())
