"""Executors killed, tasks run again, connections cut while messages are archived, taken, replayed: nothing is lost."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from sbpair.core.rewrite import compose
from sbpair.pipeline.errors import ArchiveError
from sbpair.pipeline.manifest import LocalStore
from sbpair.pipeline.reports import ReconcileReport
from sbpair.pipeline.spark.session import StartedSpark
from sbpair.runtime.transfer.ledger import outcomes_in
from tests.pipeline.processes import kill_python_workers, meanwhile
from tests.pipeline.stage import QUEUES, Stage, backlog, messages, rows_in

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes by /proc"),
]

EACH = 120


def fill(stage: Stage) -> set[str]:
    for queue in range(QUEUES):
        stage.divert(messages(EACH, prefix=f"q{queue}", sessions=4), queue=queue)
    return {f"q{queue}-{number}" for queue in range(QUEUES) for number in range(EACH)}


def ids_in(session: StartedSpark, stage: Stage) -> list[str]:
    return [row["message_id"] for row in rows_in(session, stage.archive_path)]


def reconciled(session: StartedSpark, stage: Stage) -> ReconcileReport:
    return stage.reconcile(session, [stage.archive_path], [str(stage.ledger)])


def sent_lines(stage: Stage) -> int:
    return sum(1 for path in stage.ledger.glob("*.jsonl") for _ in outcomes_in(path))


def test_workers_killed_while_archiving(session: StartedSpark, stage: Stage) -> None:
    sent = fill(stage)
    stage.emulator.faults("shop-neu").add("delay:rtt=60ms")
    data = stage.folder / "archive" / "data"
    with meanwhile(lambda: any(data.rglob("*.parquet")), kill_python_workers) as killed:
        report = stage.archive(session)
    assert killed[0] > 0  # type: ignore[operator]
    assert report.retried > 0
    found = ids_in(session, stage)
    assert (len(found), set(found)) == (len(sent), sent)
    assert not [path for path in data.rglob("*") if path.is_file() and path.name.startswith(".")] or report.retried


def test_workers_killed_while_completing_what_was_taken(session: StartedSpark, stage: Stage) -> None:
    sent = fill(stage)
    stage.archive(session)
    for queue in range(QUEUES):
        stage.emulator.faults("shop-neu").add(f"expire-locks:entity={backlog(queue)},lock=3s")
    stage.emulator.faults("shop-neu").add("delay:rtt=40ms")

    with meanwhile(lambda: stage.active_in_backlog() < len(sent), kill_python_workers) as killed:
        report = stage.archive(session, take=True)
    assert killed[0] > 0  # type: ignore[operator]
    assert report.left == {}
    stage.emulator.faults("shop-neu").clear()
    assert stage.in_backlog() == 0
    found = ids_in(session, stage)
    assert (len(found), set(found)) == (len(sent), sent)


def test_workers_killed_while_replaying_send_nothing_twice_that_the_ledger_has(
    session: StartedSpark, stage: Stage
) -> None:
    sent = fill(stage)
    stage.archive(session)
    stage.emulator.faults("shop-weu").add("delay:rtt=60ms")
    before: set[tuple[object, ...]] = set()

    def strike() -> int:
        killed = kill_python_workers()
        before.update(key for path in stage.ledger.glob("*.jsonl") for key, _ in outcomes_in(path))
        return killed

    with meanwhile(lambda: sent_lines(stage) > 20, strike) as killed:
        report = stage.replay(session, rate=300.0)
    assert killed[0] > 0  # type: ignore[operator]
    assert report.skipped_by_retry > 0
    arrived = [one.message_id or "" for one in stage.at_home()]
    assert set(arrived) == sent
    in_ledger = {(line[0], line[1]) for line in before}
    ids = {f"q{backlog_number(str(queue))}-{int(str(number)) - 1}" for queue, number in in_ledger}
    assert [one for one in ids if arrived.count(one) != 1] == []
    after = reconciled(session, stage)
    assert (after.verdicts, after.findings) == ({"ok": len(sent)}, 0)


def backlog_number(queue: str) -> int:
    return int(queue.rpartition("/")[2])


def test_connections_cut_all_along(session: StartedSpark, stage: Stage) -> None:
    sent = fill(stage)
    cuts = ("drop:op=management,every=9", "drop:op=settle,every=70", "drop:op=receive,every=80")
    for cut in cuts:
        stage.emulator.faults("shop-neu").add(cut + ",count=4")
    for queue in range(QUEUES):
        stage.emulator.faults("shop-neu").add(f"expire-locks:entity={backlog(queue)},lock=3s")
    report = stage.archive(session, take=True)
    stage.emulator.faults("shop-neu").clear()
    assert report.left == {}
    assert stage.in_backlog() == 0
    found = ids_in(session, stage)
    assert (len(found), set(found)) == (len(sent), sent)
    stage.emulator.faults("shop-weu").add("drop:op=send,every=3,count=3")
    stage.replay(session)
    stage.emulator.faults("shop-weu").clear()
    assert {one.message_id for one in stage.at_home()} == sent
    after = reconciled(session, stage)
    assert (after.verdicts, after.findings) == ({"ok": len(sent)}, 0)


def test_a_replay_that_breaks_down_goes_on_where_it_stopped(session: StartedSpark, stage: Stage) -> None:
    sent = fill(stage)
    stage.archive(session)
    stage.emulator.faults("shop-weu").add("unauthorized:op=send,after=2")
    with pytest.raises(Exception, match="orders"):
        stage.replay(session, rate=100.0)
    done = sent_lines(stage)
    assert 0 < done < len(sent)
    stage.emulator.faults("shop-weu").clear()
    report = stage.replay(session)
    assert report.forwarded == len(sent) - report.already_done
    assert report.already_done >= done
    arrived = [one.message_id for one in stage.at_home()]
    assert (len(arrived), set(arrived)) == (len(sent), sent)
    assert reconciled(session, stage).findings == 0
    assert LocalStore(stage.folder / "archive").manifest().rows == len(sent)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A file system of a size (`512k`), which grows when it is asked for again."""
    folder = tmp_path / "small"
    folder.mkdir()

    def sized(size: str) -> Path:
        again = "remount," if folder.is_mount() else ""
        asked = ["mount", "-t", "tmpfs", "-o", f"{again}size={size}", "tmpfs", str(folder)]
        mounted = subprocess.run(asked, capture_output=True, text=True)
        if mounted.returncode:
            pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
        return folder

    try:
        yield sized
    finally:
        if folder.is_mount():
            subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_under_the_archive(session: StartedSpark, stage: Stage, small_disk: Callable[[str], Path]) -> None:
    """Rounds of 100 messages of 2 KB: the first ones find room and are completed, one does not and stays queued."""
    bodies = Random(1)
    sent = [compose(body=bodies.randbytes(2_000), message_id=f"m-{number}") for number in range(500)]
    stage.divert(sent)
    disk = small_disk("600k")
    into = str(disk / "archive")
    with pytest.raises(ArchiveError, match="Cannot write") as raised:
        stage.archive(session, into=into, take=True, round_messages=100)
    assert "No space left" in raised.value.message
    left = {one.message_id for one in stage.browse("secondary", backlog(0))}
    archived = LocalStore(disk / "archive").manifest()
    assert len(left) == 500 - archived.rows < 500
    assert list((disk / "archive").rglob(".*")) == []
    small_disk("8m")
    report = stage.archive(session, into=into, take=True, round_messages=100)
    assert (report.rows, report.settled) == (len(left), len(left))
    assert stage.in_backlog() == 0
    found = [row["message_id"] for row in rows_in(session, into)]
    assert sorted(found) == sorted(f"m-{number}" for number in range(500))
