"""What belongs to an archive: commits that are whole or not there, and files that only they make count."""

import dataclasses
import os
import threading
from functools import partial
from pathlib import Path

import pytest

from sbpair.core.errors import UsageError
from sbpair.pipeline.errors import ArchiveError
from sbpair.pipeline.files import groups_of, joined, vacuum
from sbpair.pipeline.manifest import (
    ArchiveFile,
    Commit,
    Covered,
    LocalStore,
    Manifest,
    append,
    check_archive,
    refuse_overlap,
    together,
)
from sbpair.pipeline.spans import NumberRange

FILE = ArchiveFile("data/a.parquet", "shop", "q", False, "2026-11-01", 10, 1000, 1, 10, 5, 9)


def file(path: str, first: int, *, bytes: int = 1000, **changes: object) -> ArchiveFile:
    return dataclasses.replace(FILE, path=path, first=first, last=first + 9, bytes=bytes, **changes)  # type: ignore[arg-type]


def test_what_is_committed_is_read_back(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    covered = Covered("shop", "q", False, 1, 10, newest_ms=9)
    append(store, Commit(1.5, "run", added=(FILE,), covered=(covered,)))
    append(store, Commit(2.5, "run", added=(file("data/b.parquet", 1),), removed=("data/a.parquet",)))
    manifest = store.manifest()
    assert [commit.number for commit in manifest.commits] == [1, 2]
    assert [one.path for one in manifest.files] == ["data/b.parquet"]
    assert manifest.covered_of("shop")(NumberRange("Q", False, 1, 10)) == [covered]
    assert manifest.rows == 10


def test_an_archive_in_the_place_of_another_is_read_anew(tmp_path: Path) -> None:
    """Commits are kept in memory; which file they came from decides, not its name."""
    for run in ("first", "other"):
        append(LocalStore(tmp_path), Commit(0.0, run))
        assert [one.run for one in LocalStore(tmp_path).manifest().commits] == [run]
        (tmp_path / "_commits" / "00000001.json").unlink()


def test_what_somebody_began_to_take_has_not_left_its_queue_by_a_drain() -> None:
    commits = (
        Commit(1.0, "archived", added=(FILE,)),
        Commit(2.0, "begun", taking=(Covered("shop", "Q", False, 1, 8),)),
        Commit(3.0, "taken", taken=(Covered("shop", "q", False, 1, 4),)),
    )
    both = together([Manifest(commits[:2]), Manifest(commits[2:])])
    assert both.perhaps_queued("shop") == [NumberRange("q", False, 5, 10)]
    assert both.left_in_queues("shop") == [NumberRange("q", False, 9, 10)]
    assert both.left_in_queues("other") == []
    assert Commit.from_json(commits[1].to_json(), 2, "here").taking == commits[1].taking


def test_many_committing_at_once_lose_nothing(tmp_path: Path) -> None:
    def commit(number: int) -> None:
        append(LocalStore(tmp_path), Commit(0.0, str(number), added=(file(f"data/{number}", number * 10),)))

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    manifest = LocalStore(tmp_path).manifest()
    assert [one.number for one in manifest.commits] == list(range(1, 13))
    assert {one.path for one in manifest.files} == {f"data/{number}" for number in range(12)}
    assert not [path for path in (tmp_path / "_commits").iterdir() if path.name.startswith(".")]


def test_the_same_numbers_cannot_be_added_by_two(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    mine = (Covered("shop", "q", False, 1, 100),)
    append(store, Commit(0.0, "other", covered=(Covered("shop", "q", False, 90, 120),)))
    with pytest.raises(ArchiveError, match="messages 90 to 120"):
        append(store, Commit(0.0, "mine", covered=mine), still_valid=partial(refuse_overlap, mine, 0))
    append(store, Commit(0.0, "mine", covered=mine), still_valid=partial(refuse_overlap, mine, 1))


def test_a_newer_archive_and_broken_commits_are_refused_by_name(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(UsageError, match="is not an archive"):
        check_archive(store)
    store.commit(Commit(0.0, "run", number=1, versions={"format": 2, "schema": 1}))
    with pytest.raises(ArchiveError, match="newer sbpair"):
        store.manifest()
    (tmp_path / "_commits" / "00000001.json").write_text("{")
    with pytest.raises(ArchiveError, match=r"00000001\.json is not a commit"):
        store.manifest()


def test_small_files_of_one_day_and_queue_are_joined_in_order() -> None:
    small = [file(f"{number}", number * 10) for number in reversed(range(8))]
    others = [
        file("large", 900, bytes=10**9),
        file("alone", 950, date="2026-11-02"),
        file("dead", 960, dead_letter=True),
    ]
    (group,) = groups_of([*small, *others])
    assert [one.first for one in group] == [number * 10 for number in range(8)]
    assert (joined(group).rows, joined(group).first, joined(group).last) == (80, 0, 79)
    assert groups_of(small[:7]) == []


def test_only_files_that_nobody_needs_and_that_are_old_are_deleted(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "data").mkdir()
    for name in ("kept", "replaced", "replaced-lately", "crashed", "crashed-too", "being-written"):
        (tmp_path / "data" / name).write_bytes(b"x")
        os.utime(tmp_path / "data" / name, (0, 0))
    os.utime(tmp_path / "data" / "being-written", (990_000, 990_000))
    append(
        store,
        Commit(0.0, "run", added=tuple(file(f"data/{name}", 1) for name in ("kept", "replaced", "replaced-lately"))),
    )
    append(store, Commit(1.0, "run", removed=("data/replaced",)))
    append(store, Commit(990_000.0, "run", removed=("data/replaced-lately",)))
    assert vacuum(store, now=1_000_000.0) == 2  # that are still there and not in the archive
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["being-written", "kept", "replaced-lately"]
