"""An archive that is a Delta table as well: each of its rows once, whoever publishes it, whenever and however often."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sbpair.pipeline.archive import ArchiveRequest
from sbpair.pipeline.delta import APPLICATION, LOG, is_delta, publish
from sbpair.pipeline.errors import ArchiveError
from sbpair.pipeline.files import UnitFiles, compact
from sbpair.pipeline.follow import FollowRequest, follow
from sbpair.pipeline.manifest import Commit, LocalStore, append
from sbpair.pipeline.rows import MESSAGE_COLUMNS
from sbpair.pipeline.spans import NumberRange
from tests.pipeline.stage import Stage, backlog, messages
from tests.pipeline.test_follow import never

if TYPE_CHECKING:
    from sbpair.pipeline.spark.session import StartedSpark

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed: pip install 'sbpair[delta]'")

AWKWARD = "shop weu/x-100%/0"
"""A queue whose folder has characters that a Delta log has to escape."""


def add(store: LocalStore, *numbers: int) -> None:
    """One commit with a file of messages that have these numbers."""
    known = {"pair": "shop", "queue": AWKWARD, "dead_letter": False, "state": "active", "payload": b"message"}
    rows = [
        known | {"sequence_number": one, "enqueued_at": one * 1_000_000, "message_id": f"m-{one}"} for one in numbers
    ]
    with (files := UnitFiles(store.root, "run", "shop", NumberRange(AWKWARD, False, min(numbers), max(numbers)))):
        files.add([tuple(row.get(name) for name, *_ in MESSAGE_COLUMNS) for row in rows])
    append(store, Commit(time.time(), "run", added=tuple(files.written)))


def table(store: LocalStore) -> Any:
    return deltalake.DeltaTable(store.uri)


def rows_in(store: LocalStore) -> Counter[str]:
    """Message ids of the table, with all columns read."""
    return Counter(table(store).to_pyarrow_table()["message_id"].to_pylist())


def once(*numbers: int) -> Counter[str]:
    return Counter(f"m-{one}" for one in numbers)


def test_the_table_follows_the_manifest_and_says_how_far_it_came(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "archive")
    add(store, 1, 2)
    assert publish(store) == 0
    assert not is_delta(store)
    (store.root / LOG).mkdir()  # as a kill leaves it before the table's first commit
    assert (publish(store), publish(store)) == (1, 0)
    add(store, 3)
    add(store, 4, 5)
    assert rows_in(store) == once(1, 2)
    assert (publish(store), publish(store)) == (2, 0)  # it stays a table
    assert rows_in(store) == once(1, 2, 3, 4, 5)
    assert table(store).transaction_version(APPLICATION) == 3
    payloads = table(store).to_pyarrow_table(columns=["payload"])["payload"].to_pylist()
    assert payloads == [b"message"] * 5


def test_joined_files_are_no_change_of_data(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "archive")
    for number in range(8):
        add(store, number)
    assert publish(store, wanted=True) == 8
    add(store, 8)
    assert compact(store, None, "joined") == 9  # type: ignore[arg-type]
    assert publish(store) == 2
    assert rows_in(store) == once(*range(9))
    assert len(table(store).file_uris()) == len(store.manifest().files) == 1
    last = sorted((store.root / LOG).glob("*.json"))[-1].read_text()
    assert '"dataChange":true' not in last
    assert last.count('"dataChange":false') == 10
    assert publish(store) == 0


def test_two_that_publish_at_once_put_nothing_into_it_twice(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "archive")
    add(store, 0)
    publish(store, wanted=True)
    for number in range(1, 13):
        add(store, number)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: publish(store), range(2)))
    assert rows_in(store) == once(*range(13))


def test_a_log_that_is_none_is_told(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "archive")
    add(store, 1)
    (store.root / LOG).mkdir()
    (store.root / LOG / f"{0:020d}.json").write_text("no log")
    with pytest.raises(ArchiveError, match="Delta log"):
        publish(store)


@pytest.mark.spark
def test_a_followed_archive_is_a_table_and_a_crash_before_the_table_is_made_up_for(
    session: "StartedSpark", stage: Stage
) -> None:
    stage.divert(messages(20, sessions=3))
    stage.archive(session)
    archiving = ArchiveRequest(stage.pair, stage.archive_path, delta=True)
    # What is archived is not in a table yet, as after a kill between the two; nothing of it needs Spark.
    follow(never, FollowRequest(archiving, every_seconds=0.1, for_seconds=0.0))
    store = LocalStore(Path(stage.archive_path))
    assert rows_in(store) == once(*range(20))
    stage.divert(messages(5, prefix="later"), queue=1)
    assert stage.archive(session, take=True).settled == 25  # without being asked for a table
    assert rows_in(store) == once(*range(20)) + Counter(f"later-{number}" for number in range(5))
    queues = Counter(table(store).to_pyarrow_table(columns=["queue"])["queue"].to_pylist())
    assert queues == {backlog(0): 20, backlog(1): 5}
