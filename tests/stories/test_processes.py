"""`sbpair drain --processes`: what holds for one process holds for several, whichever of them ends."""

import json
import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.process import Ran
from tests.stories.test_recovery import CONFIGURED
from tests.stories.world import PRIMARY, World, advised
from tests.waiting import LIMIT_SECONDS, until

COUNT = 2400
_WORKER = b"spawn_main"
"""In the command line of a process that multiprocessing has begun."""


@pytest.fixture
def stranded(world: World) -> tuple[World, list[str]]:
    """A backlog in ten queues, with sessions, and namespaces far enough away that a drain can be met in the middle."""
    world.backlog_queues(range(CONFIGURED), lock_seconds=5)  # what a killed process holds is waited for
    world.destination("orders")
    ids = world.strand("orders", COUNT, queues=range(CONFIGURED), sessions=20, size_bytes=500)
    for side in ("primary", "secondary"):
        assert world(f"sbpair emulator fault add local-{side} delay:rtt=100ms").code == 0
    return world, ids


def ledger_of(world: World) -> Path:
    return world.home / "drain.jsonl"


def start(world: World, *more: str, **options: object) -> "subprocess.Popen[str]":
    line = ("drain", "local", "--processes", "3", "--ledger", "drain.jsonl", "-o", "json", *more)
    return world.runner.start(*line, start_new_session=True, **options)


def lines_in(ledger: Path) -> list[dict[str, object]]:
    """The lines about messages; others name batches on their way, and runs."""
    read = [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.is_file() else []
    return [line for line in read if "messages" not in line and line["queue"]]


def moving(world: World, process: "subprocess.Popen[str]") -> None:
    """Wait until some of it is moved, and most is not."""
    ledger = ledger_of(world)
    until(lambda: ledger.is_file() and ledger.read_bytes().count(b'"forwarded"') > 50, process)


def workers_of(process: "subprocess.Popen[str]") -> list[int]:
    pids = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in pids if _WORKER in Path(f"/proc/{pid}/cmdline").read_bytes()]


def check_all_there(world: World, ids: list[str], *, doubles: int) -> None:
    """Every message is there, in the order of its session, and only so many twice."""
    arrived = world.arrived("orders")
    counts = Counter(str(name) for _, name in arrived)
    assert counts.keys() == set(ids)
    assert counts.total() - len(counts) <= doubles
    first = {name: place for place, (_, name) in reversed(list(enumerate(arrived)))}
    for session in range(20):
        places = [first[name] for place, name in enumerate(ids) if place % 20 == session]
        assert places == sorted(places), session


def test_several_processes_do_what_one_does(stranded: tuple[World, list[str]]) -> None:
    world, ids = stranded
    drained = world(f"sbpair drain local --processes 3 --ledger {ledger_of(world)} -o json")
    assert drained.code == 0, drained
    data = drained.data
    # A busy machine loses locks: what comes again was sent before, and is completed as such.
    completed = data["completed"] + data["already_forwarded"]
    assert (data["forwarded"], completed, data["confirmed_empty"]) == (COUNT, COUNT, True)
    assert (data["ended_by"], data["per_destination"]) == ("empty", {"orders": COUNT})
    assert f"{COUNT:,} messages are back on local-primary. The backlog is empty: 10 queues read" in drained.stderr
    assert sorted(str(line["message_id"]) for line in lines_in(ledger_of(world))) == sorted(ids)
    check_all_there(world, ids, doubles=0)
    again = world(f"sbpair drain local --queue 3 --processes 4 --ledger {ledger_of(world)} -o json")
    assert (again.code, again.data["forwarded"], again.data["ended_by"]) == (0, 0, "empty")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_of_them_stops_them_as_one(stranded: tuple[World, list[str]], number: signal.Signals) -> None:
    world, ids = stranded
    process = start(world)
    moving(world, process)
    workers = workers_of(process)
    assert len(workers) == 3
    os.killpg(process.pid, number)  # as a terminal does on Ctrl-C, and a service manager that stops a service
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 128 + number, err
    assert err.count(f"{number.name}: stopping when nothing is in flight") == 1
    assert "Traceback" not in err
    assert "stopped by a signal" in err
    assert json.loads(out)["data"]["forwarded"] == len(lines_in(ledger_of(world))) < COUNT
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    (command,) = {one for one in advised_in(err) if one.startswith("sbpair drain")}
    assert "--processes 3" in command
    last = world(command)
    assert last.code == 0, last
    check_all_there(world, ids, doubles=0)


def advised_in(err: str) -> list[str]:
    return advised(Ran(0, "", err))


def test_one_process_is_killed_and_the_others_go_on(stranded: tuple[World, list[str]]) -> None:
    world, ids = stranded
    process = start(world)
    moving(world, process)
    os.kill(workers_of(process)[1], signal.SIGKILL)
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    data = json.loads(out)["data"]
    assert process.returncode == 3, err
    assert 3 <= len(data["failures"]) <= 4  # its queues, and those only
    assert all("was ended by SIGKILL" in str(failure) for failure in data["failures"]), data
    left = data["backlog"]["active"]
    assert 0 < left < COUNT
    assert data["forwarded"] <= COUNT
    assert "Traceback" not in err
    assert err.count("of this drain was ended by SIGKILL") == 1
    recorded = len({line["message_id"] for line in lines_in(ledger_of(world))})  # one may come twice
    last = world(f"sbpair drain local --ledger {ledger_of(world)}", timeout=200)
    assert last.code == 0, last
    check_all_there(world, ids, doubles=COUNT - recorded)


def test_the_first_process_is_killed_and_the_others_end(stranded: tuple[World, list[str]]) -> None:
    world, ids = stranded
    process = start(world)
    moving(world, process)
    workers = workers_of(process)
    process.kill()
    process.communicate(timeout=LIMIT_SECONDS)  # its pipes are theirs, too: this is the end of all
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    recorded = {str(line["message_id"]) for line in lines_in(ledger_of(world))}
    last = world(f"sbpair drain local --processes 2 --ledger {ledger_of(world)} -o json", timeout=200)
    assert last.code == 0, last
    assert {str(line["message_id"]) for line in lines_in(ledger_of(world))} == set(ids)
    assert last.data["forwarded"] <= COUNT - len(recorded), "what is recorded, or found, is not sent again"
    check_all_there(world, ids, doubles=COUNT - len(recorded))


def test_a_full_disk_under_the_ledger_ends_them_all(stranded: tuple[World, list[str]]) -> None:
    world, ids = stranded

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    process = start(world, preexec_fn=limited)
    _, err = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 1, err
    assert "There is no room for the ledger" in err
    assert "Traceback" not in err
    recorded = len({line["message_id"] for line in lines_in(ledger_of(world))})  # one may come twice
    last = world(f"sbpair drain local --ledger {ledger_of(world)} -o json", timeout=200)
    assert last.code == 0, last
    assert last.data["forwarded"] == COUNT - recorded
    check_all_there(world, ids, doubles=0)
    assert {str(line["message_id"]) for line in lines_in(ledger_of(world))} == set(ids)


def test_what_they_wait_for_is_said(world: World) -> None:
    # Somebody else holds the locks for as long as this test likes: what ends the waiting is what is said, not the time.
    world.backlog_queues(range(2), lock_seconds=300)
    world.destination("orders")
    world.strand("orders", 4, queues=[0, 1])
    queue = f"{PRIMARY}/x-servicebus-transfer/0"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, queue],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=world.runner.variables(),
        cwd=world.home,
    )
    assert holder.stdin is not None and holder.stdout is not None
    try:
        assert holder.stdout.read(1) == b"2"
        drain = world.runner.start("drain", "local", "--processes", "2", "-o", "json")
        assert drain.stderr is not None
        said = []
        for line in drain.stderr:
            said.append(line)
            if f"Waiting for 2 messages of {queue}" in line:
                break
        else:
            raise AssertionError(said)
        holder.stdin.close()
        assert holder.wait(LIMIT_SECONDS) == 0
    finally:
        holder.kill()
        holder.wait()
    out, err = drain.communicate(timeout=LIMIT_SECONDS)
    assert drain.returncode == 0, err
    assert json.loads(out)["data"]["forwarded"] == 4


HOLD = """
import asyncio, sys
from sbpair.connect import open_sides
from sbpair.core.message import Disposition
from sbpair.settings import load

async def main(path):
    async with open_sides(load().pair("local")) as sides:
        receiver = sides.secondary.receiver(path)
        held = await receiver.receive(10, wait_seconds=20)
        sys.stdout.write(str(len(held)))
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
        for one in held:
            await receiver.settle(one, Disposition.RELEASE)
        await receiver.close()

asyncio.run(main(sys.argv[1]))
"""


def test_a_filter_that_cannot_be_evaluated_ends_them_all(stranded: tuple[World, list[str]]) -> None:
    world, _ = stranded
    refused = world("""sbpair drain local --where "sys.MessageId + 1 > 1" --processes 3 -o json""")
    assert (refused.code, refused.error["code"]) == (2, "usage")
    assert "cannot be evaluated for message" in refused.error["message"]
    assert refused.error["message"].endswith("Nothing was moved.")
    assert len(world.arrived("orders")) == 0


def test_what_several_processes_cannot_keep_is_refused(world: World) -> None:
    world.backlog_queues(range(2))
    for option in ("--limit 5", "--rate 100", "--reserve 100", "--archive saved", "--until-idle 5s"):
        refused = world(f"sbpair drain local --processes 2 {option}")
        assert refused.code == 2
        assert f"{option.split()[0]} is kept by one process" in refused.stderr


def test_queues_that_cannot_be_read_are_told_as_one_process_tells_them(world: World) -> None:
    world.backlog_queues(range(3))
    world.destination("orders")
    ids = world.strand("orders", 4, queues=[0, 1])
    world.strand("orders", 2, queues=[2])
    fault = "sbpair emulator fault add local-secondary unauthorized:operation=attach"
    assert world(f"{fault},entity=*/2").code == 0
    drained = world("sbpair drain local --processes 3 -o json")
    assert drained.code == 4, drained  # that is why all is left that is left
    assert (drained.data["forwarded"], [one["queue"][-1] for one in drained.data["failures"]]) == (4, ["2"])
    assert "othing was moved" not in drained.stderr
    assert world.ids("orders") == sorted(ids)
    assert world(fault).code == 0
    several, one = world("sbpair drain local --processes 3 -o json"), world("sbpair drain local -o json")
    assert (several.code, several.error["code"]) == (one.code, one.error["code"]) == (4, "unauthorized")
    assert several.error["message"].endswith("No queue could be read; nothing was moved.")
