"""Values of a file that know the lines they stand in, so that what is wrong can be told by its line."""

from collections.abc import Mapping, Sequence
from typing import Any


class LinedMapping(dict[Any, Any]):
    """A mapping; `lines` has the line (from 1) of each of its keys."""

    lines: Mapping[Any, int] = {}


class LinedList(list[Any]):
    """A list; `lines` has the line (from 1) of each of its entries."""

    lines: Sequence[int] = ()


def line_of(container: object, key: object) -> int | None:
    """The line of a key or entry; None where nothing is known of a file."""
    if isinstance(container, LinedMapping):
        return container.lines.get(key)
    if isinstance(container, LinedList) and isinstance(key, int) and key < len(container.lines):
        return container.lines[key]
    return None


def like(original: object, values: Mapping[str, Any], names: Mapping[str, str] | None = None) -> LinedMapping:
    """`values` with the lines of the mapping they were made from; `names` are the original's keys where they differ."""
    made = LinedMapping(values)
    found = {name: line_of(original, (names or {}).get(name, name)) for name in values}
    made.lines = {name: line for name, line in found.items() if line is not None}
    return made
