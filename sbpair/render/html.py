"""Writes a page as one self-contained HTML file: no script, nothing fetched, everything escaped.

The template is `page.html`, the style sheet `style.css`. Foreign text passes two gates, both for every value that the
template prints, from any author: control characters are made visible, then the template engine escapes. A
content security policy allows the page's own style sheet (by its hash) and nothing else, so that content which slipped
through could still not run or load anything.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import unescape
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.core.redact import printable
from sbpair.render.formats import cell, written
from sbpair.render.page import Bar, Bars, ChartLine, LineChart, Page, Tone, number
from sbpair.render.result import Column, Table
from sbpair.version import __version__

if TYPE_CHECKING:
    from jinja2 import Template
    from markdown_it import MarkdownIt
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


def chart(section: LineChart) -> Chart | None:
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


def _drawn(section: LineChart, line: ChartLine, style: int, across: Sequence[float], scale: list[float]) -> DrawnLine:
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


def _as_table(section: LineChart, across: Sequence[float]) -> Table:
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


# The pages of `sbpair help` as a site of plain files: HTML with a search that needs no network, the Markdown beside
# it, and `llms.txt`, which names them for programs that read text.


@dataclass(frozen=True, slots=True)
class SitePage:
    """A page: `name` is what links call it, `kind` the heading that it stands under, `command` shows it in a terminal,
    and `stem` is its file without the ending."""

    name: str
    kind: str
    markdown: str
    command: str
    stem: str

    @property
    def title(self) -> str:
        return self.markdown.partition("\n")[0].removeprefix("# ")


_LINK = re.compile(r"\]\((?:sbpair/cli/pages/)?([a-z-]+)\.md\)")
_HELP = re.compile(r"<code>(sbpair help [a-z-]+(?: [a-z-]+)*)</code>")
_HEADING = re.compile(r"<h([23])>(.*?)</h\1>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")


def write_site(folder: Path, pages: Sequence[SitePage]) -> list[Path]:
    """Write all pages below `folder`, which is made; files of the same names are replaced. Returns what was written.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for path, text in (*_documents(pages), ("style.css", _style()), ("llms.txt", _index_for_programs(pages))):
        (folder / path).write_text(text, encoding="utf-8")
        written.append(folder / path)
    return written


def _documents(pages: Sequence[SitePage]) -> Iterator[tuple[str, str]]:
    stems = {page.command: page.stem for page in pages}
    bodies = {page.stem: _body(page.markdown, stems) for page in pages}
    entries = [
        {"page": f"{page.stem}.html{anchor}", "title": title, "text": text}
        for page in pages
        for anchor, title, text in _parts(page.title, bodies[page.stem])
    ]
    kinds = {kind: [page for page in pages if page.kind == kind] for kind in dict.fromkeys(page.kind for page in pages)}
    for page in pages:
        text = _site_template().render(
            page=page, body=bodies[page.stem], kinds=kinds, first=pages[0], version=__version__
        )
        yield f"{page.stem}.html", text
        yield f"{page.stem}.md", page.markdown
    # Not JSON that is fetched: a page that is opened as a file may fetch nothing.
    search = files("sbpair.render").joinpath("site.js").read_text(encoding="utf-8")
    yield "search.js", f"const entries = {json.dumps(entries, ensure_ascii=False)};\n{search}"


def _body(markdown: str, stems: Mapping[str, str]) -> str:
    """Our own Markdown as HTML, with links between the pages, and headings that can be linked to."""
    html = _parser().render(_LINK.sub(r"](\1.html)", markdown))
    html = _HEADING.sub(lambda found: f'<h{found[1]} id="{_anchor(found[2])}">{found[2]}</h{found[1]}>', html)

    def linked(found: re.Match[str]) -> str:
        stem = stems.get(found[1])
        return found[0] if stem is None else f'<a href="{stem}.html">{found[0]}</a>'

    return _HELP.sub(linked, html)


def _parts(title: str, body: str) -> Iterator[tuple[str, str, str]]:
    """Anchor, title and plain text of each part of a page, for the search."""
    first, *rest = re.split(r'(?=<h[23] id=")', body)
    yield "", title, _plain(first)
    for part in rest:
        heading = re.match(r'<h[23] id="([^"]*)">(.*?)</h[23]>', part, re.DOTALL)
        if heading is not None:
            yield f"#{heading[1]}", f"{title}: {_plain(heading[2])}", _plain(part[heading.end() :])


def _plain(html: str) -> str:
    return " ".join(unescape(_TAG.sub(" ", html)).split())


def _anchor(html: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", _plain(html).lower()).strip("-")


def _index_for_programs(pages: Sequence[SitePage]) -> str:
    lines = [f"# sbpair {__version__}", "", f"> {_plain(_parser().render(_summary(pages[0].markdown)))}"]
    for kind in dict.fromkeys(page.kind for page in pages):
        lines += ["", f"## {kind}", ""]
        for page in pages:
            if page.kind == kind:
                lines.append(f"- [{page.title}]({page.stem}.md): {page.command}")
    return "\n".join([*lines, ""])


def _summary(markdown: str) -> str:
    """The first paragraph that says what it is."""
    return next((part for part in markdown.split("\n\n") if part.startswith("**")), "")


@cache
def _parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable("table")


@cache
def _site_template() -> "Template":
    from jinja2 import Environment

    source = files("sbpair.render").joinpath("site.html").read_text(encoding="utf-8")
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)


def _style() -> str:
    folder = files("sbpair.render")
    return folder.joinpath("style.css").read_text("utf-8") + folder.joinpath("site.css").read_text("utf-8")
