"""Writes a page as one self-contained HTML file: no script, nothing fetched, everything escaped.

A content security policy allows the page's own style sheet (by its hash) and nothing else, so that content which
slipped through the escaping could still not run or load anything. Charts are tables or come with one.
"""

import base64
import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from itertools import count
from typing import Any

from sbpair.core.redact import printable
from sbpair.render.formats import cell, written
from sbpair.render.page import Bar, Bars, Cards, Line, Lines, Page, Section, Text, Tone, number
from sbpair.render.result import Column, Table
from sbpair.version import __version__

# Drawings of the reports as inline SVG: stretched to the width there is, lines and dots keep their thickness.
#
# Words stand beside the drawings as HTML, since text in a stretched picture would be distorted or too small on a phone.

WIDTH, HEIGHT = 1000, 300
STYLES = 6
"""Lines of a chart differ in colour and in dashes; the seventh looks like the first."""
_MOST_DOTS = 120
"""A line with more points than this is drawn without dots, which would run into each other."""
_TICK_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_TICKS = 4


def ticks(highest: float) -> list[float]:
    """Rising values from 0 to at least `highest`, at even and round distances."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step * power for step in _TICK_STEPS if step * power >= rough * (1 - 1e-9))
    return [step * index for index in range(math.ceil(highest / step - 1e-9) + 1)]


def bar_svg(bar: Bar, low: float, high: float, baseline: float | None) -> str:
    """One bar on the scale from `low` to `high`, with the baseline if there is one."""
    left, right = sorted((_place(bar.start, low, high), _place(bar.value, low, high)))
    mark = ""
    if baseline is not None:
        mark = f'<path class="baseline" d="M{_place(baseline, low, high):.2f} 0V1"/>'
    return (
        '<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="tone-{bar.tone}" x="{left:.2f}" y="0" width="{right - left:.2f}" height="1"/>{mark}</svg>'
    )


def _place(value: float, low: float, high: float) -> float:
    """Where a value lies between `low` (0) and `high` (100)."""
    return 0.0 if high == low else (value - low) / (high - low) * 100


def line_svg(section: Lines, across: tuple[float, float], scale: list[float]) -> str:
    """All lines of a chart over its grid."""
    parts = [
        f'<svg class="lines" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{_attribute(f"{section.title}; the figures are in the table below")}">'
    ]
    parts += [f'<path class="grid" d="M0 {_down(value, scale):.1f}H{WIDTH}"/>' for value in scale]
    for index, line in enumerate(section.lines):
        parts.append(_line(section, line, index % STYLES, across, scale))
    return "".join(parts) + "</svg>"


def _line(section: Lines, line: Line, style: int, across: tuple[float, float], scale: list[float]) -> str:
    places = [(_along(x, across), _down(y, scale)) for x, y in line.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    drawn = f'<path class="line style-{style}" d="{path}"/>'
    if len(places) > _MOST_DOTS:
        return drawn
    dots = (
        f'<path class="dot style-{style}" d="M{place[0]:.1f} {place[1]:.1f}h0">'
        f"<title>{_attribute(f'{line.name}, {section.x_text(x)}: {section.y_text(y)}')}</title></path>"
        for place, (x, y) in zip(places, line.points, strict=True)
    )
    return drawn + "".join(dots)


def _along(x: float, across: tuple[float, float]) -> float:
    first, last = across
    return WIDTH / 2 if first == last else (x - first) / (last - first) * WIDTH


def _down(y: float, scale: list[float]) -> float:
    return HEIGHT - y / scale[-1] * HEIGHT


def swatch_svg(index: int) -> str:
    """A line's look, for the legend."""
    return (
        '<svg class="swatch" viewBox="0 0 28 10" aria-hidden="true">'
        f'<path class="line style-{index % STYLES}" d="M0 5H28"/></svg>'
    )


def _attribute(text: str) -> str:
    return escape(printable(text))


_TONES: Mapping[str, Tone] = {
    "critical": Tone.BAD,
    "error": Tone.BAD,
    "failed": Tone.BAD,
    "unreachable": Tone.BAD,
    "denied": Tone.BAD,
    "delete": Tone.BAD,
    "warning": Tone.WARN,
    "skipped": Tone.WARN,
    "update": Tone.WARN,
    "info": Tone.NOTE,
    "ok": Tone.GOOD,
    "done": Tone.GOOD,
    "create": Tone.GOOD,
}
"""Values of a table's style key that have a tone."""


def to_html(page: Page) -> str:
    """The page as a document."""
    style = _style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    numbers = count(1)
    lines = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f'<meta name="generator" content="sbpair {__version__}">',
        '<link rel="icon" href="data:,">',
        f"<title>{_text(page.title)}</title>",
        f"<style>{style}</style>",
        "</head>",
        "<body>",
        "<header>",
        f"<h1>{_text(page.title)}</h1>",
        *([f'<p class="lead tone-{page.tone}">{_text(page.lead)}</p>'] if page.lead else []),
        *_facts(page.facts),
        "</header>",
        "<main>",
        *(line for section in page.sections for line in _section(section, f"s{next(numbers)}")),
        "</main>",
        f"<footer>sbpair {__version__}</footer>",
        "</body>",
        "</html>",
    ]
    return "\n".join(lines) + "\n"


@cache
def _style() -> str:
    return files("sbpair.render").joinpath("style.css").read_text(encoding="utf-8")


def _text(value: object) -> str:
    """One line of text, escaped; control characters are shown, not sent."""
    return escape(printable(str(value)))


def _facts(facts: Sequence[tuple[str, str]]) -> Iterator[str]:
    if facts:
        yield '<dl class="facts">'
        yield from (f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in facts)
        yield "</dl>"


def _section(section: Section, key: str) -> Iterator[str]:
    """A section with its heading; one without a title belongs to what stands before it."""
    label = f' aria-labelledby="{key}"' if section.title else ""
    yield f"<section{label}>"
    if section.title:
        yield f'<h2 id="{key}">{_text(section.title)}</h2>'
    match section:
        case Table():
            yield from _table(section)
        case Cards():
            yield from _cards(section)
        case Bars():
            yield from _bars(section)
        case Lines():
            yield from _lines(section)
        case Text():
            yield from _paragraphs(section)
    yield "</section>"


def _cards(section: Cards) -> Iterator[str]:
    yield '<ul class="cards">'
    for card in section.cards:
        note = f'<span class="note">{_text(card.note)}</span>' if card.note else ""
        yield (
            f'<li class="tone-{card.tone}"><span class="label">{_text(card.label)}</span>'
            f'<span class="value">{_text(card.value)}</span>{note}</li>'
        )
    yield "</ul>"


def _paragraphs(section: Text) -> Iterator[str]:
    for paragraph in section.paragraphs:
        lines = [_text(line) for line in paragraph.splitlines()]
        yield "<pre>" + "\n".join(lines) + "</pre>" if section.literal else "<p>" + "<br>".join(lines) + "</p>"


def _table(given: Table) -> Iterator[str]:
    """Rows; on a narrow screen each row becomes a block whose cells carry their headings."""
    table = written(given)
    if not table.rows:
        yield '<p class="none">None.</p>'
        return
    yield '<table class="rows" role="table"><thead role="rowgroup"><tr role="row">'
    yield "".join(
        f'<th role="columnheader" scope="col"{_right(column)}>{_text(column.title)}</th>' for column in table.columns
    )
    yield '</tr></thead><tbody role="rowgroup">'
    for row in table.rows:
        cells = (_cell(column, row.get(column.key), table.style_key) for column in table.columns)
        yield f'<tr role="row">{"".join(cells)}</tr>'
    yield "</tbody></table>"


def _right(column: Column) -> str:
    return ' class="right"' if column.right else ""


def _cell(column: Column, value: Any, style_key: str | None) -> str:
    shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else cell(value)
    text = "<br>".join(_breakable(line) for line in shown.splitlines())
    tone = _TONES.get(str(value)) if column.key == style_key else None
    text = f'<span class="badge tone-{tone}">{text}</span>' if tone is not None else text and f"<span>{text}</span>"
    kinds = " ".join(kind for kind, wanted in (("right", column.right), ("empty", not text)) if wanted)
    named = f' class="{kinds}"' if kinds else ""
    return f'<td role="cell" data-label="{escape(printable(column.title))}"{named}>{text}</td>'


def _breakable(line: str) -> str:
    """Escaped text whose long words may be broken: after the signs of paths and hosts, else where it must be."""
    return " ".join(_broken(word) if len(word) > _LONG_WORD else escape(word) for word in line.split(" "))


def _broken(word: str) -> str:
    pieces = (piece for part in _PARTS.findall(word) for piece in _chunks(part))
    return "<wbr>".join(escape(piece) for piece in pieces)


def _chunks(part: str) -> Iterator[str]:
    return (part[start : start + _LONG_WORD] for start in range(0, len(part), _LONG_WORD))


_LONG_WORD = 24
_PARTS = re.compile(r"[^/.,:@_-]*[/.,:@_-]|[^/.,:@_-]+")


def _bars(section: Bars) -> Iterator[str]:
    """A table with a drawing in its middle column: the labels and figures are text at any width."""
    if not section.bars:
        yield '<p class="none">None.</p>'
        return
    edges = [edge for bar in section.bars for edge in (bar.start, bar.value)]
    low, high = min(edges), max(edges)
    if section.baseline is not None:
        low, high = min(low, section.baseline), max(high, section.baseline)
    yield '<table class="bars">'
    for bar in section.bars:
        drawing = bar_svg(bar, low, high, section.baseline)
        figure = _text(bar.text or number(bar.value))
        yield f'<tr><th scope="row">{_text(bar.label)}</th><td>{drawing}</td><td>{figure}</td></tr>'
    yield "</table>"
    if section.note:
        yield f'<p class="note">{_text(section.note)}</p>'


def _lines(section: Lines) -> Iterator[str]:
    """A drawing with its axes as text, so that they can be read at any width, and the same as a table."""
    points = [point for line in section.lines for point in line.points]
    if not points:
        yield '<p class="none">None.</p>'
        return
    across = sorted({x for x, _ in points})
    scale = ticks(max(y for _, y in points))
    yield f'<figure><figcaption>{_text(section.y_title)}</figcaption><div class="plot">'
    labels = "".join(f"<span>{_text(section.y_text(value))}</span>" for value in reversed(scale))
    yield f'<div class="y" aria-hidden="true">{labels}</div>'
    yield line_svg(section, (across[0], across[-1]), scale)
    labels = "".join(f"<span>{_text(section.x_text(value))}</span>" for value in _spread(across[0], across[-1]))
    yield f'<div class="x" aria-hidden="true">{labels}</div></div>'
    yield f'<p class="x-title">{_text(section.x_title)}</p>'
    if len(section.lines) > 1:
        named = (f"<li>{swatch_svg(index)}{_text(line.name)}</li>" for index, line in enumerate(section.lines))
        yield f'<ul class="legend">{"".join(named)}</ul>'
    yield "</figure>"
    if section.note:
        yield f'<p class="note">{_text(section.note)}</p>'
    yield "<details><summary>The same as a table</summary>"
    yield from _table(_as_table(section, across))
    yield "</details>"


def _spread(low: float, high: float, places: int = 5) -> Iterator[float]:
    """Values at even distances, both ends included; one where there is only one."""
    if low == high:
        yield low
        return
    yield from (low + (high - low) * place / (places - 1) for place in range(places))


def _as_table(section: Lines, across: Sequence[float]) -> Table:
    known = [dict(line.points) for line in section.lines]
    columns = (
        Column("x", section.x_title),
        *(Column(str(index), line.name, right=True) for index, line in enumerate(section.lines)),
    )
    rows = [
        {"x": section.x_text(x)}
        | {str(index): section.y_text(points[x]) for index, points in enumerate(known) if x in points}
        for x in across
    ]
    return Table("", columns, rows)
