"""What `sbpair top` shows: rows of what was read, with the command that acts on each, and the screen in Textual, where
lists are kept fresh and opened down to a message.
"""

import asyncio
import shlex
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import ClassVar, Literal, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.coordinate import Coordinate
from textual.widgets import DataTable, Static

from sbpair import operations
from sbpair.core.access import NamespaceAccess
from sbpair.core.durations import format_duration
from sbpair.core.entities import EntityKind
from sbpair.core.errors import SbpairError
from sbpair.core.inspection.entity import Listed, ScrapedNamespace
from sbpair.core.inspection.status import REACHABLE
from sbpair.core.redact import printable
from sbpair.core.serialization import spoken_clock
from sbpair.core.transfer.peeked import PeekedMessage
from sbpair.operations.watching import Watched, WatchedSource
from sbpair.service import EntityStatus

T = TypeVar("T")
EntitySource = WatchedSource[NamespaceAccess, ScrapedNamespace]
Value = str | float | None


class ColumnUnit(StrEnum):
    """How the values of a column are shown."""

    NAME = "name"
    """A text that gets the room that the others leave, and is cut where that is too little."""
    TEXT = "text"
    COUNT = "count"
    RATE = "rate"
    AGE = "age"
    NUMBER = "number"
    """A name, such as a sequence number."""

    @property
    def side(self) -> Literal["left", "right"]:
        return "left" if self in (ColumnUnit.NAME, ColumnUnit.TEXT) else "right"


@dataclass(frozen=True, slots=True)
class TopView:
    """What is looked at: a list of what there is, an entity's messages or dead letters, or one message."""

    kind: str
    access: NamespaceAccess | None = None
    """The namespace of the entity."""
    path: str = ""
    """Of the entity; of a pair its name."""
    dead_letter: bool = False
    number: int = 0

    @property
    def entity(self) -> str:
        """As commands take it."""
        return f"{self.access.label}:{self.path}" if self.access else self.path


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    values: tuple[Value, ...]
    command: tuple[str, ...]
    opens: TopView
    stale: bool = False
    """Its source cannot be read: this is what it was."""
    alarming: bool = False

    @property
    def command_line(self) -> str:
        """What is shown is what is copied: without anything that a terminal obeys."""
        return printable(shlex.join(("sbpair", *self.command)))


PAIRS, QUEUES, ENTITIES, LETTERS = "pairs", "backlog queues", "entities", "dead letters"
MESSAGES, MESSAGE = "messages", "message"
_NAME, _TEXT, _COUNT, _RATE, _AGE = ColumnUnit.NAME, ColumnUnit.TEXT, ColumnUnit.COUNT, ColumnUnit.RATE, ColumnUnit.AGE
COLUMNS: Mapping[str, Mapping[str, ColumnUnit]] = {
    PAIRS: {
        "Pair": _NAME, "Primary": _TEXT, "Secondary": _TEXT, "Waiting": _COUNT, "Per s": _RATE, "Dead": _COUNT,
        "Oldest": _AGE,
    },
    QUEUES: {"Backlog queue": _NAME, "State": _TEXT, "Waiting": _COUNT, "Dead": _COUNT, "Oldest": _AGE},
    ENTITIES: {
        "Entity": _NAME, "Kind": _TEXT, "Active": _COUNT, "Per s": _RATE, "Dead": _COUNT, "Sched.": _COUNT,
        "Oldest": _AGE,
    },
    LETTERS: {"Entity": _NAME, "Cause": _TEXT, "Letters": _COUNT, "Per s": _RATE},
    MESSAGES: {
        "Number": ColumnUnit.NUMBER, "Age": _AGE, "Session": _TEXT, "Message id": _NAME, "State or reason": _TEXT,
        "Bytes": _COUNT,
    },
}  # fmt: skip
"""What each list shows: titles, and the units of what is below them."""
SORTED_BY = {PAIRS: 3, QUEUES: 2, ENTITIES: 2, LETTERS: 2}
"""Column by which a list is sorted first, the largest value before the others; any other list by its first column."""


def shown(value: Value, unit: ColumnUnit) -> str:
    """A value as a cell. Names and texts are others': nothing in them drives the terminal."""
    if value is None:
        return ""
    if isinstance(value, str):
        return printable(value)
    if unit is ColumnUnit.AGE:
        return format_duration(round(value))
    if unit is ColumnUnit.NUMBER:
        return str(value)
    return f"{value:+,.1f}" if unit is ColumnUnit.RATE else f"{value:,.0f}"


def rows_of(watched: Watched, place: TopView) -> Iterator[Row]:
    """What was read last, for a list that is kept fresh."""
    return {PAIRS: _pairs, QUEUES: _queues, ENTITIES: _entities, LETTERS: _letters}[place.kind](watched, place)


def _pairs(watched: Watched, place: TopView) -> Iterator[Row]:
    for source in watched.pairs:
        found, name, opens = source.latest, source.name, TopView(QUEUES, path=source.name)
        if found is None:
            yield Row(name, (name, *[None] * 6), ("status", name), opens, bool(source.trouble))
            continue
        backlog, sides = found.backlog, found.status.sides
        dark = any(side.state != REACHABLE for side in sides)
        command: tuple[str, ...] = ("doctor", name) if dark else ("status", name)
        if backlog.active and not dark:
            command = ("drain", name, "--dry-run")
        elif backlog.dead_letter and not dark:
            command = ("peek", name, "--dlq")
        values = (*(side.state for side in sides), backlog.active, found.rate_per_second or None, backlog.dead_letter)
        alarming = bool(dark or backlog.active or backlog.dead_letter)
        yield Row(name, (name, *values, backlog.oldest_age_seconds), command, opens, bool(source.trouble), alarming)


def _queues(watched: Watched, place: TopView) -> Iterator[Row]:
    for source in watched.pairs:
        if (found := source.latest) is None or source.name != place.path:
            continue
        for queue in found.backlog.queues:
            at = queue.oldest_enqueued_at
            age = None if at is None else max(0.0, found.status.taken_at - at)
            values = (queue.queue, queue.state.value, queue.active, queue.dead_letter, age)
            dead = not queue.active and bool(queue.dead_letter)
            index = queue.queue.rpartition("/")[2]
            command = ("peek", source.name, "--queue", index, *(("--dlq",) if dead else ()))
            opens = TopView(MESSAGES, source.where.secondary, queue.queue, dead)
            alarming = bool(queue.active or queue.dead_letter)
            yield Row(queue.queue, values, command, opens, bool(source.trouble), alarming)


_Number = Callable[[ScrapedNamespace, Listed], int]


def _scraped(
    watched: Watched,
) -> Iterator[tuple[EntitySource, ScrapedNamespace, Listed, Callable[[_Number], float | None]]]:
    """Each entity with its source, and with what tells how fast a number of it grows."""
    for source in watched.namespaces:
        if (found := source.latest) is not None:
            before = source.before
            earlier = {} if before is None else {one.path: one for one in before.listed.entities}
            for entity in found.listed.entities:
                yield source, found, entity, partial(_rate, (before, earlier.get(entity.path)), (found, entity))


def _rate(
    before: tuple[ScrapedNamespace | None, Listed | None], now: tuple[ScrapedNamespace, Listed], number: _Number
) -> float | None:
    """How much a second; None where that is not known, or nothing."""
    namespace, entity = before
    if namespace is None or entity is None or (seconds := now[0].taken_at - namespace.taken_at) <= 0:
        return None
    return (number(*now) - number(namespace, entity)) / seconds or None


def _entities(watched: Watched, place: TopView) -> Iterator[Row]:
    for source, found, entity, rate in _scraped(watched):
        growth = rate(lambda _, one: one.active)
        enabled = entity.status == EntityStatus.ACTIVE.value
        kind = ("sub" if entity.kind is EntityKind.SUBSCRIPTION else entity.kind.value) if enabled else entity.status
        age = found.oldest_age_seconds.get(entity.path)
        name = f"{source.name}:{entity.path}"
        values = (name, kind, entity.active, growth, entity.dead_letter, entity.scheduled, age)
        dead = not entity.active and bool(entity.dead_letter)
        opens = TopView("" if entity.kind is EntityKind.TOPIC else MESSAGES, source.where, entity.path, dead)
        command = ("entity", "show") if not entity.active else ("entity", "peek")
        command = ("dlq", "list") if entity.dead_letter else command
        alarming = bool(entity.dead_letter) or not enabled
        yield Row(name, values, (*command, opens.entity), opens, bool(source.trouble), alarming)


def _letters(watched: Watched, place: TopView) -> Iterator[Row]:
    for source, found, entity, rate in _scraped(watched):
        for cause, letters in found.causes(entity).items():
            growth = rate(partial(_letters_of, cause))
            opens = TopView(MESSAGES, source.where, entity.path, dead_letter=True)
            values = (f"{source.name}:{entity.path}", cause, letters, growth)
            key, command = f"{values[0]}\0{cause}", ("dlq", "list", opens.entity)
            yield Row(key, values, command, opens, bool(source.trouble), bool(growth))


def _letters_of(cause: str, scraped: ScrapedNamespace, entity: Listed) -> int:
    return scraped.causes(entity).get(cause, 0)


def message_rows(place: TopView, messages: tuple[PeekedMessage, ...], now: float) -> Iterator[Row]:
    """The messages of an entity, as they were when it was opened."""
    for message in messages:
        at = None if message.enqueued_at is None else datetime.fromisoformat(message.enqueued_at).timestamp()
        values = (
            message.sequence_number,
            None if at is None else max(0.0, now - at),
            message.session_id,
            message.message_id,
            message.reason if place.dead_letter else message.state.value,
            message.size_bytes,
        )
        opens = replace(place, kind=MESSAGE, number=message.sequence_number)
        command = ("explain", place.entity, str(message.sequence_number), *(("--dlq",) if place.dead_letter else ()))
        yield Row(str(message.sequence_number), values, command, opens)


def message_text(message: PeekedMessage, *, with_body: bool) -> list[str]:
    """The facts of a message, a line each. What applications wrote into it is hidden until it is asked for."""
    facts = {
        "number": str(message.sequence_number),
        "state": message.state.value,
        "enqueued": message.enqueued_at,
        "message id": message.message_id,
        "session": message.session_id,
        "subject": message.subject,
        "destination": message.destination,
        "deliveries": str(message.delivery_count),
        "time to live": message.ttl_seconds and format_duration(message.ttl_seconds),
        "bytes": f"{message.size_bytes:,}",
        "reason": message.reason,
        "description": message.description,
    }
    lines = [f"{name:<13}{printable(str(value))}" for name, value in facts.items() if value]
    if not with_body:
        return [*lines, "", f"b shows the body and {len(message.application_properties)} application properties"]
    lines += [
        f"  {printable(name)} = {printable(str(value))}" for name, value in message.application_properties.items()
    ]
    return [*lines, "", *map(printable, (message.body or "(empty)").splitlines())]


# The screen.

MOST_MESSAGES = 100
"""Of an entity that is opened, the oldest ones."""
_LEAST_NAME = 16
HELP = """\
j k g G         down, up, first, last; arrows too. ctrl-d ctrl-u: ten rows
enter  esc      open what is under the cursor; go back
p  e  d         pairs; entities; dead letters by cause. Of an entity, d changes
                between its messages and its dead letters
/  n  N         show rows with a text only; the next row, the one before.
                esc shows all rows again
s  S            sort by the next column; turn the order round
c               copy the command that acts on the row (by OSC 52)
b  x            of a message: show body and properties; explain it
r               read now
?  q            this page; leave

A row with ! cannot be read now: it is what it was. Nothing here changes
a namespace."""


@dataclass
class _Shown:
    """A place that was opened, and how it is looked at."""

    place: TopView
    sorted_by: int = 0
    reverse: bool = True
    cursor: str = ""
    """Key of the row that the cursor was moved to; otherwise it stays on the first one."""
    messages: tuple[PeekedMessage, ...] = ()
    lines: list[str] = field(default_factory=list)
    """Of a page instead of rows."""
    command: str = ""
    """What acts on a page's message."""
    trouble: str = ""
    with_body: bool = False


class TopApp(App[None]):
    """Shows what is watched until it is left or `stop` is set."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { dock: top; text-style: bold; }  /* in a few rows the rest may be scrolled to the table */
    #trouble, #command { height: auto; max-height: 3; }
    #page { display: none; }
    DataTable { height: 1fr; scrollbar-size: 1 1; }
    VerticalScroll { height: 1fr; }
    """
    BINDINGS: ClassVar = [
        Binding(keys, action, priority=True, show=False)  # at once: the next key may be meant for what this one opens
        for keys, action in (
            ("q,ctrl+c", "quit"),
            ("j,n,down", "step(1)"),
            ("k,N,up", "step(-1)"),
            ("ctrl+d,pagedown", "step(10)"),
            ("ctrl+u,pageup", "step(-10)"),
            ("g,home", "step(-1000000)"),
            ("G,end", "step(1000000)"),
            ("enter", "enter"),
            ("escape", "back"),
            ("p", "go('pairs')"),
            ("e", "go('entities')"),
            ("d", "letters"),
            ("slash", "filter"),
            ("s", "sort"),
            ("S", "turn"),
            ("c", "copy"),
            ("b", "body"),
            ("x", "explain"),
            ("r", "read"),
            ("question_mark", "help"),
        )
    ]

    def __init__(
        self, watched: Watched, stop: asyncio.Event, interval_seconds: float, *, now: Callable[[], float] = time.time
    ) -> None:
        super().__init__(ansi_color=True)
        self._watched, self._stop, self._interval_seconds = watched, stop, interval_seconds
        self._now = now
        self._first = PAIRS if watched.pairs else ENTITIES
        self._trail = [_opened(TopView(self._first))]
        self._rows: list[Row] = []
        self._only = ""
        """The text that rows must have."""
        self._typing = False
        self._said = ""
        """What the last key did, until the next one."""

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Static(id="trouble", markup=False)
        yield DataTable(id="table", cursor_type="row", zebra_stripes=False)
        with VerticalScroll(id="page"):
            yield Static(id="text", markup=False)
        yield Static(id="command", markup=False)
        yield Static("? help  enter open  esc back  d dead letters  / filter  s sort  c copy  q leave", id="keys")

    def on_mount(self) -> None:
        self.run_worker(self._watched.refresh(self._stop, self.redraw))
        self.run_worker(self._leave())
        self.set_interval(1.0, self._redraw_around)
        self.query_one(DataTable).focus()
        self.redraw()

    async def _leave(self) -> None:
        await self._stop.wait()
        self.exit()

    def on_resize(self) -> None:
        self.refresh()  # all of it: a terminal that was small for a moment has lost rows, and Textual knows of none
        self.redraw()

    # What is shown.

    @property
    def _at(self) -> _Shown:
        return self._trail[-1]

    @property
    def _stands(self) -> bool:
        """Whether every widget is there: reads and the clock also come before that, and while the screen closes."""
        return self.is_running and len(self.query("#head, #trouble, #table, #text, #command")) == 5

    def redraw(self) -> None:
        """Everything, as it is known now; the cursor stays on its row, or near where that was."""
        if not self._stands:
            return
        at, table = self._at, self.query_one(DataTable)
        table.display = at.place.kind in COLUMNS
        self.query_one("#page").display = not table.display
        if table.display:
            self._fill(table, at)
        else:
            self.query_one("#text", Static).update("\n".join(at.lines))
        self._redraw_around()

    def _fill(self, table: "DataTable[Text]", at: _Shown) -> None:
        if at.place.kind == MESSAGES:
            found = message_rows(at.place, at.messages, self._now())
        else:
            found = rows_of(self._watched, at.place)
        titles, units = list(COLUMNS[at.place.kind]), list(COLUMNS[at.place.kind].values())
        texts = ((row, list(map(shown, row.values, units))) for row in found)
        wanted = self._only.lower()
        kept = [(row, cells) for row, cells in texts if wanted in " ".join(cells).lower()]
        kept.sort(key=lambda one: one[0].key)
        kept.sort(key=lambda one: _order(one[0].values[at.sorted_by]), reverse=at.reverse)
        self._rows = [row for row, _ in kept]
        titles[at.sorted_by] += " v" if at.reverse else " ^"
        widths = _widths(units, titles, [cells for _, cells in kept], self.size.width)
        table.clear(columns=True)
        for title, unit, width in zip(titles, units, widths, strict=True):
            table.add_column(Text(title, justify=unit.side), width=width)
        for row, (first, *others) in kept:
            style = Style(dim=row.stale, bold=row.alarming and not row.stale)
            cut = map(_cut, (f"! {first}" if row.stale else first, *others), widths)
            shortened = (Text(text, style, justify=unit.side) for text, unit in zip(cut, units, strict=True))
            table.add_row(*shortened, key=row.key)
        keys = [row.key for row in self._rows]
        table.cursor_coordinate = Coordinate(keys.index(at.cursor) if at.cursor in keys else 0, 0)

    def _redraw_around(self) -> None:
        """The lines around a list or page; the clock goes on where nothing else happens."""
        if not self._stands:
            return
        at = self._at
        count = f" {len(self._rows):,}" if at.place.kind in COLUMNS else ""
        only = f'  with "{printable(self._only)}"' if self._only else ""
        only = f"  with {printable(self._only)}_" if self._typing else only
        every = f"every {format_duration(self._interval_seconds)}"
        self.query_one("#head", Static).update(
            f"sbpair top  {_title(at.place)}{count}{only}  {every}  {spoken_clock(self._now())}"
        )
        told = [*self._troubles(), *filter(None, (at.trouble, self._said))]
        trouble = self.query_one("#trouble", Static)
        trouble.update("\n".join(told))
        trouble.display = bool(told)
        self.query_one("#command", Static).update(f"$ {self._command}" if self._command else "")

    def _troubles(self) -> Iterable[str]:
        now = self._now()
        for source in self._watched.sources:
            if source.trouble:
                at = source.read_at
                read = "never read" if at is None else f"read {format_duration(round(now - at))} ago"
                yield f"! {source.sentence} cannot be read, {read}: {printable(source.trouble)}"

    @property
    def _row(self) -> Row | None:
        """The row under the cursor."""
        if self._at.place.kind not in COLUMNS or not self._rows:
            return None
        return self._rows[min(self.query_one(DataTable).cursor_row, len(self._rows) - 1)]

    @property
    def _command(self) -> str:
        return self._at.command if self._row is None else self._row.command_line

    # What keys do.

    async def on_event(self, event: events.Event) -> None:
        """While a filter is typed the keys are its text."""
        if not self._typing or not isinstance(event, events.Key | events.Paste):
            await super().on_event(event)
            return
        if isinstance(event, events.Paste):
            self._filter(self._only + event.text)
        elif event.key == "enter":
            self._typing = False
        elif event.key in ("escape", "ctrl+c"):
            self.action_back()
        elif event.key == "backspace":
            self._filter(self._only[:-1])
        elif event.is_printable and event.character is not None:
            self._filter(self._only + event.character)
        self._redraw_around()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        self._redraw_around()

    def action_enter(self) -> None:
        if (row := self._row) is not None and row.opens.kind:
            self._open(row.opens, row.command_line)

    def _open(self, place: TopView, command: str = "") -> None:
        self._said, self._only = "", ""
        opened = _opened(place)
        if place.kind == MESSAGE:
            opened.messages = tuple(one for one in self._at.messages if one.sequence_number == place.number)
            opened.lines, opened.command = message_text(opened.messages[0], with_body=False), command
        self._trail.append(opened)
        self.redraw()
        if place.kind == MESSAGES:
            self.run_worker(self._browse(opened))

    async def _browse(self, at: _Shown) -> None:
        place = at.place
        request = operations.BrowseRequest(
            place.path, dead_letter=place.dead_letter, max_messages=MOST_MESSAGES, with_body=True
        )
        doing = f"Browsing {printable(place.entity)} ..."
        found = await self._ask(at, doing, operations.browse_messages, request)
        at.messages = found.messages if found else ()
        if found and found.left_off:
            at.trouble = f"The first {MOST_MESSAGES} messages; there are more."
        self.redraw()

    async def _ask(self, at: _Shown, doing: str, verb: Callable[..., Awaitable[T]], request: object) -> T | None:
        """What the verb says of the place; None if it could not, which is said."""
        if at.place.access is None:
            return None
        at.trouble = doing
        self._redraw_around()
        try:
            found = await verb(self._watched.ends[at.place.access.host], request, stop=self._stop)
        except SbpairError as error:
            at.trouble = f"! {printable(error.message)}"
            return None
        at.trouble = ""
        return found

    def action_step(self, rows: int) -> None:
        table = self.query_one(DataTable)
        if table.display:
            table.move_cursor(row=max(0, min(len(self._rows) - 1, table.cursor_row + rows)))
            self._at.cursor = self._row.key if self._row else ""
        else:
            self.query_one("#page").scroll_relative(y=rows, animate=False)

    def action_back(self) -> None:  # type: ignore[override]  # of a screen, which here is one
        self._said = ""
        if self._typing or self._only:
            self._typing = False
            self._filter("")
        elif len(self._trail) > 1:
            self._trail.pop()
        self.redraw()

    def action_go(self, kind: str) -> None:
        self._said, self._only = "", ""
        self._trail = [_opened(TopView(kind))]
        self.redraw()

    def action_letters(self) -> None:
        place = self._at.place
        if place.kind != MESSAGES:
            self.action_go(LETTERS)
            return
        self._trail.pop()
        self._open(TopView(MESSAGES, place.access, place.path, not place.dead_letter))

    def action_filter(self) -> None:
        self._typing = self._at.place.kind in COLUMNS
        self._redraw_around()

    def _filter(self, text: str) -> None:
        self._only = text
        self.redraw()

    def action_sort(self) -> None:
        at = self._at
        if at.place.kind in COLUMNS:
            units = list(COLUMNS[at.place.kind].values())
            at.sorted_by = (at.sorted_by + 1) % len(units)
            at.reverse = units[at.sorted_by].side == "right"
            self.redraw()

    def action_turn(self) -> None:
        self._at.reverse = not self._at.reverse
        self.redraw()

    def action_copy(self) -> None:
        if self._command:
            self.copy_to_clipboard(self._command)
            self._said = f"Copied: {self._command}"
            self._redraw_around()

    def action_read(self) -> None:
        for source in self._watched.sources:
            source.due.set()
        if self._at.place.kind == MESSAGES:
            self.run_worker(self._browse(self._at))

    def action_body(self) -> None:
        at = self._at
        if at.place.kind == MESSAGE:
            at.with_body = not at.with_body
            at.lines = message_text(at.messages[0], with_body=at.with_body)
            self.redraw()

    def action_explain(self) -> None:
        if self._at.place.kind == MESSAGE:
            self.run_worker(self._explain(self._at))

    async def _explain(self, at: _Shown) -> None:
        place = at.place
        request = operations.ExplainRequest(place.path, place.number, place.dead_letter)
        found = await self._ask(at, "Looking through the entity ...", operations.explain_message, request)
        if found:
            lines = [f"{one.about:<13}{'' if one.known else 'not known: '}{one.text}" for one in found.statements]
            at.lines = list(map(printable, (f"Because {found.because}.", "", *lines)))
            at.command = printable(found.command)
        self.redraw()

    def action_help(self) -> None:
        if self._at.place.kind != "help":
            self._trail.append(_Shown(TopView("help"), lines=HELP.splitlines()))
            self.redraw()


def _opened(place: TopView) -> _Shown:
    return _Shown(place, SORTED_BY.get(place.kind, 0), place.kind in SORTED_BY)


def _title(place: TopView) -> str:
    if place.kind in (MESSAGES, MESSAGE):
        what = f"dead letter{'s' if place.kind == MESSAGES else ''}" if place.dead_letter else place.kind
        return f"{what} {place.number or ''} of {printable(place.entity)}".replace("  ", " ")
    return f"{place.kind} of {printable(place.path)}" if place.path else place.kind


def _order(value: object) -> tuple[bool, float, str]:
    """What is not known comes last, or first where the order is turned."""
    return (value is not None, value, "") if isinstance(value, int | float) else (value is not None, 0.0, str(value))


def _widths(units: Sequence[ColumnUnit], titles: Sequence[str], rows: list[list[str]], columns: int) -> list[int]:
    """Of the columns in cells: as wide as what is in them, and one of them what is left."""
    widths = [
        max([cell_len(title), *(min(cell_len(row[at]), _MOST_OF_A_TEXT) for row in rows)])
        for at, title in enumerate(titles)
    ]
    widest = units.index(ColumnUnit.NAME)
    others = sum(widths) - widths[widest] + 2 * len(widths) + 1
    longest = max([_LEAST_NAME, *(cell_len(row[widest]) + 2 for row in rows)])
    widths[widest] = max(_LEAST_NAME, min(longest, columns - others))
    return widths


_MOST_OF_A_TEXT = 20


def _cut(text: str, width: int) -> str:
    """The text in this many cells, with its end, where names differ, if it is too long."""
    if cell_len(text) <= width:
        return text
    tail = text
    while cell_len(tail) > width - width // 3 - 1:
        tail = tail[1:]
    return set_cell_size(text, width - cell_len(tail) - 1).rstrip() + "\u2026" + tail
