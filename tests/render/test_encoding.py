"""Signs that a stream does not have are written as escapes that the reader of the format takes back."""

import json
from html import unescape
from pathlib import Path

import pytest
import yaml

from sbpair.render.console import emit, fitting, render
from sbpair.render.page import Page, Text
from sbpair.render.result import Check, Column, CommandResult, Format, Metric, Severity, Table

HELLO = "Gr\u00fc\u00dfe \u4f60\u597d \U0001f680"
RESULT = CommandResult(
    "x",
    {"said": HELLO},
    (Table("", (Column("said", "Said"),), [{"said": HELLO}]),),
    checks=(Check("said", HELLO, Severity.WARNING, HELLO),),
    metrics=(Metric("sbpair_said", "Said.", 1.0, (("text", HELLO),)),),
    summary=HELLO,
    page=Page("x", (Text("Said", (HELLO,)),)),
)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp437", "latin-1"])
@pytest.mark.parametrize("chosen", list(Format))
def test_every_format_fits_every_encoding(chosen: Format, encoding: str) -> None:
    text = fitting(render(RESULT, chosen, encoding), RESULT, chosen, encoding)
    text.encode(encoding)
    match chosen:
        case Format.JSON | Format.JSONL:
            assert HELLO in json.dumps(json.loads(text), ensure_ascii=False)
        case Format.YAML:
            assert yaml.safe_load(text)["data"]["said"] == HELLO
        case Format.HTML | Format.JUNIT:
            assert HELLO in unescape(text)
        case _:
            assert "\\u4f60\\u597d \\ud83d\\ude80" in text


def test_what_utf_8_has_stays_as_it_is() -> None:
    text = render(RESULT, Format.JSON)
    assert fitting(text, RESULT, Format.JSON, "utf-8") is text


@pytest.mark.parametrize("chosen", [Format.JSON, Format.JSONL, Format.YAML, Format.TSV, Format.MARKDOWN, Format.TABLE])
def test_half_a_surrogate_pair_breaks_no_file(chosen: Format, tmp_path: Path) -> None:
    half = "half \ud83d"
    result = CommandResult("x", {"said": half}, (Table("", (Column("said", "Said"),), [{"said": half}]),))
    path = tmp_path / "out"
    emit(result, chosen, outfile=path)
    assert "half" in path.read_text(encoding="utf-8")
