"""Sentences and pages on a terminal: lines are broken between words, and a command to copy stays on one line.

A terminal breaks a long line wherever it ends, in the middle of words and commands; what is copied from there is two
lines. Nothing here is for pipes, which get lines as they are.
"""

import os
import re
import shutil
import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from typing import TextIO

_LEAST_COLUMNS = 20
"""Nothing is laid out for fewer."""
_ADVISED = re.compile(
    r"(?<=: )sbpair [a-z](?:[^;'\"`]|'[^']*'|\"[^\"]*\")*?(?=$|; |\.$|\.? \(|\. [A-Z]|, (?:and|or|then) )"
)
"""A command that is told after a colon, to be run as it stands."""
_COMMAND_INDENT = "  "
_THEN = "then:"
_SHELL_WORD = re.compile(r"(?:[^\s'\"]|'[^']*'|\"[^\"]*\")+")
_GOES_ON = " \\"
_GLUE = "\x00"
"""Stands for a space that is no place to break a line at."""


def terminal_columns(stream: TextIO) -> int:
    """How wide the terminal behind `stream` is; COLUMNS comes first, as everywhere."""
    if os.environ.get("COLUMNS", "").isdigit():
        return int(os.environ["COLUMNS"])
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return shutil.get_terminal_size().columns


def laid_out(sentence: str, columns: int, *, fold_commands: bool = False) -> list[str]:
    """One line of our own as lines of a terminal. What fits stays one line; else each advised command is a line by
    itself, however long, which the terminal then copies as one; with `fold_commands` several, which a shell takes as
    one."""
    if len(sentence) <= columns or columns < _LEAST_COLUMNS:
        return [sentence]
    lines, at = [], 0
    for command in _ADVISED.finditer(sentence):
        before = sentence[at : command.start()].lstrip(";., ")
        if before.strip() != _THEN:  # the next line is the next step
            lines += _filled(before, columns)
        lines += _folded(command[0], columns) if fold_commands else [_COMMAND_INDENT + command[0]]
        at = command.end()
    rest = sentence[at:].lstrip(";., ") if lines else sentence
    return lines + (_filled(rest, columns) if rest else [])


def _folded(command: str, columns: int) -> list[str]:
    """A command as lines of a shell. A word that is longer than a line stays whole."""
    lines, indent = [], _COMMAND_INDENT
    line = ""
    for word in _SHELL_WORD.findall(command):
        if line and len(f"{indent}{line} {word}") > columns - len(_GOES_ON):
            lines.append(f"{indent}{line}{_GOES_ON}")
            line, indent = word, 2 * _COMMAND_INDENT
        else:
            line = f"{line} {word}".lstrip()
    return [*lines, indent + line]


def _filled(text: str, columns: int, *, first: str = "", hanging: str = "") -> list[str]:
    """The words as lines of at most that many columns; what stands between backquotes stays on one line if it can."""
    room = columns - len(hanging)
    glued = re.sub(r"`[^`]+`", lambda code: code[0].replace(" ", _GLUE) if len(code[0]) < room else code[0], text)
    lines = textwrap.wrap(
        glued, columns, initial_indent=first, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(_GLUE, " ") for line in lines]


# Texts of several paragraphs: help topics, and the pages in Markdown.

_CODE = "    "
"""A paragraph that begins with this is an example and stays as it is."""
_FENCE = "```"
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")


def wrapped(text: str, width: int | None = None) -> str:
    """The text for a terminal of `width` columns, or for the one that is there.

    Lines without indent that follow each other are one paragraph, and so are a list's item and its indented lines; any
    other indented line keeps its indent, or what stands in columns before its words. Code stays as it is. A table that
    is too wide becomes a paragraph a row.
    """
    columns = width or shutil.get_terminal_size().columns
    if columns < _LEAST_COLUMNS or max(map(len, text.splitlines()), default=0) <= columns:
        return text
    return "\n\n".join("\n".join(_block(one, columns)) for one in _blocks(text)) + "\n"


def _blocks(text: str) -> Iterator[list[str]]:
    """Paragraphs, tables, and code with the empty lines in it."""
    block: list[str] = []
    fenced = False
    for line in text.splitlines():
        if line.startswith(_FENCE):
            fenced = not fenced
        if line.strip() or fenced:
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block


def _block(lines: list[str], columns: int) -> Iterator[str]:
    if lines[0].startswith(_CODE):
        yield from lines
        return
    prose: list[str] = []
    fenced = False
    for line in lines:
        if fenced or line.startswith(_FENCE):
            yield from _paragraphs(prose, columns)
            prose = []
            fenced = fenced is not line.startswith(_FENCE)
            yield line
        else:
            prose.append(line)
    if prose and prose[0].startswith("|") and max(map(len, prose)) > columns:
        yield from _table(prose, columns)
    elif prose and prose[0].startswith("|"):
        yield from prose
    else:
        yield from _paragraphs(prose, columns)


def _paragraphs(lines: list[str], columns: int) -> Iterator[str]:
    joined: list[str] = []
    for line in lines:
        before = joined[-1] if joined else ""
        item = _ITEM.match(before)
        indent = len(line) - len(line.lstrip())
        goes_on = (indent == len(item[0])) if item else not before.startswith((" ", "#"))
        if before and goes_on and (item or indent == 0) and not _ITEM.match(line) and not line.startswith("#"):
            joined[-1] = f"{before} {line.strip()}"
        else:
            joined.append(line)
    for line in joined:
        marker = _ITEM.match(line) or re.match(r"\s*(?:\S+\s{2,})*", line)
        lead = len(marker[0]) if marker and len(marker[0]) <= columns // 2 else len(line) - len(line.lstrip())
        yield from _filled(line[lead:], columns, first=line[:lead], hanging=" " * lead) or [line]


def _table(rows: list[str], columns: int) -> Iterator[str]:
    """A paragraph a row: the first cell, below it the others with their headings."""
    titles, _, *others = ([cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip())[1:-1]] for row in rows)
    for number, cells in enumerate(others):
        if number:
            yield ""
        yield from _filled(cells[0], columns)
        for title, cell in zip_longest(titles[1:], cells[1:], fillvalue=""):
            if cell:
                yield from _filled(f"{title}: {cell}" if title else cell, columns, first=_CODE, hanging=_CODE + "  ")
