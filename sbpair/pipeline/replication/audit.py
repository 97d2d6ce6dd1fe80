"""`pipeline replication-audit`: parts of archives and journal, brought together by session, judged, merged.

report = audit(LocalEngine(parts, cores=2, read=read_part), Asked(as_of=time.time()), journal="sqlite:journal.db")
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sbpair.core.errors import JournalError, UsageError
from sbpair.journal.sqlite import SqliteJournal, documents, key_ranges
from sbpair.pipeline.analysis.engines import Engine
from sbpair.pipeline.analysis.partials import SESSION, Key, database
from sbpair.pipeline.replication.judging import Asked, Judged, judge
from sbpair.pipeline.replication.report import (
    VERDICTS,
    AuditedDestination,
    ReplicationFinding,
    ReplicationReport,
    VerdictCounts,
)
from sbpair.pipeline.replication.sources import (
    COPIES,
    RECORDS,
    JournalRange,
    JournalRows,
    Part,
    Rows,
    copies_in,
    entries_rows,
    record_rows,
)
from sbpair.runtime.replication.store import MESSAGE
from sbpair.runtime.replication.store import SESSION as SESSION_ENTRY

if TYPE_CHECKING:
    from sbpair.ports import Journal

RANGE_RECORDS: Final = 250_000
"""Records that one task reads."""
ROWS_PER_SHARE: Final = 2_000_000
"""Rows whose sessions one task judges."""
_COUNTED: Final = "counted"


@dataclass(frozen=True, slots=True)
class _Counted:
    """Copies that are judged, those without an id, and where unreadable ones lie."""

    copies: int
    left_out: int
    unreadable: tuple[str, ...]


def archive_parts(primary: Sequence[str], secondary: Sequence[str], *, at_least: int) -> list[Part]:
    """Everything that is to be read of the archives of both sides.

    Raises:
        UsageError: one of them is no archive.
    """
    sides = (("primary", primary), ("secondary", secondary))
    return [part for side, archives in sides for one in archives for part in copies_in(one, side, at_least=at_least)]


async def journal_parts(journal: "Journal") -> list[Part]:
    """Everything that is to be read of a journal; entries are read here and now, before any record.

    An SQLite file is then read by the tasks. The records of another journal pass through this process.

    Raises:
        JournalError: it cannot be read.
    """
    if isinstance(journal, SqliteJournal):
        return _in_file(journal.path)
    entries = entries_rows([one async for one in _scanned(journal, SESSION_ENTRY)])
    parts: list[Part] = [*entries]
    waiting: list[Any] = []
    async for document in _scanned(journal, MESSAGE):
        waiting.append(document)
        if len(waiting) == RANGE_RECORDS:
            parts.append(JournalRows(RECORDS, record_rows(waiting)))
            waiting = []
    return [*parts, JournalRows(RECORDS, record_rows(waiting))] if waiting else parts


async def _scanned(journal: "Journal", kind: str) -> Any:
    async with aclosing(journal.scan(kind)) as entries:  # type: ignore[type-var]
        async for entry in entries:
            yield entry.document


def _in_file(path: Path) -> list[Part]:
    if not path.exists():
        raise UsageError(f"There is no journal {path}.", hint="Name the file that the consumers were given.")
    try:
        with closing(documents(path, SESSION_ENTRY)) as texts:
            entries = entries_rows(json.loads(text) for text in texts)
    except (ValueError, RecursionError) as error:
        raise JournalError(f"An entry of the journal {path} cannot be read.") from error
    ranges = key_ranges(path, MESSAGE, RANGE_RECORDS)
    return [*entries, *(JournalRange(str(path.absolute()), one) for one in ranges)]


def audit(engine: Engine, asked: Asked, *, rows: int, journal: str) -> ReplicationReport:
    """Hold the engine's units, read by `sources.read_part`, together. `rows`: about how many they have."""
    shares = 1 if not engine.units else max(engine.cores, -(-rows // ROWS_PER_SHARE))
    keys: list[Key] = [*((SESSION, share) for share in range(shares)), (_COUNTED, 0)]
    found = engine.by_key(partial(_by_session, shares), partial(_judged, asked), keys, "Auditing") if rows else []
    judged = [one for one in found if isinstance(one, Judged)]
    counted = [one for one in found if not isinstance(one, Judged)]
    return ReplicationReport(
        journal=journal,
        as_of=asked.as_of,
        copies=sum(one.copies for one in counted),
        without_ids=sum(one.left_out for one in counted),
        unreadable=tuple(sorted(place for one in counted for place in one.unreadable)),
        destinations=tuple(_destinations(judged)),
        listed=tuple(_listed(judged, asked.limit)),
    )


def _by_session(shares: int, parts: Sequence[Rows]) -> Iterator[tuple[Key, Any]]:
    """The rows of one unit, by the share of their sessions; and how many copies it had."""
    for part in parts:
        if part.kind == COPIES:
            yield (_COUNTED, 0), _Counted(part.table.num_rows, part.left_out, part.unreadable)
        if shares == 1:
            yield (SESSION, 0), part
            continue
        with database() as base:
            base.register("given", part.table)
            base.execute(
                f"create table placed as select *, hash(destination, lower(session_id)) % {shares} as share from given"
            )
            for share in range(shares):
                table = base.sql(f"select * exclude (share) from placed where share = {share}").to_arrow_table()
                if table.num_rows:
                    yield (SESSION, share), Rows(part.kind, table)


def _judged(asked: Asked, key: Key, parts: Sequence[Any]) -> Any:
    if key[0] == _COUNTED:
        places = tuple(place for one in parts for place in one.unreadable)
        return _Counted(sum(one.copies for one in parts), sum(one.left_out for one in parts), places)
    return judge(parts, asked)


def _destinations(judged: Sequence[Judged]) -> Iterator[AuditedDestination]:
    sums: dict[str, dict[str, int]] = {}
    for row in (row for one in judged for row in one.destinations):
        total = sums.setdefault(row["destination"], {})
        for name, count in row.items():
            if name != "destination":
                total[name] = total.get(name, 0) + count
    for name, total in sorted(sums.items()):
        verdicts = VerdictCounts(**{one: total.pop(one) for one in VERDICTS})
        yield AuditedDestination(destination=name, verdicts=verdicts, **total)


def _listed(judged: Sequence[Judged], limit: int) -> list[ReplicationFinding]:
    found = [ReplicationFinding(**row) for one in judged for row in one.findings]
    found.sort(key=lambda one: (VERDICTS.index(one.verdict), one.destination, one.session_id, one.message_id))
    return found[:limit]
