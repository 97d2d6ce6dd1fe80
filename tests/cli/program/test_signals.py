"""Ctrl-C, SIGTERM and SIGHUP at any moment of any command that takes a while: the contract's exit code, a sentence,
nothing left behind, nothing lost."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import Sbpair, listens_to_sigterm
from tests.waiting import LIMIT_SECONDS, until

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/net/tcp").exists(), reason="needs /proc to see what a process does"
)
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]
ESTABLISHED = "01"
LOCK_SECONDS = 45
"""Less than the lock of a backlog queue lasts, more than a drain of some messages takes on a busy machine."""

PUT = """\
import asyncio, sys
from sbpair.connect import open_sides
from sbpair.core.rewrite import compose, for_backlog
from sbpair.settings import load

async def main(count):
    async with open_sides(load().pair("local")) as sides:
        sender = sides.secondary.sender("local-primary/x-servicebus-transfer/2")
        payloads = [for_backlog(compose(message_id=f"m{number}", body="x"), "orders") for number in range(count)]
        await sender.send(payloads, timeout_seconds=30)
        await sender.close()

asyncio.run(main(int(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def home(local: Sbpair) -> Sbpair:
    """The pair `local` with its backlog queues, a queue and a replicated queue; temporary files go into its home."""
    (local.home / "tmp").mkdir()
    mine = Sbpair(local.home, {"TMPDIR": str(local.home / "tmp")})
    assert mine("provision", "local").code == 0
    mine.make_queue("orders")
    assert mine("replicate", "provision", "local", "parcels", "--journal", "sqlite:journal.db").code == 0
    return mine


def is_connected(pid: int) -> bool:
    """Whether the process has a connection to somewhere."""
    opened = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            opened.add(str(file.readlink()).removeprefix("socket:[").rstrip("]"))
        except OSError:
            continue  # closed in between
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return any(row[3] == ESTABLISHED and row[9] in opened for row in rows)


@contextmanager
def started(home: Sbpair, line: str, **options: Any) -> Iterator["subprocess.Popen[str]"]:
    """From the interpreter's start on: for signals that may come before anything is under way."""
    with ended(home.start(*line.split(), **{"stdin": subprocess.PIPE} | options)) as process:
        yield process


@contextmanager
def begun(home: Sbpair, line: str) -> Iterator["subprocess.Popen[str]"]:
    """Forked: for signals to what is under way."""
    with ended(home.begin(*line.split(), stdin=subprocess.PIPE)) as process:
        yield process


@contextmanager
def ended(process: "subprocess.Popen[str]") -> Iterator["subprocess.Popen[str]"]:
    """Until the end of the block at the latest."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def end(process: "subprocess.Popen[str]", number: signal.Signals, code: int) -> tuple[str, str]:
    """What the process wrote, after the signal has ended it in time, with the code, and in few words."""
    process.send_signal(number)
    # Without reading, which would let a process end that waits for a reader.
    until(lambda: process.poll() is not None)
    assert process.returncode == code, process.returncode
    out, err = process.communicate()
    for word in ("Traceback", "defect", "Error:", "Task ", "never retrieved", "Unclosed"):
        assert word not in out + err, (word, out, err)
    return out, err


def files(home: Sbpair) -> set[Path]:
    return {path for path in home.home.rglob("*") if path.is_file()}


def assert_nothing_left(home: Sbpair, before: set[Path], *allowed: str) -> None:
    new = {path for path in files(home) - before if path.name not in allowed}
    assert not new
    assert not list((home.home / "tmp").iterdir())


HANGING = (
    "audit local --snapshot-out saved.json",
    "audit local -o prometheus --outfile out.prom",
    "peek local -o json --outfile out.json",
    "provision local --queues 12",
    "provision local --queues 12 --plan-out plan.json",
    "cleanup local",
    "status local",
    "status local --watch",
    "doctor local",
    "ping local --until-ok --interval 100ms",
    "ping local --control-plane --count 100",
    "message show orders 1 --pair local",
    "explain orders 1 --pair local",
    "drain local",
    "drain local --dry-run",
    "syphon local --poll 1m",
    "replicate provision local fresh",
    "replicate consume local parcels --journal sqlite:journal.db --exec true",
)
"""Commands that wait for an answer while neither namespace gives one."""


@pytest.mark.parametrize(
    ("line", "number", "code"), [(line, *SIGNALS[index % 3]) for index, line in enumerate(HANGING)]
)
def test_a_signal_ends_the_wait_for_an_answer(
    home: Sbpair, fault: Callable[[str, str], None], line: str, number: signal.Signals, code: int
) -> None:
    before = files(home)
    for namespace in ("local-primary", "local-secondary"):
        fault(namespace, "silent")
    with begun(home, line) as process:
        until(lambda: is_connected(process.pid), process)
        _, err = end(process, number, code)
    said = [one for one in err.splitlines() if number.name in one]
    assert 1 <= len(said) <= 2, err
    assert "a second signal exits at once" in said[0]
    assert "Nothing was sent" not in err
    assert_nothing_left(home, before, "journal.db-wal", "journal.db-shm")


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_before_anything_is_under_way_is_a_sentence_too(
    home: Sbpair, fault: Callable[[str, str], None], number: signal.Signals, code: int
) -> None:
    before = files(home)
    for namespace in ("local-primary", "local-secondary"):
        fault(namespace, "silent")  # a busy machine may send the signal late: the audit must not have ended by then
    with started(home, "audit local") as process:
        until(lambda: listens_to_sigterm(process.pid), process)
        _, err = end(process, number, code)
    assert len(err.splitlines()) <= 2, err
    assert_nothing_left(home, before)


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_drain_that_is_stopped_can_be_continued_and_loses_nothing(
    home: Sbpair, number: signal.Signals, code: int, tmp_path: Path
) -> None:
    home.python(PUT, "60")
    there = len(waiting(home))
    ledger = tmp_path / "ledger.jsonl"
    with begun(home, f"drain local --rate 10 --ledger {ledger} -o json") as process:
        until(lambda: ledger.exists() and ledger.read_text(), process)
        out, err = end(process, number, code)
    report = json.loads(out)
    assert (report["exit_code"], report["data"]["ended_by"]) == (code, "stop")
    assert 0 < report["data"]["forwarded"] < 60
    assert report["data"]["uncompleted"] == 0
    assert sum(number.name in line for line in err.splitlines()) == 1
    again = home("drain", "local", "--ledger", str(ledger), "-o", "json")
    assert (again.code, again.data["confirmed_empty"]) == (0, True)
    assert report["data"]["forwarded"] + again.data["forwarded"] == 60
    assert len(waiting(home)) == there + 60
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.jsonl"]


def test_a_drain_under_nohup_goes_on_when_its_terminal_is_closed(home: Sbpair, tmp_path: Path) -> None:
    home.python(PUT, "40")
    ledger = tmp_path / "ledger.jsonl"
    line = f"drain local --rate 10 --ledger {ledger} --yes -o json"
    with started(home, line, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as process:
        until(lambda: ledger.exists() and ledger.read_text(), process)
        process.send_signal(signal.SIGHUP)
        out, err = process.communicate(timeout=LIMIT_SECONDS)
    report = json.loads(out)
    assert (report["exit_code"], report["data"]["forwarded"], report["data"]["confirmed_empty"]) == (0, 40, True)
    assert "SIGHUP" not in err


@pytest.mark.parametrize(("options", "ignored"), [("--rate 10", False), ("--rate 10", True), ("--processes 2", False)])
def test_a_closed_terminal_ends_a_drain_with_its_messages_settled_unless_it_ignores_that(
    home: Sbpair, tmp_path: Path, options: str, ignored: bool
) -> None:
    """The kernel sends SIGHUP to the whole session, and every write to the terminal fails from then on."""
    home.python(PUT, "60")
    ledger = tmp_path / "ledger.jsonl"
    terminal, other = pty.openpty()
    command = home.command(f"drain local {options} --ledger {ledger} --yes".split())
    # Its controlling terminal is what it opens first as the leader of a session.
    leads = "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", leads, *command],
        stdin=other,
        stdout=other,
        stderr=other,
        env=home.variables(),
        cwd=home.home,
        start_new_session=True,
        preexec_fn=(lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) if ignored else None,
    )
    try:
        os.close(other)
        until(lambda: ledger.exists() and ledger.read_text(), process)
        os.close(terminal)
        code = process.wait(LIMIT_SECONDS)
    finally:
        process.kill()
        process.wait()
    recorded = [line for line in ledger.read_text().splitlines() if '"forwarded"' in line]
    if ignored:
        assert (code, len(recorded)) == (0, 60)
    elif "--rate" in options:
        assert code == 143
        assert 0 < len(recorded) < 60
    began = time.monotonic()
    again = home("drain", "local", "--ledger", str(ledger), "-o", "json")
    assert (again.code, again.data["confirmed_empty"], again.data["already_forwarded"]) == (0, True, 0)
    assert time.monotonic() - began < LOCK_SECONDS, "no lock was left behind"


def waiting(home: Sbpair) -> list[dict[str, Any]]:
    """Messages in the queue on the primary."""
    browsed = home("peek", "local", "--side", "primary", "--entity", "orders", "--limit", "5000", "-o", "json")
    messages: list[dict[str, Any]] = browsed.data["messages"]
    return messages


@pytest.mark.parametrize(("number", "code"), SIGNALS)
@pytest.mark.parametrize(
    "line", ["send local orders -o jsonl", "replicate send local parcels --session-id s --delay 0 -o jsonl"]
)
def test_a_signal_ends_the_wait_for_more_lines(home: Sbpair, line: str, number: signal.Signals, code: int) -> None:
    with begun(home, line) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("before the signal\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["line"] == 1
        out, err = end(process, number, code)
    assert out == ""
    assert "1 accepted" in err


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_consumer_that_is_stopped_while_its_command_works_leaves_the_rest_for_the_next(
    home: Sbpair, number: signal.Signals, code: int, tmp_path: Path
) -> None:
    journal, queue = f"sqlite:{tmp_path / 'j.db'}", f"consumed-{code}"
    assert home("replicate", "provision", "local", queue).code == 0
    lines = "".join(f"{index}\n" for index in range(5))
    sent = home(
        "replicate", "send", "local", queue, "--journal", journal, "--session-id", "s", "--delay", "0", stdin=lines
    )
    assert sent.code == 0, sent
    log = tmp_path / "log"
    consume = ("replicate", "consume", "local", queue, "--journal", journal, "--lease", "2s", "--margin", "100ms")
    process = home.begin(*consume, "--exec", f"sh -c 'cat >> {log}; echo >> {log}; sleep 0.4'", "-o", "json")
    until(lambda: log.exists() and log.read_text().strip(), process)
    out, _ = end(process, number, code)
    assert json.loads(out)["exit_code"] == code
    rest = home(*consume, "--exec", f"sh -c 'cat >> {log}; echo >> {log}'", "--until-idle", "4s", "-o", "json")
    assert rest.code == 0, rest
    done = log.read_text().split()
    assert list(dict.fromkeys(done)) == ["0", "1", "2", "3", "4"]
    assert len(done) <= 6, "at most the message at work is done again"


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_provisioning_and_a_cleanup_that_are_stopped_say_what_they_have_done(
    home: Sbpair, fault: Callable[[str, str], None], number: signal.Signals, code: int
) -> None:
    """What was begun is finished, and is in the operations log."""
    known = len(home.operations)
    fault("local-secondary", "delay:rtt=300ms")
    with begun(home, "provision local --queues 26") as process:
        until(lambda: len(home.operations_so_far) > known, process)
        out, err = end(process, number, code)
    home("emulator", "fault", "clear", "local-secondary")
    assert "created" in out, "what was done is shown"
    created = [row["queue"] for row in home.operations[known:]]
    assert created
    there = home("provision", "local", "--queues", "26", "--dry-run", "-o", "json").data["plans"][0]["steps"]
    missing = {step["queue"] for step in there if step["kind"] == "create"}
    assert not missing & set(created)
    assert len(missing) + len(created) == 16, (out, err)
    known = len(home.operations)
    fault("local-secondary", "delay:rtt=100ms")
    with begun(home, "cleanup local --yes --no-input") as process:
        until(lambda: len(home.operations_so_far) > known, process)
        out, err = end(process, number, code)
    home("emulator", "fault", "clear", "local-secondary")
    assert "deleted" in out, (out, err)
    home("cleanup", "local", "--yes", "--no-input")


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_an_emulator_takes_its_files_away_but_its_keys_and_certificates(
    sbpair: Sbpair, number: signal.Signals, code: int
) -> None:
    (sbpair.home / "tmp").mkdir()
    mine = Sbpair(sbpair.home, {"TMPDIR": str(sbpair.home / "tmp")})
    before = files(mine)
    with started(mine, "emulator --port 0") as process:
        until(lambda: (sbpair.home / "state" / "sbpair" / "emulator.json").exists(), process)
        end(process, number, code)
    kept = sbpair.home / ".local" / "share" / "sbpair" / "emulator"
    assert_nothing_left(mine, before | {path for path in files(mine) if path.is_relative_to(kept)})


LOST = """\
import contextlib, signal, sys
from sbpair.cli import main, running

run = running.run

def run_after_a_lost_signal(arguments):
    with contextlib.suppress(BaseException):  # as Python's compiler does with what a handler raises
        signal.raise_signal(int(sys.argv[1]))
    return run(arguments)

running.run = run_after_a_lost_signal
main.main(sys.argv[2:])
"""


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_whose_exception_is_lost_while_modules_are_compiled_ends_it_all_the_same(
    sbpair: Sbpair, number: signal.Signals, code: int
) -> None:
    command = [sys.executable, "-c", LOST, str(int(number)), "emulator", "--port", "0"]
    done = subprocess.run(
        command, cwd=sbpair.home, env=sbpair.variables(), capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert done.returncode == code, done
    assert f"{number.name}: " in done.stderr
    assert not list((sbpair.home / "state" / "sbpair").glob("emulator*"))


CAUGHT = """\
import signal, sys
from sbpair.cli import main, running

running.run = lambda arguments: exec(f"signal.raise_signal({arguments[0]})")
main.main(sys.argv[1:])
"""


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_that_comes_while_a_dataclass_is_made_is_a_sentence_too(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """`python -m` remembers a KeyboardInterrupt that was raised in a text that `exec` ran, also when it was caught."""
    (tmp_path / "caught.py").write_text(CAUGHT)
    command = [sys.executable, "-m", "caught", str(int(number))]
    done = subprocess.run(
        command, cwd=tmp_path, env=Sbpair(tmp_path).variables(), capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr in ("Interrupted.\n", "Terminated.\n")


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_demo_takes_its_files_away_also_while_it_starts(sbpair: Sbpair, number: signal.Signals, code: int) -> None:
    (sbpair.home / "tmp").mkdir()
    mine = Sbpair(sbpair.home, {"TMPDIR": str(sbpair.home / "tmp")})
    before = files(mine)
    with started(mine, "demo") as process:
        until(lambda: list((sbpair.home / "tmp").iterdir()), process)
        end(process, number, code)
    assert_nothing_left(mine, before)
