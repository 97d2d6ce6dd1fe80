"""The form of a benchmark's figures, and how they are shown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One figure. With `at_least` or `at_most` it has an aim."""

    benchmark: str
    case: str
    figure: str
    value: float
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None

    def as_dict(self) -> dict[str, Any]:
        aim, met = "", None
        if self.at_least is not None:
            aim, met = f">= {self.at_least:g}", self.value >= self.at_least
        elif self.at_most is not None:
            aim, met = f"<= {self.at_most:g}", self.value <= self.at_most
        shown = {"benchmark": self.benchmark, "case": self.case, "figure": self.figure}
        return {**shown, "value": self.value, "unit": self.unit, "aim": aim, "met": met}


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """A table of whatever columns the rows have, in the order in which they first appear."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(name)) for name in columns] for row in rows]
    widths = [max(len(line[index]) for line in [columns, *cells]) for index in range(len(columns))]
    for line in [columns, ["-" * width for width in widths], *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip(), flush=True)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:,}" if isinstance(value, int | float) else str(value)
