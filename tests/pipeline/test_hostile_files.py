"""Archives, ledgers of replays and drained files that come from elsewhere, read without Spark."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.core.errors import SbpairError, UsageError
from sbpair.core.message import Received
from sbpair.pipeline.errors import ArchiveError
from sbpair.pipeline.files import vacuum
from sbpair.pipeline.follow import import_drained
from sbpair.pipeline.manifest import ArchiveFile, Commit, Covered, LocalStore, append
from sbpair.pipeline.rows import arrow_schema, message_row, to_batch
from sbpair.pipeline.spans import NumberRange
from sbpair.pipeline.tables import LocalTables
from sbpair.runtime.transfer.ledger import outcomes_in
from tests.core.test_fuzz import BACKLOG, ODD
from tests.hostile import bounded, damaged, json_bytes, mutated, tame, within

FILE = ArchiveFile("data/a.parquet", "shop", "q", False, "2026-11-01", 10, 1000, 1, 10, 5, 9)
COMMIT = json.loads(Commit(1.5, "run", added=(FILE,), covered=(Covered("shop", "q", False, 1, 10, 9),)).to_json())


@bounded(150)
@given(mutated(COMMIT).map(json_bytes) | damaged(json_bytes(COMMIT)) | st.binary(max_size=60))
def test_a_commit_is_read_or_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "_commits" / "00000001.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    manifest = tame(LocalStore(tmp_path).manifest, ArchiveError)
    if not isinstance(manifest, ArchiveError):
        assert manifest.rows is not None
        assert manifest.covered_of("shop")(NumberRange("q", False, 1, 10)) is not None


@pytest.mark.parametrize("path", ["../precious", "data/../../precious", "/etc/passwd", "", 5, "data/\x00"])
@pytest.mark.parametrize("place", ["added", "removed"])
def test_an_archive_names_no_file_outside_of_it(tmp_path: Path, path: Any, place: str) -> None:
    document = json.loads(json.dumps(COMMIT))
    document[place] = [asdict(FILE) | {"path": path}] if place == "added" else [path]
    folder = tmp_path / "_commits"
    folder.mkdir()
    (folder / "00000001.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ArchiveError, match="not a commit of an archive"):
        LocalStore(tmp_path).manifest()


@pytest.mark.parametrize("link", ["data", "data/below", "data/below/precious"])
def test_what_an_archive_links_to_is_never_deleted(tmp_path: Path, link: str) -> None:
    """A manifest that names none of them, in a folder whose links lead to old files of its reader."""
    elsewhere, archive = tmp_path / "documents", tmp_path / "archive"
    (elsewhere / "year").mkdir(parents=True)
    precious = [elsewhere / "precious", elsewhere / "year" / "precious"]
    for one in precious:
        one.write_text("mine", encoding="utf-8")
        os.utime(one, (0, 0))
    store = LocalStore(archive)
    append(store, Commit(0.0, "run", added=(FILE,), removed=("data/year/precious", "data/below/precious")))
    (archive / link).parent.mkdir(parents=True, exist_ok=True)
    (archive / link).symlink_to(precious[0] if link.endswith("precious") else elsewhere)
    if link == "data":
        with pytest.raises(ArchiveError, match="is a link"):
            vacuum(store, now=4e9)
    else:
        vacuum(store, now=4e9)
    assert [one.read_text(encoding="utf-8") for one in precious] == ["mine", "mine"]


SENT = {
    "queue": "q",
    "dead_letter": False,
    "sequence_number": 7,
    "enqueued_at_ms": 5,
    "message_id": "order-1",
    "session_id": None,
    "destination": "orders",
    "digest": "AAAA",
    "outcome": "forwarded",
    "time": "2026-11-01T00:00:00Z",
    "attempts": 1,
    "reason": "",
}


@bounded(150)
@given(damaged((json_bytes(SENT) + b"\n") * 2) | mutated(SENT).map(lambda line: json_bytes(line) + b"\n"))
def test_a_line_of_a_replay_is_read_or_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "run-00000-0-a.jsonl"
    path.write_bytes(data)
    tame(lambda: set(outcomes_in(path)), UsageError)


DRAINED = {
    "queue": "contoso/x-servicebus-transfer/0",
    "sequence_number": 7,
    "message_id": "order-1",
    "enqueued_at": 1_790_000_000.5,
    "destination": "orders",
    "payload_base64": "AFNwwAYFQEBAQEAAU3WgAXg=",
}


@bounded(80)
@given(
    damaged((json_bytes(DRAINED) + b"\n") * 2)
    | mutated(DRAINED).map(lambda line: json_bytes(line) + b"\n")
    | st.just(b"[" * 100_000 + b"\n")
)
def test_a_drained_file_is_taken_in_or_named(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("drained")
    file = folder / "backlog.jsonl"
    file.write_bytes(data)
    with within(seconds=10):
        tame(lambda: import_drained(LocalStore(folder / "archive"), "shop", file), (UsageError, ArchiveError))
    assert {path.name for path in folder.iterdir()} <= {"backlog.jsonl", "archive", "unsent"}


@bounded(40)
@given(st.lists(damaged(json_bytes(DRAINED)).map(lambda line: line.replace(b"\n", b"")) | st.none(), max_size=6))
def test_a_line_without_a_message_is_kept_and_the_others_are_taken_in(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes | None]
) -> None:
    """None stands for a line with a message."""
    folder = tmp_path_factory.mktemp("drained")
    file = folder / "backlog.jsonl"
    whole = [
        json_bytes(DRAINED | {"sequence_number": number}) if line is None else line
        for number, line in enumerate([None, *lines], 1)
    ]
    file.write_bytes(b"".join(line + b"\n" for line in whole))
    added = import_drained(LocalStore(folder / "archive"), "shop", file)
    assert added.rows == len(whole) - added.unreadable
    kept = b"".join(path.read_bytes() for path in added.unsent)
    assert kept == b"".join(whole[line - 1] + b"\n" for line in added.lines)
    assert not {*added.lines} & {number for number, line in enumerate([None, *lines], 1) if line is None}


@bounded(150)
@given(damaged(BACKLOG), st.integers(0, 2**63 - 1), st.sampled_from([None, 0.0, 1e300, -1e300, 1.79e9]))
def test_a_message_of_any_bytes_is_a_row_of_an_archive(payload: bytes, number: int, at: float | None) -> None:
    received = Received(payload=payload, sequence_number=number, source="q/$deadletterqueue", enqueued_at=at)
    assert to_batch([message_row("shop", received)], arrow_schema()).num_rows == 1


@bounded(80)
@given(header=st.lists(ODD, max_size=5), application=st.dictionaries(st.text(max_size=3), ODD, max_size=3), value=ODD)
def test_a_message_with_fields_of_any_type_is_a_row_of_an_archive(header: Any, application: Any, value: Any) -> None:
    from sbpair.amqp import sections

    payload = sections.build(header=header, application_properties=application or None, value=value)
    received = Received(payload=payload, sequence_number=1, source="q", enqueued_at=1.0)
    assert to_batch([message_row("shop", received)], arrow_schema()).num_rows == 1


def test_a_folder_in_place_of_a_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SbpairError):
        import_drained(LocalStore(tmp_path / "archive"), "shop", tmp_path)


@pytest.mark.parametrize("odd", [{"enqueued_at_ms": 2**70}, {"attempts": 2**40}, {"reason": "\ud800"}])
def test_a_value_that_no_column_takes_is_not_there_and_its_line_is(tmp_path: Path, odd: dict[str, Any]) -> None:
    line = {"queue": "q", "sequence_number": 1, "enqueued_at_ms": 5, "outcome": "taken", "reason": "", "attempts": 2}
    (tmp_path / "run-00000-a.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps(line | odd)}\n")
    tables = LocalTables()
    tables.ledgers("known", [str(tmp_path)])
    rows = tables.query("select enqueued_at_ms, attempts, reason from known", "Reading")
    (name,) = odd
    assert [row[name] for row in rows] == [line[name], 1 if name == "attempts" else None]
