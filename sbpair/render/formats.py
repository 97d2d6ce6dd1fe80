"""The line and document formats: JSON, JSON Lines, YAML, TSV, Markdown. Pure functions from a result to text."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Any

from sbpair.core.errors import SbpairError
from sbpair.core.outcome import Exit
from sbpair.core.redact import DRIVES_A_TERMINAL, defused, json_text, printable
from sbpair.core.serialization import OMITTED_IF_NONE, says, to_plain
from sbpair.render.output import Format
from sbpair.render.page import Bars, Cards, Findings, Lines, Page, Section, Text
from sbpair.render.result import Column, CommandResult, Table
from sbpair.version import __version__


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every command prints with -o json: data or error, never both."""

    command: str = field(metadata={"what": "Empty where the command line could not be read."})
    version: str
    exit_code: Exit
    exit_name: Annotated[str, says(enum=sorted({code.label for code in Exit}))]
    data: Any = field(default=None, metadata=OMITTED_IF_NONE)
    error: SbpairError | None = field(default=None, metadata=OMITTED_IF_NONE)


def envelope(command: str, code: Exit, *, data: Any = None, error: SbpairError | None = None) -> dict[str, Any]:
    """The envelope as plain data."""
    plain: dict[str, Any] = to_plain(Envelope(command, __version__, code, code.label, data, error))
    return plain


def to_json(result: CommandResult) -> str:
    return dump_json(envelope(result.command, result.exit, data=result.data), indent=2) + "\n"


def to_jsonl(result: CommandResult) -> str:
    """One record a line: the rows of the first table, or the data itself when there is none."""
    if result.streamed:
        return ""
    records = result.tables[0].rows if result.tables else [to_plain(result.data)]
    return "".join(dump_json(record) + "\n" for record in records)


def to_yaml(result: CommandResult) -> str:
    """The JSON envelope as YAML; with escapes beyond ASCII where a sign would drive a terminal."""
    import yaml

    plain = json.loads(dump_json(envelope(result.command, result.exit, data=result.data)))
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    if DRIVES_A_TERMINAL.search(text) or defused(text) != text:
        # In double quotes and on one line each, YAML has an escape for whatever must not stand there as it is.
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=False, default_style='"', width=_ONE_LINE)
        return _RUNNER_WORDS.sub(r"\\x23", text)
    return text


_ONE_LINE = 2**31
_RUNNER_WORDS = re.compile(r"#(?=#(?:vso)?\[)", re.IGNORECASE)


def written(table: Table) -> Table:
    """The table without the columns that only a terminal draws."""
    return replace(table, columns=tuple(column for column in table.columns if not column.drawn))


def to_tsv(result: CommandResult) -> str:
    """Heading and rows separated by tabs, never cut to a width. Tabs and line ends in values become spaces."""
    if result.text is not None:
        return result.text
    return "\n".join(_tsv_table(written(table)) for table in result.tables[:1])


def _tsv_table(table: Table) -> str:
    lines = ["\t".join(column.key for column in table.columns)]
    lines += ["\t".join(_flat(row.get(column.key)) for column in table.columns) for row in table.rows]
    return "\n".join(lines) + "\n"


def to_markdown(result: CommandResult) -> str:
    blocks = [markdown_table(written(table)) for table in result.tables]
    tail = [printable(line) for line in (*result.notes, result.summary) if line]
    return "\n\n".join([*blocks, *tail]) + "\n"


def markdown_table(table: Table) -> str:
    """One table, under its title if it has one."""
    head = "| " + " | ".join(column.title for column in table.columns) + " |"
    rule = "|" + "|".join(" ---: " if column.right else " --- " for column in table.columns) + "|"
    rows = ["| " + " | ".join(markdown_cell(row.get(c.key)) for c in table.columns) + " |" for row in table.rows]
    title = [f"### {printable(table.title)}", ""] if table.title else []
    return "\n".join([*title, head, rule, *rows])


def markdown_cell(value: Any) -> str:
    """A value that neither ends its cell nor makes a link, an image or a tag; a bare address leads where it says."""
    return _flat(value).replace("|", "\\|").replace("<", "\\<").replace("](", "]\\(")


# A page as Markdown: the same sections as in HTML, for an issue, a wiki or a post-mortem.

_NAME, _VALUE, _NOTE = Column("name", "What"), Column("value", "Number", right=True), Column("note", "Note")


def page_to_markdown(page: Page) -> str:
    """The whole page; what strangers wrote in it makes no link, tag or new line."""
    blocks = [f"# {markdown_cell(page.title)}"]
    if page.lead:
        blocks.append(f"**{markdown_cell(page.lead)}**")
    if page.facts:
        blocks.append("\n".join(f"- {markdown_cell(name)}: {markdown_cell(value)}" for name, value in page.facts))
    blocks += [block for section in page.sections for block in _section_blocks(section)]
    return "\n\n".join(blocks) + "\n"


def _section_blocks(section: Section) -> Iterator[str]:
    if section.title:
        yield f"## {markdown_cell(section.title)}"
    match section:
        case Table():
            yield markdown_table(Table("", section.columns, section.rows))
        case Cards():
            rows = [{"name": one.label, "value": one.value, "note": one.note} for one in section.cards]
            yield markdown_table(Table("", (_NAME, _VALUE, _NOTE), rows))
        case Bars():
            rows = [{"name": one.label, "value": one.text or f"{one.value:,g}"} for one in section.bars]
            yield markdown_table(Table("", (_NAME, _VALUE), rows))
        case Lines():
            columns = (_NAME, Column("x", section.x_title, right=True), Column("y", section.y_title, right=True))
            points = [
                {"name": line.name, "x": section.x_text(x), "y": section.y_text(y)}
                for line in section.lines
                for x, y in line.points
            ]
            yield markdown_table(Table("", columns, points))
        case Text():
            for paragraph in section.paragraphs:
                if section.literal:
                    yield "\n".join(f"    {printable(line)}" for line in paragraph.splitlines())
                else:
                    yield markdown_cell(paragraph)
        case Findings():
            line = markdown_cell
            for finding in section.findings:
                yield f"### {line(finding.label)} {line(finding.code)}: {line(finding.title)}"
                yield "\n".join(f"- {line(subject)}: {line(what)}" for subject, what in finding.places)
                if finding.steps:
                    yield "\n".join(f"{place}. {line(step)}" for place, step in enumerate(finding.steps, 1))
    if isinstance(section, Bars | Lines) and section.note:
        yield markdown_cell(section.note)


def cell(value: Any) -> str:
    """A value as a person reads it in one cell, with control characters but line ends made harmless."""
    return "\n".join(printable(line) for line in _text(value).splitlines())


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return dump_json(value) if isinstance(value, (dict, list, tuple)) else str(value)


def _flat(value: Any) -> str:
    """A value on one line: tabs and line ends become spaces."""
    return printable(_text(value).translate(_TO_SPACES))


_TO_SPACES = str.maketrans("\t\n\r\v\f", "     ")


def dump_json(value: Any, indent: int | None = None) -> str:
    """`core.redact.json_text` with times as ISO 8601, bytes as hex, others as their text."""
    return json_text(value, indent=indent, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


WRITERS: Mapping[Format, Callable[[CommandResult], str]] = {
    Format.JSON: to_json,
    Format.JSONL: to_jsonl,
    Format.YAML: to_yaml,
    Format.TSV: to_tsv,
    Format.MARKDOWN: to_markdown,
}
