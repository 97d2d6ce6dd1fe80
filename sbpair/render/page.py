"""A report as a value: a page is a title and sections, a section is a table, cards, bars, lines or text.

One design for every report (audit, cost, archive analysis, trends); `sbpair.render.html` writes it. Everything in here
is plain text: escaping, colours and layout are the writer's affair.
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
    """A bar from `start` to `value` on the chart's scale; `text` is what stands at its end."""

    label: str
    value: float
    text: str = ""
    start: float = 0.0
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars on one scale, in the order given. `baseline` draws a line across them all, as a tornado has."""

    title: str
    bars: Sequence[Bar]
    note: str = ""
    baseline: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: (x, y) points in rising x."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines over one x axis; y begins at 0. `x_text` and `y_text` write a value of their axis."""

    title: str
    lines: Sequence[Line]
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


Section = Table | Cards | Bars | Lines | Text


@dataclass(frozen=True, slots=True)
class Page:
    """A report. `lead` is the sentence that says it all; `facts` are (name, value) pairs such as when and from what."""

    title: str
    sections: Sequence[Section]
    lead: str = ""
    facts: Sequence[tuple[str, str]] = ()
    tone: Tone = Tone.PLAIN
    """Of the lead."""
