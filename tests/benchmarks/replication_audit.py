"""How fast archives of both sides of active/active are held against the journal.

    python -m tests.benchmarks.replication_audit [--rows 1000000] [--engine spark] [--folder DIR]

`rows` messages lie on both sides, so twice as many copies are read, and a record of each in an SQLite journal. Every
second session is of our own senders. Each engine runs in a process of its own, on two cores, and finds the same.
"""

import argparse
import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from sbpair.core.replication.ownership import Finished, MessageRecord, SessionState
from sbpair.core.serialization import to_plain
from sbpair.journal.sqlite import SqliteJournal
from sbpair.pipeline.analysis.partials import database
from sbpair.pipeline.manifest import ArchiveFile, Commit, LocalStore, append
from sbpair.runtime.replication.store import MESSAGE, key_of
from tests.benchmarks.processes import Memory
from tests.benchmarks.table import Row, print_rows

CORES = 2
QUICK_ROWS = (50_000,)
FULL_ROWS = (1_000_000,)
ENGINES = ("local", "spark")
FILE_ROWS = 250_000
EACH_SESSION = 20
QUEUE = "parcels"
AS_OF = 1_795_348_800.0
_FAR = 4e9
_ROOT = Path(__file__).resolve().parents[2]
ALONE, TWICE, NEVER, EARLY = 1_000, 1_003, 997, 5_003
"""Of so many messages one is on the primary only, begun twice, not processed, processed too early."""
_COPIES = """
    with n as (select range as i, range // {each} as session, range % {each} as place from range({first}, {last})
        where {all} or range % {alone} <> 1)
    select 'shop' as pair, '{queue}' as queue, false as dead_letter, i + 1 as sequence_number,
        make_timestamp({at} + i) as enqueued_at, 'active' as state, null::varchar as dead_letter_reason,
        md5(i::varchar) as message_id, 's' || session as session_id,
        case when session % 2 = 0 then map_from_entries([
            {{'k': 'x-sbpair-stream', 'v': {{'type': 'string', 'value': 'st' || session}}}},
            {{'k': 'x-sbpair-number', 'v': {{'type': 'long', 'value': (place + 1)::varchar}}}},
            {{'k': 'x-sbpair-after', 'v': {{'type': 'string',
                'value': case when place > 0 then 'st' || session || ':' || place else '' end}}}},
            {{'k': 'x-sbpair-after-ids', 'v': {{'type': 'string',
                'value': case when place > 0 then '["' || md5((i - 1)::varchar) || '"]' else '[]' end}}}}])
        else map_from_entries([{{'k': 'kind', 'v': {{'type': 'string', 'value': 'parcel'}}}}]) end as properties
    from n"""


def make(folder: Path, rows: int) -> None:
    """Archives of both sides and the journal, unless they are there."""
    if (folder / "done").exists():
        return
    for side in ("primary", "secondary"):
        _archive(folder / side, rows, whole=side == "primary")
    _journal(folder / "journal.db", rows)
    (folder / "done").touch()


def _archive(folder: Path, rows: int, *, whole: bool) -> None:
    (folder / "data").mkdir(parents=True)
    files = []
    for first in range(0, rows, FILE_ROWS):
        last = min(rows, first + FILE_ROWS)
        path = f"data/{first:012}.parquet"
        at = round((AS_OF - 3600) * 1e6)
        query = _COPIES.format(each=EACH_SESSION, first=first, last=last, all=whole, alone=ALONE, queue=QUEUE, at=at)
        with database() as base:
            table = base.sql(query).to_arrow_table()
        pq.write_table(table, folder / path, compression="zstd", row_group_size=50_000)
        size = (folder / path).stat().st_size
        files.append(ArchiveFile(path, "shop", QUEUE, False, "unknown", table.num_rows, size, first + 1, last))
    append(LocalStore(folder), Commit(AS_OF, "run", added=tuple(files)), still_valid=lambda _: None)


def _journal(path: Path, rows: int) -> None:
    """Past the journal's own interface, which writes each document to the disk by itself."""
    with database() as base:
        ids = [one for (one,) in base.sql(f"select md5(range::varchar) from range({rows})").fetchall()]

    async def made() -> None:
        journal = SqliteJournal(path)
        await journal.check()
        await journal.close()

    asyncio.run(made())
    with sqlite3.connect(path) as connection:
        connection.executemany(
            "INSERT INTO entries VALUES (?, ?, ?, 1, ?)",
            ((MESSAGE, *_record(number, ids[number]), _FAR) for number in range(rows) if number % NEVER),
        )
    connection.close()


def _record(number: int, message: str) -> tuple[str, str]:
    session, settled = f"s{number // EACH_SESSION}", ("primary",) if number % ALONE == 1 else ("primary", "secondary")
    # One that was too early began before the one ahead of it.
    fence = number % EACH_SESSION * 2 + 2 - (3 if number % EARLY == 7 and number % EACH_SESSION else 0)
    finished = Finished(
        message, SessionState.COMPLETED, AS_OF - 60, attempts=2 if number % TWICE == 1 else 1, fence=max(1, fence)
    )
    record = to_plain(MessageRecord(QUEUE, session, finished, settled))
    return key_of(QUEUE, session, message), json.dumps(record, separators=(",", ":"))


def run(quick: bool) -> list[dict[str, Any]]:
    """`quick` takes a minute, the whole some minutes."""
    with tempfile.TemporaryDirectory(prefix="sbpair-replication-") as folder:
        return [row.as_dict() for row in measure(QUICK_ROWS if quick else FULL_ROWS, ENGINES, Path(folder))]


def measure(sizes: Sequence[int], engines: Sequence[str], folder: Path) -> list[Row]:
    found = []
    for rows in sizes:
        make(folder / f"rows-{rows}", rows)
        told = {engine: _measured(engine, rows, folder / f"rows-{rows}") for engine in engines}
        counts = [one.pop("counts") for one in told.values()]
        assert all(one == counts[0] for one in counts), counts
        print(f"{rows:,} rows: {counts[0]}", file=sys.stderr, flush=True)
        case = f"{rows:,} messages"
        for engine, one in told.items():
            found += [Row("replication_audit", case, f"{what}: {engine}", value, unit) for what, value, unit in (
                ("time", one["seconds"], "s"), ("messages a second", round(rows / one["seconds"]), ""),
                ("CPU", one["cpu_seconds"], "s"), ("peak memory", one["peak_memory_mb"], "MB"),
            )]  # fmt: skip
    return found


def _measured(engine: str, rows: int, folder: Path) -> dict[str, Any]:
    """Run one engine in a fresh process and watch its memory."""
    command = [sys.executable, "-m", "tests.benchmarks.replication_audit", "--child", engine, "--folder", str(folder)]
    process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE)
    memory = Memory(process.pid)
    memory.start()
    output, _ = process.communicate()
    memory.stop()
    if process.returncode:
        raise RuntimeError(f"{engine} failed at {rows:,} messages")
    told: dict[str, Any] = json.loads(output.decode().splitlines()[-1])
    told |= {"cpu_seconds": round(memory.cpu_seconds, 1), "peak_memory_mb": round(memory.highest / 2**20)}
    print(f"{engine}, {rows:,} messages: {told}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    return told


def _child(engine: str, folder: Path) -> dict[str, Any]:

    began = time.monotonic()
    from sbpair.pipeline.replication.audit import AuditTerms, archive_parts, audit, journal_parts
    from sbpair.pipeline.spark.session import open_spark

    parts = archive_parts([str(folder / "primary")], [str(folder / "secondary")], at_least=CORES)
    parts += asyncio.run(journal_parts(SqliteJournal(folder / "journal.db")))
    asked = AuditTerms(as_of=AS_OF)
    if engine == "local":
        report = audit(parts, asked, journal="journal")
    else:
        with open_spark(rows=100_000, master=f"local[{CORES}]") as session:
            report = audit(parts, asked, journal="journal", session=session)
    counts = asdict(report.counts) | {"messages": report.messages, "completed": report.completed}
    return {"seconds": round(time.monotonic() - began, 1), "counts": counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, action="append", help="repeatable; default 1 million")
    parser.add_argument("--engine", choices=ENGINES, action="append", help="repeatable; default both")
    parser.add_argument("--folder", type=Path, help="keep archives and journals here")
    parser.add_argument("--child", choices=ENGINES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(_child(given.child, given.folder)))
        return
    with tempfile.TemporaryDirectory(prefix="sbpair-replication-") as temporary:
        rows = measure(given.rows or FULL_ROWS, given.engine or ENGINES, given.folder or Path(temporary))
    print_rows([row.as_dict() for row in rows])


if __name__ == "__main__":
    main()
