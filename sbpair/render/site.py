"""The pages of `sbpair help` as a site of plain files: HTML with a search that needs no network, the Markdown beside
it, and `llms.txt`, which names them for programs that read text.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import unescape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.version import __version__

if TYPE_CHECKING:
    from jinja2 import Template
    from markdown_it import MarkdownIt


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
        text = _template().render(page=page, body=bodies[page.stem], kinds=kinds, first=pages[0], version=__version__)
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
def _template() -> "Template":
    from jinja2 import Environment

    source = files("sbpair.render").joinpath("site.html").read_text(encoding="utf-8")
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)


def _style() -> str:
    folder = files("sbpair.render")
    return folder.joinpath("style.css").read_text("utf-8") + folder.joinpath("site.css").read_text("utf-8")
