"""`sbpair replicate` as real processes, and a short soak with kill -9 and regions in the dark."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.process import Sbpair
from tests.soak.replicate import Plan, soak
from tests.waiting import LIMIT_SECONDS, until

QUEUE = "parcels"


@pytest.fixture(scope="module")
def replicated(local: Sbpair) -> Sbpair:
    """The pair `local` with a replicated queue."""
    made = local("replicate", "provision", "local", QUEUE, "--journal", "sqlite:journal.db", "-o", "json")
    assert made.code == 0, made
    assert [one["result"] for one in made.data["outcomes"]] == ["done", "done"]
    assert "SQLite" in made.data["journal"]
    return local


def lines(sessions: int, each: int, prefix: str) -> str:
    records = (
        {"session_id": f"{prefix}{session}", "message_id": f"{prefix}{session}-{number}", "body": f"body {number}"}
        for number in range(each)
        for session in range(sessions)
    )
    return "".join(json.dumps(record) + "\n" for record in records)


def test_what_is_sent_is_processed_once_in_order_and_shown(replicated: Sbpair, tmp_path: Path) -> None:
    journal = ("--journal", f"sqlite:{tmp_path / 'j.db'}")
    sent = replicated(
        "replicate", "send", "local", QUEUE, *journal, "--delay", "0", "-o", "json", stdin=lines(3, 4, "a")
    )
    assert (sent.code, sent.data["both"], sent.data["failed"]) == (0, 12, 0), sent
    more = replicated(
        "replicate",
        "send",
        "local",
        QUEUE,
        *journal,
        "--delay",
        "0",
        "--session-id",
        "a0",
        "-o",
        "jsonl",
        stdin="late\n",
    )
    assert json.loads(more.stdout)["accepted"] == ["primary", "secondary"]

    archives = []
    for side in ("primary", "secondary"):
        peeked = replicated("peek", "local", "--entity", QUEUE, "--side", side, "-o", "jsonl", "-n", "1000")
        (tmp_path / side).write_text(peeked.stdout)
        archives += [f"--{side}-archive", str(tmp_path / side)]
    audit = ("pipeline", "replication-audit", "--engine", "local", *archives, *journal, "-o", "json")
    before = replicated(*audit)
    assert (before.code, before.data["counts"]["unprocessed"], before.data["findings"]) == (5, 13, 13), before

    log = tmp_path / "log"
    command = f"""sh -c 'echo "$SBPAIR_SESSION_ID $(cat)" >> {log}'"""
    done = replicated(
        "replicate", "consume", "local", QUEUE, *journal, "--exec", command, "--until-idle", "8s", "-o", "json"
    )
    assert (done.code, done.data["completed"], done.data["ended_by"]) == (0, 13, "idle"), done
    by_session: dict[str, list[str]] = {}
    for line in log.read_text().splitlines():
        session, _, body = line.partition(" ")
        by_session.setdefault(session, []).append(body)
    bodies = [f"body {number}" for number in range(4)]
    assert by_session == {"a0": [*bodies, "late"], "a1": bodies, "a2": bodies}, "also across two runs of send"

    over = replicated("replicate", "consume", "local", QUEUE, *journal, "--exec", command, "--for", "1s", "-o", "json")
    assert (over.code, over.data["completed"], over.data["ended_by"]) == (0, 0, "time"), over

    after = replicated(*audit)
    assert (after.code, after.data["findings"], after.data["completed"]) == (0, 0, 13), after
    (row,) = after.data["destinations"]
    assert (row["destination"], row["on_primary"], row["on_secondary"]) == (QUEUE, 13, 13)
    assert (row["stamped"], row["unstamped"]) == (13, 0)

    shown = replicated("replicate", "status", *journal, "-o", "json")
    assert (shown.code, shown.data["by_state"]["completed"], shown.data["completed_messages"]) == (0, 3, 13)
    assert replicated("replicate", "status", *journal, "-o", "nagios").code == 0


def test_a_command_that_fails_ends_in_the_dead_letter_queues_and_in_status(replicated: Sbpair, tmp_path: Path) -> None:
    journal = ("--journal", f"sqlite:{tmp_path / 'j.db'}")
    replicated("replicate", "send", "local", QUEUE, *journal, "--delay", "0", "--session-id", "bad", stdin="x\n")
    ran = replicated(
        "replicate", "consume", "local", QUEUE, *journal, "--exec", "sh -c 'echo broken >&2; exit 9'",
        "--attempts", "1", "--until-idle", "8s", "-o", "json",
    )  # fmt: skip
    assert (ran.code, ran.data["failed"]) == (3, 1), ran
    results = {(one["side"], one["result"]) for one in ran.data["counts"]}
    assert {result for _, result in results} == {"failed", "dead-lettered"}
    assert len({side for side, _ in results}) == 2, "one copy on each side"
    assert "sh ended with 9. broken" in ran.stderr
    shown = replicated("replicate", "status", *journal, "--state", "failed", "-o", "json")
    assert [one["session"] for one in shown.data["sessions"]] == ["bad"]


def test_a_session_that_waits_for_a_missing_message_is_stuck_and_can_be_let_go(
    replicated: Sbpair, tmp_path: Path
) -> None:
    journal = ("--journal", f"sqlite:{tmp_path / 'j.db'}")
    stamp = {"x-sbpair-stream": "elsewhere", "x-sbpair-number": 2, "x-sbpair-after": "elsewhere:1"}
    record = {"session_id": "gap", "message_id": "second", "body": "2", "application_properties": stamp}
    assert replicated("send", "local", QUEUE, stdin=json.dumps(record) + "\n").code == 0
    consume = ("replicate", "consume", "local", QUEUE, *journal, "--exec", "true", "--lease", "1s", "--margin", "100ms")
    stopped = replicated.begin(*consume, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    status = ("replicate", "status", *journal, "--stuck", "--lease", "1s", "--margin", "100ms")
    shown = until(lambda: (ran := replicated(*status)).code == 5 and ran)
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(LIMIT_SECONDS) == 143
    assert shown
    assert "second waits for elsewhere:1" in shown.stdout
    freed = replicated(*consume, "--gap-timeout", "1s", "--until-idle", "8s", "-o", "json")
    assert (freed.code, freed.data["completed"]) == (0, 1), freed


def test_provision_says_what_is_wrong_with_what_exists(replicated: Sbpair) -> None:
    again = replicated("replicate", "provision", "local", QUEUE, "-o", "json")
    assert (again.code, [one["result"] for one in again.data["outcomes"]]) == (0, ["unchanged"] * 2)
    missing = replicated("replicate", "provision", "local", "fresh", "--dry-run")
    assert missing.code == 5
    assert "would be created" in missing.stdout
    wrong = replicated("replicate", "provision", "local", "primary/x-servicebus-transfer/0", "--dry-run")
    assert wrong.code == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("consume", "local", QUEUE, "--journal", "sqlite:x.db"), "--exec"),
        (("consume", "local", QUEUE, "--exec", "true"), "--journal"),
        (("status", "--journal", "redis:host"), "is no journal"),
        (("consume", "local", QUEUE, "--exec", "true", "--journal", "sqlite:x", "--margin", "2m"), "margin"),
        (("status", "--journal", "sqlite:/no/such/folder/j.db"), "does not answer"),
    ],
)
def test_mistakes_are_told(replicated: Sbpair, arguments: tuple[str, ...], said: str) -> None:
    ran = replicated("replicate", *arguments)
    assert ran.code in (2, 6), ran
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


def test_lines_that_both_sides_deny_end_with_4(replicated: Sbpair, fault: Callable[[str, str], None]) -> None:
    for namespace in ("local-primary", "local-secondary"):
        fault(namespace, f"unauthorized:entity={QUEUE}")
    ran = replicated("replicate", "send", "local", QUEUE, "--session-id", "s", "-o", "json", stdin="x\n")
    assert (ran.code, ran.data["failed"]) == (4, 1), ran


def test_a_raw_line_needs_a_session(replicated: Sbpair) -> None:
    ran = replicated("replicate", "send", "local", QUEUE, "-o", "json", stdin="no session\n")
    assert ran.code == 2
    assert "--session-id" in ran.data["stopped_at"]


def test_a_subscription_is_provisioned_sent_to_and_consumed(local: Sbpair, tmp_path: Path) -> None:
    journal = ("--journal", f"sqlite:{tmp_path / 'j.db'}")
    dry = local("replicate", "provision", "local", "events/subscriptions/one", "--dry-run", "-o", "json")
    assert (dry.code, [one["result"] for one in dry.data["outcomes"]]) == (5, ["skipped", "skipped"]), dry
    for name in ("one", "two"):
        made = local("replicate", "provision", "local", f"events/Subscriptions/{name}", "-o", "json")
        assert (made.code, [one["result"] for one in made.data["outcomes"]]) == (0, ["done", "done"]), made
    again = local("replicate", "provision", "local", "events/Subscriptions/one", "-o", "json")
    assert [one["result"] for one in again.data["outcomes"]] == ["unchanged", "unchanged"]
    whole = local("replicate", "provision", "local", "events")
    assert whole.code == 2, whole
    assert "events is a topic" in whole.stderr
    assert "sbpair replicate provision events/Subscriptions/NAME" in whole.stderr
    looked_up = local("ping", "local", "events", "--control-plane", "--count", "1", "-o", "json")
    assert looked_up.code == 0, looked_up

    local("replicate", "send", "local", "events", *journal, "--delay", "0", stdin=lines(2, 2, "t"))
    for name in ("one", "two"):
        source = f"events/Subscriptions/{name}"
        run = local(
            "replicate", "consume", "local", source, *journal, "--exec", "true", "--until-idle", "8s", "-o", "json"
        )
        assert (run.code, run.data["completed"], run.data["second_copies_out"]) == (0, 4, 0), run
    shown = local("replicate", "status", *journal, "--destination", "events/Subscriptions/two", "-o", "json")
    assert [one["destination"] for one in shown.data["sessions"]] == ["events/subscriptions/two"] * 2


def test_a_dead_letter_of_any_kind_is_told_by_the_exit_code(replicated: Sbpair, tmp_path: Path) -> None:
    odd = {"session_id": "odd", "message_id": "1", "body": "", "application_properties": {"x-sbpair-number": 0}}
    assert replicated("send", "local", QUEUE, stdin=json.dumps(odd) + "\n").code == 0
    journal = ("--journal", f"sqlite:{tmp_path / 'j.db'}")
    ran = replicated(
        "replicate", "consume", "local", QUEUE, *journal, "--exec", "true", "--until-idle", "8s", "-o", "json"
    )
    assert (ran.code, ran.data["dead_lettered"], ran.data["failed"]) == (3, 1, 0), ran
    _, _, advised = ran.stderr.partition("1 copy was dead-lettered; see why: sbpair ")
    seen = replicated(*advised.split(), "-o", "json")
    assert "1" in [one["message_id"] for one in seen.data["messages"]], advised


def test_second_copies_that_come_too_late_are_told_by_the_exit_code(replicated: Sbpair, tmp_path: Path) -> None:
    journal = ("--journal", f"sqlite:{tmp_path / 'j.db'}")
    replicated("replicate", "send", "local", QUEUE, *journal, "--delay", "1h", "--session-id", "late", stdin="x\n")
    consume = ("replicate", "consume", "local", QUEUE, *journal, "--exec", "true", "--until-idle", "2s")
    ran = replicated(*consume, "-o", "json")
    assert (ran.code, ran.data["completed"], ran.data["second_copies_out"], ran.data["scheduled"]) == (3, 1, 1, 0), ran
    assert "The second copy of 1 message is still to come. The same command settles what comes." in ran.stderr
    assert f"The first scheduled message comes at {ran.data['next_scheduled_at']}." in ran.stderr
    again = replicated(*consume, "-o", "json")
    assert (again.code, again.data["second_copies_out"], again.data["scheduled"]) == (0, 0, 1), again
    assert f"1 message of {QUEUE} will come later." in again.stderr


def test_a_short_soak(tmp_path: Path) -> None:
    """Real consumers, kill -9, regions that go dark and slow: `python -m tests.soak.replicate` is the long form."""
    outcome = soak(Plan(messages=200, sessions=20, seed=11, trouble_every=1.5, troubles=5, limit=100), tmp_path)
    assert outcome.wrong == [], (tmp_path / "consumers.log").read_text()[-2_000:]
    assert outcome.processed == 200
    assert outcome.kills + outcome.dark + outcome.slow >= 2
