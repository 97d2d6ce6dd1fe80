"""Drawings of the reports as inline SVG: stretched to the width there is, lines and dots keep their thickness.

Words stand beside the drawings as HTML, since text in a stretched picture would be distorted or too small on a phone.
"""

import math
from html import escape

from sbpair.render.formats import printable
from sbpair.render.page import Bar, Line, Lines

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
