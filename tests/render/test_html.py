"""The reports' one design: escaping, what a browser says to it, contrast, widths, tables for charts."""

import re
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from sbpair.render.html import commands, ticks, to_html
from sbpair.render.page import (
    Bar,
    Bars,
    Card,
    Cards,
    ChartLine,
    EqualFindings,
    Findings,
    LineChart,
    Page,
    Text,
    Tone,
    number,
)
from sbpair.render.result import Column, Table
from tests.render.chromium import browser, executable

HOSTILE = "<script>alert(1)</script> \"' & \x1b[31m \u202e <img src=x onerror=alert(1)>"
COLUMNS = (
    Column("severity", "Severity"),
    Column("subject", "Subject"),
    Column("messages", "Messages", right=True),
    Column("message", HOSTILE),
)
ROWS = [
    {"severity": severity, "subject": f"contoso/x-servicebus-transfer/{index}", "messages": 12345 * index,
     "message": f"{HOSTILE}\nsecond line"}
    for index, severity in enumerate(("critical", "error", "warning", "info", "ok", HOSTILE))
]  # fmt: skip
STEPS = [(1.0, 2.0), (65536.0, 2.0), (65537.0, 4.1), (131072.0, 4.1)]
PAGE = Page(
    f"Audit {HOSTILE}",
    (
        Cards((Card("Pairs", "3"), Card("Findings", HOSTILE, HOSTILE, Tone.BAD), Card("Backlog", "0", "", Tone.GOOD))),
        Table("Findings", COLUMNS, ROWS, style_key="severity"),
        Table("Nothing", COLUMNS, []),
        Bars(
            "Messages", [Bar(HOSTILE, 100), Bar("q" * 200, 40, "forty", tone=Tone.WARN), Bar("none", 0)], note="Note."
        ),
        Bars("What moves it", [Bar("messages", 40, "20 to 40")]),
        Bars("Empty", []),
        LineChart(
            "By size",
            [ChartLine("total", STEPS), ChartLine(HOSTILE, [(1.0, 1.0)]), ChartLine("without a point", [])],
            "bytes",
            "USD",
            note=HOSTILE,
        ),
        LineChart("No lines", [], "x", "y"),
        Findings(
            "Found",
            (
                EqualFindings(
                    "error", "SBP001", HOSTILE, HOSTILE, [(HOSTILE, HOSTILE)] * 5, ("sbpair drain x", HOSTILE)
                ),
                EqualFindings(
                    HOSTILE, "SBP002", "Once", "Pair orders", [("q", "is missing")], ("sbpair provision orders",)
                ),
            ),
        ),
        Text(HOSTILE, [HOSTILE, "Line\nline"]),
        Text("Literal", ["az rest \\\n  --url https://example.invalid/"], literal=True),
    ),
    lead=HOSTILE,
    facts=(("Taken", "2026-11-21T06:00:00Z"), (HOSTILE, HOSTILE)),
    tone=Tone.BAD,
)


class Elements(HTMLParser):
    """Every element with its attributes, and the text outside the style sheet."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.words.append(data)


def test_what_messages_hold_stays_text() -> None:
    document = to_html(PAGE)
    parsed = Elements(document)
    assert not {tag for tag, _ in parsed.elements} & {"script", "img", "iframe", "object", "a", "form", "link rel"}
    assert not [name for _, attributes in parsed.elements for name in attributes if name.startswith("on")]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", document)
    assert any("<script>alert(1)</script>" in words for words in parsed.words)


def test_long_words_can_be_broken_and_are_the_same_words() -> None:
    queue, blob = "contoso-weu/x-servicebus-transfer/12", "Q" * 100
    table = Table("", (Column("a", "A"), Column("b", "B")), [{"a": queue, "b": f"short {blob} <&>"}])
    parsed = Elements(to_html(Page("", (table,))))
    assert sum(tag == "wbr" for tag, _ in parsed.elements) == 9
    assert queue in "".join(parsed.words)
    assert f"short {blob} <&>" in "".join(parsed.words)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("sbpair drain orders", ["sbpair drain orders"]),
        ("then sbpair drain orders --dlq", ["sbpair drain orders --dlq"]),
        ("Then delete the queue: sbpair cleanup orders --yes", ["sbpair cleanup orders --yes"]),
        ("or run sbpair syphon orders as a service", ["sbpair syphon orders"]),
        ("Run `sbpair peek orders`, then `sbpair drain orders`.", ["sbpair peek orders", "sbpair drain orders"]),
        ("Upgrade sbpair to a later release.", []),
    ],
)
def test_commands_in_advice_can_be_copied_as_a_whole(line: str, found: list[str]) -> None:
    parts = list(commands(line))
    assert "".join(part.text for part in parts) == line
    assert [part.text for part in parts if part.is_command] == found


def test_equal_findings_are_told_once_with_their_places() -> None:
    places = [(f"queue-{index}", "is missing") for index in range(12)]
    finding = EqualFindings(
        "error", "SBP001", "Backlog queue missing", "Pair orders", places, ("sbpair provision orders",)
    )
    document = to_html(Page("Audit", (Findings("Findings", (finding,)),)))
    words = Elements(document).words
    assert sum("Backlog queue missing" in one for one in words) == 1
    assert document.count('<code class="command">sbpair provision orders</code>') == 1
    assert all(any(subject in one for one in words) for subject, _ in places)


def test_nothing_is_named_that_would_be_fetched() -> None:
    document = to_html(PAGE)
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", document)
    assert not re.findall(r"@import|url\(", document)
    assert "default-src 'none'" in unescape(document)


def test_every_chart_has_its_figures_as_text() -> None:
    words = " ".join(Elements(to_html(PAGE)).words)
    assert "forty" in words
    assert "65,537" in words
    assert "4.10" in words


def test_a_heading_belongs_to_every_named_section() -> None:
    elements = Elements(to_html(PAGE)).elements
    named = {attributes["aria-labelledby"] for tag, attributes in elements if "aria-labelledby" in attributes}
    headings = {attributes["id"] for tag, attributes in elements if tag == "h2"}
    assert named == headings
    assert len(headings) == sum(bool(section.title) for section in PAGE.sections)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1234567, "1,234,567"), (0.25, "0.25"), (1234.5, "1,234.50"), (2.0, "2")]
)
def test_numbers_as_a_reader_wants_them(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize("highest", [0, 0.003, 1, 7, 8.8, 10, 99, 101, 250_000, 1e9])
def test_an_axis_reaches_the_highest_value_in_few_round_steps(highest: float) -> None:
    scale = ticks(highest)
    assert scale[0] == 0
    assert scale[-1] >= highest * (1 - 1e-9)
    assert 2 <= len(scale) <= 6
    assert scale[-2] < highest or highest == 0


def _colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))


def _luminance(colour: str) -> float:
    channels = (int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    brighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_lines_stand_out_from_what_is_behind_them(scheme: str) -> None:
    """WCAG 2.2 AA: 4.5 for text, 3 for what is drawn."""
    style = files("sbpair.render").joinpath("style.css").read_text(encoding="utf-8")
    light, dark = style.split("@media screen and (prefers", 1)
    colours = _colours(light if scheme == "light" else dark.split("* {")[0])
    for tone in ("plain", "good", "note", "warn", "bad"):
        assert _contrast(colours[tone], colours[f"{tone}-soft"]) >= 4.5, tone
        assert _contrast(colours[tone], colours["sheet"]) >= 4.5, tone
        assert _contrast(colours["text"], colours[f"{tone}-soft"]) >= 4.5, tone
        assert _contrast(colours[tone], colours["head"]) >= 3, tone
    for behind in ("page", "sheet", "head"):
        assert _contrast(colours["text"], colours[behind]) >= 4.5
        assert _contrast(colours["quiet"], colours[behind]) >= 4.5
    for index in range(6):
        assert _contrast(colours[f"line-{index}"], colours["sheet"]) >= 3


@pytest.mark.skipif(executable() is None, reason="Chromium is not installed")
async def test_a_browser_shows_it_at_every_width_without_complaint(tmp_path: Path) -> None:
    """No message on the console, nothing requested but the page, no sideways scrolling, and not the same picture."""
    page = tmp_path / "page.html"
    page.write_text(to_html(PAGE), encoding="utf-8")
    pictures = set()
    async with browser(str(executable())) as tab:
        for width in (390, 1280):
            for scheme in ("light", "dark"):
                visit = await tab.visit(page, width=width, scheme=scheme)
                assert visit.complaints == []
                assert [url for url in visit.requests if not url.startswith("data:")] == [page.as_uri()]
                assert visit.content_width <= width
                assert await tab.evaluate("getComputedStyle(document.querySelector('h2')).fontWeight") == "700"
                pictures.add(visit.screenshot)
        assert await tab.evaluate("typeof alert") == "function"
        await tab.call("Emulation.setEmulatedMedia", media="print")
        background = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == "rgb(255, 255, 255)", "paper is white, also for who reads in the dark"
        text = await tab.evaluate("getComputedStyle(document.body).color")
        assert text == "rgb(27, 32, 39)"
    assert len(pictures) == 4
