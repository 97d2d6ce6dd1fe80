"""Signs that a stream does not have are written as escapes, never an error; JSON reads them back as what they were."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sbpair.render.console import emit
from sbpair.render.output import Format
from sbpair.render.result import Column, CommandResult, Table
from tests.waiting import LIMIT_SECONDS

HELLO = "Gr\u00fc\u00dfe \u4f60\u597d \U0001f680"
PROGRAM = """
from sbpair.render.console import emit, escape_what_stdout_lacks
from sbpair.render.output import Format
from sbpair.render.result import Column, CommandResult, Table

escape_what_stdout_lacks()
said = {"said": "Gr\\u00fc\\u00dfe \\u4f60\\u597d \\U0001f680"}
result = CommandResult(said, (Table("", (Column("said", "Said"),), [said]),), command="x")
for chosen in (Format.JSONL, Format.TSV, Format.MARKDOWN, Format.TABLE, Format.YAML):
    emit(result, chosen)
"""


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_stream_of_few_signs_gets_escapes(encoding: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        cwd=Path(__file__).parents[2],
        timeout=LIMIT_SECONDS,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    lines = ran.stdout.decode(encoding).splitlines()
    assert json.loads(lines[0])["said"] == HELLO
    greeting = "Gr\\u00fc\\u00dfe" if encoding == "ascii" else "Gr\u00fc\u00dfe"
    assert sum(f"{greeting} \\u4f60\\u597d \\ud83d\\ude80" in line for line in lines) == 5


@pytest.mark.parametrize("chosen", [Format.JSON, Format.JSONL, Format.YAML, Format.TSV, Format.MARKDOWN, Format.TABLE])
def test_half_a_surrogate_pair_breaks_no_file(chosen: Format, tmp_path: Path) -> None:
    half = "half \ud83d"
    result = CommandResult({"said": half}, (Table("", (Column("said", "Said"),), [{"said": half}]),), command="x")
    path = tmp_path / "out"
    emit(result, chosen, outfile=path)
    assert "half" in path.read_text(encoding="utf-8")
