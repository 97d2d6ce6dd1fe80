"""Writes a page as one self-contained HTML file: no script, nothing fetched, everything escaped.

The template is `page.html`, the style sheet `style.css`. Foreign text passes two gates, both for every value that the
template prints, from any author: control characters are made visible, then the template engine escapes. A
content security policy allows the page's own style sheet (by its hash) and nothing else, so that content which slipped
through could still not run or load anything.
"""

import base64
import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sbpair.core.redact import printable
from sbpair.render.formats import cell, written
from sbpair.render.page import Bar, Bars, Line, Lines, Page, Tone, number
from sbpair.render.result import Column, Table
from sbpair.version import __version__

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

WIDTH, HEIGHT = 1000, 300
"""Of a chart's own coordinates; the browser stretches it, and keeps the thickness of lines and dots."""
STYLES = 6
"""Lines of a chart differ in color and in dashes; the seventh looks like the first."""
_MOST_DOTS = 120
"""A line with more points than this is drawn without dots, which would run into each other."""
MOST_ROWS = 30
"""A table with more rows than this shows the others when asked: a phone gives each row half a screen."""
_MOST_STEPS = 6
_TICK_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_TICKS = 4
_X_LABELS = 5
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
    style = _file("style.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    from markupsafe import Markup

    # The hash is that of the text between the tags, so the sheet goes in as it is; it is ours.
    trusted = Markup(style)  # noqa: S704
    return (
        _template().render(
            page=page, most_rows=MOST_ROWS, most_steps=_MOST_STEPS, style=trusted, policy=policy, version=__version__
        )
        + "\n"
    )


@cache
def _template() -> "Template":
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    def visible(value: Any) -> Any:
        return value if isinstance(value, Markup) else printable(str(value))

    environment = Environment(
        autoescape=True, finalize=visible, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "bar_lengths": bar_lengths,
        "chart": chart,
        "commands": commands,
        "kept_lines": _kept_lines,
        "kind": lambda section: type(section).__name__,
        "number": number,
        "pieces": pieces,
        "shown": _shown,
        "written": written,
        "tone": lambda value: _TONES.get(str(value)),
    }
    return environment.from_string(_file("page.html"))


@cache
def _file(name: str) -> str:
    return files("sbpair.render").joinpath(name).read_text(encoding="utf-8")


def _kept_lines(text: str) -> "Markup":
    """Text whose line ends are kept; all else in it is made visible and escaped."""
    from markupsafe import Markup

    return Markup("\n").join(printable(line) for line in text.splitlines())


def _shown(value: Any) -> str:
    """A value of a table as a reader wants it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return number(value)
    # Milliseconds are for programs, which read another format; in a narrow column they cost a line.
    return _ISO_TIME.sub(r"\1 \2 UTC", cell(value))


_ISO_TIME = re.compile(r"\A(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z\Z")
_LONG_WORD = 24
_PARTS = re.compile(r"[^/.,:@_-]*[/.,:@_-]|[^/.,:@_-]+")


def pieces(line: str) -> list[str]:
    """The line cut where a browser may break it: a long word after the signs of paths and hosts, else anywhere."""
    found = [""]
    for index, word in enumerate(line.split(" ")):
        first, *rest = _chunks(word) if len(word) > _LONG_WORD else [word]
        found[-1] += (" " if index else "") + first
        found += rest
    return found


def _chunks(word: str) -> list[str]:
    return [
        part[start : start + _LONG_WORD] for part in _PARTS.findall(word) for start in range(0, len(part), _LONG_WORD)
    ]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a line of advice."""

    text: str
    is_command: bool


_COMMAND = re.compile(
    r"(?:^|(?<=`)|(?<=then )|(?<=: )|(?<=or )|(?<=run ))sbpair [a-z][^`\n]*?(?=`|; |[.;,]?$| as a | and )"
)


def commands(line: str) -> Iterator[Part]:
    """A line of our own advice, taken apart into words and commands, which the page lets a reader copy as a whole."""
    position = 0
    for match in _COMMAND.finditer(line):
        command = match[0].rstrip(".;,")
        if match.start() > position:
            yield Part(line[position : match.start()], False)
        yield Part(command, True)
        position = match.start() + len(command)
    if position < len(line):
        yield Part(line[position:], False)


def bar_lengths(section: Bars) -> list[tuple[Bar, str]]:
    """Each bar with its length in hundredths of the longest one."""
    highest = max(bar.value for bar in section.bars)
    return [(bar, f"{bar.value / highest * 100 if highest else 0:.2f}") for bar in section.bars]


@dataclass(frozen=True, slots=True)
class Dot:
    """A point of a line, in the chart's coordinates, and what it says."""

    x: str
    y: str
    text: str


@dataclass(frozen=True, slots=True)
class DrawnLine:
    """A line in the chart's coordinates; `path` is what an SVG path takes."""

    name: str
    style: int
    path: str
    dots: Sequence[Dot]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart ready to be written: coordinates, labels of the axes, and the same as a table."""

    lines: Sequence[DrawnLine]
    grid: Sequence[str]
    x_labels: Sequence[str]
    y_labels: Sequence[str]
    table: Table
    width: int = WIDTH
    height: int = HEIGHT


def chart(section: Lines) -> Chart | None:
    """What the template draws of a section; None where there is no point."""
    points = [point for line in section.lines for point in line.points]
    if not points:
        return None
    across = sorted({x for x, _ in points})
    scale = ticks(max(y for _, y in points))
    return Chart(
        lines=[_drawn(section, line, index % STYLES, across, scale) for index, line in enumerate(section.lines)],
        grid=[_down(value, scale) for value in scale],
        x_labels=_without_repeats([section.x_text(value) for value in _spread(across[0], across[-1])]),
        y_labels=[section.y_text(value) for value in reversed(scale)],
        table=written(_as_table(section, across)),
    )


def ticks(highest: float) -> list[float]:
    """Rising values from 0 to at least `highest`, at even and round distances."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    # A hair of tolerance: 0.3 / 0.1 is a little more than 3 in binary, and must not get a tick of its own.
    step = next(step * power for step in _TICK_STEPS if step * power >= rough * (1 - 1e-9))
    return [step * index for index in range(math.ceil(highest / step - 1e-9) + 1)]


def _drawn(section: Lines, line: Line, style: int, across: Sequence[float], scale: list[float]) -> DrawnLine:
    places = [(_along(x, across), _down(y, scale)) for x, y in line.points]
    dots = [
        Dot(across_, down, f"{line.name}, {section.x_text(x)}: {section.y_text(y)}")
        for (across_, down), (x, y) in zip(places, line.points, strict=True)
    ]
    path = "M" + "L".join(" ".join(place) for place in places) if places else ""
    return DrawnLine(line.name, style, path, dots if len(dots) <= _MOST_DOTS else ())


def _along(x: float, across: Sequence[float]) -> str:
    first, last = across[0], across[-1]
    return f"{WIDTH / 2 if first == last else (x - first) / (last - first) * WIDTH:.1f}"


def _down(y: float, scale: list[float]) -> str:
    return f"{HEIGHT - y / scale[-1] * HEIGHT:.1f}"


def _spread(low: float, high: float) -> Iterator[float]:
    """Values at even distances, both ends included; one where there is only one."""
    if low == high:
        yield low
        return
    yield from (low + (high - low) * place / (_X_LABELS - 1) for place in range(_X_LABELS))


def _without_repeats(labels: list[str]) -> list[str]:
    """Labels of an axis shorter than their precision: each text once, the places of the others empty."""
    return [labels[0], *("" if same == label else label for same, label in pairwise(labels))]


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
