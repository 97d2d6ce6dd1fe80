"""Prose for a terminal: lines broken between words where it is too narrow, joined where they were broken wider."""

import re
import shutil
import textwrap
from collections.abc import Iterator

NARROWEST_COLUMNS = 20
_CODE = "    "
"""A paragraph that begins with this is an example and stays as it is."""


def wrapped(text: str, width: int | None = None) -> str:
    """The text for a terminal of `width` columns, or for the one that is there.

    Lines without indent that follow each other are one paragraph; an indented line keeps its indent, or what stands in
    columns before its words.
    """
    columns = max(width or shutil.get_terminal_size().columns, NARROWEST_COLUMNS)
    if max(map(len, text.splitlines()), default=0) <= columns:
        return text
    return "\n\n".join("\n".join(_paragraph(one, columns)) for one in text.rstrip("\n").split("\n\n")) + "\n"


def _paragraph(text: str, width: int) -> Iterator[str]:
    if text.startswith(_CODE):
        yield text
        return
    joined = re.sub(r"(?<=\S)\n(?=\S)", " ", text)
    for line in joined.split("\n"):
        hanging = re.match(r"\s*(?:\S+\s{2,})*", line)
        indent = len(hanging[0]) if hanging and len(hanging[0]) <= width // 2 else len(line) - len(line.lstrip())
        yield textwrap.fill(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
