"""What strangers wrote starts no line, drives no terminal and commands no build runner, whichever way it goes out."""

import io
import json

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from sbpair.core.outcome import Exit
from sbpair.core.redact import defused, printable
from sbpair.render import console, formats
from sbpair.render.output import Format
from sbpair.render.result import Column, CommandResult, Grade, Metric, MonitoredCheck, Table

FORGERIES = (
    "x\n::add-mask::secret",
    "x\r\n##vso[task.prependpath]/tmp/evil",
    "::stop-commands::t",
    "  ::set-env name=A::b",
    "a ##[group]b",
    "a ##VSO[task.setvariable variable=x]y",
    "###[x]",
    "#####vso[x]y",
    "x\u2028::error::y",
    "x\x85##[error]y",
    "x\x0b::error::y",
    "\ufeff::error::y",
    ":::error::",
    "\u061c\u202e\x1b]0;evil\x07",
    "=cmd|' /C calc'!A0",
)
HOSTILE = st.one_of(st.sampled_from(FORGERIES), st.text(alphabet="#:[]vsoVSO \n\r\t\x1b\u2028\x85\\\"'&ab"))


def obeyed(text: str) -> list[str]:
    """The lines that a runner would take for commands: `::` first in the line, `##[` and `##vso[` anywhere."""
    return [
        line
        for line in text.splitlines()
        if line.lstrip().startswith("::") or "##[" in line or "##vso[" in line.lower()
    ]


@pytest.fixture(params=["GITHUB_ACTIONS", "TF_BUILD"])
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(request.param, "true")
    return str(request.param)


def result_of(value: str) -> CommandResult:
    """A result that has the value in every place where a foreign one can be."""
    rows = [{"name": value, "more": [value]}]
    return CommandResult(
        {"name": value, value: [value]},
        (Table(value, (Column("name", "Name"), Column("more", "More")), rows),),
        summary=value,
        notes=(value,),
        exit=Exit.OK,
        checks=(MonitoredCheck(value, value, Grade.ERROR, value), MonitoredCheck("A", value, Grade.WARNING, value)),
        metrics=(Metric("sbpair_entities", 1.0, (("queue", value),)),),
        command="audit",
    )


@given(HOSTILE)
@example("x\n::add-mask::y")
def test_stderr_has_one_line_for_one_record(value: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        stream = io.StringIO()
        patch.setattr("sys.stderr", stream)
        patch.setenv("GITHUB_ACTIONS", "true")
        console.say(f"The destination {value} is refused.")
        console.say(value)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert obeyed(stream.getvalue()) == []
    assert all(line.isprintable() for line in lines)


TEXT_FORMATS = (Format.TSV, Format.TABLE, Format.MARKDOWN, Format.NAGIOS, Format.PROMETHEUS, Format.JUNIT)


@pytest.mark.parametrize("value", FORGERIES)
@pytest.mark.parametrize("chosen", [*TEXT_FORMATS, Format.JSON, Format.JSONL, Format.YAML])
def test_stdout_commands_no_runner_in_any_format(
    runner: str, chosen: Format, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    console.emit(result_of(value), chosen)
    assert obeyed(capsys.readouterr().out) == []


@pytest.mark.parametrize("value", FORGERIES)
def test_annotations_are_the_only_commands(runner: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    console.emit(result_of(value), Format.GITHUB)
    commands = obeyed(capsys.readouterr().out)
    assert len(commands) == 2
    assert all(line.startswith(("::error title=", "::warning title=")) for line in commands)
    assert obeyed("\n".join(line.lstrip(":") for line in commands)) == []


@given(HOSTILE)
def test_documents_say_the_value_as_it_was(value: str) -> None:
    result = result_of(value)
    texts = [formats.to_json(result), formats.to_yaml(result)]
    for text, read in zip(texts, (json.loads, yaml.safe_load), strict=True):
        assert read(text)["data"]["name"] == value
        assert obeyed(text) == []


@given(HOSTILE)
def test_what_is_defused_stays_so_and_loses_nothing(value: str) -> None:
    once = defused(value)
    assert obeyed(once) == []
    assert defused(once) == once
    assert once.replace(" ", "") == value.replace(" ", "")


@given(HOSTILE)
def test_labels_have_valid_escapes_only(value: str) -> None:
    line = formats.exposition([Metric("sbpair_entities", 1.0, (("queue", value),))]).splitlines()[-1]
    inside = line[len('sbpair_entities{queue="') : line.rindex('"} ')]
    rest = inside.replace("\\\\", "").replace('\\"', "").replace("\\n", "")
    assert "\\" not in rest
    assert '"' not in rest
    assert inside.isprintable()


def test_markdown_shows_no_live_link_image_or_tag() -> None:
    cell = formats.to_markdown(result_of("![x](http://h/p) [y](http://h) <b>|`z`"))
    row = next(line for line in cell.splitlines() if "http" in line and line.startswith("|"))
    assert row.startswith("| ![x]\\(http://h/p) [y]\\(http://h) \\<b>\\|`z` |")


def test_the_title_of_a_table_is_no_markup() -> None:
    text = console.render(result_of("[bold]x[/bold] [link=http://h]y[/link]"), Format.TABLE)
    assert "[link=http://h]y[/link]" in text


@given(st.text())
def test_printable_is_one_line(value: str) -> None:
    assert len(printable(value).splitlines()) <= 1
    assert printable(value).isprintable()
