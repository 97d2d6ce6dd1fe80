"""A page as Markdown: the same sections as in HTML, for an issue, a wiki or a post-mortem."""

from collections.abc import Iterator

from sbpair.core.redact import printable
from sbpair.render.formats import markdown_cell, markdown_table
from sbpair.render.page import Bars, Cards, Findings, Lines, Page, Section, Text
from sbpair.render.result import Column, Table

_NAME, _VALUE, _NOTE = Column("name", "What"), Column("value", "Number", right=True), Column("note", "Note")


def page_to_markdown(page: Page) -> str:
    """The whole page; what strangers wrote in it makes no link, tag or new line."""
    blocks = [f"# {_line(page.title)}"]
    if page.lead:
        blocks.append(f"**{_line(page.lead)}**")
    if page.facts:
        blocks.append("\n".join(f"- {_line(name)}: {_line(value)}" for name, value in page.facts))
    blocks += [block for section in page.sections for block in _blocks(section)]
    return "\n\n".join(blocks) + "\n"


def _line(text: str) -> str:
    return markdown_cell(text)


def _blocks(section: Section) -> Iterator[str]:
    if section.title:
        yield f"## {_line(section.title)}"
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
                    yield _line(paragraph)
        case Findings():
            for finding in section.findings:
                yield f"### {_line(finding.label)} {_line(finding.code)}: {_line(finding.title)}"
                yield "\n".join(f"- {_line(subject)}: {_line(what)}" for subject, what in finding.places)
                if finding.steps:
                    yield "\n".join(f"{place}. {_line(step)}" for place, step in enumerate(finding.steps, 1))
    if isinstance(section, Bars | Lines) and section.note:
        yield _line(section.note)
