"""What a task of the audit reads: a stretch of an archive's messages, or of the journal's records.

An archive is a folder that `sbpair pipeline archive` wrote (Parquet), or JSON Lines as `peek -o jsonl` and `drain
--archive` write them: a file, or a folder of such files. All tasks have to see the same files. A line that cannot be
read is named and left out.

The journal's session entries are read before its records (see `core.replication.ownership`): what was finished between
the two reads is then in one of them at least.
"""

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sbpair.core.durations import epoch_seconds
from sbpair.core.errors import JournalError, UsageError
from sbpair.core.names import split_source
from sbpair.core.replication.ordering import AFTER, AFTER_IDS, NUMBER, STREAM
from sbpair.core.replication.ownership import SessionEntry
from sbpair.core.summary import describe
from sbpair.journal.sqlite import KeyRange, documents
from sbpair.pipeline.analysis.partials import MICROS, database
from sbpair.pipeline.analysis.units import ReadUnit, row_groups, units_in
from sbpair.pipeline.manifest import COMMITS, LocalStore, check_archive
from sbpair.pipeline.rows import arrow_schema, to_table
from sbpair.runtime.replication.store import MESSAGE, destination_of

if TYPE_CHECKING:
    import pyarrow as pa

COPIES, RECORDS, HEADS, PASSED, ENTRIES = "copies", "records", "heads", "passed", "entries"
COLUMNS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    COPIES: (
        ("side", "string"), ("destination", "string"), ("session_id", "string"), ("message_id", "string"),
        ("number", "bigint"), ("enqueued_us", "bigint"), ("state", "string"), ("dead_letter", "boolean"),
        ("reason", "string"), ("stream", "string"), ("place", "bigint"), ("after", "string"), ("after_ids", "string"),
    ),
    RECORDS: (
        ("destination", "string"), ("session_id", "string"), ("message_id", "string"), ("state", "string"),
        ("at_us", "bigint"), ("code", "string"), ("reason", "string"), ("attempts", "bigint"), ("fence", "bigint"),
        ("on_primary", "boolean"), ("on_secondary", "boolean"),
    ),
    HEADS: (("destination", "string"), ("session_id", "string"), ("stream", "string"), ("number", "bigint")),
    PASSED: (
        ("destination", "string"), ("session_id", "string"), ("stream", "string"), ("first", "bigint"),
        ("last", "bigint"),
    ),
    ENTRIES: (
        ("destination", "string"), ("session_id", "string"), ("current_id", "string"), ("attempts", "bigint"),
        ("waiting_id", "string"), ("missing_id", "string"), ("missing_place", "string"),
    ),
}  # fmt: skip
"""The columns of each kind of rows. Sessions are told apart by `destination` and `session_id`, which all have."""
LINES_BYTES: Final = 64 * 1024 * 1024
_ABOUT_LINE_BYTES: Final = 1_000
_LINES_TRIED: Final = 100
"""A file in whose first lines none can be read is no archive."""
_NOT_TAKEN: Final = (ValueError, TypeError, OverflowError)
_OF_PARQUET: Final = (
    "queue", "dead_letter", "sequence_number", "enqueued_at", "state", "dead_letter_reason", "message_id",
    "session_id", "properties",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one kind. `left_out`: messages without a session or message id. `unreadable`: where the lines lie that
    cannot be read."""

    kind: str
    table: "pa.Table"
    left_out: int = 0
    unreadable: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    def read(self) -> "list[Rows]":
        """What the journal's reader gave goes to the tasks as it is."""
        return [self]


def table_of(kind: str, rows: Iterable[Sequence[Any]]) -> "pa.Table":
    """Rows in the order of the kind's columns."""
    return to_table(rows, arrow_schema(COLUMNS[kind]))


# Archives


def copies_in(archive: str, side: str, *, at_least: int) -> "list[ParquetCopies | LineCopies]":
    """The parts of one archive of a side; raises UsageError where there is none."""
    path = Path(archive).expanduser()
    if (path / COMMITS).is_dir():
        store = LocalStore(path)
        files = [str(store.root / one.path) for one in check_archive(store).files]
        return [ParquetCopies(side, unit) for unit in units_in(files, at_least=at_least)]
    files = sorted(str(one) for one in path.glob("*.jsonl")) if path.is_dir() else [str(path)] if path.exists() else []
    if not files:
        raise UsageError(
            f"{archive} is not an archive.",
            hint="Give a folder that `sbpair pipeline archive` wrote, or what `sbpair peek -o jsonl` printed.",
        )
    return [part for file in files for part in _lines_in(file, side)]


def _lines_in(file: str, side: str) -> "Iterator[LineCopies]":
    size = Path(file).stat().st_size
    tried = [copy is not None for _, copy in islice(LineCopies(side, file, 0, size).copies(), _LINES_TRIED)]
    if tried and not any(tried):
        raise UsageError(
            f"{file} is not an archive: its lines are none that `sbpair peek -o jsonl` or `drain --archive` writes."
        )
    for first in range(0, size, LINES_BYTES):
        yield LineCopies(side, file, first, min(size, first + LINES_BYTES))


@dataclass(frozen=True, slots=True)
class ParquetCopies:
    side: str
    unit: ReadUnit

    @property
    def rows(self) -> int:
        return self.unit.rows

    def read(self) -> list[Rows]:
        with database() as base:
            base.register("messages", row_groups(self.unit, _OF_PARQUET))
            stamp = ", ".join(
                f"map_extract(properties, '{name}')[1].value as {column}"
                for name, column in ((STREAM, "stream"), (NUMBER, "number_text"), (AFTER, "after"), (AFTER_IDS, "ids"))
            )
            base.execute(f"create view m as select *, {stamp} from messages")
            whole = "session_id is not null and session_id <> '' and message_id is not null and message_id <> ''"
            found = base.sql(
                f"""select '{self.side}' as side, lower(trim(queue, '/')) as destination, session_id, message_id,
                    sequence_number as number, epoch_us(enqueued_at) as enqueued_us, state, dead_letter,
                    dead_letter_reason as reason, stream, try_cast(number_text as bigint) as place, "after",
                    ids as after_ids
                from m where {whole}"""
            ).to_arrow_table()
            ((left_out,),) = base.sql(f"select count(*) from m where not ({whole})").fetchall()
        return [Rows(COPIES, found, left_out)]


@dataclass(frozen=True, slots=True)
class LineCopies:
    """The lines that begin in a stretch of a file's bytes."""

    side: str
    path: str
    first: int
    end: int

    @property
    def rows(self) -> int:
        """About that many."""
        return (self.end - self.first) // _ABOUT_LINE_BYTES + 1

    def read(self) -> list[Rows]:
        copies = list(self.copies())
        try:
            table = table_of(COPIES, [row for _, row in copies if row is not None and row[2] and row[3]])
        except _NOT_TAKEN:  # a number or a text that no column takes: which one?
            copies = [(at, row if row is not None and _is_taken(row) else None) for at, row in copies]
            table = table_of(COPIES, [row for _, row in copies if row is not None and row[2] and row[3]])
        unreadable = tuple(f"{self.path} at byte {at:,}" for at, row in copies if row is None)
        return [Rows(COPIES, table, len(copies) - len(unreadable) - table.num_rows, unreadable)]

    def copies(self) -> Iterator[tuple[int, tuple[Any, ...] | None]]:
        """Each line's row and where the line begins; None for one that no command of ours writes.

        A last line that a crash has cut off is left out: its message was never taken.
        """
        with Path(self.path).open("rb") as file:
            if self.first:
                file.seek(self.first - 1)
                file.readline()  # begins before; a line that begins exactly here stays
            while (at := file.tell()) < self.end and (line := file.readline()).endswith(b"\n"):
                if line.strip():
                    yield at, self._copy(line)

    def _copy(self, line: bytes) -> tuple[Any, ...] | None:
        try:
            read = json.loads(line)
            source, number, at = str(read["queue"]), int(read["sequence_number"]), read["enqueued_at"]
            at_us = None if at is None else round(MICROS * (epoch_seconds(at) if isinstance(at, str) else float(at)))
            message = describe(base64.b64decode(read["payload_base64"], validate=True))
            queue, dead_letter = split_source(source)
            said = message.application_properties
            return (
                self.side, destination_of(queue), _text(message.session_id),
                _text(read.get("message_id")) or _text(message.message_id), number,
                at_us, str(read.get("state", "active")), dead_letter,
                _text(message.dead_letter_reason), _text(said.get(STREAM)), _place(said.get(NUMBER)),
                _text(said.get(AFTER)), _text(said.get(AFTER_IDS)),
            )  # fmt: skip
        except (*_NOT_TAKEN, LookupError, AttributeError, RecursionError):
            return None


def _is_taken(row: Sequence[Any]) -> bool:
    try:
        table_of(COPIES, [row])
    except _NOT_TAKEN:
        return False
    return True


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _place(value: Any) -> int | None:
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else None


# The journal


def entries_rows(documents: Iterable[Mapping[str, Any]]) -> "list[Rows]":
    """What the sessions' entries say; raises JournalError where one of them is none."""
    recent, heads, passed, entries = [], [], [], []
    for document in documents:
        try:
            entry = SessionEntry.from_dict(document)
        except UsageError as error:
            raise JournalError(f"An entry of the journal cannot be read: {error.message}") from error
        of = (entry.destination, entry.session_id)
        for one in entry.recent:
            said = (one.state.value, _us(one.at), one.code, one.reason, one.attempts, one.fence)
            recent.append((*of, one.message_id, *said, False, False))
        heads += [(*of, one.stream, one.number) for one in entry.heads]
        passed += [(*of, one.stream, one.first, one.last) for one in entry.passed]
        current, gap = entry.current, entry.gap
        if current is not None or gap is not None:
            known = (current.message_id, current.attempts) if current else (None, None)
            missing = (gap.waiting_id, gap.missing_id, str(gap.missing or "")) if gap else (None, None, None)
            entries.append((*of, *known, *missing))
    kinds = ((RECORDS, recent), (HEADS, heads), (PASSED, passed), (ENTRIES, entries))
    return [Rows(kind, table_of(kind, rows)) for kind, rows in kinds if rows]


def record_rows(documents: Iterable[Any]) -> Rows:
    """What the records of finished messages say; raises JournalError where one of them is none. Read by hand: checking
    each in full takes ten times as long."""
    try:
        return Rows(RECORDS, table_of(RECORDS, [_record(one) for one in documents]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise JournalError("A message record of the journal cannot be read.") from error


def _record(document: Any) -> tuple[Any, ...]:
    done, settled = document["finished"], document["settled"]
    return (
        document["destination"], document["session_id"], done["message_id"], done["state"], _us(done["at"]),
        done["code"], done["reason"], done.get("attempts", 0), done.get("fence", 0), "primary" in settled,
        "secondary" in settled,
    )  # fmt: skip


def _us(seconds: float) -> int | None:
    return round(seconds * MICROS) if math.isfinite(seconds) else None


@dataclass(frozen=True, slots=True)
class JournalRange:
    """A stretch of the message records of a journal in an SQLite file."""

    path: str
    keys: KeyRange

    @property
    def rows(self) -> int:
        return self.keys.rows

    def read(self) -> list[Rows]:
        try:
            with closing(documents(Path(self.path), MESSAGE, self.keys)) as texts:
                found = [json.loads(text) for text in texts]
        except (ValueError, RecursionError) as error:
            raise JournalError(f"A message record of sqlite:{self.path} cannot be read.") from error
        return [record_rows(found)]


Part = ParquetCopies | LineCopies | JournalRange | Rows
