"""`sbpair status` on two embedded namespaces: what it says, rates, watching, signals, trouble."""

import json
import re
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.cli.process import Sbpair
from tests.cli.screens import show
from tests.waiting import LIMIT_SECONDS

QUEUE = "local-primary/x-servicebus-transfer/{}"
SEND = """
import asyncio, sys
from sbpair.connect import open_sides
from sbpair.core.rewrite import compose, for_backlog
from sbpair.settings import load
async def main(queue, count):
    async with open_sides(load().pair('local')) as sides:
        sender = sides.secondary.sender(queue)
        for number in range(count):
            await sender.send([for_backlog(compose(body='x', message_id=str(number)), 'orders')], timeout_seconds=30)
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def provisioned(local: Sbpair) -> Sbpair:
    assert local("provision", "local").code == 0
    done = subprocess.run(
        [local.command(())[0], "-c", SEND, QUEUE.format(3), "7"],
        env=local.variables(),
        cwd=local.home,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0
    return local


def test_both_sides_backlog_age_and_what_a_drain_takes(provisioned: Sbpair) -> None:
    ran = provisioned("status", "local", "-o", "json")
    assert ran.code == 0, ran
    assert (ran.data["primary"]["state"], ran.data["secondary"]["state"]) == ("reachable", "reachable")
    assert ran.data["primary"]["tier"] == "Standard"
    assert ran.data["active"] == 7
    assert {queue["queue"]: queue["active"] for queue in ran.data["queues"] if queue["active"]} == {QUEUE.format(3): 7}
    assert ran.data["rate_per_second"] == 0
    assert 0 < ran.data["oldest_age_seconds"] < 600
    assert ran.data["drain"]["message_operations"] == 21


def test_a_pipe_gets_rows_and_a_file_the_metrics(provisioned: Sbpair) -> None:
    rows = provisioned("status", "local", "--interval", "0").records
    assert [row["what"] for row in rows] == ["primary", "secondary", *["backlog queue"] * 10]
    assert {row["state"] for row in rows} == {"reachable", "empty", "waiting"}
    text = provisioned("status", "local", "--interval", "0", "-o", "prometheus").stdout
    assert 'sbpair_backlog_active_messages{pair="local"} 7\n' in text
    assert 'sbpair_namespace_up{pair="local",side="primary"} 1\n' in text


def test_watching_writes_a_line_a_look(provisioned: Sbpair) -> None:
    ran = provisioned("status", "local", "--watch", "--interval", "200ms", "--count", "3")
    assert ran.code == 0
    lines = ran.stdout.splitlines()
    assert len(lines) == 3
    assert " local primary=reachable secondary=reachable messages=7 dead=0 oldest=" in lines[0]
    assert lines[0].endswith("rate=unknown")
    assert lines[2].endswith("rate=+0.0/s")
    records = provisioned("status", "local", "--watch", "--interval", "200ms", "--count", "2", "-o", "jsonl").stdout
    assert [json.loads(line)["active"] for line in records.splitlines()] == [7, 7]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_watching(provisioned: Sbpair, number: signal.Signals, code: int) -> None:
    process = provisioned.begin("status", "local", "--watch", "--interval", "10s")
    assert process.stdout is not None
    assert "messages=7" in process.stdout.readline()
    process.send_signal(number)
    out, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, out) == (code, "")


def test_a_terminal_shows_each_look_in_place(provisioned: Sbpair) -> None:
    watch = ("status", "local", "--watch", "--interval", "200ms", "--count", "2")
    screen = show(provisioned, *watch, columns=150)
    assert screen.code == 0
    assert screen.shown.count("7 messages are waiting in 1 queue") >= 2
    assert "\x1b[1A" in screen.shown
    assert "\u2588" in screen.shown
    assert re.search(r"local, \d\d:\d\d:\d\d UTC, every 200ms; Ctrl-C leaves", screen.shown)


def test_ten_queues_with_their_total_fit_a_screen_of_24_lines(provisioned: Sbpair) -> None:
    screen = show(provisioned, "status", "local", "--interval", "0", columns=80)
    # On a busy machine a line says what is waited for; it goes before the screen, which is what has to fit.
    lines = [*screen.lines, *(line for line in screen.talk.splitlines() if not line.startswith("No answer for "))]
    assert len(lines) < 24, lines
    assert max(map(len, lines)) <= 80
    rows = {line.split()[0]: line.split() for line in lines if line}
    assert set(map(str, range(10))) <= set(rows)
    assert rows["3"][1:3] == ["waiting", "7"]
    assert rows["total"][1] == "7"
    assert rows["primary"][1:3] == ["local-primary", "reachable"]
    assert lines[0] == "local"
    assert {"32", "33"} <= set(screen.colours), "what is empty is green, what waits yellow"


def test_options_that_do_not_go_together(provisioned: Sbpair) -> None:
    assert provisioned("status", "local", "--count", "3").code == 2
    assert provisioned("status", "local", "--watch", "-o", "yaml").code == 2


def test_an_unreachable_side_is_6_and_the_other_one_is_shown(
    provisioned: Sbpair, fault: Callable[[str, str], None]
) -> None:
    fault("local-primary", "dark")
    ran = provisioned("status", "local", "--interval", "0", "--timeout", "3s", "-o", "json")
    assert ran.code == 6
    assert (ran.data["primary"]["state"], ran.data["secondary"]["state"]) == ("unreachable", "reachable")
    assert ran.data["active"] == 7
    assert all(command in ran.data["primary"]["hint"] for command in ("sbpair emulator", "sbpair ping"))


def test_without_manage_messages_are_counted_by_browsing(
    provisioned: Sbpair, fault: Callable[[str, str], None]
) -> None:
    fault("local-secondary", "unauthorized:operation=http")
    ran = provisioned("status", "local", "--interval", "0", "-o", "json")
    assert (ran.code, ran.data["secondary"]["state"], ran.data["queues_found_by"]) == (0, "limited", "probed")
    assert ran.data["active"] == 7
    assert ran.data["oldest_age_seconds"] > 0


def test_a_refused_credential_is_4_and_nothing_is_called_empty(
    provisioned: Sbpair, fault: Callable[[str, str], None]
) -> None:
    fault("local-secondary", "unauthorized:operation=http")
    fault("local-secondary", "unauthorized:operation=attach")
    ran = provisioned("status", "local", "--interval", "0", "-o", "json")
    assert (ran.code, ran.data["secondary"]["state"], ran.data["verdict"]) == (4, "denied", "unknown"), ran
    assert (ran.data["confirmed_empty"], ran.data["active"]) == (False, None)
    assert {queue["state"] for queue in ran.data["queues"]} == {"unknown"}
    assert "sbpair doctor local" in ran.data["next_commands"]


def test_no_backlog_queue_at_all_is_a_finding(fresh: Sbpair) -> None:
    ran = fresh("status", "local", "--interval", "0", "-o", "json")
    assert (ran.code, ran.data["verdict"]) == (5, "no-queues")
    assert "sbpair provision local" in fresh("status", "local", "--interval", "0").stderr
