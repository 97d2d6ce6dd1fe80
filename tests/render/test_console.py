"""Where output goes: files appear whole, with the permissions they should have; a table only on a terminal."""

import os
import stat
import threading
from pathlib import Path

import pytest

from sbpair.render.console import choose_format, emit, render, write_atomically
from sbpair.render.output import Format
from sbpair.render.result import Column, CommandResult, Table
from sbpair.render.tables import terminal_bars

RESULT = CommandResult({"a": 1}, (Table("", (Column("a", "A"),), [{"a": 1}]),), summary="done", command="ping")


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    """A reader that opens the file again and again sees an old or a new text, never a part or none."""
    path = tmp_path / "metrics.prom"
    texts = {letter * 200_000 for letter in "ab"}
    write_atomically(path, "a" * 200_000)
    seen: set[str] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add(path.read_text(encoding="utf-8"))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(40):
        write_atomically(path, "ab"[number % 2] * 200_000)
    done.set()
    reader.join()
    assert seen <= texts
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.prom"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "half \ud800 surrogate")
    assert path.read_text(encoding="utf-8") == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.txt"]


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_private_files_are_for_their_owner_and_others_as_usual(tmp_path: Path) -> None:
    previous = os.umask(0o022)
    try:
        write_atomically(tmp_path / "secret", "x", private=True)
        write_atomically(tmp_path / "new" / "public", "x")
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "new" / "public").stat().st_mode) == 0o644


def test_outside_a_terminal_tsv_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert choose_format(None, to_file=False) is Format.TSV
    emit(RESULT, None)
    assert capsys.readouterr().out == "a\n1\n"


def test_a_table_asked_for_in_a_pipe_has_no_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    emit(RESULT, Format.TABLE)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.endswith("done\n")


def test_an_outfile_gets_the_text_and_stdout_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    emit(RESULT, Format.JSONL, outfile=tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8") == '{"a": 1}\n'
    assert capsys.readouterr().out == ""


def test_drawn_columns_are_bars_on_one_scale_and_only_on_a_terminal() -> None:
    columns = (Column("n", "N"), Column("high", "", drawn=True))
    rows = [{"n": 1, "high": 10}, {"n": 2, "high": "7.5"}, {"n": 3, "high": 0.001}, {"n": 4, "high": 0}]
    table = Table("", columns, rows)
    assert [len(bar) for bar in terminal_bars(table, columns[1], width=8)] == [8, 6, 1, 0]
    assert terminal_bars(Table("", columns, []), columns[1]) == []
    assert render(CommandResult({}, (table,), command="cost"), Format.TSV) == "n\n1\n2\n3\n4\n"
