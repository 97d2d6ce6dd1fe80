"""A report as a value: a page is a title and sections; a section is a table, cards, bars, lines, text or findings.

One design for every report (audit, archive analysis, trends); `sbpair.render.html` writes it. Everything in here is
plain text: escaping, colors and layout are the writer's affair.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sbpair.render.result import Table


class Tone(StrEnum):
    """How something is meant. Always said in words too, never by colour alone."""

    PLAIN = "plain"
    GOOD = "good"
    NOTE = "note"
    WARN = "warn"
    BAD = "bad"


def number(value: float) -> str:
    """`1,234,567`, `0.25`, `1,234.5`: as many digits as a reader wants."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Card:
    """One big figure with its name and a line beneath."""

    label: str
    value: str
    note: str = ""
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Cards:
    """Figures side by side."""

    cards: Sequence[Card]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar as long as `value`, which is not negative; `text` is what stands at its end."""

    label: str
    value: float
    text: str = ""
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars on one scale, in the order given."""

    title: str
    bars: Sequence[Bar]
    note: str = ""


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line of a chart: (x, y) points in rising x."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over one x axis; y begins at 0. `x_text` and `y_text` write a value of their axis."""

    title: str
    lines: Sequence[ChartLine]
    x_title: str
    y_title: str
    note: str = ""
    x_text: Callable[[float], str] = number
    y_text: Callable[[float], str] = number


@dataclass(frozen=True, slots=True)
class Text:
    """Paragraphs under a heading; with `literal` they keep their spaces and line ends."""

    title: str
    paragraphs: Sequence[str]
    literal: bool = False


@dataclass(frozen=True, slots=True)
class EqualFindings:
    """Equal findings, told once. `label` is the severity; `places` are (subject, what is wrong there) pairs; in
    `steps`, what to do next, commands can be copied as a whole."""

    label: str
    code: str
    title: str
    where: str
    places: Sequence[tuple[str, str]]
    steps: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings in the order given, the worst first."""

    title: str
    findings: Sequence[EqualFindings]


Section = Table | Cards | Bars | LineChart | Text | Findings


@dataclass(frozen=True, slots=True)
class Page:
    """A report. `lead` is the sentence that says it all, the worst first; `facts` are (name, value) pairs such as when
    and from what."""

    title: str
    sections: Sequence[Section]
    lead: str = ""
    facts: Sequence[tuple[str, str]] = ()
    tone: Tone = Tone.PLAIN
    """Of the lead."""
