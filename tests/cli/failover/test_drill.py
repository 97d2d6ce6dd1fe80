"""`sbpair drill` as the real process: proof, history, formats, every fault, and a kill at every step."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sbpair.cli.failover.drill import FAULTS
from sbpair.engine.faults import FaultKind, FaultRule, Faults
from tests.cli.process import Sbpair
from tests.cli.screens import answer
from tests.waiting import LIMIT_SECONDS

QUICK = ("--failover-interval", "0", "--ping-interval", "1s", "--messages", "16")
SLOW = ("--failover-interval", "60s", "--messages", "16")
"""Senders of such a drill get errors for a minute: long enough to be killed among them."""


@pytest.fixture(scope="module")
def pair(provisioned: Sbpair) -> Sbpair:
    """`local` with its backlog queues and a queue."""
    provisioned.make_queue("orders")
    return provisioned


def entities(runner: Sbpair) -> list[str]:
    both = (runner("entity", "list", "--namespace", f"local-{side}", "-o", "json") for side in ("primary", "secondary"))
    return [one["path"] for ran in both for one in ran.data["entities"]]


def of_drills(runner: Sbpair) -> list[str]:
    return [path for path in entities(runner) if path.startswith("sbpair-drill-")]


def test_it_proves_without_a_trace_and_a_history_has_it(pair: Sbpair) -> None:
    before = entities(pair)
    drill = ("drill", "local", "orders", *QUICK, "--history", "drills")
    ran = pair(*drill, "--yes", "-o", "json")
    assert ran.code == 0, ran
    assert ran.data["proved"] is True
    assert ran.data["findings"] == []
    assert entities(pair) == before
    again = pair(*drill, "-o", "nagios")
    assert again.code == 0, again
    assert again.stdout.startswith(
        "SBPAIR OK - PROVED: each accepted message arrived once, unchanged, sessions in order."
    )
    assert "sbpair_drill_divert_seconds" in again.stdout
    assert "the median was" in pair(*drill).stderr
    (history,) = (pair.home / "drills").iterdir()
    assert len(history.read_text(encoding="utf-8").splitlines()) == 3
    lines = [line for line in pair.operations if line["command"] == "drill"]
    assert {line["action"] for line in lines} == {"create", "delete"}


def test_on_a_terminal_it_asks_and_a_no_creates_nothing(pair: Sbpair) -> None:
    screen = answer(pair, "drill", "local", "orders", *QUICK, question="[y/N]", typed="n")
    assert screen.code == 2, screen
    assert "1 entity on local-primary and 3 entities on local-secondary for a drill" in " ".join(screen.shown.split())
    assert "Nothing was created." in screen.shown
    assert of_drills(pair) == []


def test_a_dry_run_says_what_it_would_create_and_what_it_costs(pair: Sbpair) -> None:
    ran = pair("drill", "local", "orders", "--dry-run")
    assert ran.code == 5, ran
    assert {row["like"] for row in ran.records} >= {"orders", "local-primary/x-servicebus-transfer/0"}
    for words in ("4 entities would be created", "throttling credits", "Nothing was changed."):
        assert words in ran.stderr, ran.stderr
    assert of_drills(pair) == []


def started(runner: Sbpair, *more: str) -> "subprocess.Popen[str]":
    return runner.begin("drill", "local", "orders", "--yes", *more)


def wait_for(process: "subprocess.Popen[str]", words: str) -> None:
    assert process.stderr is not None
    seen = []
    while words not in (line := process.stderr.readline()):
        seen.append(line)
        assert line, seen


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_removes_what_was_created(pair: Sbpair, number: int, code: int) -> None:
    process = started(pair, *SLOW)
    wait_for(process, "Could not send to sbpair-drill-")
    assert len(of_drills(pair)) == 4
    process.send_signal(number)
    _, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == code, errors
    assert "The drill was stopped before its end. All that it created is removed." in errors
    assert "Traceback" not in errors
    assert of_drills(pair) == []


def log_has(runner: Sbpair, action: str, count: int) -> Callable[["subprocess.Popen[str]"], None]:
    def lines() -> int:
        return sum(one["command"] == "drill" and one["action"] == action for one in runner.operations_so_far)

    def wait(process: "subprocess.Popen[str]") -> None:
        begun = lines()
        while process.poll() is None:
            if lines() >= begun + count:
                return
        raise AssertionError(process.communicate())

    return wait


def test_a_killed_drill_is_cleaned_up_by_the_next_at_every_step(fresh: Sbpair) -> None:
    """Each run finds what the one before has left; the last keeps an entity that holds a stranger's message."""
    fresh("provision", "local", "--yes")
    fresh.make_queue("orders")
    steps: list[tuple[tuple[str, ...], Callable[[subprocess.Popen[str]], None]]] = [
        (SLOW, log_has(fresh, "create", 1)),
        (SLOW, log_has(fresh, "create", 3)),
        (SLOW, lambda process: wait_for(process, "Could not send to sbpair-drill-")),
        (QUICK, lambda process: wait_for(process, "FAILED OVER")),
        (QUICK, lambda process: wait_for(process, "FAILED BACK")),
    ]
    runs = set()
    for options, wait in steps:
        process = started(fresh, *options)
        wait(process)
        process.kill()
        process.communicate(timeout=LIMIT_SECONDS)
        left = of_drills(fresh)
        assert left, options
        assert len({path.split("/")[0] for path in left}) == 1, "the run before it had not been cleaned up"
        runs |= {path.split("/")[0] for path in left}
    assert len(runs) == len(steps)
    (shadow,) = (path for path in of_drills(fresh) if path.endswith("/orders"))
    assert fresh("send", shadow, "--namespace", "local-primary", stdin="a stranger's\n").code == 0
    ran = fresh("drill", "local", "orders", "--yes", *QUICK, "-o", "json")
    assert ran.code == 3, ran
    assert ran.data["proved"] is True
    (row,) = ran.data["findings"]
    assert (row["check"], row["subject"]) == ("not removed", f"primary {shadow}")
    assert of_drills(fresh) == [shadow]
    assert "sbpair entity delete local-primary:" in ran.stderr


def test_what_another_machine_began_is_left_alone(pair: Sbpair) -> None:
    process = started(pair, *SLOW)
    wait_for(process, "Could not send to sbpair-drill-")
    left = of_drills(pair)
    audited = pair("audit", "local", "--check", "SBP006")
    assert audited.code == 0, "a drill that runs is nothing to raise an alarm for"
    drills = pair.home / "state" / "sbpair" / "drills"
    busy = pair("drill", "local", "orders", "--yes", *QUICK)
    assert (busy.code, "Another drill of this pair runs on this machine" in busy.stderr) == (1, True), busy
    drills.rename(drills.with_name("of-another-machine"))
    other = pair("drill", "local", "orders", "--yes", *QUICK)
    assert (other.code, "may be running until" in other.stderr) == (1, True), other
    assert of_drills(pair) == left
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT_SECONDS)
    assert of_drills(pair) == []


# On embedded namespaces.


def test_every_fault_of_the_matrix_is_one() -> None:
    rules = {name: Faults.parse(spec) for name, (spec, _) in FAULTS.items() if spec}
    assert all(isinstance(rule, FaultRule) for rule in rules.values())
    assert {rule.kind.value for rule in rules.values()} == set(rules) <= {kind.value for kind in FaultKind}


def test_the_matrix_is_proved(tmp_path: Path) -> None:
    runner = Sbpair(tmp_path)
    faults = ("disabled", "quota", "delay", "unauthorized")
    chosen = [word for name in faults for word in ("--fault", name)]
    ran = runner("drill", "--embedded", "--messages", "16", *chosen, "-o", "json")
    assert ran.code == 0, ran
    drills = ran.data["entities"]
    assert [one["outage"] for one in drills[::2]] == list(faults)
    assert {one["verdict"] for one in drills} == {"proved"}
    assert all((one["diverted"] > 0) == (one["expects"] == "diverted") for one in drills)
    assert not (runner.home / "state").exists() or not list((runner.home / "state").rglob("*emulator*"))


def test_a_signal_in_an_outage_of_embedded_namespaces_removes_all_as_well(tmp_path: Path) -> None:
    process = Sbpair(tmp_path).begin("drill", "--embedded", "--messages", "16", "--fault", "disabled")
    wait_for(process, "FAILED OVER")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 130, errors
    assert "The drill was stopped before its end. All that it created is removed." in errors


def test_a_fault_that_does_not_do_what_is_expected_is_not_proved(tmp_path: Path) -> None:
    script = (
        "import sbpair.cli.failover.drill as drill\n"
        "from sbpair.core.inspection.drilled import Reaction\n"
        "from sbpair.cli.main import main\n"
        "drill.FAULTS = {'delay': ('delay:rtt=10ms', Reaction.DIVERTED)}\n"
        "main(['drill', '--embedded', '--messages', '8', '-o', 'json'])\n"
    )
    runner = Sbpair(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=runner.variables(),
        cwd=runner.home,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 1, done
    document = json.loads(done.stdout)
    assert {one["verdict"] for one in document["data"]["entities"]} == {"failed"}
    assert "NOT PROVED: orders (delay)" in done.stderr
