"""What a command hands to the renderer: one value with the data, the tables that show it and the exit code."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sbpair.core.outcome import Exit
from sbpair.core.serialization import to_plain

if TYPE_CHECKING:
    from sbpair.core.metrics import Series
    from sbpair.render.page import Page


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: key in the row, heading, and whether numbers are right-aligned.

    `drawn` makes it a bar on a terminal, as long as the number under `key`, on one scale for the table; other formats
    leave such a column out, since the figures are in columns of their own.
    """

    key: str
    title: str
    right: bool = False
    drawn: bool = False
    advice: bool = False
    """Our own words on what to do next: a page lets a reader copy the commands in them."""
    counts: bool = False
    """Numbers of things, which people read with a comma after the thousands; others may be names, to be copied."""
    spare: bool = False
    """A screen that is too narrow leaves it out, and says so; every other format has it."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for people and for line formats. Values are plain; None shows as an empty cell."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Mapping[str, Any]]
    style_key: str | None = None
    """Key whose value (error, warning, ok, ...) colours the row on a terminal."""
    compact: bool = False
    """No empty lines around it on a terminal: several of them are one screen, told apart by their titles."""
    title_style: str | None = None
    """Colours the title on a terminal, like a value of `style_key`."""


def columns_of(kind: type, show: Sequence[str] | Mapping[str, str] = ()) -> tuple[Column, ...]:
    """The columns that the fields of a dataclass declare (see `sbpair.core.serialization.column`): all in their order,
    or those of the fields that `show` names, in its order and, where it is a mapping, under its titles if they are not
    empty. Of a dataclass that declares none each field is one, under its name."""
    declared = dict(_declared(kind)) or {field.name: field for field in dataclasses.fields(kind)}
    titles = show if isinstance(show, Mapping) else {}
    columns = (
        Column(
            str(declared[name].metadata.get("named", name)),
            **declared[name].metadata.get("column", {"title": name.replace("_", " ").capitalize()}),
        )
        for name in show or declared
    )
    return tuple(replace(column, title=titles.get(column.key) or column.title) for column in columns)


def columns(*named: str) -> tuple[Column, ...]:
    """Columns of rows that no dataclass declares: `key`, or `key: Title` where the title is not the key in words. `>`
    before it: numbers stand on the right; `#`: they are counts as well."""
    found = []
    for text in named:
        key, _, title = text.lstrip(">#").partition(": ")
        key_in_words = key.replace("_", " ").capitalize()
        found.append(Column(key, title or key_in_words, right=text[0] in ">#", counts=text[0] == "#"))
    return tuple(found)


def _declared(kind: type) -> "Iterator[tuple[str, dataclasses.Field[Any]]]":
    """The fields with a column, those of inlined dataclasses too, since their values stand in the same object."""
    for field in dataclasses.fields(kind):
        if "column" in field.metadata:
            yield field.name, field
        elif field.metadata.get("inlined") and dataclasses.is_dataclass(field.type):
            yield from _declared(field.type)  # type: ignore[arg-type]


def table_of(
    kind: type, rows: Iterable[Any], title: str = "", *, show: Sequence[str] | Mapping[str, str] = ()
) -> Table:
    """A table of dataclasses of this kind: a column for each field that declares one, with what their plain form has.
    `show`: see `columns_of`."""
    colours = next((field.name for field in dataclasses.fields(kind) if field.metadata.get("colours")), None)
    return Table(title, columns_of(kind, show), [to_plain(row) for row in rows], style_key=colours)


class Grade(StrEnum):
    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"
    UNKNOWN = "unknown"
    """It could not be looked at, and should have been."""
    SKIPPED = "skipped"
    """It was not looked at, for a reason that is no trouble by itself."""


@dataclass(frozen=True, slots=True)
class MonitoredCheck:
    """One thing that was looked at, for monitoring formats."""

    code: str
    subject: str
    severity: Grade
    message: str


@dataclass(frozen=True, slots=True)
class Metric:
    """One sample for Prometheus and Nagios perfdata, of a metric in the table of `sbpair.core.metrics`."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def series(self) -> "Series":
        """What it is a sample of."""
        from sbpair.core.metrics import series

        return series()[self.name]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The one value a command returns.

    `data` is the JSON envelope's data: the dataclass that the command declares (see `sbpair.cli.options.command`);
    `tables[0]` is what the line formats (jsonl, tsv, markdown) show; `summary` is
    the last line for a person, `notes` the lines before it.
    """

    data: Any
    tables: tuple[Table, ...] = ()
    summary: str = ""
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    """Lines after the notes for those who ask for more with --verbose."""
    exit: Exit = Exit.OK
    checks: tuple[MonitoredCheck, ...] | None = None
    metrics: tuple[Metric, ...] = ()
    text: str | None = None
    """Printed as it is in table and TSV form, for commands whose result is a document (a script, a schema)."""
    prose: bool = False
    """`text` is to be read by people: a terminal breaks its lines between words."""
    paged: bool = False
    """`text` is a document, which a terminal shows in the reader's pager."""
    screen: tuple[Table, ...] = ()
    """What people see instead of `tables`, where one table of everything is too wide for them."""
    page: "Page | None" = None
    """The report that `-o html` writes."""
    page_only: bool = False
    """`-o markdown` writes it too: the first table is only a part of the report."""
    closing: bool = False
    """`summary` and `notes` go to stderr wherever stdout does not show them, unless the command runs quietly."""
    streamed: bool = False
    """The records went out one by one already; JSON Lines has nothing to add."""
    command: str = ""
    """Its name, which the decorator of the command fills in."""


def concluded(found: Any, *tables: Table, **more: Any) -> CommandResult:
    """A result that says itself what came of it: by its `summary` or `closing`, and by its `notes` and `exit` where it
    has them. `more`: other fields of the command's result."""
    notes, summary = getattr(found, "notes", ()), getattr(found, "summary", None) or found.closing
    said = {
        "notes": tuple(notes() if callable(notes) else notes),
        "summary": summary() if callable(summary) else summary,
        "exit": getattr(found, "exit", Exit.OK),
    }
    return CommandResult(found, tables, closing=True, **(said | more))


def metrics_of(figures: Any, *labels: tuple[str, str]) -> Iterator[Metric]:
    """The samples that the fields of a dataclass declare (see `sbpair.core.serialization.metric`), with these labels
    before their own."""
    for field in dataclasses.fields(figures):
        if "metric" not in field.metadata:
            continue
        name, value = field.metadata["metric"], getattr(figures, field.name)
        if isinstance(value, Mapping):
            for key, number in value.items():
                yield Metric(name, number, (*labels, (field.metadata["label"], str(key))))
        elif value is not None:
            yield Metric(name, value, labels)
